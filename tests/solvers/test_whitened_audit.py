"""Each release of whitened SGD attacked by itself: what is learned stays below what is claimed, and near it.

All data sets are neighbours that differ in the first user, by as much as the release allows, and in no other
release that the score sees: those have next to no noise here.
"""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.oracles import linear
from dpsco_jax.oracles.preconditioned import TunedPoint
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import (
    _coordinates,
    _first_intercept,
    whitened_sgd,
)
from dpsco_jax.solvers.user_level._linear_models import Bends

USERS, BOUND, RUNS, EPSILON, DELTA = 40, 2.0, 100_000, 1.0, 1e-2
OBJECTIVE = losses.logistic(BOUND)
MODEL = OBJECTIVE.linear_model
SOFTMAX = losses.softmax(BOUND, 2)
APART = jnp.asarray([-1.0, 1.0])  # the direction of all slopes of two classes, whatever the point
STAGES = ("start", "means", "squares", "matrix", "check", "radius", "warm", "noise")
ONCE = privacy.certified_noise_multiplier(
    privacy.FullBatch(), 1, EPSILON, DELTA, NeighboringRelation.REPLACE_ONE
)


def _plan(dim, weaker, *names, releases=1, objective=OBJECTIVE, **settings):
    """A plan in which these releases together cost (ε, δ) and no other one has noise worth the name."""
    problem = Problem(objective, num_users=USERS, items_per_user=1, dim=dim)
    settings = {
        "num_steps": 2,
        "radius_steps": 1,
        "start_steps": 1,
        "margin_scale": 100.0,
    } | settings
    plan = whitened_sgd.plan(problem, Budget(EPSILON, DELTA), **settings)
    made = [name for name in STAGES if getattr(plan, f"{name}_multiplier") is not None]
    loud = ONCE * releases**0.5 / weaker
    noise = {f"{name}_multiplier": loud if name in names else 1e-4 for name in made}
    return dataclasses.replace(plan, **noise)


def _data(first, others, label=0.5):
    rows = jnp.broadcast_to(jnp.asarray(others), (USERS, len(first)))
    rows = rows.at[0].set(jnp.asarray(first))[:, None]
    labels = jnp.full((USERS, 1), 0.5).at[0].set(label)
    return UserData(Example(rows, labels), None)


def _prepared(data):
    return linear.prepare(MODEL, data, data.items.features.shape[2])


def _coordinates_of(plan):
    return lambda key, data: _coordinates.released(key, plan, BOUND, _prepared(data))[0]


def _means(weaker):
    plan = _plan(2, weaker, "means", intercept=0, matrix=False)
    # T = (I - e₀μᵀ)·A: the mean is there whatever A is.
    score = lambda found: found.to_params[0, 1] / found.to_params[1, 1]  # noqa: E731
    return _coordinates_of(plan), score, [_data([0.0, s * BOUND], [1.0, 0.0]) for s in (1.0, -1.0)]


def _squares(weaker):
    plan = _plan(2, weaker, "squares", matrix=False)
    # The others keep both columns above the floor of scales.
    score = lambda found: found.from_params[1, 1] ** 2 - found.from_params[0, 0] ** 2  # noqa: E731
    ends = BOUND * jnp.eye(2)
    return _coordinates_of(plan), score, [_data(end, [1.4, 1.4]) for end in ends]


def _matrix(weaker):
    # One of the two rounds, under the clip of the first; the second differs by its clip alone.
    plan = _plan(2, weaker, "matrix", matrix=True)
    pair = [_data([1.4, sign * 1.4], [1.0, 1.0]) for sign in (1.0, -1.0)]

    def mechanism(key, data):
        return _coordinates._matrix(key, plan, _prepared(data), jnp.eye(2), 2.0)[0]

    return mechanism, lambda matrix: -matrix[0, 1], pair


def _check(weaker):
    plan = _plan(2, weaker, "check", matrix=True)
    # Everybody has more than the clip, so that what is found is divided out.
    pair = [_data(BOUND * end, [1.4, 1.4]) for end in jnp.eye(2)]

    def mechanism(key, data):
        return _coordinates._checked(key, plan, _prepared(data), 10.0 * jnp.eye(2))[0]

    return mechanism, lambda made: made[0, 0] ** -2 - made[1, 1] ** -2, pair


def _share(weaker):
    plan = _plan(1, weaker, "radius")
    start = TunedPoint(jnp.zeros(1), jnp.log(0.1))

    def mechanism(key, data):
        return whitened_sgd._opening_radius(
            key, plan, plan.quantile, MODEL, _prepared(data), start
        )[0]

    return mechanism, lambda radius: radius, [_data([x], [0.0], 1.0) for x in (0.0, BOUND)]


def _intercept(weaker):
    plan = _plan(1, weaker, "start", intercept=0)

    def mechanism(key, data):
        rows, slope = _prepared(data), jnp.asarray(0.4)
        given = (slope, Bends(0.25, 1.0, 0.25), rows, jnp.zeros(1), True)
        return _first_intercept.released(key, plan, OBJECTIVE, *given)[0]

    return mechanism, lambda params: params[0], [_data([BOUND], [0.0], y) for y in (0.0, 1.0)]


def _step(weaker):
    # Of the first phase: the second runs the same program, from a point and a radius that hang on the first.
    plan = _plan(1, weaker, "warm", radius_steps=4, quantile=0.05)

    def mechanism(key, data):
        return whitened_sgd.solve(key, plan, OBJECTIVE, data, jnp.zeros(1)).params

    return mechanism, lambda params: params[0], [_data([BOUND], [0.0], y) for y in (0.0, 1.0)]


def _intercept_of_classes(weaker):
    plan = _plan(2, weaker, "start", intercept=0, objective=SOFTMAX)

    def mechanism(key, data):
        rows, slope, start = _prepared(data), jnp.asarray(0.4), jnp.zeros((1, 2))
        given = (slope, Bends(0.5, 1.0, 0.5), rows, start, True)
        return _first_intercept.released(key, plan, SOFTMAX, *given)[0]

    pair = [_data([x], [0.0], 0.0) for x in (-BOUND, BOUND)]
    return mechanism, lambda params: -params[0] @ APART, pair


def _step_of_classes(weaker):
    # Of the first phase: the second one has a radius that is much smaller here.
    settings = {"radius_steps": 4, "quantile": 0.05, "objective": SOFTMAX}
    plan = _plan(2, weaker, "warm", **settings)

    def mechanism(key, data):
        return whitened_sgd.solve(key, plan, SOFTMAX, data, jnp.zeros((1, 2))).params

    pair = [_data([x], [0.0], 0.0) for x in (-BOUND, BOUND)]
    return mechanism, lambda params: -params[0] @ APART, pair


ATTACKS = {
    "intercept of classes": _intercept_of_classes,
    "step of classes": _step_of_classes,
    "means": _means,
    "squares": _squares,
    "matrix": _matrix,
    "check": _check,
    "share": _share,
    "intercept": _intercept,
    "step": _step,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_a_release_keeps_its_claim_and_less_noise_is_caught(name):
    def learned(weaker):
        mechanism, score, pair = ATTACKS[name](weaker)
        key = jax.random.key(0)
        return privacy.audit(key, mechanism, *pair, score, RUNS, DELTA).epsilon

    assert 0.7 * EPSILON < learned(1.0) <= EPSILON
    assert learned(2.0) > EPSILON
