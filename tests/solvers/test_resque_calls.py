"""One private call on a ball: the law of its queries, its recursion, its error, how far neighbours drift."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from dpsco_jax.oracles import linear
from dpsco_jax.privacy.resque import _drift
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, LinearModel, OneHot
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.resque import _calls as calls

DIM, USERS, ITEMS, RHO = 4, 600, 2, 0.1
RADIUS = RHO / 8
ABSOLUTE = losses.absolute(1.0)
MODEL = ABSOLUTE.linear_model
PRODUCT = LinearModel(lambda m, y: m * y, lambda m, y: jnp.clip(y, -1.0, 1.0), 1.0)


def _regression():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((USERS, ITEMS, DIM))
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    rows *= rng.uniform(0.3, 1.0, (USERS, ITEMS, 1))
    labels = rows @ np.array([0.3, -0.2, 0.1, 0.0]) + 0.05 * rng.standard_normal((USERS, ITEMS))
    return Example(jnp.asarray(rows, jnp.float32), jnp.asarray(labels, jnp.float32))


ITEMS_OF_USERS = _regression()
DATA = linear.prepare(MODEL, UserData(ITEMS_OF_USERS), DIM)
SETTING = calls.Setting(MODEL, DATA, RADIUS, RHO, 1.0)


def _smoothed_gradient(x):
    """The gradient of the smoothed mean loss in closed form, float64."""
    rows, labels = (np.asarray(leaf, np.float64) for leaf in ITEMS_OF_USERS)
    scale = RHO * np.linalg.norm(rows, axis=-1)
    slopes = special.erf((rows @ x - labels) / (scale * math.sqrt(2)))
    return np.einsum("um,umd->d", slopes, rows) / slopes.size


def _minimizer(regularization):
    """Of the smoothed loss plus the quadratic around the origin, over the ball."""
    x = np.zeros(DIM)
    step = 1 / (1 / RHO + regularization)
    for _ in range(4000):
        x = x - step * (_smoothed_gradient(x) + regularization * x)
        x *= min(1.0, RADIUS / max(np.linalg.norm(x), 1e-30))
    return x


@functools.partial(jax.jit, static_argnums=0)
def _gradients(model, data, key, users, offset):
    setting = SETTING._replace(model=model, data=data)
    queries = calls.query(key, setting, users, jnp.zeros(DIM))
    rows = jnp.arange(len(users))
    return jax.vmap(lambda j: calls.gradient(setting, queries, j, offset))(rows)


def test_two_numbers_in_place_of_a_shift_are_unbiased_far_from_the_center():
    """At an offset of the size of ρ the reweighted gradients have the mean of the smoothed loss there."""
    offset = np.array([0.06, -0.05, 0.04, 0.03])
    users = jnp.tile(jnp.arange(USERS), 200)
    found = np.asarray(_gradients(MODEL, DATA, jax.random.key(0), users, jnp.asarray(offset)))
    error = found.mean(0) - _smoothed_gradient(offset)
    deviation = found.std(0) / math.sqrt(len(users))
    assert np.all(np.abs(error) < 5 * deviation)
    moved = np.linalg.norm(_smoothed_gradient(offset) - _smoothed_gradient(0 * offset))
    assert moved > 10 * np.linalg.norm(deviation), "unweighted gradients would be found out"


def test_weights_have_the_second_moment_of_a_ratio_of_densities():
    """E w² = exp(‖v‖²/ρ²), also in directions that no row has: ‖gradient‖ = w for a slope of one."""
    rows = jnp.zeros((1, 1, DIM)).at[0, 0, 0].set(1.0)
    data = linear.prepare(PRODUCT, UserData(Example(rows, jnp.ones((1, 1)))), DIM)
    offset = jnp.asarray([0.03, 0.05, -0.04, 0.02])
    users = jnp.zeros(100_000, jnp.int32)
    weights = np.asarray(_gradients(PRODUCT, data, jax.random.key(1), users, offset))[:, 0]
    spread = np.std(weights**2) / math.sqrt(len(users))
    expected = math.exp(float(jnp.sum(offset**2)) / RHO**2)
    assert abs(np.mean(weights**2) - expected) < 5 * spread
    assert abs(np.mean(weights) - 1) < 5 * np.std(weights) / math.sqrt(len(users))


def test_one_hot_rows_are_rows():
    """Columns and the dense rows that they stand for give the same gradients; padding counts for nothing."""
    columns = np.array([[[0, 2], [1, 3]], [[3, DIM], [0, 1]]], np.int32)
    labels = jnp.asarray([[0.1, -0.2], [0.3, 0.0]])
    dense = np.zeros((2, 2, DIM), np.float32)
    for place in np.ndindex(columns.shape):
        if columns[place] < DIM:
            dense[(*place[:2], columns[place])] = 1 / math.sqrt(2)
    offset, users = jnp.asarray([0.02, 0.01, -0.03, 0.01]), jnp.arange(2)

    @jax.jit
    def gradients(features):
        rows = linear.prepare(MODEL, UserData(Example(features, labels)), DIM)
        return _gradients(MODEL, rows, jax.random.key(2), users, offset)

    pair = [np.asarray(gradients(features)) for features in (OneHot(columns), dense)]
    assert np.abs(pair[1]).max() > 0.1
    np.testing.assert_allclose(pair[0], pair[1], rtol=1e-4, atol=1e-6)


def _sizes(*queries, num_users=None):
    users = DATA.labels.shape[0] if num_users is None else num_users
    return calls.sizes_of(users, [calls.Level(size, 1.0) for size in queries], False)


def test_a_call_is_the_printed_recursion():
    """Against a loop in float64 over the same queries, with a start outside of the ball and no noise."""
    size, reach, lam = 16, 0.02, 5.0
    center, start = jnp.full(DIM, 0.05), jnp.full(DIM, 0.08)
    key = jax.random.key(3)
    users_key, shifts_key, _ = jax.random.split(jax.random.clone(key), 3)
    found = jax.jit(lambda k: calls.localized(k, SETTING, size, center, start, 1e30, reach, lam))(
        key
    )
    users = jax.jit(lambda k: calls._draw_users(k, _sizes(size)))(users_key)
    queries = jax.jit(lambda k: calls.query(k, SETTING, users, center))(shifts_key)
    gradient = jax.jit(lambda j, v: calls.gradient(SETTING, queries, j, v))

    def inside(v):
        return v * min(1.0, RADIUS / max(np.linalg.norm(v), 1e-30))

    v, row = np.asarray(start - center, np.float64), 0
    for i in range(1, 5):
        step = reach / math.sqrt(size) / 4**i
        v, total = inside(v), np.zeros(DIM)
        for _ in range(size >> i):
            total += v
            slope = np.asarray(gradient(row, jnp.asarray(v, jnp.float32)))
            v, row = inside((v - step * slope) / (1 + step * lam)), row + 1
        v = total / (size >> i)
    assert row == size - 1 == len(users)
    np.testing.assert_allclose(found - center, inside(v), rtol=2e-4, atol=1e-7)
    assert np.linalg.norm(v - np.asarray(start - center)) > 0.1 * RADIUS


def test_users_of_a_call_are_different_and_fresh():
    sizes = _sizes(8, 16)
    draw = jax.jit(lambda k: calls._draw_users(k, sizes))
    first, second = (np.asarray(draw(jax.random.key(s))) for s in (0, 1))
    assert len(first) == 7 + 15
    assert len(set(first[:7])) == 7
    assert len(set(first[7:])) == 15
    assert not np.array_equal(first, second)
    everyone = np.asarray(calls._draw_users(jax.random.key(0), _sizes(16, num_users=15)))
    assert sorted(everyone) == list(range(15))
    assert not np.array_equal(everyone, np.arange(15)), "the order is random as well"


def test_levels_share_the_budget_and_the_gap():
    for queries in (4, 64, 1024, 4096):
        sizes = calls.levels(queries)
        assert sum(level.num_queries for level in sizes) < queries
        spent = sum((level.beta_factor * level.num_queries) ** 2 for level in sizes)
        assert spent < queries**2
        pairs = calls.level_errors(sizes, 10, 0.3, 2.0, 40.0, 16.0)
        for (error, gap), (next_error, next_gap) in itertools.pairwise(pairs):
            assert next_error == pytest.approx(error / 2)
            assert next_gap == pytest.approx(math.sqrt(error * gap))
        assert pairs[0][1] == pytest.approx(2.0**2 / (2 * 40.0))
    with pytest.raises(ValueError, match="num_queries must be a power of two"):
        calls.levels(12)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _runs(queries, count, beta, regularization):
    """Points of independent strongly convex calls around the origin."""
    sizes = calls.levels(queries)

    def one(key):
        return calls.strongly_convex(key, SETTING, sizes, jnp.zeros(DIM), beta, regularization)

    return jax.lax.map(one, jax.random.split(jax.random.key(4), count), batch_size=count)


def _check_error(queries, count, regularization, beta):
    points = np.asarray(_runs(queries, count, beta, regularization))
    assert np.all(np.linalg.norm(points, axis=1) <= RADIUS * (1 + 1e-6))
    rms = np.sqrt(np.mean(np.sum((points - _minimizer(regularization)) ** 2, axis=1)))
    law = math.sqrt(10 * (DIM / (beta * queries) ** 2 + 1 / queries)) / regularization
    assert rms <= 1.2 * min(RADIUS, law)
    return rms


@pytest.mark.slow
def test_error_of_a_call_is_as_predicted():
    private = _check_error(256, 100, 100.0, 0.2)
    quiet = _check_error(256, 100, 100.0, 1e6)
    assert quiet < 0.6 * private, "a large β is stochastic gradient descent without noise"
    noise = np.asarray(_runs(256, 100, 1e-3, 100.0))
    assert np.sqrt(np.mean(noise**2) * DIM) > 0.3 * RADIUS, "a small β is noise alone"
    assert np.linalg.norm(noise.mean(0)) < 0.15 * RADIUS


@functools.partial(jax.jit, static_argnums=0)
def _drifts(count):
    """Distances of noiseless neighbours over 2ηL, one record at a random place; ρ/r = 4, 255 of 255 users."""
    size, radius = 256, 0.025
    rows = jax.random.normal(jax.random.key(5), (size - 1, 1, 2))
    rows = rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)
    labels = 0.01 * jax.random.normal(jax.random.key(6), (size - 1, 1))

    def end(key, label):
        data = linear.prepare(
            MODEL,
            UserData(
                Example(rows.at[0, 0].set(jnp.asarray([1.0, 0.0])), labels.at[0, 0].set(label))
            ),
            2,
        )
        setting = calls.Setting(MODEL, data, radius, 0.1, 1.0)
        return calls.localized(key, setting, size, jnp.zeros(2), jnp.zeros(2), 1e30, 2 * radius)

    def one(key):
        return jnp.linalg.norm(end(jax.random.clone(key), 5.0) - end(key, -5.0))

    keys = jax.random.split(jax.random.key(7), count)
    return jax.lax.map(one, keys, batch_size=250) / (2 * 2 * radius / 16 / 4)


@pytest.mark.slow
def test_neighbours_drift_as_little_as_the_accountant_says():
    drifts = np.asarray(_drifts(1000))
    assert drifts.max() > 0.7, "somewhere the record counts nearly fully"
    for failure in (1.0, 0.1, 1e-2):
        bound = _drift.drift_factor(256, 4.0, failure)
        assert np.mean(drifts > bound) <= failure
    rms = math.sqrt(np.mean(drifts**2))
    assert rms <= _drift.drift_factor(256, 4.0, 1.0)
