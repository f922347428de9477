"""AdaSSP: least squares from noisy sufficient statistics, with a ridge that adapts to the noise.

What it computes: with A_u the mean of x·xᵀ and b_u the mean of x·y over the rows of user u, A = Σ A_u and b
= Σ b_u get Gaussian noise, and w = (A + (λ + n·ridge)·I)⁻¹·b, projected onto the ball. λ is what the noise
of A calls for less a private lower bound on its least eigenvalue.

Source: Wang 2018, "Revisiting differentially private linear regression", Algorithm 2, here for users.

Formal guarantee: (ε, δ)-DP under REPLACE_ONE: three Gaussian releases, one noise multiplier for each. With
‖x‖ ≤ B and |y| ≤ Y, A_u is positive semi-definite with Frobenius norm at most B², and two such matrices
have a non-negative inner product, so that ‖A_u - A_u'‖_F² ≤ ‖A_u‖_F² + ‖A_u'‖_F² ≤ 2·B⁴: sensitivity √2·B².
Noise is drawn in coordinates that keep the Frobenius norm: σ on the diagonal, σ/√2 off it. ‖b_u‖ ≤ B·Y:
sensitivity 2·B·Y. The eigenvalues of A_u - A_u' lie in [-B², B²], so the least eigenvalue of A moves by at
most B² (Weyl). A user without rows has A_u = 0 and b_u = 0, to which all of this applies.

Cost: one pass over the rows and a solve in dim³.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from experiments.studies.table_dp_sgd import Flat, multiplier

_FAILURE = 0.05


class Plan(NamedTuple):
    """Numbers of a run, public.

    Attributes:
        noise_multiplier: of each of the three releases.
        feature_bound: B.
        label_bound: Y.
        ridge: of the objective.
        radius: of the ball of the parameters.
    """

    noise_multiplier: Any
    feature_bound: Any
    label_bound: Any
    ridge: Any
    radius: Any


def plan(
    epsilon: float,
    delta: float,
    feature_bound: float,
    label_bound: float,
    ridge: float,
    radius: float,
) -> Plan:
    """The plan whose certificate is (ε, δ)."""
    return Plan(multiplier(3, epsilon, delta), feature_bound, label_bound, ridge, radius)


def statistics(flat: Flat) -> tuple[Float[Array, "dim dim"], Float[Array, "dim"]]:
    """Σ A_u and Σ b_u, without noise."""
    weighted = flat.rows * flat.weights[..., None]
    dim = flat.rows.shape[-1]
    return (
        weighted.reshape(-1, dim).T @ flat.rows.reshape(-1, dim),
        jnp.einsum("uk,ukd->d", flat.labels, weighted),
    )


def solve(key: jax.Array, plan: Plan, flat: Flat) -> Float[Array, "dim"]:
    """One run."""
    gram, moment = statistics(flat)
    users, dim = len(flat.rows), len(moment)
    gram_key, diagonal_key, moment_key, least_key = jax.random.split(key, 4)
    square = plan.feature_bound**2
    of_gram = plan.noise_multiplier * math.sqrt(2.0) * square
    drawn = jnp.triu(jax.random.normal(gram_key, (dim, dim)), 1) / math.sqrt(2.0)
    diagonal = jax.random.normal(diagonal_key, (dim,))
    gram_noise = of_gram * (drawn + drawn.T + jnp.diag(diagonal))
    of_moment = plan.noise_multiplier * 2.0 * plan.feature_bound * plan.label_bound
    noisy_moment = moment + of_moment * jax.random.normal(moment_key, (dim,))
    of_least = plan.noise_multiplier * square
    margin = of_least * math.sqrt(2.0 * math.log(1.0 / _FAILURE))
    least = jnp.linalg.eigvalsh(gram)[0] + of_least * jax.random.normal(least_key)
    least = jnp.maximum(least - margin, 0.0)
    # With probability 1 - _FAILURE the noise of the matrix has no larger eigenvalue than this.
    needed = of_gram * math.sqrt(dim * math.log(2.0 * dim**2 / _FAILURE))
    ridge = jnp.maximum(needed - least, 0.0) + users * plan.ridge
    params = jnp.linalg.solve(gram + gram_noise + ridge * jnp.eye(dim), noisy_moment)
    length = jnp.maximum(jnp.linalg.norm(params), 1e-30)
    return params * jnp.minimum(1.0, plan.radius / length)
