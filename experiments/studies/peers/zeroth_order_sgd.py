"""DP-SGD that sees values only: noisy two-point differences along random directions, for linear models.

What it computes: T steps on all users. In each, m orthonormal directions u_j, uniform, the same for all
users; of every user the m differences (f(x + h·u_j) - f(x - h·u_j))/(2h), clipped together to the norm C;
their mean g with Gaussian noise; and

    x ← Π(x - η·(d/m)·Σ_j g_j·u_j),

Π onto the domain, with constant or linearly falling steps. One run gives four results: its last point, the
uniform average, the average with weights t³, that of the last half. For m = d it is DP-SGD whose gradients
come from differences.

Source: two-point estimates as in Duchi, Jordan, Wainwright and Wibisono 2015; private with the noise on the
clipped difference as in Zhang, Li, Bu and He 2023 ("DPZero"), there with m = 1.

Formal guarantee: directions are drawn without the data, and with them fixed the replacement of a user
replaces one vector of differences of norm at most C by another: their sum moves by at most 2C. Noise of
``noise_multiplier``·2C/n on each of the m numbers makes T steps (ε, δ)-DP under REPLACE_ONE with the
certified multiplier of T full batches; everything else is post-processing. A user with a difference that is
not finite counts as zero.

Cost: 2·m·n values a step.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax.oracles import smoothed
from dpsco_jax.problems.objective import Objective
from experiments.studies import table_dp_sgd

AVERAGES = table_dp_sgd.AVERAGES


class Plan(NamedTuple):
    """Numbers of a run; T and m are arguments of ``solve``.

    Attributes:
        noise_multiplier: noise over the sensitivity of the sum, in each step.
        clip: C.
        path: η·T.
        width: h.
        decay: 1.0 for steps that fall linearly to zero, 0.0 for constant ones.
    """

    noise_multiplier: Any
    clip: Any
    path: Any
    width: Any
    decay: Any


def plan(
    epsilon: float, delta: float, num_steps: int, clip: float, path: float, width: float, decay: bool
) -> Plan:  # fmt: skip
    """The plan of a configuration.

    Args:
        epsilon: of the budget.
        delta: of the budget.
        num_steps: T.
        clip: C.
        path: η·T.
        width: h.
        decay: whether steps fall.
    """
    multiplier = table_dp_sgd.multiplier(num_steps, epsilon, delta)
    return Plan(multiplier, clip, path, width, float(decay))


def value_queries(num_users: int, num_steps: int, num_directions: int) -> int:
    """Values of a user's loss that a run asks for."""
    return 2 * num_users * num_steps * num_directions


def solve(
    key: jax.Array,
    plan: Plan,
    objective: Objective,
    rows: Float[Array, "users dim"],
    labels: Float[Array, "users"],
    num_steps: int,
    num_directions: int,
) -> Float[Array, "averages dim"]:
    """One run from zero: its result under each of ``AVERAGES``.

    Args:
        key: a typed key.
        plan: of ``plan``, for as many steps.
        objective: a linear model, without ridge.
        rows: one a user, within the feature bound.
        labels: of the rows.
        num_steps: T.
        num_directions: m, at most d.
    """
    model = objective.linear_model
    assert model is not None
    users, dim = rows.shape
    noise = plan.noise_multiplier * 2.0 * plan.clip / users
    begin = num_steps // 2

    def step(carry: Any, t: Array) -> tuple[Any, None]:
        params, uniform, polynomial, tail = carry
        direction_key, noise_key = jax.random.split(jax.random.fold_in(key, t))
        drawn = jax.random.normal(direction_key, (num_directions, dim))
        directions = drawn / jnp.linalg.norm(drawn, axis=1, keepdims=True)
        if num_directions > 1:
            directions = jnp.linalg.qr(drawn.T)[0].T
        found = smoothed.two_point_slopes(
            model, rows, labels, params, directions, plan.width, plan.clip
        )
        mean = jnp.mean(found, axis=0) + noise * jax.random.normal(noise_key, (num_directions,))
        size = plan.path / num_steps * (1.0 - plan.decay * t / num_steps)
        moved = params - size * dim / num_directions * (mean @ directions)
        params = objective.domain.project(moved)
        uniform = uniform + (params - uniform) / (t + 1)
        polynomial = polynomial + (params - polynomial) * 4.0 / (t + 4)
        tail = jnp.where(t < begin, params, tail + (params - tail) / (t - begin + 1))
        return (params, uniform, polynomial, tail), None

    zero = jnp.zeros(dim, rows.dtype)
    carry, _ = jax.lax.scan(step, (zero,) * 4, jnp.arange(num_steps))
    return jnp.stack(carry)
