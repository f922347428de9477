"""What acceleration, an adaptive clip norm and a noise shape add to element-level SGD, each alone.

What it computes: the excess of the element objective (E (11): the mean over users of the sum of their
elements' mean losses) on simulated logistic regression, of runs with the same releases: the same sampled
elements, steps and noise multiplier.

- "sgd": ``element_level.sgd``, polynomial average;
- "ac-sa": accelerated steps on the same private means, Γ of ``transforms.balanced_smoothness``;
- "radius": SGD on ``centred_clip`` with the quantile 1/2 of the norms of the units drawn, and no centre. The
  share of units inside comes with the sum, weighted by √(1 - 0.9²), so that no unit's part is longer than 1;
- "shape": SGD in the coordinates in which public second moments of the features are equal, and so clip and
  noise too.

The tasks are "isotropic" and "skewed", whose features have scales from 1 to 1/10.

Source: own; Ghadimi and Lan 2012; Andrew, Thakkar, McMahan and Ramaswamy 2021.

Formal guarantee: (ε, δ)-DP of each run for an element of a user under REPLACE_ONE by the certificate of its
plan: with "radius" two parts of length at most 1 are at most 2 apart, and one that was not drawn adds
nothing. The best step of a grid and the best clip norm, in units of the plan's, are chosen by the excess
itself, at no charge: tuned non-privately, every method alike. Excesses are measurements of a study.

Cost: see ``element_extras.md``.
"""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem, transforms
from dpsco_jax.oracles import Estimate, Oracle, user_gradients
from dpsco_jax.problems import losses
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _planning, first_order, methods
from dpsco_jax.solvers.element_level import sgd
from dpsco_jax.solvers.element_level._releases import ElementReleases
from dpsco_jax.solvers.means import Opened
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.report import show, summarize
from experiments.studies.element_extras_data import (
    BOUND,
    DIM,
    SMALLEST,
    TASKS,
    Drawn,
    data_sets,
    element_value,
    scales_of,
)

SGD, AC_SA, RADIUS, SHAPE = "sgd", "ac-sa", "radius", "shape"
METHODS = (SGD, AC_SA, RADIUS, SHAPE)
QUANTILE, RATE = 0.5, 0.2


