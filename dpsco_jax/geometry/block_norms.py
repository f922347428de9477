"""Norms of consecutive blocks of one long array, and clipping to them: sparse vectors in many balls.

What it computes: an array of N numbers is cut into blocks of consecutive entries; the ℓ2 norm of every block,
and the array with every block scaled down into a ball of its own radius. A sparse matrix whose entries are
sorted by row is such an array, and so are the blocks of a sparse vector of counts.

Source: Higham 2002, sections 4.2 and 27.8, as in ``norms``.

Formal guarantee: every block that ``clip_blocks`` returns has exact ℓ2 norm at most its radius (as stored,
rounding included), and is zero if one of its entries is not finite. No block has influence on another one.

Derivation of the head-room, as in ``norms``: squares of a block are summed in runs of ``_RUN`` entries, then
the runs are. That is at most R = min(N, _RUN) + ⌈N/_RUN⌉ additions in a row, in whatever order they are done,
hence a relative error of R·u of the sum and R·u/2 of its root; squares, scaling and the final product add
fewer than 16 roundings. Scaling to radius · (1 - (R/2 + 16)·u) never exceeds the radius: 1 - 2e-4 for N =
10^7.

Cost: a few passes over the array and temporaries of its size; N is static, the blocks are not.

Example:
    >>> import numpy as np
    >>> starts = np.array([True, False, True])
    >>> np.asarray(clip_blocks(np.array([3.0, 4.0, 0.5], np.float32), starts, 1.0), float).round(4)
    array([0.6, 0.8, 0.5])
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from dpsco_jax._checks import (
    of_true_and_false,
    require,
    require_mask,
    require_positive,
    require_real_leaves,
)

_RUN = 4096
_OTHER_ROUNDINGS = 16.0


class _Blocks(NamedTuple):
    """Block of every entry; of every block a number near its largest entry, and its norm over that number."""

    of_entry: Int[Array, "entries"]
    scale: Float[Array, "entries"]
    scaled_norm: Float[Array, "entries"]


def block_norms(
    values: Float[Array | np.ndarray, "entries"], starts: Bool[Array | np.ndarray, "entries"]
) -> Float[Array, "entries"]:
    """The ℓ2 norm of a block at its first entry, and zero at all others; NaN or ``inf`` if an entry is.

    Args:
        values: real floating numbers, block after block.
        starts: where blocks start; entries before the first start belong to the first block.
    """
    values = _checked(values, starts)
    if not values.size:
        return values
    blocks = _blocks(values, starts)
    norms = (blocks.scale * blocks.scaled_norm)[blocks.of_entry]
    return jnp.where(_first(starts), norms, 0)


def clip_blocks(
    values: Float[Array | np.ndarray, "entries"],
    starts: Bool[Array | np.ndarray, "entries"],
    radius: ArrayLike,
) -> Float[Array, "entries"]:
    """The array with every block scaled down, if needed, so that its ℓ2 norm is at most its radius.

    Args:
        values: real floating numbers, block after block.
        starts: where blocks start; entries before the first start belong to the first block.
        radius: one for all blocks, or ``[entries]``, the same number in all entries of a block; positive and
            finite, may be traced.

    Returns:
        ``[entries]``, in at least float32. A block in its ball is returned bit for bit.
    """
    values = _checked(values, starts)
    require_positive("radius", radius)
    shaped = jnp.shape(radius) in ((), values.shape)
    require(shaped, "radius", radius, f"one number, or an array of shape {values.shape}")
    if not values.size:
        return values
    blocks = _blocks(values, starts)
    scale, norm = blocks.scale[blocks.of_entry], blocks.scaled_norm[blocks.of_entry]
    bound = jnp.asarray(radius, values.dtype) * _head_room(values)
    outside = scale * norm > bound
    shrink = bound / jnp.where(outside, norm, 1.0) / scale
    # A subnormal factor has lost the digits that the head-room counts on.
    shrink = jnp.where(shrink >= jnp.finfo(values.dtype).tiny, shrink, 0.0)
    factor = jnp.where(jnp.isfinite(norm), jnp.where(outside, shrink, 1.0), 0.0)
    # A block of factor zero may hold NaN, so it is replaced, not multiplied.
    return jnp.where(factor > 0, values * factor, 0)


def _checked(values: Float[Array | np.ndarray, "entries"], starts: ArrayLike) -> Array:
    require_real_leaves("values", values)
    require(getattr(values, "ndim", None) == 1, "values", values, "an array of one dimension")
    require_mask("starts", starts, values.shape)
    return jnp.asarray(values, jnp.promote_types(values.dtype, jnp.float32))


def _first(starts: Bool[Array | np.ndarray, "entries"]) -> Bool[Array, "entries"]:
    return jnp.asarray(of_true_and_false(starts)).at[0].set(True)


def _blocks(values: Array, starts: Bool[Array | np.ndarray, "entries"]) -> _Blocks:
    size, first = values.size, _first(starts)
    block = jnp.cumsum(first) - 1
    place = jnp.arange(size)
    since = place - jax.lax.cummax(jnp.where(first, place, 0))
    run = jnp.cumsum(first | (since % _RUN == 0)) - 1
    largest = jax.ops.segment_max(jnp.abs(values), block, size, indices_are_sorted=True)
    # Kept where its reciprocal is a normal number too, see ``norms``.
    tiny = float(jnp.finfo(values.dtype).tiny)
    scale = jnp.clip(largest, tiny, 1.0 / tiny)
    squares = jnp.square(values * (1 / scale)[block])
    in_runs = jax.ops.segment_sum(squares, run, size, indices_are_sorted=True)
    block_of_run = jax.ops.segment_max(block, run, size, indices_are_sorted=True)
    # Runs that do not exist hold the least integer: they belong to no block.
    total = jax.ops.segment_sum(in_runs, block_of_run, size)
    return _Blocks(block, scale, jnp.sqrt(total))


def _head_room(values: Array) -> float:
    additions = min(values.size, _RUN) + math.ceil(values.size / _RUN)
    unit_roundoff = float(jnp.finfo(values.dtype).eps) / 2
    return 1.0 - (additions / 2 + _OTHER_ROUNDINGS) * unit_roundoff
