"""How likely attempts to draw from a restricted Gaussian count at least, and what a cap on them costs.

What it computes: lower bounds p on the probability that an attempt of ``restricted_gaussian`` counts, and the
probability (1 - p)^N that none of N does, which a certificate adds to the total variation distance.

Source: ours; T leaves these draws to general samplers.

Formal guarantee: the bounds hold for every y, or for every y that starts at most so far out as is said; how
likely the steps of a chain all do is ``farthest_start``. They know no data.

Cost: none.

Example:
    >>> from dpsco_jax.solvers.sampling import attempt_bounds
    >>> farthest = attempt_bounds.farthest_start(dim=10, num_steps=1000, variation=1e-9)
    >>> p = attempt_bounds.ball_acceptance(10, radius=1.0, stddev=1e-3, farthest=farthest)
    >>> p > 0.4, attempt_bounds.attempts_variation(p, 100) < 1e-27
    (True, True)
"""

import math

import numpy as np
from scipy import special

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Count, Inside, Nonnegative, Positive, checked

__all__ = ["attempts_variation", "ball_acceptance", "farthest_start"]

OUTSIDE = 0.0625
"""Standard deviations outside the set from which on its half-space is proposed from.

A direction that is formed from less is all rounding."""

_CELLS = 4096
_DOWN = 1.0 - 2.0**-30


@checked
def attempts_variation(acceptance: Positive, num_attempts: Count) -> float:
    """The probability, at most, that no attempt counts: (1 - p)^N, rounded up.

    Args:
        acceptance: p, in (0, 1], a lower bound for every y.
        num_attempts: N, at least 1.

    Raises:
        ValueError: an argument is out of range.
    """
    p = acceptance
    _checks.require(p <= 1.0, "acceptance", p, "in (0, 1]")
    return 0.0 if p == 1.0 else min(1.0, math.exp(num_attempts * math.log1p(-p)) / _DOWN)


@checked
def farthest_start(dim: Count, num_steps: Count, variation: Inside) -> float:
    """The r with which no T steps y ← x + √η·N(0, I) are longer than r·√η, but with the given probability.

    For x in K and x₀ in K the mean m is then within r·√v of K, since m - K is v/η times as far as y - K at
    most.

    Args:
        dim: d, at least 1.
        num_steps: T, at least 1.
        variation: in (0, 1).

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> 6.0 < farthest_start(1, 1000, 1e-6) < 6.2
        True
    """
    return math.sqrt(2.0 * float(special.gammainccinv(dim / 2.0, variation / num_steps))) / _DOWN


@checked
def ball_acceptance(dim: Count, radius: Positive, stddev: Positive, farthest: Nonnegative) -> float:
    """A lower bound on the probability that an attempt of ``convex_set`` on a ball counts.

    For means m outside by at most ``farthest``·√v. Inside, or hardly outside, it is least where m is
    farthest out. Outside by ρ√v the depth is T√v, T a standard normal number above ρ less ρ, and a point
    counts if a χ² number of d - 1 degrees of freedom is at most 2TR/√v - T²; T falls with ρ, so the largest
    ρ is worst. Points beyond the centre, of which there are more where ρ is small, are left out.

    Args:
        dim: d, at least 1.
        radius: R, above 0.
        stddev: √v, above 0.
        farthest: at least 0; see ``farthest_start``.

    Returns:
        The bound, rounded down, in [0, 1].

    Raises:
        ValueError: an argument is out of range.
    """
    size = radius / stddev
    inside = float(special.chndtr(size**2, dim, (size + OUTSIDE) ** 2))
    # The depths at which the tail has shed shares of its mass, as chances that fall; a sum from below.
    shares = 1.0 - np.arange(_CELLS) / _CELLS
    far = max(farthest, OUTSIDE)
    depths = -special.ndtri_exp(special.log_ndtr(-far) + np.log(shares)) - far
    depths = np.clip(depths, 0.0, size)
    room = 2.0 * depths * size - depths**2
    across = special.gammainc((dim - 1) / 2.0, room / 2.0) if dim > 1 else np.ones(_CELLS)
    beyond = math.exp(special.log_ndtr(-OUTSIDE - size) - special.log_ndtr(-OUTSIDE))
    return max(0.0, min(inside, float(np.mean(across)) - beyond) * _DOWN - 1e-12)
