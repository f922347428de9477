"""A convolutional network on scikit-learn's digits, users as records: ghost sums against jax_privacy.

What it computes: test accuracy and time of DP-SGD on all users in every step, for 480 users who hold three
images of 8×8 each (drawn at random, no image twice); of the other 357 images 157 are for choosing among
trials and 200 are the test. The network is a convolution 1→8 of 3×3, pools of 2, and a layer of 10: 1,370
parameters, ReLU.

- "dpsco_jax": ``momentum_sgd`` ("decay": velocity 0.9, steps that fall linearly, last point) or ``sgd``
  ("average": constant steps, average towards the last points), whose sums are ghost sums;
- "jax_privacy": its ``clipped_grad`` and ``gaussian_privatizer`` under the same two tricks: velocity 0.9 with
  falling steps, or with constant ones and the average of the last half.

Source: McMahan et al. 2018 (DP-SGD for users); jax_privacy 2.0.

Formal guarantee: (ε, δ)-DP for users under REPLACE_ONE, n public, by the certificate of the plan; the peer
gets the plan's noise multiplier, over twice the clip norm as well, so that both pay the same. Tricks, rates
and clip norms are chosen by the accuracy on the images for choosing, in runs with other noise than those that
are reported, at no charge to ε, for both alike: tuned non-privately.

Cost: see ``digits_network.md``. Needs the extra ``bench`` for jax_privacy.
"""

import dataclasses
import functools
import math
import time
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem
from dpsco_jax._extra import needs
from dpsco_jax.geometry import whole_space
from dpsco_jax.problems.datasets import images
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import momentum_sgd, sgd
from dpsco_jax.sweeps.cells import Setting, Settings, axis, product
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.figures import error_bars, log_ticks, panels, save, shared_legend
from dpsco_jax.sweeps.report import show, summarize

OURS, PEER = "dpsco_jax", "jax_privacy"
METHODS, TRICKS = (OURS, PEER), ("decay", "average")
TRIAL = ("trick", "rate", "clip_norm")
USERS, ITEMS, CLASSES, CHANNELS = 480, 3, 10, 8
CHOOSING = 157
_MOMENTUM, _MICROBATCH = 0.9, 32


class Data(NamedTuple):
    """Users for training; images for choosing among trials, and those of the test."""

    users: UserData
    chosen_by: Example
    test: Example


