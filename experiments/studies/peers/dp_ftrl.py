"""DP-FTRL: passes over fixed batches of users in one order, with noise that later steps take back.

What it computes: the users are cut into S batches, in the order of the data. In E passes, E·S steps from
w = 0, the gradients of a batch's users are clipped to C, averaged and covered with correlated noise
(``mechanisms.correlated_noise.banded_square_root``); the parameters move by heavy-ball momentum with a
constant step and are projected onto the domain. The result is the average of the last half of the points.

Source: Kairouz, McMahan, Song, Thakkar, Thakurta and Xu 2021, "Practical and private (deep) learning without
sampling or shuffling"; Choquette-Choo et al. 2023 for several passes; the noise is that of Fichtenberger,
Henzinger and Upadhyay 2023.

Formal guarantee: (ε, δ)-DP under REPLACE_ONE with the certified multiplier of one Gaussian release: a user is
in one batch, takes part E times, S steps apart, and moves the mean of the batch by at most 2·C·S/n each time
(docs/theory/correlated_noise.md). Where users have few rows norms are those of ``table_dp_sgd``, from inner
products in float32, which cancel where a user's rows do; nobody's model comes from here.

Cost: E passes over the rows; memory of 31 copies of the parameters.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax._checks import require
from dpsco_jax.mechanisms.correlated_noise import NoiseCorrelation, banded_square_root
from experiments.studies import table_dp_sgd
from experiments.studies.table_dp_sgd import Flat, clipped_sum
from experiments.studies.table_tasks import RADIUS


class Plan(NamedTuple):
    """Numbers of a run; the passes and batches are arguments of ``solve``.

    Attributes:
        noise_multiplier: of the whole stream.
        clip: C.
        step: size of a step.
        momentum: in [0, 1).
    """

    noise_multiplier: Any
    clip: Any
    step: Any
    momentum: Any


def plan(
    epsilon: float, delta: float, shape: tuple[int, int], num_users: int, dim: int,
    clip: float, size: float, momentum: float,
) -> Plan:  # fmt: skip
    """The plan of a configuration.

    Args:
        epsilon: of the budget.
        delta: of the budget.
        shape: (E, S).
        num_users: n.
        dim: number of parameters.
        clip: C.
        size: of a step, in units of the one that suits independent noise with the same sum.
        momentum: in [0, 1).

    Raises:
        ValueError: if there are more batches than users.
    """
    passes, batches = shape
    require(batches <= num_users, "shape", shape, f"of at most {num_users} batches")
    steps = passes * batches
    multiplier = table_dp_sgd.multiplier(1, epsilon, delta)
    whole = multiplier * correlation(passes, batches).prefix_stddev()[-1]
    unit = table_dp_sgd.unit_step(num_users // batches, dim, steps, clip, whole / steps**0.5)
    return Plan(multiplier, clip, size * unit, momentum)


def correlation(passes: int, batches: int) -> NoiseCorrelation:
    """Of E·S steps in which a user takes part E times, S steps apart."""
    return banded_square_root(passes * batches, passes, batches)


def solve(
    key: jax.Array, plan: Plan, flat: Flat, objective: Any, passes: int, batches: int
) -> Float[Array, "dim"]:
    """One run."""
    model, ball = objective.linear_model, not objective.globally_convex_lipschitz
    users, _, dim = flat.rows.shape
    held, steps = -(-users // batches), passes * batches
    filled = [(0, held * batches - users)]
    rows = jnp.pad(flat.rows, [*filled, (0, 0), (0, 0)])
    labels = jnp.pad(flat.labels, [*filled, (0, 0)])
    weights = jnp.pad(flat.weights, [*filled, (0, 0)])
    gram = jnp.pad(flat.gram, [(0, 0), (0, 0), *filled])
    noise = correlation(passes, batches)

    def step(carry: Any, t: Array) -> tuple[Any, None]:
        params, velocity, tail, stream = carry
        first = (t % batches) * held

        def part(leaf: Array, axis: int = 0) -> Array:
            return jax.lax.dynamic_slice_in_dim(leaf, first, held, axis)

        batch = flat._replace(rows=part(rows), labels=part(labels), gram=part(gram, 2))
        slopes = part(weights) * model.derivative(batch.rows @ params, batch.labels)
        mean = clipped_sum(batch, slopes, plan.clip) * batches / users
        sensitivity = 2.0 * plan.clip * batches / users
        noisy, stream = noise.add_noise(
            jax.random.fold_in(key, t), mean, stream, plan.noise_multiplier, sensitivity
        )
        gradient = noisy + objective.ridge * params
        velocity = plan.momentum * velocity + (1.0 - plan.momentum) * gradient
        params = params - plan.step * velocity
        if ball:
            length = jnp.linalg.norm(params)
            params = params * jnp.minimum(1.0, RADIUS / jnp.maximum(length, 1e-30))
        begin = steps // 2
        tail = jnp.where(t < begin, params, tail + (params - tail) / (t - begin + 1))
        return (params, velocity, tail, stream), None

    zero = jnp.zeros(dim)
    carry, _ = jax.lax.scan(step, (zero, zero, zero, noise.init(zero)), jnp.arange(steps))
    return carry[2]
