"""A radius that is released first: what each stage moves, what both cost, and that no other data are read."""

import doctest
import functools
import itertools

import jax
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax.mechanisms import two_stage_histogram as two
from dpsco_jax.privacy.dp_accounting import events


def _key():
    return jax.random.key(3)


CLUSTERS = np.array([0, 0, 0, 1, 2, 2])
D, N = len(CLUSTERS), 4
_run = jax.jit(two.two_stage_histogram)


def _edit(releases, **fields):
    return two.TwoStageReleases(**(vars(releases) | fields))


@functools.cache
def _releases():
    return two.calibrate_two_stages(N, CLUSTERS, 8.0, 1.0, 1e-5)


ROWS = np.array([[3, 4, 0, 0, 0, 0], [3, 4, 0, 1, 0, 1], [0] * 6, [60, 80, 0, 0, np.nan, -5]])
USERS, ITEMS = np.divmod(np.arange(N * D), D)


def _of(rows, releases):
    return _run(_key(), USERS, ITEMS, np.asarray(rows, np.float32).ravel(), releases)


def test_without_noise_units_are_counted_by_their_norm():
    quiet = _edit(_releases(), coarse_multiplier=0.0, noise_multiplier=0.0)
    found = _of(ROWS, quiet)
    # Norms 5, 5 and 100 in cluster 0; in the others 1 and 1, which are not above the least radius.
    between = np.zeros(32)
    between[np.flatnonzero(quiet.radii < 5)[-1]], between[-1] = 2, 1
    np.testing.assert_array_equal(found.units, between)
    assert found.radius == 8  # the least bias, where noise costs nothing
    shrunk = (2 * np.array([3, 4]) + 8 * np.array([0.6, 0.8])) / 4
    np.testing.assert_allclose(found.histogram[:2], shrunk, rtol=1e-4)
    np.testing.assert_allclose(found.histogram[2:], [0, 0.25, 0, 0.25], rtol=1e-4, atol=1e-7)
    assert np.isinf(privacy.epsilon(quiet.loss(), 1e-5))


def test_the_radius_is_the_best_guess_from_what_is_released():
    radii = np.array([1.0, 2.0, 4.0, 7.0])
    chosen = set()
    for sigma, coarse, factor in itertools.product((0.05, 0.5, 2.0), (0.01, 0.3, 0.8), (0.2, 3.0)):
        releases = _edit(
            _releases(), radii=radii, noise_multiplier=sigma, coarse_multiplier=coarse, bias_factor=factor
        )  # fmt: skip
        found = _of(ROWS, releases)
        errors = []
        for j in range(4):
            excess = 0.0
            for i in range(j, 3):
                above = float(np.sum(found.units[i:]))
                noise = 2 * (4 - i) ** 0.5 * 2**0.5 * coarse
                excess += (radii[i + 1] - radii[i]) * above * (above > noise)
            # Five items in clusters with others, √2, and one alone; three clusters.
            errors.append(factor * excess**2 / 3 + sigma**2 * radii[j] ** 2 * (5 * 2 + 1))
        assert found.radius == radii[np.argmin(errors)]
        chosen.add(float(found.radius))
        scale = np.where(CLUSTERS == 1, 1.0, 2**0.5) * sigma * float(found.radius) / N
        np.testing.assert_allclose(found.noise_stddev, scale, rtol=1e-6)
    assert len(chosen) >= 3


def test_noise_of_both_stages_is_what_is_charged():
    releases = _releases()
    none = np.zeros(1, np.int32)

    @jax.jit
    def runs(keys):
        return jax.vmap(lambda key: two.two_stage_histogram(key, none, none, 0.0 * none, releases))(
            keys
        )

    found = runs(jax.random.split(_key(), 4000))
    scaled = np.c_[found.histogram / found.noise_stddev, found.units / releases.coarse_stddev]
    assert np.all(np.abs(np.mean(scaled**2, axis=0) - 1) < 5 * (2 / 4000) ** 0.5)
    assert releases.coarse_stddev == 2**0.5 * releases.coarse_multiplier
    # Independent: one key for both stages would tie them together.
    assert np.max(np.abs(np.corrcoef(scaled.T) - np.eye(D + 32))) < 5 / 4000**0.5
    assert np.all((found.radius >= 1) & (found.radius <= 8))


