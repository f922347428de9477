"""Stationary points: a step of correlated noise, a step of Spider, and a whole run from values alone.

Noise is that of a stream of 1,024 steps in which a user takes part once, by the tree, buffers, banded square
roots, by jax_privacy's buffered and banded Toeplitz matrices, and one draw of normal numbers; beside it is
the root mean square of the noise of all prefix sums, for one Gaussian release of multiplier 1. Steps of
Spider and of noisy descent are those of a whole run. Seconds are of all threads of this process, whatever
else runs.
"""

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy import noise_addition
from jax_privacy.matrix_factorization import buffered_toeplitz, streaming_matrix, toeplitz

from dpsco_jax import Budget, Problem, transforms
from dpsco_jax.mechanisms.buffered_noise import buffered
from dpsco_jax.mechanisms.correlated_noise import banded_square_root
from dpsco_jax.mechanisms.tree import TreeCorrelation
from dpsco_jax.problems import fixtures, losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import first_order
from dpsco_jax.solvers.nonconvex import noisy_descent, o2nc_multi_pass, spider
from experiments.benchmarks.timing import Row, interleaved_medians, once

STEPS, BANDS = 1024, (32, 128)
medians = functools.partial(interleaved_medians, repeats=7, clock=time.process_time)


def _next_step(transform: Any, gradient: jax.Array, **extra: Any) -> Callable[[], Any]:
    """A call that goes on where the one before has left the state, whose buffers are used again."""
    held = [transform.init(gradient)]

    @functools.partial(jax.jit, donate_argnums=1)
    def step(gradient: jax.Array, state: Any) -> Any:
        return transform.update(gradient, state, **extra)

    def call() -> Any:
        released, held[0] = step(gradient, held[0])
        return released

    return call


def _spread(column: Any, inverse: Any, steps: int) -> float:
    """The root mean square of the noise of all prefix sums, of a strategy by its first column."""
    sums_of = streaming_matrix.prefix_sum() @ inverse
    return math.sqrt(float(jnp.sum(column**2) * jnp.mean(sums_of.row_norms_squared(steps))))


def noise_rows(entries: int, steps: int) -> list[Row]:
    """One step of a stream."""
    gradient = jnp.zeros(entries)
    sums = transforms.summed_contributions(1.0, 1000)
    ours: dict[str, Any] = {"tree": TreeCorrelation(steps)}
    ours |= {f"our {b} buffers": buffered(steps, max_participations=1, buffers=b) for b in (2, 3)}
    ours |= {f"{b} bands": banded_square_root(steps, max_participations=1, bands=b) for b in BANDS}
    spread, peers = {}, {}
    with jax.enable_x64(True):
        peer = buffered_toeplitz.optimize(n=steps, error="mean")
        decay, scale = (np.asarray(x, np.float32) for x in (peer.buf_decay, peer.output_scale))
        inverse = peer.inverse_as_streaming_matrix()
        spread[f"{len(decay)} buffers"] = _spread(peer.toeplitz_coefs(steps), inverse, steps)
        banded = {b: toeplitz.optimize_banded_toeplitz(steps, min(b, steps)) for b in BANDS}
        for b, column in banded.items():
            inverse = toeplitz.inverse_as_streaming_matrix(column)
            spread[f"banded Toeplitz, {b}"] = _spread(column, inverse, steps)
    # Run in float32, as ours.
    builder = buffered_toeplitz.StreamingMatrixBuilder(buf_decay=decay, output_scale=scale)
    peers[f"{len(decay)} buffers"] = builder.build_inverse()
    for b, column in banded.items():
        peers[f"banded Toeplitz, {b}"] = toeplitz.inverse_as_streaming_matrix(
            np.asarray(column, np.float32)
        )
    spread |= {name: math.sqrt(np.mean(made.prefix_stddev() ** 2)) for name, made in ours.items()}
    calls = {
        name: _next_step(
            transforms.privatize(sums, jax.random.key(0), 1.0, noise_correlation=made),
            gradient,
            clipped_to=1.0,
        )
        for name, made in ours.items()
    }
    for name, matrix in peers.items():
        # A key of its own: the state that holds it is donated.
        added = noise_addition.matrix_factorization_privatizer(
            matrix, stddev=1.0, prng_key=jax.random.key(0)
        )
        calls[name] = _next_step(added, gradient)
    drawn = jax.jit(lambda key: jax.random.normal(key, (entries,)))
    calls["a normal draw"] = lambda: drawn(jax.random.key(0))
    seconds = medians(calls)
    work = f"noise, {entries:,} numbers, T = {steps:,}"
    found = [Row(work, "tree", seconds["tree"], "a normal draw", seconds["a normal draw"], 1 / 1.2)]
    for name in ours:
        for peer_name in peers:
            note = f"rms {spread[name]:.2f}, peer {spread[peer_name]:.2f}"
            found.append(Row(work, name, seconds[name], peer_name, seconds[peer_name], None, note))
    return found


