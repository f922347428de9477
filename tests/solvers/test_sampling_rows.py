"""Rows on grids: sums of exact fractions, which no order of additions can change."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import _rows, proximal_oracle

pytestmark = pytest.mark.usefixtures("float64")

MODEL = losses.logistic(3.0).linear_model
USERS, SLOTS, DIM = 40, 3, 5
PREPARED = jax.jit(lambda data: _rows.prepare(MODEL, data, DIM))
MARGINS = jax.jit(_rows.margins)
TOTAL = jax.jit(_rows.total, static_argnums=2)


def made(seed=0, mask=None):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((USERS, SLOTS, DIM)) * 4.0
    labels = rng.integers(0, 2, (USERS, SLOTS)).astype(float)
    return UserData(Example(features, labels), mask)


def exact(row, point):
    return sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(row, point, strict=True))


def test_rows_are_on_the_grid_and_within_the_bound():
    rows = PREPARED(made())
    unit = _rows.feature_unit(3.0)
    assert unit == 2.0**-18
    found = np.asarray(rows.features)
    np.testing.assert_array_equal(found / unit, np.round(found / unit))
    squares = [sum(Fraction(float(a)) ** 2 for a in row) for row in found]
    assert max(squares) <= 9
    # Towards zero, by less than a unit.
    plain = np.asarray(made().items.features).reshape(-1, DIM)
    norms = np.linalg.norm(plain, axis=1, keepdims=True)
    bounded = plain * np.minimum(1.0, 3.0 / norms)
    assert np.all(np.abs(found) <= np.abs(bounded))
    np.testing.assert_allclose(found, bounded, rtol=0, atol=1.001 * unit)


def test_weights_are_shares_of_users_and_bad_items_have_none():
    mask = np.ones((USERS, SLOTS), bool)
    mask[0] = [True, False, False]
    mask[1] = False
    data = made(mask=mask)
    features, labels = data.items
    labels[2, 1], features[3, 0, 0] = np.nan, np.inf
    rows = PREPARED(UserData(Example(features, labels), data.mask))
    weights = np.asarray(rows.weights).reshape(USERS, SLOTS)
    np.testing.assert_allclose(weights[:3], [[1, 0, 0], [0, 0, 0], [1 / 3, 0, 1 / 3]])
    assert np.all(np.isfinite(rows.labels))
    np.testing.assert_array_equal(np.asarray(rows.features).reshape(USERS, SLOTS, DIM)[3, 0], 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_margins_of_points_on_a_grid_are_exact(seed):
    rows = PREPARED(made(seed))
    rng = np.random.default_rng(seed)
    unit = 2.0**-26  # with rows of 2^20 units and points of 2^32: below 2^53
    points = np.round(rng.standard_normal((DIM, 2)) * 40 / unit) * unit
    for point in points.T:
        found = np.asarray(MARGINS(rows, point))
        for row, margin in zip(np.asarray(rows.features), found, strict=True):
            assert Fraction(float(margin)) == exact(row, point)


def test_totals_of_coefficients_on_their_grid_are_exact():
    rows = PREPARED(made())
    unit = _rows.slope_unit(1.0, USERS * SLOTS)
    assert unit == 2.0 ** -(53 - 20 - 7)
    coefficients = (
        np.round(np.random.default_rng(1).uniform(-1, 1, (1, USERS * SLOTS)) / unit) * unit
    )
    found = np.asarray(TOTAL(rows, coefficients, DIM))[0]
    for column in range(DIM):
        true = exact(coefficients[0], np.asarray(rows.features)[:, column])
        assert Fraction(float(found[column])) == true


def test_one_hot_rows_are_the_same_rows():
    rng = np.random.default_rng(3)
    columns = rng.integers(-1, DIM + 2, (USERS, SLOTS, 3)).astype(
        np.int32
    )  # padding and repetitions
    labels = np.zeros((USERS, SLOTS))
    sparse = PREPARED(UserData(Example(OneHot(columns), labels)))
    dense = np.zeros((USERS * SLOTS, DIM))
    for row, named in zip(dense, columns.reshape(-1, 3), strict=True):
        row[[c for c in set(named.tolist()) if 0 <= c < DIM]] = 3.0 / math.sqrt(3.0)
    full = PREPARED(UserData(Example(dense.reshape(USERS, SLOTS, DIM), labels)))
    point = np.round(rng.standard_normal(DIM) * 2**20) * 2.0**-20
    np.testing.assert_array_equal(MARGINS(sparse, point), MARGINS(full, point))
    coefficients = np.round(rng.uniform(-1, 1, (2, USERS * SLOTS)) * 2**20) * 2.0**-20
    np.testing.assert_array_equal(TOTAL(sparse, coefficients, DIM), TOTAL(full, coefficients, DIM))


@pytest.mark.parametrize("value", [1.0, 0.75, 2.0**-40, 3e-9, 1.999999, 1e10])
def test_powers_of_two(value):
    for found in (_rows.power_below(value), jax.jit(_rows.power_below)(jnp.asarray(value))):
        assert math.frexp(float(found))[0] == 0.5
        assert float(found) <= value < 2.0 * float(found)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e-3])
def test_the_exponent_is_summed_to_one_rounding(scale):
    terms = np.abs(np.random.default_rng(4).standard_normal(200_000)) * scale
    found = float(jax.jit(proximal_oracle._exact_sum)(jnp.asarray(terms)))
    true = math.fsum(terms)
    assert abs(found - true) <= 2.0**-52 * true + 2.0**-70
