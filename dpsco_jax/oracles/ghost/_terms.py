"""Norms and weighted sums of gradients that are sums of products of two vectors, without building them.

A gradient G = Σ_t l_t ⊗ r_t, of one example, is kept as its factors: ``left`` [S, T, K] and ``right`` [S, T,
N]; for a look-up, ``left`` [S, T] holds the numbers of rows and stands for their unit vectors. The squared
norm is Σ_ts ⟨l_t, l_s⟩·⟨r_t, r_s⟩, one number for a pair of products in place of K·N for each.

Source: Goodfellow 2015 for T = 1; Li, Tramèr, Liang and Hashimoto 2022, section 4 ("ghost clipping").

Formal guarantee: ``norm_bound`` is at least the norm of G for the numbers as stored, with room for the
roundings of the example's own part in ``weighted_product``, and at least ``share`` of L = Σ_t ‖l_t‖‖r_t‖.
With u the unit roundoff of float32 and γ_n = n·u/(1 - n·u), an inner product of n terms in any order is off
by γ_n·‖a‖‖b‖ (Higham 2002, section 3.1). So the sum over pairs, which is added up along one axis and then
along the other, is off by γ·L² with n = K + N + 2T, and an entry of the sum of products by γ of the sum of
its terms' sizes, which makes γ·L in norm. Both are added, what is flushed to zero below 2^-126, too, and
terms of second order: docs/theory/ghost.md, section 1, has the proof. Weights below ``LEAST_WEIGHT`` have to
be zero. An example whose squared norms leave the range of float32 has an infinite bound; so has one with NaN.

Cost: for T = 1, K + N products. Otherwise T²·(K + N), and T² numbers held for an example; look-ups take
T²·N, and ``_parts.norm_bound`` is for many of them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

FULL = lax.Precision.HIGHEST
_UNIT = 2.0**-24
FLUSHED = 2.0**-126
OTHER_ROUNDINGS = 16
LEAST_WEIGHT = 2.0**-43  # √f/γ for the least γ, that of 16 roundings


class Terms(NamedTuple):
    """The factors of a gradient of every example; see the file's docstring.

    Attributes:
        left: ``[examples, S, T, K]``, or integers ``[examples, S, T]``.
        right: ``[examples, S, T, N]``.
    """

    left: jax.Array
    right: jax.Array

    @property
    def looked_up(self) -> bool:
        """Whether the left vectors are unit vectors, known by their numbers."""
        return self.left.ndim == self.right.ndim - 1

    @property
    def num_products(self) -> int:
        """T."""
        return self.right.shape[2]


def _pairs(a: jax.Array, b: jax.Array) -> jax.Array:
    """⟨a_t, b_s⟩ for all t and s, of vectors or of numbers that stand for unit vectors."""
    if a.ndim == b.ndim == 4:
        return jnp.einsum("bstk,bsuk->bstu", a, b, precision=FULL)
    if a.ndim == b.ndim == 3:
        return (a[..., :, None] == b[..., None, :]).astype(jnp.float32)
    if a.ndim == 4:
        return jnp.swapaxes(_pairs(b, a), -1, -2)
    # Entries a_t of every vector b_s.
    return jnp.swapaxes(jnp.take_along_axis(b, a[..., None, :], axis=3), -1, -2)


def lengths_of(vectors: jax.Array) -> jax.Array:
    """Upper bounds of the norms, up to roundings; one for unit vectors."""
    if vectors.ndim == 3:
        return jnp.ones(vectors.shape, jnp.float32)
    square = jnp.sum(jnp.square(vectors), axis=-1)
    return jnp.sqrt(square + vectors.shape[-1] * FLUSHED)


def _added(pairs: jax.Array) -> jax.Array:
    """Their sum, with no more additions in a row than both axes are long."""
    return jnp.sum(lax.optimization_barrier(jnp.sum(pairs, axis=3)), axis=2)


def gamma_of(roundings: int) -> float:
    return roundings * _UNIT / (1 - roundings * _UNIT)


def norm_bound(uses: list[Terms], swapped: list[bool], share: float = 0.0) -> jax.Array:
    """Upper bounds of the norms of Σ over the uses of the gradients of one leaf, ``[examples]``.

    Args:
        uses: whose S are the same axes of the leaf.
        swapped: of which of them the left factor belongs to the axes that are those of the right factor of
            the others, as of a table that is looked up at first and multiplied with at last.
        share: of the sum L of the norms of all products, which the bound is at least.
    """
    sides = [
        (u.right, u.left) if s else (u.left, u.right) for u, s in zip(uses, swapped, strict=True)
    ]
    lengths = [(lengths_of(left), lengths_of(right)) for left, right in sides]
    longest = _total([jnp.sum(left * right, axis=2) for left, right in lengths])  # [examples, S]
    terms = sum(left.shape[-1] + right.shape[-1] for left, right in sides)
    products = sum(use.num_products for use in uses)
    blocks = len(uses) * (len(uses) + 1) // 2
    gamma = gamma_of(terms + 2 * products + longest.shape[1] + blocks + OTHER_ROUNDINGS)
    whole = jnp.sqrt(jnp.sum(jnp.square(longest), axis=1) + longest.shape[1] * FLUSHED)
    if products == 1:
        return whole * (1 + 2 * gamma)
    square = jnp.zeros(longest.shape, longest.dtype)
    for i, (left, right) in enumerate(sides):
        square = square + _added(_pairs(left, left) * _pairs(right, right))
        for other_left, other_right in sides[:i]:
            pairs = _pairs(left, other_left) * _pairs(right, other_right)
            square = square + 2 * _added(pairs)
    slack = gamma * jnp.square(longest) + (4 * products**2 + 8) * FLUSHED
    for vectors, others in ((0, 1), (1, 0)):
        entries = max(side[vectors].shape[-1] for side in sides)
        of_others = _total([jnp.sum(pair[others], axis=2) for pair in lengths])
        slack = slack + jnp.square((2 * entries * FLUSHED) ** 0.5 * of_others)
    total = jnp.sum(jnp.maximum(square, 0) + slack, axis=1)
    bound = jnp.sqrt(total) * (1 + 2 * gamma) + gamma * whole
    # NaN must not be lost in a maximum.
    bad = ~jnp.isfinite(jnp.sum(square, axis=1))
    return jnp.where(bad, jnp.inf, jnp.maximum(bound, share * (1 + 2 * gamma) * whole))


def _total(arrays: list[jax.Array]) -> jax.Array:
    return sum(arrays[1:], arrays[0])


def weighted_product(left: jax.Array, right: jax.Array, weights: jax.Array) -> jax.Array:
    """Σ over the examples of weight·gradient by one product, ``[S, K, N]``.

    Args:
        left: ``[examples, S, T, K]``; whatever it is for examples of weight zero.
        right: ``[examples, S, T, N]``, the same.
        weights: ``[examples]``, zero or at least ``LEAST_WEIGHT``.
    """
    there = (weights > 0)[:, None, None, None]
    scaled = weighted(right, weights)
    return jnp.einsum("bstk,bstn->skn", jnp.where(there, left, 0), scaled, precision=FULL)


def weighted(right: jax.Array, weights: jax.Array) -> jax.Array:
    """The right factors times the weights of their examples; those of weight zero may hold anything."""
    factors = weights[:, None, None, None]
    return jnp.where(factors > 0, right * factors, 0)


def products(use: Terms, rows: int, precision: Any = FULL) -> jax.Array:
    """The gradients themselves, ``[examples, S, K, N]``; products of any precision, as they are measured."""
    if not use.looked_up:
        return jnp.einsum("bstk,bstn->bskn", use.left, use.right, precision=precision)
    one = jax.vmap(jax.vmap(lambda at, r: jnp.zeros((rows, r.shape[-1]), r.dtype).at[at].add(r)))
    return one(use.left, use.right)
