"""Private ReSQue: printed tables, exact divergences of small instances, monotonicity, refusals."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from dpsco_jax import privacy
from dpsco_jax.privacy import ORDERS, PrivacyLoss, _resque_profile, pairs, pld, resque
from dpsco_jax.privacy._resque_amplification import LARGEST_ORDER, subsampled_rdp
from dpsco_jax.privacy._resque_drift import drift_factor, log_drift_norms, log_tail, shift_law
from dpsco_jax.privacy._resque_moments import log_difference_norm, log_weight_norm, normal_norm
from dpsco_jax.privacy.resque import (
    ResqueCall,
    calibrate_beta,
    call_loss,
    calls_epsilon,
    calls_loss,
)
from tests.support import resque as reference

ONCE = np.ones(1)
RATIOS = (4, 5, 6, 8, 10, 12, 16, 20, 32)


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


# Moments of weights.


def test_norms_of_normal_numbers_and_weights():
    for p in (1.0, 2.0, 3.0, 8.0):
        moment = stats.norm.expect(lambda x, p=p: abs(x) ** p)
        np.testing.assert_allclose(normal_norm(p), moment ** (1 / p), rtol=1e-6)
    for a in (0.25, 0.5, 1.0):
        np.testing.assert_allclose(np.exp(2 * log_weight_norm(2.0, a)), np.exp(a * a), rtol=1e-12)


def difference_ratio(p, v, other):
    """‖w(v) - w(v')‖_p / |v - v'| in the plane, by Gauss-Hermite quadrature."""
    x, w = special.roots_hermitenorm(120)
    grid = np.stack(np.meshgrid(x, x), axis=-1)
    mass = np.outer(w, w) / w.sum() ** 2
    weight = [np.exp(grid @ u - u @ u / 2) for u in (v, other)]
    return np.sum(mass * np.abs(weight[0] - weight[1]) ** p) ** (1 / p) / np.linalg.norm(v - other)


@pytest.mark.parametrize(
    ("p", "a", "truth", "bound"),
    [(2, 0.1, 1.006, 1.106), (8, 0.125, 2.13, 2.81), (32, 0.03125, 3.88, 4.50)],
)
def test_norms_of_differences_of_weights(p, a, truth, bound):
    angles = np.linspace(0, 2 * np.pi, 13)
    points = [s * a * np.array([np.cos(t), np.sin(t)]) for t in angles for s in (0.98, 1.0)]
    worst = max(
        difference_ratio(p, points[1], u) for u in points if np.linalg.norm(u - points[1]) > 1e-9
    )
    found = math.exp(log_difference_norm(p, a))
    assert 0.99 * truth <= worst <= found
    np.testing.assert_allclose(found, bound, rtol=2e-3)
    assert found <= 24 * p  # the printed constant


def test_differences_of_weights_stay_below_the_printed_constant_where_that_holds():
    for p in (2, 3, 4, 8, 16, 32):
        assert log_difference_norm(p, 1 / p) <= math.log(24 * p)


# Drift.


@pytest.mark.parametrize(
    ("failure", "printed"),
    [
        (1e-8, (5.15, 3.69, 2.96, 2.25, 1.91, 1.72, 1.50, 1.38, 1.22)),
        (1e-10, (6.29, 4.32, 3.37, 2.48, 2.07, 1.83, 1.57, 1.44, 1.25)),
    ],
)
def test_table_of_drift_factors(failure, printed):
    found = [drift_factor(2048, float(ratio), failure) for ratio in RATIOS]
    np.testing.assert_allclose(found, printed, rtol=0.01)
    approximate = [math.exp(math.sqrt(2 * math.log(1 / failure)) / ratio) for ratio in RATIOS]
    np.testing.assert_allclose(found, approximate, rtol=0.2)
    costs = [2 * f * f for f in found]
    if failure == 1e-10:
        np.testing.assert_allclose(costs, (79, 37, 23, 12.3, 8.5, 6.7, 4.9, 4.1, 3.1), rtol=0.02)


def test_drift_grows_with_the_ball_and_the_confidence_and_hardly_depends_on_the_length():
    short, long = (drift_factor(size, 8.0, 1e-6) for size in (64, 4096))
    np.testing.assert_allclose(short, long, rtol=0.02)
    assert short < drift_factor(64, 8.0, 1e-9) < drift_factor(64, 6.0, 1e-9)


def test_a_lone_weight_is_within_the_bounds_on_drift():
    # One step, in which the records differ, at distance r from the center: the drift is the weight.
    for ratio in (2.0, 8.0, 32.0):
        halves = np.arange(1, 30)
        exact = log_weight_norm(2 * halves, 1 / ratio)
        assert np.all(log_drift_norms(2, ratio)[:29] >= exact)
        drifts = np.exp(np.linspace(0.1, 6.0, 20) / ratio)
        tail = stats.norm.logsf(ratio * np.log(drifts) + 0.5 / ratio)
        bound = log_tail(2, ratio, drifts)
        assert np.all(bound >= tail)


def test_law_of_shifts_dominates_random_positions_and_weights():
    rng = np.random.default_rng(0)
    queries, ratio = 64, 4.0
    sizes = [queries >> i for i in range(1, 7)]
    share = np.concatenate([np.arange(1, size + 1) / size for size in sizes])
    for uses in (1, 2, 3):
        values, chances = shift_law(queries, ratio, uses, 1e-6)
        np.testing.assert_allclose(chances.sum(), 1.0, rtol=1e-12)
        drawn = [rng.choice(len(share), uses, replace=False) for _ in range(4000)]
        weight = np.exp(rng.normal(size=(4000, uses)) / ratio - 0.5 / ratio**2)
        shifts = np.sum(share[np.array(drawn)] * weight, axis=1)
        above = np.maximum(1 - np.cumsum(chances), 0.0)
        observed = np.array([np.mean(shifts > y) for y in values])
        assert np.all(observed <= above + 4 * np.sqrt(above * (1 - above) / 4000) + 1e-3)
        assert chances @ values <= 1.9 * np.mean(shifts)


# Amplification: the ternary moments.


@pytest.mark.parametrize(
    ("cost", "order", "rate", "truth", "ratio", "printed_ratio"),
    [
        (0.1, 8, 0.01, 9.26e-5, 1.13, 11.2),
        (0.03, 32, 0.01, 1.003e-4, 1.14, 12.4),
        (1 / 3, 8, 0.01, 4.37e-4, 1.31, 7.9),
        (0.1, 4, 1 / 41, 2.739e-4, 1.11, 11.3),
    ],
)
def test_ternary_bound_against_equilateral_gaussians(
    cost, order, rate, truth, ratio, printed_ratio
):
    side = math.sqrt(2 * cost)
    points = side * np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])
    exact = reference.ternary_divergence(points, rate, order)
    np.testing.assert_allclose(exact, truth, rtol=3e-3)
    below, above = ORDERS[order >= ORDERS].max(), ORDERS[order <= ORDERS].min()
    bounds = subsampled_rdp(cost, rate, ONCE)
    found = np.interp(order, [below, above], [bounds[at(below)], bounds[at(above)]])
    assert exact <= found
    np.testing.assert_allclose(found / exact, ratio, rtol=0.02)
    np.testing.assert_allclose(13 * rate**2 * order * cost / exact, printed_ratio, rtol=0.01)


@pytest.mark.parametrize(
    "corners", [(0.0, 1.0, 1.0), (0.0, 0.5, 1.0), (0.0, 1.0, 0.5), (1.0, 0.0, 0.5)]
)
def test_ternary_bound_against_gaussians_on_a_line(corners):
    for cost, order in ((0.03, 3.0), (0.1, 16.0)):
        points = [(math.sqrt(2 * cost) * x, 0.0) for x in corners]
        exact = reference.ternary_divergence(points, 0.01, order, span=12.0, step=0.08)
        bounds = subsampled_rdp(cost, 0.01, ONCE)
        assert exact <= bounds[order <= ORDERS][0]


def test_ternary_bound_is_monotone():
    base = subsampled_rdp(0.05, 0.02, ONCE)
    finite = np.isfinite(base)
    assert np.all(np.diff(base[finite]) >= -1e-12 * base[finite][1:])
    assert np.all(np.isinf(base[ORDERS > LARGEST_ORDER]))
    assert np.all(subsampled_rdp(0.05, 0.03, ONCE)[finite] > base[finite])
    assert np.all(subsampled_rdp(0.06, 0.02, ONCE)[finite] > base[finite])
    assert np.all(subsampled_rdp(0.05, 0.02, np.array([0.9, 0.1]))[finite] > base[finite])
    always = subsampled_rdp(0.05, 1.0, ONCE)
    assert np.all(always >= ORDERS * 0.05)
    assert np.all(subsampled_rdp(0.05, 0.0, ONCE) == 0.0)
    assert subsampled_rdp(0.05, 1e-9, ONCE)[at(4)] < 1e-15


def test_binomial_tails():
    for b, printed in zip(range(1, 5), (1.4e-4, 7.6e-7, 3.2e-9, 1.1e-11), strict=True):
        np.testing.assert_allclose(stats.binom.sf(b, 1000, 1 / 60_000), printed, rtol=0.05)
        rate, uses, more = resque._uses(ResqueCall(1024, 0.1, 12.0, 61_380, True), 1.1 * printed)
        assert len(uses) == b
        assert more <= 1.1 * printed
        np.testing.assert_allclose(uses.sum(), 1.0, rtol=1e-12)
        np.testing.assert_allclose(rate, -np.expm1(-1 / 60), rtol=0.01)


# The loss of sampled random shifts.


@pytest.mark.parametrize(("shift", "rate"), [(0.1, 0.2), (1.0, 0.01), (0.5, 1.0)])
def test_a_fixed_shift_is_the_sampled_gaussian(shift, rate):
    law = _resque_profile.sampled_shift(np.array([shift]), ONCE, rate, 1e-14)
    found = _resque_profile.rdp(law)
    exact = privacy.subsampled_gaussian_without_replacement(1 / shift, 1.0, rate).rdp
    few = ORDERS < 6
    np.testing.assert_allclose(found[few], exact[few], rtol=1e-3)
    assert np.all(found[few] >= exact[few] * (1 - 1e-7))
    assert np.all(found <= exact * 1.002)
    composed = pld.epsilon([(_resque_profile.pair_of(law), 30)], 1e-6)
    known = pld.epsilon([(pairs.gaussian_without_replacement(1 / shift, rate), 30)], 1e-6)
    assert known * (1 - 1e-4) <= composed <= known * 1.002


@pytest.mark.parametrize(
    ("queries", "users", "ratio", "beta"), [(2, 2, 2.0, 0.4), (2, 20, 32.0, 0.2), (8, 7, 4.0, 0.3)]
)
def test_a_phase_in_one_dimension_is_within_its_bounds(queries, users, ratio, beta):
    steps = queries // 2
    shares = np.arange(1, steps + 1) / steps
    call = ResqueCall(queries, beta, ratio, users)
    losses = [call_loss(call, 1e-9, constants) for constants in ("tight", "triple")]
    epsilon = calls_epsilon([(call, 1)], 1e-4)
    for others in (0.0, -1.0) if queries == 2 else (0.0,):
        laws = reference.phase(beta, steps / users, shares, 1 / ratio, others)
        for order in (2.0, 4.0):
            exact = max(reference.rdp(*pair, order) for pair in (laws, laws[::-1]))
            assert all(exact <= loss.rdp[at(order)] for loss in losses)
        assert reference.hockey_stick(*laws, epsilon) <= 1e-4
    if queries == 2 and ratio > 16:  # the whole call, and the worst of its kind: not by much
        assert losses[0].rdp[at(2.0)] <= 1.5 * reference.rdp(*laws, 2.0)
        assert reference.hockey_stick(*laws, 0.8 * epsilon) > 1e-4


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
            rate, uses, _ = resque._uses(call, delta / (8 * total))
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
    np.testing.assert_allclose(found, 0.1284, rtol=0.01)


# Refusals.


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"num_queries": 100}, "num_queries"),
        ({"num_queries": 1}, "num_queries"),
        ({"num_queries": 8192}, "num_queries"),
        ({"population": 1}, "population"),
        ({"beta": 0.0}, "beta"),
        ({"beta": math.nan}, "beta"),
        ({"radius_ratio": 1.9}, "radius_ratio"),
    ],
)
def test_bad_calls_are_refused(changes, name):
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(CALL, **changes)


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="failure"):
        call_loss(CALL, 0.0)
    with pytest.raises(ValueError, match="constants"):
        call_loss(CALL, 1e-9, "loose")
    with pytest.raises(ValueError, match=r"radius_ratio.*1/3.*1/60.*with replacement"):
        call_loss(dataclasses.replace(CALL, beta=0.5), 1e-9, "paper")
    with pytest.raises(ValueError, match="epsilon"):
        calibrate_beta(lambda b: [(CALL, 1)], 0.0, 1e-6)
    with pytest.raises(ValueError, match="constants"):
        calibrate_beta(lambda b: [(CALL, 1)], 1.0, 1e-6, "paper")
    with pytest.raises(ValueError, match="delta"):
        calibrate_beta(lambda b: [(CALL, 1)], 1.0, 1.0)
