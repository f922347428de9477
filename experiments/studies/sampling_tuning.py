"""The strongest noisy gradient descent for rows as records: full batches and sampled ones, 60 settings each.

What it computes: for each task and ε the excess risk of DP-GD and DP-SGD for every configuration of a grid:
number of steps (and share of the rows in one), clip norm, length of the path η·T, and constant steps,
momentum of 0.9 or linearly falling steps. Averages cost no runs: a run gives its last point, the uniform
average, that with weights t³, and that of the last half. ``report`` picks by the mean over seeds, once
among last points and once among all averages, and writes ``tuned.csv``: what ``sampling-risk`` runs again
with other seeds.

Source: DP-SGD with the tricks that are in common use; full batches are ``table_dp_sgd``, sampled ones
``momentum_sgd``, without replacement.

Formal guarantee: each run is (ε, δ)-DP for a row under REPLACE_ONE by the tightest accountant of the house.
The choice among runs is not, and costs no ε: it is a baseline in its own favour.

Cost: a quarter of an hour of one core for a task of 60 columns.
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

from dpsco_jax import Budget
from dpsco_jax.solvers.user_level import momentum_sgd
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.report import show, summarize
from experiments.studies import table_dp_sgd
from experiments.studies.sampling_tasks import Rows, excess_risk, load_rows, shared_rows
from experiments.studies.table_dp_sgd import AVERAGES, Flat

TASKS = ("flights", "nlswork", "insteval")
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
MODES = ("constant", "momentum", "decay")
GD, SGD = "DP-GD", "DP-SGD"


class Schedule(NamedTuple):
    """How many steps, and which share of the rows takes part in one."""

    method: str
    num_steps: int
    share: float


SCHEDULES = {
    "100 full": Schedule(GD, 100, 1.0),
    "400 full": Schedule(GD, 400, 1.0),
    "200 of a quarter": Schedule(SGD, 200, 0.25),
    "500 of a tenth": Schedule(SGD, 500, 0.1),
}


class Config(NamedTuple):
    """What is tuned.

    Attributes:
        schedule: a name in ``SCHEDULES``.
        mode: one of ``MODES``.
        clip: clip norm; a row's gradient is at most 1 long, and ½ at the start.
        path: η·T, in units of √ε.
    """

    schedule: str
    mode: str
    clip: float
    path: float


def runner(rows: Rows, config: Config, epsilon: float, delta: float) -> tuple[Any, Any]:
    """A configuration as a program and its inputs.

    Returns:
        ``run(shared, key, inputs) -> [averages, dim]``, which depends on the schedule and, for sampled
        batches, the mode; and the inputs.
    """
    method, num_steps, _ = SCHEDULES[config.schedule]
    objective, path = rows.objective, config.path * math.sqrt(epsilon)
    if method == GD:
        settings = table_dp_sgd.Settings(
            clip=config.clip,
            step=path / num_steps,
            heavy=float(config.mode == "momentum"),
            decay=float(config.mode == "decay"),
            noise_multiplier=table_dp_sgd.multiplier(num_steps, epsilon, delta),
        )

        def descend(shared: Any, key: jax.Array, inputs: Any) -> jax.Array:
            return table_dp_sgd.run(flat(shared), key, inputs, objective, num_steps)

        return descend, settings
    sampled = _sampled_plan(rows.name, rows.num_rows, config.schedule, epsilon, delta)
    plan = sampled.replace(
        clip_norm=config.clip,
        step_size=path / num_steps,
        momentum=0.9 if config.mode == "momentum" else 0.0,
        step_decay="linear" if config.mode == "decay" else "none",
    )

    def sample(shared: Any, key: jax.Array, inputs: Any) -> jax.Array:
        start = jnp.zeros(rows.dim, jnp.float32)
        solution = momentum_sgd.solve(
            key, inputs, objective, shared, start, lambda params, *_: params
        )
        iterates = solution.unprivate["trace"]
        weights = (jnp.arange(num_steps) + 1.0) ** 3
        return jnp.stack(
            [
                iterates[-1],
                jnp.mean(iterates, axis=0),
                weights @ iterates / jnp.sum(weights),
                jnp.mean(iterates[num_steps // 2 :], axis=0),
            ]
        )

    return sample, plan


def flat(shared: Any) -> Flat:
    """Rows as ``table_dp_sgd`` has them, of one slot each."""
    features, labels = shared.items.features, shared.items.label
    squares = jnp.sum(jnp.square(features), axis=(1, 2))
    least = jnp.zeros(())
    return Flat(features, labels, jnp.ones(labels.shape), squares[None, None], (), least)


@functools.cache
def _sampled_plan(name: str, num_rows: int, schedule: str, epsilon: float, delta: float) -> Any:
    _, num_steps, share = SCHEDULES[schedule]
    return momentum_sgd.plan(
        load_rows(name, num_rows).problem(1.0),
        Budget(epsilon, delta),
        num_steps=num_steps,
        batch_size=round(share * num_rows),
        sampling="fixed",
        clip_norm=1.0,
        step_size=1.0,
        momentum=0.0,
        step_decay="none",
    )


@dataclasses.dataclass(frozen=True)
class SamplingTuning:
    """A grid of DP-GD and DP-SGD with a row as the record, tuned in hindsight.

    Attributes:
        tasks: names of data sets.
        schedules: names in ``SCHEDULES``.
        modes: constant steps, momentum, falling steps.
        clips: clip norms.
        paths: η·T in units of √ε.
        epsilons: budgets.
        seeds: repetitions.
        num_rows: the most rows of a task.
        delta: δ of all budgets.
    """

    name: ClassVar[str] = "sampling-tuning"
    version: ClassVar[int] = 1
    tasks: tuple[str, ...] = axis("task", TASKS, static=True, choices=TASKS)
    schedules: tuple[str, ...] = axis(
        "schedule", tuple(SCHEDULES), static=True, choices=tuple(SCHEDULES)
    )
    modes: tuple[str, ...] = axis("mode", MODES, choices=MODES)
    clips: tuple[float, ...] = axis("clip", (0.5, 1.0))
    paths: tuple[float, ...] = axis("path", (600.0, 1200.0, 2400.0, 4800.0, 9600.0))
    epsilons: tuple[float, ...] = axis("epsilon", EPSILONS)
    seeds: int = axis("seed", 3)
    num_rows: int = 20_000
    delta: float = 1e-6

    def cells(self) -> list[dict[str, Setting]]:
        return product(self)

    def build(self, static: Settings) -> Program:
        rows = load_rows(str(static["task"]), self.num_rows)
        schedule = str(static["schedule"])

        def config(settings: Settings) -> tuple[Config, float]:
            mode, clip, path = str(settings["mode"]), settings["clip"], settings["path"]
            made = Config(schedule, mode, float(clip), float(path))
            return made, float(settings["epsilon"])

        def run(shared: Any, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            # The program is the same for all configurations of a schedule whose inputs are alike.
            descend, _ = runner(rows, Config(schedule, MODES[0], 1.0, 1.0), 1.0, self.delta)
            found = descend(shared, key, inputs)
            return {
                name: excess_risk(point, rows.objective, shared, rows.least)
                for name, point in zip(AVERAGES, found, strict=True)
            }

        def inputs(settings: Settings) -> Any:
            return runner(rows, *config(settings), self.delta)[1]

        full = SCHEDULES[schedule].method == GD
        return Program(run, shared=shared_rows(rows, always=full), inputs=inputs)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        best = tuned(frame).assign(num_rows=self.num_rows)
        best.to_csv(folder / "tuned.csv", index=False)
        for task, found in best.groupby("task", sort=False):
            ends = (min(self.paths), max(self.paths))
            marked = [f"{x:g}{' (end)' if x in ends else ''}" for x in found["path"]]
            columns = ("epsilon", "peer", "schedule", "mode", "average", "clip")
            table = {name: found[name].tolist() for name in columns}
            show(f"{task}: best in hindsight", table | {"path": marked, "excess": found["excess"]})


def tuned(frame: pd.DataFrame) -> pd.DataFrame:
    """The best configuration of each peer, for each task and ε."""
    by = ["task", "epsilon", *Config._fields]
    means = summarize(frame, tuple(by), AVERAGES)
    long = means.melt(
        id_vars=by, value_vars=list(AVERAGES), var_name="average", value_name="excess"
    )
    long["method"] = [SCHEDULES[name].method for name in long["schedule"]]
    peers = {
        f"{GD}, last": (long["method"] == GD) & (long["average"] == "last"),
        f"{GD}, averages": long["method"] == GD,
        f"{SGD}, averages": long["method"] == SGD,
    }
    parts = []
    for peer, chosen in peers.items():
        rows = long[chosen & np.isfinite(long["excess"])]
        first = rows.loc[rows.groupby(["task", "epsilon"], sort=False)["excess"].idxmin()]
        parts.append(first.assign(peer=peer))
    columns = ["task", "epsilon", "peer", *Config._fields, "average", "excess"]
    return pd.concat(parts, ignore_index=True)[columns]
