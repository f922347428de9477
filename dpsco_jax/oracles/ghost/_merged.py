"""Norms of gradients of a table that is looked up many times: equal rows are added up, then measured.

What it computes: the norm of G = Σ_t e_{i_t} ⊗ r_t, for ``left`` the numbers i_t and ``right`` the vectors
r_t. The T numbers are sorted; a sum over all that are equal is taken by doubling: after step j every place
holds the sum of the last 2^j vectors of its number, and the last place of a number holds them all.

Source: a segmented scan (Hillis and Steele 1986).

Formal guarantee: ``norm_bound`` is at least the norm of G for the numbers as stored, with γ_{T+3}·L more, L =
Σ_t ‖r_t‖, and at least ``share``·L (docs/theory/ghost.md, section 1). The order of additions depends on the
example's numbers alone, on every device: no scatter of floats, whose order an accelerator may change from
run to run. An example whose squared norms leave the range of float32 has an infinite bound; so has one with
NaN.

Cost: T·log₂T·N additions and a sort of T integers, whatever the size of the table.
"""

import jax
import jax.numpy as jnp
from jax import lax

from dpsco_jax.oracles.ghost import _terms
from dpsco_jax.oracles.ghost._terms import Terms


def norm_bound(use: Terms, rows: int, share: float = 0.0) -> jax.Array:
    """Upper bounds of the norms of the gradients of a table, ``[examples]``.

    Args:
        use: the only use of the table, a look-up; numbers from 0 to ``rows`` - 1.
        rows: K.
        share: of the sum L of the norms of all vectors, which the bound is at least.
    """
    _, stack, products, columns = use.right.shape
    gamma = _terms.gamma_of(3 * products + columns + stack + _terms.OTHER_ROUNDINGS)
    lengths = jnp.sum(_terms.lengths_of(use.right), axis=2)  # [examples, S]
    whole = jnp.sqrt(jnp.sum(jnp.square(lengths), axis=1) + stack * _terms.FLUSHED)
    squares = jnp.sum(jnp.square(_sums_of_equal(use, rows)), axis=3)
    square = jnp.sum(jnp.sum(squares, axis=2) + products * columns * _terms.FLUSHED, axis=1)
    bound = jnp.sqrt(square) * (1 + 2 * gamma) + gamma * whole
    # NaN must not be lost in a maximum.
    bad = ~jnp.isfinite(square)
    return jnp.where(bad, jnp.inf, jnp.maximum(bound, share * (1 + 2 * gamma) * whole))


def _sums_of_equal(use: Terms, rows: int) -> jax.Array:
    """``[examples, S, T, N]``: the sum of the vectors of each number, at its last place; zero elsewhere."""
    number, vectors = _sorted(use, rows)
    products, step = use.num_products, 1
    while step < products:
        same = number[..., step:] == number[..., :-step]
        more = jnp.where(same[..., None], vectors[..., :-step, :], 0)
        vectors = vectors + jnp.pad(more, ((0, 0), (0, 0), (step, 0), (0, 0)))
        # Else a compiler may compute a step again for every place of the next one.
        vectors = lax.optimization_barrier(vectors)
        step *= 2
    last = jnp.pad(
        number[..., 1:] != number[..., :-1], ((0, 0), (0, 0), (0, 1)), constant_values=True
    )
    return jnp.where(last[..., None], vectors, 0)


def _sorted(use: Terms, rows: int) -> tuple[jax.Array, jax.Array]:
    """Numbers in order, and their vectors."""
    products = use.num_products
    if rows * products < 2**31:
        # One integer for both is sorted several times faster than a pair.
        both = use.left * products + jnp.arange(products, dtype=jnp.int32)
        both = lax.sort(both, dimension=2)
        number, place = both // products, both % products
    else:
        place = jnp.argsort(use.left, axis=2, stable=True)
        number = jnp.take_along_axis(use.left, place, axis=2)
    return number, jnp.take_along_axis(use.right, place[..., None], axis=2)
