"""Hard instances of users: risks, distances and divergences by enumeration; tests that reach a bound."""

import itertools
import math

import jax
import numpy as np
import pytest

from dpsco_jax.problems import user_level_instances as hard

V = np.array([1, -1, 1])
MADE = hard.sign_class(V, gap=0.4, bound=2.0)


def law(v, gap=0.4):
    """Of an item, by its integer 2j + (1 if it is e_j)."""
    return np.array([(1 + s * v[j] * gap) / (2 * len(v)) for j in range(len(v)) for s in (-1, 1)])


def test_excess_is_the_risk_above_the_best_candidate():
    risks = {
        theta: sum(p * float(MADE.loss(np.array(theta), z)) for z, p in enumerate(law(V)))
        for theta in itertools.product([-1, 1], repeat=3)
    }
    for theta, risk in risks.items():
        expected = float(MADE.excess(np.array(theta)))
        assert risk - min(risks.values()) == pytest.approx(expected, abs=1e-6)
    assert risks[tuple(-V)] == min(risks.values())
    assert float(MADE.excess(V)) == pytest.approx(3 * MADE.separation)


def test_one_sign_is_this_near_in_law():
    p, q = law(V), law(V * [1, 1, -1])
    assert MADE.total_variation == pytest.approx(0.5 * np.abs(p - q).sum())
    assert MADE.divergence == pytest.approx(np.sum(p * np.log(p / q)))
    assert MADE.separation == pytest.approx(2 * 0.4 / 3)


def test_draws_are_of_the_law():
    items = np.asarray(MADE.draw(jax.random.key(0), 3000, 4).items)
    assert items.shape == (3000, 4)
    seen = np.bincount(items.ravel(), minlength=6) / items.size
    assert np.all(np.abs(seen - law(V)) < 4 * np.sqrt(law(V) / items.size))


def test_one_user_reaches_the_least_errors_and_more_users_do_not_go_below():
    for epsilon, delta in ((0.5, 0.0), (2.0, 0.1)):
        wrong = (1 - delta) / (1 + math.exp(epsilon))  # the truth with δ, else randomized response
        assert hard.least_error_sum(1, epsilon, delta) == pytest.approx(2 * wrong, rel=1e-9)
    for n in (2, 5):
        # Odds e^{ε(k - n/2)} for k users of the one kind, of which one moves them by e^ε.
        found = 2 / (1 + math.exp(0.3 * n / 2))
        assert hard.least_error_sum(n, 0.3) < found
        paper = 2 * (1 - n * 1e-3 * math.exp(n * 0.3)) / (1 + math.exp(n * 0.3))
        assert hard.least_error_sum(n, 0.3, 1e-3) > paper
    assert hard.least_error_sum(10**6, 1.0, 1e-3) == 0.0


def test_refusals():
    with pytest.raises(ValueError, match="signs"):
        hard.sign_class(np.array([1, 0]), 0.5)
    for gap in (0.0, 1.0):
        with pytest.raises(ValueError, match="gap"):
            hard.sign_class(V, gap)
