"""What messages may show of an argument: users' data never, even if they were passed by mistake.

Formal guarantee: a message of a refusal shows no entry of an array with an axis that was passed where the
argument is checked for its kind; numbers out of range, which are public arguments, are shown.
"""

from typing import Any

import jax


class Words(str):
    """A text that stands in a message as it is, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def described(value: Any) -> Any:
    """What a message may show of an argument that could be data: the value, or, of arrays, their shapes."""
    arrays = [leaf for leaf in jax.tree.leaves(value) if getattr(leaf, "ndim", 0)]
    if not arrays and not isinstance(value, list | tuple | dict):
        return value
    shapes = sorted({f"{getattr(leaf, 'dtype', '')}{list(leaf.shape)}" for leaf in arrays})
    return Words(" of ".join([type(value).__name__, *([", ".join(shapes)] if shapes else [])]))
