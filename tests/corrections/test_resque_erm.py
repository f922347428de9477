"""Section Y of docs/corrections.md: the printed claim fails, ours holds."""

import math

import numpy as np
import pytest
from scipy import stats

from dpsco_jax.problems import losses
from dpsco_jax.solvers.resque import _calls, _one_ball, resque_erm, resque_prox
from tests.support.planned import planned

ABSOLUTE = losses.absolute(1.0)
SIZES = {"num_users": 4096, "dim": 5, "epsilon": 1.0, "delta": 1e-6, "ball_radius": 0.01}


def test_y1_rounding_up_takes_more_gradients_than_there_are():
    for budget in (5, 9, 100, 1000):
        printed = 1 << math.ceil(math.log2(budget))
        ours = _calls.power_of_two(4096, budget, "without_replacement", least=2, most=4097)
        assert sum(printed >> i for i in range(1, printed.bit_length())) > budget
        assert sum(ours >> i for i in range(1, ours.bit_length())) <= budget <= 2 * ours


def test_y2_the_printed_result_leaves_the_ball():
    """One dimension, T = 4, β small, no gradients: x_1 ~ N(0, (2r/4)²), and x_2 is x_1 and a little noise."""
    first, second = 2 / 4, 2 / 16
    deviation = math.hypot(first, second)
    assert 2 * stats.norm.sf(1 / deviation) > 0.05


def test_y3_there_is_no_point_after_the_last_level():
    for queries in (16, 256, 4096):
        count = math.ceil(math.log2(math.log2(queries)))
        sizes = _calls.levels(queries)
        assert len(sizes) == count
        # The point x_{k+1} would need a level k of T queries, on top of those that were spent.
        assert sizes[-1].num_queries * 2 == queries
        assert queries + sum(level.num_queries for level in sizes) > 1.7 * queries


def test_y4_the_bias_is_that_of_the_last_level():
    base = planned(_one_ball.draft, ABSOLUTE, **SIZES, regularization=10.0, num_queries=64)
    users, beta, levels = SIZES["num_users"], 0.1, 6
    last = resque_prox._level(_with(base, beta), levels)
    assert last.num_queries == users
    true = 1 / (last.beta * last.num_queries)
    np.testing.assert_allclose(true, 1 / (beta * math.sqrt(users * 64)))
    assert true / (1 / (beta * users)) == pytest.approx(math.sqrt(users / 64))
    # Levels up to n²/T bring it down to what is printed.
    more = resque_prox._level(_with(base, beta), 2 * levels)
    np.testing.assert_allclose(more.beta * more.num_queries, beta * users)
    assert more.sampling == "with_replacement"


def _with(base, beta):
    return type(base)(**(vars(base) | {"beta": beta}))


def test_y5_noise_costs_the_slope_of_the_regularizer_too():
    """f = 0 and L small: noise at the edge of the ball raises λx²/2 by more than L times its size."""
    lipschitz, radius, weight, moved = 0.1, 1.0, 1.0, 1e-3
    rise = weight / 2 * (radius**2 - (radius - moved) ** 2)
    assert rise > 2 * lipschitz * moved
    assert rise <= (lipschitz + weight * radius) * moved


def test_y6_without_strong_convexity_there_is_no_first_distance():
    with pytest.raises(ValueError, match="regularization"):
        planned(resque_erm.plan, ABSOLUTE, **SIZES, method="strongly_convex", regularization=0.0)
    sizes = _calls.levels(256)
    gaps = [
        _calls.level_errors(sizes, 5, 0.1, 1.0, weight, 1.0)[-1][1]
        for weight in (1e-2, 1e-6, 1e-10)
    ]
    assert gaps[0] < 1e-3 * gaps[1] < 1e-6 * gaps[2]
