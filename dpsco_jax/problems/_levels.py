"""Values of a column against declared levels: what is equal counts as equal, whatever type holds it.

Equal are values that Python calls so (1, 1.0 and True); a number and its text, as ``str`` writes it (1 and
1.0 are "1" and "1.0", True is "True", nothing is "01"); a text and its bytes in UTF-8; a date and its
midnight, of the standard library, NumPy or pandas. A column of floats is compared with the levels as that
dtype rounds them: 0.1 in float32, 2^53 + 1 in float64. A value that equals a level as it stands belongs to
it, whatever others it equals in another way.

A value's place among the levels is a function of the value and the declaration. What raises depends on the
declaration and the dtype of the column alone: levels none of which that dtype can hold, such as texts in a
column of numbers. Whether a level occurs in the data is private, so nothing here looks for it: a level that
could occur and does not raises nothing, and no warning is given.
"""

import contextlib
import datetime
import decimal
import math
import numbers
from collections.abc import Hashable
from typing import Any

import numpy as np

from dpsco_jax._checks import require

_EXACT = 2**53  # up to which float64 holds every integer
_LARGEST = 2**1023


def codes(name: str, column: Any, levels: list[Hashable]) -> np.ndarray:
    """The place of each value among the levels, -1 if it is none of them.

    Args:
        name: of the argument that declares the levels.
        column: a ``pandas.Series``.
        levels: different ones.

    Raises:
        ValueError: if no value of the column's dtype can be one of the levels, or two of them are one number
            in the column's floats.
    """
    dtype = column.dtype
    while hasattr(dtype, "categories"):
        dtype = dtype.categories.dtype
    # Interval, Period, ...: what such a column holds, and nothing else.
    own: Any = getattr(dtype, "type", None)
    kind = _kind(dtype)
    wanted = f"of the kind of column {column.name!r}, whose dtype is {column.dtype}"
    fits = any(_fits(level, kind) or (kind == "own" and isinstance(level, own)) for level in levels)
    require(fits, name, levels, wanted)
    if kind == "number":
        held = np.dtype(f"f{getattr(dtype, 'itemsize', 8)}") if dtype.kind == "f" else None
        rounded = [_rounded(level, held) for level in levels]
        require(len(set(rounded)) == len(levels), name, levels, f"different levels in {dtype}")
        levels = rounded
    places = {_plain(level): place for place, level in enumerate(levels)}
    for place, level in enumerate(levels):
        for key in _keys(level):
            places.setdefault(key, place)
    # By type too: True is found as 1 is, but has another text.
    known: dict[tuple[type, Hashable], int] = {}

    def place_of(value: Any) -> int:
        try:
            own = type(value), value
            if own not in known:
                keys = (_plain(value), *_keys(value))
                known[own] = next((places[key] for key in keys if key in places), -1)
            return known[own]
        except (TypeError, ValueError, OverflowError):  # a list, or what has no text
            return -1

    return np.fromiter(map(place_of, column.tolist()), np.int64, len(column))


def _kind(dtype: Any) -> str | None:
    """What values of a dtype are, as ``_fits`` reads it; ``None`` for any objects, "own" for its own type."""
    if isinstance(dtype.type, type) and issubclass(dtype.type, str):
        return "text"
    if dtype.kind == "M":
        return "date of a zone" if "," in str(dtype) else "date"
    kinds = {"b": "truth", "i": "number", "u": "number", "f": "number", "m": "span"}
    if dtype.kind in kinds:
        return kinds[dtype.kind]
    # Decimals, bytes and dictionaries of Arrow are read as objects are.
    any_objects = dtype.type in (np.object_, np.bytes_, bytes, decimal.Decimal)
    return None if any_objects or "dictionary" in str(dtype) else "own"


def _fits(level: Any, kind: str | None) -> bool:
    """Whether a column of this kind can hold the level."""
    if kind is None:
        return True
    if kind in ("number", "truth"):
        return _number(level) is not None or (kind == "truth" and level in ("False", "True"))
    keys = (level, *_keys(level))
    if kind == "text":
        return any(isinstance(key, str) for key in keys)
    if kind == "span":
        return any(isinstance(key, datetime.timedelta) for key in keys)
    zones = {key.tzinfo is not None for key in keys if isinstance(key, datetime.datetime)}
    return (kind == "date of a zone") in zones


def _plain(value: Any) -> Hashable:
    """The value of a NumPy number, which compares itself with fewer types than Python's do."""
    number = isinstance(value, np.number | np.bool_) and not isinstance(value, np.timedelta64)
    return value.item() if number else value


def _keys(value: Any) -> tuple[Hashable, ...]:
    """What else counts as this value."""
    # Before numbers: to NumPy a span of time is one.
    if isinstance(value, np.datetime64 | np.timedelta64):
        with contextlib.suppress(TypeError):  # months have no length
            short = value.astype(f"{value.dtype.kind}8[us]")
            return (short.item(),) if short == value else ()
    if isinstance(value, numbers.Real | decimal.Decimal | np.bool_):
        return _texts(value)
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return (value.decode(),)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return (datetime.datetime(value.year, value.month, value.day),)
    return ()


def _texts(value: Any) -> tuple[str, ...]:
    """How a number is written."""
    if isinstance(value, bool | np.bool_):
        return (str(bool(value)), *_texts(int(value)))
    if not isinstance(value, numbers.Integral):
        if not math.isfinite(value):
            return ()
        if int(value) != value:
            if isinstance(value, decimal.Decimal):
                # One text for 0.1 and 0.10: that of a float, if it is as short.
                short = str(float(value))
                return (short if decimal.Decimal(short) == value else f"{value.normalize():f}",)
            return (str(value),)
    whole = int(value)
    return (str(whole), str(float(whole))) if abs(whole) <= _EXACT else (str(whole),)


def _number(level: Any) -> Any:
    """The number that a level is, or is the text of; ``None`` if it is none."""
    if isinstance(level, bytes):
        level = next(iter(_keys(level)), None)
    if not isinstance(level, str):
        number = isinstance(level, numbers.Real | decimal.Decimal | np.bool_)
        return level if number and not isinstance(level, np.timedelta64) else None
    for read in (int, float):
        with contextlib.suppress(ValueError):
            found = read(level)
            if level in _texts(found):
                return found
    return None


def _rounded(level: Any, dtype: np.dtype | None) -> Any:
    """The level as a column of such floats holds it, or of integers (``None``): a number, if it is one."""
    number: Any = _plain(_number(level))
    if number is None or abs(number) > _LARGEST:
        return level
    if dtype is None:
        return number
    with np.errstate(over="ignore"):
        found = float(np.asarray(float(number), dtype))
    return found if math.isfinite(found) else level
