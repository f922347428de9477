"""What the oracles of linear models share: margins, slopes, and sums of a user's rows.

What it computes: for a chunk of users of ``linear.LinearData``: the derivatives link'(<w, x>, label) of all
items, in units of the user's largest, and Σ_j c_j·x_j for every user.

Source: none; the gradient of link(<w, x>, label) is link'(<w, x>, label)·x.

Formal guarantee: everything is computed for each user from that user's rows and the point alone. A user
with a slope that is not finite counts as one whose slopes are all zero. Products are formed in full float32
(never TF32 or bfloat16).

Cost: one product with the features for the margins and one with their transpose for the sums; gathers and
scatters for one-hot rows.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

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


def dots(model: LinearModel, vector: Float[Array, "dim"], rows: Any) -> Float[Array, "users items"]:
    """⟨w, x⟩ for all items of a chunk of users."""
    if not is_sparse(rows):
        return jnp.einsum("umd,d->um", rows.features, vector, precision=FULL)
    # A weight of zero stands at place ``dim`` for entries that do not count.
    padded = jnp.append(vector, 0.0)
    return entry(model, rows) * jnp.sum(padded.at[rows.features].get(mode="promise_in_bounds"), -1)


def slopes(
    model: LinearModel,
    params: Float[Array, "dim"],
    rows: Any,
    counted: Bool[Array, "users"],
    offsets: Float[Array, "users items"] | float = 0.0,
) -> tuple[Float[Array, "users items"], Float[Array, "users"]]:
    """The coefficients of a user's rows in the user's gradient, over their largest slope; and that slope.

    ``offsets`` are added to the margins. The gradient of user u is ``unit[u]·Σ_j relative[u, j]·x_j``.
    Relative coefficients are at most one, whatever the loss, so nothing overflows that is summed.
    """
    derivatives = model.derivative(dots(model, params, rows) + offsets, rows.labels)
    derivatives = jnp.where(rows.weights > 0, derivatives, 0.0)
    usable = counted & jnp.all(jnp.isfinite(derivatives), axis=1)
    derivatives = jnp.where(usable[:, None], derivatives, 0.0)
    unit = jnp.max(jnp.abs(derivatives), axis=1)
    relative = rows.weights * (derivatives / jnp.where(unit > 0, unit, 1.0)[:, None])
    return relative, unit


def row_sums(coefficients: Float[Array, "users items"], rows: Any, dim: int) -> Array:
    """Σ_j c_j·x_j for every user, over ``entry``: ``[users, dim]``, with a last column of zeros if sparse."""
    if not is_sparse(rows):
        return jnp.einsum("um,umd->ud", coefficients, rows.features, precision=FULL)
    row = jnp.arange(len(coefficients))[:, None, None]
    sums = jnp.zeros((len(coefficients), dim + 1), coefficients.dtype)
    sums = sums.at[row, rows.features].add(coefficients[..., None], mode="promise_in_bounds")
    return sums.at[:, dim].set(0.0)
