"""The strongest DP-SGD for users: step size, clip norm, steps, sampling and averaging by grid search.

What it computes: for each task and ε the excess risk and test AUC of per-user-clipped DP-SGD for every
configuration of a grid (108 by default), for a few seeds. ``report`` picks the configuration with the least
mean excess risk for each task and ε and writes it to ``tuned.csv``: what ``user-level-solvers`` calls
"DP-SGD, tuned" and measures again with other seeds.

Source: per-user clipping is DP-FedSGD (McMahan et al. 2018).

Formal guarantee: each run is (ε, δ)-DP for users under REPLACE_ONE by the certificate of its plan. The
choice among runs is not: it looks at the data and at the test users without noise, and no ε is charged for
it. It is a baseline in its own favour.

The grid: schedules (steps and sampling rate), clip norms in units of 1/√(item slots), step sizes (times
clip norm) in units of √ε times those of the solver's plan (which assumes the worst about curvature) times
a number for each task that a first look had suggested. Averaging costs no runs: one run gives its last
iterate, its uniform and its polynomial average.

Cost: a step with all users takes one core about 6 ms (InstEval), 20 ms (flights) or 4 ms (films).
"""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import pandas as pd

from dpsco_jax import Budget
from dpsco_jax.problems import datasets
from dpsco_jax.problems.datasets import Task
from dpsco_jax.solvers.first_order import FirstOrder
from dpsco_jax.solvers.user_level import sgd
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.report import show, summarize
from experiments.studies.tasks import (
    TITLES,
    Data,
    clip_norm,
    excess_risk,
    held_out_auc,
    load_problem,
    public_problem,
)

TASKS = ("insteval", "movielens_films", "flights_dates", "flights")
EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Steps of about the right size for each task, from a first look; the grid goes below and above.
_NEAR = {
    "insteval": 0.4,
    "movielens_films": 0.3,
    "flights": 2.0,
    "flights_dates": 1.5,
    "nlswork": 5.0,
}
AVERAGINGS = ("last", "uniform", "polynomial")


class Schedule(NamedTuple):
    """How many steps, and which share of the users takes part in one."""

    num_steps: int
    rate: float


SCHEDULES = {
    "50 full": Schedule(50, 1.0),
    "100 full": Schedule(100, 1.0),
    "200 of a quarter": Schedule(200, 0.25),
}


class Config(NamedTuple):
    """What is tuned.

    Attributes:
        schedule: a name in ``SCHEDULES``.
        clip: clip norm in units of 1/√(item slots of a user).
        step: step size times clip norm, in units of a first look's times √ε times that of the plan.
        averaging: "last", "uniform" or "polynomial".
    """

    schedule: str
    clip: float
    step: float
    averaging: str = "polynomial"


def dp_sgd_plan(task: Task, epsilon: float, delta: float, config: Config) -> FirstOrder:
    """The plan of a configuration. The number of users of a step is public."""
    plan = _planned(task.name, epsilon, delta, config.schedule)
    unit = _NEAR.get(task.name, 1.0) * math.sqrt(epsilon) * plan.step_size
    return plan.replace(
        averaging=config.averaging,
        clip_norm=config.clip * plan.clip_norm,
        step_size=config.step / config.clip * unit,
    )


@functools.cache
def _planned(name: str, epsilon: float, delta: float, schedule: str) -> FirstOrder:
    task, (num_steps, rate) = load_problem(name).task, SCHEDULES[schedule]
    problem = public_problem(task)
    return sgd.plan(
        problem,
        Budget(epsilon, delta),
        num_steps=num_steps,
        batch_size=round(rate * problem.num_users),
        sampling="full" if rate == 1.0 else "fixed",
        clip_norm=clip_norm(task),
    )


