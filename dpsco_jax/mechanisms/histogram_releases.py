"""What is released by a clustered histogram: clusters, radii, noise, and what they cost.

What it computes: how far one element moves each part of a clustered histogram, the standard deviation that
follows, and the privacy loss, all from the numbers that ``clustered_histogram`` runs.

Source: E (9), Lemma 3.2, corrected (N1 of docs/corrections.md): the sensitivity of the printed lemma, ρ/n, is
that of clusters of one item alone.

Formal guarantee: neighbours differ in one unit, the counts of one user in one cluster c, replaced by any
others (REPLACE_ONE over units). Before and after, what the unit adds to the sum is a vector of norm at most
ρ_c, in the coordinates of c only. Hence the sum moves by at most s_c·ρ_c there and nowhere else, with

- s_c = 1 if c is one item and counts are nonnegative: two numbers in [0, ρ] are at most ρ apart;
- s_c = √2 if c has several items and counts are nonnegative: ‖a - b‖² = ‖a‖² + ‖b‖² - 2⟨a, b⟩ <= 2ρ²,
  attained by (ρ, 0) and (0, ρ);
- s_c = 2 if counts are signed: a and -a.

Noise of standard deviation σ·s_c·ρ_c on the coordinates of c, for every c with its own radius, is therefore a
Gaussian mechanism of noise multiplier σ: clusters with wide balls do not pay for the others, nor these for
them. Nothing of it is declared: s_c is computed from the clusters and from whether negative counts are cut,
as they run. Clusters and radii must not depend on the data. Where a number is out of its range, loss and
certificate are infinite.

Cost: one sort of the clusters.

Example:
    >>> import numpy as np
    >>> releases = calibrate_histogram(1000, np.array([0, 0, 1]), 5.0, 1.0, 1e-5)
    >>> releases.sensitivity_of_item * 1000 / 5
    array([1.41421356, 1.41421356, 1.        ])
"""

from typing import Any, SupportsFloat

import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Array, ArrayLike, Int

from dpsco_jax import privacy
from dpsco_jax._checks import require_flag, require_integer
from dpsco_jax._conditions import drawable, positive_and_finite
from dpsco_jax._numerics import array_namespace, as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms._units import (
    MOST_USERS,
    certificate_of_gaussians,
    gaussian_multiplier,
    require_clusters,
    require_radius,
)


@pytree
class ClusteredReleases:
    """One clustered histogram. Sizes are static, numbers are leaves (may be traced).

    Attributes:
        num_users: n, public: the divisor.
        signed: whether negative counts count; otherwise they are left out.
        cluster_of_item: ``[items]``, integers: the cluster of every item.
        radius: ρ of all clusters, or ``[clusters]``.
        noise_multiplier: standard deviation over sensitivity, the same in all clusters.
        delta: δ of the certificate.
    """

    num_users: int = static()
    signed: bool = static()
    cluster_of_item: Any
    radius: Number
    noise_multiplier: Number
    delta: Number

    @property
    def num_items(self) -> int:
        """d, the length of the histogram."""
        return len(self.cluster_of_item)

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one unit, a user's counts in one cluster, is replaced."""
        return NeighboringRelation.REPLACE_ONE

    @property
    def factor_of_item(self) -> Any:
        """S of the cluster of every item, ``[items]``: 1, √2 or 2."""
        xp = array_namespace(self.cluster_of_item)
        if self.signed:
            return xp.full(self.num_items, 2.0)
        label = xp.asarray(self.cluster_of_item)
        ordered = xp.sort(label)
        above = xp.searchsorted(ordered, label, side="right")
        size = above - xp.searchsorted(ordered, label, side="left")
        return xp.where(size == 1, 1.0, 2.0**0.5)

    @property
    def radius_of_item(self) -> Any:
        """ρ of the cluster of every item, ``[items]``."""
        xp, (radius,) = as_floats(self.radius)
        if radius.ndim == 0:
            return xp.full(self.num_items, radius)
        return radius[self.cluster_of_item]

    @property
    def sensitivity_of_item(self) -> Any:
        """How far one unit moves the histogram in ℓ2, by the item that it is about, ``[items]``."""
        return self.factor_of_item * self.radius_of_item / self.num_users

    @property
    def noise_stddev(self) -> Any:
        """Standard deviation of the noise on every coordinate, ``[items]``."""
        return self.noise_multiplier * self.sensitivity_of_item

    @property
    def accounted(self) -> Any:
        """Whether the proof covers these numbers; a bool, may be traced."""
        xp, (radius, multiplier) = as_floats(self.radius, self.noise_multiplier)
        good = xp.all(positive_and_finite(radius) & drawable(radius, radius / self.num_users))
        return good & positive_and_finite(multiplier) & drawable(multiplier)

    def loss(self) -> privacy.PrivacyLoss:
        """What the histogram costs, infinite where a number is out of its range; may be traced."""
        good = self.accounted
        _, (multiplier,) = as_floats(self.noise_multiplier)
        # Where it is not covered no curve would take it.
        multiplier = array_namespace(good, multiplier).where(good, multiplier, 1.0)
        return privacy.unbounded_unless(good, privacy.gaussian(multiplier))

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the histogram by the tightest accountant, on the host.

        Raises:
            ValueError: a number is an array, of a batch of releases.
        """
        return certificate_of_gaussians(self.accounted, self.delta, self.noise_multiplier)


def calibrate_histogram(
    num_users: int,
    cluster_of_item: Int[Array | np.ndarray, "items"],
    radius: ArrayLike,
    epsilon: SupportsFloat,
    delta: SupportsFloat,
    *,
    signed: bool = False,
) -> ClusteredReleases:
    """The histogram with the least noise within (ε, δ) for elements under REPLACE_ONE.

    Args:
        num_users: n, public.
        cluster_of_item: ``[items]``, the public cluster of every item, integers of at least 0: zeros for
            privacy of whole users, ``arange(d)`` for every item an element.
        radius: ρ > 0 of all clusters, or ``[clusters]``; public.
        epsilon: budget, positive.
        delta: budget, in (0, 1).
        signed: whether negative counts count: they cost √2 times the noise, or twice for single items.
    """
    num_users = require_integer("num_users", num_users, 1, MOST_USERS)
    require_clusters(cluster_of_item)
    require_radius(radius, cluster_of_item)
    signed = require_flag("signed", signed)
    multiplier = gaussian_multiplier(epsilon, delta)
    # Copies: what the caller writes into the arrays later is no part of the plan.
    clusters = np.array(cluster_of_item)
    radius = np.array(radius) if isinstance(radius, np.ndarray) else radius
    return ClusteredReleases(num_users, signed, clusters, radius, multiplier, float(delta))
