"""A δ of one over the number of users or more is refused, by every plan and every fit, unless insisted on.

Whoever publishes everything of one user, chosen at random among N, keeps to (0, 1/N).
"""

import dataclasses

import jax
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.estimators import (
    PrivateLogisticRegression,
    PrivateRegression,
    PrivateSoftmaxRegression,
)
from dpsco_jax.problems import losses
from dpsco_jax.solvers.item_level import erm
from dpsco_jax.solvers.user_level import auto, sgd
from tests.support import public
from tests.test_bad_arguments import FLOAT64, PLANS

TAKES_A_BUDGET = [path for path in PLANS if "budget" in {p.name for p in public.parameters(path)}]
USERS = 40
PROBLEM = Problem(losses.logistic(1.0, ridge=0.1), num_users=USERS, dim=2, distance=1.0)


@pytest.mark.parametrize("path", TAKES_A_BUDGET)
def test_every_plan_refuses_a_delta_of_one_over_the_users(path):
    plan = public.public_functions()[path]
    positional, named = public.good_call(path)
    # Of online solvers a record is a round.
    users = named["problem"].num_users if "problem" in named else named["num_rounds"]
    for delta in (1.0 / users, 0.5, 0.9):
        named["budget"] = dataclasses.replace(named["budget"], delta=delta)
        with (
            jax.enable_x64(path.startswith(FLOAT64)),
            pytest.raises(ValueError, match=f"^delta must be below .* 1/{users} .*insists"),
        ):
            plan(*positional, **named)


@pytest.mark.parametrize(
    ("plan", "settings"),
    [
        (sgd.plan, {"num_steps": 2, "sampling": "full", "accountant": "rdp"}),
        (auto.plan, {"candidates": auto.CANDIDATES[:1], "settings": {"sgd": {"num_steps": 2}}}),
        # Parts of the budget are for parts of the run.
        (erm.plan, {"method": "restarts", "num_stages": 2}),
    ],
)
def test_whoever_insists_has_a_large_delta(plan, settings):
    made = plan(PROBLEM, Budget(1.0, 0.5, allow_large_delta=True), **settings)
    assert made.certificate().delta <= 0.5
    assert plan(PROBLEM, Budget(1.0, 0.99 / USERS), **settings).certificate().delta < 1 / USERS
    with pytest.raises(ValueError, match="allow_large_delta must be True or False"):
        Budget(1.0, 0.5, allow_large_delta="yes")
    # Zero is below everything, and a budget is compared and shown by its numbers.
    Budget(1.0).require_for(2**31)
    assert repr(Budget(1.0, 0.5, allow_large_delta=True)) == "Budget(epsilon=1.0, delta=0.5)"


@pytest.mark.parametrize(
    ("estimator", "declared"),
    [
        (PrivateLogisticRegression, {"classes": [0, 1]}),
        (PrivateSoftmaxRegression, {"classes": [0, 1, 2]}),
        (PrivateRegression, {"label_bounds": (0, 1)}),
        (PrivateRegression, {"label_bounds": (0, 1), "loss": "quantile"}),
    ],
)
def test_every_fit_refuses_a_delta_of_one_over_the_users(estimator, declared):
    rng = np.random.default_rng(0)
    table, label = rng.uniform(-1, 1, (2 * USERS, 2)), np.arange(2 * USERS) % 2
    people = {"groups": np.arange(2 * USERS) // 2}
    for level, users, given in ((False, 2 * USERS, {}), (True, USERS, people)):
        model = estimator(
            epsilon=1.0, bounds=(-1, 1), user_level=level, max_items_per_user=2 if level else None,
            **declared,
        )  # fmt: skip
        for delta in (1.0 / users, 0.9):
            with pytest.raises(ValueError, match=f"^delta must be below .* 1/{users} .*insists"):
                model.set_params(delta=delta).fit(table, label, **given)


def test_a_fit_with_a_large_delta_says_so():
    rng = np.random.default_rng(0)
    table = rng.uniform(-1, 1, (USERS, 2))
    model = PrivateLogisticRegression(
        epsilon=1.0, delta=0.5, bounds=(-1, 1), classes=[0, 1], user_level=False,
        allow_large_delta=True,
    ).fit(table, np.arange(USERS) % 2)  # fmt: skip
    assert model.certificate_.delta == 0.5
    assert "large delta" in str(model.report())
