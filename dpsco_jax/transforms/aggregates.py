"""Aggregates: from per-user contributions to one bounded statistic that knows its own sensitivity.

What it computes: each user's contribution, one pytree, is clipped to a joint l2 norm, and the
clipped contributions are summed over users; a mean divides the sum by a public number. An
``Aggregate`` is an optax transformation that carries the l2 sensitivity of what it returns, so
that the noise of ``privatize`` and the statistic it is added to cannot drift apart.

Source: per-user clipping as in McMahan et al. 2018 (DP-FedSGD); sums, not means, are privatized.

Formal guarantee: let D and D' be neighbours and h_u the clipped contribution of user u, ‖h_u‖ ≤ C.
Removing a user, or replacing one by a user who contributes nothing, takes one h_u out of the sum:
it moves by at most C. Replacing a user exchanges h_u for h_u': it moves by at most 2C, which is
reached by opposite contributions. Division by a number that does not depend on the data divides
both. A user whose contribution holds a NaN or an infinity contributes zero, and so does a user
masked out; both are functions of that user alone, so the argument is unchanged. The contribution
may depend on the data of its own user, on public values and on earlier releases, not on other
users. The bounds are those of real arithmetic: a float32 sum of n users is rounded to about
n·C·2^-24.

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

from dpsco_jax._checks import require_positive
from dpsco_jax.geometry import clipping


class Aggregate(optax.GradientTransformationExtraArgs):
    """A transformation that returns one statistic of all users, with its sensitivity.

    ``update`` returns leaves in at least float32, whatever the dtype of the contributions:
    rounding the statistic before the noise is on it would change how far one user can move it.

    Attributes:
        sensitivity: how far the statistic can move in l2 norm, over all leaves together, between
            neighbouring data sets, whatever was released before; a scalar that may be traced.
        relation: which data sets are neighbours.
        finish: ``finish(released, state) -> (updates, state)``, what ``privatize`` calls once the
            noise is on: it turns the noised statistic into updates, and may remember releases. It
            is post-processing, so that ``state`` must hold nothing of the data. Where there is
            one, the statistic itself need not be an update.
    """

    sensitivity: jax.typing.ArrayLike
    relation: NeighboringRelation
    finish: Callable[[Any, Any], tuple[Any, Any]]

    def __new__(
        cls,
        init: Callable[..., Any],
        update: Callable[..., Any],
        sensitivity: jax.typing.ArrayLike,
        relation: NeighboringRelation,
        finish: Callable[[Any, Any], tuple[Any, Any]] = lambda released, state: (released, state),
    ) -> "Aggregate":
        """An aggregate of the two functions of an optax transformation and what goes with them."""
        self = super().__new__(cls, init, update)
        self.sensitivity = sensitivity
        self.relation = relation
        self.finish = finish
        return self


def clipped_sum(
    clip_norm: jax.typing.ArrayLike,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
    microbatch_size: int | None = None,
) -> Aggregate:
    """The sum of the users' contributions, each clipped to ``clip_norm``.

    Updates have a leading axis of users on every leaf, ``[users, ...]``; the result has none.
    ``update`` takes ``user_mask`` (bool ``[users]``, False for padding and for users not sampled)
    as an extra argument.

    Args:
        clip_norm: bound C on the l2 norm of one user's contribution over all leaves; may be traced.
        relation: ``REPLACE_ONE`` gives sensitivity 2C; ``ADD_OR_REMOVE_ONE`` and
            ``REPLACE_SPECIAL`` (a user replaced by one who contributes zero) give C.
        microbatch_size: number of users clipped and added at a time, as for ``clipped_mean``.

    Raises:
        ValueError: ``clip_norm`` or ``microbatch_size`` is not positive.
    """
    return clipped_mean(clip_norm, 1, relation, microbatch_size)


def clipped_mean(
    clip_norm: jax.typing.ArrayLike,
    num_users: jax.typing.ArrayLike,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
    microbatch_size: int | None = None,
) -> Aggregate:
    """``clipped_sum`` divided by a public number of users.

    Args:
        clip_norm: bound C on the l2 norm of one user's contribution over all leaves; may be traced.
        num_users: the divisor: the number of users N with all of them in every step, the batch size
            with batches of fixed size, q·N when each user is sampled with probability q. Never the
            number of users who happened to be there.
        relation: as for ``clipped_sum``; the sensitivity is divided by ``num_users``.
        microbatch_size: number of users clipped and added at a time; all at once if None, which is
            best on accelerators. On a CPU 32 takes about half the time and no temporary memory.

    Raises:
        ValueError: ``clip_norm``, ``num_users`` or ``microbatch_size`` is not positive.
    """
    sensitivity = _sensitivity(clip_norm, num_users, relation)
    if microbatch_size is not None:
        require_positive("microbatch_size", microbatch_size)

    def update(
        updates: Any,
        state: optax.EmptyState,
        params: Any = None,
        *,
        user_mask: jax.Array | None = None,
        **extra_args: Any,
    ) -> tuple[Any, optax.EmptyState]:
        del params, extra_args
        total = _sum_of_clipped(updates, clip_norm, user_mask, microbatch_size)
        return jax.tree.map(lambda x: x / jnp.asarray(num_users, x.dtype), total), state

    return Aggregate(_stateless, update, sensitivity, relation)


def summed_contributions(
    clip_norm: jax.typing.ArrayLike,
    num_users: jax.typing.ArrayLike,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
    nonnegative: bool = False,
) -> Aggregate:
    """The aggregate of an oracle that has clipped and summed already: only the division is left.

    Updates are the sum over users, ``[...]``, of contributions each of l2 norm at most
    ``clip_norm``, in at least float32. That the bound holds is the oracle's part of the proof;
    nothing can check it here.

    Args:
        clip_norm: the bound C to which the oracle clips each user's contribution; may be traced.
        num_users: the public divisor, as for ``clipped_mean``.
        relation: as for ``clipped_mean``, with the same sensitivity.
        nonnegative: whether no contribution has a negative entry. Then two of them are at most √2·C
            apart, and not 2C: ‖h - h'‖² = ‖h‖² + ‖h'‖² - 2⟨h, h'⟩ and the product is not negative.

    Raises:
        ValueError: ``clip_norm`` or ``num_users`` is not positive, or an update is narrower than
            float32 (its rounding would change the sensitivity).
    """
    sensitivity = _sensitivity(clip_norm, num_users, relation)
    if nonnegative and relation is NeighboringRelation.REPLACE_ONE:
        sensitivity = sensitivity / 2.0**0.5

    def update(
        updates: Any, state: optax.EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, optax.EmptyState]:
        del params, extra_args
        for leaf in jax.tree.leaves(updates):
            if jnp.promote_types(leaf.dtype, jnp.float32) != leaf.dtype:
                raise ValueError(f"updates must be at least float32, got {leaf.dtype}")
        return jax.tree.map(lambda x: x / jnp.asarray(num_users, x.dtype), updates), state

    return Aggregate(_stateless, update, sensitivity, relation)


def _stateless(params: Any) -> optax.EmptyState:
    del params
    return optax.EmptyState()


def _sensitivity(
    clip_norm: jax.typing.ArrayLike,
    num_users: jax.typing.ArrayLike,
    relation: NeighboringRelation,
) -> jax.typing.ArrayLike:
    require_positive("clip_norm", clip_norm)
    require_positive("num_users", num_users)
    return (2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0) * clip_norm / num_users


def _sum_of_clipped(
    updates: Any,
    clip_norm: jax.typing.ArrayLike,
    user_mask: jax.Array | None,
    microbatch_size: int | None,
) -> Any:
    if not jax.tree.leaves(updates):
        return updates
    return sum_in_chunks(
        lambda rows, counted: clipping.sum_of_clipped(rows, clip_norm, counted),
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
    """Adds up ``chunk_sum(rows, counted)`` over chunks of users, each user counted once.

    Args:
        chunk_sum: of the rows of some users and which of them count (bool); returns a pytree.
        updates: leaves ``[users, ...]``, at least one.
        user_mask: bool ``[users]``; everybody if None.
        microbatch_size: users in a chunk; one chunk if None.
    """
    num_rows = jax.tree.leaves(updates)[0].shape[0]
    if user_mask is None:
        user_mask = jnp.ones(num_rows, bool)
    # Without the barrier XLA fuses whatever made the contributions into both passes over them, and
    # computes every gradient twice.
    updates = lax.optimization_barrier(updates)
    if microbatch_size is None or microbatch_size >= num_rows:
        return chunk_sum(updates, user_mask)

    def chunk(index: jax.Array | int) -> Any:
        # The last chunk starts early enough to be whole; its rows already counted are masked out.
        start = jnp.minimum(index * microbatch_size, num_rows - microbatch_size)
        rows, counted = jax.tree.map(
            lambda x: lax.dynamic_slice_in_dim(x, start, microbatch_size), (updates, user_mask)
        )
        counted &= start + jnp.arange(microbatch_size) >= index * microbatch_size
        return chunk_sum(rows, counted)

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(chunk, 0))
    trips = -(-num_rows // microbatch_size)
    return lax.fori_loop(0, trips, lambda i, total: jax.tree.map(jnp.add, total, chunk(i)), zeros)
