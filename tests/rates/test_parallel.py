"""Tables 2.1 and 2.2 of the thesis and Figure 2.1, on fractions and number by number."""

from fractions import Fraction

import numpy as np
import pytest

from dpsco_jax.rates import _monomials, accelerated, parallel
from dpsco_jax.rates.accelerated import OURS, Setting
from dpsco_jax.rates.parallel import AC_SA, EPOCH_SGD, PARALLEL, PRIVATE, RESQUE, log_exponent

GRID = [Fraction(i, 84) for i in range(2 * 84 + 1)]


def test_parallel_costs_of_the_table():
    depths = {name: float(parallel.costs(name, 1000, 0.01).query_depth) for name in PARALLEL}
    assert depths["SGD"] == pytest.approx(1e4)
    assert depths["DBW12"] == pytest.approx(562.34, rel=1e-4)
    assert depths["BJL+19"] == depths[EPOCH_SGD] == depths[AC_SA] == pytest.approx(215.44, rel=1e-4)
    assert depths["CPM"] == pytest.approx(1000)
    compute = {name: float(parallel.costs(name, 1000, 0.01).compute_depth) for name in PARALLEL}
    assert compute["SGD"] == pytest.approx(1e4)
    assert compute["DBW12"] == pytest.approx(562.34, rel=1e-4)
    assert compute["BJL+19"] == pytest.approx(1000 ** (4 / 3) * 100 ** (8 / 3))
    assert compute[EPOCH_SGD] == pytest.approx(1e4 + 215.44, rel=1e-4)
    assert compute[AC_SA] == pytest.approx(562.34 + 215.44, rel=1e-4)
    queries = {name: float(parallel.costs(name, 1000, 0.01).queries) for name in PARALLEL}
    assert queries["DBW12"] == pytest.approx(1e4 + 562.34, rel=1e-4)
    assert queries["BJL+19"] == compute["BJL+19"]
    assert queries[EPOCH_SGD] == queries[AC_SA] == pytest.approx(1e4 + 215.44, rel=1e-4)
    # Only LR/ε_opt counts.
    scaled = parallel.costs(AC_SA, 1000, 0.06, lipschitz=2.0, radius=3.0)
    assert scaled == pytest.approx(parallel.costs(AC_SA, 1000, 0.01))


def test_where_ball_acceleration_has_the_least_query_depth():
    for a in [Fraction(i, 12) for i in range(25)]:
        found = {name: parallel.cost_exponents(name, a) for name in PARALLEL}
        ours = found[EPOCH_SGD].query_depth
        assert ours == found[AC_SA].query_depth == found["BJL+19"].query_depth == (1 + 2 * a) / 3
        least = min(found[name].query_depth for name in ("SGD", "DBW12", "CPM"))
        assert (ours < least) == (Fraction(1, 4) < a < 1), a
        # Never more queries, and from a = 1/4 on as many as SGD.
        for name in (EPOCH_SGD, AC_SA):
            assert found[name].queries <= found["BJL+19"].queries
            assert (found[name].queries == found["SGD"].queries) == (a >= Fraction(1, 4))
        assert (
            found[AC_SA].compute_depth
            == max(ours, Fraction(1, 4) + a)
            <= found[EPOCH_SGD].compute_depth
        )
    at_quarter = {n: parallel.cost_exponents(n, Fraction(1, 4)).query_depth for n in PARALLEL}
    assert at_quarter["SGD"] == at_quarter["DBW12"] == at_quarter[AC_SA] == Fraction(1, 2)
    at_one = {name: parallel.cost_exponents(name, 1).query_depth for name in PARALLEL}
    assert at_one["CPM"] == at_one[AC_SA] == 1


def test_the_theorems_term_that_the_table_leaves_out_is_never_the_largest():
    """Theorem 2.3.3 counts d^(1/4)·κ queries more than Table 2.1."""
    term = _monomials.total(_monomials.monomial(dim=Fraction(1, 4), kappa=1))
    for a in GRID:
        growth = {"dim": Fraction(1), "kappa": a}
        assert _monomials.exponent(term, growth) <= parallel.cost_exponents(AC_SA, a).queries


