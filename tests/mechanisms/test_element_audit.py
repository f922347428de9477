"""Whole mechanisms for elements, audited on their worst neighbours; a quarter of the noise is caught."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.mechanisms import clustered_histogram, heavy_hitters, two_stage_histogram
from dpsco_jax.mechanisms.histogram_releases import ClusteredReleases, calibrate_histogram

pytestmark = pytest.mark.slow

EPSILON, DELTA, RUNS, D = 1.0, 1e-3, 400_000, 3
USERS, ITEMS = np.divmod(np.arange(2 * D), D)
OTHER = np.full(D, 7.0)


def _learnt(mechanism, data, neighbour, score):
    return privacy.audit(
        jax.random.key(0), mechanism, data, neighbour, score, RUNS, DELTA, batch_size=65_536
    ).epsilon  # fmt: skip


def _histogram(clusters, row, neighbour, quarter=False):
    releases = calibrate_histogram(2, clusters, 2.0, EPSILON, DELTA)
    if quarter:
        releases = ClusteredReleases(
            **(vars(releases) | {"noise_multiplier": releases.noise_multiplier / 4})
        )
        assert releases.certificate().epsilon > 4 * EPSILON
    way = np.asarray(neighbour, float) - np.asarray(row, float)

    def mechanism(key, row):
        counts = jnp.concatenate([row, jnp.asarray(OTHER, row.dtype)])
        return clustered_histogram.clustered_histogram(key, USERS, ITEMS, counts, releases)

    rows = (jnp.asarray(x, jnp.float32) for x in (row, neighbour))
    return _learnt(mechanism, *rows, lambda out: out @ jnp.asarray(way, jnp.float32))


def test_items_as_elements():
    pair = np.arange(D), [5.0, 1.0, 0.0], [0.0, 1.0, 0.0]
    assert 0.6 * EPSILON < _histogram(*pair) <= EPSILON
    assert _histogram(*pair, quarter=True) > EPSILON


def test_users_as_elements():
    pair = np.zeros(D, int), [5.0, 0.0, 0.0], [0.0, 9.0, 0.0]
    assert 0.6 * EPSILON < _histogram(*pair) <= EPSILON
    assert _histogram(*pair, quarter=True) > EPSILON


def test_the_printed_sensitivity_is_caught():
    """Noise for ρ instead of √2·ρ, by the exact curve for ρ: more than ε is learnt."""
    wrong = calibrate_histogram(2, np.zeros(D, int), 2.0, EPSILON, DELTA)
    wrong = ClusteredReleases(
        **(vars(wrong) | {"noise_multiplier": wrong.noise_multiplier / 2**0.5})
    )

    def mechanism(key, row):
        counts = jnp.concatenate([row, jnp.asarray(OTHER, row.dtype)])
        return clustered_histogram.clustered_histogram(key, USERS, ITEMS, counts, wrong)

    first, other = jnp.asarray([5.0, 0.0, 0.0]), jnp.asarray([0.0, 5.0, 0.0])
    assert _learnt(mechanism, first, other, lambda out: out[1] - out[0]) > EPSILON


def test_heavy_hitters():
    from dpsco_jax.privacy.accountants import gaussian_noise_multiplier

    def mechanism_of(stddev):
        def mechanism(key, items):
            users = np.zeros(2, np.int32)
            return heavy_hitters.heavy_hitter_counts(key, users, items, 1, D, stddev)

        return mechanism

    first, other = jnp.asarray([0, 1]), jnp.asarray([0, D])  # item 1, or none
    stddev = gaussian_noise_multiplier(EPSILON, DELTA)
    score = lambda out: -out[1]  # noqa: E731
    assert 0.6 * EPSILON < _learnt(mechanism_of(stddev), first, other, score) <= EPSILON
    assert _learnt(mechanism_of(stddev / 4), first, other, score) > EPSILON


def test_both_stages_together():
    releases = two_stage_histogram.calibrate_two_stages(
        2, np.zeros(D, int), 2.0, EPSILON, DELTA, coarse_share=0.5, num_radii=2
    )
    first, other = (jnp.asarray(row) for row in ([5.0, 0.0, 0.0], [0.0, 1.5, 0.0]))

    def learnt(releases):
        def mechanism(key, row):
            counts = jnp.concatenate([row, jnp.asarray(OTHER, row.dtype)])
            out = two_stage_histogram.two_stage_histogram(key, USERS, ITEMS, counts, releases)
            # The logarithm of the ratio of likelihoods of both stages together, but for constants.
            ends = jnp.stack([-jnp.minimum(5.0, out.radius), jnp.minimum(1.5, out.radius)])
            rest = 7.0 * jnp.minimum(1.0, out.radius / (7.0 * 3**0.5))
            middle = jnp.stack([-ends[0], ends[1]]) / 2 + rest
            fine = jnp.sum(ends * (2 * out.histogram[:2] - middle)) / (2 * out.noise_stddev[0]) ** 2
            coarse = (out.units[0] - out.units[1] + 1) / releases.coarse_stddev**2
            return fine + coarse

        return _learnt(mechanism, first, other, lambda out: out)

    assert 0.5 * EPSILON < learnt(releases) <= EPSILON
    for stage in ("noise_multiplier", "coarse_multiplier"):
        fields = vars(releases) | {stage: getattr(releases, stage) / 4}
        assert learnt(two_stage_histogram.TwoStageReleases(**fields)) > EPSILON, stage
