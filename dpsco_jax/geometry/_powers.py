"""Sums of powers of entries: ℓp norms of one array, what attains them, and the nearest point of an ℓp ball.

Norms are of an array and a static p, with the largest entry factored out so that no power leaves the
range of floats. The nearest point w of the ball of radius ρ to a point a outside, a >= 0, for 1 < p < inf:
with the multiplier λ

    w_i + λ·w_i^(p-1) = a_i,    Σ w_i^p = ρ^p.

λ is found by halving: ‖w‖_p falls in λ, and λ·ρ^(p-1) = ‖a - w‖_q (q dual to p, since ‖w^(p-1)‖_q =
‖w‖_p^(p-1)), which is at most ‖a‖_q, and is taken for at least u·‖a‖_q, u the unit roundoff: below, w is a to
the last place.

Given λ, w = a·t with t + Λ·t^r = 1, Λ = λ·a^(p-2) and r = p - 1. Where r < 1, u = Λ·t^r solves the same with
1/r and Λ^(-1/r), so r >= 1 and the left side is convex and increasing. With A = min(1, Λ^(-1/r)) and B =
min(1, Λ) it is Aτ + Bτ^r - 1 at t = Aτ; τ lies in [½, 1], since at ½ both terms are at most ½ and at 1 one of
them is 1. Newton's method from τ = 1 comes down to the root without passing it: Bτ^r falls by e a step until
it is of the size of 1 - Aτ, which takes log r steps, and then convergence is quadratic.

Cost: of the projection (bits of the dtype) × (8 + log r) passes; no sort.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float

Vector = Float[Array, "dim"]


def norm(vector: Vector, p: float) -> Float[Array, ""]:
    """‖x‖_p; gradient zero at zero, NaN for NaN."""
    sizes = vector * jnp.sign(vector)  # whose derivative at 0 is 0, not 1
    if p == 1.0:
        return jnp.sum(sizes)
    if p == math.inf:
        return jnp.max(sizes)
    scale, unit = _scaled(sizes)
    total = jnp.sum(unit**p)
    nonzero = total != 0
    return scale * jnp.where(nonzero, jnp.where(nonzero, total, 1.0) ** (1.0 / p), 0.0)


def half_square_gradient(vector: Vector, q: float) -> Vector:
    """The gradient of ‖x‖_q²/2 for 1 < q < inf: ‖x‖_q^(2-q)·sign(x)·|x|^(q-1), zero at zero."""
    scale, unit = _scaled(jnp.abs(vector))
    length = norm(unit, q)
    nonzero = length != 0
    stretch = jnp.where(nonzero, jnp.where(nonzero, length, 1.0) ** (2.0 - q), 0.0)
    return scale * stretch * jnp.sign(vector) * unit ** (q - 1.0)


def attaining(sizes: Vector, p: float) -> Vector:
    """The u >= 0 with ‖u‖_p = 1 and the largest <u, sizes>, for sizes >= 0; zero for zero."""
    if p == math.inf:
        return jnp.sign(sizes)
    if p == 1.0:
        return jnp.where(jnp.arange(sizes.size) == jnp.argmax(sizes), jnp.sign(sizes), 0.0)
    q = 1.0 / (1.0 - 1.0 / p)
    unit = _scaled(sizes)[1]
    length = norm(unit, q)
    nonzero = length != 0
    return jnp.where(nonzero, (unit / jnp.where(nonzero, length, 1.0)) ** (q - 1.0), 0.0)


def nearest(sizes: Vector, radius: ArrayLike, p: float) -> Vector:
    """The nearest point of the ℓp ball, 1 < p < inf, to a point outside of it with entries >= 0."""
    scale, unit = _scaled(sizes)
    room = radius / scale
    # From here on the largest entry is 1, so that logarithms are small.
    top = (1.0 - p) * jnp.log(room) + jnp.log(norm(unit, 1.0 / (1.0 - 1.0 / p)))
    depth = math.log(4.0 / float(jnp.finfo(unit.dtype).eps))

    def turn(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = low + 0.5 * (high - low)
        outside = norm(_shrunk(unit, middle, p), p) > room
        return jnp.where(outside, middle, low), jnp.where(outside, high, middle)

    halvings = jnp.finfo(unit.dtype).nmant + 8
    _, high = lax.fori_loop(0, halvings, turn, (top - depth, top))
    found = _shrunk(unit, high, p)
    # What rounding has left outside.
    return jnp.asarray(radius * (found / jnp.maximum(norm(found, p), room)))


def _shrunk(point: Vector, log_multiplier: Array, p: float) -> Vector:
    """The w with w + λ·w^(p-1) = a."""
    positive = point > 0
    sizes = jnp.where(positive, point, 1.0)
    log_weight = log_multiplier + (p - 2.0) * jnp.log(sizes)
    power = max(p - 1.0, 1.0 / (p - 1.0))
    if p < 2.0:
        log_weight = -power * log_weight
    flat = jnp.exp(jnp.minimum(-log_weight / power, 0.0))
    bent = jnp.exp(jnp.minimum(log_weight, 0.0))

    def newton(_: Any, tau: Array) -> Array:
        slope = tau ** (power - 1.0)
        excess = flat * tau + bent * tau * slope - 1.0
        return jnp.maximum(tau - excess / (flat + power * bent * slope), 0.5)

    tau = lax.fori_loop(0, 8 + math.ceil(math.log(power)), newton, jnp.ones_like(sizes))
    share = flat * tau
    if p < 2.0:
        # Near 1 the difference is precise, near 0 the power.
        share = jnp.where(share < 0.5, 1.0 - share, bent * tau**power)
    return jnp.where(positive, sizes * share, point)


def _scaled(sizes: Vector) -> tuple[Array, Vector]:
    """A number near the largest entry, constant under differentiation, and the entries divided by it."""
    tiny = float(jnp.finfo(sizes.dtype).tiny)
    scale = lax.stop_gradient(jnp.clip(jnp.max(sizes), tiny, 1.0 / tiny))
    return scale, sizes / scale
