"""Projections by their defining properties, on trees of two leaves."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from dpsco_jax.geometry import domains

SIZE = 5


def tree_of(values):
    return {"a": values[:2], "b": values[2:]}


def flat(tree):
    return np.concatenate([np.asarray(tree["a"]), np.asarray(tree["b"])]).astype(np.float64)


LOWER = np.float32([-1.0, -2.0, 0.0, 0.5, -3.0])
UPPER = np.float32([1.0, -1.0, 0.0, 2.0, 4.0])
CENTER = np.float32([1.0, 0.0, -2.0, 0.5, 3.0])
CORNERS = np.eye(SIZE)
SETS = {
    "ball": (domains.ball(1.5), 1.5 * np.concatenate([CORNERS, -CORNERS])),
    "shifted ball": (
        domains.ball(0.5, tree_of(CENTER)),
        CENTER + 0.5 * np.concatenate([CORNERS, -CORNERS]),
    ),
    "box": (domains.box(tree_of(LOWER), tree_of(UPPER)), np.stack([LOWER, UPPER])),
    "simplex": (domains.simplex(2.0), 2.0 * CORNERS),
    "l1 ball": (domains.l1_ball(1.5), 1.5 * np.concatenate([CORNERS, -CORNERS])),
    "whole space": (domains.whole_space(), 1e3 * np.concatenate([CORNERS, -CORNERS])),
}
PROJECT = {
    name: jax.jit(lambda v, d=domain: d.project(tree_of(v))) for name, (domain, _) in SETS.items()
}
CONTAINS = {name: jax.jit(domain.contains) for name, (domain, _) in SETS.items()}
points = hnp.arrays(np.float32, SIZE, elements=st.floats(-100.0, 100.0, width=32))


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=100, deadline=None)
@given(points, points)
def test_projection_is_the_nearest_point(name, first, second):
    _, extreme = SETS[name]
    nearest = PROJECT[name](first)
    assert CONTAINS[name](nearest, 1e-4)
    image = flat(nearest)
    # Optimality: <z - Pz, y - Pz> <= 0 for all y in the set; extreme points and another projection.
    other = flat(PROJECT[name](second))
    members = np.concatenate([extreme, other[None]])
    inner = (members - image) @ (first - image)
    # Sums in float32 err in proportion to the points, and so does the inner product once more.
    # Those of the set count too: a ball around a distant centre has no small ones.
    size = np.linalg.norm(first) + np.linalg.norm(image), np.linalg.norm(second)
    assert inner.max() <= 2e-7 * (2.0 + size[0]) * (2.0 + size[0] + size[1])
    assert np.linalg.norm(image - other) <= np.linalg.norm(first - second) * (1 + 1e-5) + 1e-5
    again = flat(PROJECT[name](image.astype(np.float32)))
    np.testing.assert_allclose(again, image, atol=2e-5)


@pytest.mark.parametrize("name", SETS)
def test_points_of_the_set_stay(name):
    _, extreme = SETS[name]
    inner = extreme.mean(axis=0).astype(np.float32)
    assert CONTAINS[name](tree_of(inner), 1e-6)
    np.testing.assert_allclose(flat(PROJECT[name](inner)), inner, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in SETS if name != "whole space"])
def test_diameter_is_attained_and_membership_is_strict(name):
    domain, extreme = SETS[name]
    distances = np.linalg.norm(extreme[:, None] - extreme[None], axis=-1)
    np.testing.assert_allclose(domain.diameter, distances.max(), rtol=1e-6)
    assert isinstance(domain.diameter, float)
    outside = extreme[0] + 0.01 * (extreme[0] - extreme.mean(axis=0))
    assert not CONTAINS[name](tree_of(outside.astype(np.float32)), 1e-4)
    assert CONTAINS[name](tree_of(outside.astype(np.float32)), 0.1)


@pytest.mark.parametrize("name", [name for name in SETS if name != "whole space"])
def test_no_point_is_longer_than_the_norm_and_some_point_nearly_is(name):
    domain, extreme = SETS[name]
    # Where far points come to rest: along the axes, along the extreme points, at random.
    rng = np.random.default_rng(0)
    far = np.concatenate(
        [extreme, -extreme, rng.standard_normal((200, SIZE)), LOWER[None], CENTER[None]]
    )
    images = [flat(PROJECT[name](np.float32(1e3 * way / np.linalg.norm(way)))) for way in far]
    lengths = np.linalg.norm([*images, *extreme], axis=1)
    corner = np.where(np.abs(LOWER) > np.abs(UPPER), LOWER, UPPER)
    if name == "box":
        lengths = np.append(lengths, np.linalg.norm(corner))
    assert lengths.max() * (1 - 1e-6) <= domain.norm <= lengths.max() * 1.002


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6, 1e12])
def test_far_points_come_to_rest_on_the_l1_ball(size):
    """Against the threshold found by bisection in float64; float32 sums of far entries would lose it."""
    point = np.float32(size * np.random.default_rng(3).standard_normal(20))
    found = np.asarray(domains.l1_ball(1.5).project(jnp.asarray(point)), np.float64)
    lengths = np.abs(point.astype(np.float64))
    low, high = 0.0, lengths.max()
    for _ in range(200):
        middle = (low + high) / 2
        outside = np.maximum(lengths - middle, 0).sum() > 1.5
        low, high = (middle, high) if outside else (low, middle)
    np.testing.assert_allclose(found, np.sign(point) * np.maximum(lengths - high, 0), atol=1e-5)


def test_a_radius_is_known_of_balls_around_the_origin_alone():
    assert domains.ball(1.5).radius == 1.5
    others = [
        domains.ball(1.5, CENTER),
        domains.l1_ball(1.5),
        domains.simplex(),
        domains.whole_space(),
    ]
    assert all(other.radius is None for other in others)


def test_of_all_of_space_and_of_foreign_sets_no_norm_is_known():
    assert domains.whole_space().norm == np.inf
    assert domains.Domain(lambda w: w, 1.0, lambda w, tol: True).norm == np.inf


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_dtype_structure_and_nan(name, dtype):
    domain, _ = SETS[name]
    point = tree_of(jnp.asarray(CENTER, dtype))
    project = jax.jit(domain.project)
    nearest = project(point)
    assert jax.tree.map(lambda leaf: leaf.dtype, nearest) == {"a": dtype, "b": dtype}
    spoiled = tree_of(jnp.asarray(CENTER, dtype).at[0].set(jnp.nan))
    assert np.isnan(flat(project(spoiled))).any()


def test_far_points_and_batches():
    radius_one = domains.ball(1.0)
    far = np.float32([3e30, 4e30])
    batch = np.stack([far, np.zeros(2)])
    nearest = jax.jit(jax.vmap(radius_one.project))(batch)
    np.testing.assert_allclose(nearest, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
    np.testing.assert_array_equal(jax.jit(jax.jacobian(radius_one.project))(batch[1]), np.eye(2))


@pytest.mark.parametrize("factory", [domains.ball, domains.simplex, domains.l1_ball])
def test_radius_may_be_traced(factory):
    traces = []

    @jax.jit
    def project(point, radius):
        traces.append(1)
        domain = factory(radius)
        return domain.project(point), domain.diameter

    point = jnp.asarray([3.0, -1.0, 2.0])
    for radius in (0.5, 2.0):
        nearest, diameter = project(point, radius)
        np.testing.assert_allclose(nearest, factory(radius).project(point), rtol=1e-6)
        np.testing.assert_allclose(diameter, factory(radius).diameter, rtol=1e-6)
    assert len(traces) == 1


def test_bad_boxes_are_refused():
    with pytest.raises(ValueError, match="upper - lower"):
        domains.box(jnp.ones(2), jnp.asarray([2.0, 0.0]))
    with pytest.raises(ValueError, match="same shapes"):
        domains.box(jnp.zeros(2), jnp.ones(2)).project(jnp.zeros(3))
    with pytest.raises(ValueError, match="same shapes"):
        domains.box(0.0, 1.0).project(jnp.zeros(3))
