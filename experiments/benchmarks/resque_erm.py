"""Private ERM by ball acceleration: one run, all included; what a query costs beside plain gradients."""

import functools
import resource
import time
from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax import Budget, Problem
from dpsco_jax.oracles import linear, sampling
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.resque import _calls, ball_accelerated_erm
from experiments.benchmarks.timing import Row, interleaved_medians

NUM_USERS, DIM, CONDITION = 100_000, 100, 20.0
LIMIT_SECONDS = 300.0
LOSS = losses.absolute(feature_bound=1.0)


def _data() -> UserData:
    keys = jax.random.split(jax.random.key(0), 3)
    rows = jax.random.normal(keys[0], (NUM_USERS, 1, DIM))
    rows = rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)
    truth = jax.random.normal(keys[1], (DIM,))
    noise = 0.02 * jax.random.normal(keys[2], (NUM_USERS, 1))
    return UserData(Example(rows, rows @ (0.8 * truth / jnp.linalg.norm(truth)) + noise), None)


def _run_row(data: UserData) -> tuple[Row, Any]:
    jax.clear_caches()
    before, busy = time.perf_counter(), time.process_time()
    plan = ball_accelerated_erm.plan(
        Problem(LOSS, num_users=NUM_USERS, dim=DIM, distance=1.0),
        Budget(1.0, 1e-6),
        condition=CONDITION,
        smoothing_radius=1 / CONDITION,
    )

    @jax.jit
    def solve(key: jax.Array, data: UserData) -> jax.Array:
        return ball_accelerated_erm.solve(key, plan, LOSS, data, jnp.zeros(DIM)).params

    jax.block_until_ready(solve(jax.random.key(1), data))
    seconds, busy = time.perf_counter() - before, time.process_time() - busy
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    note = f"{busy:.0f} s of processor time, {memory:.2f} GiB at most"
    work = f"n = {NUM_USERS:,}, d = {DIM}, T = {plan.num_queries:,}, {sum(plan.budgeted)} calls"
    row = Row(work, "plan, compile and run once", seconds, "five minutes", LIMIT_SECONDS, 1.0, note)
    return row, plan


def _query_rows(data: UserData, plan: Any) -> list[Row]:
    """One call, against plain gradients of as many users: in one batch, and in small ones."""
    model = LOSS.linear_model
    assert model is not None
    prepared = jax.jit(lambda d: linear.prepare(model, d, DIM))(data)
    sizes = _calls.levels(plan.num_queries)
    queries = sum(level.num_queries - 1 for level in sizes)

    @jax.jit
    def call(key: jax.Array, prepared: linear.LinearData) -> jax.Array:
        setting = _calls.Setting(
            model, prepared, plan.ball_radius, plan.smoothing_radius, plan.lipschitz
        )
        return _calls.strongly_convex(key, setting, sizes, jnp.zeros(DIM), plan.beta, 100.0)

    def batches(size: int) -> Any:
        draw = functools.partial(sampling.without_replacement, num_users=NUM_USERS, batch_size=size)
        oracle = linear.clipped_gradient_sum(model, 1.0, draw)

        @jax.jit
        def run(key: jax.Array, prepared: linear.LinearData) -> jax.Array:
            def step(point: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
                return point - 1e-4 * oracle(k, point, prepared).gradient / size, None

            keys = jax.random.split(key, queries // size)
            return jax.lax.scan(step, jnp.zeros(DIM), keys)[0]

        return run

    key = jax.random.key(2)
    programs = {"one batch": batches(queries), "of 256": batches(256), "of 16": batches(16)}
    seconds = interleaved_medians(
        {"ours": lambda: call(key, prepared)}
        | {name: functools.partial(run, key, prepared) for name, run in programs.items()},
        repeats=7,
    )
    work = f"{queries:,} queries, d = {DIM}, for each"
    ours = seconds["ours"] / queries
    return [
        Row(work, "private call", ours, f"plain gradients, {name}", seconds[name] / queries, 1 / 3)
        for name in programs
    ]


def rows() -> list[Row]:
    """A run against five minutes; a query against a plain gradient of the same loss."""
    data = _data()
    row, plan = _run_row(data)
    return [row, *_query_rows(data, plan)]
