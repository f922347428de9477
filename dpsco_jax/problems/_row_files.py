"""Rows of an array that stays on disk, by their numbers: a NumPy file, or an array that is there already.

What it computes: the rows of ascending numbers, copied. Of a ``.npy`` file they are read with plain reads, a
run of neighbours at a time: nothing of the file is held by this process, and a file that has been cut gives
too few bytes, which is an error, where a memory map would end the process.

Formal guarantee: none. ``state`` is what the file system says of the file when it was opened; ``same`` asks
again. A file that is overwritten within the clock's resolution, or by whoever sets its time back, is not
noticed.

Cost: one system call for each run of neighbouring rows.
"""

import math
import os
import weakref
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from dpsco_jax import _checks
from dpsco_jax._shown import Words


class Rows(Protocol):
    """An array by its rows.

    Attributes:
        shape: the first axis is that of users.
        dtype: of the numbers.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    def take(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of these numbers, which ascend, none twice; a copy."""

    def require_same(self) -> None:
        """``ValueError`` if the file has been changed since it was opened."""

    def state(self) -> Any:
        """Numbers that tell this array from another: sizes and times of its file."""


class InMemory:
    """Rows of an array, or of a memory map (``numpy.load(path, mmap_mode="r")``)."""

    def __init__(self, array: np.ndarray) -> None:
        self.shape, self.dtype, self._array = array.shape, array.dtype, array
        found = getattr(array, "filename", None)
        self._file = None if found is None else str(found)
        self._state = None if self._file is None else state_of(self._file)

    def take(self, numbers: np.ndarray) -> np.ndarray:
        """The rows; of a map the file is asked first whether it is as long as it was."""
        self.require_same()
        if len(numbers) and numbers[-1] - numbers[0] + 1 == len(numbers):
            return np.array(self._array[numbers[0] : numbers[-1] + 1])
        return np.asarray(self._array)[numbers]

    def require_same(self) -> None:
        """``ValueError`` if the file of a map has been changed."""
        if self._file is not None:
            require_same(self._file, self._state)

    def state(self) -> Any:
        """Sizes, and of a map its file's size and time."""
        return (self.shape, self.dtype.str, None if self._state is None else self._state[1:])


class NpyFile:
    """Rows of a ``.npy`` file in C order."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._number = os.open(self._path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._number)
        self._state = state_of(self._path)
        try:
            with open(self._path, "rb") as file:
                version = np.lib.format.read_magic(file)
                first = version == (1, 0)
                read = np.lib.format.read_array_header_1_0
                read = read if first else np.lib.format.read_array_header_2_0
                self.shape, by_column, self.dtype = read(file)
                self._offset = file.tell()
        except (ValueError, OSError, EOFError) as broken:
            raise ValueError(f"items must be NumPy files, got {self._path!r}: {broken}") from None
        _checks.require(not by_column, "items", self._path, "files of arrays in C order")
        self._row = math.prod(self.shape[1:]) * self.dtype.itemsize
        whole = self._offset + self.shape[0] * self._row if self.shape else -1
        found = self._state[1]
        shown = Words(f"{self._path} of {found} bytes")
        _checks.require(whole == found, "items", shown, f"as long as its head says, {whole} bytes")

    def take(self, numbers: np.ndarray) -> np.ndarray:
        """The rows; ``ValueError`` if the file has fewer bytes than it had."""
        rows = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        if not rows.nbytes:
            return rows
        into: Any = rows.reshape(-1).view(np.uint8).data
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1)
        ends = np.append(starts[1:], len(numbers))
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
            self._read(
                into[first * self._row : last * self._row],
                self._offset + int(numbers[first]) * self._row,
            )
        return rows

    def _read(self, into: memoryview, offset: int) -> None:
        done = 0
        while done < len(into):
            got = os.preadv(self._number, [into[done:]], offset + done)
            if got <= 0:
                raise ValueError(f"data must not change during a run, got a cut file {self._path}")
            done += got

    def require_same(self) -> None:
        """``ValueError`` if the file has been changed, or another one has its name."""
        require_same(self._path, self._state)

    def state(self) -> Any:
        """Sizes, and the file's size and time."""
        return (self.shape, self.dtype.str, self._state[1:])


def opened(leaf: Any, name: str = "items") -> Rows:
    """Rows of a path, an array, or of what is ``Rows`` already; ``name`` is that of the argument."""
    if isinstance(leaf, str | Path):
        return NpyFile(leaf)
    if isinstance(leaf, np.ndarray):
        return InMemory(leaf)
    own = all(hasattr(leaf, name) for name in ("shape", "dtype", "take", "state", "require_same"))
    good = own and not isinstance(leaf, jax.Array)
    _checks.require(good, name, leaf, "of paths of .npy files, NumPy arrays or columns")
    return leaf  # type: ignore[no-any-return]


def state_of(path: str) -> tuple[int, ...]:
    found = os.stat(path)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def require_same(path: str, state: Any) -> None:
    try:
        found = state_of(path)
    except OSError as gone:
        raise ValueError(f"data must not change during a run, got {gone}") from None
    if found != state:
        raise ValueError(f"data must not change during a run, got another file {path}")
