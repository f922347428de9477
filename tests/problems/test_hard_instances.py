"""Maxima of linear functions: certified optima, subgradients, exact smoothed gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax.problems import hard_instances as hard


def random_maximum(key, dim, pieces):
    """Random rows that sum to zero and offsets in [-½, ½]/√dim: the minimizer is a vertex."""
    row_key, offset_key = jax.random.split(key)
    rows = np.asarray(jax.random.normal(row_key, (pieces, dim)), np.float64)
    # Zero is in the convex hull of the rows, so f is bounded below.
    rows -= rows.mean(axis=0)
    rows = (rows / np.linalg.norm(rows, axis=1).max()).astype(np.float32)
    offsets = np.asarray(jax.random.uniform(offset_key, (pieces,), minval=-0.5, maxval=0.5))
    offsets = (offsets / math.sqrt(dim)).astype(np.float32)
    # Variables (x, t): least t with A x - t ≤ -b.
    solution = hard.solve_linear_program(
        np.append(np.zeros(dim), 1.0), np.hstack([rows, -np.ones((pieces, 1))]), -offsets, dim + 1
    )
    weights = np.maximum(-solution.ineqlin.marginals, 0.0)
    minimizer = solution.x[:dim]
    distance = float(np.linalg.norm(minimizer))
    return hard._maximum(rows, offsets, minimizer, weights / weights.sum(), distance)


DIM = 12
SIGNS = hard.orthogonal_maximum(jax.random.key(0), DIM, 9, distance=2.0)
CHAIN = hard.orthogonal_maximum(jax.random.key(0), DIM, 10, drop=0.15)
VERTEX = random_maximum(jax.random.key(0), 5, 20)
INSTANCES = {"signs": SIGNS, "chain": CHAIN, "vertex": VERTEX}


def values(instance, points):
    return np.asarray(jax.vmap(instance.value)(jnp.asarray(np.float32(points))), float)


def points_in_ball(instance, count, seed=0):
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=(count, instance.dim))
    radii = instance.distance * rng.uniform(size=(count, 1))
    return radii * normal / np.linalg.norm(normal, axis=1, keepdims=True)


@pytest.mark.parametrize("name", INSTANCES)
def test_the_optimum_is_certified_and_attained(name):
    instance = INSTANCES[name]
    assert 0 <= instance.gap < 1e-6
    assert values(instance, instance.minimizer[None])[0] == pytest.approx(
        instance.optimum, abs=1e-6
    )
    assert np.linalg.norm(instance.minimizer) == pytest.approx(instance.distance, rel=1e-6)
    near = instance.minimizer + 0.05 * points_in_ball(instance, 500)
    near *= np.minimum(1, instance.distance / np.linalg.norm(near, axis=1, keepdims=True))
    for points in (points_in_ball(instance, 500), near):
        assert values(instance, points).min() >= instance.optimum - 1e-6


def test_the_optimum_of_random_signs():
    assert SIGNS.optimum == pytest.approx(-2.0 / 3, abs=1e-6)
    assert values(SIGNS, np.zeros((1, DIM)))[0] == 0


def test_a_long_chain_is_not_used_up():
    # b_i - t > 0 for the first pieces only: Σ (b_i - t)₊² = 1 at t = -0.6, over b = 0, -0.15, ...
    level = CHAIN.optimum
    offsets = -0.15 * np.arange(10)
    assert np.sum(np.maximum(offsets - level, 0) ** 2) == pytest.approx(1, abs=1e-5)
    assert np.sum(offsets > level) < 10


@pytest.mark.parametrize("name", INSTANCES)
def test_answers_are_subgradients_of_bounded_norm(name):
    instance = INSTANCES[name]
    first, second = points_in_ball(instance, 200), points_in_ball(instance, 200, seed=1)
    keys = jax.random.split(jax.random.key(0), 200)
    found = np.asarray(instance.gradient(keys, jnp.asarray(np.float32(first))))
    assert np.linalg.norm(found, axis=1).max() <= instance.lipschitz * (1 + 1e-6)
    lower = values(instance, first) + np.sum(found * (second - first), axis=1)
    assert np.all(values(instance, second) >= lower - 1e-5)


def test_probabilities_of_two_are_those_of_a_normal_difference():
    means, stddev = np.array([0.3, -0.4]), 0.5
    expected = stats.norm.cdf(0.7 / (0.5 * np.sqrt(2)))
    found = np.asarray(hard.argmax_probabilities(jnp.asarray(means), stddev))
    np.testing.assert_allclose(found, [expected, 1 - expected], atol=2e-6)


def test_probabilities_of_equals_and_of_the_far_away():
    found = np.asarray(hard.argmax_probabilities(jnp.asarray([1.0] * 40 + [-50.0]), 1e-2))
    np.testing.assert_allclose(found, [1 / 40] * 40 + [0.0], atol=1e-6)


def test_the_smoothed_gradient_is_the_mean_of_gradients_around():
    point, stddev, draws = 0.1 * jnp.ones(DIM), 0.3, 40_000
    shifts = stddev * jax.random.normal(jax.random.key(0), (draws, DIM))
    # The subgradients do not depend on their keys.
    sample = np.asarray(CHAIN.gradient(jax.random.split(jax.random.key(0), 1), point + shifts))
    exact = np.asarray(CHAIN.smoothed_gradient(point, stddev))
    error = sample.std(axis=0) / np.sqrt(draws)
    assert np.all(np.abs(sample.mean(axis=0) - exact) <= 5 * error + 1e-6)
    assert VERTEX.smoothed_gradient is None


def test_more_pieces_than_coordinates_are_refused():
    with pytest.raises(ValueError, match="pieces"):
        hard.orthogonal_maximum(jax.random.key(0), 3, 4)


def test_unbounded_programs_are_refused():
    with pytest.raises(ValueError, match="bounded optimum"):
        hard.solve_linear_program([1.0], [[1.0]], [0.0], free=1)
