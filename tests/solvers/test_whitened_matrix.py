"""Whitened SGD where parameters are a matrix: its limit without noise, its shapes, its guarded stages."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.oracles import linear
from dpsco_jax.problems import gaussian_smoothing, losses, reference
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import (
    _first_intercept,
    _linear_models,
    auto,
    preconditioned_sgd,
    whitened_sgd,
)

USERS, ITEMS, DIM = 300, 2, 6
BUDGET = Budget(4.0, 1e-5)


def _objective(classes, ridge=1e-3):
    return losses.softmax(DIM**0.5, classes, ridge=ridge)


def _table(classes, users=USERS):
    """A column of ones and correlated ones in [-1, 1]; classes of different size."""
    rng = np.random.default_rng(0)
    apart = np.abs(np.subtract.outer(*[np.arange(DIM - 1)] * 2))
    rows = 0.3 * rng.normal(size=(users, ITEMS, DIM - 1)) @ np.linalg.cholesky(0.9**apart).T
    rows = np.concatenate([np.ones((users, ITEMS, 1)), np.clip(rows, -1, 1)], axis=2)
    logits = rows @ (3.0 * rng.normal(size=(DIM, classes))) + np.linspace(0, 2, classes)
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    levels = np.cumsum(odds / odds.sum(-1, keepdims=True), axis=-1)
    labels = np.argmax(levels > rng.random((users, ITEMS, 1)), axis=-1)
    return UserData(Example(jnp.asarray(rows, jnp.float32), jnp.asarray(labels, jnp.float32)))


def _plan(objective, classes, **settings):
    problem = Problem(objective, num_users=USERS, items_per_user=ITEMS, dim=DIM * classes)
    return whitened_sgd.plan(problem, BUDGET, **{"intercept": 0, "entry_bound": 1.0} | settings)


def test_the_default_quantile_counts_all_parameters():
    """As many numbers, as much noise: 12 parameters of a vector or of a matrix."""
    vector = losses.logistic(DIM**0.5)
    problem = Problem(vector, num_users=USERS, items_per_user=ITEMS, dim=DIM * 3)
    assert _plan(_objective(3), 3).quantile == whitened_sgd.plan(problem, BUDGET).quantile


@pytest.mark.parametrize("items", [1, 3])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_step_on_the_intercept_moves_by_no_more_than_is_accounted(items, sign):
    """Slopes above the clip, and a column that is not the constant 1: one user moves by the clip, in all."""
    classes, few, slope = 4, 5, 0.2
    objective = losses.softmax(2.0, classes)
    problem = Problem(objective, num_users=few, items_per_user=items, dim=classes)
    plan = whitened_sgd.plan(problem, BUDGET, intercept=0, start_steps=1)
    plan = dataclasses.replace(plan, start_multiplier=1e-6)
    rows = jnp.zeros((few, items, 1)).at[0].set(2.0 * sign)
    model = objective.linear_model
    data = linear.prepare(model, UserData(Example(rows, jnp.zeros((few, items)))), 1)
    bends = _linear_models.Bends(1.0, 1.0, 1.0)
    given = (jnp.asarray(slope), bends, data, jnp.zeros((1, classes)), True)
    found, _, _ = _first_intercept.released(jax.random.key(0), plan, objective, *given)
    # At even odds rows of the Hessian sum to 2·¼·¾.
    length = slope / few / 0.375
    assert float(jnp.linalg.norm(found)) == pytest.approx(length, rel=1e-3)
    expected = sign * length * (4 * np.eye(classes)[0] - 1) / np.sqrt(12)
    np.testing.assert_allclose(found[0], expected, rtol=1e-3)


@pytest.mark.slow
def test_steps_are_longer_by_what_softmax_bends_less_than_its_bound():
    for classes in (2, 3, 10):
        model = losses.softmax(1.0, classes).linear_model
        assert float(_linear_models.bends(model, 0.5).flatness) == pytest.approx(
            classes / 2, rel=1e-5
        )
    assert _linear_models.bends(losses.logistic(1.0).linear_model, 0.25).flatness == 1.0
    straight = losses.softmax(1.0, 3).linear_model._replace(derivative=lambda m, y: 0.0 * m)
    assert float(_linear_models.bends(straight, 0.5).flatness) == 3.0


@pytest.mark.parametrize("shape", [(DIM * 3,), (3, DIM), (DIM, 1, 3)])
def test_a_start_of_another_shape_is_refused(shape):
    data, objective = _table(3), _objective(3)
    start = jnp.zeros(shape)
    with pytest.raises(ValueError, match="params must be"):
        whitened_sgd.solve(jax.random.key(0), _plan(objective, 3), objective, data, start)


def test_plans_for_what_does_not_fit_are_refused():
    objective = _objective(3)
    with pytest.raises(ValueError, match=r"covariance must be False .* a matrix.*, got True"):
        _plan(objective, 3, covariance=True)
    with pytest.raises(ValueError, match=r"problem\.dim must be a multiple of the 3 outputs"):
        whitened_sgd.plan(Problem(objective, num_users=USERS, dim=16), BUDGET)
    with pytest.raises(ValueError, match="intercept"):
        _plan(objective, 3, intercept=DIM)
    rows = OneHot(np.zeros((USERS, ITEMS, 2), np.int32))
    data = UserData(Example(rows, jnp.zeros((USERS, ITEMS))))
    plan, start = _plan(objective, 3), jnp.zeros((DIM, 3))
    with pytest.raises(ValueError, match="preconditioned_sgd takes the others"):
        whitened_sgd.solve(jax.random.key(0), plan, objective, data, start)


def test_what_needs_a_vector_of_parameters_says_so():
    objective, data = _objective(3), _table(3)
    problem = Problem(objective, num_users=USERS, items_per_user=ITEMS, dim=DIM * 3, distance=1.0)
    link = gaussian_smoothing.by_quadrature(objective.linear_model.link)
    for ask in (
        lambda: preconditioned_sgd.plan(problem, BUDGET),
        lambda: reference.solve(objective, data, DIM),
        lambda: gaussian_smoothing.smoothed(objective, link, 0.1),
        lambda: auto.plan(problem, BUDGET, gradient_budget=10**6, intercept=0),
    ):
        with pytest.raises(ValueError, match=r"vector|None but for dense rows"):
            ask()


def test_auto_predicts_for_a_matrix_what_it_did_without_a_linear_model():
    def choice(objective):
        problem = Problem(
            objective, num_users=USERS, items_per_user=ITEMS, dim=DIM * 3, distance=1.0
        )
        plan = auto.plan(problem, BUDGET, gradient_budget=10**6, rank_by="prediction")
        return plan.choice, [row.prediction for row in plan.rows]

    objective = _objective(3)._replace(domain=domains.ball(2.0))
    assert repr(choice(objective)) == repr(choice(objective._replace(linear_model=None)))
