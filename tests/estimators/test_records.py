"""A record is a user: plans, certificates and data are those of users, and one user's rows move one index."""

import jax
import numpy as np
import pytest

from dpsco_jax import Budget
from dpsco_jax.estimators import _base, _solving
from dpsco_jax.problems import tables
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers.user_level import whitened_sgd
from tests.estimators.support import (
    COMMON,
    TABLE,
    UNION,
    WHO,
    fitted,
    made,
    replaced_solver,
    stand_in,
)


def by_hand(row, label):
    """[intercept, age, age missing, clerk, nurse, pilot, job missing] and the label, by plain arithmetic."""
    age, job = row
    absent = age != age
    number = 0.0 if absent else min(max(age, 0.0), 100.0) / 50.0 - 1.0
    hot = [float(job == level) for level in ("clerk", "nurse", "pilot")]
    return [1.0, number, float(absent), *hot, float(job is None), float(label == "yes")]


def rows_of(data, user):
    """The items of one user that are there, with their labels, in no order."""
    there = np.asarray(data.mask[user])
    features, label = np.asarray(data.items.features[user]), np.asarray(data.items.label[user])
    return sorted(np.column_stack([features, label])[there].tolist())


def test_users_hold_their_own_rows_encoded_as_declared(monkeypatch):
    seen = replaced_solver(monkeypatch)
    model = fitted()
    (_, plan, data) = seen[0]
    assert data.mask.shape == (3, 3)
    jobs = [None if job is None or job != job else job for job in TABLE["job"]]
    rows = [
        by_hand(row, label)
        for row, label in zip(zip(TABLE["age"], jobs, strict=True), UNION, strict=True)
    ]
    expected = sorted(sorted(rows[i] for i in np.flatnonzero(user == WHO)) for user in (1, 2, 3))
    assert sorted(rows_of(data, user) for user in range(3)) == expected
    assert plan.num_users == model.n_records_ == 3
    assert model.columns_ == (
        *("age", "age is missing", "job=clerk", "job=nurse", "job=pilot", "job is missing"),
    )


def test_the_certificate_is_that_of_so_many_users_not_rows(monkeypatch):
    replaced_solver(monkeypatch)
    many, users = np.tile(TABLE.to_numpy(), (20, 1)), np.repeat(np.arange(28), 5)
    by_user = made(bounds={0: (0, 100)}, categories={1: COMMON["categories"]["job"]})
    by_user.fit(many, np.tile(UNION, 20), groups=users)
    by_row = made(
        bounds={0: (0, 100)},
        categories={1: COMMON["categories"]["job"]},
        user_level=False,
        max_items_per_user=None,
    ).fit(many, np.tile(UNION, 20))
    assert (by_user.n_records_, by_user.plan_.num_users) == (28, 28)
    assert (by_row.n_records_, by_row.plan_.num_users) == (140, 140)
    problem = Problem(_solving.objective_of(_model_of(by_user)), num_users=28, dim=7, distance=10.0)
    budget = Budget(COMMON["epsilon"], COMMON["delta"])
    plan = whitened_sgd.plan(problem, budget, intercept=0, entry_bound=1.0)
    assert by_user.certificate_[:4] == plan.certificate()[:4]
    assert by_user.certificate_.epsilon <= COMMON["epsilon"]


def _model_of(estimator):
    return estimator._model(estimator.encoding_)


@pytest.mark.parametrize("user", [1, 2, 3])
def test_all_rows_of_one_user_are_one_index(monkeypatch, user):
    """Same key, all rows of one user replaced (features and labels): no other index moves."""
    seen = replaced_solver(monkeypatch)
    fitted()
    other, labels = TABLE.copy(), UNION.copy()
    other.loc[user == WHO, "age"], other.loc[user == WHO, "job"] = 33.0, "pilot"
    labels[user == WHO] = ["no" if label == "yes" else "yes" for label in labels[user == WHO]]
    made().fit(other, labels, groups=WHO)
    changed = np.zeros(3, bool)
    for one, two in zip(*(jax.tree.leaves(data) for _, _, data in seen), strict=True):
        differs = np.asarray(one) != np.asarray(two)
        changed |= differs.reshape(3, -1).any(axis=1)
    assert changed.sum() == 1


def test_a_user_with_too_many_rows_keeps_so_many_of_them(monkeypatch):
    seen = replaced_solver(monkeypatch)
    fitted(max_items_per_user=1)
    (_, _, data) = seen[0]
    assert data.mask.shape == (3, 1)
    assert data.mask.all()
    assert data.items.features.shape == (3, 1, 7)


def test_groups_are_taken_by_position_whatever_they_are_called(monkeypatch):
    """Names of users, an index that is no position, a list: the same users, so the same data."""
    seen = replaced_solver(monkeypatch)
    fitted()
    fitted(groups=[["", "ann", "bob", "cid"][user] for user in WHO])
    shuffled = TABLE.set_axis([4, 2, 9, 1, 0, 7, 3])
    fitted(X=shuffled)
    for _, _, data in seen[1:]:
        for one, two in zip(*map(jax.tree.leaves, (seen[0][2], data)), strict=True):
            np.testing.assert_array_equal(one, two)


def test_one_key_for_the_rows_and_another_for_the_noise(monkeypatch):
    keys = []
    solve, from_frame = stand_in(), tables.from_frame

    def run(model, key, *given):
        keys.append(key)
        return solve(model, key, *given)

    def encode(key, *given, **named):
        keys.append(key)
        return from_frame(key, *given, **named)

    monkeypatch.setattr(_solving, "_solve", run)
    monkeypatch.setattr(tables, "from_frame", encode)
    model = fitted()
    used = {tuple(jax.random.key_data(key).tolist()) for key in (*keys, _base._fresh_key(7))}
    assert len(used) == 3
    assert model.random_state == 7


def test_the_seed_decides_and_without_one_no_two_fits_agree(monkeypatch):
    replaced_solver(monkeypatch)
    same, again = fitted(), fitted()
    np.testing.assert_array_equal(same.coef_, again.coef_)
    assert not np.array_equal(same.coef_, fitted(random_state=8).coef_)
    assert not np.array_equal(fitted(random_state=None).coef_, fitted(random_state=None).coef_)
    # Seeds that agree in 32 bits are different seeds.
    assert not np.array_equal(same.coef_, fitted(random_state=7 + 2**32).coef_)
