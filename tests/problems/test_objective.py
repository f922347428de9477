"""One-hot rows against the dense rows that they stand for."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses, objective
from dpsco_jax.problems.objective import Example, OneHot

DIM = 6
# Plain; repeated; padding below and above; far out of int8-like ranges; all padding.
ROWS = np.int32(
    [[0, 2, 5], [1, 1, 1], [-1, 3, 6], [2**31 - 1, -(2**31), 4], [-1, -1, 99], [4, 0, 4]]
)
MEANT = [{0, 2, 5}, {1}, {3}, {4}, set(), {4, 0}]


def dense(columns, bound):
    row = np.zeros(DIM, np.float32)
    row[list(columns)] = bound / np.sqrt(3)
    return row


@pytest.mark.parametrize("bound", [1.0, 2.5])
def test_rows_are_sets_of_columns(bound):
    params = jnp.arange(1.0, DIM + 1)
    margins = jax.vmap(lambda row: objective.margin(params, OneHot(row), bound))(jnp.asarray(ROWS))
    expected = np.stack([dense(columns, bound) for columns in MEANT]) @ np.asarray(params)
    np.testing.assert_allclose(margins, expected, rtol=1e-6)
    values = objective.row_values(OneHot(ROWS), DIM, bound)
    assert values.shape == ROWS.shape
    assert np.linalg.norm(values, axis=1).max() <= bound * (1 + 1e-6)


def test_gradient_touches_the_named_columns_only():
    loss = jax.jit(jax.grad(losses.logistic(1.0).loss))
    params = jnp.linspace(-1.0, 1.0, DIM)
    for row, meant in zip(ROWS, MEANT, strict=True):
        sparse = loss(params, Example(OneHot(jnp.asarray(row)), jnp.float32(1.0)))
        full = loss(params, Example(jnp.asarray(dense(meant, 1.0 - 1e-4)), jnp.float32(1.0)))
        np.testing.assert_allclose(sparse, full, rtol=1e-3)
        np.testing.assert_array_equal(np.flatnonzero(sparse), sorted(meant))


def test_dense_features_are_projected_onto_their_bound():
    params = jnp.ones(2)
    margin = jax.jit(lambda x: objective.margin(params, x, 2.0))
    np.testing.assert_allclose(margin(jnp.asarray([3e20, 4e20])), 2 * 1.4, rtol=1e-5)
    np.testing.assert_allclose(margin(jnp.asarray([0.3, 0.4])), 0.7, rtol=1e-6)
    assert float(margin(jnp.asarray([jnp.nan, 1.0]))) == 0.0


def test_regularizer_and_strong_convexity():
    target = losses.logistic(1.0, ridge=0.5)
    params = {"a": jnp.asarray([1.0, -2.0]), "b": jnp.asarray(3.0)}
    np.testing.assert_allclose(target.regularizer(params), 0.25 * 14.0)
    jax.tree.map(
        np.testing.assert_allclose,
        target.regularizer_gradient(params),
        jax.grad(target.regularizer)(params),
    )
    assert target.strong_convexity == 0.5
    assert losses.squared_distance(1.0, 1.0)._replace(ridge=0.5).strong_convexity == 1.5


@pytest.mark.parametrize("center", [(0.0, 0.0), (30.0, -40.0)])
def test_the_slope_bounds_loss_and_ridge_wherever_the_domain_lies(center):
    """The ridge is centred at the origin; its slope on a ball far away is not that of the ball's size."""
    domain = domains.ball(2.0, jnp.asarray(center))
    target = losses.logistic(1.0, domain=domain, ridge=0.5)
    outmost = domain.project(1e4 * jnp.asarray([0.6, -0.8]))
    item = Example(jnp.asarray([-0.6, 0.8]), jnp.float32(1.0))
    whole = jax.grad(lambda w: target.loss(w, item) + target.regularizer(w))(outmost)
    assert float(jnp.linalg.norm(whole)) <= target.slope
    assert target.slope <= 1.0 + 0.5 * max(4.0, 1.002 * (2.0 + math.hypot(*center)))
    assert target._replace(ridge=0.0).slope == 1.0
    assert target._replace(domain=domains.whole_space()).slope == math.inf


@pytest.mark.parametrize("dim", [44, 128, 300, 70_000])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32"])
def test_columns_of_every_dtype_are_those_of_int32(dtype, dim):
    """In uint8 a dimension of 300 reads as 44: neither the comparison nor padding may be made in it."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    columns = rng.integers(max(info.min, -5), min(info.max, dim + 5), (50, 16), endpoint=True)
    columns[0] = 5  # one column, repeated
    columns[1, :3] = info.max
    narrow = objective.column_indices(OneHot(columns.astype(dtype)), dim)
    # Padding is outside of [0, dim), and stays outside in a wider type.
    expected = np.where((columns >= 0) & (columns < dim), columns, dim)
    for row in expected:
        for place in range(1, len(row)):
            if row[place] in row[:place]:
                row[place] = dim
    np.testing.assert_array_equal(narrow, expected)
    values = objective.row_values(OneHot(columns.astype(dtype)), dim, 2.0)
    np.testing.assert_allclose(values, np.where(expected < dim, 0.5, 0.0), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "bool", "float16", "int32"])
@pytest.mark.parametrize(
    "make",
    [losses.logistic, losses.hinge, losses.huber, losses.absolute, losses.quantile],
)
def test_labels_of_every_dtype_are_those_of_float32(make, dtype):
    risk = make(2.0, level=0.3) if make is losses.quantile else make(2.0)
    params, features = jnp.array([0.3, -0.2]), jnp.array([1.0, 0.5])
    for label in (0, 1):
        wide, narrow = (
            risk.loss(params, Example(features, jnp.asarray(label, kind)))
            for kind in ("float32", dtype)
        )
        np.testing.assert_allclose(narrow, wide, rtol=1e-6)
