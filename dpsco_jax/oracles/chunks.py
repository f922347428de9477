"""The loops over users, a few of them at a time: something added up, or something kept of each.

What it computes: Σ over the users of a sample (or over all users) of a function of one chunk of users; or
the values of such a function, one row for each user of the sample.

Source: microbatching, with contiguous chunks.

Formal guarantee: every user of the sample is counted once, and no other. A number that belongs to no user of
these data counts for nothing, and a sampler of more users than there are is refused. Chunks are added up
without error but for a bounded rest (``dpsco_jax._compensated``): where one user is another, the sum moves by
what that user's chunk moves by. The number of trips follows the size of the sample and is as secret as that
size (timing is not covered by any guarantee here).

Cost: memory of one chunk, whatever the number of users. Time follows the sample: a Poisson sample of b
users takes ⌈b / chunk_size⌉ trips. All users together are cut in contiguous slices, a sample is gathered.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dpsco_jax import _compensated, _effects, _sharding
from dpsco_jax._checks import (
    require,
    require_callable,
    require_count,
    require_instance,
    require_same_rows,
)
from dpsco_jax._device_sums import LEAST_USERS
from dpsco_jax._given import inside, require_held
from dpsco_jax.oracles.sampling import UserSample

_NAME = "what is computed of users"


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

    Raises:
        ValueError: JAX does not hold the data as they are, their leaves have different numbers of users, or
            the sample is of more users than they have.

    Returns:
        The sum, with the structure of what ``chunk_sum`` returns; in two parts as one float.
    """
    return _compensated.rounded(split_sum_over_users(chunk_sum, data, sample, chunk_size))


def split_sum_over_users(
    chunk_sum: Callable[[Any, jax.Array, jax.Array], Any],
    data: Any,
    sample: UserSample | None,
    chunk_size: int,
) -> Any:
    """``sum_over_users`` with leaves of float32 or wider in two parts; other leaves are arrays.

    What ``chunk_sum`` returns may hold leaves in two parts too.
    """
    require_callable("chunk_sum", chunk_sum)
    require_held("data", data)
    sample = _of_these(data, sample)
    require_count("chunk_size", chunk_size)
    chunk_sum = _effects.checked(_NAME, chunk_sum)
    spread = _sharding.found(data)
    if spread is None:
        return _sum(chunk_sum, data, sample, chunk_size)
    if sample is None:
        return _sharding.summed(
            spread, lambda rows, first: _sum(chunk_sum, rows, None, chunk_size, first), data
        )
    at_once = _at_once(sample, chunk_size, spread.devices)

    def own_sum(rows: Any, first: jax.Array) -> Any:
        own, places = _held(sample, first, spread.each)
        return _sum(chunk_sum, rows, own, at_once, places=places)

    return _sharding.summed(spread, own_sum, data)


