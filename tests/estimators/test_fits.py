"""Fits with the solvers themselves: what is learned, what it costs, what is said; files and figures."""

import copy
import datetime
import decimal
import json
import pickle

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

mpl.use("Agg")

from dpsco_jax import privacy
from dpsco_jax.estimators import (
    PrivateLogisticRegression,
    PrivateRegression,
    PrivateSoftmaxRegression,
    Report,
    _solving,
)
from tests.estimators.support import TABLE, fitted, replaced_solver, stand_in

USERS, ITEMS = 240, 2
RNG = np.random.default_rng(0)
ROWS = RNG.uniform(-1, 1, (USERS * ITEMS, 2))
WHO = np.repeat(np.arange(USERS), ITEMS)
NOISE = RNG.normal(size=USERS * ITEMS)
EASY = {
    "epsilon": 30.0,
    "delta": 1e-4,
    "bounds": (-1, 1),
    "max_items_per_user": ITEMS,
    "missing": "error",
    "random_state": 5,
}


def numeric(loss, **changes):
    model = PrivateRegression(loss=loss, label_bounds=(0, 100), **EASY | changes)
    return model.fit(ROWS, 60 + 20 * ROWS[:, 0] - 10 * ROWS[:, 1] + 2 * NOISE, groups=WHO)


@pytest.fixture(scope="module")
def classifier():
    model = PrivateLogisticRegression(classes=["no", "yes"], **EASY)
    label = np.where(2 * ROWS[:, 0] - ROWS[:, 1] + 0.2 * NOISE > 0, "yes", "no")
    return model.fit(ROWS, label, groups=WHO), label


@pytest.mark.slow
def test_two_classes_are_told_apart(classifier):
    model, label = classifier
    assert model.score(ROWS, label) > 0.9
    first, second = model.coef_[0]
    assert first > 0 > second
    assert -3.5 < first / second < -1.2
    assert model.status_ == "OK"
    assert model.classes_.tolist() == ["no", "yes"]


@pytest.mark.slow
def test_three_classes_are_told_apart():
    label = np.where(ROWS[:, 0] > 0, np.where(ROWS[:, 1] > 0, 2, 1), 0)
    model = PrivateSoftmaxRegression(classes=[0, 1, 2], **EASY).fit(ROWS, label, groups=WHO)
    assert model.score(ROWS, label) > 0.85
    assert model.coef_.shape == (3, 2)
    assert model.intercept_.shape == (3,)
    np.testing.assert_allclose(model.predict_proba(ROWS).sum(axis=1), 1.0)


@pytest.mark.parametrize(
    "loss",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("squared", "huber")), "quantile"],
)
def test_a_line_is_found_in_the_units_of_the_label(loss):
    model = numeric(loss)
    np.testing.assert_allclose([model.intercept_, *model.coef_], [60.0, 20.0, -10.0], atol=2.0)
    assert model.certificate_.epsilon <= EASY["epsilon"]


def test_a_quantile_is_above_the_median():
    above = numeric("quantile", quantile=0.9).predict(ROWS) - numeric("quantile").predict(ROWS)
    assert 1.0 < above.mean() < 5.0  # 1.28 standard deviations of 2 without noise


def test_what_is_certified_is_within_the_budget_and_what_is_planned(classifier):
    model, _ = classifier
    planned = model.plan_.certificate()
    *assumed, seed = model.certificate_.assumptions  # the model has a random_state
    assert seed.startswith("random_state is as secret as the data")
    assert model.certificate_._replace(assumptions=tuple(assumed)) == planned
    assert model.certificate_.epsilon <= EASY["epsilon"]
    assert model.certificate_.delta == EASY["delta"]
    ledger = privacy.epsilon(model.privacy_, EASY["delta"])
    np.testing.assert_allclose(
        ledger, privacy.epsilon(model.plan_.loss(), EASY["delta"]), rtol=1e-3
    )


