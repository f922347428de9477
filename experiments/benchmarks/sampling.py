"""The proximal sampler: a chain beside the bare gradients and values that it asks for."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import alternating_sampler
from dpsco_jax.solvers.sampling.proximal_oracle import proximal_oracle
from experiments.benchmarks.timing import Row, interleaved_medians

SIZES = ((20_000, 58, 40), (100_000, 1_024, 5))  # rows, parameters, steps
TARGET = 1.0 / 1.3
OBJECTIVE = losses.logistic(1.0)


def _data(num_rows: int, dim: int) -> UserData:
    generator = np.random.default_rng(0)
    features = generator.standard_normal((num_rows, 1, dim)) / math.sqrt(dim)
    labels = generator.integers(0, 2, (num_rows, 1)).astype(float)
    return UserData(Example(jnp.asarray(features), jnp.asarray(labels)))


@functools.partial(jax.jit, static_argnums=2)
def _chain(key: Any, data: UserData, num_steps: int, temperature: float) -> Any:
    dim = data.items.features.shape[-1]
    oracle = proximal_oracle(
        OBJECTIVE,
        data,
        jnp.zeros(dim),
        inverse_temperature=temperature,
        convexity=1e-3,
        num_steps=num_steps,
    )
    start = jnp.zeros(dim)
    return alternating_sampler.run(
        key, oracle, start, num_steps=num_steps, num_trials=100 * num_steps
    )


@jax.jit
def _bare(data: UserData, gradients: Any, trials: Any) -> Any:
    """As many gradients, and as many values of the mean loss, without anything around them."""
    features, labels = data.items.features[:, 0], data.items.label[:, 0]

    def gradient(_: Any, w: Any) -> Any:
        slopes = jax.nn.sigmoid(features @ w) - labels
        return w - 0.1 * (slopes @ features) / len(labels)

    def value(_: Any, w: Any) -> Any:
        margins = features @ w
        return w + 1e-3 * jnp.mean(jax.nn.softplus(margins) - labels * margins)

    point = jnp.full(features.shape[1], 0.1)
    end = jax.lax.fori_loop(0, gradients, gradient, point)
    return end, jax.lax.fori_loop(0, trials, value, point)


def step_rows() -> list[Row]:
    """What steps cost once a chain has begun, for a row as the record and (1, 1e-6)."""
    rows = []
    for num_rows, dim, num_steps in SIZES:
        data, key = _data(num_rows, dim), jax.random.key(0)
        temperature = (0.236 * num_rows / 2) ** 2 * 1e-3
        few, many = num_steps, 3 * num_steps
        ends = [_chain(key, data, steps, temperature) for steps in (few, many)]
        gradients, trials = (
            [int(count) for count in counts]
            for counts in (
                [end.state.evaluations for end in ends],
                [end.num_trials for end in ends],
            )
        )
        calls = {
            "few": functools.partial(_chain, key, data, few, temperature),
            "many": functools.partial(_chain, key, data, many, temperature),
            "bare": functools.partial(
                _bare, data, gradients[1] - gradients[0], trials[1] - trials[0]
            ),
        }
        medians = interleaved_medians(calls, repeats=5)
        rows.append(
            Row(
                f"{many - few} steps at {num_rows:,} × {dim:,}",
                "proximal sampler",
                medians["many"] - medians["few"],
                "their gradients and values alone",
                medians["bare"],
                TARGET,
                f"{gradients[1] - gradients[0]} gradients, {trials[1] - trials[0]} trials",
            )
        )
    return rows


def rows() -> list[Row]:
    """All rows; they need float64."""
    with jax.enable_x64(True):
        return step_rows()
