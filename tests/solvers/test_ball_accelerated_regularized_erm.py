"""Private regularized ERM by ball acceleration: one budget for all rounds, and an end near the minimizer."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.privacy import resque
from dpsco_jax.problems import losses, users
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque import ball_accelerated_regularized_erm as regularized
from tests.support.planned import planned

ABSOLUTE = losses.absolute(1.0)
ARGUMENTS = {"num_users": 10_000, "dim": 3, "epsilon": 1.0, "delta": 1e-6, "regularization": 0.5}


@functools.cache
def _plan(**changes):
    return planned(regularized.plan, ABSOLUTE, **ARGUMENTS | changes)


@pytest.fixture
def quick(monkeypatch):
    """No accountant: for what does not depend on the noise."""
    loss = accounting.loss(((resque.ResqueCall(4, 0.5, 12.0, 100), 1),), 1e-6)
    monkeypatch.setattr(accounting, "calibrated_beta", lambda *_: 0.25)
    monkeypatch.setattr(accounting, "loss", lambda *_: loss)


def test_the_certificate_covers_the_calls_of_all_rounds():
    plan = _plan(num_rounds=2)
    own = [made.calls for made in plan.parts]
    assert plan.calls == own[0] + own[1]
    spent = plan.certificate().epsilon
    assert 0.999 < spent <= 1.0
    assert spent == pytest.approx(resque.calls_epsilon(own[0] + own[1], 1e-6))
    assert spent > max(made.certificate().epsilon for made in plan.parts)
    # What a program carries: the losses add up, failures of all rounds together are at most a quarter of δ.
    total = privacy.compose(*(made.loss() for made in plan.parts))
    assert 0.22e-6 < float(total.delta) < 0.2501e-6
    assert plan.user_gradients == sum(made.user_gradients for made in plan.parts)


def test_budget_and_queries_double_and_distances_shrink(quick):
    plan = planned(regularized.plan, ABSOLUTE, **ARGUMENTS, condition=6.0)
    rounds = plan.parts
    assert len(rounds) == 4, "⌈log2 log2 10^4⌉"
    sizes = [made.num_queries for made in rounds]
    assert sizes == [128, 256, 512, 1024]
    betas = np.array([float(made.beta) for made in rounds])
    np.testing.assert_allclose(betas, 0.25 * 2 ** (np.arange(3, -1, -1) / 2), rtol=1e-6)
    np.testing.assert_allclose(
        [made.outer.condition for made in rounds], 6 / 2 ** (1.5 - np.arange(4) / 2)
    )
    distances = np.array([float(made.outer.distance) for made in rounds])
    assert distances[0] == pytest.approx(2.0), "L/μ, below the diameter, which is infinite"
    np.testing.assert_allclose(distances, np.sqrt(2 * plan.excesses[:-1] / 0.5))
    assert np.all(np.diff(distances) < 0)
    assert np.all(np.diff(plan.excesses) < 0)
    for made, after in zip(rounds, plan.excesses[1:], strict=True):
        noise = made.predicted_error * float(made.ball_radius)
        assert after == pytest.approx(0.1 * float(made.outer.excess) + noise)


def test_distances_know_the_domain_the_ridge_and_the_prior_bound(quick):
    def first(objective, **changes):
        return planned(regularized.plan, objective, **ARGUMENTS | changes).parts[0]

    ball = losses.absolute(1.0, domain=domains.ball(0.5))
    assert float(first(ball).outer.distance) == pytest.approx(1.0)
    assert float(first(ABSOLUTE, distance=0.3).outer.distance) == pytest.approx(0.3)
    ridge = ABSOLUTE._replace(ridge=1.5)
    assert float(first(ridge, regularization=0.0).outer.distance) == pytest.approx(1 / 1.5)
    assert float(first(ridge).outer.distance) == pytest.approx(0.5)
    plan = planned(regularized.plan, ABSOLUTE, **ARGUMENTS, smoothing_radius=0.1)
    targets = np.array([float(made.outer.excess) for made in plan.parts])
    radii = [float(made.smoothing_radius) for made in plan.parts]
    np.testing.assert_allclose(radii, 0.1 * targets / (2.0 / 5.0))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"regularization": 0.0}, "regularization must be above 0"),
        ({"num_rounds": 4, "num_queries": 16}, "num_rounds"),
        ({"dim": 10**6}, "out of reach"),
    ],
)
def test_bad_arguments_are_named(quick, changes, what):
    with pytest.raises(ValueError, match=what):
        planned(regularized.plan, ABSOLUTE, **ARGUMENTS | changes)


def test_losses_without_a_proof_are_refused():
    with pytest.raises(ValueError, match="whole space"):
        planned(regularized.plan, losses.squared(1.0, 1.0, 1.0), **ARGUMENTS)


def _data(num_users):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((num_users, 1, 3))
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    labels = rows @ np.array([0.6, -0.3, 0.2]) + 0.1 * rng.standard_normal((num_users, 1))
    return UserData(Example(jnp.asarray(rows, jnp.float32), jnp.asarray(labels, jnp.float32)))


def _problem(data, center, weight):
    """The regularized risk, and its minimum to 1e-4, by subgradient steps 1/(μt)."""
    objective = users.mean_loss(ABSOLUTE)
    value = jax.jit(lambda x: objective(x, data) + 0.5 * weight * jnp.sum((x - center) ** 2))
    slope = jax.grad(value)

    def step(x, t):
        return x - 1 / (weight * (t + 5.0)) * slope(x), None

    return value, float(value(jax.lax.scan(step, center, jnp.arange(2000.0))[0]))


@pytest.mark.slow
def test_a_ridge_alone_starts_from_the_origin_and_needs_no_center():
    """Hardly any noise; 2000 users, two rounds."""
    objective, data = ABSOLUTE._replace(ridge=0.5), _data(2000)
    plan = _plan_of_a_ridge(objective)
    solve = jax.jit(lambda d, x: regularized.solve(jax.random.key(0), plan, objective, d, x).params)
    found = solve(data, jnp.zeros(3))
    np.testing.assert_array_equal(found, solve(data, jnp.ones(3)))
    value, best = _problem(data, jnp.zeros(3), 0.5)
    assert float(value(found)) - best < 0.15 * (float(value(jnp.zeros(3))) - best)


def _plan_of_a_ridge(objective):
    plan = planned(
        regularized.plan,
        objective,
        num_users=2000,
        dim=3,
        epsilon=1.0,
        delta=1e-3,
        num_rounds=2,
        largest_error=np.inf,
    )
    rounds = tuple(dataclasses.replace(made, beta=1e4) for made in plan.parts)
    return dataclasses.replace(plan, parts=rounds)
