"""What is left of a convex link after its tangent, without cancellation: φ(m + t) - φ(m) - φ'(m)·t.

This is for φ = log(1 + e^m), and for φ whose derivative is a ramp, φ'(m) = min(max(m, low), high). Where t is
small the three terms nearly cancel, and what a sampler needs of them is much smaller than they are. With p =
φ'(m) the first is the cumulant generating function at t of a coin of probability p, less its mean, log(1 + (1
- p)·r(-p·t) + p·r((1 - p)·t)) with r(z) = e^z - 1 - z ≥ 0, a sum of positive terms.

With u = 2^-53, in float64, what is computed is within a factor 1 ± 64·u the remainder of a convex link whose
derivative differs from φ' by at most 8·u·(sup|φ'| + |t|); it is never negative.
"""

from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax._numerics import exp_remainder

_SMALL = 32.0


def softplus(margin: Any, change: Any) -> Any:
    """log(1 + e^(m + t)) - log(1 + e^m) - t/(1 + e^-m)."""
    # The remainder is the same at -m for -t; of the two that with the smaller derivative has no overflow.
    low = -jnp.abs(margin)
    t = jnp.where(margin > 0, -change, change)
    slope = jax.nn.sigmoid(low)
    small = jnp.abs(t) < _SMALL
    near = jnp.where(small, t, 0.0)
    others = 1.0 - slope
    down, up = exp_remainder(jnp, -slope * near), exp_remainder(jnp, others * near)
    by_cumulants = jnp.log1p(others * down + slope * up)
    by_values = jax.nn.softplus(low + t) - jax.nn.softplus(low) - slope * t
    return jnp.maximum(jnp.where(small, by_cumulants, by_values), 0.0)


def ramp(margin: Any, change: Any, low: Any, high: Any) -> Any:
    """φ(m + t) - φ(m) - φ'(m)·t where φ'(m) is m between ``low`` and ``high`` and constant beyond."""
    # In the direction of the change the derivative is constant, then rises by at most ``rise``, linearly.
    upward = change >= 0
    start = jnp.clip(margin, low, high)
    flat = jnp.maximum(jnp.where(upward, low - margin, margin - high), 0.0)
    rise = jnp.where(upward, high - start, start - low)
    length = jnp.maximum(jnp.abs(change) - flat, 0.0)
    bent = jnp.minimum(length, rise)
    return 0.5 * bent * bent + rise * (length - bent)
