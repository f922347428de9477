"""What messages may show of an argument: users' data never, even if they were passed by mistake.

Numbers out of range, which are public arguments, are shown; no entry of an array with an axis is.
"""

import enum
import numbers
from typing import Any

import jax
import numpy as np

_SHOWN = (str, bytes, numbers.Number, np.generic, np.dtype, enum.Enum, type)


class Words(str):
    """A text that stands in a message as it is, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def may_be_data(value: Any) -> bool:
    """Whether it is an array, a table, a column or a set, of whatever library."""
    array = getattr(value, "shape", ()) or getattr(value, "dtype", None) == np.dtype("O")
    return bool(array) or hasattr(value, "to_numpy") or isinstance(value, set | frozenset)


def described(value: Any) -> Any:
    """What a message may show of an argument that could be data: a number or a word, or type and shapes."""
    arrays = [leaf for leaf in jax.tree.leaves(value) if getattr(leaf, "shape", ())]
    number = getattr(value, "ndim", None) == 0 and not may_be_data(value)
    if value is None or number or isinstance(value, _SHOWN):
        return value
    shapes = sorted({f"{getattr(leaf, 'dtype', '')}{list(leaf.shape)}" for leaf in arrays})
    return Words(" of ".join([type(value).__name__, *([", ".join(shapes)] if shapes else [])]))
