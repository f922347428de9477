"""What the oracles of linear models share: margins, slopes, and sums of a user's rows.

For a chunk of users of ``linear.LinearData``: the derivatives link'(<w, x>, label) of all items, in units of
the user's largest, and Σ_j c_j·x_j for every user. With K outputs there are K derivatives for an item, slopes
have one axis more, and a user's sum of outer products x_j·c_jᵀ is a matrix ``[dim, K]``; a user's largest
slope is the largest of all numbers. Everything is computed for each user from that user's rows and the point
alone, in full float32 (never TF32 or bfloat16). A user with a slope that is not finite counts as one whose
slopes are all zero.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from dpsco_jax._checks import require
from dpsco_jax.problems.objective import LinearModel

FULL = lax.Precision.HIGHEST


def is_sparse(rows: Any) -> bool:
    """Whether the features are columns of one-hot rows."""
    return jnp.issubdtype(rows.features.dtype, jnp.integer)


def entry(model: LinearModel, rows: Any) -> float:
    """The one value that entries of a one-hot row have, as ``problems.row_values`` defines it; 1 if dense."""
    return one_hot_value(model, rows.features.shape[-1]) if is_sparse(rows) else 1.0


def one_hot_value(model: LinearModel, nnz: int) -> float:
    """The value of an entry of a one-hot row with ``nnz`` columns."""
    return model.feature_bound / max(nnz, 1) ** 0.5


def require_shape(model: LinearModel, params: Any) -> None:
    """``ValueError`` unless params has the shape that the model's outputs ask for."""
    found = jnp.shape(params)
    wanted = model.params_shape(max(1, found[0]) if found else 1)
    form = "[dim]" if model.outputs is None else f"[dim, {model.outputs}]"
    require(found == wanted, "params", found, f"of shape {form}, as the linear model has it")


def require_vector(model: LinearModel, what: str) -> None:
    """``ValueError`` unless params of the model is a vector, as ``what`` needs it."""
    form = f"None for {what}: params must be a vector"
    require(model.outputs is None, "model.outputs", model.outputs, form)


def dots(
    model: LinearModel, params: Float[Array, "dim *outputs"], rows: Any
) -> Float[Array, "users items *outputs"]:
    """⟨w, x⟩ for all items of a chunk of users; Wᵀx for a matrix."""
    require_shape(model, params)
    matrix = model.outputs is not None
    if not is_sparse(rows):
        form = "umd,dk->umk" if matrix else "umd,d->um"

        def product(features: Array, point: Array) -> Array:
            return jnp.einsum(form, features, point, precision=FULL)

        def transposed(features: Array, point: Array) -> Array:
            # Of a batch of points the margins of one point are together: what follows reads them so.
            return lax.dot_general(point, features[:, 0], (((0,), (1,)), ((), ())), FULL)[:, None]

        if matrix or rows.features.shape[1] > 1:
            return product(rows.features, params)
        return lax.platform_dependent(rows.features, params, cpu=transposed, default=product)
    # A weight of zero stands at place ``dim`` for entries that do not count.
    padded = jnp.append(params, jnp.zeros((1, *params.shape[1:]), params.dtype), axis=0)
    named = padded.at[rows.features].get(mode="promise_in_bounds")
    return entry(model, rows) * jnp.sum(named, axis=2)


def at_point(
    model: LinearModel, params: Float[Array, "dim *outputs"], rows: Any, offsets: Any
) -> Float[Array, "users items *outputs"]:
    """link'(⟨w, x⟩ + offset, label) for all items of a chunk of users."""
    return model.derivative(dots(model, params, rows) + offsets, rows.labels)


def slopes(
    model: LinearModel,
    params: Any,
    rows: Any,
    counted: Bool[Array, "users"],
    offsets: Float[Array, "users items"] | float = 0.0,
    derivative: Callable[[LinearModel, Any, Any, Any], Array] = at_point,
) -> tuple[Float[Array, "users items *outputs"], Float[Array, "users"]]:
    """The coefficients of a user's rows in the user's gradient, over their largest slope; and that slope.

    ``offsets`` are added to the margins. The gradient of user u is ``unit[u]·Σ_j relative[u, j]·x_j``.
    Relative coefficients are at most one, whatever the loss, so nothing overflows that is summed. What an
    item's coefficient is of ``params``, in whatever form, ``derivative(model, params, rows, offsets)`` says.
    """
    derivatives = derivative(model, params, rows, offsets)
    axes = tuple(range(1, derivatives.ndim))
    weights = jnp.expand_dims(rows.weights, axes[1:])
    derivatives = jnp.where(weights > 0, derivatives, 0.0)
    usable = counted & jnp.all(jnp.isfinite(derivatives), axis=axes)
    derivatives = jnp.where(jnp.expand_dims(usable, axes), derivatives, 0.0)
    unit = jnp.max(jnp.abs(derivatives), axis=axes)
    relative = weights * (derivatives / jnp.expand_dims(jnp.where(unit > 0, unit, 1.0), axes))
    return relative, unit


def row_sums(coefficients: Float[Array, "users items *outputs"], rows: Any, dim: int) -> Array:
    """Σ_j x_j·c_j for every user, over ``entry``: ``[users, dim, *outputs]``.

    Of one-hot rows there is one row more at the end, of zeros: ``[users, dim + 1, *outputs]``.
    """
    outputs = coefficients.shape[2:]
    if not is_sparse(rows):
        form = "umk,umd->udk" if outputs else "um,umd->ud"
        return jnp.einsum(form, coefficients, rows.features, precision=FULL)
    row = jnp.arange(len(coefficients))[:, None, None]
    sums = jnp.zeros((len(coefficients), dim + 1, *outputs), coefficients.dtype)
    sums = sums.at[row, rows.features].add(coefficients[:, :, None], mode="promise_in_bounds")
    return sums.at[:, dim].set(0.0)
