"""Sums over users of the moments of their rows: what coordinates for a linear model are chosen from.

What it computes: for dense ``LinearData``, with x the rows of a user, each user's items weighed alike:

- ``means``: Σ_u E_u[x], each term clipped to the bound on features;
- ``mean_squares``: Σ_u E_u[x²], entrywise, each term clipped to a norm;
- ``second_moments``: Σ_u E_u[x·xᵀ], each matrix clipped in Frobenius norm, as the vector of its upper
  triangle with entries off the diagonal times √2 (``triangle``), so that norms and products are kept.

Source: own. The vector of a symmetric matrix is standard ("svec").

Formal guarantee: every sum is over users, of terms that depend on one user's rows alone and have ℓ2 norm at
most the bound given, by ``geometry.norms``, and a little less, which pays for the rounding of the sum
(docs/theory/sums.md). The product of two terms of ``mean_squares`` is not negative, for their entries are
not; nor is that of two terms of ``second_moments``, which are positive multiples of positive semi-definite
matrices: tr(A·B) = ‖A^½·B^½‖_F² ≥ 0. So for both ``transforms.summed_contributions(..., nonnegative=True)``
states the sensitivity under REPLACE_ONE, √2 times the norm. A user without items has terms of zero.

Rounding: a float32 matrix differs from a positive semi-definite one by at most (items + 4)·2^-24 times its
trace, which is at most √rank times its Frobenius norm: by e = (items + 4)·√min(items, dim)·2^-24, relative. A
product of two may then be (2e + e²)/(1 - e)² times their norms below zero. ``second_moments`` refuses sizes
with e > 2^-8, where this is less than 0.008, and clips to (1 - 2^-7) times the bound: (1 - 2^-7)²·1.008 < 1.

Cost: one pass over the features; ``second_moments`` dim² products a row and a chunk of matrices.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax import _compensated
from dpsco_jax._checks import (
    require,
    require_count,
    require_each,
    require_instance,
    require_positive,
)
from dpsco_jax.geometry import norms
from dpsco_jax.oracles import _linear_rows
from dpsco_jax.oracles.chunks import sum_over_users
from dpsco_jax.oracles.linear import LinearData

_LARGEST_ERROR = 2.0**-8
_ROOM = 1.0 - 2.0**-7

Moments = Callable[[LinearData], Float[Array, "size"]]


def means(bound: ArrayLike, chunk_size: int = 64) -> Moments:
    """The function from dense ``LinearData`` to Σ_u clip(E_u[x]), ``[dim]``.

    Args:
        bound: to which the mean of a user's rows is clipped; the feature bound clips nothing.
        chunk_size: users whose means are held at once.

    Raises:
        ValueError: by the function, if the rows are one-hot.
    """
    return _of_entries(bound, chunk_size, lambda x: x)


def mean_squares(bound: ArrayLike, chunk_size: int = 64) -> Moments:
    """The function from dense ``LinearData`` to Σ_u clip(E_u[x²]), ``[dim]``, entries not negative.

    Args:
        bound: to which the vector of a user's mean squares is clipped. ‖E[x²]‖ ≤ max|x_j|·‖x‖: the square of
            the feature bound clips nothing, nor does the feature bound where no entry is above one.
        chunk_size: users whose mean squares are held at once.

    Raises:
        ValueError: by the function, if the rows are one-hot.
    """
    return _of_entries(bound, chunk_size, jnp.square)


def _of_entries(bound: ArrayLike, chunk_size: int, entrywise: Callable[[Array], Array]) -> Moments:
    require_positive("bound", bound)
    require_count("chunk_size", chunk_size)

    def evaluate(data: LinearData) -> Array:
        _require_dense(data)

        def chunk_sum(rows: LinearData, counted: Array, position: Array) -> _compensated.Split:
            del position
            terms = jnp.einsum(
                "um,umd->ud", rows.weights, entrywise(rows.features), precision=_linear_rows.FULL
            )
            return _clipped_total(terms, counted, room * bound)

        room = _compensated.room(data.labels.shape[0], chunk_size, roundings=1)
        return sum_over_users(chunk_sum, data, None, chunk_size)

    return evaluate


def rounding_covered(items: int, dim: int) -> bool:
    """Whether ``second_moments`` takes users with that many item slots, in rows of that length."""
    require_each(require_count, items=items, dim=dim)
    return (items + 4) * min(items, dim) ** 0.5 * 2.0**-24 <= _LARGEST_ERROR


def second_moments(bound: ArrayLike, chunk_size: int = 64) -> Moments:
    """The function from dense ``LinearData`` to Σ_u clip(E_u[x·xᵀ]) as a ``triangle``, ``[dim·(dim + 1)/2]``.

    Args:
        bound: to which a user's matrix is clipped in Frobenius norm.
        chunk_size: users whose matrices are held at once.

    Raises:
        ValueError: by the function, if the rows are one-hot or a user has so many item slots that rounding is
            not covered: (items + 4)·√min(items, dim) is above 65,536.
    """
    require_positive("bound", bound)
    require_count("chunk_size", chunk_size)

    def evaluate(data: LinearData) -> Array:
        _require_dense(data)
        items, dim = data.features.shape[1:]
        most = "of so few item slots that (items + 4)·√min(items, dim) is at most 65536"
        require(rounding_covered(items, dim), "data", f"{items} item slots of {dim} columns", most)

        def chunk_sum(rows: LinearData, counted: Array, position: Array) -> _compensated.Split:
            del position
            weighted = rows.weights[..., None] * rows.features
            matrices = jnp.einsum(
                "umd,ume->ude", weighted, rows.features, precision=_linear_rows.FULL
            )
            return _clipped_total(jax.vmap(triangle)(matrices), counted, _ROOM * room * bound)

        room = _compensated.room(data.labels.shape[0], chunk_size, roundings=1)
        return sum_over_users(chunk_sum, data, None, chunk_size)

    return evaluate


def _clipped_total(terms: Array, counted: Array, bound: ArrayLike) -> _compensated.Split:
    factor = jax.vmap(norms.clip_factor, (0, None))(terms, bound)
    factor = jnp.where(counted & jnp.all(jnp.isfinite(terms), axis=1), factor, 0.0)
    terms = jnp.where(factor[:, None] > 0, terms, 0.0)
    return _compensated.weighted(factor, terms)


def triangle(matrix: Float[Array, "dim dim"]) -> Float[Array, "size"]:
    """The upper triangle of a symmetric matrix, row after row, entries off the diagonal times √2.

    Args:
        matrix: symmetric; what is below the diagonal is not read.
    """
    dim = len(matrix)
    rows, columns = np.triu_indices(dim)
    return matrix[rows, columns] * np.where(rows == columns, 1.0, 2.0**0.5).astype(np.float32)


def from_triangle(entries: Float[Array, "size"], dim: int) -> Float[Array, "dim dim"]:
    """The symmetric matrix of which ``triangle`` makes these entries.

    Args:
        entries: ``[dim·(dim + 1)/2]``.
        dim: number of rows.

    Raises:
        ValueError: if there are not so many entries.
    """
    dim = require_count("dim", dim)
    size = dim * (dim + 1) // 2
    require(entries.shape == (size,), "entries", entries.shape, f"of shape ({size},)")
    rows, columns = np.triu_indices(dim)
    values = entries * np.where(rows == columns, 0.5, 0.5**0.5).astype(np.float32)
    half = jnp.zeros((dim, dim), entries.dtype).at[rows, columns].set(values)
    return half + half.T


def _require_dense(data: LinearData) -> None:
    require_instance("data", data, LinearData)
    require(not _linear_rows.is_sparse(data), "data.features", "one-hot columns", "dense rows")