@dataclasses.dataclass(frozen=True)
class ElementExtras:
    """Excess of element-level SGD with acceleration, an adaptive clip norm, or a noise shape.

    Attributes:
        tasks: names in ``TASKS``.
        elements: k, elements of a user.
        methods: names in ``METHODS``.
        epsilons: budgets of an element, met by the certificate.
        steps: step sizes, in units of the default, of which the best is shown; AC-SA's is 1/Γ.
        clips: clip norms in units of the Lipschitz constant, of which the best is shown; for "radius" the
            first one.
        seeds: data sets and runs.
        first_seed: number of the first data set: others to judge than to design.
        num_users: n.
        items_per_user: points of a user.
        num_steps: T.
        batch_size: q·n.
    """

    name: ClassVar[str] = "element-extras"
    version: ClassVar[int] = 1
    tasks: tuple[str, ...] = axis("task", TASKS, static=True, choices=TASKS)
    elements: tuple[int, ...] = axis("elements", (2, 8), static=True)
    methods: tuple[str, ...] = axis("method", METHODS, static=True, choices=METHODS)
    epsilons: tuple[float, ...] = axis("epsilon", (0.5, 2.0))
    steps: tuple[float, ...] = axis("step", (0.25, 1.0, 4.0, 16.0))
    clips: tuple[float, ...] = axis("clip", (0.1, 0.3, 1.0))
    seeds: int = axis("seed", 5)
    first_seed: int = 0
    num_users: int = 500
    items_per_user: int = 24
    num_steps: int = 100
    batch_size: int = 50

    def cells(self) -> list[dict[str, Setting]]:
        return product(self)

    @property
    def delta(self) -> float:
        """n^(-1.1)."""
        return float(self.num_users) ** -1.1

    def build(self, static: Settings) -> Program:
        task, slots, method = (static[name] for name in ("task", "elements", "method"))
        sizes = (str(task), int(slots), self.first_seed, self.seeds)
        drawn = data_sets(*sizes, self.num_users, self.items_per_user)
        scales = scales_of(str(task))
        inside = jnp.asarray(_inside_out(scales) if method == SHAPE else np.ones(DIM), jnp.float32)
        # Whose rows are longer in other coordinates: what bounds an update is the clip.
        objective = losses.logistic(BOUND if method != SHAPE else BOUND / SMALLEST)

        def run(shared: Drawn, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            plan, steps, seed = inputs
            units = jax.tree.map(lambda leaf: leaf[seed], shared.units)
            items = units.items._replace(features=units.items.features * inside)
            made = _run(str(method), key, plan, steps, objective, units._replace(items=items))
            value = element_value(made * inside, units) / self.num_users
            return {"excess": value - shared.least[seed]}

        @functools.cache
        def planned(epsilon: float) -> tuple[sgd.Plan, float]:
            problem = Problem(
                losses.logistic(BOUND), num_users=self.num_users, dim=DIM, distance=1.0
            )
            plan = sgd.plan(
                problem,
                Budget(epsilon, self.delta),
                num_steps=self.num_steps,
                elements_per_user=int(slots),
                batch_size=self.batch_size,
                chunk_size=math.ceil(self.batch_size + 3 * math.sqrt(self.batch_size)) * int(slots),
            )
            return plan, plan.certificate().epsilon

        def inputs(settings: Settings) -> tuple[sgd.Plan, Any, int]:
            plan, _ = planned(float(settings["epsilon"]))
            plan = plan.replace(clip_norm=plan.clip_norm * float(settings["clip"]))
            held, step = int(slots), float(settings["step"])
            size = default_step(plan, held, method == AC_SA)
            return plan, jnp.float32(step * size), int(settings["seed"])

        def known(settings: Settings) -> dict[str, float]:
            return {"certified_epsilon": planned(float(settings["epsilon"]))[1]}

        return Program(run, shared=drawn, inputs=inputs, known=known)

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        by = ("task", "elements", "method", "epsilon", "clip", "step")
        summary = summarize(frame, by, ("excess", "certified_epsilon"))
        summary.to_csv(folder / "summary.csv", index=False)
        groups = summary.groupby(["task", "elements", "epsilon", "method"], sort=False)
        best = summary.loc[groups["excess"].idxmin()].reset_index(drop=True)
        best.to_csv(folder / "best.csv", index=False)
        names = ["task", "elements", "epsilon", "method", "clip", "step"]
        columns: dict[str, Any] = {name: list(best[name]) for name in names}
        pairs = zip(best["excess"], best["excess_ci"], strict=True)
        columns["excess"] = [f"{mean:.4f} ± {half:.4f}" for mean, half in pairs]
        show("best of each, tuned non-privately (± is a 95 % interval)", columns)
        compared = gains(frame, best)
        compared.to_csv(folder / "gains.csv", index=False)
        show(
            "plain SGD less each, over the same data sets", {n: list(compared[n]) for n in compared}
        )
        for method, rows in compared.groupby("method", sort=False):
            ahead = int((rows["gain"] > rows["standard_error"]).sum())
            show(str(method), {"cells": [len(rows)], "ahead by a standard error": [ahead]})


def gains(frame: pd.DataFrame, best: pd.DataFrame) -> pd.DataFrame:
    """For each method and cell the mean of SGD's excess less the method's, and its standard error."""
    names = ["task", "elements", "epsilon", "method", "clip", "step"]
    runs = frame.merge(best[names], on=names).set_index([*names[:4], "seed"])["excess"]
    table = runs.unstack("method")
    rows = []
    for method in table:
        if method == SGD:
            continue
        for cell, less in (table[SGD] - table[method]).groupby(level=[0, 1, 2], sort=False):
            task, slots, epsilon = cell
            error = float(less.std() / math.sqrt(len(less)))
            plain = float(table[SGD].loc[cell].mean())
            given = {"method": method, "task": task, "elements": slots, "epsilon": epsilon}
            rows.append(
                given | {"plain": plain, "gain": float(less.mean()), "standard_error": error}
            )
    return pd.DataFrame(rows)


def _inside_out(scales: np.ndarray) -> np.ndarray:
    """What features are multiplied by, so that their mean squares are equal and keep their sum."""
    return math.sqrt(float(np.mean(scales**2))) / scales


def default_step(plan: sgd.Plan, held: int, accelerated: bool) -> float:
    """η of SGD, or 1/Γ of AC-SA, from smoothness, noise and sampling, at distance 1."""
    noise = float(plan.noise_stddev) ** 2 * plan.dim
    rate = plan.batch_size / plan.num_users
    variance = noise + (1 - rate) * held * float(plan.clip_norm) ** 2 / plan.batch_size
    smoothness = held * float(losses.logistic(BOUND).smoothness or math.inf)
    if accelerated:
        steps = plan.num_steps
        return 1 / float(
            np.asarray(transforms.balanced_smoothness(smoothness, variance, steps, 1.0))
        )
    return min(1 / smoothness, 1 / math.sqrt(plan.num_steps * variance))


class AdaptiveUpdates(NamedTuple):
    """The mean of unit gradients clipped to the median of their norms, which the same release follows."""

    releases: ElementReleases
    clip_norm: Any
    chunk_size: int

    def open(self, key: jax.Array, objective: Any, data: UserData, start: Any) -> Opened:
        """Oracle, data and release of a run from ``start``; the key is that of the noise."""
        releases, steps = self.releases, self.releases.steps
        drawn = _planning.sampler(steps.scheme, releases.num_units)
        longest = 2 * float(objective.lipschitz)
        oracle, rows = user_gradients.user_rows_oracle(
            objective, data, start, longest, drawn, self.chunk_size
        )
        units = releases.batch_size * releases.elements_per_user
        # Parts of length 1 at most: those of REPLACE_SPECIAL, and two of them are at most 2 apart.
        made = transforms.centred_clip(
            self.clip_norm,
            units,
            NeighboringRelation.REPLACE_SPECIAL,
            centre_rate=0.0,
            quantile=QUANTILE,
            quantile_rate=RATE,
        )
        halves = transforms.Aggregate(
            made.init, made.update, 2.0 / units, steps.relation, made.finish, within_half=True
        )
        private = transforms.privatize(halves, key, releases.noise_multiplier, steps.scheme)
        return Opened(
            _counted(oracle), rows, optax.chain(private, optax.scale(releases.elements_per_user))
        )


def _counted(oracle: Oracle) -> Oracle:
    """Units that were not drawn, or are empty, have a gradient of zero and are not counted as inside."""

    def ask(key: jax.Array, params: Any, data: Any) -> Estimate:
        made = oracle(key, params, data)
        return made._replace(extra_args={"user_mask": jnp.any(made.gradient != 0, axis=1)})

    return ask


def _run(
    method: str, key: jax.Array, plan: sgd.Plan, step: Any, objective: Any, units: UserData
) -> jax.Array:
    mean: Any = plan.mean
    if method == RADIUS:
        mean = AdaptiveUpdates(plan.releases, plan.clip_norm, plan.chunk_size)
    steps: Any = methods.ProjectedSgd(step, "polynomial")
    if method == AC_SA:
        steps = methods.AcSa(1 / step, 0.0)
    made = (objective, units, jnp.zeros(DIM), plan.num_steps, plan.unit_gradients)
    found: jax.Array = first_order.run(key, mean, steps, *made).params
    return found
