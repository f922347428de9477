"""Calls of private ReSQue: exact divergences of small instances, tables, monotonicity, refusals."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import optimize

from dpsco_jax import privacy
from dpsco_jax.privacy import ORDERS, PrivacyLoss, pld, resque
from dpsco_jax.privacy.curves import subsampling
from dpsco_jax.privacy.pld import pairs
from dpsco_jax.privacy.resque import (
    ResqueCall,
    _profile,
    calibrate_beta,
    call_loss,
    calls_epsilon,
    calls_loss,
)
from dpsco_jax.privacy.resque._amplification import subsampled_rdp
from dpsco_jax.privacy.resque.calls import _law, _uses
from tests.support import resque as reference

ONCE = np.ones(1)


def at(order):
    return int(np.argmin(np.abs(ORDERS - order)))


def strongly_convex(num_queries, beta, ratio, users, count, replacement=False):
    """The levels of thesis, Algorithm 10."""
    k = max(1, math.ceil(math.log2(math.log2(num_queries))))
    return [
        (
            ResqueCall(
                num_queries >> (k - i), 2 ** ((k - i) / 2) * beta, ratio, users, replacement
            ),
            count,
        )
        for i in range(k)
    ]


# The loss of sampled random shifts.


@pytest.mark.parametrize(("shift", "rate"), [(0.1, 0.2), (1.0, 0.01), (0.5, 1.0)])
def test_a_fixed_shift_is_the_sampled_gaussian(shift, rate):
    law = _profile.sampled_shift(np.array([shift]), ONCE, rate, 1e-14)
    found = _profile.rdp(law)
    exact = subsampling.subsampled_gaussian_of_fraction(1 / shift, rate).rdp
    few = ORDERS < 6
    np.testing.assert_allclose(found[few], exact[few], rtol=1e-3)
    assert np.all(found[few] >= exact[few] * (1 - 1e-7))
    assert np.all(found <= exact * 1.002)
    composed = pld.epsilon([(_profile.pair_of(law), 30)], 1e-6)
    known = pld.epsilon([(pairs.gaussian_without_replacement(1 / shift, rate), 30)], 1e-6)
    assert known * (1 - 1e-4) <= composed <= known * 1.002


@pytest.mark.parametrize(
    ("queries", "users", "ratio", "beta"),
    [(4, 3, 2.0, 0.8), (4, 20, 32.0, 0.4), (4, 3, 32.0, 4.0), (8, 7, 4.0, 0.3)],
)
def test_a_phase_in_one_dimension_is_within_its_bounds(queries, users, ratio, beta):
    steps = queries // 2
    # Of two steps the second has no share: the first alone stands for the whole call.
    shares, rate = (np.arange(steps) / steps, steps / users) if steps > 2 else ([0.5], 1 / users)
    call = ResqueCall(queries, beta, ratio, users)
    # Rare losses that are counted as failures have no part in divergences.
    bounds = [_profile.rdp(_law(call, 1e-9)), call_loss(call, 1e-9, "triple").rdp]
    epsilon = calls_epsilon([(call, 1)], 1e-4)
    for others in (0.0, -1.0) if queries == 4 else (0.0,):
        laws = reference.phase(beta, rate, shares, 1 / ratio, others)
        for order in (2.0, 4.0):
            exact = max(reference.rdp(*pair, order) for pair in (laws, laws[::-1]))
            assert all(exact <= bound[at(order)] for bound in bounds)
        assert reference.hockey_stick(*laws, epsilon) <= 1e-4
    if queries == 4 and ratio > 16:  # the whole call, and the worst of its kind: not by much
        # The bound is for a position that is told: one in three counts, whose user is drawn thrice as often.
        told = reference.phase(beta, 3 / users, shares, 1 / ratio, -1.0)
        told = np.log1p(np.expm1(reference.rdp(*told, 2.0)) / 3)
        assert beta > 1 or reference.rdp(*laws, 2.0) < bounds[0][at(2.0)] <= 1.5 * told
        # Where losses are large it matters little who is told what.
        assert beta < 1 or reference.hockey_stick(*laws, 0.8 * epsilon) > 1e-4


@pytest.mark.parametrize("most", [0.0, 1e-12, 1e-8, 1e-3, 0.4])
def test_losses_that_are_cut_fail(most):
    """No hockey-stick divergence decreases, both distributions lose the same, and no more than is allowed."""
    law = _law(ResqueCall(256, 0.1, 4.0, 500), 1e-8)
    cut = _profile.without_tails(law, most)
    assert 0 <= cut.infinite - law.infinite <= most
    assert most < 1e-3 or cut.infinite - law.infinite >= 0.5 * most  # and uses what is allowed
    np.testing.assert_array_equal(cut.losses, law.losses)
    kept = cut.masses > 0
    assert np.all(cut.masses[kept] == law.masses[kept])
    for each in (cut, law):
        total = each.masses.sum() + each.infinite
        second = each.masses @ np.exp(-each.losses) + each.infinite
        assert [total, second] == pytest.approx([1.0, 1.0], abs=1e-9)
    for epsilon in np.linspace(-3, 3, 25):
        before, after = (
            each.infinite + each.masses @ np.maximum(-np.expm1(epsilon - each.losses), 0.0)
            for each in (law, cut)
        )
        assert after >= before * (1 - 1e-12)
    assert np.all(_profile.rdp(cut) <= _profile.rdp(law) * (1 + 1e-6))
    # Divergences of what is left, as two distributions again.
    first, ratio = cut.masses[kept] / cut.masses[kept].sum(), np.exp(cut.losses[kept])
    for order in ORDERS[[at(2.0), at(8.0)]]:
        exact = np.log(first @ ratio ** (order - 1)) / (order - 1)
        assert exact - 1e-12 <= _profile.rdp(cut)[at(order)] <= exact * (1 + 1e-3)


def test_divergences_prove_little_less_than_distributions():
    """What a ledger shows beside what was certified; without the cut of rare losses 1.97."""
    sizes = [(1024, 0.385), (2048, 0.272), (4096, 0.193), (8192, 0.136)]
    rare = [(ResqueCall(size, beta, 12.0, 100_000), 78) for size, beta in sizes]
    ratio = privacy.epsilon(calls_loss(rare, 2.5e-8), 1e-7) / calls_epsilon(rare, 1e-7)
    assert 1 <= ratio <= 1.25, ratio


# Calls.


CALL = ResqueCall(256, 0.05, 12.0, 5000)


def test_losses_grow_with_what_they_should_grow_with():
    base = call_loss(CALL, 1e-9)
    for changed in (
        dataclasses.replace(CALL, beta=0.06),
        dataclasses.replace(CALL, radius_ratio=8.0),
        dataclasses.replace(CALL, population=4000),
        dataclasses.replace(CALL, replacement=True),
    ):
        for constants in ("tight", "triple"):
            larger, loss = call_loss(changed, 1e-9, constants), call_loss(CALL, 1e-9, constants)
            shown = ORDERS < 100
            assert np.all(larger.rdp[shown] >= loss.rdp[shown])
    assert base.delta <= 1e-9
    assert np.all(np.diff(base.rdp) >= 0)
    assert np.all(np.diff((ORDERS - 1) * base.rdp) >= 0)


def test_tight_is_below_triple_is_below_paper():
    wide = ResqueCall(512, 1e-4, 1e7, 40_000, True)
    assert resque.violated_preconditions(wide, 1e-8) == []
    tight, triple, paper = (call_loss(wide, 1e-8, c).rdp for c in ("tight", "triple", "paper"))
    shown = ORDERS < 200
    assert np.all(tight[shown] <= triple[shown])
    assert np.all(triple[shown] <= paper[shown])
    cost = resque.conditional_cost(wide, 1e-8)
    assert cost <= 1500 * wide.beta**2
    usual = call_loss(CALL, 1e-9), call_loss(CALL, 1e-9, "triple")
    assert np.all(3 * usual[0].rdp[shown] < usual[1].rdp[shown])


def test_calls_compose_and_share_the_failure():
    other = dataclasses.replace(CALL, num_queries=128, beta=0.07)
    total = calls_loss([(CALL, 3), (other, 2)], 5e-8)
    apart = [call_loss(c, 1e-8) for c in (CALL, other)]
    np.testing.assert_allclose(total.rdp, 3 * apart[0].rdp + 2 * apart[1].rdp, rtol=1e-12)
    assert 0 < total.delta <= 5e-8
    assert np.all(calls_loss([], 1e-8).rdp == 0)
    many = [(CALL, 30), (other, 20)]
    assert calls_epsilon(many, 1e-6) <= privacy.epsilon(calls_loss(many, 2.5e-7), 1e-6)


@pytest.mark.parametrize("constants", ["tight", "triple"])
def test_calibration_ends_within_the_budget(constants):
    def calls(beta):
        return [(ResqueCall(64, beta, 12.0, 2000), 20)]

    def spent(beta):
        if constants == "tight":
            return calls_epsilon(calls(beta), 1e-5)
        return float(privacy.epsilon(calls_loss(calls(beta), 2.5e-6, constants), 1e-5))

    beta = calibrate_beta(calls, 0.7, 1e-5, constants)
    assert spent(beta) <= 0.7 < spent(1.002 * beta)


# Largest β of 3 K calls of Algorithm 10 by the constants of the thesis' proof; d, κ, n, ε, then β with
# replacement, without, and without at T = n/5, as first computed on a coarse grid of orders.
PUBLISHED = [
    (5, 5, 10_000, 1.0, 0.028, 0.080, 0.047),
    (20, 10, 30_000, 4.0, 0.044, 0.105, 0.072),
    (100, 5, 100_000, 1.0, 0.020, 0.056, 0.022),
]


def published_beta(users, queries, calls, epsilon, replacement, delta=1e-6):
    levels = strongly_convex(queries, 1.0, 12.0, users, calls, replacement)
    total = calls * len(levels)

    def spent(log_beta):
        rdp = np.zeros(len(ORDERS))
        for call, count in levels:
            share = delta / (4 * 3 * total * int(math.log2(call.num_queries)))
            share = share / 2 if replacement else share
            rate, uses, _ = _uses(call, delta / (8 * total))
            scaled = dataclasses.replace(call, beta=call.beta * math.exp(log_beta))
            rdp += count * subsampled_rdp(resque.conditional_cost(scaled, share), rate, uses)
        return float(privacy.epsilon(PrivacyLoss(rdp, np.asarray(delta / 4)), delta))

    return math.exp(optimize.brentq(lambda x: spent(x) - epsilon, -6.0, -1.5, xtol=1e-3))


@pytest.mark.parametrize(("dim", "condition", "users", "epsilon", *"rwf"), PUBLISHED)
def test_published_noise_levels(dim, condition, users, epsilon, r, w, f):
    calls = math.ceil(3 * (condition * math.sqrt(dim) * 12) ** (2 / 3))
    few, many = (1 << int(math.log2(users * share)) for share in (1 / 20, 1 / 5))
    np.testing.assert_allclose(published_beta(users, many, calls, epsilon, False), f, rtol=0.06)
    assert w < published_beta(users, few, calls, epsilon, False) < 1.15 * w
    assert r < published_beta(users, few, calls, epsilon, True) < 1.25 * r


def test_the_tight_constants_allow_about_three_times_less_noise():
    found = calibrate_beta(lambda b: strongly_convex(1024, b, 12.0, 10_000, 79), 1.0, 1e-6)
    np.testing.assert_allclose(found, 0.1385, rtol=0.01)


# Refusals.


@pytest.mark.parametrize("num_queries", [100, 8192])
def test_queries_are_a_power_of_two_up_to_the_users(num_queries):
    with pytest.raises(ValueError, match="num_queries"):
        dataclasses.replace(CALL, num_queries=num_queries)


def test_what_the_papers_constants_do_not_cover_is_refused():
    with pytest.raises(ValueError, match=r"radius_ratio.*1/3.*1/60.*with replacement"):
        call_loss(dataclasses.replace(CALL, beta=0.5), 1e-9, "paper")
    with pytest.raises(ValueError, match="constants"):
        calibrate_beta(lambda b: [(CALL, 1)], 1.0, 1e-6, "paper")
