"""User-level privacy against utility on real data: DP-SGD, private AC-SA, preconditioned DP-SGD.

What it computes: for each task, solver, ε and seed, the AUC on the items of users never seen in
training and the excess of the training objective over its minimum. A user is one record: the user's
loss is the mean over the user's items, and replacing all of them is what ε hides (REPLACE_ONE).

Source: user-level DP-SGD (McMahan et al. 2018); private AC-SA is Algorithm 4 of the thesis, chapter 1
(Breaking the quadratic barrier), with a user's loss in the place of an item's; preconditioned DP-SGD is ours.

Formal guarantee: each cell's model is (ε, δ)-DP for users by the certificate of its plan; the ledger's
ε (Rényi) is larger, and printed beside it. Metrics are computed on the data without noise: they, and
the figure, are measurements for a study and not private outputs. All solvers use all users in every
step; DP-SGD and AC-SA get three numbers from public sizes by the same rules:

- ``clip_norm`` = 1/√(item slots of a user): the norm of a mean of that many unit vectors which point
  in unrelated directions;
- ``distance`` = ½·√(dim·columns per row): parameters with which every named column moves the
  logit by one half;
- the number of steps, the same for all.

Preconditioned DP-SGD gets how many values each categorical field has. Step sizes and noise then follow
from the solvers' plans, so nothing is fitted to the data; except
for "DP-SGD, tuned", whose step size was, at no charge to its ε: what DP-SGD could do if the best step
were known, and not a private algorithm.

Cost: 800 cells of 100 steps each by default, about three minutes on two cores.
"""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pandas as pd

from dpsco_jax import Budget, privacy
from dpsco_jax.problems import datasets
from dpsco_jax.problems.datasets import Task
from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.user_level import preconditioned_sgd, sgd
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import error_bars, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize
from experiments.studies.tasks import (
    TITLES,
    Data,
    clip_norm,
    excess_risk,
    held_out_auc,
    load_problem,
    preconditioned_plan,
    public_problem,
)

DP_SGD, TUNED, AC_SA = "DP-SGD", "DP-SGD, tuned", "private AC-SA"
PRECONDITIONED = "preconditioned DP-SGD"
# The step of the plan is multiplied by this times √ε: least excess risk among a few, seen on the data.
_TUNED_STEPS = {"insteval": 0.5, "nlswork": 5.0}
TASKS = ("insteval", "nlswork")
SOLVERS = (DP_SGD, TUNED, AC_SA, PRECONDITIONED)
_MODULES: Any = {DP_SGD: sgd, TUNED: sgd, AC_SA: private_ac_sa, PRECONDITIONED: preconditioned_sgd}
_OPTIMUM: Any = {"color": "black", "linestyle": ":", "label": "non-private optimum"}
_NO_TRAINING: Any = {"color": "gray", "linestyle": (0, (1, 3)), "label": "no training (w = 0)"}


@dataclasses.dataclass(frozen=True)
class UserLevelTradeoff:
    """Test AUC and excess risk against ε on real data, with users as records.

    Attributes:
        tasks: data sets, by their names in ``dpsco_jax.problems.datasets``.
        solvers: "DP-SGD", "DP-SGD, tuned" (tasks that it was tuned for), "private AC-SA",
            "preconditioned DP-SGD".
        epsilons: budgets, met by the certificate.
        seeds: number of repetitions of each cell.
        delta: the δ of all budgets.
        num_steps: steps of every run.
    """

    name: ClassVar[str] = "user-level-tradeoff"
    version: ClassVar[int] = 1
    tasks: tuple[str, ...] = axis("task", TASKS, static=True, choices=datasets.NAMES)
    solvers: tuple[str, ...] = axis("solver", SOLVERS, static=True, choices=SOLVERS)
    epsilons: tuple[float, ...] = axis("epsilon", (0.5, 1.0, 2.0, 4.0, 8.0))
    seeds: int = axis("seed", 20)
    delta: float = 1e-5
    num_steps: int = 100

    def cells(self) -> list[dict[str, Setting]]:
        tuned = lambda cell: cell["solver"] != TUNED or cell["task"] in _TUNED_STEPS  # noqa: E731
        return [cell for cell in product(self) if tuned(cell)]

    def build(self, static: Settings) -> Program:
        problem, solver = load_problem(str(static["task"])), str(static["solver"])
        objective, dim = problem.task.objective, problem.task.dim
        solve = _MODULES[solver].solve

        def run(data: Data, key: jax.Array, plan: Any) -> dict[str, jax.Array]:
            solution = solve(key, plan, objective, data.train, jnp.zeros(dim))
            return {
                "test_auc": held_out_auc(solution.params, objective, data),
                "excess_risk": excess_risk(solution.params, objective, data),
                "ledger_epsilon": privacy.epsilon(solution.privacy, self.delta),
                "solver_status": solution.status,
            }

        @functools.cache
        def prepared(epsilon: float) -> tuple[Any, dict[str, float]]:
            plan = _plan(problem.task, solver, epsilon, self.delta, self.num_steps)
            facts = {
                "certified_epsilon": plan.certificate().epsilon,
                "noise_multiplier": float(plan.noise_multiplier),
            }
            return plan, facts | problem.facts

        return Program(
            run,
            shared=problem.data,
            inputs=lambda settings: prepared(settings["epsilon"])[0],
            known=lambda settings: prepared(settings["epsilon"])[1],
        )

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        summary = summarize(
            frame,
            by=("task", "solver", "epsilon"),
            values=(
                "test_auc",
                "excess_risk",
                "ledger_epsilon",
                "certified_epsilon",
                "noise_multiplier",
                "optimum_auc",
                "trivial_excess",
            ),
        )
        summary.to_csv(folder / "summary.csv", index=False)
        for task, rows in summary.groupby("task", sort=False):
            _print_table(str(task), rows, self.delta)
        _draw(summary, self.delta, folder / "user_level_tradeoff")


