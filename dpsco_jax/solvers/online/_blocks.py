"""A stream of losses of experts, played in blocks of batches: what ``_lazy.solve`` plays, and much faster.

A play stands until a coin is lost, and what a coin sees are sums over a batch. So the sums of all batches of
a block are computed in one pass over its losses, the coins of all of its batches are tossed at once for the
point that stands, and only at the first that is lost something is drawn, from the sums up to there. Keys,
coins, draws and sums are those of ``_lazy.solve``, to the bit; losses are looked at in no other way.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpsco_jax import _keys
from dpsco_jax.mechanisms import lazy_draws
from dpsco_jax.solvers.online import _lazy
from dpsco_jax.solvers.online._lazy import At, LazyPlan, Measure
from dpsco_jax.solvers.solution import Solution

_NUMBERS = 2**17  # of losses that are held at once, unless a round has more
_FEW = 127  # so many integers below 2^24 + 1 have a sum below 2^31
_HALF = 12


class Words(NamedTuple):
    """Integers in two words: whole·2^24 + part, with 0 ≤ part < 2^24."""

    whole: Any
    part: Any

    def plus(self, other: "Words") -> "Words":
        """The sum."""
        return _words(self.whole + other.whole, self.part + other.part)

    def minus(self, other: "Words") -> "Words":
        """The difference, which may be negative."""
        return _words(self.whole - other.whole, self.part - other.part)

    def at(self, place: Any) -> "Words":
        """Those of one expert."""
        return Words(self.whole[..., place], self.part[..., place])

    def total(self, kept: Any) -> "Words":
        """The sum over the first axis of those that are kept, of at most 2^19."""
        whole, part = (jnp.where(kept[:, None], word, 0) for word in self)
        high, low = jnp.sum(part >> _HALF, axis=0), jnp.sum(part & (2**_HALF - 1), axis=0)
        high = high + (low >> _HALF)
        low = low & (2**_HALF - 1)
        return _words(
            jnp.sum(whole, axis=0) + (high >> _HALF), ((high & (2**_HALF - 1)) << _HALF) | low
        )

    def value(self) -> Any:
        """In units of 2^24, as a float."""
        return self.whole.astype(float) + self.part.astype(float) / _lazy.UNIT


def _words(whole: Any, part: Any) -> Words:
    return Words(whole + (part >> 24), part & (_lazy.UNIT - 1))


def solve(
    key: jax.Array, plan: LazyPlan, measure: Measure, units: Callable[[Any], Any]
) -> Solution:
    """As ``_lazy.solve``, of a measure whose statistic is the sums of losses as a tuple of two words.

    Args:
        key: a typed key, used up.
        plan: whose clip is its learning rate, so that no loss in [0, 1] is clipped.
        measure: to draw from; the sums are added up here.
        units: ``units(t) -> [dim]``, the losses of a round as integers from 0 to 2^24; mapped over rounds.
    """
    plan = _lazy.as_run(plan)
    key, at = _lazy.start(key, measure)
    size, last = plan.batch_size, plan.num_batches - 1
    rounds = max(1, _NUMBERS // plan.dim)
    per_block = min(rounds // size, last) if size <= _FEW else 1
    per_block = max(per_block, 1)

    def pass_over(first: Any, count: int, length: int) -> Words:
        """The sums of ``count`` batches of ``length`` rounds, [count, dim], from a round on."""
        seen = jax.vmap(units)(first + jnp.arange(count * length))
        return _words(0, jnp.sum(seen.reshape(count, length, -1), axis=1))

    def sums(first: Any, count: int, length: int) -> Words:
        piece = min(length, rounds, _FEW)
        if count > 1 or piece == length:
            return pass_over(first, count, length)

        def more(i: Any, sum_: Words) -> Words:
            return sum_.plus(pass_over(first + i * piece, 1, piece))

        sum_ = jax.lax.fori_loop(1, length // piece, more, pass_over(first, 1, piece))
        left = length % piece
        return sum_.plus(pass_over(first + length - left, 1, left)) if left else sum_

    def block(carry: tuple[At, Words], batch: Any, count: int) -> Any:
        at, before = carry
        of_batch = sums(batch * size, count, size)
        play, reference, trace = _played(plan, measure, key, at, before, of_batch, batch)
        after = before.plus(of_batch.total(jnp.ones(count, bool)))
        return (at._replace(play=play, reference=reference), after), trace

    carry = (at, Words(*at.statistic))
    blocks, left = divmod(last, per_block)
    step = functools.partial(block, count=per_block)
    carry, trace = jax.lax.scan(step, carry, jnp.arange(blocks) * per_block)
    trace = jax.tree.map(lambda x: x.reshape(-1), trace)
    if left:
        carry, more = block(carry, jnp.int32(blocks * per_block), left)
        trace = jax.tree.map(lambda some, others: jnp.concatenate([some, others]), trace, more)
    at, total = carry
    end = sums(last * size, 1, plan.num_rounds - last * size)
    suffered = end.at(at.play).value()[0]
    statistic = tuple(total.plus(Words(end.whole[0], end.part[0])))
    plays, losses, fresh = trace
    final = at._replace(statistic=statistic, suffered=suffered)
    return _lazy.finished(plan, final, jnp.append(plays, at.play), losses, fresh)


def _played(
    plan: LazyPlan,
    measure: Measure,
    key: jax.Array,
    at: At,
    before: Words,
    sums: Words,
    first: Any,
) -> tuple[Any, Any, tuple[Any, ...]]:
    """The points after the batches of a block, and of each batch play, its loss, and if a new one follows."""
    count = sums.whole.shape[0]
    places = jnp.arange(count)
    keys = jax.vmap(lambda i: jax.random.split(_keys.of_part(key, first + i + 1)))(places)
    coins, words = jax.vmap(_coin)(keys[:, 0])
    other_coins, other_words = jax.vmap(_coin)(keys[:, 1])
    lagged, impl = plan.reference == "lagged", jax.random.key_impl(key)

    def more(state: Any) -> Any:
        return state[0] < count

    def to_next(state: Any) -> Any:
        start, play, reference, plays, losses, fresh = state
        suffered = sums.at(play)
        seen = suffered.minus(sums.at(reference)) if lagged else suffered
        lost = (coins < _lazy.coin_exponent(plan, seen)) & (places >= start)
        others = (other_coins < _lazy.reference_exponent(plan)) & (places >= start) & lagged
        either = lost | others
        end = jnp.where(jnp.any(either), jnp.argmax(either), count - 1)

        def draw(words: Any) -> Any:
            statistic = tuple(before.plus(sums.total(places <= end)))
            return measure.sample(jax.random.wrap_key_data(words, impl=impl), statistic)

        plays = jnp.where(places >= start, play, plays)
        losses = jnp.where(places >= start, suffered.value(), losses)
        play = jax.lax.cond(lost[end], draw, lambda _: play, words[end])
        if lagged:
            reference = jax.lax.cond(others[end], draw, lambda _: reference, other_words[end])
        return end + 1, play, reference, plays, losses, fresh | (lost & (places == end))

    nothing = jnp.zeros(count, at.play.dtype), jnp.zeros(count), jnp.zeros(count, bool)
    state = (jnp.int32(0), at.play, at.reference, *nothing)
    _, play, reference, *trace = jax.lax.while_loop(more, to_next, state)
    return play, reference, tuple(trace)


def _coin(key: jax.Array) -> tuple[Any, Any]:
    variable, draw_key = lazy_draws.coin(key)
    return variable, jax.random.key_data(draw_key)
