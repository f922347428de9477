"""The sum of clipped contributions, formed without writing the clipped contributions out.

What it computes: Σ_u clip(v_u) over the users who count, where v_u is a pytree and clip is
``norms.clip_to_norm`` of the whole tree, or of each of its layers to a norm of its own.

Source: per-user clipping as in McMahan et al. 2018 (DP-FedSGD).

Formal guarantee: every term is a function of its own row, has joint l2 norm at most ``clip_norm`` (each
layer at most its own), and is zero if the row is not finite in any place or does not count; see
``geometry.norms``. On a CPU sixteen terms are added in pairs, with four roundings in a row, and groups of
them without error (``dpsco_jax._compensated``); what the rounding of the sixteen does to a sensitivity,
``_compensated.room`` pays for, which callers multiply bounds by. Elsewhere each term is rounded to a public
grid of 2^-24 of the bound, which its bound pays for, and integers are added: the sum of up to 2^18 rows
is that of the rounded terms in whatever order, and moves by what one user adds; such sums are added without
error, as groups are. ``split_sum_of_clipped`` returns the sum in two parts, ``sum_of_clipped`` the float
next to it. docs/theory/sums.md has the proofs.

Cost: one pass over the rows for the factors and one for the sum; no temporary of their size.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike, Bool

from dpsco_jax import _compensated, _sharding
from dpsco_jax._checks import (
    require,
    require_mask,
    require_positive,
    require_real_leaves,
    require_same_rows,
)
from dpsco_jax._numerics import at_least_float32, wide_number
from dpsco_jax.geometry import norms

_BLOCK = 16
_BITS = 24  # steps of a grid within the bound are 2^24, and 2^48 for float64
_MOST = 2**18  # rows, of which neither half of the bits adds up to more than 32, or 64
_MANTISSA = 23
_LEAST = 2.0**-100


def sum_of_clipped(rows: Any, clip_norm: Any, counted: Bool[jax.Array, "users"]) -> Any:
    """Σ of the rows, each clipped to ``clip_norm``, rounded to one float.

    Args:
        rows: pytree of real floating leaves ``[users, ...]``.
        clip_norm: bound on the joint norm of one row over all leaves, or a pytree of bounds that is a
            prefix of the rows, each on the joint norm of its subtree; may be traced.
        counted: which rows are to be summed.

    Returns:
        A pytree of leaves ``[...]``, in at least float32.
    """
    return _compensated.rounded(split_sum_of_clipped(rows, clip_norm, counted))


def split_sum_of_clipped(rows: Any, clip_norm: Any, counted: Bool[jax.Array, "users"]) -> Any:
    """``sum_of_clipped`` in two parts: every leaf is a ``_compensated.Split``."""
    require_real_leaves("rows", rows)
    _require_bounds(clip_norm)
    if not jax.tree.leaves(rows):
        return rows
    counted = require_mask("counted", counted, (require_same_rows("rows", rows),))
    spread = _sharding.found(rows)
    if spread is None:
        return _of_layers(rows, clip_norm, counted)
    return _sharding.summed(
        spread, lambda own, first: _of_layers(own[0], clip_norm, own[1]), (rows, counted)
    )


def _of_layers(rows: Any, clip_norm: Any, counted: Bool[jax.Array, "users"]) -> Any:
    if jax.tree_util.treedef_is_leaf(jax.tree.structure(clip_norm)):
        return _sum_of_clipped(rows, clip_norm, counted)
    # A bad entry in one layer takes the user out of all of them, as it does without layers.
    counted = counted & jax.vmap(norms.all_finite)(rows)
    found = [_sum_of_clipped(layer, bound, counted) for bound, layer in layers(clip_norm, rows)]
    return jax.tree.unflatten(jax.tree.structure(clip_norm), found)


def layers(clip_norm: Any, tree: Any) -> list[tuple[ArrayLike, Any]]:
    """The bounds in ``clip_norm``, each with the subtree of the tree that it is for.

    Raises:
        ValueError: ``clip_norm`` is no prefix of the tree, or there is no bound in it.
    """
    _require_bounds(clip_norm)
    require_real_leaves("tree", tree)
    pairs: list[tuple[ArrayLike, Any]] = []
    try:
        jax.tree.map(lambda bound, layer: pairs.append((bound, layer)), clip_norm, tree)
    except ValueError:
        shape = f"one number, or a tree of them that is a prefix of {jax.tree.structure(tree)}"
        found = jax.tree.structure(clip_norm)
        raise ValueError(f"clip_norm must be {shape}, got {found}") from None
    return pairs


def joint_bound(clip_norm: Any) -> Any:
    """The bound on the joint norm of a row: ``clip_norm``, or √ΣC_i² of the bounds in it, rounded up.

    Args:
        clip_norm: one positive number or a pytree of them; may be traced.

    Raises:
        ValueError: there is no bound in it.
    """
    bounds = _require_bounds(clip_norm)
    if jax.tree_util.treedef_is_leaf(jax.tree.structure(clip_norm)):
        return wide_number(clip_norm)
    if not any(isinstance(bound, jax.Array) for bound in bounds):
        return math.hypot(*(float(bound) for bound in bounds)) * (1 + 1e-15)
    stacked = jnp.stack([jnp.asarray(bound, float) for bound in bounds])
    largest = jnp.max(stacked)  # so that no square overflows or vanishes
    root = largest * jnp.sqrt(jnp.sum((stacked / largest) ** 2))
    return root * (1 + (len(bounds) + 4) * jnp.finfo(root.dtype).eps)


def _require_bounds(clip_norm: Any) -> list[Any]:
    bounds = jax.tree.leaves(clip_norm)
    require(len(bounds) > 0, "clip_norm", clip_norm, "at least one positive number")
    for bound in bounds:
        require_positive("clip_norm", bound)
        require(jnp.ndim(bound) == 0, "clip_norm", bound, "a number, or a tree of numbers")
    return bounds


def _sum_of_clipped(rows: Any, clip_norm: ArrayLike, counted: Bool[jax.Array, "users"]) -> Any:
    leaves = jax.tree.leaves(rows)
    if not leaves:
        return rows
    dtype = jnp.result_type(*(at_least_float32(leaf.dtype) for leaf in leaves))
    dim = sum(math.prod(leaf.shape[1:]) for leaf in leaves)
    limit = jnp.asarray(clip_norm, dtype) * (1 - math.sqrt(dim) * 2.0**-_BITS)
    factors = jax.vmap(lambda row: norms.clip_factor(row, limit))(rows)
    # Without the barrier the factors are computed again for every entry that they multiply.
    factors = lax.optimization_barrier(jnp.where(counted, factors, 0))
    # A CPU sums along a leading axis many times slower than it adds whole rows, and rounds slower than both.
    return lax.platform_dependent(
        rows, factors, jnp.asarray(clip_norm, dtype), cpu=_in_blocks, default=_on_grid
    )


def _on_grid(rows: Any, factors: jax.Array, clip_norm: jax.Array) -> Any:
    """The sum of rows that are rounded to a grid, as integers: the same in whatever order they are added."""
    # The power of two next to the bound from above, by the exponent of its float32.
    largest = float(jnp.finfo(jnp.float32).max)
    within = jnp.clip(jnp.nan_to_num(clip_norm), _LEAST, largest).astype(jnp.float32)
    exponent = (lax.bitcast_convert_type(within, jnp.int32) + (2**_MANTISSA - 1)) >> _MANTISSA
    power = lax.bitcast_convert_type((exponent - _BITS) << _MANTISSA, jnp.float32)
    # A bound that float32 does not hold has no steps, or an entry would have too many.
    factors = jnp.where(clip_norm <= largest, factors, 0)

    def of_some(leaf: jax.Array, factors: jax.Array) -> _compensated.Split:
        wide = _wide(leaf)
        cut, kind = (_BITS, jnp.int64) if wide.itemsize == 8 else (_BITS // 2, jnp.int32)
        step = power.astype(wide) * 2.0 ** (_BITS - 2 * cut)
        steps = jnp.round(jax.vmap(_scaled)(leaf, factors / step)).astype(kind)
        high, low = steps >> cut, steps & (2**cut - 1)
        return _compensated.of_words(jnp.sum(high, axis=0), jnp.sum(low, axis=0), cut, step)

    def of_leaf(leaf: jax.Array) -> _compensated.Split:
        parts = [
            of_some(leaf[first : first + _MOST], factors[first : first + _MOST])
            for first in range(0, max(len(leaf), 1), _MOST)
        ]
        return functools.reduce(_compensated.add, parts)

    return jax.tree.map(of_leaf, rows)


def _in_blocks(rows: Any, factors: jax.Array, clip_norm: jax.Array) -> Any:
    """The sum of blocks of rows, which are added in pairs, by additions without error."""
    del clip_norm
    whole = len(factors) // _BLOCK

    def add_block(index: jax.Array, total: Any) -> Any:
        block, weights = jax.tree.map(
            lambda x: lax.dynamic_slice_in_dim(x, index * _BLOCK, _BLOCK), (rows, factors)
        )
        return _compensated.add(total, _unrolled(block, weights))

    total = lax.fori_loop(0, whole, add_block, _nothing(rows)) if whole else _nothing(rows)
    if len(factors) % _BLOCK == 0:
        return total
    rest, last = jax.tree.map(lambda x: x[whole * _BLOCK :], (rows, factors))
    return _compensated.add(total, _unrolled(rest, last))


def _nothing(rows: Any) -> Any:
    return jax.tree.map(
        lambda leaf: _compensated.Split(*2 * (jnp.zeros(leaf.shape[1:], _wide(leaf)),)), rows
    )


def _unrolled(rows: Any, factors: jax.Array) -> Any:
    """The weighted sum as one fused loop over the entries of a row."""

    def sum_rows(leaf: jax.Array) -> jax.Array:
        terms = [_scaled(leaf[i], factors[i]) for i in range(len(factors))]
        while len(terms) > 1:
            odd = terms[-1:] if len(terms) % 2 else []
            terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + odd
        return terms[0] if terms else jnp.zeros(leaf.shape[1:], _wide(leaf))

    return jax.tree.map(sum_rows, rows)


def _scaled(leaf: jax.Array, factor: jax.Array) -> jax.Array:
    # A row of factor zero may hold NaN, so it is replaced, not multiplied.
    factor = factor.reshape(factor.shape + (1,) * (leaf.ndim - factor.ndim))
    scaled = (leaf.astype(factor.dtype) * factor).astype(_wide(leaf))
    return jnp.where(factor > 0, scaled, 0)


def _wide(leaf: jax.Array) -> jnp.dtype:
    return at_least_float32(leaf.dtype)
