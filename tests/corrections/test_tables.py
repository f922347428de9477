"""Section T of docs/corrections.md: the printed claim fails, ours holds."""

from fractions import Fraction

import numpy as np
import pytest

from dpsco_jax.rates import accelerated, parallel
from dpsco_jax.rates.accelerated import OURS, Setting


def by_regularization(method, setting):
    """Lemma 1.4.10 applied to a row of Table 1.2: the least of its error at u, and u·D²/2."""
    convexity = np.geomspace(1e-9, 1e3, 4001)
    inner = accelerated.excess_risk(
        method, "strongly convex ERM", setting._replace(strong_convexity=convexity)
    )
    return np.min(inner + convexity * setting.diameter**2 / 2)


def test_t1_the_logarithm_stands_under_the_root():
    ratios, printed_ratios = [], []
    for delta in (1e-3, 1e-6, 1e-12):
        setting = Setting(1e5, 50.0, 0.5, delta, lipschitz=2.0, diameter=3.0)
        implied = by_regularization(OURS, setting)
        ratios.append(implied / accelerated.excess_risk(OURS, "convex ERM", setting))
        printed = 6.0 * np.sqrt(50.0) * np.log(1 / delta) / (1e5 * 0.5)
        printed_ratios.append(implied / printed)
    assert ratios == pytest.approx([np.sqrt(2)] * 3, rel=1e-3)  # 2·√(½)
    assert printed_ratios[2] < 0.51 * printed_ratios[0]


def test_t2_the_rows_of_kst12_do_not_agree():
    settings = [Setting(n, 50.0, 0.5, 1e-6) for n in (1e4, 1e8)]
    gaps = [
        accelerated.excess_risk("KST12", "convex ERM", s) / by_regularization("KST12", s)
        for s in settings
    ]
    assert gaps[1] / gaps[0] == pytest.approx(1e4**0.25, rel=1e-2)
    # The text's denominator √(Nε) is the larger one for ε < 1.
    table = accelerated.excess_risk("KST12", "convex ERM", settings[0])
    text = np.sqrt(50.0) * np.log(1e6) / np.sqrt(1e4 * 0.5)
    assert table == pytest.approx(text / np.sqrt(0.5))


def test_t3_the_logarithms_of_the_last_row_are_not_under_the_root():
    n, d, eps, delta = 1e4, 1e3, 0.5, 1e-6
    logs = np.log(n) * np.log(n / delta) ** 1.5
    theorem = 1 / np.sqrt(n) + np.sqrt(d * np.log(1 / delta)) * logs / (n * eps)
    printed = 1 / np.sqrt(n) + np.sqrt(d * np.log(1 / delta) * logs) / (n * eps)
    found = parallel.excess_risk(parallel.RESQUE, Setting(n, d, eps, delta))
    assert found == pytest.approx(theorem)
    assert found > 25 * printed


def test_t4_no_lower_bound_exceeds_what_doing_nothing_achieves():
    setting = Setting(100.0, 1e6, 0.5, 1e-6, 2.0, 3.0, 0.5)
    private = np.sqrt(1e6) / (100 * 0.5)
    assert 6.0 * (0.1 + private) > 6.0  # Table 1.3, of G·D = 6
    assert 2.0**2 / 0.5 * (0.01 + private**2 * np.log(1e6)) > 2 * 2.0**2 / 0.5  # Table 1.4
    for problem in accelerated.PROBLEMS:
        trivial = 2.0**2 / 0.5 if problem.startswith("strongly") else 6.0
        assert accelerated.lower_bound(problem, setting) <= trivial
        # Where it says something, it is the printed one, without a logarithm.
        small = accelerated.lower_bound(problem, setting._replace(dim=1.0, delta=1e-3))
        assert small == accelerated.lower_bound(problem, setting._replace(dim=1.0))


def test_t5_both_are_quadratic_in_few_dimensions():
    few, edge = Fraction(0), Fraction(4, 3)
    for a in (few, edge):
        ours, theirs = (
            accelerated.log_exponent(name, "convex ERM", a) for name in (OURS, "AFKT21")
        )
        assert ours == theirs
    assert accelerated.log_exponent(OURS, "convex SCO", few) < accelerated.log_exponent(
        "AFKT21", "convex SCO", few
    )
