"""Runs the benchmarks and prints a table: ``python -m experiments.benchmarks [names] [--require-gpu]``."""

import argparse
import platform
from importlib import import_module, metadata

import jax
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.timing import Row

SUITES = (
    "accounting",
    "steps",
    "sweep",
    "memory",
    "concentration",
    "accelerated_erm",
    "resque",
    "resque_erm",
    "fits",
    "sampling",
    "langevin",
    "effective_samples",
    "element_steps",
    "element_network",
    "store",
    "cluster_overhead",
)


def _cost(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.3g} {unit}"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1.0:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def _table(title: str, rows: list[Row]) -> Table:
    table = Table("work", "ours", "cost", "peer", "cost", "ratio", "target", "note", title=title)
    for row in rows:
        target = "" if row.target is None else f"{row.target:g}"
        missed = row.target is not None and row.ratio < row.target
        ratio = f"{row.ratio:,.2f}" if row.ratio < 100 else f"{row.ratio:,.0f}"
        table.add_row(
            row.work,
            row.ours,
            _cost(row.our_cost, row.unit),
            row.peer,
            _cost(row.peer_cost, row.unit),
            f"[red]{ratio}[/]" if missed else ratio,
            target,
            row.note,
        )
    return table


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", default=SUITES, help=f"any of {', '.join(SUITES)}")
    parser.add_argument("--require-gpu", action="store_true", help="fail unless JAX sees a GPU")
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - set(SUITES)
    if unknown:
        parser.error(f"unknown suite {', '.join(sorted(unknown))}; choose from {', '.join(SUITES)}")
    device = jax.devices()[0]
    if arguments.require_gpu and device.platform != "gpu":
        parser.error(f"--require-gpu: JAX runs on {device.platform}")
    console = Console(width=180)
    console.print(
        f"{device.device_kind}, {platform.machine()}, Python {platform.python_version()}, "
        + ", ".join(
            f"{name} {metadata.version(name)}" for name in ("jax", "optax", "dp-accounting")
        )
    )
    for suite in arguments.suites:
        module = import_module(f"experiments.benchmarks.{suite}")
        console.print(_table(suite, module.rows()))


if __name__ == "__main__":
    main()
