"""All user-level solvers on real data: excess risk and test AUC against ε, beside a tuned DP-SGD.

What it computes: for each task, solver, ε and seed the excess of the training objective over its minimum and
the AUC on the items of users never seen in training. A user is one record.

Source: the solvers' own files; DP-SGD for users is DP-FedSGD (McMahan et al. 2018).

Formal guarantee: each model is (ε, δ)-DP for users under REPLACE_ONE by the certificate of its plan, but for
the choice of configuration of "DP-SGD, tuned", which looked at the data at no charge. Metrics are computed on
the data without noise: measurements for a study. Nothing else is fitted to data:

- "DP-SGD, tuned": the best of the grid of ``user-level-tuning`` for this task and ε (``tuned_dp_sgd.csv``),
  run again with other seeds, so that the choice does not flatter what is measured here;
- "DP-SGD, plan", "private AC-SA": 100 full batches, clip norm and distance by the rules of ``tasks``;
- "preconditioned SGD" and the solvers with proven rates: their plans from public sizes and the distance rule.

A plan that refuses the task (too few users for its test) leaves a row with ``refused`` and the number of
users that it asks for.

Cost: 200 steps of "preconditioned SGD", about 100 of the others; a step takes one core about 6 ms (InstEval),
20 ms (flights) or 4 ms (films). Beside that some fifty compilations.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pandas as pd

from dpsco_jax import Budget, Infeasible
from dpsco_jax.problems import datasets
from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.user_level import (
    accelerated_phased_erm,
    multipass_sgd,
    phased_sgd,
    preconditioned_sgd,
    sgd,
    winsorized_erm,
)
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import error_bars, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize
from dpsco_jax.sweeps.statistics import ratio
from experiments.studies.tasks import (
    TITLES,
    Data,
    Loaded,
    clip_norm,
    excess_risk,
    held_out_auc,
    load_problem,
    preconditioned_plan,
    public_problem,
    sizes,
)
from experiments.studies.user_level_tuning import EPSILONS, TASKS, Config, dp_sgd_plan

TUNED, PLANNED, AC_SA = "DP-SGD, tuned", "DP-SGD, plan", "private AC-SA"
PRECONDITIONED = "preconditioned SGD"
PROVEN: dict[str, Any] = {
    "multi-pass SGD": multipass_sgd,
    "accelerated phased ERM": accelerated_phased_erm,
    "winsorized ERM": winsorized_erm,
    "phased SGD": phased_sgd,
}
_MODULES = {TUNED: sgd, PLANNED: sgd, AC_SA: private_ac_sa, PRECONDITIONED: preconditioned_sgd}
SOLVERS = (*_MODULES, *PROVEN)
_PROVEN_SEEDS = 3
TUNED_FILE = Path(__file__).with_name("tuned_dp_sgd.csv")
_OPTIMUM: Any = {"color": "black", "linestyle": ":", "label": "non-private optimum"}
_NO_TRAINING: Any = {"color": "gray", "linestyle": (0, (1, 3)), "label": "no training (w = 0)"}


@dataclasses.dataclass(frozen=True)
class UserLevelSolvers:
    """Excess risk and test AUC of all user-level solvers and of a tuned DP-SGD, on real data.

    Attributes:
        tasks: data sets, by their names in ``dpsco_jax.problems.datasets``.
        solvers: names in ``SOLVERS``; "DP-SGD, tuned" exists where it was tuned.
        epsilons: budgets, met by the certificate.
        seeds: number of repetitions. The solvers with proven rates are another program at every ε, so
            they run at every third ε only, with 3 seeds at most.
        delta: the δ of all budgets.
        num_steps: steps of "DP-SGD, plan" and "private AC-SA"; "preconditioned SGD" makes twice as many.
    """

    name: ClassVar[str] = "user-level-solvers"
    version: ClassVar[int] = 1
    tasks: tuple[str, ...] = axis("task", TASKS, static=True, choices=datasets.NAMES)
    solvers: tuple[str, ...] = axis("solver", SOLVERS, static=True, choices=SOLVERS)
    epsilons: tuple[float, ...] = axis("epsilon", EPSILONS)
    seeds: int = axis("seed", 10)
    delta: float = 1e-5
    num_steps: int = 100

    def cells(self) -> list[dict[str, Setting]]:
        tuned, cells = tuned_configs(), []
        for cell in product(self):
            config = tuned.get((cell["task"], cell["epsilon"]))
            few = int(cell["seed"]) < _PROVEN_SEEDS and cell["epsilon"] in self.epsilons[::3]
            if cell["solver"] in PROVEN and not few:
                continue
            if cell["solver"] != TUNED:
                cells.append(cell | {"config": "plan"})
            elif config is not None:
                cells.append(cell | {"config": ", ".join(map(str, config))})
        return cells

    def build(self, static: Settings) -> Program:
        problem, solver = load_problem(str(static["task"])), str(static["solver"])
        objective, dim = problem.task.objective, problem.task.dim
        module: Any = (_MODULES | PROVEN)[solver]

        def run(data: Data, key: jax.Array, plan: Any) -> dict[str, jax.Array]:
            if plan is None:
                nothing = jnp.float32(jnp.nan)
                return {"test_auc": nothing, "excess_risk": nothing, "solver_status": nothing}
            solution = module.solve(key, plan, objective, data.train, jnp.zeros(dim))
            return {
                "test_auc": held_out_auc(solution.params, objective, data),
                "excess_risk": excess_risk(solution.params, objective, data),
                "solver_status": solution.status.astype(jnp.float32),
            }

        @functools.cache
        def prepared(epsilon: float) -> tuple[Any, dict[str, float]]:
            facts = problem.facts | {"certified_epsilon": 0.0, "passes": 0.0, "needed_users": 0.0}
            try:
                plan = make_plan(problem, solver, epsilon, self.delta, self.num_steps)
            except Infeasible as refusal:
                if "num_users" not in refusal.needed:
                    raise
                return None, facts | {"needed_users": float(refusal.needed["num_users"])}
            facts["certified_epsilon"] = plan.certificate().epsilon
            facts["passes"] = plan.user_gradients / sizes(problem.task).num_users
            return plan, facts

        return Program(
            run,
            shared=problem.data,
            inputs=lambda settings: prepared(float(settings["epsilon"]))[0],
            known=lambda settings: prepared(float(settings["epsilon"]))[1],
        )

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        refused = frame[frame["needed_users"] > 0]
        frame = frame[frame["needed_users"] == 0]
        by = ("task", "solver", "epsilon")
        facts = ("certified_epsilon", "passes", "optimum_auc", "trivial_excess", "solver_status")
        summary = summarize(frame, by, ("test_auc", "excess_risk", *facts))
        summary.to_csv(folder / "summary.csv", index=False)
        for task, rows in summary.groupby("task", sort=False):
            print_results(str(task), rows, self.delta)
        for task, rows in frame.groupby("task", sort=False):
            print_winners(str(task), rows)
        print_refusals(refused)
        draw(summary, self.delta, folder / "user_level_solvers")


@functools.cache
def tuned_configs() -> dict[tuple[Setting, Setting], Config]:
    """What ``user-level-tuning`` found, by task and ε.

    Raises:
        FileNotFoundError: if ``tuned_dp_sgd.csv`` is missing: without it the baseline would be, too.
    """
    if not TUNED_FILE.exists():
        raise FileNotFoundError(
            f"{TUNED_FILE} is missing: it is tuned.csv of `python -m experiments report user-level-tuning`"
        )
    rows = pd.read_csv(TUNED_FILE).itertuples()
    return {(r.task, r.epsilon): Config(r.schedule, r.clip, r.step, r.averaging) for r in rows}  # type: ignore[misc]


def make_plan(problem: Loaded, solver: str, epsilon: float, delta: float, num_steps: int) -> Any:
    """The plan of a solver, by the rules of the file's docstring.

    Raises:
        ValueError: if the solver needs more users.
    """
    task = problem.task
    if solver == TUNED:
        return dp_sgd_plan(task, epsilon, delta, tuned_configs()[task.name, epsilon])
    if solver == PRECONDITIONED:
        return preconditioned_plan(task, epsilon, delta, 2 * num_steps)
    public, budget = public_problem(task), Budget(epsilon, delta)
    if solver in (PLANNED, AC_SA):
        steps: dict[str, Any] = {
            "num_steps": num_steps,
            "batch_size": public.num_users,
            "clip_norm": clip_norm(task),
        }
        if solver == AC_SA:
            return private_ac_sa.plan(public, budget, **steps)
        return sgd.plan(public, budget, sampling="full", averaging="polynomial", **steps)
    return PROVEN[solver].plan(public, budget)


def print_results(task: str, rows: pd.DataFrame, delta: float) -> None:
    """Every solver at every ε: what it reached and what it took."""
    first = rows.iloc[0]
    title = (
        f"{TITLES.get(task, task)}: non-private optimum has test AUC {first['optimum_auc']:.4f}, "
        f"w = 0 has excess risk {first['trivial_excess']:.4f} (δ = {delta:g}, ± is a 95 % interval)"
    )
    pairs = {v: zip(rows[v], rows[f"{v}_ci"], strict=True) for v in ("excess_risk", "test_auc")}
    show(
        title,
        {
            "solver": rows["solver"],
            "ε, certificate": rows["certified_epsilon"],
            "excess risk": [f"{mean:.5f} ± {half:.5f}" for mean, half in pairs["excess_risk"]],
            "test AUC": [f"{mean:.4f} ± {half:.4f}" for mean, half in pairs["test_auc"]],
            "passes": rows["passes"],
            "mean status": rows["solver_status"],
            "seeds": rows["count"],
        },
    )


def winners(rows: pd.DataFrame) -> pd.DataFrame:
    """For one task and each ε: the ratio of every solver's mean excess risk to that of the tuned DP-SGD."""
    table = []
    for epsilon, group in rows.groupby("epsilon"):
        runs = {name: list(g["excess_risk"]) for name, g in group.groupby("solver", sort=False)}
        means = {name: sum(values) / len(values) for name, values in runs.items()}
        line: dict[str, Any] = {"epsilon": epsilon, "best": min(means, key=means.__getitem__)}
        if TUNED in runs:
            others = [name for name in runs if name != TUNED]
            line |= {name: str(ratio(runs[name], runs[TUNED])) for name in others}
        table.append(line)
    return pd.DataFrame(table).fillna("-")


