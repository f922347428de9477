"""Random rotations that spread a vector evenly over coordinates: signs, then a Hadamard transform.

What it computes: U v with U = d^(-1/2) H D, where D is a diagonal of independent random signs and H the
Walsh-Hadamard matrix of the padded size d (the next power of two), and its inverse U' = d^(-1/2) D H.

Source: L Algorithm 2, steps 1 and 2, and Lemma 2 (Ailon and Chazelle 2009 for the transform).

Formal guarantee: U is orthogonal for any signs, so an ℓ2 sensitivity is the same before and after it. The
signs do not look at data and may be published. For n vectors of norm at most τ,

    P(some coordinate of some U v exceeds τ·√(2 log(2nd/α)/d)) <= α,

since a coordinate of U v is Σ_i ±v_i/√d with independent signs: sub-Gaussian with variance ‖v‖²/d
(Hoeffding), for n·d coordinates and two sides. The paper has 10 in the place of √2.

Cost: d·(number of factors)·32 multiplications a vector at most, as products with Hadamard matrices of at
most 32 rows; no matrix of size d × d.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from dpsco_jax._checks import (
    require,
    require_count,
    require_each,
    require_inside,
    require_key,
    require_nonnegative,
    require_number,
)

_FACTOR = 32


def padded_size(dim: int) -> int:
    """The size after padding: the smallest power of two that is at least ``dim``."""
    return 1 << (require_count("dim", dim) - 1).bit_length()


def random_signs(key: jax.Array, dim: int) -> Float[Array, "padded"]:
    """The signs of a rotation of vectors of length ``dim``, each ±1, one for each padded coordinate."""
    require_key(key)
    require_count("dim", dim)
    return jax.random.rademacher(key, (padded_size(dim),), float)


def rotate(
    signs: Float[Array, "padded"], vectors: Float[Array | np.ndarray, "*batch dim"]
) -> Float[Array, "*batch padded"]:
    """U v for each vector, padded with zeros to the size of ``signs``.

    Args:
        signs: of ``random_signs``.
        vectors: along the last axis, at most as long as ``signs``; at least float32.
    """
    require_each(require_number, signs=signs, vectors=vectors)
    missing = len(signs) - vectors.shape[-1]
    padding = [(0, 0)] * (vectors.ndim - 1) + [(0, missing)]
    vectors = jnp.pad(jnp.asarray(vectors), padding)
    return hadamard(vectors * _along_last(signs, vectors))


def rotate_back(
    signs: Float[Array, "padded"], vectors: Float[Array, "*batch padded"], dim: int
) -> Float[Array, "*batch {dim}"]:
    """The first ``dim`` coordinates of U' v for each vector: the inverse of ``rotate``."""
    require_each(require_number, signs=signs, vectors=vectors)
    require_count("dim", dim)
    return (hadamard(vectors) * _along_last(signs, vectors))[..., :dim]


def hadamard(vectors: Float[Array, "*batch padded"]) -> Float[Array, "*batch padded"]:
    """The orthonormal Walsh-Hadamard transform along the last axis; its own inverse.

    Raises:
        ValueError: the last axis is not a power of two.
    """
    require_number("vectors", vectors)
    shape, size = vectors.shape, vectors.shape[-1]
    require(size > 0 and size & (size - 1) == 0, "size", size, "a power of two")
    # H of a product of sizes is the Kronecker product of small ones: a few small matrix products
    # are faster than log2(size) passes over memory.
    stride = 1
    while stride < size:
        rows = min(_FACTOR, size // stride)
        blocks = vectors.reshape(-1, rows, stride)
        matrix = jnp.asarray(_hadamard_matrix(rows), vectors.dtype)
        vectors = jnp.einsum("ij,njs->nis", matrix, blocks, precision=lax.Precision.HIGHEST)
        stride *= rows
    return vectors.reshape(shape)


def largest_coordinate(norm: Any, num_vectors: int, dim: int, failure: Any) -> Any:
    """What no coordinate of rotated vectors exceeds, with probability at least 1 - ``failure``.

    Args:
        norm: τ, bound on the ℓ2 norm of each vector; may be traced.
        num_vectors: n, all under the same signs.
        dim: length of the vectors before padding.
        failure: α in (0, 1).

    Returns:
        τ·min(1, √(2 log(2nd/α)/d)) with d the padded size: a number for numbers.
    """
    require_nonnegative("norm", norm)
    require_each(require_count, num_vectors=num_vectors, dim=dim)
    require_inside("failure", failure)
    padded = padded_size(dim)
    log_term = math.log(2 * int(num_vectors) * padded)
    if isinstance(failure, jax.Array):
        return norm * jnp.minimum(1.0, jnp.sqrt(2 * (log_term - jnp.log(failure)) / padded))
    return norm * min(1.0, math.sqrt(2 * (log_term - math.log(float(failure))) / padded))


def _along_last(signs: jax.Array, vectors: jax.Array) -> jax.Array:
    """The signs in the dtype and with as many axes as the vectors."""
    return signs.astype(vectors.dtype).reshape((1,) * (vectors.ndim - 1) + (-1,))


def _hadamard_matrix(size: int) -> np.ndarray:
    matrix: np.ndarray = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.kron(matrix, np.array([[1.0, 1.0], [1.0, -1.0]]) / math.sqrt(2.0))
    return matrix
