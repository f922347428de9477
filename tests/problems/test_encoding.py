"""Encoding of declared columns against a second implementation; what depends on values is a choice."""

import math

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsco_jax.problems import losses, tables, users
from dpsco_jax.problems.encoding import Encoding

LEVELS = ["clerk", "nurse", "pilot"]
BOUNDS = {"age": (0.0, 100.0), "wage": (-1.0, 3.0)}


def frame_of(rows):
    frame = pd.DataFrame(rows, columns=["who", "age", "wage", "job", "union"])
    return frame.astype({"age": float, "wage": float, "job": object, "union": object})


ROWS = [
    (3, 50.0, 1.0, "nurse", "yes"),
    (1, 0.0, -1.0, "clerk", "no"),
    (3, 120.0, 9.0, "pilot", "no"),
    (2, -np.inf, np.nan, "clerk", "yes"),
    (1, np.nan, 2.0, None, "yes"),
]
FRAME = frame_of(ROWS)


def encoding(**changes):
    declared = {
        "feature_columns": ["age", "job", "wage"],
        "label_column": "union",
        "bounds": BOUNDS,
        "categories": {"job": LEVELS},
        "labels": ("no", "yes"),
    }
    return Encoding(**declared | changes)


def reference_row(row, missing, unknown, intercept):
    """One row by hand: plain Python, one feature after the other; ``None`` if it is dropped."""
    out = [1.0] if intercept else []
    for column in ("age", "job", "wage"):
        value = row[column]
        absent = value is None or value is pd.NA or value != value
        if absent and missing == "drop_row":
            return None
        if column == "job":
            hot = [0.0] * (len(LEVELS) + (unknown == "other"))
            if not absent:
                hot[LEVELS.index(value) if value in LEVELS else -1] = 1.0
            out += hot
        else:
            low, high = BOUNDS[column]
            middle, half = (low + high) / 2, (high - low) / 2
            out.append(0.0 if absent else (min(max(value, low), high) - middle) / half)
        if missing == "indicator":
            out.append(float(absent))
    return out


def by_hand(frame, missing, unknown, intercept):
    rows = [
        reference_row(row, missing, unknown, intercept)
        for row in frame.astype(object).to_dict("records")
    ]
    width = max((len(row) for row in rows if row is not None), default=0)
    return [row or [0.0] * width for row in rows], [row is not None for row in rows]


def test_by_hand():
    made = encoding()
    assert made.columns == (
        "intercept",
        *("age", "age is missing"),
        *("job=clerk", "job=nurse", "job=pilot", "job is missing"),
        *("wage", "wage is missing"),
    )
    rows = made.apply(FRAME)
    expected = [
        [1, 0, 0, 0, 1, 0, 0, 0, 0],
        [1, -1, 0, 1, 0, 0, 0, -1, 0],
        [1, 1, 0, 0, 0, 1, 0, 1, 0],
        [1, -1, 0, 1, 0, 0, 0, 0, 1],
        [1, 0, 1, 0, 0, 0, 1, 0.5, 0],
    ]
    np.testing.assert_array_equal(rows.features, np.float32(expected))
    np.testing.assert_array_equal(rows.label, np.float32([1, 0, 0, 1, 1]))
    assert rows.features.dtype == rows.label.dtype == np.float32
    assert made.feature_bound == 2.0


def test_the_example_of_the_review_keeps_its_intercept():
    """Unscaled, the row [1, 54, 3.05] was projected to [0.018, 0.998, 0.056]."""
    frame = pd.DataFrame({"u": [0], "age": [54.0], "log_wage": [3.05], "y": [1]})
    table = tables.from_frame(
        jax.random.key(0), frame, "u", ["age", "log_wage"], "y", 1,
        bounds={"age": (18, 90), "log_wage": (0, 5)}, labels=(0, 1), missing="zero",
    )  # fmt: skip
    row = table.data.items.features[0, 0]
    np.testing.assert_allclose(row, [1.0, 0.0, 0.22], atol=1e-6)
    objective = losses.logistic(table.feature_bound)
    item = jax.tree.map(lambda leaf: leaf[0, 0], table.data.items)
    slope = jax.grad(objective.loss)(np.zeros(3, np.float32), item)
    np.testing.assert_allclose(slope, -0.5 * row, rtol=1e-4, atol=1e-7)


