"""The sweep engine: runs what is missing of an experiment, and stores it as it goes.

The pending cells are grouped by their static settings, the experiment builds one program for each
group, and each group runs in chunks: claim, compute, store. Whatever goes wrong with some cells (a
refused plan, a program that does not compile, a chunk that runs out of memory) is stored with its
traceback, and the others go on. A failed cell has no result, so the next run tries it again.

Guarantee: every cell is computed and stored once, whether runs are killed, interrupted, or share
the work (see ``store``). A result with a NaN or an infinity is a result, stored as ``nonfinite``. In
which precision cells run is the experiment's own: in float64 if it declares ``x64``, whatever the
process has switched on; else in float32, and where ``jax_enable_x64`` is on it is refused.

Cost: beside the programs themselves, a few milliseconds for each chunk.
"""

import dataclasses
import math
import time
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax

from dpsco_jax._checks import (
    require,
    require_count,
    require_instance,
    require_instances,
    require_real,
)
from dpsco_jax.sweeps.cells import (
    Cell,
    Settings,
    axes,
    cells_of,
    config_hash,
    constants,
    key_words,
    needs_x64,
    static_settings,
)
from dpsco_jax.sweeps.compile import Chunked, compile_chunk, shape_of, stack
from dpsco_jax.sweeps.experiment import Experiment, Program, check_names
from dpsco_jax.sweeps.store import Outcome, Store
from dpsco_jax.sweeps.versions import versions


@dataclasses.dataclass(frozen=True)
class Options:
    """How to run, which has no part in the results.

    Attributes:
        cells_per_chunk: how many cells run, and are stored, together. More are faster on a GPU;
            fewer lose less when a run is killed.
        memory_gb: GiB that a chunk may hold on each device. A chunk that needs more is made
            smaller.
    """

    cells_per_chunk: int = 64
    memory_gb: float = 2.0

    def __post_init__(self) -> None:
        require_count("cells_per_chunk", self.cells_per_chunk)
        require_real("memory_gb", self.memory_gb, 0.0)


class Tally(NamedTuple):
    """How the cells of an experiment stand after a run.

    Attributes:
        done: with a result, from whatever run.
        nonfinite: of these, with a NaN or an infinity among the results.
        failed: with an error.
        missing: neither: another run is at work on them, or this one was interrupted.
    """

    done: int
    nonfinite: int
    failed: int
    missing: int


class Listener(Protocol):
    """Who is told how a run goes on, as ``progress.Progress`` is."""

    def start(self, total: int, done: int) -> None:
        """There are so many cells, and so many were finished by earlier runs."""

    def phase(self, text: str) -> None:
        """This is being worked on."""

    def advance(self, cells: int, failed: int = 0) -> None:
        """So many cells have been stored, some of them as failed."""


class Silence:
    """The listener that says nothing."""

    def start(self, total: int, done: int) -> None:
        """Nothing is said."""

    def phase(self, text: str) -> None:
        """Nothing is said."""

    def advance(self, cells: int, failed: int = 0) -> None:
        """Nothing is said."""


def run(
    experiment: Experiment,
    store: Store,
    options: Options | None = None,
    progress: Listener | None = None,
) -> Tally:
    """Computes and stores the cells of an experiment that have no result yet.

    ``KeyboardInterrupt`` passes through: what was stored stays, the chunk at work is lost.

    Args:
        experiment: an instance of the experiment, its fields the configuration.
        store: where finished cells are, open.
        options: how to run; ``Options()`` by default.
        progress: who is told how it goes, such as a ``progress.Progress``; nobody by default.

    Returns:
        How the cells of the experiment stand now, those of earlier runs included.

    Raises:
        ValueError: before anything is computed or stored, if the experiment has no cells, the same cell
            twice, or a value that its axis does not know; if an argument is not of its class; if
            ``jax_enable_x64`` is on and the experiment does not declare ``x64``.
    """
    require_instance("store", store, Store)
    options = Options() if options is None else options
    require_instance("options", options, Options)
    progress = Silence() if progress is None else progress
    told = all(hasattr(progress, name) for name in ("start", "phase", "advance"))
    require(told, "progress", progress, "a listener: start, phase, advance")
    cells = cells_of(experiment)
    check_names({name for cell in cells for name in cell.settings}, ())
    wide = needs_x64(experiment)
    if jax.dtypes.canonicalize_dtype(float) == "float64" and not wide:
        raise ValueError(
            "jax_enable_x64 must be False for an experiment that does not declare x64: ClassVar[bool] = "
            f"True, as {experiment.name}, got True: its cells would be of two precisions"
        )
    tried = store.pending(cells)
    progress.start(total=len(cells), done=len(cells) - len(tried))
    if tried:
        devices = jax.devices()
        config = {
            "name": experiment.name,
            "version": experiment.version,
            "axes": axes(experiment),
            "constants": constants(experiment),
            "x64": wide,
        }
        store.open_run(config, versions(), f"{len(devices)} x {devices[0].device_kind}")
        sweep = _Sweep(experiment, store, tried, options, progress, devices)
        with jax.enable_x64(wide):
            for static, group in _groups(experiment, [cell for cell in cells if cell.id in tried]):
                sweep.run_group(static, group)
    return tally(store, cells)


