"""Rows of an array that stays on disk, by their ascending numbers: a NumPy file, or an array.

Rows of a ``.npy`` file are copied with plain reads, a run of neighbours at a time: nothing of the file is
held by this process, and a file that has been cut gives too few bytes, which is an error, where a memory map
would end the process.

``require_same`` asks the file system whether the file is still the one that was opened, by its size and time:
a file that is overwritten within the clock's resolution, or by whoever sets its time back, is not noticed.
``state`` tells data of two runs apart, by sizes, times and contents: pieces of a file, the whole of an array.
"""

import hashlib
import math
import os
import weakref
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from dpsco_jax import _checks
from dpsco_jax._redact import Words

_PIECES, _PIECE = 64, 4096  # of a file, and bytes of each, that tell it from another


@runtime_checkable
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
        """What tells this array from another: sizes, contents, and times of its file."""


class InMemory:
    """Rows of an array, or of a memory map (``numpy.load(path, mmap_mode="r")``)."""

    def __init__(self, array: np.ndarray) -> None:
        self.shape, self.dtype, self._array = array.shape, array.dtype, array
        whole = _map_of(array)
        self._file = None if whole is None else str(whole.filename)
        self._state = None if self._file is None else state_of(self._file)
        start = 0 if whole is None else array.ctypes.data - whole.ctypes.data + whole.offset
        self._place = (start, array.strides)
        # What is written into a map that copies is not in its file.
        self._in_file = whole is not None and whole.mode != "c"

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
        """Sizes and a digest of the numbers; of a map its place, and its file's size, time and pieces."""
        sizes = (self.shape, self.dtype.str)
        if self._in_file and self._file is not None and self._state is not None:
            return (*sizes, self._place, self._state[1:], pieces_of(self._file))
        digest = hashlib.sha256()
        for first in range(0, len(self._array), _PIECE):
            digest.update(self._array[first : first + _PIECE].tobytes())
        return (*sizes, digest.hexdigest())


class NpyFile:
    """Rows of a ``.npy`` file in C order."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._number = os.open(self._path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._number)
        # Of what is open, not of whatever has the name by now.
        self._state = state_of(self._number)
        try:
            with open(self._number, "rb", closefd=False) as file:
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

    def __reduce__(self) -> Any:
        # A copy has a descriptor of its own: this one's number is another file's once it is closed.
        return _reopened, (self._path, self._state)

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
        """Sizes, and the file's size, time and pieces."""
        return (self.shape, self.dtype.str, self._state[1:], pieces_of(self._path))


def opened(leaf: Any, name: str = "items") -> Rows:
    """Rows of a path, an array, or of what is ``Rows`` already; ``name`` is that of the argument."""
    if isinstance(leaf, str | Path):
        return NpyFile(leaf)
    _checks.require_unmasked(name, leaf)
    if isinstance(leaf, np.ndarray):
        return InMemory(leaf)
    own = all(hasattr(leaf, name) for name in ("shape", "dtype", "take", "state", "require_same"))
    good = own and not isinstance(leaf, jax.Array)
    shown = Words(type(leaf).__name__)  # which may be a number of somebody's
    _checks.require(good, name, shown, "of paths of .npy files, NumPy arrays or columns")
    return leaf  # type: ignore[no-any-return]


def _reopened(path: str, state: tuple[int, ...]) -> NpyFile:
    found = NpyFile(path)
    require_same(path, state)
    return found


def _map_of(array: Any) -> Any:
    """The memory map that an array is part of, in whatever view; ``None`` if there is none."""
    found, held = None, array
    while held is not None:
        is_map = isinstance(held, np.memmap) and held.filename is not None
        found = held if is_map else found
        held = getattr(held, "base", None)
    return found


def pieces_of(path: str) -> str:
    """A digest of pieces of a file, evenly spaced: of all of it, where it is no longer than they are."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        last = max(os.fstat(file.fileno()).st_size - _PIECE, 0)
        for number in range(_PIECES):
            file.seek(last * number // (_PIECES - 1))
            digest.update(file.read(_PIECE))
    return digest.hexdigest()


def state_of(file: str | int) -> tuple[int, ...]:
    found = os.stat(file)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def require_same(path: str, state: Any) -> None:
    try:
        found = state_of(path)
    except OSError as gone:
        raise ValueError(f"data must not change during a run, got {gone}") from None
    if found != state:
        raise ValueError(f"data must not change during a run, got another file {path}")
