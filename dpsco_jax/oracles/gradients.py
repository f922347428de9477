"""User gradients of any objective by automatic differentiation, and the sum of their clipped values.

What it computes: g_u, the gradient of user u's loss, which is the mean over the user's items; for all
users at once, or Σ_u clip(g_u) over a sample of users, a chunk at a time.

Source: per-user clipping as in McMahan et al. 2018 (DP-FedSGD); line 4 of Algorithm 2 of the thesis.

Formal guarantee: ``clipped_gradient_sum`` returns Σ_u h_u where h_u depends on user u's items, the point,
and randomness that does not look at data, has ‖h_u‖ ≤ ``clip_norm`` (``geometry.norms``), and is zero if
g_u is not finite. So the sum moves by at most ``clip_norm`` when a user is added or removed and twice that
when one is replaced, rounding included (docs/theory/sums.md), for any objective whatever: no property of
the loss is assumed. It comes in two parts: the gradient and, for ``summed_contributions``, the
``remainder``. The regularizer of an objective knows no data and is not part of it. A gradient that draws by
keys of its user by which JAX would draw for all users of a batch is refused (``dpsco_jax._record_keys``).

Cost: one backward pass per item slot of the users in the sample, padding included; memory of the gradients
of one chunk of users.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from dpsco_jax import _compensated, _record_keys, _sharding
from dpsco_jax._checks import (
    require_callable,
    require_count,
    require_given,
    require_instance,
    require_positive,
)
from dpsco_jax.geometry import clipping, norms
from dpsco_jax.oracles import Estimate, Oracle, _convolutions
from dpsco_jax.oracles._summed import Parts, SumOracle, drawn_by, two_keys
from dpsco_jax.oracles.chunks import map_over_users, most_rows
from dpsco_jax.oracles.sampling import UserSample
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, user_loss

UserGradient = Callable[[jax.Array, Any, Any, Any], Any]
"""``(key, params, items, mask) -> gradient`` of one user; ``items`` ``[items, ...]``, ``mask`` or None."""

Sampler = Callable[[jax.Array], UserSample]
"""``key -> UserSample``: who takes part in a step."""


def user_gradient(objective: Objective) -> UserGradient:
    """The gradient of one user's mean loss at the point; zero for a user without items; ignores the key."""
    require_instance("objective", objective, Objective)
    loss = user_loss(objective)
    gradient = _convolutions.kept_apart(jax.grad(loss), loss)

    def evaluate(key: jax.Array, params: Any, items: Any, mask: Any) -> Any:
        del key
        return gradient(params, items, mask)

    return evaluate


def per_user_gradients(
    gradient: UserGradient,
    clip_norm: ArrayLike | None = None,
    sampler: Sampler | None = None,
    chunk_size: int | None = None,
) -> Oracle:
    """The oracle that returns the gradients of all users or of a sample of them, ``[users, ...]``.

    For aggregates that look at single users: ``transforms.clipped_mean`` and the robust means.

    Args:
        gradient: ``user_gradient(objective)`` or ``smoothed.user_gradient(objective, radius)``.
        clip_norm: positive bound on the joint ℓ2 norm of one user's gradient over all leaves;
            gradients as they are if ``None``. May be traced.
        sampler: draws the users of a step from a key, a fixed number of them; all users if ``None``.
        chunk_size: how many users, at least 1, whose data and intermediate results are held at once; all if
            ``None``.
    """
    require_callable("gradient", gradient)
    require_given(require_callable, sampler=sampler)
    require_given(require_count, chunk_size=chunk_size)
    if clip_norm is not None:
        require_positive("clip_norm", clip_norm)
    if chunk_size is not None:
        require_count("chunk_size", chunk_size)

    def oracle(key: jax.Array, params: Any, data: UserData) -> Estimate:
        users = jax.tree.leaves(data.items)[0].shape[0]
        sample_key, gradient_key = jax.random.split(key)
        sample = None if sampler is None else sampler(sample_key)

        def one_user(row: UserData, position: jax.Array) -> Any:
            user_key = jax.random.fold_in(gradient_key, position)
            return gradient(user_key, _sharding.here(params), row.items, row.mask)

        def chunk_rows(rows: UserData, counted: jax.Array, position: jax.Array) -> Any:
            contributions = _record_keys.over_users(one_user, public=(1,))(rows, position)
            if clip_norm is not None:
                contributions = jax.lax.optimization_barrier(contributions)
                contributions = jax.vmap(lambda g: norms.clip_to_norm(g, clip_norm))(contributions)
            slots = jax.tree.leaves(rows.items)[0].shape[1]
            items = (
                jnp.full(len(counted), slots, jnp.int32)
                if rows.mask is None
                else jnp.sum(rows.mask, axis=1, dtype=jnp.int32)
            )
            return contributions, jnp.where(counted, items, 0)

        whole = users if chunk_size is None else chunk_size
        rows, items = map_over_users(chunk_rows, data, sample, whole)
        return Estimate(rows, drawn_by(sample), jnp.sum(items, dtype=jnp.int32))

    if sampler is not None:
        return _sharding.automatic(oracle, "data")
    return _sharding.automatic(oracle, "data", lambda rows, whole: Estimate(rows, whole, whole))


def clipped_gradient_sum(
    gradient: UserGradient,
    clip_norm: ArrayLike,
    sampler: Sampler | None = None,
    chunk_size: int = 64,
) -> Oracle:
    """The oracle that returns Σ_u clip(g_u) over a sample of users, for ``summed_contributions``.

    Args:
        gradient: ``user_gradient(objective)`` or ``smoothed.user_gradient(objective, radius)``.
        clip_norm: positive bound on the joint ℓ2 norm of one user's gradient over all leaves; may be traced.
        sampler: draws the users of a step from a key; all users if ``None``.
        chunk_size: how many users, at least 1, whose gradients are held at once.
    """
    require_callable("gradient", gradient)
    require_given(require_callable, sampler=sampler)
    require_count("chunk_size", chunk_size)
    require_positive("clip_norm", clip_norm)

    def parts(
        gradient_key: jax.Array, params: Any, data: UserData, sample: UserSample | None
    ) -> Parts:
        def one_user(row: UserData, position: jax.Array) -> Any:
            user_key = jax.random.fold_in(gradient_key, position)
            return gradient(user_key, _sharding.here(params), row.items, row.mask)

        def chunk_sum(rows: UserData, counted: jax.Array, position: jax.Array) -> Any:
            # Without the barrier the compiler fuses the gradients into every pass of the clip, and
            # computes each of them several times.
            gradients = _record_keys.over_users(one_user, public=(1,))(rows, position)
            unclipped = jax.lax.optimization_barrier(gradients)
            total = clipping.split_sum_of_clipped(unclipped, room * clip_norm, counted)
            return total, count_items(rows, counted)

        room = _compensated.room(most_rows(data.items, sample), chunk_size)
        return Parts(chunk_sum, chunk_size)

    return SumOracle(sampler, clip_norm, two_keys, parts)


def count_items(data: Any, counted: jax.Array) -> jax.Array:
    """How many items the counted users have, int32; ``data`` as ``UserData``."""
    slots = jax.tree.leaves(data.items)[0].shape[1]
    items = slots if data.mask is None else jnp.sum(data.mask, axis=1, dtype=jnp.int32)
    return jnp.sum(jnp.where(counted, items, 0), dtype=jnp.int32)
