"""The sum of clipped user gradients of a linear model, in closed form.

What it computes: the same as ``gradients.clipped_gradient_sum``, for losses link(<w, x>, label), whose
gradient is link'(<w, x>, label)·x. No automatic differentiation, and no gradient per item:

- one item per user: the norm is |link'|·‖x‖ with ‖x‖ known beforehand, so a step is one product with the
  features and one with their transpose, and nothing of size users × dim is formed;
- dense items: one product per chunk gives the user gradients Σ_j c_j·x_j;
- dense items and a large matrix of parameters: the norm of Σ_j x_j·c_jᵀ from the inner products of a user's
  items, Σ_ij ⟨c_i, c_j⟩·⟨x_i, x_j⟩, and one product for the sum (``_ghost_norms``): no matrix is formed for a
  user;
- one-hot items: margins are gathered, and the c_j scattered into the user gradients of a chunk; of users who
  have few of the columns only the numbers at these (``_LocalColumns``).

Source: the closed form of per-example norms of generalized linear models (Goodfellow 2015, for one layer; Li
et al. 2022 for several items, "ghost clipping").

Formal guarantee: each user's term is a function of the user's
items and the point, has norm at most ``clip_norm``, and is zero where the user's gradient is not finite.
Coefficients are divided by the user's largest before anything is summed, and features are bounded, so no
intermediate result overflows. Products are formed in full float32 (never TF32 or bfloat16), of eight users
at a time, or of 64 who have one item each on a CPU, and added up in two parts; one-hot rows are scattered as
integers (``dpsco_jax._compensated``): the bound survives the summation, as docs/theory/sums.md proves.

Cost: two reads of the features of the users in the sample. Memory of users × dim for one chunk, or of one
number per user and one row for eight of them, or more, where users have one item. ``prepare`` copies dense
features once, outside of the loop.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int

from dpsco_jax import _compensated
from dpsco_jax._checks import (
    require,
    require_callable,
    require_count,
    require_given,
    require_instance,
    require_mask,
    require_nonnegative,
    require_positive,
)
from dpsco_jax.geometry import norms
from dpsco_jax.geometry.smoothing import ball_coordinate
from dpsco_jax.oracles import Oracle, _ghost_norms, _linear_rows
from dpsco_jax.oracles._linear_rows import FULL
from dpsco_jax.oracles._summed import Parts, SumOracle, two_keys
from dpsco_jax.oracles.chunks import most_rows
from dpsco_jax.oracles.gradients import Sampler
from dpsco_jax.oracles.sampling import UserSample
from dpsco_jax.problems.objective import LinearModel, OneHot, bounded_row, column_indices
from dpsco_jax.problems.users import UserData, items_per_user

# Pays for the roundings around the clip factor; the factor itself pays for the norm's.
HEAD_ROOM = 1.0 - 2.0**-20
# Users of one item whom one product adds up at most: to add its results without error costs more than it.
ROW_GROUP = 64


class _LocalColumns(NamedTuple):
    """The columns that a user of one-hot rows has; every other number of the user's sum of rows is zero.

    Attributes:
        columns: the different columns of each user's entries, ascending; ``dim`` for places that are not
            used, and for entries that do not count. ``[users, items * nnz]``.
        place: where among them an entry stands, ``[users, items, nnz]``.
    """

    columns: Int[Array, "users places"]
    place: Int[Array, "users items nnz"]


class LinearData(NamedTuple):
    """User data made ready for linear models.

    Attributes:
        features: dense rows within the feature bound ``[users, items, dim]``, or columns
            ``[users, items, nnz]`` with ``dim`` for entries that do not count.
        labels: ``[users, items]``.
        weights: 1 / (the user's number of items), zero where there is no item, ``[users, items]``.
        row_norms: proven upper bounds of the norms of the rows, ``[users, items]``.
        num_items: items of each user, ``[users]``.
        local: the different columns of each user, where they are few of all; ``None`` otherwise.
    """

    features: Any
    labels: Any
    weights: Float[Array, "users items"]
    row_norms: Float[Array, "users items"]
    num_items: Int[Array, "users"]
    local: _LocalColumns | None = None


def prepare(model: LinearModel, data: UserData, dim: int) -> LinearData:
    """Enforces the feature bound and computes what does not depend on the point; once per data set.

    Args:
        model: of the objective.
        data: items are ``Example``s with dense or ``OneHot`` features.
        dim: length of a row: of the parameter vector, or of a column of the parameter matrix.

    Raises:
        ValueError: if dense features are not of length ``dim``, labels not of shape ``[users, items]``, or
            the mask not of booleans of that shape.
    """
    require_instance("model", model, LinearModel)
    require_instance("data", data, UserData)
    features, labels = data.items
    slots = jax.tree.leaves(features)[0].shape[:2]
    require(
        labels.shape == slots, "labels", labels.shape, f"of shape [users, items] = {list(slots)}"
    )
    users, items = slots
    present = jnp.ones((users, items), bool)
    if data.mask is not None:
        present = jnp.asarray(require_mask("data.mask", data.mask, slots))
    count = items_per_user(data).astype(jnp.int32)
    weights = jnp.where(present, 1.0 / jnp.maximum(count, 1)[:, None], 0.0)
    if isinstance(features, OneHot):
        rows = jnp.where(present[..., None], column_indices(features, dim), dim)
        norm = _linear_rows.one_hot_value(model, features.columns.shape[-1]) * jnp.sqrt(
            jnp.sum(rows < dim, -1, dtype=float)
        )
        local = _find_columns(rows, dim) if items > 1 else None
        return LinearData(rows, labels, weights, norm / HEAD_ROOM, count, local)
    if features.shape[-1] != dim:
        raise ValueError(f"features must have length dim = {dim}, got shape {features.shape}")
    bounded = jax.vmap(jax.vmap(lambda row: bounded_row(row, model.feature_bound)))(features)
    rows = jnp.where(present[..., None], bounded, 0.0)
    lengths = jax.vmap(lambda user: _norm_bounds(user, model.feature_bound))(rows)
    return LinearData(rows, labels, weights, lengths, count)


def clipped_gradient_sum(
    model: LinearModel,
    clip_norm: ArrayLike,
    sampler: Sampler | None = None,
    chunk_size: int = 64,
    smoothing_radius: ArrayLike | None = None,
    derivative: Callable[[LinearModel, Any, Any, Any], Array] = _linear_rows.at_point,
) -> Oracle:
    """The oracle that returns Σ_u clip(g_u) over a sample of users; its data are ``LinearData``.

    Args:
        model: ``objective.linear_model``.
        clip_norm: positive bound on the ℓ2 norm of one user's gradient; may be traced.
        sampler: draws the users of a step from a key; all users if ``None``.
        chunk_size: how many users, at least 1, whose gradients are held at once. Without effect where all
            users take part with one item each: nothing is held then.
        smoothing_radius: r ≥ 0, of shifts drawn for every item; no shifts if ``None``. May be traced.
        derivative: the coefficients of the items, ``derivative(model, params, rows, offsets)``, where they
            are not those of the gradient at the point; the first leaf of ``params`` is of its shape.
    """
    require_instance("model", model, LinearModel)
    require_given(require_callable, sampler=sampler)
    require_callable("derivative", derivative)
    require_count("chunk_size", chunk_size)
    require_positive("clip_norm", clip_norm)
    if smoothing_radius is not None:
        require_nonnegative("smoothing_radius", smoothing_radius)
        _linear_rows.require_vector(model, "a smoothing_radius")

    def keys(key: Array) -> tuple[Array, Array]:
        # Without shifts the samples are those of the whole key: no draw is wasted, none changes.
        return (key, key) if smoothing_radius is None else two_keys(key)

    def parts(
        shift_key: Array,
        params: Any,
        data: LinearData,
        sample: UserSample | None,
    ) -> Parts:
        users, items = data.labels.shape
        point = jax.tree.leaves(params)[0]
        dim, axes = len(point), tuple(range(1, point.ndim))
        entry = _linear_rows.entry(model, data)

        def chunk_sum(rows: LinearData, counted: Array, position: Array) -> Any:
            offsets = shifts(shift_key, smoothing_radius, rows, position, dim)
            relative, unit = _linear_rows.slopes(model, params, rows, counted, offsets, derivative)
            limit = HEAD_ROOM * room * clip_norm / unit
            if items == 1:
                slopes = relative[:, 0]
                lengths = rows.row_norms[:, 0]
                if model.outputs is not None:
                    lengths = lengths * _norm_bounds(slopes, 1.0)
                factor = jnp.minimum(1.0, limit / lengths)
                total = _weighted_rows(jnp.expand_dims(unit * factor, axes) * slopes, rows)
            elif _ghost_norms.pays(model, rows):
                lengths = _ghost_norms.norm_bounds(relative, rows) / HEAD_ROOM
                factor = jnp.minimum(1.0, limit / lengths)
                scales = jnp.expand_dims(unit * factor, (1, 2)) * relative
                # Of a user whose items cancel the products are longer than their sum, and rounded as such.
                total = _compensated.over_groups(
                    _outer_products, scales, rows.features, group=_ghost_norms.group(items)
                )
            elif rows.local is not None:
                gradients = _row_sums(relative, rows.local, dim)
                factor = jax.vmap(norms.clip_factor)(gradients, limit / entry)
                total = _column_total(unit * factor, gradients, rows.local, dim, most)
            else:
                gradients = _linear_rows.row_sums(relative, rows, dim)
                factor = jax.vmap(norms.clip_factor)(gradients, limit / entry)
                total = _compensated.weighted(unit * factor, gradients[:, :dim])
            return total, jnp.sum(jnp.where(counted, rows.num_items, 0), dtype=jnp.int32)

        def _weighted_rows(scales: Array, rows: LinearData) -> _compensated.Split:
            if not _linear_rows.is_sparse(rows):
                if axes:
                    return _compensated.over_groups(
                        _outer_products, scales, rows.features, group=ROW_GROUP
                    )
                return lax.platform_dependent(
                    scales, rows.features[:, 0], cpu=_weighted, default=_compensated.weighted
                )
            columns = rows.features[:, 0]
            values = jnp.broadcast_to(scales[:, None], (*columns.shape, *scales.shape[1:]))
            return _compensated.scattered(values, columns, dim, most)

        whole = users if sample is None and items == 1 else chunk_size
        if _linear_rows.is_sparse(data):
            whole = min(whole, _compensated.MOST_SCATTERED)
        rows_added = most_rows(data, sample)
        if items > 1 and _ghost_norms.pays(model, data):
            product = min(_ghost_norms.group(items), whole)
            rounding = _ghost_norms.rounding(product, items)
            room = _compensated.room(rows_added, product, group_rounding=rounding)
        elif items == 1 and not _linear_rows.is_sparse(data):
            product = max(_compensated.GROUP, min(ROW_GROUP, rows_added, whole))
            # Elsewhere than on a CPU groups of vectors are smaller, and are more.
            room = _compensated.room(rows_added, whole, group_rounding=product**2)
        else:
            room = _compensated.room(rows_added, whole)
        most = clip_norm / entry
        return Parts(
            chunk_sum,
            whole,
            lambda total: total if entry == 1.0 else _compensated.times(total, entry),
        )

    return SumOracle(sampler, clip_norm, keys, parts)


def shifts(
    key: Array,
    smoothing_radius: ArrayLike | None,
    rows: LinearData,
    position: Int[Array, "users"],
    dim: int,
) -> Array | float:
    """⟨y, x⟩ for every item of a chunk, with y uniform in the ball of radius r, drawn for each; or zero.

    It is r·‖x‖ times one coordinate of a uniform point of the unit ball: one number for an item, where
    ``smoothed.user_gradient_by_item`` draws ``dim`` of them, with the same law. (The stored ‖x‖ is an upper
    bound: by two roundings, unless x is a millionth of the feature bound.) Depends on a user's place in the
    sample and not on how the sample is cut.
    """
    if smoothing_radius is None:
        return 0.0
    keys = jax.vmap(lambda place: jax.random.fold_in(key, place))(position)
    items = rows.row_norms.shape[1]
    draws = jax.vmap(lambda k: ball_coordinate(k, (items,), dim))(keys)
    return jnp.asarray(smoothing_radius * rows.row_norms * draws)


def _outer_products(scales: Array, rows: Array) -> Array:
    """Σ x·cᵀ over all rows x of length dim and c of length outputs, ``[dim, outputs]``.

    Formed as Σ c·xᵀ: the other way round a compiler for CPUs transposes the rows, or takes a slow product.
    """
    flat = [x.reshape(-1, x.shape[-1]) for x in (scales, rows)]
    return lax.optimization_barrier(jnp.einsum("nk,nd->kd", *flat, precision=FULL)).T


def _weighted(scales: Array, rows: Array) -> _compensated.Split:
    """``_compensated.weighted`` for a CPU, where many runs at once pay for every group that is added up."""

    def product(some: Array, of_rows: Array) -> Array:
        return lax.dot_general(some, of_rows, (((0,), (0,)), ((), ())), FULL)

    # Without the barrier the scales of many runs are computed in the order that the product reads them in.
    once = lax.optimization_barrier(scales)
    return _compensated.over_groups(
        product, once, rows, group=ROW_GROUP, adding=_compensated.over_halves
    )


def _norm_bounds(rows: Float[Array, "rows dim"], typical: float) -> Array:
    """Upper bounds of the norms of rows that hold in exact arithmetic, at least 1e-6 of what is typical.

    A clip factor below one is at most limit/norm, by the proof of ``geometry.norms``.
    """
    limit = 1e-6 * typical
    factor = jax.vmap(lambda row: norms.clip_factor(row, limit))(rows)
    return limit / factor / HEAD_ROOM


_WORTH_IT = 16  # columns a place: measured; below it the whole vector is as fast


def _find_columns(features: Int[Array, "users items nnz"], dim: int) -> _LocalColumns | None:
    """The columns of each user; ``None`` where the whole vector is not much longer.

    Args:
        features: columns, ``dim`` for entries that do not count.
        dim: length of a row.
    """
    users, items, nnz = features.shape
    if _WORTH_IT * items * nnz > dim:
        return None

    def of_user(entries: Array) -> tuple[Array, Array]:
        columns, place = jnp.unique(entries, size=items * nnz, fill_value=dim, return_inverse=True)
        return columns, place

    columns, place = jax.vmap(of_user)(features.reshape(users, items * nnz))
    return _LocalColumns(columns, place.reshape(features.shape))


def _row_sums(
    coefficients: Float[Array, "users items *outputs"], local: _LocalColumns, dim: int
) -> Array:
    """Σ_j c_j·x_j at each user's columns, over the value of an entry: ``[users, places, *outputs]``."""
    users, places = local.columns.shape
    row = jnp.arange(users)[:, None, None]
    numbers = jnp.zeros((users, places, *coefficients.shape[2:]), coefficients.dtype)
    numbers = numbers.at[row, local.place].add(coefficients[:, :, None], mode="promise_in_bounds")
    used = jnp.expand_dims(local.columns < dim, tuple(range(2, numbers.ndim)))
    return jnp.where(used, numbers, 0.0)


def _column_total(
    weights: Float[Array, "users"], numbers: Array, local: _LocalColumns, dim: int, bound: ArrayLike
) -> _compensated.Split:
    """Σ_u weights[u]·(the vector with ``numbers[u]`` at the columns of user u): ``[dim, *outputs]``.

    No product is larger than the bound.
    """
    weighted = jnp.expand_dims(weights, tuple(range(1, numbers.ndim))) * numbers
    return _compensated.scattered(weighted, local.columns, dim, bound)
