"""Arrays as a user hands them over: what JAX takes for something else is refused, or counts as nothing.

Rows of several tables go together by position. Where an index of pandas says that positions are those of
other rows, labels and users would go to rows of somebody else.

Two things change on the way from NumPy to JAX without a word. The mask of a masked array is dropped by
``numpy.asarray``, and what is under it counts. Integers of 64 bits keep their low 32 unless
``jax_enable_x64`` is set: 2^32 + 3 is 3. Both happen only while arrays are still NumPy's; a traced array has
been converted.

``require_one_order`` raises on the order of rows, and shows no entry of an index. ``require_held``, ``plain``
and ``listed`` raise on masked arrays by their type; ``require_held`` raises on a value too, of which it shows
nothing: whoever may not learn that there is one hands over arrays of 32 bits. ``inside`` and ``floats_of``
never raise.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float, Int

from dpsco_jax._checks import require, require_undisclosed, require_unmasked
from dpsco_jax._redact import Words, described


def require_one_order(**aligned: Any) -> None:
    """Raise ``ValueError`` unless all that have an index of pandas have the same one, in the same order.

    Args:
        **aligned: trees of what has an entry for each row, by the name of the argument; others are passed
            over.
    """
    first: tuple[str, Any] | None = None
    for name, tree in aligned.items():
        for leaf in jax.tree.leaves(tree):
            index: Any = getattr(leaf, "index", None)
            if not hasattr(index, "equals"):
                continue
            first = first or (name, index)
            require(
                index.equals(first[1]),
                name,
                Words("another index (not shown: it may name users)"),
                f"rows with the index of {first[0]}, in its order, or an array, as by to_numpy(), which is "
                "taken by position",
            )


def plain(name: str, values: Any) -> np.ndarray:
    """The values as a NumPy array.

    Args:
        name: of the argument.
        values: an array, or what NumPy makes one of.

    Raises:
        ValueError: if the array is masked, or one in a list is, or rows have different lengths.
    """
    require_unmasked(name, values)
    try:
        return np.asarray(values)
    except (TypeError, ValueError, OverflowError):
        require_undisclosed(False, name, "an array")
        raise


def listed(name: str, values: Any) -> np.ndarray:
    """As ``plain``, but of a list each entry stays what it is, in an array of objects.

    NumPy looks for a type that all entries have: next to a text NaN becomes "nan" and 1 becomes "1", next to
    a float, or one beyond 2^63 next to a negative one, integers are rounded to 53 bits, and texts lose zeros
    at their ends. What one person's entry is would depend on other people's, and two could become one.

    Args:
        name: of the argument.
        values: an array, or what NumPy makes one of.

    Raises:
        ValueError: if the array is masked, or one in a list is, or rows have different lengths.
    """
    if not isinstance(values, list | tuple):
        return plain(name, values)
    require_unmasked(name, values)
    try:
        found = np.array(values, object)
        deep = any(isinstance(x, list | tuple) or getattr(x, "ndim", 0) for x in found.flat)
    except ValueError:  # arrays of different shapes
        deep = True
    require_undisclosed(not deep, name, "of rows of one length")
    for place, entry in enumerate(found.flat):
        if not isinstance(entry, np.generic) and hasattr(entry, "ndim"):  # a number of JAX
            found.flat[place] = np.asarray(entry)[()]
    return found


def require_held(name: str, tree: Any) -> None:
    """Raise ``ValueError`` unless JAX holds all arrays of the tree as they are.

    Refused are masked arrays, columns of pandas and polars, and NumPy integers beyond the widest that JAX
    has. Other leaves pass, traced ones among them, and so do floats, which are rounded.

    Args:
        name: of the argument.
        tree: a pytree.
    """
    require_unmasked(name, tree)
    for leaf in jax.tree.leaves(tree):
        array = not hasattr(leaf, "to_numpy")
        require(array, name, described(leaf), "of arrays of NumPy or JAX, as by to_numpy()")
        if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "iu":
            held = jax.dtypes.canonicalize_dtype(leaf.dtype)
            if held.itemsize < leaf.dtype.itemsize and leaf.size:
                least, most = np.iinfo(held).min, np.iinfo(held).max
                what = f"integers in [{least}, {most}], which JAX holds without jax_enable_x64"
                require_undisclosed(least <= leaf.min() and leaf.max() <= most, name, what)


def inside(values: Any, size: int) -> Int[jax.Array, "*shape"]:
    """The integers in [0, size), and ``size`` for all others, in JAX's default integers.

    Args:
        values: integers of any width, of NumPy or JAX; masked ones are not looked for.
        size: at least 0.
    """
    if isinstance(values, np.ndarray | np.generic):
        # On the host: what int32 does not hold would be wrapped around. In int64: so would size in int8.
        own = np.asarray(values)
        good = (own >= 0) & (own < size)
        return jnp.asarray(np.where(good, np.where(good, own, 0).astype(np.int64), size), int)
    wide = as_wide(values)
    return jnp.where((wide >= 0) & (wide < size), wide, size)


def floats_of(values: ArrayLike) -> Float[jax.Array, "*shape"]:
    """Integers as floats of 32 bits or more, rounded and never wrapped; floats as they are."""
    kind = jnp.result_type(values)
    floating = jnp.issubdtype(kind, jnp.floating)
    return jnp.asarray(values, kind if floating else jnp.promote_types(kind, jnp.float32))


def as_wide(values: ArrayLike) -> Int[jax.Array, "*shape"]:
    """In the widest integers that JAX has at hand: a size that a narrow one does not hold is compared."""
    return jnp.asarray(values).astype(int)
