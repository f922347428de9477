"""ℓp and Schatten norms, their strongly convex functions and their balls, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from dpsco_jax.geometry import domains, lp, lp_balls
from dpsco_jax.rates import norms as by_numbers

INF = np.inf
EXPONENTS = [1.0, 1.05, 1.5, 2.0, 3.0, 8.0, INF]
RNG = np.random.default_rng(0)
SIZE = 9
ROWS, COLUMNS = 4, 3

# Points on which norms differ most and least: sparse, of equal entries, far apart in size, at random.
SPECIAL = np.stack(
    [
        np.eye(SIZE)[0],
        -3.0 * np.eye(SIZE)[4],
        np.ones(SIZE),
        np.array([1.0, -1.0] * 4 + [1.0]),
        10.0 ** -np.arange(SIZE),
        np.array([5.0, 5.0, 5.0, 0, 0, 0, 0, 0, 1e-3]),
        np.zeros(SIZE),
        *RNG.standard_normal((6, SIZE)),
        *RNG.standard_t(1.5, (6, SIZE)),
    ]
)
MATRICES = np.stack(
    [
        np.zeros((ROWS, COLUMNS)),
        np.eye(ROWS, COLUMNS),
        np.ones((ROWS, COLUMNS)),
        np.outer(np.arange(ROWS), [1.0, 0.0, -2.0]),
        *RNG.standard_normal((5, ROWS, COLUMNS)),
    ]
)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def norm(points, p):
    """‖x‖_p along the last axis."""
    largest = np.maximum(np.abs(points).max(axis=-1), 1e-300)
    return largest * np.linalg.norm(points / largest[..., None], p, axis=-1)


def values_of(matrices):
    return np.linalg.svd(matrices, compute_uv=False)


def dual(p):
    return {1.0: INF, INF: 1.0}.get(p) or p / (p - 1)


@pytest.mark.parametrize("p", EXPONENTS)
def test_norms_and_what_attains_their_duals(p):
    np.testing.assert_allclose(
        jax.vmap(lambda x: lp.lp_norm({"a": x[:2], "b": x[2:]}, p))(SPECIAL), norm(SPECIAL, p)
    )
    np.testing.assert_allclose(
        jax.vmap(lambda x: lp.schatten_norm(x, p))(MATRICES), norm(values_of(MATRICES), p)
    )
    assert by_numbers.dual_exponent(p) == pytest.approx(dual(p))
    best = np.asarray(jax.vmap(lambda x: lp.attaining(x, p))(SPECIAL))
    largest = norm(SPECIAL, dual(p))
    np.testing.assert_allclose(np.sum(best * SPECIAL, axis=1), largest, rtol=1e-12)
    np.testing.assert_allclose(norm(best, p), largest > 0, rtol=1e-12)
    best = np.asarray(jax.vmap(lambda x: lp.attaining_matrix(x, p))(MATRICES))
    largest = norm(values_of(MATRICES), dual(p))
    np.testing.assert_allclose(np.sum(best * MATRICES, axis=(1, 2)), largest, rtol=1e-12)
    np.testing.assert_allclose(norm(values_of(best), p), largest > 0, rtol=1e-12)


@pytest.mark.parametrize("p", EXPONENTS)
def test_no_point_of_the_unit_ball_does_better(p):
    others = RNG.standard_normal((2000, SIZE))
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
    gradient = jax.vmap(jax.grad(lambda x: lp.lp_norm(x, p)))(SPECIAL)
    assert np.all(np.isfinite(gradient))
    assert not np.any(gradient[6])
    # A norm is its own derivative along its point: <∇‖x‖, x> = ‖x‖, and the gradient has dual norm 1.
    np.testing.assert_allclose(np.sum(gradient * SPECIAL, axis=1), norm(SPECIAL, p), rtol=1e-9)
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


def _pairs(points):
    first = np.repeat(points, len(points), axis=0)
    return first, np.tile(points, (len(points), *[1] * (points.ndim - 1)))


def _bregman(r, first, second):
    values = jax.vmap(r.value)
    slope = np.asarray(jax.vmap(r.gradient)(first))
    inner = np.sum((slope * (second - first)).reshape(len(first), -1), axis=1)
    return np.asarray(values(second) - values(first)) - inner


@pytest.mark.parametrize("p", EXPONENTS)
def test_regularizers_are_strongly_convex_in_their_norm(p):
    r = lp.Regularizer(p, SIZE)
    first, second = _pairs(SPECIAL)
    excess = _bregman(r, first, second) - 0.5 * norm(second - first, p) ** 2
    scale = 1e-12 * (1 + norm(first, 2) ** 2 + norm(second, 2) ** 2) * SIZE**2
    assert np.all(excess >= -scale)
    m = lp.SchattenRegularizer(p, ROWS, COLUMNS)
    first, second = _pairs(MATRICES)
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
    points = np.concatenate([spread, np.eye(4), np.ones((1, 4)), RNG.standard_normal((2000, 4))])
    points *= radius / norm(points, p)[:, None]
    values = np.asarray(jax.vmap(r.value)(points))
    assert values.max() == pytest.approx(r.range(radius), rel=1e-12)
    m = lp.SchattenRegularizer(p, 5, 2)
    flat = np.concatenate([np.eye(5, 2)[None], np.outer(np.eye(5)[0], [1.0, 0.0])[None]])
    flat = np.concatenate([flat, RNG.standard_normal((50, 5, 2))])
    flat *= radius / norm(values_of(flat), p)[:, None, None]
    found = np.asarray(jax.vmap(m.value)(flat))
    assert found.max() == pytest.approx(m.range(radius), rel=1e-12)


@pytest.mark.parametrize("p", [1.0, 1.05, 1.5, 2.0, INF])
@pytest.mark.parametrize("dim", [4, 100])
def test_gradients_of_regularizers(p, dim):
    r = lp.Regularizer(p, dim)
    points = RNG.standard_normal((5, dim))
    points[0, 1:] = 0.0
    center = RNG.standard_normal(dim)
    found = np.asarray(jax.vmap(lambda x: r.gradient(x, center))(points + center))
    np.testing.assert_allclose(found, jax.vmap(jax.grad(r.value))(points), rtol=1e-9, atol=1e-12)
    # In NumPy: w·‖x‖^(2-q)·sign(x)|x|^(q-1).
    q = r.exponent
    direct = np.sign(points) * np.abs(points) ** (q - 1) * norm(points, q)[:, None] ** (2 - q)
    weight = dim ** (2 * max(1 / p - 1 / q, 0)) / (q - 1)
    np.testing.assert_allclose(found, weight * direct, rtol=1e-9, atol=1e-12)
    # Euler: a function of degree 2 has <∇r(x), x> = 2r(x).
    np.testing.assert_allclose(
        np.sum(found * points, axis=1), 2 * jax.vmap(r.value)(points), rtol=1e-10
    )


def test_gradients_at_the_center_and_of_matrices():
    r, m = lp.Regularizer(1.3, SIZE), lp.SchattenRegularizer(1.1, ROWS, COLUMNS)
    zero = np.zeros(SIZE)
    for gradient in (r.gradient, jax.grad(r.value)):
        np.testing.assert_array_equal(gradient(zero), zero)
    center = RNG.standard_normal((ROWS, COLUMNS))
    np.testing.assert_allclose(m.gradient(center, center), 0.0, atol=0)
    for matrix in MATRICES[1:]:
        slope = m.gradient(center + matrix, center)
        np.testing.assert_allclose(np.sum(slope * matrix), 2 * m.value(matrix), rtol=1e-10)
        if np.linalg.matrix_rank(matrix) == COLUMNS:
            np.testing.assert_allclose(slope, jax.grad(m.value)(matrix), rtol=1e-7, atol=1e-9)
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


FAR = np.concatenate([4.0 * SPECIAL, SPECIAL, 0.1 * SPECIAL, 1e6 * SPECIAL[-3:]])
BALLS = [1.0, 1.01, 1.2, 1.5, 2.0, 2.5, 4.0, 30.0, INF]


def _nearest(points, radius, p):
    """Projections by nested bisections on λ and on each w, w + λw^(p-1) = |z|, in NumPy."""
    sizes = np.abs(points) / radius

    def shrunk(multiplier):
        low, high = np.zeros_like(sizes), sizes.copy()
        for _ in range(80):
            middle = (low + high) / 2
            with np.errstate(over="ignore"):
                above = middle + multiplier[:, None] * middle ** (p - 1) > sizes
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return low

    low, high = np.zeros(len(points)), norm(sizes, 1)
    for _ in range(110):
        middle = (low + high) / 2
        outside = norm(shrunk(middle), p) > 1
        low, high = np.where(outside, middle, low), np.where(outside, high, middle)
    moved = np.sign(points) * radius * shrunk(high)
    return np.where(norm(sizes, p)[:, None] <= 1, points, moved)


@pytest.mark.parametrize("p", [p for p in BALLS if 1 < p < INF])
def test_projection_against_bisections_in_numpy(p):
    ball = lp_balls.lp_ball(1.5, p, SIZE)
    found = np.asarray(jax.jit(jax.vmap(ball.project))(FAR))
    known = _nearest(FAR, 1.5, p)
    np.testing.assert_allclose(found, known, rtol=0, atol=1e-12 if p > 1.1 else 1e-10)


@pytest.mark.parametrize("p", BALLS)
def test_projection_is_the_nearest_point(p):
    ball = lp_balls.lp_ball(1.5, p, SIZE)
    found = np.asarray(jax.jit(jax.vmap(ball.project))(FAR))
    inside = norm(FAR, p) <= 1.5
    np.testing.assert_array_equal(found[inside], FAR[inside])
    assert norm(found, p).max() <= 1.5 * (1 + 1e-12)
    assert norm(found[~inside], p).min() >= 1.5 * (1 - 1e-12)
    # Optimality: over the ball <z - Pz, y> is largest at Pz, where it is R times the dual norm of z - Pz.
    away = (FAR - found)[~inside]
    support = 1.5 * norm(away, dual(p))
    size = norm(FAR, 2)[~inside]
    assert np.all(np.abs(np.sum(away * found[~inside], axis=1) - support) <= 1e-10 * size)
    # No two points are brought further apart.
    first, second = _pairs(np.concatenate([FAR[::3], found[::4]]))
    apart = norm(first - second, 2)
    images = np.asarray(jax.jit(jax.vmap(ball.project))(np.concatenate([first, second])))
    images = images[: len(first)] - images[len(first) :]
    assert np.all(norm(images, 2) <= apart * (1 + 1e-12) + 1e-13)


def test_projection_by_a_general_solver():
    for p in (1.3, 3.0):
        for point in FAR[7:10]:
            best = scipy.optimize.minimize(
                lambda w, z=point: np.sum((w - z) ** 2),
                0.1 * point,
                constraints=[{"type": "ineq", "fun": lambda w, p=p: 1 - np.sum(np.abs(w) ** p)}],
                method="SLSQP",
                options={"ftol": 1e-14, "maxiter": 500},
            )
            found = lp_balls.lp_ball(1.0, p, SIZE).project(jnp.asarray(point))
            np.testing.assert_allclose(found, best.x, atol=2e-6)


@pytest.mark.parametrize("p", [1.001, 1.5, 3.0, 1000.0])
def test_projection_in_float32_far_out_batched_and_of_trees(p):
    with jax.enable_x64(False):
        points = np.float32(
            np.concatenate([SPECIAL[:5], 1e20 * SPECIAL[-2:], 1e-20 * SPECIAL[-2:]])
        )
        ball = lp_balls.lp_ball(0.5, p, SIZE)
        found = np.asarray(jax.jit(jax.vmap(ball.project))(points), np.float64)
        assert np.all(norm(found, p) <= 0.5 * (1 + 1e-5))
        known = _nearest(np.float64(points[:5]), 0.5, p)
        np.testing.assert_allclose(found[:5], known, atol=2e-6 if p > 1.01 else 3e-4)
        tree = {"a": jnp.ones((2, 2), jnp.float16), "b": jnp.full(5, 2.0)}
        moved = jax.jit(ball.project)(tree)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), moved) == jax.tree.map(
            lambda x: (x.shape, x.dtype), tree
        )
        assert ball.contains(moved, 1e-3)
        spoiled = ball.project(jnp.asarray([np.nan] + [1.0] * (SIZE - 1)))
        assert np.isnan(spoiled).any()


@pytest.mark.parametrize("p", BALLS)
def test_diameter_norm_and_membership(p):
    ball = lp_balls.lp_ball(2.0, p, SIZE)
    extreme = np.concatenate([np.eye(SIZE), np.ones((1, SIZE))])
    extreme *= 2.0 / norm(extreme, p)[:, None]
    assert ball.norm == pytest.approx(norm(extreme, 2).max(), rel=1e-12)
    assert ball.diameter == pytest.approx(2 * norm(extreme, 2).max(), rel=1e-12)
    for point in extreme:
        assert ball.contains(point, 1e-9)
        assert not ball.contains(1.01 * point, 1e-9)
        assert ball.contains(1.01 * point, 0.021)
    assert not ball.contains(np.full(SIZE, np.nan), 1.0)
    radius_traced = jax.jit(lambda x, r: lp_balls.lp_ball(r, p, SIZE).project(x))
    np.testing.assert_allclose(radius_traced(FAR[0], 2.0), ball.project(jnp.asarray(FAR[0])))


def test_which_balls_are_those_of_the_domains():
    points = 3.0 * SPECIAL[-4:]
    for p, known in ((1, domains.l1_ball(1.5)), (2, domains.ball(1.5))):
        found = lp_balls.lp_ball(1.5, p, SIZE)
        assert domains.proven_diameter(found) == known.diameter
        np.testing.assert_array_equal(
            jax.vmap(found.project)(points), jax.vmap(known.project)(points)
        )
    cube = lp_balls.lp_ball(1.5, INF, SIZE)
    domains.require_proven_moves("domain", cube)
    at = np.clip(points[0], -1.5, 1.5)
    np.testing.assert_allclose(cube.moves(at)(points[1]), np.clip(at + points[1], -1.5, 1.5) - at)
    for foreign in (lp_balls.lp_ball(1.5, 1.5, SIZE), lp_balls.schatten_ball(1.0, 1, 2, 2)):
        with pytest.raises(ValueError, match="domain"):
            domains.proven_diameter(foreign)
        with pytest.raises(ValueError, match="domain"):
            domains.require_proven_moves("domain", foreign)


@pytest.mark.parametrize("p", [1.5, 3.0, INF])
def test_thresholding_then_projecting_minimizes_over_the_ball(p):
    ball, weight = lp_balls.lp_ball(1.0, p, 3), 0.4
    assert ball.thresholds
    far = RNG.standard_normal((4000, 3))
    members = far / np.maximum(norm(far, p), 1.0)[:, None] * RNG.uniform(0, 1, (4000, 1))
    for point in 2.0 * RNG.standard_normal((5, 3)):
        soft = np.sign(point) * np.maximum(np.abs(point) - weight, 0)
        found = np.asarray(ball.project(jnp.asarray(soft)))

        def value(w, z=point):
            return weight * norm(w, 1) + 0.5 * np.sum((w - z) ** 2, axis=-1)

        near = found + 0.05 * RNG.standard_normal((4000, 3))
        near /= np.maximum(norm(near, p), 1.0)[:, None]
        assert min(value(members).min(), value(near).min()) >= value(found) - 1e-12


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 4.0, INF])
def test_balls_of_schatten_norms(p):
    ball = lp_balls.schatten_ball(1.2, p, ROWS, COLUMNS)
    found = np.asarray(jax.jit(jax.vmap(ball.project))(MATRICES))
    inside = norm(values_of(MATRICES), p) <= 1.2
    np.testing.assert_array_equal(found[inside], MATRICES[inside])
    values = norm(values_of(found), p)
    np.testing.assert_allclose(values[~inside], 1.2, rtol=1e-10)
    away = MATRICES - found
    support = 1.2 * norm(values_of(away), dual(p))
    np.testing.assert_allclose(np.sum(away * found, axis=(1, 2)), support, atol=1e-9)
    farthest = 1.2 * max(1.0, COLUMNS ** (0.5 - 1 / p))
    assert ball.norm == pytest.approx(farthest)
    assert ball.diameter == pytest.approx(2 * farthest)
    assert bool(ball.contains(found[-1], 1e-9))
    assert not ball.contains(1.01 * found[-1] / values[-1] * 1.2, 1e-9)
    if p != 2.0:
        assert not ball.thresholds
        with pytest.raises(ValueError, match="point"):
            ball.project(jnp.ones(ROWS * COLUMNS))
        with pytest.raises(ValueError, match="point"):
            ball.contains(jnp.ones((COLUMNS, ROWS)), 0.0)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="dim"):
        lp_balls.lp_ball(1.0, 1.5, 3).project(jnp.ones(4))
    with pytest.raises(ValueError, match="dim"):
        lp.Regularizer(1.5, 3).value(jnp.ones(4))
    with pytest.raises(ValueError, match="matrix"):
        lp.SchattenRegularizer(1.5, 3, 2).value(jnp.ones((2, 3)))
    for p in (0.5, 0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match=r"p must be in \[1, inf\]"):
            lp.Regularizer(p, 3)
