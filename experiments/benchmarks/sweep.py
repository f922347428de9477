"""A sweep of noise levels and seeds: one vmapped program, against a loop over a peer's training runs."""

import functools
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import transforms
from dpsco_jax.oracles import linear
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import loop
from experiments.benchmarks import peers
from experiments.benchmarks.timing import Row, once

NUM_USERS, DIM, NUM_STEPS, LEVELS, SEEDS = 2000, 50, 300, 16, 16


def ours(
    num_steps: int = NUM_STEPS, levels: int = LEVELS, seeds: int = SEEDS
) -> tuple[Callable[..., jax.Array], tuple[jax.Array, jax.Array, UserData]]:
    """All runs as one function, and its arguments."""
    features = jax.random.normal(jax.random.key(7), (NUM_USERS, DIM)) / DIM**0.5
    labels = jnp.asarray(jax.random.bernoulli(jax.random.key(8), 0.5, (NUM_USERS,)), jnp.float32)
    model = losses.logistic(feature_bound=2.0).linear_model
    assert model is not None
    data = UserData(Example(features[:, None], labels[:, None]))

    def run(key: jax.Array, noise_multiplier: jax.Array, data: linear.LinearData) -> jax.Array:
        noise_key, sample_key = jax.random.split(key)
        optimizer = optax.chain(
            transforms.privatize(
                transforms.summed_contributions(1.0, NUM_USERS), noise_key, noise_multiplier
            ),
            optax.sgd(0.1),
        )
        oracle = linear.clipped_gradient_sum(model, 1.0)
        return loop.run(sample_key, oracle, optimizer, jnp.zeros(DIM), data, num_steps).params

    def sweep(keys: jax.Array, noise: jax.Array, data: UserData) -> jax.Array:
        prepared = linear.prepare(model, data, DIM)
        over_seeds = jax.vmap(run, (0, None, None))
        return jax.vmap(over_seeds, (None, 0, None))(keys, noise, prepared)

    keys = jax.random.split(jax.random.key(0), seeds)
    return sweep, (keys, jnp.geomspace(0.5, 20.0, levels), data)


def peer_run(noise_multiplier: jax.Array, batch: Any, num_steps: int = NUM_STEPS) -> Any:
    """One run of jax_privacy as one program, as few users write it."""
    step, start = _peer_step(noise_multiplier)
    return jax.lax.fori_loop(0, num_steps, lambda _, state: step(state, batch), start)


def _peer_step(noise_multiplier: jax.Array) -> tuple[Any, Any]:
    def loss(params: jax.Array, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        margin = jnp.vdot(params, example[0])
        return jax.nn.softplus(margin) - example[1] * margin

    return peers.jax_privacy_step(
        loss,
        jnp.zeros(DIM),
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        num_users=NUM_USERS,
        learning_rate=0.1,
    )


def rows(small: bool = False) -> list[Row]:
    """16 noise levels x 16 seeds x 300 steps of private logistic regression, compilation included."""
    peer_runs, num_steps, levels, seeds = (1, 3, 2, 2) if small else (8, NUM_STEPS, LEVELS, SEEDS)
    together, given = ours(num_steps, levels, seeds)
    _, noise, data = given
    batch = (data.items.features[:, 0], data.items.label[:, 0])
    _, start = _peer_step(noise[0])

    # Hoisted by hand: one compilation, the noise level an argument of the step.
    @jax.jit
    def step(noise_multiplier: jax.Array, state: Any) -> Any:
        return _peer_step(noise_multiplier)[0](state, batch)

    def loop_of_steps(run: int) -> Any:
        state = start
        for _ in range(num_steps):
            state = step(noise[run % levels], state)
        return state

    # Hoisted further: the whole run is one program.
    hoisted = jax.jit(functools.partial(peer_run, num_steps=num_steps))

    def one_program(run: int) -> Any:
        return hoisted(noise[run % levels], batch)

    work = f"{levels} noise levels x {seeds} seeds x {num_steps} steps, n = {NUM_USERS}, d = {DIM}"
    seconds = once(lambda: jax.jit(together)(*given))
    naive = once(lambda: jax.jit(lambda: peer_run(noise[0], batch, num_steps))()) * levels * seeds
    rows = [
        Row(
            work,
            "one vmapped program",
            seconds,
            "jax_privacy, every run compiled",
            naive,
            None,
            f"peer timed on 1 of {levels * seeds} runs",
        )
    ]
    loops: tuple[tuple[str, Callable[[int], Any], float | None], ...] = (
        ("jax_privacy, jitted step in a loop", loop_of_steps, 40.0),
        ("jax_privacy, jitted run in a loop", one_program, None),
    )
    for name, one_run, target in loops:
        first = once(functools.partial(one_run, 0))
        total = first + (levels * seeds - 1) * statistics.mean(
            once(functools.partial(one_run, run)) for run in range(peer_runs)
        )
        note = f"compilations included; peer timed on {peer_runs} of {levels * seeds} runs"
        rows.append(Row(work, "one vmapped program", seconds, name, total, target, note))
    return rows
