"""Sweeps on a Ray cluster: one worker for each place that it has; the store stays with the driver.

    with sweeps.Store("results/mine") as store:
        sweeps.run(Mine(), store, executor=sweeps.Ray("auto"))

The driver, the process that calls ``run``, claims, stores and reports; workers compute chunks. A worker that
dies, with its machine or alone, loses the chunk at work, which goes to another; one that can be had again is
taken. If the driver dies its workers end, and the same call goes on with what is not stored.

All workers must have the driver's Python, its versions of the packages that shape results, the same code of
this package and of the modules beside the experiment, the same ``XLA_FLAGS``, and devices of one kind: what
the store says of a run holds for each of its cells. The driver's settings of JAX that shape results are
carried over. CPUs count as one kind, whatever their model.

Guarantee: results are those of a run in one process, bit for bit if the devices are equal: of the same model
and as many for each worker. A worker has one CPU device for each of its CPUs.

Cost: seconds until workers are there, their own preparation and compilation, and a few milliseconds for
each chunk.
"""

import logging
import os
import pickle
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from dpsco_jax._checks import require, require_count, require_real, require_whole
from dpsco_jax._extra import needs
from dpsco_jax.sweeps import _code
from dpsco_jax.sweeps._work import Bench, Fit, Survey
from dpsco_jax.sweeps.cells import Cell, Settings, needs_x64
from dpsco_jax.sweeps.executors import Crew, NoWorkersError, Worker, WorkerLostError
from dpsco_jax.sweeps.experiment import Experiment
from dpsco_jax.sweeps.store import Outcome
from dpsco_jax.sweeps.versions import settings, versions

_SECONDS_TO_ANSWER = 10.0
_NEAREST = ("auto", "local")
_PLACE = re.compile(r"\[?([^/\[\]]+)\]?:([0-9]{1,5})")


