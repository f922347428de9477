"""User-level DP-SGD: its exact law, its options, its plan."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses, synthetic
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import Status
from dpsco_jax.solvers.user_level import sgd
from tests.support.planned import planned

USERS, DIM = 8, 2
Z = np.random.default_rng(2).normal(size=(USERS, 3, DIM)).astype(np.float32)
DATA = UserData(jnp.asarray(Z), None)
MEANS = Z.mean(1)
OBJECTIVE = Objective(
    loss=lambda w, z: 0.5 * jnp.sum(jnp.square(w - z)),
    lipschitz=20.0,
    smoothness=1.0,
    domain=domains.ball(3.0),
)
LOGISTIC = losses.logistic(feature_bound=1.0, domain=domains.ball(2.0))
BUDGET = {"num_users": 1000, "dim": 10, "epsilon": 1.0, "delta": 1e-5, "num_steps": 50}


def _exact_plan(noise_multiplier=1e-12, **changes):
    settings = {
        "num_users": USERS,
        "dim": DIM,
        "num_steps": 3,
        "batch_size": USERS,
        "sampling": "full",
        "averaging": "last",
        "clip_norm": 20.0,
        "step_size": 0.4,
        "epsilon": 1.0,
        "delta": 1e-5,
        "accountant": "rdp",  # the noise is not kept
    }
    made = planned(sgd.plan, OBJECTIVE, **(settings | changes))
    return made.replace(noise_multiplier=noise_multiplier, made_for=None)


def _params(plan, objective=OBJECTIVE, runs=1, start=(1.0, -1.0)):
    def one(key):
        return sgd.solve(key, plan, objective, DATA, jnp.asarray(start)).params

    keys = jax.random.split(jax.random.key(0), runs)
    return np.asarray(jax.jit(jax.vmap(one))(keys), np.float64)


@pytest.mark.parametrize("averaging", ["last", "uniform", "polynomial"])
def test_without_noise_it_is_projected_clipped_gradient_descent(averaging):
    objective = OBJECTIVE._replace(ridge=0.3, domain=domains.ball(0.9))
    w, iterates = np.array([0.6, -0.6]), []
    for _ in range(3):
        rows = w - MEANS
        rows *= np.minimum(1, 0.8 / np.linalg.norm(rows, axis=1, keepdims=True))
        w = w - 0.4 * (rows.mean(0) + 0.3 * w)
        w *= min(1, 0.9 / np.linalg.norm(w))
        iterates.append(w)
    weights = {
        "last": [0, 0, 1],
        "uniform": [1, 1, 1],
        "polynomial": [6, 24, 60],  # s(s + 1)(s + 2)
    }[averaging]
    expected = np.average(iterates, axis=0, weights=weights)
    plan = _exact_plan(clip_norm=0.8, averaging=averaging)
    found = _params(plan, objective, start=(0.6, -0.6))[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("sampling", "sensitivity"), [("poisson", 1), ("fixed", 2)])
def test_mean_and_variance_of_a_step(sampling, sensitivity):
    """Divided by the planned size, with noise for the sensitivity of the sampling's relation."""
    runs, batch, step, sigma = 20_000, 4, 0.4, 1.5
    noise_multiplier = sigma / (20.0 * sensitivity)
    plan = _exact_plan(
        num_steps=1, batch_size=batch, sampling=sampling, noise_multiplier=noise_multiplier
    )
    free = OBJECTIVE._replace(domain=domains.whole_space())
    found = _params(plan, free, runs)
    start = np.array([1.0, -1.0])
    rows = start - MEANS
    if sampling == "poisson":
        q = batch / USERS
        of_sum = q * (1 - q) * np.sum(rows**2, 0)
    else:
        of_sum = batch * (USERS - batch) / (USERS - 1) * rows.var(0)
    variance = step**2 * (of_sum + sigma**2) / batch**2
    mean = start - step * rows.mean(0)
    np.testing.assert_allclose(found.mean(0), mean, atol=5 * np.sqrt(variance.max() / runs))
    np.testing.assert_allclose(found.var(0), variance, rtol=0.05)


def _plan(objective=LOGISTIC, **changes):
    return planned(sgd.plan, objective, **(BUDGET | {"batch_size": 100} | changes))


