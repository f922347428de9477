"""What plans for stationary points prove, as n grows: the exponents of Tables 6.1 and 8.1, from the planners.

Budgets are μ-GDP for a fixed μ, so that no logarithm of δ moves; d = 10.
"""

import numpy as np
import pytest

from dpsco_jax.solvers.nonconvex import (
    _adaptive_schedule,
    _drift_schedule,
    _goldstein_bounds,
    noisy_descent,
    spider,
)

_SQUARED_MU = 0.04


def _spider(users):
    return spider.schedule(1.0, 1.0, 2 / users, 2 / users, 10, _SQUARED_MU, 10**14).bound


def _descent(users):
    return noisy_descent.schedule(1.0, 1.0, 2 / users, 10, _SQUARED_MU, 10**14).bound


def _adaptive(users):
    goal = _drift_schedule.Goal(1.0, 1.0, 1.0, 1.0, 10, users, 2.0, 0.05, True)
    steps = [int(t) for t in np.geomspace(10, 1e8, 40)]
    return _adaptive_schedule.schedule(goal, _SQUARED_MU, steps).bound


def _single_pass(users):
    setting = _goldstein_bounds.Setting(10, 1.0, 0.5, 1.0, "zeroth", 64, True)
    multiplier = 2.0 / _SQUARED_MU**0.5
    return _goldstein_bounds.one_pass(setting, users, multiplier, lambda steps: 1.0).bound


@pytest.mark.parametrize(
    ("proven", "users", "exponent"),
    [
        (_spider, (10**6, 10**9), -2 / 3),
        (_descent, (10**6, 10**9), -1 / 2),
        # Logarithms of T and n, of a union bound, are in these two.
        (_adaptive, (10**8, 10**10), -1 / 3),
        (_single_pass, (10**6, 10**8), -1 / 3),
    ],
)
def test_bounds_fall_with_the_users_as_theory_says(proven, users, exponent):
    few, many = (proven(n) for n in users)
    slope = np.log(many / few) / np.log(users[1] / users[0])
    assert slope == pytest.approx(exponent, abs=0.03)
