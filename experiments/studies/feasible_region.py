"""Where private ball acceleration returns more than noise: predicted error of a call over users and accuracy.

What it computes: for every (n, dim, κ, ε) the plan of private ERM by ball acceleration, and the distance of
a call's answer from its target over the radius of the ball (up to 0.2 is harmless, above 0.5 is noise), with
the tight accountant and with the repaired proof of the thesis. No data are needed.

Source: thesis, Theorem 2.4.19 and Table 2.2, with the practical constants of ``_ball_accelerated_plan``.

Formal guarantee: none needed: nothing is released. The error is an observed law of Algorithm 10.

Cost: 5 to 10 s for each cell, all on the host.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import pandas as pd

from dpsco_jax import Budget, Problem
from dpsco_jax.privacy import resque
from dpsco_jax.problems import losses
from dpsco_jax.solvers.resque import ball_accelerated_erm
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, panels, save
from dpsco_jax.sweeps.report import show


@dataclasses.dataclass(frozen=True)
class FeasibleRegion:
    """Predicted error of private ball acceleration's answers over n, dim, κ and ε.

    Attributes:
        users: n.
        dims: number of parameters.
        conditions: κ = LR/ε_opt.
        epsilons: budgets.
        delta: of the budgets.
    """

    name: ClassVar[str] = "feasible-region"
    version: ClassVar[int] = 2
    users: tuple[int, ...] = axis("users", (1000, 3000, 10_000, 30_000, 100_000))
    dims: tuple[int, ...] = axis("dim", (5, 20, 100))
    conditions: tuple[float, ...] = axis("condition", (5.0, 10.0, 20.0))
    epsilons: tuple[float, ...] = axis("epsilon", (1.0,))
    delta: float = 1e-6

    def cells(self) -> list[dict[str, Setting]]:
        return product(self)

    def build(self, static: Settings) -> Program:
        return Program(
            lambda shared, key, inputs: {"drawn": jnp.zeros([])},
            known=lambda cell: _predicted(cell, self.delta),
        )

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        columns = ["users", "dim", "condition", "epsilon", "calls", "passes", "beta", "error"]
        columns += ["beta_triple", "error_triple"]
        frame[columns].to_csv(folder / "feasible_region.csv", index=False)
        for epsilon, rows in frame.groupby("epsilon"):
            table = rows.pivot(index=["dim", "condition"], columns="users", values="error")
            shown = {"dim": table.index.get_level_values("dim").tolist()}
            shown["κ"] = table.index.get_level_values("condition").tolist()
            shown |= {f"n = {n:,}": table[n].round(3).tolist() for n in table.columns}
            show(f"predicted error over the radius, ε = {epsilon:g}", shown)
        first = frame[frame["epsilon"] == frame["epsilon"].iloc[0]]
        with panels(1, len(self.dims), sharey=True) as (figure, axes):
            for panel, (dim, rows) in zip(axes[0], first.groupby("dim"), strict=True):
                _draw(panel, int(dim), rows)
            axes[0, 0].set_ylabel("error of a call / radius of the ball")
            axes[0, -1].legend()
            save(figure, folder / "feasible_region")


def _predicted(cell: Settings, delta: float) -> dict[str, float]:
    made = ball_accelerated_erm.plan(
        Problem(
            losses.absolute(1.0),
            num_users=int(cell["users"]),
            dim=int(cell["dim"]),
            distance=1.0,
        ),
        Budget(float(cell["epsilon"]), delta),
        condition=float(cell["condition"]),
        largest_error=math.inf,
    )

    def calls_at(beta: float) -> Any:
        return made.calls_at(beta, made.radius_ratio)

    triple = resque.calibrate_beta(calls_at, float(cell["epsilon"]), delta, "triple")
    return {
        "calls": float(sum(made.budgeted)),
        "passes": made.user_gradients / made.num_users,
        "beta": float(made.beta),
        "error": made.predicted_error,
        "beta_triple": triple,
        "error_triple": dataclasses.replace(made, beta=triple).predicted_error,
    }


def _draw(panel: Any, dim: int, rows: pd.DataFrame) -> None:
    for i, (condition, line) in enumerate(rows.groupby("condition")):
        options = {"color": PALETTE[i], "marker": MARKERS[i]}
        label = f"κ = {condition:g}"
        panel.plot(line["users"], line["error"], label=label, ls=LINES[0], **options)
        panel.plot(line["users"], line["error_triple"], ls=LINES[3], alpha=0.6, **options)
    for level in (0.2, 0.5):
        panel.axhline(level, color="black", lw=0.6)
    panel.set(xscale="log", yscale="log", xlabel="users", title=f"dim = {dim}")
