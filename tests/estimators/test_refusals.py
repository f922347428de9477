"""What is not declared is asked for by name, bad values raise in ``fit``, and no message shows a value."""

import traceback

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import FunctionTransformer

from dpsco_jax.estimators import (
    PrivateLogisticRegression,
    PrivateRegression,
    make_private_pipeline,
)
from tests.estimators.support import (
    COMMON,
    KINDS,
    LEVELS,
    TABLE,
    UNION,
    WAGE,
    WHO,
    made,
    replaced_solver,
)
from tests.support.kinds import COUNT, FLAG, NONNEGATIVE, OPEN_PROBABILITY, POSITIVE

WORDS = ("nonsense", 7, None)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("epsilon", "epsilon must be given"),
        ("delta", "delta must be given"),
        ("bounds", r"bounds must be given .* got neither for 'age'"),
        ("categories", r"bounds must be given .* got neither for 'job'"),
        ("classes", "classes must be given: all values that the label can have"),
        ("max_items_per_user", "max_items_per_user must be given with user_level=True"),
    ],
)
def test_public_facts_are_asked_for(missing, said):
    with pytest.raises(ValueError, match=said):
        made(**{missing: None}).fit(TABLE, UNION, groups=WHO)


def test_arguments_without_a_name_are_refused():
    for kind in (PrivateRegression, PrivateLogisticRegression):
        with pytest.raises(
            ValueError, match=r"given by name, as in Private.*\(epsilon=1.0, .* got 2.5"
        ):
            kind(2.5, 1e-6)


@pytest.mark.parametrize("bounds", [[(0, 1), (0, 2)], [[0, 1]], np.ones((2, 2)), [(0, 1)] * 3])
def test_lists_of_bounds_are_refused_with_the_form_that_works(bounds):
    with pytest.raises(ValueError, match=r"bounds must be a mapping from columns to \(low, high\)"):
        made("squared", bounds=bounds, categories=None).fit(np.zeros((7, 2)), WAGE, groups=WHO)


def test_label_bounds_are_asked_for():
    with pytest.raises(ValueError, match="label_bounds must be given"):
        made("squared", label_bounds=None).fit(TABLE, WAGE, groups=WHO)


def test_who_is_protected_is_said_twice_alike():
    with pytest.raises(ValueError, match="groups must be given with user_level=True"):
        made().fit(TABLE, UNION)
    with pytest.raises(ValueError, match="groups must be None with user_level=False"):
        made(user_level=False, max_items_per_user=None).fit(TABLE, UNION, groups=WHO)
    with pytest.raises(ValueError, match="max_items_per_user must be None with user_level=False"):
        made(user_level=False).fit(TABLE, UNION)
    with pytest.raises(ValueError, match="at least 2 records, got 1"):
        made().fit(TABLE, UNION, groups=np.zeros(7, int))


BAD = [
    *(("logistic", "epsilon", bad) for bad in POSITIVE.bad),
    *(("logistic", "delta", bad) for bad in OPEN_PROBABILITY.bad),
    *(("logistic", "max_items_per_user", bad) for bad in COUNT.bad),
    *(("logistic", "user_level", bad) for bad in FLAG.bad),
    *(("logistic", "fit_intercept", bad) for bad in FLAG.bad),
    *(("logistic", "unaccounted_tuning", bad) for bad in FLAG.bad),
    *(("logistic", "ridge", bad) for bad in NONNEGATIVE.bad),
    *(("logistic", "max_norm", bad) for bad in POSITIVE.bad),
    *(("logistic", "missing", bad) for bad in (*WORDS, "drop_row")),
    *(("logistic", "unknown", bad) for bad in WORDS),
    *(("logistic", "unlabelled", bad) for bad in WORDS),
    *(("logistic", "random_state", bad) for bad in (-1, 1.5, "7", np.random.RandomState(0))),
    *(("logistic", "bounds", bad) for bad in (7, (1, 0), (0, np.inf), {"age": (1, 1)}, "ab")),
    *(("logistic", "bounds", {"age": (0, 1), "wage": (0, 1)}) for _ in range(1)),
    *(("logistic", "categories", bad) for bad in (7, ["clerk"], {"job": "clerk"}, {"job": []})),
    *(("logistic", "classes", bad) for bad in ("ab", ["a"], ["a", "a"], ["a", 1], ["a", None])),
    *(("logistic", "classes", bad) for bad in (["a", "b", "c"], 7)),
    ("softmax", "classes", ["a", "b"]),
    *(("squared", "loss", bad) for bad in WORDS),
    *(("squared", "label_bounds", bad) for bad in (7, (1, 1), (np.nan, 1))),
    *(("squared", "quantile", bad) for bad in OPEN_PROBABILITY.bad),
    *(("squared", "huber_threshold", bad) for bad in POSITIVE.bad if bad is not None),
]


