"""What mechanisms on units, one user's part in one cluster, share: checks, noise, certificates.

Multipliers are over the sensitivity of one unit, under REPLACE_ONE over units.
"""

from typing import Any, SupportsFloat

import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._checks import require, require_integers, require_positive, require_real
from dpsco_jax._numerics import float32_above
from dpsco_jax.privacy.certificates import accounted_by
from dpsco_jax.privacy.dp_accounting import events

PUBLIC = ("clusters and radii are public: they were chosen without looking at the data",)
MOST_USERS = 2**31 - 2
_RELATION = NeighboringRelation.REPLACE_ONE


def gaussian_multiplier(epsilon: SupportsFloat, delta: SupportsFloat) -> float:
    """The least noise multiplier of one Gaussian within (ε, δ), by the exact curve, rounded up.

    Args:
        epsilon: positive.
        delta: in (0, 1).
    """
    full = privacy.FullBatch()
    return float32_above(privacy.certified_noise_multiplier(full, 1, epsilon, delta, _RELATION))


def certificate_of_gaussians(
    accounted: Any, delta: SupportsFloat, *multipliers: SupportsFloat
) -> privacy.Certificate:
    """The guarantee of Gaussian releases on the same units; infinite if ``accounted`` is false."""
    delta = require_real("delta", delta, 0.0, 1.0)
    if not bool(accounted):
        how = accounted_by("no proof")
        return privacy.Certificate(float("inf"), delta, _RELATION, how, PUBLIC)
    event = events.composed(*(events.gaussian(float(sigma)) for sigma in multipliers))
    return privacy.certificate(event, delta, _RELATION, PUBLIC)


def require_clusters(cluster_of_item: Any) -> None:
    """Raise ``ValueError`` unless this is a concrete array of integers of at least 0, not empty."""
    name = "cluster_of_item"
    require_integers(name, cluster_of_item)
    concrete = not isinstance(cluster_of_item, jax.core.Tracer)
    require(concrete, name, cluster_of_item, "known when the histogram is planned")
    found = np.asarray(cluster_of_item)
    shaped = found.ndim == 1 and found.size > 0
    require(shaped, name, found.shape, "an array [items], one item or more")
    require(found.min() >= 0, name, int(found.min()), "at least 0")
    require(found.max() < MOST_USERS, name, int(found.max()), f"below {MOST_USERS}")


def require_radius(radius: Any, cluster_of_item: Any) -> None:
    """Raise ``ValueError`` unless this is one positive number, or one for every cluster."""
    require_positive("radius", radius)
    needed = int(np.max(cluster_of_item)) + 1
    shape = np.shape(radius)
    good = shape == () or (len(shape) == 1 and shape[0] >= needed)
    require(good, "radius", shape, f"one number, or an array of at least {needed} of them")
