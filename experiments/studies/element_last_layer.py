"""The last layer of a network with an element of a user, or a user whole, as the record.

What it computes: test accuracy of softmax regression on 128 random convolutional features of handwritten
digits (``digits``: 8×8; ``mnist_5k``: 28×28), for pseudo-users who have images of k of K public clusters
(``element_images``). Features are ReLU of fixed random filters, pooled by means, and scaled by mean and
deviation of the public images; with an intercept there are 1,290 parameters. δ = n^(-1.1).

Source: E section 4.3 and Figure 4, whose network and photographs are not at hand.

- "element": ``element_level.sgd``; a record is one of a user's elements;
- "user": ``user_level.sgd``; the user's own mean gradient is clipped: one cluster;
- "user, printed": the baseline of E Corollary 3.2: the update of "element", with noise for a user of whom all
  k elements change. (The paper has min(K, m) in the place of k, which is public here: that would be more
  noise.)

All take the same number of steps, of a tenth of the units or users by coins, clip at 1, and report the
average that leans to the last points. A step of "element" is divided by k, so that the sizes mean the same.

Formal guarantee: (ε, δ)-DP of each run for the record under REPLACE_ONE by the certificate of its plan; that
a user has at most k elements is public. The best step of a few for each method and cell is chosen by test
accuracy, at no charge: tuned non-privately, every method alike.

Cost: see ``element_last_layer.md``.
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
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import losses
from dpsco_jax.problems.datasets import images
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import element_level, user_level
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import error_bars, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize
from experiments.studies import element_images
from experiments.studies.element_orderings import best_of, claims_of_last_layer

ELEMENT, USER, PRINTED = "element", "user", "user, printed"
METHODS = (ELEMENT, USER, PRINTED)
_FEATURES, CLASSES, CLIP_NORM = 128, 10, 1.0
_OBJECTIVE = losses.softmax(feature_bound=2.0, num_classes=CLASSES)
_FILTERS = {"digits": (32, 3, 3), "mnist_5k": (8, 5, 6)}  # how many, their side, the side of a pool


class Data(NamedTuple):
    """Units or users for training, and the rows of the test."""

    train: Any
    rows: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class ElementLastLayer:
    """Test accuracy of a last layer: elements as records, users as records.

    Attributes:
        tasks: sets of images.
        partitions: K, public clusters.
        elements: k, elements of a user.
        methods: names in ``METHODS``.
        epsilons: budgets of the record; ``inf`` is no noise.
        steps: of which the best is shown.
        seeds: runs; the pseudo-users are the same.
        num_users: n.
        items_per_user: m, draws of a user.
        num_steps: T.
        batch_size: users of a step, or as many users' worth of units.
    """

    name: ClassVar[str] = "element-last-layer"
    version: ClassVar[int] = 1
    tasks: tuple[str, ...] = axis("task", images.NAMES, static=True, choices=images.NAMES)
    partitions: tuple[int, ...] = axis("partition", (10, 50), static=True)
    elements: tuple[int, ...] = axis("elements", (2, 5, 10), static=True)
    methods: tuple[str, ...] = axis("method", METHODS, static=True, choices=METHODS)
    epsilons: tuple[str, ...] = axis("epsilon", ("1", "3", "inf"), choices=element_images.EPSILONS)
    steps: tuple[float, ...] = axis("step", (1.0, 4.0, 16.0, 64.0))
    seeds: int = axis("seed", 3)
    num_users: int = 1000
    items_per_user: int = 20
    num_steps: int = 60
    batch_size: int = 100

    def cells(self) -> list[dict[str, Setting]]:
        return product(self)

    @property
    def delta(self) -> float:
        """n^(-1.1)."""
        return float(self.num_users) ** -1.1

    def build(self, static: Settings) -> Program:
        task, method = str(static["task"]), str(static["method"])
        partition, held = int(static["partition"]), int(static["elements"])
        solver: Any = user_level.sgd if method == USER else element_level.sgd

        def run(shared: Data, key: jax.Array, plan: Any) -> dict[str, jax.Array]:
            start = jnp.zeros((shared.rows.shape[1], CLASSES))
            found = solver.solve(key, plan, _OBJECTIVE, shared.train, start).params
            right = jnp.argmax(shared.rows @ found, axis=1) == shared.labels
            return {"accuracy": jnp.mean(right.astype(jnp.float32))}

        def plan(settings: Settings) -> Any:
            made = make_plan(self, held, method, float(settings["epsilon"]))[0]
            size = float(settings["step"]) / (1 if method == USER else held)
            return made.replace(step_size=size)

        return Program(
            run,
            shared=load_data(self, task, partition, held, method),
            inputs=plan,
            known=lambda cell: make_plan(self, held, method, float(cell["epsilon"]))[1],
        )

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        frame = frame.assign(epsilon=frame["epsilon"].astype(float))
        by = ("task", "partition", "elements", "method", "epsilon", "step")
        facts = ("certified_epsilon", "user_epsilon", "noise_to_signal")
        summary = summarize(frame, by, ("accuracy", *facts))
        summary.to_csv(folder / "summary.csv", index=False)
        best = best_of(summary, list(by[:-1]))
        best.to_csv(folder / "best.csv", index=False)
        for (task, partition), rows in best.groupby(["task", "partition"], sort=False):
            _print_table(f"{task}, K = {partition}", rows, self)
        for task, rows in best.groupby("task", sort=False):
            lines = claims_of_last_layer(rows)
            show(f"{task}: what was expected", {"claim": [*lines], "holds": [*lines.values()]})
        _draw(best, self, folder / "element_last_layer")


@functools.cache
def make_plan(
    study: ElementLastLayer, held: int, method: str, epsilon: float
) -> tuple[Any, dict[str, float]]:
    """The plan of a method, and what it says of a record, of a user, and of noise against signal."""
    problem = Problem(
        _OBJECTIVE,
        num_users=study.num_users,
        items_per_user=study.items_per_user,
        dim=(_FEATURES + 1) * CLASSES,
    )
    finite = epsilon < math.inf
    budget = Budget(epsilon if finite else 100.0, study.delta)
    common: dict[str, Any] = {
        "num_steps": study.num_steps,
        "batch_size": study.batch_size,
        "clip_norm": CLIP_NORM,
        "step_size": 1.0,
        "averaging": "polynomial",
    }
    if method == USER:
        replaced = NeighboringRelation.REPLACE_ONE
        plan: Any = user_level.sgd.plan(
            problem, budget, sampling="poisson", relation=replaced, **common
        )
    else:
        printed = {"sampling": "user", "protects": "user"}
        whole: dict[str, Any] = printed if method == PRINTED else {}
        plan = element_level.sgd.plan(
            problem, budget, elements_per_user=held, chunk_size=256, **common, **whole
        )
    if not finite:
        return plan.replace(noise_multiplier=0.0), {}
    made = plan.certificate().epsilon
    ratio = _user_noise_to_signal(plan) if method == USER else 1 / float(plan.signal_to_noise)
    whole_user = plan.user_certificate().epsilon if method == ELEMENT else made
    facts = {"certified_epsilon": made, "user_epsilon": whole_user, "noise_to_signal": ratio}
    return plan, facts


def _user_noise_to_signal(plan: Any) -> float:
    return 2.0 * float(plan.noise_multiplier) * math.sqrt(plan.dim) / plan.batch_size


@functools.cache
def convolved(task: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of training and of test images: scaled random features, and an intercept."""
    found = element_images.split(task)
    count, side, pool = _FILTERS[task]
    filters = np.random.default_rng(3).standard_normal((side, side, count)) / side

    def pooled(part: images.Images) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(part.pixels, (side, side), axis=(1, 2))
        seen = np.maximum(np.einsum("nijab,abf->nijf", windows, filters, optimize=True), 0.0)
        across = seen.shape[1] // pool
        blocks = seen.reshape(len(seen), across, pool, across, pool, count)
        return blocks.mean(axis=(2, 4)).reshape(len(seen), -1)

    public = pooled(found.public)
    centre, scale = public.mean(axis=0), public.std(axis=0) + 1e-6

    def rows(part: images.Images) -> np.ndarray:
        scaled = (pooled(part) - centre) / scale / math.sqrt(len(centre))
        padded = np.pad(scaled, ((0, 0), (0, 1)), constant_values=1.0)
        return padded.astype(np.float32)

    return rows(found.train), rows(found.test)


