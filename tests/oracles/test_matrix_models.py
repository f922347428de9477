"""Linear models whose parameters are a matrix: gradients against NumPy, one user's share under attack."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.oracles import gradients, linear, linear_users, preconditioned, sampling, sandwich
from dpsco_jax.oracles.preconditioned import Component, TunedPoint
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData

USERS, DIM, CLASSES, COLUMNS, BOUND = 7, 6, 4, 3, 2.0
SOFTMAX = losses.softmax(BOUND, CLASSES)
MODEL = SOFTMAX.linear_model
RNG = np.random.default_rng(0)
POINT = jnp.asarray(np.float32(RNG.normal(size=(DIM, CLASSES))))
SCALES = jnp.asarray(np.float32(RNG.uniform(0.5, 5.0, DIM)))
Q = jnp.asarray(np.float32(RNG.normal(size=(DIM, CLASSES))))
Q = Q / jnp.linalg.norm(Q)
WEIGHT, INSIDE = 0.3, 0.2
EVERY_KIND = pytest.mark.parametrize("kind", ["dense", "one-hot"])


def _data(kind, items, users=USERS, scale=1.0, seed=1):
    rng = np.random.default_rng(seed)
    # Some labels are no class: such an item has gradient zero.
    labels = rng.integers(-1, CLASSES, (users, items)).astype(np.float32)
    if kind == "dense":
        features = (scale * rng.normal(size=(users, items, DIM))).astype(np.float32)
    else:
        features = OneHot(rng.integers(-1, DIM + 1, (users, items, COLUMNS)).astype(np.int32))
    counts = rng.integers(0, items + 1, users)
    counts[0] = items
    return UserData(Example(features, labels), np.arange(items) < counts[:, None])


def _by_hand(data, point):
    """The gradient of every user in float64, one item after the other; nothing of the library is used."""
    features, labels = data.items
    rows = np.zeros((*labels.shape, DIM))
    if isinstance(features, OneHot):
        for place in np.ndindex(*labels.shape):
            for column in set(features.columns[place].tolist()) & set(range(DIM)):
                rows[place][column] = BOUND / np.sqrt(COLUMNS)
    else:
        norms = np.linalg.norm(features.astype(np.float64), axis=-1, keepdims=True)
        rows = features / np.maximum(norms / BOUND, 1.0)
    found = np.zeros((len(labels), DIM, CLASSES))
    for user, mask in enumerate(data.mask):
        for item in np.flatnonzero(mask):
            if labels[user, item] < 0:
                continue
            odds = np.exp(np.asarray(point, np.float64).T @ rows[user, item])
            slope = odds / odds.sum()
            slope[int(labels[user, item])] -= 1.0
            found[user] += np.outer(rows[user, item], slope) / mask.sum()
    return found


def _norms(users):
    return np.sqrt(np.sum(users**2, axis=(1, 2)))


def _prepared(data, model=MODEL):
    return jax.jit(linear.prepare, static_argnums=(0, 2))(model, data, DIM)


@EVERY_KIND
@pytest.mark.parametrize("items", [1, 4])
@pytest.mark.parametrize("clip_norm", [0.1, 50.0])
def test_clipped_gradients_are_those_by_hand_and_the_automatic_ones(kind, items, clip_norm):
    data = _data(kind, items)
    users = _by_hand(data, POINT)
    clipped = users / np.maximum(_norms(users) / clip_norm, 1.0)[:, None, None]
    total = jax.jit(linear.clipped_gradient_sum(MODEL, clip_norm, None, 3))
    rows = jax.jit(linear_users.per_user_gradients(MODEL, clip_norm, None, 3))
    auto = jax.jit(
        gradients.clipped_gradient_sum(gradients.user_gradient(SOFTMAX), clip_norm, None, 3)
    )
    found = total(jax.random.key(0), POINT, _prepared(data))
    np.testing.assert_allclose(found.gradient, clipped.sum(0), rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(
        rows(jax.random.key(0), POINT, _prepared(data)).gradient, clipped, atol=2e-6
    )
    automatic = auto(jax.random.key(0), POINT, data)
    np.testing.assert_allclose(found.gradient, automatic.gradient, rtol=1e-5, atol=2e-6)
    assert found.num_gradients == automatic.num_gradients == np.sum(data.mask)


@pytest.mark.parametrize("items", [1, 4])
def test_samples_of_users(items):
    data = _data("dense", items)
    draw = functools.partial(sampling.poisson, num_users=USERS, probability=0.5)
    sampler = lambda key: draw(jax.random.key(5))  # noqa: E731
    auto = gradients.clipped_gradient_sum(gradients.user_gradient(SOFTMAX), 0.3, sampler, 3)
    closed = jax.jit(linear.clipped_gradient_sum(MODEL, 0.3, sampler, 3))
    expected = jax.jit(auto)(jax.random.key(0), POINT, data).gradient
    np.testing.assert_allclose(
        closed(jax.random.key(0), POINT, _prepared(data)).gradient, expected, atol=2e-6
    )


@EVERY_KIND
@pytest.mark.parametrize("along", [True, False])
def test_scaled_sums_are_those_by_hand(kind, along):
    data = _data(kind, 4)
    component = Component(Q if along else jnp.zeros((DIM, CLASSES)), 0.2, WEIGHT)
    scaled = _by_hand(data, POINT) * np.asarray(SCALES, np.float64)[:, None]
    direction = np.asarray(component.direction, np.float64)
    parts = np.sum(scaled * direction, axis=(1, 2))
    rest = scaled - parts[:, None, None] * direction
    norms = _norms(rest)
    radius = 1.01 * np.median(norms)

    oracle = preconditioned.scaled_sums(MODEL, SCALES, component, INSIDE, chunk_size=3)
    point = TunedPoint(POINT, jnp.log(jnp.float32(radius)))
    sums = jax.jit(oracle)(jax.random.key(0), point, _prepared(data)).gradient
    expected = np.sum(rest / np.maximum(norms, radius)[:, None, None], axis=0)
    np.testing.assert_allclose(sums.rest, expected, rtol=1e-4, atol=1e-5)
    clipped = WEIGHT * np.sum(np.clip(parts / 0.2, -1, 1))
    np.testing.assert_allclose(sums.component, clipped, rtol=1e-4, atol=1e-6)
    inside = INSIDE * np.sum(np.where(norms <= radius, 0.5, -0.5))
    np.testing.assert_allclose(sums.inside, inside, rtol=1e-5)


def _attacks(kind, items):
    """One user with rows, labels and a point of all sizes, and numbers that are none."""
    rng = np.random.default_rng(3)
    for trial in range(40):
        scale = 10.0 ** rng.integers(-3, 38)
        data = _data(kind, items, users=1, scale=scale, seed=trial)
        if kind == "dense" and trial % 4 == 0:
            bad = rng.choice([np.nan, np.inf, -np.inf, 3e38])
            data.items.features[0, rng.integers(items), rng.integers(DIM)] = bad
        if trial % 5 == 0:
            data.items.label[0, 0] = rng.choice([np.nan, np.inf, 1e30, 0.5])
        if trial % 3 == 0:
            # All items alike and every class sure: slopes as long as they can be.
            rows = data.items.features
            rows = OneHot(rows.columns[:, :1].repeat(items, 1)) if kind == "one-hot" else rows
            label = np.zeros((1, items), np.float32)
            data = UserData(Example(rows, label), np.ones((1, items), bool))
        point = rng.normal(size=(DIM, CLASSES)) * 10.0 ** rng.integers(-2, 38)
        yield trial, data, jnp.asarray(np.float32(np.clip(point, -3e38, 3e38)))


@EVERY_KIND
@pytest.mark.parametrize("items", [1, 3])
@pytest.mark.parametrize("clip_norm", [1e-3, 0.3])
def test_one_user_moves_no_sum_by_more_than_the_clip(kind, items, clip_norm):
    total = jax.jit(linear.clipped_gradient_sum(MODEL, clip_norm))
    rows = jax.jit(linear_users.per_user_gradients(MODEL, clip_norm))
    largest = 0.0
    for trial, data, point in _attacks(kind, items):
        for oracle in (total, rows):
            found = np.asarray(
                oracle(jax.random.key(0), point, _prepared(data)).gradient, np.float64
            )
            norm = np.linalg.norm(found)
            assert norm <= clip_norm, (trial, norm)  # false of NaN
            largest = max(largest, norm)
    assert largest > 0.999 * clip_norm


@EVERY_KIND
@pytest.mark.parametrize("items", [1, 3])
def test_one_user_moves_the_scaled_sums_by_no_more_than_the_joint_bound(kind, items):
    bound, largest = preconditioned.joint_bound(WEIGHT, INSIDE), 0.0
    oracle = preconditioned.scaled_sums(MODEL, SCALES, Component(Q, 0.05, WEIGHT), INSIDE)
    run = jax.jit(lambda at, rows: oracle(jax.random.key(0), at, rows).gradient)
    rng = np.random.default_rng(4)
    for trial, data, point in _attacks(kind, items):
        at = TunedPoint(point, jnp.float32(np.log(10.0) * rng.integers(-36, 4)))
        leaves = [np.asarray(x, np.float64).ravel() for x in run(at, _prepared(data))]
        found = np.linalg.norm(np.concatenate(leaves))
        assert found <= bound, (trial, found)  # false of NaN
        largest = max(largest, found)
    assert largest > 0.99 * bound


@pytest.mark.parametrize("scale", [1e36, 1e38])
def test_rows_that_leave_the_numbers_make_no_sum_that_is_not_finite(scale):
    """One class's entry overflows in the scales, the others do not: the user counts as zero."""
    data = UserData(Example(jnp.full((1, 1, DIM), 0.8), jnp.zeros((1, 1))), None)
    prepared = _prepared(data)
    prepared = prepared._replace(features=prepared.features * 1e2)
    oracle = preconditioned.scaled_sums(
        MODEL, jnp.full(DIM, scale), Component(Q, 1.0, WEIGHT), INSIDE
    )
    sure = jnp.zeros((DIM, CLASSES)).at[0, 1].set(20.0)  # slopes of -1, 1 and next to nothing
    sums = jax.jit(oracle)(jax.random.key(0), TunedPoint(sure, jnp.zeros(())), prepared).gradient
    assert np.all(np.isfinite(sums.rest))
    assert np.isfinite(sums.component)
    if scale > 1e37:
        np.testing.assert_array_equal(sums.rest, 0.0)


