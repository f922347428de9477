"""The peers without noise against closed forms, and the inequalities that their proofs rest on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from dpsco_jax.problems import losses
from experiments.studies import table_dp_sgd
from experiments.studies.peers import ada_ssp, amp, dp_ftrl, dp_newton
from tests.experiments.test_table_dp_sgd import OBJECTIVES, flat_of

pytestmark = pytest.mark.slow  # of studies alone: nothing that is installed rests on it


def test_ada_ssp_without_noise_is_ridge_regression():
    flat, objective = flat_of(3), OBJECTIVES["squared"]
    plan = ada_ssp.Plan(0.0, 4.0, 1.0, 1e-2, 5.0)
    found = ada_ssp.solve(jax.random.key(0), plan, flat)
    rows, labels = np.asarray(flat.rows).reshape(-1, 4), np.asarray(flat.labels).ravel()
    weights = np.asarray(flat.weights).ravel() / 30
    gram = rows.T @ (weights[:, None] * rows) + 1e-2 * np.eye(4)
    np.testing.assert_allclose(found, np.linalg.solve(gram, rows.T @ (weights * labels)), rtol=1e-3)
    gradient = jax.grad(lambda w: table_dp_sgd.excess(flat, w, objective))(found)
    assert float(jnp.linalg.norm(gradient)) < 1e-5


def test_the_statistics_of_ada_ssp_move_by_no_more_than_their_sensitivity():
    rng = np.random.default_rng(0)
    bound, largest = 2.0, 0.0
    for _ in range(300):
        first, second = ([], [])
        for part in (first, second):
            rows = rng.normal(size=(rng.integers(1, 4), 3)) ** 3
            part.append(bound * rows / np.linalg.norm(rows, axis=1, keepdims=True))
        a, b = (part[0].T @ part[0] / len(part[0]) for part in (first, second))
        largest = max(largest, np.linalg.norm(a - b))
        assert np.linalg.norm(a - b, 2) <= bound**2 * (1 + 1e-9)
    assert 0.9 * np.sqrt(2.0) * bound**2 < largest <= np.sqrt(2.0) * bound**2 * (1 + 1e-9)


def test_ada_ssp_draws_its_noise_with_that_sensitivity():
    """With moments and matrix of zero the result is N_b over the ridge that it chose."""
    flat = flat_of(2)
    empty = flat._replace(rows=jnp.zeros_like(flat.rows))
    plan = ada_ssp.Plan(3.0, 2.0, 1.0, 1e8, 1e30)
    keys = jax.random.split(jax.random.key(1), 2000)
    found = jax.vmap(lambda key: ada_ssp.solve(key, plan, empty))(keys) * 30e8
    np.testing.assert_allclose(np.std(found, axis=0), 3.0 * 2 * 2.0 * 1.0, rtol=0.06)


@pytest.mark.parametrize("kind", list(OBJECTIVES))
def test_newton_without_noise_finds_the_minimum(kind):
    flat, objective = flat_of(3), OBJECTIVES[kind]
    plan = dp_newton.Plan(0.0, 1e6, 0.0, 4.0)
    found = dp_newton.solve(jax.random.key(0), plan, flat, objective, kind, 60)
    gradient = jax.grad(lambda w: table_dp_sgd.excess(flat, w, objective))(found)
    assert float(jnp.linalg.norm(gradient)) < 1e-4


@pytest.mark.parametrize("kind", list(OBJECTIVES))
def test_the_quadratic_of_newton_touches_the_link_and_lies_above(kind):
    link = OBJECTIVES[kind].linear_model.link
    slope = OBJECTIVES[kind].linear_model.derivative
    at, others = np.linspace(-4, 4, 41), np.linspace(-6, 6, 61)
    for label in (0.0, 1.0):
        bend = np.asarray(dp_newton.bends(kind, jnp.asarray(at), jnp.float32(label)))
        assert bend.max() <= dp_newton.LARGEST[kind] * (1 + 1e-6)
        offset = others[:, None] - at
        upper = link(at, label) + slope(at, label) * offset + 0.5 * bend * offset**2
        assert np.all(np.asarray(upper) >= np.asarray(link(others, label))[:, None] - 1e-5)


def test_the_direction_of_newton_moves_by_no_more_than_its_sensitivity():
    rng = np.random.default_rng(0)
    users, lowest, largest, tightest = 5, 0.3, 2.0, 0.0
    share = largest / (lowest * (users * lowest + largest))
    for trial in range(500):
        parts = []
        for _ in range(users + 1):
            vector = rng.normal(size=2) if trial % 2 else np.eye(2)[rng.integers(2)]
            scale = largest * (1.0 if trial % 3 else rng.random())
            parts.append(scale * np.outer(vector, vector) / (vector @ vector))
        others = sum(parts[2:]) if trial % 5 else 0.0
        base = others / users + lowest * np.eye(2)
        vector = rng.normal(size=2)
        moved = [np.linalg.solve(base + part / users, vector) for part in parts[:2]]
        found = np.linalg.norm(moved[0] - moved[1]) / np.linalg.norm(vector)
        assert found <= share * (1 + 1e-9)
        tightest = max(tightest, found / share)
    assert tightest > 0.9


def test_amp_without_noise_is_the_minimum_with_its_ridge():
    flat, objective = flat_of(1), losses.logistic(4.0, ridge=1e-2)
    flat = flat._replace(weights=jnp.ones_like(flat.weights))
    found = amp.solve(jax.random.key(0), amp.Plan(0.0, 30e-2, 0.0), flat, objective)
    gradient = jax.grad(lambda w: table_dp_sgd.excess(flat, w, objective))(found)
    assert float(jnp.linalg.norm(gradient)) < 1e-5


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("share", [0.6, 0.9])
def test_the_exact_minimum_of_amp_is_private(epsilon, share):
    """In one dimension the density of the minimum is known: its (ε, δ) by integration."""
    delta, bound = 1e-3, 2.0
    plan = amp.plan(epsilon, delta, 4, bound, bound**2 / 4, 0.0, share)
    grid = np.linspace(-60, 60, 400_001) * plan.tilt / plan.convexity / 6

    def density(rows, labels):
        logit = 1 / (1 + np.exp(-np.clip(rows[:, None] * grid, -500, 500)))
        tilt = -np.sum((logit - labels[:, None]) * rows[:, None], axis=0) - plan.convexity * grid
        slope = np.sum(rows[:, None] ** 2 * logit * (1 - logit), axis=0) + plan.convexity
        return norm.pdf(tilt, scale=plan.tilt) * slope

    rows = bound * np.array([1.0, -0.5, 0.7, 1.0])
    first = density(rows, np.array([1.0, 0.0, 1.0, 1.0]))
    for row, label in ((bound, 0.0), (-bound, 1.0), (0.0, 1.0)):
        changed = np.array([*rows[:3], row])
        second = density(changed, np.array([1.0, 0.0, 1.0, label]))
        width = grid[1] - grid[0]
        assert np.sum(first) * width == pytest.approx(1.0, abs=1e-6)
        for p, q in ((first, second), (second, first)):
            assert np.sum(np.maximum(p - np.exp(epsilon) * q, 0)) * width <= delta


def test_amp_refuses_what_its_proof_does_not_cover():
    with pytest.raises(ValueError, match="epsilon"):
        amp.plan(20.0, 1e-5, 10, 1.0, 0.25, 0.0)


def test_ftrl_without_noise_finds_the_minimum():
    flat, objective = flat_of(3), OBJECTIVES["logistic"]
    plan = dp_ftrl.Plan(0.0, 1e6, 0.3, 0.9)
    found = dp_ftrl.solve(jax.random.key(0), plan, flat, objective, 1500, 1)
    gradient = jax.grad(lambda w: table_dp_sgd.excess(flat, w, objective))(found)
    assert float(jnp.linalg.norm(gradient)) < 1e-3


def test_a_pass_of_ftrl_reads_every_user_once_and_clips_each():
    """Four batches of 30 users, the last one short; steps so small that the point stays at zero."""
    flat, objective, clip, small = flat_of(3), OBJECTIVES["logistic"], 0.3, 1e-6
    plan = dp_ftrl.Plan(0.0, clip, small, 0.0)
    found = dp_ftrl.solve(jax.random.key(0), plan, flat, objective, 1, 4)
    rows, labels = np.asarray(flat.rows, float), np.asarray(flat.labels, float)
    slopes = np.asarray(flat.weights, float) * (0.5 - labels)
    gradients = np.einsum("uk,ukd->ud", slopes, rows)
    lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
    assert 0.1 < np.mean(lengths > clip) < 1.0
    gradients *= np.minimum(1.0, clip / np.maximum(lengths, 1e-30))
    parts = [np.sum(gradients[8 * k : 8 * k + 8], axis=0) * 4 / 30 for k in range(4)]
    # The average of the points after three and after four steps.
    expected = -small * (parts[0] + parts[1] + parts[2] + parts[3] / 2)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-9)


def test_the_noise_of_ftrl_is_that_of_its_stream():
    """Two batches, rows of zeros: the point is the sum of both noises, in a third way by hand."""
    flat, objective = flat_of(2), OBJECTIVES["squared"]
    empty = flat._replace(rows=jnp.zeros_like(flat.rows))
    plan = dp_ftrl.Plan(3.0, 0.5, 1.0, 0.0)
    keys = jax.random.split(jax.random.key(1), 3000)
    run = lambda key: dp_ftrl.solve(key, plan, empty, objective._replace(ridge=0.0), 1, 2)  # noqa: E731
    found = jax.vmap(run)(keys)
    # z1 + (z2 - z1/2) for unit draws; a user in the first batch moves C = [[1, 0], [1/2, 1]] by √(1 + 1/4).
    stretch, summed = 1.25**0.5, (0.5**2 + 1) ** 0.5
    expected = 3.0 * stretch * summed * 2 * 0.5 * 2 / 30
    np.testing.assert_allclose(np.std(found, axis=0), expected, rtol=0.05)


def _ftrl_by_hand(flat, objective, plan, passes, batches, users):
    """Points of DP-FTRL without noise, in NumPy, by the formula of momentum."""
    rows, labels = np.asarray(flat.rows, float), np.asarray(flat.labels, float)
    weights, held, steps = np.asarray(flat.weights, float), -(-users // batches), passes * batches
    point, velocity, points = np.zeros(rows.shape[2]), 0.0, []
    for t in range(steps):
        part = slice((t % batches) * held, (t % batches + 1) * held)
        margins = rows[part] @ point
        slopes = weights[part] * (1 / (1 + np.exp(-margins)) - labels[part])
        gradients = np.einsum("uk,ukd->ud", slopes, rows[part])
        lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
        gradients = gradients * np.minimum(1.0, plan.clip / np.maximum(lengths, 1e-30))
        gradient = gradients.sum(0) * batches / users + objective.ridge * point
        velocity = plan.momentum * velocity + (1 - plan.momentum) * gradient
        point = point - plan.step * velocity
        points.append(point)
    return np.mean(points[steps // 2 :], axis=0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_ftrl_returns_to_its_batches_in_one_order(momentum):
    flat, objective = flat_of(3), OBJECTIVES["logistic"]
    plan = dp_ftrl.Plan(0.0, 0.3, 0.5, momentum)
    found = dp_ftrl.solve(jax.random.key(0), plan, flat, objective, 3, 4)
    expected = _ftrl_by_hand(flat, objective, plan, 3, 4, 30)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6)


def test_the_noise_of_ftrl_pays_for_a_user_who_returns():
    """Rows of zeros, three passes over two batches: the covariance of the mean of the last points, by hand.

    A user is in steps 0, 2, 4 or 1, 3, 5: C moves by the norm of the sum of its columns, at most.
    """
    flat, objective, passes, batches = flat_of(2), OBJECTIVES["squared"], 3, 2
    steps = passes * batches
    empty = flat._replace(rows=jnp.zeros_like(flat.rows))
    plan = dp_ftrl.Plan(3.0, 0.5, 1.0, 0.0)
    back = np.ones(steps)
    for j in range(1, steps):
        back[j] = back[j - 1] * (j - 1.5) / j
    taken = np.array([[back[t - s] if s <= t else 0.0 for s in range(steps)] for t in range(steps)])
    moves = np.linalg.inv(taken)
    stretch = max(np.linalg.norm(moves[:, first::batches].sum(1)) for first in range(batches))
    # The mean of the last three of the points, each the sum of all noise so far.
    weights = np.array([1.0, 1, 1, 1, 2 / 3, 1 / 3])
    expected = 3.0 * stretch * np.linalg.norm(weights @ taken) * 2 * 0.5 * batches / 30
    keys = jax.random.split(jax.random.key(2), 3000)
    free = objective._replace(ridge=0.0)
    found = jax.vmap(lambda key: dp_ftrl.solve(key, plan, empty, free, passes, batches))(keys)
    np.testing.assert_allclose(np.std(found, axis=0), expected, rtol=0.05)


def test_ftrl_refuses_batches_without_users():
    with pytest.raises(ValueError, match="shape"):
        dp_ftrl.plan(1.0, 1e-5, (1, 31), 30, 4, 1.0, 1.0, 0.0)
