"""The one-run audit against a direct evaluation of its theorem, and on mechanisms with a known ε."""

import math

import mpmath
import numpy as np
import pytest

from dpsco_jax.privacy import one_run_audit, one_run_epsilon_lower_bound


def p_value(epsilon, canaries, guesses, correct, delta):
    """Theorem 5.2 term by term, in 40 digits."""
    with mpmath.workdps(40):
        p = 1 / (1 + mpmath.exp(-epsilon))

        def mass(k):
            return mpmath.binomial(guesses, k) * p**k * (1 - p) ** (guesses - k)

        beta = mpmath.fsum(mass(k) for k in range(correct, guesses + 1))
        alpha = max(
            mpmath.fsum(mass(k) for k in range(correct - i, correct)) / i
            for i in range(1, correct + 1)
        )
        return beta + 2 * canaries * delta * alpha


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "delta"),
    [(100, 100, 80, 0.0), (100, 40, 40, 1e-5), (500, 100, 93, 1e-4), (50, 50, 45, 1e-2)],
)
def test_the_bound_is_where_the_p_value_crosses(canaries, guesses, correct, delta):
    found = one_run_epsilon_lower_bound(canaries, guesses, correct, delta, 0.95)
    assert found > 0
    assert p_value(found * (1 - 1e-6), canaries, guesses, correct, delta) < 0.05
    assert p_value(found * (1 + 1e-6), canaries, guesses, correct, delta) > 0.05


def test_without_delta_it_is_clopper_pearson_on_the_accuracy():
    # All of 100 right: (e^ε / (1 + e^ε))^100 = 0.05.
    root = 0.05 ** (1 / 100)
    found = one_run_epsilon_lower_bound(100, 100, 100, 0.0)
    assert found == pytest.approx(math.log(root / (1 - root)), rel=1e-6)


def test_guessing_proves_nothing():
    assert one_run_epsilon_lower_bound(1000, 1000, 500, 1e-5) == 0.0
    assert one_run_epsilon_lower_bound(10, 0, 0, 1e-5) == 0.0
    rng = np.random.default_rng(0)
    assert one_run_audit(rng.normal(size=2000), rng.random(2000) < 0.5, 500, 1e-5, 0.999) == 0.0


def test_a_large_delta_explains_everything():
    assert one_run_epsilon_lower_bound(1000, 100, 100, 0.0) > 3.0
    assert one_run_epsilon_lower_bound(1000, 100, 100, 0.1) == 0.0


def test_randomized_response_is_found_and_never_exceeded():
    # Each coin is released by randomized response with ε = 2: the law of the correct guesses is tight.
    epsilon, canaries = 2.0, 1000
    rng = np.random.default_rng(1)
    right = rng.binomial(canaries, 1 / (1 + math.exp(-epsilon)), 200)
    bounds = np.array(
        [one_run_epsilon_lower_bound(canaries, canaries, int(v), 1e-7) for v in right]
    )
    assert np.mean(bounds > epsilon) <= 0.08
    assert np.median(bounds) > 0.8 * epsilon


def test_gaussian_canaries():
    # Noise 1 on every coin: ε at δ = 1e-5 is 4.4, and the extreme scores prove a good part of it.
    rng = np.random.default_rng(2)
    included = rng.random(20_000) < 0.5
    scores = included + rng.normal(size=20_000)
    found = one_run_audit(scores, included, 600, 1e-5)
    assert 1.5 < found < 4.4
    # Guesses that are wrong on purpose prove nothing.
    assert one_run_audit(-scores, included, 600, 1e-5) == 0.0


@pytest.mark.parametrize("arguments", [(10, 11, 5), (10, 5, 6), (10, 5, -1)])
def test_bad_counts_are_refused(arguments):
    with pytest.raises(ValueError, match=r"num_(correct|guesses) must be"):
        one_run_epsilon_lower_bound(*arguments, 1e-5)


@pytest.mark.parametrize("guesses", [0, 3, 12])
def test_bad_numbers_of_guesses_are_refused(guesses):
    with pytest.raises(ValueError, match="num_guesses"):
        one_run_audit(np.zeros(10), np.zeros(10, bool), guesses, 1e-5)
