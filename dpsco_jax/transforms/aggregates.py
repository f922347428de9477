"""Aggregates: from per-user contributions to one bounded statistic that knows its own sensitivity.

What it computes: each user's contribution, one pytree, is clipped to a joint l2 norm, or each of its
layers to a norm of its own, and the clipped contributions are summed over users; a mean divides the sum by a
public number. An ``Aggregate`` is an optax transformation that carries the l2 sensitivity of what it returns,
so that the noise of ``privatize`` and the statistic it is added to cannot drift apart.

Source: per-user clipping as in McMahan et al. 2018 (DP-FedSGD), whose "per-layer clipping" is the second
form; sums, not means, are privatized.

Formal guarantee: let D and D' be neighbours and h_u the clipped contribution of user u, ‖h_u‖ ≤ C. With
layers h_u = (h_u1, ..., h_uk) clipped to norms C_1, ..., C_k this holds for C = √(C_1² + ... + C_k²), since
‖h_u‖² = Σ_i ‖h_ui‖²; all layers are one release, on one draw of users, with one charge. Removing a user, or
replacing one by a user who contributes nothing, takes one h_u out of the sum: it moves by at most C.
Replacing a user exchanges h_u for h_u': it moves by at most 2C, which is reached by opposite contributions.
Division by a number that does not depend on the data divides both. A user whose contribution holds a NaN or
an infinity contributes zero, and so does a user masked out; both are functions of that user alone, so the
argument is unchanged. The contribution may depend on the data of its own user, on public values and on
earlier releases, not on other users. The bounds hold for the sums as they are computed, in two floats
(``dpsco_jax._compensated``), of contributions clipped to C·``_compensated.room(n)``, n the rows;
``privatize`` adds the noise to both. What is returned to others is rounded, to about n·C·2^-24
(docs/theory/sums.md).

Cost: three passes over the contributions, one from memory if a chunk of ``microbatch_size`` users
fits in cache; temporaries of one chunk.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from dp_accounting import NeighboringRelation
from jax import lax

from dpsco_jax import _compensated, _sharding
from dpsco_jax._checks import (
    require,
    require_flag,
    require_integer,
    require_mask,
    require_positive,
    require_real_leaves,
    require_relation,
    require_same_rows,
)
from dpsco_jax._conditions import within_floats
from dpsco_jax._numerics import at_least_float32, wide_number
from dpsco_jax.geometry import clipping
from dpsco_jax.transforms import _agreement
from dpsco_jax.transforms.aggregate import Aggregate


def clipped_sum(
    clip_norm: Any,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
    microbatch_size: int | None = None,
) -> Aggregate:
    """The sum of the users' contributions, each clipped to ``clip_norm``, or layer by layer.

    This is ``clipped_mean`` with the divisor 1; arguments, updates and errors are described there. The
    sensitivity is 2C under ``REPLACE_ONE``, C under the other relations.
    """
    return clipped_mean(clip_norm, 1, relation, microbatch_size)


def clipped_mean(
    clip_norm: Any,
    num_users: jax.typing.ArrayLike,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
    microbatch_size: int | None = None,
) -> Aggregate:
    """The sum of the users' contributions, each clipped to ``clip_norm``, divided by a public number.

    Updates have a leading axis of users on every leaf, ``[users, ...]``; the result has none. ``update``
    takes ``user_mask`` (bool ``[users]``, False for padding and for users not sampled) as an extra argument.
    For parameters ``{"embedding": ..., "head": ...}``, clipping per layer is

        transforms.clipped_mean({"embedding": 0.3, "head": 1.0}, num_users)

    A contribution with a NaN or an infinity in any layer counts as zero in all of them.

    Args:
        clip_norm: bound C on the l2 norm of one user's contribution over all leaves; or, for clipping per
            layer, a pytree of bounds C_i that is a prefix of the updates, one for each subtree of them
            (then C = √ΣC_i²). Numbers may be traced.
        num_users: the divisor: the number of users N with all of them in every step, the batch size
            with batches of fixed size, q·N when each user is sampled with probability q. Never the
            number of users who happened to be there.
        relation: ``REPLACE_ONE`` gives sensitivity 2C/N, for the divisor N; ``ADD_OR_REMOVE_ONE`` and
            ``REPLACE_SPECIAL`` (a user replaced by one who contributes zero) give C/N.
        microbatch_size: number of users clipped and added at a time; all at once if None, which is
            best on accelerators. On a CPU 32 takes about half the time and no temporary memory.

    Raises:
        ValueError: by ``update``, where ``params`` are given, if an update is not of shape ``[users,
            *param.shape]``.
    """
    sensitivity = _sensitivity(clip_norm, num_users, relation)
    if microbatch_size is not None:
        require_integer("microbatch_size", microbatch_size, 1)

    @_sharding.transformation
    def update(
        updates: Any,
        state: optax.EmptyState,
        params: Any = None,
        *,
        user_mask: jax.Array | None = None,
        in_parts: bool = False,
        **extra_args: Any,
    ) -> tuple[Any, optax.EmptyState]:
        del extra_args
        require_real_leaves("updates", updates)
        _require_user_axis(updates, params)
        bounds, divisor = _sharding.here((clip_norm, num_users))
        total = _sum_of_clipped(updates, bounds, user_mask, microbatch_size)
        return _compensated.divided(total, divisor, in_parts), state

    return Aggregate(_stateless, update, sensitivity, relation, within_half=True)


def summed_contributions(
    clip_norm: Any,
    num_users: jax.typing.ArrayLike,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
    nonnegative: bool = False,
) -> Aggregate:
    """The aggregate of an oracle that has clipped and summed already: only the division is left.

    Updates are the sum over users, ``[...]``, of contributions each of l2 norm at most
    ``clip_norm``, in at least float32. That the bound holds is the oracle's part of the proof: ``privatize``
    compares what the oracle says of it in its ``extra_args``, and refuses updates that come without
    ``clipped_to``. ``update`` takes ``remainder``, of the structure of the updates, as an extra argument:
    what rounding has taken from them (``dpsco_jax._compensated``).

    Args:
        clip_norm: the bound C to which the oracle clips each user's contribution; or a pytree of bounds C_i
            that is a prefix of the updates, if it clips each subtree by itself (then C = √ΣC_i²). Numbers may
            be traced.
        num_users: the public divisor: the number of users N with all of them in every step, the batch size
            with batches of fixed size, q·N when each user is sampled with probability q.
        relation: ``REPLACE_ONE`` gives sensitivity 2C/N, for the divisor N; ``ADD_OR_REMOVE_ONE`` and
            ``REPLACE_SPECIAL`` (a user replaced by one who contributes zero) give C/N.
        nonnegative: whether no two contributions have a negative product, as where no entry is negative, or
            where they are positive semi-definite matrices. Then two of them are at most √2·C apart, and not
            2C: ‖h - h'‖² = ‖h‖² + ‖h'‖² - 2⟨h, h'⟩.

    Raises:
        ValueError: by ``update``, if an update is narrower than float32 (its rounding would change the
            sensitivity).
    """
    sensitivity = _sensitivity(clip_norm, num_users, relation)
    if require_flag("nonnegative", nonnegative) and relation is NeighboringRelation.REPLACE_ONE:
        sensitivity = sensitivity / 2.0**0.5

    @_sharding.transformation
    def update(
        updates: Any,
        state: optax.EmptyState,
        params: Any = None,
        *,
        remainder: Any = None,
        in_parts: bool = False,
        **extra_args: Any,
    ) -> tuple[Any, optax.EmptyState]:
        del params, extra_args
        require_real_leaves("updates", updates)
        clipping.layers(clip_norm, updates)
        for leaf in jax.tree.leaves(updates):
            if at_least_float32(leaf.dtype) != leaf.dtype:
                raise ValueError(f"updates must be at least float32, got {leaf.dtype}")
        if remainder is None:
            lost = jax.tree.map(jnp.zeros_like, updates)
        else:
            lost = _agreement.shown_only(remainder, updates)
        total = jax.tree.map(_compensated.Split, jax.tree.map(jnp.asarray, updates), lost)
        return _compensated.divided(total, _sharding.here(num_users), in_parts), state

    # Two nonnegative vectors are nearer to each other than twice the length of one.
    half, bound = not nonnegative, clipping.joint_bound(clip_norm)
    return Aggregate(_stateless, update, sensitivity, relation, within_half=half, clipped_to=bound)


def _require_user_axis(updates: Any, params: Any) -> None:
    """``ValueError`` if updates have the shapes of the parameters themselves: they have no axis of users."""
    given: Any = jax.tree.structure(updates)
    if given != jax.tree.structure(params):
        return
    for update, param in zip(jax.tree.leaves(updates), jax.tree.leaves(params), strict=True):
        require(
            jnp.shape(update)[1:] == jnp.shape(param),
            "updates",
            jnp.shape(update),
            f"of shape [users, ...], here (users, *{jnp.shape(param)}), as per-user gradients are",
        )


def _stateless(params: Any) -> optax.EmptyState:
    del params
    return optax.EmptyState()


def _sensitivity(
    clip_norm: Any, num_users: jax.typing.ArrayLike, relation: NeighboringRelation
) -> jax.typing.ArrayLike:
    require_relation("relation", relation)
    require_positive("num_users", num_users)
    bound = clipping.joint_bound(clip_norm)
    factor = 2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0
    sensitivity = factor * bound / wide_number(num_users)
    return within_floats("clip_norm", clip_norm, sensitivity, bound, sensitivity)


def _sum_of_clipped(
    updates: Any,
    clip_norm: Any,
    user_mask: jax.Array | None,
    microbatch_size: int | None,
) -> Any:
    if not jax.tree.leaves(updates):
        return updates
    room = _compensated.room(
        jax.tree.leaves(updates)[0].shape[0], microbatch_size or _compensated.GROUP
    )
    shorter = jax.tree.map(lambda bound: room * bound, clip_norm)
    return sum_in_chunks(
        lambda rows, counted: clipping.split_sum_of_clipped(rows, shorter, counted),
        updates,
        user_mask,
        microbatch_size,
    )


def sum_in_chunks(
    chunk_sum: Callable[[Any, jax.Array], Any],
    updates: Any,
    user_mask: jax.Array | None,
    microbatch_size: int | None,
) -> Any:
    """Adds up ``chunk_sum(rows, counted)`` over chunks of users, each user counted once; in two parts.

    Args:
        chunk_sum: of the rows of some users and which of them count (bool); returns a pytree.
        updates: leaves ``[users, ...]``, at least one.
        user_mask: bool ``[users]``; everybody if None.
        microbatch_size: users in a chunk; one chunk if None.
    """
    num_rows = require_same_rows("updates", updates)
    if user_mask is None:
        user_mask = jnp.ones(num_rows, bool)
    user_mask = require_mask("user_mask", user_mask, (num_rows,))
    # Without the barrier XLA fuses whatever made the contributions into both passes over them, and
    # computes every gradient twice.
    updates = lax.optimization_barrier(updates)
    spread = _sharding.found(updates)
    if spread is None:
        return _in_chunks(chunk_sum, updates, user_mask, microbatch_size)
    return _sharding.summed(
        spread,
        lambda own, first: _in_chunks(chunk_sum, own[0], own[1], microbatch_size),
        (updates, user_mask),
    )


def _in_chunks(
    chunk_sum: Callable[[Any, jax.Array], Any],
    updates: Any,
    user_mask: jax.Array,
    microbatch_size: int | None,
) -> Any:
    num_rows = len(user_mask)
    if microbatch_size is None or microbatch_size >= num_rows:
        terms = chunk_sum(updates, user_mask)
        return _compensated.add(_compensated.zeros(terms), terms)

    def chunk(index: jax.Array | int) -> Any:
        # The last chunk starts early enough to be whole; its rows already counted are masked out.
        start = jnp.minimum(index * microbatch_size, num_rows - microbatch_size)
        rows, counted = jax.tree.map(
            lambda x: lax.dynamic_slice_in_dim(x, start, microbatch_size), (updates, user_mask)
        )
        counted &= start + jnp.arange(microbatch_size) >= index * microbatch_size
        return chunk_sum(rows, counted)

    trips = -(-num_rows // microbatch_size)
    nothing = _compensated.zeros(jax.eval_shape(chunk, 0))
    return lax.fori_loop(0, trips, lambda i, total: _compensated.add(total, chunk(i)), nothing)
