"""Solvers for heavy tails and online experts beside what they cannot be faster than, or a loop in NumPy.

Costs are processor seconds of all threads, which other programs change less than the clock.
"""

import functools
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers.heavy_tailed import aggregate_erm, clipped_gd, onepass_clipped_sgd
from dpsco_jax.solvers.online import experts
from experiments.benchmarks.timing import Row, interleaved_medians

NUM_USERS, DIM, STEPS = 100_000, 100, 10
PASS_USERS, PASS_SECONDS, SEEDS = 1_000_000, 60.0, 20
ROUNDS, EXPERTS, BATCH, TIMED = 1_000_000, 1_000, 4, 20_000
LOSS = losses.logistic(1.0)
MOMENTS = Moments(4.0, 1.0)


def _data(num_users: int) -> UserData:
    generator = np.random.default_rng(0)
    features = generator.standard_normal((num_users, 1, DIM), np.float32) / math.sqrt(DIM)
    labels = generator.integers(0, 2, (num_users, 1)).astype(np.float32)
    return UserData(Example(jnp.asarray(features), jnp.asarray(labels)))


@functools.partial(jax.jit, static_argnums=1)
def _plain(data: UserData, num_steps: int) -> Any:
    """Gradient descent with nothing private, as many steps."""
    features, labels = data.items.features[:, 0], data.items.label[:, 0]

    def step(_: Any, w: Any) -> Any:
        return w - ((jax.nn.sigmoid(features @ w) - labels) @ features) / len(labels)

    return jax.lax.fori_loop(0, num_steps, step, jnp.zeros(features.shape[1]))


def clipped_rows(num_users: int, num_steps: int, repeats: int) -> list[Row]:
    """Steps of ``clipped_gd`` beside unclipped full gradients, and five copies beside one run of all."""
    data, budget = _data(num_users), Budget(1.0, 1e-8)
    problem = Problem(LOSS, num_users=num_users, dim=DIM, distance=1.0)
    numbers: dict[str, Any] = {
        "moments": MOMENTS,
        "regularization": 0.1,
        "num_steps": num_steps,
    }
    one = clipped_gd.plan(problem, budget, **numbers)
    five = aggregate_erm.plan(problem, budget, **numbers, num_copies=5)
    solve = functools.partial(jax.jit, static_argnums=1)
    run: Any = solve(
        lambda data, of: (
            (clipped_gd if of == 1 else aggregate_erm)
            .solve(jax.random.key(0), one if of == 1 else five, LOSS, data, jnp.zeros(DIM))
            .params
        )
    )
    calls = {
        "one": functools.partial(run, data, 1),
        "five": functools.partial(run, data, 5),
        "plain": functools.partial(_plain, data, num_steps),
    }
    found = interleaved_medians(calls, repeats=repeats, clock=time.process_time)
    work = f"{num_steps} steps, n = {num_users:,}, d = {DIM}"
    peer = "unclipped full gradients"
    return [
        Row(work, "clipped_gd", found["one"], peer, found["plain"], 1 / 1.3),
        Row(work, "aggregate_erm, 5 copies", found["five"], "clipped_gd", found["one"], 1 / 1.2),
    ]


def pass_rows(num_users: int) -> list[Row]:
    """One pass of clipped steps beside a minute, and twenty passes of other steps beside ten."""
    data = _data(num_users)
    steps = onepass_clipped_sgd.clipped_steps(LOSS, data, 0.5)

    def one(step_size: Any) -> Any:
        return onepass_clipped_sgd.run(
            steps, lambda x: x, jnp.zeros(DIM), first=0, count=num_users, step_size=step_size
        )[0]

    run, many = jax.jit(one), jax.jit(jax.vmap(one))
    sizes = jnp.linspace(0.1, 1.0, SEEDS)
    calls = {"one": lambda: run(sizes[0]), "many": lambda: many(sizes)}
    found = interleaved_medians(calls, repeats=1, clock=time.process_time)
    alone, together = found["one"], found["many"]
    work = f"one pass over n = {num_users:,}, d = {DIM}"
    limit = PASS_SECONDS * num_users / PASS_USERS
    return [
        Row(work, "onepass_clipped_sgd", alone, "a minute for a million", limit, 1.0),
        Row(work, f"{SEEDS} at once", together, "ten of one", 10.0 * alone, 1.0),
    ]


def _from_table(table: Any, t: Any) -> Any:
    return table[t % table.shape[0]]


def _loop(table: np.ndarray, rate: float, rounds: int) -> float:
    """Exponential weights in NumPy, a play drawn in each round."""
    generator = np.random.default_rng(0)
    total, suffered = np.zeros(table.shape[1]), 0.0
    for t in range(rounds):
        weights = np.exp(-rate * (total - total.min()))
        play = generator.choice(len(total), p=weights / weights.sum())
        loss = table[t % len(table)]
        suffered += loss[play]
        total += loss
    return suffered


def _lazy_loop(table: np.ndarray, rate: float, chance: float, rounds: int) -> float:
    """What ``experts`` does, in NumPy: a play is drawn where a coin is lost."""
    generator = np.random.default_rng(0)
    total, seen, suffered, play = np.zeros(table.shape[1]), 0.0, 0.0, 0
    for t in range(rounds):
        loss = table[t % len(table)]
        suffered, seen = suffered + loss[play], seen + loss[play]
        total += loss
        if t % BATCH == BATCH - 1:
            if generator.random() > (1.0 - chance) * math.exp(-rate * seen):
                weights = np.exp(-rate * (total - total.min()))
                play = generator.choice(len(total), p=weights / weights.sum())
            seen = 0.0
    return suffered


def experts_rows(rounds: int, timed: int) -> list[Row]:
    """A run of ``experts`` on losses that are there, beside NumPy loops whose first rounds are timed."""
    table = np.random.default_rng(0).random((1000, EXPERTS), np.float32)
    plan = experts.plan(rounds, EXPERTS, Budget(1.0, 1e-7), batch_size=BATCH)
    losses_: Any = Partial(_from_table, jnp.asarray(table))
    run: Any = jax.jit(experts.solve)
    rate, chance = float(plan.learning_rate), float(plan.redraw_probability)
    doubles = table.astype(np.float64)
    calls = {
        "ours": lambda: run(jax.random.key(0), plan, losses_),
        "loop": lambda: _loop(doubles, rate, timed),
        "lazy": lambda: _lazy_loop(doubles, rate, chance, timed),
    }
    found = interleaved_medians(calls, repeats=3, clock=time.process_time)
    work = f"T = {rounds:,}, d = {EXPERTS:,}, B = {BATCH}"
    note = f"{timed:,} of its rounds timed"
    scale = rounds / timed
    return [
        Row(work, "experts", found["ours"], "weights in NumPy", scale * found["loop"], 50.0, note),
        Row(work, "experts", found["ours"], "lazy NumPy", scale * found["lazy"], None, note),
    ]


def rows(small: bool = False) -> list[Row]:
    """All rows."""
    if small:
        return [*clipped_rows(2_000, 2, 1), *pass_rows(2_000), *experts_rows(2_000, 200)]
    return [
        *clipped_rows(NUM_USERS, STEPS, 3),
        *pass_rows(PASS_USERS),
        *experts_rows(ROUNDS, TIMED),
    ]
