"""Sums of Hessians of users, each clipped in Frobenius norm, to which a release of the matrix adds noise.

What it computes: at a point w, Σ_u clip(vec ∇²f_u(w)/C), clipped to norm one, f_u the mean loss of user u.
``vec`` writes a symmetric matrix in the coordinates in which its Frobenius norm is the Euclidean one: the
diagonal, and the entries above it times √2. ``symmetric`` is its inverse.

Source: own; the sensitivity is that of any clipped sum.

Formal guarantee: a user's vector is a function of the user's items and of the point, of norm at most one, and
zero where the Hessian is not finite. So replacing a user moves the sum by at most 2, and the mean Hessian of
n users by at most 2C/n. A loss that is M-smooth has Hessians of norm at most √d·M, and a linear model, whose
Hessians are means of φ''·xxᵀ, of at most M: by the triangle inequality, whatever the items are.

Cost: a Hessian of every user, by d products with it; memory of one chunk of them.

Example:
    >>> import jax
    >>> from dpsco_jax.oracles import hessians
    >>> from dpsco_jax.problems import fixtures
    >>> made = fixtures.two_wells(jax.random.key(0), num_users=100, items_per_user=1, dim=2, jitter=0.0)
    >>> oracle = hessians.clipped_hessian_sum(made.objective, jax.numpy.zeros(2), 2.0)  # C
    >>> found = oracle(jax.random.key(1), jax.numpy.zeros(2), made.data)
    >>> [[round(float(x), 3) for x in row] for row in hessians.symmetric(found.gradient / 50, 2)]
    [[-0.406, 0.0], [0.0, 0.325]]
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from dpsco_jax import _checks
from dpsco_jax.oracles import Oracle, gradients
from dpsco_jax.oracles.second_order import LARGEST_DIM
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import user_loss

__all__ = ["clipped_hessian_sum", "symmetric"]

_NUMBERS = 2**21  # of a chunk


def clipped_hessian_sum(
    objective: Objective,
    params: Any,
    clip_norm: ArrayLike,
    sampler: gradients.Sampler | None = None,
) -> Oracle:
    """The oracle whose estimate is the sum, ``[dim·(dim + 1)/2]``, of the losses without the regularizer.

    It is in units of ``clip_norm``: every user adds a vector of norm at most one.

    Args:
        objective: of the loss, which is differentiated twice.
        params: a point, for its shapes: at most ``LARGEST_DIM`` numbers.
        clip_norm: positive, of the Frobenius norm of a user's Hessian; may be traced.
        sampler: of the users of a sum; everybody if ``None``.
    """
    _checks.require_instance("objective", objective, Objective)
    _checks.require_real_leaves("params", params)
    _checks.require_positive("clip_norm", clip_norm)
    dim = sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(params))
    few = 1 <= dim <= LARGEST_DIM
    _checks.require(few, "params", f"{dim} numbers", f"in [1, {LARGEST_DIM}], for a Hessian")
    rows, columns = np.triu_indices(dim)
    factors = np.where(rows == columns, 0.5, math.sqrt(0.5))
    loss = user_loss(objective)

    def hessian(key: jax.Array, point: Any, items: Any, mask: Any) -> Array:
        del key
        flat, restored = ravel_pytree(point)
        found = jax.hessian(lambda numbers: loss(restored(numbers), items, mask))(flat)
        # Half of either side: rounding leaves them apart.
        sides = found[rows, columns] + found[columns, rows]
        return sides * (factors.astype(sides.dtype) / clip_norm)

    chunk = max(1, min(64, _NUMBERS // dim**2))
    return gradients.clipped_gradient_sum(hessian, 1.0, sampler, chunk)


def symmetric(vector: Float[Array, "entries"], dim: int) -> Float[Array, "dim dim"]:
    """The matrix of a vector of ``dim·(dim + 1)/2`` numbers; ``ValueError`` for another number of them."""
    dim = _checks.require_count("dim", dim)
    found, wanted = jnp.shape(vector), (dim * (dim + 1) // 2,)
    _checks.require(found == wanted, "vector", found, f"of shape {wanted} for dim = {dim}")
    rows, columns = np.triu_indices(dim)
    factors = np.where(rows == columns, 1.0, math.sqrt(0.5))
    entries = jnp.asarray(vector) * factors.astype(jnp.result_type(vector))
    upper = jnp.zeros((dim, dim), entries.dtype).at[rows, columns].set(entries)
    return upper.at[columns, rows].set(entries)
