"""Tables 1.1 to 1.4 of the thesis and Figure 1.2, on fractions and number by number."""

from fractions import Fraction

import numpy as np
import pytest

from dpsco_jax.rates import accelerated
from dpsco_jax.rates.accelerated import OURS, PROBLEMS, TABLES, Setting, log_exponent

GRID = [
    Fraction(i, 84) for i in range(2 * 84 + 1)
]  # [0, 2], with all kinks: denominators 3, 4 and 7


def _slopes(method, problem, at, step=Fraction(1, 1000)):
    """Slopes of the exponent in a, left and right of a point, exactly."""
    values = [log_exponent(method, problem, at + i * step) for i in (-1, 0, 1)]
    return (values[1] - values[0]) / step, (values[2] - values[1]) / step


def test_exponents_of_the_figure():
    for a in GRID:
        erm = {name: log_exponent(name, "convex ERM", a) for name in ("AFKT21", "BST14", OURS)}
        assert erm[OURS] == max(Fraction(3, 2) - a / 8, 2 - a)
        assert erm["AFKT21"] == 2 - a / 2
        assert erm["BST14"] == 2
        sco = {name: log_exponent(name, "convex SCO", a) for name in ("AFKT21", "FKT20", OURS)}
        assert sco[OURS] == min(Fraction(5, 4) + a / 8, Fraction(3, 2) - a / 8)
        assert sco["AFKT21"] == min(Fraction(3, 2), 2 - a / 2)
        assert sco["FKT20"] == 2
        for problem in PROBLEMS:
            assert log_exponent("BFTGT19", problem, a) == Fraction(9, 2)
            assert log_exponent("BFGT20", problem, a) == 2


@pytest.mark.parametrize(
    ("method", "problem", "at", "value", "slopes"),
    [
        (OURS, "convex ERM", Fraction(4, 7), Fraction(10, 7), (-1, Fraction(-1, 8))),
        (OURS, "convex SCO", Fraction(1), Fraction(11, 8), (Fraction(1, 8), Fraction(-1, 8))),
        ("AFKT21", "convex SCO", Fraction(1), Fraction(3, 2), (0, Fraction(-1, 2))),
    ],
)
def test_kinks(method, problem, at, value, slopes):
    assert log_exponent(method, problem, at) == value
    assert _slopes(method, problem, at) == slopes
    # Nowhere else on the grid is there another one.
    for a in GRID[1:-1]:
        left, right = _slopes(method, problem, a, Fraction(1, 10**6))
        assert (left != right) == (a == at)


def test_the_thesis_is_ahead_up_to_four_thirds():
    for a in GRID:
        sco = [log_exponent(name, "convex SCO", a) for name in (OURS, "AFKT21")]
        erm = [log_exponent(name, "convex ERM", a) for name in (OURS, "AFKT21")]
        assert (sco[0] < sco[1]) == (a < Fraction(4, 3))
        assert (erm[0] < erm[1]) == (0 < a < Fraction(4, 3))
        if a == Fraction(4, 3):
            assert erm[0] == erm[1] == sco[0] == sco[1] == Fraction(4, 3)
    assert log_exponent(OURS, "convex ERM", 0) == log_exponent("AFKT21", "convex ERM", 0) == 2
    assert (
        log_exponent(OURS, "convex SCO", 0) == log_exponent(OURS, "convex SCO", 2) == Fraction(5, 4)
    )


def test_gradients_are_those_of_the_theorems():
    n, d, eps, delta = 1e4, 100.0, 0.5, 1e-6
    log = np.log(1 / delta)
    setting = Setting(n, d, eps, delta)
    count = {
        problem: float(accelerated.gradient_complexity(OURS, problem, setting))
        for problem in PROBLEMS
    }
    tall = eps * n**1.5 / (d**0.125 * log**0.25)
    assert count["convex ERM"] == pytest.approx(tall + eps**2 * n**2 / (d * log))
    wide = np.sqrt(eps) * n**1.25 * d**0.125
    assert count["convex SCO"] == pytest.approx(n + min(wide, tall))
    assert count["strongly convex ERM"] == count["convex ERM"]
    assert count["strongly convex SCO"] == count["convex SCO"]
    # The other side of the minimum.
    low = setting._replace(dim=1.0)
    assert accelerated.gradient_complexity(OURS, "convex SCO", low) == pytest.approx(
        n + np.sqrt(eps) * n**1.25
    )
    others = {"AFKT21": 1e6, "FKT20": 1e8 * log, "BFGT20": 1e8, "BFTGT19": 1e18, "BST14": 1e8}
    for name, expected in others.items():
        found = accelerated.gradient_complexity(name, "convex SCO", setting)
        assert found == pytest.approx(expected), name
    assert accelerated.gradient_complexity("AFKT21", "convex ERM", setting) == pytest.approx(1e7)


