"""Clustered histograms: dense NumPy beside them, the exact noise, and neighbours searched for the worst."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.mechanisms import clustered_histogram
from dpsco_jax.mechanisms.clustered_histogram import _exact_sums as exact_sums
from dpsco_jax.mechanisms.clustered_histogram import _Sums as Sums
from dpsco_jax.mechanisms.histogram_releases import ClusteredReleases, calibrate_histogram


def _key():
    return jax.random.key(0)


CLUSTERS = np.array([0, 0, 0, 1, 2, 2, 0, 3])
D, USERS = len(CLUSTERS), 5


def _dense(users, items, counts, signed=False, num_users=USERS, dim=D):
    """Sums of valid entries, by loops in float64."""
    found = np.zeros((num_users, dim))
    for u, i, c in zip(users, items, counts, strict=True):
        inside = 0 <= u < num_users and 0 <= i < dim
        if inside and np.isfinite(c) and (signed or c >= 0):
            found[u, i] += c
    return found


def _ball(rows, clusters, radius):
    found = rows.copy()
    for c in set(clusters):
        block = rows[:, clusters == c]
        norm = np.linalg.norm(block, axis=1, keepdims=True)
        bound = np.broadcast_to(radius, (max(clusters) + 1,))[c]
        found[:, clusters == c] = block * np.minimum(1, bound / np.maximum(norm, 1e-300))
    return found


def _entries(rng, size=60):
    users, items = rng.integers(-1, USERS + 1, size), rng.integers(-1, D + 1, size)
    counts = rng.integers(-2, 9, size).astype(np.float32)
    counts[rng.random(size) < 0.1] = np.nan
    return users, items, counts


@functools.partial(jax.jit, static_argnames="signed")
def _mean(users, items, counts, clusters, radius, signed):
    releases = ClusteredReleases(USERS, signed, clusters, radius, 1.0, 1e-5)
    return clustered_histogram.projected_mean(users, items, counts, releases)


@functools.partial(jax.jit, static_argnums=(3, 5))
def _traced_project(users, items, counts, clusters, radius, signed):
    return clustered_histogram.project_clusters(
        users, items, counts, np.array(clusters), radius, signed=signed
    )


def _project(users, items, counts, clusters, radius, signed=False):
    """In one program for each shape and clusters: these are known when a histogram is planned."""
    return _traced_project(users, items, counts, tuple(clusters.tolist()), radius, signed)


_release = jax.jit(clustered_histogram.clustered_histogram)


@pytest.mark.parametrize("signed", [False, True])
def test_projection_is_that_of_dense_vectors(signed, rng):
    singles, one = np.arange(D), np.zeros(D, int)
    for clusters, radius in [
        (CLUSTERS, np.array([2.0, 1.0, 5.0, 3.0])),
        (one, 4.0),
        (singles, 3.0),
    ]:
        users, items, counts = _entries(rng)
        dense = _dense(users, items, counts, signed)
        expected = _ball(dense, clusters, radius)
        per_cluster = np.resize(np.float32(radius), D)  # a shape for all: one compilation
        found = _mean(users, items, counts, clusters, per_cluster, signed)
        np.testing.assert_allclose(found, expected.mean(axis=0), rtol=2e-5, atol=1e-6)
        sparse = _project(users, items, counts, clusters, per_cluster, signed=signed)
        again = _dense(*map(np.asarray, sparse), signed=True)
        np.testing.assert_allclose(again, expected, rtol=2e-5, atol=1e-6)
        twice = _project(*sparse, clusters, per_cluster, signed=signed)
        np.testing.assert_allclose(
            _dense(*map(np.asarray, twice), signed=True), again, rtol=2e-6, atol=1e-12
        )
        for c in set(clusters):  # never above the radius, in exact arithmetic
            norms = np.linalg.norm(again[:, clusters == c], axis=1)
            assert norms.max() <= np.resize(radius, D)[c]
    if not signed:
        # K = d: elementwise minimum, exact up to the head-room.
        np.testing.assert_allclose(expected, np.minimum(dense, 3.0))


def test_wide_balls_leave_the_plain_mean(rng):
    users, items, counts = _entries(rng)
    plain = _dense(users, items, counts).mean(axis=0)
    wide = np.full(D, 1e4, np.float32)
    np.testing.assert_allclose(
        _mean(users, items, counts, CLUSTERS, wide, False), plain, rtol=1e-6, atol=1e-6
    )
    releases = ClusteredReleases(USERS, False, CLUSTERS, 1e4, 0.0, 1e-5)
    found = _release(_key(), users, items, counts, releases)
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)
    assert np.isinf(privacy.epsilon(releases.loss(), 1e-5))
    assert np.isinf(releases.certificate().epsilon)


def test_the_projection_brings_no_two_users_apart(rng):
    for _ in range(10):
        pair = [_entries(rng), _entries(rng)]
        dense = [_dense(*entries) for entries in pair]
        inside = [_dense(*map(np.asarray, _project(*entries, CLUSTERS, 3.0))) for entries in pair]
        before = np.linalg.norm(dense[0] - dense[1], axis=1)
        assert np.all(np.linalg.norm(inside[0] - inside[1], axis=1) <= before * (1 + 1e-5))


def test_factors_come_from_clusters_and_signs():
    releases = ClusteredReleases(10, False, CLUSTERS, np.array([2.0, 1.0, 5.0, 3.0]), 4.0, 1e-5)
    root = 2**0.5
    np.testing.assert_allclose(
        releases.factor_of_item, [root, root, root, 1, root, root, root, 1], rtol=1e-15
    )
    np.testing.assert_allclose(releases.noise_stddev[:5] * 10 / 4, [2 * root] * 3 + [1, 5 * root])
    signed = ClusteredReleases(10, True, np.arange(3), 1.0, 4.0, 1e-5)
    np.testing.assert_array_equal(signed.factor_of_item, [2, 2, 2])

    @jax.jit
    def traced(releases):
        return releases.factor_of_item, releases.noise_stddev

    for a, b in zip(
        traced(releases), (releases.factor_of_item, releases.noise_stddev), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@functools.partial(jax.jit, static_argnames="signed")
@functools.partial(jax.vmap, in_axes=(0, None, None, None))
def _sums(counts, clusters, radius, signed):
    """Users' sums from dense counts [pairs of data, users, d]."""
    users, items = np.divmod(np.arange(2 * D), D)
    releases = ClusteredReleases(2, signed, clusters, radius, 1.0, 1e-5)
    return 2 * clustered_histogram.projected_mean(users, items, counts.ravel(), releases)


