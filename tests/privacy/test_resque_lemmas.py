"""Lemmas of private ReSQue: moments of weights, drift, ternary moments, against exact values and tables."""

import math

import numpy as np
import pytest
from scipy import special, stats

from dpsco_jax.privacy import ORDERS
from dpsco_jax.privacy.resque import ResqueCall
from dpsco_jax.privacy.resque._amplification import LARGEST_ORDER, subsampled_rdp
from dpsco_jax.privacy.resque._drift import (
    drift_factor,
    log_difference_norm,
    log_drift_norms,
    log_tail,
    log_weight_norm,
    normal_norm,
    shift_law,
)
from dpsco_jax.privacy.resque.calls import _uses
from tests.support import resque as reference

ONCE = np.ones(1)
RATIOS = (4, 5, 6, 8, 10, 12, 16, 20, 32)


def at(order):
    return int(np.argmin(np.abs(ORDERS - order)))


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
    share = np.concatenate([np.arange(size) / size for size in sizes])
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
        rate, uses, more = _uses(ResqueCall(1024, 0.1, 12.0, 61_380, True), 1.1 * printed)
        assert len(uses) == b
        assert more <= 1.1 * printed
        np.testing.assert_allclose(uses.sum(), 1.0, rtol=1e-12)
        np.testing.assert_allclose(rate, -np.expm1(-1 / 60), rtol=0.01)
