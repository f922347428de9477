"""Query depth: rounds of parallel queries to equal accuracy, by ball acceleration and by others.

What it computes: the number of rounds after which a run has first reached f(x) - min f ≤ ε, against
κ = LR/ε at fixed dimension and against the dimension at fixed κ, on three kinds of non-smooth functions:
chains of linear functions whose length and drop are matched to κ and d (``hard_instances``), support vector
machines and l1 regression. Every run is told L, R, d and ε only, and smooths accordingly.

- ``ball acceleration``: the limit of infinitely many queries a round: exact gradients of the smoothed
  function, exact ball problems, the search-free rule; a round is a ball problem. Smoothing takes ε/2.
- ``accelerated smoothing``: likewise, AC-SA with step parameter S; a round is a gradient.
- ``..., sampled``: ``parallel_sco`` with practical constants (nothing proved: a line search is one run and
  its answer is reused, φ = λr²/25, 4 in place of 48 in the sample size, dual steps of 1 in place of ½),
  with ε/3 for smoothing; and ``parallel_baselines`` at its proved batch size.
- ``SGD``: with the step that is proved, one query a round.

Source: thesis, chapter 2, Table 2.1: rounds κ^(2/3)d^(1/3), κd^(1/4) and κ², without logarithms.

Formal guarantee: rounds are counted, not timed. The bounds are for the worst function; these are single
ones, so measured exponents may be smaller, and are of the sizes at hand.

Cost: about ten minutes on two cores: 81 programs to compile, and the sampled ball problems.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pandas as pd

from dpsco_jax.geometry import smoothing
from dpsco_jax.problems import hard_instances, regression_instances
from dpsco_jax.problems.hard_instances import Instance
from dpsco_jax.solvers.ball import (
    ball_acceleration,
    exact_ball_oracles,
    parallel_baselines,
    parallel_sco,
)
from dpsco_jax.sweeps.cells import Setting, Settings, axis
from dpsco_jax.sweeps.experiment import Program
from experiments.studies.depth_report import (
    ABSOLUTE,
    ACCELERATED,
    BALLS,
    CHAIN,
    METHODS,
    SAMPLED,
    SAMPLED_BALLS,
    SGD,
    SUPPORT,
    write,
)

INSTANCES = (CHAIN, SUPPORT, ABSOLUTE)


@dataclasses.dataclass(frozen=True)
class QueryDepth:
    """Rounds of queries to equal accuracy: ball acceleration, accelerated smoothing, SGD.

    Attributes:
        instances: names of instances.
        methods: keys of ``METHODS``.
        conditions: κ = LR/ε, at dimension ``base_dim``.
        dims: d, at κ = ``base_condition``.
        seeds: repetitions of the random methods.
        base_dim: d where κ varies.
        base_condition: κ where d varies.
        sampled_condition: the largest κ at which ``..., sampled`` is run, at dimension ``base_dim`` alone.
        rows: of the regressions' data.
        rank: of the regressions' features.
    """

    name: ClassVar[str] = "query-depth"
    version: ClassVar[int] = 1
    instances: tuple[str, ...] = axis("instance", INSTANCES, static=True, choices=INSTANCES)
    methods: tuple[str, ...] = axis("method", tuple(METHODS), static=True, choices=tuple(METHODS))
    conditions: tuple[float, ...] = axis("condition", (16, 32, 64, 128), static=True)
    dims: tuple[int, ...] = axis("dim", (32, 64, 128, 256), static=True)
    seeds: int = axis("seed", 3)
    base_dim: int = 128
    base_condition: float = 32
    sampled_condition: float = 64
    rows: int = 512
    rank: int = 16

    def cells(self) -> list[dict[str, Setting]]:
        points = [(condition, self.base_dim) for condition in self.conditions]
        points += [(self.base_condition, dim) for dim in self.dims]
        return [
            {"instance": name, "method": method, "condition": condition, "dim": dim, "seed": seed}
            for name in self.instances
            for method in self.methods
            for condition, dim in dict.fromkeys(points)
            if method not in (SAMPLED, SAMPLED_BALLS)
            or (condition <= self.sampled_condition and dim == self.base_dim)
            for seed in range(self.seeds if METHODS[method].random else 1)
        ]

    def build(self, static: Settings) -> Program:
        method, condition = str(static["method"]), float(static["condition"])
        made = instance(
            str(static["instance"]), condition, int(static["dim"]), self.rows, self.rank
        )
        excess = made.lipschitz * made.distance / condition
        solve, proved = _SOLVERS[method](made, excess)

        def run(shared: Any, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            del shared, inputs
            params, rounds = solve(key, lambda x: made.value(x) - made.optimum <= excess)
            reached = made.value(params) - made.optimum <= excess
            return {
                "rounds": jnp.asarray(rounds, jnp.float32),
                "reached": reached.astype(jnp.float32),
            }

        return Program(run, known=lambda settings: {"proved_rounds": float(proved)})

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        write(frame, folder, self.base_dim, self.base_condition)


@functools.cache
def instance(name: str, condition: float, dim: int, rows: int, rank: int) -> Instance:
    """An instance; chains are made for their κ and d.

    (κ√d)^(2/3) pieces, each R/(κ√d) below the one before: about as far as a ball reaches, and as many as
    ball acceleration makes rounds.
    """
    key = jax.random.key(0)
    if name == CHAIN:
        reach = condition * math.sqrt(dim)
        pieces = min(dim, math.ceil(reach ** (2 / 3)))
        return hard_instances.orthogonal_maximum(key, dim, pieces, drop=1 / reach)
    makers = {
        SUPPORT: regression_instances.support_vectors,
        ABSOLUTE: regression_instances.absolute_regression,
    }
    return makers[name](key, rows, dim, rank)


Solver = Callable[[Any, Callable[[Any], Any]], tuple[Any, Any]]
"""``solve(key, stop) -> (params, rounds)``."""


def _balls(made: Instance, excess: float) -> tuple[Solver, int]:
    radius = excess / (2 * smoothing.gaussian_bias(made.lipschitz, 1.0, made.dim))
    plan = ball_acceleration.plan(
        lipschitz=made.lipschitz,
        distance=made.distance,
        ball_radius=radius,
        excess=excess / 2,
        search="adaptive",
        exact=True,
    )
    smooth = smoothing.gaussian_smoothness(made.lipschitz, radius)
    oracles = exact_ball_oracles.accelerated_gradient(
        _smoothed(made, radius), smooth, radius, tolerance=1e-2, max_steps=200
    )

    def solve(key: Any, stop: Any) -> tuple[Any, Any]:
        end = ball_acceleration.run(key, plan, oracles, jnp.zeros(made.dim), stop=stop)
        return end.params, end.iterations

    return solve, plan.num_iterations


def _sampled_balls(made: Instance, excess: float) -> tuple[Solver, int]:
    plan = parallel_sco.plan(
        lipschitz=made.lipschitz, distance=made.distance, dim=made.dim, excess=excess
    )

    def solve(key: Any, stop: Any) -> tuple[Any, Any]:
        end = parallel_sco.solve(key, plan, made.gradient, jnp.zeros(made.dim), stop=stop)
        searches, balls, _ = end.trajectory.oracle_calls
        return end.params, searches + balls

    return solve, plan.most_rounds


def _baseline(method: str, exact: bool, made: Instance, excess: float) -> tuple[Solver, int]:
    plan = parallel_baselines.plan(
        lipschitz=made.lipschitz,
        distance=made.distance,
        dim=made.dim,
        excess=excess,
        method=method,
    )
    gradient = made.gradient
    if exact:
        smoothed = _smoothed(made, plan.smoothing_radius)
        # The batch of one is the gradient of the smoothed function itself; without noise S serves for 2S.
        plan = dataclasses.replace(
            plan, batch_size=1, smoothing_radius=0.0, step_size=2 * plan.step_size
        )

        def gradient(keys: Any, points: Any) -> Any:
            return smoothed(points[0])[None]

    def solve(key: Any, stop: Any) -> tuple[Any, Any]:
        end = parallel_baselines.solve(key, plan, gradient, jnp.zeros(made.dim), stop=stop)
        return end.params, end.rounds

    return solve, plan.num_rounds


def _smoothed(made: Instance, stddev: float) -> Callable[[Any], Any]:
    exact = made.smoothed_gradient
    assert exact is not None
    return lambda point: exact(point, stddev)


_SOLVERS: dict[str, Callable[[Instance, float], tuple[Solver, int]]] = {
    BALLS: _balls,
    ACCELERATED: functools.partial(_baseline, "ac_sa", True),
    SGD: functools.partial(_baseline, "sgd", False),
    SAMPLED_BALLS: _sampled_balls,
    SAMPLED: functools.partial(_baseline, "ac_sa", False),
}
