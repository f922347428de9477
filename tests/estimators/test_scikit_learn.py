"""scikit-learn's own checks, with the reason of each that cannot pass; clones; searches; pipelines."""

import os
import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import BaggingClassifier
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    SplineTransformer,
    StandardScaler,
)
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from dpsco_jax.estimators import (
    PrivateLogisticRegression,
    PrivatePipeline,
    PrivateRegression,
    PrivateSoftmaxRegression,
    _solving,
    make_private_pipeline,
)
from tests.estimators.support import (
    TABLE,
    UNION,
    WHO,
    fitted,
    made,
    one_long_step,
    replaced_solver,
)

# The checks fit clones on tables of their own, whose rows are nobody's. One of them reads predictions after a
# fit of ten rows: at epsilon = 20 they are wrong in 18 draws of 300, at 100 in none.
PUBLIC = {
    "epsilon": 1000.0,
    "delta": 1e-5,
    "bounds": (-10.0, 10.0),
    "user_level": False,
    "unaccounted_tuning": True,
}
CHECKED = [
    PrivateLogisticRegression(**PUBLIC, classes=[0, 1]),
    PrivateRegression(**PUBLIC, label_bounds=(-300.0, 300.0)),
    PrivateSoftmaxRegression(**PUBLIC, classes=[0, 1, 2, 3]),
]
UNDECLARED = "its labels are not those that were declared, and declarations are not read off data"
OTHERS = {
    "check_classifier_data_not_an_array": UNDECLARED,
    "check_estimators_dtypes": UNDECLARED,
    "check_fit2d_1feature": UNDECLARED,
}
ANY_CLASSIFIER = {
    "check_classifiers_classes": UNDECLARED,
    "check_classifiers_regression_target": "undeclared labels are refused, in other words than it wants",
}
EXPECTED = {
    "PrivateLogisticRegression": ANY_CLASSIFIER
    | OTHERS
    | {
        "check_classifier_not_supporting_multiclass": "which labels there are is not counted; what was not "
        "declared is refused, in other words than the check wants",
    },
    "PrivateRegression": {
        "check_supervised_y_no_nan": "labels are clipped to their bounds, infinite ones too",
    },
    "PrivateSoftmaxRegression": ANY_CLASSIFIER
    | {
        "check_classifiers_train": "it wants as many columns as its data have classes, not as are declared",
        "check_decision_proba_consistency": "it takes the second of two classes; four are declared",
    },
}


def expected(estimator):
    return EXPECTED[type(estimator).__name__]


@parametrize_with_checks(CHECKED, expected_failed_checks=expected)
def test_the_checks_of_scikit_learn(estimator, check, monkeypatch):
    """With other parameters in place of the solver's: the checks are about the interface."""
    if os.environ.get("CHECK_TYPES") and "do_not_raise_errors_in_init" in repr(check):
        pytest.skip("types of arguments are checked when the constructor is called")
    if "check_classifiers_one_label" in repr(check):  # this one reads predictions
        monkeypatch.setattr(_solving, "_solve", one_long_step)
    else:
        replaced_solver(monkeypatch)
    check(estimator)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", CHECKED, ids=lambda model: type(model).__name__)
def test_the_checks_of_scikit_learn_with_the_solvers(estimator):
    found = check_estimator(
        estimator, expected_failed_checks=expected(estimator), on_fail="raise", on_skip=None
    )
    assert sum(result["status"] == "passed" for result in found) > 40


def test_clones_have_the_parameters_and_nothing_fitted(monkeypatch):
    replaced_solver(monkeypatch)
    model = fitted()
    with sklearn.config_context(enable_metadata_routing=True):
        copied = clone(model.set_fit_request(groups=True))
    assert copied.get_params() == model.get_params()
    assert not hasattr(copied, "coef_")
    assert str(copied.get_metadata_routing()) == str(model.get_metadata_routing())
    assert copied.set_params(epsilon=3.0).epsilon == 3.0
    assert model.epsilon == 2.0


def test_a_clone_is_fitted_only_if_its_costs_are_nobodys_business(monkeypatch):
    replaced_solver(monkeypatch)
    for copied in (clone(made()), clone(clone(made())), pickle.loads(pickle.dumps(clone(made())))):
        with pytest.raises(ValueError, match=r"unaccounted_tuning must be True for a clone"):
            copied.fit(TABLE, UNION, groups=WHO)
    allowed = clone(made(unaccounted_tuning=True)).fit(TABLE, UNION, groups=WHO)
    assert "not of what was chosen" in allowed.report().section("cost")["unaccounted tuning"]
    assert "unaccounted tuning" not in fitted().report().section("cost")


