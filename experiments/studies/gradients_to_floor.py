"""How many gradients it takes to reach the error that privacy leaves anyway: AC-SA, localization, DP-SGD.

What it computes: excess empirical risk against the number of gradients T·B, at one budget (ε, δ), one item
for each user, on absolute regression (not smooth, the minimizer known exactly) and logistic regression with
a small ridge (smooth and strongly convex, the minimum by Newton's method), whose features have a spectrum
that decays as 1/k. DP-SGD (batches of a fixed size, an average that weighs iterate t by t³) and private AC-SA
get the same grid: T, and a factor on the step size that their plan proposes; AC-SA also the choice between
its policies. Two lines come out of it for each: "tuned", the best of the grid in hindsight, at no charge to
ε, and "planned", the entry of factor 1 whose proven bound is least (DP-SGD: that of the plain average),
which needs no data. Localization is run as planned, on absolute regression in the smallest dimension. The
floor is the least mean excess that anything reached.

Beside it, how T·B of the planners grows with N for d = N^a, against the exponents of the thesis.

Source: T Algorithms 4, 5 and 35, Theorems 1.1.1 and 1.1.2, Figure 1.2.

Formal guarantee: each run is (ε, δ)-DP under replacement of one user by its Rényi curve. That distances to
the minimizer are known, and everything measured, is not private.

Cost: 1,083 runs of up to 1,600,000 gradients in up to 500 dimensions, 73 compilations; 17 minutes of CPU.
"""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry.domains import ball
from dpsco_jax.problems import losses, synthetic
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.item_level import private_ac_sa, sco
from dpsco_jax.solvers.user_level import sgd
from dpsco_jax.sweeps.cells import Setting, Settings, axis
from dpsco_jax.sweeps.experiment import Program
from experiments.studies import floor_report
from experiments.studies.floor_report import AC_SA, DP_SGD, LOCALIZATION, PLANNERS

ABSOLUTE, LOGISTIC = LOSSES = ("absolute", "logistic")
_SOLVERS: Any = {DP_SGD: sgd, AC_SA: private_ac_sa, LOCALIZATION: sco}
SOLVERS = tuple(_SOLVERS)
_POLICIES = {ABSOLUTE: ("direct",), LOGISTIC: ("direct", "strongly_convex")}
_CHUNK = 512


class Shared(NamedTuple):
    """What all runs on one data set read."""

    data: UserData
    minimizer: Any


class Instance(NamedTuple):
    """A data set with its objective and the distance from the start to the minimizer."""

    objective: Objective
    shared: Shared
    distance: float


