"""DP-SGD by matrix products against loops in NumPy, and its noise against its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from dpsco_jax.problems import losses
from experiments.studies import table_dp_sgd
from experiments.studies.table_dp_sgd import Flat, Settings

pytestmark = pytest.mark.slow  # of studies alone: nothing that is installed rests on it

OBJECTIVES = {
    "logistic": losses.logistic(4.0, ridge=1e-2),
    "huber": losses.huber(4.0, delta=0.1, ridge=1e-2),
    "squared": losses.squared(4.0, label_bound=1.0, radius=5.0, ridge=1e-2),
}


def flat_of(slots, users=30, dim=4, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1, 1, (users, slots, dim)).astype(np.float32)
    counts = rng.integers(0, slots + 1, users)
    mask = np.arange(slots) < counts[:, None]
    rows = jnp.asarray(rows * mask[..., None])
    labels = jnp.asarray((rng.random((users, slots)) < 0.5) * mask, jnp.float32)
    weights = jnp.asarray(mask / np.maximum(counts, 1)[:, None], jnp.float32)
    return Flat(rows, labels, weights, table_dp_sgd._gram(rows), (), jnp.float32(0.0))


def clipped_gradients(flat, params, objective, clip):
    total = np.zeros(len(params))
    for rows, labels, weights in zip(
        *(np.asarray(a) for a in (flat.rows, flat.labels, flat.weights)), strict=True
    ):
        slopes = np.asarray(objective.linear_model.derivative(rows @ params, labels))
        gradient = sum(w * s * x for w, s, x in zip(weights, slopes, rows, strict=True))
        total += gradient * min(1.0, clip / max(np.linalg.norm(gradient), 1e-30))
    return total


@pytest.mark.parametrize("slots", [1, 5, 12])
@pytest.mark.parametrize("kind", list(OBJECTIVES))
def test_the_clipped_sum_is_that_of_a_loop(slots, kind):
    flat, objective = flat_of(slots), OBJECTIVES[kind]
    params = np.asarray([0.3, -0.2, 0.5, 0.1], np.float32)
    slopes = flat.weights * objective.linear_model.derivative(flat.rows @ params, flat.labels)
    for clip in (0.05, 0.3, 100.0):
        expected = clipped_gradients(flat, params, objective, clip)
        found = table_dp_sgd.clipped_sum(flat, slopes, clip)
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("heavy", [0.0, 1.0])
@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_without_noise_a_run_is_that_of_a_loop(heavy, decay):
    flat, objective, steps = flat_of(3), OBJECTIVES["logistic"], 6
    settings = Settings(0.2, 1.5, heavy, decay, 0.0)
    found = table_dp_sgd.run(flat, jax.random.key(0), settings, objective, steps)
    params, velocity, iterates = np.zeros(4), np.zeros(4), []
    for t in range(steps):
        gradient = clipped_gradients(flat, params, objective, 0.2) / 30 + 1e-2 * params
        velocity = 0.9 * heavy * velocity + (1 - 0.9 * heavy) * gradient
        params = params - 1.5 * (1 - decay * t / steps) * velocity
        iterates.append(params)
    # The weights of polynomial-decay averaging with γ = 3, from its recursion.
    polynomial = np.zeros(4)
    for t, iterate in enumerate(iterates, start=1):
        polynomial = (1 - 4 / (t + 3)) * polynomial + 4 / (t + 3) * iterate
    expected = [params, np.mean(iterates, axis=0), polynomial, np.mean(iterates[3:], axis=0)]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-4, atol=1e-6)


def test_the_noise_is_the_multiplier_times_the_sensitivity():
    flat, objective = flat_of(2), OBJECTIVES["logistic"]
    settings = Settings(0.5, 1.0, 0.0, 0.0, 7.0)
    keys = jax.random.split(jax.random.key(0), 2000)
    last = jax.vmap(lambda key: table_dp_sgd.run(flat, key, settings, objective, 1)[0])(keys)
    # Replacing one of 30 users moves the mean by at most 2·0.5/30.
    np.testing.assert_allclose(np.std(last, axis=0), 7.0 * 2 * 0.5 / 30, rtol=0.06)


def test_squared_loss_stays_in_its_ball():
    flat, objective = flat_of(2), OBJECTIVES["squared"]
    settings = Settings(1.0, 100.0, 0.0, 0.0, 50.0)
    found = table_dp_sgd.run(flat, jax.random.key(0), settings, objective, 3)
    assert np.linalg.norm(found[0]) == pytest.approx(5.0, rel=1e-5)


def test_the_multiplier_is_certified():
    multiplier = table_dp_sgd.multiplier(50, 1.0, 1e-5)
    # Fifty Gaussians are one: with μ = √50/σ, δ(ε) is Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ).
    mu = 50**0.5 / multiplier
    delta = norm.cdf(mu / 2 - 1 / mu) - np.e * norm.cdf(-mu / 2 - 1 / mu)
    assert 0.99e-5 < delta <= 1e-5