@pytest.mark.parametrize(
    ("kind", "name", "bad"), BAD, ids=lambda value: repr(value).split(" at 0x")[0][:30]
)
def test_bad_values_are_refused_by_name_in_fit(kind, name, bad):
    model = made(kind).set_params(**{name: bad})  # which takes what it is given
    with pytest.raises(ValueError, match=name):
        model.fit(TABLE, KINDS[kind][2], groups=WHO)
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize(
    ("X", "said"),
    [
        (np.zeros(7), "Reshape your data"),
        (np.zeros((7, 2), complex), "Complex data not supported"),
        (np.zeros((0, 2)), r"0 sample\(s\)"),
        (None, "X must be a frame"),
        ("table", "X must be a frame"),
        ([[1, 2], [3]], "X must be a frame"),
        (pd.DataFrame(np.zeros((7, 2)), columns=[["a", "b"], ["c", "d"]]), "plain names"),
        (TABLE.assign(wage=1.0), "got neither for 'wage'"),
        (TABLE[["age"]], "bounds and categories must be for columns of X"),
    ],
)
def test_tables_that_are_none(X, said):
    with pytest.raises(ValueError, match=said):
        made().fit(X, UNION, groups=WHO)


def test_lengths_that_do_not_agree():
    with pytest.raises(ValueError, match="y must be one for each row of X"):
        made().fit(TABLE, UNION[:-1], groups=WHO)
    with pytest.raises(ValueError, match="groups must be one for each row of X"):
        made().fit(TABLE, UNION, groups=WHO[:-1])


ORDER = np.array([6, 0, 1, 2, 3, 4, 5])
NAMED = TABLE.set_axis([f"row {i}" for i in range(7)])


@pytest.mark.parametrize(
    ("X", "y", "groups", "name"),
    [
        (TABLE, UNION, pd.Series(WHO).iloc[ORDER], "groups must be rows with the index of X"),
        (TABLE, pd.Series(UNION).iloc[ORDER], WHO, "y must be rows with the index of X"),
        (TABLE, pd.DataFrame({"y": UNION}).iloc[ORDER], WHO, "y must be rows with the index of X"),
        (TABLE.iloc[ORDER], UNION, pd.Series(WHO), "groups must be rows with the index of X"),
        (NAMED, UNION, pd.Series(WHO), "groups must be rows with the index of X"),
        (
            TABLE.to_numpy(object),
            pd.Series(UNION),
            pd.Series(WHO).iloc[ORDER],
            "groups must be rows with the index of y",
        ),
    ],
)
def test_rows_in_another_order_are_refused(X, y, groups, name):
    """By position each of these gave rows to another user, or a label to another row."""
    model = (
        made(bounds={0: (0, 100)}, categories={1: LEVELS}) if isinstance(X, np.ndarray) else made()
    )
    with pytest.raises(ValueError, match=f"^{name}, in its order, .* got another index") as refusal:
        model.fit(X, y, groups=groups)
    assert "row " not in str(refusal.value)
    if not isinstance(X, np.ndarray):  # which has no index behind the first step
        placed = made(bounds={0: (0, 100)}, categories={1: LEVELS})
        pipe = make_private_pipeline(FunctionTransformer(pd.DataFrame.to_numpy), placed)
        with pytest.raises(ValueError, match=f"^{name}"):
            pipe.fit(X, y, groups=groups)