def _sum(
    chunk_sum: Callable[[Any, jax.Array, jax.Array], Any],
    data: Any,
    sample: UserSample | None,
    chunk_size: int,
    first: jax.Array | int = 0,
    places: jax.Array | None = None,
) -> Any:
    """The sum over users in one place: ``first`` is the number of the first, or ``places`` are theirs."""
    num_users = jax.tree.leaves(data)[0].shape[0]
    count = num_users if sample is None else sample.size
    start_at = first
    if isinstance(count, int) and count <= chunk_size:
        position = start_at + jnp.arange(count, dtype=jnp.int32)
        rows, there = data, jnp.ones(count, bool)
        if sample is not None:
            rows, there = _take(data, sample.indices[:count])
        terms = chunk_sum(rows, there, position)
        return _compensated.add(_compensated.zeros(terms), terms)

    if sample is None:
        chunk_size = min(chunk_size, num_users)
    elif places is None:
        # Of draws with replacement there may be more than users: smaller chunks have less room.
        chunk_size = min(chunk_size, len(sample.indices))
    offsets = jnp.arange(chunk_size, dtype=jnp.int32)

    def trip(index: jax.Array | int) -> Any:
        start = index * chunk_size
        position = start + offsets
        if sample is None:
            # The last slice starts early enough to be whole; rows that were counted before are masked.
            first = jnp.minimum(start, num_users - chunk_size)
            rows = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, first, chunk_size), data)
            return chunk_sum(rows, first + offsets >= start, start_at + (first + offsets))
        entry = jnp.minimum(position, len(sample.indices) - 1)
        place = position if places is None else places[entry]
        rows, there = _take(data, sample.indices[entry])
        return chunk_sum(rows, there & (position < count), place)

    trips = -(-count // chunk_size)
    nothing = _compensated.zeros(jax.eval_shape(trip, 0))
    return lax.fori_loop(0, trips, lambda i, total: _compensated.add(total, trip(i)), nothing)


def _at_once(sample: UserSample, chunk_size: int, devices: int) -> int:
    """Users in a chunk of one device: no more than it has of a sample, and no group smaller than planned."""
    share = -(-len(sample.indices) // devices)
    return min(chunk_size, max(share, LEAST_USERS))


def _held(sample: UserSample, first: jax.Array, each: int) -> tuple[UserSample, jax.Array]:
    """Those of a sample who are among ``each`` users from ``first`` on, and their places in the sample."""
    places = jnp.arange(len(sample.indices), dtype=jnp.int32)
    here = sample.indices - first
    mine = (places < sample.size) & (here >= 0) & (here < each)
    target = jnp.where(mine, jnp.cumsum(mine, dtype=jnp.int32) - 1, len(places))
    own = jnp.zeros_like(places).at[target].set(places, mode="drop")
    indices = jnp.clip(here[own], 0, each - 1)
    return UserSample(indices, jnp.sum(mine, dtype=jnp.int32)), own


def add_chunks(
    total: Any,
    chunk_sum: Callable[[Any, jax.Array, jax.Array], Any],
    rows: Any,
    counted: jax.Array,
    position: jax.Array,
    at_once: int,
    trips: jax.Array,
) -> Any:
    """The sum so far, and the chunks of one block of users more, one after the other.

    Args:
        total: of the blocks before, as ``split_sum_over_users`` has it; ``_compensated.zeros`` at first.
        chunk_sum: as there.
        rows: of the block, a pytree of arrays ``[block, ...]``, ``block`` a multiple of ``at_once``.
        counted: bool ``[block]``.
        position: int32 ``[block]``.
        at_once: users in a chunk, static.
        trips: how many chunks of the block there are; others are not looked at.
    """
    chunk_sum = _effects.checked(_NAME, chunk_sum)

    def with_next(index: jax.Array, so_far: Any) -> Any:
        chunk = jax.tree.map(
            lambda x: lax.dynamic_slice_in_dim(x, index * at_once, at_once),
            (rows, counted, position),
        )
        return _compensated.add(so_far, chunk_sum(*chunk))

    return lax.fori_loop(0, trips, with_next, total)


def most_rows(data: Any, sample: UserSample | None) -> int:
    """How many rows are added up at most, whoever is drawn; of draws with replacement there may be many."""
    if sample is None:
        return require_same_rows("data", data)
    _require_fitting(data, sample)
    return len(sample.indices)


def _require_fitting(data: Any, sample: UserSample) -> None:
    """``ValueError`` unless the data have all users that the sample is drawn from; traced sizes pass."""
    users = require_same_rows("data", data)
    require_instance("sample", sample, UserSample)
    if sample.draw is not None:
        population = sample.draw.population
        wanted = f"a draw of {users} users, as many as the data have, or fewer"
        require(population <= users, "sampler", population, wanted)
    if isinstance(sample.size, int):
        capacity = len(sample.indices)
        require(
            sample.size <= capacity, "sample.size", sample.size, f"at most {capacity}, its places"
        )


def _of_these(data: Any, sample: UserSample | None) -> UserSample | None:
    """The sample, in which a number that belongs to no user of the data is the number of users."""
    if sample is None:
        require_same_rows("data", data)
        return None
    _require_fitting(data, sample)
    users, size = jax.tree.leaves(data)[0].shape[0], sample.size
    size = size if isinstance(size, int) else jnp.minimum(size, len(sample.indices))
    return UserSample(inside(sample.indices, users), size)


def map_over_users(
    chunk_rows: Callable[[Any, jax.Array, jax.Array], Any],
    data: Any,
    sample: UserSample | None,
    chunk_size: int,
) -> Any:
    """Stacks what ``chunk_rows`` returns for every user of a sample, in the order of the sample.

    Args:
        chunk_rows: as ``chunk_sum`` of ``sum_over_users``, but returns leaves ``[chunk, ...]``.
        data: a pytree with a leading user axis on every leaf.
        sample: the users; everybody if ``None``.
        chunk_size: how many users at a time.

    Returns:
        Leaves ``[users, ...]``, or ``[capacity, ...]`` of the sample, with zeros in places without a user;
        memory of that and of one chunk.

    Raises:
        ValueError: the data or the sample are such as ``sum_over_users`` refuses.
    """
    require_callable("chunk_rows", chunk_rows)
    require_held("data", data)
    sample = _of_these(data, sample)
    require_count("chunk_size", chunk_size)
    chunk_rows = _effects.checked(_NAME, chunk_rows)
    spread = _sharding.found(data)
    if spread is None:
        return _map(chunk_rows, data, sample, chunk_size)
    if sample is None:
        return _sharding.mapped(
            spread, lambda rows, first: _map(chunk_rows, rows, None, chunk_size, first), data
        )
    at_once = _at_once(sample, chunk_size, spread.devices)
    capacity = len(sample.indices)

    def own_rows(rows: Any, first: jax.Array) -> Any:
        own, places = _held(sample, first, spread.each)
        offsets = jnp.arange(at_once, dtype=jnp.int32)

        def trip(index: jax.Array | int) -> tuple[Any, jax.Array]:
            number = index * at_once + offsets
            entry = jnp.minimum(number, capacity - 1)
            chosen, there = _take(rows, own.indices[entry])
            there &= number < own.size
            found = chunk_rows(chosen, there, places[entry])
            return found, jnp.where(there, places[entry], capacity)

        def put(index: jax.Array, whole: Any) -> Any:
            found, target = trip(index)
            return jax.tree.map(lambda w, x: w.at[target].set(x, mode="drop"), whole, found)

        shapes, _ = jax.eval_shape(trip, 0)
        nothing = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape[1:]), x.dtype), shapes)
        return lax.fori_loop(0, -(-own.size // at_once), put, nothing)

    # Of every place in the sample one device has a row, all others zeros.
    return _sharding.summed(spread, own_rows, data)


def _map(
    chunk_rows: Callable[[Any, jax.Array, jax.Array], Any],
    data: Any,
    sample: UserSample | None,
    chunk_size: int,
    first: jax.Array | int = 0,
) -> Any:
    rows = jax.tree.leaves(data)[0].shape[0] if sample is None else len(sample.indices)
    size = rows if sample is None else sample.size
    position = jnp.arange(rows, dtype=jnp.int32)
    if rows <= chunk_size:
        if sample is None:
            return chunk_rows(data, position < size, first + position)
        chosen, there = _take(data, sample.indices)
        there &= position < size
        return _zeros_unless(there, chunk_rows(chosen, there, first + position))
    indices = position if sample is None else sample.indices

    def trip(start: jax.Array) -> Any:
        place = start + jnp.arange(chunk_size, dtype=jnp.int32)
        chosen, there = _take(data, indices[jnp.minimum(place, rows - 1)])
        there &= place < size
        found = chunk_rows(chosen, there, first + place)
        return found if sample is None else _zeros_unless(there, found)

    if isinstance(size, int):
        stacked = lax.map(trip, jnp.arange(0, rows, chunk_size, dtype=jnp.int32))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:rows], stacked)

    def put(index: jax.Array, whole: Any) -> Any:
        start = index * chunk_size
        return jax.tree.map(
            lambda w, x: lax.dynamic_update_slice_in_dim(w, x, start, 0), whole, trip(start)
        )

    # As many trips as the sample needs; beyond them nobody has a row.
    shapes = jax.eval_shape(trip, 0)
    padded = -(-rows // chunk_size) * chunk_size
    nothing = jax.tree.map(lambda x: jnp.zeros((padded, *x.shape[1:]), x.dtype), shapes)
    whole = lax.fori_loop(0, -(-size // chunk_size), put, nothing)
    return jax.tree.map(lambda x: x[:rows], whole)


def _take(data: Any, indices: jax.Array) -> tuple[Any, jax.Array]:
    """The rows of these numbers, those of a user of the data or one more; and which of them are a user's."""
    users = jax.tree.leaves(data)[0].shape[0]
    there = indices < users
    # A gather would take the last user for a number beyond it.
    known = jnp.where(there, indices, 0)
    rows = jax.tree.map(lambda x: jnp.asarray(x).at[known].get(mode="promise_in_bounds"), data)
    return rows, there


def _zeros_unless(there: jax.Array, rows: Any) -> Any:
    """Zeros in rows that do not count, by a selection and not a product: they may hold NaN."""

    def of_leaf(x: jax.Array) -> jax.Array:
        return jnp.where(there.reshape(-1, *(1,) * (x.ndim - 1)), x, 0).astype(x.dtype)

    return jax.tree.map(of_leaf, rows)
