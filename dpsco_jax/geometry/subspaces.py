"""Subspaces of parameters: orthonormal bases, the leading ones of many gradients, how fast they decay.

What it computes: for rows H ``[rows, dim]``, one gradient each, the largest singular values σ_1 ≥ σ_2 ≥ ...
and the directions V ``[dim, rank]`` that belong to them (principal components without centring), by
orthogonal iteration Q ← qr(Hᵀ(HQ)), or exactly from the Gram matrix HHᵀ; and the exponent of σ_k ∝
k^exponent.

Source: T §11.4.2; orthogonal iteration as in Demmel 1997, with directions to spare as in Halko, Martinsson
and Tropp 2011; Ritz values of a subspace.

Formal guarantee: none of privacy: a basis of private gradients is private. For any V,
‖VVᵀ‖ = ‖VᵀV‖ ≤ 1 + ‖VᵀV - I‖_F in operator norm: what a product with VVᵀ can lengthen.

Cost: an iteration is two passes over the rows and one factorization of ``[dim, rank + spare]``, in memory of
that and one chunk of rows; the Gram route rows²·dim once, and is the cheaper one where rows ≪ dim.

Example:
    >>> import jax, numpy as np
    >>> from dpsco_jax.geometry import subspaces
    >>> rows = np.diag([8.0, 4.0, 2.0, 1.0]).astype(np.float32)
    >>> found = subspaces.orthogonal_iteration(jax.random.key(0), rows, 2, spare=1)
    >>> found.singular_values.round(3).tolist()
    [8.0, 4.0]
    >>> round(subspaces.decay(1 / np.arange(1, 50) ** 0.6).exponent, 6)
    -0.6
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpsco_jax._checks import require, require_integer, require_key, require_number
from dpsco_jax._redact import described

_PRECISION = jax.lax.Precision.HIGHEST  # an accelerator's default has three digits


class Subspace(NamedTuple):
    """Leading directions, and how much of the rows lies along each.

    Attributes:
        basis: orthonormal columns, ``[dim, rank]``.
        singular_values: of the rows, falling, ``[rank]``.
    """

    basis: Float[Array | np.ndarray, "dim rank"]
    singular_values: Float[Array | np.ndarray, "rank"]


class Decay(NamedTuple):
    """The least-squares line through the logarithms of values against those of their ranks.

    Attributes:
        exponent: its slope.
        level: the value of the line at rank 1.
        r_squared: the share of the variance of the logarithms that it explains.
    """

    exponent: float
    level: float
    r_squared: float


def orthonormality_error(basis: Float[Array | np.ndarray, "dim rank"]) -> Any:
    """‖VᵀV - I‖_F, for concrete arrays in float64."""
    _require_matrix("basis", basis)
    if isinstance(basis, jax.core.Tracer):
        gram = jnp.matmul(basis.T, basis, precision=_PRECISION)
        return jnp.linalg.norm(gram - jnp.eye(len(gram), dtype=gram.dtype))
    wide = np.asarray(basis, np.float64)
    return float(np.linalg.norm(wide.T @ wide - np.eye(wide.shape[1])))


def orthogonal_iteration(
    key: jax.Array,
    rows: Float[Array | np.ndarray, "rows dim"],
    rank: int,
    *,
    spare: int = 10,
    num_iterations: int = 10,
    chunk_size: int | None = None,
) -> Subspace:
    """The leading subspace of the rows by orthogonal iteration; runs inside ``jit``.

    Args:
        key: a typed key, for the first directions.
        rows: H, in at least float32.
        rank: how many directions are wanted.
        spare: how many more are iterated: the error of the last ones falls as the ratio of the singular
            values at ``rank`` and at ``rank + spare``, to the power of twice the iterations. Fewer where
            there are not as many.
        num_iterations: at least 1.
        chunk_size: rows multiplied at a time; all at once if None.
    """
    require_key(key)
    count, dim = _require_matrix("rows", rows)
    rank = require_integer("rank", rank, 1, min(count, dim))
    spare = require_integer("spare", spare, 0)
    require_integer("num_iterations", num_iterations, 1)
    size = count if chunk_size is None else require_integer("chunk_size", chunk_size, 1)
    wide = jnp.asarray(rows, jnp.promote_types(jnp.result_type(rows), jnp.float32))
    padded = jnp.pad(wide, ((0, -count % size), (0, 0))).reshape(-1, size, dim)

    def squared(directions: Array) -> Array:
        def add(total: Array, chunk: Array) -> tuple[Array, None]:
            along = jnp.matmul(chunk, directions, precision=_PRECISION)
            return total + jnp.matmul(chunk.T, along, precision=_PRECISION), None

        return jax.lax.scan(add, jnp.zeros_like(directions), padded)[0]

    width = min(rank + spare, count, dim)
    start = jnp.linalg.qr(jax.random.normal(key, (dim, width), wide.dtype))[0]
    found = jax.lax.fori_loop(0, num_iterations, lambda _, q: jnp.linalg.qr(squared(q))[0], start)
    # Ritz values: the best that this subspace has, not the diagonal of the last factor.
    values, turn = jnp.linalg.eigh(jnp.matmul(found.T, squared(found), precision=_PRECISION))
    basis = jnp.matmul(found, turn[:, ::-1][:, :rank], precision=_PRECISION)
    return Subspace(basis, jnp.sqrt(jnp.maximum(values[::-1][:rank], 0)))


def gram_subspace(rows: Float[Array | np.ndarray, "rows dim"], rank: int) -> Subspace:
    """The leading subspace of the rows from their Gram matrix, in float64 on the host.

    Singular values below 1e-7 of the largest are lost in the rounding of their squares.

    Args:
        rows: H; concrete.
        rank: how many directions are wanted.
    """
    count, dim = _require_matrix("rows", rows)
    rank = require_integer("rank", rank, 1, min(count, dim))
    wide = np.asarray(rows, np.float64)
    require(bool(np.isfinite(wide).all()), "rows", described(rows), "a matrix of finite numbers")
    values, vectors = np.linalg.eigh(wide @ wide.T)
    # By a factorization and not by dividing by σ, which may be zero.
    basis = np.linalg.qr(wide.T @ vectors[:, ::-1][:, :rank])[0]
    return Subspace(basis, np.sqrt(np.maximum(values[::-1][:rank], 0.0)))


def decay(
    values: Float[Array | np.ndarray, "rank"], first: int = 1, last: int | None = None
) -> Decay:
    """The exponent of a power law through values at ranks ``first`` to ``last``, counted from 1.

    Args:
        values: positive, in the order of their ranks.
        first: the first rank that counts.
        last: the last one; the number of values if None.

    Raises:
        ValueError: fewer than two ranks count, or a value among them is not positive and finite.
    """
    require_number("values", values)
    numbers = np.asarray(values, np.float64)
    require(numbers.ndim == 1, "values", described(values), "an array [rank]")
    first = require_integer("first", first, 1, max(len(numbers) - 1, 1))
    end = len(numbers) if last is None else require_integer("last", last, first + 1, len(numbers))
    chosen = numbers[first - 1 : end]
    good = len(chosen) >= 2 and bool(np.all((chosen > 0) & np.isfinite(chosen)))
    require(good, "values", described(values), "at least two positive finite numbers")
    ranks, logs = np.log(np.arange(first, end + 1)), np.log(chosen)
    slope, intercept = np.polyfit(ranks, logs, 1)
    left = np.sum((logs - slope * ranks - intercept) ** 2)
    spread = np.sum((logs - logs.mean()) ** 2)
    return Decay(
        float(slope), float(np.exp(intercept)), float(1 - left / spread) if spread else 1.0
    )


def _require_matrix(name: str, value: Any) -> tuple[int, int]:
    require_number(name, value, "a matrix of real numbers")
    shape = np.shape(value)
    if len(shape) != 2 or not all(shape):
        require(False, name, described(value), "a matrix of real numbers")
    return shape
