"""Element level, item level and user level on real users' rows, against ε.

What it computes: for InstEval and flights (``element_tasks``) the excess of the "user" and the "element"
objective and the AUC on unseen users. All runs take full batches; a record is

- a user: "user", ``user_level.sgd`` and "user, momentum", ``momentum_sgd``, on a user's mean loss;
- an element: "department", "lecturer", "month", "day", ``element_level.sgd`` on the sum over a user's
  elements. A lecturer is one item of a student, and of a day one flight is kept: item level.

The clip norm C of each is 1/√(rows kept of a unit), and its step size the best of one grid in units of
R/√(T·(C² + dim·σ²)), by the "user" objective, at no charge: tuned non-privately. Untuned are "user,
preconditioned", ``preconditioned_sgd``, which is what the library recommends for one-hot rows, and "user,
plan", "department, plan", ..., the plans' defaults for the same number of steps.

Source: own; E for the notion.

Formal guarantee: (ε, δ)-DP of each run for its record under REPLACE_ONE by the certificate of its plan;
of runs of element level also what follows for a user with all elements, and with the typical number. The
distance R is ½·√(dim·columns of a row). Measurements are functions of the data without noise.

Cost: see ``element_tables.md``.
"""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pandas as pd

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import elements
from dpsco_jax.solvers.element_level import sgd as element_sgd
from dpsco_jax.solvers.user_level import momentum_sgd, preconditioned_sgd, sgd
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import error_bars, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize
from experiments.studies.element_tasks import GRAINS, NAMES, ElementTask, load_elements, measure

USER, MOMENTUM, PRECONDITIONED = "user", "user, momentum", "user, preconditioned"
PLANNED = ", plan"
ELEMENTS = ("department", "lecturer", "month", "day")
METHODS = (USER, MOMENTUM, *ELEMENTS, PRECONDITIONED, *(g + PLANNED for g in (USER, *ELEMENTS)))
TITLES = {"insteval": "InstEval", "flights": "flights"}
_METRICS = ("excess_user", "excess_element", "test_auc")
_MODULES: dict[str, Any] = {USER: sgd, MOMENTUM: momentum_sgd, PRECONDITIONED: preconditioned_sgd}


def grain_of(method: str) -> str:
    """The units of a method's data."""
    return method.split(",")[0]


def is_tuned(method: str) -> bool:
    """Whether the best of the grid is shown."""
    return method != PRECONDITIONED and not method.endswith(PLANNED)


