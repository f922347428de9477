"""The command line of sweeps: ``dpsco-sweep list | run | report | merge``.

    dpsco-sweep list mine.py                                 which experiments a file has
    dpsco-sweep run mine.py:Mine --seeds 5                   what is missing of them; every field is an option
    dpsco-sweep report mine.py:Mine                          tables, CSV files, figures
    dpsco-sweep report mine.py:Mine --html                   and all of it as one page
    dpsco-sweep run mine.py:Mine --rerun-changed             and what an earlier code of the file has computed
    dpsco-sweep run mine.py:Mine --ray [ADDRESS]             by the workers of a Ray cluster
    dpsco-sweep run mine.py:Mine --share 3/8                 the third of eight parts of its cells
    dpsco-sweep merge A B ... --into C                       several stores become one

Results go to ``results/NAME``: the store of cells, CSV files and figures. ``run`` does what is missing and
can be stopped and started at will. ``--help`` after an experiment lists its options. A share has a store of
its own, ``results/NAME/share-3-of-8``, so that shares can run on machines that see one folder and no locks;
what ``results/NAME`` has already is left out.

Exit status: 0 if every cell has a result, 1 if some have not, 2 for what cannot be run, 130 if it was
interrupted.

Cost: on a CPU, JAX is given one device for each core, so that the cells of a chunk use all of them.
"""

import dataclasses
import os
import sqlite3
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax

from dpsco_jax._checks import require, require_instance
from dpsco_jax._extra import needs
from dpsco_jax.sweeps import _code, _failures
from dpsco_jax.sweeps.cells import cells_of
from dpsco_jax.sweeps.engine import Options, Tally, run
from dpsco_jax.sweeps.executors import Executor, NoWorkersError
from dpsco_jax.sweeps.experiment import Experiment
from dpsco_jax.sweeps.load import experiments_in, load
from dpsco_jax.sweeps.merging import merge
from dpsco_jax.sweeps.progress import Progress
from dpsco_jax.sweeps.ray_cluster import Ray
from dpsco_jax.sweeps.report import output, report, show
from dpsco_jax.sweeps.shares import Share, parse
from dpsco_jax.sweeps.store import FILE_NAME, Store

with needs("sweeps"):
    import tyro
    from tyro.conf import OmitArgPrefixes

_REFUSED = 2
_ANY_CLUSTER = "any"
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
    if command == "merge" and rest and not {"-h", "--help"} & {*rest}:
        return _refusing(lambda: _merge(rest))
    if command in _COMMANDS and rest and not rest[0].startswith("-"):
        return _refusing(lambda: _on_experiment(command, rest, table, program))
    known = command in ("-h", "--help") or {"-h", "--help"} & {*rest}
    print(_usage(program, table), file=sys.stdout if known else sys.stderr)
    return 0 if known else _REFUSED


