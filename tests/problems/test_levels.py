"""Levels against values of every type that can hold them, by a table of what is equal to what."""

import datetime
import decimal
import fractions
import itertools

import numpy as np
import pandas as pd
import pytest

from dpsco_jax.problems._levels import codes
from dpsco_jax.problems.encoding import Encoding

D = decimal.Decimal
DAY = datetime.datetime(2020, 1, 2)
# In each row all are one and the same value, and no two rows have a common one.
SAME = [
    [0, 0.0, "0", "0.0", b"0", False, np.int8(0), np.float32(0), np.False_, D("0.00"), "False"],
    [1, 1.0, "1", "1.0", b"1", True, np.uint64(1), np.float16(1), np.str_("1"), D("1"), "True"],
    [-3, -3.0, "-3", "-3.0", np.int64(-3), D("-3.0"), fractions.Fraction(-3)],
    [0.1, "0.1", b"0.1", np.float64(0.1), np.float32(0.1), D("0.10")],
    [2.5, "2.5", np.float16(2.5), D("2.5")],
    [2**53 + 1, str(2**53 + 1), D(2**53 + 1)],
    [2.0**53, 2**53, str(2**53)],
    ["nurse", b"nurse", np.str_("nurse")],
    [DAY, DAY.date(), pd.Timestamp(DAY), np.datetime64("2020-01-02"), np.datetime64(DAY, "ns")],
    [datetime.timedelta(days=1), pd.Timedelta("1D"), np.timedelta64(24, "h")],
]
# What is no value of any row.
OTHERS = ["01", " 1", "1.00", "1e0", "true", "Nurse", b"\xff", 3, 0.25, 1j, "nan", (1,), [1], None]
OTHERS += [
    86400 * 10**9,
    DAY + datetime.timedelta(hours=1),
    D("0.1000000000000000001"),
    0.10000000149011612,
]


def as_objects(values):
    column = np.empty(len(values), object)
    column[:] = values
    return pd.Series(column, name="c")


def are_one(level, value):
    """Not two different texts, of which one is all that the other says."""
    texts = [v.decode() if isinstance(v, bytes) else v for v in (level, value)]
    if all(isinstance(v, str) for v in texts):
        return texts[0] == texts[1]
    named = next((v for v in texts if isinstance(v, str)), None)
    other = texts[1] if texts[0] is named else texts[0]
    return named not in ("True", "False") or isinstance(other, bool | np.bool_)


@pytest.mark.parametrize("row", SAME, ids=lambda row: str(row[0]))
def test_what_is_equal_counts_whatever_holds_it(row):
    for level, value in itertools.product(row, row):
        found = codes("x", as_objects([value]), ["no such", level])
        assert found == (1 if are_one(level, value) else -1), (level, value)


def test_what_is_not_equal_does_not():
    rows = [row[0] for row in SAME]
    every = [value for row in SAME for value in row]
    found = codes("x", as_objects(every), rows)
    wanted = [
        place if are_one(rows[place], value) else -1
        for place, row in enumerate(SAME)
        for value in row
    ]
    np.testing.assert_array_equal(found, wanted)
    # Each by itself, whatever stands before it in the column.
    np.testing.assert_array_equal(codes("x", as_objects(every[::-1]), rows)[::-1], wanted)
    assert (codes("x", as_objects(OTHERS), rows) == -1).all()


def test_a_level_as_it_stands_comes_first():
    values = as_objects([1, 1.0, "1", "1.0", True, "True", 2])
    np.testing.assert_array_equal(codes("x", values, ["1.0", 1]), [1, 1, 1, 0, 1, -1, -1])
    np.testing.assert_array_equal(codes("x", values, ["1", "1.0"]), [0, 0, 0, 1, 0, -1, -1])
    np.testing.assert_array_equal(codes("x", values, ["True", "1"]), [1, 1, 1, -1, 0, 0, -1])


MONTHS = list(pd.period_range("2020-01", periods=2, freq="M"))
COLUMNS = [
    (["1", "2"], [1, 2], "int64"),
    (["1", "2"], [1, 2], "Int64"),
    (["1", "2"], [1, 2], "uint8"),
    (["1", "2.0"], [1.0, 2.0], "float64"),
    ([1, 2], [1.0, 2.0], "Float32"),
    ([1, 2], ["1", "2.0"], "str"),
    ([1, 2], ["1", "2"], "string"),
    ([1.0, 2.0], ["1", "2"], "category"),
    (["1", "2"], [1, 2], "category"),
    (["no", "yes"], [b"no", b"yes"], object),
    ([b"no", b"yes"], ["no", "yes"], "str"),
    (["False", "True"], [False, True], bool),
    ([False, True], ["False", "True"], "str"),
    ([0, 1], [False, True], "boolean"),
    ([0.1, 1 / 3], [0.1, 1 / 3], "float32"),
    ([0.1, 1 / 3], [0.1, 1 / 3], "Float32"),
    (["0.1", D("2.5")], [0.1, 2.5], "float16"),
    ([D("0.1"), "0.3"], [0.1, 0.3], "float64"),
    (MONTHS, MONTHS, "period[M]"),
    (["a", b"b"], [b"a", b"b"], "S1"),
    ([16777217, 2], [16777217, 2], "float32"),
    ([DAY.date(), datetime.date(2021, 1, 1)], [DAY, "2021-01-01"], "datetime64[ns]"),
    ([np.datetime64(DAY), np.datetime64("2021")], [DAY, "2021-01-01"], "datetime64[s]"),
    ([np.timedelta64(1, "s"), np.timedelta64(1, "h")], [10**9, 3600 * 10**9], "timedelta64[ns]"),
]


