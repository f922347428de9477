"""Who takes part in a step: uniform batches of fixed size, and Poisson samples, inside ``jit``.

What it computes: the indices of the sampled users, packed to the front of an array of static size.

Source: sequential sampling without replacement (draw uniform users and skip those already drawn);
Poisson sampling is one Bernoulli draw per user, or a binomial number of different users; the shuffle of
Fisher and Yates (Knuth 1998, section 3.4.2).

Formal guarantee: amplification by sampling assumes the exact law of the sample. ``without_replacement``
is uniform over all subsets of the size asked for: a stream of independent uniform users is cut after its
first ``batch_size`` different ones, and a stream too short for that is drawn afresh; both are symmetric
under every renaming of the users, so all subsets are equally likely. (Each uniform draw is the remainder
of 64 random bits: no probability is off by more than a factor of 1 ± num_users·2^-64.) Shuffling once and
cutting into batches is not this law, nor is the largest of float32 uniforms, which tie. ``poisson``
includes each user independently with probability ⌊q·2^32⌋/2^32: never more than q, as a comparison of
float32 uniforms would allow. Of few of many it draws the number of users, from a law in units of 2^-160, and
as many different users, each of them by equally many words (those left over are skipped). A user is in that
sample, given who else is, with probability at most q, which is what accounts use: nothing is added to δ
(docs/theory/subsampling.md, section 7). The sample must stay secret.

Samples are in random order, all orders of the same users equally likely, whoever they are: in the order of
the users one more of them would move all who follow by one place, and so into other groups of a float sum
(docs/theory/sums.md, section 3). The first different users of a stream are in such an order. Others are
sorted by 64 random bits each; where two of them have the same bits, or a sample is longer than what is
sorted, it is shuffled instead.

Cost: without replacement about ``batch_size`` to 1.4 ``batch_size`` random integers, and a sort of as many,
or one scatter into an integer for each user if these are less than 16 times more; of more than half of the
users also a sort of the sample. Poisson, where a stream is at most an eighth of the users and the
probability is not traced: random bits and a sort of the largest sample there is, some 14 standard deviations
above the mean, and nothing for other users; else 32 random bits and a cumulative sum per user, and a sort of
the sample (of everybody, if the probability is traced).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Int

from dpsco_jax import _keys
from dpsco_jax._checks import require_instance, require_integer, require_key, require_probability
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import _binomial_counts, _streams

MOST_USERS = 2**31 - 1
"""Users of a population: their numbers are int32."""

# Users who are drawn at once; of more, what a draw takes would grow with their number.
_BLOCK = 2**15

# Poisson samples are streams where users are so many times more than words; else users have coins.
_STREAMED_BELOW = 8


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("population", "taken"), meta_fields=("kind",)
)
@dataclasses.dataclass(frozen=True)
class Draw:
    """By which law users were drawn, for whoever has to account for it.

    Attributes:
        kind: static; ``"poisson"``, ``"without_replacement"`` or ``"with_replacement"``.
        population: from how many users.
        taken: how many of them; for ``"poisson"`` the probability of each, for ``"with_replacement"`` draws.
    """

    kind: str
    population: Any
    taken: Any


class UserSample(NamedTuple):
    """The users of one step.

    Attributes:
        indices: int32 ``[capacity]``; the first ``size`` entries are different users (``with_replacement``:
            draws, possibly of the same user) in random order, the rest are valid indices without a meaning.
        size: how many users were sampled: a Python integer where it is fixed, an int32 scalar where it is
            random.
        draw: the law of the draw, where it is known.
    """

    indices: Int[jax.Array, "capacity"]
    size: int | Int[jax.Array, ""]
    draw: Draw | None = None


@pytree
class Batch:
    """How many users are drawn of how many, for runs of several sizes in one program.

    Attributes:
        most_users: users of the largest population of these runs.
        most_drawn: users of the largest batch.
        most_few: the largest ``few``.
        longest: of all streams.
        some_by_complement: whether of some population more than half are drawn.
        num_users: of the population.
        batch_size: how many of them are drawn.
        few: the batch or, if that is more than half, those left out.
        length: of the stream.
    """

    most_users: int = static(joined=max)
    most_drawn: int = static(joined=max)
    most_few: int = static(joined=max)
    longest: int = static(joined=max)
    some_by_complement: bool = static(joined=max)
    num_users: Number
    batch_size: Number
    few: Number
    length: Number


@pytree
class Block:
    """Users at consecutive positions, and how many of them take part in a step.

    Of a run on all users it holds Python integers. Blocks of several sizes in one program hold arrays, or
    numbers that are traced, and have the room of the largest.

    Attributes:
        capacity: places of a step: users of the largest step of these blocks.
        least: users of the smallest step of these blocks.
        first: position of the first user.
        count: users of a step.
        batch: how they are drawn; ``None`` where everybody takes part.
    """

    capacity: int = static(joined=max)
    least: int = static(joined=min)
    first: Number
    count: Number
    batch: Batch | None

    @property
    def alone(self) -> bool:
        """Whether sizes are those of one run: all places are of users, and all rows at hand are its own."""
        return isinstance(self.count, int)

    def sampler(self) -> Callable[[jax.Array], "UserSample"] | None:
        """Who takes part in a step, by position among all users; ``None`` for everybody there is."""
        if self.batch is not None:
            batch = self.batch

            def drawn(key: jax.Array) -> UserSample:
                sample = draw_batch(key, batch)
                return sample._replace(indices=self.first + sample.indices)

            return drawn
        if self.alone:
            return None

        def everybody(key: jax.Array) -> UserSample:
            del key
            # Places beyond the users of this block have no meaning, but hold valid numbers.
            places = jnp.minimum(jnp.arange(self.capacity, dtype=jnp.int32), self.count - 1)
            return UserSample(self.first + places, self.count)

        return everybody


def block(num_users: int, batch_size: int) -> Block:
    """The block of a run on all users, of whom ``batch_size`` are drawn in a step.

    Raises:
        ValueError: if a size is out of range.
    """
    num_users = require_integer("num_users", num_users, 1, MOST_USERS)
    batch_size = require_integer("batch_size", batch_size, 1, num_users)
    some = batch_of(num_users, batch_size) if batch_size < num_users else None
    return Block(batch_size, batch_size, 0, batch_size, some)


def batch_of(num_users: int, batch_size: int) -> Batch:
    """The sizes of a draw of some of the users, not of everybody.

    Raises:
        ValueError: if a size is out of its range, which is 1 ≤ batch_size < num_users.
    """
    num_users = require_integer("num_users", num_users, 2, MOST_USERS)
    batch_size = require_integer("batch_size", batch_size, 1, num_users - 1)
    by_complement = batch_size > num_users // 2
    few = num_users - batch_size if by_complement else batch_size
    length = _streams.stream_length(num_users, few)
    sizes = num_users, batch_size, few, length
    return Batch(*sizes, by_complement, *sizes)


def without_replacement(key: jax.Array, num_users: int, batch_size: int) -> UserSample:
    """A uniformly random subset of exactly ``batch_size`` users.

    All orders of the subset are equally likely, so that the first few of a sample are a sample themselves;
    but everybody, where ``batch_size`` is ``num_users``, is in the order of the users.

    Args:
        key: a typed key.
        num_users: size of the population, static, below 2^31.
        batch_size: size of the subset, static, in [1, num_users].

    Raises:
        ValueError: if ``batch_size`` is out of range.
    """
    require_key(key)
    num_users = require_integer("num_users", num_users, 1, MOST_USERS)
    batch_size = require_integer("batch_size", batch_size, 1, num_users)
    if batch_size < num_users:
        return draw_batch(key, batch_of(num_users, batch_size))
    _keys.alone(key)
    everybody = jnp.arange(num_users, dtype=jnp.int32)
    return UserSample(everybody, num_users, Draw("without_replacement", num_users, num_users))


def draw_batch(key: jax.Array, batch: Batch) -> UserSample:
    """As ``without_replacement``, of sizes that may be traced: the first ``size`` of ``most_drawn`` places.

    Whatever the largest sizes are, the users are those of a draw with these sizes alone, in the same order
    (with the keys that JAX makes by default; with others, of the same law).

    Args:
        key: a typed key.
        batch: of ``batch_of``.
    """
    require_key(key)
    require_instance("batch", batch, Batch)
    key = _keys.alone(key)
    law = Draw("without_replacement", batch.num_users, batch.batch_size)
    size = batch.batch_size
    size = size if isinstance(size, int) else jnp.asarray(size, jnp.int32)
    if not batch.some_by_complement:
        return UserSample(_different(key, batch), size, law)
    most = batch.most_drawn
    by_complement = batch.few < batch.batch_size
    # Of a batch of less than half the whole key is that of the stream.
    draw_key, order_key = _either(
        by_complement,
        lambda whole: tuple(jax.random.split(whole)),
        lambda whole: (whole, jax.random.clone(whole)),
        key,
    )
    found = _different(draw_key, batch)

    def others(found: jax.Array, order_key: jax.Array) -> jax.Array:
        places = jnp.arange(batch.most_users, dtype=jnp.int32)
        left_out = jnp.where(
            jnp.arange(batch.most_few) < batch.few, found, jnp.int32(batch.most_users)
        )
        kept = (places < batch.num_users).at[left_out].set(False, mode="drop")
        return _in_random_order(order_key, _streams.pack(kept, most), size, most, size)

    def same(found: jax.Array, order_key: jax.Array) -> jax.Array:
        return jnp.pad(found, (0, most - batch.most_few))

    return UserSample(_either(by_complement, others, same, found, order_key), size, law)


def _either(condition: Any, yes: Callable[..., Any], no: Callable[..., Any], *given: Any) -> Any:
    """``jax.lax.cond``; where sizes are those of one run only one of both is in the program."""
    if isinstance(condition, bool):
        return yes(*given) if condition else no(*given)
    return lax.cond(condition, yes, no, *given)


def _different(key: jax.Array, batch: Batch) -> Int[jax.Array, "users"]:
    """The first ``few`` different users of a stream at the front of ``most_few`` places."""
    # Who comes after the end of the stream of this batch is not looked at, and is met before by nobody.
    counted = jnp.arange(batch.longest, dtype=jnp.int32) < batch.length

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        stream = jax.random.randint(key, (batch.longest,), 0, batch.num_users, jnp.int32)
        return stream, _streams.first_of_equals(stream, batch.most_users) & counted

    stream, is_new = _streams.long_enough(key, draw, batch.longest, batch.few)
    return stream[_streams.pack(is_new, batch.most_few)]


def poisson(key: jax.Array, num_users: int, probability: float | jax.Array) -> UserSample:
    """Every user independently with the same probability, in random order; possibly nobody or everybody.

    Args:
        key: a typed key.
        num_users: size of the population, static, below 2^31.
        probability: q in [0, 1]; may be traced (float32 or wider).

    Returns:
        A sample with room for everybody, or, of few of many, for as many users as can be drawn: none is
        ever cut short.

    Raises:
        ValueError: if a concrete probability is not in [0, 1].
    """
    require_key(key)
    num_users = require_integer("num_users", num_users, 1, MOST_USERS)
    require_probability("probability", probability)
    sample = _poisson(_keys.alone(key), num_users, probability)
    return sample._replace(draw=Draw("poisson", num_users, probability))


def _poisson(key: jax.Array, num_users: int, probability: float | jax.Array) -> UserSample:
    if isinstance(probability, jax.Array):
        probability = probability.astype(jnp.promote_types(probability.dtype, jnp.float32))
        certain = probability >= 1
        threshold = jnp.floor(jnp.where(certain, 0, probability) * 2.0**32).astype(jnp.uint32)
        sorted_users = num_users
    else:
        law = _few_of_many(num_users, float(probability))
        if law is not None:
            return _streamed(key, num_users, law)
        certain = jnp.asarray(probability >= 1)
        threshold = jnp.uint32(0 if probability >= 1 else math.floor(float(probability) * 2.0**32))
        sorted_users = _seldom_exceeded(num_users, float(probability))
    # The numbers of blocks are not folded into what may come of folding in the number of a step: for keys of
    # "unsafe_rbg" that is an exclusive or, so that block b of step t would be block t of step b.
    draw_key, order_key = jax.random.split(key)

    def drawn(key: jax.Array, count: int) -> jax.Array:
        return (jax.random.bits(key, (count,), jnp.uint32) < threshold) | certain

    def in_order(packed: UserSample) -> UserSample:
        sizes = packed.size, sorted_users, sorted_users
        return UserSample(_in_random_order(order_key, packed.indices, *sizes), packed.size)

    if num_users <= _BLOCK:
        chosen = drawn(draw_key, num_users)
        packed = UserSample(_streams.pack(chosen, num_users), jnp.sum(chosen, dtype=jnp.int32))
        return in_order(packed)

    def with_block(number: jax.Array, sample: UserSample) -> UserSample:
        users = number * _BLOCK + jnp.arange(_BLOCK, dtype=jnp.int32)
        chosen = drawn(jax.random.fold_in(draw_key, number), _BLOCK) & (users < num_users)
        rank = sample.size + jnp.cumsum(chosen, dtype=jnp.int32) - 1
        place = jnp.where(chosen, rank, num_users)
        indices = sample.indices.at[place].set(users, mode="drop")
        return UserSample(indices, sample.size + jnp.sum(chosen, dtype=jnp.int32))

    nobody = UserSample(jnp.zeros(num_users, jnp.int32), jnp.zeros((), jnp.int32))
    packed = jax.lax.fori_loop(0, -(-num_users // _BLOCK), with_block, nobody)
    return in_order(packed)


def _few_of_many(num_users: int, probability: float) -> _binomial_counts.Counts | None:
    """The law of the size of a Poisson sample drawn as a stream; ``None`` where coins are faster."""
    if _STREAMED_BELOW * probability > 1:
        return None
    law = _binomial_counts.counts(num_users, probability)
    is_short = _STREAMED_BELOW * _streams.words_needed(num_users, max(law.most, 1)) <= num_users
    return law if is_short else None


def _streamed(key: jax.Array, num_users: int, law: _binomial_counts.Counts) -> UserSample:
    """The first different users of a stream, as many as the law says.

    Their number is drawn once: with a number of its own for every stream that is too short, small samples
    would be more likely than they should.
    """
    size_key, stream_key = jax.random.split(key)
    size = _binomial_counts.draw(size_key, law)
    capacity = max(law.most, 1)
    length = _streams.words_needed(num_users, capacity)

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        stream = _streams.users_of(jax.random.bits(key, (length,), jnp.uint32), num_users)
        return stream, _streams.first_by_sorting(stream) & (stream < num_users)

    stream, is_new = _streams.long_enough(stream_key, draw, length, size)
    # Numbers of nobody do not count, but whatever is in a sample is a valid index.
    return UserSample(jnp.minimum(stream, num_users - 1)[_streams.pack(is_new, capacity)], size)


def with_replacement(key: jax.Array, num_users: int | jax.Array, num_draws: int) -> UserSample:
    """``num_draws`` independent uniform draws; a user may be drawn several times, and counts as often.

    Args:
        key: a typed key.
        num_users: size of the population, below 2^31; may be traced.
        num_draws: static, at least 1.

    Raises:
        ValueError: if ``num_users`` or ``num_draws`` is not an integer of at least 1.
    """
    require_key(key)
    if not isinstance(num_users, jax.core.Tracer):
        num_users = require_integer("num_users", num_users, 1, MOST_USERS)
    num_draws = require_integer("num_draws", num_draws, 1)
    indices = jax.random.randint(_keys.alone(key), (num_draws,), 0, num_users, jnp.int32)
    return UserSample(indices, num_draws, Draw("with_replacement", num_users, num_draws))


def one_pass(num_users: int, first: Any, size: Any, most: int) -> Callable[[jax.Array], UserSample]:
    """The next users by position, who are drawn by nothing.

    Args:
        num_users: of the population.
        first: the position of the first one; may be traced.
        size: how many take part, at most ``most``; may be traced. Nobody is there beyond the last user:
            that ``first + size`` is at most ``num_users`` is up to the caller.
        most: static; users of the largest batch.

    Raises:
        ValueError: ``num_users`` or ``most`` is no integer of at least 1.
    """
    num_users = require_integer("num_users", num_users, 1, MOST_USERS)
    most = require_integer("most", most, 1, MOST_USERS)

    def following(key: jax.Array) -> UserSample:
        del key
        # Places beyond the batch have no meaning, but hold valid positions.
        places = first + jnp.arange(most, dtype=jnp.int32)
        return UserSample(jnp.minimum(places, num_users - 1), size)

    return following


def _in_random_order(
    key: jax.Array, indices: jax.Array, size: Any, length: int, second: Any
) -> jax.Array:
    """The first ``size`` users in an order of which all are equally likely, whatever order they come in.

    They are sorted by random bits. That order is uniform as long as no two have the same bits; otherwise, and
    where there are more users than ``length``, a shuffle, which is uniform from whatever order it starts,
    takes a loop as long as the sample.

    Args:
        key: used once.
        indices: of users, ``[capacity]``.
        size: how many of them count.
        length: how many are sorted, static.
        second: where the second words of users begin among the random words, at most ``length``: as many are
            first words, so that runs of several sizes in one program have those that each has by itself.
    """
    sort_key, swap_key = jax.random.split(key)
    words = jax.random.bits(sort_key, (2 * length,), jnp.uint32)
    low = lax.dynamic_slice_in_dim(words, second, length)
    places = jnp.arange(length, dtype=jnp.int32)
    # Who does not count comes last: the sort is stable, and in the sample they are last already.
    bits = jnp.where(places < size, jnp.stack([words[:length], low]), jnp.uint32(2**32 - 1))
    high, low, first = lax.sort((bits[0], bits[1], indices[:length]), num_keys=2)
    equal = (high[1:] == high[:-1]) & (low[1:] == low[:-1]) & (places[1:] < size)
    undecided = jnp.any(equal) | (size > length)

    def swap(place: jax.Array, indices: jax.Array) -> jax.Array:
        other = jax.random.randint(jax.random.fold_in(swap_key, place), (), 0, place + 1)
        here, there = indices[place], indices[other]
        return indices.at[place].set(there).at[other].set(here)

    indices = indices.at[:length].set(first)
    return lax.fori_loop(0, jnp.where(undecided, size, 0), swap, indices)


def _seldom_exceeded(num_users: int, probability: float) -> int:
    """A size that fewer than one in 10^7 samples exceed (Bernstein's inequality)."""
    mean = num_users * min(probability, 1.0)
    spread = math.sqrt(mean * (1.0 - min(probability, 1.0)))
    return min(num_users, math.ceil(mean + 6.0 * spread) + 16)