numbers = st.one_of(
    st.floats(-200, 200), st.sampled_from([np.nan, np.inf, -np.inf, 1e308, -1e308, 0.0, 100.0])
)
jobs = st.sampled_from([*LEVELS, None, np.nan, pd.NA, "baker", "", 3])
frames = st.lists(
    st.tuples(st.integers(0, 3), numbers, numbers, jobs, st.sampled_from(["no", "yes"])),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=60)
@given(frames, st.sampled_from(["indicator", "zero", "drop_row"]), st.booleans())
def test_agrees_with_a_second_implementation_row_by_row(rows, missing, intercept):
    frame = frame_of(rows)
    made = encoding(missing=missing, unknown="other", intercept=intercept)
    found = made.apply(frame)
    expected, kept = by_hand(frame, missing, "other", intercept)
    np.testing.assert_array_equal(found.kept, kept)
    assert found.features.shape == (len(frame), len(made.columns))
    if any(kept):
        np.testing.assert_allclose(found.features, expected, atol=1e-6)
    norms = np.linalg.norm(found.features.astype(np.float64), axis=1)
    assert np.all(norms <= made.feature_bound)
    # A map of rows: each alone gives what it gives among others.
    alone = [made.apply(frame.iloc[[i]]) for i in range(len(frame))]
    np.testing.assert_array_equal(np.concatenate([a.features for a in alone]), found.features)
    np.testing.assert_array_equal(np.concatenate([a.kept for a in alone]), found.kept)


@settings(deadline=None, max_examples=40)
@given(frames, frames, st.sampled_from(["indicator", "zero", "drop_row"]))
def test_neighbours_stay_neighbours_and_shapes_say_nothing(others, rows, missing):
    """Whatever the rows of one user are, the other users' items do not move, and nothing raises."""

    def table(own):
        frame = frame_of(
            [row for row in others if row[0] != 0] + own + [(9, 1.0, 1.0, "nurse", "no")]
        )
        return tables.from_frame(
            jax.random.key(1), frame, "who", ["age", "job", "wage"], "union", 2,
            bounds=BOUNDS, categories={"job": LEVELS}, labels=("no", "yes"),
            missing=missing, unknown="other", unlabelled="drop_row", order="sorted",
        )  # fmt: skip

    first = table([(0, 1.0, 1.0, "nurse", "no")])
    second = table([(0, *row[1:4], "maybe") for row in rows] + [(0, *row[1:]) for row in rows])
    assert first.columns == second.columns
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a[1:], b[1:], strict=True),
        first.data,
        second.data,
    )
    assert first.data.mask.shape == second.data.mask.shape


@pytest.mark.parametrize(
    ("values", "classes", "expected"),
    [
        ([-1, 1, -1], (-1, 1), [0, 1, 0]),
        ([-1.0, 1.0, -1.0], (-1, 1), [0, 1, 0]),
        ([False, True, False], (False, True), [0, 1, 0]),
        ([False, True, False], (0, 1), [0, 1, 0]),
        (["no", "yes", "no"], ("no", "yes"), [0, 1, 0]),
        (["no", "yes", "no"], ("yes", "no"), [1, 0, 1]),
        ([2, 1, 2], (1, 2), [1, 0, 1]),
        (pd.array([0, 1, 0], "Int64"), (0, 1), [0, 1, 0]),
        (pd.array([True, False, True], "boolean"), (False, True), [1, 0, 1]),
        (pd.Categorical(["b", "a", "b"]), ("a", "b"), [1, 0, 1]),
        (pd.array(["b", "a", "b"], "string"), ("a", "b"), [1, 0, 1]),
        (["c", "a", "b"], ("a", "b", "c"), [2, 0, 1]),
    ],
)
def test_labels_become_what_the_losses_read(values, classes, expected):
    frame = pd.DataFrame({"x": [0.0, 0.5, 1.0], "y": values})
    made = Encoding(feature_columns=["x"], label_column="y", bounds={"x": (0, 1)}, labels=classes)
    label = made.apply(frame).label
    np.testing.assert_array_equal(label, expected)
    assert label.dtype == (np.float32 if len(classes) == 2 else np.int32)


