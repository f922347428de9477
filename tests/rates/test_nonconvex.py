"""Tables on non-convex problems: their exponents, units, crossings, and printed forms that have none."""

import math

import numpy as np
import pytest

from dpsco_jax.rates import nonconvex

N, D, E = 1e12, 50.0, 0.3


def slope(function, at, step=1e-4):
    """d log f / d log t by a central difference."""
    return (math.log(function(at * (1 + step))) - math.log(function(at / (1 + step)))) / (
        2 * math.log1p(step)
    )


# Exponents in n, d and ε where sampling is not felt (ε small) and where privacy is not (ε large).
EXPONENTS = {
    "spider, empirical": ((-2 / 3, 1 / 3, -2 / 3), None),
    "spider, population": ((-3 / 7, 3 / 14, -3 / 7), (-1 / 3, 0.0, 0.0)),
    "adaptive spider, population": ((-1 / 2, 1 / 4, -1 / 2), (-1 / 3, 0.0, 0.0)),
    "ABGGMU23, population, first order": ((-1 / 2, 1 / 4, -1 / 2), (-1 / 3, 0.0, 0.0)),
    "uniform convergence, population": ((-2 / 3, 1 / 3, -2 / 3), (-1 / 2, 1 / 2, 0.0)),
    "lower bound, empirical, first order": ((-1.0, 1 / 2, -1.0), None),
    "lower bound, population, first order": ((-1.0, 1 / 2, -1.0), (-1 / 2, 0.0, 0.0)),
}


@pytest.mark.parametrize("method", EXPONENTS)
def test_exponents_of_stationarity(method):
    for wanted, epsilon in zip(EXPONENTS[method], (1e-30, 1e30), strict=True):
        if wanted is None:
            continue
        found = (
            slope(lambda n, e=epsilon: nonconvex.stationarity(method, n, D, e), N),
            slope(lambda d, e=epsilon: nonconvex.stationarity(method, N, d, e), D),
            slope(lambda e: nonconvex.stationarity(method, N, D, e), epsilon),
        )
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_the_row_of_wcx19_is_the_smaller_of_two():
    """d^(1/4)/√n where d is large beside n, (d/n)^(4/7) where it is small: they cross at n = d^(9/2)."""
    for n, wanted in ((1e5, (-1 / 2, 1 / 4)), (1e9, (-4 / 7, 4 / 7))):
        found = (
            slope(lambda m: nonconvex.stationarity("WCX19, empirical", m, D), n),
            slope(lambda d, at=n: nonconvex.stationarity("WCX19, empirical", at, d), D),
        )
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    at = D**4.5
    np.testing.assert_allclose(
        nonconvex.stationarity("WCX19, empirical", at, D), D**0.25 / at**0.5, rtol=1e-12
    )


def test_chapter_7_is_better_than_chapter_6_where_privacy_is_not_total():
    for n in (1e3, 1e6, 1e12):
        for d in (1.0, 30.0, 1e4):
            for e in (0.01, 1.0, 10.0):
                if math.sqrt(d) > n * e:
                    continue
                later, before = (
                    nonconvex.stationarity(f"{name}, population", n, d, e)
                    for name in ("adaptive spider", "spider")
                )
                assert later <= before * (1 + 1e-12)


def test_exponents_of_risks():
    assert slope(lambda e: nonconvex.excess_risk("Gibbs, printed", N, D, e), 1.0) == pytest.approx(
        -1.0, abs=1e-6
    )
    assert slope(lambda e: nonconvex.excess_risk("WCX19", N, D, e), 1.0) == pytest.approx(
        -2.0, abs=1e-6
    )
    # In log n: loglog/log falls as 1/log, but for its own logarithm.
    log = math.log(N)
    found = nonconvex.excess_risk("Gibbs, empirical", N, D)
    assert found == pytest.approx(D * math.log(log) / log, rel=1e-12)
    # No 1/ε: at ε = 10⁻³ the printed row is a thousand times the other, up to logarithms.
    few = nonconvex.excess_risk("Gibbs, printed", N, D, 1e-3)
    assert 500 < few / nonconvex.excess_risk("Gibbs, empirical", N, D, 1e-3) < 1000
    small = [nonconvex.excess_risk("exponential mechanism", n, D, 1e-6) for n in (1e4, 1e5)]
    assert small[0] / small[1] == pytest.approx(10.0, rel=0.02)
    large = [nonconvex.excess_risk("exponential mechanism", n, D, 1e6) for n in (1e4, 1e5)]
    assert large[0] / large[1] == pytest.approx(math.sqrt(10.0), rel=0.02)


