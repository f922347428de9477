"""The sum of clipped user gradients of a linear model, in closed form.

What it computes: the same as ``gradients.clipped_gradient_sum``, for losses link(<w, x>, label), whose
gradient is link'(<w, x>, label)·x. No automatic differentiation, and no gradient per item:

- one item per user: the norm is |link'|·‖x‖ with ‖x‖ known beforehand, so a step is one product with the
  features and one with their transpose, and nothing of size users × dim is formed;
- dense items: one product per chunk gives the user gradients Σ_j c_j·x_j;
- one-hot items: margins are gathered, and the c_j scattered into the user gradients of a chunk.

Source: the closed form of per-example norms of generalized linear models (Goodfellow 2015, for one layer).

Formal guarantee: as for ``gradients.clipped_gradient_sum``: each user's term is a function of the user's
items and the point, has norm at most ``clip_norm``, and is zero where the user's gradient is not finite.
Coefficients are divided by the user's largest before anything is summed, and features are bounded, so no
intermediate result overflows. Products are formed in full float32 (never TF32 or bfloat16), since the
bound must survive the summation.

Cost: two reads of the features of the users in the sample. Memory of users × dim for one chunk, or of one
number per user where users have one item. ``prepare`` copies dense features once, outside of the loop.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int

from dpsco_jax.geometry import norms
from dpsco_jax.geometry._checks import require_positive
from dpsco_jax.oracles import Estimate, Oracle
from dpsco_jax.oracles.chunks import sum_over_users
from dpsco_jax.oracles.gradients import Sampler
from dpsco_jax.problems.objective import LinearModel, OneHot, bounded_row, row_values
from dpsco_jax.problems.users import UserData, items_per_user

_FULL = lax.Precision.HIGHEST
# Pays for the roundings around the clip factor; the factor itself pays for the norm's.
_HEAD_ROOM = 1.0 - 2.0**-20


class LinearData(NamedTuple):
    """User data made ready for linear models.

    Attributes:
        features: dense rows within the feature bound ``[users, items, dim]``, or columns
            ``[users, items, nnz]`` with ``dim`` for entries that do not count.
        labels: ``[users, items]``.
        weights: 1 / (the user's number of items), zero where there is no item, ``[users, items]``.
        row_norms: proven upper bounds of the norms of the rows, ``[users, items]``.
        num_items: items of each user, ``[users]``.
    """

    features: Any
    labels: Any
    weights: Float[Array, "users items"]
    row_norms: Float[Array, "users items"]
    num_items: Int[Array, "users"]


def prepare(model: LinearModel, data: UserData, dim: int) -> LinearData:
    """Enforces the feature bound and computes what does not depend on the point; once per data set.

    Args:
        model: of the objective.
        data: items are ``Example``s with dense or ``OneHot`` features.
        dim: length of the parameter vector.

    Raises:
        ValueError: if dense features are not of length ``dim``.
    """
    features, labels = data.items
    users, items = labels.shape[:2]
    present = jnp.ones((users, items), bool) if data.mask is None else jnp.asarray(data.mask)
    count = items_per_user(data).astype(jnp.int32)
    weights = jnp.where(present, 1.0 / jnp.maximum(count, 1)[:, None], 0.0)
    if isinstance(features, OneHot):
        counts = (row_values(features, dim, model.feature_bound) > 0) & present[..., None]
        norm = _entry(model, features.columns.shape[-1]) * jnp.sqrt(
            jnp.sum(counts, -1, dtype=float)
        )
        rows = jnp.where(counts, features.columns, dim).astype(jnp.int32)
        return LinearData(rows, labels, weights, norm / _HEAD_ROOM, count)
    if features.shape[-1] != dim:
        raise ValueError(f"features must have length dim = {dim}, got shape {features.shape}")
    bounded = jax.vmap(jax.vmap(lambda row: bounded_row(row, model.feature_bound)))(features)
    rows = jnp.where(present[..., None], bounded, 0.0)
    return LinearData(rows, labels, weights, _norm_bounds(rows, model.feature_bound), count)


def clipped_gradient_sum(
    model: LinearModel,
    clip_norm: ArrayLike,
    sampler: Sampler | None = None,
    chunk_size: int = 64,
) -> Oracle:
    """The oracle that returns Σ_u clip(g_u) over a sample of users; its data are ``LinearData``.

    Args:
        model: ``objective.linear_model``.
        clip_norm: bound on the ℓ2 norm of one user's gradient; may be traced.
        sampler: draws the users of a step from a key; all users if ``None``.
        chunk_size: users whose gradients are held at once. Without effect where all users take part with
            one item each: nothing is held then.

    Raises:
        ValueError: if ``clip_norm`` or ``chunk_size`` is not positive.
    """
    require_positive("clip_norm", clip_norm)
    require_positive("chunk_size", chunk_size)

    def oracle(key: Array, params: Float[Array, "dim"], data: LinearData) -> Estimate:
        sample = None if sampler is None else sampler(key)
        sparse = jnp.issubdtype(data.features.dtype, jnp.integer)
        users, items = data.labels.shape
        dim = len(params)
        # A weight of zero stands at place ``dim`` for entries that do not count.
        point = jnp.append(params, 0.0) if sparse else params
        entry = _entry(model, data.features.shape[-1]) if sparse else 1.0

        def margins(rows: LinearData) -> Array:
            if sparse:
                return entry * jnp.sum(point.at[rows.features].get(mode="promise_in_bounds"), -1)
            return jnp.einsum("umd,d->um", rows.features, point, precision=_FULL)

        def user_gradients(coefficients: Array, rows: LinearData) -> Array:
            """Σ_j c_j·x_j for every user of the chunk, over ``entry``."""
            if not sparse:
                return jnp.einsum("um,umd->ud", coefficients, rows.features, precision=_FULL)
            row = jnp.arange(len(coefficients))[:, None, None]
            sums = jnp.zeros((len(coefficients), dim + 1), point.dtype)
            sums = sums.at[row, rows.features].add(
                coefficients[..., None], mode="promise_in_bounds"
            )
            return sums.at[:, dim].set(0.0)

        def chunk_sum(rows: LinearData, counted: Array, position: Array) -> Any:
            del position
            slopes = model.derivative(margins(rows), rows.labels)
            slopes = jnp.where(rows.weights > 0, slopes, 0.0)
            usable = counted & jnp.all(jnp.isfinite(slopes), axis=1)
            slopes = jnp.where(usable[:, None], slopes, 0.0)
            # In units of the user's largest slope: at most 1, whatever the loss.
            unit = jnp.max(jnp.abs(slopes), axis=1)
            relative = rows.weights * (slopes / jnp.where(unit > 0, unit, 1.0)[:, None])
            limit = _HEAD_ROOM * clip_norm / unit
            if items == 1:
                factor = jnp.minimum(1.0, limit / rows.row_norms[:, 0])
                total = _weighted_rows(relative[:, 0] * (unit * factor), rows)
            else:
                gradients = user_gradients(relative, rows)
                factor = jax.vmap(norms.clip_factor)(gradients, limit / entry)
                total = jnp.matmul(unit * factor, gradients, precision=_FULL)
            return total, jnp.sum(jnp.where(counted, rows.num_items, 0), dtype=jnp.int32)

        def _weighted_rows(scales: Array, rows: LinearData) -> Array:
            if not sparse:
                return jnp.einsum("u,umd->d", scales, rows.features, precision=_FULL)
            columns = rows.features[:, 0]
            return jnp.zeros(dim + 1, point.dtype).at[columns].add(scales[:, None])

        whole = users if sample is None and items == 1 else chunk_size
        total, num_gradients = sum_over_users(chunk_sum, data, sample, whole)
        return Estimate(entry * total[:dim], {}, num_gradients)

    return oracle


def _entry(model: LinearModel, nnz: int) -> float:
    """The one value that entries of a one-hot row have, as ``problems.row_values`` defines it."""
    return model.feature_bound / max(nnz, 1) ** 0.5


def _norm_bounds(rows: Float[Array, "users items dim"], feature_bound: float) -> Array:
    """Upper bounds of the row norms that hold in exact arithmetic, at least 1e-6 of the bound.

    A clip factor below one is at most limit/norm, by the proof of ``geometry.norms``.
    """
    limit = 1e-6 * feature_bound
    factor = jax.vmap(jax.vmap(lambda row: norms.clip_factor(row, limit)))(rows)
    return limit / factor / _HEAD_ROOM