def test_the_default_step_and_its_bound():
    quick = functools.partial(_plan, accountant="rdp")
    plan = quick()
    # A batch of 100 of 1000 users drawn one by one: its size is random and the divisor is not.
    variance = 1 + 0.9 / 100 + 10 * (plan.noise_multiplier / 100) ** 2
    assert plan.step_size == pytest.approx(4.0 / math.sqrt(50 * variance))
    assert plan.excess_bound == pytest.approx(4.0 * math.sqrt(variance / 50) * (1 + 1 / 100))
    assert quick(clip_norm=0.5).excess_bound == math.inf
    assert quick(averaging="last").excess_bound == math.inf
    assert quick(step_size=0.1).excess_bound == math.inf
    # Twice the sensitivity, the same multiplier but for the relation: more noise, a larger bound.
    assert quick(sampling="fixed").excess_bound > plan.excess_bound


def test_the_average_of_the_points_after_the_steps_may_be_above_the_bound_of_those_before():
    """One step along a valley's wall, to the other wall and past it: 9/8 of R·√(V/T), below 3/2."""
    walls = np.array([[-1, np.sqrt(15)], [-1, -np.sqrt(15)]], np.float32) / 4

    def valley(w, z):
        return jnp.maximum(0.0, 0.25 + jnp.max(walls @ w)) + 0.0 * z

    objective = Objective(valley, lipschitz=1.0, smoothness=None, domain=domains.whole_space())
    problem = Problem(objective, num_users=1000, dim=2, distance=1.00001)
    plan = sgd.plan(problem, Budget(100.0, 5e-4), num_steps=1, sampling="full")
    data, start = UserData(jnp.zeros((1000, 1))), jnp.array([0.0, 1e-4])
    found = sgd.solve(jax.random.key(0), plan, objective, data, start).params
    assert valley(jnp.array([1.0, 0.0]), 0.0) == 0.0
    assert plan.step_size == pytest.approx(1.0, abs=1e-3)  # V = 1 but for hardly any noise
    assert float(valley(found, 0.0)) == pytest.approx(1.125, abs=0.01)
    assert plan.excess_bound == pytest.approx(1.5, abs=2e-3)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_the_calibrated_noise_uses_the_budget_up(sampling):
    for epsilon in (0.5, 8.0):
        plan, ledger = (
            _plan(epsilon=epsilon, sampling=sampling, accountant=a) for a in ("pld", "rdp")
        )
        assert 0.999 * epsilon < plan.certificate().epsilon <= epsilon
        spent = ledger.releases.steps.ledger_epsilon(ledger.noise_multiplier, 1e-5)
        assert 0.999 * epsilon < spent <= epsilon
        assert ledger.noise_multiplier >= plan.noise_multiplier


def test_divergence_is_a_status():
    plan = _exact_plan().replace(step_size=math.nan)
    found = sgd.solve(jax.random.key(0), plan, OBJECTIVE, DATA, jnp.zeros(DIM))
    assert found.status == Status.DIVERGED


def test_full_batches():
    plan = _plan(sampling="full", batch_size=None)
    assert plan.batch_size == 1000
    assert plan.noise_multiplier == _plan(sampling="fixed", batch_size=1000).noise_multiplier
    with pytest.raises(ValueError, match=r"batch_size must be an integer in \[1000, 1000\]"):
        _plan(sampling="full")


def test_samples_need_a_batch_size():
    with pytest.raises(ValueError, match=r"batch_size must be an integer in \[1, 1000\]"):
        _plan(batch_size=None)


def test_a_step_size_needs_a_finite_distance():
    unbounded = LOGISTIC._replace(domain=domains.whole_space())
    with pytest.raises(ValueError, match="distance must be"):
        _plan(unbounded)
    assert _plan(unbounded, step_size=0.1).step_size == 0.1


def test_a_byte_of_a_mask_is_true_or_false_as_in_numpy():
    """XLA counts a byte of 2 as two items in one place and as none in another."""
    made = synthetic.logistic_regression(jax.random.key(0), num_users=64, items_per_user=2, dim=2)
    sizes = {"num_steps": 1, "sampling": "full", "accountant": "rdp"}
    plan = sgd.plan(made.problem(distance=1.0), Budget(1.0, 1e-5), **sizes)
    raw = np.ones((64, 2), np.uint8)
    raw[1, 1], raw[2, 0], raw[5] = 2, 255, 0
    masks = [raw.view(bool), jnp.asarray(raw.view(bool)), jnp.asarray(raw != 0)]
    assert [np.asarray(mask).view(np.uint8).max() for mask in masks] == [255, 255, 1]
    run = jax.jit(
        lambda data: sgd.solve(jax.random.key(1), plan, made.objective, data, jnp.zeros(2))
    )
    *found, wanted = (run(made.data._replace(mask=mask)) for mask in masks)
    for one in found:
        np.testing.assert_array_equal(one.params, wanted.params)
        assert int(one.unprivate["gradients"]) == int(wanted.unprivate["gradients"]) == 126
