"""Table 13.1 and Figure 13.1: exponents as printed and as proven, and the rates that have them."""

import math
from fractions import Fraction

import pytest

from dpsco_jax.rates import online

AT = (Fraction(0), Fraction(1, 6), Fraction(1, 4), Fraction(1, 3), Fraction(1, 2))
HALF = Fraction(1, 2)


def best(*terms):
    return min(max(terms), Fraction(1))


# By another reading of the table: each curve as its closed form in a.
CURVES = {
    ("a", "L2P, convex, printed"): lambda a: best(HALF, Fraction(1, 3) + 2 * a / 3),
    ("a", "L2P, convex"): lambda a: HALF if a <= Fraction(1, 6) else Fraction(2, 5) + 3 * a / 5,
    ("a", "AKST23b, convex"): lambda a: best(HALF, Fraction(1, 3) + a, Fraction(3, 8) + 3 * a / 4),
    ("a", "DP-FTRL, convex"): lambda a: best(HALF + a / 2),
    ("b", "L2P, convex, printed"): lambda a: best(HALF, HALF + 2 * a / 3),
    ("b", "L2P, convex"): lambda a: best(HALF + 3 * a / 5),
    ("b", "AKST23b, convex"): lambda a: best(HALF, HALF + a, Fraction(13, 24) + 3 * a / 4),
    ("b", "DP-FTRL, convex"): lambda a: best(Fraction(7, 12) + a / 2),
    ("c", "L2P, experts, printed"): lambda a: best(HALF, Fraction(1, 3) + 2 * a / 3),
    ("c", "L2P, experts"): lambda a: HALF if a <= Fraction(1, 6) else Fraction(2, 5) + 3 * a / 5,
    ("c", "AS17 and AFKT23b, experts"): lambda a: min(
        best(HALF, Fraction(1, 3) + a), best(HALF, Fraction(2, 5) + 4 * a / 5)
    ),
    ("c", "redraw, experts"): lambda a: best(HALF + a / 2),
}
VALUES = {  # at a = 0, 1/6, 1/4, 1/3, 1/2
    ("c", "L2P, experts, printed"): (HALF, HALF, HALF, Fraction(5, 9), Fraction(2, 3)),
    ("c", "L2P, experts"): (HALF, HALF, Fraction(11, 20), Fraction(3, 5), Fraction(7, 10)),
    ("c", "AS17 and AFKT23b, experts"): (
        HALF,
        HALF,
        Fraction(7, 12),
        Fraction(2, 3),
        Fraction(4, 5),
    ),
    ("b", "L2P, convex"): (HALF, Fraction(3, 5), Fraction(13, 20), Fraction(7, 10), Fraction(4, 5)),
}


def test_all_curves_of_the_figure_are_here():
    named = {(panel, name) for panel, (_, names) in online.FIGURE.items() for name in names}
    assert named == set(CURVES)


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_exponents_are_exact(curve):
    panel, method = curve
    dim, _ = online.FIGURE[panel]
    found = [online.regret_exponent(method, a, dim) for a in AT]
    assert found == [CURVES[curve](a) for a in AT]
    assert found == list(VALUES.get(curve, found))
    assert online.regret_exponent(method, Fraction(5), dim) == 1


def test_breaks_are_where_they_are_said_to_be():
    tiny = Fraction(1, 1000)
    for method, at in (
        ("L2P, experts, printed", Fraction(1, 4)),
        ("L2P, experts", Fraction(1, 6)),
        ("AS17 and AFKT23b, experts", Fraction(1, 6)),
    ):
        assert online.regret_exponent(method, at, 1) == HALF
        assert online.regret_exponent(method, at + tiny, 1) > HALF


@pytest.mark.parametrize("method", online.REGRET)
def test_values_grow_with_their_exponents(method):
    a, dim, big = Fraction(1, 3), Fraction(1, 3), 1e200
    at = [online.regret(method, t, t ** -float(a), t ** float(dim)) for t in (big, big * 1e5)]
    slope = math.log(at[1] / at[0]) / math.log(1e5)
    assert slope == pytest.approx(float(online.regret_exponent(method, a, dim)), abs=1e-6)


def test_what_is_proven_is_never_below_what_is_printed():
    for a in AT:
        for kind in ("experts", "convex"):
            printed = online.regret_exponent(f"L2P, {kind}, printed", a)
            assert online.regret_exponent(f"L2P, {kind}", a) >= printed


def test_privacy_of_linear_losses_is_free_up_to_a_root_of_the_rounds():
    a = Fraction(1, 3)
    found = [
        online.regret_exponent("AS17, linear losses", a, dim) for dim in (0, Fraction(1, 3), 1)
    ]
    assert found == [HALF, HALF, Fraction(5, 6)]
    assert online.regret("AS17, linear losses", 1e4, 0.5, 9.0) == pytest.approx(100.0 + 6.0)
