"""Refusal of bad arguments: the one vocabulary that all rooms share.

Every function raises ``ValueError`` with the name of the argument, the value found and the range that works.
A number is a real number: booleans, strings and complex numbers are refused wherever a number is asked for,
whether they are concrete or traced. The range of a traced value cannot be looked at; what a privacy loss does
with a traced number out of its range is decided where the loss is formed (``privacy.unbounded_unless``).
"""

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax._parts import require_same_everywhere
from dpsco_jax._redact import Words, described, may_be_data


def require(condition: Any, name: str, value: Any, working_range: str) -> None:
    """Raise ``ValueError`` unless the condition holds; a condition on traced values is skipped."""
    if condition is True:
        return
    if not isinstance(condition, jax.core.Tracer) and not np.all(condition):
        # An array may be users' data that were passed as another argument: its shape says enough.
        shown = described(value) if may_be_data(value) else value
        raise ValueError(f"{name} must be {working_range}, got {shown!r}")


def require_number(name: str, value: Any, working_range: str = "a real number") -> None:
    """Raise ``ValueError`` unless the value is a real number or an array of them; it may be traced."""
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        require_unmasked(name, value)
        kind = value.dtype
    elif isinstance(value, bool | str | bytes) or value is None:
        kind = None
    elif isinstance(value, numbers.Real):
        return
    else:
        try:
            kind = np.asarray(value).dtype
        except (TypeError, ValueError, RuntimeError):
            kind = None
    real = kind is not None and any(
        jnp.issubdtype(kind, family) for family in (jnp.floating, jnp.integer)
    )
    if not real:
        raise ValueError(f"{name} must be {working_range}, got {described(value)!r}")


