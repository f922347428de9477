"""Clustered histograms whose radii are found privately: rough cluster norms first, then the histogram.

What it computes: part of the budget releases, for every cluster, the mean over users of the norm of their
counts in it, each clipped at a coarse public bound. The radius of a cluster is a public multiple of what was
released, between two public ends; then the histogram is released with these radii.

Source: E §3.2 says that "a two-stage estimator makes this feasible", and chooses ρ on the private data in its
experiments (N15 of docs/corrections.md); the estimator is ours.

Formal guarantee: neighbours differ in one unit, the counts of one user in one cluster, under REPLACE_ONE. The
first stage is itself a clustered histogram, over the clusters as items, each alone in its cluster: a user's
"count" of cluster c is ‖v_c‖, a function of the unit (u, c) alone, clipped to [0, B]. One unit moves one
coordinate by at most B (s = 1), so the first stage is a Gaussian of multiplier σ₁. The second has multiplier
σ₂ for every value of the first, since its noise is proportional to the radii: adaptive composition of two
Gaussians of fixed multipliers, whose joint loss is that of one with (1/σ₁² + 1/σ₂²)^(-1/2).

No promise of utility: the mean norm is too small a radius for clusters that few users have, whose large
counts are cut (docs/experiments.md, ``element-histogram``); ``least_radius`` and ``radius_factor`` are public
ways out.

Cost: two sorts of the entries, and K + d numbers.

Example:
    >>> import jax, numpy as np
    >>> releases = calibrate_two_stages(1000, np.array([0, 0, 1]), 4.0, 1.0, 1e-5)
    >>> users, items = np.arange(1000), np.arange(1000) % 3
    >>> out = two_stage_histogram(jax.random.key(0), users, items, np.ones(1000), releases)
    >>> out.histogram.shape, out.radius.shape
    ((3,), (2,))
"""

from typing import Any, NamedTuple, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Array, Float, Int

from dpsco_jax import privacy
from dpsco_jax._checks import require, require_instance, require_integer, require_key, require_real
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import block_norms
from dpsco_jax.mechanisms import _sparse_counts, clustered_histogram
from dpsco_jax.mechanisms._units import (
    MOST_USERS,
    certificate_of_gaussians,
    gaussian_multiplier,
    require_clusters,
)
from dpsco_jax.mechanisms.histogram_releases import ClusteredReleases