@pytest.mark.parametrize(
    ("clusters", "signed", "factor"),
    [(np.arange(D), False, 1.0), (np.zeros(D, int), False, 2**0.5), (CLUSTERS, True, 2.0),
     (CLUSTERS, False, 2**0.5), (np.arange(D), True, 2.0)],
)  # fmt: skip
def test_no_element_moves_the_sum_further_than_is_paid_for(clusters, signed, factor, rng):
    radius, rounds, many = 3.0, 8, 400
    corners = np.array([0.0, 1e-30, 0.5, 3.0, 3.0001, 1e6, 3e38, np.nan, np.inf, -1.0, -3.0, -1e6])
    base = rng.choice(corners, (many, 2, D))
    unit = rng.integers(0, max(clusters) + 1, many)
    first, other = base.copy(), base.copy()
    for data in (first, other):
        data[:, 0] = np.where(
            clusters == unit[:, None],
            np.where(rng.random((many, D)) < 0.5, rng.choice(corners, (many, D)), 0.0),
            base[:, 0],
        )
    worst, declared = 0.0, None
    for _ in range(rounds):
        sums = [
            np.asarray(_sums(x.astype(np.float32), clusters, radius, signed))
            for x in (first, other)
        ]
        moved = np.linalg.norm(sums[0].astype(float) - sums[1].astype(float), axis=1)
        assert not np.any(np.isnan(moved))
        worst = max(worst, moved.max())
        best = np.argsort(moved)[-20:]
        pick = rng.choice(best, many)
        first, other, unit = first[pick], other[pick], unit[pick]
        for data in (first, other):  # climb: the unit's own counts alone
            with np.errstate(all="ignore"):
                step = data[:, 0] * rng.choice([0, 1, 1, 2, -1], (many, D)) + rng.normal(
                    0, 1, (many, D)
                )
            data[:, 0] = np.where(clusters == unit[:, None], step, data[:, 0])
    releases = ClusteredReleases(2, signed, clusters, radius, 1.0, 1e-5)
    declared = 2 * releases.sensitivity_of_item.max()
    assert declared == pytest.approx(factor * radius)
    assert 0.995 * declared < worst <= declared * (1 + 1e-6)


