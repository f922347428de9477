"""Columns of a frame against what was declared of them: names, dtypes, levels.

What raises depends on the declaration and on the names and dtypes of the frame's columns, never on a value.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from dpsco_jax._checks import require, require_real, require_unmasked
from dpsco_jax._redact import described, may_be_data


def require_columns(frame: Any, needed: Sequence[Hashable]) -> None:
    """Raise ``ValueError`` unless the frame has each of the columns once."""
    found = list(getattr(frame, "columns", []))
    for column in needed:
        one = isinstance(column, Hashable) and not may_be_data(column)
        require(one, "column", described(column), "the name of one")
        require(found.count(column) == 1, f"column {column!r}", found, "once among those of frame")


def is_missing(value: Any) -> bool:
    """Whether the value is ``None``, NaN, NaT or ``pandas.NA``, which does not equal itself, or masked."""
    try:
        return value is None or value is np.ma.masked or bool(value != value)
    except (TypeError, ValueError, ArithmeticError):  # of Decimal's signalling NaN
        return getattr(value, "ndim", 0) == 0


def absent(column: Any) -> np.ndarray:
    """Which values of a column of a frame are missing, ``[rows]``."""
    dtype: Any = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind == "O":
        return np.fromiter(map(is_missing, column), bool, len(column))
    missing = column.isna().to_numpy(bool)
    if not isinstance(dtype, np.dtype) and getattr(dtype, "kind", "") == "f":
        # To Arrow, and to pandas' own floats, a NaN that was computed is there.
        missing = missing | np.isnan(column.to_numpy(np.float64, na_value=np.nan))
    return missing


def require_numeric(column: Any) -> None:
    """Raise ``ValueError`` unless the dtype of the column is one of real numbers or booleans."""
    kind = getattr(column.dtype, "kind", "O")
    text = "of a numeric dtype, since it has bounds: convert it to numbers, as by pandas.to_numeric"
    text += " (text and objects are not read), or declare its levels in categories"
    require(kind in "biuf", f"column {column.name!r}", str(column.dtype), text)


def require_bounds(name: str, pair: Any) -> None:
    """Raise ``ValueError`` unless this is a pair of finite numbers, low < high."""
    two = isinstance(pair, Sequence | np.ndarray) and not isinstance(pair, str) and len(pair) == 2
    require(two and all(np.ndim(number) == 0 for number in pair), name, pair, "a pair (low, high)")
    require_unmasked(name, pair)
    low, high = (require_real(name, number, -math.inf) for number in pair)
    require(low < high and math.isfinite(high - low), name, pair, "a pair low < high, finite")


def require_levels(name: str, levels: Any, fewest: int) -> None:
    """Raise ``ValueError`` unless these are different levels, at least so many, none of them missing."""
    series = getattr(levels, "ndim", None) == 1 and hasattr(
        levels, "to_numpy"
    )  # pandas: Series, Index
    listed = series or (isinstance(levels, Sequence | np.ndarray) and not isinstance(levels, str))
    require(listed, name, levels, "a list of levels")
    require_unmasked(name, levels)
    present = all(isinstance(level, Hashable) and not is_missing(level) for level in levels)
    require(present, name, levels, "a list of levels, none of them missing (see missing=)")
    enough = len(levels) >= fewest and len(set(levels)) == len(levels)
    require(enough, name, levels, f"a list of at least {fewest} different levels")
