"""The command line: ``python -m experiments list | run NAME [--field value ...] | report NAME``.

Results go to ``results/NAME``: the store of cells, CSV files and figures. ``run`` does what is
missing and can be stopped and started at will. Its exit status is 0 if every cell has a result, 1
if some have not, 130 if it was interrupted.

Cost: on a CPU, JAX is given one device for each core, so that the cells of a chunk use all of them.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import tyro
from tyro.conf import OmitArgPrefixes

from experiments.engine import Options, Tally, run
from experiments.experiment import Experiment
from experiments.progress import Progress
from experiments.report import output, report, show
from experiments.store import Store
from experiments.table import EXPERIMENTS


def main(
    arguments: Sequence[str] | None = None,
    experiments: Mapping[str, type[Experiment]] = EXPERIMENTS,
) -> int:
    """Runs the command line and returns the exit status.

    Args:
        arguments: by default those of the process.
        experiments: the experiments that there are, by name.
    """
    app = tyro.extras.SubcommandApp()
    runs, reports = tyro.extras.SubcommandApp(), tyro.extras.SubcommandApp()

    @app.command(name="list")
    def listing() -> int:
        """Say which experiments there are."""
        described = {name: _description(kind) for name, kind in experiments.items()}
        show("", {"experiment": [*described], "what it measures": [*described.values()]}, output())
        return 0

    for name, kind in experiments.items():
        runs.command(name=name)(_run_command(kind))
        reports.command(name=name)(_report_command(kind))
    app.command(runs, name="run")
    app.command(reports, name="report")
    status: int = app.cli(
        args=arguments, prog="python -m experiments", description=__doc__, config=(OmitArgPrefixes,)
    )
    return status


def _run_command(kind: type[Experiment]) -> Callable[..., int]:
    def command(experiment: Any, options: Options, results: Path = Path("results")) -> int:
        console = output()
        folder = results / experiment.name
        try:
            with Store(folder) as store, Progress(console, experiment.name) as progress:
                tally = run(experiment, store, options, progress)
        except KeyboardInterrupt:
            console.print("interrupted: finished cells are stored, run again to go on")
            return 130
        console.print(_verdict(tally), highlight=False)
        return 0 if tally.failed == tally.missing == 0 else 1

    return _with_config(command, kind)


def _report_command(kind: type[Experiment]) -> Callable[..., int]:
    def command(experiment: Any, results: Path = Path("results")) -> int:
        folder = results / experiment.name
        with Store(folder) as store:
            report(experiment, store, folder, output())
        return 0

    return _with_config(command, kind)


def _with_config(command: Callable[..., int], kind: type[Experiment]) -> Callable[..., int]:
    """The command as the parser should see it: the experiment's fields are its options."""
    command.__annotations__["experiment"] = kind
    command.__doc__ = _description(kind)
    return command


def _description(kind: type[Experiment]) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


def _verdict(tally: Tally) -> str:
    text = f"{tally.done} cells have a result"
    if tally.nonfinite:
        text += f" ({tally.nonfinite} not finite)"
    if tally.failed:
        text += f", {tally.failed} failed: see the report; run again to try them again"
    if tally.missing:
        text += f", {tally.missing} are being computed by another run"
    return text


def use_all_cores() -> None:
    """Gives JAX one CPU device for each core; to be called before anything is computed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jax.config.update("jax_num_cpu_devices", cores or 1)


if __name__ == "__main__":
    use_all_cores()
    sys.exit(main())
