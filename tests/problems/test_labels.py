"""Labels of any kind: slopes stay within their constants, and what is no label counts for nothing."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsco_jax.problems import gaussian_smoothing, labels, losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData, user_loss

DIM, CLASSES, BOUND = 3, 3, 2.0
LINEAR = {
    "logistic": losses.logistic(BOUND),
    "hinge": losses.hinge(BOUND),
    "huber": losses.huber(BOUND, delta=0.7),
    "absolute": losses.absolute(BOUND),
    "quantile": losses.quantile(BOUND, level=0.8),
    "squared": losses.squared(BOUND, label_bound=3.0, radius=1.5),
}
OBJECTIVES = {**LINEAR, "softmax": losses.softmax(BOUND, CLASSES)}
SMOOTHED = {
    "hinge": gaussian_smoothing.hinge,
    "absolute": gaussian_smoothing.absolute,
    "quantile": gaussian_smoothing.quantile(0.8),
    "squared": gaussian_smoothing.squared(3.0),
    "logistic": gaussian_smoothing.by_quadrature(LINEAR["logistic"].linear_model.link, nodes=8),
}
HOSTILE = np.array(
    [
        *(-1.0, -0.5, 0.0, 0.3, 1.0, 2.0, 7.0, -1e6, 1e6, 1e30, -1e30, 3.4e38, -3.4e38),
        *(1e-45, -1e-45, 1.1754942e-38, np.inf, -np.inf, np.nan),
    ],
    np.float32,
)


def params_for(name, numbers):
    objective = OBJECTIVES[name]
    if name == "softmax":
        return jnp.tile(numbers[:, None], (1, CLASSES)) * jnp.arange(1.0, CLASSES + 1)
    return objective.domain.project(numbers)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_label_and_no_feature_breaks_the_lipschitz_constant(name):
    objective = OBJECTIVES[name]
    gradient = jax.grad(objective.loss)

    def norm(numbers, features, label):
        slope = gradient(params_for(name, numbers), Example(features, label))
        return jnp.sqrt(jnp.sum(jnp.square(slope)))

    points = [(0.0, 0.0, 0.0), (0.3, -2.0, 1.0), (1e3, 1e3, -1e3)]
    rows = [(0.5, 0.5, 1.0), (1e30, 1.0, -1e30), (np.nan, 1.0, 0.0), (np.inf, 1.0, 0.0), (0, 0, 0)]
    cases = list(itertools.product(points, rows, HOSTILE))
    columns = [np.asarray(column, np.float32) for column in zip(*cases, strict=True)]
    norms = np.asarray(jax.jit(jax.vmap(norm))(*columns))
    assert np.isfinite(norms).all()
    assert norms.max() <= objective.lipschitz * (1 + 1e-5)


@pytest.mark.parametrize("name", LINEAR)
def test_the_closed_form_agrees_with_the_gradient_for_every_label(name):
    model = LINEAR[name].linear_model
    margins = np.linspace(-4.0, 4.0, 17).astype(np.float32) + 0.013
    grid = np.meshgrid(margins, HOSTILE)
    by_hand = jax.jit(model.derivative)(*grid)
    slope = jax.jit(jax.vmap(jax.vmap(jax.grad(model.link))))(*grid)
    np.testing.assert_allclose(by_hand, slope, atol=2e-6)


@functools.cache
def _compiled(name):
    """Values and gradients of the mean over a user's items and of one item, for all tests of a loss."""
    objective = OBJECTIVES[name]
    return (
        jax.jit(jax.value_and_grad(user_loss(objective))),
        jax.jit(jax.value_and_grad(objective.loss)),
    )


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("label", [np.nan, np.inf, -np.inf])
def test_an_item_without_a_label_takes_no_other_item_with_it(name, label):
    features = np.float32([[0.5, -0.2, 1.0], [0.1, 0.9, 1.0]])
    params = params_for(name, jnp.asarray(np.float32([0.3, -0.4, 0.2])))
    whole, single = _compiled(name)
    value, slope = whole(params, Example(features, np.float32([1.0, label])), np.ones(2, bool))
    one = single(params, Example(features[0], np.float32(1.0)))
    np.testing.assert_allclose(value, one[0] / 2, rtol=1e-5)
    np.testing.assert_allclose(slope, one[1] / 2, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", SMOOTHED)
def test_smoothed_losses_know_no_label_that_is_not_finite_either(name):
    smooth = gaussian_smoothing.smoothed(LINEAR[name], SMOOTHED[name], 0.5)

    @jax.jit
    def at(label):
        return jax.value_and_grad(smooth.loss)(
            jnp.asarray([0.3, -0.4, 0.2]), Example(jnp.asarray([0.5, -0.2, 1.0]), label)
        )

    for label in (np.nan, np.inf, -np.inf):
        value, slope = at(np.float32(label))
        assert float(value) == 0.0
        np.testing.assert_array_equal(slope, 0.0)
    for label in HOSTILE[np.isfinite(HOSTILE)]:
        _, slope = at(label)
        assert np.linalg.norm(slope) <= LINEAR[name].lipschitz * (1 + 1e-5)


@pytest.mark.parametrize("item", [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38])
@pytest.mark.parametrize(
    "objective", [losses.geometric_median(), losses.squared_distance(BOUND, 1.5)]
)
def test_points_of_any_kind_have_a_bounded_slope(objective, item):
    slope = jax.grad(objective.loss)(
        {"a": jnp.ones(2) / 2, "b": jnp.zeros(())},
        {"a": jnp.asarray(np.float32([0.1, item])), "b": jnp.float32(1.0)},
    )
    norm = float(jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(slope))))
    assert norm <= objective.lipschitz * (1 + 1e-5)
    if not np.isfinite(item) and objective.loss_strong_convexity == 0:
        assert norm == 0.0


