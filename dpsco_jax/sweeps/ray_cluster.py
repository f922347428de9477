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
import re
import socket

from dpsco_jax._checks import require, require_count, require_real, require_whole
from dpsco_jax._extra import needs
from dpsco_jax.sweeps._ray_crew import Place, RayCrew
from dpsco_jax.sweeps.cells import needs_x64
from dpsco_jax.sweeps.executors import Crew, NoWorkersError
from dpsco_jax.sweeps.experiment import Experiment

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

    Raises:
        ValueError: if an argument is out of its range.
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
            ValueError: if ``experiment`` is none, or ``memory_gb`` not positive.
            ModuleNotFoundError: if Ray is not installed.
            NoWorkersError: if there is no cluster at the address, or this process is connected to another;
                if no worker starts, or the first has other versions or other code than the driver.
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
        place = Place(self.cpus, self.gpus, self.workers, self.patience)
        crew = RayCrew(place, ray, experiment, memory_gb, connected)
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