def test_a_label_with_bounds_goes_to_the_unit_interval_and_back():
    frame = pd.DataFrame({"x": [0, 1, 1, 0], "y": [10.0, 35.0, 70.0, np.nan]})
    made = Encoding(
        feature_columns=["x"], label_column="y", unlabelled="drop_row",
        bounds={"x": (0, 1), "y": (10, 60)},
    )  # fmt: skip
    rows = made.apply(frame)
    np.testing.assert_array_equal(rows.label, [-1, 0, 1, 0])
    np.testing.assert_array_equal(rows.kept, [True, True, True, False])
    np.testing.assert_allclose(made.in_units(rows.label[:3]), [10, 35, 60])
    with pytest.raises(ValueError, match="labels must be None"):
        encoding().in_units(0.0)


@pytest.mark.parametrize(
    "column",
    [
        np.array([1, 5, 3], np.uint8),
        np.array([1, 5, 3], np.float16),
        pd.array([1, 5, 3], "Int64"),
        pd.array([1.0, 5.0, 3.0], "Float64"),
    ],
)
def test_numeric_dtypes(column):
    made = Encoding(
        feature_columns=["x"], label_column="y", bounds={"x": (1, 5)}, labels=(0, 1),
        intercept=False, missing="zero",
    )  # fmt: skip
    frame = pd.DataFrame({"x": column, "y": [0, 1, 0]})
    np.testing.assert_array_equal(made.apply(frame).features, [[-1], [1], [0]])


def test_missing_values_of_nullable_and_categorical_columns():
    frame = pd.DataFrame(
        {
            "n": pd.array([4, None], "Int64"),
            "b": pd.array([None, True], "boolean"),
            "c": pd.Categorical([None, "u"]),
            "t": pd.to_datetime(["2020-01-01", None]),
            "y": [0, 1],
        }
    )
    made = Encoding(
        feature_columns=["n", "b", "c", "t"], label_column="y", labels=(0, 1), intercept=False,
        bounds={"n": (0, 8), "b": (0, 1)},
        categories={"c": ["u"], "t": [pd.Timestamp("2020-01-01")]},
    )  # fmt: skip
    found = made.apply(frame).features
    np.testing.assert_array_equal(found, [[0, 0, 0, 1, 0, 1, 1, 0], [0, 1, 1, 0, 1, 0, 0, 1]])


def test_masked_entries_among_objects_are_missing():
    """As a list of a masked array has them; pandas takes them for values."""
    jobs = pd.Series(list(np.ma.array(["u", "u"], mask=[True, False])), dtype=object)
    labels = pd.Series(list(np.ma.array([0, 1], mask=[False, True])), dtype=object)
    made = Encoding(
        feature_columns=["c"], label_column="y", labels=(0, 1), intercept=False,
        categories={"c": ["u"]}, unknown="other", unlabelled="drop_row",
    )  # fmt: skip
    rows = made.apply(pd.DataFrame({"c": jobs, "y": labels}))
    np.testing.assert_array_equal(rows.features[0], [0, 0, 1])
    np.testing.assert_array_equal(rows.kept, [True, False])


@pytest.mark.parametrize("holder", [list, tuple, np.array, pd.Index, pd.Series])
def test_levels_come_in_any_ordered_collection(holder):
    frame = pd.DataFrame({"job": ["b", "a", "b"], "y": ["no", "yes", "yes"]})
    rows = Encoding(
        feature_columns=["job"],
        label_column="y",
        categories={"job": holder(["a", "b"])},
        labels=holder(["no", "yes"]),
        missing="zero",
    ).apply(frame)
    np.testing.assert_array_equal(rows.features, [[1, 0, 1], [1, 1, 0], [1, 0, 1]])
    np.testing.assert_array_equal(rows.label, [0, 1, 1])


def test_extreme_bounds_do_not_overflow():
    made = Encoding(
        feature_columns=["x"], label_column="y", labels=(0, 1), intercept=False,
        bounds={"x": (-8e307, 8e307)}, missing="zero",
    )  # fmt: skip
    frame = pd.DataFrame({"x": [1e308, -1.7e308, 0.0, 4e307], "y": [0, 0, 0, 0]})
    np.testing.assert_allclose(made.apply(frame).features[:, 0], [1, -1, 0, 0.5])