@dataclasses.dataclass(frozen=True)
class ElementTables:
    """Excess risk and test AUC of user level, element level and item level on real users.

    Attributes:
        tasks: names in ``element_tasks.NAMES``.
        methods: names in ``METHODS``; those whose elements the task has.
        epsilons: budgets of the record, met by the certificate.
        clips: clip norms in units of the rule's, of which the best is shown.
        steps: step sizes in the units of the file's docstring.
        seeds: repetitions.
        delta: δ of all budgets.
        num_steps: full batches of all but "user, preconditioned", which takes four times as many.
    """

    name: ClassVar[str] = "element-tables"
    version: ClassVar[int] = 1
    tasks: tuple[str, ...] = axis("task", NAMES, static=True, choices=NAMES)
    methods: tuple[str, ...] = axis("method", METHODS, static=True, choices=METHODS)
    epsilons: tuple[float, ...] = axis("epsilon", (0.25, 0.5, 1.0, 2.0, 4.0, 8.0))
    clips: tuple[float, ...] = axis("clip", (1.0,))
    steps: tuple[float, ...] = axis("step", (0.05, 0.15, 0.5, 1.5, 5.0))
    seeds: int = axis("seed", 3)
    delta: float = 1e-5
    num_steps: int = 50

    def cells(self) -> list[dict[str, Setting]]:
        given = [c for c in product(self) if grain_of(str(c["method"])) in GRAINS[str(c["task"])]]
        tuned = [c for c in given if is_tuned(str(c["method"]))]
        first = {"clip": self.clips[0], "step": self.steps[0]}
        rest = [c for c in given if not is_tuned(str(c["method"])) and first.items() <= c.items()]
        # Zero: there is nothing to choose.
        return tuned + [c | {"clip": 0.0, "step": 0.0} for c in rest]

    def build(self, static: Settings) -> Program:
        task, method = load_elements(str(static["task"])), str(static["method"])
        grain = grain_of(method)
        objective, data = task.objectives[grain], task.data[grain]
        solve = _solve(method)

        def run(shared: Any, key: jax.Array, plan: Any) -> dict[str, jax.Array]:
            units, judges = shared
            params = solve(key, plan, objective, units, jnp.zeros(task.dim)).params
            return measure(params, judges)

        @functools.cache
        def planned(epsilon: float, clip: float) -> Any:
            return make_plan(self, task, method, epsilon, clip)

        @functools.cache
        def facts(epsilon: float, clip: float) -> dict[str, float]:
            plan, made = planned(epsilon, clip), planned(epsilon, clip).certificate().epsilon
            whole = typical = made
            if grain != USER:
                whole = plan.user_certificate().epsilon
                count = task.typical[grain]
                typical = plan.user_certificate(count).epsilon
            return task.facts | {
                "certified_epsilon": made,
                "user_epsilon": whole,
                "typical_user_epsilon": typical,
            }

        def inputs(settings: Settings) -> Any:
            plan = planned(float(settings["epsilon"]), float(settings["clip"]))
            if not is_tuned(method):
                return plan
            step = float(settings["step"]) * unit_step(plan, task.dim, distance(task))
            return plan.replace(step_size=step)

        return Program(
            run,
            shared=(elements.as_units(data), task.judges),
            inputs=inputs,
            known=lambda settings: facts(float(settings["epsilon"]), float(settings["clip"])),
        )

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        by = ("task", "method", "epsilon", "clip", "step")
        known = [n for n in frame if n.endswith("epsilon") and n != "epsilon"]
        known += [n for n in frame if n.startswith(("trivial", "optimum", "element_optimum"))]
        summary = summarize(frame, by, (*_METRICS, *known))
        summary.to_csv(folder / "summary.csv", index=False)
        best = best_settings(summary)
        best.to_csv(folder / "best.csv", index=False)
        for task, rows in best.groupby("task", sort=False):
            _print_table(str(task), rows, self)
            _print_ratios(str(task), rows)
        _draw(best, self, folder / "element_tables")


def _solve(method: str) -> Any:
    return _MODULES.get(method.removesuffix(PLANNED), element_sgd).solve


def make_plan(
    study: ElementTables, task: ElementTask, method: str, epsilon: float, clip: float
) -> Any:
    """The plan of a method from public sizes; ``clip`` in units of 1/√(rows kept of a unit)."""
    grain, budget = grain_of(method), Budget(epsilon, study.delta)
    data, columns = task.data[grain], len(task.field_sizes)
    slots, kept = elements.num_slots(data), data.items.label.shape[2]
    problem = Problem(
        task.objectives[grain],
        num_users=elements.num_users(data),
        items_per_user=slots * kept,
        dim=task.dim,
        distance=distance(task),
    )
    if method == PRECONDITIONED:
        return preconditioned_sgd.plan(
            problem,
            budget,
            columns_per_row=columns,
            second_moments=preconditioned_sgd.one_hot_moments(1.0, task.field_sizes),
            num_steps=4 * study.num_steps,
        )
    common: dict[str, Any] = {"num_steps": study.num_steps, "sampling": "full"}
    if is_tuned(method):
        common["clip_norm"] = clip / math.sqrt(kept)
    if method == MOMENTUM:
        return momentum_sgd.plan(problem, budget, **common)
    if is_tuned(method):
        common["averaging"] = "polynomial"
    if grain == USER:
        return sgd.plan(problem, budget, **common)
    common["typical_elements"] = task.typical[grain]
    return element_sgd.plan(problem, budget, elements_per_user=slots, chunk_size=4096, **common)


def distance(task: ElementTask) -> float:
    """Of parameters with which every named column moves the logit by one half."""
    return 0.5 * math.sqrt(task.dim * len(task.field_sizes))


