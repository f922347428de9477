"""T, section 6.4: excess risk of losses that are not convex, with tests that fail on what is printed."""

import math

import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.privacy import variation_delta
from dpsco_jax.problems import nonconvex_losses
from dpsco_jax.solvers.nonconvex import _gibbs_numbers as numbers
from dpsco_jax.solvers.nonconvex import gibbs, net_exponential_mechanism

pytestmark = pytest.mark.usefixtures("float64")

WELSCH = nonconvex_losses.welsch(1.0, domain=domains.ball(1.0))


def problem(num_users, dim=1):
    return Problem(WELSCH, num_users=num_users, dim=dim)


def test_c6_11_the_condition_is_for_epsilon_and_the_generalization_error_is_the_smaller_one():
    epsilon, delta = 0.1, 1e-6
    # For linear losses C is exact, and the law a Gaussian: 2Gβ√C/n is the distance in deviations.
    for limit, private in ((1.0, False), (epsilon, True)):
        distance = limit / math.sqrt(3 * math.log(1 / delta))
        assert (variation_delta(distance, 0.0, epsilon) <= delta) == private
    # In units of GD, at the printed order of β: the empirical risk dominates, not the other.
    u = math.log(1e5) / math.sqrt(math.log(1e6))
    empirical, generalization = (1.5 + math.log(1 + u)) / u, 2 * u * math.exp(u) / 1e5
    assert generalization == pytest.approx(0.0014, abs=5e-5)
    assert empirical == pytest.approx(0.94, abs=0.005)
    # β need not fall as ε: at a hundredth of ε it is two thirds of what it was, not a hundredth.
    plans = [
        gibbs.plan(problem(10**5), Budget(e, 1e-6), constants="paper", most_proposals=10**6)
        for e in (1.0, 0.01)
    ]
    assert plans[1].inverse_temperature > 0.4 * plans[0].inverse_temperature


def test_c6_12_the_divergence_of_the_start_is_no_exponential():
    grid = (np.arange(100_000) + 0.5) / 100_000
    for u in (1.0, 5.0, 12.0):
        weights = np.exp(-u * np.where(grid < 0.9, 1.0, 0.0))  # a well of a tenth
        start, target = np.full(len(grid), 1 / len(grid)), weights / weights.sum()
        divergence = np.sum(start * np.log(start / target))
        assert divergence <= u < 0.6 * math.exp(u)
    assert divergence > 0.7 * u


def test_c6_13_the_risk_on_a_net_falls_as_one_over_root_n():
    bounds = [
        net_exponential_mechanism.plan(
            problem(n), Budget(1.0), risk="population", most_points=2**24
        ).excess_bound
        for n in (10**4, 10**6)
    ]
    printed = [math.sqrt(math.log(n) / math.sqrt(n)) for n in (10**4, 10**6)]
    assert bounds[0] / bounds[1] > 8.0
    assert printed[0] / printed[1] < 3.0
    assert bounds[1] < 0.05 * printed[1]


def test_c6_15_bounded_range_proves_more_wherever_the_risk_is_not_trivial():
    # The temperature at which the theorem gives ε = 1.
    plan = gibbs.plan(problem(10**5), Budget(1.0, 1e-6), constants="paper", most_proposals=10**6)
    rho, spent = float(plan.concentration), float(plan.range)
    assert rho == pytest.approx(numbers.zcdp_within(1.0, 1e-6), rel=1e-3)
    assert spent == pytest.approx(2.6e-4, rel=0.02)
    assert plan.certificate().epsilon == spent
    assert rho / (spent**2 / 8) == pytest.approx(4 * math.exp(2 * float(plan.steepness)), rel=1e-3)
    # αR² > 1 would be better; where w < 2v, so that the bound says something, it is 2/e at most.
    found = [
        numbers.log_sobolev_of(v, share * 2 * v).rate
        for v in np.geomspace(1e-3, 20.0, 1000)
        for share in (1.0, 0.7, 0.3)
    ]
    assert 0.7355 < max(found) <= 2 / math.e
    assert numbers.log_sobolev_of(0.2, 3.0).rate > 1.0