def test_rows_in_one_order_are_taken_whatever_holds_them(monkeypatch):
    seen = replaced_solver(monkeypatch)
    index = NAMED.index[ORDER]
    made().fit(TABLE, UNION, groups=WHO)
    moved = NAMED.iloc[ORDER]
    label, users = pd.Series(UNION, NAMED.index), pd.Series(WHO, NAMED.index)
    with pytest.raises(ValueError, match="groups must be rows with the index of X"):
        made().fit(moved, label[index], groups=users)
    made().fit(moved, label[index], groups=users[index])
    made().fit(moved, label[index], groups=users[index].to_numpy())
    held = [np.sort(np.asarray(data.items.features).sum(axis=(1, 2))) for _, _, data in seen]
    np.testing.assert_allclose(held[1:], [held[0]] * 2)


def test_a_score_compares_rows_with_their_own_labels(monkeypatch):
    replaced_solver(monkeypatch)
    model = made("squared").fit(TABLE, WAGE, groups=WHO)
    found = model.predict(TABLE)
    weights = np.arange(7.0)
    mean = np.average(WAGE, weights=weights)
    missed, spread = ((weights * (WAGE - other) ** 2).sum() for other in (found, mean))
    score = model.score(TABLE, pd.Series(WAGE), sample_weight=pd.Series(weights))
    assert score == pytest.approx(1 - missed / spread, rel=1e-9)
    with pytest.raises(ValueError, match="y must be rows with the index of X"):
        model.score(TABLE, pd.Series(WAGE).iloc[ORDER])
    with pytest.raises(ValueError, match="sample_weight must be rows with the index of X"):
        model.score(TABLE, WAGE, sample_weight=pd.Series(weights).iloc[ORDER])
    classes = made().fit(TABLE, UNION, groups=WHO)
    assert classes.score(TABLE, UNION) == np.mean(classes.predict(TABLE) == UNION)
    with pytest.raises(ValueError, match="y must be rows with the index of X"):
        make_private_pipeline("passthrough", classes).score(TABLE, pd.Series(UNION).iloc[ORDER])


SECRET = "Rosebud"


def test_no_message_shows_a_value():
    texts = TABLE.assign(job=SECRET)
    numbers = np.full((7, 2), SECRET, object)
    mixed = np.array([[SECRET, 1.0]] + [[1.0, 1.0]] * 6, object)
    declared = {"bounds": (0, 1), "categories": None}
    tries = [
        lambda: made().fit(texts, UNION, groups=WHO),
        lambda: made(**declared).fit(numbers, UNION, groups=WHO),
        lambda: made(**declared).fit(mixed, UNION, groups=WHO),
        lambda: made(**declared).fit(numbers.astype(str), UNION, groups=WHO),
        lambda: made().fit(TABLE, np.full(7, SECRET), groups=WHO),
        lambda: made("squared").fit(TABLE, np.full(7, SECRET, object), groups=WHO),
        lambda: made("squared").fit(TABLE, np.full(7, SECRET), groups=WHO),
        lambda: made().fit(TABLE, UNION, groups=np.array([SECRET, *WHO[1:]], object)),
        lambda: made().fit([SECRET] * 7, UNION, groups=WHO),
        lambda: made().fit(TABLE, UNION, groups=SECRET),
        lambda: made().fit(TABLE, SECRET, groups=WHO),
        lambda: made(user_level=False).fit(TABLE, UNION, groups=[SECRET] * 7),
    ]
    for fit in tries:
        with pytest.raises(ValueError) as refusal:  # noqa: PT011
            fit()
        assert SECRET not in "".join(traceback.format_exception(refusal.value))


def test_nothing_is_filled_in_by_other_arguments():
    """One pair of bounds stands for all numeric columns, and for no column with levels."""
    only = PrivateRegression(**COMMON | {"bounds": (0, 1), "categories": None}, label_bounds=(0, 1))
    with pytest.raises(ValueError, match="column 'job' must be of a numeric dtype"):
        only.fit(TABLE, WAGE, groups=WHO)
    both = PrivateLogisticRegression(
        **COMMON | {"bounds": {"age": (0, 1), "job": (0, 1)}, "categories": {"job": LEVELS}},
        classes=["no", "yes"],
    )
    with pytest.raises(ValueError, match="'job' of feature_columns must be given either bounds"):
        both.fit(TABLE, UNION, groups=WHO)