def test_noise_is_exact_and_the_mean_unbiased(rng):
    d, n, m = 5000, 50, 30
    draws = rng.multinomial(m, np.full(d, 1 / d), n)
    users, items = np.nonzero(draws)
    counts = draws[users, items]
    clusters = np.arange(d) // 2
    clusters[-1] = d  # one alone
    releases = calibrate_histogram(n, clusters, float(m), 1.0, 1e-5)
    found = _release(_key(), users, items, counts, releases)
    off = (np.asarray(found) - draws.mean(axis=0)) / releases.noise_stddev
    assert abs(np.mean(off**2) - 1) < 4 * (2 / d) ** 0.5
    assert abs(np.mean(off)) < 4 / d**0.5
    assert releases.certificate().epsilon <= 1.0 < releases.certificate().epsilon * 1.001


def test_edited_numbers_are_charged_as_they_run():
    good = calibrate_histogram(100, CLUSTERS, 2.0, 1.0, 1e-5)
    edit = lambda **fields: ClusteredReleases(**(vars(good) | fields))  # noqa: E731
    quiet = edit(noise_multiplier=good.noise_multiplier / 2)
    assert quiet.certificate().epsilon > 2
    assert privacy.epsilon(quiet.loss(), 1e-5) > 2
    # Clusters joined: the noise follows, and the price stays.
    alone = edit(cluster_of_item=np.arange(D))
    np.testing.assert_allclose(good.noise_stddev[0] / alone.noise_stddev[0], 2**0.5)
    np.testing.assert_allclose(edit(signed=True).noise_stddev, 2 * good.noise_multiplier * 2 / 100)
    for bad in itertools.chain(
        ({"radius": x} for x in (0.0, -1.0, np.nan, np.inf, np.array([1.0, np.nan, 1, 1]))),
        ({"noise_multiplier": x} for x in (0.0, np.nan, np.inf, 1e-40)),
    ):
        edited = edit(**bad)
        assert np.isinf(privacy.epsilon(edited.loss(), 1e-5)), bad
        assert np.isinf(edited.certificate().epsilon), bad
        traced = jax.jit(lambda r: privacy.epsilon(r.loss(), 1e-5))(edited)
        assert np.isinf(traced), bad


def test_entries_are_of_one_length():
    releases = calibrate_histogram(10, CLUSTERS, 1.0, 1.0, 1e-5)
    users = np.zeros(3, int)
    for entries, named in [
        ((users, users[:2], users), "items"),
        ((users, users, users[:2]), "counts"),
    ]:
        with pytest.raises(ValueError, match=named):
            clustered_histogram.clustered_histogram(_key(), *entries, releases)


def test_the_sum_is_exact_where_floats_would_double_what_a_user_moves():
    # 2^12 ones, then 2^12 numbers of half a unit in the last place above 2^12: added up one by one as floats
    # the sum moves by 1.27 when the first user is replaced.
    n = 2**13
    small = np.full(n - 2**12, 0.51 * 2.0**-11, np.float32)
    quiet = calibrate_histogram(n, np.array([0]), 1.0, 1.0, 1e-5)
    found, _sum_over_scale = [], jax.jit(clustered_histogram._sum_over_scale)
    for first in (0.0, 1.0):
        counts = np.concatenate([[first], np.ones(2**12 - 1), small]).astype(np.float32)
        total = _sum_over_scale(np.arange(n), np.zeros(n, int), counts, quiet)
        found.append(np.float64(total.coarse[0]) + np.float64(total.rest[0]))
    assert abs(found[1] - found[0]) <= 1.0
    assert found[0] == pytest.approx(2**12 - 1 + np.sum(small), rel=3e-4)


