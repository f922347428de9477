"""Losses of users in float64, as functions of the move from the start, with the rounding that they have.

A record depends on its own user's items alone. Each item's loss is convex and as Lipschitz as the setting of
the plan says: rows are put within ``feature_bound`` in ℓ2 and, where it is given, ``row_bound`` in ℓ_p*;
labels that may be any number are cut at ±``label_bound``, beyond all margins of a run but with a tiny
probability; points of a geometric median are brought within that distance of the start. The law is that of
these losses, whatever the data are.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpsco_jax import _checks
from dpsco_jax.geometry import _powers, norms
from dpsco_jax.problems.objective import (
    LinearModel,
    Objective,
    OneHot,
    bounded_row,
    column_indices,
    row_values,
)
from dpsco_jax.problems.users import UserData, items_per_user
from dpsco_jax.rates.norms import dual_exponent
from dpsco_jax.solvers.sampling._rejection_certificate import Rounding, rounded_losses

LINK_ULPS = 32.0
_WITHIN = 1.0 - 2.0**-40


class Sizes(NamedTuple):
    """How large numbers are at most, chosen without data."""

    start_norm: float  # of the start; a run from farther out costs infinity
    label_bound: (
        float  # where labels that may be any number are cut; how far points are from the start
    )


class UserLosses(NamedTuple):
    """The losses of a run."""

    loss: Callable[[Any, Any], Any]  # ``loss(move, record)``, a user's mean at start + move
    records: Any  # pytree with an axis of users


def user_losses(
    objective: Objective,
    model: LinearModel | None,
    data: UserData,
    start: Any,
    sizes: Sizes,
    norm: float,
    row_bound: float | None,
) -> UserLosses:
    """The losses for a start in float64, whose shape is that of the parameters."""
    users, slots = jax.tree.leaves(data.items)[0].shape[:2]
    mask = jnp.ones((users, slots), bool) if data.mask is None else jnp.asarray(data.mask)
    shares = mask / jnp.maximum(items_per_user(data), 1).astype(jnp.float64)[:, None]
    if model is None:
        return _of_points(objective, data, start, shares, sizes)
    _require_shapes(model, data, start.shape)
    labels = jnp.asarray(data.items.label).astype(jnp.float64)
    there = jnp.isfinite(labels)
    if model.outputs is None:
        # Also where the range is narrower: what an objective says of labels is no proof.
        labels = jnp.clip(labels, -sizes.label_bound, sizes.label_bound)
    labels = jnp.where(there, labels, 0.0)
    rows = _rows(model, data.items.features, start.shape[0], norm, row_bound)
    margins = jnp.matmul(rows, start, precision=jax.lax.Precision.HIGHEST)

    def loss(move: Any, record: Any) -> Any:
        features, at_start, label, share = record
        moved = jnp.matmul(features, move.reshape(start.shape), precision=jax.lax.Precision.HIGHEST)
        return jnp.sum(share * model.link(at_start + moved, label))

    return UserLosses(loss, (rows, margins, labels, jnp.where(there, shares, 0.0)))


def rounding(
    scale: Any, dim: int, lipschitz: float, slope: float, sizes: Sizes, additions: int
) -> Rounding:
    """What float64 makes of k times a user's loss, of ``additions`` sums beside products with rows.

    The value of a link, of margin m and label y, is within 32 units of 2^-53 of slope·(1 + |m| + |y|).
    """
    ulps = LINK_ULPS + additions
    at_start = slope * (1.0 + sizes.label_bound) + lipschitz * sizes.start_norm
    # Of a matrix the largest logit counts twice, and G is √2 times a row's norm.
    return rounded_losses(scale, dim + 3, lipschitz, sizes.start_norm, at_start, 2.0 * ulps)


def _require_shapes(model: LinearModel, data: UserData, start: tuple[int, ...]) -> None:
    """Axes too many would broadcast: losses of several outputs at once are steeper than is proven of one."""
    features, label = data.items.features, np.shape(data.items.label)
    dim = start[0] if start else 0
    good = start == model.params_shape(max(dim, 1))
    outputs = "" if model.outputs is None else f", {model.outputs}"
    _checks.require(good, "params", start, f"of shape [dim{outputs}] for this loss")
    slots = jax.tree.leaves(data.items)[0].shape[:2]
    columns = isinstance(features, OneHot)
    found = np.shape(features.columns) if columns else np.shape(features)
    good = len(found) == 3 if columns else found == (*slots, dim)
    wanted = "[users, items, nnz]" if columns else f"[users, items, {dim}]"
    _checks.require(good, "data.items.features", found, f"of shape {wanted}")
    _checks.require(label == slots, "data.items.label", label, f"of shape {slots}")


def _rows(model: LinearModel, features: Any, dim: int, norm: float, bound: float | None) -> Any:
    if isinstance(features, OneHot):
        columns = column_indices(features, dim)
        values = row_values(features, dim, model.feature_bound)
        value = model.feature_bound / max(columns.shape[-1], 1) ** 0.5
        wide = jnp.where(values > 0, value * _WITHIN, 0.0)
        places = (*jnp.indices(columns.shape, sparse=True)[:-1], columns)
        rows = jnp.zeros((*columns.shape[:-1], dim + 1)).at[places].add(wide)[..., :dim]
    else:
        wide = jnp.asarray(features).astype(jnp.float64)
        clip = jax.vmap(jax.vmap(lambda row: bounded_row(row, model.feature_bound)))
        rows = clip(wide) * _WITHIN
    if bound is None:
        return rows
    p = dual_exponent(norm)
    lengths = jax.vmap(jax.vmap(lambda row: _powers.norm(row, p)))(rows)
    factor = jnp.where(lengths > bound, bound / jnp.maximum(lengths, bound), 1.0)
    return rows * (factor * _WITHIN)[..., None]


def _of_points(
    objective: Objective, data: UserData, start: Any, shares: Any, sizes: Sizes
) -> UserLosses:
    """Of losses of a point each, of the shape of the parameters."""
    flat = jnp.ravel(start)

    def point(item: Any) -> tuple[Any, Any]:
        place = ravel_pytree(item)[0].astype(jnp.float64)
        _checks.require(place.shape == flat.shape, "data.items", place.shape, f"{flat.shape}")
        there = norms.all_finite(place)
        arrow = jnp.where(there, place, flat) - flat
        return flat + norms.clip_to_norm(arrow, sizes.label_bound), there

    places, there = jax.vmap(jax.vmap(point))(data.items)

    def loss(move: Any, record: Any) -> Any:
        found, share = record
        at = flat + move
        return jnp.sum(share * jax.vmap(lambda place: objective.loss(at, place))(found))

    return UserLosses(loss, (places, jnp.where(there, shares, 0.0)))


def label_bound(feature_bound: float, start_norm: float, distance: float) -> float:
    """A power of two beyond all margins of points that are so far from the start."""
    return float(2.0 ** math.ceil(math.log2(max(1.0, feature_bound * (start_norm + distance)))))
