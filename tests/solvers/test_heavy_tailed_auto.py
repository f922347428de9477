"""The choice among solvers for heavy tails: its numbers by hand, what it refuses, what it runs."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import heavy_tailed as laws
from dpsco_jax.problems import losses
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers._schedules import clipped_descent
from dpsco_jax.solvers.heavy_tailed import _terms, auto, clipped_gd, population_localize

BUDGET, MOMENTS, USERS, DIM = Budget(4.0, 1e-6), Moments(4.0, 4.0, 3.0, 2.5), 1024, 4
MADE = laws.linear_model(laws.Tail("student", 4.5), dim=DIM, radius=2.0)


def problem_of(objective=MADE.objective, users=USERS):
    return Problem(objective, num_users=users, dim=DIM, distance=1.0)


@functools.cache
def chosen(**given):
    return auto.plan(problem_of(), BUDGET, moments=MOMENTS, **given)


def by_name(plan):
    return {row.name: row for row in plan.rows}


def typical(users):
    rho = _terms.rho_of(USERS, BUDGET, "tight", "pld")
    return clipped_descent.typical(MOMENTS, users, math.sqrt(2 * DIM / rho) / users)


def test_the_choice_is_the_least_prediction_and_says_so():
    plan = chosen()
    rows = by_name(plan)
    assert plan.choice == "clipped_gd, quantile" == min(plan.rows, key=lambda r: r.prediction).name
    assert "is expected to have the least excess risk" in str(plan)
    assert all(name in str(plan) for name in rows)
    assert rows["phased_clipped_glm"].reason.startswith("jax_enable_x64")
    far = typical(USERS).distance
    np.testing.assert_allclose(rows["clipped_gd, moments"].prediction, far, rtol=1e-3)
    np.testing.assert_allclose(plan.chosen.method.strength, far / 16, rtol=1e-3)
    # Of steps for a pull much below the curvature too many would be too long.
    richer = auto.plan(problem_of(users=50 * USERS), BUDGET, moments=MOMENTS)
    assert typical(50 * USERS).distance / 16 < 0.01 == richer.chosen.method.strength
    # Labels without end: a Lipschitz constant of 10⁹.
    assert rows["localized_erm"].prediction > 1e3
    assert plan.certificate().epsilon <= BUDGET.epsilon


def test_phases_are_predicted_by_their_sum():
    row = by_name(chosen())["population_localize"]
    plan = population_localize.plan(problem_of(), BUDGET, moments=MOMENTS, num_steps=1000)
    ends = [typical(part.num_users).distance for part in plan.parts]
    strengths = tuple(float(part.strength) for part in plan.parts)
    wanted = clipped_descent.bound_of(strengths, ends, MOMENTS.first, 1.0)
    np.testing.assert_allclose(row.prediction, wanted, rtol=1e-3)
    np.testing.assert_allclose(row.bound, plan.excess_bound)


def test_the_least_bound_is_chosen_where_a_theorem_is_asked_for():
    with jax.enable_x64(True):
        plan = auto.plan(problem_of(), BUDGET, moments=MOMENTS, rank_by="bound")
    assert plan.choice == "phased_clipped_glm"
    assert plan.excess_bound == min(row.bound for row in plan.rows) < math.inf
    assert "is proven to have" in str(plan)
    endless = losses.absolute(1.0, domains.whole_space())
    without = auto.plan(problem_of(endless), BUDGET, moments=MOMENTS, rank_by="bound")
    assert without.choice == "localized_erm"
    bent = MADE.objective._replace(loss_strong_convexity=-0.1, ridge=0.1)
    with pytest.raises(ValueError, match="candidates"):
        auto.plan(problem_of(bent), BUDGET, moments=MOMENTS, rank_by="bound")


def test_strong_convexity_is_expected_to_help():
    ridged = MADE.objective._replace(ridge=1.0)
    plan = auto.plan(problem_of(ridged), BUDGET, moments=MOMENTS)
    far = typical(USERS).distance
    row = by_name(plan)["clipped_gd, quantile"]
    np.testing.assert_allclose(row.prediction, far**2 / 2 + far / 32, rtol=1e-3)


def test_what_runs_is_the_plan_of_the_chosen_solver():
    plan = chosen(gradient_budget=30 * USERS)
    assert plan.chosen.num_steps == 30
    data = MADE.draw(jax.random.key(0), USERS)

    @functools.partial(jax.jit, static_argnums=0)
    def run(solver, key, plan):
        return solver.solve(key, plan, MADE.objective, data, jnp.zeros(DIM)).params

    found = run(auto, jax.random.key(1), plan)
    np.testing.assert_array_equal(found, run(clipped_gd, jax.random.key(1), plan.chosen))
    assert MADE.excess(found) < 0.3 * MADE.excess(jnp.zeros(DIM))
