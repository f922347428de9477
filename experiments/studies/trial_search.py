"""Which trial of ``digits-network`` or ``movielens-factors`` is best: a search that grows until it is inside.

What it computes: for one ε, the first seeds of some trials, the other seeds for choosing of the best of
them, and then of the best trial's neighbours: rate and clip norm doubled and halved. It ends when every
neighbour of every method's best trial has been tried. A trial that one method runs, every method runs, so
that all have the same grid. What is found are cells of the study's store, for its report.

Source: none.

Formal guarantee: none is charged for the search, which looks at data without noise: tuned non-privately.

Cost: about 60 runs for an ε and two methods.

Example:
    python -m experiments.studies.trial_search digits-network 8 --rates 2 4 8
"""

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console

from dpsco_jax.sweeps.cells import Setting, Settings
from dpsco_jax.sweeps.command import use_all_cores
from dpsco_jax.sweeps.engine import Options, run
from dpsco_jax.sweeps.progress import Progress
from dpsco_jax.sweeps.report import frame
from dpsco_jax.sweeps.store import Store
from experiments.studies import movielens_factors_data
from experiments.studies.digits_network import DigitsNetwork
from experiments.studies.movielens_factors import MovieLensFactors

Trial = tuple[float, float, Setting]
"""Rate, clip norm, and the trick or the number of raters a step."""
NAMES = "rate", "clip_norm"


class Task(NamedTuple):
    """How a study is searched.

    Attributes:
        study: whose cells are run.
        other: the axis beside rate and clip norm, whose values are all tried.
        values: of that axis.
        methods: who have trials in common.
        fixed: settings of all cells.
        stages: seeds that a trial begins with, and seeds for choosing.
        loss: from rows of one trial to what is least for the best.
    """

    study: Any
    other: str
    values: tuple[Setting, ...]
    methods: tuple[str, ...]
    fixed: dict[str, Setting]
    stages: tuple[int, int]
    loss: Callable[[pd.DataFrame], float]


def _least_of_points(rows: pd.DataFrame) -> float:
    """The error on raters for tuning, of the better of the two points that a run has."""
    return float(rows[["tuning_last", "tuning_average"]].mean().min())


def task_of(name: str, epsilon: str, rank: int = 4) -> Task:
    """The task of a study at one ε.

    Args:
        name: of the study.
        epsilon: the budget.
        rank: of ``movielens-factors``; with 0 the library's method is searched alone.
    """
    if name == DigitsNetwork.name:
        digits = DigitsNetwork()
        stages = 1, digits.tuning_seeds
        tricks: tuple[Setting, ...] = digits.tricks
        fixed: dict[str, Setting] = {"epsilon": float(epsilon)}

        def error(rows: pd.DataFrame) -> float:
            return 1.0 - float(rows["chosen_by"].mean())

        return Task(digits, "trick", tricks, digits.methods, fixed, stages, error)
    factors = MovieLensFactors()
    sizes = 108, movielens_factors_data.TRAINED
    fixed = {"rank": rank, "epsilon": epsilon}
    stages = 2, factors.seeds
    methods = factors.methods[: 2 if rank else 1]
    return Task(factors, "batch_size", sizes, methods, fixed, stages, _least_of_points)


def neighbours(trial: Trial) -> list[Trial]:
    """Trials with a rate or a clip norm twice or half as large."""
    rate, clip_norm, other = trial
    rates = [(factor * rate, clip_norm, other) for factor in (0.5, 2.0)]
    return rates + [(rate, factor * clip_norm, other) for factor in (0.5, 2.0)]


def search(
    task: Task, rates: Sequence[float], evaluate: Callable[[list[Settings]], pd.DataFrame]
) -> dict[str, Trial]:
    """The best trial of each method, all of whose neighbours have been tried.

    Args:
        task: the study and its settings.
        rates: to begin with, at clip norm 1.
        evaluate: a frame with a row for each cell, which it runs if there is no result yet.
    """
    tried: list[Trial] = [(rate, 1.0, v) for rate, v in itertools.product(rates, task.values)]
    few, all_seeds = task.stages
    while True:
        first = ranked(task, evaluate(cells(task, task.methods, tried, few)))
        kept = list(dict.fromkeys(t for order in first.values() for t in order[:2]))
        second = ranked(task, evaluate(cells(task, task.methods, kept, all_seeds)))
        best = {method: order[0] for method, order in second.items()}
        near = [t for trial in best.values() for t in neighbours(trial)]
        new = [trial for trial in dict.fromkeys(near) if trial not in tried]
        if not new:
            return best
        tried += new


def cells(
    task: Task, methods: Iterable[str], trials: Iterable[Trial], seeds: int
) -> list[Settings]:
    """The cells of some trials, in the order of their programs."""
    found: list[Settings] = []
    points = list(itertools.product(trials, range(seeds)))
    for method, (trial, seed) in itertools.product(methods, points):
        settings: dict[str, Setting] = {"method": method, **task.fixed}
        found.append(
            settings | dict(zip((*NAMES, task.other), trial, strict=True)) | {"seed": seed}
        )
    return found


def ranked(task: Task, rows: pd.DataFrame) -> dict[str, list[Trial]]:
    """The trials of each method, the best first."""
    found = {}
    for method in task.methods:
        parts = rows[rows["method"] == method].groupby([*NAMES, task.other], sort=False)
        losses = {trial: task.loss(part) for trial, part in parts}
        found[method] = sorted(losses, key=losses.__getitem__)
    return found  # type: ignore[return-value]


def part_of(study: Any, wanted: list[Settings]) -> Any:
    """The study with these cells alone, whose names and keys are those that they have in the study."""
    kind = type(study)
    part = type(kind.__name__, (kind,), {"cells": lambda self: wanted})
    return part(**{field.name: getattr(study, field.name) for field in dataclasses.fields(study)})


def main() -> None:
    """Runs a search and its winners, and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("study", choices=(DigitsNetwork.name, MovieLensFactors.name))
    parser.add_argument("epsilon")
    parser.add_argument("--rates", type=float, nargs="+", required=True, help="to begin with")
    parser.add_argument("--rank", type=int, default=4, help="of movielens-factors")
    parser.add_argument("--results", type=Path, default=Path("results"))
    given = parser.parse_args()
    task = task_of(given.study, given.epsilon, given.rank)
    with Store(given.results / given.study) as store:

        def evaluate(wanted: list[Settings]) -> pd.DataFrame:
            part = part_of(task.study, wanted)
            with Progress(Console(), given.study) as progress:
                run(part, store, Options(cells_per_chunk=4), progress)
            return frame(part, store)

        best = search(task, given.rates, evaluate)
        for method, trial in best.items():
            evaluate(cells(task, (method,), (trial,), task.study.seeds))
            print(f"ε = {given.epsilon}, {method}: {trial}")


if __name__ == "__main__":
    use_all_cores()
    main()