def samples(method, **numbers):
    given = {
        "radius": 0.1,
        "norm": 0.02,
        "dim": D,
        "epsilon": E,
        "lipschitz": 1.3,
        "gap": 0.7,
        "reach": 2.0,
    }
    return nonconvex.goldstein_samples(method, **given | numbers)


@pytest.mark.parametrize("method", nonconvex.SAMPLES)
def test_a_number_of_users_has_no_unit(method):
    """Losses times c, and points times s, leave the number of users where it was: but not as printed."""
    base = samples(method)
    c, s = 3.0, 7.0
    scaled = (
        samples(method, lipschitz=1.3 * c, gap=0.7 * c, norm=0.02 * c),
        samples(method, radius=0.1 * s, lipschitz=1.3 / s, norm=0.02 / s, reach=2.0 * s),
    )
    if method == "optimal smoothing, printed":
        assert scaled[0] / base == pytest.approx(c ** (1 / 3), rel=1e-12)
    else:
        np.testing.assert_allclose(scaled, base, rtol=1e-12)


def test_exponents_of_samples():
    small, large = 1e-30, 1e30
    cases = {
        ("ZTC24", small): (3 / 2, -1.0, -2.0),
        ("ZTC24", large): (1.0, -1.0, -3.0),
        ("single pass", small): (1.0, -1.0, -2.0),
        ("single pass", large): (1 / 2, -1.0, -3.0),
        ("single pass, printed", large): (0.0, -1.0, -3.0),
        ("multi-pass, empirical", small): (3 / 4, -1 / 2, -3 / 2),
        ("multi-pass, population", large): (1.0, 0.0, -2.0),
        ("optimal smoothing", small): (2 / 3, -1 / 3, -1.0),
    }
    for (method, epsilon), wanted in cases.items():
        found = [
            slope(lambda t, m=method, e=epsilon, x=name: samples(m, epsilon=e, **{x: t}), at)
            for name, at in (("dim", D), ("radius", 0.1), ("norm", 0.02))
        ]
        np.testing.assert_allclose(found, wanted, atol=1e-6, err_msg=method)


def test_the_third_term_of_the_printed_single_pass_is_a_geometric_mean_of_the_true_ones():
    """d^(3/4)/(ε^(1/2) αβ^(5/2)) ≤ ½(√d/(αβ³) + d/(εαβ²)), with equality where they are equal."""
    rng = np.random.default_rng(0)
    for a, b, d, e in 10.0 ** rng.uniform(-3, 3, (200, 4)):
        term = d**0.75 / (e**0.5 * a * b**2.5)
        true = nonconvex.goldstein_samples("single pass", a, b, d, e)
        assert term <= 0.5 * true * (1 + 1e-12)
        printed = nonconvex.goldstein_samples("single pass, printed", a, b, d, e)
        assert printed == pytest.approx(1 / (a * b**3) + d / (e * a * b**2) + term, rel=1e-12)
    equal = nonconvex.goldstein_samples("single pass", 1.0, 0.25, 16.0, 1.0)
    np.testing.assert_allclose(16.0**0.75 / 0.25**2.5, 0.5 * equal, rtol=1e-12)


def test_values_by_hand():
    assert nonconvex.stationarity("spider, empirical", 1e6, 100.0) == pytest.approx(1e-5 ** (2 / 3))
    assert samples(
        "optimal smoothing", reach=8.0, dim=27.0, radius=0.001, norm=0.5, epsilon=2.0, lipschitz=3.0
    ) == pytest.approx(2 * 3 * 9 / (2 * 0.1 * 0.5))
    both = nonconvex.stationarity("spider, empirical", np.array([1e3, 1e6]), D)
    assert both.shape == (2,)
