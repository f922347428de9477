"""Parameters that come to a use rearranged, never altered.

What it computes: which rearrangement of a leaf a value is, equation by equation, and the way back.

Source: none.

Formal guarantee: a value with a view holds the entries of its leaf, each once, at most rounded to
another kind of number; anything else has none.

Cost: none; a function of shapes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class View(NamedTuple):
    """A rearrangement of one leaf.

    Attributes:
        leaf: number of the leaf.
        axes: for every axis of the view, the axis of the leaf that it is, or ``None`` if it has length one;
            ``None`` where axes were merged or split.
        steps: ``("reshape", shape before)`` and ``("transpose", permutation)``, in order.
    """

    leaf: int
    axes: tuple[int | None, ...] | None
    steps: tuple[tuple[str, tuple[int, ...]], ...]

    def undone(self, array: jax.Array) -> jax.Array:
        """An array of the shape of the view, rearranged as the leaf is."""
        for step, numbers in reversed(self.steps):
            if step == "reshape":
                array = array.reshape(numbers)
            else:
                array = jnp.transpose(array, tuple(numbers.index(i) for i in range(len(numbers))))
        return array


def rearranged(eqn: Any, view: View, stack: int, operand: Any, result: Any) -> View | None:
    """The view that the result is, if the equation moves entries and does nothing else.

    Args:
        eqn: of one operand and one result.
        view: that the operand is.
        stack: how many axes in front of both are those of loops, which the equation does not see.
        operand: the array.
        result: the array.
    """
    name = eqn.primitive.name
    before, after = jnp.shape(operand), jnp.shape(result)
    if name == "convert_element_type":
        real = jnp.issubdtype(jnp.result_type(result), jnp.floating)
        return view if real else None
    if name == "transpose":
        inner = tuple(stack + i for i in eqn.params["permutation"])
        order = (*range(stack), *inner)
        axes = None if view.axes is None else tuple(view.axes[i] for i in order)
        return View(view.leaf, axes, (*view.steps, ("transpose", order)))
    resized = name in ("reshape", "squeeze", "expand_dims")
    widened = name == "broadcast_in_dim" and _same_entries(eqn, before[stack:], after[stack:])
    if not (resized or widened) or (eqn.params.get("dimensions") is not None and name == "reshape"):
        return None
    axes = _kept(before, after, view.axes)
    return View(view.leaf, axes, (*view.steps, ("reshape", before)))


def _same_entries(eqn: Any, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a broadcast only adds axes of length one."""
    placed = eqn.params["broadcast_dimensions"]
    kept = all(after[place] == size for place, size in zip(placed, before, strict=True))
    return kept and all(size == 1 for i, size in enumerate(after) if i not in placed)


def _kept(before: Any, after: Any, axes: Any) -> tuple[int | None, ...] | None:
    """The axes after a reshape that only adds or drops axes of length one."""
    if axes is None:
        return None
    long = [axis for axis, size in zip(axes, before, strict=True) if size != 1]
    if [size for size in before if size != 1] != [size for size in after if size != 1]:
        return None
    remaining = iter(long)
    return tuple(next(remaining) if size != 1 else None for size in after)
