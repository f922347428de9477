"""How many users a Poisson sample has, without a coin for every one of them.

With b the binomial law of n coins of probability q, and f the law on 0, ..., n in whole units of 2^-160 that
is drawn from by inversion (Knuth 1998, section 3.4.1), f_(k+1)·b_k ≤ f_k·b_(k+1) for all k, exactly, in
integers: f is below b in the likelihood ratio order (Shaked and Shanthikumar 2007, section 1.C). A uniform
subset of a size drawn from f then has every user, given who else is in it, with probability at most q, which
is all that accounts of Poisson samples use (docs/theory/subsampling.md, section 7): nothing is added to δ.
The total variation of the two laws is below 2^-90, for any number of users, and is nothing that privacy rests
on.

The law has one integer of 160 bits for each count within some 13 standard deviations of the mean, made once
on the host.
"""

import functools
from itertools import accumulate
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_WORDS = 5
"""Random words, of 32 bits, of one draw."""

_LEAST = 2**32
"""Units of the rarest counts: as many as the last word has values."""


class Counts(NamedTuple):
    """A law of counts.

    Attributes:
        first: every count from 1 to below ``first`` has 2^32 units.
        units: those of the counts ``first``, ``first + 1``, ...; no greater count is possible. What is left
            of 2^160 units is that of zero.
    """

    first: int
    units: tuple[int, ...]

    @property
    def most(self) -> int:
        """The greatest possible count."""
        return self.first + len(self.units) - 1

    @property
    def rare(self) -> int:
        """How many counts, but zero, have the least number of units."""
        return max(self.first - 1, 0)

    @property
    def rest(self) -> int:
        """The units of zero (besides those in ``units``, if ``first`` is zero)."""
        return int(2 ** (32 * _WORDS)) - sum(self.units) - self.rare * _LEAST


@functools.lru_cache(maxsize=64)
def counts(num_users: int, probability: float) -> Counts:
    """Counts of so many coins, by ratios that are rounded in favour of the smaller count.

    Args:
        num_users: n, at least 1.
        probability: q in [0, 1), taken as the rational number that the float is.

    Returns:
        A law that leaves at least 2^32 units to zero.
    """
    heads, both = probability.as_integer_ratio()
    tails = both - heads
    mode = min(num_users, (num_users + 1) * heads // both)

    def law_of(most_units: int) -> Counts:
        """The law with so many units at its mode: exact ratios, rounded down above it and up below."""
        above, count = [most_units], mode
        while count < num_users:
            units = above[-1] * (num_users - count) * heads // ((count + 1) * tails)
            if units < _LEAST:
                break
            above.append(units)
            count += 1
        below, count, units = [], mode, most_units
        while count > 0:
            units = -(-units * count * tails // ((num_users - count + 1) * heads))
            if units <= _LEAST:
                # Ratios are at least 1 below the mode: with as many units each, no smaller count has too few.
                break
            below.append(units)
            count -= 1
        return Counts(count, (*reversed(below), *above))

    all_units = 2 ** (32 * _WORDS)
    law = law_of(all_units)
    most_units = all_units * all_units // (all_units - law.rest)
    while (law := law_of(most_units)).rest < _LEAST:
        most_units -= 1 + (_LEAST - law.rest) * most_units // all_units
    return law


def draw(key: jax.Array, law: Counts) -> jax.Array:
    """A count of this law, int32."""
    return count_at(jax.random.bits(key, (_WORDS,), jnp.uint32), law)


def count_at(words: jax.Array, law: Counts) -> jax.Array:
    """The count that has the unit whose number is given.

    Units lie in this order: 2^32 for each of 1, ..., ``first - 1``; those of ``first`` and the following
    counts; those of zero.

    Args:
        words: uint32 ``[5]``, the number of a unit in words, the most significant first.
        law: of counts.

    Returns:
        int32 ``[]``, in [0, ``law.most``].
    """
    ends = list(accumulate(law.units, initial=law.rare * _LEAST))[1:]
    parts = [[end >> 32 * (_WORDS - 1 - place) for end in ends] for place in range(_WORDS)]
    limits = jnp.asarray(np.array([[x & (2**32 - 1) for x in part] for part in parts], np.uint32))
    reached = jnp.ones(len(ends), bool)
    for limit, word in zip(limits[::-1], words[::-1], strict=True):
        reached = (limit < word) | ((limit == word) & reached)
    passed = jnp.sum(reached, dtype=jnp.int32)
    found = jnp.where(passed == len(ends), 0, law.first + passed)
    is_rare = jnp.all(words[:-2] == 0) & (words[-2] < law.rare)
    return jnp.where(is_rare, 1 + words[-2].astype(jnp.int32), found)