def load_data(study: ElementLastLayer, task: str, partition: int, held: int, method: str) -> Data:
    """Pseudo-users as units, or as users with all their images; a unit keeps at most 2·m/k images."""
    found, (rows, test) = element_images.split(task), convolved(task)
    labels = element_images.elements_of_training(task, partition)
    draws = element_images.pseudo_users(4, labels, study.num_users, held, study.items_per_user)
    kept = min(study.items_per_user, math.ceil(2 * study.items_per_user / held))
    if method == USER:
        whole = element_images.element_data(
            draws, rows, found.train.labels, 1, study.items_per_user
        )
        train: Any = UserData(jax.tree.map(lambda leaf: leaf[:, 0], whole.items), whole.mask[:, 0])  # type: ignore[index]
    else:
        train = element_images.element_data(draws, rows, found.train.labels, held, kept)
    return Data(train, test, found.test.labels)


def _print_table(title: str, rows: pd.DataFrame, study: ElementLastLayer) -> None:
    pairs = zip(rows["accuracy"], rows["accuracy_ci"], strict=True)
    show(
        f"{title}: best of {len(study.steps)} steps, tuned non-privately (δ = {study.delta:.3g}, ± is a "
        "95 % interval)",
        {
            "k": rows["elements"],
            "record": rows["method"],
            "ε of it": rows["epsilon"],
            "ε of a user": rows["user_epsilon"],
            "noise to signal": rows["noise_to_signal"],
            "step": rows["step"],
            "test accuracy": [f"{mean:.3f} ± {half:.3f}" for mean, half in pairs],
            "seeds": rows["count"],
        },
    )


def _draw(best: pd.DataFrame, study: ElementLastLayer, stem: Path) -> None:
    """A row for each set of images and K, a column for each ε: accuracy against k."""
    tasks = list(dict.fromkeys(zip(best["task"], best["partition"], strict=True)))
    epsilons = sorted(set(best["epsilon"]))
    with panels(len(tasks), len(epsilons), sharex=True, sharey="row") as (figure, axes):
        for row, (task, partition) in zip(axes, tasks, strict=True):
            for panel, epsilon in zip(row, epsilons, strict=True):
                here = (best["task"] == task) & (best["partition"] == partition)
                rows = best[here & (best["epsilon"] == epsilon)]
                error_bars(panel, rows, "elements", "accuracy", "method", METHODS)
                panel.set_title(f"{task}, K = {partition}, ε = {epsilon:g}", loc="left")
                panel.set_xticks(list(study.elements))
            row[0].set_ylabel("test accuracy")
        for panel in axes[-1]:
            panel.set_xlabel("elements of a user, k")
        shared_legend(figure, axes[0])
        save(figure, stem)
