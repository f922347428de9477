"""The loops over users, a few of them at a time: something added up, or something kept of each.

What it computes: Σ over the users of a sample (or over all users) of a function of one chunk of users; or
the values of such a function, one row for each user of the sample.

Source: none; microbatching as everybody does it, with contiguous chunks.

Formal guarantee: every user of the sample is counted once, nobody else is. Chunks are added up without
error but for a bounded rest (``dpsco_jax._sums``): where one user is another, the sum moves by what that
user's chunk moves by. The number of trips follows the size of the sample and is as secret as that size
(timing is not covered by any guarantee here).

Cost: memory of one chunk, whatever the number of users. Time follows the sample: a Poisson sample of b
users takes ⌈b / chunk_size⌉ trips. All users together are cut in contiguous slices, a sample is gathered.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dpsco_jax import _sums
from dpsco_jax._checks import require_callable, require_count, require_instance
from dpsco_jax.oracles.sampling import UserSample


def sum_over_users(
    chunk_sum: Callable[[Any, jax.Array, jax.Array], Any],
    data: Any,
    sample: UserSample | None,
    chunk_size: int,
) -> Any:
    """Adds up ``chunk_sum`` over chunks of users.

    Args:
        chunk_sum: ``chunk_sum(rows, counted, position)``, where ``rows`` are the data of a chunk of users,
            ``counted`` (bool ``[chunk]``) says which of them are to be summed, and ``position`` (int32
            ``[chunk]``) is each user's place in the sample: different for all who count. Returns a pytree.
        data: a pytree with a leading user axis on every leaf.
        sample: the users to sum over; everybody if ``None``.
        chunk_size: how many users at a time.

    Returns:
        The sum, with the structure of what ``chunk_sum`` returns; in two parts as one float.
    """
    return _sums.rounded(split_sum_over_users(chunk_sum, data, sample, chunk_size))


def split_sum_over_users(
    chunk_sum: Callable[[Any, jax.Array, jax.Array], Any],
    data: Any,
    sample: UserSample | None,
    chunk_size: int,
) -> Any:
    """``sum_over_users`` in two parts: leaves of float32 or wider are ``_sums.Split``, others are arrays.

    What ``chunk_sum`` returns may hold leaves in two parts too.
    """
    if sample is not None:
        require_instance("sample", sample, UserSample)
    require_callable("chunk_sum", chunk_sum)
    require_count("chunk_size", chunk_size)
    num_users = jax.tree.leaves(data)[0].shape[0]
    count = num_users if sample is None else sample.size
    if isinstance(count, int) and count <= chunk_size:
        position = jnp.arange(count, dtype=jnp.int32)
        rows = data if sample is None else _take(data, sample.indices[:count])
        terms = chunk_sum(rows, jnp.ones(count, bool), position)
        return _sums.add(_sums.zeros(terms), terms)

    chunk_size = min(chunk_size, num_users)
    offsets = jnp.arange(chunk_size, dtype=jnp.int32)

    def trip(index: jax.Array | int) -> Any:
        start = index * chunk_size
        position = start + offsets
        if sample is None:
            # The last slice starts early enough to be whole; rows that were counted before are masked.
            first = jnp.minimum(start, num_users - chunk_size)
            rows = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, first, chunk_size), data)
            return chunk_sum(rows, first + offsets >= start, first + offsets)
        indices = sample.indices[jnp.minimum(position, len(sample.indices) - 1)]
        return chunk_sum(_take(data, indices), position < count, position)

    trips = -(-count // chunk_size)
    nothing = _sums.zeros(jax.eval_shape(trip, 0))
    return lax.fori_loop(0, trips, lambda i, total: _sums.add(total, trip(i)), nothing)


def most_rows(data: Any, sample: UserSample | None) -> int:
    """How many rows are added up at most, whoever is drawn; of draws with replacement there may be many."""
    if sample is None:
        return jax.tree.leaves(data)[0].shape[0]
    require_instance("sample", sample, UserSample)
    return len(sample.indices)


def map_over_users(
    chunk_rows: Callable[[Any, jax.Array, jax.Array], Any],
    data: Any,
    sample: UserSample | None,
    chunk_size: int,
) -> Any:
    """Stacks what ``chunk_rows`` returns for every user of a sample, in the order of the sample.

    Args:
        chunk_rows: as ``chunk_sum`` of ``sum_over_users``, but returns leaves ``[chunk, ...]``, of which
            the rows that are not counted are dropped or stand for nobody.
        data: a pytree with a leading user axis on every leaf.
        sample: the users; everybody if ``None``.
        chunk_size: how many users at a time.

    Returns:
        Leaves ``[users, ...]``, or ``[capacity, ...]`` of the sample; memory of that and of one chunk.
    """
    if sample is not None:
        require_instance("sample", sample, UserSample)
    require_callable("chunk_rows", chunk_rows)
    require_count("chunk_size", chunk_size)
    rows = jax.tree.leaves(data)[0].shape[0] if sample is None else len(sample.indices)
    size = rows if sample is None else sample.size
    position = jnp.arange(rows, dtype=jnp.int32)
    if rows <= chunk_size:
        chosen = data if sample is None else _take(data, sample.indices)
        return chunk_rows(chosen, position < size, position)
    indices = position if sample is None else sample.indices

    def trip(start: jax.Array) -> Any:
        place = start + jnp.arange(chunk_size, dtype=jnp.int32)
        chosen = _take(data, indices[jnp.minimum(place, rows - 1)])
        return chunk_rows(chosen, place < size, place)

    stacked = lax.map(trip, jnp.arange(0, rows, chunk_size, dtype=jnp.int32))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:rows], stacked)


def _take(data: Any, indices: jax.Array) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x).at[indices].get(mode="promise_in_bounds"), data)