def test_the_report_says_what_the_plan_says(classifier):
    model, _ = classifier
    report, plan = model.report(), model.plan_
    cost, sizes = report.section("cost"), report.section("sizes")
    assert report.certificate == model.certificate_
    assert cost["epsilon"] == f"{plan.certificate().epsilon:.6g}"
    assert cost["delta"] == f"{plan.certificate().delta:.6g}"
    assert cost["relation"] == "REPLACE_ONE"
    assert cost["budget"] == "(30, 0.0001)"
    assert sizes["records"] == f"{plan.num_users} (public)" == f"{USERS} (public)"
    assert sizes["record"] == f"a user, with at most {ITEMS} rows"
    assert report.section("coefficients")["0"] == f"{model.coef_[0, 0]:.4g}"
    assert report.section("coefficients")["for the class"] == "yes"
    assert report.section("released")["what"] == "2 coefficients and 1 intercept(s)"
    text = str(report)
    assert "declared, and taken as public" in text
    assert "bounds" in text
    assert "random_state is as secret as the data" in text
    assert "random_state=" not in text  # but not its value
    with pytest.raises(ValueError, match="heading must be one of released, cost"):
        report.section("nonsense")


def test_the_report_states_the_certificate_and_not_the_budget(monkeypatch):
    replaced_solver(monkeypatch)
    model = fitted()
    model.certificate_ = model.certificate_._replace(epsilon=1.25)
    cost = model.report().section("cost")
    assert (cost["epsilon"], cost["budget"]) == ("1.25", "(2, 1e-05)")


def test_what_is_set_after_a_fit_changes_nothing_of_it(monkeypatch, tmp_path):
    replaced_solver(monkeypatch)
    bounds = {"age": (0, 100)}
    model = fitted("squared", bounds=bounds)
    before = str(model.report()), model.predict(TABLE)
    model.set_params(epsilon=99.0, loss="quantile", label_bounds=(0, 1), fit_intercept=False)
    bounds["age"] = (0, 1)
    assert str(model.report()) == before[0]
    np.testing.assert_array_equal(model.predict(TABLE), before[1])
    model.save(tmp_path / "model")
    read = PrivateRegression.load(tmp_path / "model")
    assert str(read.report()) == before[0]
    np.testing.assert_array_equal(read.predict(TABLE), before[1])


def test_copies_and_pickles_are_the_same_estimator(monkeypatch):
    replaced_solver(monkeypatch)
    model = fitted()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.encoding_ == model.encoding_
        assert str(other.report()) == str(model.report())
        np.testing.assert_array_equal(other.predict_proba(TABLE), model.predict_proba(TABLE))


def test_a_report_takes_any_sections():
    text = str(Report("a", (("one", (("x", "1"),)), ("two", (("long name", "2"),)))))
    assert text.splitlines() == ["a", "  one", "    x          1", "  two", "    long name  2"]


def test_long_reports_show_the_largest_coefficients(monkeypatch):
    replaced_solver(monkeypatch)
    columns = [str(i) for i in range(30)]
    model = PrivateLogisticRegression(**EASY, classes=[0, 1])
    model.fit(np.zeros((6, 30)), [0, 1] * 3, groups=[0, 0, 1, 1, 2, 2])
    shown = set(model.report().section("coefficients")) - {"...", "intercept", "for the class"}
    least = min(abs(model.coef_[0, int(column)]) for column in shown)
    others = [abs(model.coef_[0, int(column)]) for column in columns if column not in shown]
    assert len(shown) == 20
    assert max(others) <= least


def test_figures_show_the_coefficients(classifier):
    model, _ = classifier
    axes = model.plot()
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], model.coef_[0])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == list(model.columns_)
    assert model.plot(axes) is axes
    mpl.pyplot.close("all")


@pytest.mark.parametrize("kind", ["logistic", "squared", "softmax"])
def test_files_hold_every_bit(monkeypatch, tmp_path, kind):
    replaced_solver(monkeypatch)
    model = fitted(kind)
    model.save(tmp_path / "model")
    read = type(model).load(tmp_path / "model")
    for name in ("coef_", "intercept_"):
        np.testing.assert_array_equal(getattr(read, name), getattr(model, name))
    np.testing.assert_array_equal(read.predict(TABLE), model.predict(TABLE))
    for one, two in zip(read.privacy_, model.privacy_, strict=True):
        np.testing.assert_array_equal(one, two)
    assert read.certificate_ == model.certificate_
    assert str(read.report()) == str(model.report())
    assert read.get_params() == model.get_params() | {"random_state": None}
    assert read.feature_names_in_.tolist() == ["age", "job"]
    assert read.n_features_in_ == 2
    assert read.encoding_ == model.encoding_
    with pytest.raises(ValueError, match="feature names should match"):
        read.predict(TABLE[["job", "age"]])


