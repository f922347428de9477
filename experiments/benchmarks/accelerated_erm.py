"""Accelerated phased ERM: one run and a batch of seeds, all included; memory of a step against users."""

import functools
import time

import jax
import jax.numpy as jnp

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.oracles import linear, linear_users, sampling
from dpsco_jax.privacy.concentrated.threshold_phase import calibrate_concentrated
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import means
from dpsco_jax.solvers.user_level import accelerated_phased_erm
from dpsco_jax.transforms import outlier_removed_mean
from experiments.benchmarks.timing import Row

NUM_USERS, ITEMS, DIM, SEEDS = 20_000, 10, 50, 20
EPSILON, DELTA = 2.0, 1e-6
LIMIT_SECONDS, LIMIT_RATIO = 60.0, 8.0
MeanType = type[means.Clipped] | type[means.OutlierRemoved]
LOSS = losses.logistic(feature_bound=1.0, domain=domains.ball(1.0))


def _data() -> UserData:
    keys = jax.random.split(jax.random.key(0), 2)
    rows = jax.random.normal(keys[0], (NUM_USERS, ITEMS, DIM)) / DIM**0.5
    chance = jax.nn.sigmoid(jnp.sum(rows, -1))
    labels = (jax.random.uniform(keys[1], chance.shape) < chance).astype(jnp.float32)
    return UserData(Example(rows, labels), None)


def _from_scratch(mean: MeanType, seeds: int, data: UserData) -> tuple[float, float]:
    """Seconds of wall clock and of the processor: plan, compilation and run."""
    jax.clear_caches()
    before, busy = time.perf_counter(), time.process_time()
    plan = accelerated_phased_erm.plan(
        Problem(LOSS, num_users=NUM_USERS, items_per_user=ITEMS, dim=DIM, distance=1.0),
        Budget(EPSILON, DELTA),
        mean=mean,
    )

    def solve(key: jax.Array, data: UserData) -> jax.Array:
        return accelerated_phased_erm.solve(key, plan, LOSS, data, jnp.zeros(DIM)).params

    if seeds == 1:
        jax.block_until_ready(jax.jit(solve)(jax.random.key(1), data))
    else:
        keys = jax.random.split(jax.random.key(1), seeds)
        jax.block_until_ready(jax.jit(jax.vmap(solve, in_axes=(0, None)))(keys, data))
    return time.perf_counter() - before, time.process_time() - busy


def speed_rows(mean: MeanType) -> list[Row]:
    """One run against a minute, and a batch of seeds against eight runs."""
    data = _data()
    one, one_busy = _from_scratch(mean, 1, data)
    many, many_busy = _from_scratch(mean, SEEDS, data)
    work = f"n = {NUM_USERS:,}, m = {ITEMS}, d = {DIM}, {mean.__name__}"
    return [
        Row(
            work,
            "plan, compile and run once",
            one,
            "a minute",
            LIMIT_SECONDS,
            1.0,
            f"{one_busy:.0f} s of processor time",
        ),
        Row(
            work,
            f"the same for {SEEDS} seeds at once",
            many,
            f"{LIMIT_RATIO:g} times one",
            LIMIT_RATIO * one,
            1.0,
            f"{many_busy:.0f} s of processor time",
        ),
    ]


def temporary_bytes(num_users: int, batch_size: int = 2048, dim: int = 100) -> int:
    """Temporaries of one step, gradients of a batch and their tested mean, as the compiler reports them."""
    model = LOSS.linear_model
    assert model is not None
    sampler = functools.partial(
        sampling.without_replacement, num_users=num_users, batch_size=batch_size
    )
    oracle = linear_users.per_user_gradients(model, 1.0, sampler)
    releases = calibrate_concentrated(
        num_users, 50, EPSILON, DELTA, batch_size=batch_size, test="stream"
    )

    def step(key: jax.Array, params: jax.Array, data: linear.LinearData) -> jax.Array:
        oracle_key, noise_key = jax.random.split(key)
        release = outlier_removed_mean(releases, 0.5, noise_key)
        gradients = oracle(oracle_key, params, data).gradient
        return release.update(gradients, release.init(params), params)[0]

    rows = jax.ShapeDtypeStruct((num_users, ITEMS, dim), jnp.float32)
    labels = jax.ShapeDtypeStruct((num_users, ITEMS), jnp.float32)
    data = jax.eval_shape(
        functools.partial(linear.prepare, model, dim=dim), UserData(Example(rows, labels), None)
    )
    point = jax.ShapeDtypeStruct((dim,), jnp.float32)
    compiled = jax.jit(step).lower(jax.random.key(0), point, data).compile()
    analysis = compiled.memory_analysis()
    return analysis.temp_size_in_bytes if analysis else 0


def memory_rows() -> list[Row]:
    """Temporaries of a step for 200,000 users against those for 20,000."""
    few, many = temporary_bytes(20_000), temporary_bytes(200_000)
    return [
        Row(
            "temporaries of a step of 2,048 users, dim 100",
            "200,000 users",
            many / 1e6,
            "20,000 users",
            few / 1e6,
            0.99,
            f"the data are {200_000 * ITEMS * 100 * 4 / 1e6:.0f} MB",
            unit="MB",
        )
    ]


def rows() -> list[Row]:
    """Speed of both means, and memory."""
    return [*speed_rows(means.OutlierRemoved), *speed_rows(means.Clipped), *memory_rows()]
