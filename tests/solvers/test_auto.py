"""auto: every candidate is planned for the same problem, the best is chosen, and the choice is run."""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import Status
from dpsco_jax.solvers.user_level import auto, localized_sgd
from dpsco_jax.solvers.user_level._auto_predictions import Setting
from dpsco_jax.solvers.user_level.auto import planned_row
from tests.support.planned import planned

USERS, ITEMS, DIM = 400, 16, 3
OBJECTIVE = losses.logistic(1.0, domains.ball(2.0))
SIZES = {"num_users": USERS, "items_per_user": ITEMS, "dim": DIM, "delta": 1e-5}
NAMED = {candidate.name: candidate for candidate in auto.CANDIDATES}
RIDGED = auto.Candidate("localized_sgd", localized_sgd)
FEW = (NAMED["sgd"], NAMED["private_ac_sa"], RIDGED)


def _plan(objective=OBJECTIVE, **changes):
    given = {"epsilon": 4.0, "candidates": FEW, "rank_by": "bound"}
    return planned(auto.plan, objective, **(SIZES | given | changes))


def _setting(objective=OBJECTIVE, users=USERS, dim=DIM, epsilon=4.0, unit_noise=1.0):
    problem = Problem(objective, num_users=users, items_per_user=ITEMS, dim=dim, distance=4.0)
    return Setting(problem, Budget(epsilon, 1e-5), None, 100, unit_noise)


@functools.cache
def _everything():
    return _plan(candidates=auto.CANDIDATES, gradient_budget=100 * USERS * ITEMS)


@functools.cache
def _data():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(USERS, ITEMS, DIM)).astype(np.float32)
    labels = (features[..., 0] > 0).astype(np.float32)
    return UserData(Example(jnp.asarray(features), jnp.asarray(labels)))


def test_every_candidate_has_a_row_and_the_least_bound_is_chosen():
    plan = _everything()
    assert [row.name for row in plan.rows] == [c.name for c in auto.CANDIDATES]
    possible = [row for row in plan.rows if not row.reason]
    assert len(possible) >= 10
    best = min(possible, key=lambda row: row.bound)
    assert plan.choice == best.name
    assert plan.excess_bound == best.bound
    for row in possible:
        assert 0.0 < row.prediction < math.inf
        assert 0.0 < row.item_gradients <= 100 * USERS * ITEMS
        assert 0.0 < row.bound <= math.inf


def test_a_bound_that_rests_on_the_nominal_model_is_not_counted_as_proven():
    rows = {row.name: row for row in _everything().rows}
    assert 0.0 < rows["private_ac_sa"].bound == rows["private_ac_sa"].prediction < math.inf
    assert not rows["winsorized_erm, radius 1.2L/sqrt(m)"].reason
    assert rows["winsorized_erm, radius 1.2L/sqrt(m)"].bound == math.inf


def test_every_plan_keeps_the_budget_for_the_replacement_of_a_user():
    setting = _setting()
    for name in ("sgd", "sgd, a tenth of the users", "item_group_privacy, drawn"):
        row, made = planned_row(NAMED[name], setting, 100 * USERS * ITEMS, {})
        certificate = made.certificate()
        assert not row.reason
        assert certificate.epsilon <= 4.0
        assert certificate.relation is NeighboringRelation.REPLACE_ONE


def test_the_prediction_chooses_differently():
    few = tuple(NAMED[name] for name in ("sgd", "sgd, clipped at 2L/sqrt(m)"))
    by_bound, by_prediction = (
        _plan(candidates=few, rank_by=rank, epsilon=0.5) for rank in ("bound", "prediction")
    )
    assert by_bound.choice == "sgd"
    assert by_prediction.choice == "sgd, clipped at 2L/sqrt(m)"
    assert by_prediction.excess_bound == math.inf
    assert by_bound.rows == by_prediction.rows
    assert not any(row.reason for row in by_bound.rows)
    default = inspect.signature(auto.plan).parameters["rank_by"].default
    assert default == "prediction"  # see the file's docstring


def test_enough_steps_are_those_after_which_noise_dominates():
    setting = _setting(users=1000, dim=10, epsilon=1.0, unit_noise=4.0)
    noise = 10 * (2 * 4.0 / 1000) ** 2
    assert setting.enough_steps(10**9) == math.ceil(4 / noise)
    assert setting.enough_steps(50) == 50