def rewritten(path, target, **changes):
    """The file with another text."""
    with np.load(path) as found:
        arrays = dict(found)
    about = json.loads(arrays.pop("about").tobytes()) | changes
    text = json.dumps({k: v for k, v in about.items() if v is not None}).encode()
    with open(target, "wb") as file:
        np.savez(file, about=np.frombuffer(text, np.uint8), **arrays)
    return target


def test_files_of_others_are_refused(monkeypatch, tmp_path):
    replaced_solver(monkeypatch)
    model = fitted()
    path, other = tmp_path / "model.npz", tmp_path / "other.npz"
    model.save(path)
    assert rewritten(path, other)
    assert str(type(model).load(other).report()) == str(model.report())
    with pytest.raises(ValueError, match=r"path must be a file of format 1, .* got 'format 2'"):
        type(model).load(rewritten(path, other, format=2))
    with pytest.raises(ValueError, match="path must be a file of a PrivateRegression"):
        PrivateRegression.load(path)
    with pytest.raises(ValueError, match="path must be a whole file"):
        type(model).load(rewritten(path, other, certificate=None))
    other.write_bytes(b"nothing of ours")
    with pytest.raises(ValueError, match="path must be a file that save wrote"):
        type(model).load(other)
    with open(other, "wb") as file:
        np.save(file, np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="path must be a file that save wrote"):
        type(model).load(other)
    with pytest.raises(FileNotFoundError):
        type(model).load(tmp_path / "none")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"params": {"pairs": [["epsilons", 1.0]]}}, r"arguments that .* got \['epsilons'\]"),
        ({"params": 7}, "a whole file that save wrote"),
        ({"params": {"pears": []}}, "a whole file that save wrote"),
        (
            {"params": {"pairs": [["epsilon", {"Timestamp": "no date"}]]}},
            "a whole file that save wrote",
        ),
        ({"columns": {"list": [{"numpy": ["O", 7]}]}}, "numbers, dates and spans"),
        ({"columns": 7}, "a whole file that save wrote"),
        ({"columns": {"list": ["age"]}}, "a whole file that save wrote"),
        ({"certificate": 7}, "a whole file that save wrote"),
        ({"certificate": "{}"}, "a whole file that save wrote"),
    ],
)
def test_what_no_save_wrote_is_refused_by_name(monkeypatch, tmp_path, changes, said):
    replaced_solver(monkeypatch)
    model = fitted()
    model.save(tmp_path / "model.npz")
    other = rewritten(tmp_path / "model.npz", tmp_path / "other.npz", **changes)
    with pytest.raises(ValueError, match=f"^path must be {said}|^path must be a file with {said}"):
        type(model).load(other)


def test_a_loss_on_other_orders_is_refused(monkeypatch, tmp_path):
    replaced_solver(monkeypatch)
    model = fitted()
    model.privacy_ = model.privacy_._replace(rdp=model.privacy_.rdp[:-1])
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="path must be a file with a loss on the orders"):
        type(model).load(tmp_path / "model")


DAY = datetime.datetime(2020, 1, 2, 3, 4, 5, 678)
TIMES = [
    *(
        DAY,
        DAY.date(),
        DAY.astimezone(datetime.UTC),
        pd.Timestamp("2020-05-01"),
        pd.Timedelta("1D 2ns"),
    ),
    *(pd.Timestamp("2021-01-01 00:00:00.123456789", tz="Europe/Zurich"), np.datetime64("2022-01")),
    *(
        np.datetime64("2023-01-01T00:00:00.000000001"),
        np.timedelta64(7, "h"),
        decimal.Decimal("1.50"),
    ),
    *(np.float32(0.1), np.float16(0.3), b"\xff1", np.float64(0.7), np.int8(3), np.str_("a"), True),
]


