"""Draws from the ball against the law they should have; constants against closed forms."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from dpsco_jax.geometry import smoothing

DRAWS = 20_000
LIKE = {"a": jnp.zeros((2, 2)), "b": jnp.zeros(3)}
DIM, RADIUS = 7, 2.5


def smoothed_absolute(s, dim):
    """Value and slope of E|<u, w + y>|, y uniform in the unit ball, at <u, w> = s with |s| < 1."""
    share = scipy.special.betainc(0.5, (dim + 1) / 2, s * s)
    factor = smoothing.smoothness_factor(dim)
    value = abs(s) * share + factor * (1 - s * s) ** ((dim + 1) / 2) / (dim + 1)
    return value, np.sign(s) * share


@pytest.fixture(scope="module")
def draws():
    keys = jax.random.split(jax.random.key(7), DRAWS)
    trees = jax.jit(jax.vmap(lambda key: smoothing.uniform_ball(key, LIKE, RADIUS)))(keys)
    leaves = [np.asarray(leaf, np.float64).reshape(DRAWS, -1) for leaf in jax.tree.leaves(trees)]
    return np.concatenate(leaves, axis=1)


def test_radius_has_the_law_of_the_joint_ball(draws):
    shares = (np.linalg.norm(draws, axis=1) / RADIUS) ** DIM
    assert shares.max() <= 1 + 1e-5
    assert scipy.stats.kstest(shares, "uniform").pvalue > 1e-3


def test_one_coordinate_has_the_law_of_the_ball(draws):
    # In one coordinate, half of 1 + y/r is Beta((d+1)/2, (d+1)/2).
    law = scipy.stats.beta((DIM + 1) / 2, (DIM + 1) / 2)
    for coordinate in (0, DIM - 1):
        sample = 0.5 * (1 + draws[:, coordinate] / RADIUS)
        assert scipy.stats.kstest(sample, law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("dim", [1, 2, 7, 500])
def test_single_coordinates_have_the_law_of_the_ball(dim):
    draws = np.asarray(smoothing.ball_coordinate(jax.random.key(dim), (20_000,), dim), float)
    law = scipy.stats.beta((dim + 1) / 2, (dim + 1) / 2, loc=-1, scale=2)
    assert scipy.stats.kstest(draws, law.cdf).pvalue > 1e-3


def test_coordinates_are_uncorrelated_and_centred(draws):
    covariance = RADIUS**2 / (DIM + 2)
    tolerance = 5 / np.sqrt(DRAWS)
    np.testing.assert_allclose(draws.mean(axis=0), 0.0, atol=tolerance * np.sqrt(covariance))
    np.testing.assert_allclose(
        np.cov(draws.T), covariance * np.eye(DIM), atol=tolerance * 1.5 * covariance
    )


def test_closed_form_of_the_smoothed_absolute_value(draws):
    direction = np.ones(DIM) / np.sqrt(DIM)
    heights = draws @ direction / RADIUS
    for s in (0.0, 0.2, 0.5):
        value, slope = smoothed_absolute(s, DIM)
        values = np.abs(s + heights)
        assert abs(values.mean() - value) < 4.5 * values.std() / np.sqrt(DRAWS)
        signs = np.sign(s + heights)
        assert abs(signs.mean() - slope) < 4.5 / np.sqrt(DRAWS)


@pytest.mark.parametrize(
    ("dim", "s", "value", "slope"),
    [
        (2, 0.5, 0.580163, 0.608998),
        (3, 0.5, 0.5546875, 0.6875),
        (10, 0.2, 0.285401, 0.487610),
        (100, 0.05, 0.088993, 0.384027),
    ],
)
def test_golden_values_of_the_smoothed_absolute_value(dim, s, value, slope):
    np.testing.assert_allclose(smoothed_absolute(s, dim), (value, slope), atol=1e-6)


@pytest.mark.parametrize(
    ("dim", "factor"),
    [(1, 1.0), (2, 1.273240), (3, 1.5), (10, 2.586899), (100, 7.998817), (10_000, 79.790451)],
)
def test_golden_smoothness_factors(dim, factor):
    np.testing.assert_allclose(smoothing.smoothness_factor(dim), factor, rtol=1e-6)


@pytest.mark.parametrize("dim", [1, 2, 57, 1154, 10**5, 10**6 + 1, 10**8])
def test_smoothness_factor_to_full_precision(dim):
    with mpmath.workdps(40):
        half = (mpmath.mpf(dim) + 1) / 2
        log_ratio = mpmath.loggamma(half + 0.5) - mpmath.loggamma(half)
        exact = 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(log_ratio)
    np.testing.assert_allclose(smoothing.smoothness_factor(dim), float(exact), rtol=1e-11)
    assert smoothing.smoothness_factor(dim) <= np.sqrt(dim)


def test_ball_constants_are_attained():
    lipschitz, radius, dim = 3.0, 0.5, 10
    step = 1e-4
    # Along u at zero, the slope of the smoothed |<u, w>| grows at the rate of the smoothness.
    _, slope = smoothed_absolute(step / radius, dim)
    np.testing.assert_allclose(
        smoothing.ball_smoothness(lipschitz, radius, dim), lipschitz * slope / step, rtol=1e-4
    )
    # E‖y‖ by integrating the density of the radius.
    mean_norm, _ = scipy.integrate.quad(lambda t: t * dim * t ** (dim - 1), 0, 1)
    np.testing.assert_allclose(
        smoothing.ball_bias(lipschitz, radius, dim), lipschitz * radius * mean_norm
    )
    assert smoothing.ball_bias(1.0, 0.0, dim) == 0.0


def test_gaussian_constants_are_attained():
    lipschitz, stddev, dim = 3.0, 0.5, 10
    # d²/dw² E|w + ρz| = 2·density of ρz at w, here at 0.
    density = scipy.stats.norm(scale=stddev).pdf(0.0)
    np.testing.assert_allclose(
        smoothing.gaussian_smoothness(lipschitz, stddev), 2 * lipschitz * density
    )
    np.testing.assert_allclose(
        smoothing.gaussian_bias(lipschitz, stddev, dim),
        lipschitz * stddev * scipy.stats.chi(dim).mean(),
    )
    assert smoothing.gaussian_bias(1.0, 1.0, dim) <= np.sqrt(dim)


def test_draw_keeps_structure_and_dtypes_and_takes_a_traced_radius():
    like = {"half": jnp.zeros(3, jnp.float16), "single": jnp.zeros((2, 2))}
    draw = jax.jit(lambda key, radius: smoothing.uniform_ball(key, like, radius))
    small = draw(jax.random.key(0), 1.0)
    large = draw(jax.random.key(0), 2.0)
    assert small["half"].dtype == jnp.float16
    assert small["single"].shape == (2, 2)
    np.testing.assert_allclose(2 * small["single"], large["single"], rtol=1e-6)
    assert np.all(np.asarray(draw(jax.random.key(0), 0.0)["single"]) == 0.0)