def spider_rows(users: int, dim: int, steps: int) -> list[Row]:
    """A step with everybody, beside one of descent, and with gradients by differentiation."""
    rng = np.random.default_rng(0)
    rows = np.float32(rng.normal(size=(users, 1, dim)) / math.sqrt(dim))
    data = UserData(Example(rows, np.where(rng.random((users, 1)) < 0.5, -1, 1).astype("f4")))
    closed = losses.logistic(1.0)
    calls, made = {}, {}

    def run(name: str, solver: Any, objective: Objective, **given: Any) -> None:
        problem = Problem(objective, num_users=users, dim=dim)
        plan = solver.plan(problem, Budget(1.0, 1e-6), initial_gap=1.0, accountant="rdp", **given)
        solve = jax.jit(
            lambda key, data: first_order.solve(key, plan, objective, data, jnp.zeros(dim)).params
        )
        made[name] = plan.num_steps
        calls[name] = lambda: solve(jax.random.key(0), data)

    numbers = {"num_steps": steps, "period": max(2, steps // 2)}
    run("spider", spider, closed, **numbers)
    run("differentiated", spider, closed._replace(linear_model=None), **numbers)
    run("descent", noisy_descent, closed, most_steps=steps)
    seconds = {name: cost / made[name] for name, cost in medians(calls).items()}
    work = f"a step, {users:,} x {dim}"
    return [
        Row(work, "spider", seconds["spider"], "noisy descent", seconds["descent"], 1 / 2.2),
        Row(work, "spider", seconds["spider"], "vmap(grad)", seconds["differentiated"], 3.0),
    ]


def value_rows(users: int, steps: int) -> list[Row]:
    """O2NC of values alone, compilation included, against two minutes."""
    objective = fixtures.capped_distance(1.5)
    points = np.float32(np.random.default_rng(0).normal(size=(users, 1, 2)))
    plan = o2nc_multi_pass.plan(
        Problem(objective, num_users=users, dim=2, items_per_user=1),
        Budget(1.0, 1e-6),
        initial_gap=1.5,
        smoothing_radius=0.1,
        draws=8,
        num_steps=steps,
        chunk_size=min(users, 2000),
    )
    solve = jax.jit(
        lambda key, data: first_order.solve(key, plan, objective, data, jnp.zeros(2)).params
    )
    took = once(lambda: solve(jax.random.key(0), UserData(points)), time.process_time)
    return [
        Row(f"values, n = {users:,}, m = 8, T = {steps:,}", "o2nc", took, "two minutes", 120.0, 1.0)
    ]


def rows(small: bool = False) -> list[Row]:
    """All comparisons of this file."""
    if small:
        return noise_rows(1000, 64) + spider_rows(500, 5, 4) + value_rows(200, 20)
    return noise_rows(10**6, STEPS) + spider_rows(10**5, 58, 20) + value_rows(10**4, 1330)
