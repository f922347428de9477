"""Several units changed at once in samples of a fixed size: the pair is not beaten, and almost reached."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpsco_jax.privacy import pld
from dpsco_jax.privacy.pld import hypergeometric_pairs, pairs
from tests.support import independent_account as account

GAMMAS = np.exp(np.linspace(0.0, 3.0, 7))
make = hypergeometric_pairs.hypergeometric_replaced_gaussian


def _found(pair, gammas=GAMMAS):
    above = np.cumsum(np.array(pair.cells(np.log(gammas)))[:, ::-1], axis=1)[:, ::-1][:, 1:]
    return above[0] - gammas * above[1]


def _greatest(sigma, population, batch, k, gamma):
    """H by trying places of the test, and of the centres for each count, on a grid."""
    best = -math.inf
    chances = stats.hypergeom(population, k, batch).pmf(np.arange(k + 1))
    for x in np.linspace(-8 - k / sigma, 2, 401):
        total = (1 - gamma) * chances[0] * stats.norm.cdf(x)
        for j, chance in enumerate(chances[1:], 1):
            y = x + np.linspace(0, j / sigma, 151)
            total += chance * (stats.norm.cdf(y) - gamma * stats.norm.cdf(y - j / sigma)).max()
        best = max(best, total)
    return best


def test_the_pair_has_the_profile_of_its_definition_and_is_its_own_reverse():
    for sizes in ((1.0, 200, 20, 2), (0.7, 10, 5, 3), (2.0, 12, 10, 6)):
        pair = make(*sizes)
        expected = [_greatest(*sizes, gamma) for gamma in GAMMAS[::2]]
        np.testing.assert_allclose(_found(pair, GAMMAS[::2]), expected, rtol=2e-3, atol=1e-5)
        assert np.all(_found(pair, GAMMAS[::2]) >= np.array(expected) - 1e-12)
    edges = np.linspace(-4, 4, 33)
    for sizes in ((1.0, 200, 20, 2), (0.7, 10, 5, 3), (3.0, 10**6, 10**4, 300), (0.4, 30, 20, 15)):
        pair = make(*sizes)
        masses = pair.cells(edges)
        assert np.sum(masses, axis=1) == pytest.approx(1.0, abs=1e-12)
        assert np.min(masses) >= -1e-15
        # What lies at zero belongs to the cell below it.
        turned, kept = (
            np.add.reduceat(m, [*range(17), *range(18, 34)], axis=1)
            for m in (pairs.reverse(pair).cells(edges), masses)
        )
        np.testing.assert_allclose(turned, kept, rtol=1e-9, atol=1e-15)
        # A loss of x has e^x times the mass under P, or a cell is not where it is said to be.
        p, q = masses[0][1:-1], masses[1][1:-1]
        assert np.all(np.exp(edges[:-1]) * q <= p + 1e-14)
        assert np.all(p <= np.exp(edges[1:]) * q + 1e-14)
        low, high = pair.support(1e-9)
        outside = pair.cells(np.array([low, 0.0, high]))[0]
        assert outside[0] <= 1e-9
        assert outside[-1] <= 1e-9


def test_of_one_unit_it_is_the_pair_of_one_unit_and_of_everybody_the_gaussian():
    edges = np.linspace(-3, 3, 61)
    for sigma, population, batch in ((0.4, 100, 5), (2.0, 10, 5), (1.0, 7, 6), (5.0, 10**9, 10**6)):
        known = pairs.gaussian_without_replacement(sigma, batch / population)
        found = make(sigma, population, batch, 1).cells(edges)
        np.testing.assert_allclose(found, known.cells(edges), rtol=1e-9, atol=1e-15)
    whole = make(2.0, 7, 7, 4).cells(edges)
    np.testing.assert_allclose(whole, pairs.gaussian(0.5).cells(edges), rtol=1e-12)
    # All but one of those drawn: between k - 1 and k of k units.
    nearly = make(2.0, 7, 6, 4)
    for gamma in GAMMAS:
        few, many = (_found(pairs.gaussian(2.0 / j), np.array([gamma]))[0] for j in (3, 4))
        assert few < _found(nearly, np.array([gamma]))[0] < many


def _laws(axis, units, batch, s):
    """Density on a plane of the noised sum of a batch, from all the batches that there are."""
    x, y = np.meshgrid(axis, axis)
    law, count = np.zeros_like(x), math.comb(len(units), batch)
    for drawn in itertools.combinations(range(len(units)), batch):
        place = units[list(drawn)].sum(axis=0)
        law += np.exp(-((x - place[0]) ** 2 + (y - place[1]) ** 2) / (2 * s**2)) / count
    return law * (axis[1] - axis[0]) ** 2 / (2 * math.pi * s**2)


def test_no_two_data_sets_are_told_apart_better():
    """All batches of three of six units of the plane, of which two or three change; noise over the norm."""
    rng, nearest = np.random.default_rng(0), 0.0
    for s, k in ((2.0, 2), (1.0, 3)):
        bounds = _found(make(s / 2, 6, 3, k))
        axis = np.linspace(-6 * s - 3, 6 * s + 3, 160)
        for trial in range(20):
            angles = rng.uniform(0, 2 * math.pi, (2, 6)) * (trial % 4 > 1)
            lengths = rng.uniform(0.3, 1.0, (2, 6)) ** (trial % 3)
            if trial % 2 == 0:
                # Units that turn round; the others with the second data set, at some of their length.
                angles[1, :k] = angles[0, :k] + math.pi
                angles[:, k:] += math.pi
                lengths[:, k:] *= rng.uniform() if trial else 1.0
            ends = lengths[..., None] * np.stack([np.cos(angles), np.sin(angles)], -1)
            ends[1, k:] = ends[0, k:]
            laws = [_laws(axis, units, 3, s) for units in ends]
            for p, other in (laws, laws[::-1]):
                found = np.array([np.maximum(p - g * other, 0).sum() for g in GAMMAS])
                assert np.all(found <= 1.002 * bounds + 3e-5)
                nearest = max(nearest, (found / bounds)[3])
    assert nearest > 0.97


def test_no_fixed_place_of_the_others_is_the_worst_at_every_epsilon():
    """With others that point to the second data set total variation is less than with empty ones.

    So the pair that dominates for one unit, Σ p_j N(j) against N(0), is none for two: it is beaten at γ = 1.
    """
    sigma, counts = 1.0, np.arange(3)
    chances = stats.hypergeom(20, 2, 8).pmf(counts)
    z = np.linspace(-12, 12, 24001)

    def told(gamma, turned):
        p, other = (
            stats.norm.sf(z[:, None], places, sigma) @ chances
            for places in (counts * (1 + turned) / 2, counts * (turned - 1) / 2)
        )
        return (p - gamma * other).max()

    bound = _found(make(sigma, 20, 8, 2), np.array([1.0, math.e**2]))
    assert told(1.0, 0.0) > told(1.0, 1.0) + 1e-3
    assert told(math.e**2, 1.0) > 2 * told(math.e**2, 0.0)
    assert told(1.0, 0.0) == pytest.approx(bound[0], abs=1e-6)
    assert told(math.e**2, 1.0) == pytest.approx(bound[1], rel=1e-3)


def test_several_steps_cost_what_data_sets_give_away_and_little_more():
    for sigma, population, batch, k, steps in ((1.0, 100, 10, 3, 10), (2.0, 200, 10, 5, 20)):
        counts = np.arange(k + 1)
        chances = tuple(stats.hypergeom(population, k, batch).pmf(counts))
        # The others are empty, or point to where the second data set's units do.
        least = max(
            account._epsilon((tuple(laws[::way]),) * steps, 1e-3)
            for turned in (0.0, 0.5, 1.0)
            for laws in [
                [
                    account.Law(chances, tuple((turned + end) * counts / sigma / 2))
                    for end in (1.0, -1.0)
                ]
            ]
            for way in (1, -1)
        )
        said = pld.epsilon([(make(sigma, population, batch, k), steps)], 1e-3, 2**15)
        assert 0.998 * least <= said <= 1.2 * least
