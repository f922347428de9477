"""What a run adds to its chunks, in this process and on a Ray cluster of three nodes on this machine.

What it computes: cells that sleep a quarter of a second, in chunks of four: a chunk takes one second
whatever else the machine does. In the second half of the run, the wall time that each worker needs for a
chunk beyond that second: claims, storing, messages, the derivation of keys.

Source: none.

Formal guarantee: none; the workers' start and compilation are not in it.

Cost: two minutes; starts a cluster and ends it.

Example:
    python -m experiments.benchmarks cluster_overhead
"""

import dataclasses
import os
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from dpsco_jax import sweeps
from dpsco_jax.sweeps.executors import Executor
from experiments.benchmarks.timing import Row

CELL_SECONDS, CELLS_PER_CHUNK = 0.25, 4
CHUNK_SECONDS = CELL_SECONDS * CELLS_PER_CHUNK
NODES = 3


@dataclasses.dataclass(frozen=True)
class Sleeping:
    """Cells that sleep."""

    name: ClassVar[str] = "sleeping"
    version: ClassVar[int] = 1
    seeds: int = sweeps.axis("seed", 1)

    def cells(self) -> list[dict[str, sweeps.Setting]]:
        return sweeps.product(self)

    def build(self, static: sweeps.Settings) -> sweeps.Program:
        def sleep(draw: Any) -> Any:
            time.sleep(CELL_SECONDS)
            return draw

        def run(shared: Any, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            draw = jax.random.normal(key)
            shape = jax.ShapeDtypeStruct((), jnp.float32)
            return {"draw": jax.pure_callback(sleep, shape, draw, vmap_method="sequential")}

        return sweeps.Program(run)

    def report(self, frame: Any, folder: Path) -> None:
        """Nothing is reported."""


class _Times:
    """A listener that notes when chunks were stored."""

    def __init__(self) -> None:
        self.stored: list[float] = []

    def start(self, total: int, done: int) -> None:
        """Nothing is noted."""

    def phase(self, text: str) -> None:
        """Nothing is noted."""

    def advance(self, cells: int, failed: int = 0) -> None:
        """The time is noted."""
        if failed or cells != CELLS_PER_CHUNK:
            raise RuntimeError(f"a chunk of {cells} cells, {failed} of them failed")
        self.stored.append(time.perf_counter())


def seconds_beyond_a_chunk(executor: Executor | None, workers: int, chunks: int = 24) -> float:
    """Wall seconds for each chunk and worker beyond the second that the chunk sleeps.

    Args:
        executor: where the cells run; in this process by default.
        workers: how many it has.
        chunks: for each worker.
    """
    times = _Times()
    experiment = Sleeping(seeds=CELLS_PER_CHUNK * chunks * workers)
    options = sweeps.Options(cells_per_chunk=CELLS_PER_CHUNK)
    with tempfile.TemporaryDirectory() as folder, sweeps.Store(Path(folder)) as store:
        sweeps.run(experiment, store, options, times, executor=executor)
    # From the middle, when all workers have long begun, to the last round, when one may have nothing left.
    stored = times.stored[len(times.stored) // 2 : 1 - workers or None]
    each = (stored[-1] - stored[0]) / (len(stored) - 1) * workers
    return each - CHUNK_SECONDS


def rows() -> list[Row]:
    """This process, one node, three nodes: the time of a chunk against that of its sleep."""
    root = str(Path(__file__).parents[2])
    os.environ |= {"PYTHONPATH": root, "RAY_USAGE_STATS_ENABLED": "0", "JAX_PLATFORMS": "cpu"}
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # all on the loopback interface
    from ray.cluster_utils import (
        Cluster,
    )  # an extra, which reads the environment when it is imported

    node: dict[str, Any] = {
        "num_cpus": 1,
        "object_store_memory": 80_000_000,
        "node_ip_address": "127.0.0.1",
    }
    found = [("this process", seconds_beyond_a_chunk(None, 1))]
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(**node)
        cluster.wait_for_nodes()
        for workers in (1, NODES):
            place = sweeps.Ray(cluster.address, workers=workers)
            found.append((f"Ray, {workers} workers", seconds_beyond_a_chunk(place, workers)))
    finally:
        cluster.shutdown()
    work = f"chunks of {CHUNK_SECONDS:g} s of sleep"
    return [
        Row(
            work,
            name,
            CHUNK_SECONDS + more,
            "sleep",
            CHUNK_SECONDS,
            1 / 1.05,
            f"{100 * more / CHUNK_SECONDS:.2f} % beyond the sleep",
        )
        for name, more in found
    ]
