"""The table of rules: how the gradient of a use of parameters falls apart into products of two vectors.

What it computes: for an equation with one operand of parameters, ``Rule.factors`` gives the left and right
factors of the gradient in that operand from the other operands and the cotangent of the result, for one
example, outside of loops. ``Rule.axes`` says which axes of the operand the three axes S, K and N of the
gradient are: together they are all of them. Equations without a rule are differentiated as they are.

Source: dense layers, Goodfellow 2015; convolutions as products with patches, Rochette, Manoel and Tramel
2019 and Bu et al. 2022; look-ups, Li et al. 2022.

Formal guarantee: Σ_t left_t ⊗ right_t is the derivative of the equation, in exact arithmetic.

Cost: none for products and look-ups, which take operands as they are; the patches of a convolution.

Example:
    RULES["my_primitive"] = my_rule  # (eqn, position) -> Rule or None
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Axes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
Factors = Callable[[Sequence[Any], Any], tuple[jax.Array, jax.Array]]


class RuleError(ValueError):
    """A rule that gives other factors than it says."""


class Rule(NamedTuple):
    """How the gradient in one operand of an equation is a sum of products.

    Attributes:
        axes: of the operand, for S, K and N in this order.
        num_products: T.
        looked_up: whether left factors are numbers of rows.
        factors: ``(operands, cotangent) -> (left, right)``, of shapes ``[S, T, K]`` and ``[S, T, N]``, or
            ``[S, T]`` and ``[S, T, N]`` for look-ups. The operand of parameters is ``None``.
    """

    axes: Axes
    num_products: int
    looked_up: bool
    factors: Factors


def _dense(eqn: Any, position: int) -> Rule | None:
    """Products of any layout: matrices, batched products of heads, outer products."""
    contracting, batch = eqn.params["dimension_numbers"]
    mine, other = contracting[position], contracting[1 - position]
    my_batch, other_batch = batch[position], batch[1 - position]
    shapes = [v.aval.shape for v in eqn.invars]
    free = _rest(len(shapes[position]), (*mine, *my_batch))
    other_free = _rest(len(shapes[1 - position]), (*other, *other_batch))
    sizes = [_size(shapes[position], axes) for axes in (my_batch, mine, free)]
    num_products = _size(shapes[1 - position], other_free)

    def factors(operands: Sequence[Any], cotangent: Any) -> tuple[jax.Array, jax.Array]:
        left = jnp.transpose(operands[1 - position], (*other_batch, *other_free, *other))
        # The axes of a result: batch, then what is free of the first and of the second operand.
        first, middle, whole = len(my_batch), len(other_free), cotangent.ndim
        if position == 0:
            middle = whole - middle
            order = (*range(first), *range(middle, whole), *range(first, middle))
            right = jnp.transpose(cotangent, order)
        else:
            right = cotangent
        return (
            left.reshape(sizes[0], num_products, sizes[1]),
            right.reshape(sizes[0], num_products, sizes[2]),
        )

    return Rule((tuple(my_batch), tuple(mine), free), num_products, False, factors)


def _convolution(eqn: Any, position: int) -> Rule | None:
    """Convolutions of one to three dimensions, whose kernel is the parameter; ungrouped ones."""
    p = eqn.params
    if position != 1 or p["feature_group_count"] != 1 or p["batch_group_count"] != 1:
        return None
    numbers = p["dimension_numbers"]
    kernel, result = eqn.invars[1].aval, eqn.outvars[0].aval
    out_axis, in_axis, *window = numbers.rhs_spec
    spatial = [kernel.shape[i] for i in window]
    num_products = math.prod(result.shape) // kernel.shape[out_axis]
    image_axis, channel_axis, *places = numbers.out_spec

    def factors(operands: Sequence[Any], cotangent: Any) -> tuple[jax.Array, jax.Array]:
        left = _patches(operands[0], eqn, spatial).reshape(1, num_products, -1)
        order = (image_axis, *places, channel_axis)
        right = jnp.transpose(cotangent, order).reshape(1, num_products, -1)
        return left, right

    return Rule(((), (*window, in_axis), (out_axis,)), num_products, False, factors)


def _look_up(eqn: Any, position: int) -> Rule | None:
    """Rows of a table by their numbers: ``table[numbers]`` along one axis, whole in the others."""
    if position != 0:
        return None
    table, starts = eqn.invars[0].aval, eqn.invars[1].aval
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    cut = [i for i in numbers.start_index_map if sizes[i] != table.shape[i]]
    if len(numbers.start_index_map) == 1:
        cut = list(numbers.start_index_map)
    if numbers.operand_batching_dims or len(cut) != 1:
        return None
    (axis,) = cut
    whole = [size for i, size in enumerate(table.shape) if i != axis]
    one_row = sizes[axis] == 1 and [s for i, s in enumerate(sizes) if i != axis] == whole
    if not one_row or numbers.collapsed_slice_dims not in ((axis,), ()):
        return None
    offsets = numbers.offset_dims
    kept = [i for i in range(table.ndim) if i not in numbers.collapsed_slice_dims]
    place = numbers.start_index_map.index(axis)
    num_products = math.prod(starts.shape[:-1])
    mode = lax.GatherScatterMode.from_any(eqn.params["mode"])
    clipped = mode in (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS)
    # A start along an axis that is whole is moved to zero, or else drops the row.
    alone = len(numbers.start_index_map) == 1 and mode == lax.GatherScatterMode.FILL_OR_DROP
    if not clipped and not alone:
        return None
    rest = tuple(i for i in range(table.ndim) if i != axis)

    def factors(operands: Sequence[Any], cotangent: Any) -> tuple[jax.Array, jax.Array]:
        at = _wide(operands[1][..., place]).reshape(1, num_products)
        free = [i for i in range(cotangent.ndim) if i not in offsets]
        inner = [offsets[kept.index(i)] for i in rest]
        right = jnp.transpose(cotangent, (*free, *inner, *_rest(cotangent.ndim, (*free, *inner))))
        right = right.reshape(1, num_products, -1)
        last = table.shape[axis] - 1
        if not clipped:
            right = jnp.where(((at >= 0) & (at <= last))[..., None], right, 0)
        return jnp.clip(at, 0, last).astype(jnp.int32), right

    return Rule(((), (axis,), rest), num_products, True, factors)


def _slice_of_one(eqn: Any, position: int) -> Rule | None:
    """One row of a table by its number, which is how ``table[number]`` is traced for a scalar."""
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    cut = [i for i, (whole, part) in enumerate(zip(shape, sizes, strict=True)) if whole != part]
    if position != 0 or len(cut) != 1 or sizes[cut[0]] != 1:
        return None
    (axis,) = cut
    rest = tuple(i for i in range(len(shape)) if i != axis)

    def factors(operands: Sequence[Any], cotangent: Any) -> tuple[jax.Array, jax.Array]:
        at = jnp.clip(_wide(operands[1 + axis]), 0, shape[axis] - 1).astype(jnp.int32)
        return at.reshape(1, 1), cotangent.reshape(1, 1, -1)

    return Rule(((), (axis,), rest), 1, True, factors)


def _patches(images: jax.Array, eqn: Any, window: Sequence[int]) -> jax.Array:
    """What a kernel sees at every position of a result: ``[images, *positions, *window, channels]``.

    One axis after the other, the last one first, and channels together: a CPU then copies runs of numbers,
    about ten times faster than a slice for each entry of the window.
    """
    p = eqn.params
    numbers, result = p["dimension_numbers"], eqn.outvars[0].aval.shape
    image_axis, channel_axis, *places = numbers.lhs_spec
    images = jnp.transpose(images, (image_axis, *places, channel_axis))
    margins = zip(p["padding"], p["lhs_dilation"], strict=True)
    padding = [(low, high, step - 1) for (low, high), step in margins]
    nothing = jnp.zeros((), images.dtype)
    seen = lax.pad(images, nothing, [(0, 0, 0), *padding, (0, 0, 0)])
    number = len(window)
    for axis in reversed(range(number)):
        positions = np.arange(result[numbers.out_spec[2 + axis]]) * p["window_strides"][axis]
        entries = np.arange(window[axis]) * p["rhs_dilation"][axis]
        at = positions[:, None] + entries
        seen = jnp.take(seen, at, axis=1 + axis, mode="clip")
    order = (0, *range(1, 2 * number, 2), *range(2, 2 * number + 1, 2), 2 * number + 1)
    return jnp.transpose(seen, order)


def _wide(numbers: jax.Array) -> jax.Array:
    """Numbers of rows, in a kind that holds the number of the last one."""
    return numbers.astype(jnp.int32) if numbers.dtype.itemsize < 4 else numbers


def _rest(number: int, taken: Sequence[int]) -> tuple[int, ...]:
    return tuple(i for i in range(number) if i not in taken)


def _size(shape: Sequence[int], axes: Sequence[int]) -> int:
    return math.prod(shape[i] for i in axes)


RULES: dict[str, Callable[[Any, int], Rule | None]] = {
    "dot_general": _dense,
    "conv_general_dilated": _convolution,
    "gather": _look_up,
    "dynamic_slice": _slice_of_one,
}
