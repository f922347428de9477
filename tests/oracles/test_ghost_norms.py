"""Norms of matrix gradients from inner products of items: the same sums, never above the clip norm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.oracles import _ghost_norms, gradients, linear
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from tests.oracles.linear_users import PREPARE

USERS, ITEMS, DIM, CLASSES = 7, 3, 220, 5
OBJECTIVE = losses.softmax(1.0, CLASSES)
MODEL = OBJECTIVE.linear_model
WEIGHTS = jnp.asarray(np.float32(np.random.default_rng(1).standard_normal((DIM, CLASSES))))


def _data(seed=0):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((USERS, ITEMS, DIM)).astype(np.float32)
    features[1, 1] = features[1, 0]  # items of opposite classes, which cancel in part
    features[2] = 0.0
    features[3, 0, 0] = np.nan
    labels = rng.integers(0, CLASSES, (USERS, ITEMS)).astype(np.int32)
    mask = rng.random((USERS, ITEMS)) < 0.8
    mask[5] = False
    return UserData(Example(features, labels), mask)


def _rows():
    """Gradients of all users in float64 by NumPy alone; a row with an entry that is no number is zero."""
    data, weights = _data(), np.asarray(WEIGHTS, float)
    found = np.zeros((USERS, DIM, CLASSES))
    for u in range(USERS):
        kept = data.mask[u]
        x = np.asarray(data.items.features[u], float)[kept]
        if not len(x):
            continue
        x[~np.all(np.isfinite(x), axis=1)] = 0.0
        x = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
        margins = x @ weights
        odds = np.exp(margins - margins.max(1, keepdims=True))
        odds /= odds.sum(1, keepdims=True)
        odds[np.arange(len(x)), data.items.label[u][kept]] -= 1
        found[u] = x.T @ odds / len(x)
    return found


@pytest.mark.parametrize("clip_norm", [0.05, 0.3, 1e3])
def test_the_sum_is_that_of_clipped_gradients(clip_norm):
    data = PREPARE(MODEL, _data(), DIM)
    assert _ghost_norms.pays(MODEL, data)
    oracle = linear.clipped_gradient_sum(MODEL, clip_norm, chunk_size=4)
    found = jax.jit(oracle)(jax.random.key(0), WEIGHTS, data).gradient
    rows = _rows()
    sizes = np.linalg.norm(rows, axis=(1, 2))
    factors = np.minimum(1.0, clip_norm / np.maximum(sizes, 1e-30))
    expected = np.tensordot(factors, rows, 1)
    # What is paid for rounding makes a factor smaller by as much, and never larger.
    paid = 4 * _ghost_norms.rounding(4, ITEMS) * 2.0**-24
    np.testing.assert_allclose(found, expected, rtol=1e-3 + paid, atol=1e-3 * min(clip_norm, 1e-3))


def test_no_user_is_longer_than_the_clip_norm_in_exact_arithmetic():
    """Items that cancel all but a little, where an inner product in float32 is mostly rounding."""
    rng = np.random.default_rng(3)
    runs = {c: jax.jit(linear.clipped_gradient_sum(MODEL, c)) for c in (1e-3, 1e-2, 0.1)}
    base = rng.standard_normal(DIM)
    base /= np.linalg.norm(base)
    for scale in (1e-1, 1e-2, 1e-3, 1e-4, 0.0):
        features = np.stack([base, base + scale * rng.standard_normal(DIM) / DIM**0.5])
        features = (0.9 * features[None]).astype(np.float32)
        labels = np.array([[0, 1]], np.int32)
        weights = jnp.zeros((DIM, CLASSES))
        one = UserData(Example(features, labels), None)
        data = PREPARE(MODEL, one, DIM)
        for clip_norm, run in runs.items():
            made = np.asarray(run(jax.random.key(0), weights, data).gradient, float)
            assert np.linalg.norm(made) <= clip_norm
    # Coefficients that cancel but for what the rows differ by, far below what an inner product resolves, or
    # a little more than the 16th of their length that bounds are no less than.
    coefficients = np.ones((40, 2, CLASSES), np.float32) * np.float32([[[1.0], [-1.0]]])
    base = rng.standard_normal((40, 1, DIM))
    base *= 0.9 / np.linalg.norm(base, axis=-1, keepdims=True)
    apart = np.where(np.arange(40) < 20, 2e-5, 0.15)[:, None, None]
    away = apart * rng.standard_normal((40, 1, DIM)) / DIM**0.5
    features = np.concatenate([base, base + away], axis=1).astype(np.float32)
    data = PREPARE(MODEL, UserData(Example(features, np.zeros((40, 2), np.int32))), DIM)
    exact = np.einsum(
        "uik,uid->udk", np.asarray(coefficients, float), np.asarray(data.features, float)
    )
    assert np.all(
        np.linalg.norm(exact, axis=(1, 2)) <= jax.jit(_ghost_norms.norm_bounds)(coefficients, data)
    )


def test_gradients_by_automatic_differentiation_agree():
    sample = _data()
    features = np.nan_to_num(np.asarray(sample.items.features))
    sample = sample._replace(items=sample.items._replace(features=features))
    plain = gradients.clipped_gradient_sum(gradients.user_gradient(OBJECTIVE), 0.2)
    ghost = linear.clipped_gradient_sum(MODEL, 0.2)
    key = jax.random.key(0)
    np.testing.assert_allclose(
        jax.jit(ghost)(key, WEIGHTS, PREPARE(MODEL, sample, DIM)).gradient,
        jax.jit(plain)(key, WEIGHTS, sample).gradient,
        atol=2e-4,
    )


@pytest.mark.parametrize("bound", [1e-25, 1e-20, 1e-6, 1e12, 1e20])
def test_features_of_any_size_are_clipped(bound):
    """Products of features of 1e-20 vanish in float32, and those of 1e20 are infinite."""
    rng = np.random.default_rng(5)
    features = rng.standard_normal((1, ITEMS, DIM))
    features *= bound / np.linalg.norm(features, axis=-1, keepdims=True)
    one = UserData(Example(features.astype(np.float32), np.array([[0, 1, 2]], np.int32)), None)
    model = losses.softmax(bound, CLASSES).linear_model
    oracle = linear.clipped_gradient_sum(model, 1e-2 * bound)
    start = jnp.zeros((DIM, CLASSES))
    made = jax.jit(oracle)(jax.random.key(0), start, PREPARE(model, one, DIM)).gradient
    assert np.linalg.norm(np.asarray(made, float) / bound) == pytest.approx(1e-2, rel=4e-3)
    assert np.linalg.norm(np.asarray(made, float) / bound) <= 1e-2


def _cancelling(users, items, slope):
    """Items of equal rows and opposite slopes: their sum grows, and the second half takes it back."""
    rng = np.random.default_rng(11)
    rows = np.broadcast_to(rng.uniform(0.5, 1, (users, 1, DIM)), (users, items, DIM))
    rows = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    signs = np.where(np.arange(items) < items // 2, 1.0, -1.0)[None, :, None]
    slopes = signs * rng.uniform(0.5, 1, (users, 1, CLASSES))
    slopes[:, 0] *= 1 + slope  # of what is left the norm is small
    return slopes.astype(np.float32), rows.astype(np.float32)


@pytest.mark.parametrize("items", [2, 16])
def test_a_product_of_users_whose_items_cancel_is_off_by_no_more_than_is_said(items):
    """Clipped to norm one, users are 16 times as long at most when their items are taken one by one."""
    users, unit = _ghost_norms.group(items), 2.0**-24
    slopes, rows = _cancelling(users, items, 1e-3)
    model = losses.softmax(1.0, CLASSES).linear_model
    labels = np.zeros((users, items), np.int32)
    data = PREPARE(model, UserData(Example(rows, labels), None), DIM)
    bounds = jax.jit(_ghost_norms.norm_bounds)(slopes, data)
    stored = np.asarray(data.features, float)
    one_by_one = np.sum(
        np.linalg.norm(np.float64(slopes), axis=-1) * np.linalg.norm(stored, axis=-1), 1
    )
    assert np.all(one_by_one <= 16 * (1 + 1e-5) * np.asarray(bounds, float))
    assert np.all(one_by_one > 15.9 * np.asarray(bounds, float))
    scales = (slopes / np.asarray(bounds)[:, None, None]).astype(np.float32)
    found = np.asarray(jax.jit(linear._outer_products)(scales, data.features), float)
    exact = np.einsum("uik,uid->dk", np.float64(scales), stored)
    off = np.linalg.norm(found - exact)
    assert 0 < off <= _ghost_norms.rounding(users, items) * unit


def test_groups_of_users_with_many_items_lose_little():
    for items in (2, 3, 7, 16, 40, 1024):
        users = _ghost_norms.group(items)
        assert 4 * 16 * users**2 * items * 2.0**-24 <= 2.0**-8
        assert (2 * users) ** 2 * items > 1024
    found = [_ghost_norms.group(items) for items in (2, 4, 5, 16, 17, 64, 65, 10**4)]
    assert found == [16, 16, 8, 8, 4, 4, 2, 1]


def test_the_sum_is_as_much_shorter_as_its_products_may_be_off(monkeypatch):
    users, items = 40, 4
    rng = np.random.default_rng(12)
    row = rng.standard_normal(DIM)
    features = np.broadcast_to(row / np.linalg.norm(row), (users, items, DIM)).astype(np.float32)
    one = UserData(Example(features, np.zeros((users, items), np.int32)), None)
    data = PREPARE(MODEL, one, DIM)
    assert _ghost_norms.pays(MODEL, data)
    oracle = linear.clipped_gradient_sum(MODEL, 0.01)
    product, together = linear._outer_products, []

    def noted(scales, rows):
        together.append(rows.shape[-3])
        return product(scales, rows)

    monkeypatch.setattr(linear, "_outer_products", noted)
    found = jax.jit(oracle)(jax.random.key(0), jnp.zeros((DIM, CLASSES)), data).gradient
    assert max(together) == _ghost_norms.group(items) == 16
    lost = 4 * 16 * (16**2 * items + 1) * 2.0**-24
    # Besides, norms are taken for a little longer than they are: by half of what rounding may do.
    terms = (DIM + CLASSES + items**2 + 16) * 2.0**-24
    assert 1 - np.linalg.norm(np.asarray(found, float)) / 0.4 == pytest.approx(
        lost + terms / 2, rel=0.2
    )
