"""Moves inside of domains: against projections in float64 by NumPy, precise where they are tiny."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.geometry.two_balls import two_balls

DIM = 12
CENTER = np.linspace(-0.5, 0.5, DIM).astype(np.float32)
CORNER = np.linspace(0.2, 0.9, DIM).astype(np.float32)


def onto_ball(x, radius, center=0.0):
    arrow = x - center
    return center + arrow * min(1.0, radius / np.linalg.norm(arrow))


def onto_simplex(x, total):
    """By sorting, as Duchi et al. 2008."""
    ordered = np.sort(x)[::-1]
    thresholds = (np.cumsum(ordered) - total) / np.arange(1, len(x) + 1)
    return np.maximum(x - thresholds[ordered > thresholds][-1], 0.0)


def onto_l1_ball(x, radius):
    if np.sum(np.abs(x)) <= radius:
        return x
    return np.sign(x) * onto_simplex(np.abs(x), radius)


def widened(name, p):
    """The float64 projection onto the set, made to hold p."""
    norm = np.linalg.norm
    match name:
        case "ball":
            return lambda x: onto_ball(x, max(1.0, norm(p)))
        case "ball around another point":
            return lambda x: onto_ball(x, max(0.8, norm(p - CENTER)), CENTER.astype(float))
        case "box":
            return lambda x: np.clip(x, np.minimum(-CORNER, p), np.maximum(CORNER, p))
        case "simplex":
            least = np.minimum(p, 0.0)
            return lambda x: least + onto_simplex(x - least, np.sum(p - least))
        case "l1 ball":
            return lambda x: onto_l1_ball(x, max(1.0, np.sum(np.abs(p))))


DOMAINS = {
    "ball": domains.ball(1.0),
    "ball around another point": domains.ball(0.8, CENTER),
    "box": domains.box(-CORNER, CORNER),
    "simplex": domains.simplex(1.0),
    "l1 ball": domains.l1_ball(1.0),
}
MOVES = {n: jax.jit(lambda x, y, d=d: d.moves(x)(y)) for n, d in DOMAINS.items()}
PROJECTIONS = {n: jax.jit(d.project) for n, d in DOMAINS.items()}


def deviation(name, point, wanted):
    """Of the move from what float64 gives, over the size of the move that is wanted."""
    p, m = point.astype(np.float64), wanted.astype(np.float64)
    found = np.asarray(MOVES[name](point, wanted), np.float64)
    exact = widened(name, p)(p + m) - p
    return np.linalg.norm(found - exact) / np.linalg.norm(m), found


@pytest.mark.parametrize("name", DOMAINS)
def test_moves_of_any_size_are_those_of_the_projection_in_float64(name):
    """From points a little outside, on the edge of the widened set, with entries at zero and next to it."""
    rng, shortened = np.random.default_rng(0), 0
    for trial in range(40):
        size = 10.0 ** rng.integers(-9, 1)
        inside = np.asarray(PROJECTIONS[name](np.float32(3 * rng.normal(size=DIM))))
        point = (1.001 * inside).astype(np.float32)
        if name in ("simplex", "l1 ball"):
            point[: DIM // 3] *= size
            point *= 1.001 / np.abs(point).sum()
        wanted = (size * rng.normal(size=DIM)).astype(np.float32)
        error, found = deviation(name, point, wanted)
        assert error < 2e-5, (trial, size)
        shortened += np.linalg.norm(found) < 0.99 * np.linalg.norm(wanted)
    assert shortened > 10


@pytest.mark.parametrize("name", DOMAINS)
def test_moves_from_within_reach_the_edge(name):
    """There the constants of the set are rounded as well, by 1e-7."""
    rng = np.random.default_rng(1)
    for size in (1e-2, 0.3, 3.0, 30.0):
        inside = np.asarray(PROJECTIONS[name](np.float32(rng.normal(size=DIM))))
        point = 0.99 * inside if name != "simplex" else inside
        error, _ = deviation(name, point, (size * rng.normal(size=DIM)).astype(np.float32))
        assert error < 1e-4, size


@pytest.mark.parametrize("name", DOMAINS)
def test_tiny_moves_are_brought_no_further_apart(name):
    """At 1e-10 of the point, where the projected points themselves are equal in float32."""
    domain, rng = DOMAINS[name], np.random.default_rng(1)
    far = jnp.asarray(np.float32(3 * rng.normal(size=DIM)))
    point = domain.project(far)
    point = point + 1e-4 * (far - point)  # outside for certain
    pairs = jnp.asarray(np.float32(1e-10 * rng.normal(size=(2, 2000, DIM))))
    ends = jax.jit(jax.vmap(domain.moves(point)))(pairs.reshape(-1, DIM)).reshape(pairs.shape)
    apart, before = (np.linalg.norm(np.asarray(x[0] - x[1], float), axis=1) for x in (ends, pairs))
    assert np.all(apart <= before * (1 + 1e-5))
    assert np.mean(apart) < 0.99 * np.mean(before), "some are projected"


def test_two_balls_one_after_the_other():
    domain = two_balls(jnp.zeros(DIM), 1.0, jnp.asarray(CENTER), 0.8)
    point = jnp.asarray(0.4 * CENTER)
    for size in (0.1, 1.0, 10.0):
        wanted = size * jnp.asarray(np.float32(np.random.default_rng(2).normal(size=DIM)))
        p = np.asarray(point, float)
        exact = onto_ball(onto_ball(p + np.asarray(wanted, float), 1.0), 0.8, CENTER.astype(float))
        np.testing.assert_allclose(domain.moves(point)(wanted), exact - p, atol=1e-5)


def test_all_of_space_moves_freely():
    moves = domains.whole_space().moves
    np.testing.assert_array_equal(moves(jnp.ones(3))(jnp.arange(3.0)), jnp.arange(3.0))
