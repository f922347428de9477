"""Mean gradients and Hessians of users: against NumPy, against neighbours, and for what is not finite."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.oracles import second_order
from dpsco_jax.problems import fixtures, losses, nonconvex_losses
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData

USERS, ITEMS, DIM = 6, 3, 4
WELSCH = nonconvex_losses.welsch(1.0, scale=0.7)
# The same loss, as one of which nothing is known.
PLAIN = WELSCH._replace(linear_model=None)
LEAST, MOST = -0.3, 0.6


def data_of(seed=0, mask=True):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(USERS, ITEMS, DIM)).astype(np.float32)
    labels = rng.normal(size=(USERS, ITEMS)).astype(np.float32)
    there = rng.random((USERS, ITEMS)) < 0.8 if mask else None
    return UserData(Example(rows, labels), there)


@functools.cache
def compiled(objective):
    return jax.jit(
        lambda data, p, *bounds: second_order.second_order(objective, data, p, *bounds)(p)
    )


def evaluated(objective, data, w, clip_norm=0.5, least=LEAST, most=MOST):
    with jax.enable_x64(True):
        found = compiled(objective)(data, np.asarray(w, np.float64), clip_norm, least, most)
        return jax.tree.map(np.asarray, found)


def by_hand(data, w, clip_norm, least, most, by_item):
    """In NumPy, item by item, from the formulas of Welsch's loss."""
    gradients, hessians = np.zeros((USERS, DIM)), np.zeros((USERS, DIM, DIM))
    for u in range(USERS):
        there = [j for j in range(ITEMS) if data.mask is None or data.mask[u, j]]
        for j in there:
            x = np.asarray(data.items.features[u, j], np.float64)
            x = x * min(1.0, 1.0 / np.linalg.norm(x))
            t = (x @ w - data.items.label[u, j]) / 0.7
            weight = np.exp(-0.5 * t * t) / len(there)
            gradients[u] += 0.7 * t * weight * x
            bend = np.exp(-0.5 * t * t) * (1 - t * t)
            bend = np.clip(bend, least, most) if by_item else bend
            hessians[u] += bend / len(there) * np.outer(x, x)
        norm = np.linalg.norm(gradients[u])
        gradients[u] *= min(1.0, clip_norm / norm) if norm > 0 else 1.0
        if not by_item:
            values, vectors = np.linalg.eigh(hessians[u])
            hessians[u] = vectors @ np.diag(np.clip(values, least, most)) @ vectors.T
    return gradients.mean(axis=0), hessians.mean(axis=0)


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("objective", [WELSCH, PLAIN], ids=["linear", "plain"])
def test_means_are_those_of_numpy(objective, mask):
    data, w = data_of(mask=mask), np.array([0.3, -0.5, 0.2, 0.9])
    for clip_norm, least, most in ((0.1, -0.05, 0.2), (0.5, -0.45, 1.0)):
        found = evaluated(objective, data, w, clip_norm, least, most)
        wanted = by_hand(data, w, clip_norm, least, most, objective is WELSCH)
        np.testing.assert_allclose(found.gradient, wanted[0], rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(found.hessian, wanted[1], rtol=1e-4, atol=1e-7)
        np.testing.assert_array_equal(found.hessian, found.hessian.T)


def test_one_hot_rows_are_the_dense_rows_that_they_stand_for():
    rng = np.random.default_rng(1)
    columns = rng.integers(-1, DIM + 1, (USERS, ITEMS, 2)).astype(np.int32)
    labels = rng.normal(size=(USERS, ITEMS)).astype(np.float32)
    dense = np.zeros((USERS, ITEMS, DIM), np.float32)
    for u, j, k in np.ndindex(columns.shape):
        if 0 <= columns[u, j, k] < DIM:
            dense[u, j, columns[u, j, k]] = 0.5**0.5
    w = np.array([0.3, -0.5, 0.2, 0.9])
    sparse = evaluated(WELSCH, UserData(Example(OneHot(columns), labels)), w)
    full = evaluated(WELSCH, UserData(Example(dense, labels)), w)
    np.testing.assert_allclose(sparse.gradient, full.gradient, rtol=1e-5)
    np.testing.assert_allclose(sparse.hessian, full.hessian, rtol=1e-5)


@pytest.mark.parametrize("objective", [WELSCH, PLAIN], ids=["linear", "plain"])
def test_no_neighbour_moves_them_by_more_than_is_declared(objective):
    """Of 60 pairs, and of the worst there is: one curvature at each end."""
    clip_norm, moved, bent = 0.2, [], []
    rng = np.random.default_rng(2)
    for trial in range(60):
        data = data_of(trial)
        w = rng.normal(size=DIM) * 10.0 ** rng.uniform(-1, 1)
        rows, labels = data.items.features.copy(), data.items.label.copy()
        rows[0] = rng.normal(size=(ITEMS, DIM)) * 10.0 ** rng.uniform(-1, 2)
        labels[0] = rng.normal(size=ITEMS) * 10.0 ** rng.uniform(-1, 2)
        if trial == 0:  # gradients of ±0.2 along one row, and curvatures at both ends
            row = np.eye(DIM)[0]
            data.items.features[0], rows[0] = row, row
            data.items.label[0], labels[0] = w[0] + 0.7 * 3**0.5, w[0]
        if trial == 1:
            row = np.eye(DIM)[0]
            data.items.features[0], rows[0] = row, row
            data.items.label[0], labels[0] = w[0] + 0.7, w[0] - 0.7
        if trial == 2:
            labels[0] = np.nan
        data.mask[0] = True
        other = UserData(Example(rows, labels), data.mask)
        a, b = (evaluated(objective, one, w, clip_norm) for one in (data, other))
        moved.append(np.linalg.norm(a.gradient - b.gradient))
        bent.append(np.linalg.norm(a.hessian - b.hessian, 2))
        least = [np.linalg.eigvalsh(one.hessian)[0] for one in (a, b)]
        assert abs(least[0] - least[1]) <= bent[-1] * (1 + 1e-12)
    assert 0.99 <= max(moved) * USERS / (2 * clip_norm) <= 1 + 1e-9
    assert 0.99 <= max(bent) * USERS / (MOST - LEAST) <= 1 + 1e-9


def test_what_is_not_finite_counts_as_zero():
    data = data_of(mask=False)
    w = np.array([0.3, -0.5, 0.2, 0.9])
    data.items.label[1] = np.inf
    for objective in (WELSCH, PLAIN):
        gone = evaluated(objective, data, w)
        empty = data._replace(mask=(np.arange(USERS) != 1)[:, None] & np.ones((1, ITEMS), bool))
        without = evaluated(objective, empty, w)
        np.testing.assert_allclose(gone.gradient, without.gradient, rtol=1e-12)
        np.testing.assert_allclose(gone.hessian, without.hessian, rtol=1e-12, atol=1e-15)
    broken = losses.huber(1.0)._replace(
        linear_model=None, loss=lambda p, z: jnp.sum(p * p) * jnp.nan
    )
    found = evaluated(broken, data, w)
    assert not np.any(found.gradient)
    assert not np.any(found.hessian)


def test_a_hessian_near_the_largest_number_spoils_nobody_elses():
    """Twice an entry is infinite, and decompositions of such a matrix may be NaN."""
    quadratic = PLAIN._replace(loss=lambda p, z: 0.5 * p @ z @ p)
    items = np.broadcast_to(0.2 * np.eye(2), (USERS, 1, 2, 2)).copy()
    for large in (1.7e308, 1e308, 1e200, 1e-320, np.inf, np.nan):
        for shape in ([[1, 1], [1, 1]], [[1, 0.5], [-1, 1]], [[-1, 1], [-1, 1]]):
            items[0, 0] = np.multiply(shape, large)
            found = evaluated(quadratic, UserData(items), np.zeros(2))
            moved = np.linalg.eigvalsh(found.hessian * USERS - 0.2 * (USERS - 1) * np.eye(2))
            assert np.all((moved >= LEAST - 1e-12) & (moved <= MOST + 1e-12))


def test_least_eigenvalue_at_the_saddle_between_two_wells():
    made = fixtures.two_wells(jax.random.key(0), 8, 2, 3, jitter=0.0)
    found = evaluated(made.objective, made.data, np.zeros(3), 1.0, -0.5, 1.0)
    np.testing.assert_allclose(np.linalg.eigvalsh(found.hessian)[0], -0.4058, atol=5e-5)
    np.testing.assert_allclose(found.gradient, 0.0, atol=1e-12)


def test_chunks_do_not_matter(monkeypatch):
    data, w = data_of(), np.array([0.3, -0.5, 0.2, 0.9])
    for objective in (WELSCH, PLAIN):
        whole = evaluated(objective, data, w)
        compiled.cache_clear()
        monkeypatch.setattr(second_order, "_TERMS", 4)
        monkeypatch.setattr(second_order, "_NUMBERS", 64)
        parts = evaluated(objective, data, w)
        monkeypatch.undo()
        compiled.cache_clear()
        np.testing.assert_allclose(parts.hessian, whole.hessian, rtol=1e-12, atol=1e-15)


def test_too_many_parameters_are_refused():
    data = UserData(Example(np.zeros((2, 1, 600), np.float32), np.zeros((2, 1), np.float32)))
    with pytest.raises(ValueError, match="params must be in"):
        second_order.second_order(WELSCH, data, jnp.zeros(600), 1.0, -1.0, 1.0)
