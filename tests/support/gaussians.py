"""The privacy curve of two Gaussians, written out once beside that of the package."""

import numpy as np
from scipy import special


def gaussian_delta(epsilon: float, distance: float) -> float:
    """Hockey-stick divergence of two unit Gaussians at a distance (Balle and Wang 2018, Theorem 8)."""
    upper = special.log_ndtr(distance / 2 - epsilon / distance)
    lower = epsilon + special.log_ndtr(-distance / 2 - epsilon / distance)
    return float(np.exp(upper) * -np.expm1(lower - upper))
