"""Private optimization by sampling on real rows: measured, predicted, and beside tuned gradient descent.

What it computes: excess empirical risk of one draw of the regularized exponential mechanism, of ``langevin``,
private AC-SA and output perturbation as their plans make them for a declared distance R, and of DP-GD and
DP-SGD with the configurations that ``sampling-tuning`` found best in hindsight, run again with other seeds.
Beside it what each plan expects of its nominal problem, what Laplace's method expects with the Hessian of
the data, and which route ``routes.compare`` names first.

Source: T, chapters 3 and 4.

Formal guarantee: each run is (ε, δ)-DP for a row under REPLACE_ONE by the certificate of its plan. Laplace's
prediction, the minimum and all that is measured are not private.

Cost: a draw takes one core 1 to 25 seconds on 20,000 rows of 58 columns, more at larger ε and R; everything
else minutes together. Draws are made one after the other: mapped over keys all lanes take every branch of
every trip, and a draw of four costs four times what it costs alone.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pandas as pd

from dpsco_jax import Budget
from dpsco_jax.solvers.item_level import langevin, private_ac_sa
from dpsco_jax.solvers.sampling import regularized, routes
from dpsco_jax.solvers.user_level import output_perturbation
from dpsco_jax.sweeps.cells import Setting, Settings, axis
from dpsco_jax.sweeps.experiment import Program
from experiments.studies import sampling_tasks
from experiments.studies.sampling_report import write
from experiments.studies.sampling_tasks import Rows, excess_risk, load_rows, shared_rows
from experiments.studies.sampling_tuning import EPSILONS, GD, SCHEDULES, TASKS, Config, runner
from experiments.studies.table_dp_sgd import AVERAGES

TUNED = Path(__file__).parent / "tuned_sampling.csv"
RADII = {
    "regularized": (4.0, 10.0),
    "langevin": (7.0, 10.0, 20.0),
    "private_ac_sa": (4.0, 10.0),
    "output_perturbation": (4.0, 10.0),
}
PEERS = ("DP-GD, last", "DP-GD, averages", "DP-SGD, averages")
METHODS = (*RADII, *PEERS)
_SOLVERS: Any = {
    "regularized": regularized,
    "langevin": langevin,
    "private_ac_sa": private_ac_sa,
    "output_perturbation": output_perturbation,
}
ROUTES = ("regularized", "langevin", "private_ac_sa")


@dataclasses.dataclass(frozen=True)
class SamplingRisk:
    """Draws and noisy gradient steps on real rows: excess risk, predicted and measured.

    Attributes:
        tasks: names of data sets.
        methods: names in ``METHODS``.
        radii: distances that plans are made for; a method takes those of them that ``RADII`` has for it.
        seeds: repetitions; the first axis, so that a run that is stopped has some of every setting.
        epsilons: budgets.
        num_rows: the most rows of a task.
        delta: δ of all budgets.
    """

    name: ClassVar[str] = "sampling-risk"
    version: ClassVar[int] = 1
    x64: ClassVar[bool] = True
    tasks: tuple[str, ...] = axis("task", TASKS, static=True, choices=TASKS)
    methods: tuple[str, ...] = axis("method", METHODS, static=True, choices=METHODS)
    radii: tuple[float, ...] = axis("radius", (4.0, 7.0, 10.0, 20.0))
    seeds: int = axis("seed", 20)
    epsilons: tuple[float, ...] = axis("epsilon", EPSILONS)
    num_rows: int = 20_000
    delta: float = 1e-6

    def cells(self) -> list[dict[str, Setting]]:
        return [
            {"task": task, "method": method, "radius": radius, "seed": seed, "epsilon": epsilon}
            for task in self.tasks
            for method in self.methods
            for seed in range(self.seeds)
            for radius in (
                [r for r in self.radii if r in RADII[method]] if method in RADII else [0.0]
            )
            for epsilon in self.epsilons
        ]

    def build(self, static: Settings) -> Program:
        rows, method = load_rows(str(static["task"]), self.num_rows), str(static["method"])
        return self._peer(rows, method) if method in PEERS else self._solver(rows, method)

    def _solver(self, rows: Rows, method: str) -> Program:
        solve, objective = _SOLVERS[method].solve, rows.objective
        draws = method == "regularized"
        data = rows.one_hot if draws else shared_rows(rows)
        start = jnp.zeros(rows.dim, jnp.float64 if draws else jnp.float32)

        # One after the other: see the file's docstring.
        @jax.custom_batching.sequential_vmap
        def drawn(words: jax.Array, plan: Any, shared: Any) -> jax.Array:
            key = jax.random.wrap_key_data(words)
            return regularized.solve(key, plan, objective, shared, start).params

        def run(shared: Any, key: jax.Array, plan: Any) -> dict[str, jax.Array]:
            if draws:
                point = drawn(jax.random.key_data(key), plan, shared)
            else:
                point = solve(key, plan, objective, shared, start).params
            return {"excess_risk": excess_risk(point, objective, shared, rows.least)}

        @functools.cache
        def planned(radius: float, epsilon: float) -> Any:
            more = (
                {}
                if method in ("private_ac_sa", "output_perturbation")
                else {"columns_per_row": rows.columns}
            )
            budget = Budget(epsilon, self.delta)
            return _SOLVERS[method].plan(rows.problem(radius), budget, **more)

        def inputs(settings: Settings) -> Any:
            return planned(float(settings["radius"]), float(settings["epsilon"]))

        @functools.cache
        def facts(radius: float, epsilon: float) -> dict[str, float]:
            plan = planned(radius, epsilon)
            found = {"bound": float(plan.excess_bound), "steps": float(plan.num_steps)}
            found |= _predictions(rows, self.num_rows, method, plan)
            found["certified_epsilon"] = float(plan.certificate().epsilon)
            first = routes.compare(
                rows.problem(radius), Budget(epsilon, self.delta), columns_per_row=rows.columns
            ).best.name
            return found | {"named": float(ROUTES.index(first)), "trivial": rows.trivial}

        def known(settings: Settings) -> dict[str, float]:
            return facts(float(settings["radius"]), float(settings["epsilon"]))

        return Program(run, shared=data, inputs=inputs, known=known)

    def _peer(self, rows: Rows, method: str) -> Program:
        table = pd.read_csv(TUNED)
        table = table[(table["task"] == rows.name) & (table["peer"] == method)]
        table = table[table["num_rows"] == self.num_rows].set_index("epsilon")

        def of(settings: Settings) -> tuple[Config, float, str]:
            row = table.loc[float(settings["epsilon"])]
            config = Config(row["schedule"], row["mode"], float(row["clip"]), float(row["path"]))
            return config, float(settings["epsilon"]), row["average"]

        full = method.startswith(GD)

        def inputs(settings: Settings) -> Any:
            config, epsilon, average = of(settings)
            numbers = runner(rows, config, epsilon, self.delta)[1]
            return _Run(config.schedule, AVERAGES.index(average), numbers)

        def run(shared: Any, key: jax.Array, given: Any) -> dict[str, jax.Array]:
            config = Config(given.schedule, "constant", 1.0, 1.0)
            descend, _ = runner(rows, config, 1.0, self.delta)
            point = descend(shared, key, given.numbers)[given.average]
            return {"excess_risk": excess_risk(point, rows.objective, shared, rows.least)}

        def known(settings: Settings) -> dict[str, float]:
            steps = SCHEDULES[of(settings)[0].schedule].num_steps
            return {"steps": float(steps), "trivial": rows.trivial}

        return Program(run, shared=shared_rows(rows, always=full), inputs=inputs, known=known)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        write(frame, folder, self.delta, ROUTES)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["average", "numbers"],
    meta_fields=["schedule"],
)
@dataclasses.dataclass(frozen=True)
class _Run:
    """A tuned configuration: its schedule, which average, and its numbers."""

    schedule: str
    average: Any
    numbers: Any


def _predictions(rows: Rows, most: int, method: str, plan: Any) -> dict[str, float]:
    """What the plan expects, and Laplace's method with the Hessian of the data; as far as there is any."""
    if method == "private_ac_sa":
        return {}
    if method == "output_perturbation":
        stddev, added = float(plan.noise_stddev), float(plan.regularization)
        return {"laplace": sampling_tasks.of_output(rows, most, added, stddev)}
    nominal = {"nominal": float(plan.predicted_excess)}
    added = float(plan.regularization)
    if method == "regularized":
        found = sampling_tasks.of_draw(rows, most, added, float(plan.inverse_temperature))
    else:
        found = sampling_tasks.of_steps(
            rows, most, plan.num_steps, float(plan.step_size), added, float(plan.noise_stddev)
        )
    return nominal | {"laplace": found}