def test_levels_of_every_kind_come_back_as_they_were(monkeypatch, tmp_path):
    replaced_solver(monkeypatch)
    jobs = np.empty(7, object)
    jobs[:] = TIMES[:7]
    table = TABLE.assign(job=jobs)
    model = fitted(X=table, categories={"job": TIMES})
    model.save(tmp_path / "model")
    read = type(model).load(tmp_path / "model")
    assert read.columns_ == model.columns_
    assert read.encoding_.categories == model.encoding_.categories
    plain = (np.float64, np.int8, np.str_)  # which are those of Python in all but their type
    for one, two in zip(read.encoding_.categories["job"], TIMES, strict=True):
        assert type(one) is type(two) or isinstance(two, plain)
    np.testing.assert_array_equal(read.predict_proba(table), model.predict_proba(table))


def test_the_seed_is_not_in_the_file(monkeypatch, tmp_path):
    replaced_solver(monkeypatch)
    fitted(random_state=987654321).save(tmp_path / "model")
    assert b"987654321" not in (tmp_path / "model").read_bytes()


def test_what_cannot_be_written_plainly_is_refused(monkeypatch, tmp_path):
    replaced_solver(monkeypatch)
    model = fitted(categories={"job": ["clerk", "nurse", "pilot", frozenset()]})
    with pytest.raises(ValueError, match="params must be numbers, texts"):
        model.save(tmp_path / "model")


def test_seeds_and_budgets_compile_nothing():
    """Of one shape of data: the plan is an argument, and equal models have one objective."""
    first = numeric("quantile", epsilon=3.0)
    compiled = _solving._solve._cache_size()
    other = numeric("quantile", epsilon=4.0, random_state=6, delta=1e-3)
    assert _solving._solve._cache_size() == compiled
    assert not np.array_equal(first.coef_, other.coef_)


def test_a_run_that_left_the_numbers_is_not_kept(monkeypatch):
    """A loss that is infinite means that the certificate of the plan does not cover the run."""

    def lost(*given):
        return stand_in()(*given)._replace(privacy=privacy.unbounded())

    monkeypatch.setattr(_solving, "_solve", lost)
    with pytest.raises(RuntimeError, match="has left the numbers"):
        fitted()


@pytest.fixture(scope="module")
def with_errors():
    return numeric("squared", standard_errors=True)


@pytest.mark.slow
def test_intervals_are_those_of_the_covariance_and_hold_the_truth(with_errors):
    found, errors = with_errors.interval(0.9), np.sqrt(np.diagonal(with_errors.covariance_))
    np.testing.assert_allclose(found.mean(axis=1), with_errors.coef_)
    np.testing.assert_allclose(np.diff(found, axis=1)[:, 0], 2 * 1.6448536 * errors[1:], rtol=1e-6)
    wide = with_errors.interval(0.9999)
    assert (wide[:, 0] < [20, -10]).all()
    assert (wide[:, 1] > [20, -10]).all()
    # Without privacy and with a deviation of 2 it would be 2/(sqrt(480)·0.58): the noise is more.
    assert (errors[1:] > 0.15).all()
    assert (errors[1:] < 3.0).all()
    assert with_errors.certificate_.epsilon <= 30.0


def test_standard_errors_are_shown_and_kept(with_errors, tmp_path):
    rows = with_errors.report().section("coefficients")
    assert "error of a prediction" in rows
    assert all(" ± " in rows[name] for name in with_errors.columns_)
    assert "90 % interval" in with_errors.plot().get_xlabel()
    with_errors.save(tmp_path / "model")
    again = PrivateRegression.load(tmp_path / "model")
    assert (again.interval() == with_errors.interval()).all()
    assert again.prediction_error_ == with_errors.prediction_error_
    # Mean squares of what is between -1 and 1, of all users with as many rows each.
    known = np.mean(np.square(np.clip(ROWS, -1, 1)), axis=0)
    stddev = with_errors.mean_squares_stddev_
    assert 0.0 < stddev < 0.1
    assert (np.abs(with_errors.mean_squares_ - known) < 5 * stddev).all()
    assert (with_errors.mean_squares_ != known).all()
    assert str(again.report()) == str(with_errors.report())


