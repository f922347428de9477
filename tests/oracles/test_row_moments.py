"""Moments of rows: against NumPy, and the distance of two users' terms under attack."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.oracles import row_moments
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData
from tests.oracles.linear_users import PREPARE

USERS, ITEMS, DIM, BOUND = 9, 4, 5, 2.0
MODEL = losses.logistic(feature_bound=BOUND).linear_model
KINDS = {
    "means": row_moments.means,
    "mean_squares": row_moments.mean_squares,
    "second_moments": row_moments.second_moments,
}
FARTHEST = {"means": 2.0, "mean_squares": 2**0.5, "second_moments": 2**0.5}


def _data(features, mask=None):
    features = jnp.asarray(np.float32(features))
    labels = jnp.zeros(features.shape[:2])
    return PREPARE(MODEL, UserData(Example(features, labels), mask), features.shape[2])


def _term_by_hand(kind, rows, bound):
    if len(rows) == 0:
        return np.zeros(DIM * (DIM + 1) // 2 if kind == "second_moments" else DIM)
    if kind == "means":
        term = rows.mean(0)
    elif kind == "mean_squares":
        term = (rows**2).mean(0)
    else:
        matrix = np.mean([np.outer(row, row) for row in rows], axis=0)
        term = np.array(
            [
                matrix[i, j] * (1 if i == j else np.sqrt(2))
                for i in range(DIM)
                for j in range(i, DIM)
            ]
        )
    return term * min(1.0, bound / np.linalg.norm(term))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", [0.3, 50.0])
def test_sums_are_those_by_hand(kind, bound):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(USERS, ITEMS, DIM))
    rows /= np.maximum(1, np.linalg.norm(rows, axis=2, keepdims=True) / BOUND)
    counts = rng.integers(0, ITEMS + 1, USERS)
    counts[:2] = 0, ITEMS
    data = _data(rows, np.arange(ITEMS) < counts[:, None])
    found = jax.jit(KINDS[kind](bound, chunk_size=4))(data)
    expected = sum(_term_by_hand(kind, rows[u, : counts[u]], bound) for u in range(USERS))
    np.testing.assert_allclose(found, expected, rtol=8e-3, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_no_pair_of_users_is_farther_apart_than_is_accounted(kind):
    rng = np.random.default_rng(1)
    bound = 0.7
    total = jax.jit(KINDS[kind](bound, chunk_size=1))
    ends = np.eye(DIM) * BOUND
    users = [np.tile(end, (ITEMS, 1)) for end in (*ends, *-ends)]
    users += [rng.normal(size=(ITEMS, DIM)) * 10.0 ** rng.integers(-3, 30) for _ in range(40)]
    users += [np.full((ITEMS, DIM), np.nan), np.full((ITEMS, DIM), np.inf), np.zeros((ITEMS, DIM))]
    terms = np.array([total(_data(user[None])) for user in users], np.float64)
    assert np.isfinite(terms).all()
    apart = np.linalg.norm(terms[:, None] - terms[None], axis=2)
    accounted = FARTHEST[kind] * bound
    assert apart.max() <= accounted
    assert apart.max() >= 0.992 * accounted  # some pair comes near: the bound is not a loose one


def test_a_matrix_is_its_triangle():
    rng = np.random.default_rng(2)
    matrix = rng.normal(size=(DIM, DIM))
    matrix = jnp.asarray(np.float32(matrix + matrix.T))
    entries = row_moments.triangle(matrix)
    np.testing.assert_allclose(np.linalg.norm(entries), np.linalg.norm(matrix), rtol=1e-6)
    np.testing.assert_allclose(row_moments.from_triangle(entries, DIM), matrix, rtol=1e-6)
    with pytest.raises(ValueError, match="entries must be of shape"):
        row_moments.from_triangle(entries, DIM + 1)


def test_one_hot_rows_and_too_many_items_are_refused():
    columns = OneHot(np.zeros((USERS, ITEMS, 2), np.int32))
    data = PREPARE(MODEL, UserData(Example(columns, jnp.zeros((USERS, ITEMS))), None), DIM)
    with pytest.raises(ValueError, match="dense rows"):
        row_moments.means(1.0)(data)
    many = jax.eval_shape(lambda: _data(np.zeros((1, 8000, 2))))
    jax.eval_shape(row_moments.second_moments(1.0), many)
    wide = jax.eval_shape(lambda: _data(np.zeros((1, 8000, 70))))
    with pytest.raises(ValueError, match="at most 65536, got '8000 item slots of 70 columns'"):
        jax.eval_shape(row_moments.second_moments(1.0), wide)


def test_products_of_float32_matrices_are_hardly_negative():
    """The worst of what rounding can do is far within the room that the clip leaves."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(2, 600, 30)).astype(np.float32)
    rows[0, :, :15], rows[1, :, 15:] = 0.0, 0.0  # products of exactly zero, but for rounding
    rows += 1e-4 * rng.normal(size=rows.shape).astype(np.float32)
    total = jax.jit(row_moments.second_moments(1e-3, chunk_size=1))
    first, second = (np.asarray(total(_data(rows[u : u + 1])), np.float64) for u in (0, 1))
    assert first @ second >= -0.008 * np.linalg.norm(first) * np.linalg.norm(second)
    assert np.linalg.norm(first - second) <= 2**0.5 * 1e-3


def test_a_matrix_is_clipped_to_less_than_its_bound_by_the_room_for_rounding():
    data = UserData(Example(jnp.full((1, 3, 4), 1.0), jnp.zeros((1, 3))), None)
    total = row_moments.second_moments(0.5)(PREPARE(MODEL, data, 4))
    norm = np.linalg.norm(np.asarray(total, np.float64))
    assert 0.999 * (1 - 2**-7) * 0.5 <= norm <= (1 - 2**-7) * 0.5