def test_excess_risks_of_the_tables():
    n, d, eps, delta, lipschitz, diameter, mu = 1e4, 100.0, 0.5, 1e-6, 2.0, 3.0, 0.25
    setting = Setting(n, d, eps, delta, lipschitz, diameter, mu)
    log, both = np.log(1 / delta), np.log(n / delta)
    scale, square, a = lipschitz * diameter, lipschitz**2 / mu, np.sqrt(d * log) / (n * eps)
    expected = {
        ("convex ERM", OURS): scale * a,
        ("convex ERM", "KST12"): scale * np.sqrt(d) * log / (np.sqrt(n) * eps),
        ("convex ERM", "BST14"): scale * both**1.5 * a,
        ("strongly convex ERM", OURS): square * a**2,
        ("strongly convex ERM", "KST12"): square * d * log / (n**1.5 * eps**2),
        ("strongly convex ERM", "BST14"): square * both**2 * a**2,
        ("convex SCO", OURS): scale * (1 / np.sqrt(n) + a),
        ("convex SCO", "BST14"): scale
        * (d**0.25 * both / np.sqrt(n) + np.sqrt(d) * both**2 / (n * eps)),
        ("strongly convex SCO", OURS): square * (1 / n + a**2),
    }
    for (problem, method), risk in expected.items():
        found = accelerated.excess_risk(method, problem, setting)
        assert found == pytest.approx(risk), (problem, method)
    for problem, table in TABLES.items():
        for method in table:
            if method not in ("KST12", "BST14"):
                risk = accelerated.excess_risk(method, problem, setting)
                assert risk == accelerated.excess_risk(OURS, problem, setting)


def test_the_rows_of_the_tables():
    later = ["FKT20", "BFGT20", "AFKT21", OURS]
    assert [*TABLES] == [*PROBLEMS]
    assert [*TABLES["convex ERM"]] == ["KST12", "BST14", "BFTGT19", "BFGT20", "AFKT21", OURS]
    assert [*TABLES["strongly convex ERM"]] == ["KST12", "BST14", "BFTGT19", "BFGT20", OURS]
    assert [*TABLES["convex SCO"]] == ["BST14", "BFTGT19", *later]
    assert [*TABLES["strongly convex SCO"]] == ["BFTGT19", *later]


def test_no_method_beats_the_lower_bound_where_it_says_anything():
    axes = np.meshgrid([10, 1e3, 1e6], [2, 50, 1e4], [0.1, 0.5, 1.0], [1e-3, 1e-9], indexing="ij")
    setting = Setting(*axes, lipschitz=2.0, diameter=3.0, strong_convexity=0.1)
    trivial = {True: 2.0**2 / 0.1, False: 6.0}
    for problem, table in TABLES.items():
        bound = accelerated.lower_bound(problem, setting)
        assert np.all(bound <= trivial[problem.startswith("strongly")])
        for method in table:
            risk = accelerated.excess_risk(method, problem, setting)
            assert np.all(risk >= bound * (1 - 1e-12)), (problem, method)
        exponents = [accelerated.risk_exponent(OURS, problem, a) for a in (0, Fraction(3, 2))]
        strong = 2 if problem.startswith("strongly") else 1
        sampled = Fraction(-1, 2) if problem.endswith("SCO") else Fraction(-1)
        assert exponents == [strong * sampled, strong * Fraction(-1, 4)]


def test_refuses():
    with pytest.raises(ValueError, match="problem must be one of convex ERM"):
        log_exponent(OURS, "ERM", 1)
    with pytest.raises(ValueError, match=r"method must be one of .* for strongly convex ERM"):
        log_exponent("AFKT21", "strongly convex ERM", 1)
    with pytest.raises(ValueError, match="method must be one with a number of gradients"):
        accelerated.gradient_complexity("KST12", "convex ERM", Setting(10, 2))
    with pytest.raises(ValueError, match="dim_exponent must be"):
        log_exponent(OURS, "convex SCO", Fraction(-1, 2))
    with pytest.raises(ValueError, match="problem must be one of"):
        accelerated.lower_bound("SCO", Setting(10, 2))