def test_contrasts_are_what_a_constant_on_all_levels_does_not_change(monkeypatch):
    replaced_solver(monkeypatch)
    model = fitted("squared")
    job = [i for i, name in enumerate(model.columns_) if name.startswith("job")]
    rng = np.random.default_rng(0)
    root = rng.normal(size=(len(model.columns_) + 1,) * 2)
    model.covariance_ = root @ root.T
    found = model.contrasts("job", "nurse")
    assert list(found.index) == [
        f"{name} against nurse" for name in ("job=clerk", "job=pilot", "job is missing")
    ]
    nurse = model.columns_.index("job=nurse")
    others = [i for i in job if i != nurse]
    np.testing.assert_allclose(found["difference"], model.coef_[others] - model.coef_[nurse])
    # Of a difference: Var a + Var b - 2 Cov(a, b); the intercept is the first of the covariance.
    of = model.covariance_[1:, 1:]
    variances = [of[i, i] + of[nurse, nurse] - 2 * of[i, nurse] for i in others]
    np.testing.assert_allclose(found["standard_error"], np.sqrt(variances))
    model.coef_[job] += 17.0
    np.testing.assert_allclose(model.contrasts("job", "nurse")["difference"], found["difference"])
    axes = model.plot(reference={"job": "nurse"})
    assert [text.get_text() for text in axes.get_yticklabels()][-3:] == list(found.index)
    widths = [bar.get_width() for bar in axes.patches]
    np.testing.assert_allclose(widths[-3:], found["difference"])
    mpl.pyplot.close("all")


def test_what_is_not_seen_through_the_noise_is_not_drawn(monkeypatch, tmp_path):
    replaced_solver(monkeypatch)
    model = fitted("squared")
    names = ["age", "age is missing", "job=clerk", "job=nurse", "job=pilot", "job is missing"]
    assert list(model.columns_) == names
    labels = lambda axes: [text.get_text() for text in axes.get_yticklabels()]  # noqa: E731
    assert labels(model.plot()) == names
    squares = {"age": 0.0, "job=clerk": 0.5, "job=nurse": 0.021, "job=pilot": 0.019}
    model.mean_squares_ = np.array([squares.get(name, -0.01) for name in names])
    model.mean_squares_stddev_ = 0.01
    axes = model.plot()
    # A number that is always in its middle has no level that could be rare.
    assert labels(axes) == ["age", "job=clerk", "job=nurse"]
    assert len(axes.patches) == 3
    assert "not drawn: 3 that are too rare" in axes.get_xlabel()
    # A difference from what is not seen is not seen.
    assert labels(model.plot(reference={"job": "pilot"})) == ["age"]
    model.save(tmp_path / "model")
    again = PrivateRegression.load(tmp_path / "model")
    assert labels(again.plot()) == labels(axes)
    mpl.pyplot.close("all")


def test_contrasts_of_classes_have_a_column_each(monkeypatch):
    replaced_solver(monkeypatch)
    model = fitted("softmax")
    found = model.contrasts("job", "pilot")
    assert list(found.columns) == ["day", "late", "night"]
    clerk, pilot = (model.columns_.index(f"job={level}") for level in ("clerk", "pilot"))
    np.testing.assert_allclose(found.iloc[0], model.coef_[:, clerk] - model.coef_[:, pilot])


@pytest.mark.parametrize(
    ("column", "level", "said"),
    [
        ("age", 50, "column of reference must be one with declared levels"),
        ("jop", "nurse", "column of reference must be one with declared levels"),
        ("job", "diver", "reference of 'job' must be one of its levels"),
        ([], "nurse", "column must be the name of a column of X"),
    ],
)
def test_references_are_declared_levels(monkeypatch, column, level, said):
    replaced_solver(monkeypatch)
    with pytest.raises(ValueError, match=said):
        fitted("squared").contrasts(column, level)


def test_without_standard_errors_there_are_none(monkeypatch):
    replaced_solver(monkeypatch)
    model = fitted()
    with pytest.raises(ValueError, match="standard_errors must be True in the fit"):
        model.interval()
    model.covariance_ = np.eye(2)  # as left by an earlier fit
    again = model.fit(
        TABLE, ["yes", "no", "no", "yes", "yes", "no", "yes"], groups=[3, 1, 3, 2, 1, 3, 2]
    )
    assert not hasattr(again, "covariance_")
    with pytest.raises(ValueError, match="standard_errors must be False for the softmax loss"):
        fitted("softmax", standard_errors=True)
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\)"):
        model.interval(1.0)
