"""Frames of pandas and polars, arrays and sparse matrices hold one table: bit for bit the same fit."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dpsco_jax.estimators import _frames
from dpsco_jax.problems.encoding import Encoding
from tests.estimators.support import (
    COMMON,
    LEVELS,
    TABLE,
    UNION,
    WHO,
    fitted,
    made,
    replaced_solver,
)

NUMBERS = np.array(
    [[0.5, -2.0], [0.0, 1.0], [0.0, 0.0], [3.0, 0.25], [-0.5, 0.0], [1.0, 1.0], [0, 0]]
)
BY_PLACE = {"bounds": {0: (0, 100)}, "categories": {1: LEVELS}}


def of_numbers(X, **changes):
    declared = {"bounds": (-1, 1), "categories": None} | changes
    return made(**declared).fit(X, UNION, groups=WHO)


def test_an_array_of_objects_is_the_frame_by_place(monkeypatch):
    replaced_solver(monkeypatch)
    named, placed = fitted(), fitted(X=TABLE.to_numpy(object), **BY_PLACE)
    np.testing.assert_array_equal(named.coef_, placed.coef_)
    np.testing.assert_array_equal(
        named.predict_proba(TABLE), placed.predict_proba(TABLE.to_numpy(object))
    )
    assert named.columns_[0] == "age"
    assert placed.columns_[0] == "0"


@pytest.mark.parametrize(
    "make", [sparse.csr_matrix, sparse.coo_array, np.ndarray.tolist, pd.DataFrame]
)
def test_numbers_are_the_same_in_every_container(monkeypatch, make):
    seen = replaced_solver(monkeypatch)
    of_numbers(NUMBERS)
    other = of_numbers(make(NUMBERS))
    (first, second) = (data.items.features for _, _, data in seen)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(
        other.predict_proba(make(NUMBERS)), other.predict_proba(make(NUMBERS))
    )


def test_a_polars_frame_is_the_pandas_frame(monkeypatch):
    polars = pytest.importorskip("polars")
    seen = replaced_solver(monkeypatch)
    ages = [None if age != age else age for age in TABLE["age"]]
    jobs = [None if job != job else job for job in TABLE["job"]]
    frame = polars.DataFrame({"age": ages, "job": jobs})
    model = fitted()
    other = made().fit(frame, polars.Series(UNION.tolist()), groups=polars.Series(WHO.tolist()))
    np.testing.assert_array_equal(model.coef_, other.coef_)
    np.testing.assert_array_equal(seen[0][2].items.features, seen[1][2].items.features)
    np.testing.assert_array_equal(model.predict_proba(TABLE), other.predict_proba(frame))
    dated = frame.with_columns(day=polars.date(2020, 1, 2))
    with pytest.raises(
        ValueError, match=r"categories\['day'\] must be of the kind of column 'day'"
    ):
        fitted(X=dated, categories={"job": LEVELS, "day": ["2020-01-02"]})
    days = {"job": LEVELS, "day": [datetime.date(2020, 1, 2), datetime.date(2020, 1, 3)]}
    assert fitted(X=dated, categories=days).columns_[-3] == "day=2020-01-02"
    levels = np.asarray(seen[-1][2].items.features)[..., -3:]
    np.testing.assert_array_equal(levels.sum(axis=(0, 1)), [7, 0, 0])
    categorical = frame.with_columns(polars.col("job").cast(polars.Categorical))
    np.testing.assert_array_equal(model.predict_proba(TABLE), other.predict_proba(categorical))
    with pytest.raises(ValueError, match="collect it first"):
        made().fit(frame.lazy(), UNION, groups=WHO)


def test_integers_stay_integers_where_others_are_missing(monkeypatch):
    """In float64 these two are one number."""
    polars = pytest.importorskip("polars")
    seen = replaced_solver(monkeypatch)
    large = [2**53 + i % 2 for i in range(6)]
    frame = polars.DataFrame({"id": [*large, None]})
    declared = {"bounds": None, "categories": {"id": [2**53, 2**53 + 1]}, "user_level": False}
    made(max_items_per_user=None, **declared).fit(frame, UNION)
    (_, _, data) = seen[0]
    assert np.asarray(data.items.features).sum(axis=(0, 1)).tolist() == [7, 3, 3, 1]


@pytest.mark.parametrize("missing", [None, pd.NA, np.nan])
def test_missing_numbers_among_objects_are_missing_labels(monkeypatch, missing):
    seen = replaced_solver(monkeypatch)
    wage = np.array([20, 20, missing, 20, 20, 20, 20], object)
    made("squared", unlabelled="drop_row").fit(TABLE, wage, groups=WHO)
    assert int(seen[0][2].mask.sum()) == 6


LEVELLED = pd.DataFrame({"job": [1, 2, 3, 1, 2, 3, 1], "y": [0, 1, 1, 0, 1, 0, 1]})


@pytest.mark.parametrize("kind", [int, float, str, "category", "string", object, "float32"])
@pytest.mark.parametrize(
    "levels", [[1, 2, 3], ["1", "2", "3"], [1.0, 2.0, 3.0], np.float32([1, 2, 3])]
)
@pytest.mark.parametrize("classes", [[0, 1], ["0", "1"], [False, True], [0.0, 1.0]])
def test_levels_and_classes_count_whatever_type_holds_them(monkeypatch, kind, levels, classes):
    seen = replaced_solver(monkeypatch)
    table = LEVELLED.astype(kind)
    model = made(
        bounds=None, categories={"job": levels}, classes=classes, missing="error", random_state=1
    ).fit(table[["job"]], table["y"], groups=WHO)
    made(
        bounds=None, categories={"job": [1, 2, 3]}, classes=[0, 1], missing="error", random_state=1
    ).fit(LEVELLED[["job"]], LEVELLED["y"], groups=WHO)
    (_, _, first), (_, _, second) = seen
    np.testing.assert_array_equal(first.items.features, second.items.features)
    np.testing.assert_array_equal(first.items.label, second.items.label)
    assert model.score(table[["job"]], table["y"]) == model.score(LEVELLED[["job"]], LEVELLED["y"])
    assert set(model.predict(table[["job"]]).tolist()) <= set(classes)


def test_columns_that_are_called_by_numbers_are_not_mixed_up(monkeypatch):
    """scikit-learn looks at names that are texts; these it would take by place."""
    replaced_solver(monkeypatch)
    frame = TABLE.set_axis([7, 3], axis=1)
    model = fitted(X=frame, bounds={7: (0, 100)}, categories={3: LEVELS})
    assert model.columns_[0] == "7"
    with pytest.raises(
        ValueError, match=r"X must have the columns of the fit in their order, \[7, 3\]"
    ):
        model.predict(frame[[3, 7]])


def test_values_outside_of_bounds_count_as_the_bounds(monkeypatch):
    replaced_solver(monkeypatch)
    model = fitted()
    inside = pd.DataFrame({"age": [0.0, 100.0], "job": ["nurse", "nurse"]})
    outside = pd.DataFrame({"age": [-1e300, np.inf], "job": ["nurse", "nurse"]})
    np.testing.assert_array_equal(model.predict_proba(inside), model.predict_proba(outside))
    assert model.predict_proba(inside)[0, 1] != model.predict_proba(inside)[1, 1]


def test_predictions_are_the_coefficients_times_the_encoded_row(monkeypatch):
    replaced_solver(monkeypatch)
    row = pd.DataFrame({"age": [75.0], "job": ["pilot"]})
    for kind in ("logistic", "squared", "softmax"):
        model = fitted(kind)
        encoded = np.array([0.5, 0, 0, 0, 1, 0])
        expected = np.atleast_2d(model.coef_) @ encoded + model.intercept_
        if kind == "squared":
            np.testing.assert_allclose(model.predict(row), expected, rtol=1e-12)
        else:
            np.testing.assert_allclose(np.ravel(model.decision_function(row)), expected, rtol=1e-12)
            odds = np.exp(expected) if kind == "softmax" else np.append(1.0, np.exp(expected))
            np.testing.assert_allclose(model.predict_proba(row)[0], odds / odds.sum(), rtol=1e-12)
            assert model.predict(row)[0] == model.classes_[np.argmax(odds)]


@pytest.mark.parametrize("under", [1.0, -0.5, 77.0])
@pytest.mark.parametrize("kind", [np.float64, np.int64, object])
def test_what_is_masked_is_missing_whatever_is_under_the_mask(monkeypatch, kind, under):
    seen = replaced_solver(monkeypatch)
    hidden = np.zeros(NUMBERS.shape, bool)
    hidden[[1, 5], [0, 1]] = True
    whole = NUMBERS.round().astype(kind)
    held = np.ma.array(np.where(hidden, under, whole).astype(kind), mask=hidden)
    plain = np.where(hidden, np.nan, whole.astype(float))
    for missing in ("zero", "indicator"):
        model, other = of_numbers(plain, missing=missing), of_numbers(held, missing=missing)
        (_, _, first), (_, _, second) = seen[-2:]
        np.testing.assert_array_equal(first.items.features, second.items.features)
        np.testing.assert_array_equal(model.predict_proba(plain), other.predict_proba(held))
    strict = of_numbers(whole, missing="error")
    for call in (lambda: of_numbers(held, missing="error"), lambda: strict.predict(held)):
        with pytest.raises(ValueError, match="must be present in every row"):
            call()


def test_masked_labels_and_users_are_missing(monkeypatch):
    seen = replaced_solver(monkeypatch)
    hidden = np.arange(7) == 1
    label = np.ma.array(UNION, mask=hidden)
    with pytest.raises(ValueError, match="column y must be one of"):
        made().fit(TABLE, label, groups=WHO)
    made(unlabelled="drop_row").fit(TABLE, label, groups=WHO)
    wage = np.ma.array(np.full(7, 20.0), mask=hidden)
    with pytest.raises(ValueError, match="column y must be a number in every row"):
        made("squared").fit(TABLE, wage, groups=WHO)
    made("squared", unlabelled="drop_row").fit(TABLE, wage, groups=WHO)
    assert [int(data.mask.sum()) for _, _, data in seen] == [6, 6]
    with pytest.raises(ValueError, match="column groups must be present in every row"):
        made().fit(TABLE, UNION, groups=np.ma.array(WHO, mask=hidden))
    assert fitted(groups=np.ma.array(WHO, mask=False)).n_records_ == 3
    for name, declared in (
        ("classes", np.ma.array([0, 1], mask=False)),
        ("bounds", np.ma.array([0, 1], mask=False)),
        ("categories", {"job": np.ma.array(LEVELS, mask=False)}),
    ):
        with pytest.raises(ValueError, match=f"{name}.* must be without a mask"):
            fitted(**{name: declared})


@pytest.mark.parametrize("missing", ["zero", "error"])
def test_missing_values_are_what_was_chosen(monkeypatch, missing):
    replaced_solver(monkeypatch)
    whole = TABLE.fillna({"age": 50.0, "job": "clerk"})
    model = fitted(X=whole, missing=missing)
    assert model.columns_ == ("age", "job=clerk", "job=nurse", "job=pilot")
    if missing == "zero":
        scores = model.decision_function(TABLE.iloc[[4]])
        np.testing.assert_array_equal(scores, model.intercept_)
    else:
        with pytest.raises(ValueError, match="column 'age' must be present in every row"):
            model.predict(TABLE)


def test_levels_and_labels_that_were_not_declared(monkeypatch):
    seen = replaced_solver(monkeypatch)
    strange = TABLE.assign(job=["spy", *TABLE["job"][1:]])
    with pytest.raises(ValueError, match="column 'job' must be one of") as refusal:
        fitted(X=strange)
    assert "spy" not in str(refusal.value)
    assert "job is other" in fitted(X=strange, unknown="other").columns_
    labels = np.where(np.arange(7) == 1, "maybe", UNION)
    with pytest.raises(ValueError, match="column y must be one of") as refusal:
        made().fit(TABLE, labels, groups=WHO)
    assert "maybe" not in str(refusal.value)
    made(unlabelled="drop_row").fit(TABLE, labels, groups=WHO)
    assert int(seen[-1][2].mask.sum()) == 6
    assert COMMON["max_items_per_user"] == 3


def test_labels_of_a_regression_are_clipped_and_come_back_in_units(monkeypatch):
    seen = replaced_solver(monkeypatch)
    model = fitted("squared")
    (_, _, data) = seen[0]
    found = np.sort(np.asarray(data.items.label)[np.asarray(data.mask)])
    np.testing.assert_allclose(found, [-1, -1, -0.5, 0, 0.5, 1, 1])  # (10, 30), clipped
    flat = fitted("squared", fit_intercept=False)
    assert flat.intercept_ == 20.0
    assert len(model.coef_) == len(flat.coef_) == 6


def encoded(table, levels):
    """Rows of an array or a list with one column of levels, as an estimator encodes them."""
    declared = {"feature_columns": [0], "label_column": "y", "labels": (0, 1), "unknown": "other"}
    made = Encoding(**declared, categories={0: levels}, intercept=False)
    return made.apply(_frames.frame_of(table)[0], labelled=False).features


IN_COMPANY = {
    "numbers": ([[1.0], [float("nan")], [2.0]], [1, 2], [[1, 0, 0, 0], [0, 0, 0, 1]]),
    "truths": ([[True], [False], [True]], [1, 0], [[1, 0, 0, 0], [0, 1, 0, 0]]),
    "texts": ([["a"], ["b"], ["a"]], ["a", "b"], [[1, 0, 0, 0], [0, 1, 0, 0]]),
    "times": ([[datetime.datetime(2020, 1, day)] for day in (1, 2, 3)], [1], [[0, 1, 0]] * 2),
}


@pytest.mark.parametrize("kind", IN_COMPANY)
@pytest.mark.parametrize("last", [None, float("nan"), "x", 0.5, 2**70, decimal.Decimal("sNaN")])
def test_a_row_of_a_list_or_of_objects_is_what_it_is_in_any_company(kind, last):
    table, levels, expected = IN_COMPANY[kind]
    for rows in (table, [*table[:2], [last]]):
        np.testing.assert_array_equal(encoded(rows, levels)[:2], expected)
        objects = np.array(rows, object)
        np.testing.assert_array_equal(encoded(objects, levels)[:2], expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda values: pd.Series(values, dtype="Int64"),
        lambda values: pd.Series(values, dtype="Int64").astype("category"),
        lambda values: pytest.importorskip("polars").Series(values),
        list,
    ],
)
def test_a_missing_label_or_user_changes_no_other(make):
    values = [2**53 + 1, 2**53, None]
    for found in (
        _frames.labels_of(make(values)),
        _frames.column_of("groups", make(values), 3),
    ):
        assert found[:2].tolist() == values[:2]
        assert pd.isna(found[2])
        assert found.dtype == _frames.labels_of(make([1, 2, 3])).dtype


def test_polars_columns_have_the_dtype_that_nulls_would_need():
    polars = pytest.importorskip("polars")
    zoned = polars.Datetime("us", "UTC")
    for kind in (polars.Int64, polars.UInt8, polars.Boolean, polars.String, zoned):
        there, gone = (
            _frames._of_polars(polars.DataFrame({"a": polars.Series(values, dtype=kind)}))["a"]
            for values in ([], [None])
        )
        assert there.dtype == gone.dtype


@pytest.mark.parametrize("kind", ["datetime64[ns]", "datetime64[s]", "timedelta64[ns]"])
def test_masked_times_are_times(kind):
    values = np.array([1, 2], kind)
    found = _frames.labels_of(np.ma.array(values, mask=[False, True]))
    assert found[0] == values[0]
    assert np.isnat(found[1])


@pytest.mark.parametrize("classes", [[2**63 + 1, -1], [2**53 + 1, 0.5], ["a", "b\0"]])
def test_classes_that_numpy_makes_others_of_are_refused(classes):
    with pytest.raises(ValueError, match="classes must be such as NumPy holds"):
        made(classes=classes).fit(TABLE, UNION, groups=WHO)
