"""What a chunk costs the store of a sweep against the number of cells of the experiment.

What it computes: processor seconds of one claim and one ``finish`` of 64 cells, median of five, in stores of
1e3, 3e4 and 1e6 cells, half of them with a result, the stores taking turns; and the instructions that the
machine of SQLite carries out meanwhile, at least one for each row that it visits, the same on every computer.
Besides: the seconds of ``pending``, with which a run begins and which is linear.

Source: none.

Formal guarantee: none.

Cost: two minutes, most of it to fill the stores; 2 GB of memory and 0.6 GB of disk for a million cells.

Example:
    python -m experiments.benchmarks store
"""

import hashlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from dpsco_jax.sweeps.cells import Cell
from dpsco_jax.sweeps.store import Outcome, Store
from experiments.benchmarks.timing import Row

SIZES = (1_000, 30_000, 1_000_000)
CHUNK = 64


class ChunkCost(NamedTuple):
    """The store's part of one chunk of 64 cells.

    Attributes:
        cells: of the experiment; half of them have a result.
        seconds: processor time of ``claim`` and ``finish``.
        wall: seconds on the clock, waits for the disk included.
        instructions: of SQLite's machine for both.
        opening: processor seconds of ``pending`` for all cells.
    """

    cells: int
    seconds: float
    wall: float
    instructions: int
    opening: float


def store_growth(sizes: Sequence[int] = SIZES, chunks: int = 5) -> list[ChunkCost]:
    """Costs of a chunk for each number of cells; the stores take turns, the median counts.

    Args:
        sizes: numbers of cells, at least ``128 (chunks + 2)`` each.
        chunks: how many are timed, after one that is not; the instructions of one more are counted.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        measured = []
        for size in sizes:
            store = stack.enter_context(Store(Path(folder) / str(size)))
            measured.append(_Measured(store, size))
        for turn in range(chunks + 1):
            for each in measured:
                each.time(warm=turn > 0)
        for each in measured:
            each.count()
        return [each.cost() for each in measured]


def rows() -> list[Row]:
    """The largest store against the smallest."""
    costs = store_growth()
    small, large = costs[0], costs[-1]
    work = f"claim and finish of {CHUNK} cells, processor time"
    note = ", ".join(f"{c.instructions} instructions at {c.cells:,}" for c in costs)
    ours, peer = f"{large.cells:,} cells", f"{small.cells:,} cells"
    return [Row(work, ours, large.seconds, peer, small.seconds, 0.2, note)]


class _Measured:
    """A store, half full, and what its chunks have cost."""

    def __init__(self, store: Store, size: int):
        cells = [_cell(i) for i in range(size)]
        self._store, self._size = store, size
        store.open_run({"name": "growth", "seeds": size}, {}, "none")
        half = cells[: size // 2]
        store.claim(half, dict.fromkeys((cell.id for cell in half), 0))
        store.finish(_outcomes(half), "growth")
        before = time.process_time()
        tried = store.pending(cells)
        self._opening = time.process_time() - before
        self._chunks: Iterator[list[Cell]] = store.claims(cells[size // 2 :], tried, CHUNK)
        self._seconds: list[float] = []
        self._wall: list[float] = []
        self._instructions = 0

    def time(self, warm: bool) -> None:
        """One chunk by the clock."""
        clock, wall = time.process_time(), time.perf_counter()
        self._store.finish(_outcomes(next(self._chunks)), "growth")
        if warm:
            self._seconds.append(time.process_time() - clock)
            self._wall.append(time.perf_counter() - wall)

    def count(self) -> None:
        """One chunk by the counter, which would slow the others down."""
        count = 0

        def one() -> None:
            nonlocal count
            count += 1

        self._store._db.set_progress_handler(one, 1)
        self._store.finish(_outcomes(next(self._chunks)), "growth")
        self._store._db.set_progress_handler(None, 0)
        self._instructions = count

    def cost(self) -> ChunkCost:
        middle = statistics.median
        seconds, wall = middle(self._seconds), middle(self._wall)
        return ChunkCost(self._size, seconds, wall, self._instructions, self._opening)


def _cell(number: int) -> Cell:
    return Cell(hashlib.sha256(str(number).encode()).hexdigest()[:32], {"seed": number})


def _outcomes(cells: Sequence[Cell]) -> list[Outcome]:
    return [Outcome(cell, "ok", {"error": 0.1, "risk": 0.2}, None, 0.01) for cell in cells]