@dataclasses.dataclass(frozen=True)
class DigitsNetwork:
    """Test accuracy of a small network for users: the library's solvers against jax_privacy.

    Attributes:
        methods: names in ``METHODS``.
        tricks: "decay" or "average", of which the better is shown.
        epsilons: budgets, met by the certificate.
        rates: step sizes over the clip norm.
        clip_norms: of a user's gradient.
        seeds: repetitions, of noise alone.
        tuning_seeds: how many of them trials are chosen by; the others are reported.
        delta: the δ of all budgets.
        num_steps: of every run.
    """

    name: ClassVar[str] = "digits-network"
    version: ClassVar[int] = 2
    methods: tuple[str, ...] = axis("method", METHODS, static=True, choices=METHODS)
    tricks: tuple[str, ...] = axis("trick", TRICKS, static=True, choices=TRICKS)
    epsilons: tuple[float, ...] = axis("epsilon", (1.0, 2.0, 4.0, 8.0))
    rates: tuple[float, ...] = axis("rate", (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0))
    clip_norms: tuple[float, ...] = axis("clip_norm", (0.5, 1.0, 2.0))
    seeds: int = axis("seed", 8)
    tuning_seeds: int = 3
    delta: float = 1e-4
    num_steps: int = 60

    def cells(self) -> list[dict[str, Setting]]:
        return product(self)

    def build(self, static: Settings) -> Program:
        solve = _OF_METHOD[str(static["method"])](self, str(static["trick"]))

        def run(shared: Data, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
            params = solve(key, shared.users, *inputs)
            return {name: accuracy(params, getattr(shared, name)) for name in ("chosen_by", "test")}

        def planned(cell: Settings) -> Any:
            trick, clip_norm = str(static["trick"]), float(cell["clip_norm"])
            return make_plan(self, trick, float(cell["epsilon"]), clip_norm)

        return Program(
            run,
            shared=load_data(),
            inputs=lambda cell: (planned(cell), float(cell["rate"]) / float(cell["clip_norm"])),
            known=lambda cell: {
                "certified_epsilon": planned(cell).certificate().epsilon,
                "noise_multiplier": float(planned(cell).noise_multiplier),
            },
        )

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        best = best_trials(frame, self.tuning_seeds)
        best.to_csv(folder / "best.csv", index=False)
        pairs = zip(best["test"], best["test_ci"], strict=True)
        show(
            "best trial by other images and other noise, tuned non-privately, both alike "
            f"(δ = {self.delta:g}, ± is a 95 % interval over noise)",
            {
                "method": best["method"],
                "ε, certificate": best["certified_epsilon"],
                **{name: best[name].astype(str) for name in TRIAL},
                "chosen by": best["tuning"],
                "test accuracy": [f"{mean:.3f} ± {half:.3f}" for mean, half in pairs],
                "seeds": best["count"],
            },
        )
        _draw(best, self, folder / "digits_network")


def best_trials(frame: pd.DataFrame, tuning_seeds: int) -> pd.DataFrame:
    """Of each method and ε the trial that is best in the first seeds, as it does in the other seeds.

    Args:
        frame: finished cells.
        tuning_seeds: how many seeds a trial is chosen by. A trial that has fewer is left out.

    Returns:
        A row for each method and ε: the trial, ``tuning``, which it was chosen by, and means, standard errors
        and intervals of the seeds that are reported.
    """
    by = ["method", "epsilon", *TRIAL]
    first = frame["seed"] < tuning_seeds
    tuned = summarize(frame[first], by, ("chosen_by",)).rename(columns={"chosen_by": "tuning"})
    tuned = tuned[tuned["count"] == tuning_seeds]
    chosen = tuned.loc[tuned.groupby(["method", "epsilon"], sort=False)["tuning"].idxmax()]
    reported = summarize(frame[~first], by, ("test", "certified_epsilon", "noise_multiplier"))
    return chosen[[*by, "tuning"]].merge(reported, on=by)


def initial_params() -> dict[str, Any]:
    """Normal weights of variance 2/(inputs), biases zero: the same public start for all runs."""
    rng = np.random.default_rng(5)
    rows = 16 * CHANNELS
    return {
        "filters": jnp.asarray(rng.standard_normal((3, 3, 1, CHANNELS)) * (2 / 9) ** 0.5, jnp.float32),
        "filter_biases": jnp.zeros(CHANNELS),
        "weights": jnp.asarray(rng.standard_normal((rows, CLASSES)) * (2 / rows) ** 0.5, jnp.float32),
        "biases": jnp.zeros(CLASSES),
    }  # fmt: skip


def logits(params: Any, image: jax.Array) -> jax.Array:
    """Scores of the classes of one image ``[8, 8]``."""
    layout = ("NHWC", "HWIO", "NHWC")
    maps = jax.lax.conv_general_dilated(
        image[None, :, :, None], params["filters"], (1, 1), "SAME", dimension_numbers=layout
    )
    maps = jax.nn.relu(maps + params["filter_biases"])
    pooled = maps.reshape(4, 2, 4, 2, CHANNELS).max(axis=(1, 3))
    return pooled.ravel() @ params["weights"] + params["biases"]


def accuracy(params: Any, images: Example) -> jax.Array:
    """The share of images ``[images, 8, 8]`` whose largest score is that of their label."""
    scores = jax.vmap(logits, (None, 0))(params, images.features)
    return jnp.mean((jnp.argmax(scores, axis=1) == images.label).astype(jnp.float32))


def loss(params: Any, item: Example) -> jax.Array:
    """Cross entropy of one image."""
    scores = logits(params, item.features)
    return optax.softmax_cross_entropy_with_integer_labels(scores, item.label)


OBJECTIVE = Objective(loss=loss, lipschitz=math.inf, smoothness=None, domain=whole_space())


@functools.cache
def load_data() -> Data:
    """Users with three images each, and the images that nobody has."""
    found = images.load("digits")
    order = np.random.default_rng(0).permutation(len(found.labels))
    train, rest = order[: USERS * ITEMS], order[USERS * ITEMS :]
    pixels, labels = found.pixels.astype(np.float32), found.labels.astype(np.int32)
    items = Example(pixels[train].reshape(USERS, ITEMS, 8, 8), labels[train].reshape(USERS, ITEMS))
    parts = (Example(pixels[part], labels[part]) for part in (rest[:CHOOSING], rest[CHOOSING:]))
    return Data(UserData(items), *parts)


@functools.cache
def make_plan(study: DigitsNetwork, trick: str, epsilon: float, clip_norm: float = 1.0) -> Any:
    """The plan of a trick; its step size is replaced by the rate."""
    size = sum(leaf.size for leaf in jax.tree.leaves(initial_params()))
    problem = Problem(OBJECTIVE, num_users=USERS, items_per_user=ITEMS, dim=size)
    given: dict[str, Any] = {
        "num_steps": study.num_steps, "sampling": "full", "clip_norm": clip_norm,
        "step_size": 1.0, "chunk_size": USERS,
    }  # fmt: skip
    budget = Budget(epsilon, study.delta)
    if trick == "decay":
        return momentum_sgd.plan(problem, budget, momentum=_MOMENTUM, **given)
    return sgd.plan(problem, budget, averaging="polynomial", **given)


def _ours(study: DigitsNetwork, trick: str) -> Any:
    """``solve(key, users, plan, rate)`` of the library."""
    solver = momentum_sgd if trick == "decay" else sgd

    def solve(key: jax.Array, users: UserData, plan: Any, rate: Any) -> Any:
        chosen = plan.replace(step_size=rate)
        return solver.solve(key, chosen, OBJECTIVE, users, initial_params()).params

    return solve


def _peer(study: DigitsNetwork, trick: str) -> Any:
    """The same of jax_privacy, with momentum, and decay or the average of the last half."""
    with needs("bench"):
        from jax_privacy import clipping, noise_addition
    steps = study.num_steps

    def of_user(params: Any, user: Example) -> jax.Array:
        return jnp.mean(jax.vmap(loss, (None, 0))(params, user))

    def solve(key: jax.Array, users: UserData, plan: Any, rate: Any) -> Any:
        clipped = clipping.clipped_grad(
            of_user,
            l2_clip_norm=plan.clip_norm,
            normalize_by=USERS,
            keep_batch_dim=False,
            microbatch_size=_MICROBATCH,
        )
        stddev = plan.noise_multiplier * clipped.sensitivity(NeighboringRelation.REPLACE_ONE)
        privatizer = noise_addition.gaussian_privatizer(stddev=stddev, prng_key=key)
        velocity = optax.chain(optax.trace(_MOMENTUM), optax.scale(1 - _MOMENTUM))
        start = initial_params()

        def step(carry: Any, number: jax.Array) -> tuple[Any, None]:
            params, noise, memory, mean = carry
            gradient, noise = privatizer.update(clipped(params, users.items), noise)
            moves, memory = velocity.update(gradient, memory)
            size = rate * ((steps - number) / (steps + 1) if trick == "decay" else 1.0)
            params = jax.tree.map(lambda w, v: w - size * v, params, moves)
            kept = jnp.where(number >= steps // 2, 1.0 / (steps - steps // 2), 0.0)
            mean = jax.tree.map(lambda m, w: m + kept * w, mean, params)
            return (params, noise, memory, mean), None

        nothing = jax.tree.map(jnp.zeros_like, start)
        begin = (start, privatizer.init(start), velocity.init(start), nothing)
        (params, _, _, mean), _ = jax.lax.scan(step, begin, jnp.arange(steps))
        return params if trick == "decay" else mean

    return solve


_OF_METHOD = {OURS: _ours, PEER: _peer}


def seconds(study: DigitsNetwork | None = None, repeats: int = 5) -> dict[str, float]:
    """Processor seconds of one run, without compilation, the least of several that take turns."""
    study = DigitsNetwork() if study is None else study
    users, plan = load_data().users, make_plan(study, "decay", 4.0)
    runs = {
        name: jax.jit(make(study, "decay")).lower(jax.random.key(0), users, plan, 1.0).compile()
        for name, make in _OF_METHOD.items()
    }
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            begin = time.process_time()
            jax.block_until_ready(run(jax.random.key(0), users, plan, 1.0))
            found[name].append(time.process_time() - begin)
    return {name: min(taken) for name, taken in found.items()}


def _draw(best: pd.DataFrame, study: DigitsNetwork, stem: Path) -> None:
    """Accuracy against ε, a line for each method."""
    with panels(1, 1, height=3.0) as (figure, axes):
        panel = np.ravel(axes)[0]
        error_bars(panel, best, "epsilon", "test", "method", list(study.methods))
        panel.set_title("digits, three images a user, 480 users", loc="left")
        panel.set_ylabel("test accuracy")
        log_ticks(panel.xaxis, list(study.epsilons))
        panel.set_xlabel(f"user-level ε (δ = {study.delta:g}); bars: 95 %")
        shared_legend(figure, [panel])
        save(figure, stem)
