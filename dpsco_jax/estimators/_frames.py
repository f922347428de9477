"""Whatever a person has a table in, as one pandas frame: frames, arrays, sparse matrices.

What it computes: ``frame_of`` gives a pandas frame with the same rows and columns. Columns of arrays and
sparse matrices are called 0 to d - 1. Nothing is learned: each value is taken as it is.

Formal guarantee: the frame is made value by value. What raises looks at shapes, dtypes and names of columns;
of an array of objects, at whether the entries of a column with bounds are numbers. No message shows an entry.

Cost: a copy; a sparse matrix becomes dense, rows × columns numbers.
"""

from collections.abc import Collection, Hashable
from typing import Any

import numpy as np
import pandas as pd

from dpsco_jax._checks import require
from dpsco_jax._shown import Words, described


def frame_of(X: Any) -> tuple[pd.DataFrame, bool]:
    """The table as a pandas frame, and whether its columns have names of their own.

    Args:
        X: a pandas or polars frame, or what NumPy or scipy.sparse makes an array ``[rows, columns]`` of.

    Raises:
        ValueError: if it is none of these, has complex numbers, no row or no column.
    """
    if isinstance(X, pd.DataFrame):
        frame, named = X, True
    elif _is_polars(X, "DataFrame"):
        frame, named = _of_polars(X), True
    elif _is_polars(X, "LazyFrame"):
        require(False, "X", Words("a LazyFrame"), "a frame that is there: collect it first")
    elif hasattr(X, "tocsr"):
        frame, named = pd.DataFrame(_array(X.toarray())), False
    else:
        frame, named = pd.DataFrame(_array(X)), False
    levels = frame.columns.nlevels
    require(levels == 1, "X", Words(f"columns of {levels} levels"), "a frame with plain names")
    for size, what in zip(frame.shape, ("sample", "feature"), strict=True):
        if size == 0:
            raise ValueError(
                f"Found array with 0 {what}(s) (shape={frame.shape}) while a minimum of 1 is required."
            )
    return frame, named


def with_numbers(frame: pd.DataFrame, columns: Collection[Hashable]) -> pd.DataFrame:
    """The frame of an array of objects with its columns of numbers as such; others as they are.

    Args:
        frame: of ``frame_of``, without names of its own.
        columns: which have bounds.

    Raises:
        ValueError: if an entry of such a column is a text that is no number.
        TypeError: if it is another object.
    """
    objects = [c for c in frame.columns if c in columns and frame[c].dtype == object]
    try:
        return frame.astype(dict.fromkeys(objects, np.float64))
    except ValueError:
        raise ValueError(
            "X must have numbers in columns with bounds, got an object that is none (not shown: it belongs "
            "to a user)"
        ) from None


def column_of(name: str, values: Any, length: int) -> np.ndarray:
    """The values as an array ``[rows]``, from a list, an array, or a pandas or polars series.

    Raises:
        ValueError: if there are not as many as rows, in one dimension.
    """
    found = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    shape = np.shape(found)
    fits = shape == (length,)
    require(fits, name, shape, f"one for each row of X, of shape ({length},)")
    return np.asarray(found)


def _array(X: Any) -> np.ndarray:
    if isinstance(X, str | bytes) or X is None:
        require(False, "X", described(X), "a frame or an array [rows, columns]")
    try:
        array = np.asarray(X)
    except (TypeError, ValueError):
        raise ValueError(
            "X must be a frame or an array [rows, columns], got rows of different lengths or no array at all"
        ) from None
    if array.ndim != 2:
        raise ValueError(
            f"X must be a frame or an array [rows, columns], got an array of shape {array.shape}. "
            "Reshape your data: [rows, 1] if it is one column, [1, columns] if it is one row"
        )
    require(array.dtype.kind != "c", "X", array.dtype, "real numbers: Complex data not supported")
    return array


def _is_polars(X: Any, kind: str) -> bool:
    """Known by its name: polars is never imported here."""
    cls = type(X)
    return cls.__module__.split(".")[0] == "polars" and cls.__name__ == kind


def _of_polars(frame: Any) -> pd.DataFrame:
    """Numbers as arrays with NaN for null, all else as Python objects with None for null."""
    columns = {
        series.name: (
            series.to_numpy()
            if series.dtype.is_numeric() and not series.dtype.is_decimal()
            else np.array([*series.to_list(), None], object)[:-1]
        )
        for series in frame.get_columns()
    }
    return pd.DataFrame(columns)
