"""``langevin`` beside plain gradient descent on the same rows, and 64 budgets with one compilation."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.item_level import langevin
from experiments.benchmarks.timing import Row, interleaved_medians, once

NUM_ROWS, DIM, STEPS = 100_000, 1_024, 1_000
TARGET = 1.0 / 1.2
OBJECTIVE = losses.logistic(1.0)


def _data(num_rows: int, dim: int) -> UserData:
    generator = np.random.default_rng(0)
    features = generator.standard_normal((num_rows, 1, dim), np.float32) / math.sqrt(dim)
    labels = generator.integers(0, 2, (num_rows, 1)).astype(np.float32)
    return UserData(Example(jnp.asarray(features), jnp.asarray(labels)))


def _plan(num_rows: int, dim: int, num_steps: int, epsilon: float) -> langevin.Plan:
    problem = Problem(OBJECTIVE, num_users=num_rows, dim=dim, distance=10.0)
    return langevin.plan(problem, Budget(epsilon, 1e-6), num_steps=num_steps)


@jax.jit
def _run(key: Any, plan: Any, data: UserData) -> Any:
    start = jnp.zeros(data.items.features.shape[-1])
    return langevin.solve(key, plan, OBJECTIVE, data, start).params


@functools.partial(jax.jit, static_argnums=1)
def _plain(data: UserData, num_steps: int) -> Any:
    features, labels = data.items.features[:, 0], data.items.label[:, 0]

    def step(_: Any, w: Any) -> Any:
        return w - 2.0 * ((jax.nn.sigmoid(features @ w) - labels) @ features) / len(labels)

    return jax.lax.fori_loop(0, num_steps, step, jnp.zeros(features.shape[1]))


def long_run(num_steps: int, repeats: int) -> Row:
    """One run of a given length beside as many plain gradient steps."""
    data, plan = _data(NUM_ROWS, DIM), _plan(NUM_ROWS, DIM, num_steps, 1.0)
    calls = {
        "ours": functools.partial(_run, jax.random.key(0), plan, data),
        "plain": functools.partial(_plain, data, num_steps),
    }
    medians = interleaved_medians(calls, repeats=repeats)
    work = f"{num_steps:,} steps at {NUM_ROWS:,} × {DIM:,}"
    return Row(work, "langevin", medians["ours"], "gradient descent", medians["plain"], TARGET)


def many_budgets(num_rows: int, dim: int, num_steps: int) -> Row:
    """64 values of ε, one run each after the other, beside as many plain runs."""
    data = _data(num_rows, dim)
    plans = [_plan(num_rows, dim, num_steps, epsilon) for epsilon in np.geomspace(0.1, 8.0, 64)]
    run: Any = _run  # the wrapper's types do not know its cache
    before = run._cache_size()
    keys = jax.random.split(jax.random.key(1), len(plans))
    seconds = once(lambda: [_run(key, plan, data) for key, plan in zip(keys, plans, strict=True)])
    compiled = run._cache_size() - before
    peer = once(lambda: [_plain(data, num_steps) for _ in plans])
    work = f"64 values of ε, {num_steps} steps at {num_rows:,} × {dim}"
    note = f"{compiled} compilation{'s' if compiled > 1 else ''}, counted"
    return Row(work, "langevin", seconds, "gradient descent", peer, None, note)


def rows() -> list[Row]:
    """All rows."""
    return [many_budgets(20_000, 58, 100), long_run(STEPS, repeats=1)]
