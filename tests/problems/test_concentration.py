"""Concentration radii hold in simulation, where too small ones of the literature do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.problems import concentration


def test_user_means_stay_within_the_radius_where_the_printed_one_fails():
    """Rademacher items: with one of 1000 users far off, a run fails."""
    rng = np.random.default_rng(0)
    items, users, runs = 200, 1000, 200
    means = 2.0 * rng.binomial(items, 0.5, (runs, users)) / items - 1.0
    farthest = np.abs(means).max(axis=1)
    radius = concentration.user_mean_radius(1.0, items, users, 0.01)
    np.testing.assert_allclose(radius, (1 + np.sqrt(2 * np.log(1e5))) / np.sqrt(200))
    assert np.all(farthest <= radius)
    printed = np.sqrt(np.log(2 * users / 0.01) / (2 * items))
    assert np.mean(farthest > printed) > 0.9
    assert radius < 2.0 * farthest.max(), "so loose that nothing was tested"


def test_subgaussian_means_stay_within_the_radius():
    rng = np.random.default_rng(1)
    dim, items, users = 20, 10, 500
    radius = concentration.user_mean_radius_subgaussian(0.7, dim, items, users, 0.05)
    means = 0.7 * rng.normal(size=(100, users, dim)) / np.sqrt(items)
    farthest = np.linalg.norm(means, axis=-1).max(axis=-1)
    assert np.mean(farthest > radius) <= 0.05
    assert farthest.max() > 0.8 * radius


def test_gradient_radius_is_the_fixed_point_radius_at_the_failure_left_by_privacy():
    moved = concentration.user_gradient_radius(2.0, 50, 300, 40, 1.5, 1e-3)
    fixed = concentration.user_mean_radius(2.0, 50, 300, 1e-3 / (2 * 40 * np.exp(1.5)))
    np.testing.assert_allclose(moved, fixed, rtol=1e-12)
    # One user at one fixed point, unit vectors on a sphere in 20 dimensions, m = 50.
    rng = np.random.default_rng(2)
    items = rng.normal(size=(2000, 50, 20))
    items /= np.linalg.norm(items, axis=-1, keepdims=True)
    norms = np.linalg.norm(items.mean(axis=1), axis=-1)
    one = concentration.user_mean_radius(1.0, 50, 1, 1e-3)
    np.testing.assert_allclose(one, 0.667, atol=1e-3)
    np.testing.assert_allclose(np.quantile(norms, 0.999), 0.213, atol=0.02)


def test_trajectory_radius_and_failure_are_inverse_and_better_than_pure_accounting():
    sizes = {"lipschitz": 2.0, "items_per_user": 50, "num_users": 2000, "num_steps": 100}
    fixed = concentration.user_gradient_radius(*sizes.values(), 0.0, 2 * 1e-6)
    for gdp in (0.0, 0.05, 0.1):
        radius = concentration.trajectory_gradient_radius(**sizes, gdp=gdp, failure=1e-6)
        failure = concentration.trajectory_gradient_failure(radius, **sizes, gdp=gdp)
        np.testing.assert_allclose(failure, 1e-6, rtol=1e-6)
        assert (radius == pytest.approx(fixed)) == (gdp == 0.0)
    assert fixed < radius < concentration.user_gradient_radius(*sizes.values(), 1.0, 2 * 1e-6)
    assert concentration.trajectory_gradient_failure(1e-3, **sizes, gdp=0.1) == 1.0


def test_uniform_radius_covers_the_domain():
    rng = np.random.default_rng(3)
    dim, items, users = 2, 50, 100
    # Gradients w - z + smooth bump in w: smoothness at most 2 on the unit disk.
    points = rng.normal(size=(users, items, dim))
    radius = concentration.uniform_gradient_radius(1.5, 2.0, 2.0, dim, items, users, 0.05)
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 21)] * 2), axis=-1).reshape(-1, dim)
    means = points.mean(axis=1) + np.sin(points + grid[:, None, None]).mean(axis=2) / 2
    expected = means.mean(axis=1, keepdims=True)
    assert np.linalg.norm(means - expected, axis=-1).max() <= radius
    linear = concentration.uniform_gradient_radius(1.5, 0.0, 2.0, dim, items, users, 0.05)
    assert linear == concentration.user_mean_radius_subgaussian(1.5, dim, items, users, 0.05)
    assert linear < radius


def _sgd_distances(strong_convexity, step, num_steps, runs=400):
    """Largest distance over steps between pairs of runs on independent signs, losses zx + (μ/2)x²."""
    rng = np.random.default_rng(4)
    x = np.zeros((2, runs))
    largest = np.zeros(runs)
    for _ in range(num_steps):
        signs = rng.choice([-1.0, 1.0], (2, runs))
        x = np.clip(x - step * (signs + strong_convexity * x), -1.0, 1.0)
        largest = np.maximum(largest, np.abs(x[0] - x[1]))
    return largest


@pytest.mark.parametrize("strong_convexity", [0.0, 0.5])
def test_sgd_runs_stay_within_the_radius(strong_convexity):
    step, num_steps = 0.01, 1000
    radius = concentration.sgd_iterate_radius(
        step, 1.0 + strong_convexity, num_steps, 1e-2, strong_convexity
    )
    largest = _sgd_distances(strong_convexity, step, num_steps)
    assert np.mean(largest > radius) <= 1e-2
    assert largest.max() > radius / 6


def test_sgd_radius_golden_and_contraction():
    # ℓ² = ln(1/ζ) = 4: 2ηL√T(2 + √5).
    radius = concentration.sgd_iterate_radius(0.1, 3.0, 25, float(np.exp(-4.0)))
    np.testing.assert_allclose(radius, 2 * 0.1 * 3.0 * 5 * (2 + np.sqrt(5.0)), rtol=1e-12)
    convex = concentration.sgd_iterate_radius(0.1, 3.0, 10_000, 1e-3)
    strong = [concentration.sgd_iterate_radius(0.1, 3.0, t, 1e-3, 1.0) for t in (10_000, 40_000)]
    assert strong[0] < 0.1 * convex
    assert strong[1] < 1.05 * strong[0], "with strong convexity the radius stops growing"
    # No contraction is claimed for steps so long that they overshoot.
    assert concentration.sgd_iterate_radius(0.1, 3.0, 50, 1e-3, 6.0) == pytest.approx(
        concentration.sgd_iterate_radius(0.1, 3.0, 50, 1e-3)
    )


def test_iterate_distance_grows_with_the_root_of_the_steps():
    """Linear losses: E‖x_T - y_T‖² = 2η²T, and 2η²(T-1)(2T-1)/(6T) for averages over x_0..x_(T-1)."""

    def pair(key, steps):
        signs = jax.random.rademacher(key, (2, steps), dtype=jnp.float32)
        paths = -jnp.cumsum(signs, axis=1)
        queried = jnp.concatenate([jnp.zeros((2, 1)), paths[:, :-1]], axis=1)
        return paths[0, -1] - paths[1, -1], jnp.mean(queried[0] - queried[1])

    for steps in (16, 64):
        keys = jax.random.split(jax.random.key(steps), 4000)
        last, average = jax.jit(jax.vmap(pair, in_axes=(0, None)), static_argnums=1)(keys, steps)
        np.testing.assert_allclose(np.mean(last**2), 2 * steps, rtol=0.1)
        expected = 2 * (steps - 1) * (2 * steps - 1) / (6 * steps)
        np.testing.assert_allclose(np.mean(average**2), expected, rtol=0.1)


def test_losses_stay_within_the_radius_where_the_printed_one_fails():
    rng = np.random.default_rng(5)
    users, items, candidates = 1000, 100, 20
    radius = concentration.loss_radius(1.0, candidates, items, users, 0.05)
    draws = rng.binomial(items, 0.5, (100, users * candidates)) / items - 0.5
    farthest = np.abs(draws).max(axis=1)
    assert np.mean(farthest > radius) <= 0.05
    printed = np.sqrt(np.log(2 * candidates * users / 0.05)) / (2 * np.sqrt(items))
    assert np.mean(farthest > printed) > 0.5
