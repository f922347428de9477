"""Clustered histograms whose radius is found privately: how large units are first, then the histogram.

What it computes: a small part of the budget releases how many units (a user's counts in one cluster) have a
norm between one public radius and the next. From these numbers the squared error of the histogram is guessed
for every radius, and the histogram is released with the radius of which the least is guessed.

Source: E §3.2 says that "a two-stage estimator makes this feasible", and chooses ρ on the private data in its
experiments (N15 of docs/corrections.md); the estimator is ours.

Formal guarantee: neighbours differ in one unit, the counts of one user in one cluster, under REPLACE_ONE. A
unit is counted in one place or in none, by its norm, a function of the unit alone: replacing it moves two
counts by 1 each, √2 in ℓ2, whatever the radii are, so the first stage is a Gaussian of multiplier σ₁. The
second has multiplier σ₂ for every value of the first, since its noise is proportional to the radius that is
chosen from released and public numbers: adaptive composition of two Gaussians of fixed multipliers, whose
joint loss is that of one with (1/σ₁² + 1/σ₂²)^(-1/2).

Utility: with radius ρ the noise has the squared norm σ₂²ρ²·Σ_i s_i²/n² (``histogram_releases``). What the
projection takes away has, summed over all units, the length X(ρ) = Σ (‖v‖ - ρ)₊; were it spread evenly over
the K clusters, in one direction in each, the bias would have the squared norm X²/(n²K). Few clusters have
more than their share of it, and in a cluster of many items users are cut in different directions: the factor
2·(K/d)^0.35 stands for both. It is no theorem but was fitted on two data sets and tried on a third
(docs/experiments.md, ``element-histogram``). No privacy rests on it.

Cost: two sorts of the entries, ``num_radii`` and d numbers.

Example:
    >>> import jax, numpy as np
    >>> releases = calibrate_two_stages(1000, np.array([0, 0, 1]), 4.0, 1.0, 1e-5)
    >>> users, items = np.arange(1000), np.arange(1000) % 3
    >>> out = two_stage_histogram(jax.random.key(0), users, items, np.ones(1000), releases)
    >>> out.histogram.shape, float(out.radius)
    ((3,), 1.0)
"""

from typing import Any, NamedTuple, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Array, Float, Int

from dpsco_jax import privacy
from dpsco_jax._checks import require, require_instance, require_integer, require_key, require_real
from dpsco_jax._conditions import drawable, positive_and_finite
from dpsco_jax._given import as_wide
from dpsco_jax._numerics import array_namespace, as_floats, float32_above
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import block_norms
from dpsco_jax.mechanisms import _sparse_counts, additive, clustered_histogram
from dpsco_jax.mechanisms._units import (
    MOST_USERS,
    certificate_of_gaussians,
    gaussian_multiplier,
    require_clusters,
)
from dpsco_jax.mechanisms.histogram_releases import ClusteredReleases

_SENSITIVITY = 2.0**0.5
_LOW_BITS = 4095
_SIGNIFICANT = 2.0


