"""Winsorized mean as a transformation: per-user updates in, their private mean out, T times.

What it computes: the updates of all users, raveled to vectors, go through ``mechanisms.winsorized``;
each update is one of the T queries that the releases were calibrated for. After T updates nothing is
released any more: updates are zero.

Source: L Algorithm 2 as a gradient oracle (Algorithm 3), Theorem 3 (adaptive queries).

Formal guarantee: (ε, δ)-DP of the releases under REPLACE_ONE for everything that ``update`` has returned,
however it is used, and for any updates (adaptive composition). A user who is masked out counts as one whose
update is zero: the row that stands for a user remains a function of that user alone, and the mechanism's
proof is for any rows, so that replacing a user who is there by one who is not is covered too. The ledger is
charged for each of the T queries and not for the zeros after them, which reveal nothing: when they begin is
fixed beforehand.
Assumed: each user's update is a function of that user's data and of earlier releases; the key is secret and
starts one state only.

Cost: see ``mechanisms.winsorized.winsorized_mean``.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpsco_jax import _keys, _sharding, privacy
from dpsco_jax._checks import (
    require_instance,
    require_key,
    require_mask,
    require_positive,
    require_real_leaves,
    require_wide_numbers,
)
from dpsco_jax.mechanisms.winsorized import winsorized_mean as mechanism
from dpsco_jax.mechanisms.winsorized.winsorized_releases import WinsorizedReleases, WinsorizedRun
from dpsco_jax.transforms import _agreement


class WinsorizedMeanState(NamedTuple):
    """State of ``winsorized_mean``.

    Attributes:
        key: what the next query is drawn from.
        queries: how many have been answered, int32.
        ledger: the loss of all queries so far.
    """

    key: jax.Array
    queries: jax.Array
    ledger: privacy.Ledger


def winsorized_mean(
    releases: WinsorizedReleases | WinsorizedRun, key: jax.Array
) -> optax.GradientTransformationExtraArgs:
    """Replaces per-user updates by their private mean.

    Updates have a leading axis of users on every leaf, ``[users, ...]``; the result has none, and the
    dtypes of the updates. ``update`` takes ``user_mask`` (bool ``[users]``, False for padding and for users
    who are absent: they count as zero, and still count in the planned number of users).

    Args:
        releases: of ``winsorized_calibration.calibrate_winsorized``; its numbers may be traced. Of
            ``WinsorizedRun``, whose sizes may be traced too, the first ``num_users`` of ``capacity`` rows
            are users, the others nobody.
        key: a typed key; copied into the state by ``init``.

    Raises:
        ValueError: ``releases`` is no ``WinsorizedReleases``, ``key`` is not a typed key, bound or noise is
            not positive; or (on use) the number of users or of parameters is not the planned one, an update
            is not real floating, ``user_mask`` is no array of booleans of shape ``[users]``, an oracle's
            ``draw`` takes a user several times, or there is an argument ``value``, ``grad``, ``value_fn`` or
            ``loss``, which stages behind a release would read.
    """
    require_instance("releases", releases, WinsorizedReleases | WinsorizedRun)
    if isinstance(releases, WinsorizedReleases):
        require_wide_numbers("releases", releases)
    require_key(key)
    require_positive("noise_multiplier", releases.noise_multiplier)
    require_positive("bound", releases.bound)
    run = releases.lowered()
    loss = run.charged
    nothing = jax.tree.map(lambda x: 0.0 * jnp.zeros_like(jnp.asarray(x, float)), loss)

    def init(params: Any) -> WinsorizedMeanState:
        del params
        # A copy: the state may be donated, the caller's key may not vanish with it.
        ledger = privacy.open_ledger(NeighboringRelation.REPLACE_ONE)
        return WinsorizedMeanState(jnp.copy(key), jnp.zeros([], jnp.int32), ledger)

    @_sharding.transformation
    def update(
        updates: Any,
        state: WinsorizedMeanState,
        params: Any = None,
        *,
        user_mask: jax.Array | None = None,
        **extra_args: Any,
    ) -> tuple[Any, WinsorizedMeanState]:
        del params
        _agreement.require_no_raw(extra_args)
        _agreement.covered(privacy.FullBatch(), extra_args, NeighboringRelation.REPLACE_ONE)
        planned, cost, none = _sharding.here((run, loss, nothing))
        require_real_leaves("updates", updates)
        next_key, query_key = jax.random.split(state.key)
        wide = jax.tree.map(lambda u: u.astype(jnp.promote_types(u.dtype, jnp.float32)), updates)
        vectors = jax.vmap(lambda one: ravel_pytree(one)[0])(wide)
        if user_mask is not None:
            user_mask = require_mask("user_mask", user_mask, vectors.shape[:1])
            # A selection, not a product: what is masked out may hold NaN.
            vectors = jnp.where(user_mask[:, None], vectors, 0)
        unravel = ravel_pytree(jax.tree.map(lambda u: u[0], wide))[1]
        answer = mechanism.winsorized_mean(query_key, vectors, planned)
        open_still = state.queries < planned.num_queries
        released = unravel(jnp.where(open_still, answer, 0).astype(vectors.dtype))
        released = jax.tree.map(lambda x, u: x.astype(u.dtype), released, updates)
        charged = jax.tree.map(lambda x, zero: jnp.where(open_still, x, zero), cost, none)
        charged = privacy.unbounded_unless(_keys.noise_is_own(query_key, released), charged)
        queries = jnp.minimum(optax.safe_increment(state.queries), planned.num_queries)
        return released, WinsorizedMeanState(
            next_key, queries.astype(jnp.int32), privacy.charge(state.ledger, charged)
        )

    return optax.GradientTransformationExtraArgs(init, update)
