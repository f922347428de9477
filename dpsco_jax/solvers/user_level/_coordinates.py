"""Coordinates in which the rows of a linear model are alike in all directions, from private moments.

What it computes: z = Tᵀx with T = (I - e₀μᵀ)·A·V·Λ^(-½): columns are centred by the one that is constant
(μ their means, e₀ that column), divided by their deviations (A diagonal), and whitened by what a noisy second
moment matrix shows above its noise (V, Λ). Parameters v in these coordinates are w = T·v in the old ones.

Source: own; for the spectrum see ``mechanisms.spiked_matrix``.

Formal guarantee: three Gaussian releases, of means, mean squares and the matrix of second moments, each with
its own noise multiplier and the sensitivity that ``oracles.row_moments`` proves; T is a function of what was
released and of public numbers. The map of rows is linear and the same for all rows, so that neighbours stay
neighbours; the norms of z are bounded by nothing, and need not be: gradients are clipped afterwards.

Cost: three passes over the features, dim² products a row in the second and the third; dim³ once.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax import privacy, transforms
from dpsco_jax.mechanisms import spiked_matrix
from dpsco_jax.oracles import _linear_rows, row_moments
from dpsco_jax.oracles.linear import LinearData


class Coordinates(NamedTuple):
    """A linear map of parameters and its inverse.

    Attributes:
        to_params: T, ``[dim, dim]``: w = T·v.
        from_params: T⁻¹, ``[dim, dim]``.
        largest: about the largest eigenvalue of the second moments in these coordinates.
    """

    to_params: Float[Array, "dim dim"]
    from_params: Float[Array, "dim dim"]
    largest: Float[Array, ""]


def released(
    key: jax.Array, plan: Any, feature_bound: float, data: LinearData
) -> tuple[Coordinates, privacy.PrivacyLoss]:
    """The coordinates of these data and what they cost.

    Args:
        key: of the noise; used once.
        plan: of the solver.
        feature_bound: of the linear model.
        data: dense rows.
    """
    dim, users, chunk = plan.dim, plan.num_users, plan.chunk_size
    means_key, squares_key, matrix_key = jax.random.split(key, 3)

    def noisy(key: jax.Array, total: Array, bound: Any, multiplier: Any, nonnegative: bool) -> Any:
        aggregate = transforms.summed_contributions(bound, users, nonnegative=nonnegative)
        release = transforms.privatize(aggregate, key, multiplier)
        value, state = release.update(total, release.init(jnp.zeros_like(total)))
        return value, multiplier * aggregate.sensitivity, privacy.privacy_spent(state)

    means = jnp.zeros(dim)
    spent, mean_stddev = privacy.zero(), jnp.zeros(())
    if plan.intercept is not None:
        total = row_moments.means(feature_bound, chunk)(data)
        means, mean_stddev, loss = noisy(
            means_key, total, feature_bound, plan.means_multiplier, False
        )
        means, spent = means.at[plan.intercept].set(0.0), privacy.compose(spent, loss)
    bound = plan.entry_bound * feature_bound
    total = row_moments.mean_squares(bound, chunk)(data)
    squares, stddev, loss = noisy(squares_key, total, bound, plan.squares_multiplier, True)
    spent = privacy.compose(spent, loss)
    variances = squares - jnp.maximum(jnp.square(means) - jnp.square(mean_stddev), 0.0)
    scales = jnp.maximum(variances, stddev) ** -0.5

    centring = jnp.eye(dim)
    if plan.intercept is not None:
        centring = centring.at[plan.intercept].add(-means)
    to_params = centring * scales[None]
    largest = jnp.asarray(float(dim))
    if plan.matrix_multiplier is not None:
        scaled = transformed(data, to_params)
        total = row_moments.second_moments(float(dim), chunk)(scaled)
        entries, stddev, loss = noisy(matrix_key, total, float(dim), plan.matrix_multiplier, True)
        spent = privacy.compose(spent, loss)
        # Of an entry off the diagonal: the triangle holds it times √2.
        found = spiked_matrix.denoised(
            row_moments.from_triangle(entries, dim), stddev / 2.0**0.5, 1.0
        )
        to_params = (to_params @ found.vectors) * found.values[None] ** -0.5
        largest = jnp.minimum(largest, 1.0 + 2.0 * found.edge / found.values[dim // 2])
    return Coordinates(to_params, jnp.linalg.inv(to_params), largest), spent


def transformed(data: LinearData, to_params: Float[Array, "dim dim"]) -> LinearData:
    """The data with rows Tᵀx; their ``row_norms`` are those of before and bound nothing.

    Args:
        data: dense rows.
        to_params: T.
    """
    features = jnp.einsum("umd,de->ume", data.features, to_params, precision=_linear_rows.FULL)
    return data._replace(features=features)
