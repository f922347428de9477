"""A pool of ReSQue queries reweighted along a trajectory, against reading it from memory once a step."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.oracles import resque
from experiments.benchmarks.timing import Row, interleaved_medians

RADIUS, STEP_SIZE = 0.1, 1e-4


def _trajectory(gradient: Any, num_steps: int) -> Any:
    """``run(pool, start)``: gradient steps, each of which needs the estimate at a new point."""

    def step(carry: Any, _: None) -> tuple[Any, None]:
        pool, point = carry
        return (pool, point - STEP_SIZE * gradient(pool, point)), None

    def run(pool: resque.Pool, start: jax.Array) -> jax.Array:
        return jax.lax.scan(step, (pool, start), None, length=num_steps)[0][1]

    return jax.jit(run)


def _from_differences(pool: resque.Pool, point: jax.Array) -> jax.Array:
    """The estimate as it is printed: ratios of densities at the shifts and at the differences."""
    differences = (point - pool.center) - pool.shifts
    squares = jnp.sum(pool.shifts**2, axis=1) - jnp.sum(differences**2, axis=1)
    weights = jnp.exp(squares / (2 * RADIUS**2))
    return jnp.mean(weights[:, None] * pool.gradients, axis=0)


def _read(pool: resque.Pool, num_steps: int) -> Any:
    """Reads shifts and gradients once a step and does next to nothing with them."""
    if jax.default_backend() != "cpu":
        run = _trajectory(lambda p, x: 1e-9 * jnp.vdot(p.shifts, p.gradients) + x, num_steps)
        return lambda: run(pool, pool.center)
    workers = os.cpu_count() or 1
    shifts, gradients = (
        np.array_split(np.asarray(rows).ravel(), workers) for rows in (pool.shifts, pool.gradients)
    )
    executor = ThreadPoolExecutor(workers)

    def read() -> list[Any]:
        return [list(executor.map(np.dot, shifts, gradients)) for _ in range(num_steps)]

    return read


def rows(small: bool = False) -> list[Row]:
    """The trajectory by one product of matrix and vector for the weights, and by differences."""
    num_queries, dim, num_steps = (256, 8, 3) if small else (65_536, 256, 100)
    keys = jax.random.split(jax.random.key(0), 2)
    shifts = RADIUS * jax.random.normal(keys[0], (num_queries, dim))
    pool = resque.Pool(jnp.zeros(dim), shifts, jax.random.normal(keys[1], (num_queries, dim)))
    start = jnp.full(dim, 1e-3)
    ours = _trajectory(lambda p, x: resque.reweighted_gradient(p, x, RADIUS).gradient, num_steps)
    naive, read = _trajectory(_from_differences, num_steps), _read(pool, num_steps)
    seconds = interleaved_medians(
        {
            "ours": lambda: ours(pool, start),
            "naive": lambda: naive(pool, start),
            "read": read,
        },
        repeats=5,
    )
    work = f"pool {num_queries} x {dim}, {num_steps} steps"
    moved = 2.0 * pool.shifts.nbytes * num_steps
    speed = f"{1e-9 * moved / seconds['ours']:.3g} GB/s"
    ours_took, reading, naive_took = seconds["ours"], seconds["read"], seconds["naive"]
    return [
        Row(work, "reweighted", ours_took, "reading it", reading, 0.5, speed, moved=moved),
        Row(work, "reweighted", ours_took, "by differences", naive_took, None, moved=moved),
    ]
