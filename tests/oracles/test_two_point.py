"""Smoothed gradients from values, and coupled differences: closed forms, laws of the coupling, bounds."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpsco_jax.geometry import domains, smoothing
from dpsco_jax.oracles import smoothed
from dpsco_jax.problems.objective import Objective


def _objective(loss):
    return Objective(loss, lipschitz=1.0, smoothness=None, domain=domains.whole_space())


ABSOLUTE = _objective(lambda w, z: jnp.sum(jnp.abs(w - z)))
DISTANCE = _objective(lambda w, z: jnp.minimum(jnp.linalg.norm(w - z), 1.5))
LINEAR = _objective(lambda w, z: jnp.vdot(w, z))
SQUARE = _objective(lambda w, z: 0.5 * jnp.sum(jnp.square(w - z)))


@functools.partial(jax.jit, static_argnums=(0, 4))
def many(gradient, key, point, item, count):
    """Draws of an estimate for a user of one item, ``[count, dim]``."""
    return jax.vmap(lambda k: gradient(k, point, item[None], None))(jax.random.split(key, count))


def test_in_one_dimension_the_slope_of_a_kink_is_exact():
    for directions in (1, 3):
        estimate = smoothed.two_point_gradient(ABSOLUTE, 0.5, directions)
        for x in (-0.4, 0.0, 0.2):
            found = many(estimate, jax.random.key(0), jnp.asarray(x), jnp.asarray(0.0), 8)
            np.testing.assert_allclose(found, x / 0.5, atol=1e-6)
    difference = smoothed.two_point_difference(ABSOLUTE, 0.5, 1)
    pair = jnp.asarray(0.3), jnp.asarray(-0.1)
    found = many(difference, jax.random.key(0), pair, jnp.asarray(0.0), 8)
    np.testing.assert_allclose(found, 0.4 / 0.5, atol=1e-6)


def test_of_a_linear_loss_the_mean_is_the_slope_and_the_second_moment_dim_times_its_square():
    slope = np.array([0.6, 0.0, -0.8, 0.0, 0.0], np.float32)
    estimate, count = smoothed.two_point_gradient(LINEAR, 0.3, 1), 40_000
    found = np.float64(many(estimate, jax.random.key(1), jnp.ones(5), jnp.asarray(slope), count))
    errors = found.std(axis=0) / math.sqrt(count)
    assert np.abs((found.mean(axis=0) - slope) / errors).max() < 4
    squares = np.sum(found**2, axis=1)
    assert abs(squares.mean() - 5.0) < 4 * squares.std() / math.sqrt(count)
    assert np.sqrt(squares.max()) <= 5.0 * (1 + 1e-4)
    averaged = smoothed.two_point_gradient(LINEAR, 0.3, 4)
    fewer = np.float64(many(averaged, jax.random.key(2), jnp.ones(5), jnp.asarray(slope), 10_000))
    spread = np.sum(np.var(fewer, axis=0))
    assert spread == pytest.approx((5.0 - 1.0) / 4, rel=0.05)


def test_both_estimates_of_a_smoothed_norm_agree_and_are_unbiased():
    """E of the estimates at a point within the radius of the kink of ‖w‖ in two dimensions, by quadrature."""
    norm = _objective(lambda w, z: jnp.linalg.norm(w - z))
    x, radius, count = 0.3, 1.0, 60_000
    r = np.linspace(0, 1, 2001)[1:] - 1 / 4000
    angle = np.linspace(0, 2 * np.pi, 801)[:-1]
    first = x + np.outer(r, np.cos(angle))
    second = np.outer(r, np.sin(angle))
    exact = np.average(first / np.hypot(first, second), weights=np.outer(r, np.ones(800)))
    for estimate in (
        smoothed.two_point_gradient(norm, radius, 1),
        smoothed.user_gradient(norm, radius),
    ):
        found = many(estimate, jax.random.key(3), jnp.asarray([x, 0.0]), jnp.zeros(2), count)
        found = np.float64(found)
        errors = found.std(axis=0) / math.sqrt(count)
        assert np.abs((found.mean(axis=0) - [exact, 0.0]) / errors).max() < 4


def test_reflected_points_have_their_law_and_differ_as_rarely_as_they_can():
    """Of ‖w‖²/2 a gradient is its point: the difference says where the two points are."""
    dim, radius, shift, count = 4, 1.0, 0.4, 40_000
    point = jnp.zeros(dim)
    previous = point.at[0].set(shift)
    estimate = smoothed.gradient_difference(SQUARE, radius, 1)
    found = many(estimate, jax.random.key(4), (point, previous), jnp.zeros(dim), count)
    apart = np.any(np.asarray(found) != 0, axis=1)
    # The share of a ball that is outside of another: two caps are inside of both.
    exact = 1 - scipy.special.betainc((dim + 1) / 2, 0.5, 1 - (shift / 2) ** 2)
    assert abs(apart.mean() - exact) < 4 * math.sqrt(exact * (1 - exact) / count)
    assert exact <= smoothing.smoothness_factor(dim) / 2 * shift
    # Where they differ p - p' = 2p - w - v, so that p' = (w + v - (p - p'))/2.
    moved = np.float64(found)[apart]
    there = (np.float64(previous) - moved) / 2 - np.float64(previous)
    here = (np.float64(previous) + moved) / 2
    assert np.linalg.norm(there, axis=1).max() <= radius * (1 + 1e-4)
    assert np.linalg.norm(here, axis=1).max() <= radius * (1 + 1e-4)
    # Of p, and of p' mirrored, what is in one ball only has the same law.
    assert scipy.stats.ks_2samp(here[:, 0], -there[:, 0]).pvalue > 1e-3
    assert np.linalg.norm(here - np.float64(previous), axis=1).min() >= radius * (1 - 1e-4)
    # Unbiased: the mean difference is that of the points.
    mean = np.float64(found).mean(axis=0)
    errors = np.float64(found).std(axis=0) / math.sqrt(count)
    assert np.abs((mean - np.float64(point - previous)) / errors).max() < 4


def test_a_difference_is_in_proportion_to_the_distance_whatever_the_directions():
    """No term is longer than (d/r)·G·‖w - v‖, which independent directions break by far."""
    dim, radius = 3, 0.2
    point, origin = jnp.asarray([0.1, -0.05, 0.02]), jnp.zeros(dim)
    alone = smoothed.two_point_gradient(DISTANCE, radius, 1)
    apart = np.float64(many(alone, jax.random.key(6), point, origin, 4000))
    for far in (1e-2, 1e-1):
        pair = point, point + far * jnp.asarray([0.6, 0.0, 0.8])
        by_values = smoothed.two_point_difference(DISTANCE, radius, 1)
        by_gradients = smoothed.gradient_difference(DISTANCE, radius, 1)
        found = np.float64(many(by_values, jax.random.key(5), pair, origin, 4000))
        most = dim / radius * far
        assert np.linalg.norm(found, axis=1).max() <= most * (1 + 1e-3)
        assert np.linalg.norm(apart[:2000] - apart[2000:], axis=1).max() > 1.1 * most
        other = np.float64(many(by_gradients, jax.random.key(7), pair, origin, 20_000))
        errors = np.hypot(
            found.std(axis=0) / math.sqrt(4000), other.std(axis=0) / math.sqrt(20_000)
        )
        assert np.abs((found.mean(axis=0) - other.mean(axis=0)) / errors).max() < 4


def test_trees_of_parameters_are_one_vector():
    loss = _objective(lambda w, z: jnp.vdot(w["a"], z[:2]) + w["b"] * z[2])
    estimate = smoothed.two_point_gradient(loss, 0.3, 1)
    point = {"a": jnp.ones(2), "b": jnp.ones(())}
    slope = jnp.asarray([0.6, 0.0, 0.8])
    tree = many(estimate, jax.random.key(8), point, slope, 50)
    flat = many(
        smoothed.two_point_gradient(LINEAR, 0.3, 1), jax.random.key(8), jnp.ones(3), slope, 50
    )
    np.testing.assert_allclose(np.c_[tree["a"], tree["b"]], flat, rtol=1e-3, atol=1e-4)
