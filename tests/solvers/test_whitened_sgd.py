"""Whitened SGD: its budget, its limit without noise, and that units, means and correlation do not matter."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.geometry import ball
from dpsco_jax.oracles import linear
from dpsco_jax.problems import losses, reference
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData, mean_loss
from dpsco_jax.solvers import Status
from dpsco_jax.solvers.user_level import _coordinates, whitened_sgd

USERS, ITEMS = 400, 3
MULTIPLIERS = ("start", "means", "squares", "matrix", "radius", "warm", "noise")


def _table(kind, dim, seed=0):
    """A column of ones, and columns in [-1, 1] that are correlated, far from centred, or many."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(USERS, ITEMS, dim - 1))
    if kind == "correlated":
        shape = np.linalg.cholesky(0.9 ** np.abs(np.subtract.outer(*[np.arange(dim - 1)] * 2)))
        rows = 0.3 * rows @ shape.T
    elif kind == "uncentred":
        rows = rng.uniform(-0.8, 0.8, dim - 1) + 0.08 * rows
    else:
        rows = 0.2 * rows
    rows = np.concatenate([np.ones((USERS, ITEMS, 1)), np.clip(rows, -1, 1)], axis=2)
    weights = rng.normal(size=dim) / rows.std((0, 1)).clip(0.05) / dim**0.5
    margins = rows @ weights - np.mean(rows @ weights)
    labels = rng.random((USERS, ITEMS)) < 1 / (1 + np.exp(-margins))
    data = UserData(Example(jnp.asarray(rows, jnp.float32), jnp.asarray(labels, jnp.float32)), None)
    return data, losses.logistic(dim**0.5, ridge=1e-3)


def _plan(objective, dim, epsilon=4.0, **settings):
    problem = Problem(objective, num_users=USERS, items_per_user=ITEMS, dim=dim)
    settings = {"intercept": 0, "entry_bound": 1.0} | settings
    return whitened_sgd.plan(problem, Budget(epsilon, 1e-5), **settings)


def _quiet(plan):
    names = [f"{name}_multiplier" for name in MULTIPLIERS]
    return dataclasses.replace(plan, **dict.fromkeys(names, 1e-4))


@pytest.mark.parametrize("intercept", [None, 0])
@pytest.mark.parametrize("matrix", [True, False])
@pytest.mark.parametrize("epsilon", [0.3, 5.0])
def test_the_budget_is_met_and_used_up(epsilon, matrix, intercept):
    _, objective = _table("correlated", 5)
    plan = _plan(objective, 5, epsilon, matrix=matrix, intercept=intercept)
    assert 0.999 * epsilon < plan.certificate().epsilon <= epsilon
    # All releases together are one Gaussian release, counted here by hand.
    counts = {"squares": 1, "radius": 60, "warm": 90, "noise": 210}
    counts |= {"matrix": 2, "check": 1} if matrix else {}
    counts |= {"start": 60, "means": 1} if intercept is not None else {}
    precision = sum(n / getattr(plan, f"{k}_multiplier") ** 2 for k, n in counts.items())
    once = privacy.certified_noise_multiplier(
        privacy.FullBatch(), 1, epsilon, 1e-5, plan.certificate().relation
    )
    assert precision**-0.5 == pytest.approx(once, rel=1e-5)


@pytest.mark.slow
def test_the_ledger_of_a_run_is_that_of_the_plan():
    data, objective = _table("correlated", 5)
    plan = _plan(objective, 5, num_steps=20)
    run = jax.jit(lambda key: whitened_sgd.solve(key, plan, objective, data, jnp.zeros(5)))
    solution = run(jax.random.key(0))
    spent = float(privacy.epsilon(solution.privacy, 1e-5))
    assert plan.ledger_epsilon() * (1 - 1e-5) <= spent <= plan.ledger_epsilon() * (1 + 1e-3)
    assert solution.status == Status.OK
    assert solution.gradients == solution.unprivate["gradients"] == (60 + 60 + 20) * USERS * ITEMS


