"""Private ERM by ball acceleration: it minimizes, within its budget of calls, and leaks nothing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.problems import losses, users
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.resque import ball_accelerated_erm
from tests.support.planned import planned

ABSOLUTE = losses.absolute(1.0)
TRUTH = np.array([0.6, -0.3, 0.2])


def _data(num_users, truth=TRUTH, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((num_users, 1, len(truth)))
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    labels = rows @ truth + noise * rng.standard_normal((num_users, 1))
    return UserData(Example(jnp.asarray(rows, jnp.float32), jnp.asarray(labels, jnp.float32)))


@functools.cache
def _plan(**changes):
    """400 users, large balls, a budget that leaves hardly any noise."""
    sizes = {"num_users": 400, "dim": 3, "epsilon": 1.0, "delta": 1e-3, "distance": 1.0}
    settings = {"condition": 10.0, "smoothing_radius": 0.1, "radius_ratio": 2.5, "num_queries": 64}
    made = planned(
        ball_accelerated_erm.plan, ABSOLUTE, **sizes, **settings | changes, largest_error=np.inf
    )
    return dataclasses.replace(made, beta=1e4)


def _excess(params, data):
    loss = users.mean_loss(ABSOLUTE)
    return float(loss(params, data) - loss(jnp.asarray(TRUTH, jnp.float32), data))


@pytest.mark.slow
def test_it_minimizes_within_its_budget_of_calls():
    plan, data = _plan(), _data(400)
    solve = jax.jit(lambda key, p, d: ball_accelerated_erm.solve(key, p, ABSOLUTE, d, jnp.zeros(3)))
    found = solve(jax.random.key(0), plan, data)
    assert _excess(found.params, data) < 0.02 < 0.1 * _excess(jnp.zeros(3), data)
    trace = found.unprivate["trace"]
    made = np.asarray(trace["calls"])
    assert 0 < trace["iterations"] <= plan.outer.num_iterations
    assert np.all(np.isinf(found.privacy.rdp))  # the plan was given less noise than accounted for
    assert np.all(made <= plan.budgeted)
    assert int(found.unprivate["gradients"]) == made[0] * 53
    assert int(found.gradients) == plan.budgeted[0] * 53
    # Too few calls for the target: the budget is what stops it.
    short = dataclasses.replace(plan, outer=dataclasses.replace(plan.outer, target_weight=1e9))
    made = np.asarray(solve(jax.random.key(1), short, data).unprivate["trace"]["calls"])
    assert plan.outer.num_iterations <= made[0] <= plan.budgeted[0]


@pytest.mark.slow
def test_independent_prox_points_of_several_levels_are_counted():
    plan = _plan(reuse=False, prox="mlmc", num_queries=32, search_runs=3, num_iterations=4)
    plan = dataclasses.replace(plan, outer=dataclasses.replace(plan.outer, target_weight=1e9))
    found = jax.jit(
        lambda key, d: ball_accelerated_erm.solve(key, plan, ABSOLUTE, d, jnp.zeros(3))
    )(jax.random.key(0), _data(400))
    made, searches = np.asarray(found.unprivate["trace"]["calls"]), 3 * 4 * plan.outer.max_searches
    assert made.sum() > 4 * 3
    np.testing.assert_array_equal(made[1:], plan.budgeted[1:])
    assert plan.budgeted[0] - searches < made[0] <= plan.budgeted[0]
