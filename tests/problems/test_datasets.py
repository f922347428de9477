"""Sizes of the real tasks, and that they can be learned: non-private AUC on unseen users."""

import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from dpsco_jax.problems import datasets, reference, users
from dpsco_jax.problems.datasets import trump_tweets
from dpsco_jax.problems.datasets.task import bucketed
from dpsco_jax.problems.objective import row_values

# users, rows, columns, columns per row, bound on items per user, most items of a user, test AUC
EXPECTED = {
    "insteval": (2972, 73_421, 1154, 5, 32, 92, 0.683),
    "nlswork": (4150, 19_229, 65, 9, 12, 12, 0.790),
    "flights": (4037, 327_346, 58, 5, 128, 544, 0.680),
    "flights_dates": (4037, 327_346, 507, 5, 128, 544, 0.765),
    "movielens": (671, 99_997, 52, 21, 128, 2391, 0.605),
    "movielens_films": (671, 99_997, 1367, 3, 128, 2391, 0.670),
}
QUICK = ("insteval", "nlswork")
EACH = [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in datasets.NAMES]


@pytest.fixture(scope="module")
def load():
    held = {}

    def cached(name):
        if name not in held:
            held[name] = datasets.load(name, max_items_per_user=EXPECTED[name][5])
        return held[name]

    return cached


@pytest.mark.parametrize("name", EACH)
def test_sizes_and_columns(name, load):
    num_users, num_rows, dim, nnz, *_ = EXPECTED[name]
    task = load(name)
    assert task.dim == dim == len(task.feature_names) == len(set(task.feature_names))
    assert users.num_users(task.train) == round(0.8 * num_users)
    assert users.num_users(task.train) + users.num_users(task.test) == num_users
    columns, rows = [], 0
    for part in (task.train, task.test):
        assert part.items.features.columns.shape[-1] == nnz
        rows += int(users.items_per_user(part).sum())
        mask = np.asarray(part.mask)
        columns.append(np.asarray(part.items.features.columns)[mask])
        labels = np.asarray(part.items.label)[mask]
        assert set(np.unique(labels)) == {0.0, 1.0}
        assert mask.any(axis=1).all()
    assert rows == num_rows
    # Every value is in its vocabulary, every row has norm 1, and no column is always empty.
    columns = np.concatenate(columns)
    assert columns.min() >= 0
    assert len(np.unique(columns)) == dim
    values = np.asarray(row_values(task.train.items.features._replace(columns=columns), dim, 1.0))
    np.testing.assert_allclose(np.square(values).sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("name", EACH)
def test_scikit_learn_finds_the_signal(name, load):
    """All rows alike, default regularization: what is commonly reported for these tables."""
    task = load(name)
    unit = task.objective._replace(
        linear_model=task.objective.linear_model._replace(feature_bound=EXPECTED[name][3] ** 0.5)
    )
    rows, labels, _ = reference.sparse_rows(unit, task.train, task.dim)
    model = LogisticRegression(max_iter=300).fit(rows, labels)
    rows, labels, _ = reference.sparse_rows(unit, task.test, task.dim)
    auc = roc_auc_score(labels, model.decision_function(rows))
    # Which users are the test users moves the AUC by about 0.01.
    assert abs(auc - EXPECTED[name][6]) < 0.03


@pytest.mark.parametrize("name", EACH)
def test_reference_optimum_generalizes(name):
    task = datasets.load(name)
    bound = EXPECTED[name][4]
    assert task.train.mask.shape[1] == bound
    assert int(users.items_per_user(task.train).max()) == bound
    optimum = reference.solve(task.objective, task.train, task.dim, tol=1e-10)
    assert optimum.gap <= 1e-10
    assert optimum.value < np.log(2)
    rows, labels, _ = reference.sparse_rows(task.objective, task.test, task.dim)
    assert roc_auc_score(labels, rows @ optimum.params) > EXPECTED[name][6] - 0.04


def test_split_and_bound_are_seeded():
    first = datasets.load("nlswork", max_items_per_user=3)
    again = datasets.load("nlswork", max_items_per_user=3)
    jax.tree.map(np.testing.assert_array_equal, first.train, again.train)
    assert first.train.mask.shape == (3320, 3)
    other = datasets.load("nlswork", max_items_per_user=3, split=1)
    assert not np.array_equal(
        first.train.items.features.columns, other.train.items.features.columns
    )


def test_a_missing_number_is_in_no_bucket():
    field = bucketed("wage", [0.5, np.nan, 1.0, 7.0, None], [1.0, 2.0])
    assert field.codes.tolist() == [0, -1, 1, 2, -1]
    assert field.vocabulary == ("<1", "[1,2)", ">=2")


def test_tweets_have_two_telephones():
    every = trump_tweets.tweets()
    assert every.columns.tolist() == ["time", "source", "text"]
    assert len(every) == 20_761
    assert every["time"].dt.date.nunique() == 2343
    assert every["time"].is_monotonic_increasing
    labelled, before = trump_tweets.by_phone()
    assert labelled["label"].value_counts().to_dict() == {1: 2255, 0: 2253}
    assert (labelled["source"] == "Twitter for Android").tolist() == (
        labelled["label"] == 1
    ).tolist()
    assert len(before) == 13_089
    assert before["time"].max() < labelled["time"].min()