@pytest.mark.parametrize(
    ("kind", "dim"),
    [
        pytest.param("correlated", 12, marks=pytest.mark.slow),
        pytest.param("uncentred", 12, marks=pytest.mark.slow),
        pytest.param("many", 110, marks=pytest.mark.slow),
    ],
)
def test_without_noise_less_than_two_percent_of_the_start_is_left(kind, dim):
    data, objective = _table(kind, dim)
    plan = _plan(objective, dim, num_steps=600, quantile=0.995, margin_scale=1.0)
    optimum = reference.solve(objective, data, dim)
    run = jax.jit(lambda k: whitened_sgd.solve(k, _quiet(plan), objective, data, jnp.zeros(dim)))
    value = mean_loss(objective)(run(jax.random.key(0)).params, data)
    start = mean_loss(objective)(jnp.zeros(dim), data) - optimum.value
    assert -1e-5 <= value - optimum.value < 0.02 * start


@pytest.mark.slow
@pytest.mark.parametrize(("share", "ridge"), [(0.2, 1e-3), (0.6, 1e-3), (0.6, 0.1)])
def test_without_noise_it_ends_at_the_minimizer_over_a_ball(share, ridge):
    """Whose border is met aslant in the coordinates: against projected gradient descent in NumPy."""
    data, _ = _table("correlated", 12)
    rows = np.asarray(data.items.features, float).reshape(-1, 12)
    labels = np.asarray(data.items.label, float).ravel()
    radius = share * np.linalg.norm(_least_over_a_ball(rows, labels, ridge, np.inf))
    objective = losses.logistic(12**0.5, ball(radius), ridge=ridge)
    plan = _plan(objective, 12, num_steps=600, quantile=0.995, margin_scale=1.0)
    run = jax.jit(lambda k: whitened_sgd.solve(k, _quiet(plan), objective, data, jnp.zeros(12)))
    found = np.asarray(run(jax.random.key(0)).params, float)
    assert np.linalg.norm(found) <= radius * (1 + 1e-5)
    least = _risk(rows, labels, ridge, _least_over_a_ball(rows, labels, ridge, radius))
    start = _risk(rows, labels, ridge, np.zeros(12)) - least
    assert -1e-6 * start <= _risk(rows, labels, ridge, found) - least < 0.02 * start


def _risk(rows, labels, ridge, point):
    margins = rows @ point
    return np.mean(np.logaddexp(0, margins) - labels * margins) + 0.5 * ridge * point @ point


def _least_over_a_ball(rows, labels, ridge, radius, steps=800):
    point = ahead = np.zeros(rows.shape[1])
    length = 1 / (0.25 * np.linalg.eigvalsh(rows.T @ rows / len(rows))[-1] + ridge)
    for count in range(steps):
        slopes = 1 / (1 + np.exp(-rows @ ahead)) - labels
        wanted = ahead - length * (rows.T @ slopes / len(rows) + ridge * ahead)
        wanted *= min(1.0, radius / np.linalg.norm(wanted))
        point, ahead = wanted, wanted + count / (count + 3) * (wanted - point)
    return point


def test_one_hot_rows_are_refused_and_the_other_solver_named():
    _, objective = _table("correlated", 5)
    rows = OneHot(np.zeros((USERS, ITEMS, 2), np.int32))
    data = UserData(Example(rows, jnp.zeros((USERS, ITEMS))), None)
    with pytest.raises(ValueError, match="preconditioned_sgd takes the others"):
        whitened_sgd.solve(jax.random.key(0), _plan(objective, 5), objective, data, jnp.zeros(5))


def test_a_matrix_that_would_show_nothing_is_not_released():
    _, objective = _table("correlated", 5)
    assert _plan(objective, 5, 8.0).matrix_multiplier is not None
    assert _plan(objective, 5, 0.01).matrix_multiplier is None


def test_rows_that_leave_the_numbers_count_as_zero():
    """One user's rows must not turn everybody's sum into NaN, whatever the map of rows is."""
    data, objective = _table("correlated", 5)
    prepared = linear.prepare(objective.linear_model, data, 5)
    rows = _coordinates.transformed(prepared, 1e38 * jnp.eye(5)).features
    assert jnp.all(jnp.isfinite(rows))
    assert not jnp.any(rows)
    kept = _coordinates.transformed(prepared, 2.0 * jnp.eye(5)).features
    np.testing.assert_allclose(kept, 2 * prepared.features, rtol=1e-6)
