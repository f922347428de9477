"""Several units changed at once, each sampled by itself: the pair is as written down, and not beaten."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpsco_jax.privacy import pld
from dpsco_jax.privacy.pld import binomial_pairs, mixture_pairs, pairs
from tests.support import independent_account as account

CASES = [(1.0, 0.1, 2), (0.7, 0.3, 3), (2.0, 0.05, 5)]
GAMMAS = np.exp(np.linspace(-2.0, 2.0, 9))


def _profile(sigma, q, k, removed, gammas):
    """H at each γ, by half lines in the two directions of the loss, which are the best tests."""
    counts = np.arange(k + 1)
    chances = stats.binom(k, q).pmf(counts)
    places = counts * (1.0 if removed else 0.5)
    z = np.linspace(-10 * sigma - k, 10 * sigma + k, 20001)
    p = stats.norm.sf(z[:, None], places, sigma) @ chances
    other = stats.norm.sf(z, 0, sigma)
    if not removed:
        other = stats.norm.sf(z[:, None], -places, sigma) @ chances
    forward = [max(0.0, 1 - g, (p - g * other).max()) for g in gammas]
    # From below: {z ≤ t} is what the reverse is told by.
    back = [max(0.0, 1 - g, ((1 - other) - g * (1 - p)).max()) for g in gammas]
    return np.array(forward), np.array(back)


@pytest.mark.parametrize("removed", [False, True])
def test_the_pairs_have_the_profiles_of_their_definitions(removed):
    make = binomial_pairs.binomial_replaced_gaussian
    if removed:
        make = binomial_pairs.binomial_removed_gaussian
    for sigma, q, k in [*CASES, (0.3, 0.9, 4), (3.0, 0.5, 300)]:
        pair = make(sigma, q, k)
        edges = np.log(GAMMAS)
        for way, expected in zip(
            (pair, pairs.reverse(pair)), _profile(sigma, q, k, removed, GAMMAS), strict=True
        ):
            masses = way.cells(edges)
            assert np.sum(masses, axis=1) == pytest.approx(1.0, abs=1e-12)
            above = np.cumsum(np.array(masses)[:, ::-1], axis=1)[:, ::-1][:, 1:]
            found = above[0] - GAMMAS * above[1]
            np.testing.assert_allclose(found, expected, atol=2e-5)
            low, high = way.support(1e-9)
            outside = way.cells(np.array([low, high]))[0]
            assert outside[0] <= 1.01e-9
            assert outside[2] <= 1.01e-9


def test_no_updates_of_k_units_beat_the_pair():
    """In the plane: vectors of at most unit length for the units of both neighbours, and extreme ones."""
    rng, nearest = np.random.default_rng(0), 0.0
    for sigma, q, k in CASES[:2]:
        for removed in (False, True):
            bounds = np.maximum(*_profile(sigma, q, k, removed, GAMMAS))
            s = 2 * sigma if not removed else sigma  # over the norm of one update
            axis = np.linspace(-6 * s - k, 6 * s + k, 200)
            x, y = np.meshgrid(axis, axis)
            scale = (axis[1] - axis[0]) ** 2 / (2 * math.pi * s**2)
            for trial in range(16):
                angles = rng.uniform(0, 2 * math.pi, (2, k)) * (trial % 4 > 1)
                angles[1] += math.pi * (trial % 2 == 0)
                lengths = rng.uniform(0.5, 1.0, (2, k)) ** (trial % 3)
                ends = lengths[..., None] * np.stack([np.cos(angles), np.sin(angles)], -1)
                if removed:
                    ends[1] = 0.0
                laws = [np.zeros_like(x), np.zeros_like(x)]
                for coins in itertools.product((0, 1), repeat=k):
                    chance = q ** sum(coins) * (1 - q) ** (k - sum(coins))
                    for law, place in zip(laws, np.array(coins) @ ends, strict=True):
                        far = (x - place[0]) ** 2 + (y - place[1]) ** 2
                        law += scale * chance * np.exp(-far / (2 * s**2))
                for p, other in (laws, laws[::-1]):
                    found = np.array([np.maximum(p - g * other, 0).sum() for g in GAMMAS])
                    assert np.all(found <= 1.002 * bounds + 3e-5)
                    nearest = max(nearest, (found / bounds)[5])
    assert nearest > 0.99


def test_what_several_steps_cost_is_what_is_counted_by_other_means():
    for sigma, q, k, steps in ((1.0, 0.1, 3, 10), (2.0, 0.05, 5, 20)):
        counts = np.arange(k + 1)
        chances = tuple(stats.binom(k, q).pmf(counts))
        nothing = account.Law((1.0,), (0.0,))
        ahead, behind = (account.Law(chances, tuple(z * counts / sigma / 2)) for z in (1.0, -1.0))
        gone = account.Law(chances, tuple(counts / sigma))
        replaced = binomial_pairs.binomial_replaced_gaussian(sigma, q, k)
        removed = binomial_pairs.binomial_removed_gaussian(sigma, q, k)
        for pair, laws in (
            (replaced, (ahead, behind)),
            (removed, (gone, nothing)),
            (pairs.reverse(removed), (nothing, gone)),
        ):
            least = account._epsilon((laws,) * steps, 1e-3)
            assert pld.epsilon([(pair, steps)], 1e-3, 2**15) == pytest.approx(least, rel=2e-3)


def test_of_one_unit_they_are_the_pairs_of_one_unit():
    edges = np.linspace(-3, 3, 61)
    for sigma, q in ((0.4, 0.05), (2.0, 0.5), (1.0, 1.0)):
        for made, known in (
            (
                binomial_pairs.binomial_replaced_gaussian(sigma, q, 1),
                mixture_pairs.poisson_replaced_gaussian(sigma, q),
            ),
            (
                binomial_pairs.binomial_removed_gaussian(sigma, q, 1),
                pairs.poisson_gaussian(sigma, q),
            ),
        ):
            np.testing.assert_allclose(made.cells(edges), known.cells(edges), rtol=1e-9, atol=1e-15)
