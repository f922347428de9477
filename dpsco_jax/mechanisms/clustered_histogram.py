"""Clustered histograms: mean counts per user under element-level privacy, from sparse counts.

What it computes: items are grouped into public clusters; a user's counts in each cluster are projected onto
an ℓ2 ball, the projections are averaged over the users, and Gaussian noise is added. With every item a
cluster of its own an element is an item, with one cluster it is the whole user, and the noise needed grows
from the first to the second.

Source: E (9), Lemma 3.2, Proposition 2, with the sensitivity corrected (N1 of docs/corrections.md).

Formal guarantee: proof, relation and sensitivity are those of ``histogram_releases``: ``releases.loss()`` and
``releases.certificate()`` hold for any entries whatsoever. Entries of one pair (user, item) add up before
anything else. An entry counts as nothing if its user or item is out of range, if its count is not finite,
or if it is negative and the releases are not ``signed``: each of these is a function of the unit alone. The
sum over users is exact (``_exact_sums``), so that no rounding adds to the sensitivity.

Cost: a sort of the entries and some arrays of their number, and ``[items]`` numbers; nothing of users ×
items. 400,000 items and 2,000 users with 4,000 entries each take 0.97 GiB in all (docs/benchmarks.md).

Example:
    >>> import jax, numpy as np
    >>> from dpsco_jax.mechanisms.histogram_releases import calibrate_histogram
    >>> releases = calibrate_histogram(10_000, np.array([0, 0, 1]), 2.0, 1.0, 1e-6)
    >>> users, items = np.arange(10_000), np.arange(10_000) % 3
    >>> mean = clustered_histogram(jax.random.key(0), users, items, np.ones(10_000), releases)
    >>> mean.shape, bool(abs(mean - 1 / 3).max() < 0.02)
    ((3,), True)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Integer, Num

from dpsco_jax._checks import require, require_flag, require_instance, require_integers
from dpsco_jax.geometry import block_norms
from dpsco_jax.mechanisms import _sparse_counts, additive
from dpsco_jax.mechanisms._units import MOST_USERS, require_clusters, require_radius
from dpsco_jax.mechanisms.histogram_releases import ClusteredReleases


class Counts(NamedTuple):
    """Sparse counts: in order of user, cluster and item, each pair at most once with a nonzero count.

    Attributes:
        users: of every entry; entries that do not count have a user that is out of range.
        items: of every entry; out of range where it does not count.
        counts: of every entry; zero for what does not count.
    """

    users: Int[Array, "entries"]
    items: Int[Array, "entries"]
    counts: Float[Array, "entries"]


_COARSE = 16


class _Sums(NamedTuple):
    """Sums by place: ``coarse`` plus ``rest``.

    Attributes:
        coarse: multiples of 16.
        rest: from 0 to 17, to which noise is added.
    """

    coarse: Float[Array, "places"]
    rest: Float[Array, "places"]


def project_clusters(
    users: Integer[Array | np.ndarray, "entries"],
    items: Integer[Array | np.ndarray, "entries"],
    counts: Num[Array | np.ndarray, "entries"],
    cluster_of_item: Integer[Array | np.ndarray, "items"],
    radius: ArrayLike,
    *,
    signed: bool = False,
) -> Counts:
    """Every user's counts, each cluster projected onto the ball of its radius: v·min{1, ρ/‖v‖}.

    Args:
        users: of every entry, at least 0.
        items: of every entry, below the number of items.
        counts: of every entry; those of one pair (user, item) add up.
        cluster_of_item: the cluster of every item, integers of at least 0.
        radius: ρ of all clusters, or ``[clusters]``; may be traced.
        signed: whether negative counts count.

    Returns:
        As many entries as there were, of which no (user, cluster) has a norm above its radius, rounding
        included. Units within the ball are kept bit for bit.
    """
    require_clusters(cluster_of_item)
    require_radius(radius, cluster_of_item)
    signed = require_flag("signed", signed)
    found = _sparse_counts.entries(users, items, counts, cluster_of_item, MOST_USERS, signed)
    spread = ClusteredReleases(1, signed, cluster_of_item, radius, 1.0, 0.5).radius_of_item
    return _projected(found, spread)


def projected_mean(
    users: Integer[Array | np.ndarray, "entries"],
    items: Integer[Array | np.ndarray, "entries"],
    counts: Num[Array | np.ndarray, "entries"],
    releases: ClusteredReleases,
) -> Float[Array, "items"]:
    """What ``clustered_histogram`` adds noise to: the mean of the projected counts. Not private.

    Args:
        users: of every entry; one outside [0, num_users) makes the entry count as nothing.
        items: of every entry; one outside [0, num_items) makes the entry count as nothing.
        counts: of every entry.
        releases: of ``calibrate_histogram``.
    """
    total = _sum_over_scale(users, items, counts, releases)
    return (total.coarse + total.rest) * (_scale(releases) / releases.num_users)


def clustered_histogram(
    key: jax.Array,
    users: Integer[Array | np.ndarray, "entries"],
    items: Integer[Array | np.ndarray, "entries"],
    counts: Num[Array | np.ndarray, "entries"],
    releases: ClusteredReleases,
) -> Float[Array, "items"]:
    """The private mean of users' counts, ``[items]``; costs ``releases.loss()`` under REPLACE_ONE over units.

    Args:
        key: a typed key, used up.
        users: of every entry; one outside [0, num_users) makes the entry count as nothing.
        items: of every entry; one outside [0, num_items) makes the entry count as nothing.
        counts: of every entry, real numbers; those of one pair (user, item) add up.
        releases: of ``calibrate_histogram``.

    Returns:
        Unbiased for the mean if no unit is projected; noise of ``releases.noise_stddev`` on every
        coordinate. The number of entries is not protected where it is the shape of an array: pad it.
    """
    total = _sum_over_scale(users, items, counts, releases)
    noisy = additive.gaussian(key, total.rest, releases.noise_multiplier)
    return (total.coarse + noisy) * (_scale(releases) / releases.num_users)


def _scale(releases: ClusteredReleases) -> Float[Array, "items"]:
    return jnp.asarray(releases.factor_of_item * releases.radius_of_item, float)


def _sum_over_scale(
    users: Integer[Array | np.ndarray, "entries"],
    items: Integer[Array | np.ndarray, "entries"],
    counts: Num[Array | np.ndarray, "entries"],
    releases: ClusteredReleases,
) -> _Sums:
    require_instance("releases", releases, ClusteredReleases)
    require_integers("cluster_of_item", releases.cluster_of_item)
    if not isinstance(releases.cluster_of_item, jax.core.Tracer):
        # Again, of an edited plan: labels that are cut to integers of 32 bits would be other clusters.
        require_clusters(releases.cluster_of_item)
    require(releases.num_users <= MOST_USERS, "num_users", releases.num_users, f"<= {MOST_USERS}")
    found = _sparse_counts.entries(
        users, items, counts, releases.cluster_of_item, releases.num_users, releases.signed
    )
    projected = _projected(found, releases.radius_of_item)
    # Divided by the sensitivity of its cluster, one unit moves the sum by at most 1.
    scale = jnp.append(_scale(releases), 1.0)[projected.items]
    values = projected.counts.astype(scale.dtype) / scale
    return _exact_sums(values, projected.items, releases.num_items, releases.num_users)


def _projected(found: _sparse_counts.Entries, radius_of_item: ArrayLike) -> Counts:
    radius = jnp.append(jnp.asarray(radius_of_item, found.counts.dtype), 1.0)[found.items]
    inside = block_norms.clip_blocks(found.counts, found.new_unit, radius)
    return Counts(found.users, found.items, inside)


def _exact_sums(
    values: Float[Array, "entries"], places: Int[Array, "entries"], size: int, most: int
) -> _Sums:
    """The sums of the values by place, of which those in [0, ``size``) are returned.

    Floats that are added one after the other make a sum whose rounding depends on all of them: where it
    passes a power of two, one number that is there or not moves it by up to twice itself, and more with every
    further power. Integers have no such rounding. A number x becomes (a + b·2^-k)·2^-k, rounded towards zero,
    which is a function of x alone of no larger magnitude, and the sums of a and b are exact as long as at
    most ``most`` numbers share a place, since ``most``·2^k < 2^31. Noise must be added to the rest, before
    the two are added up and the sum is rounded (Mironov 2012; Casacuberta et al. 2022).

    Args:
        values: in [-1, 1]; others, and NaN, have no meaning.
        places: of every value.
        size: number of places.
        most: at most as many values share a place.
    """
    bits = min(26, 30 - min(most, len(values)).bit_length())
    scaled = values * 2.0**bits
    high = jnp.trunc(scaled)
    low = jnp.trunc((scaled - high) * 2.0**bits)
    highs, lows = (
        jax.ops.segment_sum(part.astype(jnp.int32), places, size) for part in (high, low)
    )
    # Whole units of the low part go up, so that the rest is small.
    highs, lows = highs + (lows >> bits), lows & (2**bits - 1)
    rest = highs & (_COARSE * 2**bits - 1)
    coarse = (highs - rest).astype(values.dtype) * 2.0**-bits
    small = rest.astype(values.dtype) + lows.astype(values.dtype) * 2.0**-bits
    return _Sums(coarse, small * 2.0**-bits)
