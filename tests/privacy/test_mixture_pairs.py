"""Dominating pairs of mixtures against searches over places, tests and orders of two steps."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from scipy import stats

from dpsco_jax import privacy
from dpsco_jax.privacy import _kinds, certificate, events, pld
from dpsco_jax.privacy.certificates import certificate_of
from dpsco_jax.privacy.pld import mixture_pairs


def _profile(sigma, q, cap, gammas):
    """H at each γ of the pair in one orientation: half lines are the best tests."""
    z = np.linspace(-9 * sigma - cap, 9 * sigma + 2 * cap, 4001)
    tails = [stats.norm.sf(z, place, sigma) for place in (0.0, cap / 2, cap / 2 - 1)]
    p, other = ((1 - q) * tails[0] + q * tail for tail in tails[1:])
    return np.array([max((p - gamma * other).max(), 1 - gamma, 0.0) for gamma in gammas])


def _bound(sigma, q, cap, gammas):
    """H at each γ of the pair that is its own reverse."""
    above = _profile(sigma, q, cap, np.maximum(gammas, 1 / gammas))
    return np.where(gammas >= 1, above, 1 - gammas + gammas * above)


def test_no_choice_of_orientations_beats_two_steps():
    """The second step may be turned according to what the first released; no more is left to choose."""
    sigma, q, cap = 0.5, 0.3, 2.0
    z = np.linspace(-6.0, 7.0, 1201)
    laws = [
        (1 - q) * stats.norm.pdf(z, 0.0, sigma) + q * stats.norm.pdf(z, place, sigma)
        for place in (cap / 2, cap / 2 - 1)
    ]
    logs = np.linspace(-40, 40, 1601)
    turned, straight = (f(sigma, q, cap, np.exp(logs)) for f in (_bound, _profile))
    for delta, gain in ((1e-2, 1.02), (1e-4, 1.0005)):
        pair = mixture_pairs.user_sampled_gaussian(sigma, q, cap)
        epsilon = pld.epsilon([(pair, 2)], delta)
        found = {}
        for name, second in (("turned", turned), ("straight", straight)):
            found[name] = max(
                np.trapezoid(p * np.interp(epsilon + np.log(other / p), logs, second), z)
                for p, other in (laws, laws[::-1])
            )
        assert gain * found["straight"] < found["turned"] <= 1.0005 * delta
        assert found["turned"] > 0.97 * delta


def test_a_unit_taken_away_moves_half_as_far_under_twice_the_cap():
    """At most ρ, from a user's sum of at most cap·ρ; either end may be the farther one."""
    sigma, q, cap = 0.8, 0.1, 1.5  # over ρ
    special = NeighboringRelation.REPLACE_SPECIAL
    scheme = privacy.PoissonUsers(q, cap)
    wider = privacy.user_sampled_gaussian(sigma, q, 2 * cap).rdp
    np.testing.assert_array_equal(scheme.gaussian_loss(sigma, special).rdp, wider)
    assert np.all(wider > privacy.Poisson(q).gaussian_loss(sigma, special).rdp)
    event = events.repeated(scheme.gaussian_event(sigma), 3)
    found = certificate(event, 1e-4, special).epsilon
    release = scheme.gaussian_release(sigma, special)
    assert found == certificate_of([_kinds.repeated(release, 3)], 1e-4, special).epsilon
    pair = mixture_pairs.user_sampled_gaussian(sigma, q, 2 * cap)
    assert found == pytest.approx(pld.epsilon([(pair, 3)], 1e-4), rel=1e-9)
    # Places over ρ on a line.
    gammas = np.exp(np.linspace(-3, 3, 13))
    bound = _bound(sigma, q, 2 * cap, gammas)
    z = np.linspace(-8, 9, 3401)
    nearest = 0.0
    for a, gap in itertools.product(np.linspace(-cap, cap, 13), (-1.0, -0.5, 0.5, 1.0)):
        if abs(a + gap) > cap:
            continue
        tails = [stats.norm.sf(z, place, sigma) for place in (0.0, a, a + gap)]
        p, other = ((1 - q) * tails[0] + q * tail for tail in tails[1:])
        for gamma, most in zip(gammas, bound, strict=True):
            gain = p - gamma * other
            best = max(gain.max(), (1 - gamma - gain).max(), 0.0)
            assert best <= most * (1 + 1e-4)  # both are maxima over grids
            nearest = max(nearest, best / most if gamma > 1.5 else 0.0)
    assert nearest > 0.999


