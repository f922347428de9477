"""The sweep engine: runs what is missing of an experiment, and stores it as it goes.

The pending cells are grouped by their static settings, the experiment builds one program for each
group, and each group runs in chunks: claim, compute, store. Who does what is ``_schedule``, how it is done
``_work``, where ``executors``: in this process, or by the workers of a cluster. Whatever goes wrong with some
cells (a refused plan, a program that does not compile, a chunk that runs out of memory) is stored with its
traceback, and the others go on. A failed cell has no result, so the next run tries it again.

Guarantee: every cell is computed and stored once, whether runs are killed, interrupted, or share
the work (see ``store``). A result with a NaN or an infinity is a result, stored as ``nonfinite``. In
which precision cells run is the experiment's own: in float64 if it declares ``x64``, whatever the
process has switched on; else in float32, and where ``jax_enable_x64`` is on it is refused.

Cost: beside the programs themselves, a few milliseconds for each chunk.
"""

import dataclasses
import warnings
from collections import Counter
from collections.abc import Container, Sequence
from typing import NamedTuple

import jax

from dpsco_jax._checks import (
    require,
    require_count,
    require_flag,
    require_instance,
    require_instances,
    require_real,
)
from dpsco_jax.sweeps import _code
from dpsco_jax.sweeps._schedule import Listener, Schedule
from dpsco_jax.sweeps.cells import (
    Cell,
    Settings,
    axes,
    cells_of,
    config_hash,
    constants,
    needs_x64,
    static_settings,
)
from dpsco_jax.sweeps.executors import Executor, Here
from dpsco_jax.sweeps.experiment import CODE, Experiment, check_names
from dpsco_jax.sweeps.shares import Share
from dpsco_jax.sweeps.store import Store
from dpsco_jax.sweeps.versions import versions


@dataclasses.dataclass(frozen=True)
class Options:
    """How to run, which has no part in the results.

    Attributes:
        cells_per_chunk: how many cells run, and are stored, together. More are faster on a GPU;
            fewer lose less when a run is killed.
        memory_gb: GiB that a chunk may hold on each device. A chunk that needs more is made smaller.
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
    *,
    executor: Executor | None = None,
    share: Share | None = None,
    known: Store | None = None,
    rerun_changed: bool = False,
) -> Tally:
    """Computes and stores the cells of an experiment that have no result yet.

    ``KeyboardInterrupt`` passes through: what was stored stays, the chunk at work is lost.

    Args:
        experiment: an instance of the experiment, its fields the configuration.
        store: where finished cells are, open.
        options: how to run; ``Options()`` by default.
        progress: a listener, such as a ``progress.Progress``; none by default.
        executor: where cells are computed, such as a ``ray_cluster.Ray``; in this process by default.
        share: which part of the cells counts as the experiment's; all by default.
        known: another store of the experiment, which is only read. Cells that have a result there do not
            count either.
        rerun_changed: whether cells are computed again whose results in ``store`` are by another code of the
            experiment (its file, or one beside it that it imports). Their old results are dropped at once.
            Results of runs that noted no code stay.

    Returns:
        How the cells of the experiment stand now, those of earlier runs included.

    Warns:
        UserWarning: results of several codes of the experiment stand beside each other.

    Raises:
        ValueError: before anything is computed or stored, if the experiment has no cells, the same cell
            twice, or a value that its axis does not know; or if ``jax_enable_x64`` is on and the experiment
            does not declare ``x64``.
        NoWorkersError: the executor has no workers, or none that the run can use.
    """
    require_instance("store", store, Store)
    options = Options() if options is None else options
    require_instance("options", options, Options)
    progress = Silence() if progress is None else progress
    told = all(hasattr(progress, name) for name in ("start", "phase", "advance"))
    require(told, "progress", progress, "a listener: start, phase, advance")
    cells = cells_of(experiment)
    check_names({name for cell in cells for name in cell.settings}, ())
    if share is not None:
        require_instance("share", share, Share)
        cells = [cell for cell in cells if share.has(cell)]
    if known is not None:
        require_instance("known", known, Store)
        missing = known.pending(cells)
        cells = [cell for cell in cells if cell.id in missing]
    executor = Here() if executor is None else executor
    require(hasattr(executor, "start"), "executor", executor, "an executor: start")
    wide = needs_x64(experiment)
    if jax.dtypes.canonicalize_dtype(float) == "float64" and not wide:
        raise ValueError(
            "jax_enable_x64 must be False for an experiment that does not declare x64: ClassVar[bool] = "
            f"True, as {experiment.name}, got True: its cells would be of two precisions"
        )
    require_flag("rerun_changed", rerun_changed)
    code = _code.own(type(experiment))
    if rerun_changed:
        store.reopen(_code.changed(store.codes(cells), code))
    tried = store.pending(cells)
    progress.start(total=len(cells), done=len(cells) - len(tried))
    if tried:
        config = {
            "name": experiment.name,
            "version": experiment.version,
            "axes": axes(experiment),
            "constants": constants(experiment),
            "x64": wide,
        }
        groups = _groups(experiment, cells, tried)
        crew = executor.start(experiment, options.memory_gb)
        try:
            noted = {} if code is None else {CODE: code}
            store.open_run(config, versions() | noted, crew.device)
            schedule = Schedule(
                store, config_hash(experiment), tried, groups, options.cells_per_chunk, progress
            )
            schedule.run(crew)
        finally:
            crew.close()
    found = tally(store, cells)
    if changed := _code.changed(store.codes(cells), code):
        warnings.warn(
            f"{len(changed)} of {found.done} results of {experiment.name} are by another code: its file, "
            "or one beside it that it imports, has changed since. If that matters, compute them again with "
            "rerun_changed=True (--rerun-changed), or raise the version of the experiment",
            UserWarning,
            stacklevel=2,
        )
    return found


def tally(store: Store, cells: Sequence[Cell]) -> Tally:
    """Counts what is stored of these cells."""
    require_instance("store", store, Store)
    require_instances("cells", cells, Cell)
    states = store.statuses(cells)
    failed, nonfinite = states.count("failed"), states.count("nonfinite")
    return Tally(len(states) - failed, nonfinite, failed, len(cells) - len(states))


def _groups(
    experiment: Experiment, cells: list[Cell], wanted: Container[str]
) -> list[tuple[Settings, list[Cell], int]]:
    """Static settings, the wanted cells that have them, and how many cells have them at all."""
    groups: dict[tuple, list[Cell]] = {}
    counts = Counter[tuple]()
    for cell in cells:
        key = tuple(static_settings(experiment, cell.settings).items())
        counts[key] += 1
        if cell.id in wanted:
            groups.setdefault(key, []).append(cell)
    return [(dict(key), group, counts[key]) for key, group in groups.items()]
