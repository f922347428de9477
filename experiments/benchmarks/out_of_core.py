"""Users on disk: memory and time of a pass over all of them, and of a Poisson step, against their number.

A process of its own for each number of users, so that its peak is its own. Times are over those of reading
the same file through, with nothing done to it; both find it in the page cache where that holds it.

    python -m experiments.benchmarks.out_of_core --users 100000 1000000 10000000 --dim 100
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import Budget, Problem
from dpsco_jax.oracles import streamed, user_gradients
from dpsco_jax.problems import StoredUsers, losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.solvers import out_of_core
from dpsco_jax.solvers.user_level import sgd
from experiments.benchmarks.timing import Row

BLOCK = 8192
BATCH, STEPS = 10_000, 5


def write(folder: Path, users: int, dim: int) -> None:
    """Logistic data of one item a user: one million different rows at most, over and over."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((min(users, 100_000), 1, dim), np.float32)
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    labels = np.sign(rows[..., 0])
    for name, some in (("x", rows), ("y", labels)):
        with open(folder / f"{name}.npy", "wb") as file:
            head = {"descr": "<f4", "fortran_order": False, "shape": (users, *some.shape[1:])}
            np.lib.format.write_array_header_1_0(file, head)
            for first in range(0, users, len(some)):
                file.write(np.ascontiguousarray(some[: users - first]).tobytes())


def anonymous() -> float:
    """MB of memory that this process holds itself, without pages of files."""
    with open("/proc/self/status") as status:
        found = next(line for line in status if line.startswith("RssAnon"))
    return int(found.split()[1]) / 1024


class Peak:
    """The largest ``anonymous`` while a block of code runs, asked every 5 milliseconds."""

    def __enter__(self) -> "Peak":
        self.most, self._done = anonymous(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.most = max(self.most, anonymous())

    def __exit__(self, *error: Any) -> None:
        self._done.set()
        self._thread.join()
        self.most = max(self.most, anonymous())


def read_through(folder: Path) -> float:
    """Seconds of reading the features in blocks, with nothing done to them."""
    buffer = memoryview(bytearray(BLOCK * 400))
    began = time.perf_counter()
    with open(folder / "x.npy", "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - began


def measured(folder: Path) -> dict[str, float]:
    """Memory and times of this process."""
    data = StoredUsers(Example(str(folder / "x.npy"), str(folder / "y.npy")), block_users=BLOCK)
    users, dim = data.num_users, data.items.features.shape[2]
    objective, start = losses.logistic(1.0), jnp.zeros(dim)
    problem = Problem(objective, num_users=users, dim=dim, items_per_user=1, distance=5.0)
    oracle: Any
    oracle, rows = user_gradients.clipped_sum_oracle(objective, data, start, 1.0, None, 64)
    sums = streamed.Sums(oracle, rows)
    few = StoredUsers(jax.tree.map(lambda x: np.zeros((BLOCK, *x.shape[1:]), x.dtype), data.items))
    first: Any
    first, own = user_gradients.clipped_sum_oracle(objective, few, start, 1.0, None, 64)
    streamed.Sums(first, own).estimate(jax.random.key(0), start)
    before = anonymous()
    found: dict[str, float] = {}
    with Peak() as peak:
        sums.estimate(jax.random.key(0), start)
        reads, passes, work = [], [], []
        for _ in range(3):
            reads.append(read_through(folder))
            began, cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(sums.estimate(jax.random.key(0), start))
            passes.append(time.perf_counter() - began)
            work.append(time.process_time() - cpu)
    found |= {"before MB": before, "pass peak MB": peak.most}
    found |= {"read s": min(reads), "pass s": min(passes), "pass CPU s": min(work)}
    plan = sgd.plan(problem, Budget(1.0, 1e-6), num_steps=STEPS, accountant="rdp", batch_size=BATCH)
    stamps: list[float] = []
    with Peak() as peak:
        out_of_core.solve(
            *(sgd, jax.random.key(1), plan, objective, data, start),
            progress=lambda step, steps: stamps.append(time.perf_counter()),
        )
    found |= {"Poisson peak MB": peak.most, "Poisson step s": float(np.mean(np.diff(stamps)))}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found | {"maxrss MB": most, "data MB": users * dim * 4 / 2**20}


def run(users: int, dim: int, folder: str | None = None) -> dict[str, float]:
    """Of a process of its own; the files are written first and removed afterwards."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        write(Path(made), users, dim)
        command = [sys.executable, "-m", "experiments.benchmarks.out_of_core", "--measure", made]
        ended = subprocess.run(command, check=True, capture_output=True, text=True)
        found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
        return found


def rows(small: bool = False) -> list[Row]:
    """Peak of what the process holds with a hundred times as many users."""
    few, many = (
        run(users, 100) for users in ((10_000, 20_000) if small else (100_000, 10_000_000))
    )
    return [
        Row(
            "memory of a pass over users on disk, dim 100",
            "most users",
            many["pass peak MB"],
            "a hundredth of them",
            few["pass peak MB"],
            0.8,
            f"the data are {many['data MB']:.0f} MB; a pass takes {many['pass s']:.3g} s, "
            f"{many['pass s'] / many['read s']:.2g} times as long as reading the file",
            unit="MB",
        )
    ]


def main() -> None:
    """Prints a line for each number of users."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--users", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    words.add_argument("--dim", type=int, default=100)
    words.add_argument("--folder", help="where the files are written, and removed")
    words.add_argument("--measure", help="the folder of files that are there; prints JSON")
    given = words.parse_args()
    if given.measure:
        print(json.dumps(measured(Path(given.measure))))
        return
    for users in given.users:
        found = run(users, given.dim, given.folder)
        print(
            users, *(f"{name} {value:.4g}" for name, value in found.items()), sep=", ", flush=True
        )


if __name__ == "__main__":
    main()