@pytest.mark.parametrize(("levels", "values", "dtype"), COLUMNS)
def test_levels_are_found_in_columns_of_every_dtype(levels, values, dtype):
    column = pd.Series([*values, values[0]], name="c").astype(dtype)
    np.testing.assert_array_equal(codes("x", column, levels), [0, 1, 0])
    made = Encoding(
        feature_columns=["c"], label_column="y", categories={"c": levels}, labels=levels,
        missing="zero", intercept=False,
    )  # fmt: skip
    rows = made.apply(pd.DataFrame({"c": column, "y": column}))
    np.testing.assert_array_equal(rows.features, [[1, 0], [0, 1], [1, 0]])
    np.testing.assert_array_equal(rows.label, [0, 1, 0])


NEVER = [
    (["clerk", "nurse"], [1, 2], "int64"),
    (["clerk", "nurse"], [1, 2], "Float64"),
    (["01", "nan", "1e0"], [1, 2], "float64"),
    (["False", "True"], [0, 1], "int64"),
    (["False", "True"], [0, 1], "float64"),
    (["clerk", "true"], [False, True], "boolean"),
    ([np.timedelta64(1, "s")], [1, 2], "int64"),
    (["clerk"], [1, 2], "category"),
    ([pd.Timestamp(DAY)], ["2020-01-02", "b"], "str"),
    ([(1,), (2,)], ["1", "2"], "category"),
    (["2020-01-02"], ["2020-01-02", "2021-01-01"], "datetime64[ns]"),
    ([1, 2], ["2020-01-02", "2021-01-01"], "datetime64[ns]"),
    ([pd.Timestamp(DAY, tz="UTC")], ["2020-01-02", "2021-01-01"], "datetime64[ns]"),
    ([pd.Timestamp(DAY)], ["2020-01-02", "2021-01-01"], "datetime64[ns, UTC]"),
    ([1, 2], [1, 2], "timedelta64[ns]"),
    ([DAY], [1, 2], "int64"),
    (["(0, 1]"], pd.IntervalIndex.from_breaks([0, 1, 2]), "interval[int64, right]"),
    (["2020-01"], pd.period_range("2020-01", periods=2, freq="M"), "period[M]"),
    (["(0, 1]", 1], pd.IntervalIndex.from_breaks([0, 1, 2]), "category"),
    (["1", "2"], [1, 2], "complex128"),
]


@pytest.mark.parametrize(("levels", "values", "dtype"), NEVER)
def test_levels_that_no_value_of_the_dtype_can_be_are_refused_by_the_dtype(levels, values, dtype):
    column = pd.Series(values, name="c").astype(dtype)
    said = set()
    for held in (column, column[:0], column[::-1]):
        with pytest.raises(ValueError, match=r"^x must be of the kind of column 'c'") as refusal:
            codes("x", held, levels)
        said.add(str(refusal.value))
    assert len(said) == 1


def test_whether_a_level_occurs_is_not_said(recwarn):
    """It is a fact about somebody: with the same dtype the answer to every question is silence."""
    for values, dtype in (([5, 6], "int64"), (["u", "v"], "str"), ([5, "u"], object)):
        column = pd.Series(values, name="c").astype(dtype)
        for held in (column, column[:0]):
            assert (codes("x", held, ["1", 2, "clerk"]) == -1).all()
    assert not recwarn.list


def test_integers_that_float64_does_not_hold_are_not_others():
    """A column of integers becomes one of floats where one is missing."""
    column = pd.Series([2**53, 2**53 + 1, None], name="c")
    assert column.dtype == "float64"
    with pytest.raises(ValueError, match="x must be different levels in float64"):
        codes("x", column, [2**53, 2**53 + 1])
    with pytest.raises(ValueError, match="x must be different levels in float64"):
        codes("x", column, [str(2**53), str(2**53 + 1)])
    np.testing.assert_array_equal(codes("x", column, [5, 2**53 + 1, 10**400])[:2], [1, 1])


def test_levels_that_narrow_floats_do_not_tell_apart_are_refused():
    column = pd.Series([0.5], dtype="float32", name="c")
    with pytest.raises(ValueError, match="x must be different levels in float32"):
        codes("x", column, [0.1, 0.1 + 1e-12])
    np.testing.assert_array_equal(codes("x", column, [1e300, 0.5, -1e300]), [1])


@pytest.mark.parametrize("dtype", ["int64", "Int8", "float64", "category"])
@pytest.mark.parametrize("levels", [["1", "1.0"], [1, "1"], [2, D(1), 1.0 + 2**-60, "1"]])
def test_levels_that_are_one_number_are_refused_in_columns_of_numbers(dtype, levels):
    with pytest.raises(ValueError, match="x must be different levels in"):
        codes("x", pd.Series([1, 2], name="c").astype(dtype), levels)


def test_levels_that_float64_does_not_tell_apart_are_refused():
    near = [D("0.1"), D("0.1") + D(10) ** -30]
    with pytest.raises(ValueError, match="x must be different levels in float64"):
        codes("x", pd.Series([0.1], name="c"), near)
