"""Routes to a private point: their order, and what is said where one of them refuses."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.solvers.item_level import langevin, private_ac_sa
from dpsco_jax.solvers.sampling import regularized, routes

pytestmark = pytest.mark.usefixtures("float64")

BUDGET = Budget(1.0, 1e-6)
SMOOTH = Problem(losses.logistic(1.0), num_users=5000, dim=10, distance=4.0)


def test_plans_are_those_of_the_solvers():
    found = {route.name: route for route in routes.compare(SMOOTH, BUDGET).routes}
    for name, solver in (
        ("regularized", regularized),
        ("langevin", langevin),
        ("private_ac_sa", private_ac_sa),
    ):
        plan = solver.plan(SMOOTH, BUDGET)
        assert found[name].plan == plan
        assert found[name].excess_bound == float(plan.excess_bound)
        assert found[name].user_gradients == float(plan.user_gradients)


def test_expectations_are_in_order_and_bounds_come_last():
    found = routes.compare(SMOOTH, BUDGET)
    expected = [route.predicted_excess for route in found.routes]
    assert expected[0] <= expected[1]
    assert math.isnan(expected[2])
    assert found.best is found.routes[0]
    # Smooth losses and little noise: gradient steps are expected to win, by more with more users.
    ratios = []
    for users in (2000, 200_000):
        by_name = {
            route.name: route.predicted_excess
            for route in routes.compare(
                dataclasses.replace(SMOOTH, num_users=users), Budget(2.0, 1e-6)
            ).routes
        }
        ratios.append(by_name["regularized"] / by_name["langevin"])
    assert ratios[1] > ratios[0]
    assert ratios[1] > 1.0


def test_who_refuses_is_listed_with_the_reason():
    rough = routes.compare(
        dataclasses.replace(SMOOTH, objective=losses.hinge(1.0), num_users=300), BUDGET
    )
    by_name = {route.name: route for route in rough.routes}
    assert by_name["langevin"].plan is None
    assert "smooth" in by_name["langevin"].refusal
    assert rough.best.plan is not None
    assert by_name["langevin"].refusal in str(rough)
    bounded = losses.logistic(1.0, domain=domains.ball(3.0))
    by_name = {
        route.name: route
        for route in routes.compare(dataclasses.replace(SMOOTH, objective=bounded), BUDGET).routes
    }
    assert "objective.domain" in by_name["regularized"].refusal


def test_without_float64_draws_are_refused_and_the_others_are_not():
    with jax.enable_x64(False):
        by_name = {route.name: route for route in routes.compare(SMOOTH, BUDGET).routes}
    assert "jax_enable_x64" in by_name["regularized"].refusal
    assert by_name["langevin"].plan is not None


def test_none_at_all_is_an_error_with_all_reasons():
    # Not Lipschitz, not smooth, and no distance.
    nothing = routes.Routes(
        tuple(
            routes.Route(name, None, math.nan, math.inf, math.nan, f"no {name}")
            for name in ("a", "b")
        )
    )
    with pytest.raises(ValueError, match="a: no a; b: no b"):
        _ = nothing.best


def test_the_expectation_of_a_draw_is_that_of_a_gaussian():
    # By quadrature over the nominal directions, in NumPy: a pull to the start, and variance 1/(k(h + μ)).
    plan = regularized.plan(SMOOTH, BUDGET)
    k, mu = float(plan.inverse_temperature), float(plan.regularization)
    ranks = np.arange(1, 11)
    curvatures = ranks**-0.5 / np.sum(ranks**-0.5)
    bends = 0.25 * curvatures
    start = 1.0**2 / (
        10 * curvatures
    )  # margins of mean square one: twice the typical slope of ½, over ¼
    errors = (mu / (bends + mu)) ** 2 * start + 1 / (k * (bends + mu))
    margin = np.sum(curvatures * errors)
    expected = 0.125 * margin / (1 + 0.25 * np.sqrt(margin) / 2)
    assert plan.predicted_excess == pytest.approx(expected, rel=1e-6)