def _plan(task: Task, solver: str, epsilon: float, delta: float, num_steps: int) -> Any:
    """The plan of a solver, by the rules of the file's docstring."""
    if solver == PRECONDITIONED:
        return preconditioned_plan(task, epsilon, delta, num_steps)
    problem, budget = public_problem(task), Budget(epsilon, delta)
    steps: dict[str, Any] = {
        "num_steps": num_steps,
        "batch_size": problem.num_users,
        "clip_norm": clip_norm(task),
    }
    if solver == AC_SA:
        return private_ac_sa.plan(problem, budget, **steps)
    plan = sgd.plan(problem, budget, sampling="full", averaging="polynomial", **steps)
    if solver == TUNED:
        factor = _TUNED_STEPS[task.name] * math.sqrt(epsilon)
        plan = plan.replace(step_size=factor * plan.step_size)
    return plan


def _print_table(task: str, rows: pd.DataFrame, delta: float) -> None:
    first = rows.iloc[0]
    title = (
        f"{TITLES.get(task, task)}: non-private optimum has test AUC {first['optimum_auc']:.4f}, "
        f"w = 0 has excess risk {first['trivial_excess']:.4f} (δ = {delta:g}, ± is a 95 % interval)"
    )
    show(
        title,
        {
            "solver": rows["solver"],
            "ε, certificate": rows["certified_epsilon"],
            "ε, ledger": rows["ledger_epsilon"],
            "noise multiplier": rows["noise_multiplier"],
            "test AUC": _with_interval(rows, "test_auc"),
            "excess risk": _with_interval(rows, "excess_risk"),
            "seeds": rows["count"],
        },
    )


def _with_interval(rows: pd.DataFrame, value: str) -> list[str]:
    pairs = zip(rows[value], rows[f"{value}_ci"], strict=True)
    return [f"{mean:.4f} ± {interval:.4f}" for mean, interval in pairs]


def _draw(summary: pd.DataFrame, delta: float, stem: Path) -> None:
    """One row of panels for each task: test AUC, excess risk."""
    tasks = list(dict.fromkeys(summary["task"]))
    epsilons = sorted(set(summary["epsilon"]))
    seeds = summary["count"].min()
    with panels(len(tasks), 2, sharex=True) as (figure, axes):
        for (left, right), task in zip(axes, tasks, strict=True):
            rows = summary[summary["task"] == task]
            error_bars(left, rows, "epsilon", "test_auc", "solver", SOLVERS)
            error_bars(right, rows, "epsilon", "excess_risk", "solver", SOLVERS)
            left.axhline(rows["optimum_auc"].iloc[0], **_OPTIMUM)
            right.axhline(rows["trivial_excess"].iloc[0], **_NO_TRAINING)
            left.set_title(f"{TITLES.get(task, task)}, users as records", loc="left")
            left.set_ylabel("test AUC")
            right.set_ylabel("excess training risk (nats)")
            log_ticks(left.xaxis, epsilons)
            log_ticks(right.xaxis, epsilons)
            log_ticks(right.yaxis)
        for panel in axes[-1]:
            panel.set_xlabel(f"user-level ε (δ = {delta:g}); bars: 95 % interval, {seeds} seeds")
        shared_legend(figure, axes[0])
        save(figure, stem)
