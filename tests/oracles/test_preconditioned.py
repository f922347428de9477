"""Scaled sums: against sums by hand, and the joint bound of one user's terms under attack."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import transforms
from dpsco_jax.oracles import linear_users, preconditioned
from dpsco_jax.oracles.preconditioned import Component, TunedPoint
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData
from tests.oracles.linear_users import PREPARE

USERS, ITEMS, DIM, COLUMNS = 9, 4, 12, 3
MODEL = losses.logistic(feature_bound=2.0).linear_model
SQUARED = losses.squared(feature_bound=2.0, label_bound=1.0, radius=1.0).linear_model
SCALES = jnp.asarray(np.float32(np.random.default_rng(0).uniform(0.5, 5.0, DIM)))
Q = jnp.asarray(1 / SCALES / jnp.linalg.norm(1 / SCALES))
WEIGHT, INSIDE = 0.3, 0.2


def _data(kind, users=USERS, scale=1.0, seed=1):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, (users, ITEMS)).astype(np.float32)
    if kind == "dense":
        features = (scale * rng.normal(size=(users, ITEMS, DIM))).astype(np.float32)
    else:
        features = OneHot(rng.integers(-1, DIM + 1, (users, ITEMS, COLUMNS)).astype(np.int32))
    counts = rng.integers(0, ITEMS + 1, users)
    counts[0] = ITEMS
    return UserData(Example(features, labels), np.arange(ITEMS) < counts[:, None])


def _sums(data, point, log_radius, component, model=MODEL):
    oracle = preconditioned.scaled_sums(model, SCALES, component, INSIDE, chunk_size=4)
    params = TunedPoint(point, jnp.asarray(np.float32(log_radius)))
    return jax.jit(oracle)(jax.random.key(0), params, PREPARE(model, data, DIM))


@pytest.mark.parametrize("kind", ["dense", "one-hot"])
@pytest.mark.parametrize("along", [True, False])
def test_sums_are_those_by_hand(kind, along):
    data, radius = _data(kind), 0.7
    point = jnp.asarray(np.float32(np.random.default_rng(2).normal(size=DIM)))
    component = Component(Q if along else jnp.zeros(DIM), 0.2, WEIGHT)
    estimate = _sums(data, point, np.log(radius), component)

    rows = linear_users.per_user_gradients(MODEL, 1e6)
    prepared = PREPARE(MODEL, data, DIM)
    gradients = np.asarray(jax.jit(rows)(jax.random.key(0), point, prepared).gradient, np.float64)
    scaled = gradients * np.asarray(SCALES)
    parts = scaled @ np.asarray(component.direction, np.float64)
    rest = scaled - parts[:, None] * np.asarray(component.direction)
    norms = np.linalg.norm(rest, axis=1)
    expected = np.sum(rest / np.maximum(norms, radius)[:, None], axis=0)
    np.testing.assert_allclose(estimate.gradient.rest, expected, rtol=1e-4, atol=1e-5)
    clipped = WEIGHT * np.sum(np.clip(parts / 0.2, -1, 1))
    np.testing.assert_allclose(estimate.gradient.component, clipped, rtol=1e-4, atol=1e-6)
    inside = INSIDE * np.sum(np.where(norms <= radius, 0.5, -0.5))
    np.testing.assert_allclose(estimate.gradient.inside, inside, rtol=1e-5)
    assert estimate.num_gradients == int(np.sum(data.mask))


@pytest.mark.parametrize("model", [MODEL, SQUARED], ids=["logistic", "squared"])
@pytest.mark.parametrize("kind", ["dense", "one-hot"])
def test_one_user_moves_the_sums_by_no_more_than_the_joint_bound(kind, model):
    bound = preconditioned.joint_bound(WEIGHT, INSIDE)
    component = Component(Q, 0.05, WEIGHT)
    largest = 0.0
    oracle = preconditioned.scaled_sums(model, SCALES, component, INSIDE)

    @jax.jit
    def norm(point, log_radius, prepared):
        params = TunedPoint(point, log_radius)
        sums = oracle(jax.random.key(0), params, prepared).gradient
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(sums)))

    rng = np.random.default_rng(3)
    for trial in range(30):
        data = _data(kind, users=1, scale=10.0 ** rng.integers(-3, 30), seed=trial)
        point = jnp.asarray(np.float32(rng.normal(size=DIM) * 10.0 ** rng.integers(-2, 4)))
        radius = jnp.float32(np.log(10.0) * rng.integers(-12, 4))
        found = float(norm(point, radius, PREPARE(model, data, DIM)))
        assert found <= bound, (trial, found)
        largest = max(largest, found)
    assert largest > 0.99 * bound  # the bound is reached


def test_a_user_without_a_number_counts_as_one_without_a_gradient():
    data = _data("dense", users=1)
    broken = data._replace(items=data.items._replace(label=data.items.label * np.nan))
    sums = _sums(broken, jnp.ones(DIM), 0.0, Component(Q, 1.0, WEIGHT)).gradient
    np.testing.assert_array_equal(sums.rest, 0.0)
    assert sums.component == 0.0
    assert sums.inside == pytest.approx(INSIDE / 2)


@pytest.mark.parametrize("kind", ["dense", "one-hot"])
def test_second_moments_are_means_over_items_and_bounded_for_each_user(kind):
    data = _data(kind)
    prepared = PREPARE(MODEL, data, DIM)
    total = preconditioned.second_moments(MODEL, DIM, chunk_size=4)
    rows = np.asarray(prepared.features, np.float64)
    if kind == "one-hot":
        columns = rows.astype(int)
        rows = np.zeros((USERS, ITEMS, DIM + 1))
        np.add.at(rows, (*np.indices(columns.shape)[:2], columns), 4.0 / COLUMNS)
        squares = rows[..., :DIM]
    else:
        squares = rows**2
    by_user = np.sum(np.asarray(prepared.weights)[..., None] * squares, axis=1)
    limit = preconditioned.second_moment_bound(2.0, COLUMNS if kind == "one-hot" else None)
    norms = np.linalg.norm(by_user, axis=1, keepdims=True)
    expected = np.sum(by_user / np.maximum(norms / limit, 1.0), axis=0)
    np.testing.assert_allclose(jax.jit(total)(prepared), expected, rtol=1e-4, atol=1e-6)


def test_two_nonnegative_users_are_no_further_apart_than_their_sensitivity():
    bound = preconditioned.second_moment_bound(2.0, COLUMNS)
    sensitivity = transforms.summed_contributions(bound, 1, nonnegative=True).sensitivity
    total = jax.jit(preconditioned.second_moments(MODEL, DIM))
    largest = 0.0
    for _ in range(40):
        first, second = (total(PREPARE(MODEL, _data("one-hot", 1), DIM)) for _ in range(2))
        largest = max(largest, float(jnp.linalg.norm(first - second)))

    def constant(*columns):
        rows = OneHot(np.asarray(columns, np.int32).reshape(1, 1, 3))
        return UserData(Example(rows, np.ones((1, 1), np.float32)), None)

    pair = constant(0, 1, 2), constant(3, 4, 5)
    worst = [total(PREPARE(MODEL, data, DIM)) for data in pair]
    assert largest <= sensitivity
    assert float(jnp.linalg.norm(worst[0] - worst[1])) == pytest.approx(sensitivity, rel=2e-5)


@pytest.mark.parametrize(("columns", "feature_bound"), [(3, 2.0), (3, 0.1), (5, 0.7), (7, 3.0)])
def test_moments_at_the_bound_are_not_above_it_by_rounding(columns, feature_bound):
    """All entries are feature_bound²/columns, which float32 may round up: the clip makes up for it."""
    model = losses.logistic(feature_bound=feature_bound).linear_model
    rows = OneHot(np.arange(columns, dtype=np.int32).reshape(1, 1, columns))
    user = UserData(Example(rows, np.ones((1, 1), np.float32)), None)
    total = jax.jit(preconditioned.second_moments(model, DIM))
    found = np.linalg.norm(np.asarray(total(PREPARE(model, user, DIM)), np.float64))
    bound = feature_bound**2 / columns**0.5
    assert bound * (1 - 2e-5) < found <= bound


@pytest.mark.parametrize("size", [1.5, 30.0])
def test_moments_of_rows_that_were_not_prepared_are_bounded_as_well(size):
    prepared = PREPARE(MODEL, _data("dense", users=1), DIM)
    longer = prepared._replace(features=prepared.features * size)
    total = jax.jit(preconditioned.second_moments(MODEL, DIM))
    assert np.linalg.norm(np.asarray(total(longer), np.float64)) <= 2.0**2


@pytest.mark.parametrize("log_radius", [-80.0, -85.0, -87.0])
def test_a_small_radius_makes_no_sum_that_is_not_finite(log_radius):
    """A slope over the radius may be above what float32 holds; a NaN would say who is there."""
    far = losses.squared(2.0, 1.0, 100.0).linear_model
    rows, labels = jnp.asarray([[[1.0, 0.5]]]), jnp.zeros((1, 1))
    data = PREPARE(far, UserData(Example(rows, labels), None), 2)
    oracle = preconditioned.scaled_sums(far, jnp.ones(2), Component(jnp.zeros(2), 1.0, 0.0), 0.2)
    point = TunedPoint(jnp.asarray([100.0, 0.0]), jnp.asarray(log_radius))
    sums = jax.jit(oracle)(jax.random.key(0), point, data).gradient
    assert np.linalg.norm(np.asarray(sums.rest, np.float64)) <= 1.0  # false of NaN


def test_rows_that_leave_the_numbers_make_no_sum_that_is_not_finite():
    far = losses.squared(100.0, 1.0, 100.0).linear_model
    rows, labels = jnp.asarray([[[90.0, 0.5]]]), jnp.ones((1, 1))
    data = PREPARE(far, UserData(Example(rows, labels), None), 2)
    oracle = preconditioned.scaled_sums(
        far, jnp.full(2, 1e37), Component(jnp.asarray([1.0, 0.0]), 1.0, 0.5), 0.2
    )
    sums = jax.jit(oracle)(
        jax.random.key(0), TunedPoint(jnp.zeros(2), jnp.zeros(())), data
    ).gradient
    terms = np.concatenate([np.atleast_1d(np.asarray(x, np.float64)) for x in sums])
    assert np.linalg.norm(terms) <= preconditioned.joint_bound(0.5, 0.2)  # false of NaN