def test_a_user_without_a_number_takes_nothing_from_the_others():
    data = _data("dense", 4)
    clean = data._replace(mask=data.mask & (np.arange(USERS) != 1)[:, None])
    point = POINT.at[0, 0].set(3e38)
    data.items.features[1] = 0.0
    data.items.features[1, 0] = [3e38, 0, 0, 0, 0, 0]  # bounded to 2; its margin overflows
    data.mask[1] = [True, False, False, False]
    data.items.label[:] = 0
    others = np.arange(USERS) != 1
    data.items.features[others, :, 0] = 0.0  # the margins of the others do not
    oracle = jax.jit(linear.clipped_gradient_sum(MODEL, 0.3))
    found, expected = (
        oracle(jax.random.key(0), point, _prepared(d)).gradient for d in (data, clean)
    )
    assert np.any(np.asarray(expected))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("items", [1, 4])
def test_two_classes_are_those_of_the_logistic_loss(items):
    """With W = (-w/2, w/2) the loss is logistic in w: both columns are half of its gradient."""
    soft, logistic = losses.softmax(BOUND, 2), losses.logistic(BOUND)
    data = _data("dense", items)
    data = data._replace(items=data.items._replace(label=np.abs(data.items.label) % 2))
    w = POINT[:, 0]
    matrix = jnp.stack([-w / 2, w / 2], axis=1)

    def users(objective, point):
        prepared = _prepared(data, objective.linear_model)
        oracle = linear_users.per_user_gradients(objective.linear_model, 1e6)
        return jax.jit(oracle)(jax.random.key(0), point, prepared)

    found, expected = users(soft, matrix).gradient, users(logistic, w).gradient
    np.testing.assert_allclose(found[..., 1], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[..., 0], -expected, rtol=1e-5, atol=1e-6)
    item = Example(data.items.features[0, 0], data.items.label[0, 0])
    np.testing.assert_allclose(soft.loss(matrix, item), logistic.loss(w, item), rtol=1e-5)


