"""The projection onto two balls satisfies its optimality conditions in every branch."""

import jax
import numpy as np
import pytest
from scipy.optimize import nnls

from dpsco_jax.geometry import domains
from dpsco_jax.geometry.two_balls import cut_with_ball, project_two_balls, two_balls

PAIRS, DIM = 10_000, 3

project_all = jax.jit(jax.vmap(project_two_balls))


def cases(seed, dtype):
    """Random balls that meet (also nested, nearly tangent, concentric) and random points."""
    rng = np.random.default_rng(seed)
    radius_a = rng.uniform(0.3, 2.0, PAIRS)
    radius_b = radius_a * 10.0 ** rng.uniform(-2, 0.3, PAIRS)
    direction = rng.normal(size=(PAIRS, DIM))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    between = rng.uniform(0, 1, PAIRS) * 0.999 * (radius_a + radius_b)
    between[: PAIRS // 20] = 0.0
    near = slice(PAIRS // 20, PAIRS // 5)
    between[near] = radius_a[near] + radius_b[near] * rng.uniform(-0.9, 0.9, PAIRS)[near]
    center_a = rng.normal(size=(PAIRS, DIM))
    center_b = center_a + between[:, None] * direction
    scale = 10.0 ** rng.uniform(-1, 1, (PAIRS, 1))
    points = center_b + scale * radius_b[:, None] * rng.normal(size=(PAIRS, DIM))
    arrays = points, center_a, radius_a, center_b, radius_b
    return [np.asarray(x, dtype) for x in arrays]


def kkt_residual(z, x, a, big, b, small):
    """Distance of z - x from the cone of outward normals of the balls whose boundary x touches."""
    worst = []
    for row in zip(z, x, a, big, b, small, strict=True):
        zi, xi, ai, ri, bi, si = (np.asarray(v, np.float64) for v in row)
        slack = 1e-5 * si
        normals = [
            (xi - c) / r for c, r in ((ai, ri), (bi, si)) if r - np.linalg.norm(xi - c) < slack
        ]
        if not normals:
            worst.append(np.linalg.norm(zi - xi) / si)
            continue
        worst.append(nnls(np.stack(normals, 1), zi - xi)[1] / si)
    return np.asarray(worst)


def test_optimality_conditions_hold_in_double_precision():
    z, a, big, b, small = cases(0, np.float64)
    with jax.enable_x64(True):
        x = np.asarray(project_all(z, a, big, b, small))
    for center, radius in ((a, big), (b, small)):
        outside = np.linalg.norm(x - center, axis=1) - radius
        assert np.max(outside / small) < 1e-12
    branch = np.stack(
        [np.linalg.norm(x - c, axis=1) > 0.999999 * r for c, r in ((a, big), (b, small))]
    )
    counts = [np.sum((branch[0] == i) & (branch[1] == j)) for i in (0, 1) for j in (0, 1)]
    assert min(counts) > 100  # every branch is taken
    first = slice(0, 3000)
    residual = kkt_residual(*(np.asarray(v)[first] for v in (z, x, a, big, b, small)))
    assert np.max(residual) < 1e-6


def test_single_precision_is_as_good_as_its_input():
    rounded = cases(1, np.float32)
    exact = [np.float64(x) for x in rounded]
    with jax.enable_x64(True):
        truth = np.asarray(project_all(*exact))
    single = np.asarray(project_all(*rounded))
    assert single.dtype == np.float32
    error = np.linalg.norm(single - truth, axis=1) / exact[4]
    assert np.quantile(error, 0.999) < 1e-3
    assert np.max(error) < 0.05


def test_projection_is_idempotent_and_nonexpansive():
    z, *balls = cases(2, np.float32)
    other = z + np.random.default_rng(3).normal(size=z.shape).astype(np.float32) * balls[3][:, None]
    x, y = np.asarray(project_all(z, *balls)), np.asarray(project_all(other, *balls))
    scale = np.linalg.norm(balls[0], axis=1) + np.linalg.norm(z, axis=1) + balls[1]
    again = np.asarray(project_all(x, *balls))
    assert np.max(np.linalg.norm(again - x, axis=1) / scale) < 2e-6
    moved = np.linalg.norm(x - y, axis=1) - np.linalg.norm(z - other, axis=1)
    assert np.max(moved / scale) < 2e-6


def test_a_point_in_both_balls_stays_bit_for_bit_and_not_a_number_is_seen():
    z, *balls = cases(4, np.float32)
    z[::2] = balls[2][::2]  # the center of the second ball
    z[1::2, 1] = np.nan
    x = np.asarray(project_all(z, *balls))
    inside = np.linalg.norm(z - balls[0], axis=1) <= 0.999 * balls[1]
    assert np.sum(inside) > 1000
    assert np.array_equal(x[inside], z[inside])
    assert np.all(np.isnan(x[1::2]))


@pytest.mark.parametrize(
    ("between", "radii", "diameter"),
    [
        (0.0, (2.0, 1.0), 2.0),  # nested
        (1.5, (2.0, 1.0), 2.0),  # the edge lies beyond the smaller ball's centre
        (2.4, (2.0, 1.0), 2 * np.sqrt(4 - ((4 - 1 + 2.4**2) / 4.8) ** 2)),  # a lens
        (1.0, (1.0, 1.0), np.sqrt(3.0)),
    ],
)
def test_domain_knows_its_diameter_and_members(between, radii, diameter):
    domain = two_balls(np.zeros(2), radii[0], np.asarray([between, 0.0]), radii[1])
    np.testing.assert_allclose(domain.diameter, diameter, rtol=1e-6)
    far = domain.project(np.asarray([[50.0, 1.0], [between, 9.0]][radii[0] == 1.0]))
    assert domain.contains(far, 1e-6)
    assert not domain.contains(far + np.asarray([0.0, 3.0]), 1e-6)


CUT = {
    "ball": domains.ball(1.5),
    "ball, off the origin": domains.ball(1.5, np.float32([0.4, 0.0, 0.1])),
    "box": domains.box(-np.ones(3, np.float32), np.float32([1.0, 0.4, 1.0])),
    "simplex": domains.simplex(1.0),
    "l1_ball": domains.l1_ball(1.0),
    "whole space": domains.whole_space(),
}


@pytest.mark.parametrize("name", CUT)
def test_a_domain_is_cut_with_a_ball(name):
    """x is nearest to z if ⟨z - x, y - x⟩ <= 0 for all y of the intersection."""
    domain, rng = CUT[name], np.random.default_rng(0)
    projected = jax.jit(
        jax.vmap(lambda z, c, r: cut_with_ball(domain, c, r).project(z), (0, None, None))
    )
    onto = jax.jit(jax.vmap(domain.project))
    center = domain.project(np.float32([0.2, 0.3, 0.4]))
    for radius in (0.1, 0.5, 20.0):
        z = np.float32(rng.normal(size=(200, 3)) * 10.0 ** rng.uniform(-2, 1, (200, 1)))
        x = np.asarray(projected(z, center, np.float32(radius)), np.float64)
        assert np.max(np.linalg.norm(x - center, axis=1)) <= radius * (1 + 1e-6) + 1e-6
        assert all(domain.contains(np.float32(row), 1e-5) for row in x[:20])
        inside = np.asarray(onto(np.float32(center + rng.normal(size=(3000, 3)) * radius)))
        inside = np.float64(inside[np.linalg.norm(inside - center, axis=1) <= radius])
        assert len(inside) > 100
        ahead = np.einsum("id,ijd->ij", z - x, inside[None] - x[:, None])
        length = np.linalg.norm(z - x, axis=1)[:, None] + 1e-6
        assert np.max(ahead / length) <= 1e-4 * min(radius, 3.0) + 2e-6


def test_a_cut_of_trees_is_that_of_their_entries_and_not_a_number_is_seen():
    flat, center = np.float32([3.0, -1.0, 0.5]), np.float32([0.2, 0.3, 0.4])
    for domain in (CUT["ball"], CUT["l1_ball"], CUT["whole space"]):
        wanted = cut_with_ball(domain, center, 0.3).project(flat)
        split = lambda v: {"a": v[:1], "b": v[1:]}  # noqa: E731
        found = cut_with_ball(domain, split(center), 0.3).project(split(flat))
        np.testing.assert_allclose(np.concatenate([found["a"], found["b"]]), wanted, atol=1e-6)
        lost = cut_with_ball(domain, center, 0.3).project(np.float32([np.nan, 0.0, 0.0]))
        assert np.all(np.isnan(lost))
    assert float(cut_with_ball(CUT["box"], center, 0.3).diameter) == np.float32(0.6)
