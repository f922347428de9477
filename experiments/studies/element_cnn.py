"""A small convolutional network by federated rounds; the record is an element of a user, or a user whole.

What it computes: test accuracy of a small network on handwritten digits, for pseudo-users who have images of
k of 50 public clusters (``element_images``). At 28×28 it is convolution 1→6 of 5×5, pool, convolution 6→16 of
5×5, pool, and layers 256-120-84-10, with ReLU and without padding: 44,426 parameters. At 8×8 filters are 3×3
and 2×2, the second pool is left out: 19,274 parameters. ``element_level.federated``, one local step, a server
with Adam. δ = n^(-1.1).

Source: E section 4.4 and Figure 5, on other images.

- "element": a record is one of a user's elements; a unit keeps at most m/k images;
- "user": the same solver where a user is a single element of m images, which is user-level DP-SGD.

A convolution is a product with gathered patches: an update of its own for each unit is then a product, too.

Formal guarantee: (ε, δ)-DP of each run for the record under REPLACE_ONE by the certificate of its plan; that
a user has at most k elements is public. Clips are at 1. The better of two rates of Adam for each method and
cell is chosen by test accuracy, at no charge: tuned non-privately, both methods alike.

Cost: see ``element_cnn.md``.
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

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import whole_space
from dpsco_jax.problems.datasets import images
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.solvers.element_level import federated
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import error_bars, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize
from experiments.studies import element_images
from experiments.studies.element_orderings import best_of, claims_of_network

ELEMENT, USER = "element", "user"
METHODS = (ELEMENT, USER)
CLASSES, CLIP_NORM = 10, 1.0


class Shape(NamedTuple):
    """Side of the images, sides of the filters of both convolutions, and of the pools behind them."""

    side: int
    filters: tuple[int, int]
    pools: tuple[int, int]


SHAPES = {"digits": Shape(8, (3, 2), (2, 1)), "mnist_5k": Shape(28, (5, 5), (2, 2))}
_CHANNELS, _LAYERS = (1, 6, 16), (120, 84, CLASSES)


class Data(NamedTuple):
    """Units for training, and images of the test."""

    units: Any
    pixels: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class ElementCNN:
    """Test accuracy of a convolutional network: elements as records, users as records.

    Attributes:
        tasks: sets of images.
        users: n.
        elements: k, elements of a user.
        methods: names in ``METHODS``.
        epsilons: budgets of the record; ``inf`` is no noise.
        rates: of Adam, of which the better is shown.
        seeds: runs; the pseudo-users are the same.
        partition: K, public clusters.
        items_per_user: m, draws of a user.
        num_steps: T, rounds.
        sampling_probability: of a unit in a round.
    """

    name: ClassVar[str] = "element-cnn"
    version: ClassVar[int] = 1
    tasks: tuple[str, ...] = axis("task", ("mnist_5k",), static=True, choices=images.NAMES)
    users: tuple[int, ...] = axis("users", (250, 1000), static=True)
    elements: tuple[int, ...] = axis("elements", (5, 30), static=True)
    methods: tuple[str, ...] = axis("method", METHODS, static=True, choices=METHODS)
    epsilons: tuple[str, ...] = axis("epsilon", ("3", "inf"), choices=element_images.EPSILONS)
    rates: tuple[float, ...] = axis("rate", (0.001, 0.003))
    seeds: int = axis("seed", 1)
    partition: int = 50
    items_per_user: int = 30
    num_steps: int = 60
    sampling_probability: float = 0.02

    def cells(self) -> list[dict[str, Setting]]:
        return product(self)

    def build(self, static: Settings) -> Program:
        task, method = str(static["task"]), str(static["method"])
        users, held = int(static["users"]), int(static["elements"])
        slots = 1 if method == USER else held
        shape = SHAPES[task]
        objective = network_objective(shape)
        start = initial_params(shape)

        def run(shared: Data, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            plan, rate = inputs
            solution = federated.solve(
                key, plan, objective, shared.units, start, server=optax.adam(rate)
            )
            scores = jax.lax.map(
                lambda image: logits(shape, solution.params, image),
                jnp.asarray(shared.pixels),
                batch_size=128,
            )
            right = jnp.argmax(scores, axis=1) == shared.labels
            return {"accuracy": jnp.mean(right.astype(jnp.float32))}

        return Program(
            run,
            shared=load_data(task, self.partition, users, held, slots, self.items_per_user),
            inputs=lambda cell: (
                make_plan(self, task, users, slots, float(cell["epsilon"]))[0],
                float(cell["rate"]),
            ),
            known=lambda cell: make_plan(self, task, users, slots, float(cell["epsilon"]))[1],
        )

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        frame = frame.assign(epsilon=frame["epsilon"].astype(float))
        by = ("task", "users", "elements", "method", "epsilon", "rate")
        facts = ("certified_epsilon", "user_epsilon", "noise_to_signal")
        summary = summarize(frame, by, ("accuracy", *facts))
        summary.to_csv(folder / "summary.csv", index=False)
        best = best_of(summary, list(by[:-1]))
        best.to_csv(folder / "best.csv", index=False)
        for task, rows in best.groupby("task", sort=False):
            _print_table(str(task), rows, self)
            lines = claims_of_network(rows)
            show(f"{task}: what was expected", {"claim": [*lines], "holds": [*lines.values()]})
        _draw(best, self, folder / "element_cnn")


def initial_params(shape: Shape) -> dict[str, Any]:
    """Normal weights of variance 2/(inputs), biases zero: the same public start for all runs."""
    rng = np.random.default_rng(5)
    side = shape.side
    params = {}
    for index, (size, pool) in enumerate(zip(shape.filters, shape.pools, strict=True)):
        rows, columns = size**2 * _CHANNELS[index], _CHANNELS[index + 1]
        params[f"convolution_{index}"] = _layer(rng, rows, columns)
        side = (side - size + 1) // pool
    inputs = side**2 * _CHANNELS[-1]
    for index, outputs in enumerate(_LAYERS):
        params[f"layer_{index}"] = _layer(rng, inputs, outputs)
        inputs = outputs
    return params


def _layer(rng: np.random.Generator, inputs: int, outputs: int) -> dict[str, Any]:
    weights = rng.standard_normal((inputs, outputs)) * math.sqrt(2 / inputs)
    return {"weights": jnp.asarray(weights, jnp.float32), "biases": jnp.zeros(outputs)}


def num_params(shape: Shape) -> int:
    """How many numbers a network has."""
    return sum(leaf.size for leaf in jax.tree.leaves(initial_params(shape)))


def logits(shape: Shape, params: Any, image: jax.Array) -> jax.Array:
    """Scores of the classes of one image ``[side, side]``."""
    maps = image[..., None]
    for index, (size, pool) in enumerate(zip(shape.filters, shape.pools, strict=True)):
        layer = params[f"convolution_{index}"]
        maps = jax.nn.relu(_patches(maps, size) @ layer["weights"] + layer["biases"])
        across, channels = maps.shape[0] // pool, maps.shape[2]
        blocks = maps[: across * pool, : across * pool].reshape(
            across, pool, across, pool, channels
        )
        maps = blocks.max(axis=(1, 3)) if pool > 1 else maps
    hidden = maps.ravel()
    for index in range(len(_LAYERS)):
        layer = params[f"layer_{index}"]
        hidden = hidden @ layer["weights"] + layer["biases"]
        hidden = jax.nn.relu(hidden) if index + 1 < len(_LAYERS) else hidden
    return hidden


def _patches(maps: jax.Array, size: int) -> jax.Array:
    """All windows of ``size`` by ``size``: ``[rows, columns, size·size·channels]``, no padding."""
    rows, columns = maps.shape[0] - size + 1, maps.shape[1] - size + 1
    shifts = [maps[i : i + rows, j : j + columns] for i in range(size) for j in range(size)]
    return jnp.concatenate(shifts, axis=-1)


@functools.cache
def network_objective(shape: Shape) -> Objective:
    """Cross entropy of the network; no Lipschitz constant is known of it, so updates must be clipped."""

    def loss(params: Any, item: Example) -> jax.Array:
        scores = logits(shape, params, item.features)
        return optax.losses.softmax_cross_entropy_with_integer_labels(scores, item.label)

    return Objective(loss=loss, lipschitz=math.inf, smoothness=None, domain=whole_space())


@functools.cache
def make_plan(
    study: ElementCNN, task: str, users: int, slots: int, epsilon: float
) -> tuple[federated.Plan, dict[str, float]]:
    """The plan of a method, and what it says of a record, of a user, and of noise against signal."""
    shape = SHAPES[task]
    problem = Problem(
        network_objective(shape),
        num_users=users,
        items_per_user=study.items_per_user,
        dim=num_params(shape),
    )
    finite = epsilon < math.inf
    plan = federated.plan(
        problem,
        Budget(epsilon if finite else 100.0, float(users) ** -1.1),
        num_steps=study.num_steps,
        elements_per_user=slots,
        batch_size=max(1, round(study.sampling_probability * users)),
        clip_norm=CLIP_NORM,
        step_size=1.0,
        local_step_size=1.0,
        chunk_size=max(1, 64 * slots // study.items_per_user),
    )
    if not finite:
        return plan.replace(noise_multiplier=0.0), {}
    return plan, {
        "certified_epsilon": plan.certificate().epsilon,
        "user_epsilon": plan.user_certificate().epsilon,
        "noise_to_signal": 1 / float(plan.signal_to_noise),
    }


def load_data(
    task: str, partition: int, users: int, held: int, slots: int, items_per_user: int
) -> Data:
    """Pseudo-users of ``held`` elements; a unit keeps at most its share of the user's images."""
    found = element_images.split(task)
    labels = element_images.elements_of_training(task, partition)
    draws = element_images.pseudo_users(6, labels, users, held, items_per_user)
    kept = max(1, items_per_user // slots)
    units = element_images.element_data(draws, found.train.pixels, found.train.labels, slots, kept)
    return Data(units, found.test.pixels, found.test.labels)


def _print_table(task: str, rows: pd.DataFrame, study: ElementCNN) -> None:
    pairs = zip(rows["accuracy"], rows["accuracy_ci"], strict=True)
    show(
        f"{task}: better of {len(study.rates)} rates, tuned non-privately (δ = n^-1.1, ± is a 95 % interval)",
        {
            "n": rows["users"],
            "k": rows["elements"],
            "record": rows["method"],
            "ε of it": rows["epsilon"],
            "ε of a user": rows["user_epsilon"],
            "noise to signal": rows["noise_to_signal"],
            "rate": rows["rate"],
            "test accuracy": [
                f"{mean:.3f} ± {half:.3f}" if half == half else f"{mean:.3f}"
                for mean, half in pairs
            ],
            "seeds": rows["count"],
        },
    )


def _draw(best: pd.DataFrame, study: ElementCNN, stem: Path) -> None:
    """A row for each set of images, a column for each ε: accuracy against n, a line for each record and k."""
    tasks, epsilons = list(dict.fromkeys(best["task"])), sorted(set(best["epsilon"]))
    rows = zip(best["method"], best["elements"], strict=True)
    best = best.assign(series=[f"{method}, k = {k}" for method, k in rows])
    names = [f"{method}, k = {k}" for method in study.methods for k in study.elements]
    with panels(len(tasks), len(epsilons), height=2.6, sharey="row") as (figure, axes):
        for row, task in zip(axes, tasks, strict=True):
            for panel, epsilon in zip(row, epsilons, strict=True):
                here = best[(best["task"] == task) & (best["epsilon"] == epsilon)]
                error_bars(panel, here, "users", "accuracy", "series", names)
                panel.set_title(f"{task}, ε = {epsilon:g}", loc="left")
                panel.set_xticks(list(study.users))
            row[0].set_ylabel("test accuracy")
        for panel in axes[-1]:
            panel.set_xlabel("users, n")
        shared_legend(figure, axes[0])
        save(figure, stem)
