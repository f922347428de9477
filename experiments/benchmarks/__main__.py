"""Runs the benchmarks and prints a table of each suite as it ends: ``python -m experiments.benchmarks``.

A suite that fails is reported, the others go on, and the exit status is 1; with ``--check`` it is 1 as well
if a ratio is below its target.
"""

import argparse
import contextlib
import inspect
import math
import platform
import sys
import time
import traceback
from collections.abc import Iterable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from experiments.benchmarks import tables
from experiments.benchmarks.timing import Row

SUITES = (
    "accounting",
    "steps",
    "ghost_steps",
    "clipping",
    "draws",
    "sweep",
    "memory",
    "out_of_core",
    "concentration",
    "accelerated_erm",
    "resque",
    "resque_erm",
    "fits",
    "sampling",
    "langevin",
    "effective_samples",
    "heavy_online",
    "element_steps",
    "element_network",
    "plan_times",
    "store",
    "cluster_overhead",
    "predicted_seconds",
    "growth",
    "nonconvex",
)
# Those that say something of a GPU, the quickest first. The others count compilations, processor seconds or
# the memory of a program, which the CPU tells as well, or need float64.
GPU_SUITES = ("clipping", "draws", "concentration", "resque", "sweep", "accounting", "ghost_steps")
PACKAGES = ("jax", "jaxlib", "optax", "dp-accounting", "jax-privacy")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = (
        f"any of {', '.join(SUITES)}; all of them, or with --require-gpu {', '.join(GPU_SUITES)}"
    )
    parser.add_argument("suites", nargs="*", help=names)
    parser.add_argument("--suites", dest="listed", metavar="A,B", help="the same, with commas")
    parser.add_argument(
        "--opacus",
        metavar="PYTHON",
        help="an interpreter that has torch and opacus, to compare with",
    )
    parser.add_argument("--require-gpu", action="store_true", help="fail unless JAX sees a GPU")
    parser.add_argument(
        "--small", action="store_true", help="tiny sizes, which only show that it runs"
    )
    parser.add_argument(
        "--output",
        type=Path,
        action="append",
        default=[],
        help="file for the figures, several if given again: JSON if it ends so, else Markdown",
    )
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="nothing is begun after so many seconds"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="fail if a ratio is below its target, as CI of a release",
    )
    found = parser.parse_args()
    if found.listed:
        found.suites = [*found.suites, *found.listed.split(",")]
    unknown = sorted(set(found.suites) - set(SUITES))
    if unknown:
        parser.error(f"unknown suite {', '.join(unknown)}; choose from {', '.join(SUITES)}")
    platform_here = jax.devices()[0].platform
    if found.require_gpu and platform_here != "gpu":
        parser.error(f"--require-gpu: JAX runs on {platform_here}")
    if not found.suites:
        found.suites = GPU_SUITES if found.require_gpu or found.small else SUITES
    return found


def _rows(suite: str, small: bool, opacus: str | None) -> Iterable[Row]:
    rows = import_module(f"experiments.benchmarks.{suite}").rows
    known = inspect.signature(rows).parameters
    given: dict[str, Any] = {}
    if small and "small" not in known:
        raise ValueError(f"--small: {suite} has one size")
    if small:
        given["small"] = True
    if opacus is not None and "opacus" in known:
        given["opacus"] = opacus
    return rows(**given)


def _about() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "device": jax.devices()[0].device_kind,
        "machine": platform.machine(),
        "Python": platform.python_version(),
        **versions,
    }


def main() -> int:
    """Command line entry."""
    arguments, about, console = _arguments(), _about(), Console(width=180)
    console.print(", ".join(f"{name} {value}" for name, value in about.items()))
    found: dict[str, list[Row]] = {}
    failed: dict[str, str] = {}
    start = time.perf_counter()

    def keep() -> None:
        for path in arguments.output:
            tables.write(path, about, found, failed)

    for suite in arguments.suites:
        before, rows = time.perf_counter(), found.setdefault(suite, [])
        try:
            if before - start > arguments.seconds:
                raise TimeoutError(f"{arguments.seconds:g} s were over before it began")
            for row in _rows(suite, arguments.small, arguments.opacus):
                rows.append(row)
                keep()
                if time.perf_counter() - start > arguments.seconds:
                    raise TimeoutError(f"{arguments.seconds:g} s were over, rows may be missing")
        except Exception as error:  # whatever it is, the other suites do not depend on it
            failed[suite] = f"{type(error).__name__}: {error}"
            if not isinstance(error, TimeoutError):
                traceback.print_exc()
        console.print(tables.table(suite, rows))
        took = f"{suite}: {time.perf_counter() - before:.1f} s"
        console.print(f"{took}, {failed[suite]}" if suite in failed else took, markup=False)
        sys.stdout.flush()
        jax.clear_caches()
        keep()
    missed = [f"{name}: {row.work}, {row.ours}, {row.note}" for name, rows in found.items()
              for row in rows if row.missed]  # fmt: skip
    if arguments.check and missed:
        console.print("below target:", *missed, sep="\n", markup=False)
    return 1 if failed or (arguments.check and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
