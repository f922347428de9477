"""Made-up tables have the law that is said, and private fits of them come near to what is attainable."""

import matplotlib as mpl
import numpy as np
import pytest

from dpsco_jax.estimators import PrivateLogisticRegression, PrivateRegression, explore
from dpsco_jax.estimators.exploring import _World

DECLARED = {"bounds": {"age": (16, 46), "hours": (0, 80)}, "categories": {"race": ["a", "b", "c"]}}


def regression(**changes):
    own = {"delta": 1e-6, "label_bounds": (0, 4), "max_items_per_user": 2, **DECLARED}
    return PrivateRegression(**own | changes)


def classifier(classes, **changes):
    return PrivateLogisticRegression(
        delta=1e-6, user_level=False, classes=classes, **DECLARED | changes
    )


def world(estimator, signal, seed=0):
    encoding = estimator._encoding(["age", "hours", "race"])
    return _World(estimator, encoding, signal, np.random.default_rng(seed)), encoding


@pytest.mark.parametrize("signal", [0.1, 0.5, 0.9])
def test_columns_explain_the_stated_share_of_a_number(signal):
    law, encoding = world(regression(), signal)
    frame, label, known = law.draw(20_000)
    features = np.asarray(encoding.apply(frame, labelled=False).features, np.float64)
    # By least squares, which knows nothing of how the label was made.
    fitted = features @ np.linalg.lstsq(features, label, rcond=None)[0]
    share = 1 - np.var(label - fitted) / np.var(label)
    assert abs(share - signal) < 0.02
    np.testing.assert_allclose(law.score(label, known), share, atol=0.005)
    assert ((label >= 0) & (label <= 4)).all()
    assert abs(label.mean() - 2) < 0.05


def test_every_column_has_an_effect_of_the_same_size():
    law, encoding = world(regression(), 0.5)
    frame, _, known = law.draw(20_000)
    features = np.asarray(encoding.apply(frame, labelled=False).features, np.float64)
    found = np.linalg.lstsq(features, known, rcond=None)[0]
    places = [encoding.columns.index(name) for name in ("age", "hours")]
    sizes = np.abs(found[places]) * features.std(axis=0)[places]
    np.testing.assert_allclose(sizes[0], sizes[1], rtol=0.05)
    assert sizes[0] > 0.1


@pytest.mark.parametrize("signal", [0.2, 0.7])
def test_classes_follow_a_logistic_model_of_the_stated_strength(signal):
    law, _ = world(classifier(["no", "yes"]), signal)
    _, label, known = law.draw(50_000)
    assert abs(np.mean(label == "yes") - 0.5) < 0.05  # levels make the margin a little skew
    # Both classes of a normal margin with this deviation: the share of signs that agree.
    rng = np.random.default_rng(1)
    margin = rng.normal(size=400_000) * np.sqrt(signal / (1 - signal)) * np.pi / 3**0.5
    right = np.mean(1 / (1 + np.exp(-np.abs(margin))))
    # The margin of three levels and two numbers is normal about.
    assert abs(law.score(label, known) - right) < 0.02


def test_fits_come_near_to_what_is_attainable_with_people_and_epsilon():
    model = regression()
    before = model.get_params()
    found = explore(model, [60, 2000], epsilons=(0.1, 50.0), repetitions=2)
    assert model.get_params() == before
    assert not hasattr(model, "coef_")
    score = found.table.set_index(["records", "epsilon"])["score"]
    attainable = found.table["attainable"].mean()
    assert abs(attainable - 0.3) < 0.03
    assert score[2000, 50.0] > attainable - 0.02
    assert score[60, 0.1] < score[60, 50.0] - 0.02
    assert "attainable" in str(found)
    axes = found.plot()
    assert len(axes.containers) == 2
    mpl.pyplot.close("all")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_records": 1}, "num_records must be"),
        ({"num_records": []}, "num_records must be one number of records or more"),
        ({"num_records": [10, 2.5]}, "num_records must be"),
        ({"epsilons": (1.0, 0.0)}, "epsilons must be"),
        ({"epsilons": ()}, "epsilons must be one value or more"),
        ({"signal": 1.0}, "signal must be in"),
        ({"repetitions": 0}, "repetitions must be"),
        ({"seed": -1}, "seed must be"),
        ({"estimator": "model"}, "estimator must be"),
        ({"estimator": regression(bounds=(0, 1), categories=None)}, "columns must be the columns"),
        ({"estimator": regression(max_items_per_user=None)}, "max_items_per_user must be"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_fitted(change, said):
    arguments = {"estimator": regression(), "num_records": 10} | change
    with pytest.raises(ValueError, match=said):
        explore(**arguments)