def test_one_unit_moves_two_numbers_of_units(rng):
    quiet = _edit(_releases(), coarse_multiplier=0.0)
    worst = 0.0
    for _ in range(60):
        rows = rng.choice([0.0, 1.0, 3.0, 50.0, 1e30, np.inf, np.nan], (N, D))
        other = rows.copy()
        unit = rng.integers(3)
        other[0, unit == CLUSTERS] = rng.choice([0.0, 8.0, 1e4, np.nan], np.sum(unit == CLUSTERS))
        moved = np.asarray(_of(rows, quiet).units) - np.asarray(_of(other, quiet).units)
        assert np.all(np.isfinite(moved))
        worst = max(worst, np.linalg.norm(moved))
    assert worst == pytest.approx(2**0.5)


def test_numbers_of_units_above_2_to_the_24_are_exact_before_noise():
    found = two._with_noise(_key(), jax.numpy.array([2**24 + 1, 2**30 + 4095, 7]), 0.0)
    np.testing.assert_array_equal(found, np.array([2**24 + 1, 2**30 + 4095, 7]).astype(np.float32))
    # Noise that is less than a unit of float32 is not added to a number that was rounded before.
    loud = two._with_noise(_key(), jax.numpy.array([2**24, 2**24 + 1]), 3.0)
    again = two._with_noise(_key(), jax.numpy.array([0, 1]), 3.0)
    np.testing.assert_allclose(loud - 2.0**24, again, atol=2)
    # Nor is a number rounded first, as 2^28 + 15 would be to 2^28: 15 + 3·z is above half of 32 for z > 1/3.
    many = two._with_noise(_key(), jax.numpy.full(4000, 2**28 + 15), 3.0)
    up = np.mean(np.asarray(many) == 2.0**28 + 32)
    assert abs(up - 0.3694) < 4 * (0.3694 * 0.6306 / 4000) ** 0.5


def test_both_stages_are_paid_for():
    releases = _releases()
    joint = events.composed(
        events.gaussian(releases.coarse_multiplier), events.gaussian(releases.noise_multiplier)
    )
    exact = privacy.certificate(joint, 1e-5, NeighboringRelation.REPLACE_ONE).epsilon
    assert releases.certificate().epsilon == exact <= 1.0 < 1.001 * exact
    for sigma in (releases.coarse_multiplier, releases.noise_multiplier):
        assert sigma == float(np.float32(sigma)), "what runs in float32 is what is charged"
    alone = privacy.gaussian(releases.noise_multiplier).rdp
    first = privacy.gaussian(releases.coarse_multiplier).rdp
    np.testing.assert_allclose(releases.loss().rdp, alone + first, rtol=1e-12)
    for change in ({"coarse_multiplier": 1.0}, {"noise_multiplier": 1.0}):
        edited = _edit(releases, **change)
        assert edited.certificate().epsilon > 4
        assert privacy.epsilon(edited.loss(), 1e-5) > 4
    for bad in ({"radii": np.array([1.0, np.nan])}, {"radii": np.array([0.0, 1.0])},
                {"radii": np.array([1.0, np.inf])}, {"radii": np.array([-1.0, 1.0])},
                {"coarse_multiplier": 0.0}, {"coarse_multiplier": np.nan},
                {"coarse_multiplier": 1e-40}, {"noise_multiplier": 0.0}):  # fmt: skip
        edited = _edit(releases, **bad)
        assert np.isinf(edited.certificate().epsilon), bad
        assert np.isinf(privacy.epsilon(edited.loss(), 1e-5)), bad
        assert np.isinf(jax.jit(lambda r: privacy.epsilon(r.loss(), 1e-5))(edited)), bad


@pytest.mark.slow
def test_examples_run():
    from dpsco_jax.geometry import block_norms
    from dpsco_jax.mechanisms import (
        clustered_histogram,
        denoised_histogram,
        heavy_hitters,
        histogram_releases,
    )
    from dpsco_jax.rates import element_level

    modules = (
        two,
        clustered_histogram,
        denoised_histogram,
        heavy_hitters,
        histogram_releases,
        block_norms,
        element_level,
    )
    for module in modules:
        found = doctest.testmod(module)
        assert found.attempted > 0, module.__name__
        assert found.failed == 0, module.__name__
