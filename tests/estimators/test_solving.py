"""What is asked of a solver: the loss that was chosen, with public numbers on the scale of encoded rows."""

import math

import jax.numpy as jnp
import pytest

from dpsco_jax.estimators import _solving
from dpsco_jax.problems.objective import Example
from tests.estimators.support import KINDS, TABLE, WHO, made, replaced_solver

BOUND = math.sqrt(3)  # age, job, intercept
RIDGE, RADIUS = 0.25, 4.0


def asked(monkeypatch, kind, **changes):
    """The problem and the budget for which an estimator has its solver plan."""
    found = []
    replaced_solver(monkeypatch)
    for loss, solver in _solving._SOLVERS.items():

        class Recorded:
            __name__ = solver.__name__

            @staticmethod
            def plan(problem, budget, solver=solver, **settings):
                found.append((problem, budget))
                return solver.plan(problem, budget, **settings)

        monkeypatch.setitem(_solving._SOLVERS, loss, Recorded())
    model = made(kind, ridge=RIDGE, max_norm=RADIUS, max_items_per_user=2, **changes)
    model.fit(TABLE, KINDS[kind][2], groups=WHO)
    return (*found[0], model)


CASES = {
    "logistic": ("logistic", {}, BOUND, BOUND**2 / 4),
    "squared": ("squared", {}, BOUND * (BOUND * RADIUS + 1), BOUND**2),
    # Labels in (10, 30): a threshold of 5 is a quarter of the width, half of the unit of [-1, 1].
    "huber": ("squared", {"loss": "huber", "huber_threshold": 5}, 0.5 * BOUND, BOUND**2),
    "huber by default": ("squared", {"loss": "huber"}, 0.2 * BOUND, BOUND**2),
    "quantile": ("squared", {"loss": "quantile", "quantile": 0.9}, 0.9 * BOUND, None),
    "softmax": ("softmax", {}, math.sqrt(2) * BOUND, BOUND**2 / 2),
}


@pytest.mark.parametrize("case", CASES)
def test_the_problem_is_that_of_the_arguments(monkeypatch, case):
    kind, changes, lipschitz, smoothness = CASES[case]
    problem, budget, model = asked(monkeypatch, kind, **changes)
    objective = problem.objective
    assert problem.num_users == model.n_records_ == 3
    assert problem.items_per_user == 2
    assert problem.distance == RADIUS
    assert problem.diameter == 2 * RADIUS
    assert problem.dim == 7 * (3 if kind == "softmax" else 1)
    assert objective.ridge == RIDGE
    assert objective.lipschitz == pytest.approx(lipschitz)
    assert objective.smoothness == (None if smoothness is None else pytest.approx(smoothness))
    assert (budget.epsilon, budget.delta) == (2.0, 1e-5)


def test_the_quantile_is_the_one_that_was_asked_for(monkeypatch):
    problem, _, _ = asked(monkeypatch, "squared", loss="quantile", quantile=0.9)
    item = Example(jnp.zeros(7), jnp.float32(0.5))  # predicted 0, so too low by one half
    assert problem.objective.loss(jnp.zeros(7), item) == pytest.approx(0.45)


def test_equal_models_share_one_objective():
    model = _solving.Model("huber", 1.0, 3, 2.0, 0.1, True, 0.5)
    assert _solving.objective_of(model) is _solving.objective_of(
        _solving.Model("huber", 1.0, 3, 2.0, 0.1, True, 0.5)
    )
