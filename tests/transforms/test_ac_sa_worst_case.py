"""The worst case of AC-SA over all functions of a class, by semidefinite programming (PEPit).

The method is linear in its start and its gradients: run on unit vectors, the code itself says of which
combinations of (w_0, g_1, ..., g_T) its points consist, and those go into the program. AC-SA does not know
its horizon, so one run of 16 steps serves all horizons.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from PEPit import PEP, Point
from PEPit.functions import SmoothConvexFunction, SmoothStronglyConvexFunction

from dpsco_jax import transforms
from dpsco_jax.solvers.convex import ac_sa, ac_sa_stages

LONGEST = 16


def _coefficients(method):
    """Query points and aggregates, ``[LONGEST, LONGEST + 1]`` each."""

    def step(carry, gradient):
        params, state = carry
        updates, state = method.update(gradient, state, params)
        moved = optax.apply_updates(params, updates)
        return (moved, state), (params, transforms.ac_sa_eval_params(state, params))

    unit = jnp.eye(LONGEST + 1)
    return jax.lax.scan(step, (unit[0], method.init(unit[0])), unit[1:])[1]


@jax.jit
def our_coefficients(smoothness, strong_convexity):
    return _coefficients(transforms.ac_sa(smoothness, strong_convexity))


def worst_case(mu, queries, final):
    """The largest f(w) - f* over all 1-smooth functions and starts at distance at most 1."""
    problem = PEP()
    if mu > 0:
        function = problem.declare_function(SmoothStronglyConvexFunction, mu=mu, L=1.0)
    else:
        function = problem.declare_function(SmoothConvexFunction, L=1.0)
    optimum = function.stationary_point()
    start = problem.set_initial_point()
    problem.set_initial_condition((start - optimum) ** 2 <= 1)
    basis: list[Point] = [start]

    def combination(weights):
        total = float(weights[0]) * basis[0]
        for weight, vector in zip(weights[1:], basis[1:], strict=False):
            total = total + float(weight) * vector
        return total

    for weights in queries:
        basis.append(function.gradient(combination(weights)))
    problem.set_performance_metric(function(combination(final)) - function(optimum))
    return problem.solve(verbose=0)


def _value(mu, horizon):
    queries, aggregates = (np.asarray(part, np.float64) for part in our_coefficients(1.0, mu))
    return worst_case(mu, queries[:horizon], aggregates[horizon - 1])


LONG = pytest.mark.slow


@pytest.mark.parametrize(
    "horizon", [1, 2, 5, pytest.param(9, marks=LONG), pytest.param(16, marks=LONG)]
)
def test_smooth_convex_worst_case_is_known_exactly(horizon):
    """6LR²/(3T² + 7T + 14), which a Huber loss attains: the bound 2LR²/(T(T+1)) is sharp in the limit."""
    value = _value(0.0, horizon)
    assert value == pytest.approx(6 / (3 * horizon**2 + 7 * horizon + 14), rel=2e-4)
    assert 0.25 * (1 - 1e-4) <= value / (2 / (horizon * (horizon + 1))) <= 1


def test_the_huber_loss_attains_it():
    # A Huber loss of slope η: as long as all points are in its linear part, f(ag) = η|ag| - η²/2, with
    # ag_T = 1 - 2Sη and 2S = (3T+1)(T+2)/12; the best slope is 1/(2S + 1). Run on numbers, not on theory.
    horizon = 12
    slope = 1 / ((3 * horizon + 1) * (horizon + 2) / 12 + 1)
    _, aggregates = our_coefficients(1.0, 0.0)
    last = np.asarray(aggregates[horizon - 1], np.float64)
    end = last[0] + slope * last[1 : horizon + 1].sum()
    worst = 6 / (3 * horizon**2 + 7 * horizon + 14)
    assert slope * end - slope**2 / 2 == pytest.approx(worst, rel=1e-5)


@pytest.mark.parametrize(
    ("mu", "horizon"),
    [
        (0.1, 1),
        (0.1, 4),
        (0.5, 4),
        pytest.param(0.01, 12, marks=LONG),
        pytest.param(0.1, 12, marks=LONG),
        pytest.param(0.5, 12, marks=LONG),
        pytest.param(0.1, 16, marks=LONG),
    ],
)
def test_strongly_convex_worst_case_is_within_the_guarantee(mu, horizon):
    """Within a factor of 4.3 below the bound, and below the worst case without strong convexity."""
    value = _value(mu, horizon)
    assert 1 / 4.3 < value / (2 / (horizon * (horizon + 1))) <= 1
    assert value <= 6 / (3 * horizon**2 + 7 * horizon + 14)


def test_stages_are_within_their_bound():
    """Far within: the bound assumes the worst of both measures, gap and distance, at every restart."""
    mu, lengths = 0.5, (3, 2)
    problem = ac_sa_stages.Setting(1.0, mu, 0.0, 1.0)
    stages = ac_sa_stages.convex_stages(problem, "multi_stage", lengths)
    queries, aggregates = (
        np.asarray(part, np.float64)
        for part in jax.jit(lambda: _coefficients(ac_sa.optimizer(stages)))()
    )
    value = worst_case(mu, queries[:5], aggregates[4])
    assert 0.02 < value / stages.excess_bound <= 1
