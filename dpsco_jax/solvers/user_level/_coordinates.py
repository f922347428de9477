"""Coordinates in which the rows of a linear model are alike in all directions, from private moments.

What it computes: z = Tᵀx with T = (I - e₀μᵀ)·A·W: columns are centred by the one that is constant (μ their
means, e₀ that column), divided by their deviations (A diagonal), and whitened (W) as far as noisy matrices of
second moments show how (``_whitening``). Parameters v in these coordinates are w = T·v in the old ones.

Source: own.

Formal guarantee: Gaussian releases, of means, mean squares and what ``_whitening`` adds, each with its own
noise multiplier and the sensitivity that ``oracles.row_moments`` proves; T is a function of what was released
and of public numbers. The map of rows is linear and the same for all rows, so that neighbours stay
neighbours; gradients are clipped afterwards.

Cost: two passes over the features, and those of ``_whitening``.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax import privacy
from dpsco_jax.oracles import row_moments
from dpsco_jax.oracles.linear import LinearData
from dpsco_jax.solvers.user_level import _noisy_sums, _whitening

_UNLIKE = 0.1  # how far the mean of a constant 1 may be off


class Coordinates(NamedTuple):
    """A linear map of parameters and its inverse.

    Attributes:
        to_params: T, ``[dim, dim]``: w = T·v.
        from_params: T⁻¹, ``[dim, dim]``.
        largest: about the largest eigenvalue of the second moments in these coordinates.
        constant: whether the intercept's column may be the constant 1, as far as noise shows; false without
            one, or where rows were longer than their bound and were made shorter.
    """

    to_params: Float[Array, "dim dim"]
    from_params: Float[Array, "dim dim"]
    largest: Float[Array, ""]
    constant: Any = False


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
    dim, users, chunk = plan.columns, plan.num_users, plan.chunk_size
    means_key, squares_key, matrix_key = jax.random.split(key, 3)
    means = jnp.zeros(dim)
    spent, mean_stddev = privacy.zero(), jnp.zeros(())
    constant: Any = False
    if plan.intercept is not None:
        total = row_moments.means(feature_bound, chunk)(data)
        means, mean_stddev, loss = _noisy_sums.released(
            means_key, users, total, feature_bound, plan.means_multiplier, nonnegative=False
        )
        off = jnp.abs(means[plan.intercept] - 1.0)
        constant = off <= jnp.maximum(_UNLIKE, 4.0 * mean_stddev)
        means, spent = means.at[plan.intercept].set(0.0), privacy.compose(spent, loss)
    bound = plan.squares_bound
    total = row_moments.mean_squares(bound, chunk)(data)
    squares, stddev, loss = _noisy_sums.released(
        squares_key, users, total, bound, plan.squares_multiplier, nonnegative=True
    )
    spent = privacy.compose(spent, loss)
    variances = squares - jnp.maximum(jnp.square(means) - jnp.square(mean_stddev), 0.0)
    scales = jnp.maximum(variances, stddev) ** -0.5

    centring = jnp.eye(dim)
    if plan.intercept is not None:
        centring = centring.at[plan.intercept].add(-means)
    found = _whitening.released(matrix_key, plan, data, centring * scales[None])
    inverse = jnp.linalg.inv(found.to_params)
    made = Coordinates(found.to_params, inverse, found.largest, constant)
    return made, privacy.compose(spent, found.loss)
