"""The bench at which cells are computed: programs built, prepared and compiled once, chunks run.

A run has one bench in its own process, or one in each worker of a cluster (``executors``). What goes in and
comes out is plain data: settings, cells, numbers, texts of tracebacks.

Guarantee: a chunk gives the same results at every bench with equal devices: they depend on its cells and on
the size for which its program was compiled, which the schedule chooses once for all benches.

Cost: each bench builds and compiles the programs that it runs, and keeps those of one group at a time.
"""

import hashlib
import math
import re
import time
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dpsco_jax.sweeps.cells import Cell, Settings, key_words, needs_x64
from dpsco_jax.sweeps.compile import Chunked, compile_chunk, shape_of, stack
from dpsco_jax.sweeps.experiment import Experiment, Program, check_names
from dpsco_jax.sweeps.store import Outcome

_PROGRAMS_KEPT = 8
_OF_THE_CELL = (Exception, SystemExit)
"""What ends a cell and not the run. Code of an experiment that calls ``sys.exit`` ends its cell."""
_ADDRESS = re.compile(" at 0x[0-9a-f]+")


class Survey(NamedTuple):
    """What a group of cells needs.

    Attributes:
        batches: the cells whose inputs have one shape, and so share a program, as positions in the group,
            each after a text that names the shape.
        refused: the positions of cells that cannot be prepared, each with the traceback.
        broken: the traceback, if there is no program for the group at all.
    """

    batches: list[tuple[str, list[int]]]
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
            except _OF_THE_CELL as error:
                return Survey([], [], _traceback(error))
            batches: dict[Any, list[int]] = {}
            refused = []
            for position, cell in enumerate(cells):
                try:
                    inputs = _prepare(group, cell).inputs
                    stack([inputs])  # refuses an integer that is too large, for this cell alone
                    shape = shape_of(inputs)
                    batches.setdefault(shape, []).append(position)
                except _OF_THE_CELL as error:
                    refused.append((position, _traceback(error)))
            return Survey([(_named(shape), batches[shape]) for shape in batches], refused)

    def fit(self, static: Settings, cell: Cell, size: int) -> Fit:
        """Compiles the program of a cell for chunks of that many cells, or fewer if they do not fit."""
        with jax.enable_x64(self._wide):
            try:
                return Fit(self._compiled(static, cell, size).size)
            except _OF_THE_CELL as error:
                return Fit(0, _traceback(error))

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
            except _OF_THE_CELL as error:
                return [failure(cells[0], _traceback(error))] if len(cells) == 1 else None
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


def _traceback(error: BaseException) -> str:
    """The traceback, whose last line says what has happened: without JAX's note on how it shortens them."""
    for note in getattr(error, "__notes__", []):
        if "JAX has removed its internal frames" in note:
            error.__notes__.remove(note)
            break
    return "".join(traceback.format_exception(error))


def _prepare(group: _Group, cell: Cell) -> _Prepared:
    if cell.id not in group.prepared:
        inputs = (group.program.inputs or _numbers)(cell.settings)
        known = {name: _number(name, x) for name, x in group.program.known(cell.settings).items()}
        check_names(cell.settings, known)
        group.prepared[cell.id] = _Prepared(cell, inputs, known)
    return group.prepared[cell.id]


def _number(name: str, value: Any) -> bool | int | float:
    """A number of the host as Python has it, which every store and every worker can write."""
    array = isinstance(value, np.generic | np.ndarray | jax.Array) and np.ndim(value) == 0
    plain = value.item() if array else value
    if not isinstance(plain, int | float):
        raise ValueError(f"known must give real numbers, got {name}={value!r}")
    return float(plain) if isinstance(plain, float) else plain


def _named(shape: tuple) -> str:
    """A shape in few characters, alike in all processes as far as its parts print alike."""
    text = _ADDRESS.sub("", str(shape))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
