"""An unbiased estimate of exp(F(z) - F(x)), F a mean of many losses, that reads fewer than two on average.

Draw a with Pr[a ≥ b] = 1/b!, b = 1, 2, ..., and indices j uniformly; with X_j the difference f_j(z) - f_j(x)
of one loss,

    ρ = 1 + Σ_{b=1..a} Π_{i=1..b} X.

With ``"prefix"`` term b multiplies the first b of a indices, so a differences are read, e - 1 on average.
With ``"fresh"``, as printed in T, Algorithm 14 and (5.19), each term has indices of its own, a(a + 1)/2
differences, e on average. Either way the expectation given x and z is Σ_b (F(z) - F(x))^b/b!, up to b = A, at
which a is cut off. Algorithm 16 prints Pr[a ≥ b] = 1/b, corrected (docs/corrections.md). Pr[a ≥ b] is 1/b!
within 2^-53, an index is uniform within total variation n·2^-65.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

INDICES = ("prefix", "fresh")


class Estimate(NamedTuple):
    """One draw."""

    value: Float[Array, ""]  # ρ
    num_terms: Int[Array, ""]  # a
    num_differences: Int[Array, ""]  # those that ρ is made of


def estimate(
    key: jax.Array,
    read: Callable[[Array, Array], Any],
    scale: Any,
    num_records: int,
    num_terms: int,
    indices: str,
    constant_time: bool,
) -> Estimate:
    """Draws ρ.

    Args:
        key: a typed key.
        read: ``read(part, j)``, a float64 scalar for an index j in [0, n); X_j is read(1, j) - read(0, j).
            It is traced once, so that both values are of one function.
        scale: k, by which X_j is multiplied.
        num_records: n.
        num_terms: A, static.
        indices: ``"prefix"`` or ``"fresh"``.
        constant_time: whether the differences of all A terms are computed.
    """
    length_key, index_key = jax.random.split(key)
    # The term that each difference belongs to, and whether it is the last of that term.
    if indices == "prefix":
        last = np.ones(num_terms, bool)
    else:
        term = np.repeat(np.arange(num_terms), np.arange(1, num_terms + 1))
        last = np.append(term[1:] != term[:-1], True)
    length = draw_length(length_key, num_terms)
    needed = length if indices == "prefix" else length * (length + 1) // 2
    drawn = draw_indices(index_key, len(last), num_records)

    def add(trip: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        total, product, held = carry
        i, part = trip // 2, trip % 2
        found = read(part, drawn[i])
        whole = part == 1
        product = jnp.where(whole, product * (scale * (found - held)), product)
        ended = whole & jnp.asarray(last)[i]
        total = total + jnp.where(ended & (i < needed), product, 0.0)
        if indices == "fresh":
            product = jnp.where(ended, 1.0, product)
        return total, product, jnp.where(whole, 0.0, found)

    one, zero = jnp.ones((), jnp.float64), jnp.zeros((), jnp.float64)
    trips = 2 * (len(last) if constant_time else needed)
    value, _, _ = jax.lax.fori_loop(0, trips, add, (one, one, zero))
    return Estimate(value, length, needed)


def draw_length(key: jax.Array, num_terms: int) -> Int[Array, ""]:
    """a, with Pr[a ≥ b] = 1/b! for b up to A, where it is cut off."""
    chances = [1.0 / math.factorial(b) for b in range(1, num_terms + 1)]
    uniform = unit_interval(jax.random.bits(key, (), jnp.uint64))
    return jnp.sum(uniform < np.asarray(chances), dtype=jnp.int32)


def draw_indices(key: jax.Array, count: int, num_records: int) -> Int[Array, " count"]:
    """Uniform numbers in [0, n), from 64 random bits each."""
    bits = jax.random.bits(key, (count,), jnp.uint64)
    return (bits % np.uint64(num_records)).astype(jnp.int32)


def unit_interval(bits: Array) -> Float[Array, "*shape"]:
    """Multiples of 2^-53 in [0, 1), from 64 random bits each."""
    return (bits >> np.uint64(11)).astype(jnp.float64) * 2.0**-53
