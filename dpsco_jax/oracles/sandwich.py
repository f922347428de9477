"""Hessian and gradients of a linear model at a point, as sums of Gram matrices: the two parts of a sandwich.

What it computes: with g_u the gradient of user u, f_u ≤ 1 the factor that clips it to the radius ρ of the
point, z the user's rows, w their weights and ℓ″ the second derivatives of the link, the sums over users of

- H_u = f_u·Σ_j w_j·ℓ″_j·z_j·z_jᵀ, scaled down to a trace of at most a bound: the mean over users is the
  derivative of the mean clipped gradient, but for how f_u moves with the point;
- G_u = f_u²·g_u·g_uᵀ/ρ²: the spread of the clipped gradients, in units of the radius.

Both as ``row_moments.triangle``. With H and G their means, estimates of N users vary around what the clipped
gradients of all the world would give with covariance H⁻¹·ρ²G·H⁻¹/N.

Source: Huber 1967, White 1980 (the sandwich); own for clipped gradients.

Formal guarantee: each term is BᵀB for a matrix B of float32 numbers that depends on one user's items, the
point and the radius alone, and ‖B‖_F² is at most the bound, or at most one, by ``geometry.norms``. So terms
are positive semi-definite without any rounding, of Frobenius norm at most that, and
``transforms.summed_contributions(..., nonnegative=True)`` states their sensitivity under REPLACE_ONE. A user
with a gradient or a second derivative that is not finite has terms of zero.

Cost: dim² products for each row and each user; memory of the rows of one chunk.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax import _compensated, _sharding
from dpsco_jax._checks import require, require_count, require_instance, require_positive
from dpsco_jax.geometry import norms
from dpsco_jax.oracles import _linear_rows
from dpsco_jax.oracles.chunks import sum_over_users
from dpsco_jax.oracles.linear import HEAD_ROOM, LinearData
from dpsco_jax.oracles.preconditioned import TunedPoint
from dpsco_jax.oracles.row_moments import triangle
from dpsco_jax.problems.objective import LinearModel


class Sandwich(NamedTuple):
    """Sums over users, see the file's docstring.

    Attributes:
        hessian: the triangle of Σ_u H_u, ``[dim·(dim + 1)/2]``.
        gradients: the triangle of Σ_u G_u, ``[dim·(dim + 1)/2]``.
    """

    hessian: Float[Array, "size"]
    gradients: Float[Array, "size"]


def sandwich_sums(
    model: LinearModel, curvature: float, bound: ArrayLike, chunk_size: int = 64
) -> Callable[[TunedPoint, LinearData], Sandwich]:
    """The function from a point and dense ``LinearData`` to the sums of both parts.

    Args:
        model: ``objective.linear_model``.
        curvature: bound on the second derivative of the link, to which it is clipped.
        bound: to which the trace of H_u is clipped; may be traced.
        chunk_size: users whose rows are held at once.

    Raises:
        ValueError: params is a matrix, or, by the function, rows are one-hot.
    """
    require_instance("model", model, LinearModel)
    _linear_rows.require_vector(model, "a sandwich")
    require_positive("curvature", curvature)
    require_positive("bound", bound)
    require_count("chunk_size", chunk_size)
    bend = jax.vmap(jax.vmap(jax.grad(model.derivative)))

    def evaluate(at: TunedPoint, data: LinearData) -> Sandwich:
        require_instance("data", data, LinearData)
        require(not _linear_rows.is_sparse(data), "data.features", "one-hot columns", "dense rows")
        dim = len(at.point)
        # A product adds up the items of its users too.
        users, items = data.labels.shape
        rounding = items * _compensated.GROUP**2
        room = _compensated.room(users, chunk_size, roundings=1, group_rounding=rounding)

        def chunk_sum(rows: LinearData, counted: Array, position: Array) -> Sandwich:
            del position
            relative, unit = _linear_rows.slopes(model, at.point, rows, counted)
            gradients = _linear_rows.row_sums(relative, rows, dim)
            limit = jnp.exp(at.log_radius) / unit
            inside = jax.vmap(norms.clip_factor)(gradients, limit)
            unit_gradients = gradients * (unit * inside * jnp.exp(-at.log_radius))[:, None]
            unit_gradients = jax.vmap(lambda g: norms.clip_to_norm(g, room))(unit_gradients)

            bends = bend(_linear_rows.dots(model, at.point, rows), rows.labels)
            weights = rows.weights * jnp.clip(bends, 0.0, curvature) * inside[:, None]
            good = counted & jnp.all(jnp.isfinite(weights), axis=1)
            weights = jnp.where(good[:, None], weights, 0.0)
            roots = jnp.sqrt(weights)[..., None] * rows.features
            roots = jax.vmap(lambda b: norms.clip_to_norm(b, HEAD_ROOM * room * jnp.sqrt(bound)))(
                roots
            )
            products: list[Any] = [
                _compensated.over_groups(_outer_products, rows)
                for rows in (roots, unit_gradients[:, None])
            ]
            return Sandwich(*products)

        return sum_over_users(chunk_sum, data, None, chunk_size)

    return _sharding.automatic(evaluate, "data")


def _outer_products(rows: Float[Array, "users items dim"]) -> Array:
    return triangle(jnp.einsum("umd,ume->de", rows, rows, precision=_linear_rows.FULL))
