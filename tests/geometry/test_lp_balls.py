"""Balls of ℓp and Schatten norms: projections against bisections in NumPy and conditions of optimality."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from dpsco_jax.geometry import domains, lp_balls
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
    first, second = pairs(np.concatenate([FAR[::3], found[::4]]))
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
            *(jax.jit(jax.vmap(ball.project))(points) for ball in (found, known))
        )
    cube = lp_balls.lp_ball(1.5, INF, SIZE)
    domains.require_proven_moves("domain", cube)
    at = jnp.clip(points[0], -1.5, 1.5)
    np.testing.assert_allclose(
        cube.moves(at)(jnp.asarray(points[1])), np.clip(at + points[1], -1.5, 1.5) - at
    )
    for foreign in (lp_balls.lp_ball(1.5, 1.5, SIZE), lp_balls.schatten_ball(1.0, 1, 2, 2)):
        with pytest.raises(ValueError, match="domain"):
            domains.proven_diameter(foreign)
        with pytest.raises(ValueError, match="domain"):
            domains.require_proven_moves("domain", foreign)


@pytest.mark.parametrize("p", [1.5, 3.0, INF])
def test_thresholding_then_projecting_minimizes_over_the_ball(p):
    ball, weight = lp_balls.lp_ball(1.0, p, 3), 0.4
    assert ball.thresholds
    far = np.random.default_rng(1).standard_normal((4000, 3))
    members = (
        far
        / np.maximum(norm(far, p), 1.0)[:, None]
        * np.random.default_rng(2).uniform(0, 1, (4000, 1))
    )
    for point in 2.0 * np.random.default_rng(3).standard_normal((5, 3)):
        soft = np.sign(point) * np.maximum(np.abs(point) - weight, 0)
        found = np.asarray(ball.project(jnp.asarray(soft)))

        def value(w, z=point):
            return weight * norm(w, 1) + 0.5 * np.sum((w - z) ** 2, axis=-1)

        near = found + 0.05 * np.random.default_rng(4).standard_normal((4000, 3))
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
    spoiled = np.where(np.eye(ROWS, COLUMNS) > 0, np.nan, 1.0)
    assert np.isnan(ball.project(jnp.asarray(spoiled))).any()
    assert not ball.contains(spoiled, 1.0)
    if p != 2.0:
        assert not ball.thresholds
        with pytest.raises(ValueError, match="point"):
            ball.project(jnp.ones(ROWS * COLUMNS))
        with pytest.raises(ValueError, match="point"):
            ball.contains(jnp.ones((COLUMNS, ROWS)), 0.0)


def test_points_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="dim"):
        lp_balls.lp_ball(1.0, 1.5, 3).project(jnp.ones(4))