@dataclasses.dataclass(frozen=True)
class UserLevelTuning:
    """A grid of DP-SGD configurations on real data, with users as records.

    Attributes:
        tasks: data sets, by their names in ``dpsco_jax.problems.datasets``.
        schedules: steps and sampling, names in ``SCHEDULES``.
        epsilons: budgets, met by the certificate.
        clips: clip norms in units of 1/√(item slots of a user).
        steps: step sizes times clip norms, in units of a first look's times √ε times the plan's.
        seeds: number of repetitions of each configuration.
        delta: the δ of all budgets.
    """

    name: ClassVar[str] = "user-level-tuning"
    version: ClassVar[int] = 1
    tasks: tuple[str, ...] = axis("task", TASKS, static=True, choices=datasets.NAMES)
    schedules: tuple[str, ...] = axis(
        "schedule", tuple(SCHEDULES), static=True, choices=tuple(SCHEDULES)
    )
    epsilons: tuple[float, ...] = axis("epsilon", EPSILONS)
    clips: tuple[float, ...] = axis("clip", (0.25, 0.5, 1.0))
    steps: tuple[float, ...] = axis("step", (0.4, 0.8, 1.6, 3.2))
    seeds: int = axis("seed", 3)
    delta: float = 1e-5

    def cells(self) -> list[dict[str, Setting]]:
        return product(self)

    def build(self, static: Settings) -> Program:
        problem, schedule = load_problem(str(static["task"])), str(static["schedule"])
        objective, dim = problem.task.objective, problem.task.dim

        def run(data: Data, key: jax.Array, plan: Any) -> dict[str, jax.Array]:
            solution = sgd.solve(
                key, plan, objective, data.train, jnp.zeros(dim), lambda params, *_: params
            )
            iterates = solution.unprivate["trace"]
            models = {
                "last": iterates[-1],
                "uniform": jnp.mean(iterates, axis=0),
                "polynomial": solution.params,
            }
            excess = {f"excess_{n}": excess_risk(w, objective, data) for n, w in models.items()}
            auc = {f"auc_{n}": held_out_auc(w, objective, data) for n, w in models.items()}
            return excess | auc

        def plan(settings: Settings) -> Any:
            epsilon, clip, step = (float(settings[name]) for name in ("epsilon", "clip", "step"))
            return dp_sgd_plan(problem.task, epsilon, self.delta, Config(schedule, clip, step))

        return Program(run, shared=problem.data, inputs=plan)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        by = ("task", "epsilon", *Config._fields)
        summary = summarize(_by_averaging(frame), by, ("excess_risk", "test_auc"))
        summary.to_csv(folder / "summary.csv", index=False)
        best = summary.loc[summary.groupby(["task", "epsilon"], sort=False)["excess_risk"].idxmin()]
        best[["task", "epsilon", *Config._fields]].to_csv(folder / "tuned.csv", index=False)
        for task, rows in best.groupby("task", sort=False):
            count = summary[summary["task"] == task].groupby("epsilon").size().max()
            _print_table(
                f"{TITLES.get(str(task), task)}: best of {count} by excess risk", rows, self
            )


def _by_averaging(frame: pd.DataFrame) -> pd.DataFrame:
    """One row for each run and averaging, in place of one row for each run."""
    parts = [
        frame.assign(
            averaging=name, excess_risk=frame[f"excess_{name}"], test_auc=frame[f"auc_{name}"]
        )
        for name in AVERAGINGS
    ]
    return pd.concat(parts, ignore_index=True)


def _print_table(title: str, rows: pd.DataFrame, grid: UserLevelTuning) -> None:
    """The winners; one at the end of an axis says that the grid may be too short there."""

    def marked(name: str, values: tuple[float, ...]) -> list[str]:
        ends = (min(values), max(values))
        return [f"{value:g}{' (end)' if value in ends else ''}" for value in rows[name]]

    show(
        title,
        {
            "ε": rows["epsilon"],
            "schedule": rows["schedule"],
            "averaging": rows["averaging"],
            "clip norm": marked("clip", grid.clips),
            "step": marked("step", grid.steps),
            "excess risk": rows["excess_risk"],
            "test AUC": rows["test_auc"],
            "seeds": rows["count"],
        },
    )
