"""Default step sizes of element-level SGD: of which public numbers, and what they prove."""

import math

import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import losses
from dpsco_jax.solvers.element_level import sgd

BUDGET = Budget(2.0, 1e-3)
SIZES = {"num_steps": 9, "elements_per_user": 6, "accountant": "rdp"}


def _problem(objective, **changes):
    return Problem(objective, **{"num_users": 40, "dim": 5, "distance": 3.0} | changes)


def _noise(plan):
    """The variance of the noise of a step, from the multiplier: 2C over the users of a step."""
    replaced = 2.0 if plan.relation_name == "replace" else 1.0
    return 5 * (plan.noise_multiplier * replaced * plan.clip_norm / plan.batch_size) ** 2


@pytest.mark.parametrize(
    ("way", "together"),
    [
        ({"batch_size": 10}, 6.0),
        ({"batch_size": 10, "relation": "zero_out"}, 6.0),
        ({"batch_size": 10, "typical_elements": 2.5}, 2.5),
        ({"batch_size": 10, "sampling": "fixed"}, 6.0),
        ({"batch_size": 10, "sampling": "user"}, 36.0),
        ({"batch_size": 10, "sampling": "user", "cap": 2.0, "typical_elements": 4.0}, 4.0),
        ({"batch_size": 10, "sampling": "user", "typical_elements": 2.0}, 4.0),
        ({"sampling": "full"}, 0.0),
    ],
    ids=["element", "zero_out", "typical", "fixed", "user", "capped", "few", "full"],
)
@pytest.mark.parametrize("step_decay", ["none", "sqrt"])
def test_noise_and_sampling_shorten_a_step_and_smoothness_bounds_it(way, together, step_decay):
    objective = losses.logistic(2.0, ridge=0.125)
    held = way.get("typical_elements", 6.0)
    smoothness = held * 2.0**2 / 4 + 0.125
    for distance in (1e-3, 1e3):
        problem = _problem(objective, distance=distance)
        plan = sgd.plan(problem, BUDGET, **SIZES, **way, step_decay=step_decay)
        rate = plan.batch_size / 40
        variance = _noise(plan) + (1 - rate) * together * 2.0**2 / plan.batch_size
        steps = 9 if step_decay == "none" else 1
        by_noise = distance / math.sqrt(steps * variance)
        expected = by_noise if distance < 1 else 1 / smoothness
        assert plan.step_size == pytest.approx(expected, rel=1e-6)


def test_a_loss_that_is_not_smooth_pays_for_the_mean_gradient():
    objective = losses.absolute(2.0)
    assert objective.smoothness is None
    for held in (6.0, 2.0):
        plan = sgd.plan(
            _problem(objective), BUDGET, **SIZES, sampling="full", typical_elements=held
        )
        slope = held * plan.clip_norm
        assert plan.step_size == pytest.approx(3.0 / math.sqrt(9 * (_noise(plan) + slope**2)))


@pytest.mark.parametrize("typical", [0.0, 6.5, -1.0, math.nan, math.inf, "two", True, [2.0]])
def test_a_typical_number_of_elements_is_one_of_slots(typical):
    full = {"sampling": "full"}
    with pytest.raises(ValueError, match=r"^typical_elements must be"):
        sgd.plan(_problem(losses.logistic(1.0)), BUDGET, **SIZES, **full, typical_elements=typical)


def test_without_a_distance_there_is_no_default():
    problem = _problem(losses.logistic(1.0), distance=None)
    with pytest.raises(ValueError, match="distance"):
        sgd.plan(problem, BUDGET, **SIZES, batch_size=10)
    assert sgd.plan(problem, BUDGET, **SIZES, batch_size=10, step_size=0.1).step_size == 0.1


def test_averages_of_quadratic_descent_are_below_the_bound_and_come_near_it():
    """docs/theory/smooth_average.md, of curvatures between 0 and β = 1: exact means and covariances."""
    num_steps, distance, curvatures = 40, 1.0, np.geomspace(1e-4, 1.0, 60)
    times = np.arange(1, num_steps + 1)
    nearest = []
    for weights in (np.ones(num_steps), times**3.0):
        shares = weights / weights.sum()
        assert shares[-1] <= 4 / num_steps
        ratios = []
        for eta in (0.01, 0.1, 1.0):
            for variance in (0.0, 1e-3, 1.0):
                shrink = 1 - eta * curvatures[:, None]
                bias = (shares * shrink**times).sum(1) * distance
                # What the noise of step s = 1, ..., T has become in the average.
                left = np.stack(
                    [
                        (shares * (times >= s) * shrink ** np.maximum(times - s, 0)).sum(1)
                        for s in times
                    ]
                )
                spread = eta**2 * variance * (left**2).sum(0)
                excess = curvatures / 2 * (bias**2 + spread)
                bound = distance**2 / (2 * eta) + num_steps * eta * variance * (1 + eta) / 2
                ratios.append(np.max(excess) / (shares[-1] * bound))
        assert max(ratios) < 1
        nearest.append(max(ratios))
    assert nearest[0] > 0.38