def test_a_frame_without_labels():
    made = encoding()
    rows = made.apply(FRAME.drop(columns="union"), labelled=False)
    assert rows.label is None
    np.testing.assert_array_equal(rows.features, made.apply(FRAME).features)
    assert made.apply(FRAME.iloc[:0]).features.shape == (0, 9)


def test_from_frame_groups_what_the_encoding_gives():
    table = tables.from_frame(
        jax.random.key(0), FRAME, "who", ["age", "job", "wage"], "union", 2,
        bounds=BOUNDS, categories={"job": LEVELS}, labels=("no", "yes"), order="sorted",
    )  # fmt: skip
    rows = table.encoding.apply(FRAME)
    expected = np.zeros((3, 2, 9), np.float32)
    expected[0], expected[1, 0], expected[2] = (
        rows.features[[1, 4]],
        rows.features[3],
        rows.features[[0, 2]],
    )
    np.testing.assert_array_equal(table.data.items.features, expected)
    np.testing.assert_array_equal(table.data.items.label, [[0, 1], [1, 0], [1, 0]])
    np.testing.assert_array_equal(table.data.mask, [[1, 1], [1, 0], [1, 1]])
    assert table.columns == table.encoding.columns
    assert table.feature_bound == math.sqrt(4)


def test_users_whose_rows_are_dropped_stay():
    frame = FRAME.assign(age=FRAME.age.where(FRAME.who != 2, np.nan))
    table = tables.from_frame(
        jax.random.key(0), frame, "who", ["age"], "union", 2,
        bounds={"age": (0, 100)}, labels=("no", "yes"), missing="drop_row", order="sorted",
    )  # fmt: skip
    np.testing.assert_array_equal(users.items_per_user(table.data), [1, 0, 2])


