"""A sweep of noise levels and seeds: one vmapped program, against a loop over a peer's training runs."""

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import transforms
from dpsco_jax.oracles import linear
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.convex import loop
from experiments.benchmarks import peers
from experiments.benchmarks.timing import Row, once

NUM_USERS, DIM, NUM_STEPS, LEVELS, SEEDS = 2000, 50, 300, 16, 16


def rows(peer_runs: int = 8) -> list[Row]:
    """16 noise levels x 16 seeds x 300 steps of private logistic regression, compilation included."""
    features = jax.random.normal(jax.random.key(7), (NUM_USERS, DIM)) / DIM**0.5
    labels = jnp.asarray(jax.random.bernoulli(jax.random.key(8), 0.5, (NUM_USERS,)), jnp.float32)
    noise = jnp.geomspace(0.5, 20.0, LEVELS)
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
        return loop.run(sample_key, oracle, optimizer, jnp.zeros(DIM), data, NUM_STEPS).params

    def ours() -> jax.Array:
        @jax.jit
        def sweep(keys: jax.Array, noise: jax.Array, data: UserData) -> jax.Array:
            prepared = linear.prepare(model, data, DIM)
            over_seeds = jax.vmap(run, (0, None, None))
            return jax.vmap(over_seeds, (None, 0, None))(keys, noise, prepared)

        return sweep(jax.random.split(jax.random.key(0), SEEDS), noise, data)

    def loss(params: jax.Array, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        margin = jnp.vdot(params, example[0])
        return jax.nn.softplus(margin) - example[1] * margin

    # The hand-hoisted loop: compiled once, the noise level and the state are arguments.
    def training(noise_multiplier: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        step, state = peers.jax_privacy_step(
            loss,
            jnp.zeros(DIM),
            clip_norm=1.0,
            noise_multiplier=noise_multiplier,
            num_users=NUM_USERS,
            learning_rate=0.1,
        )
        return jax.lax.fori_loop(0, NUM_STEPS, lambda _, state: step(state, batch), state)[0]

    compiled = jax.jit(training)
    first = once(lambda: compiled(noise[0], (features, labels)))
    rest = once(lambda: [compiled(noise[i % LEVELS], (features, labels)) for i in range(peer_runs)])
    runs = LEVELS * SEEDS
    return [
        Row(
            f"{LEVELS} noise levels x {SEEDS} seeds x {NUM_STEPS} steps, n = {NUM_USERS}, d = {DIM}",
            "one vmapped program, compilation included",
            once(ours),
            "jax_privacy, loop hoisted by hand",
            first + rest / peer_runs * (runs - 1),
            40.0,
            f"peer timed on {peer_runs} of {runs} runs",
        )
    ]