def tally(store: Store, cells: Sequence[Cell]) -> Tally:
    """Counts what is stored of these cells.

    Raises:
        ValueError: if ``store`` is not a ``Store``, or ``cells`` not a sequence of ``Cell``.
    """
    require_instance("store", store, Store)
    require_instances("cells", cells, Cell)
    states = [row["status"] for row in store.rows(cells)]
    failed, nonfinite = states.count("failed"), states.count("nonfinite")
    return Tally(len(states) - failed, nonfinite, failed, len(cells) - len(states))


class _Prepared(NamedTuple):
    """A cell with what its program needs from the host."""

    cell: Cell
    inputs: Any
    known: dict[str, float]


class _Sweep(NamedTuple):
    """One run of the engine over one experiment."""

    experiment: Experiment
    store: Store
    tried: dict[str, int]
    options: Options
    progress: Listener
    devices: Sequence[jax.Device]

    def run_group(self, static: Settings, group: list[Cell]) -> None:
        """Builds the program of some cells, prepares them, and runs each batch of equal shape."""
        if not self.store.free(group, self.tried):
            return
        label = ", ".join(f"{name} {value}" for name, value in static.items())
        self.progress.phase(f"{label}: preparing")
        try:
            program = self.experiment.build(static)
        except Exception:
            self._fail(group)
            return
        batches: dict[Any, list[_Prepared]] = {}
        for cell in group:
            try:
                inputs = (program.inputs or _numbers)(cell.settings)
                known = dict(program.known(cell.settings))
                check_names(cell.settings, known)
                prepared = _Prepared(cell, inputs, known)
                batches.setdefault(shape_of(inputs), []).append(prepared)
            except Exception:
                self._fail([cell])
        for batch in batches.values():
            self.progress.phase(f"{label}: compiling")
            try:
                chunked = self._compile(program, batch)
                check_names([*batch[0].cell.settings, *batch[0].known], chunked.names)
            except Exception:
                self._fail([prepared.cell for prepared in batch])
                continue
            self.progress.phase(label)
            self._run_batch(chunked, batch)

    def _compile(self, program: Program, batch: list[_Prepared]) -> Chunked:
        chunks = math.ceil(len(batch) / self.options.cells_per_chunk)
        size = math.ceil(len(batch) / chunks)  # all chunks about as full
        limit = self.options.memory_gb * 2**30
        return compile_chunk(program, batch[0].inputs, size, limit, self.devices)

    def _run_batch(self, chunked: Chunked, batch: list[_Prepared]) -> None:
        by_cell = {prepared.cell.id: prepared for prepared in batch}
        cells = [prepared.cell for prepared in batch]
        while claimed := self.store.claim(cells, self.tried, chunked.size):
            chunk = [by_cell[cell.id] for cell in claimed]
            try:
                outcomes = _compute(chunked, chunk)
            except Exception:
                self._run_one_by_one(chunked, chunk)
            else:
                self._store(outcomes)

    def _run_one_by_one(self, chunked: Chunked, chunk: list[_Prepared]) -> None:
        """Finds which cells of a chunk make it fail."""
        for prepared in chunk:
            try:
                outcomes = _compute(chunked, [prepared])
            except Exception:
                outcomes = [_failure(prepared.cell)]
            self._store(outcomes)

    def _fail(self, cells: list[Cell]) -> None:
        """Records the exception being handled for all of these cells that are free."""
        self._store([_failure(cell) for cell in self.store.claim(cells, self.tried)])

    def _store(self, outcomes: list[Outcome]) -> None:
        self.store.finish(outcomes, config_hash(self.experiment))
        self.progress.advance(len(outcomes), sum(o.status == "failed" for o in outcomes))


def _groups(experiment: Experiment, cells: list[Cell]) -> list[tuple[Settings, list[Cell]]]:
    groups: dict[tuple, list[Cell]] = {}
    for cell in cells:
        key = tuple(static_settings(experiment, cell.settings).items())
        groups.setdefault(key, []).append(cell)
    return [(dict(key), group) for key, group in groups.items()]


def _numbers(settings: Settings) -> dict[str, float]:
    return {name: value for name, value in settings.items() if not isinstance(value, str)}


def _compute(chunked: Chunked, chunk: list[_Prepared]) -> list[Outcome]:
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


def _failure(cell: Cell) -> Outcome:
    return Outcome(cell, "failed", None, traceback.format_exc(), None)