def test_a_missing_value_costs_no_other_item_its_say():
    """One NaN in a row used to take the whole user's gradient with it, or the whole row."""
    rows = [(1, 50.0, 1.0, "nurse", "yes"), (1, np.nan, 2.0, "nurse", "yes")]
    table = tables.from_frame(
        jax.random.key(0), frame_of(rows), "who", ["age", "wage"], "union", 2,
        bounds=BOUNDS, labels=("no", "yes"), keep="first",
    )  # fmt: skip
    objective = losses.logistic(table.feature_bound)
    one = jax.tree.map(lambda leaf: leaf[0], table.data.items)
    slope = jax.grad(users.user_loss(objective))(np.zeros(5, np.float32), one, None)
    # Minus half of the mean of [1, 0, 0, 0, 0] and [1, 0, 1, 0.5, 0].
    np.testing.assert_allclose(slope, [-0.5, 0.0, -0.25, -0.125, 0.0], atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"feature_columns": "age"}, "feature_columns must be a list"),
        ({"feature_columns": None}, "feature_columns must be a list"),
        ({"feature_columns": []}, "feature_columns must be a list"),
        ({"feature_columns": ["age", "age"]}, "feature_columns must be a list of different"),
        ({"feature_columns": [["age"]]}, "feature_columns must be a list of different"),
        ({"feature_columns": ["age", "job", "wage", "union"]}, "label_column must be no feature"),
        ({"feature_columns": ["age", "job", "wage", "x"]}, "'x' of feature_columns must be given"),
        ({"bounds": {"age": (0, 1)}}, "'wage' of feature_columns must be given"),
        ({"categories": {"job": LEVELS, "age": [1]}}, "'age' of feature_columns must be given"),
        ({"bounds": BOUNDS | {"x": (0, 1)}}, "bounds must be for feature columns"),
        ({"bounds": BOUNDS | {"union": (0, 1)}}, "'union' of label_column must be given"),
        ({"labels": None}, "'union' of label_column must be given"),
        ({"categories": {"job": LEVELS, "x": [1]}}, "categories must be for feature columns"),
        ({"categories": [1]}, "categories must be a mapping"),
        ({"bounds": 3}, "bounds must be a mapping"),
        ({"bounds": BOUNDS | {"age": (1, 1)}}, r"bounds\['age'\] must be a pair low < high"),
        ({"bounds": BOUNDS | {"age": (2, 1)}}, r"bounds\['age'\] must be a pair low < high"),
        ({"bounds": BOUNDS | {"age": (0, np.inf)}}, r"bounds\['age'\] must be in"),
        ({"bounds": BOUNDS | {"age": (np.nan, 1)}}, r"bounds\['age'\] must be in"),
        ({"bounds": BOUNDS | {"age": ("0", "1")}}, r"bounds\['age'\] must be in"),
        ({"bounds": BOUNDS | {"age": (-1e308, 1e308)}}, r"bounds\['age'\] must be a pair"),
        ({"bounds": BOUNDS | {"age": (0, 1, 2)}}, r"bounds\['age'\] must be a pair"),
        ({"bounds": BOUNDS | {"age": "01"}}, r"bounds\['age'\] must be a pair"),
        ({"bounds": BOUNDS | {"age": None}}, r"bounds\['age'\] must be a pair"),
        ({"categories": {"job": []}}, r"categories\['job'\] must be a list of at least 1"),
        ({"categories": {"job": "abc"}}, r"categories\['job'\] must be a list"),
        (
            {"categories": {"job": ["a", "a"]}},
            r"categories\['job'\] must be a list of at least 1 diff",
        ),
        (
            {"categories": {"job": [1, True]}},
            r"categories\['job'\] must be a list of at least 1 diff",
        ),
        (
            {"categories": {"job": ["a", None]}},
            r"categories\['job'\] must be .* none of them missing",
        ),
        (
            {"categories": {"job": ["a", pd.NA]}},
            r"categories\['job'\] must be .* none of them miss",
        ),
        ({"categories": {"job": [["a"]]}}, r"categories\['job'\] must be a list of levels"),
        ({"categories": {"job": [1, "1"]}}, "feature_columns and categories must be such that"),
        ({"labels": ("no",)}, "labels must be a list of at least 2 different levels"),
        ({"labels": ("no", "no")}, "labels must be a list of at least 2 different levels"),
        ({"labels": "01"}, "labels must be a list of levels"),
        ({"missing": "mean"}, "missing must be one of indicator, zero, drop_row, error"),
        ({"missing": None}, "missing must be one of"),
        ({"unknown": "zero"}, "unknown must be one of error, other"),
        ({"unlabelled": "zero"}, "unlabelled must be one of error, drop_row"),
        ({"intercept": 1}, "intercept must be True or False"),
    ],
)
def test_declarations_that_contradict_themselves_are_refused(changes, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        encoding(**changes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.drop(columns="age"), "column 'age' must be once among those of frame"),
        (lambda f: f.drop(columns="union"), "column 'union' must be once among those of frame"),
        (lambda f: f.drop(columns="who"), "column 'who' must be once among those of frame"),
        (lambda f: pd.concat([f, f[["age"]]], axis=1), "column 'age' must be once among"),
        (
            lambda f: f.astype({"age": object}),
            r"column 'age' must be of a numeric dtype, since it has bounds: convert it to numbers, as by"
            r" pandas\.to_numeric .*, or declare its levels in categories, got 'object'",
        ),
        (lambda f: f.astype({"age": str}), "column 'age' must be of a numeric dtype"),
        (lambda f: f.astype({"age": complex}), "column 'age' must be of a numeric dtype"),
        (lambda f: f.assign(age=pd.to_datetime("2020")), "column 'age' must be of a numeric"),
        (lambda f: f.assign(job=1), r"categories\['job'\] must be of the kind of column 'job'"),
        (lambda f: f.assign(union=1), "labels must be of the kind of column 'union'"),
        (lambda f: f.to_dict(), "column 'who' must be once among those of frame"),
    ],
)
def test_frames_that_contradict_the_declaration_are_refused(change, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        from_frame(change(FRAME))


def from_frame(frame, **changes):
    declared = {
        "user_column": "who",
        "feature_columns": ["age", "job", "wage"],
        "label_column": "union",
        "max_items_per_user": 2,
        "bounds": BOUNDS,
        "categories": {"job": LEVELS},
        "labels": ("no", "yes"),
    }
    return tables.from_frame(jax.random.key(0), frame, **declared | changes)


def test_the_user_is_neither_feature_nor_label():
    with pytest.raises(ValueError, match="user_column must be neither"):
        from_frame(FRAME, user_column="union")
    with pytest.raises(ValueError, match="user_column must be neither"):
        from_frame(FRAME, user_column="age")
    text = FRAME.assign(job=pd.array(LEVELS + LEVELS[:2], "string"))
    with pytest.raises(ValueError, match=r"categories\['job'\] must be of the kind"):
        from_frame(text, categories={"job": [pd.Timestamp("2020-01-01")]})


@pytest.mark.parametrize(
    ("column", "values", "choice"),
    [
        ("age", (None, np.nan), {"missing": "error"}),
        ("job", (None, np.nan), {"missing": "error"}),
        ("job", ("secret", "other secret", 77), {"unknown": "error"}),
        ("union", ("secret", None, 77), {"unlabelled": "error"}),
        ("who", (None, np.nan), {}),
    ],
)
def test_errors_on_values_are_a_choice_and_show_none(column, values, choice):
    said = set()
    clean = frame_of(ROWS[:3])
    for place in (0, 2):
        for value in values:
            frame = clean.astype({column: object})
            frame.loc[place, column] = value
            frame = frame.astype({"age": float, "wage": float})
            with pytest.raises(ValueError, match=f"column '{column}'") as refused:
                from_frame(frame, **choice)
            said.add(str(refused.value))
    assert len(said) == 1, "the message tells where or what"
    if choice:
        quiet = {"missing": "zero", "unknown": "other", "unlabelled": "drop_row"}
        from_frame(frame, **quiet)


@pytest.mark.parametrize("choice", ["zero", "error"])
def test_a_number_that_was_computed_as_nan_is_missing(choice):
    holder = pd.arrays.FloatingArray(np.array([np.nan, 1.0, 0.0]), np.array([False, False, True]))
    frame = pd.DataFrame({"x": holder, "y": ["yes", "no", "no"]})
    declared = {"feature_columns": ["x"], "categories": {}, "bounds": {"x": (0, 1)}}
    made = encoding(**declared, label_column="y", missing=choice, intercept=False)
    if choice == "error":
        with pytest.raises(ValueError, match="column 'x' must be present"):
            made.apply(frame.iloc[:2])
    else:
        np.testing.assert_array_equal(made.apply(frame).features, [[0.0], [1.0], [0.0]])
    labelled = encoding(
        **declared | {"feature_columns": ["z"], "bounds": {"x": (0, 1), "z": (0, 1)}},
        label_column="x",
        labels=None,
        unlabelled="drop_row",
    )
    np.testing.assert_array_equal(labelled.label(frame["x"])[1], [False, True, False])


def test_what_is_changed_after_a_declaration_changes_nothing():
    columns, levels, labels = ["age", "job", "wage"], LEVELS[:], ["no", "yes"]
    ages, holder = np.array([0.0, 100.0]), np.array(LEVELS, object)
    bounds, categories = BOUNDS | {"age": ages}, {"job": levels}
    declared = {"feature_columns": columns, "bounds": bounds, "labels": labels}
    made = encoding(**declared, categories=categories)
    other = encoding(**declared, categories={"job": holder})
    before = made.apply(FRAME.iloc[:3])
    for changed in (columns, levels, labels, holder):
        changed[:] = changed[::-1]
    ages *= 2
    bounds["wage"] = (0.0, 1.0)
    categories["job"] = ["pilot"]
    for after in (made.apply(FRAME.iloc[:3]), other.apply(FRAME.iloc[:3])):
        np.testing.assert_array_equal(before.features, after.features)
        np.testing.assert_array_equal(before.label, after.label)
    assert made.columns == other.columns == encoding().columns


def test_columns_come_in_an_order():
    assert encoding(feature_columns=(c for c in ["age", "job", "wage"])) == encoding()
    for unordered in ({"age", "job", "wage"}, frozenset(["age", "job", "wage"])):
        with pytest.raises(ValueError, match="feature_columns must be a list"):
            encoding(feature_columns=unordered)


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float64_are_clipped_without_a_warning():
    wide = np.array([0.0, np.longdouble(10) ** 4000], np.longdouble)
    frame = pd.DataFrame({"age": wide, "union": ["yes", "no"]})
    made = encoding(feature_columns=["age"], bounds={"age": (0, 1)}, categories={})
    np.testing.assert_array_equal(made.apply(frame).features[:, 1], [-1.0, 1.0])