@dataclasses.dataclass(frozen=True)
class GradientsToFloor:
    """Excess risk against gradients of private AC-SA, localization and DP-SGD; exponents of their plans.

    Attributes:
        losses: "absolute", "logistic".
        dims: d.
        solvers: "DP-SGD", "private AC-SA", "localization".
        passes: T·B over N.
        steps: T, of the grid.
        factors: on the step sizes of the plans.
        seeds: repetitions on the same data.
        exponents: a of the planners' d = N^a.
        sizes: N of the planners.
        num_users: N of the runs.
        epsilon: ε.
        delta: δ.
        decay: of the features' spectrum.
        plan_epsilon: ε of the planners.
    """

    name: ClassVar[str] = "gradients-to-floor"
    version: ClassVar[int] = 1
    losses: tuple[str, ...] = axis("loss", LOSSES, static=True, choices=LOSSES)
    dims: tuple[int, ...] = axis("dim", (20, 100, 500), static=True)
    solvers: tuple[str, ...] = axis("solver", SOLVERS, static=True, choices=SOLVERS)
    passes: tuple[float, ...] = axis("passes", (1.0, 4.0, 16.0), static=True)
    steps: tuple[int, ...] = axis("steps", (400, 1600), static=True)
    factors: tuple[float, ...] = axis("factor", (1.0, 4.0, 16.0, 64.0))
    seeds: int = axis("seed", 3)
    exponents: tuple[float, ...] = axis("exponent", (0.0, 0.5, 1.0, 1.5))
    sizes: tuple[int, ...] = axis("users", (10**4, 10**5, 10**6, 10**7, 10**8))
    num_users: int = 100_000
    epsilon: float = 1.0
    delta: float = 1e-6
    decay: float = 1.0
    plan_epsilon: float = 0.5

    def cells(self) -> list[dict[str, Setting]]:
        found: list[dict[str, Setting]] = []
        for loss in self.losses:
            for dim in self.dims:
                for solver in self.solvers:
                    # It needs a domain of finite radius, and takes a minute to compile.
                    if solver == LOCALIZATION and (loss == LOGISTIC or dim > min(self.dims)):
                        continue
                    runs = self._runs(loss, solver)
                    found += [{"loss": loss, "dim": dim, "solver": solver, **run} for run in runs]
        found += [
            {"solver": solver, "users": n, "exponent": a}
            for solver in PLANNERS
            # Plans of localization take seconds each.
            for n in self.sizes[:: 1 if PLANNERS[solver] == "convex ERM" else 2]
            for a in self.exponents
        ]
        return found

    def _runs(self, loss: str, solver: str) -> list[dict[str, Setting]]:
        seeds = range(self.seeds)
        if solver == LOCALIZATION:
            return [{"policy": "planned", "seed": seed} for seed in seeds]
        policies = _POLICIES[loss] if solver == AC_SA else ("averaged",)
        return [
            {"passes": p, "steps": t, "policy": policy, "factor": f, "seed": seed}
            for p in self.passes
            for t in self.steps
            if 1 <= round(p * self.num_users / t) <= self.num_users
            for policy in policies
            for f in self.factors
            for seed in seeds
        ]

    def build(self, static: Settings) -> Program:
        solver = str(static["solver"])
        if solver in PLANNERS:
            return Program(
                lambda shared, key, inputs: {"drawn": jnp.zeros([])},
                known=lambda s: self._counts(solver, int(s["users"]), float(s["exponent"])),
            )
        loss, dim = str(static["loss"]), int(static["dim"])
        objective, shared, distance = instance(loss, dim, self.num_users, self.decay)
        solve = _SOLVERS[solver].solve

        def run(shared: Shared, key: jax.Array, plan: Any) -> dict[str, jax.Array]:
            found = solve(key, plan, objective, shared.data, jnp.zeros(dim))
            return {"excess_risk": excess_risk(loss, objective, found.params, shared)}

        @functools.cache
        def planned(policy: str) -> Any:
            problem = Problem(objective, num_users=self.num_users, dim=dim, distance=distance)
            budget = Budget(self.epsilon, self.delta)
            if solver == LOCALIZATION:
                return sco.plan(
                    problem, budget, method="localization", num_stages=1, chunk_size=_CHUNK
                )
            steps = int(static["steps"])
            batch = round(float(static["passes"]) * self.num_users / steps)
            common: dict[str, Any] = {
                "num_steps": steps,
                "batch_size": batch,
                "accountant": "rdp",
                "chunk_size": _CHUNK,
            }
            if solver == AC_SA:
                return private_ac_sa.plan(problem, budget, policy=policy, **common)
            # The bound of a plan leaves the ridge out; the gradients of both are of the same size.
            plain = dataclasses.replace(problem, objective=objective._replace(ridge=0.0))
            plan = sgd.plan(plain, budget, sampling="fixed", **common)
            # It runs with the ridge, so it is not one of those that ask for their own objective.
            return plan.replace(averaging="polynomial", made_for=None)

        def inputs(settings: Settings) -> Any:
            plan = planned(str(settings["policy"]))
            if solver == AC_SA:
                return plan.replace(smoothness=plan.smoothness / settings["factor"])
            if solver == DP_SGD:
                return plan.replace(step_size=plan.step_size * settings["factor"])
            return plan

        def known(settings: Settings) -> dict[str, float]:
            plan = planned(str(settings["policy"]))
            return {
                "gradients": float(plan.user_gradients),
                "bound": float(plan.excess_bound),
                "trivial": float(excess_risk(loss, objective, jnp.zeros(dim), shared)),
            }

        return Program(run, shared=shared, inputs=inputs, known=known)

    def _counts(self, solver: str, num_users: int, exponent: float) -> dict[str, float]:
        """T·B of a plan for a loss that is not smooth, on the unit ball."""
        objective = losses.absolute(1.0, domain=ball(1.0))
        dim = max(1, round(num_users**exponent))
        problem = Problem(objective, num_users=num_users, dim=dim, distance=1.0)
        # Exponents are looked at, for which δ stays the same: nobody's data are protected by these plans.
        budget = Budget(self.plan_epsilon, self.delta, allow_large_delta=True)
        if PLANNERS[solver] == "convex ERM":
            plan: Any = private_ac_sa.plan(problem, budget, accountant="rdp")
        else:
            plan = sco.plan(problem, budget, num_stages=1)
        return {"gradients": float(plan.user_gradients)}

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        plans = frame[frame["solver"].isin(PLANNERS)]
        runs = frame[~frame["solver"].isin(PLANNERS)]
        floor_report.write_runs(runs, self.num_users, folder)
        floor_report.write_plans(plans, self.plan_epsilon, self.delta, folder)


@functools.lru_cache(maxsize=1)
def instance(loss: str, dim: int, num_users: int, decay: float) -> Instance:
    """The data of one problem: labels of the order of 1 whatever the dimension.

    Raises:
        ValueError: if the loss is not known.
    """
    key = jax.random.key(dim)
    if loss == ABSOLUTE:
        found = synthetic.absolute_regression(key, num_users, dim, math.sqrt(dim), 0.5, decay)
    elif loss == LOGISTIC:
        # Ridge 1e-4: with less, strong convexity proves nothing at these sizes.
        found = synthetic.logistic_regression(
            key, num_users, 1, dim, 0.0, 2 * math.sqrt(dim), 1e-4, decay
        )
    else:
        raise ValueError(f"loss must be {ABSOLUTE!r} or {LOGISTIC!r}, got {loss!r}")
    distance = float(np.linalg.norm(found.minimizer))
    minimizer = jnp.asarray(found.minimizer, jnp.float32)
    return Instance(found.objective, Shared(found.data, minimizer), distance)


def excess_risk(loss: str, objective: Objective, params: jax.Array, shared: Shared) -> jax.Array:
    """The empirical risk above its minimum, as a mean of small numbers."""
    if loss == ABSOLUTE:
        return synthetic.absolute_excess(params, shared.minimizer, shared.data)
    features, labels = shared.data.items
    model = objective.linear_model
    assert model is not None
    here, best = (
        model.link(features[:, 0] @ point, labels[:, 0]) for point in (params, shared.minimizer)
    )
    added = objective.regularizer(params) - objective.regularizer(shared.minimizer)
    return jnp.mean(here - best) + added
