"""Private AC-SA: its schedule, its exact law on quadratics, its bounds."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from dpsco_jax import Budget, Problem, transforms
from dpsco_jax.geometry import domains, smoothing
from dpsco_jax.privacy.releases import GaussianReleases
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import methods
from dpsco_jax.solvers.first_order import FirstOrder
from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.means import Clipped
from tests.support.planned import planned

NONSMOOTH = losses.absolute(feature_bound=1.0, domain=domains.ball(1.0))
SMOOTH = losses.logistic(feature_bound=1.0, domain=domains.ball(2.0))
BUDGET = {"num_users": 1000, "dim": 10, "epsilon": 1.0, "delta": 1e-5}


def _plan(objective=SMOOTH, **changes):
    return planned(private_ac_sa.plan, objective, **(BUDGET | changes))


# What is decided is the same for the noise of either accountant; this one takes no time.
_quick = functools.partial(_plan, accountant="rdp")


def _problem(users, dim, epsilon, delta, paper, objective=NONSMOOTH, distance=1.0):
    problem = Problem(objective, num_users=users, dim=dim, distance=distance)
    budget = Budget(epsilon, delta, allow_large_delta=True)
    return private_ac_sa._Setting(problem, budget, paper, 1.0)


# N, d, ε, δ, then T and B of the paper, then T and B as tightened.
SIZES = [
    (1e3, 10, 0.5, 1e-5, 8287, 9, 663, 12),
    (1e4, 100, 0.5, 1e-6, 42539, 35, 3404, 44),
    (1e4, 1e4, 0.5, 1e-6, 13452, 61, 1077, 69),
    (1e5, 1e3, 0.5, 1e-7, 221470, 151, 17718, 177),
    (1e6, 1e6, 0.5, 1e-8, 368398, 1166, 29472, 1303),
]


@pytest.mark.parametrize("row", SIZES)
def test_sizes_of_the_theorem(row):
    users, dim, epsilon, delta, *expected = row
    found = []
    for paper in (True, False):
        problem = _problem(int(users), int(dim), epsilon, delta, paper)
        found += private_ac_sa._sizes(problem, "direct", None, None)
    assert found == expected


def test_noise_of_the_paper_and_its_accountant():
    plan = _plan(NONSMOOTH, constants="paper", epsilon=0.5)
    n, t, b = plan.num_users, plan.num_steps, plan.batch_size
    sigma = 12 * b * math.sqrt(t * math.log(1e5)) / (0.5 * n)  # for G = 1
    assert plan.noise_multiplier == pytest.approx(sigma / 2, rel=1e-6)
    # tCDP is loose by a factor of about 4 in the noise.
    assert plan.certificate().epsilon < 0.2
    assert plan.smoothing_radius == pytest.approx(2.0 * 10**0.25 / t)
    with pytest.raises(ValueError, match="epsilon must be at most num_steps"):
        _plan(NONSMOOTH, constants="paper", epsilon=0.5, num_steps=10, batch_size=10)
    with pytest.raises(ValueError, match=r"sampling_fraction must be in \(0, 0.1\]"):
        _plan(NONSMOOTH, constants="paper", epsilon=0.5, num_steps=100, batch_size=200)


def test_smoothing_only_where_it_helps():
    assert _quick(NONSMOOTH).smoothing_radius is not None
    assert _quick(SMOOTH).smoothing_radius is None
    # A smooth loss with a constant worse than that of the ball is smoothed all the same.
    assert _quick(SMOOTH._replace(smoothness=1e6)).smoothing_radius is not None
    assert _plan(SMOOTH, constants="paper", epsilon=0.5).smoothing_radius is not None
    assert _quick(SMOOTH).num_steps < _quick(NONSMOOTH).num_steps


def test_bounds_are_those_of_ac_sa():
    plan = _plan(NONSMOOTH)
    t, b, g, r0 = plan.num_steps, plan.batch_size, 1.0, 2.0
    variance = g**2 / b + 10 * (2 * g * plan.noise_multiplier / b) ** 2
    radius = r0 * math.sqrt(4 * smoothing.smoothness_factor(10)) / t
    own = smoothing.ball_smoothness(g, radius, 10)
    bound = smoothing.ball_bias(g, radius, 10) + 4 * own * r0**2 / (t * (t + 1))
    bound += 2 * r0 * math.sqrt(variance * (2 * t + 1) / (3 * t * (t + 1)))
    # Γ is the larger of its two candidates: at most the sum of both terms, at least three quarters.
    assert 0.75 * bound < plan.excess_bound <= bound
    assert plan.smoothing_radius == pytest.approx(radius)

    plan = _plan(NONSMOOTH._replace(ridge=0.5))
    assert ("policy", "strongly_convex") in plan.remarks
    t, b = plan.num_steps, plan.batch_size
    variance = 1 / b + 10 * (2 * plan.noise_multiplier / b) ** 2
    radius = r0 * math.sqrt(2 * smoothing.smoothness_factor(10)) / t
    own = smoothing.ball_smoothness(g, radius, 10) + 0.5
    assert plan.smoothness == pytest.approx(own)
    bound = smoothing.ball_bias(g, radius, 10) + 2 * own * r0**2 / (t * (t + 1))
    assert plan.excess_bound == pytest.approx(bound + 2 * variance / (0.5 * (t + 1)))


def test_the_policy_that_proves_more_is_taken():
    assert ("policy", "direct") in _quick(SMOOTH._replace(ridge=1e-6)).remarks
    assert ("policy", "strongly_convex") in _quick(SMOOTH._replace(ridge=1.0)).remarks
    regularized = _quick(NONSMOOTH, policy="regularize")
    assert ("policy", "regularize") in regularized.remarks
    assert regularized.strong_convexity == regularized.pull > 0
    assert regularized.excess_bound < 2 * _quick(NONSMOOTH).excess_bound


def test_clipping_below_the_lipschitz_constant_proves_nothing():
    plan = _quick(clip_norm=0.1)
    assert plan.clip_norm == 0.1
    assert plan.excess_bound == math.inf
    with pytest.raises(ValueError, match=r"clip_norm must be .*at least 1"):
        _plan(clip_norm=0.1, constants="paper", epsilon=0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.6, "constants": "paper"}, r"epsilon must be in \(0, 0.5\)"),
        ({"policy": "strongly_convex"}, r"strong_convexity must be in \(0, inf\)"),
        ({"batch_size": 1001}, r"batch_size must be an integer in \[1, 1000\]"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        _plan(**changes)


N, B, T, DIM, MU, KAPPA = 10, 4, 4, 2, 0.5, 3.0
Z = np.random.default_rng(1).normal(size=(N, DIM)).astype(np.float32)
QUADRATIC = Objective(
    loss=lambda w, z: 0.5 * MU * jnp.sum(jnp.square(w - z)),
    lipschitz=20.0,
    smoothness=KAPPA * MU,
    domain=domains.whole_space(),
    loss_strong_convexity=MU,
)
SIGMA, RADIUS = 0.8, 0.7
EXACT_PLAN = FirstOrder(
    title="exact",
    dim=DIM,
    mean=Clipped(64, "user", GaussianReleases(N, B, T, "fixed", SIGMA / 40, 1e-5), 20.0, RADIUS),
    method=methods.AcSa(KAPPA * MU, MU),
    pull=0.0,
    epsilon=1.0,
    delta=1e-5,
    excess_bound=1.0,
)


def _runs(plan, keys, objective=QUADRATIC, start=(2.0, -1.0)):
    data = UserData(jnp.asarray(Z)[:, None], None)
    run = jax.jit(
        jax.vmap(
            lambda key: private_ac_sa.solve(key, plan, objective, data, jnp.asarray(start)).params
        )
    )
    return np.asarray(run(jax.random.split(jax.random.key(0), keys)), np.float64)


def test_mean_and_variance_on_a_quadratic():
    """Batches, shifts, noise and AC-SA together: the law of the result is known in closed form."""
    reported = _runs(EXACT_PLAN, 20_000)
    j = np.arange(1, T + 1)
    shrink = 2 / (T * (T + 1)) * np.sum(4 * KAPPA * j / (j * (j + 1) + 4 * KAPPA))
    mean = Z.mean(0) + shrink * (np.array([2.0, -1.0]) - Z.mean(0))
    tails = np.array([np.sum((j / (j * (j + 1) + 4 * KAPPA))[t - 1 :]) for t in j])
    weights = 4 * j / (MU * T * (T + 1)) * tails
    per_step = (N - B) / (N - 1) * Z.var(0) / B + RADIUS**2 / ((DIM + 2) * B)
    variance = np.sum(weights**2) * (MU**2 * per_step + SIGMA**2 / B**2)
    np.testing.assert_allclose(reported.mean(0), mean, atol=5 * np.sqrt(variance.max() / 20_000))
    # The relative standard error of a variance from 20,000 draws is 1 %.
    np.testing.assert_allclose(reported.var(0), variance, rtol=0.04)


def test_without_noise_it_is_deterministic_ac_sa_with_all_regularizers():
    plan = EXACT_PLAN.replace(
        batch_size=N,
        smoothing_radius=None,
        noise_multiplier=1e-12,
        pull=0.5,
        strong_convexity=MU + 0.5 + 0.25,
        smoothness=2.0 * (MU + 0.5 + 0.25),
    )
    start = np.array([2.0, -1.0])
    # The quadratic, the ridge at zero and the regularizer at the start, all of isotropic curvature.
    reported = _runs(plan, 1, QUADRATIC._replace(ridge=0.25), start)[0]
    curvature = MU + 0.25 + 0.5
    minimizer = (MU * Z.mean(0) + 0.5 * start) / curvature
    j, kappa = np.arange(1, T + 1), 2.0
    shrink = 2 / (T * (T + 1)) * np.sum(4 * kappa * j / (j * (j + 1) + 4 * kappa))
    np.testing.assert_allclose(reported, minimizer + shrink * (start - minimizer), rtol=1e-4)


@functools.partial(jax.jit, static_argnums=3)
def _noiseless(directions, offsets, start, dim, num_steps, smoothness, radius):
    """The aggregate after AC-SA on the exact gradient of the smoothed mean of |<u_j, w> - b_j|."""
    method = transforms.ac_sa(smoothness)

    def gradient(w):
        # The derivative along u of the ball-smoothed |<u, w> - b|, in closed form.
        s = jnp.clip((directions @ w - offsets) / radius, -1.0, 1.0)
        slopes = jnp.sign(s) * jax.scipy.special.betainc(0.5, (dim + 1) / 2, jnp.square(s))
        return directions.T @ slopes / len(offsets)

    def step(_, carry):
        w, state = carry
        updates, state = method.update(gradient(w), state, w)
        return w + updates, state

    w, state = jax.lax.fori_loop(0, num_steps, step, (start, method.init(start)))
    return transforms.ac_sa_eval_params(state, w)


@pytest.mark.parametrize("kinks", [1, 6])
def test_rate_with_exact_smoothed_gradients(kinks):
    """Excess ≤ 2√2·√c_d·G·R/T with r = R√(2c_d)/T, μ = 0, Γ = L = c_d·G/r: the smoothing bias counts once."""
    rng, dim, radius_of_start = np.random.default_rng(0), 5, 2.0
    directions = rng.normal(size=(kinks, dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    offsets = 0.3 * rng.normal(size=kinks)
    # min (1/J)Σ t_j over t_j ≥ ±(<u_j, w> - b_j), a linear program.
    rows = np.block([[directions, -np.eye(kinks)], [-directions, -np.eye(kinks)]])
    cost = np.concatenate([np.zeros(dim), np.full(kinks, 1 / kinks)])
    best = scipy.optimize.linprog(
        cost, rows, np.concatenate([offsets, -offsets]), bounds=(None, None)
    )
    arrow = rng.normal(size=dim) if kinks > 1 else directions[0]
    start = best.x[:dim] + radius_of_start * arrow / np.linalg.norm(arrow)
    factor = smoothing.smoothness_factor(dim)
    for num_steps in (50, 100, 200, 400, 800):
        problem = _problem(1, dim, 1.0, 0.5, False, distance=radius_of_start)
        radius = private_ac_sa._radius(problem, "strongly_convex", num_steps)
        assert radius == pytest.approx(radius_of_start * math.sqrt(2 * factor) / num_steps)
        found = _noiseless(
            jnp.float32(directions),
            jnp.float32(offsets),
            jnp.float32(start),
            dim,
            num_steps,
            factor / radius,
            radius,
        )
        risk = np.mean(np.abs(directions @ np.asarray(found, np.float64) - offsets))
        assert risk - best.fun <= 2 * math.sqrt(2 * factor) * radius_of_start / num_steps
