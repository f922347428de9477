"""The proximal ball step solves its problem, and two quadratics are one."""

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.transforms import steps

DIM = 4
step_all = jax.jit(jax.vmap(steps.ball_step))


def problems(seed, count):
    """Random arguments of ``ball_step``, with balls that meet the domain."""
    rng = np.random.default_rng(seed)
    center = rng.normal(size=(count, DIM))
    radius = rng.uniform(0.2, 2.0, count)
    reach = np.linalg.norm(center, axis=1) - radius
    domain_radius = np.maximum(reach, 0) + rng.uniform(0.1, 1.0, count)
    point, gradient, anchor = (rng.normal(size=(3, count, DIM))) * [[[1]], [[3]], [[1]]]
    eta, weight = rng.uniform(0.1, 2, count), rng.uniform(0, 3, count)
    arrays = point, gradient, eta, weight, anchor, center, radius, domain_radius
    return [np.asarray(x, np.float32) for x in arrays]


def test_no_feasible_point_is_better():
    args = problems(0, 2000)
    point, gradient, eta, weight, anchor, center, radius, domain_radius = args
    found = np.asarray(step_all(*args))

    def value(x):
        linear = eta * np.sum(gradient * x, 1) + 0.5 * np.sum((x - point) ** 2, 1)
        return linear + eta * weight / 2 * np.sum((x - anchor) ** 2, 1)

    rng = np.random.default_rng(1)
    assert np.all(np.linalg.norm(found - center, axis=1) <= radius * (1 + 1e-5))
    assert np.all(np.linalg.norm(found, axis=1) <= domain_radius * (1 + 1e-5))
    best, feasible = value(found), 0
    for scale in (1e-3, 1e-2, 1e-1, 1.0):
        other = found + scale * rng.normal(size=found.shape)
        inside = (np.linalg.norm(other - center, axis=1) <= radius) & (
            np.linalg.norm(other, axis=1) <= domain_radius
        )
        feasible += np.sum(inside)
        assert np.all((value(other) >= best - 1e-5)[inside])
    assert feasible > 1000


def test_without_bounds_it_is_the_free_minimizer():
    point, gradient, eta, weight, anchor, center, _, _ = problems(2, 2000)
    far = np.full(2000, 1e6, np.float32)
    found = step_all(point, gradient, eta, weight, anchor, center, far, 2 * far)[0]
    pull = eta[0] * weight[0]
    free = (point[0] + pull * anchor[0] - eta[0] * gradient[0]) / (1 + pull)
    np.testing.assert_allclose(found, free, rtol=1e-5)


def test_far_from_the_origin_small_moves_keep_their_digits():
    center = np.full(DIM, 1e3, np.float32)
    slope = np.full(DIM, 0.5, np.float32)
    moved = jax.jit(steps.ball_step)(center, slope, 0.25, 1.0, center, center, 1.0)
    np.testing.assert_allclose(moved - center, -0.125 / 1.25, atol=1.3e-4)


def test_two_quadratics_are_one():
    rng = np.random.default_rng(3)
    a, b, x, y = rng.normal(size=(4, DIM)).astype(np.float32)
    total, middle = steps.combined_quadratics(2.0, a, 0.5, b)

    def two(z):
        return np.sum((z - a) ** 2) + 0.25 * np.sum((z - b) ** 2)

    one = 0.5 * total * (np.sum((x - middle) ** 2) - np.sum((y - middle) ** 2))
    np.testing.assert_allclose(one, two(x) - two(y), rtol=1e-5)
    none, first = steps.combined_quadratics(0.0, a, jnp.asarray(0.0), b)
    assert none == 0
    assert jnp.array_equal(first, a)
