"""Radii that are released first: what each stage moves, what both cost, and that no other data are read."""

import doctest
import functools

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


def test_without_noise_radii_are_mean_norms():
    quiet = _edit(_releases(), coarse_multiplier=0.0, noise_multiplier=0.0)
    rows = np.array([[3, 4, 0, 0, 0, 0], [3, 4, 0, 1, 0, 1], [0] * 6, [60, 80, 0, 0, np.nan, -5]])
    users, items = np.divmod(np.arange(N * D), D)
    found = _run(_key(), users, items, rows.ravel().astype(np.float32), quiet)
    # Norms in cluster 0: 5, 5, 0, 100 -> 8; the others are below the least radius.
    np.testing.assert_allclose(found.radius, [18 / 4, 1, 1], rtol=1e-5)
    shrunk = np.array([0.6, 0.8]) * 4.5 * 3 / 4
    np.testing.assert_allclose(found.histogram[:2], shrunk, rtol=1e-4)
    np.testing.assert_allclose(found.histogram[2:], [0, 0.25, 0, 0.25], rtol=1e-5, atol=1e-7)
    assert np.isinf(privacy.epsilon(quiet.loss(), 1e-5))


def test_noise_of_the_histogram_follows_its_radii():
    releases = _releases()
    none = np.zeros(1, np.int32)

    @jax.jit
    def runs(keys):
        return jax.vmap(lambda key: two.two_stage_histogram(key, none, none, 0.0 * none, releases))(
            keys
        )

    found = runs(jax.random.split(_key(), 4000))
    scaled = np.asarray(found.histogram / found.noise_stddev)
    assert np.all(np.abs(np.mean(scaled**2, axis=0) - 1) < 5 * (2 / 4000) ** 0.5)
    # Independent of the radii: one key for both stages would tie them together.
    radius = np.asarray(found.radius)
    assert np.all((radius >= 1) & (radius <= 8))
    assert np.std(radius[:, 1]) > 0.5
    tied = np.corrcoef(np.c_[radius, scaled].T)[:3, 3:]
    assert np.max(np.abs(tied)) < 5 / 4000**0.5
    expected = releases.noise_multiplier * radius[:, 0] * 2**0.5 / N
    np.testing.assert_allclose(found.noise_stddev[:, 0], expected, rtol=1e-5)


def test_one_unit_moves_the_first_stage_by_the_bound(rng):
    # The first stage with noise that is known: the key is fixed, so that differences are those of data.
    loud = _edit(_releases(), least_radius=1e-3, radius_factor=1.0, coarse_multiplier=1e-6)
    users, items = np.divmod(np.arange(N * D), D)
    worst = 0.0
    for _ in range(60):
        rows = rng.choice([0.0, 1.0, 3.0, 50.0, 1e30, np.inf, np.nan], (N, D))
        other = rows.copy()
        unit = rng.integers(3)
        other[0, unit == CLUSTERS] = rng.choice([0.0, 8.0, 1e4, np.nan], np.sum(unit == CLUSTERS))
        radii = [
            np.asarray(_run(_key(), users, items, x.ravel().astype(np.float32), loud).radius, float)
            for x in (rows, other)
        ]
        moved = np.abs(radii[0] - radii[1])
        assert np.all(np.delete(moved, unit) < 1e-5)
        worst = max(worst, moved[unit])
    assert worst == pytest.approx(8 / N, rel=1e-4)


def test_both_stages_are_paid_for():
    releases = _releases()
    joint = events.composed(
        events.gaussian(releases.coarse_multiplier), events.gaussian(releases.noise_multiplier)
    )
    exact = privacy.certificate(joint, 1e-5, NeighboringRelation.REPLACE_ONE).epsilon
    assert releases.certificate().epsilon == exact <= 1.0 < 1.001 * exact
    alone = privacy.gaussian(releases.noise_multiplier).rdp
    first = privacy.gaussian(releases.coarse_multiplier).rdp
    np.testing.assert_allclose(releases.loss().rdp, alone + first, rtol=1e-12)
    for change in ({"coarse_multiplier": 1.0}, {"noise_multiplier": 1.0}):
        edited = _edit(releases, **change)
        assert edited.certificate().epsilon > 4
        assert privacy.epsilon(edited.loss(), 1e-5) > 4
    for bad in ({"coarse_bound": np.nan}, {"least_radius": 0.0}, {"radius_factor": np.inf},
                {"coarse_multiplier": 0.0}, {"noise_multiplier": 0.0}, {"coarse_bound": -1.0}):  # fmt: skip
        edited = _edit(releases, **bad)
        assert np.isinf(edited.certificate().epsilon), bad
        assert np.isinf(privacy.epsilon(edited.loss(), 1e-5)), bad
        assert np.isinf(jax.jit(lambda r: privacy.epsilon(r.loss(), 1e-5))(edited)), bad


def test_arguments():
    good = {
        "num_users": 4,
        "cluster_of_item": CLUSTERS,
        "coarse_bound": 8.0,
        "epsilon": 1.0,
        "delta": 1e-5,
    }
    for changes, named in [
        ({"num_users": 0}, "num_users"),
        ({"cluster_of_item": -CLUSTERS}, "cluster_of_item"),
        ({"coarse_bound": 0.0}, "coarse_bound"),
        ({"coarse_share": 1.0}, "coarse_share"),
        ({"least_radius": 9.0}, "least_radius"),
        ({"radius_factor": 0.0}, "radius_factor"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
    ]:
        with pytest.raises(ValueError, match=named):
            two.calibrate_two_stages(**(good | changes))


def test_examples_run():
    from dpsco_jax.geometry import block_norms
    from dpsco_jax.mechanisms import clustered_histogram, heavy_hitters, histogram_releases
    from dpsco_jax.rates import element_level

    modules = (
        two,
        clustered_histogram,
        heavy_hitters,
        histogram_releases,
        block_norms,
        element_level,
    )
    for module in modules:
        found = doctest.testmod(module)
        assert found.attempted > 0, module.__name__
        assert found.failed == 0, module.__name__
