"""What an attack on the regularized exponential mechanism found, and was mended."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Infeasible, Problem
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import (
    chain_lengths,
    proximal_oracle,
    regularized,
)
from tests.support.edited_plans import gaussian_curve

pytestmark = pytest.mark.usefixtures("float64")

LOGISTIC = losses.logistic(1.0)


def problem(objective=LOGISTIC, num_users=2000, dim=5, distance=3.0):
    return Problem(objective, num_users=num_users, dim=dim, distance=distance)


# --- the last digits of a draw ---


def last_digit(values):
    """The exponent of the last digit of a float64 that is not zero."""
    mantissas, exponents = np.frexp(values)
    whole = np.abs(mantissas * 2.0**53).astype(np.int64)
    lowest = np.log2(np.maximum(whole & -whole, 1).astype(float)).astype(int)
    return np.where(whole > 0, exponents - 53 + lowest, 0)


def test_the_digits_of_a_draw_tell_no_more_than_is_certified():
    # s = 2, attained: one user's linear loss is turned round. The sum of anchor and offset has the digits of
    # the offset, which show where the anchor was; and the anchors of neighbours are apart as well.
    objective, count, epsilon = losses.huber(1.0), 24_000, 2.0
    plan = dataclasses.replace(
        regularized.plan(problem(objective, 2, 1), Budget(8.0, 1e-3)),
        inverse_temperature=8.0,
        regularization=2.0,
        num_steps=14.0,
        num_trials=400.0,
    )

    def draws(second):
        labels = jnp.array([[1e9], [second * 1e9]])
        data = UserData(Example(jnp.ones((2, 1, 1)), labels))

        def draw(key):
            return regularized.solve(key, plan, objective, data, jnp.zeros(1)).params[0]

        keys = jax.random.split(jax.random.key(int(second) + 5), count)
        return np.asarray(jax.jit(jax.vmap(draw))(keys))

    def cells(values):
        places = np.clip((values + 1.5) * 20, 0, 59).astype(int)
        return 30 * places + np.clip(last_digit(values) + 70, 0, 29)

    one, other = cells(draws(-1.0)), cells(draws(1.0))
    half = count // 2
    # Cells are chosen with one half of the draws, and weighed with the other.
    first, second = (np.bincount(found[:half], minlength=1800) + 0.5 for found in (one, other))
    chosen = first > math.exp(epsilon) * second
    p, q = (float(np.mean(chosen[found[half:]])) for found in (one, other))
    s, tau = float(plan.gdp), float(plan.numbers.variation.total)
    error = math.sqrt((p + math.exp(2 * epsilon) * q) / half)
    assert (
        p - math.exp(epsilon) * q
        <= gaussian_curve(s, epsilon) + (1 + math.exp(epsilon)) * tau + 4 * error
    )


# --- budgets ---


@pytest.mark.parametrize(
    "epsilon", [8.0, 100.0, *(pytest.param(x, marks=pytest.mark.slow) for x in (5.0, 12.0, 30.0))]
)
def test_a_large_epsilon_asks_no_more_than_a_smaller_one(epsilon):
    assert regularized.plan(problem(), Budget(4.0, 1e-6)).certificate().epsilon <= 4.0
    assert regularized.plan(problem(), Budget(epsilon, 1e-6)).certificate().epsilon <= epsilon


@pytest.mark.parametrize(("users", "slots", "distance"), [(3230, 128, 10.0), (20_000, 1, 10.0)])
def test_a_larger_epsilon_promises_no_less(users, slots, distance):
    """Where rounding takes much of δ; within the steps by which smaller ε are tried."""
    problem = Problem(LOGISTIC, num_users=users, dim=58, items_per_user=slots, distance=distance)
    made = [regularized.plan(problem, Budget(epsilon, 1e-6)) for epsilon in (1.0, 2.0, 4.0, 8.0)]
    expected = [float(plan.predicted_excess) for plan in made]
    assert all(later <= 1.03 * min(expected) for later in expected[2:])
    for plan, epsilon in zip(made, (1.0, 2.0, 4.0, 8.0), strict=True):
        assert plan.certificate().epsilon <= epsilon


@pytest.mark.parametrize("budget", [(1.0, 1e-10), (1e-3, 0.4)])
def test_budgets_that_a_certificate_meets_are_planned_for(budget):
    # 1e-10 is above the least δ that is said to do for 1e-12.
    plan = regularized.plan(problem(), Budget(*budget, allow_large_delta=True))
    assert plan.certificate().epsilon <= budget[0]


@pytest.mark.parametrize("delta", [1e-11, 1e-12])
def test_the_delta_that_is_named_does(delta):
    with pytest.raises(Infeasible) as refused:
        regularized.plan(problem(), Budget(1.0, delta))
    least = refused.value.needed["delta"]
    assert regularized.plan(problem(), Budget(1.0, 1.001 * least)).certificate().epsilon <= 1.0


# --- messages ---


@pytest.mark.parametrize(
    ("sizes", "settings", "named"),
    [
        ({}, {"regularization": 1000.0}, "regularization must be smaller"),
        ({"dim": 2**17 + 1}, {}, "dim"),
        ({"num_users": 2**32 + 1}, {}, "num_users"),
        ({}, {"relative_step": 50.0}, "relative_step"),
        ({}, {"relative_step": 2000.0}, "relative_step"),
        ({}, {"regularization": 1e-12}, "regularization must be larger"),
        ({}, {"regularization": 1e-300}, "regularization must be larger"),
        ({"objective": losses.logistic(1e-165)}, {}, "objective"),
    ],
)
def test_refusals_name_what_would_help(sizes, settings, named):
    with pytest.raises(ValueError, match=named):
        regularized.plan(problem(**sizes), Budget(1.0, 1e-6), **settings)


@pytest.mark.parametrize(
    "arguments",
    [(1e-310, 1.0, 1.0, 1.0), (0.5, 1e-300, 1.0, 1.0), (0.1, 1e-20, 1e-20, 1e20)],
)
def test_counting_steps_ends(arguments, monkeypatch):
    counted, plain = [], chain_lengths.mixing_variation

    def counting(*given):
        counted.append(1)
        if len(counted) > 1000:
            pytest.fail("it counts without end")
        return plain(*given)

    monkeypatch.setattr(chain_lengths, "mixing_variation", counting)
    with pytest.raises(ValueError, match="must be"):
        chain_lengths.mixing_steps(*arguments)


# --- the oracle by itself ---


def test_the_oracle_reckons_in_double_precision_with_numbers_that_are_narrow(monkeypatch):
    # The deviation of a proposal has to be that of the tangent's Gaussian, to float64.
    kinds, plain = [], proximal_oracle.numbers

    def spy(*given):
        found = plain(*given)
        kinds.append(np.asarray(found.precision).dtype)
        return found

    monkeypatch.setattr(proximal_oracle, "numbers", spy)
    data = UserData(Example(jnp.ones((2, 1, 1)), jnp.ones((2, 1))))
    proximal_oracle.proximal_oracle(
        LOGISTIC,
        data,
        jnp.zeros(1),
        inverse_temperature=jnp.float32(100.0),
        convexity=jnp.float32(0.1),
        relative_step=jnp.float32(3.0),
        num_steps=jnp.float32(20.0),
    )
    assert kinds == [np.float64]
