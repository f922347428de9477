"""Losses of users of a linear model as functions of the move from the start, of numbers of a known size.

What it computes: the mean of link(⟨a, start⟩ + ⟨a, move⟩, label) over a user's items. Rows are put within
their bound, what they say of the start is computed once, and labels are cut at a bound that is beyond all
margins.

Source: none.

Formal guarantee: a record is made of its own user's items alone, and its loss is one of the same kind:
convex, and as Lipschitz as the loss of ``problems.losses`` that the link is of. It is that of these records
that is drawn from, whatever the data are. A label that is cut changes the loss by a constant on all points
of a run. Users without items, items whose label is not finite and rows that are not finite have no say, as
in the losses themselves.

Cost: one copy of the rows in float64.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax import _checks
from dpsco_jax.problems.objective import (
    LinearModel,
    OneHot,
    bounded_row,
    column_indices,
    row_values,
)
from dpsco_jax.problems.users import UserData, items_per_user

_WITHIN = 1.0 - 2.0**-40


class Records(NamedTuple):
    """One for each user.

    Attributes:
        rows: ``[users, items, dim]``.
        margins: of the start, ``[users, items]``.
        labels: ``[users, items]``.
        shares: of an item in its user's mean; 0 for those that have no say.
    """

    rows: Float[Array, "users items dim"]
    margins: Float[Array, "users items"]
    labels: Float[Array, "users items"]
    shares: Float[Array, "users items"]


def records(
    model: LinearModel, data: UserData, start: Float[Array, " dim"], label_bound: float
) -> Records:
    """The records for a start in float64, labels cut at ±``label_bound``."""
    users, slots = jax.tree.leaves(data.items)[0].shape[:2]
    mask = jnp.ones((users, slots), bool) if data.mask is None else jnp.asarray(data.mask)
    counts = jnp.maximum(items_per_user(data), 1).astype(jnp.float64)
    labels = jnp.asarray(data.items.label).reshape(users, slots).astype(jnp.float64)
    there = mask & jnp.isfinite(labels)
    rows = _rows(model, data.items.features, len(start))
    return Records(
        rows=rows,
        margins=jnp.matmul(rows, start, precision=jax.lax.Precision.HIGHEST),
        labels=jnp.clip(jnp.where(there, labels, 0.0), -label_bound, label_bound),
        shares=jnp.where(there, 1.0 / counts[:, None], 0.0),
    )


def user_loss(
    model: LinearModel, unit: Any
) -> Callable[[Float[Array, " dim"], Records], Float[Array, ""]]:
    """``loss(x, record)`` of a user at start + unit·x."""

    def loss(x: Array, record: Records) -> Array:
        moved = jnp.matmul(record.rows, unit * x, precision=jax.lax.Precision.HIGHEST)
        return jnp.sum(record.shares * model.link(record.margins + moved, record.labels))

    return loss


def _rows(model: LinearModel, features: Any, dim: int) -> Array:
    if isinstance(features, OneHot):
        columns = column_indices(features, dim)
        entry = model.feature_bound / max(columns.shape[-1], 1) ** 0.5 * _WITHIN
        wide = jnp.where(row_values(features, dim, model.feature_bound) > 0, entry, 0.0)
        places = (*jnp.indices(columns.shape, sparse=True)[:-1], columns)
        return jnp.zeros((*columns.shape[:-1], dim + 1)).at[places].add(wide)[..., :dim]
    wide = jnp.asarray(features).astype(jnp.float64)
    _checks.require(wide.shape[-1] == dim, "data.items.features", wide.shape, f"of {dim} columns")
    clip = jax.vmap(jax.vmap(lambda row: bounded_row(row, model.feature_bound)))
    return clip(wide) * _WITHIN