def use_all_cores() -> None:
    """Gives JAX one CPU device for each core; to be called before anything is computed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jax.config.update("jax_num_cpu_devices", cores or 1)


@dataclasses.dataclass(frozen=True)
class _Places:
    """Which cells, and where they are computed.

    Attributes:
        share: I/N runs the I-th of N parts of the cells, in a store of its own.
        ray: the address of a Ray cluster whose workers compute. Without an address: that of RAY_ADDRESS, or
            the cluster of this machine, or one that is started here.
        ray_cpus: CPUs of each worker.
        ray_gpus: GPUs of each worker.
    """

    share: str | None = None
    ray: str | None = None
    ray_cpus: int = 1
    ray_gpus: int = 0

    def part(self) -> Share | None:
        """The share; ``None`` for all cells.

        Raises:
            ValueError: if the text is not that of a share.
        """
        return None if self.share is None else parse(self.share)

    def executor(self) -> Executor | None:
        """Where cells are computed; ``None`` for this process."""
        if self.ray is None:
            return None
        address = None if self.ray == _ANY_CLUSTER else self.ray
        return Ray(address, cpus_per_worker=self.ray_cpus, gpus_per_worker=self.ray_gpus)


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
    options = list(words[1:])
    for place in [i for i, word in enumerate(options) if word == "--ray"]:
        if place + 1 == len(options) or options[place + 1].startswith("-"):
            options[place] = f"--ray={_ANY_CLUSTER}"
    status: int = tyro.cli(
        _COMMANDS[command](kind),
        args=options,
        prog=f"{program} {command} {words[0]}",
        config=(OmitArgPrefixes,),
    )
    return status


def _merge(words: Sequence[str]) -> int:
    cut = words.index("--into") if "--into" in words else len(words)
    sources, target = words[:cut], words[cut + 1 :]
    strange = [word for word in words if word.startswith("-") and word != "--into"]
    if strange or not sources or len(target) != 1:
        raise _RefusedError("merge takes stores, then --into and one store: merge A B --into C")
    try:
        merged = _found(lambda: merge(sources, target[0]))
    except (RuntimeError, OSError) as error:
        raise _RefusedError(str(error)) from error
    output().print(
        f"{merged.added} cells added to {target[0]}, {merged.replaced} failed ones replaced, "
        f"{merged.present} were there",
        highlight=False,
    )
    return 0


def _run_command(kind: type[Experiment]) -> Callable[..., int]:
    def command(
        experiment: Any,
        options: Options,
        places: _Places,
        results: Path = Path("results"),
        rerun_changed: bool = False,
    ) -> int:
        _found(lambda: cells_of(experiment))
        share, executor = _found(places.part), _found(places.executor)
        console = output()
        try:
            folder = results / experiment.name
            with warnings.catch_warnings():  # the verdict says it
                warnings.filterwarnings("ignore", ".*are by another code", UserWarning)
                tally, rows, codes = _sweep(
                    experiment, options, folder, share, executor, rerun_changed
                )
        except KeyboardInterrupt:
            console.print("interrupted: finished cells are stored, run again to go on")
            return 130
        except (NoWorkersError, ModuleNotFoundError) as error:
            raise _RefusedError(str(error)) from error
        except (sqlite3.Error, OSError) as error:
            raise _RefusedError(_of_the_store(results / experiment.name, error)) from error
        failed = [row["traceback"] for row in rows if row["status"] == "failed"]
        for text in _failures.counted(failed):
            console.print(text, markup=False, highlight=False)
        console.print(_verdict(tally, codes, _code.own(type(experiment))), highlight=False)
        return 0 if tally.failed == tally.missing == 0 else 1

    return _with_options(command, kind)


def _sweep(
    experiment: Experiment,
    options: Options,
    folder: Path,
    share: Share | None,
    executor: Executor | None,
    rerun_changed: bool,
) -> tuple[Tally, list[dict[str, Any]], dict[str, str | None]]:
    """Runs an experiment in its folder; a share of it in a folder there, but for what the folder has.

    Returns:
        How the cells stand, what is stored of them there, and by which codes the results are.
    """
    name, known = experiment.name, None
    with ExitStack() as stack:
        if share is not None:
            if (folder / FILE_NAME).is_file():
                known = stack.enter_context(Store(folder))
            folder = folder / f"share-{share.number}-of-{share.total}"
            name += f" {share.number}/{share.total}"
        store = stack.enter_context(Store(folder))
        progress = stack.enter_context(Progress(output(), name))
        tally = run(
            *(experiment, store, options, progress),
            executor=executor,
            share=share,
            known=known,
            rerun_changed=rerun_changed,
        )
        cells = cells_of(experiment)
        return tally, store.rows(cells), store.codes(cells)


def _report_command(kind: type[Experiment]) -> Callable[..., int]:
    def command(experiment: Any, results: Path = Path("results"), html: bool = False) -> int:
        _found(lambda: cells_of(experiment))
        folder = results / experiment.name
        try:
            with Store(folder) as store:
                report(experiment, store, folder, output(), html)
        except sqlite3.Error as error:
            raise _RefusedError(_of_the_store(folder, error)) from error
        return 0

    return _with_options(command, kind)


_COMMANDS = {"run": _run_command, "report": _report_command}


def _of_the_store(folder: Path, error: Exception) -> str:
    """A disk that is full or read-only, a file that is no database: no fault of the program."""
    return f"the store in {folder} cannot be used: {error}; what was stored in it is kept"


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
        f"       {program} report EXPERIMENT [options]\n"
        f"       {program} merge STORE [STORE ...] --into STORE\n\n"
        "EXPERIMENT is FILE.py:CLASS" + (f", or one of{names}" if names else "") + "\n\n"
        "--help after an experiment lists its options."
    )


def _verdict(tally: Tally, codes: Mapping[str, str | None], code: str | None) -> str:
    text = f"{tally.done} cells have a result"
    if tally.nonfinite:
        text += f" ({tally.nonfinite} not finite)"
    if tally.failed:
        text += f", {tally.failed} failed; run again to try them again"
    if changed := _code.changed(codes, code):
        text += f"; WARNING: {len(changed)} are by another code of the experiment, see the report; "
        text += "--rerun-changed computes them again"
    if unknown := sum(of is None for of in codes.values() if code is not None):
        text += f"; {unknown} are by a code that is unknown"
    if tally.missing:
        text += f", {tally.missing} are being computed by another run"
    return text
