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
docs/theory/iteration.md.

Formal guarantee: the bound above, in both directions of a pair of neighbours, under the relation for which Δ
was shown. The points in between, their average, and whatever was computed from them may not be released. φ
must be the same function in every step, or of the same c and Δ, and may not depend on noise that was drawn
before.
"""

import math
from typing import Any, SupportsFloat

from dpsco_jax._checks import (
    require_integer,
    require_multiplier,
    require_probability,
    require_real,
    require_share,
    require_whole,
)
from dpsco_jax._numerics import Scalar, array_namespace, as_floats, round_up
from dpsco_jax.privacy.curves.closed_forms import gdp
from dpsco_jax.privacy.loss import PrivacyLoss, unbounded_unless

_UP = 1.0 + 2.0**-40
_ROUNDING_ULPS = 32.0  # of a logarithm, an exponential and a few products
_SLOWEST = 1e-30  # below this share of a distance nothing is gained on composition


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

    Example:
        >>> sigma = last_iterate_noise_multiplier(0.5, 100, 0.98)
        >>> 0.499 < last_iterate_gdp(100, 0.98, sigma) <= 0.5
        True
    """
    mu = require_real("mu", mu, 0.0)
    num_steps = require_integer("num_steps", num_steps, 1)
    return _UP * _UP * _growth(num_steps, require_share("contraction", contraction)) / mu


def last_iterate_mu(num_steps: Scalar, shrinkage: Scalar, noise_multiplier: Scalar) -> Any:
    """``last_iterate_gdp`` for numbers that may be traced, by how much φ shrinks distances; rounded up.

    Args:
        num_steps: T, at least 1, a whole number.
        shrinkage: 1 - c, in [0, 1]: φ brings any two points closer by this share of their distance at least.
            Asked for in place of c, which float32 could not tell from 1.
        noise_multiplier: ν/Δ, at least 0.

    Returns:
        μ of shape ``[...]``; ``inf`` where there is no noise, or a traced number is out of its range.

    Example:
        >>> bool(0.99 < last_iterate_mu(100, 0.02, 2.0) / last_iterate_gdp(100, 0.98, 2.0) < 1.01)
        True
    """
    require_whole("num_steps", num_steps, 1)
    require_probability("shrinkage", shrinkage)
    require_multiplier("noise_multiplier", noise_multiplier)
    xp, (steps, q, sigma) = as_floats(num_steps, shrinkage, noise_multiplier)
    valid = (steps >= 1) & (steps == xp.floor(steps)) & (steps < xp.inf)
    valid = valid & (q >= 0) & (q <= 1) & (sigma > 0)
    slow, known = q < _SLOWEST, valid & (q > 0)
    share = xp.where(known & ~slow, q, 0.5)
    full = share >= 1.0
    log_power = steps * xp.log1p(-xp.where(full, 0.5, share))
    met = xp.where(full, 1.0, -xp.expm1(log_power) / (2.0 + xp.expm1(log_power)))
    # Never more than composition says, and that where c is 1 as far as can be computed.
    growth = xp.where(slow, steps, xp.minimum(met * (2.0 - share) / share, steps))
    mu = xp.sqrt(growth) / xp.where(valid, sigma, 1.0)
    return xp.where(valid, round_up(mu, _ROUNDING_ULPS), xp.inf)[()]


def last_iterate_loss(
    num_steps: Scalar, shrinkage: Scalar, noise_multiplier: Scalar
) -> PrivacyLoss:
    """The loss of the last point of a noisy contraction, that of ``gdp``; the numbers may be traced.

    Args:
        num_steps: T, at least 1, a whole number.
        shrinkage: 1 - c, in [0, 1]: φ brings any two points closer by this share of their distance at least.
        noise_multiplier: ν/Δ, at least 0; no noise costs ``inf``.

    Returns:
        The loss, unbounded where a traced number is out of its range.

    Example:
        >>> from dpsco_jax import privacy
        >>> loss = last_iterate_loss(10**6, 0.02, 8.0)
        >>> bool(privacy.epsilon(loss, 1e-6) < privacy.epsilon(last_iterate_loss(10**6, 0.0, 8.0), 1e-6))
        True
    """
    mu = last_iterate_mu(num_steps, shrinkage, noise_multiplier)
    proven = mu < math.inf
    return unbounded_unless(proven, gdp(array_namespace(mu).where(proven, mu, 0.0)))


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
