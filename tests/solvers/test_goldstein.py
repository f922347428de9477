"""Goldstein norms against closed forms and a quadratic program; how far samples are from the population."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.nonconvex import goldstein


def _objective(loss, **numbers):
    return Objective(loss, 1.0, None, domains.whole_space(), **numbers)


DISTANCE = _objective(lambda w, z: jnp.linalg.norm(w - z))
CAPPED = _objective(lambda w, z: jnp.minimum(jnp.linalg.norm(w - z), 1.5))
ONE = UserData(jnp.zeros((1, 1, 2)))


@functools.partial(jax.jit, static_argnums=(1, 5, 6))
def norm_of(key, objective, data, point, radius, points=200, component=False):
    way = goldstein.component_goldstein_norm if component else goldstein.goldstein_norm
    return way(key, objective, data, point, radius, points)


def test_of_an_absolute_value():
    absolute = _objective(lambda w, z: jnp.abs(w - z))
    data = UserData(jnp.zeros((1, 1)))
    for x, radius, exact in [(0.3, 0.5, 0.0), (0.3, 0.2, 1.0), (-1.0, 0.9, 1.0), (0.0, 0.1, 0.0)]:
        found = norm_of(jax.random.key(0), absolute, data, jnp.asarray(x), radius)
        assert float(found.norm) == pytest.approx(exact, abs=1e-5)
        assert float(found.gap) < 1e-5


def test_of_a_norm():
    """√(1 - α²/‖x‖²) outside of the ball: of samples never less, and near; 0 where the kink is in reach."""
    point = jnp.asarray([3.0, 4.0])
    for radius in (0.5, 2.0, 4.0):
        exact = math.sqrt(1 - radius**2 / 25)
        found = norm_of(jax.random.key(1), DISTANCE, ONE, point, radius, 2000)
        assert exact - 1e-5 <= float(found.norm) <= exact + 0.02
    assert float(norm_of(jax.random.key(1), DISTANCE, ONE, point, 6.0, 2000).norm) < 1e-3
    lengths = [
        float(norm_of(jax.random.key(2), DISTANCE, ONE, point, r).norm) for r in (0, 1, 2, 3)
    ]
    assert lengths[0] == pytest.approx(1.0, rel=1e-6)
    assert np.all(np.diff(lengths) < 0)


def test_of_a_smooth_risk_without_room_it_is_the_gradient_with_the_regularizer():
    objective = losses.logistic(1.0, ridge=0.3)
    rng = np.random.default_rng(3)
    rows = np.float32(rng.normal(size=(6, 2, 3)) / 8)
    labels = np.where(rng.random((6, 2)) < 0.5, np.float32(1.0), np.float32(-1.0))
    data = UserData(Example(rows, labels))
    w = np.array([0.5, -1.0, 0.2], np.float32)
    slopes = -labels / (1 + np.exp(labels * (rows @ w)))
    exact = np.mean(slopes[..., None] * rows, axis=(0, 1)) + 0.3 * w
    for component in (False, True):
        found = norm_of(jax.random.key(4), objective, data, jnp.asarray(w), 0.0, 5, component)
        assert float(found.norm) == pytest.approx(np.linalg.norm(exact), rel=1e-4)


def _gradients(items, points):
    apart = points[None] - items[:, None]
    lengths = np.linalg.norm(apart, axis=2, keepdims=True)
    return np.where(lengths < 1.5, apart / lengths, 0.0)


def test_the_vector_is_the_shortest_of_the_hull_of_the_sample():
    """Twenty capped distances in three dimensions: nonnegative least squares of the same gradients."""
    rng = np.random.default_rng(5)
    items = np.float32(rng.normal(size=(20, 3)) * 0.5)
    data, point, radius = UserData(jnp.asarray(items)[:, None]), jnp.asarray([0.4, 0.1, -0.2]), 0.6
    drawn = goldstein._points(jax.random.key(6), CAPPED, data, point, radius, 30)
    rows = _gradients(np.float64(items), np.float64(drawn))
    means = rows.mean(axis=0)
    # Weights that sum to one, by a heavy last row.
    heavy = np.vstack([means.T, np.full(len(means), 1e3)])
    weights, _ = scipy.optimize.nnls(heavy, np.array([0.0, 0.0, 0.0, 1e3]), maxiter=10_000)
    exact = np.linalg.norm(means.T @ weights / weights.sum())
    found = norm_of(jax.random.key(6), CAPPED, data, point, radius, 30)
    assert float(found.norm) == pytest.approx(exact, abs=2e-3)
    assert exact**2 >= float(found.norm) ** 2 - float(found.gap) - 1e-5
    component = norm_of(jax.random.key(6), CAPPED, data, point, radius, 30, True)
    assert float(component.norm) <= float(found.norm) + 1e-4
    # In a ball that large every user has a point where its gradient is what one likes.
    wide = norm_of(jax.random.key(6), CAPPED, data, point, 3.0, 100, True)
    assert float(wide.norm) < 0.02


def test_samples_are_as_near_to_the_population_as_is_said():
    """Smoothed absolute values around uniform centres: 200 samples of 100, everywhere on a grid at once."""
    radius, users, failure = 0.2, 100, 0.1
    rng, grid = np.random.default_rng(7), np.linspace(-2, 2, 801)
    bound = goldstein.generalization_bound(1.0, radius, 1, users, 2.0, failure)
    slope = lambda centres: np.clip((grid[:, None] - centres) / radius, -1, 1)  # noqa: E731
    exact = slope(np.linspace(-1, 1, 20_001)).mean(axis=1)
    worst = [
        np.abs(slope(rng.uniform(-1, 1, users)).mean(axis=1) - exact).max() for _ in range(200)
    ]
    assert 0.1 * bound < max(worst) <= bound
    mesh = radius / 10
    by_hand = 2 * math.sqrt(2 * (math.log(1 + 2 * 2.4 / mesh) + math.log(20)) / users) + 2 / 10
    assert bound == pytest.approx(by_hand, rel=1e-9)


def test_refuses():
    good = {
        "lipschitz": 1.0,
        "radius": 0.1,
        "dim": 2,
        "num_users": 10,
        "reach": 1.0,
        "failure": 0.1,
    }
    for name, bad in [("radius", 0.0), ("dim", 0), ("reach", -1.0), ("failure", 1.0)]:
        with pytest.raises(ValueError, match=name):
            goldstein.generalization_bound(**good | {name: bad})
    for name, bad in [("radius", -1.0), ("num_points", 0), ("num_iterations", 0)]:
        given = {"radius": 0.1, "num_points": 2, "num_iterations": 2} | {name: bad}
        with pytest.raises(ValueError, match=name):
            goldstein.goldstein_norm(jax.random.key(0), DISTANCE, ONE, jnp.zeros(2), **given)
