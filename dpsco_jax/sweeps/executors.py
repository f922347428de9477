"""Where cells are computed: the protocol between a run and its workers, and the executor for this process.

A run hands out tasks (``_schedule``); an executor has workers that do them. ``Here`` is one worker, this
process with all its devices. ``ray_cluster.Ray`` has one for each place of a cluster. Another engine needs
two classes:

    class Mine:
        def start(self, experiment, memory_gb) -> MyCrew: ...

    class MyCrew:
        size, device = 4, "4 x my device"
        def worker(self, wanted) -> Worker | None: ...    # a Bench, or what passes its three calls on
        def close(self) -> None: ...

Guarantee: a worker stores nothing and claims nothing, so that one may die at any moment: its task is
given to another.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from dpsco_jax._checks import require_instance, require_real
from dpsco_jax.sweeps._work import Bench, Fit, Survey
from dpsco_jax.sweeps.cells import Cell, Settings, needs_x64
from dpsco_jax.sweeps.experiment import Experiment
from dpsco_jax.sweeps.store import Outcome


class WorkerLostError(Exception):
    """The worker is gone, and what it was doing with it: killed, cut off, out of memory."""


class NoWorkersError(Exception):
    """There is no place to compute cells, or none that a run can use. What was stored is kept."""


@runtime_checkable
class Worker(Protocol):
    """What does tasks, one at a time: a ``Bench``, or one somewhere else.

    Calls may raise ``WorkerLostError``.
    """

    def survey(self, static: Settings, cells: Sequence[Cell]) -> Survey:
        """As ``Bench.survey``."""

    def fit(self, static: Settings, cell: Cell, size: int) -> Fit:
        """As ``Bench.fit``."""

    def compute(self, static: Settings, cells: Sequence[Cell], size: int) -> list[Outcome] | None:
        """As ``Bench.compute``."""


@runtime_checkable
class Crew(Protocol):
    """The workers of one run.

    Attributes:
        size: how many there should be. The run has a thread for each; with one there is no thread.
        device: of the workers, all of one kind, in words that are stored.
    """

    size: int
    device: str

    def worker(self, wanted: Callable[[], bool]) -> Worker | None:
        """Waits for a worker that is at no one's service, and gives it to the caller for good.

        Asked for by each thread when it begins and whenever its worker was lost.

        Args:
            wanted: whether there is still something to do; where not, the wait ends with ``None``.
        """

    def close(self) -> None:
        """Lets the workers go, those at work too: their calls raise ``WorkerLostError``."""


@runtime_checkable
class Executor(Protocol):
    """A place where cells can be computed."""

    def start(self, experiment: Experiment, memory_gb: float) -> Crew:
        """Gets workers for an experiment, with that many GiB for a chunk on each device."""


class Here:
    """This process, with all its devices."""

    def start(self, experiment: Experiment, memory_gb: float) -> Crew:
        """One worker, at once."""
        needs_x64(experiment)
        memory_gb = require_real("memory_gb", memory_gb, 0.0)
        return _OneBench(Bench(experiment, memory_gb))


class _OneBench:
    size = 1

    def __init__(self, bench: Bench):
        require_instance("bench", bench, Bench)
        self._bench = bench
        self.device = bench.device

    def worker(self, wanted: Callable[[], bool]) -> Worker | None:
        return self._bench

    def close(self) -> None:
        pass