def test_exponents_of_the_figure():
    for x in GRID:
        ours = log_exponent(RESQUE, x)
        assert ours == max(min(Fraction(1), 2 - x), min(Fraction(2, 3) * (1 + x), Fraction(4, 3)))
        assert log_exponent("AFKT21", x) == min(Fraction(3, 2), 2 - x / 2)
        assert log_exponent("KLL21", x) == min(Fraction(5, 4) + x / 8, Fraction(3, 2) - x / 8)
        assert (ours == 1) == (x <= Fraction(1, 2))
        assert (ours == Fraction(4, 3)) == (x >= 1)
        best = min(log_exponent("AFKT21", x), log_exponent("KLL21", x))
        assert (ours < best) == (x < Fraction(4, 3))
        assert (ours == best) == (x == Fraction(4, 3))
        assert log_exponent("KLL21", x) == accelerated.log_exponent(OURS, "convex SCO", x)
        assert log_exponent("AFKT21", x) == accelerated.log_exponent("AFKT21", "convex SCO", x)
    assert {log_exponent(n, Fraction(4, 3)) for n in ("AFKT21", "KLL21", RESQUE)} == {
        Fraction(4, 3)
    }
    assert [log_exponent(name, 1) for name in ("BST14", "BFTGT19", "FKT20", "BFGT20")] == [
        2,
        Fraction(9, 2),
        2,
        2,
    ]


@pytest.mark.parametrize("b", [Fraction(0), Fraction(-1, 12), Fraction(-1, 6), Fraction(-1, 4)])
def test_near_linear_exactly_for_many_records(b):
    """N ≥ d²/ε³ with ε = N^b is a ≤ (1 + 3b)/2."""
    for a in GRID:
        linear = log_exponent(RESQUE, a, b) <= 1
        assert linear == (a <= (1 + 3 * b) / 2)


def test_private_rows_number_by_number():
    n, d, eps, delta = 1e4, 200.0, 0.5, 1e-6
    setting = Setting(n, d, eps, delta, lipschitz=2.0, diameter=3.0)
    counts = {name: float(parallel.gradient_complexity(name, setting)) for name in PRIVATE}
    assert counts == pytest.approx(
        {
            "BST14": n**2,
            "BFTGT19": n**4.5,
            "FKT20": n**2,
            "BFGT20": n**2,
            "AFKT21": min(n**1.5, n**2 * eps / np.sqrt(d)),
            "KLL21": min(n**1.25 * d**0.125 * eps**0.5, n**1.5 * eps / d**0.125),
            RESQUE: min(n, n**2 * eps**2 / d)
            + min((n * d) ** (2 / 3) / eps, n ** (4 / 3) * eps ** (1 / 3)),
        }
    )
    log, both = np.log(1 / delta), np.log(n / delta)
    private = np.sqrt(d * log) / (n * eps)
    risks = {name: float(parallel.excess_risk(name, setting)) / 6.0 for name in PRIVATE}
    assert risks["KLL21"] == risks["AFKT21"] == pytest.approx(1e-2 + private)
    assert risks[RESQUE] == pytest.approx(1e-2 + private * np.log(n) * both**1.5)
    assert risks["BST14"] == pytest.approx(d**0.25 * both / 100 + np.sqrt(d) * both**2 / (n * eps))
    # The far sides of the minima.
    wide = setting._replace(dim=1e6)
    assert parallel.gradient_complexity(RESQUE, wide) == pytest.approx(
        n**2 * eps**2 / 1e6 + n ** (4 / 3) * eps ** (1 / 3)
    )
    assert parallel.gradient_complexity("KLL21", wide) == pytest.approx(n**1.5 * eps / 1e6**0.125)


def test_refuses():
    with pytest.raises(ValueError, match="method must be one of SGD"):
        parallel.costs("Newton", 10, 0.1)
    with pytest.raises(ValueError, match="method must be one of BST14"):
        parallel.gradient_complexity("SGD", Setting(10, 2))
    with pytest.raises(ValueError, match="accuracy_exponent must be"):
        parallel.cost_exponents("SGD", Fraction(-1))
    with pytest.raises(ValueError, match="dim_exponent must be"):
        log_exponent(RESQUE, Fraction(-1))
    with pytest.raises(ValueError, match="epsilon_exponent must be"):
        log_exponent(RESQUE, 1, 1)
