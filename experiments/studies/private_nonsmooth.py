"""Private solvers on a loss that is not smooth: excess risk against user gradients, at one budget.

What it computes: absolute regression with decaying features, one item for each user, the minimizer known
exactly; private ball acceleration (reweighted gradients) at several targets κ and sizes of a call, beside
DP-SGD and private AC-SA with several numbers of passes and step factors, and localization, all with the
accountant of their certificates. Of a grid the report shows every entry; the best of it is hindsight.

Source: thesis, Theorem 2.4.19 and Figure 2.1, which compares exponents.

Formal guarantee: each run is (ε, δ)-DP under replacement of one user. That the distance to the minimizer is
known, and everything measured, is not private.

Cost: five minutes on two cores.
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
from dpsco_jax.solvers.item_level import private_ac_sa, sco
from dpsco_jax.solvers.resque import ball_accelerated_erm
from dpsco_jax.solvers.user_level import sgd
from dpsco_jax.sweeps.cells import Setting, Settings, axis
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import MARKERS, PALETTE, panels, save
from dpsco_jax.sweeps.report import show
from experiments.studies.gradients_to_floor import ABSOLUTE, Shared, excess_risk, instance

BALL, DP_SGD, AC_SA, LOCALIZATION = "ball acceleration", "DP-SGD", "AC-SA", "localization"
_SOLVERS: Any = {
    BALL: ball_accelerated_erm,
    DP_SGD: sgd,
    AC_SA: private_ac_sa,
    LOCALIZATION: sco,
}
SOLVERS = tuple(_SOLVERS)


@dataclasses.dataclass(frozen=True)
class PrivateNonsmooth:
    """Private ball acceleration, DP-SGD, AC-SA and localization on absolute regression.

    Attributes:
        solvers: names of solvers.
        conditions: κ = LR/ε_opt of ball acceleration.
        shares: of the users, in one of its calls.
        passes: over the users, of DP-SGD and AC-SA.
        factors: on the step sizes that their plans propose.
        seeds: repetitions on the same data.
        num_users: n.
        dim: d.
        steps: of DP-SGD and AC-SA.
        epsilon: ε.
        delta: δ.
        decay: of the features' spectrum.
    """

    name: ClassVar[str] = "private-nonsmooth"
    version: ClassVar[int] = 2
    solvers: tuple[str, ...] = axis("solver", SOLVERS, static=True, choices=SOLVERS)
    conditions: tuple[float, ...] = axis("condition", (5.0, 20.0, 80.0), static=True)
    shares: tuple[float, ...] = axis("share", (0.05, 0.2), static=True)
    passes: tuple[float, ...] = axis("passes", (4.0, 16.0), static=True)
    factors: tuple[float, ...] = axis("factor", (1.0, 4.0, 16.0))
    seeds: int = axis("seed", 3)
    num_users: int = 30_000
    dim: int = 20
    steps: int = 400
    epsilon: float = 1.0
    delta: float = 1e-6
    decay: float = 0.5

    def cells(self) -> list[dict[str, Setting]]:
        found: list[dict[str, Setting]] = []
        for solver in self.solvers:
            runs: list[dict[str, Setting]] = [{}]
            if solver == BALL:
                runs = [{"condition": c, "share": s} for c in self.conditions for s in self.shares]
            elif solver in (DP_SGD, AC_SA):
                runs = [{"passes": p, "factor": f} for p in self.passes for f in self.factors]
            found += [
                {"solver": solver, **r, "seed": seed} for r in runs for seed in range(self.seeds)
            ]
        return found

    def build(self, static: Settings) -> Program:
        solver = str(static["solver"])
        objective, shared, distance = instance(ABSOLUTE, self.dim, self.num_users, self.decay)
        solve = _SOLVERS[solver].solve

        def run(shared: Shared, key: jax.Array, plan: Any) -> dict[str, jax.Array]:
            found = solve(key, plan, objective, shared.data, jnp.zeros(self.dim))
            return {
                "excess_risk": excess_risk(ABSOLUTE, objective, found.params, shared),
                "made": found.unprivate["gradients"].as_float(),
            }

        @functools.cache
        def planned() -> Any:
            problem = Problem(objective, num_users=self.num_users, dim=self.dim, distance=distance)
            budget = Budget(self.epsilon, self.delta)
            if solver == BALL:
                queries = round(float(static["share"]) * self.num_users)
                return ball_accelerated_erm.plan(
                    problem,
                    budget,
                    condition=float(static["condition"]),
                    calls=ball_accelerated_erm.Calls(num_queries=queries),
                    largest_error=math.inf,
                )
            if solver == LOCALIZATION:
                return sco.plan(problem, budget, method="localization", num_stages=1)
            batch = round(float(static["passes"]) * self.num_users / self.steps)
            steps: dict[str, Any] = {"num_steps": self.steps, "batch_size": batch}
            if solver == AC_SA:
                return private_ac_sa.plan(problem, budget, policy="direct", **steps)
            plan = sgd.plan(problem, budget, sampling="fixed", **steps)
            return plan.replace(averaging="polynomial")

        def inputs(settings: Settings) -> Any:
            plan = planned()
            if solver == AC_SA:
                return plan.replace(smoothness=plan.smoothness / settings["factor"])
            if solver == DP_SGD:
                return plan.replace(step_size=plan.step_size * settings["factor"])
            return plan

        def known(settings: Settings) -> dict[str, float]:
            gradients = float(planned().user_gradients)
            trivial = excess_risk(ABSOLUTE, objective, jnp.zeros(self.dim), shared)
            return {"gradients": gradients, "trivial": float(trivial)}

        return Program(run, shared=shared, inputs=inputs, known=known)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        settings = [c for c in ("solver", "condition", "share", "passes", "factor") if c in frame]
        frame[settings] = frame[settings].fillna(-1)
        rows = frame.groupby(settings, sort=False).agg(
            excess=("excess_risk", "mean"),
            spread=("excess_risk", "std"),
            gradients=("made", "mean"),
            planned=("gradients", "first"),
            trivial=("trivial", "first"),
        )
        rows = rows.reset_index()
        rows.to_csv(folder / "private_nonsmooth.csv", index=False)
        best = rows.sort_values("excess").groupby("solver", sort=False).first().reset_index()
        best["passes made"] = best["gradients"] / self.num_users
        columns = ("solver", "excess", "spread", "trivial", "passes made")
        show("least excess risk of each grid", {name: best[name].tolist() for name in columns})
        with panels(1, 1) as (figure, axes):
            panel = axes[0, 0]
            for i, (solver, points) in enumerate(rows.groupby("solver", sort=False)):
                options = {"color": PALETTE[i], "marker": MARKERS[i], "ls": ""}
                x = points["gradients"] / self.num_users
                panel.plot(x, points["excess"], label=solver, **options)
            panel.axhline(rows["trivial"].iloc[0], color="black", lw=0.6)
            panel.set(xscale="log", yscale="log", xlabel="passes over the users")
            panel.set_ylabel("excess risk")
            panel.set_xticks([4, 8, 16, 32], ["4", "8", "16", "32"], minor=False)
            panel.set_xticks([], minor=True)
            panel.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
            save(figure, folder / "private_nonsmooth")
