"""Exact draws from exp(-b·ψ(x) + ⟨x, y⟩) on a convex set, for a self-concordant ψ and b ≥ 1.

Let V = b·ψ - ⟨·, y⟩, w any point, H = ∇²V(w), r = ‖x - w‖_H, λ = ‖∇V(w)‖ in the dual norm and ω(r) = r -
log(1 + r). A proposal has a direction that is uniform in the norm of H and a length of density
r^(d-1)·exp(-ω(r) + ε·r), a mixture of two gamma laws; it counts with probability exp(-(V(x) - V(w)) + ω(r) -
ε·r), at most 1 while λ ≤ ε, if it is in the set. Newton's method finds w, which changes only how likely a
point counts: at least ``acceptance(d)`` if the points with r < 1 lie in the set (docs/theory/llt_sampler.md,
section 4; that log-Laplace transforms are self-concordant is T Lemma 5.3.2).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy import special

from dpsco_jax.solvers.sampling.restricted_gaussian import until_one_counts

SLOPE = 2.0**-10
"""ε: half of it bounds λ; the other half is for errors of the computed gradient and Hessian."""

_DAMPED = 1.0 / 3.0  # Newton decrement below which full steps are taken
_FULL_STEPS = 6  # 1/3, 1/4, 1/9, 1/64, 2.6e-4
_DOWN = 1.0 - 2.0**-30


class Prepared(NamedTuple):
    """What all attempts for one y share."""

    tilt: Float[Array, " dim"]  # y
    anchor: Float[Array, " dim"]  # w
    value: Float[Array, ""]  # ψ(w)
    factor: Float[Array, "dim dim"]  # L, with L·Lᵀ = H
    root: Float[Array, "dim dim"]  # its transposed inverse
    ready: Bool[Array, ""]  # whether λ is small enough; if not, no attempt counts


class Attempted(NamedTuple):
    """The end of some attempts: the point, and whether it counts."""

    params: Float[Array, " dim"]
    counts: Bool[Array, ""]
    num_attempts: Int[Array, ""]


def acceptance(dim: int) -> float:
    """A lower bound on the probability that an attempt counts, rounded down.

    The integral of r^(d-1)·exp(-λr - ω*(r)) over r < 1, with λ ≤ ε, over that of the proposal's density:
    e^{-ε}·∫ r^(d-1)·(1 - r)·e^r dr / (Γ(d)/(1-ε)^d + Γ(d+1)/(1-ε)^(d+1)).
    """
    # ∫ r^k·e^r = Σ_j 1/(j!·(k + j + 1)), all terms positive.
    inside = sum((1.0 / (dim + j) - 1.0 / (dim + j + 1)) / math.factorial(j) for j in range(24))
    low = 1.0 - SLOPE
    whole = math.gamma(dim) / low**dim + math.gamma(dim + 1) / low ** (dim + 1)
    return _DOWN * math.exp(-SLOPE) * inside / whole


def newton_steps(height: Any, xp: Any = np) -> Any:
    """Steps from a point that is at most so far above the minimum, in V: damped steps gain ω(1/3) each."""
    gain = _DAMPED - math.log1p(_DAMPED)
    return xp.ceil(height / gain) + _FULL_STEPS


def prepare(
    value: Callable[[Array], Array],
    moments: Callable[[Array], tuple[Array, Array]],
    power: Any,
    tilt: Float[Array, " dim"],
    start: Float[Array, " dim"],
    most_steps: Any,
    constant_time: bool,
) -> Prepared:
    """Finds w for y = ``tilt`` and b = ``power`` by Newton's method, in so many steps at most."""

    def local(point: Array) -> tuple[Array, Array, Array, Array]:
        gradient, hessian = moments(point)
        slope = power * gradient - tilt
        factor = jnp.linalg.cholesky(power * hessian)
        half = jax.scipy.linalg.solve_triangular(factor, slope, lower=True)
        step = jax.scipy.linalg.solve_triangular(factor, half, lower=True, trans=1)
        return point, factor, step, jnp.sqrt(jnp.sum(half * half))

    def far(carry: Any) -> Array:
        (_, _, _, decrement), count = carry
        return ~(decrement <= 0.5 * SLOPE) & (count < most_steps)

    def once(carry: Any) -> Any:
        found, count = carry
        point, _, step, decrement = found
        damping = jnp.where(decrement > _DAMPED, 1.0 / (1.0 + decrement), 1.0)
        near = local(point - damping * step)
        if constant_time:  # what is near enough stays
            near = jax.tree.map(lambda new, old: jnp.where(far(carry), new, old), near, found)
        return near, count + 1

    first = (local(start), jnp.zeros((), jnp.int32))
    if constant_time:
        found, _ = jax.lax.fori_loop(0, most_steps, lambda _, carry: once(carry), first)
    else:
        found, _ = jax.lax.while_loop(far, once, first)
    anchor, factor, _, decrement = found
    identity = jnp.eye(len(anchor), dtype=anchor.dtype)
    root = jax.scipy.linalg.solve_triangular(factor, identity, lower=True).T
    return Prepared(tilt, anchor, value(anchor), factor, root, decrement <= 0.5 * SLOPE)


def attempts(
    key: Array,
    prepared: Prepared,
    value: Callable[[Array], Array],
    contains: Callable[[Array], Array],
    power: Any,
    slack: float,
    most: int,
    constant_time: bool,
) -> Attempted:
    """Attempts until one counts, at most so many; attempt i uses ``fold_in(key, i)``.

    Exponents are raised by ``slack``, so that an error of ψ makes no probability larger than 1.
    """
    dim = len(prepared.anchor)
    lengths = jnp.asarray(_length_share(dim))

    def one(index: Array) -> tuple[Array, Array]:
        direction_key, length_key, coin_key = jax.random.split(jax.random.fold_in(key, index), 3)
        free = jax.random.normal(direction_key, (dim,), jnp.float64)
        uniform = jax.random.uniform(length_key, (dim + 2,), jnp.float64)
        waits = -jnp.log1p(-uniform[: dim + 1])
        extra = jnp.where(uniform[dim + 1] < lengths, 0.0, waits[dim])
        length = (jnp.sum(waits[:dim]) + extra) / (1.0 - SLOPE)
        free = free / jnp.sqrt(jnp.sum(free * free))
        point = prepared.anchor + prepared.root @ (length * free)
        move = point - prepared.anchor
        length = jnp.sqrt(jnp.sum(jnp.square(move @ prepared.factor)))
        above = power * (value(point) - prepared.value) - jnp.dot(move, prepared.tilt)
        above = above - (length - jnp.log1p(length)) + SLOPE * length + slack
        coin = jax.random.uniform(coin_key, (), jnp.float64)
        return point, prepared.ready & contains(point) & (coin < jnp.exp(-above))

    # Without an anchor that is near enough none will count.
    first = 0 if constant_time else jnp.where(prepared.ready, 0, most)
    return Attempted(*until_one_counts(one, prepared.anchor, most, constant_time, first))


@functools.cache
def _length_share(dim: int) -> float:
    """The weight of the gamma law of shape d, beside that of shape d + 1."""
    low = 1.0 - SLOPE
    return float(special.expit(math.log(low) - math.log(dim)))
