"""What the projection took, from released numbers: closed forms, limits, and less error than as released."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.mechanisms import denoised_histogram as denoised
from dpsco_jax.mechanisms import denoising
from dpsco_jax.mechanisms.two_stage_histogram import (
    TwoStageHistogram,
    TwoStageReleases,
    calibrate_two_stages,
    two_stage_histogram,
)

RADII = np.array([1.0, 2.0, 4.0, 7.0, 10.0])
D, N = 6, 50
_factor = jax.jit(denoised.projection_factor)


def _releases(clusters, stddev):
    return TwoStageReleases(N, clusters, RADII, 1.0, np.float32(stddev / 2**0.5), 1.0, 1e-5)


def _released(units, radius, total):
    histogram = np.full(D, total / D, np.float32)
    one = jnp.ones(D)
    return TwoStageHistogram(histogram, np.asarray(units, np.float32), np.float32(radius), one)


def _of_norms(norms, radius, total, clusters, stddev=1e-6):
    units = [np.sum((norms > low) & (norms <= high))
             for low, high in zip(RADII, [*RADII[1:], np.inf], strict=True)]  # fmt: skip
    return float(_factor(_released(units, radius, total), _releases(clusters, stddev)))


@pytest.mark.parametrize("radius", [1.0, 2.0, 4.0, 7.0, 10.0])
def test_the_factor_is_that_of_the_norms(radius, rng):
    # In the middle between two radii, where sums of units spread evenly are those of the units.
    norms = rng.choice([1.5, 3.0, 5.5, 8.5], 40)
    cut = np.minimum(norms, radius)
    # Single items: the histogram has all of the mass, 30 units of one among it, whose norms nobody counts.
    total = (np.sum(cut) + 30) / N
    found = _of_norms(norms, radius, total, np.arange(D))
    assert found == pytest.approx((np.sum(norms) + 30) / (np.sum(cut) + 30), rel=1e-5)
    # One cluster: besides the 40 there are at most 10 units, however large the histogram is.
    found = _of_norms(norms, radius, 100.0, np.zeros(D, int))
    assert found == pytest.approx((np.sum(norms) + 10) / (np.sum(cut) + 10), rel=1e-5)
    # A histogram that noise made too small takes nothing from what is known.
    found = _of_norms(norms, radius, -3.0, np.arange(D))
    assert found == pytest.approx(np.sum(norms) / np.sum(cut), rel=1e-5)


def test_where_little_is_known_the_factor_is_one_and_it_is_bounded(rng):
    clusters = np.zeros(D, int)
    noise = 20.0 * rng.normal(size=(300, 5))
    factors = [float(_factor(_released(u, 2.0, 1.0), _releases(clusters, 20.0))) for u in noise]
    assert np.mean(np.array(factors) == 1.0) > 0.98
    above = [float(_factor(_released(u, 2.0, 1.0), _releases(clusters, 1e-3))) for u in noise]
    assert 1.0 <= min(above) < 1.001
    assert 3.0 < max(above) <= 10.0 / 2.0 * (1 + 1e-6)
    # A number of units above a radius that noise hides, and not above a larger one, is not less than that.
    hidden = float(_factor(_released([-9.0, 0, 0, 0, 31.0], 1.0, 1.0), _releases(clusters, 10.0)))
    whole = float(_factor(_released([0.0, 0, 0, 0, 31.0], 1.0, 1.0), _releases(clusters, 1e-3)))
    assert hidden == pytest.approx(whole, rel=1e-5)


@pytest.mark.slow
def test_less_error_than_as_released_and_than_without_its_noise_alone(rng):
    d, n, m = 400, 400, 60
    p = 1 / (np.arange(d) + 20.0)
    draws = rng.multinomial(m, p / p.sum(), n)
    users, items = np.nonzero(draws)
    truth = m * p / p.sum()
    for clusters, epsilon, gain, most in (
        (np.zeros(d, int), 0.5, 1.5, 0.9),
        (np.arange(d), 1.0, 1.1, 1.0),
    ):
        releases = calibrate_two_stages(n, clusters, float(m), epsilon, 1e-4)
        counts = draws[users, items].astype(np.float32)
        # By one key in four the noise that one cluster has in common is most of the error.
        found = two_stage_histogram(jax.random.key(5), users, items, counts, releases)
        alone = denoising.posterior_means(found.histogram, found.noise_stddev, found.radius)
        best = denoised.denoised_histogram(found, releases)
        raw, kept, free = (
            float(np.sum((np.asarray(x) - truth) ** 2)) for x in (found.histogram, alone, best)
        )
        assert free < raw / gain
        assert free < most * kept
        np.testing.assert_allclose(
            best, alone * denoised.projection_factor(found, releases), rtol=1e-5
        )
