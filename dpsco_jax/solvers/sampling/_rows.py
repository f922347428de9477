"""Rows of a linear model in float64, rounded so that sums over them are exact.

Features are on a grid of powers of two; margins ⟨a_i, w⟩ of points on another grid, and sums Σ_i c_i·a_i of
coefficients on a third, are exact in any order, while all stays below 2^53 units. A row depends on its own
item alone and is within ``feature_bound``, each entry cut off towards zero; one whose features are not finite
is zero, one whose label is not finite, or that the mask leaves out, has the weight zero.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpsco_jax import _checks
from dpsco_jax._numerics import array_namespace
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.objective import (
    LinearModel,
    Objective,
    OneHot,
    bounded_row,
    column_indices,
)
from dpsco_jax.problems.users import UserData, items_per_user

FEATURE_BITS = 20
SIGNIFICAND_BITS = 53


class Rows(NamedTuple):
    """All items of all users, in one axis."""

    # [rows, dim] on the grid; of one-hot rows their columns [rows, nnz], ``dim`` for those that do not count.
    features: Any
    entry: Any  # the value of the entries of a one-hot row, on the grid; ``None`` if rows are dense
    labels: Float[Array, "rows"]
    weights: Float[Array, "rows"]  # an item's share of its user, 0 for those that do not count


def prepare(model: LinearModel, data: UserData, dim: int) -> Rows:
    """The rows of a linear model, in float64."""
    counts = jnp.maximum(items_per_user(data), 1).astype(jnp.float64)
    users, slots = jax.tree.leaves(data.items)[0].shape[:2]
    mask = jnp.ones((users, slots), bool) if data.mask is None else jnp.asarray(data.mask)
    labels = jnp.asarray(data.items.label).reshape(users, slots).astype(jnp.float64)
    there = mask & jnp.isfinite(labels)
    features, entry = _features(model, data.items.features, dim)
    return Rows(
        features=features.reshape(users * slots, features.shape[-1]),
        entry=entry,
        labels=jnp.where(there, labels, 0.0).ravel(),
        weights=jnp.where(there, 1.0 / counts[:, None], 0.0).ravel(),
    )


def margins(rows: Rows, point: Float[Array, "dim"]) -> Float[Array, "rows"]:
    """⟨a_i, w⟩ for all rows."""
    if rows.entry is None:
        return jnp.matmul(rows.features, point, precision=jax.lax.Precision.HIGHEST)
    return rows.entry * jnp.sum(jnp.append(point, 0.0)[rows.features], axis=1)


def total(rows: Rows, coefficients: Float[Array, "columns rows"], dim: int) -> Array:
    """Σ_i c_i·a_i for several coefficients of each row: ``[columns, dim]``."""
    if rows.entry is None:
        return jnp.matmul(coefficients, rows.features, precision=jax.lax.Precision.HIGHEST)
    sums = jnp.zeros((dim + 1, len(coefficients)))
    spread = jnp.broadcast_to(coefficients.T[:, None, :], (*rows.features.shape, len(coefficients)))
    return rows.entry * sums.at[rows.features].add(spread)[:dim].T


def require_everywhere(objective: Objective) -> _proofs.Proof:
    """The proof of a loss of ``problems.losses`` that is convex and Lipschitz on the whole space."""
    proof = _proofs.require_proven(objective)
    everywhere = objective.globally_convex_lipschitz
    what = "True: convex and Lipschitz on the whole space, which no clipping can make it"
    _checks.require(everywhere, "objective.globally_convex_lipschitz", everywhere, what)
    return proof


def require_whole_space(objective: Objective) -> None:
    """``ValueError`` unless the domain is the whole space."""
    diameter = float(np.asarray(objective.domain.diameter))
    _checks.require(np.isinf(diameter), "objective.domain", diameter, "the whole space")


def on_grid(values: Any, unit: Any) -> Any:
    """The nearest multiples of a power of two."""
    return jnp.round(values / unit) * unit


def power_below(value: Any) -> Any:
    """The largest power of two that is at most a positive value, exactly."""
    xp = array_namespace(value)
    mantissa, _ = xp.frexp(value)
    return value / (2.0 * mantissa)


def feature_unit(feature_bound: float) -> float:
    """The grid of the features: at most 2^-19 of the bound, of which it has at most 2^20 units."""
    return float(2.0 ** (np.ceil(np.log2(feature_bound)) - FEATURE_BITS))


def slope_unit(largest: float, num_rows: int) -> float:
    """A grid for the coefficients of ``num_rows`` rows, each at most ``largest``, with exact sums."""
    bits = SIGNIFICAND_BITS - FEATURE_BITS - int(np.ceil(np.log2(max(num_rows, 1))))
    return float(2.0 ** (np.ceil(np.log2(largest)) - bits))


def _features(model: LinearModel, features: Any, dim: int) -> tuple[Any, Any]:
    unit = feature_unit(model.feature_bound)
    if isinstance(features, OneHot):
        columns = column_indices(features, dim)
        entry = model.feature_bound / max(columns.shape[-1], 1) ** 0.5
        return columns, float(np.trunc(entry * (1.0 - 2.0**-40) / unit) * unit)
    wide = jnp.asarray(features).astype(jnp.float64)
    bounded = jax.vmap(jax.vmap(lambda row: bounded_row(row, model.feature_bound)))(wide)
    # Within the bound whatever the clip rounded; and what is cut off makes it shorter.
    return jnp.trunc(bounded * (1.0 - 2.0**-40) / unit) * unit, None
