"""Columns of Parquet files as arrays of ``StoredUsers``: decoded a group of rows at a time.

What it computes: ``column``, an array ``[users, ...]`` by its rows. A group that was asked for last is kept.

Source: none. Needs the extra ``parquet`` (polars).

Formal guarantee: none by itself; a file that changes during a run ends it with an error.

Cost: decoding of every group in which a row is asked for, and memory of one group: of a scattered sample that
is the whole file in every step. Write such data into a ``.npy`` file once.

Example:
    >>> import numpy as np, polars, tempfile
    >>> from dpsco_jax.problems import StoredUsers, parquet
    >>> folder = tempfile.TemporaryDirectory()
    >>> rows = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    >>> polars.DataFrame({"x": rows}).write_parquet(f"{folder.name}/users.parquet")
    >>> data = StoredUsers(parquet.column(f"{folder.name}/users.parquet", "x", shape=(1, 3)))
    >>> data.read(np.array([2])).items.tolist()
    [[[6.0, 7.0, 8.0]]]
    >>> folder.cleanup()
"""

import math
import os
from typing import Any

import numpy as np

from dpsco_jax import _checks
from dpsco_jax._extra import needs
from dpsco_jax.problems import _row_files

__all__ = ["Column", "column"]


class Column:
    """Rows of a column; see ``column``, which makes it.

    Attributes:
        shape: ``(users, *shape)``.
        dtype: of the numbers.
    """

    def __init__(self, path: str, name: str, shape: tuple[int, ...], group_rows: int) -> None:
        """As ``column``."""
        with needs("parquet"):
            import polars
        _checks.require_instance("path", path, str)
        _checks.require_instance("name", name, str)
        _checks.require_shape("shape", shape)
        self._rows = _checks.require_count("group_rows", group_rows)
        # Of a folder or a pattern nobody would notice that one of its files has changed.
        one = not os.path.exists(path) or os.path.isfile(path)
        _checks.require(one, "path", path, "of one Parquet file")
        self._path, self._name, self._state = path, name, _row_files.state_of(path)
        self._kept: tuple[int, Any] = (-1, None)
        try:
            self._table = polars.scan_parquet(path)
            known = self._table.collect_schema().names()
            users = int(self._table.select(polars.len()).collect().item())
        except (polars.exceptions.PolarsError, OSError) as broken:
            raise ValueError(f"path must be a Parquet file, got {path!r}: {broken}") from None
        _checks.require(name in known, "name", name, f"one of {known}")
        self.shape = (users, *shape)
        self._lengths: list[list[int]] | None = None
        self.dtype = self._decoded(0, 1).dtype

    def __getstate__(self) -> dict[str, Any]:
        """Without the group that was read last: a copy on disk holds no user's numbers."""
        return self.__dict__ | {"_kept": (-1, None)}

    def take(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of these numbers, which ascend; a copy."""
        found = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        groups = numbers // self._rows
        for group in np.unique(groups).tolist():
            if self._kept[0] != group:
                self._kept = (group, self._decoded(group * self._rows, self._rows))
            chosen = groups == group
            found[chosen] = self._kept[1][numbers[chosen] - group * self._rows]
        return found

    def _decoded(self, first: int, count: int) -> np.ndarray:
        count = min(count, self.shape[0] - first)
        self.require_same()
        some = self._table.select(self._name).slice(first, count).collect()[self._name]
        missing, lengths = some.null_count(), []
        while some.dtype.is_nested():
            if type(some.dtype).__name__ == "List":
                lengths.append(some.list.len().drop_nulls().unique().to_list())
            some = some.explode()
            missing += some.null_count()
        _checks.require_undisclosed(missing == 0, f"column {self._name!r}", "without nulls")
        values = some.to_numpy()
        # Of each row, as of the first: numbers of a longer one would go to the next, if that is shorter.
        self._lengths = lengths if self._lengths is None else self._lengths
        alike = lengths == self._lengths and all(len(each) <= 1 for each in lengths)
        wanted = count * math.prod(self.shape[1:])
        each = f"that of {wanted} numbers in {count} rows, not {self.shape[1:]}"
        _checks.require_undisclosed(alike and values.size == wanted, "shape", each)
        return np.array(values).reshape(count, *self.shape[1:])

    def require_same(self) -> None:
        """``ValueError`` if the file has been changed since it was opened."""
        _row_files.require_same(self._path, self._state)

    def state(self) -> Any:
        """Sizes, and the file's size, time and pieces."""
        pieces = _row_files.pieces_of(self._path)
        return (self._name, self.shape, self.dtype.str, self._state[1:], pieces)


def column(
    path: str | os.PathLike[str], name: str, *, shape: tuple[int, ...], group_rows: int = 2**16
) -> Column:
    """A column of a Parquet file, one row for each user.

    Args:
        path: of the file.
        name: of the column: numbers, or lists of as many numbers in every row.
        shape: of a user's numbers: ``(items, ...)``, as ``(1, dim)`` for one item a user.
        group_rows: rows that are decoded at once: best those of a row group of the file.

    Raises:
        ModuleNotFoundError: polars is not installed.
        ValueError: the file is no Parquet file, has no such column, has nulls, or rows of other sizes.
    """
    kind = isinstance(path, str | os.PathLike)
    _checks.require(kind, "path", path, "the path of a Parquet file")
    return Column(os.fspath(path), name, shape, group_rows)
