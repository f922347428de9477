"""What one user adds to each sum that whitening releases, against the bound that its noise is made for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.oracles import linear
from dpsco_jax.oracles.preconditioned import TunedPoint
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import (
    _coordinates,
    _linear_models,
    whitened_sgd,
)

USERS, ITEMS, DIM = 20, 3, 4
OBJECTIVE = losses.huber(1e6, 0.1)


def _recorded(monkeypatch):
    """The norm of the sum, the bound that its noise is made for, the number of users, of each release."""
    seen = []

    def recorded(key, num_users, total, bound, *rest, **named):
        seen.append((np.linalg.norm(np.asarray(total, np.float64)), float(bound), num_users))
        return kept(key, num_users, total, bound, *rest, **named)

    kept = _linear_models.released
    monkeypatch.setattr(_linear_models, "released", recorded)
    return seen


@pytest.mark.parametrize("release", ["matrix", "second round", "check"])
def test_a_user_far_above_the_clip_adds_the_bound_that_the_noise_is_made_for(monkeypatch, release):
    seen = _recorded(monkeypatch)
    problem = Problem(OBJECTIVE, num_users=USERS, items_per_user=ITEMS, dim=DIM)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), matrix=True)
    rows = np.zeros((USERS, ITEMS, DIM), np.float32)
    rows[0] = 1e4 * np.random.default_rng(0).normal(size=(ITEMS, DIM))
    data = UserData(Example(jnp.asarray(rows), jnp.zeros((USERS, ITEMS))), None)
    prepared = linear.prepare(OBJECTIVE.linear_model, data, DIM)
    key, same, ones = jax.random.key(0), jnp.eye(DIM), jnp.ones(DIM)
    if release == "matrix":
        _coordinates._matrix(key, plan, prepared, same, float(DIM))
    elif release == "second round":
        _coordinates._second_round(key, plan, prepared, same, ones > 0, 0.3 * ones)
    else:
        _coordinates._checked(key, plan, prepared, same)
    ((norm, bound, users),) = seen
    assert 0.98 * bound < norm <= bound
    assert users == USERS


def test_a_user_far_above_the_clip_adds_the_bounds_that_a_covariance_is_paid_for(monkeypatch):
    """One row of many times the norm that whitened ones have, with a label that is far off."""
    seen = _recorded(monkeypatch)
    problem = Problem(OBJECTIVE, num_users=USERS, items_per_user=1, dim=DIM)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), covariance=True)
    rows = np.zeros((USERS, 1, DIM), np.float32)
    rows[0] = 1e4
    data = UserData(Example(jnp.asarray(rows), jnp.zeros((USERS, 1))), None)
    prepared = linear.prepare(OBJECTIVE.linear_model, data, DIM)
    same = jnp.eye(DIM)
    for seed, point in enumerate(
        (jnp.zeros(DIM), jnp.ones(DIM))
    ):  # where the loss bends, where it is steep
        whitened_sgd._covariance(
            jax.random.key(seed), plan, OBJECTIVE.linear_model, 1.0, prepared,
            TunedPoint(point, jnp.zeros(())), same, jnp.ones(()),
        )  # fmt: skip
    (hessian, _, _, gradients) = seen
    for norm, bound, users in (hessian, gradients):
        assert 0.98 * bound < norm <= bound
        assert users == USERS


def test_a_row_of_which_one_entry_leaves_the_numbers_counts_as_zero():
    rows = jnp.ones((1, 1, DIM))
    data = UserData(Example(rows, jnp.zeros((1, 1))), None)
    prepared = linear.prepare(OBJECTIVE.linear_model, data, DIM)
    moved = _coordinates.transformed(prepared, jnp.diag(jnp.asarray([1e31, 1.0, 1.0, 1.0])))
    np.testing.assert_array_equal(moved.features, 0.0)


@pytest.mark.parametrize("lost", ["to_params", "from_params"])
def test_coordinates_that_leave_the_numbers_cost_infinity(monkeypatch, lost):
    kept = _coordinates.released

    def without_numbers(*given):
        made, loss = kept(*given)
        return made._replace(**{lost: made.to_params.at[0, 0].set(jnp.nan)}), loss

    monkeypatch.setattr(_coordinates, "released", without_numbers)
    problem = Problem(OBJECTIVE, num_users=USERS, items_per_user=1, dim=DIM)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), num_steps=2, radius_steps=1)
    data = UserData(Example(jnp.ones((USERS, 1, DIM)), jnp.zeros((USERS, 1))), None)
    found = whitened_sgd.solve(jax.random.key(0), plan, OBJECTIVE, data, jnp.zeros(DIM))
    assert not np.isfinite(found.privacy.rdp).any()
