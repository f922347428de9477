"""Noisy iterations of which only the last point is released: privacy without a charge for each step.

What it computes: how private the last point is of

    x_{t+1} = Π(φ(x_t) + N(0, ν²·I)),    t = 0, ..., T - 1,

from a start that does not depend on data, where Π projects onto a convex set, φ is a function of the data
that is c-Lipschitz with c ≤ 1 on every data set, and φ and φ' of neighbours are nowhere more than Δ apart.
It is μ-Gaussian DP with

    μ = (Δ/ν)·√((1 - c^T)(1 + c)/((1 + c^T)(1 - c))),    μ = (Δ/ν)·√T for c = 1.

Composition says (Δ/ν)·√T for any c, and also covers all points. With c = 1 - ηm (gradient descent of a
m-strongly convex sum) μ stays below (Δ/ν)·√(2/(ηm)) however long the run is. For linear φ the bound is
attained.

Source: Altschuler and Talwar 2022; Bok, Su and Altschuler 2024 (shifted interpolation). The proof is in
docs/privacy/iteration.md.

Formal guarantee: as above, in both directions of a pair of neighbours, under the relation for which Δ was
shown. The points in between, their average, and whatever was computed from them may not be released. φ must
be the same function in every step, or of the same c and Δ, and may not depend on noise that was drawn
before.

Cost: none.
"""

import math
from typing import SupportsFloat

from dpsco_jax._checks import require_integer, require_real, require_share

_UP = 1.0 + 2.0**-40


def last_iterate_gdp(
    num_steps: int, contraction: SupportsFloat, noise_multiplier: SupportsFloat
) -> float:
    """μ of the last point of a noisy contraction, rounded up; ``privacy.gdp`` makes a loss of it.

    Args:
        num_steps: T, at least 1.
        contraction: c, in [0, 1]: φ is c-Lipschitz on every data set.
        noise_multiplier: ν/Δ, the noise of a step over how far apart the steps of neighbours may be.

    Returns:
        μ; ``inf`` where it is beyond the floats.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> last_iterate_gdp(1, 0.9, 2.0) < 0.5001, last_iterate_gdp(10**6, 0.9, 2.0) < 2.18
        (True, True)
    """
    num_steps = require_integer("num_steps", num_steps, 1)
    factor = require_share("contraction", contraction)
    multiplier = require_real("noise_multiplier", noise_multiplier, 0.0)
    return _UP * _growth(num_steps, factor) / multiplier


def last_iterate_noise_multiplier(
    mu: SupportsFloat, num_steps: int, contraction: SupportsFloat
) -> float:
    """ν/Δ for which the last point of a noisy contraction is μ-Gaussian DP, rounded up.

    Args:
        mu: above 0.
        num_steps: T, at least 1.
        contraction: c, in [0, 1].

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> sigma = last_iterate_noise_multiplier(0.5, 100, 0.98)
        >>> 0.499 < last_iterate_gdp(100, 0.98, sigma) <= 0.5
        True
    """
    mu = require_real("mu", mu, 0.0)
    num_steps = require_integer("num_steps", num_steps, 1)
    return _UP * _UP * _growth(num_steps, require_share("contraction", contraction)) / mu


def _growth(num_steps: int, c: float) -> float:
    """√((1 - c^T)(1 + c)/((1 + c^T)(1 - c))), without cancellation near c = 1; T may be beyond the floats."""
    if c == 0.0:
        return 1.0
    if c == 1.0:
        root = math.isqrt(num_steps - 1) + 1
        return math.sqrt(num_steps) if num_steps < 2**1000 else _float_above(root)
    log_power = _float_above(num_steps) * math.log(c)
    return math.sqrt(math.tanh(-0.5 * log_power) * (1.0 + c) / (1.0 - c))


def _float_above(whole: int) -> float:
    """The integer as a float, ``inf`` where it is beyond the floats."""
    return float(whole) if whole < 2**1023 else math.inf
