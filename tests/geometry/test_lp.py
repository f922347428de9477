"""ℓp and Schatten norms and their strongly convex functions, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import lp
from dpsco_jax.rates import norms as by_numbers
from tests.geometry.lp_points import (
    COLUMNS,
    INF,
    MATRICES,
    ROWS,
    SIZE,
    SPECIAL,
    dual,
    norm,
    pairs,
    values_of,
)

pytestmark = pytest.mark.usefixtures("float64")

EXPONENTS = [1.0, 1.05, 1.5, 2.0, 3.0, 8.0, INF]


@pytest.mark.parametrize("p", EXPONENTS)
def test_norms_and_what_attains_their_duals(p):
    np.testing.assert_allclose(
        jax.jit(jax.vmap(lambda x: lp.lp_norm({"a": x[:2], "b": x[2:]}, p)))(SPECIAL),
        norm(SPECIAL, p),
    )
    np.testing.assert_allclose(
        jax.jit(jax.vmap(lambda x: lp.schatten_norm(x, p)))(MATRICES), norm(values_of(MATRICES), p)
    )
    assert by_numbers.dual_exponent(p) == pytest.approx(dual(p))
    best = np.asarray(jax.jit(jax.vmap(lambda x: lp.attaining(x, p)))(SPECIAL))
    largest = norm(SPECIAL, dual(p))
    np.testing.assert_allclose(np.sum(best * SPECIAL, axis=1), largest, rtol=1e-12)
    np.testing.assert_allclose(norm(best, p), largest > 0, rtol=1e-12)
    best = np.asarray(jax.jit(jax.vmap(lambda x: lp.attaining_matrix(x, p)))(MATRICES))
    largest = norm(values_of(MATRICES), dual(p))
    np.testing.assert_allclose(np.sum(best * MATRICES, axis=(1, 2)), largest, rtol=1e-12)
    np.testing.assert_allclose(norm(values_of(best), p), largest > 0, rtol=1e-12)


@pytest.mark.parametrize("p", EXPONENTS)
def test_no_point_of_the_unit_ball_does_better(p):
    others = np.random.default_rng(1).standard_normal((2000, SIZE))
    others /= norm(others, p)[:, None]
    assert np.max(others @ SPECIAL.T - norm(SPECIAL, dual(p))) <= 1e-12


@pytest.mark.parametrize("q", EXPONENTS)
@pytest.mark.parametrize("p", EXPONENTS)
def test_ratios_of_norms_are_bounds_and_attained(p, q):
    known = by_numbers.norm_ratio(p, q, SIZE)
    points = SPECIAL[norm(SPECIAL, 2) > 0]
    ratios = norm(points, p) / norm(points, q)
    assert ratios.max() == pytest.approx(known, rel=1e-12)


@pytest.mark.parametrize("p", EXPONENTS)
def test_extreme_numbers_keep_their_norm_and_gradients_are_finite(p):
    with jax.enable_x64(False):
        for size in (1e-35, 1.0, 1e30):
            point = np.float32(size * np.array([3.0, -4.0, 0.0, 1.0]))
            found = float(lp.lp_norm(jnp.asarray(point), p))
            assert found == pytest.approx(size * norm(np.array([3.0, 4.0, 0.0, 1.0]), p), rel=1e-5)
    gradient = jax.jit(jax.vmap(jax.grad(lambda x: lp.lp_norm(x, p))))(SPECIAL)
    assert np.all(np.isfinite(gradient))
    assert not np.any(gradient[6])
    # A norm is its own derivative along its point: <∇‖x‖, x> = ‖x‖, and the gradient has dual norm 1.
    np.testing.assert_allclose(
        np.sum(np.asarray(gradient) * SPECIAL, axis=1), norm(SPECIAL, p), rtol=1e-9
    )
    np.testing.assert_allclose(norm(gradient, dual(p)), norm(SPECIAL, p) > 0, rtol=1e-9)
    spoiled = lp.lp_norm(jnp.asarray([np.nan, 1.0]), p)
    assert np.isnan(spoiled)


@pytest.mark.parametrize("dim", [1, 2, 5, 10, 100, 1000, 10**5])
@pytest.mark.parametrize("p", [1.0, 1.001, 1.1, 1.3, 1.7, 1.999, 2.0])
def test_the_exponent_is_the_best_of_all_that_are_legal(p, dim):
    def range_of(q):
        return dim ** (2 * (1 / p - 1 / q)) / (2 * (q - 1))

    legal = np.append(np.linspace(max(p, 1 + 1e-6), 2.0, 200_001), 2.0)
    found = by_numbers.best_exponent(p, dim)
    assert max(p, 1.0 + 1e-9) <= found <= 2.0
    least = range_of(legal).min()
    assert range_of(found) == pytest.approx(least, rel=1e-7)
    assert by_numbers.regularizer_range(p, dim, 3.0) == pytest.approx(9.0 * least, rel=1e-7)


def test_ranges_of_the_sheet_and_above_two():
    # R2: Θ/D² at p = 1, and the seed's q = 1 + 1/log d, legal for d ≥ 3 only.
    ours = {3: 1.50, 10: 4.64, 100: 11.1, 1000: 17.4, 10**5: 29.9}
    seed = {10: 8.51, 100: 17.0, 1000: 25.5, 10**5: 42.5}
    for dim, known in ours.items():
        assert by_numbers.regularizer_range(1.0, dim) == pytest.approx(known, rel=6e-3)
    for dim, known in seed.items():
        assert 0.5 * np.e**2 * np.log(dim) == pytest.approx(known, rel=2e-3)
        assert by_numbers.regularizer_range(1.0, dim) < known
    assert by_numbers.regularizer_range(4.0, 16) == pytest.approx(0.5 * 16**0.5)
    assert by_numbers.regularizer_range(INF, 16) == pytest.approx(0.5 * 16)
    # Continuous at 2.
    for dim in (1, 7, 50, 10**5):
        near = [by_numbers.regularizer_range(p, dim) for p in (2 - 1e-9, 2.0, 2 + 1e-9)]
        np.testing.assert_allclose(near, 0.5, rtol=1e-7)


def _bregman(r, first, second):
    values = jax.jit(jax.vmap(r.value))
    slope = np.asarray(jax.jit(jax.vmap(r.gradient))(first))
    inner = np.sum((slope * (second - first)).reshape(len(first), -1), axis=1)
    return np.asarray(values(second) - values(first)) - inner


@pytest.mark.parametrize("p", EXPONENTS)
def test_regularizers_are_strongly_convex_in_their_norm(p):
    r = lp.Regularizer(p, SIZE)
    first, second = pairs(SPECIAL)
    excess = _bregman(r, first, second) - 0.5 * norm(second - first, p) ** 2
    scale = 1e-12 * (1 + norm(first, 2) ** 2 + norm(second, 2) ** 2) * SIZE**2
    assert np.all(excess >= -scale)
    m = lp.SchattenRegularizer(p, ROWS, COLUMNS)
    first, second = pairs(MATRICES)
    excess = _bregman(m, first, second) - 0.5 * norm(values_of(second - first), p) ** 2
    assert np.all(excess >= -1e-11)


def test_strong_convexity_is_attained_where_the_proof_loses_nothing():
    # From equal entries along alternating signs Σ|x|^(p-2)h² = ‖x‖_p^(p-2)·‖h‖_p²: ‖h‖_p²/2 to second order.
    r, flat = lp.Regularizer(1.5, 100), np.ones(100)
    step = 1e-3 * np.tile([1.0, -1.0], 50)
    found = _bregman(r, flat[None], (flat + step)[None])
    np.testing.assert_allclose(found, 0.5 * norm(step, 1.5) ** 2, rtol=1e-5)
    assert found >= 0.5 * norm(step, 1.5) ** 2 * (1 - 1e-9)


@pytest.mark.parametrize("p", EXPONENTS)
def test_the_range_is_what_a_search_finds_and_no_more(p):
    r, radius = lp.Regularizer(p, 4), 1.7
    spread = SPECIAL[:, :4][np.abs(SPECIAL[:, :4]).max(axis=1) > 1e-9]
    points = np.concatenate(
        [spread, np.eye(4), np.ones((1, 4)), np.random.default_rng(2).standard_normal((2000, 4))]
    )
    points *= radius / norm(points, p)[:, None]
    values = np.asarray(jax.jit(jax.vmap(r.value))(points))
    assert values.max() == pytest.approx(r.range(radius), rel=1e-12)
    m = lp.SchattenRegularizer(p, 5, 2)
    flat = np.concatenate([np.eye(5, 2)[None], np.outer(np.eye(5)[0], [1.0, 0.0])[None]])
    flat = np.concatenate([flat, np.random.default_rng(3).standard_normal((50, 5, 2))])
    flat *= radius / norm(values_of(flat), p)[:, None, None]
    found = np.asarray(jax.jit(jax.vmap(m.value))(flat))
    assert found.max() == pytest.approx(m.range(radius), rel=1e-12)


@pytest.mark.parametrize("p", [1.0, 1.05, 1.5, 2.0, INF])
@pytest.mark.parametrize("dim", [4, 100])
def test_gradients_of_regularizers(p, dim):
    r = lp.Regularizer(p, dim)
    points = np.random.default_rng(4).standard_normal((5, dim))
    points[0, 1:] = 0.0
    center = np.random.default_rng(5).standard_normal(dim)
    found = np.asarray(jax.jit(jax.vmap(lambda x: r.gradient(x, center)))(points + center))
    np.testing.assert_allclose(
        found, jax.jit(jax.vmap(jax.grad(r.value)))(points), rtol=1e-9, atol=1e-12
    )
    # In NumPy: w·‖x‖^(2-q)·sign(x)|x|^(q-1).
    q = r.exponent
    direct = np.sign(points) * np.abs(points) ** (q - 1) * norm(points, q)[:, None] ** (2 - q)
    weight = dim ** (2 * max(1 / p - 1 / q, 0)) / (q - 1)
    np.testing.assert_allclose(found, weight * direct, rtol=1e-9, atol=1e-12)
    # Euler: a function of degree 2 has <∇r(x), x> = 2r(x).
    np.testing.assert_allclose(
        np.sum(found * points, axis=1), 2 * jax.jit(jax.vmap(r.value))(points), rtol=1e-10
    )


def test_gradients_at_the_center_and_of_matrices():
    r, m = lp.Regularizer(1.3, SIZE), lp.SchattenRegularizer(1.1, ROWS, COLUMNS)
    zero = np.zeros(SIZE)
    for gradient in (r.gradient, jax.grad(r.value)):
        np.testing.assert_array_equal(gradient(zero), zero)
    center = np.random.default_rng(6).standard_normal((ROWS, COLUMNS))
    np.testing.assert_allclose(m.gradient(center, center), 0.0, atol=0)
    gradient, both = jax.jit(m.gradient), jax.jit(jax.value_and_grad(m.value))
    for matrix in MATRICES[1:]:
        slope, (value, automatic) = gradient(center + matrix, center), both(matrix)
        np.testing.assert_allclose(np.sum(slope * matrix), 2 * value, rtol=1e-10)
        if np.linalg.matrix_rank(matrix) == COLUMNS:
            np.testing.assert_allclose(slope, automatic, rtol=1e-7, atol=1e-9)
    with jax.enable_x64(False):
        tree = {"a": jnp.ones(2, jnp.float16), "b": jnp.zeros((7,), jnp.float32)}
        slope = r.gradient(tree)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), slope) == jax.tree.map(
            lambda x: (x.shape, x.dtype), tree
        )
        tiny = r.gradient(jnp.full(SIZE, 1e-30))
        assert np.all(np.isfinite(tiny))
        assert np.all(np.asarray(tiny) > 0)


def test_at_two_it_is_the_euclidean_regularizer_to_the_last_place():
    r = lp.Regularizer(2.0, SIZE)
    assert (r.exponent, r.weight, r.range(1.5)) == (2.0, 1.0, 0.5 * 1.5**2)
    np.testing.assert_allclose(
        jax.vmap(r.value)(SPECIAL), 0.5 * np.sum(SPECIAL**2, axis=1), rtol=1e-15
    )
    np.testing.assert_allclose(jax.vmap(r.gradient)(SPECIAL), SPECIAL, rtol=4e-16)


def test_a_regularizer_is_a_static_argument():
    traces = []

    def value(r, point):
        traces.append(r)
        return r.value(point)

    compiled = jax.jit(value, static_argnums=0)
    for p in (1.2, 1.2, 1.7):
        compiled(lp.Regularizer(p, SIZE), SPECIAL[2])
    assert traces == [lp.Regularizer(1.2, SIZE), lp.Regularizer(1.7, SIZE)]


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="dim"):
        lp.Regularizer(1.5, 3).value(jnp.ones(4))
    with pytest.raises(ValueError, match="matrix"):
        lp.SchattenRegularizer(1.5, 3, 2).value(jnp.ones((2, 3)))
    for p in (0.5, 0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match=r"p must be in \[1, inf\]"):
            lp.Regularizer(p, 3)
