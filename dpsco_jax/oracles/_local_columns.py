"""The columns that a user of one-hot rows has: sums of the user's rows, without their zeros.

What it computes: once for a data set, the different columns of each user's entries and at which of them
each entry stands; then, for coefficients c_j, the numbers of Σ_j c_j·x_j at these columns (over the one value
of an entry), and their weighted sum over users as a vector.

Source: none.

Formal guarantee: the numbers are those of the user's sum, each once, and every other number of it is zero:
their norm is that of the whole vector.

Cost: a sort of each user's entries once; then time and memory of items·nnz numbers a user, where the whole
vector has dim.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from dpsco_jax import _compensated

_WORTH_IT = 16  # columns a place: measured; below it the whole vector is as fast


class LocalColumns(NamedTuple):
    """Columns of users.

    Attributes:
        columns: the different columns of each user's entries, ascending; ``dim`` for places that are not
            used, and for entries that do not count. ``[users, items * nnz]``.
        place: where among them an entry stands, ``[users, items, nnz]``.
    """

    columns: Int[Array, "users places"]
    place: Int[Array, "users items nnz"]


def found(features: Int[Array, "users items nnz"], dim: int) -> LocalColumns | None:
    """The columns of each user; ``None`` where the whole vector is not much longer.

    Args:
        features: columns, ``dim`` for entries that do not count.
        dim: length of a row.
    """
    users, items, nnz = features.shape
    if _WORTH_IT * items * nnz > dim:
        return None

    def of_user(entries: Array) -> tuple[Array, Array]:
        columns, place = jnp.unique(entries, size=items * nnz, fill_value=dim, return_inverse=True)
        return columns, place

    columns, place = jax.vmap(of_user)(features.reshape(users, items * nnz))
    return LocalColumns(columns, place.reshape(features.shape))


def row_sums(
    coefficients: Float[Array, "users items *outputs"], local: LocalColumns, dim: int
) -> Array:
    """Σ_j c_j·x_j at each user's columns, over the value of an entry: ``[users, places, *outputs]``."""
    users, places = local.columns.shape
    row = jnp.arange(users)[:, None, None]
    numbers = jnp.zeros((users, places, *coefficients.shape[2:]), coefficients.dtype)
    numbers = numbers.at[row, local.place].add(coefficients[:, :, None], mode="promise_in_bounds")
    used = jnp.expand_dims(local.columns < dim, tuple(range(2, numbers.ndim)))
    return jnp.where(used, numbers, 0.0)


def total(
    weights: Float[Array, "users"], numbers: Array, local: LocalColumns, dim: int, bound: ArrayLike
) -> _compensated.Split:
    """Σ_u weights[u]·(the vector with ``numbers[u]`` at the columns of user u): ``[dim, *outputs]``.

    No product is larger than the bound.
    """
    weighted = jnp.expand_dims(weights, tuple(range(1, numbers.ndim))) * numbers
    return _compensated.scattered(weighted, local.columns, dim, bound)
