"""Second-moment matrices that are released in two rounds, and what the lengths of steps follow."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.oracles import linear
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import _coordinates, whitened_sgd
from dpsco_jax.solvers.user_level._linear_models import Bends

USERS, DIM, BOUND = 2000, 6, 50.0
OBJECTIVE = losses.huber(BOUND, 0.1)


def _plan(epsilon=8.0, **settings):
    problem = Problem(OBJECTIVE, num_users=USERS, items_per_user=1, dim=DIM)
    return whitened_sgd.plan(problem, Budget(epsilon, 1e-5), matrix=True, **settings)


def _prepared(rows):
    data = UserData(Example(jnp.asarray(rows, jnp.float32)[:, None], jnp.zeros((USERS, 1))), None)
    return linear.prepare(OBJECTIVE.linear_model, data, DIM)


def _spectrum(rows, to_params):
    moved = np.asarray(rows, np.float64) @ np.asarray(to_params, np.float64)
    return np.linalg.eigvalsh(moved.T @ moved / USERS)


def _rows_along_one_line():
    """Columns of deviation one that differ by a hundredth of their variance."""
    common, own = np.random.default_rng(0).normal(size=(2, USERS, DIM))
    return np.sqrt(0.99) * common[:, :1] + 0.1 * own


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_second_round_sees_what_the_noise_of_the_first_hid(seed):
    rows, key = _rows_along_one_line(), jax.random.key(seed)
    plan = _plan(1.0)
    found, _ = _coordinates.whitened(key, plan, _prepared(rows), jnp.eye(DIM))
    both = _spectrum(rows, found)
    # In one round, with twice its share, eigenvalues end at the edge of its noise.
    once = 2 * DIM**0.5 * (plan.matrix_multiplier / 2**0.5) * DIM / USERS
    assert 0.01 / once < 0.12
    assert both.min() > 3 * 0.01 / once
    assert both.max() < plan.largest_moment


def test_rare_columns_are_not_taken_for_columns_of_little_variance():
    """Whose rows are long are clipped: what their columns lack of a variance of one must be put back."""
    rows = np.random.default_rng(1).normal(size=(USERS, DIM))
    rare = np.arange(USERS) % 50 == 0
    rows[:, -1] = np.where(rare, 50.0**0.5, 0.0)
    found, _ = _coordinates.whitened(jax.random.key(0), _plan(), _prepared(rows), jnp.eye(DIM))
    clipped = np.minimum(1.0, DIM / np.sum(rows**2, axis=1))
    # Their clipped second moment is a ninth of the true one.
    assert np.mean(clipped * rows[:, -1] ** 2) < 0.2
    assert _spectrum(rows, found).max() < 1.6


def test_what_all_columns_lack_is_divided_out_and_what_one_lacks_put_back():
    matrix, common = _coordinates._without_clipping(
        jnp.asarray([[0.5, 0.2, 0.1], [0.2, 0.5, 0.0], [0.1, 0.0, 0.1]])
    )
    np.testing.assert_allclose(common, 0.5)
    np.testing.assert_allclose(matrix, [[1, 0.4, 0.2], [0.4, 1, 0], [0.2, 0, 1]], atol=1e-6)


def test_a_direction_that_clips_hid_is_divided_by_what_the_check_sees():
    """All mass of one direction is in few users: both rounds see next to nothing of it."""
    plan = dataclasses.replace(_plan(), check_multiplier=1e-3)
    rows = np.ones((USERS, DIM))
    rows[:, 0] = np.where(np.arange(USERS) % 4 == 0, 4.0, 0.0)
    made, _ = _coordinates._checked(jax.random.key(0), plan, _prepared(rows), jnp.eye(DIM))
    np.testing.assert_allclose(np.diag(made), [0.5, 1, 1, 1, 1, 1], atol=1e-2)


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_steps_are_as_long_as_noise_lets_directions_be_told_apart(epsilon):
    plan, curvature = _plan(epsilon), 0.5
    largest = plan.largest_moment
    for phase, share, least in ((0, 0.5, 3.0), (1, 1.0, 20.0)):
        steps = (plan.warm_steps, plan.num_steps)[phase]
        multiplier = (plan.warm_multiplier, plan.noise_multiplier)[phase]
        # One user's sums are at most √(1 + 0.2²/4) long, two differ by twice that.
        noise = 2.0 * 2.0 * 1.01**0.5 * multiplier / USERS / steps**0.5
        expected = max(share * 0.5 / (noise * DIM**0.5), least / curvature) / steps
        found = plan.step_size(phase, Bends(curvature, 1.0, curvature), 2.0, 0.5)
        assert found == pytest.approx(min(expected, 1 / (largest * curvature)), rel=1e-5)
        known = Bends(curvature, 1.0, curvature / 4)
        found = plan.step_size(phase, known, 2.0, 0.5)
        assert found == pytest.approx(min(expected, 4 / (largest * curvature)), rel=1e-5)


def test_noise_that_float32_cannot_draw_is_no_noise():
    edited = dataclasses.replace(_plan(), squares_bound=1e-38)
    assert np.isinf(edited.certificate().epsilon)
    assert not np.isfinite(edited.loss().rdp).any()


def test_users_with_too_many_items_for_a_matrix_get_none():
    logistic = losses.logistic(4.0)
    problem = Problem(logistic, num_users=40, items_per_user=20_000, dim=16)
    assert whitened_sgd.plan(problem, Budget(50.0, 1e-5)).matrix_multiplier is None
    with pytest.raises(ValueError, match="matrix must be False for 20000 items a user"):
        whitened_sgd.plan(problem, Budget(50.0, 1e-5), matrix=True)
    fewer = Problem(logistic, num_users=40, items_per_user=10, dim=16)
    assert whitened_sgd.plan(fewer, Budget(50.0, 1e-5)).matrix_multiplier is not None
