"""The command line of sweeps: ``dpsco-sweep list | run | report``.

    dpsco-sweep list mine.py                                 which experiments a file has
    dpsco-sweep run mine.py:Mine --seeds 5                   what is missing of them; every field is an option
    dpsco-sweep report mine.py:Mine                          tables, CSV files, figures
    dpsco-sweep report mine.py:Mine --html                   and all of it as one page

Results go to ``results/NAME``: the store of cells, CSV files and figures. ``run`` does what is missing and
can be stopped and started at will. ``--help`` after an experiment lists its options.

Exit status: 0 if every cell has a result, 1 if some have not, 2 for what cannot be run, 130 if it was
interrupted.

Cost: on a CPU, JAX is given one device for each core, so that the cells of a chunk use all of them.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax

from dpsco_jax._checks import require, require_instance
from dpsco_jax._extra import needs
from dpsco_jax.sweeps.cells import cells_of
from dpsco_jax.sweeps.engine import Options, Tally, run
from dpsco_jax.sweeps.experiment import Experiment
from dpsco_jax.sweeps.load import experiments_in, load
from dpsco_jax.sweeps.progress import Progress
from dpsco_jax.sweeps.report import output, report, show
from dpsco_jax.sweeps.store import Store

with needs("sweeps"):
    import tyro
    from tyro.conf import OmitArgPrefixes

_REFUSED = 2
_Found = TypeVar("_Found")


def main(
    arguments: Sequence[str] | None = None,
    experiments: Mapping[str, type[Experiment]] | None = None,
    program: str = "dpsco-sweep",
) -> int:
    """Runs the command line and returns the exit status.

    Args:
        arguments: by default those of the process.
        experiments: experiments that are known by name, beside those in files.
        program: what help texts call the command.

    Raises:
        ValueError: if ``arguments`` is not a list of texts, ``experiments`` not a mapping, or
            ``program`` not a text.
        SystemExit: for help, with status 0, and for options that the experiment does not have, with 2.
    """
    words = sys.argv[1:] if arguments is None else arguments
    listed = isinstance(words, Sequence) and not isinstance(words, str)
    require(listed and all(isinstance(word, str) for word in words), "arguments", words, "texts")
    table = {} if experiments is None else experiments
    require_instance("experiments", table, Mapping)
    require_instance("program", program, str)
    command, *rest = words or ["--help"]
    if command == "list":
        return _refusing(lambda: _list(rest, table))
    if command in _COMMANDS and rest and not rest[0].startswith("-"):
        return _refusing(lambda: _on_experiment(command, rest, table, program))
    known = command in ("-h", "--help") or {"-h", "--help"} & {*rest}
    print(_usage(program, table), file=sys.stdout if known else sys.stderr)
    return 0 if known else _REFUSED


def use_all_cores() -> None:
    """Gives JAX one CPU device for each core; to be called before anything is computed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jax.config.update("jax_num_cpu_devices", cores or 1)


class _RefusedError(Exception):
    """What was asked for cannot be run: no fault of the program, so no traceback."""


def _refusing(step: Callable[[], int]) -> int:
    try:
        return step()
    except _RefusedError as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return _REFUSED


def _found(look: Callable[[], _Found]) -> _Found:
    try:
        return look()
    except ValueError as error:
        raise _RefusedError(str(error)) from error


def _list(files: Sequence[str], table: Mapping[str, type[Experiment]]) -> int:
    described = {name: _description(kind) for name, kind in table.items()}
    for file in files:
        found = _found(partial(experiments_in, Path(file)))
        described |= {f"{file}:{name}": _description(kind) for name, kind in found.items()}
    show("", {"experiment": [*described], "what it measures": [*described.values()]}, output())
    return 0


def _on_experiment(
    command: str, words: Sequence[str], table: Mapping[str, type[Experiment]], program: str
) -> int:
    kind = _found(lambda: load(words[0], table))
    status: int = tyro.cli(
        _COMMANDS[command](kind),
        args=words[1:],
        prog=f"{program} {command} {words[0]}",
        config=(OmitArgPrefixes,),
    )
    return status


def _run_command(kind: type[Experiment]) -> Callable[..., int]:
    def command(experiment: Any, options: Options, results: Path = Path("results")) -> int:
        _found(lambda: cells_of(experiment))
        console = output()
        folder, name = results / experiment.name, experiment.name
        try:
            with Store(folder) as store, Progress(console, name) as progress:
                tally = run(experiment, store, options, progress)
        except KeyboardInterrupt:
            console.print("interrupted: finished cells are stored, run again to go on")
            return 130
        console.print(_verdict(tally), highlight=False)
        return 0 if tally.failed == tally.missing == 0 else 1

    return _with_options(command, kind)


def _report_command(kind: type[Experiment]) -> Callable[..., int]:
    def command(experiment: Any, results: Path = Path("results"), html: bool = False) -> int:
        _found(lambda: cells_of(experiment))
        folder = results / experiment.name
        with Store(folder) as store:
            report(experiment, store, folder, output(), html)
        return 0

    return _with_options(command, kind)


_COMMANDS = {"run": _run_command, "report": _report_command}


def _with_options(command: Callable[..., int], kind: type[Experiment]) -> Callable[..., int]:
    """The command as the parser should see it: the experiment's fields are its options."""
    command.__annotations__["experiment"] = kind
    command.__doc__ = _description(kind)
    return command


def _description(kind: type[Experiment]) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


def _usage(program: str, table: Mapping[str, type[Experiment]]) -> str:
    names = "".join(f"\n  {name}" for name in table)
    return (
        f"usage: {program} list [FILE.py ...]\n"
        f"       {program} run EXPERIMENT [options]\n"
        f"       {program} report EXPERIMENT [options]\n\n"
        "EXPERIMENT is FILE.py:CLASS" + (f", or one of{names}" if names else "") + "\n\n"
        "--help after an experiment lists its options."
    )


def _verdict(tally: Tally) -> str:
    text = f"{tally.done} cells have a result"
    if tally.nonfinite:
        text += f" ({tally.nonfinite} not finite)"
    if tally.failed:
        text += f", {tally.failed} failed: see the report; run again to try them again"
    if tally.missing:
        text += f", {tally.missing} are being computed by another run"
    return text
