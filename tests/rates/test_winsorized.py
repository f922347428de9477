"""Rates of learning with winsorized means against their golden numbers and their definitions."""

import math

import numpy as np
import pytest

from dpsco_jax.rates import winsorized
from dpsco_jax.rates.winsorized import Class

SAMPLE = Class(
    1000, 100, 25, epsilon=0.5, lipschitz=2.0, diameter=3.0, sub_gaussian=0.2, smoothness=4.0
)


def test_constants_of_the_mean():
    variance = winsorized.mean_variance(8000, 16, 1.0, 1e-6, 0.1, 0.01)
    half_window, rotation, split, laplace = 8.0, 10.0, 8.0, 2.0
    constant = laplace * half_window**2 * rotation**2 * split
    assert constant == 102400.0
    logs = math.log(16 * 8000 / 0.01) * math.log(1e6)
    assert variance == pytest.approx(constant * 16 * 0.01 * logs / 8000**2)
    assert winsorized.mean_is_private(110.0, 1e-6)  # 8·ln(1e6) = 110.52
    assert not winsorized.mean_is_private(111.0, 1e-6)
    # The paper's own composition at the edge: √(2d ln)·ε₁ + d·ε₁·tanh(ε₁/2) ≤ ε.
    log, dim = math.log(1e6), 16
    for epsilon, private in ((110.0, True), (112.0, False)):
        each = epsilon / math.sqrt(8 * dim * log)
        cruder = math.sqrt(2 * dim * log) * each + dim * each**2 / 2
        assert (cruder <= epsilon) == private


def test_failure_of_the_mean_falls_with_users_and_is_a_probability():
    few, more, many = (
        winsorized.mean_failure(n, 16, 1.0, 1e-6, 0.1, 1.0, 0.01) for n in (100, 11_000, 100_000)
    )
    assert few == 1.0
    assert 0.02 < more < 1.0
    assert many == pytest.approx(0.02, rel=1e-6)


def test_risks():
    spread, error = 0.2 * 5, 5 / (1000 * 10 * 0.5)
    assert SAMPLE.gradient_spread == pytest.approx(spread)
    assert SAMPLE.privacy_error == pytest.approx(error)
    assert winsorized.convex_erm_rate(SAMPLE, 90) == pytest.approx(9 * 4 / 90 + 3 * spread * error)
    assert winsorized.stationarity_rate(SAMPLE, 90) == pytest.approx(
        16 * 9 / 90 + 4 * 3 * spread * error
    )
    assert winsorized.strongly_convex_erm_rate(SAMPLE, 40, 0.5) == pytest.approx(
        6 * math.exp(-5) + (spread * error) ** 2 / 0.5
    )
    assert winsorized.phased_erm_rate(SAMPLE) == pytest.approx(
        3 * math.sqrt(2 * spread / 1e5) + 3 * spread * error
    )
    assert winsorized.phased_erm_most_smoothness(SAMPLE) == pytest.approx(
        1000 * 0.2 * 0.5 / (3 * 10) + math.sqrt(1e9 * 2 * spread * 0.5**4 / (25**2 * 100 * 9))
    )


def test_upper_and_lower_bound_meet_where_the_paper_says():
    # Up to logarithms they agree when G is of the order of σ√d.
    tight = SAMPLE._replace(lipschitz=1.0)
    assert winsorized.phased_erm_rate(tight) == pytest.approx(
        winsorized.sco_lower_bound_rate(tight)
    )
    grid = Class(*np.meshgrid([10.0, 1e4], [1.0, 100.0], [2.0, 1e3], [0.1, 1.0]), sub_gaussian=0.3)
    assert np.all(winsorized.phased_erm_rate(grid) >= winsorized.sco_lower_bound_rate(grid))
    rates = (winsorized.finite_class_rate, winsorized.finite_class_lower_bound_rate)
    upper, lower = (rate(SAMPLE, 1e6) for rate in rates)
    assert lower < upper < lower * math.sqrt(math.log(1e6 * 1e5 * 0.5)) * 2


def test_enough_users_for_all_steps():
    assert winsorized.erm_has_enough_users(SAMPLE, 100 * 100)
    assert not winsorized.erm_has_enough_users(SAMPLE, 101 * 101)


def test_error_of_a_finite_class():
    value = winsorized.finite_class_error(2000, 1.5, 0.1, 50, 0.05)
    scale = 4 * 0.1 / (2000 * 1.5 / 6)  # Laplace noise of one draw: window 4τ, budget ε/6
    draws = math.log(5 / 0.05) / (0.05 / (5 * 50))  # more are made with probability α/5 only
    assert value == pytest.approx(2 * scale * math.log(draws / (0.05 / 5)))


def test_lower_bound_for_few_users():
    n, epsilon, delta = 3, 0.7, 1e-3
    growth = math.exp(n * epsilon)
    # The two error probabilities sum to this; the risk is a quarter of half of it.
    both = 2 * (1 - n * delta * growth) / (1 + growth)
    assert winsorized.fixed_users_lower_bound(n, epsilon, delta) == pytest.approx(both / 8)
    assert winsorized.fixed_users_lower_bound(n, epsilon, 0.5) == 0.0
    edge = 1 / (2 * n * growth)
    assert winsorized.fixed_users_lower_bound(n, epsilon, edge) == pytest.approx(
        1 / (8 * (1 + growth))
    )
    assert winsorized.fixed_users_lower_bound(10**6, 1.0, 0.0) == 0.0  # underflows, does not raise


def test_heterogeneity():
    assert winsorized.heterogeneous_risk(0.1, 10, 5, 1e-3, 2.0) == pytest.approx(0.1 + 2 * 52e-3)