@pytree
class TwoStageReleases:
    """Rough norms of clusters, then the histogram. Sizes are static, numbers are leaves (may be traced).

    Attributes:
        num_users: n, public: the divisor of both stages.
        num_clusters: K.
        cluster_of_item: ``[items]``, the public cluster of every item.
        coarse_bound: B, to which the norm of a unit is clipped in the first stage; no radius is larger.
        least_radius: no radius is smaller; 1 is right for counts, of which no norm is between 0 and 1.
        radius_factor: a radius is this times the released mean norm.
        coarse_multiplier: σ₁, standard deviation over sensitivity of the first stage.
        noise_multiplier: σ₂, of the second.
        delta: δ of the certificate.
    """

    num_users: int = static()
    num_clusters: int = static()
    cluster_of_item: Any
    coarse_bound: Number
    least_radius: Number
    radius_factor: Number
    coarse_multiplier: Number
    noise_multiplier: Number
    delta: Number

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one unit, a user's counts in one cluster, is replaced."""
        return self.coarse.relation

    @property
    def coarse(self) -> ClusteredReleases:
        """The first stage: a histogram over clusters, each one alone."""
        alone = np.arange(self.num_clusters)
        return ClusteredReleases(
            self.num_users, False, alone, self.coarse_bound, self.coarse_multiplier, self.delta
        )

    def fine(self, radius: Float[Array, "clusters"]) -> ClusteredReleases:
        """The second stage, with radii that the first has found."""
        return ClusteredReleases(
            self.num_users, False, self.cluster_of_item, radius, self.noise_multiplier, self.delta
        )

    @property
    def accounted(self) -> Any:
        """Whether the proof covers these numbers, whatever is released; a bool, may be traced."""
        # Radii are between these two, so that the second stage is covered with either of them.
        narrow, wide = self.fine(self.least_radius), self.fine(self.coarse_bound)
        good = positive_and_finite(self.radius_factor)
        return good & self.coarse.accounted & narrow.accounted & wide.accounted

    def loss(self) -> privacy.PrivacyLoss:
        """What both stages cost, infinite where a number is out of its range; may be traced."""
        both = privacy.compose(self.coarse.loss(), self.fine(self.coarse_bound).loss())
        return privacy.unbounded_unless(self.accounted, both)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of both stages by the tightest accountant, on the host.

        Raises:
            ValueError: ``delta`` is not in (0, 1), or a number is an array, of a batch of releases.
        """
        return certificate_of_gaussians(
            self.accounted, self.delta, self.coarse_multiplier, self.noise_multiplier
        )


class TwoStageHistogram(NamedTuple):
    """What both stages have released.

    Attributes:
        histogram: the private mean of users' counts, ``[items]``.
        radius: of every cluster, ``[clusters]``: a function of what the first stage has released.
        noise_stddev: of the histogram, ``[items]``.
    """

    histogram: Float[Array, "items"]
    radius: Float[Array, "clusters"]
    noise_stddev: Float[Array, "items"]


def calibrate_two_stages(
    num_users: int,
    cluster_of_item: Int[Array | np.ndarray, "items"],
    coarse_bound: SupportsFloat,
    epsilon: SupportsFloat,
    delta: SupportsFloat,
    *,
    coarse_share: SupportsFloat = 0.2,
    least_radius: SupportsFloat = 1.0,
    radius_factor: SupportsFloat = 1.0,
) -> TwoStageReleases:
    """Both stages with the least noise within (ε, δ) for elements under REPLACE_ONE.

    Args:
        num_users: n, public.
        cluster_of_item: ``[items]``, the public cluster of every item, integers of at least 0.
        coarse_bound: B > 0, a public guess above which no radius is wanted.
        epsilon: budget, positive.
        delta: budget, in (0, 1).
        coarse_share: of 1/σ² that the first stage has, in (0, 1).
        least_radius: the smallest radius, in (0, ``coarse_bound``].
        radius_factor: a radius is this times the released mean norm, positive.

    Raises:
        ValueError: an argument is out of its range.
    """
    num_users = require_integer("num_users", num_users, 1, MOST_USERS)
    require_clusters(cluster_of_item)
    bound = require_real("coarse_bound", coarse_bound, 0.0)
    least = require_real("least_radius", least_radius, 0.0)
    require(least <= bound, "least_radius", least, f"at most coarse_bound = {bound:g}")
    factor = require_real("radius_factor", radius_factor, 0.0)
    share = require_real("coarse_share", coarse_share, 0.0, 1.0)
    joint = gaussian_multiplier(epsilon, delta) * (1 + 1e-12)
    return TwoStageReleases(
        num_users=num_users,
        num_clusters=int(np.max(cluster_of_item)) + 1,
        cluster_of_item=np.asarray(cluster_of_item),
        coarse_bound=bound,
        least_radius=least,
        radius_factor=factor,
        coarse_multiplier=joint / share**0.5,
        noise_multiplier=joint / (1 - share) ** 0.5,
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
        items: of every entry; one outside [0, items) likewise.
        counts: of every entry; those of one pair add up, negative ones and NaN count as nothing.
        releases: of ``calibrate_two_stages``.

    Raises:
        ValueError: arrays of other kinds or shapes.
    """
    require_instance("releases", releases, TwoStageReleases)
    require_key(key)
    coarse_key, fine_key = jax.random.split(key)
    labels = _sparse_counts.as_labels(releases.cluster_of_item)
    found = _sparse_counts.entries(users, items, counts, labels, releases.num_users, False)
    norms = block_norms.block_norms(found.counts, found.new_unit)
    cluster = jnp.append(labels, releases.num_clusters)[found.items]
    rough = clustered_histogram.clustered_histogram(
        coarse_key, found.users, cluster, norms, releases.coarse
    )
    wanted = jnp.asarray(releases.radius_factor, rough.dtype) * rough
    radius = jnp.clip(wanted, releases.least_radius, releases.coarse_bound)
    fine = releases.fine(radius)
    histogram = clustered_histogram.clustered_histogram(fine_key, users, items, counts, fine)
    return TwoStageHistogram(histogram, radius, jnp.asarray(fine.noise_stddev, rough.dtype))
