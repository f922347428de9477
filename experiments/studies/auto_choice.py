"""What ``auto`` chooses, beside what each of its candidates reaches.

What it computes: for each problem of ``auto_problems`` and each candidate of ``auto`` the excess of the
objective over its minimum on the data at hand; in the report also what ``auto`` predicts now, and how much
worse its choice is than the best candidate.

Source: own.

Formal guarantee: each run is (ε, δ)-DP for users under REPLACE_ONE by the certificate of its plan.
Measurements are functions of the data without noise. Predictions and choices read no data.

Cost: about five seconds for a problem and a candidate, most of it compilation.
"""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from dpsco_jax import sweeps
from dpsco_jax.problems.users import mean_loss
from dpsco_jax.solvers.user_level import auto
from dpsco_jax.sweeps.cells import Setting, Settings
from experiments.studies import auto_problems
from experiments.studies.auto_problems import NAMES, Case, load

CANDIDATES = {candidate.name: candidate for candidate in auto.CANDIDATES}


@dataclasses.dataclass(frozen=True)
class AutoChoice:
    """Excess risk of every candidate of ``auto`` on problems of many kinds, beside its predictions.

    Attributes:
        problems: names in ``auto_problems.NAMES``.
        candidates: names of ``auto.CANDIDATES``; each runs where it has a plan.
        seeds: number of repetitions.
        passes: item gradients of a run, in passes over the data.
    """

    name: ClassVar[str] = "auto-choice"
    version: ClassVar[int] = 1
    problems: tuple[str, ...] = sweeps.axis("problem", NAMES, static=True, choices=NAMES)
    candidates: tuple[str, ...] = sweeps.axis(
        "candidate", tuple(CANDIDATES), static=True, choices=tuple(CANDIDATES)
    )
    seeds: int = sweeps.axis("seed", 3)
    passes: int = 200

    def cells(self) -> list[dict[str, Setting]]:
        return sweeps.product(self)

    def build(self, static: Settings) -> sweeps.Program:
        case, name = load(str(static["problem"])), str(static["candidate"])
        objective, start = case.problem.objective, jnp.zeros(case.problem.dim)
        least = mean_loss(objective)(jnp.asarray(case.minimizer, jnp.float32), case.data)
        candidate = CANDIDATES[name]

        def run(data: Any, key: jax.Array, plan: Any) -> dict[str, jax.Array]:
            if plan is None:
                return {"excess_risk": jnp.float32(jnp.nan)}
            solution = candidate.solver.solve(key, plan, objective, data, start)
            return {"excess_risk": mean_loss(objective)(solution.params, data) - least}

        plan = self.planned(case, name)
        return sweeps.Program(
            run,
            shared=case.data,
            inputs=lambda cell: plan,
            known=lambda cell: {"runs": float(plan is not None)},
        )

    def planned(self, case: Case, name: str) -> Any:
        """The plan of a candidate; ``None`` where it has none."""
        try:
            return plan_auto(case, self.passes, (name,)).chosen
        except ValueError:
            return None

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        frame = frame[frame["runs"] > 0]
        measured = sweeps.summarize(frame, ("problem", "candidate"), ("excess_risk",))
        lines = pd.concat(
            [
                compared(name, rows, self.passes)
                for name, rows in measured.groupby("problem", sort=False)
            ]
        )
        lines.to_csv(folder / "predictions.csv", index=False)
        choices = pd.DataFrame([choice(rows) for _, rows in lines.groupby("problem", sort=False)])
        choices.to_csv(folder / "choices.csv", index=False)
        print_choices(choices)
        print_accuracy(lines)


def plan_auto(case: Case, passes: int, names: tuple[str, ...] | None = None) -> auto.Plan:
    """What ``auto`` plans for a problem, of all candidates or of those named."""
    size = case.problem.num_users * case.problem.items_per_user
    few = None if names is None else tuple(CANDIDATES[name] for name in names)
    return auto.plan(
        case.problem, case.budget, candidates=few, gradient_budget=passes * size, **case.form
    )


@functools.cache
def predictions(name: str, passes: int) -> dict[str, float]:
    """What ``auto`` predicts of each candidate."""
    return {row.name: row.prediction for row in plan_auto(load(name), passes).rows}


def compared(name: str, rows: pd.DataFrame, passes: int) -> pd.DataFrame:
    """Predictions beside what was measured on one problem."""
    found = predictions(name, passes)
    part = auto_problems.ENTRIES[name].part
    return pd.DataFrame(
        {
            "problem": name,
            "part": part,
            "candidate": rows["candidate"],
            "measured": rows["excess_risk"],
            "predicted": [found[candidate] for candidate in rows["candidate"]],
        }
    )


def choice(rows: pd.DataFrame) -> dict[str, Any]:
    """Of one problem: what is chosen, what is best, and the ratio of the two."""
    chosen = rows.loc[rows["predicted"].idxmin()]
    best = rows.loc[rows["measured"].idxmin()]
    return {
        "problem": chosen["problem"],
        "part": chosen["part"],
        "choice": chosen["candidate"],
        "measured": chosen["measured"],
        "predicted": chosen["predicted"],
        "best": best["candidate"],
        "least": best["measured"],
        "ratio": chosen["measured"] / best["measured"],
    }


def print_choices(choices: pd.DataFrame) -> None:
    """One line for each problem."""
    columns: dict[str, Any] = {name: list(choices[name]) for name in ("problem", "part", "choice")}
    for name in ("measured", "predicted"):
        columns[name] = [f"{value:.3g}" for value in choices[name]]
    columns["best"] = list(choices["best"])
    for name in ("least", "ratio"):
        columns[name] = [f"{value:.3g}" for value in choices[name]]
    sweeps.show("excess risk of what auto chooses, and of the best candidate", columns)
    for limit in (1.3, 2.0):
        good = int(np.sum(choices["ratio"] <= limit))
        print(f"within {limit:g} of the best: {good} of {len(choices)}")


def print_accuracy(lines: pd.DataFrame) -> None:
    """For each candidate the prediction over what is measured: its median, and the range."""
    found: dict[str, list[Any]] = {"candidate": [], "problems": [], "predicted/measured": []}
    for name, rows in lines.groupby("candidate", sort=False):
        ratios = rows["predicted"] / rows["measured"]
        ratios = ratios[np.isfinite(ratios)]
        found["candidate"].append(name)
        found["problems"].append(len(ratios))
        spread = f"{ratios.median():.2g} ({ratios.min():.2g} to {ratios.max():.2g})"
        found["predicted/measured"].append(spread if len(ratios) else "-")
    sweeps.show("predictions over measurements: median, range", found)
    logs = np.log(lines["predicted"] / lines["measured"]).replace([math.inf, -math.inf], np.nan)
    print(f"typical factor between the two: {math.exp(logs.abs().median()):.2g}")