def _positions(cap, rng):
    """Places a, b in the plane, at most cap from the origin and 2 apart, over 2; extreme ones among them."""
    found = []
    for radius, gap, turn in itertools.product((cap, 0.7 * cap), (2.0, 1.4), np.linspace(0, 1, 7)):
        start = np.array([radius, 0.0])
        angle = math.pi * turn
        end = start + gap * np.array([-math.cos(angle), math.sin(angle)])
        end *= min(1.0, cap / max(np.linalg.norm(end), 1e-9))
        if np.linalg.norm(end - start) <= 2 + 1e-12:
            found.append((start / 2, end / 2))
    for _ in range(6):
        ends = rng.normal(size=(2, 2))
        ends *= cap * rng.uniform(0.3, 1, (2, 1)) / np.linalg.norm(ends, axis=1, keepdims=True)
        if np.linalg.norm(ends[0] - ends[1]) <= 2:
            found.append((ends[0] / 2, ends[1] / 2))
    return found


@pytest.mark.parametrize(("sigma", "q", "cap"), [(0.7, 0.1, 1.0), (0.5, 0.4, 1.3), (0.8, 0.1, 3.0)])
def test_no_two_places_beat_the_dominating_pair(sigma, q, cap):
    """In the plane, which three places span, at γ on both sides of one, in both orders."""
    gammas = np.exp(np.linspace(-2.5, 2.5, 11))
    bound = _bound(sigma, q, cap, gammas)
    axis = np.linspace(-6 * sigma - cap, 6 * sigma + cap, 260)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2
    base = (1 - q) * np.exp(-(x**2 + y**2) / (2 * sigma**2))
    scale = cell / (2 * math.pi * sigma**2)
    nearest, crossed = 0.0, False
    for a, b in _positions(cap, np.random.default_rng(0)):
        laws = [
            scale * (base + q * np.exp(-((x - e[0]) ** 2 + (y - e[1]) ** 2) / (2 * sigma**2)))
            for e in (a, b)
        ]
        for p, other in (laws, laws[::-1]):
            found = np.array([np.maximum(p - gamma * other, 0).sum() for gamma in gammas])
            # The sum over cells is not the integral.
            assert np.all(found <= 1.002 * bound + 3e-5)
            nearest = max(nearest, (found / bound)[6])
            one_way = _profile(sigma, q, cap, gammas)
            crossed |= bool(np.any(found > 1.003 * one_way + 1e-4))
    assert nearest > 0.995
    # One orientation alone is no bound, unless units are sampled by themselves.
    assert crossed == (cap > 1)


def test_the_pair_has_the_profile_of_its_definition():
    for sigma, q, cap in [(0.7, 0.1, 1.0), (0.5, 0.4, 1.3), (0.8, 0.1, 3.0), (2.0, 0.9, 1.0)]:
        edges = np.linspace(-4, 4, 81)
        p, other = mixture_pairs.user_sampled_gaussian(sigma, q, cap).cells(edges)
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
        assert other.sum() == pytest.approx(1.0, abs=1e-12)
        above_p, above_q = (np.cumsum(m[::-1])[::-1][1:] for m in (p, other))
        found = above_p - np.exp(edges) * above_q
        np.testing.assert_allclose(
            found, _bound(sigma, q, cap, np.exp(edges)), atol=2e-6 * np.exp(4.0)
        )