def require_within(
    name: str,
    value: Any,
    low: float,
    high: float,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Raise ``ValueError`` unless the numbers lie between ``low`` and ``high``, which belong to the range.

    Args:
        name: of the argument.
        value: a number or an array of numbers. The range of a traced value is not checked.
        low: the least value that works.
        high: the largest value that works.
        open_low: whether ``low`` itself is refused.
        open_high: whether ``high`` itself is refused.
    """
    # Searches ask this many thousand times.
    if type(value) is float and (low < value < high or (value == low < high and not open_low)):
        return
    working_range = f"in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
    require_number(name, value, working_range)
    if isinstance(value, jax.core.Tracer):
        return
    try:
        found = np.asarray(value, np.float64)
    except OverflowError:
        found = np.asarray(math.inf if value > 0 else -math.inf)
    above = found > low if open_low else found >= low
    below = found < high if open_high else found <= high
    require(above & below, name, value, working_range)


def require_positive(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the numbers are positive and finite; a traced value is not looked at."""
    require_within(name, value, 0.0, math.inf, open_low=True, open_high=True)


def require_nonnegative(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the numbers are nonnegative and finite; a traced value is not looked at."""
    require_within(name, value, 0.0, math.inf, open_high=True)


def require_real(
    name: str, value: Any, lower: float, upper: float = math.inf, closed: bool = False
) -> float:
    """The value as a ``float``; ``ValueError`` unless it is one number in (lower, upper).

    Args:
        name: of the argument.
        value: a concrete number.
        lower: the lower end of the range.
        upper: the upper end, which is refused.
        closed: whether ``lower`` itself works.
    """
    if type(value) is float and lower < value < upper:
        return value
    working_range = f"in {'[' if closed else '('}{lower:g}, {upper:g})"
    require_number(name, value, working_range)
    require(np.ndim(value) == 0, name, value, f"one number {working_range}")
    require_within(name, value, lower, upper, open_low=not closed, open_high=True)
    return float(value)


def require_share(name: str, value: Any) -> float:
    """The value as a ``float``; ``ValueError`` unless it is one number in [0, 1]."""
    require_number(name, value, "in [0, 1]")
    require(np.ndim(value) == 0, name, value, "one number in [0, 1]")
    require_probability(name, value)
    return float(value)


def require_integer(name: str, value: Any, lower: int, upper: int | None = None) -> int:
    """The value as an ``int``; ``ValueError`` unless it is an integer in [lower, upper].

    Python and NumPy integers work, and arrays of no dimension that hold one; a ``float`` is refused even
    where it is a whole number.
    """
    if type(value) is int and lower <= value and (upper is None or value <= upper):
        return value
    bound = f"in [{lower}, {upper}]" if upper is not None else f"at least {lower}"
    working_range = f"an integer {bound}"
    if isinstance(value, jax.Array | np.ndarray) and not isinstance(value, jax.core.Tracer):
        whole = value.ndim == 0 and jnp.issubdtype(value.dtype, jnp.integer)
    else:
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    require(bool(whole), name, described(value), working_range)
    require(value >= lower and (upper is None or value <= upper), name, value, working_range)
    return int(value)


def require_count(name: str, value: Any) -> int:
    """The value as an ``int``; ``ValueError`` unless it is an integer of at least 1."""
    return require_integer(name, value, 1)


def require_whole(name: str, value: Any, lower: int) -> None:
    """Raise ``ValueError`` unless the numbers are whole and at least ``lower``; tracers are not looked at.

    For numbers that may be arrays or floats, as where a count enters a privacy loss: 3 and 3.0 work, 2.99 is
    no count and is never cut off to one.
    """
    working_range = f"a whole number of at least {lower}"
    require_number(name, value, working_range)
    if isinstance(value, jax.core.Tracer):
        return
    found = np.asarray(value, np.float64)
    whole = np.isfinite(found) & (found == np.floor(found)) & (found >= lower)
    require(whole, name, value, working_range)


def require_probability(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the numbers are in [0, 1]; a traced value is not looked at."""
    require_within(name, value, 0.0, 1.0)


def require_inside(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the numbers are in (0, 1); a traced value is not looked at."""
    require_within(name, value, 0.0, 1.0, open_low=True, open_high=True)


def require_multiplier(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the numbers are in [0, inf]: no noise, some, or nothing but noise."""
    require_within(name, value, 0.0, math.inf)


def require_finite(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the numbers are finite, of either sign; a traced value is not looked at."""
    require_within(name, value, -math.inf, math.inf, open_low=True, open_high=True)


def require_integers(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the value is an integer or an array of integers; it may be traced."""
    require_number(name, value, "an array of integers")
    # A list, or a column of pandas, may hold integers that JAX does not.
    known = isinstance(value, int | np.ndarray | np.generic | jax.Array)
    whole = known and jnp.issubdtype(jnp.result_type(value), jnp.integer)
    require(bool(whole), name, described(value), "an array of integers")


def require_shape(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the value is a tuple or list of integers of at least 0."""
    require(isinstance(value, tuple | list), name, value, "a tuple of integers")
    for length in value:
        require_integer(name, length, 0)


def require_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """The value; ``ValueError`` unless it is one of the words."""
    known = isinstance(value, str) and value in choices
    require(known, name, value, f"one of {', '.join(choices)}")
    return value


def require_flag(name: str, value: Any) -> bool:
    """The value; ``ValueError`` unless it is ``True`` or ``False``."""
    require(isinstance(value, bool | np.bool_), name, value, "True or False")
    return bool(value)


def require_relation(
    name: str, value: Any, known: Sequence[NeighboringRelation] = tuple(NeighboringRelation)
) -> NeighboringRelation:
    """The value; ``ValueError`` unless it is a ``NeighboringRelation`` for which the proof holds.

    Args:
        name: of the argument.
        value: what was given.
        known: the relations that work; all of ``dp_accounting`` by default.
    """
    good = isinstance(value, NeighboringRelation) and value in known
    names = ", ".join(f"NeighboringRelation.{relation.name}" for relation in known)
    require(good, name, value, f"one of {names}")
    return value


def require_key(key: Any, name: str = "key") -> None:
    """Raise ``ValueError`` unless the value is a single typed key, the same on all devices (``_parts``)."""
    dtype = getattr(key, "dtype", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and key.shape == ()
    require(typed, name, key, "a single typed key (jax.random.key)")
    require_same_everywhere(name, key)


def require_mask(name: str, mask: Any, shape: tuple[int, ...] | None = None) -> Any:
    """The mask, as ``of_true_and_false`` makes it, which is what counts from here on."""
    require_unmasked(name, mask)
    dtype = getattr(mask, "dtype", None)
    sized = "" if shape is None else f" of shape {shape}"
    if dtype != np.bool_ or (shape is not None and mask.shape != shape):
        require(False, name, described(mask), f"an array of booleans{sized}")
    return of_true_and_false(mask)


def of_true_and_false(mask: Any) -> Any:
    """The array of booleans, in bytes that are 0 and 1; it may be traced.

    Booleans that were made of somebody's memory, as of bytes that are viewed as booleans, may hold other
    bytes. To NumPy all but 0 are true; a compiled program counts a byte of 2 as two in one place and as none
    in another.
    """
    if isinstance(mask, jax.Array):
        return mask.astype(jnp.uint8) != 0
    return np.asarray(mask).view(np.uint8) != 0


def require_unmasked(name: str, values: Any) -> None:
    """Raise ``ValueError`` if an array in the tree or list is a masked array of NumPy, whatever is masked.

    Both NumPy and JAX read what is under a mask; that a mask is there at all says that it must not be read.
    """
    for leaf in jax.tree.leaves(values):
        if isinstance(leaf, np.ma.MaskedArray):
            kind = Words("a masked array")
            require(
                False, name, kind, "without a mask of NumPy: say what is missing in another way"
            )


def require_real_leaves(name: str, tree: Any) -> None:
    """Raise ``ValueError`` unless every leaf of the tree is an array of real floating-point numbers.

    Noise is added to real numbers: the imaginary part of a complex leaf would be released as it is.
    """
    for leaf in jax.tree.leaves(tree):
        dtype = getattr(leaf, "dtype", type(leaf))
        real = dtype is float or (hasattr(leaf, "dtype") and jnp.issubdtype(dtype, jnp.floating))
        require(bool(real), name, dtype, "a tree of real floating-point leaves")


def require_same_rows(name: str, tree: Any) -> int:
    """The length of the first axis of all leaves; ``ValueError`` unless they have one, and the same.

    A slice, or a row, beyond the end of a leaf is the last of it without a word: of a leaf that is shorter
    than others the last row would be that of many users.
    """
    axes = {tuple(np.shape(leaf)[:1]) for leaf in jax.tree.leaves(tree)}
    known = all(isinstance(length, int) for axis in axes for length in axis)
    require(known, name, Words("a symbolic size"), "of a number of rows that is an integer")
    found = sorted(axes)
    same = len(found) == 1 and len(found[0]) == 1
    require(same, name, found, "arrays with one leading axis, of the same length")
    return int(found[0][0])


def require_wide_numbers(name: str, tree: Any) -> None:
    """Raise ``ValueError`` unless arrays in the tree are float32 or wider: 2·200 is 144 in uint8."""
    for leaf in jax.tree.leaves(tree):
        kind = getattr(leaf, "dtype", jnp.dtype("float32"))
        wide = jnp.issubdtype(kind, jnp.floating) and kind.itemsize >= 4
        require(bool(wide), name, kind, "of numbers of float32 or wider, no integers")


def require_tree(name: str, tree: Any) -> None:
    """Raise ``ValueError`` unless every leaf of the tree is a real number or an array of them."""
    for leaf in jax.tree.leaves(tree):
        require_number(name, leaf, "a tree of real numbers")


def require_instance(name: str, value: Any, kind: Any) -> None:
    """Raise ``ValueError`` unless the value is of the given class (or of one of a union of classes)."""
    called = getattr(kind, "__name__", str(kind))
    # A class has what its instances have, and is none.
    is_class = isinstance(value, type) and getattr(kind, "_is_protocol", False)
    if is_class or not isinstance(value, kind):
        require(False, name, described(value), f"of type {called}")


def require_instances(name: str, values: Any, kind: Any) -> None:
    """Raise ``ValueError`` unless the value is a sequence, and no text, of instances of the given class."""
    called = getattr(kind, "__name__", str(kind))
    listed = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    good = listed and all(isinstance(value, kind) for value in values)
    if not good:
        require(False, name, described(values), f"a sequence of type {called}")


def require_first_rows(name: str, value: Any, rows: int) -> None:
    """``ValueError`` unless it is ``None`` or an array of one integer, from 1 to ``rows`` if it is known."""
    if value is None:
        return
    wanted = f"an array of one integer from 1 to {rows}, or None"
    whole = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.integer)
    good = whole and value.ndim == 0
    if good and not isinstance(value, jax.core.Tracer):
        good = 1 <= int(value) <= rows
    require(good, name, value, wanted)


def require_sentences(name: str, value: Any) -> tuple[str, ...]:
    """The value as a tuple; ``ValueError`` unless it is several texts, and no single one."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    require(several, name, value, "sentences, in a tuple or a list")
    sentences = tuple(value)
    for sentence in sentences:
        require_instance(name, sentence, str)
    return sentences


def require_counted(name: str, values: Any, kind: Any) -> None:
    """Raise ``ValueError`` unless the values are pairs of an instance and a number of repetitions."""
    require(
        isinstance(values, Sequence) and not isinstance(values, str),
        name,
        values,
        f"a sequence of pairs ({kind.__name__}, integer)",
    )
    for pair in values:
        require(
            isinstance(pair, Sequence) and len(pair) == 2 and isinstance(pair[0], kind),
            name,
            pair,
            f"a sequence of pairs ({kind.__name__}, integer)",
        )
        require_integer(f"each number of repetitions in {name}", pair[1], 0)


def require_each(check: Callable[[str, Any], Any], **values: Any) -> None:
    """Apply a check to several arguments, each under its own name."""
    for name, value in values.items():
        check(name, value)


def require_given(check: Callable[[str, Any], Any], **values: Any) -> None:
    """Apply a check to those of several arguments that are given, which is to say not ``None``."""
    for name, value in values.items():
        if value is not None:
            check(name, value)


def require_absent(applies: bool, where: str, **values: Any) -> None:
    """Raise ``ValueError`` for values that are given, not ``None``, although they do not apply.

    Args:
        applies: whether they do.
        where: they do not, for the message, such as ``"with method='direct'"``.
        **values: by the names of the arguments.
    """
    for name, value in values.items():
        require(applies or value is None, name, value, f"left out {where}")


def require_callable(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the value can be called."""
    require(callable(value), name, value, "a function")


def require_undisclosed(condition: Any, name: str, working_range: str) -> None:
    """Raise ``ValueError`` unless the condition holds on values that belong to users: none is shown."""
    if not np.all(condition):
        raise ValueError(
            f"{name} must be {working_range}, got something else (not shown: it belongs to a user)"
        )
