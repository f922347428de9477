"""Streams of random users, cut after the first different ones: how long they are, and who is new.

Users are drawn with replacement and those already drawn are skipped. A stream is so long that it seldom has
too few different ones; one that has too few is drawn afresh. For independent draws of the same law the first
different users are a uniform subset in uniform order, whatever the length of the stream, as long as all of it
is drawn afresh where it is too short: all of this is symmetric under every renaming of the users.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

# The chance that a stream is too short and has to be drawn again is below one in 10^4.
_SPARE_DEVIATIONS = 4.0

# Draws are sorted, which takes no memory for all users, where these are so many times more.
_SORTED_BELOW = 16

_Stream = tuple[jax.Array, jax.Array, jax.Array]  # key, draws, which of them are new


def long_enough(
    key: jax.Array,
    draw: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    length: int,
    size: int | jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """A stream with so many different users, drawn afresh until it has them; and which are new."""

    def too_short(state: _Stream) -> jax.Array:
        return jnp.sum(state[2]) < size

    def once_more(state: _Stream) -> _Stream:
        key, draw_key = jax.random.split(state[0])
        return key, *draw(draw_key)

    nothing = key, jnp.zeros(length, jnp.int32), jnp.zeros(length, bool)
    return jax.lax.while_loop(too_short, once_more, nothing)[1:]


def first_of_equals(stream: jax.Array, num_users: int) -> jax.Array:
    """Which numbers of a stream, each in [0, num_users), are not met before."""
    length = len(stream)
    if _SORTED_BELOW * length <= num_users:
        return first_by_sorting(stream)
    positions = jnp.arange(length, dtype=jnp.int32)
    earliest = jnp.full(num_users, length, jnp.int32).at[stream].min(positions)
    return earliest[stream] == positions


def first_by_sorting(stream: jax.Array) -> jax.Array:
    """The same without memory for all users: equal numbers are neighbours, in order of positions."""
    length = len(stream)
    positions = jnp.arange(length, dtype=jnp.int32)
    numbers, places = jax.lax.sort((stream, positions), num_keys=2)
    new = jnp.concatenate([jnp.ones(1, bool), numbers[1:] != numbers[:-1]])
    return jnp.zeros(length, bool).at[places].set(new)


def pack(chosen: jax.Array, size: int) -> jax.Array:
    """The positions of the true entries at the front of an array of the given size, then zeros."""
    rank = jnp.cumsum(chosen.astype(jnp.int32)) - 1
    target = jnp.where(chosen, rank, size)
    numbers = jnp.arange(len(chosen), dtype=jnp.int32)
    return jnp.zeros(size, jnp.int32).at[target].set(numbers, mode="drop")


def users_of(words: jax.Array, num_users: int) -> jax.Array:
    """A user for each random word, every one for equally many words; ``num_users`` for those left over."""
    each = min(2**32 // num_users, 2**32 - 1)
    return jnp.minimum(words // jnp.uint32(each), jnp.uint32(num_users)).astype(jnp.int32)


def stream_length(num_users: int, batch_size: int) -> int:
    """How many draws to make: the mean of those needed, and a few standard deviations."""
    repeated = np.arange(batch_size) / num_users
    mean = np.sum(1 / (1 - repeated))
    variance = np.sum(repeated / (1 - repeated) ** 2)
    return math.ceil(mean + _SPARE_DEVIATIONS * math.sqrt(variance))


def words_needed(num_users: int, batch_size: int) -> int:
    """How long a stream of ``users_of`` is to be, some of whose words stand for no user."""
    users, kept = stream_length(num_users, batch_size), 2**32 // num_users * num_users / 2**32
    return math.ceil((users + _SPARE_DEVIATIONS * math.sqrt(users * (1 - kept))) / kept)
