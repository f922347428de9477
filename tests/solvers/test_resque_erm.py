"""Private ERM over a ball, proximal points, several runs: plans, the calls made, leaks, refusals."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.oracles import multilevel
from dpsco_jax.privacy import resque
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _plan_base
from dpsco_jax.solvers.resque import (
    _calls,
    _one_ball,
    resque_erm,
    resque_erm_high_probability,
    resque_prox,
)
from tests.support.planned import planned

USERS, DIM = 80, 3
ABSOLUTE = losses.absolute(1.0)
SIZES = {"num_users": USERS, "dim": DIM, "epsilon": 2.0, "delta": 1e-3, "ball_radius": 0.1}


def _data(seed=0):
    rng = np.random.default_rng(seed)
    rows, labels = rng.standard_normal((USERS, 2, DIM)), rng.standard_normal((USERS, 2))
    return UserData(Example(jnp.asarray(rows, jnp.float32), jnp.asarray(labels, jnp.float32)))


def _base(**changes):
    """A plan whose noise was not calibrated, which takes no time."""
    draft = planned(_one_ball.draft, ABSOLUTE, **SIZES | {"regularization": 5.0} | changes)
    return dataclasses.replace(draft, beta=0.3)


@functools.cache
def _calibrated():
    return planned(resque_erm.plan, ABSOLUTE, **SIZES, regularization=5.0, num_queries=20)


def test_a_plan_meets_its_budget_and_says_so():
    plan = _calibrated()
    assert plan.num_queries == 16
    certificate = plan.certificate()
    assert 1.99 < certificate.epsilon <= 2.0
    assert resque.calls_epsilon(plan.calls, 1e-3) == certificate.epsilon
    assert privacy.epsilon(plan.loss(), 1e-3) >= certificate.epsilon
    assert "whole space" in str(plan)
    more = dataclasses.replace(plan, beta=1.1 * plan.beta)
    assert more.certificate().epsilon > 2.0


@pytest.mark.parametrize(
    ("objective", "changes", "message"),
    [
        (
            losses.squared(1.0, 1.0, 1.0),
            {},
            "not known to be convex and Lipschitz on the whole space",
        ),
        (losses.softmax(1.0, 3), {}, "not a linear model"),
        (ABSOLUTE, {"radius_ratio": 1.9}, "radius_ratio"),
        (ABSOLUTE, {"num_queries": USERS + 2}, "num_queries"),
        (ABSOLUTE, {"method": "strongly_convex"}, "regularization"),
    ],
)
def test_bad_arguments_are_refused(objective, changes, message):
    with pytest.raises(ValueError, match=message):
        planned(resque_erm.plan, objective, **SIZES | changes)


def test_a_prox_without_room_for_levels_is_refused():
    with pytest.raises(ValueError, match="no room for levels"):
        planned(
            resque_prox.plan,
            ABSOLUTE,
            **SIZES,
            regularization=5.0,
            num_queries=16,
        )
    with pytest.raises(ValueError, match="failure"):
        planned(
            resque_erm_high_probability.plan, ABSOLUTE, failure=0.0, **SIZES, regularization=5.0
        )


def test_the_levels_of_a_prox_are_those_of_their_seed(monkeypatch):
    # Without noise, which takes no time and is no plan.
    monkeypatch.setattr(resque_prox.accounting, "calibrated", lambda drafted: drafted)
    monkeypatch.setattr(_plan_base, "_require_affordable", lambda plan: None)
    settings = SIZES | {"num_users": 4096, "delta": 1e-4, "regularization": 5.0, "num_queries": 4}
    first, same, other = (
        planned(resque_prox.plan, ABSOLUTE, **settings, levels_seed=seed) for seed in (1, 1, 2)
    )
    drawn = multilevel.draw_levels(jax.random.key(1), first.max_level, (first.max_level,))
    assert first.drawn == same.drawn == tuple(np.asarray(drawn).tolist())
    assert first.drawn != other.drawn


def _prox_plan():
    base = _base(num_queries=4)
    return resque_prox.Plan("mlmc_extended", 5, (2, 0, 5), base)


PLANS = {
    "localized": (resque_erm, _base(method="localized", num_queries=16)),
    "strongly_convex": (resque_erm, _base(num_queries=16, sampling="with_replacement")),
    "prox": (resque_prox, _prox_plan()),
    "high probability": (
        resque_erm_high_probability,
        resque_erm_high_probability.Plan(3, _base(num_queries=8)),
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_calls_made_are_those_accounted_for(name):
    """Size, β and way of sampling of every localized call of a run, against the accountant's list."""
    solver, plan = PLANS[name]
    made = []
    right = _calls._run

    def listen(key, setting, calls, far, center, start, beta, regularization, anchor):
        made.extend(
            (call.num_queries, round(float(beta * call.beta_factor), 5), calls.replacement)
            for call in calls.levels
        )
        return center

    data = _data()
    with mock.patch.object(_calls, "_run", listen), jax.disable_jit():
        solution = solver.solve(jax.random.key(0), plan, ABSOLUTE, data, jnp.zeros(DIM))
    assert right is _calls._run
    listed = [
        (call.num_queries, round(call.beta, 5), call.replacement)
        for call, times in plan.calls
        for _ in range(times)
    ]
    assert sorted(made) == sorted(listed)
    drawn = sum(call.num_queries - 1 for call, times in plan.calls for _ in range(times))
    assert int(solution.gradients) == 2 * drawn


@pytest.mark.slow
def test_a_ridge_is_part_of_the_quadratic():
    """No noise and a strong ridge: the solution is near the origin, not near the start."""
    plan = dataclasses.replace(_base(num_queries=16), beta=1e6)
    ridged = ABSOLUTE._replace(ridge=1e4)
    start = jnp.asarray([0.05, -0.05, 0.0])
    for objective, weight, end in ((ridged, 1.0, jnp.zeros(DIM)), (ABSOLUTE, 1e4, start)):
        chosen = dataclasses.replace(plan, regularization=weight)
        solve = jax.jit(
            lambda d, p=chosen, o=objective: resque_erm.solve(jax.random.key(3), p, o, d, start)
        )
        np.testing.assert_allclose(solve(_data()).params, end, atol=2e-3)
