"""What is left of a convex link after its tangent, without cancellation.

What it computes: φ(m + t) - φ(m) - φ'(m)·t for φ = log(1 + e^m), and for φ whose derivative is a ramp,
φ'(m) = min(max(m, low), high). Where t is small the three terms nearly cancel, and what a sampler needs of
them is much smaller than they are.

Source: none; softplus(-m) = softplus(m) - m, and φ(m) = a·m - a²/2 with a = φ'(m) for a ramp.

Formal guarantee: with u = 2^-53, in float64, the error is at most 16·u·sup|φ'|·|t| plus 16·u times the
value, and the result is never negative.

Cost: elementwise.
"""

from typing import Any

import jax
import jax.numpy as jnp

_SMALL = 1.0


def softplus(margin: Any, change: Any) -> Any:
    """log(1 + e^(m + t)) - log(1 + e^m) - t/(1 + e^-m)."""
    # The remainder is the same at -m for -t; of the two that with the smaller derivative has no overflow.
    low = -jnp.abs(margin)
    t = jnp.where(margin > 0, -change, change)
    slope = jax.nn.sigmoid(low)
    small = jnp.abs(t) < _SMALL
    near = jnp.where(small, t, 0.0)
    by_ratio = jnp.log1p(slope * jnp.expm1(near)) - slope * near
    by_values = jax.nn.softplus(low + t) - jax.nn.softplus(low) - slope * t
    return jnp.maximum(jnp.where(small, by_ratio, by_values), 0.0)


def ramp(margin: Any, change: Any, low: float, high: float) -> Any:
    """φ(m + t) - φ(m) - φ'(m)·t where φ'(m) is m between ``low`` and ``high`` and constant beyond."""
    before = jnp.clip(margin, low, high)
    after = jnp.clip(margin + change, low, high)
    return jnp.maximum((after - before) * (margin + change - 0.5 * (before + after)), 0.0)