class Ray:
    """A Ray cluster as the place where cells are computed.

    Args:
        address: of the cluster, as in ``ray.init``. By default that of ``RAY_ADDRESS``, or the cluster that
            runs on this machine, or one that is started here for the run.
        cpus_per_worker: CPUs of each worker, its devices where there is no GPU.
        gpus_per_worker: GPUs of each worker.
        workers: how many; by default as many as the cluster has places for when the run begins.
        patience: seconds without a single worker after which the run is given up.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus_per_worker: int = 1,
        gpus_per_worker: int = 0,
        workers: int | None = None,
        patience: float = 120.0,
    ):
        named = address is None or (isinstance(address, str) and bool(address))
        require(named, "address", address, "a text that is not empty")
        self.address = address
        self.cpus = require_count("cpus_per_worker", cpus_per_worker)
        require_whole("gpus_per_worker", gpus_per_worker, 0)
        self.gpus = int(gpus_per_worker)
        self.workers = None if workers is None else require_count("workers", workers)
        self.patience = require_real("patience", patience, 0.0)

    def start(self, experiment: Experiment, memory_gb: float) -> Crew:
        """Connects to the cluster and waits for the first worker.

        Raises:
            ModuleNotFoundError: Ray is not installed.
            NoWorkersError: there is no cluster at the address, or this process is connected to another; no
                worker starts, or the first has other versions or other code than the driver.
        """
        needs_x64(experiment)
        memory_gb = require_real("memory_gb", memory_gb, 0.0)
        with needs("cluster"):
            import ray
        connected = not ray.is_initialized()
        if connected:
            try:
                _require_listener(self.address or os.environ.get("RAY_ADDRESS", ""))
                ray.init(self.address, log_to_driver=False, logging_level=logging.WARNING)
            except (ConnectionError, OSError, RuntimeError, ValueError) as error:
                if ray.is_initialized():
                    ray.shutdown()
                where = "that can be found" if self.address is None else f"at {self.address}"
                raise NoWorkersError(f"there is no cluster {where}: {error}") from error
        elif self.address is not None and self.address not in _NEAREST:
            there = ray.get_runtime_context().gcs_address
            if there != self.address:
                raise NoWorkersError(
                    f"this process is connected to the cluster at {there}, not to {self.address}: "
                    "call ray.shutdown() first"
                )
        place = _Place(self.cpus, self.gpus, self.workers, self.patience)
        crew = _RayCrew(place, ray, experiment, memory_gb, connected)
        try:
            crew.begin()
        except BaseException:
            crew.close()
            raise
        return crew


def _require_listener(address: str) -> None:
    """Raises ``OSError`` where nobody listens at the port of an address: Ray would try for minutes."""
    place = _PLACE.fullmatch(address)
    if place is not None:
        socket.create_connection((place[1], int(place[2])), _SECONDS_TO_ANSWER).close()


_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_TO_END = 10.0


class _Place(NamedTuple):
    """What a worker is to have, and how many there are to be.

    Attributes:
        cpus: of each worker.
        gpus: of each worker.
        workers: how many; ``None`` for as many as there is room for.
        patience: seconds without a single worker after which the run is given up.
    """

    cpus: int
    gpus: int
    workers: int | None
    patience: float


class _RayCrew:
    """The actors of one run.

    Threads may wait for Ray while the run ends, and Ray ends a process that asks it for anything after its
    shutdown: whoever calls Ray is counted in, and ``close`` waits until all are out.
    """

    def __init__(
        self, place: _Place, ray: Any, experiment: Experiment, memory_gb: float, connected: bool
    ):
        self._place, self._ray, self._connected = place, ray, connected
        self._beside = _code.beside(type(experiment))
        self._work = ray.put((sys.path, [*self._beside], _pickled(ray, experiment, memory_gb)))
        self._actor = ray.remote(num_cpus=place.cpus, num_gpus=place.gpus)(_Remote)
        self._lock = threading.Condition()
        self._inside, self._closed = 0, False
        self._living: set[Any] = set()
        self._spare: list[_RayWorker] = []
        self._alone_since, self._last_loss = time.monotonic(), ""
        self.size, self._kind, self.device = 1, "", ""

    def begin(self) -> None:
        first = self.worker(lambda: True)
        assert first is not None
        self._spare.append(first)
        self.size = self._place.workers or self._places()
        self.device = f"{self._kind}, {self.size} workers" if self.size > 1 else self._kind

    def worker(self, wanted: Callable[[], bool]) -> "_RayWorker | None":
        with self._lock:
            if self._spare:
                return self._spare.pop()
        while wanted() and not self._closed:
            with self._counted_in():
                found = self._begun(wanted)
            if found is not None:
                return found
        return None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            living, self._living = self._living, set()
        for actor in living:
            self._ray.kill(actor)
        with self._lock:
            self._lock.wait_for(lambda: self._inside == 0, _SECONDS_TO_END)
        if self._connected:
            self._ray.shutdown()

    def call(self, actor: Any, name: str, *arguments: Any) -> Any:
        """A call of a worker, waited for."""
        with self._counted_in():
            try:
                return self._ray.get(getattr(actor, name).remote(*arguments))
            except self._ray.exceptions.RayTaskError as error:
                raise RuntimeError(f"a worker has failed: {error}") from error
            except self._ray.exceptions.RayError as error:
                self._dismiss(actor, error)
                raise WorkerLostError(str(error)) from error

    def _begun(self, wanted: Callable[[], bool]) -> "_RayWorker | None":
        """A new worker, waited for; ``None`` if it was lost before it began, or is not wanted any more."""
        actor = self._actor.remote()
        ready = actor.begin.remote(self._place.cpus, settings(), self._work)
        while not self._ray.wait([ready], timeout=_SECONDS_BETWEEN_LOOKS)[0]:
            if self._closed or not wanted():
                self._ray.kill(actor)
                return None
            self._give_up_if_alone()
        try:
            kind, found = self._ray.get(ready)
        except self._ray.exceptions.RayTaskError as error:
            why = str(error).strip().splitlines()[-1]
            raise NoWorkersError(f"a worker could not begin: {why}") from error
        except self._ray.exceptions.RayError as error:
            self._last_loss = str(error)
            self._give_up_if_alone()
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            return None
        self._admit(actor, kind, found)
        return _RayWorker(self, actor)

    @contextmanager
    def _counted_in(self) -> Iterator[None]:
        """Around whatever calls Ray."""
        with self._lock:
            if self._closed:
                raise WorkerLostError("the run has ended")
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                self._lock.notify_all()

    def _admit(self, actor: Any, kind: str, found: dict[str, str]) -> None:
        own = _comparable(versions()) | _labelled(self._beside)
        with self._lock:
            self._kind = self._kind or kind
            if found != own:
                differ = [name for name in own if found.get(name) != own[name]]
                texts = ", ".join(f"{n} {own[n]} here and {found.get(n)} there" for n in differ)
                raise NoWorkersError(f"workers must have what the driver has, got {texts}")
            if kind != self._kind:
                raise NoWorkersError(
                    f"workers must have devices of one kind, got {self._kind} and {kind}"
                )
            self._living.add(actor)

    def _dismiss(self, actor: Any, error: Exception) -> None:
        with self._lock:
            self._living.discard(actor)
            self._alone_since, self._last_loss = time.monotonic(), str(error)
        self._ray.kill(actor)

    def _give_up_if_alone(self) -> None:
        with self._lock:
            waited = time.monotonic() - self._alone_since
            if not self._living and waited > self._place.patience:
                why = f"; the last was lost: {self._last_loss}" if self._last_loss else ""
                raise NoWorkersError(
                    f"the cluster has had no worker with {self._place.cpus} CPUs and "
                    f"{self._place.gpus} GPUs for {waited:.0f} s{why}"
                )

    def _places(self) -> int:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return max(1, sum(_places_of(node, self._place.cpus, self._place.gpus) for node in nodes))


class _RayWorker:
    """An actor, as the schedule sees it."""

    def __init__(self, crew: _RayCrew, actor: Any):
        self._crew, self._actor = crew, actor

    def survey(self, static: Settings, cells: Sequence[Cell]) -> Survey:
        survey: Survey = self._crew.call(self._actor, "survey", static, cells)
        return survey

    def fit(self, static: Settings, cell: Cell, size: int) -> Fit:
        fit: Fit = self._crew.call(self._actor, "fit", static, cell, size)
        return fit

    def compute(self, static: Settings, cells: Sequence[Cell], size: int) -> list[Outcome] | None:
        outcomes: list[Outcome] | None = self._crew.call(
            self._actor, "compute", static, cells, size
        )
        return outcomes


class _Remote:
    """What an actor runs: a bench, made when the worker begins."""

    def begin(
        self, cpus: int, of_driver: dict[str, Any], work: tuple[list[str], list[str], bytes]
    ) -> tuple[str, dict[str, str]]:
        jax.config.update("jax_num_cpu_devices", cpus)
        for name, value in of_driver.items():
            jax.config.update(name, value)
        paths, names, pickled = work
        sys.path += [
            path for path in paths if path not in sys.path
        ]  # for what lies beside the file
        self._bench: Worker = Bench(*pickle.loads(pickled))
        found = _comparable(versions()) | _labelled(_code.named(names))
        return self._bench.device, found

    def survey(self, static: Settings, cells: Sequence[Cell]) -> Survey:
        return self._bench.survey(static, cells)

    def fit(self, static: Settings, cell: Cell, size: int) -> Fit:
        return self._bench.fit(static, cell, size)

    def compute(self, static: Settings, cells: Sequence[Cell], size: int) -> list[Outcome] | None:
        return self._bench.compute(static, cells, size)


def _places_of(node: Mapping[str, float], cpus: int, gpus: int) -> int:
    """How many workers a node has room for, none of which may lie on two."""
    places = node.get("CPU", 0.0) // cpus
    return int(min(places, node.get("GPU", 0.0) // gpus) if gpus else places)


def _comparable(found: dict[str, str]) -> dict[str, str]:
    """Versions without the machine's own name for itself."""
    return {name: text for name, text in found.items() if name != "platform"}


def _labelled(hashes: Mapping[str, str]) -> dict[str, str]:
    """Hashes of modules as they stand among versions."""
    return {f"code of {name}": text for name, text in hashes.items()}


def _pickled(ray: Any, experiment: Experiment, memory_gb: float) -> bytes:
    """What a bench is made of; the class too, if it comes from a file that workers do not import."""
    module = sys.modules.get(type(experiment).__module__)
    if module is not None and module.__name__.startswith("dpsco_sweep_"):
        ray.cloudpickle.register_pickle_by_value(module)
    pickled: bytes = ray.cloudpickle.dumps((experiment, memory_gb))
    return pickled