@pytest.mark.parametrize("shape", [(DIM,), (DIM, 1), (DIM, CLASSES + 1), (DIM, CLASSES, 1)])
def test_points_of_another_shape_are_refused(shape):
    prepared = _prepared(_data("dense", 2))
    for oracle in (
        linear.clipped_gradient_sum(MODEL, 1.0),
        linear_users.per_user_gradients(MODEL, 1.0),
    ):
        with pytest.raises(ValueError, match=r"params must be of shape \[dim, 4\]"):
            oracle(jax.random.key(0), jnp.zeros(shape), prepared)
    vector = losses.logistic(BOUND).linear_model
    with pytest.raises(ValueError, match=r"params must be of shape \[dim\]"):
        linear.clipped_gradient_sum(vector, 1.0)(jax.random.key(0), jnp.zeros((DIM, 1)), prepared)
    scaled = preconditioned.scaled_sums(MODEL, SCALES, Component(jnp.zeros(DIM), 1.0, 0.0), 0.2)
    with pytest.raises(ValueError, match=r"component\.direction"):
        scaled(jax.random.key(0), TunedPoint(POINT, jnp.zeros(())), prepared)


def test_what_is_made_for_vectors_alone_refuses_a_matrix():
    for make in (
        lambda: linear.clipped_gradient_sum(MODEL, 1.0, smoothing_radius=0.1),
        lambda: linear_users.per_user_gradients(MODEL, 1.0, smoothing_radius=0.1),
        lambda: sandwich.sandwich_sums(MODEL, 0.5, 1.0),
    ):
        with pytest.raises(ValueError, match=r"model\.outputs must be None for .* got 4"):
            make()
