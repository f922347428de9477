"""Users of a step whose numbers are those of a turn: one program for draws, or blocks, of several sizes.

What it computes: the users that ``sampling.without_replacement`` draws for the same key and sizes, in the
same order (with the keys that JAX makes by default; with others, users of the same law). Arrays have the
sizes of the largest draw of all turns; what lies beyond those of this turn is not looked at. ``sampler`` puts
them, or everybody of a turn, where the turn has its users.

Source: as ``sampling``.

Formal guarantee: that of ``sampling.without_replacement``: of a stream of uniform users of the turn's own
population only the first ``length`` are looked at, and it is cut after its first different ones, as many as
are asked for; the order of the rest is by 64 random bits of their own for each user. Numbers beyond these are
not looked at, so that how large other turns are changes nothing.

Cost: as the largest draw of all turns, whatever the turn.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from dpsco_jax import _keys
from dpsco_jax._checks import require, require_integer, require_key
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles._random_order import shuffled_where_undecided
from dpsco_jax.oracles._streams import first_of_equals, pack, stream_length
from dpsco_jax.oracles.sampling import UserSample


@pytree
class Draws:
    """Sizes of the draw of a turn, or the stack of those of all turns.

    Attributes:
        most_users: users of the largest population.
        most_drawn: users of the largest batch.
        most_few: the most that a stream has to find; see ``few``.
        longest: of all streams.
        some_by_complement: whether of some population more than half are drawn.
        num_users: of the population.
        batch_size: how many of them are drawn.
        few: the batch or, if that is more than half, those left out.
        length: of the stream.
    """

    most_users: int = static()
    most_drawn: int = static()
    most_few: int = static()
    longest: int = static()
    some_by_complement: bool = static()
    num_users: Number
    batch_size: Number
    few: Number
    length: Number


class _Sizes(NamedTuple):
    num_users: int
    batch_size: int

    @property
    def few(self) -> int:
        over = self.batch_size > self.num_users // 2
        return self.num_users - self.batch_size if over else self.batch_size


def stacked(sizes: Sequence[tuple[int, int]]) -> Draws:
    """All draws, each number with an axis of turns in front.

    Args:
        sizes: population and batch of every turn, in 1 ≤ batch < population.

    Raises:
        ValueError: a size is out of its range, or there is none.
    """
    require(len(sizes) >= 1, "sizes", sizes, "at least one")
    for population, batch in sizes:
        require_integer("batch_size", batch, 1, require_integer("num_users", population, 2) - 1)
    found = [_Sizes(*size) for size in sizes]
    lengths = [stream_length(size.num_users, size.few) for size in found]
    return Draws(
        most_users=max(size.num_users for size in found),
        most_drawn=max(size.batch_size for size in found),
        most_few=max(size.few for size in found),
        longest=max(lengths),
        some_by_complement=any(size.few < size.batch_size for size in found),
        num_users=np.asarray([size.num_users for size in found], np.int32),
        batch_size=np.asarray([size.batch_size for size in found], np.int32),
        few=np.asarray([size.few for size in found], np.int32),
        length=np.asarray(lengths, np.int32),
    )


def sampler(
    first: Number, num_users: Number, capacity: int, draws: Draws | None = None
) -> Callable[[jax.Array], UserSample]:
    """Who takes part in a step of a turn, by position among all users.

    Args:
        first: position of the first user of the turn.
        num_users: users of a step: everybody of the turn, or its batch.
        capacity: places, as many as users of a step of the largest turn.
        draws: sizes of the draw; ``None`` where everybody takes part.
    """

    def everybody(key: jax.Array) -> UserSample:
        del key
        # Beyond the users of this turn a place has no meaning.
        places = jnp.minimum(jnp.arange(capacity, dtype=jnp.int32), num_users - 1)
        return UserSample(first + places, num_users)

    if draws is None:
        return everybody

    def drawn(key: jax.Array) -> UserSample:
        sample = without_replacement(key, draws)
        return UserSample(first + sample.indices, sample.size)

    return drawn


def without_replacement(key: jax.Array, draws: Draws) -> UserSample:
    """The batch of a turn, of positions from 0 to ``num_users`` - 1; ``most_drawn`` places, ``size`` traced.

    Args:
        key: a typed key.
        draws: of one turn.
    """
    require_key(key)
    key = _keys.alone(key)
    batch = jnp.asarray(draws.batch_size, jnp.int32)
    if not draws.some_by_complement:
        return UserSample(_different(key, draws), batch)
    most = draws.most_drawn
    by_complement = draws.few < draws.batch_size
    # Of a batch of less than half the whole key is that of the stream, as it is in a program of its own.
    draw_key, order_key = jax.lax.cond(
        by_complement,
        lambda whole: tuple(jax.random.split(whole)),
        lambda whole: (whole, jax.random.clone(whole)),
        key,
    )
    found = _different(draw_key, draws)

    def others() -> Int[jax.Array, "users"]:
        places = jnp.arange(draws.most_users, dtype=jnp.int32)
        left_out = jnp.where(
            jnp.arange(draws.most_few) < draws.few, found, jnp.int32(draws.most_users)
        )
        kept = (places < draws.num_users).at[left_out].set(False, mode="drop")
        return _in_random_order(order_key, pack(kept, most), batch)

    def same() -> Int[jax.Array, "users"]:
        return jnp.pad(found, (0, most - draws.most_few))

    return UserSample(jax.lax.cond(by_complement, others, same), batch)


def _different(key: jax.Array, draws: Draws) -> Int[jax.Array, "users"]:
    """The first ``few`` different users of a stream at the front of ``most_few`` places."""
    counted = jnp.arange(draws.longest, dtype=jnp.int32) < draws.length

    def too_short(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return jnp.sum(state[2]) < draws.few

    def draw(
        state: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        key, draw_key = jax.random.split(state[0])
        stream = jax.random.randint(draw_key, (draws.longest,), 0, draws.num_users, jnp.int32)
        # Whoever comes after the end of the stream is met before by nobody.
        return key, stream, first_of_equals(stream, draws.most_users) & counted

    nothing = key, jnp.zeros(draws.longest, jnp.int32), jnp.zeros(draws.longest, bool)
    _, stream, is_new = jax.lax.while_loop(too_short, draw, nothing)
    return stream[pack(is_new, draws.most_few)]


def _in_random_order(key: jax.Array, indices: jax.Array, size: jax.Array) -> jax.Array:
    """The first ``size`` users in an order of which all are equally likely; see ``sampling``."""
    most = len(indices)
    sort_key, swap_key = jax.random.split(key)
    words = jax.random.bits(sort_key, (2 * most,), jnp.uint32)
    # A user has one word of the first ``size`` and one of the next.
    bits = jnp.stack([words[:most], jax.lax.dynamic_slice_in_dim(words, size, most)])
    return shuffled_where_undecided(swap_key, bits, indices, size)
