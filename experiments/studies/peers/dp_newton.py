"""Double-noise DP-Newton: noise on the gradient, then noise on the step that the curvature makes of it.

What it computes: T steps from w = 0. The gradients of users are clipped to C, averaged and covered with
noise: g. With M = H + λ·I, where H is the mean over users of the means of ω·x·xᵀ over their rows, the
parameters move by -M⁻¹·(g + ridge·w), again covered with noise. ω is the curvature of the quadratic that
touches the link and lies above it: tanh(m/2)/(2m) for logistic, min(1, δ/|residual|) for Huber, 1 for
squared loss.

Source: Ganesh, Haghifam, Steinke and Thakurta 2023, "Faster differentially private convex optimization via
second-order methods": double noise, quadratic upper bound, eigenvalues modified by adding λ.

Formal guarantee: (ε, δ)-DP under REPLACE_ONE: 2·T Gaussian releases, one noise multiplier for each. The
mean of clipped gradients has sensitivity 2·C/n. For the second release v = g + ridge·w is known, from
releases before it, and only H depends on the data. Write H + λ = M + A with A = H_u/n the part of the user
who is replaced by A'; both are positive semi-definite with norm at most h/n, where h bounds ω·‖x‖², and M ⪰
λ. With X = M^(-½)·A·M^(-½), of norm at most x = h/(nλ), M⁻¹ - (M + A)⁻¹ = M^(-½)·(I - (I + X)⁻¹)·M^(-½)
lies between 0 and x/(1 + x)/λ times the identity. So does the same of A', and the difference of two such
matrices has norm at most their bound: ‖(M + A)⁻¹v - (M + A')⁻¹v‖ ≤ ‖v‖·h/(λ·(nλ + h)), the sensitivity of
the second release. The ridge is part of λ.

Cost: T times one pass over the rows, dim² for each row, and a solve in dim³.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from experiments.studies.table_dp_sgd import Flat, clipped_sum
from experiments.studies.table_tasks import HUBER_DELTA, RADIUS


class Plan(NamedTuple):
    """Numbers of a run; the number of steps is an argument of ``solve``.

    Attributes:
        noise_multiplier: of each of the 2·T releases.
        clip: C.
        shift: λ without the ridge.
        feature_bound: B; h is B² times the largest ω.
    """

    noise_multiplier: Any
    clip: Any
    shift: Any
    feature_bound: Any


LARGEST = {"logistic": 0.25, "huber": 1.0, "squared": 1.0}


def bends(kind: str, margins: Array, labels: Array) -> Array:
    """ω of the rows."""
    if kind == "logistic":
        half = jnp.where(jnp.abs(margins) < 1e-3, 1e-3, margins) / 2.0
        return jnp.tanh(half) / (4.0 * half)
    if kind == "huber":
        return jnp.minimum(1.0, HUBER_DELTA / jnp.maximum(jnp.abs(margins - labels), 1e-30))
    return jnp.ones_like(margins)


def solve(
    key: jax.Array, plan: Plan, flat: Flat, objective: Any, kind: str, num_steps: int
) -> Float[Array, "dim"]:
    """One run of ``num_steps`` steps from zero."""
    users, _, dim = flat.rows.shape
    largest = LARGEST[kind] * plan.feature_bound**2
    lowest = plan.shift + objective.ridge
    share = largest / (lowest * (users * lowest + largest))
    rows = flat.rows.reshape(-1, dim)

    def step(params: Array, t: Array) -> tuple[Array, None]:
        first, second = jax.random.split(jax.random.fold_in(key, t))
        margins = flat.rows @ params
        slopes = flat.weights * objective.linear_model.derivative(margins, flat.labels)
        noise = plan.noise_multiplier * 2.0 * plan.clip / users
        mean = clipped_sum(flat, slopes, plan.clip) / users
        gradient = mean + noise * jax.random.normal(first, (dim,)) + objective.ridge * params
        bent = flat.weights * bends(kind, margins, flat.labels)
        hessian = (rows * bent.reshape(-1, 1)).T @ rows / users + lowest * jnp.eye(dim)
        move = jax.scipy.linalg.solve(hessian, gradient, assume_a="pos")
        spread = plan.noise_multiplier * share * jnp.linalg.norm(gradient)
        params = params - move + spread * jax.random.normal(second, (dim,))
        if kind == "squared":
            length = jnp.maximum(jnp.linalg.norm(params), 1e-30)
            params = params * jnp.minimum(1.0, RADIUS / length)
        return params, None

    params, _ = jax.lax.scan(step, jnp.zeros(dim), jnp.arange(num_steps))
    return params
