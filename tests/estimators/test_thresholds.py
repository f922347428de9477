"""Thresholds of the Huber loss of any public size: beyond the largest deviation it is the squared loss."""

import dataclasses

import numpy as np
import pytest

from dpsco_jax.estimators import PrivateRegression, _solving
from dpsco_jax.problems.objective import Example

DECLARED = {"bounds": (-1, 1), "label_bounds": (0, 100), "epsilon": 8.0, "delta": 1e-6}
NORM = 3.0


def _model(**given):
    model = PrivateRegression(**DECLARED, missing="zero", **given)
    return model._model(model._encoding([0, 1]))


@pytest.mark.parametrize("threshold", [400.0, 1e9, 1e300])
def test_a_threshold_that_no_deviation_reaches_is_the_squared_loss(threshold):
    assert _model(loss="huber", huber_threshold=threshold) == _model(loss="squared")


def test_the_slope_grows_with_the_threshold_up_to_the_largest_deviation():
    found = []
    for threshold in np.geomspace(1.0, 1e9, 30):
        model = _model(loss="huber", huber_threshold=float(threshold))
        slope = float(_solving.objective_of(model).lipschitz) / model.feature_bound
        largest = model.feature_bound * NORM + 1.0  # labels are in [-1, 1], parameters in the ball
        assert slope == pytest.approx(min(threshold / 50.0, largest), rel=1e-6)
        found.append(model.loss)
    assert found == sorted(found)
    assert set(found) == {"huber", "squared"}


@pytest.mark.parametrize("threshold", [0.99, 0.1, 1e-9])
def test_a_threshold_that_a_fit_does_not_get_to_is_refused_with_the_range(threshold):
    with pytest.raises(ValueError, match=r"huber_threshold must be .*label_bounds, 1 .*quantile"):
        _model(loss="huber", huber_threshold=threshold)
    # The range is that of the label, and of this loss alone.
    _model(loss="quantile", huber_threshold=threshold)
    narrow = PrivateRegression(
        **DECLARED | {"label_bounds": (0, 100 * threshold)}, loss="huber", huber_threshold=threshold
    )
    assert narrow._loss() == ("huber", pytest.approx(0.02))


def test_both_losses_are_the_same_there():
    """By NumPy: ½r² of every deviation that parameters in the ball and labels in the bounds can have."""
    model = _model(loss="huber", huber_threshold=1e9)
    threshold = 1.001 * (model.feature_bound * NORM + 1.0)
    huber = _solving.objective_of(dataclasses.replace(model, loss="huber", shape_number=threshold))
    squared = _solving.objective_of(model)
    rng = np.random.default_rng(0)
    for _ in range(20):
        point, row = rng.normal(size=(2, model.num_columns))
        point *= NORM / np.linalg.norm(point)
        row *= model.feature_bound / np.linalg.norm(row)
        label = rng.choice([-1.0, 1.0])
        expected = 0.5 * (row @ point - label) ** 2
        item = Example(np.float32(row), np.float32(label))
        for objective in (huber, squared):
            assert float(objective.loss(np.float32(point), item)) == pytest.approx(
                expected, rel=1e-4
            )


@pytest.mark.slow
def test_a_huge_threshold_finds_the_coefficients():
    rng = np.random.default_rng(0)
    table = rng.uniform(-1, 1, (3000, 3))
    label = 50 + table @ [20.0, -10.0, 5.0] + rng.normal(0, 1, 3000)
    given = DECLARED | {"user_level": False, "random_state": 0, "missing": "zero"}
    fits = [
        PrivateRegression(loss=loss, huber_threshold=1e9, **given).fit(table, label)
        for loss in ("squared", "huber")
    ]
    assert fits[1].score(table, label) > 0.99
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
    assert fits[0].certificate_ == fits[1].certificate_
