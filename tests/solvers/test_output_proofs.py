"""What the privacy of output perturbation rests on: proven losses, empty users, and any step size."""

import dataclasses
import math

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, LinearModel, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import output_perturbation
from tests.support.planned import planned

BUDGET = {"num_users": 10, "dim": 3, "epsilon": 1.0, "delta": 1e-5, "distance": 2.0}
OBJECTIVES = {
    "whole space": losses.logistic(1.0),
    "ball": losses.huber(1.0, 0.3, domains.ball(0.7), ridge=0.02),
    "no closed form": losses.squared_distance(1.0, 1.0),
}


def _plan(objective, **changes):
    return planned(output_perturbation.plan, objective, **(BUDGET | changes))


def _noiseless(plan):
    return dataclasses.replace(plan, noise_multiplier=1e-12)


def _own(loss, **changes):
    fields = {"lipschitz": 1.0, "smoothness": 1.0, "domain": domains.whole_space()}
    return Objective(loss=loss, **(fields | changes))


def test_losses_that_are_not_convex_lipschitz_and_smooth_by_construction_are_refused():
    with pytest.raises(ValueError, match="objective must be smooth"):
        _plan(losses.hinge(1.0))
    wavy = LinearModel(lambda m, y: jnp.sin(m), lambda m, y: jnp.cos(m), 1.0)
    softmax, huber = losses.softmax(1.0, 3), losses.huber(1.0, delta=2.0)
    distance, sphere = losses.squared_distance(1.0, 1.0), domains.ball(1.0)
    forged = sphere._replace(project=lambda w: jax.tree.map(lambda leaf: 3.0 * leaf, w))
    for objective, named in [
        (_own(lambda w, z: jnp.vdot(w, z)), "a loss of problems.losses"),
        # The module of a function is a name that anybody may give.
        (_own(softmax.loss, lipschitz=2.0, smoothness=0.05), "smoothness"),
        (_own(softmax.loss, lipschitz=0.1), "lipschitz"),
        (softmax._replace(smoothness=0.05), "smoothness"),
        (softmax._replace(lipschitz=0.1), "lipschitz"),
        (softmax._replace(lipschitz=math.nan), "lipschitz"),
        (softmax._replace(loss_strong_convexity=0.1), "loss_strong_convexity"),
        (softmax._replace(ridge=-0.1), "ridge"),
        (huber._replace(linear_model=wavy), "linear_model"),
        (huber._replace(linear_model=huber.linear_model._replace(feature_bound=9.0)), "linear_model"),
        (huber._replace(lipschitz=1.0), "lipschitz"),
        (distance._replace(domain=domains.ball(9.0)), "domain"),
        (distance._replace(loss_strong_convexity=2.0), "loss_strong_convexity"),
        (softmax._replace(domain=forged), "domain"),
        (softmax._replace(domain=sphere._replace(diameter=1e-3)), "diameter"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=named):
            _plan(objective, regularization=0.1)
    named = losses.softmax(1.0, 3).loss
    impostor = lambda w, z: 100.0 * named(w, z)  # noqa: E731
    impostor.__module__ = losses.__name__
    with pytest.raises(ValueError, match=r"a loss of problems\.losses"):
        _plan(_own(impostor))
    for objective in (softmax, losses.squared(1.0, 1.0, 1.0), losses.huber(2.0)):
        assert _plan(objective).excess_bound < math.inf
        # To claim less than is proven is no harm.
        weaker = objective._replace(lipschitz=2 * objective.lipschitz)
        assert _plan(weaker).excess_bound < math.inf


def test_a_loss_copied_by_value_is_refused_with_the_way_out():
    sent = cloudpickle.loads(cloudpickle.dumps(losses.logistic(1.0, ridge=0.1)))
    with pytest.raises(ValueError, match="make the objective anew in the process that uses it"):
        planned(output_perturbation.plan, sent, num_users=10, dim=2, epsilon=1.0, delta=1e-3)


def test_a_plan_runs_with_the_objective_that_it_was_made_for_only():
    plan = _plan(OBJECTIVES["whole space"], regularization=0.1)
    # Privacy does not rest on what the plan says of its objective's constants.
    plan = dataclasses.replace(plan, made_for=None)
    data = UserData(Example(jnp.zeros((10, 1, 3)), jnp.zeros((10, 1))))
    for objective in (losses.logistic(2.0), losses.logistic(1.0, ridge=0.1), losses.huber(1.0)):
        with pytest.raises(ValueError, match=r"objective must have plan\.proven_for"):
            output_perturbation.solve(jax.random.key(0), plan, objective, data, jnp.zeros(3))


def _absent(data, there):
    mask = jnp.ones(jax.tree.leaves(data.items)[0].shape[:2], bool) & there[:, None]
    return data._replace(mask=mask)


def test_a_user_among_empty_ones_moves_the_point_by_at_most_the_sensitivity():
    """The loss of an empty user is not convex: the point moved 0.18 against a declared 0.14."""
    users, objective = 18, losses.squared_distance(1.0, 1.0)
    plan = _noiseless(_plan(objective, num_users=users, regularization=0.57))
    # One step is enough where all are there; where they are not, more of them lead farther.
    plan = dataclasses.replace(plan, num_steps=50)
    run = jax.jit(
        lambda d: (
            output_perturbation.solve(jax.random.key(0), plan, objective, d, jnp.zeros(3)).params
        )
    )
    there = jnp.arange(users) == 0
    ends = []
    for sign in (1.0, -1.0):
        items = jnp.zeros((users, 1, 3)).at[0, 0, 0].set(sign)
        ends.append(run(_absent(UserData(items), there)))
    moved = float(jnp.linalg.norm(ends[0] - ends[1]))
    assert 0.2 * plan.sensitivity < moved <= plan.sensitivity
    # The strong convexity of the loss is there for whoever is not, too: 2/(λN) for a gap of two.
    assert moved == pytest.approx(2.0 / (1.57 * users), rel=0.02)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_mix_of_absent_users_and_users_without_a_number_moves_it_further(name):
    """Random masks, users with NaN, infinite and huge items, extreme neighbours."""
    objective, users = OBJECTIVES[name], 10
    plan = dataclasses.replace(_noiseless(_plan(objective, regularization=0.05)), num_steps=200)
    solver = jax.jit(
        lambda k, p, d: output_perturbation.solve(k, p, objective, d, jnp.full(3, 0.1))
    )
    rng = np.random.default_rng(3)

    def user():
        kind = rng.integers(6)
        size = [1.0, 1e-3, 1e6, np.nan, np.inf, 3e38][kind]
        rows = np.float32(rng.choice([-1.0, 1.0]) * np.array([1.0, 0.0, 0.0]) * np.ones((2, 1)))
        with np.errstate(over="ignore", invalid="ignore"):
            rows = np.float32(rows * size)
        return rows, np.float32(rng.choice([0.0, 1.0, 0.5, np.nan, np.inf]))

    def data_of(rows, labels, mask):
        items = jnp.asarray(np.stack(rows))
        if name != "no closed form":
            items = Example(
                items, jnp.broadcast_to(jnp.asarray(np.stack(labels))[:, None], (users, 2))
            )
        return UserData(items, jnp.asarray(mask))

    furthest = 0.0
    for _ in range(40):
        rows, labels = map(list, zip(*(user() for _ in range(users)), strict=True))
        mask = rng.random((users, 2)) < rng.choice([0.0, 0.0, 0.1, 1.0])
        other_rows, other_labels, other_mask = list(rows), list(labels), mask.copy()
        other_rows[0], other_labels[0] = user()
        mask[0], other_mask[0] = True, rng.random(2) < 0.7
        pair = data_of(rows, labels, mask), data_of(other_rows, other_labels, other_mask)
        ends = [solver(jax.random.key(0), plan, d).params for d in pair]
        assert np.all(np.isfinite(ends))
        furthest = max(furthest, float(np.linalg.norm(np.subtract(*ends))))
    assert 0.1 * plan.sensitivity < furthest <= float(plan.sensitivity)


def test_longer_steps_move_it_no_further_than_recomputed():
    """Up to 2/H' steps contract: a replaced user at each end, the other one curved or flat."""
    objective = losses.squared(1.0, 1.0, 1.0)
    planned = _noiseless(_plan(objective, num_users=2, dim=1, regularization=0.01))
    run = jax.jit(
        lambda p, d: output_perturbation.solve(jax.random.key(0), p, objective, d, jnp.zeros(1))
    )
    for steps in (1, 20):
        for factor in (0.3, 1.0, 1.4, 1.9, 1.99):
            plan = dataclasses.replace(
                planned, num_steps=steps, step_size=factor * planned.step_size
            )
            moved = 0.0
            for curved in (0.0, 1.0):
                ends = []
                for label in (1.0, -1.0):
                    features = jnp.asarray([[[1.0]], [[curved]]])
                    labels = jnp.asarray([[label], [0.0]])
                    ends.append(run(plan, UserData(Example(features, labels))).params)
                moved = max(moved, abs(float(ends[0][0] - ends[1][0])))
            assert 0.0 < moved <= float(plan.sensitivity)
            assert bool(plan.accounted)
    too_long = dataclasses.replace(plan, step_size=2.01 / 1.01)
    assert too_long.certificate().epsilon == math.inf
    spent = run(too_long, UserData(Example(features, labels))).privacy
    assert np.all(np.isinf(spent.rdp))