@pytree
class TwoStageReleases:
    """How large units are, then the histogram. Sizes are static, numbers are leaves (may be traced).

    Attributes:
        num_users: n, public: the divisor of the histogram.
        cluster_of_item: ``[items]``, the public cluster of every item.
        radii: ``[radii]``, ascending, public: the radius is one of them.
        bias_factor: what X(ρ)²/(n²K) is multiplied by when the squared bias is guessed.
        coarse_multiplier: σ₁, standard deviation over sensitivity of the first stage.
        noise_multiplier: σ₂, of the second.
        delta: δ of the certificate.
    """

    num_users: int = static()
    cluster_of_item: Any
    radii: Any
    bias_factor: Number
    coarse_multiplier: Number
    noise_multiplier: Number
    delta: Number

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one unit, a user's counts in one cluster, is replaced."""
        return self.fine(self.radii).relation

    @property
    def coarse_stddev(self) -> Any:
        """Standard deviation of the noise on the number of units between two radii."""
        return _SENSITIVITY * self.coarse_multiplier

    def fine(self, radius: Any) -> ClusteredReleases:
        """The second stage, with the radius that the first has found."""
        return ClusteredReleases(
            self.num_users, False, self.cluster_of_item, radius, self.noise_multiplier, self.delta
        )

    @property
    def accounted(self) -> Any:
        """Whether the proof covers these numbers, whatever is released; a bool, may be traced."""
        # Any radius may be chosen: all must be covered.
        _, (first,) = as_floats(self.coarse_multiplier)
        return positive_and_finite(first) & drawable(first) & self.fine(self.radii).accounted

    def loss(self) -> privacy.PrivacyLoss:
        """What both stages cost, infinite where a number is out of its range; may be traced."""
        good = self.accounted
        _, (first,) = as_floats(self.coarse_multiplier)
        first = array_namespace(good, first).where(good, first, 1.0)
        both = privacy.compose(privacy.gaussian(first), self.fine(self.radii).loss())
        return privacy.unbounded_unless(good, both)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of both stages by the tightest accountant, on the host.

        Raises:
            ValueError: a number is an array, of a batch of releases.
        """
        return certificate_of_gaussians(
            self.accounted, self.delta, self.coarse_multiplier, self.noise_multiplier
        )


class TwoStageHistogram(NamedTuple):
    """What both stages have released.

    Attributes:
        histogram: the private mean of users' counts, ``[items]``.
        units: noisy number of units with a norm above each radius and not above the next, ``[radii]``.
        radius: of all clusters: a function of ``units`` and public numbers.
        noise_stddev: of the histogram, ``[items]``.
    """

    histogram: Float[Array, "items"]
    units: Float[Array, "radii"]
    radius: Float[Array, ""]
    noise_stddev: Float[Array, "items"]


def calibrate_two_stages(
    num_users: int,
    cluster_of_item: Int[Array | np.ndarray, "items"],
    coarse_bound: SupportsFloat,
    epsilon: SupportsFloat,
    delta: SupportsFloat,
    *,
    coarse_share: SupportsFloat = 0.1,
    least_radius: SupportsFloat = 1.0,
    num_radii: int = 32,
) -> TwoStageReleases:
    """Both stages with the least noise within (ε, δ) for elements under REPLACE_ONE.

    Args:
        num_users: n, public.
        cluster_of_item: ``[items]``, the public cluster of every item, integers of at least 0.
        coarse_bound: B > 0, public, above which no radius is wanted. A bound that is too large costs little,
            one that is too small cuts: the number of items of a large user is a good one.
        epsilon: budget, positive.
        delta: budget, in (0, 1).
        coarse_share: of 1/σ² that the first stage has, in (0, 1).
        least_radius: the smallest radius, in (0, ``coarse_bound``]; 1 is right for counts, of which no norm
            is between 0 and 1.
        num_radii: how many radii there are, from the smallest to B, each by one ratio above the one before.
    """
    num_users = require_integer("num_users", num_users, 1, MOST_USERS)
    require_clusters(cluster_of_item)
    bound = require_real("coarse_bound", coarse_bound, 0.0)
    least = require_real("least_radius", least_radius, 0.0)
    require(least <= bound, "least_radius", least, f"at most coarse_bound = {bound:g}")
    share = require_real("coarse_share", coarse_share, 0.0, 1.0)
    num_radii = require_integer("num_radii", num_radii, 2)
    joint = gaussian_multiplier(epsilon, delta)
    clusters = np.array(cluster_of_item)
    return TwoStageReleases(
        num_users=num_users,
        cluster_of_item=clusters,
        radii=np.geomspace(least, bound, num_radii),
        bias_factor=2.0 * (len(np.unique(clusters)) / len(clusters)) ** 0.35,
        coarse_multiplier=float32_above(joint / share**0.5),
        noise_multiplier=float32_above(joint / (1 - share) ** 0.5),
        delta=float(delta),
    )


def two_stage_histogram(
    key: jax.Array,
    users: Int[Array | np.ndarray, "entries"],
    items: Int[Array | np.ndarray, "entries"],
    counts: Float[Array | np.ndarray, "entries"],
    releases: TwoStageReleases,
) -> TwoStageHistogram:
    """Both stages; cost ``releases.loss()`` under REPLACE_ONE over units.

    Args:
        key: a typed key, used up.
        users: of every entry; one outside [0, num_users) makes the entry count as nothing.
        items: of every entry; one outside [0, items) makes the entry count as nothing.
        counts: of every entry; those of one pair add up, negative ones and NaN count as nothing.
        releases: of ``calibrate_two_stages``.
    """
    require_instance("releases", releases, TwoStageReleases)
    require_key(key)
    coarse_key, fine_key = jax.random.split(key)
    found = _sparse_counts.entries(
        users, items, counts, releases.cluster_of_item, releases.num_users, False
    )
    radii = jnp.asarray(releases.radii, float)
    units = _units_between(coarse_key, found, radii, releases.coarse_stddev)
    radius = radii[jnp.argmin(_guessed_errors(units, radii, releases))]
    fine = releases.fine(radius)
    histogram = clustered_histogram.clustered_histogram(fine_key, users, items, counts, fine)
    return TwoStageHistogram(histogram, units, radius, jnp.asarray(fine.noise_stddev, float))


def _units_between(
    key: jax.Array, found: _sparse_counts.Entries, radii: Array, stddev: Any
) -> Float[Array, "radii"]:
    """The noisy number of units above each radius and not above the next."""
    norms = block_norms.block_norms(found.counts, found.new_unit)
    place = jnp.searchsorted(radii, norms.astype(radii.dtype), side="left")
    # A unit that is not finite counts as zero, as in the second stage.
    place = jnp.where(jnp.isfinite(norms), place, 0)
    counted = jax.ops.segment_sum(jnp.ones_like(place), place, len(radii) + 1)[1:]
    return _with_noise(key, counted, stddev)


def _with_noise(key: jax.Array, counted: Int[Array, "radii"], stddev: Any) -> Float[Array, "radii"]:
    # Float32 does not hold all integers above 2^24: the noisy number is rounded, not the exact one.
    low = counted & _LOW_BITS
    noisy = additive.gaussian(key, low.astype(float), stddev)
    return (counted - low).astype(float) + noisy


def _guessed_errors(
    units: Array, radii: Array, releases: TwoStageReleases
) -> Float[Array, "radii"]:
    """n² times the squared error that each radius may have: of released and public numbers alone."""
    label = jnp.sort(as_wide(releases.cluster_of_item))
    clusters = jnp.sum(_sparse_counts.changes(label))
    above = jnp.cumsum(units[::-1])[::-1]
    # Tails that noise may have made are none: far out they would weigh the most.
    noise = jnp.asarray(releases.coarse_stddev, float) * jnp.arange(len(radii), 0, -1) ** 0.5
    above = jnp.where(above > _SIGNIFICANT * noise, above, 0.0)
    width = jnp.diff(radii, append=radii[-1:])
    excess = jnp.cumsum((width * above)[::-1])[::-1]
    factors = jnp.sum(jnp.square(jnp.asarray(releases.fine(1.0).factor_of_item, float)))
    bias = jnp.asarray(releases.bias_factor, float) * jnp.square(excess) / clusters
    return bias + jnp.square(jnp.asarray(releases.noise_multiplier, float) * radii) * factors
