"""Outer iterations and oracle calls of ball acceleration against the ratio of radii.

What it computes: the chain quadratic with ‖x*‖ = ‖∇F(0)‖ = 1, solved through exact minimizations over balls
of radius r, for R/r from 30 to 10,000 (R = 1), until F is within 1 % of its initial gap: how many outer
iterations, and how many minimizations (oracle calls), with the exponents of R/r fitted.

Source: T Proposition 2.2.8 (iterations ∝ (R/r)^(2/3)); Carmon, Hausler, Jambulapati, Jin and Sidford 2022
(one call an iteration). Fixed λ = L/r: accelerated proximal points, (R/r)^(1/2) at fixed L; plain: R/r.

Formal guarantee: none needed: nothing is private here.

Cost: half a minute.
"""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from dpsco_jax.problems import quadratics
from dpsco_jax.solvers.ball import ball_acceleration, exact_ball_oracles
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, panels, save
from dpsco_jax.sweeps.report import show

THEORY = {"bisection": 2 / 3, "doubling": 2 / 3, "adaptive": 2 / 3, "fixed": 0.5, "none": 1.0}
"""Methods, ``search`` of the plan, and the exponent of R/r that is proved for each (``doubling``: hoped
for)."""


@dataclasses.dataclass(frozen=True)
class BallAcceleration:
    """Iterations and oracle calls of ball acceleration against R/r, with exponents.

    Attributes:
        searches: how λ is found, names in ``THEORY``.
        ratios: R/r.
        dim: of the chain.
        accuracy: gap to reach, relative to the initial one.
        scale: factor of λ_min, which is to play no role.
    """

    name: ClassVar[str] = "ball-acceleration"
    version: ClassVar[int] = 1
    searches: tuple[str, ...] = axis("search", tuple(THEORY), static=True, choices=tuple(THEORY))
    ratios: tuple[float, ...] = axis("ratio", (30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0))
    dim: int = 4000
    accuracy: float = 0.01
    scale: float = 1e-4

    def cells(self) -> list[dict[str, Setting]]:
        return product(self)

    def build(self, static: Settings) -> Program:
        problem = quadratics.chain(self.dim)
        plans = {ratio: self._plan(problem, str(static["search"]), ratio) for ratio in self.ratios}
        # All ratios share one program: its static caps are the largest ones.
        sizes = {
            name: max(getattr(plan, name) for plan in plans.values())
            for name in ("num_iterations", "max_searches")
        }

        def run(shared: Any, key: jax.Array, plan: Any) -> dict[str, jax.Array]:
            hessian, linear, minimizer = shared
            oracles = exact_ball_oracles.quadratic(hessian, linear, plan.ball_radius)

            def gap(point: Any) -> Any:
                return 0.5 * jnp.sum(hessian * (point - minimizer) ** 2)

            end = ball_acceleration.run(
                key,
                plan,
                oracles,
                jnp.zeros_like(linear),
                stop=lambda point: gap(point) <= plan.excess,
            )
            return {
                "iterations": end.iterations,
                "calls": sum(end.oracle_calls),
                "unaccepted": end.unaccepted,
                "reached": gap(end.params) <= plan.excess,
            }

        arrays = (*problem, problem.minimizer)
        return Program(
            run,
            shared=tuple(np.asarray(array, np.float32) for array in arrays),
            inputs=lambda cell: jax.tree.map(
                np.float32, dataclasses.replace(plans[float(cell["ratio"])], **sizes)
            ),
        )

    def _plan(self, problem: Any, search: str, ratio: float) -> Any:
        return ball_acceleration.plan(
            lipschitz=1.0,
            distance=1.0,
            ball_radius=1.0 / ratio,
            excess=self.accuracy * problem.initial_gap,
            search=search,
            scale=1.0 if search == "fixed" else self.scale,
            reuse=True,
        )

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        frame = frame.sort_values("ratio")
        columns = ["search", "ratio", "iterations", "calls", "unaccepted", "reached"]
        frame[columns].to_csv(folder / "counts.csv", index=False)
        groups = {name: frame[frame["search"] == name] for name in self.searches}
        table: dict[str, Any] = {"search": [*groups], "theory": [THEORY[n] for n in groups]}
        for value in ("iterations", "calls"):
            table[f"exponent of {value}"] = [_exponent(rows, value) for rows in groups.values()]
        for ratio in self.ratios:
            at = [rows[rows["ratio"] == ratio].iloc[0] for rows in groups.values()]
            counts = [f"{int(row['iterations'])} / {int(row['calls'])}" for row in at]
            table[f"R/r = {ratio:g}"] = counts
        show("outer iterations / oracle calls, and exponents of R/r", table)
        with panels(1, 3) as (figure, axes):
            for panel, value in zip(axes[0], ("iterations", "calls"), strict=False):
                for i, (name, rows) in enumerate(groups.items()):
                    style: Any = {"color": PALETTE[i], "marker": MARKERS[i], "linestyle": LINES[i]}
                    both = ", ".join(f"{_exponent(rows, v):.2f}" for v in ("iterations", "calls"))
                    panel.plot(rows["ratio"], rows[value], label=f"{name}: {both}", **style)
                panel.set_xscale("log")
                panel.set_yscale("log")
                panel.set_xlabel("R/r")
            axes[0, 0].set_title("outer iterations", loc="left")
            axes[0, 1].set_title("oracle calls", loc="left")
            axes[0, 2].axis("off")
            handles = axes[0, 0].get_legend_handles_labels()
            axes[0, 2].legend(*handles, loc="center", title="exponents of R/r")
            save(figure, folder / "ball_acceleration")


def _exponent(rows: pd.DataFrame, value: str) -> float:
    logs = np.log(rows[["ratio", value]].to_numpy(float))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])
