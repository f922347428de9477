"""Solvers attacked from end to end on their worst neighbours: what is learned stays below the claim.

The loss <z, w> makes every gradient a record, so the parameters are a weighted sum of all noisy sums: along
the canary's direction nearly the likelihood ratio of the whole run. With less noise than a plan has more is
learned than it claims.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.privacy.concentrated.threshold_phase import ConcentratedReleases
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective, OneHot
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers.heavy_tailed import clipped_gd
from dpsco_jax.solvers.item_level import langevin, private_ac_sa, regularized_sgd, staged_ac_sa
from dpsco_jax.solvers.user_level import (
    item_group_privacy,
    momentum_sgd,
    multipass_sgd,
    output_perturbation,
    phased_sgd,
    preconditioned_sgd,
    sgd,
)
from tests.support.planned import planned

LINEAR = Objective(lambda w, z: jnp.vdot(z, w), 1.0, 1e-3, domains.whole_space())
FLAT, FLATTER = losses.huber(1.0, delta=1e-2), losses.huber(1.0, delta=1e-3)  # labels are far away
QUADRATIC = Objective(
    lambda w, z: 0.5 * jnp.sum((w - z) ** 2), 2.0, 1.0, domains.ball(2.0), loss_strong_convexity=1.0
)
LOGISTIC = losses.logistic(1.0, domains.ball(40.0), ridge=1e-3)


class Case(NamedTuple):
    """A run on two neighbours.

    Attributes:
        solver: its module.
        settings: of its plan.
        pair: makes the neighbours.
        least: share of ε that is learned at least.
        fault: by how much less noise is found out.
        objective: what is solved.
        epsilon: of the plan.
        trace: of the run, whose end is what is seen in place of the parameters.
        score: of what is seen, and of the plan.
        runs: how many.
    """

    solver: Any
    settings: dict[str, Any]
    pair: Callable[[], tuple[UserData, UserData]]
    least: float = 0.8
    fault: float = 1.3
    objective: Any = LINEAR
    epsilon: float = 1.0
    trace: Any = None
    score: Any = lambda seen, plan: seen[0]
    runs: int = 400_000


def _linear(first, other, users=4, items=1, dim=2, rest=0.0):
    """Records far beyond the clip: it is the clip that bounds the canary."""
    rows = jnp.full((users, items, dim), rest)
    at = (0, slice(None), 0)
    return tuple(UserData(rows.at[at].set(value)) for value in (first, other))


def _labels(size):
    """Two users on one line, with labels where the loss is linear; one of them pulls up or down."""
    pair = (jnp.asarray([[sign * size], [-size]]) for sign in (1.0, -1.0))
    return tuple(UserData(Example(jnp.ones((2, 1, 1)), labels)) for labels in pair)


def _columns():
    """One user whose items all push one way, against one whose items push the other."""
    columns = OneHot(jnp.zeros((6, 1, 1), jnp.int32).at[0].set(1))
    labels = jnp.full((6, 1), 0.5)
    return tuple(UserData(Example(columns, labels.at[0].set(y))) for y in (0.0, 1.0))


def _likeliest(path, plan):
    """The logarithm of the likelihood ratio of all noisy gradients, which the path gives away."""
    noise, q = 2 * plan.noise_multiplier, 1 / 20
    before = jnp.concatenate([jnp.zeros(1), path[:-1]])
    seen = (before - path) / plan.step_size - plan.pull * before
    ratio = jnp.exp(-2 * seen / noise**2)  # of N(-1) to N(1)
    return jnp.sum(jnp.log1p(q * (ratio - 1)))


def _gradients(path, plan):
    """The sum of all noisy gradients of steps with a pull to the origin, which the path gives away."""
    del plan
    pull = 4 / (1 + jnp.arange(len(path)))
    before = jnp.concatenate([jnp.zeros(1), path[:-1]])
    return jnp.sum(1 / pull * (pull * before + (1 + pull) * (path - before)))


SIZES = {"num_users": 4, "dim": 2, "num_steps": 3}
TAILED = {"regularization": 1.0, "radius": 1e6}
FULL_SGD = SIZES | {"sampling": "full", "averaging": "last", "step_size": 0.1}
ITEMS = {"num_users": 4, "items_per_user": 3, "dim": 1, "num_steps": 2, "step_size": 0.1}
PULLED = {
    "num_users": 20, "dim": 1, "distance": 1.0, "num_steps": 10, "step_size": 0.1, "regularization": 0.5,
}  # fmt: skip
POINT = lambda params, opt_state, estimate: params[0]  # noqa: E731
CANARY = lambda: _linear(50.0, -50.0)  # noqa: E731
CASES = {
    "sgd, full": Case(sgd, FULL_SGD, CANARY),
    "sgd, poisson": Case(
        sgd, SIZES | {"batch_size": 2, "averaging": "last", "step_size": 0.1},
        lambda: _linear(50.0, 0.0),
    ),
    "ac-sa, full": Case(private_ac_sa, SIZES | {"batch_size": 4, "distance": 1.0}, CANARY),
    "momentum": Case(
        momentum_sgd, SIZES | {"sampling": "full", "momentum": 0.2, "step_size": 0.1}, CANARY
    ),
    "staged": Case(staged_ac_sa, SIZES | {"num_stages": 2, "distance": 1.0}, CANARY),
    "clipped_gd": Case(
        clipped_gd, SIZES | TAILED | {"moments": Moments(math.inf, 1.0)}, CANARY, trace=POINT,
        score=_gradients,
    ),
    # How long later gradients are clipped to is not in the path.
    "clipped_gd, quantile": Case(
        clipped_gd, SIZES | TAILED | {"num_steps": 1, "quantile": 0.75, "clip_norm": 1.0}, CANARY,
        trace=POINT, score=_gradients,
    ),
    # What protects one item only does not protect a user.
    "all items": Case(item_group_privacy, ITEMS, lambda: _linear(50.0, -50.0, 4, 3, 1), fault=3.0),
    "drawn items": Case(
        item_group_privacy, ITEMS | {"batch_size": 2}, lambda: _linear(50.0, -50.0, 4, 3, 1), 0.25, 3.0
    ),
    "output perturbation": Case(
        output_perturbation, {"num_users": 2, "dim": 1, "distance": 1.0, "regularization": 1e-2},
        lambda: _labels(1.0), objective=FLATTER,
    ),
    # Pulled away, all noisy gradients are seen again: their differences are normal, and where one user is
    # drawn the greatest of ten tells most.
    "pulled, full": Case(
        regularized_sgd, PULLED | {"sampling": "full"}, lambda: _linear(-50.0, 50.0, 20, 1, 1, 50.0),
        0.2, 4.0, trace=POINT, score=lambda path, plan: -path[-1], runs=100_000,
    ),
    "pulled, single": Case(
        regularized_sgd, PULLED | {"sampling": "single"}, lambda: _linear(-50.0, 50.0, 20, 1, 1, 50.0),
        0.2, 4.0, trace=POINT, score=_likeliest, runs=100_000,
    ),
    "langevin": Case(
        langevin,
        {"num_users": 2, "dim": 1, "num_steps": 12, "regularization": 0.2, "step_size": 0.5, "distance": 2.0},
        lambda: _labels(1e3), 0.9, 1.2, FLAT,
    ),
    # As if users had many items: the radius is small, and every gradient fills it. The gradients of the two
    # columns are opposite in what is left of them beside their mean.
    "preconditioned": Case(
        preconditioned_sgd,
        {
            "num_users": 6, "items_per_user": 400, "dim": 2, "columns_per_row": 1, "num_steps": 2,
            "margin_scale": 100.0, "quantile": 0.5,
        },
        _columns, 0.3, 3.0, LOGISTIC, score=lambda params, plan: params[1] - params[0], runs=200_000,
    ),
    # All users at 0 but one, at ±3.8 radii: the mean moves by 7.6 radii over n a step.
    "multi-pass, tested": Case(
        multipass_sgd,
        {
            "num_users": 48, "items_per_user": 1, "dim": 1, "num_steps": 3, "radius": 0.2,
            "step_size": 1.0, "distance": 1.0, "failure": 0.2,
        },
        lambda: _linear(0.76, -0.76, 48, 1, 1), 0.3 / 8, 20.0, epsilon=8.0, trace=POINT,
        score=lambda path, plan: path[-1], runs=200_000,
    ),
    # All groups stay put but one, driven to the edge of what is kept: the average over (x_0, x_1) with
    # x_1 = z/2 is z/4.
    "phased, tested": Case(
        phased_sgd,
        {
            "num_users": 40, "items_per_user": 2, "dim": 1, "num_groups": 40, "num_phases": 1,
            "step_size": 0.5, "radius": 0.1, "failure": 0.2,
        },
        lambda: _linear(1.52, -1.52, 40, 2, 1), 0.1 / 4, 20.0, QUADRATIC, 4.0, runs=200_000,
    ),
}  # fmt: skip
DELTA = 1e-2


def _plan(case):
    given = case.settings | {"epsilon": case.epsilon, "delta": DELTA}
    return planned(case.solver.plan, case.objective, **given)


def _with_less_noise(plan, divisor):
    releases = getattr(plan, "releases", None)
    if isinstance(releases, ConcentratedReleases):
        less = dataclasses.replace(releases, noise_stddev=releases.noise_stddev / divisor)
        return plan.replace(releases=less)
    return plan.replace(noise_multiplier=plan.noise_multiplier / np.float32(divisor))


def _learned(case, plan):
    plan = jax.tree.map(lambda x: np.asarray(x, np.float32), plan)
    traced = () if case.trace is None else (case.trace,)

    def mechanism(key, data):
        start = jnp.zeros(case.settings["dim"])
        found = case.solver.solve(key, plan, case.objective, data, start, *traced)
        return found.unprivate["trace"] if traced else found.params

    score = lambda seen: case.score(seen, plan)  # noqa: E731
    key = jax.random.key(0)
    return privacy.audit(key, mechanism, *case.pair(), score, case.runs, DELTA).epsilon


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_claim_holds_and_less_noise_is_caught(name):
    case = CASES[name]
    plan = _plan(case)
    assert case.least * case.epsilon < _learned(case, plan) <= case.epsilon
    assert _learned(case, _with_less_noise(plan, case.fault)) > case.epsilon


def test_the_canary_is_as_large_as_a_user_may_be():
    """Power of the audits above: the two data sets differ by the whole sensitivity in every step."""
    case = CASES["sgd, full"]
    plan = _plan(case).replace(noise_multiplier=1e-9)
    ends = [
        sgd.solve(jax.random.key(0), plan, LINEAR, data, jnp.zeros(2)).params
        for data in case.pair()
    ]
    expected = [0.1 * 3 * 2 / 4, 0.0]
    np.testing.assert_allclose(ends[1] - ends[0], expected, rtol=3e-5, atol=1e-7)
