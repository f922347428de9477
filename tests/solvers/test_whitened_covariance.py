"""The covariance of whitened SGD: shrinkage in closed form, cost, and intervals that hold the truth."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import whitened_sgd

DIM = 4
TRUTH = np.array([0.2, 0.5, -0.6, 0.3], np.float32)
OBJECTIVES = {
    "logistic": losses.logistic(2.0),
    "squared": losses.squared(2.0, 1.0, 10.0),
    "huber": losses.huber(2.0, 0.5),
}


def _drawn(kind, key, users, items):
    """Rows with a constant, correlated, uncentred; a population's coefficients are ``TRUTH``."""
    rows_key, shared_key, label_key = jax.random.split(key, 3)
    raw = jax.random.uniform(rows_key, (users, items, DIM - 1), minval=-1.0)
    raw = 0.5 * raw + 0.3 * jax.random.uniform(shared_key, (users, 1, DIM - 1), minval=-1.0)
    rows = raw.at[..., 1].add(0.6 * raw[..., 0]).at[..., 2].add(0.1)
    rows = jnp.concatenate([jnp.ones((users, items, 1)), rows], axis=-1)
    margins = rows @ TRUTH
    if kind == "logistic":
        chance = jax.random.uniform(label_key, (users, items))
        labels = jnp.where(chance < jax.nn.sigmoid(margins), 1.0, -1.0)
    else:
        labels = 0.5 * margins + 0.2 * jax.random.uniform(label_key, (users, items), minval=-1.0)
    return UserData(Example(rows, labels), None)


@functools.cache
def _runs(kind, users, items, epsilon, count):
    """Released points and covariances of ``count`` data sets, ``[count, DIM]`` and ``[count, DIM, DIM]``."""
    objective = OBJECTIVES[kind]
    problem = Problem(objective, num_users=users, items_per_user=items, dim=DIM)
    plan = whitened_sgd.plan(
        problem, Budget(epsilon, 1e-5), intercept=0, entry_bound=1.0, covariance=True
    )

    @jax.jit
    def run(key):
        data_key, solve_key = jax.random.split(key)
        data = _drawn(kind, data_key, users, items)
        found = whitened_sgd.solve(solve_key, plan, objective, data, jnp.zeros(DIM))
        return found.params, found.released["covariance"]

    found = [run(key) for key in jax.random.split(jax.random.key(0), count)]
    return tuple(np.array(part) for part in zip(*found, strict=True))


def _covered(points, covariances, truth, level=0.9):
    errors = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    return np.mean(np.abs(points - truth) <= stats.norm.ppf(0.5 + level / 2) * errors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "users", "items", "epsilon"),
    [("logistic", 4000, 1, 1.0), ("squared", 3000, 3, 1.0), ("huber", 3000, 2, 4.0)],
)
def test_nine_in_ten_intervals_hold_the_truth(kind, users, items, epsilon):
    points, covariances = _runs(kind, users, items, epsilon, 250)
    truth = TRUTH if kind == "logistic" else 0.5 * TRUTH
    # Of 1,000 intervals, of which the four of a run are correlated: a standard error of about 1.2 %.
    assert 0.87 <= _covered(points, covariances, truth) <= 0.93 + 0.025


def test_what_is_noise_is_taken_away():
    """An identity's multiple keeps nothing of the spread; a matrix far above its noise all of it."""
    dim, stddev = 30, 0.05
    rng = np.random.default_rng(0)
    noise = rng.normal(0, stddev, (dim, dim))
    noise = np.triu(noise, 1) + np.triu(noise, 1).T + np.diag(rng.normal(0, 2**0.5 * stddev, dim))
    shrunk = jax.jit(whitened_sgd._shrunk)
    flat = shrunk(0.7 * np.eye(dim) + noise, stddev, (0.01, 1.0))
    far = np.linalg.norm(flat - 0.7 * np.eye(dim))
    assert far < 0.4 * np.linalg.norm(noise)
    spread = np.diag(np.linspace(1.0, 5.0, dim))
    kept = shrunk(spread + noise, stddev, (0.01, 10.0))
    np.testing.assert_allclose(kept, spread + noise, atol=0.15)
    least = shrunk(np.diag([-1.0, 3.0]), 1e-3, (0.01, 10.0))
    np.testing.assert_allclose(np.linalg.eigvalsh(least), [0.1, 3.0], rtol=1e-4)


def test_a_covariance_is_paid_for_and_only_then_released():
    problem = Problem(OBJECTIVES["logistic"], num_users=300, items_per_user=1, dim=DIM)
    without = whitened_sgd.plan(problem, Budget(1.0, 1e-5), num_steps=10)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), num_steps=10, covariance=True)
    assert plan.certificate().epsilon == pytest.approx(without.certificate().epsilon, rel=1e-3)
    assert (plan.covariance_multiplier, 2) in plan.releases
    assert plan.noise_multiplier > without.noise_multiplier
    data = jax.jit(lambda key: _drawn("logistic", key, 300, 1))(jax.random.key(3))

    def run(key, made):
        found = whitened_sgd.solve(key, made, OBJECTIVES["logistic"], data, jnp.zeros(DIM))
        assert ("covariance" in found.released) == (made is not without)
        return found.privacy

    # What a run without one is charged is in test_whitened_sgd.
    jax.eval_shape(lambda key: run(key, without), jax.random.key(1))
    ran = jax.jit(lambda key: run(key, plan))(jax.random.key(1))
    spent, claimed = (float(privacy.epsilon(x, 1e-5)) for x in (ran, plan.loss()))
    assert spent == pytest.approx(claimed, rel=1e-3)