def test_a_pair_adds_up_to_the_same_in_any_order_and_company(rng):
    counts = np.array([2.0**24, *np.ones(11), *np.full(12, 0.3)], np.float32)
    one, other = np.zeros(24, int), np.ones(36, int)
    found = set()
    for _ in range(12):
        rest = rng.integers(0, 3, 36)
        place = rng.permutation(60)
        entries = (
            np.r_[one, other],
            np.r_[one, rest],
            np.r_[counts, 1.0 + rest].astype(np.float32),
        )
        inside = _project(*(x[place] for x in entries), np.zeros(3, int), 2.0**30)
        found.add(float(np.asarray(inside.counts)[np.asarray(inside.users) == 0].max()))
    assert len(found) == 1, "what floats add up to must not depend on other units"


def test_noise_is_added_before_the_sum_is_rounded(monkeypatch):
    # A sum of 2^28 + 15, as 2^28 users may have: float32 knows no number between 2^28 and 2^28 + 32 there.
    items = 4000
    total = Sums(jnp.full(items, 2.0**28), jnp.full(items, 15.0))
    monkeypatch.setattr(clustered_histogram, "_sum_over_scale", lambda *_: total)
    releases = ClusteredReleases(1, False, np.arange(items), 1.0, 3.0, 1e-5)
    none = np.zeros(0, np.int32)
    found = clustered_histogram.clustered_histogram(_key(), none, none, 0.0 * none, releases)
    up = np.asarray(found) == 2.0**28 + 32
    assert np.all(up | (np.asarray(found) == 2.0**28))
    # 15 + 3·z is above 16, half of the way, with the probability of z > 1/3: 0.3694.
    assert abs(np.mean(up) - 0.3694) < 4 * (0.3694 * 0.6306 / items) ** 0.5


def test_exact_sums_are_those_of_float64(rng):
    add = jax.jit(exact_sums, static_argnums=(2, 3))
    for size in (0, 1, 7, 3000):
        values = rng.uniform(-1, 1, size).astype(np.float32)
        places = rng.integers(0, 4, size)
        found = add(values, places, 3, size)
        exact = np.bincount(places, values.astype(float), 4)[:3]
        np.testing.assert_allclose(np.add(*map(np.float64, found)), exact, atol=1e-5)
        assert np.all(np.asarray(found.coarse) % 16 == 0)
        assert np.all((np.asarray(found.rest) >= 0) & (np.asarray(found.rest) < 17))
    tiny = add(np.float32([2.0**-60, -(2.0**-60)]), np.array([0, 1]), 2, 2)
    assert np.all(np.asarray(tiny) == 0), "rounded towards zero, whatever the sign is"


def test_no_radius_makes_the_sum_infinite():
    users = np.arange(1000)
    releases = calibrate_histogram(1000, np.array([0]), 1e36, 1.0, 1e-5)
    found = _release(_key(), users, 0 * users, np.full(1000, 1e36, np.float32), releases)
    assert np.isfinite(releases.certificate().epsilon)
    assert np.isfinite(found[0])


def test_plans_keep_their_clusters_and_edited_ones_are_refused_where_they_would_merge():
    clusters, radius = np.array([0, 1]), np.array([1.0, 2.0])
    releases = calibrate_histogram(2, clusters, radius, 1.0, 1e-5)
    clusters[:], radius[:] = 0, 9
    np.testing.assert_array_equal(releases.cluster_of_item, [0, 1])
    np.testing.assert_array_equal(releases.radius, [1, 2])
    one = np.zeros(1, int)
    for bad in (np.array([0, 2**32]), np.array([0.2, 0.7]), np.array([0, -1])):
        edited = ClusteredReleases(**(vars(releases) | {"cluster_of_item": bad, "radius": 1.0}))
        with pytest.raises(ValueError, match="cluster_of_item"):
            clustered_histogram.clustered_histogram(_key(), one, one, 1.0 + one, edited)
