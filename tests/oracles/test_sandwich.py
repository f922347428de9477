"""Hessian and gradients of a sandwich: against NumPy, and the distance of two users' terms under attack."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.oracles import row_moments, sandwich
from dpsco_jax.oracles.preconditioned import TunedPoint
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData
from tests.oracles.linear_users import PREPARE

USERS, ITEMS, DIM = 9, 4, 3
MODEL = losses.logistic(feature_bound=5.0).linear_model
POINT = np.array([0.4, -1.0, 0.3])


def _prepared(rows, labels, mask=None):
    items = Example(jnp.asarray(np.float32(rows)), jnp.asarray(np.float32(labels)))
    return PREPARE(MODEL, UserData(items, mask), DIM)


@functools.cache
def _program(bound):
    return jax.jit(sandwich.sandwich_sums(MODEL, 0.25, bound, chunk_size=4))


def _sums(data, radius, bound=0.6, point=POINT):
    at = TunedPoint(jnp.asarray(np.float32(point)), jnp.log(jnp.float32(radius)))
    return _program(bound)(at, data)


@pytest.mark.parametrize("radius", [0.2, 10.0])
@pytest.mark.parametrize("bound", [0.1, 100.0])
def test_sums_are_those_by_hand(radius, bound):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(USERS, ITEMS, DIM))
    labels = rng.choice([-1.0, 1.0], (USERS, ITEMS))
    counts = rng.integers(0, ITEMS + 1, USERS)
    hessian, gradients = np.zeros((DIM, DIM)), np.zeros((DIM, DIM))
    for user, count in enumerate(counts):
        if count == 0:
            continue
        x, y = rows[user, :count], labels[user, :count]
        chance = 1 / (1 + np.exp(y * (x @ POINT)))
        g = np.mean(-(y * chance)[:, None] * x, axis=0)
        clip = min(1.0, radius / np.linalg.norm(g))
        h = clip * np.mean(
            [p * (1 - p) * np.outer(r, r) for p, r in zip(chance, x, strict=True)], 0
        )
        hessian += h * min(1.0, bound / np.trace(h))
        gradients += np.outer(clip * g, clip * g) / radius**2
    found = _sums(_prepared(rows, labels, np.arange(ITEMS) < counts[:, None]), radius, bound)
    for entries, expected in zip(found, (hessian, gradients), strict=True):
        matrix = row_moments.from_triangle(entries, DIM)
        np.testing.assert_allclose(matrix, expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("radius", [1e-30, 0.3, 1e30])
def test_no_pair_of_users_is_farther_apart_than_is_accounted(radius):
    """Rows along axes, opposite, tiny, huge, not finite: √2 times the bounds, and that is reached."""
    axes = np.concatenate([np.eye(DIM), -np.eye(DIM)])
    scales = [1e-20, 1.0, 4.9, 1e10, 3e38, np.nan, np.inf]
    with np.errstate(invalid="ignore"):
        rows = np.array([[s * axis] * 2 for s in scales for axis in axes])
    terms = [[], []]
    for row in rows:
        for kind, entries in zip(
            terms, _sums(_prepared(row[None], [[1.0, 1.0]]), radius), strict=True
        ):
            kind.append(np.asarray(entries, np.float64))
    reached = 0.0
    for kind, bound in zip(terms, (0.6, 1.0), strict=True):
        apart = np.linalg.norm(np.array(kind)[:, None] - np.array(kind)[None], axis=2)
        assert apart.max() <= 2**0.5 * bound  # false of NaN
        reached = max(reached, apart.max() / (2**0.5 * bound))
    if radius < 1:
        assert reached > 0.99


def test_one_hot_rows_are_refused():
    columns = OneHot(np.zeros((USERS, ITEMS, 2), np.int32))
    data = PREPARE(MODEL, UserData(Example(columns, jnp.zeros((USERS, ITEMS))), None), DIM)
    with pytest.raises(ValueError, match="dense rows"):
        _sums(data, 1.0)
