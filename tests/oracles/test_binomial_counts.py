"""Sizes of Poisson samples, drawn in whole units: their ratios, in integers, and every end of a count."""

from fractions import Fraction
from itertools import pairwise
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax.oracles import _binomial_counts as binomial

ALL, LEAST = 2**160, 2**32

# Few and many users, the mode at either end, below one and far above; the last two have rare small counts.
LAWS = [
    (1, 0.1), (5, 0.3), (7, 2.0**-40), (3, 0.99), (60, 0.1), (1000, 0.0), (1000, 1e-300),
    (10**6, 1e-6), (2**31 - 1, 1e-8), (2000, 0.1), (10**6, 1e-3),
]  # fmt: skip


def _units(law):
    """Of every possible count, from 0."""
    units = [0, *[LEAST] * (law.first - 1), *law.units] if law.first else list(law.units)
    units[0] += ALL - sum(units)
    return units


@pytest.mark.parametrize(("num_users", "probability"), LAWS)
def test_nobody_is_more_likely_than_by_a_coin_whoever_else_is_drawn(num_users, probability):
    """Ratios are no more than those of the binomial law, exactly; no count below one drawn is impossible."""
    law = binomial.counts(num_users, probability)
    units, q = _units(law), Fraction(probability)
    assert len(units) == law.most + 1 <= num_users + 1
    assert min(units) >= LEAST
    assert sum(units) == ALL
    heads, tails = q.numerator, q.denominator - q.numerator
    for k, (fewer, more) in enumerate(pairwise(units)):
        assert more * (k + 1) * tails <= fewer * (num_users - k) * heads


@pytest.mark.parametrize(("num_users", "probability"), [(1, 0.1), (60, 0.1), (400, 0.3), (9, 0.99)])
def test_the_law_is_binomial_up_to_2_to_the_minus_110(num_users, probability):
    q, units = Fraction(probability), _units(binomial.counts(num_users, probability))
    units += [0] * (num_users + 1 - len(units))
    coins = [
        comb(num_users, k) * q.numerator**k * (q.denominator - q.numerator) ** (num_users - k)
        for k in range(num_users + 1)
    ]
    away = sum(
        abs(u * q.denominator**num_users - ALL * c) for u, c in zip(units, coins, strict=True)
    )
    assert 2**110 * away < 2 * ALL * q.denominator**num_users


def test_a_million_coins_have_the_spread_that_they_should():
    law = binomial.counts(10**6, 1e-3)
    units = np.array([float(Fraction(u, ALL)) for u in _units(law)])
    wanted = stats.binom.pmf(np.arange(law.most + 1), 10**6, 1e-3)
    np.testing.assert_allclose(units, wanted, rtol=1e-8, atol=1e-25)
    assert law.most < 1000 + 14 * 1000**0.5
    assert len(law.units) < 27 * 1000**0.5


@pytest.mark.parametrize(("num_users", "probability"), [(5, 0.3), (2000, 0.1)])
def test_every_count_has_the_units_that_are_its_own(num_users, probability):
    """The first and the last unit of every count, in words."""
    law = binomial.counts(num_users, probability)
    wanted, numbers, end = [], [], 0
    single = [(k, LEAST) for k in range(1, law.first)]
    for k, units in [*single, *((law.first + i, u) for i, u in enumerate(law.units))]:
        numbers += [end, end + units - 1]
        wanted += [k, k]
        end += units
    numbers += [end, ALL - 1]
    wanted += [0, 0]
    # A number in the midst of a count, whose last words are those of a rare one.
    numbers.append(ALL // 2)
    wanted.append(next(k for number, k in zip(numbers, wanted, strict=False) if number > ALL // 2))
    words = [[number >> 32 * (4 - place) & (LEAST - 1) for place in range(5)] for number in numbers]
    count_of = jax.jit(jax.vmap(lambda words: binomial.count_at(words, law)))
    found = count_of(jnp.asarray(np.array(words, np.uint32)))
    np.testing.assert_array_equal(found, wanted)


def test_counts_that_are_drawn_have_the_law():
    law = binomial.counts(30, 0.1)
    keys = jax.random.split(jax.random.key(0), 20_000)
    found = np.bincount(jax.jit(jax.vmap(lambda k: binomial.draw(k, law)))(keys), minlength=31)
    expected = 20_000 * stats.binom.pmf(np.arange(31), 30, 0.1)
    often = expected > 5
    found, expected = (np.array([*x[often], np.sum(x[~often])]) for x in (found, expected))
    assert stats.chisquare(found, expected).pvalue > 1e-4