ROWS = np.linspace(-1, 1, 24).reshape(12, 2)
LABELS = np.arange(12) % 2


def per_row(**changes):
    declared = {"bounds": (-1, 1), "classes": [0, 1], "user_level": False, "missing": "error"}
    return PrivateLogisticRegression(epsilon=1.0, delta=1e-3, **declared | changes)


@pytest.mark.parametrize(
    "search",
    [
        lambda model: cross_val_score(model, ROWS, LABELS, cv=2),
        lambda model: GridSearchCV(model, {"ridge": [0.0, 1.0]}, cv=2).fit(ROWS, LABELS),
        lambda model: GridSearchCV(
            Pipeline([("same", FunctionTransformer()), ("model", model)]),
            {"model__ridge": [0.0, 1.0]},
            cv=2,
        ).fit(ROWS, LABELS),
        lambda model: BaggingClassifier(model, 2).fit(ROWS, LABELS),
    ],
    ids=["cross_val_score", "GridSearchCV", "GridSearchCV of a pipeline", "BaggingClassifier"],
)
def test_searches_and_ensembles_are_refused_unless_allowed(monkeypatch, search):
    seen = replaced_solver(monkeypatch)
    with pytest.raises(ValueError, match="unaccounted_tuning must be True"):
        search(per_row())
    assert not seen
    search(per_row(unaccounted_tuning=True))
    assert len(seen) >= 2


def test_a_second_fit_of_one_object_is_said(monkeypatch):
    replaced_solver(monkeypatch)
    model = fitted()
    assert "earlier fits" not in model.report().section("cost")
    model.fit(TABLE, UNION, groups=WHO)
    said = model.report().section("cost")["earlier fits"]
    assert said.startswith("1 of this object")
    assert "share their noise" in said  # of one seed
    model.set_params(random_state=None).fit(TABLE, UNION, groups=WHO)
    said = model.report().section("cost")["earlier fits"]
    assert said.startswith("2 of this object")
    assert "share their noise" not in said


LEARNING = [
    StandardScaler(),
    MinMaxScaler(),
    PCA(1),
    KBinsDiscretizer(2),
    SimpleImputer(),
    SimpleImputer(strategy="constant", fill_value=0.0),
    OneHotEncoder(),
    OneHotEncoder(categories=[["a"]], min_frequency=2),
    OrdinalEncoder(),
    SplineTransformer(),
    type("Own", (Normalizer,), {})(),
    FeatureUnion([("one", Normalizer()), ("two", StandardScaler())]),
    Pipeline([("one", Normalizer()), ("two", PCA())]),
    ColumnTransformer([("one", StandardScaler(), [0])], sparse_threshold=0),
    ColumnTransformer([("one", Normalizer(), [0])], remainder=StandardScaler(), sparse_threshold=0),
]


@pytest.mark.parametrize("step", LEARNING, ids=lambda step: repr(step)[:40].replace("\n", ""))
def test_pipelines_refuse_what_learns(step):
    with pytest.raises(ValueError, match="steps must map each row by itself"):
        make_private_pipeline(step, per_row())
    with pytest.raises(ValueError, match="steps must map each row by itself"):
        PrivatePipeline([("step", step), ("model", per_row())]).fit(ROWS, LABELS)


def test_columns_chosen_by_a_look_at_the_rows_are_refused():
    chosen = ColumnTransformer([("one", Normalizer(), lambda rows: [0])], sparse_threshold=0)
    with pytest.raises(ValueError, match="columns of 'one' must be given"):
        make_private_pipeline(chosen, per_row())
    with pytest.raises(ValueError, match=r"sparse_threshold must be 0, got 0\.3"):
        make_private_pipeline(ColumnTransformer([("one", Normalizer(), [0])]), per_row())