@pytest.mark.parametrize("name", ["logistic", "hinge"])
@pytest.mark.parametrize("kind", [np.float32, np.int32, np.int8, np.float16])
def test_labels_of_plus_and_minus_one_say_what_zero_and_one_say(name, kind):
    model = LINEAR[name].linear_model
    margins = np.linspace(-3.0, 3.0, 13).astype(np.float32)
    for zero_one, sign in ((0, -1), (1, 1)):
        # The textbook losses of a sign: log(1 + e^(-s·m)) and max(0, 1 - s·m).
        truth = np.logaddexp(0, -sign * margins.astype(np.float64))
        if name == "hinge":
            truth = np.maximum(0, 1 - sign * margins)
        for label in (zero_one, sign):
            np.testing.assert_allclose(model.link(margins, kind(label)), truth, rtol=2e-6)
            np.testing.assert_array_equal(
                model.derivative(margins, kind(label)), model.derivative(margins, kind(zero_one))
            )
    np.testing.assert_array_equal(model.link(margins, np.bool_(1)), model.link(margins, 1.0))


def data_of(values, mask=None):
    values = np.asarray(values)
    return UserData(Example(jnp.zeros((*values.shape, 1)), values), mask)


GOOD = [
    ("logistic", [[0, 1], [1, 0]]),
    ("logistic", [[-1, 1], [1, -1]]),
    ("logistic", [[0.0, 0.25], [1.0, 0.5]]),
    ("logistic", [[True, False], [True, True]]),
    ("hinge", [[1, 1], [1, 1]]),
    ("squared", [[-3.0, 3.0], [0.0, 1.0]]),
    ("huber", [[-1e6, 3.0], [0.0, 1.0]]),
    ("softmax", [[0, 1], [2, 2]]),
    ("softmax", [[0.0, 1.0], [2.0, 2.0]]),
]
BAD = [
    ("logistic", [[1, 2], [2, 1]]),
    ("logistic", [[-1, 0], [1, 1]]),
    ("logistic", [[-1.0, 0.5], [1, 1]]),
    ("logistic", [[np.nan, 0.5], [1, 1]]),
    ("hinge", [[0, 1], [2, 1]]),
    ("hinge", [[-0.5, 1], [1, 1]]),
    ("squared", [[-3.0, 3.1], [0.0, 1.0]]),
    ("huber", [[np.inf, 3.0], [0.0, 1.0]]),
    ("absolute", [[np.nan, 3.0], [0.0, 1.0]]),
    ("softmax", [[0, 1], [2, 3]]),
    ("softmax", [[-1, 1], [2, 1]]),
    ("softmax", [[0.5, 1], [2, 1]]),
    ("logistic", [["0", "1"], ["1", "1"]]),
    ("logistic", [[1j, 1], [1, 1]]),
]


@pytest.mark.parametrize(("name", "values"), GOOD)
def test_labels_that_the_loss_reads_as_meant_pass(name, values):
    labels.check_labels(OBJECTIVES[name], data_of(values))


@pytest.mark.parametrize(("name", "values"), BAD)
def test_labels_that_the_loss_would_read_otherwise_are_refused_without_showing_one(name, values):
    with pytest.raises(ValueError, match=r"data\.items\.label must be") as refused:
        labels.check_labels(OBJECTIVES[name], data_of(values))
    shown = str(refused.value)
    with pytest.raises(ValueError, match="must be") as again:
        # As bad, with other values: the message is the same, so it tells nothing of them.
        labels.check_labels(OBJECTIVES[name], data_of([[values[0][0], 977], values[0]]))
    if np.asarray(values).dtype.kind in "fi":
        assert str(again.value) == shown
        assert "977" not in shown


def test_only_items_that_are_there_are_checked():
    mask = np.array([[True, False], [True, True]])
    labels.check_labels(LINEAR["logistic"], data_of([[0, 7], [1, 0]], mask))
    labels.check_labels(losses.geometric_median(), UserData(jnp.zeros((2, 2, 3))))
    labels.check_labels(LINEAR["logistic"], data_of(np.zeros((0, 2))))
    with pytest.raises(ValueError, match=r"data\.items must be Example items"):
        labels.check_labels(LINEAR["logistic"], UserData(jnp.zeros((2, 2, 3))))
    # A loss of one's own says what its labels may be, or is not vouched for.
    own = LINEAR["logistic"]._replace(label_range=None)
    with pytest.raises(ValueError, match=r"objective\.label_range must be"):
        labels.check_labels(own, data_of([[0, 1]]))
    with pytest.raises(ValueError, match=r"data\.mask must be"):
        labels.check_labels(LINEAR["logistic"], data_of([[0, 1]], np.ones((1, 3), bool)))


@settings(deadline=None, max_examples=20)
@given(
    # One shape for all examples: each new one would be compiled.
    st.lists(st.floats(width=32), min_size=6, max_size=6),
    st.lists(st.floats(-50, 50, width=32), min_size=6, max_size=6),
)
def test_any_label_that_is_a_float(values, margins):
    for name, objective in LINEAR.items():
        if name == "squared":
            continue
        grid = np.meshgrid(np.float32(values), np.float32(margins))
        slopes = np.asarray(objective.linear_model.derivative(grid[1], grid[0]))
        assert np.all(np.abs(slopes) * BOUND <= objective.lipschitz * (1 + 1e-6))
