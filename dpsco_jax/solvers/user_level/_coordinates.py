"""Coordinates in which the rows of a linear model are alike in all directions, from private moments.

They are z = Tᵀx with T = (I - e₀μᵀ)·A·W: columns are centred by the one that is constant (μ their means, e₀
that column), divided by their deviations (A diagonal), and whitened (W). Parameters v in these coordinates
are w = T·v in the old ones. W takes from the data what the noise lets be seen, and no more:

1. The matrix M of second moments of rows whose columns have deviation one, each user's clipped in Frobenius
   norm to the number of columns. Its diagonal is known to be one. What it lacks was clipped away, mostly from
   users with entries in rare columns. A part that all columns lack is divided out, what one column lacks
   beyond it is put back: or else a rare column would look like one of little variance, and be blown up. Then
   the spectrum is freed from noise (``mechanisms.spiked_matrix``), and rows are divided by its roots.
2. In a second round the directions whose variance was near the noise or below it, again, without the others:
   there a user's matrix is as much smaller as these variances are, and so are the clip and the noise.
3. The mean squares in the new coordinates, under a clip that is four times as wide: a direction which had
   more than was seen in clipped matrices is divided by that.

Whether there is a W is a function of public sizes: not where the noise is above any eigenvalue. Matrices that
are released anew in coordinates made from those before, with less noise each time, are due to Kamath, Li,
Singhal and Ullman 2019.

All releases are Gaussian, each with a multiplier of its own and the sensitivity that ``oracles.row_moments``
proves in the coordinates and for the clip that it is made with; those are functions of earlier releases and
of public numbers. The maps of rows are linear and the same for all rows, so that neighbours stay neighbours;
gradients are clipped afterwards. A row with an entry above 10³⁰ counts as zero, so that no sum of a user's
rows leaves the numbers.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax import privacy
from dpsco_jax.mechanisms import spiked_matrix
from dpsco_jax.oracles import _linear_rows, row_moments
from dpsco_jax.oracles.linear import LinearData
from dpsco_jax.solvers.user_level import _linear_models

_UNLIKE = 0.1  # how far the mean of a constant 1 may be off
_LARGEST = 1e30
_NEAR = 2.0  # edges of the noise below which a direction is looked at again
_LEAST_CLIP, _LARGEST_CLIP = 0.1, 1.5  # of the second round, for each direction looked at
_CHECK_CLIP = 4.0  # of the mean squares at the end, for each column


class Coordinates(NamedTuple):
    """A linear map of parameters and its inverse.

    Attributes:
        to_params: T, ``[dim, dim]``: w = T·v.
        from_params: T⁻¹, ``[dim, dim]``.
        constant: whether the intercept's column may be the constant 1, as far as noise shows; false without
            one, or where rows were longer than their bound and were made shorter.
        mean_squares: of the columns as they were given, with their noise, ``[dim]``.
        squares_stddev: of that noise.
    """

    to_params: Float[Array, "dim dim"]
    from_params: Float[Array, "dim dim"]
    constant: Any = False
    mean_squares: Any = None
    squares_stddev: Any = None


def released(
    key: jax.Array, plan: Any, feature_bound: float, data: LinearData
) -> tuple[Coordinates, privacy.PrivacyLoss]:
    """The coordinates of these dense rows and what they cost."""
    dim, users, chunk = plan.columns, plan.num_users, plan.chunk_size
    means_key, squares_key, matrix_key = jax.random.split(key, 3)
    means = jnp.zeros(dim)
    spent, mean_stddev = privacy.zero(), jnp.zeros(())
    constant: Any = False
    if plan.intercept is not None:
        total = row_moments.means(feature_bound, chunk)(data)
        means, mean_stddev, loss = _linear_models.released(
            means_key, users, total, feature_bound, plan.means_multiplier, nonnegative=False
        )
        off = jnp.abs(means[plan.intercept] - 1.0)
        constant = off <= jnp.maximum(_UNLIKE, 4.0 * mean_stddev)
        means, spent = means.at[plan.intercept].set(0.0), privacy.compose(spent, loss)
    bound = plan.squares_bound
    total = row_moments.mean_squares(bound, chunk)(data)
    squares, stddev, loss = _linear_models.released(
        squares_key, users, total, bound, plan.squares_multiplier, nonnegative=True
    )
    spent = privacy.compose(spent, loss)
    variances = squares - jnp.maximum(jnp.square(means) - jnp.square(mean_stddev), 0.0)
    scales = jnp.maximum(variances, stddev) ** -0.5

    centring = jnp.eye(dim)
    if plan.intercept is not None:
        centring = centring.at[plan.intercept].add(-means)
    to_params, loss = whitened(matrix_key, plan, data, centring * scales[None])
    made = Coordinates(to_params, jnp.linalg.inv(to_params), constant, squares, stddev)
    return made, privacy.compose(spent, loss)


def transformed(data: LinearData, to_params: Float[Array, "dim dim"]) -> LinearData:
    """The data with rows Tᵀx, zero where they leave the numbers; ``row_norms`` stay, and bound nothing."""
    features = jnp.einsum("umd,de->ume", data.features, to_params, precision=_linear_rows.FULL)
    held = jnp.all(jnp.abs(features) <= _LARGEST, axis=-1, keepdims=True)
    return data._replace(features=jnp.where(held, features, 0.0))


def whitened(
    key: jax.Array, plan: Any, data: LinearData, to_params: Float[Array, "dim dim"]
) -> tuple[Float[Array, "dim dim"], privacy.PrivacyLoss]:
    """T of the coordinates that whiten, from the map after which columns have deviation one, and the cost."""
    dim = plan.columns
    if plan.matrix_multiplier is None:
        return to_params, privacy.zero()
    keys = jax.random.split(key, 3)
    matrix, stddev, loss = _matrix(keys[0], plan, data, to_params, float(dim))
    matrix, missing = _without_clipping(matrix)
    found = spiked_matrix.denoised(matrix, stddev / missing / 2.0**0.5, 1.0)
    to_params = (to_params @ found.vectors) * found.values[None] ** -0.5
    # What was seen of the variances in the new coordinates, not freed from noise.
    seen = jnp.einsum("ij,ik,kj->j", found.vectors, matrix, found.vectors) / found.values
    again = found.values <= _NEAR * found.edge
    to_params, second = _second_round(keys[1], plan, data, to_params, again, seen)
    to_params, check = _checked(keys[2], plan, data, to_params)
    return to_params, privacy.compose(loss, second, check)


def _matrix(
    key: jax.Array, plan: Any, data: LinearData, to_params: Array, bound: Any
) -> tuple[Array, Any, privacy.PrivacyLoss]:
    """Second moments in some coordinates, and the deviation of the noise of the vector of them."""
    total = row_moments.second_moments(bound, plan.matrices_at_once)(transformed(data, to_params))
    found = _linear_models.released(
        key, plan.num_users, total, bound, plan.matrix_multiplier, nonnegative=True
    )
    return row_moments.from_triangle(found.mean, plan.columns), found.stddev, found.loss


def _without_clipping(matrix: Array) -> tuple[Array, Array]:
    """The matrix with what its diagonal lacks of one, and the factor that all columns have."""
    diagonal = jnp.diag(matrix)
    common = jnp.clip(jnp.median(diagonal), 0.25, 1.0)
    lacking = jnp.maximum(1.0 - diagonal / common, 0.0)
    return matrix / common + jnp.diag(lacking), common


def _second_round(
    key: jax.Array, plan: Any, data: LinearData, to_params: Array, again: Array, seen: Array
) -> tuple[Array, privacy.PrivacyLoss]:
    """The map and the cost; ``seen`` are the variances that the first round showed."""
    inside = jnp.where(again, 1.0, 0.0)
    count = jnp.maximum(jnp.sum(inside), 1.0)
    bound = jnp.clip(jnp.sum(inside * seen), _LEAST_CLIP * count, _LARGEST_CLIP * count)
    matrix, stddev, loss = _matrix(key, plan, data, to_params * inside[None], bound)
    floor = jnp.minimum(2.0 * stddev / 2.0**0.5 * jnp.sqrt(count), 1.0)
    # The other directions keep their coordinates.
    matrix = inside[:, None] * matrix * inside[None] + jnp.diag(1.0 - inside)
    values, vectors = jnp.linalg.eigh(matrix)
    among = jnp.sum(jnp.square(vectors) * inside[:, None], axis=0) > 0.5
    floored = jnp.where(among, jnp.maximum(values, floor), 1.0)
    return (to_params @ vectors) * floored[None] ** -0.5, loss


def _checked(
    key: jax.Array, plan: Any, data: LinearData, to_params: Array
) -> tuple[Array, privacy.PrivacyLoss]:
    """The map without what is larger in it than was seen, and the cost."""
    bound = _CHECK_CLIP * plan.columns
    total = row_moments.mean_squares(bound, plan.chunk_size)(transformed(data, to_params))
    found = _linear_models.released(
        key, plan.num_users, total, bound, plan.check_multiplier, nonnegative=True
    )
    factor = jnp.where(found.mean > 1.0 + 2.0 * found.stddev, found.mean, 1.0)
    return to_params * factor[None] ** -0.5, found.loss
