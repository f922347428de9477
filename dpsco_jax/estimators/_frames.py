"""Whatever a person has a table in, as one pandas frame: frames, arrays, sparse matrices.

``frame_of`` gives a frame with the same rows and columns, made value by value; a sparse matrix becomes dense.
Columns of arrays and sparse matrices are called 0 to d - 1, and masked entries of NumPy's masked arrays are
missing ones. What raises looks at shapes, dtypes and names of columns; of an array of objects, at whether
entries that have to be numbers are. No message shows an entry.
"""

from collections.abc import Collection, Hashable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import column_or_1d

from dpsco_jax._checks import require, require_undisclosed, require_unmasked
from dpsco_jax._given import listed
from dpsco_jax._redact import Words
from dpsco_jax.problems._columns import is_missing


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
        frame, named = _framed(_table(X.toarray())), False
    else:
        frame, named = _framed(_table(X)), False
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
        ValueError: if an entry of such a column is a text that is no number, or is complex or too large.
        TypeError: if it is another object.
    """
    made = frame.copy(deep=False)
    for column in frame.columns:
        if column in columns and frame[column].dtype == object:
            made[column] = numbers_of("X in columns with bounds", frame[column].to_numpy())
    return made


def numbers_of(name: str, objects: np.ndarray) -> np.ndarray:
    """An array of objects as float64, with NaN for what is missing.

    Raises:
        ValueError: if an entry is a text that is no number, or is complex or too large.
        TypeError: if it is another object.
    """
    good = not any(isinstance(entry, complex | np.complexfloating) for entry in objects)
    missing = np.fromiter(map(is_missing, objects), bool, len(objects))
    try:
        found = np.where(missing, np.nan, objects).astype(np.float64) if good else objects
    except (ValueError, OverflowError):
        good = False
    require_undisclosed(good, name, "real numbers")
    return found


def labels_of(values: Any) -> np.ndarray:
    """The labels as an array ``[rows]``; one column is such an array too, with scikit-learn's warning."""
    found = _array("y", values, "an array [rows]")
    require(found.dtype.kind != "c", "y", found.dtype, "real: Complex data not supported")
    return np.asarray(column_or_1d(found, warn=True))


def series_of(values: Any, name: Hashable = None) -> pd.Series:
    """An array as a column of a frame; objects stay objects, whatever they are."""
    return pd.Series(values, name=name, dtype=object if values.dtype == object else None)


def column_of(name: str, values: Any, length: int) -> np.ndarray:
    """The values as an array ``[rows]``, from a list, an array, or a pandas or polars series."""
    found = _array(name, values, "an array [rows]")
    fits = found.shape == (length,)
    require(fits, name, found.shape, f"one for each row of X, of shape ({length},)")
    return found


def _array(name: str, values: Any, wanted: str) -> np.ndarray:
    """The values as an array, if they are one in some way; what is masked is missing."""
    text = isinstance(values, str | bytes) or values is None
    require(not text, name, Words(type(values).__name__), wanted)
    if isinstance(values, np.ma.MaskedArray):
        if values.dtype.kind in "fc":
            return np.asarray(values.filled(np.nan))
        if values.dtype.kind in "mM":  # of which objects may be plain integers
            return np.asarray(values.filled(values.dtype.type("NaT")))
        found = np.array(values.data, object)
        found[np.ma.getmaskarray(values)] = None
        return found
    require_unmasked(name, values)
    arrow = hasattr(values, "to_pylist")  # whose integers with nulls become floats
    require(
        not arrow, name, Words(type(values).__name__), f"{wanted}, as by to_pandas or to_pylist"
    )
    values = _of_series(values) if _is_polars(values, "Series") else values
    try:
        return listed(name, _plain_of(values))
    except ValueError:
        raise ValueError(
            f"{name} must be {wanted}, got rows of different lengths or no array at all"
        ) from None


def _plain_of(values: Any) -> Any:
    """Of a pandas frame, series or index its array; objects where NumPy has no such dtype.

    Then it is a matter of dtypes: with a missing value NumPy's array of these would be one of floats, which
    do not hold all integers, and of true and false one of objects.
    """
    if not isinstance(
        values, pd.DataFrame | pd.Series | pd.Index | pd.api.extensions.ExtensionArray
    ):
        return values
    if isinstance(getattr(values, "dtype", None), pd.CategoricalDtype):
        values = values.astype(object)
    known = isinstance(getattr(values, "dtype", None), np.dtype)
    return values.to_numpy() if known else values.to_numpy(dtype=object)


def _table(X: Any) -> np.ndarray:
    array = _array("X", X, "a frame or an array [rows, columns]")
    if array.ndim != 2:
        raise ValueError(
            f"X must be a frame or an array [rows, columns], got an array of shape {array.shape}. "
            "Reshape your data: [rows, 1] if it is one column, [1, columns] if it is one row"
        )
    require(array.dtype.kind != "c", "X", array.dtype, "real numbers: Complex data not supported")
    return array


def _framed(array: np.ndarray) -> pd.DataFrame:
    """Objects stay objects: pandas would look for a type that all have, and one person's decides of it."""
    return pd.DataFrame(array, dtype=object if array.dtype == object else None)


def _is_polars(X: Any, kind: str) -> bool:
    """Known by its name: polars is never imported here."""
    cls = type(X)
    return cls.__module__.split(".")[0] == "polars" and cls.__name__ == kind


def _of_polars(frame: Any) -> pd.DataFrame:
    return pd.DataFrame(
        {series.name: series_of(_of_series(series)) for series in frame.get_columns()}
    )


def _of_series(series: Any) -> Any:
    """Numbers, dates and spans as arrays, text as text, all else as objects with None for null.

    Which of these is a matter of the dtype, whether or not there is a null; integers stay integers.
    """
    kind, name = series.dtype, type(series.dtype).__name__
    if kind.is_integer() and "128" not in name:  # which pandas does not hold
        return pd.arrays.IntegerArray(series.fill_null(0).to_numpy(), series.is_null().to_numpy())
    dates = name in ("Date", "Datetime", "Duration") and getattr(kind, "time_zone", None) is None
    if kind.is_float() or dates:
        return series.to_numpy()
    if name in ("String", "Categorical", "Enum"):
        return pd.array(series.to_list(), "str")
    return np.array([*series.to_list(), None], object)[:-1]