STATELESS = [
    FunctionTransformer(np.abs),
    Normalizer(),
    PolynomialFeatures(2),
    SplineTransformer(knots=np.linspace(-1, 1, 3)[:, None].repeat(2, axis=1)),
    SimpleImputer(strategy="constant", fill_value=0.0, keep_empty_features=True),
    FeatureUnion([("one", Normalizer()), ("two", "passthrough")]),
    ColumnTransformer(
        [("one", Normalizer(), [0]), ("two", "drop", [1])],
        remainder="passthrough",
        sparse_threshold=0,
    ),
    "passthrough",
]


@pytest.mark.parametrize("step", STATELESS, ids=lambda step: repr(step)[:40].replace("\n", ""))
def test_rows_of_one_user_stay_so_behind_what_is_allowed(monkeypatch, step):
    """The rows that the estimator gets are mapped one by one: two others do not change them."""
    seen = replaced_solver(monkeypatch)
    groups = np.arange(12) // 2
    model = per_row(user_level=True, max_items_per_user=2, random_state=3, bounds=(-9, 9))
    pipe = make_private_pipeline(step, model)
    pipe.fit(ROWS, LABELS, groups=groups)
    other = ROWS.copy()
    other[groups == 2] = [[-0.9, 0.1], [0.3, 0.7]]
    pipe.fit(other, LABELS, groups=groups)
    (one, two) = (np.asarray(data.items.features) for _, _, data in seen)
    assert (one != two).any(axis=(1, 2)).sum() == 1
    assert pipe.predict(ROWS).shape == (12,)
    assert pipe[-1].n_records_ == 6


def test_one_hot_rows_of_given_levels_reach_the_estimator(monkeypatch):
    seen = replaced_solver(monkeypatch)
    pipe = make_private_pipeline(
        OneHotEncoder(categories=[["a", "b"], ["c"]], handle_unknown="ignore"),
        per_row(bounds=(0, 1), user_level=True, max_items_per_user=2),
    )
    pipe.fit(np.array([["a", "c"], ["b", "c"], ["x", "y"]], object), [0, 1, 0], groups=[1, 1, 2])
    (_, _, data) = seen[0]
    assert data.items.features.shape == (2, 2, 4)


def test_pipelines_end_with_a_private_estimator_and_keep_no_rows():
    from sklearn.linear_model import LogisticRegression

    with pytest.raises(ValueError, match="the last of steps must be of type PrivateEstimator"):
        make_private_pipeline(Normalizer(), LogisticRegression())
    with pytest.raises(ValueError, match="steps must be"):
        make_private_pipeline()
    with pytest.raises(ValueError, match="memory must be None"):
        PrivatePipeline([("model", per_row())], memory="somewhere").fit(ROWS, LABELS)


CACHED = Pipeline([("one", Normalizer())], memory="somewhere")


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (CACHED, "memory must be None"),
        (Pipeline([("two", CACHED)]), "memory must be None"),
        (PrivatePipeline([("one", Normalizer())], memory="somewhere"), "memory must be None"),
        (FeatureUnion([("two", CACHED)]), "memory must be None"),
        (ColumnTransformer([("two", CACHED, [0])], sparse_threshold=0), "memory must be None"),
        (FeatureUnion([("one", Normalizer())], n_jobs=2), "n_jobs must be None"),
        (
            ColumnTransformer([("one", Normalizer(), [0])], sparse_threshold=0, n_jobs=-1),
            "n_jobs must be None",
        ),
    ],
)
def test_no_step_at_any_depth_writes_rows_to_files(step, said):
    with pytest.raises(ValueError, match=said):
        make_private_pipeline(step, per_row())
    with pytest.raises(ValueError, match=said):
        PrivatePipeline([("step", step), ("model", per_row())]).fit(ROWS, LABELS)


def test_groups_reach_the_estimator_by_routing_too(monkeypatch):
    replaced_solver(monkeypatch)
    with sklearn.config_context(enable_metadata_routing=True):
        model = per_row(user_level=True, max_items_per_user=2).set_fit_request(groups=True)
        pipe = make_private_pipeline(Normalizer(), model)
        pipe.fit(ROWS, LABELS, groups=np.arange(12) // 2)
    assert pipe[-1].n_records_ == 6


def test_what_a_pipeline_of_scikit_learn_cannot_refuse(monkeypatch):
    """Stated in the documents: rows are mapped by numbers that come from all of them, and nobody is told."""
    seen = replaced_solver(monkeypatch)
    Pipeline([("scale", StandardScaler()), ("model", per_row())]).fit(ROWS, LABELS)
    assert len(seen) == 1
