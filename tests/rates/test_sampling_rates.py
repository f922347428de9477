"""Parameters and risks of draws, and tables of sampling: against minimization and closed forms."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from dpsco_jax.rates import (
    norms,
    sampling,
    sampling_printed,
    sampling_tables,
)
from tests.support.gaussians import gaussian_delta

SETTINGS = [
    # s, n, d, G, G_Δ, Θ
    (0.311, 100, 10, 1.0, 2.0, 0.5),
    (1.0, 1000, 3, 2.0, 1.0, 4.0),
    (0.05, 30, 200, 0.3, 0.6, 0.1),
]


def risk_at(k, s, n, d, g, slope, theta, population):
    """μΘ + d/k (+ G_Δ·min(G, G_Δ)/(nμ)) at the least μ that keeps s = G_Δ√k/(n√μ)."""
    mu = slope**2 * k / (s * n) ** 2
    return mu * theta + d / k + (slope * min(g, slope) / (n * mu) if population else 0.0)


@pytest.mark.parametrize("population", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_parameters_are_the_best_for_their_bound(setting, population):
    s, n, d, g, slope, theta = setting
    best = optimize.minimize_scalar(
        lambda log_k: math.log(risk_at(math.exp(log_k), *setting, population)),
        bounds=(-10, 20),
        method="bounded",
        options={"xatol": 1e-10},
    )
    if population:
        draw = sampling.sco(s, n, d, g, slope, theta)
        two = 2 * slope * math.sqrt(d * theta) / (s * n)
        assert draw.risk <= two + 2 * math.sqrt(slope * min(g, slope) * theta / n)
    else:
        draw = sampling.erm(s, n, d, slope, theta)
        assert draw.risk == pytest.approx(2 * slope * math.sqrt(d * theta) / (s * n), rel=1e-14)
        assert draw.generalization_risk == 0.0
    assert draw.risk == pytest.approx(math.exp(best.fun), rel=1e-10)
    assert math.log(draw.inverse_temperature) == pytest.approx(best.x, abs=1e-4)
    assert draw.gdp == s
    assert sampling.gdp_of_draw(*draw[:2], n, slope) == pytest.approx(s, rel=1e-14)
    assert draw.risk == pytest.approx(sum(draw[3:]), rel=1e-15)


def test_plans_of_the_sheet():
    # n, d, s, k, μ, risk; G = 1, G_Δ = 2, Θ = 1/2.
    for n, d, s, k, mu, risk in (
        (100, 2, 0.311, 31.1, 0.129, 0.128),
        (100, 10, 0.311, 69.6, 0.287, 0.287),
        (300, 10, 0.266, 179, 0.112, 0.112),
        (1000, 10, 0.2355, 527, 0.0380, 0.0380),
    ):
        draw = sampling.erm(s, n, d, 2.0, 0.5)
        np.testing.assert_allclose((*draw[:2], draw.risk), (k, mu, risk), rtol=6e-3)
    for n, d, s, spent, k, mu in (
        (100, 2, 0.311, 0.2, 28.3, 0.283),
        (1000, 10, 0.2355, 0.1414, 447, 0.0894),
        (10_000, 10, 0.2128, 0.0447, 1414, 0.0283),
    ):
        draw = sampling.thrifty_sco(s, n, d, 1.0, 2.0, 0.5)
        np.testing.assert_allclose((draw.gdp, *draw[:2], draw.risk), (spent, k, mu, mu), rtol=2e-3)
    assert sampling.thrifty_sco(0.1, 100, 2, 1, 2, 0.5) == sampling.sco(0.1, 100, 2, 1, 2, 0.5)


def test_thrift_costs_a_constant_factor_and_saves_queries():
    for n in (100, 10_000, 10**6):
        for d in (1, 30, 1000):
            plain, thrifty = (
                f(0.5, n, d, 1.0, 2.0, 0.5) for f in (sampling.sco, sampling.thrifty_sco)
            )
            assert plain.risk <= thrifty.risk <= 2.0 * plain.risk
            queries = [draw.inverse_temperature / draw.regularization for draw in (plain, thrifty)]
            least = min((0.5 * n) ** 2, 2 * n * d) / 4
            assert queries[1] == pytest.approx(least, rel=1e-12)
            assert queries[0] == pytest.approx((0.5 * n) ** 2 / 4, rel=1e-12)


def test_strongly_convex_and_pure():
    draw = sampling.strongly_convex(0.7, 200, 5, 2.0, 0.3)
    assert sampling.gdp_of_draw(*draw[:2], 200, 2.0) == pytest.approx(0.7, rel=1e-14)
    assert draw.risk == pytest.approx(5 * 4 / (0.49 * 200**2 * 0.3))
    both = sampling.strongly_convex(0.7, 200, 5, 2.0, 0.3, lipschitz=1.5)
    assert both.risk - draw.risk == pytest.approx(2 * 1.5 / (200 * 0.3))
    # Mean estimation, μ = 1: the draw is N(mean, I/k), a Gaussian mechanism of noise G_Δ/(sn).
    gauss = sampling.strongly_convex(0.7, 200, 5, 2.0, 1.0)
    assert gauss.inverse_temperature**-0.5 == pytest.approx(2.0 / (0.7 * 200))
    # Pure: k = εn/(G_Δ·D) makes k·(F - F') vary by at most ε over the domain.
    assert sampling.pure_erm(0.5, 200, 5, 2.0, 3.0) == pytest.approx(5 / (0.5 * 200 / (2.0 * 3.0)))


@pytest.mark.parametrize("sizes", [(400, 7), (10**5, 1)])
@pytest.mark.parametrize("theorem", sampling_printed.THEOREMS)
def test_printed_parameters_against_what_is_printed_of_their_risk(theorem, sizes):
    """With G_Δ = G the risk is the printed one; what they spend is what the formula for s says."""
    n, d = sizes
    epsilon, delta, g, diameter = 0.09, 1e-5, 1.3, 2.0
    theta, log = diameter**2 / 2, math.log(1 / (2 * delta))
    draw = sampling_printed.printed(theorem, n, d, epsilon, delta, g, theta, g)
    assert draw.gdp == pytest.approx(sampling.gdp_of_draw(*draw[:2], n, g), rel=1e-14)
    root = math.sqrt(math.log(3 / (4 * delta)) + epsilon) - math.sqrt(math.log(3 / (4 * delta)))
    private = math.sqrt(8 * d * log) / (n * epsilon)
    printed = {
        "3.6.4": g * diameter * math.sqrt(d) / (n * root),
        "3.6.9": g
        * diameter
        * (2 * math.sqrt(math.log(1 / delta) * d) / (epsilon * n) + 2 * n**-0.5),
        "4.4.2": g * math.sqrt(theta) * private,
        "4.4.6": g * math.sqrt(theta) * (private + math.sqrt(8 / n)),
        "5.5.6 ERM": g * math.sqrt(theta) * private,
        "5.5.6 SCO": g * math.sqrt(theta) * (private + 4 * n**-0.5),
    }[theorem]
    exact = ("3.6.4", "4.4.2", "5.5.6 ERM")
    assert draw.risk <= printed * (1 + 1e-12)
    assert draw.risk >= printed * (1 - 1e-12 if theorem in exact else 0.5)
    claims = {
        "3.6.4": math.sqrt(2) * root,
        "3.6.9": min(epsilon / math.sqrt(2 * math.log(3 / (4 * delta))), math.sqrt(2 * d / n)),
        "5.5.6 SCO": min(epsilon / math.sqrt(log), math.sqrt(d / n)),
    }
    claimed = claims.get(theorem, epsilon / math.sqrt(2 * log))
    assert draw.gdp == pytest.approx(claimed, rel=1e-12)
    # At that s they are the best parameters, but for those of thrifty SCO.
    if theorem in (*exact, "4.4.6"):
        population = theorem == "4.4.6"
        best = sampling.sco(claimed, n, d, g, g, theta) if population else None
        best = best or sampling.erm(claimed, n, d, g, theta)
        np.testing.assert_allclose(draw[:2], best[:2], rtol=1e-12)


def test_which_printed_parameters_are_private():
    """δ(ε) of the true s over δ, at G_Δ = 2G and at G_Δ = G."""

    def ratio(theorem, epsilon, delta, diff):
        draw = sampling_printed.printed(theorem, 100, 10**4, epsilon, delta, 1.0, 0.5, diff)
        return gaussian_delta(epsilon, draw.gdp) / delta

    for epsilon, delta in ((0.05, 1e-3), (0.09, 1e-6)):
        for theorem in ("3.6.4", "3.6.9"):
            assert ratio(theorem, epsilon, delta, None) <= 2 / 3
    assert ratio("3.6.4", 10.0, 1e-6, None) <= 2 / 3
    for theorem in ("4.4.2", "4.4.6", "5.5.6 ERM"):
        assert ratio(theorem, 1.0, 1e-6, None) == pytest.approx(1050, rel=0.01)
        assert ratio(theorem, 1.0, 1e-6, 1.0) <= 1.0
        assert ratio(theorem, 10.0, 1e-6, 1.0) == pytest.approx(5.1, rel=0.02)
        assert ratio(theorem, 10.0, 1e-2, 1.0) == pytest.approx(10.6, rel=0.02)
    assert ratio("5.5.6 SCO", 1.0, 1e-6, None) == pytest.approx(1.2e4, rel=0.03)
    assert ratio("5.5.6 SCO", 1.0, 1e-6, 1.0) == pytest.approx(16, rel=0.03)


def test_deviations_of_one_draw():
    k, mu, g = 40.0, 0.1, 1.7
    # A linear function is Gaussian under exp(-k(F + μr)), of deviation G/√(kμ): the tail is nearly attained.
    for failure in (0.3, 0.05, 1e-3, 1e-9):
        bound = sampling.deviation(g, k, mu, failure)
        exact = g / math.sqrt(k * mu) * stats.norm.isf(failure)
        assert exact <= bound
        assert bound == pytest.approx(g * math.sqrt(2 * math.log(1 / failure) / (k * mu)))
    assert sampling.deviation(g, k, mu, 1e-300) == pytest.approx(
        g / math.sqrt(k * mu) * stats.norm.isf(1e-300), rel=0.01
    )


def exact_rate(p, n, d, epsilon, delta, slope, diameter, population, columns=None):
    """2·G_Δ√(dΘ)/(sn) and its kin, from the exact curve at half of δ, with R = D."""
    s = optimize.brentq(lambda s: gaussian_delta(epsilon, s) - delta / 2, 1e-9, 50.0, xtol=1e-14)
    side, entries = (d, d) if columns is None else (columns, d * columns)
    theta = norms.regularizer_range(p, side, diameter)
    if population:
        return sampling.sco(s, n, entries, slope, slope, theta).risk
    return sampling.erm(s, n, entries, slope, theta).risk


@pytest.mark.parametrize("population", [False, True])
@pytest.mark.parametrize("p", [1.0, 1.1, 1.5, 1.9, 2.0, 3.0, 8.0, math.inf])
def test_table_4_1_is_above_what_the_draw_promises(p, population):
    for d in (3, 20, 5000):
        for n, epsilon, delta in ((100, 0.3, 1e-3), (10**5, 0.1, 1e-9)):
            rest = (n, d, epsilon, delta, 0.7, 3.0, population)
            printed, exact = sampling_tables.general_norm_rate(p, *rest), exact_rate(p, *rest)
            assert exact <= printed
            printed = sampling_tables.general_norm_rate(p, *rest, columns=3)
            assert exact_rate(p, *rest, columns=3) <= printed


def test_table_4_1_constants_slopes_and_continuity():
    n, epsilon, delta = 10**4, 0.2, 1e-6
    log = math.log(1e6)

    def rate(p, d, population=False, **kwargs):
        return sampling_tables.general_norm_rate(
            p, n, d, epsilon, delta, population=population, **kwargs
        )

    # R1: constants 2, 6, 2, with log(1/δ).
    private = math.sqrt(50 * log) / (n * epsilon)
    assert rate(1.5, 50) == pytest.approx(2 * private / math.sqrt(0.5))
    assert rate(1.0, 50) == pytest.approx(6 * math.sqrt(math.log(50)) * private)
    assert rate(4.0, 50) == pytest.approx(2 * 50**0.75 * math.sqrt(log) / (n * epsilon))
    assert rate(1.5, 50, True) == pytest.approx(2 / math.sqrt(0.5) * (private + n**-0.5))
    assert rate(4.0, 50, True) == pytest.approx(2 * 50**0.25 * (private + n**-0.5))
    # Matrices: entries in the private part, the smaller side in the ratio of norms and in the logarithm.
    assert rate(4.0, 50, columns=9) == pytest.approx(2 * 9**0.25 * 3 * private)
    assert rate(1.0, 50, columns=9) == pytest.approx(6 * math.sqrt(math.log(9)) * 3 * private)
    # Slopes in d.
    for p, slope in ((1.2, 0.5), (2.0, 0.5), (3.0, 2 / 3), (8.0, 7 / 8), (math.inf, 1.0)):
        found = math.log(rate(p, 10**6) / rate(p, 10**3)) / math.log(10**3)
        assert found == pytest.approx(slope, abs=1e-9)
    found = rate(1.0, 10**6) / rate(1.0, 10**3)
    assert found == pytest.approx(10**1.5 * math.sqrt(2.0))
    assert rate(2 - 1e-9, 50) == pytest.approx(rate(2.0, 50), rel=1e-8)
    assert rate(2 + 1e-9, 50) == pytest.approx(rate(2.0, 50), rel=1e-8)


def test_slopes_and_continuity_of_the_exact_form():
    def risk(p, d):
        return exact_rate(p, 10**4, d, 0.2, 1e-6, 1.0, 1.0, False)

    for p, slope in ((1.5, 0.5), (2.0, 0.5), (3.0, 2 / 3), (8.0, 7 / 8)):
        found = math.log(risk(p, 10**6) / risk(p, 10**4)) / math.log(100)
        assert found == pytest.approx(slope, abs=1e-9)
    # p = 1: √d times √Θ, and Θ/(e·log d) tends to 1, from below.
    for d in (10**3, 10**6, 10**12):
        growth = risk(1.0, d) / math.sqrt(d * math.e * math.log(d))
        growth /= risk(2.0, 4) / math.sqrt(4 * 0.5)
        assert 0.9 < growth < 1.0
    for near in (2 - 1e-9, 2 + 1e-9):
        assert risk(near, 50) == pytest.approx(risk(2.0, 50), rel=1e-8)
    # At p = 2 the general formula is the Euclidean one, to the last place: Θ = D²/2.
    assert norms.regularizer_range(2.0, 50, 1.7) == 0.5 * 1.7**2


def test_figure_3_1():
    grid = np.array([10.0, 1000.0])
    found = {
        method: sampling_tables.sampling_complexity(method, grid, 30.0, 0.1, 1e-3, 8.0)
        for method in sampling_tables.QUERIES
    }
    np.testing.assert_array_equal(found["BST14"], np.inf)
    np.testing.assert_array_equal(found["CDJB20"], np.inf)
    np.testing.assert_allclose(found["JLLV21"], grid**3)
    np.testing.assert_allclose(found["GT20"], 64 * 30.0**4 * grid * 100)
    np.testing.assert_allclose(found["LC22"], 900 * 1000)
    np.testing.assert_allclose(found["alternating"], 900)
    plain = sampling_tables.sampling_complexity("CDJB20", grid, 1.0, 0.1)
    np.testing.assert_allclose(plain, grid**2.5 * 1e4)
    assert sampling_tables.sampling_complexity("BST14", 1) == 1.0
    with pytest.raises(ValueError, match="method"):
        sampling_tables.sampling_complexity("GT21", 10)


def test_bad_numbers_are_refused_by_name():
    with pytest.raises(ValueError, match="lipschitz_diff must be at most"):
        sampling.sco(1.0, 10, 2, 1.0, 2.1, 0.5)
    with pytest.raises(ValueError, match="dim must be at least 3"):
        sampling_tables.general_norm_rate(1.0, 10, 2, 0.1, 1e-3)
    with pytest.raises(ValueError, match="columns must be at least 3"):
        sampling_tables.general_norm_rate(1.0, 10, 9, 0.1, 1e-3, columns=2)
    with pytest.raises(ValueError, match="columns must be at most dim"):
        sampling_tables.general_norm_rate(1.5, 10, 9, 0.1, 1e-3, columns=10)
