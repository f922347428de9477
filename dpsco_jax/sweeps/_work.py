"""The bench at which cells are computed: programs built, prepared and compiled once, chunks run.

A run has one bench in its own process, or one in each worker of a cluster (``executors``). What goes in and
comes out is plain data: settings, cells, numbers, texts of tracebacks.

Guarantee: a chunk gives the same results at every bench with equal devices: they depend on its cells and on
the size for which its program was compiled, which the schedule chooses once for all benches.

Cost: each bench builds and compiles the programs that it runs, and keeps those of one group at a time.
"""

import math
import time
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from dpsco_jax.sweeps.cells import Cell, Settings, key_words, needs_x64
from dpsco_jax.sweeps.compile import Chunked, compile_chunk, shape_of, stack
from dpsco_jax.sweeps.experiment import Experiment, Program, check_names
from dpsco_jax.sweeps.store import Outcome

_PROGRAMS_KEPT = 8


class Survey(NamedTuple):
    """What a group of cells needs.

    Attributes:
        batches: the cells whose inputs have one shape, and so share a program, as positions in the group.
        refused: the positions of cells that cannot be prepared, each with the traceback.
        broken: the traceback, if there is no program for the group at all.
    """

    batches: list[list[int]]
    refused: list[tuple[int, str]]
    broken: str | None = None


class Fit(NamedTuple):
    """How a batch was compiled: for chunks of ``size`` cells, or not at all, with the traceback."""

    size: int
    broken: str | None = None


class _Prepared(NamedTuple):
    """A cell with what its program needs from the host."""

    cell: Cell
    inputs: Any
    known: dict[str, float]


class _Group:
    """The program of a group, its cells as far as they have been prepared, and what was compiled."""

    def __init__(self, program: Program):
        self.program = program
        self.prepared: dict[str, _Prepared] = {}
        self.compiled: dict[Any, Chunked] = {}


class Bench:
    """Builds, compiles and runs the programs of one experiment on the devices of this process.

    Args:
        experiment: an instance, its fields the configuration.
        memory_gb: GiB that a chunk may hold on each device.
    """

    def __init__(self, experiment: Experiment, memory_gb: float):
        self._experiment = experiment
        self._memory = memory_gb * 2**30
        self._wide = needs_x64(experiment)
        self._devices = jax.devices()
        self._kept: tuple[tuple, _Group] | None = None
        self.device = f"{len(self._devices)} x {self._devices[0].device_kind}"

    def survey(self, static: Settings, cells: Sequence[Cell]) -> Survey:
        """Builds the program of a group, prepares its cells, and tells them apart by shape."""
        with jax.enable_x64(self._wide):
            try:
                group = self._group(static)
            except Exception:
                return Survey([], [], traceback.format_exc())
            batches: dict[Any, list[int]] = {}
            refused = []
            for position, cell in enumerate(cells):
                try:
                    shape = shape_of(_prepare(group, cell).inputs)
                    batches.setdefault(shape, []).append(position)
                except Exception:
                    refused.append((position, traceback.format_exc()))
            return Survey([*batches.values()], refused)

    def fit(self, static: Settings, cell: Cell, size: int) -> Fit:
        """Compiles the program of a cell for chunks of that many cells, or fewer if they do not fit."""
        with jax.enable_x64(self._wide):
            try:
                return Fit(self._compiled(static, cell, size).size)
            except Exception:
                return Fit(0, traceback.format_exc())

    def compute(self, static: Settings, cells: Sequence[Cell], size: int) -> list[Outcome] | None:
        """Runs cells of one shape with the program that ``fit`` compiles for that size.

        Returns:
            How each cell ended. ``None`` if several cells failed together: they are to be run one by one.
        """
        with jax.enable_x64(self._wide):
            try:
                chunked = self._compiled(static, cells[0], size)
                group = self._group(static)
                prepared = [_prepare(group, cell) for cell in cells]
                parts = range(
                    0, len(cells), chunked.size
                )  # several where this bench has less memory
                done = [o for i in parts for o in _run(chunked, prepared[i : i + chunked.size])]
            except Exception:
                return [failure(cells[0], traceback.format_exc())] if len(cells) == 1 else None
            for cell in cells:
                del group.prepared[cell.id]
            return done

    def _group(self, static: Settings) -> _Group:
        key = tuple(static.items())
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # the arrays of the group before go first
            self._kept = key, _Group(self._experiment.build(static))
        return self._kept[1]

    def _compiled(self, static: Settings, cell: Cell, size: int) -> Chunked:
        group = self._group(static)
        prepared = _prepare(group, cell)
        key = shape_of(prepared.inputs), size
        if key not in group.compiled:
            chunked = compile_chunk(
                group.program, prepared.inputs, size, self._memory, self._devices
            )
            check_names([*cell.settings, *prepared.known], chunked.names)
            group.compiled[key] = chunked
            while len(group.compiled) > _PROGRAMS_KEPT:
                del group.compiled[next(iter(group.compiled))]
        return group.compiled[key]


def failure(cell: Cell, text: str) -> Outcome:
    """A cell that ended with an error, whose traceback this is."""
    return Outcome(cell, "failed", None, text, None)


def _prepare(group: _Group, cell: Cell) -> _Prepared:
    if cell.id not in group.prepared:
        inputs = (group.program.inputs or _numbers)(cell.settings)
        known = dict(group.program.known(cell.settings))
        check_names(cell.settings, known)
        group.prepared[cell.id] = _Prepared(cell, inputs, known)
    return group.prepared[cell.id]


def _numbers(settings: Settings) -> dict[str, float]:
    return {name: value for name, value in settings.items() if not isinstance(value, str)}


def _run(chunked: Chunked, chunk: list[_Prepared]) -> list[Outcome]:
    """Runs a chunk, filled up with copies of its first cell."""
    start = time.perf_counter()
    full = chunk + [chunk[0]] * (chunked.size - len(chunk))
    words = key_words(prepared.cell.id for prepared in full)
    outputs = jax.device_get(chunked.call(words, stack([prepared.inputs for prepared in full])))
    columns = {name: values.tolist() for name, values in outputs.items()}
    seconds = (time.perf_counter() - start) / len(chunk)
    outcomes = []
    for i, prepared in enumerate(chunk):
        results = {name: values[i] for name, values in columns.items()} | prepared.known
        finite = all(math.isfinite(value) for value in results.values())
        status = "ok" if finite else "nonfinite"
        outcomes.append(Outcome(prepared.cell, status, results, None, seconds))
    return outcomes