def unit_step(plan: Any, dim: int, radius: float) -> float:
    """R/√(T·(C² + dim·σ²)): of updates as long as one unit's, and the noise of a mean over all users."""
    stddev = 2 * float(plan.noise_multiplier * plan.clip_norm) / plan.batch_size
    return radius / math.sqrt(plan.num_steps * (float(plan.clip_norm) ** 2 + dim * stddev**2))


def best_settings(summary: pd.DataFrame) -> pd.DataFrame:
    """For each task, method and ε the row with the least excess of the "user" objective."""
    groups = summary.groupby(["task", "method", "epsilon"], sort=False)
    return summary.loc[groups["excess_user"].idxmin()].reset_index(drop=True)


def ratios(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Of one task: the least excess at user level over that of each element, a row for each ε."""
    table = rows.pivot(index="epsilon", columns="method", values=metric)
    whole = [m for m in (USER, MOMENTUM, PRECONDITIONED, USER + PLANNED) if m in table]
    least = table[whole].min(axis=1)
    return pd.DataFrame({m: least / table[m] for m in METHODS if m in table and m not in whole})


def _print_table(task: str, rows: pd.DataFrame, study: ElementTables) -> None:
    first = rows.iloc[0]
    title = (
        f"{TITLES[task]}: w = 0 has excess {first['trivial_user']:.4f} (user), "
        f"{first['trivial_element']:.4f} (element); test AUC without privacy {first['optimum_auc']:.4f}; "
        f"tuned non-privately where a step is shown (δ = {study.delta:g}, ± is a 95 % interval)"
    )

    def interval(name: str, digits: int = 4) -> list[str]:
        pairs = zip(rows[name], rows[f"{name}_ci"], strict=True)
        return [f"{mean:.{digits}f} ± {half:.{digits}f}" for mean, half in pairs]

    show(
        title,
        {
            "method": rows["method"],
            "ε of a record": rows["epsilon"],
            "ε of a user, typical": rows["typical_user_epsilon"],
            "ε of a user, all": rows["user_epsilon"],
            "excess, user": interval("excess_user"),
            "excess, element": interval("excess_element"),
            "test AUC": interval("test_auc", 3),
            "clip norm": rows["clip"],
            "step": rows["step"],
            "seeds": rows["count"],
        },
    )


def _print_ratios(task: str, rows: pd.DataFrame) -> None:
    for metric in ("excess_user", "excess_element"):
        table = ratios(rows, metric)
        name = metric.removeprefix("excess_")
        columns: dict[str, Any] = {"ε": list(table.index)} | {m: list(table[m]) for m in table}
        show(f"{TITLES[task]}: least excess at user level over that of elements, {name}", columns)


def _draw(best: pd.DataFrame, study: ElementTables, stem: Path) -> None:
    """A row for each task: excess and AUC against the record's ε, excess against a typical user's ε."""
    tasks = list(dict.fromkeys(best["task"]))
    names = [name for name in METHODS if name in set(best["method"])]
    with panels(len(tasks), 3) as (figure, axes):
        for line, task in zip(axes, tasks, strict=True):
            rows = best[best["task"] == task]
            pairs = [("epsilon", "excess_user"), ("epsilon", "test_auc")]
            pairs.append(("typical_user_epsilon", "excess_user"))
            for panel, (x, value) in zip(line, pairs, strict=True):
                error_bars(panel, rows, x, value, "method", [n for n in names if PLANNED not in n])
                auc = value == "test_auc"
                level = rows["optimum_auc" if auc else "trivial_user"].iloc[0]
                panel.axhline(level, color="black" if auc else "gray", ls=":")
                if not auc:
                    log_ticks(panel.yaxis)
                    panel.set_ylim(top=2 * level)
                wide = x != "epsilon"
                log_ticks(panel.xaxis, [0.3, 1, 3, 10, 30, 100] if wide else study.epsilons)
                panel.set_xlabel("ε of a typical user whole" if wide else "ε of a record")
            line[0].set_title(TITLES[task], loc="left")
            line[0].set_ylabel("excess of the mean over users")
            line[1].set_ylabel("test AUC")
        shared_legend(figure, axes[:, 0].tolist())
        save(figure, stem)
