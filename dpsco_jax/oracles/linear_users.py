"""The clipped gradients of single users of a linear model, in closed form.

What it computes: the matrix of the rows clip(g_u), for losses link(<w, x>, label): what
``gradients.per_user_gradients`` returns, without automatic differentiation. For aggregates that look at
single users: ``transforms.outlier_removed_mean``, ``transforms.winsorized_mean`` and others.

With smoothing, every item's margin is taken at a point of its own, shifted uniformly within a ball of radius
r; see ``linear.shifts``.

Source: the closed forms of ``linear``; shifts as in ``smoothed``.

Formal guarantee: a row is a function of its user's items and the point, has ℓ2 norm at most ``clip_norm`` as
stored, and is zero where the user's gradient is not finite. Nothing is assumed of the data. A clip at a
Lipschitz constant of the loss changes no gradient of honest data.

Cost: two reads of the features of the users in the sample; memory of users × dim for the result, and of one
chunk of users for the rest, whatever the number of users in the data.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax import _sharding
from dpsco_jax._checks import (
    require_callable,
    require_count,
    require_given,
    require_instance,
    require_nonnegative,
    require_positive,
)
from dpsco_jax.geometry import norms
from dpsco_jax.oracles import Estimate, Oracle, _linear_rows
from dpsco_jax.oracles._summed import drawn_by
from dpsco_jax.oracles.chunks import map_over_users
from dpsco_jax.oracles.gradients import Sampler
from dpsco_jax.oracles.linear import HEAD_ROOM, LinearData, shifts
from dpsco_jax.problems.objective import LinearModel


def per_user_gradients(
    model: LinearModel,
    clip_norm: ArrayLike,
    sampler: Sampler | None = None,
    chunk_size: int = 64,
    smoothing_radius: ArrayLike | None = None,
) -> Oracle:
    """The oracle that returns clip(g_u) for all users or a sample, ``[users, dim]``; data are ``LinearData``.

    Args:
        model: ``objective.linear_model``.
        clip_norm: positive bound on the ℓ2 norm of one user's gradient, such as ``objective.lipschitz``; may
            be traced.
        sampler: draws the users of a step from a key, a fixed number of them, such as
            ``sampling.without_replacement``; all users if ``None``.
        chunk_size: how many users, at least 1, whose rows are read at once.
        smoothing_radius: r ≥ 0, of shifts drawn for every item; no shifts if ``None``. May be traced.
    """
    require_instance("model", model, LinearModel)
    require_given(require_callable, sampler=sampler)
    require_positive("clip_norm", clip_norm)
    require_count("chunk_size", chunk_size)
    if smoothing_radius is not None:
        require_nonnegative("smoothing_radius", smoothing_radius)
        _linear_rows.require_vector(model, "a smoothing_radius")

    def oracle(key: Array, params: Float[Array, "dim *outputs"], data: LinearData) -> Estimate:
        sample_key, shift_key = jax.random.split(key)
        sample = None if sampler is None else sampler(sample_key)
        dim = len(params)
        entry = _linear_rows.entry(model, data)

        def chunk_rows(rows: LinearData, counted: Array, position: Array) -> Any:
            offsets = shifts(shift_key, smoothing_radius, rows, position, dim)
            relative, unit = _linear_rows.slopes(model, params, rows, counted, offsets)
            gradients = _linear_rows.row_sums(relative, rows, dim)
            # Without the barrier the sums are computed again for every pass of the clip.
            gradients = jax.lax.optimization_barrier(gradients)
            factor = jax.vmap(norms.clip_factor)(gradients, HEAD_ROOM * clip_norm / (entry * unit))
            scale = (unit * factor) * entry
            scale = jnp.expand_dims(scale, tuple(range(1, gradients.ndim)))
            return scale * gradients[:, :dim], jnp.where(counted, rows.num_items, 0)

        rows, items = map_over_users(chunk_rows, data, sample, chunk_size)
        return Estimate(rows, drawn_by(sample), jnp.sum(items, dtype=jnp.int32))

    if sampler is not None:
        return _sharding.automatic(oracle, "data")
    return _sharding.automatic(oracle, "data", lambda rows, whole: Estimate(rows, whole, whole))