def test_the_choice_is_what_runs():
    plan = _plan()
    data, start = _data(), jnp.zeros(DIM)
    ours = jax.jit(lambda k: auto.solve(k, plan, OBJECTIVE, data, start))(jax.random.key(0))
    solver = NAMED[plan.choice].solver
    theirs = jax.jit(lambda k: solver.solve(k, plan.chosen, OBJECTIVE, data, start))(
        jax.random.key(0)
    )
    np.testing.assert_array_equal(ours.params, theirs.params)
    assert ours.status == Status.OK
    chosen = next(row for row in plan.rows if row.name == plan.choice)
    assert ours.gradients == chosen.item_gradients


def test_a_budget_of_gradients_is_kept():
    full = (NAMED["winsorized_erm"],)
    free, short = (
        _plan(candidates=full, gradient_budget=passes * USERS * ITEMS) for passes in (1000, 20)
    )
    assert free.chosen.num_steps > 20
    assert short.chosen.num_steps == 20
    stubborn = FEW[1]
    with pytest.raises(ValueError, match=r"private_ac_sa: gradient_budget must be .*at least"):
        _plan(candidates=(stubborn,), gradient_budget=USERS * ITEMS)


def test_further_arguments_reach_the_plan():
    plan = _plan(candidates=FEW[:1], settings={"sgd": {"num_steps": 7, "chunk_size": 32}})
    assert (plan.chosen.num_steps, plan.chosen.chunk_size) == (7, 32)
    with pytest.raises(ValueError, match=r"settings must be of candidates, got \['sdg'\]"):
        _plan(settings={"sdg": {}})


def test_facts_of_dense_rows_reach_the_solver_that_whitens():
    only = (NAMED["whitened_sgd"],)
    plan = _plan(candidates=only, rank_by="prediction", intercept=1, entry_bound=0.7)
    assert (plan.chosen.intercept, plan.chosen.squares_bound) == (1, 0.7)  # bound of rows: 1
    assert plan.chosen.user_gradients <= 1000 * USERS
    short = _plan(candidates=only, rank_by="prediction", gradient_budget=100 * USERS * ITEMS)
    assert short.chosen.user_gradients <= 100 * USERS
    with pytest.raises(ValueError, match="columns_per_row must be None, got 2"):
        _plan(candidates=only, columns_per_row=2)
    # Its steps are implicit in ridges: one that bends columns of little variance more than the link
    # does is no reason to refuse.
    strong = losses.logistic(1.0, domains.ball(2.0), ridge=0.05)
    assert _plan(strong, candidates=only, rank_by="prediction", intercept=0).chosen.intercept == 0
    points = losses.squared_distance(1.0, 1.0)
    for name, value in (("intercept", 0), ("entry_bound", 1.0)):
        with pytest.raises(ValueError, match=f"{name} must be None but for dense rows"):
            _plan(columns_per_row=2, **{name: value})
        with pytest.raises(ValueError, match=f"{name} must be None but for dense rows"):
            _plan(points, **{name: value})
    for name, value in (("intercept", DIM), ("entry_bound", 0.0)):
        with pytest.raises(ValueError, match=f"{name} must be"):
            _plan(**{name: value})


def test_what_cannot_be_is_refused_with_its_reasons():
    with pytest.raises(ValueError, match=r"candidates must have a possible one.*strong_convexity"):
        _plan(candidates=(RIDGED,))
    with pytest.raises(ValueError, match=r"sgd, clipped at .*: nothing is proven"):
        _plan(candidates=(NAMED["sgd, clipped at 2L/sqrt(m)"],))
    with pytest.raises(ValueError, match=r"items_per_user must be .*at least 5, got 4"):
        _plan(candidates=(NAMED["sgd, clipped at 2L/sqrt(m)"],), items_per_user=4)
    with pytest.raises(ValueError, match="candidates must have"):
        _plan(candidates=())
    free = Objective(OBJECTIVE.loss, 1.0, 0.25, domains.whole_space())
    with pytest.raises(ValueError, match="distance must be"):
        _plan(free)