def print_winners(task: str, rows: pd.DataFrame) -> None:
    """Who wins, and by how much."""
    table = winners(rows)
    columns: dict[str, Any] = {"ε": table["epsilon"], "least excess risk": table["best"]}
    columns |= {name: table[name] for name in SOLVERS if name in table}
    show(f"{TITLES.get(task, task)}: excess risk over that of the tuned DP-SGD", columns)


def print_refusals(refused: pd.DataFrame) -> None:
    """Which plans did not accept the task, and how many users they ask for."""
    if refused.empty:
        return
    rows = refused.drop_duplicates(["task", "solver", "epsilon"])
    names = ("task", "solver", "epsilon", "needed_users")
    show("refused: too few users", {name.replace("_", " "): rows[name] for name in names})


def draw(summary: pd.DataFrame, delta: float, stem: Path) -> None:
    """One row of panels for each task. A solver that never beats "no training" is left to the table."""
    useful = summary[summary["excess_risk"] < summary["trivial_excess"]]["solver"]
    names = [name for name in SOLVERS if name in set(useful)]
    tasks = list(dict.fromkeys(summary["task"]))
    epsilons = sorted(set(summary["epsilon"]))
    with panels(len(tasks), 2, height=1.9, sharex=True) as (figure, axes):
        for (left, right), task in zip(axes, tasks, strict=True):
            rows = summary[summary["task"] == task]
            error_bars(left, rows, "epsilon", "excess_risk", "solver", names)
            error_bars(right, rows, "epsilon", "test_auc", "solver", names)
            trivial = rows["trivial_excess"].iloc[0]
            left.axhline(trivial, **_NO_TRAINING)
            right.axhline(rows["optimum_auc"].iloc[0], **_OPTIMUM)
            left.set_title(f"{TITLES.get(task, task)}, users as records", loc="left")
            left.set_ylabel("excess training risk (nats)")
            right.set_ylabel("test AUC")
            log_ticks(left.yaxis)
            left.set_ylim(top=3 * trivial)
            for panel in (left, right):
                log_ticks(panel.xaxis, epsilons)
        for panel in axes[-1]:
            panel.set_xlabel(f"user-level ε (δ = {delta:g}); bars: 95 % interval")
        shared_legend(figure, axes[0])
        save(figure, stem)
