"""Composition in closed form, against enumeration, quadrature and published values."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsco_jax import privacy
from dpsco_jax.privacy.curves import composition


@pytest.mark.parametrize(
    ("num_steps", "epsilon", "expected"), [(50, 0.1, 0.03825307), (200, 0.05, 0.03928896)]
)
def test_optimal_composition_reproduces_reference_values(num_steps, epsilon, expected):
    assert composition.optimal_composition(epsilon, 0.0, num_steps, 1.0) == pytest.approx(
        expected, abs=5e-9
    )


@pytest.mark.parametrize("total", [0.0, 0.35, 0.9])
def test_optimal_composition_is_that_of_responses_which_may_fail(total):
    epsilon, delta, num_steps = 0.3, 0.02, 5
    likely = (1 - delta) / (1 + math.exp(-epsilon))
    unlikely = likely * math.exp(-epsilon)
    p, q = [likely, unlikely, delta, 0.0], [unlikely, likely, 0.0, delta]
    exact = sum(
        max(
            math.prod(p[i] for i in outcome) - math.exp(total) * math.prod(q[i] for i in outcome), 0
        )
        for outcome in itertools.product(range(4), repeat=num_steps)
    )
    found = composition.optimal_composition(epsilon, delta, num_steps, total)
    assert exact <= found <= exact * (1 + 1e-10)


@given(
    st.floats(0.001, 0.5), st.floats(0.0, 1e-4), st.integers(1, 3000), st.sampled_from([1e-3, 1e-8])
)
@settings(max_examples=40, deadline=None)
def test_optimal_composition_is_never_worse_than_advanced(epsilon, delta, num_steps, slack):
    total, failure = composition.advanced_composition(epsilon, delta, num_steps, slack)
    assert composition.optimal_composition(epsilon, delta, num_steps, total) <= failure


def test_advanced_composition_is_its_formula():
    total, failure = composition.advanced_composition(0.1, 1e-6, 20, 1e-5)
    assert total == pytest.approx(math.sqrt(40 * math.log(1e5)) * 0.1 + 2 * math.expm1(0.1))
    assert failure == pytest.approx(3e-5)


@pytest.mark.parametrize(
    ("response", "epsilon", "delta", "expected"),
    [
        (0.0, 0.5, 5e-7, 0.119785),
        (0.5, 1.0, 5e-7, 0.122695),
        (0.0, 1.0, 5e-7, 0.229087),
        (1.0, 2.0, 5e-7, 0.232445),
        (0.0, 1.0, 1e-6, 0.236704),
        (0.0, 3.0, 1e-6, 0.647727),
        (0.0, 1.0, 1e-5, 0.268051),
        (0.0, 2.0, 1e-5, 0.501552),
    ],
)
def test_the_largest_distance_reproduces_reference_values(response, epsilon, delta, expected):
    mu = composition.response_gaussian_mu(response, epsilon, delta)
    assert mu == pytest.approx(expected, abs=6e-7)
    spent = composition.log_response_gaussian_delta(response, mu, epsilon)
    assert spent <= math.log(delta)
    assert spent == pytest.approx(math.log(delta), abs=1e-9)


@pytest.mark.parametrize(
    ("mu", "epsilon"), [(0.05, 1.0), (0.3, 4.0), (0.01, 0.2), (2.0, -0.7), (0.1, 3.0)]
)
def test_the_gaussian_curve_is_right_and_rounded_up_however_small(mu, epsilon):
    with mpmath.workdps(400):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        exact = mpmath.log(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))
        found = composition.log_gaussian_delta(mu, epsilon)
        assert exact <= found <= exact + 1e-10 * (1 + abs(exact))


def test_tiny_deltas_can_be_inverted():
    for delta in (1e-15, 1e-100, 1e-300):
        mu = composition.response_gaussian_mu(0.25, 1.0, delta)
        assert composition.log_response_gaussian_delta(0.25, mu, 1.0) == pytest.approx(
            math.log(delta), rel=1e-9
        )


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5])
def test_the_product_of_response_and_gaussian_by_quadrature(epsilon):
    response, mu = 0.7, 0.6
    x = np.linspace(-12, 13, 400_001)
    likely = 1 / (1 + math.exp(-response))
    total = 0.0
    for p, q in ((likely, 1 - likely), (1 - likely, likely)):
        gap = p * np.exp(-0.5 * (x - mu) ** 2) - math.exp(epsilon) * q * np.exp(-0.5 * x**2)
        total += np.trapezoid(np.maximum(gap, 0), x) / math.sqrt(2 * math.pi)
    found = composition.log_response_gaussian_delta(response, mu, epsilon)
    assert math.exp(found) == pytest.approx(total, rel=1e-7)


def test_group_privacy_is_a_chain_of_neighbours():
    epsilon, delta, size = 0.4, 1e-3, 5
    bound, at = 0.0, 1.0
    for _ in range(size):
        bound, at = bound + at * delta, at * math.exp(epsilon)
    group = composition.group_privacy(epsilon, delta, size)
    np.testing.assert_allclose(group, (size * epsilon, bound), rtol=1e-12)
    np.testing.assert_allclose(composition.group_privacy(0.0, 1e-3, 5), (0.0, 5e-3), rtol=1e-12)
    assert composition.group_privacy(1.0, 1e-6, 1000)[1] == 1.0
    # A Gaussian release has a better way: k times the distance.
    mu = composition.response_gaussian_mu(0.0, epsilon, delta)
    own = privacy.certificate(
        privacy.events.gaussian(1 / (size * mu)), group[1], NeighboringRelation.REPLACE_ONE
    )
    assert own.epsilon < 0.96 * group[0]


def test_a_response_that_spends_all_of_epsilon_is_refused():
    with pytest.raises(ValueError, match="must be"):
        composition.response_gaussian_mu(1.0, 1.0, 1e-6)
