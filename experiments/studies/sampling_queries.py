"""Values only: a certified draw beside two-point DP-SGD that is tuned in hindsight, at no more queries.

What it computes: absolute regression and support vectors, one row a user, on the ball of radius 1; excess
empirical risk of ``value_queries`` as planned, and of ``peers.zeroth_order_sgd`` for every configuration of a
grid, none of which asks for more values than the plan expects. The report takes the best configuration and
average for each problem, dimension and ε. Beside it exponents by plans (``sampling_formulas``), and bounds:
planned risks below what is proven and above what no algorithm beats that sees as many values.

Source: T, Theorems 3.6.4 and 3.7.1, Table 4.1.

Formal guarantee: each run is (ε, δ)-DP under REPLACE_ONE. The choice among configurations is free of charge,
and minima are not private.

Cost: a draw for n = 50 at ε = 1 takes a million trials; twenty at once two minutes of one core.
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
import scipy.optimize

from dpsco_jax import Budget, Problem, geometry
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import value_queries
from dpsco_jax.sweeps.cells import Setting, Settings, axis
from dpsco_jax.sweeps.experiment import Program
from experiments.studies.peers import zeroth_order_sgd
from experiments.studies.sampling_queries_report import write

DRAW, PEER = "value queries", "two-point DP-SGD"
PROBLEMS = {"absolute": losses.absolute, "hinge": losses.hinge}
_BOUNDS = {"absolute": 1.0, "hinge": 3.0}  # of rows: margins of the hinge have to reach its kink
_MODES = ("constant", "decay")
_WIDTH = 1e-3
_SOLVED = 1e-6  # of a minimum; programs are solved to 1e-7


class Instance(NamedTuple):
    """A problem with its minimum.

    Attributes:
        objective: on the ball of radius 1.
        rows: one a user.
        labels: of the rows.
        least: the minimum over the ball.
        trivial: how far above it w = 0 is.
    """

    objective: Objective
    rows: np.ndarray
    labels: np.ndarray
    least: float
    trivial: float


@functools.cache
def instance(name: str, num_users: int, dim: int) -> Instance:
    """Rows on a sphere, labels from a point of norm ½ with noise."""
    generator, bound = np.random.default_rng(0), _BOUNDS[name]
    rows = generator.standard_normal((num_users, dim))
    rows *= bound / np.linalg.norm(rows, axis=1, keepdims=True)
    truth = generator.standard_normal(dim)
    scores = rows @ (0.5 * truth / np.linalg.norm(truth))
    noise = generator.laplace(size=num_users)
    labels = scores + 0.1 * noise
    if name == "hinge":
        labels = (scores + 0.3 * noise > 0).astype(float)
    objective = PROBLEMS[name](bound, domain=geometry.ball(1.0))
    signs = np.ones(num_users) if name == "absolute" else 2.0 * labels - 1.0
    least = _least(name, rows, labels, signs)
    at_zero = np.abs(labels).mean() if name == "absolute" else 1.0
    return Instance(objective, rows, labels, least, at_zero - least)


def _least(name: str, rows: np.ndarray, labels: np.ndarray, signs: np.ndarray) -> float:
    """The minimum over the unit ball: linear programs, with a tangent of the ball more each time."""
    n, dim = rows.shape
    if name == "absolute":
        sides, ends = np.vstack([rows, -rows]), np.concatenate([labels, -labels])
        slack = -np.vstack([np.eye(n), np.eye(n)])
    else:
        sides, ends, slack = -signs[:, None] * rows, -np.ones(n), -np.eye(n)
    cost = np.concatenate([np.zeros(dim), np.full(n, 1.0 / n)])
    above, limits = [np.hstack([sides, slack])], [ends]
    free = [(-1.0, 1.0)] * dim + [(0.0, None)] * n
    for _ in range(200):
        found = scipy.optimize.linprog(
            cost, np.vstack(above), np.concatenate(limits), bounds=free, method="highs"
        )
        length = max(1.0, float(np.linalg.norm(found.x[:dim])))
        inside = rows @ (found.x[:dim] / length)
        losses_inside = np.abs(inside - labels)
        if name == "hinge":
            losses_inside = np.maximum(0.0, 1.0 - signs * inside)
        if losses_inside.mean() <= found.fun + _SOLVED:
            return float(found.fun)
        above.append(np.concatenate([found.x[:dim] / length, np.zeros(n)])[None])
        limits.append(np.ones(1))
    raise ValueError(f"cuts must end on the ball, got a point of norm {length}")


@dataclasses.dataclass(frozen=True)
class SamplingQueries:
    """A certified draw by value queries beside two-point DP-SGD tuned in hindsight.

    Attributes:
        problems: names in ``PROBLEMS``.
        methods: ``DRAW`` and ``PEER``.
        dims: d.
        num_steps: T of the peer.
        directions: of one of its steps; 0 stands for d.
        seeds: repetitions.
        epsilons: budgets.
        clips: clip norms of the peer, in units of the bound on rows.
        paths: η·T of the peer.
        modes: of its steps.
        num_users: n.
        delta: δ of all budgets.
    """

    name: ClassVar[str] = "sampling-queries"
    version: ClassVar[int] = 1
    x64: ClassVar[bool] = True
    problems: tuple[str, ...] = axis(
        "problem", tuple(PROBLEMS), static=True, choices=tuple(PROBLEMS)
    )
    methods: tuple[str, ...] = axis("method", (DRAW, PEER), static=True, choices=(DRAW, PEER))
    dims: tuple[int, ...] = axis("dim", (2, 5), static=True)
    num_steps: tuple[int, ...] = axis("num_steps", (20, 100, 500, 2500), static=True)
    directions: tuple[int, ...] = axis("directions", (1, 0), static=True)
    seeds: int = axis("seed", 20)
    epsilons: tuple[float, ...] = axis("epsilon", (0.5, 1.0))
    clips: tuple[float, ...] = axis("clip", (0.5, 1.0))
    paths: tuple[float, ...] = axis("path", (0.5, 1.0, 2.0, 4.0, 8.0))
    modes: tuple[str, ...] = axis("mode", _MODES, choices=_MODES)
    num_users: int = 50
    delta: float = 1e-4

    def cells(self) -> list[dict[str, Setting]]:
        found: list[dict[str, Setting]] = []
        for problem in self.problems:
            for dim in self.dims:
                both: dict[str, Setting] = {"problem": problem, "dim": dim}
                runs: list[dict[str, Setting]] = [
                    {"seed": seed, "epsilon": epsilon}
                    for seed in range(self.seeds)
                    for epsilon in self.epsilons
                ]
                if DRAW in self.methods:
                    found += [{**both, "method": DRAW, **run} for run in runs]
                if PEER in self.methods:
                    found += [
                        {**both, "method": PEER, **config, **run}
                        for config in self._configs()
                        for run in runs
                    ]
        return found

    def _configs(self) -> list[dict[str, Setting]]:
        return [
            {"num_steps": steps, "directions": m, "clip": clip, "path": path, "mode": mode}
            for steps in self.num_steps
            for m in self.directions
            for clip in self.clips
            for path in self.paths
            for mode in self.modes
        ]

    def build(self, static: Settings) -> Program:
        name, dim = str(static["problem"]), int(static["dim"])
        made = instance(name, self.num_users, dim)
        data = UserData(Example(made.rows[:, None], made.labels[:, None]))
        model = made.objective.linear_model
        assert model is not None
        link = model.link

        def excess(shared: UserData, point: jax.Array) -> jax.Array:
            margins = shared.items.features[:, 0] @ point
            return jnp.mean(link(margins, shared.items.label[:, 0])) - made.least

        @functools.cache
        def planned(epsilon: float) -> value_queries.Plan:
            problem = Problem(made.objective, num_users=self.num_users, dim=dim)
            return value_queries.plan(problem, Budget(epsilon, self.delta))

        @functools.cache
        def of_plan(epsilon: float) -> dict[str, float]:
            plan = planned(epsilon)
            return {
                "bound": float(plan.excess_bound),
                "queries": float(plan.expected_value_queries),
                "trivial": made.trivial,
            }

        if static["method"] == DRAW:

            def draw(shared: UserData, key: jax.Array, plan: Any) -> dict[str, jax.Array]:
                found = value_queries.solve(key, plan, made.objective, shared, jnp.zeros(dim))
                return {"excess_risk": excess(shared, found.params)}

            return Program(
                draw,
                shared=data,
                inputs=lambda s: planned(float(s["epsilon"])),
                known=lambda s: of_plan(float(s["epsilon"])),
            )
        steps, directions = int(static["num_steps"]), int(static["directions"]) or dim
        queries = zeroth_order_sgd.value_queries(self.num_users, steps, directions)

        def descend(shared: UserData, key: jax.Array, plan: Any) -> dict[str, jax.Array]:
            rows, labels = shared.items.features[:, 0], shared.items.label[:, 0]
            ends = zeroth_order_sgd.solve(
                key, plan, made.objective, rows, labels, steps, directions
            )
            names = zeroth_order_sgd.AVERAGES
            return {n: excess(shared, end) for n, end in zip(names, ends, strict=True)}

        def inputs(settings: Settings) -> zeroth_order_sgd.Plan:
            allowed = of_plan(float(settings["epsilon"]))["queries"]
            if queries > allowed:
                raise ValueError(
                    f"num_steps must ask for at most {allowed:.4g} values, got {queries}"
                )
            bound, decay = _BOUNDS[name], settings["mode"] == "decay"
            return zeroth_order_sgd.plan(
                float(settings["epsilon"]),
                self.delta,
                steps,
                bound * float(settings["clip"]),
                float(settings["path"]) / bound * math.sqrt(float(settings["epsilon"])),
                _WIDTH,
                decay,
            )

        def known(settings: Settings) -> dict[str, float]:
            return {"queries": float(queries), "trivial": made.trivial}

        return Program(descend, shared=data, inputs=inputs, known=known)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        write(frame, folder, DRAW, PEER, self.delta)
