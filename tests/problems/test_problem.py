"""What every plan is asked: a problem and a budget, checked once, by the names of their numbers."""

import dataclasses
import math

import pytest

import dpsco_jax
from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.solvers.user_level import sgd

BALL = losses.logistic(1.0, domain=domains.ball(3.0))
WIDE = losses.logistic(1.0, domain=domains.whole_space())


def test_both_are_there_by_the_name_of_the_package():
    assert dpsco_jax.Problem is dpsco_jax.problems.Problem
    assert dpsco_jax.Budget is dpsco_jax.privacy.Budget
    assert {"Problem", "Budget"} <= set(dir(dpsco_jax))


def test_the_distance_is_what_is_given_or_the_diameter():
    made = Problem(BALL, num_users=10, dim=2)
    assert (made.distance, made.farthest, made.diameter) == (None, 6.0, 6.0)
    assert made.require_distance() == 6.0
    nearer = dataclasses.replace(made, distance=1)
    assert (nearer.farthest, nearer.require_distance()) == (1.0, 1.0)
    assert made.lipschitz == BALL.lipschitz


def test_an_unbounded_domain_needs_a_distance_where_a_plan_asks_for_one():
    made = Problem(WIDE, num_users=10, dim=2)
    assert math.isinf(made.farthest)
    with pytest.raises(ValueError, match=r"problem\.distance must be in \(0, inf\)"):
        made.require_distance()
    # A plan with its own step size asks for none.
    with pytest.raises(ValueError, match=r"problem\.distance must be in \(0, inf\)"):
        sgd.plan(made, Budget(1.0, 1e-3), num_steps=2, sampling="full")
    sgd.plan(made, Budget(1.0, 1e-3), num_steps=2, sampling="full", step_size=0.1)


def test_pure_privacy_is_a_budget_but_not_of_gaussian_noise():
    made = Problem(BALL, num_users=10, dim=2)
    assert Budget(1.0).delta == 0.0
    with pytest.raises(ValueError, match=r"budget\.delta must be in \(0, 1\)"):
        sgd.plan(made, Budget(1.0), num_steps=2, sampling="full")


@pytest.mark.parametrize("place", ["problem", "budget"])
def test_what_is_neither_is_refused(place):
    asked = {"problem": Problem(BALL, num_users=10, dim=2), "budget": Budget(1.0, 1e-3)}
    with pytest.raises(ValueError, match=place):
        sgd.plan(**(asked | {place: BALL}), num_steps=2, sampling="full")
