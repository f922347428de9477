"""Certificates of stationary points: how often their bounds hold, how tight they are, and refusals."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special, stats

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import fixtures, losses, nonconvex_losses
from dpsco_jax.problems.nonconvex_losses import Network
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.nonconvex import certify
from dpsco_jax.solvers.solution import Status

pytestmark = pytest.mark.usefixtures("x64")
DIM, USERS, TRIALS = 2, 100, 2000


@pytest.fixture(scope="module")
def x64():
    with jax.enable_x64(True):
        yield


@functools.cache
def wells():
    return fixtures.two_wells(jax.random.key(0), USERS, 1, DIM, jitter=0.0)


def plan_of(epsilon=1.0, **given):
    return certify.plan(wells().problem(), Budget(epsilon, 1e-3), **given)


def truth(point):
    """‖∇F‖ and λ_min in NumPy, from the formulas of the wells."""
    rows = np.asarray(wells().data.items, np.float64)[:, 0]
    away = np.asarray(point, np.float64) - rows
    weights = np.exp(-0.5 * np.sum(away**2, axis=1))
    gradient = weights @ away / USERS
    outer = np.einsum("u,ud,ue->de", weights, away, away) / USERS
    return np.linalg.norm(gradient), np.linalg.eigvalsh(weights.mean() * np.eye(DIM) - outer)[0]


@functools.cache
def released(point, failure, seed):
    plan, made = plan_of(failure=failure), wells()
    at = jnp.asarray(point)
    run = jax.jit(
        jax.vmap(lambda key: certify.solve(key, plan, made.objective, made.data, at).released)
    )
    return plan, jax.tree.map(np.asarray, run(jax.random.split(jax.random.key(seed), TRIALS)))


@pytest.mark.parametrize(
    ("point", "failure"),
    [((0.9, 0.4), 0.05), ((0.9, 0.4), 0.2), ((3.0, 0.0), 0.1), ((0.3, 1.0), 0.1)],
)
def test_each_bound_holds_as_often_as_it_says(point, failure):
    """In 2,000 trials: at least 1 - ω - 3 s.e., and at most 1 - ω/10, or it would be needlessly wide."""
    _, found = released(point, failure, 3)
    norm, least = truth(point)
    error = math.sqrt(failure * (1 - failure) / TRIALS)
    for holds in (found["gradient_bound"] >= norm, found["curvature_bound"] <= least):
        assert 1 - failure - 3 * error <= holds.mean() <= 1 - failure / 10
    # And α is what both bounds say together.
    rho = wells().objective.hessian_lipschitz
    down = np.maximum(-found["curvature_bound"], 0.0)
    wanted = np.maximum(found["gradient_bound"], down**2 / rho)
    np.testing.assert_allclose(found["stationarity"], wanted, rtol=1e-12)


def test_noise_is_gaussian_of_the_stated_size_and_the_two_are_independent():
    plan, found = released((0.9, 0.4), 0.05, 3)
    norm, least = truth((0.9, 0.4))
    off = (found["gradient_norm"] - norm) / float(plan.gradient_stddev)
    bent = (found["least_curvature"] - least) / float(plan.curvature_stddev)
    for noise in (off, bent):
        assert stats.kstest(noise, "norm").pvalue > 1e-3
    assert abs(np.mean(off * bent)) < 4 / math.sqrt(TRIALS)
    np.testing.assert_allclose(
        found["gradient_bound"] - found["gradient_norm"],
        -special.ndtri(0.05) * float(plan.gradient_stddev),
        rtol=1e-9,
    )


def test_stddevs_are_multipliers_times_sensitivities():
    plan = plan_of()
    multiplier = float(plan.noise_multiplier)
    np.testing.assert_allclose(
        plan.gradient_stddev, multiplier * 2 * math.exp(-0.5) / USERS, rtol=1e-6
    )
    bend = 1 + 2 * math.exp(-1.5)
    np.testing.assert_allclose(plan.curvature_stddev, multiplier * bend / USERS, rtol=1e-6)
    # The exact curve of two Gaussians: μ = √2/m.
    mu = math.sqrt(2) / multiplier
    delta = stats.norm.cdf(mu / 2 - 1 / mu) - math.e * stats.norm.cdf(-mu / 2 - 1 / mu)
    assert 0.97e-3 <= delta <= 1e-3
    assert plan.certificate().epsilon <= 1.0


def test_the_noisy_vector_would_bound_the_norm_no_better():
    """By the exact quantile of the noncentral χ, which covers as often: 100 trials, 3 s.e., unit noise."""
    rng = np.random.default_rng(0)
    quantile = -special.ndtri(0.05)

    def by_vector(square, dim):
        def missing(norm):
            return stats.ncx2.cdf(square, dim, norm**2) - 0.05

        top = math.sqrt(square) + 6.0
        return 0.0 if missing(1e-9) <= 0 else optimize.brentq(missing, 1e-9, top)

    for dim, norm in ((2, 0.5), (10, 8.0), (58, 0.5)):
        vectors = rng.standard_normal((100, dim))
        vectors[:, 0] += norm
        wide = np.array([by_vector(s, dim) for s in np.sum(vectors**2, axis=1)])
        narrow = np.maximum(norm + rng.standard_normal(100) + quantile, 0.0)
        error = math.hypot(wide.std(), narrow.std()) / math.sqrt(100)
        assert np.mean(narrow) <= np.mean(wide) + 3 * error
    assert np.mean(wide) - np.mean(narrow) > 1.0  # of short gradients, at d = 58


def test_a_saddle_and_a_minimum_are_told_apart():
    made = fixtures.two_wells(jax.random.key(0), 4000, 1, DIM, jitter=0.0)
    plan = certify.plan(made.problem(), Budget(1.0, 1e-6))
    run = jax.jit(lambda p: certify.solve(jax.random.key(1), plan, made.objective, made.data, p))
    minimum, saddle = run(jnp.asarray(made.minimizer)), run(jnp.zeros(DIM))
    assert float(minimum.released["stationarity"]) < 0.02
    assert float(saddle.released["stationarity"]) > 0.1
    assert float(saddle.released["gradient_bound"]) < 0.02
    np.testing.assert_array_equal(minimum.params, made.minimizer)


def test_a_point_that_is_no_number_gets_no_certificate():
    solve = jax.jit(
        lambda p: certify.solve(jax.random.key(0), plan_of(), wells().objective, wells().data, p)
    )
    found = solve(jnp.asarray([0.0, jnp.nan]))
    assert float(found.released["gradient_bound"]) == math.inf
    assert float(found.released["curvature_bound"]) == -math.inf
    assert float(found.released["stationarity"]) == math.inf
    assert bool(jnp.isfinite(found.released["gradient_norm"]))
    assert int(found.status) == Status.DIVERGED


def test_a_regularizer_does_not_round_users_by_more_than_the_noise():
    """At 2^52 norms are whole numbers or halves: which one, noise of 0.1 does not hide."""
    loss = losses.logistic(1.0, ridge=1.0)._replace(linear_model=None, loss=lambda p, z: p @ z)
    plan = certify.plan(Problem(loss, num_users=100, dim=2), Budget(1.0, 1e-5))
    solve = jax.jit(lambda data, p: certify.solve(jax.random.key(0), plan, loss, data, p).released)
    one = np.zeros((100, 1, 2))
    one[:51, :, 0] = 1.0
    other = np.concatenate([-one[:1], one[1:]])
    for length in (300.0, 2.0**30, 2.0**52, 1e200):
        found = [solve(UserData(rows), jnp.asarray([length, 0.0])) for rows in (one, other)]
        assert all(float(each["gradient_bound"]) == math.inf for each in found)
        assert float(found[0]["gradient_norm"]) == float(found[1]["gradient_norm"])
    assert float(solve(UserData(one), jnp.asarray([200.0, 0.0]))["gradient_bound"]) < 202.0
    bent = plan.replace(least_curvature=-1e-3, most_curvature=1e-3)
    found = certify.solve(jax.random.key(0), bent, loss, UserData(one), jnp.zeros(2)).released
    assert float(found["curvature_bound"]) == -math.inf


def test_networks_and_ridges_and_losses_without_a_third_derivative():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 2, 2)).astype(np.float32)
    data = UserData(Example(rows, (rows[..., 0] > 0).astype(np.float32)))
    loss = nonconvex_losses.tanh_network(1.0, 2, 1.0, ridge=0.1)
    point = Network(0.3 * jnp.ones((2, 2)), 0.2 * jnp.ones(2))
    plan = certify.plan(Problem(loss, num_users=50, items_per_user=2, dim=6), Budget(1e6, 1e-5))
    found = jax.jit(lambda p: certify.solve(jax.random.key(0), plan, loss, data, p).released)(point)

    def risk(p):
        each = jax.vmap(jax.vmap(loss.loss, (None, 0)), (None, 0))(p, data.items)
        return jnp.mean(each) + loss.regularizer(p)

    flat, restored = jax.flatten_util.ravel_pytree(point)

    def flat_risk(numbers):
        return risk(restored(numbers))

    gradient, hessian = jax.jit(lambda f: (jax.grad(flat_risk)(f), jax.hessian(flat_risk)(f)))(flat)
    np.testing.assert_allclose(found["gradient_norm"], np.linalg.norm(gradient), atol=2e-3)
    np.testing.assert_allclose(found["least_curvature"], np.linalg.eigvalsh(hessian)[0], atol=2e-3)
    huber = losses.huber(1.0)
    plan = certify.plan(Problem(huber, num_users=50, items_per_user=2, dim=2), Budget(1.0, 1e-5))
    shapes = jax.eval_shape(
        lambda p: certify.solve(jax.random.key(0), plan, huber, data, p).released, jnp.zeros(2)
    )
    assert "stationarity" not in shapes


def test_numbers_compile_nothing():
    made, traces = wells(), []

    def once(key, plan):
        traces.append(None)
        return certify.solve(key, plan, made.objective, made.data, jnp.zeros(DIM)).released

    solve = jax.jit(once)
    for seed, changes in enumerate(
        ({}, {"noise_multiplier": 7.0}, {"failure": 0.1}, {"clip_norm": 0.5})
    ):
        solve(jax.random.key(seed), plan_of().replace(**changes))
    assert len(traces) == 1


def test_refusals():
    with pytest.raises(ValueError, match="smoothness"):
        certify.plan(Problem(losses.hinge(1.0), num_users=100, dim=2), Budget(1.0, 1e-5))
    with pytest.raises(ValueError, match=r"problem\.dim"):
        certify.plan(Problem(losses.logistic(1.0), num_users=100, dim=513), Budget(1.0, 1e-5))
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        plan_of()
