"""Rough losses: how near private methods come to Goldstein's stationarity, against the number of users.

What it computes: from a start that is not stationary, the Goldstein norm of the risk of the data (the length
of the shortest vector of the hull of gradients within 2α, by ``goldstein_norm``, an upper bound from points
that are drawn) and the risk, where three private methods end: O2NC in many passes and in one, each as its own
plan says, which takes the Lipschitz constant and knows no data; and clipped DP-SGD with gradients at points
shifted within α, the least norm of a grid in hindsight, at no charge to ε.

- capped distance: min(‖params - z‖, 1½) to points z of two clusters in the plane, seven tenths in one;
- ReLU network: 5-4-1 with fixed outer weights, absolute error, labels of such a network and a tenth of noise.

Source: thesis, chapter 8, Algorithms 23 to 26, which has no experiments.

Formal guarantee: each run is (ε, δ)-DP for a user under REPLACE_ONE. What is measured, and the choice in
hindsight, is not private.

Cost: a few minutes on one core.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import fixtures
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData, mean_loss
from dpsco_jax.solvers import first_order, means, methods
from dpsco_jax.solvers.nonconvex import goldstein, o2nc_multi_pass, o2nc_single_pass
from dpsco_jax.sweeps.cells import Setting, Settings, axis
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show

MANY, ONE, TUNED = SOLVERS = ("O2NC, many passes", "O2NC, one pass", "tuned DP-SGD")
CLUSTERS, NETWORK = TASKS = ("capped distance", "ReLU network")
_DELTA = 1e-6
_CAP, _FEATURES, _UNITS = 1.5, 5, 4


class Rough(NamedTuple):
    """A loss, its data and a start.

    Attributes:
        objective: the loss, Lipschitz with constant 1.
        data: of all users.
        start: public.
        gap: F(start) - inf F, at most.
    """

    objective: Objective
    data: UserData
    start: Any
    gap: float

    @property
    def problem(self) -> Problem:
        """As plans take it."""
        users = len(jax.tree.leaves(self.data.items)[0])
        return Problem(self.objective, num_users=users, dim=np.size(self.start), items_per_user=1)


@functools.cache
def rough(task: str, num_users: int) -> Rough:
    """One of the tasks, with data drawn for so many users."""
    rng = np.random.default_rng(0)
    if task == CLUSTERS:
        large = rng.random((num_users, 1)) < 0.7
        centres = np.where(large, [1.0, 0.0], [-1.0, 0.5])
        points = (centres + 0.1 * rng.standard_normal((num_users, 2))).astype(np.float32)
        data = UserData(points[:, None])
        return Rough(fixtures.capped_distance(_CAP), data, np.zeros(2, np.float32), _CAP)
    truth, start = rng.standard_normal((2, _FEATURES, _UNITS))
    rows = rng.standard_normal((num_users, _FEATURES))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    outer = (1.0 - 2.0 * (np.arange(_UNITS) % 2)) / np.sqrt(_UNITS)
    noise = 0.1 * rng.standard_normal(num_users)
    labels = np.clip(np.maximum(2 * rows @ truth, 0.0) @ outer + noise, -2.0, 2.0)
    data = UserData(Example(np.float32(rows[:, None]), np.float32(labels[:, None])))
    # Labels are at most 2, predictions at the start at most half the norm of the start.
    start = np.float32(start / np.linalg.norm(start))
    return Rough(fixtures.relu_network(1.0, _UNITS), data, start, 2.5)


@dataclasses.dataclass(frozen=True)
class RoughLosses:
    """Goldstein norms of private methods on rough losses.

    Attributes:
        tasks: "capped distance", "ReLU network".
        solvers: "O2NC, many passes", "O2NC, one pass", "tuned DP-SGD".
        num_users: n.
        epsilons: ε.
        steps: T of the grid of DP-SGD.
        step_sizes: η of that grid.
        seeds: repetitions on the same data.
        radius: α, of the smoothing; norms are those within 2α.
        most_steps: T of O2NC in many passes is at most this.
        points: drawn for a Goldstein norm.
    """

    name: ClassVar[str] = "rough-losses"
    version: ClassVar[int] = 1
    tasks: tuple[str, ...] = axis("task", TASKS, static=True, choices=TASKS)
    solvers: tuple[str, ...] = axis("solver", SOLVERS, static=True, choices=SOLVERS)
    num_users: tuple[int, ...] = axis("users", (1000, 4000, 16_000), static=True)
    epsilons: tuple[float, ...] = axis("epsilon", (1.0,), static=True)
    steps: tuple[int, ...] = axis("steps", (100, 400), static=True)
    step_sizes: tuple[float, ...] = axis("step size", (0.01, 0.03, 0.1, 0.3, 1.0))
    seeds: int = axis("seed", 5)
    radius: float = 0.1
    most_steps: int = 500
    points: int = 50

    def cells(self) -> list[dict[str, Setting]]:
        found: list[dict[str, Setting]] = []
        grid: list[dict[str, Setting]] = [
            {"steps": t, "step size": s} for t in self.steps for s in self.step_sizes
        ]
        for task in self.tasks:
            for users in self.num_users:
                for epsilon in self.epsilons:
                    at: dict[str, Setting] = {"task": task, "users": users, "epsilon": epsilon}
                    for solver in self.solvers:
                        found += [
                            {**at, "solver": solver, **entry, "seed": seed}
                            for entry in (grid if solver == TUNED else [{}])
                            for seed in range(self.seeds)
                        ]
        return found

    def _plan(self, static: Settings, at: Rough) -> Any:
        budget, problem = Budget(float(static["epsilon"]), _DELTA), at.problem
        smoothed: Any = {
            "initial_gap": at.gap, "smoothing_radius": self.radius, "order": "first", "draws": 4,
        }  # fmt: skip
        if static["solver"] == MANY:
            return o2nc_multi_pass.plan(
                problem, budget, most_steps=self.most_steps, chunk_size=1000, **smoothed
            )
        if static["solver"] == ONE:
            return o2nc_single_pass.plan(problem, budget, **smoothed)
        mean = means.clipped(
            problem,
            budget,
            num_steps=int(static["steps"]),
            batch_size=problem.num_users // 4,
            relation=NeighboringRelation.REPLACE_ONE,
            chunk_size=1000,
        )
        mean = dataclasses.replace(mean, smoothing_radius=self.radius)
        return first_order.plan(problem, budget, mean, methods.ProjectedSgd(1.0, "last"))

    def build(self, static: Settings) -> Program:
        at = rough(str(static["task"]), int(static["users"]))
        plan, tuned = self._plan(static, at), static["solver"] == TUNED
        near = 2.0 * self.radius

        def measured(key: jax.Array, data: UserData, params: Any) -> dict[str, jax.Array]:
            found = goldstein.goldstein_norm(key, at.objective, data, params, near, self.points)
            return {
                "norm": found.norm,
                "gap": found.gap,
                "risk": mean_loss(at.objective)(params, data),
            }

        def run(data: Any, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            used = plan.replace(step_size=inputs["step size"]) if tuned else plan
            keys = jax.random.split(key)
            solution = first_order.solve(keys[0], used, at.objective, data, jnp.asarray(at.start))
            return measured(keys[1], data, solution.params)

        start = jax.jit(measured)(jax.random.key(0), at.data, jnp.asarray(at.start))
        known = {
            "made": float(plan.num_steps),
            "start": float(start["norm"]),
            "start risk": float(start["risk"]),
            "certified": float(plan.certificate().epsilon),
        }
        if not tuned:
            known["proven"] = float(plan.details["goldstein_bound"])
        return Program(run, shared=at.data, known=lambda cell: known)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        keys = ["task", "epsilon", "users", "solver"]
        frame = frame.assign(**{c: np.nan for c in ("steps", "step size") if c not in frame})
        values = ["norm", "risk", "gap", "made", "start", "start risk", "proven"]
        entries = frame.groupby([*keys, "steps", "step size"], dropna=False)[values]
        means_of = entries.agg(["mean", "std"])
        means_of.columns = [n if kind == "mean" else f"{n} ±" for n, kind in means_of.columns]
        means_of = means_of.reset_index()
        best = means_of.loc[means_of.groupby(keys)["norm"].idxmin()].reset_index(drop=True)
        best.to_csv(folder / "rough_losses.csv", index=False)
        for task, part in best.groupby("task"):
            columns = ["users", "epsilon", "solver", *values, "norm ±", "steps", "step size"]
            show(str(task), {name: part[name].tolist() for name in columns})
        with panels(2, len(self.tasks)) as (figure, axes):
            for column, (task, part) in enumerate(best.groupby("task")):
                for row, value in enumerate(("norm", "risk")):
                    panel = axes[row, column]
                    for i, (solver, line) in enumerate(part.groupby("solver")):
                        style: Any = {"color": PALETTE[i], "marker": MARKERS[i], "ls": LINES[i]}
                        error = line[f"{value} ±"].fillna(0.0)
                        panel.errorbar(line["users"], line[value], error, label=solver, **style)
                    panel.axhline(
                        part["start" if row == 0 else "start risk"].iloc[-1], c="0.6", lw=1
                    )
                    panel.set(xscale="log", xlabel="users")
                    log_ticks(panel.xaxis, sorted(part["users"].unique()))
                axes[0, column].set_title(str(task), loc="left")
            axes[0, 0].set_ylabel("Goldstein norm")
            axes[1, 0].set_ylabel("risk")
            shared_legend(figure, [axes[0, 0]])
            save(figure, folder / "rough_losses")
