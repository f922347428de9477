"""Clipped gradient descent with a pull: its trajectory in NumPy, its bounds on linear losses, its plans."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.geometry.norms import clip_bias
from dpsco_jax.problems.objective import Example, LinearModel, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers._schedules import clipped_descent
from dpsco_jax.solvers.heavy_tailed import _terms, clipped_gd

USERS, DIM, STEPS, LAMBDA = 400, 5, 60, 1.0
# f(x) = ⟨g, x⟩: minimized within B(0, r), where everything is known.
_MODEL = LinearModel(lambda m, _: m, lambda m, _: jnp.ones_like(m), feature_bound=1e5)
LINEAR = Objective(
    lambda w, item: jnp.vdot(item.features, w), 1e5, 0.0, domains.ball(1.0), linear_model=_MODEL
)
BUDGET = Budget(2.0, 1e-6)
MOMENTS = Moments(2.4, 5.0, 4.5, 2.0)


@functools.cache
def planned(**settings):
    problem = Problem(LINEAR, num_users=USERS, dim=DIM, distance=1.0)
    given = {"moments": MOMENTS, "regularization": LAMBDA, "num_steps": STEPS} | settings
    return clipped_gd.plan(problem, BUDGET, **given)


def gradients(seed, tail=2.5, users=USERS):
    """Multivariate t: a normal vector over the root of a chi-square."""
    rng = np.random.default_rng(seed)
    spread = np.sqrt(tail / rng.chisquare(tail, (users, 1)))
    return (0.3 + rng.standard_normal((users, DIM)) * spread).astype(np.float32)


def users_of(rows):
    return UserData(Example(rows[:, None], np.zeros((len(rows), 1), np.float32)), None)


@functools.cache
def solver():
    def params(key, plan, rows):
        data = users_of(rows)
        return clipped_gd.solve(key, plan, LINEAR, data, jnp.zeros(DIM)).params

    return jax.jit(jax.vmap(params, (0, None, None)))


def clipped(rows, clip):
    return rows * np.minimum(1.0, clip / np.linalg.norm(rows, axis=1, keepdims=True))


def gap(rows, points, radius):
    """Of the mean loss and the pull, over the ball: its minimizer is -ḡ/λ, projected."""
    mean = rows.astype(float).mean(0)
    best = -mean / LAMBDA
    best = best * min(1.0, radius / np.linalg.norm(best))
    value = lambda x: x @ mean + LAMBDA / 2 * np.sum(x**2, -1)  # noqa: E731
    return value(np.asarray(points, float)) - value(best)


def quiet(plan):
    return plan.replace(noise_multiplier=jnp.float32(1e-6))


def test_without_noise_it_is_the_recursion_of_the_paper():
    rows, plan = gradients(0), planned(clip_norm=2.0, radius=0.2)
    mean, x, total = clipped(rows.astype(float), 2.0).mean(0), np.zeros(DIM), np.zeros(DIM)
    for t in range(STEPS):
        total += (t + 4) * x
        pull = 4 / (t + 1)
        x = (x - pull / LAMBDA * mean) / (1 + pull)
        x *= min(1.0, 0.2 / np.linalg.norm(x))
    found = solver()(jax.random.split(jax.random.key(0), 1), quiet(plan), rows)[0]
    # The clip is shorter by what sums may round.
    np.testing.assert_allclose(found, total / (STEPS * (STEPS + 7) / 2), rtol=1e-3)


@pytest.mark.parametrize(("clip", "share"), [(0.5, 0.4), (2.0, 0.2)])
def test_the_mean_gap_is_below_its_bound(clip, share):
    """The bias of these gradients is known; where it rules, the bound is twice what is seen."""
    rows, plan = gradients(1), planned(clip_norm=clip, radius=2.0, num_steps=400)
    points = solver()(jax.random.split(jax.random.key(1), 100), plan, rows)
    gaps = gap(rows, points, 2.0)
    v = DIM * (2 * float(plan.noise_multiplier) / USERS) ** 2
    bias = np.linalg.norm(rows.mean(0) - clipped(rows, clip).mean(0))
    bound = clipped_descent.descent(400) * clip**2 * (1 + v) / LAMBDA
    bound += clipped_descent.pulled(400) * LAMBDA * 4 + bias**2 / LAMBDA
    error = gaps.std() / math.sqrt(len(gaps))
    assert share * bound <= gaps.mean() - 3 * error <= bound
    assert gaps.min() > -1e-5


def test_without_noise_and_clip_the_gap_falls_as_one_over_the_steps():
    """Gradients of length C that point one way; where the printed bound is proven, it is larger."""
    rows = np.tile(np.float32([3.0, 0, 0, 0, 0]), (USERS, 1))
    for steps in (2, 8, 60):
        plan = quiet(planned(clip_norm=3.0, radius=1.0, num_steps=steps))
        found = solver()(jax.random.split(jax.random.key(0), 1), plan, rows)
        bound = clipped_descent.descent(steps) * 9 + clipped_descent.pulled(steps)
        assert 0 <= gap(rows, found, 1.0)[0] <= bound
    # The printed 7λr²/n + 32C²d/(λn²ρ) is for T >= n steps, where it is more.
    assert clipped_descent.pulled(USERS) < 7 / USERS
    v = 2 * DIM * USERS / USERS**2
    assert clipped_descent.descent(USERS) * (1 + v) < 32 * DIM / USERS**2 + 7 / USERS


def test_few_samples_exceed_the_bound():
    """Pareto slopes with 2.5 moments: of 200 samples and runs, a share of ``failure`` at most is above."""
    tail, order, failure = 2.5, 2.4, 0.3
    moments = Moments(order, (tail / (tail - order)) ** (1 / order), math.sqrt(5.0), tail / 1.5)
    plan = planned(moments=moments, failure=failure, radius=1.0)
    assert math.isfinite(plan.gap_bound)
    rng, above = np.random.default_rng(5), 0
    keys = jax.random.split(jax.random.key(5), 200)
    for key in keys:
        rows = rng.standard_normal((USERS, DIM))
        rows[:, 0] += 3.0
        lengths = rng.uniform(size=(USERS, 1)) ** (-1 / tail)
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True) * lengths).astype(np.float32)
        above += gap(rows, solver()(key[None], plan, rows), 1.0)[0] > plan.gap_bound
    assert above <= failure * 200 + 3 * math.sqrt(200 * failure * (1 - failure))


def test_the_clip_level_has_the_least_bound():
    plan = planned()
    best = float(plan.clip_norm)
    for factor in (0.5, 0.8, 1.25, 2.0):
        assert planned(clip_norm=factor * best).gap_bound > plan.gap_bound
    assert planned(moments=Moments(math.inf, 3.0)).clip_norm == 3.0
    bounded = planned(moments=Moments(math.inf, 3.0))
    assert math.isfinite(bounded.excess_bound)
    assert planned().excess_bound == math.inf


def test_the_paper_to_the_letter_and_what_it_costs():
    """σ² = 2C²T/(n²ρ) and C of the corollary; the conversion from ρ costs less than the budget."""
    plan = planned(constants="paper", num_steps=None)
    rho = _terms.rho_of(USERS, BUDGET, "paper", "pld")
    np.testing.assert_allclose(rho + 2 * math.sqrt(rho * math.log(1e6)), BUDGET.epsilon)
    steps = math.ceil(max(USERS, USERS**2 * rho / DIM))
    clip = 5.0 * (25 * USERS**2 * rho / (32 * DIM)) ** (1 / 4.8)
    assert plan.num_steps == steps
    np.testing.assert_allclose(plan.clip_norm, clip)
    np.testing.assert_allclose(
        plan.noise_stddev**2, 2 * clip**2 * steps / (USERS**2 * rho), rtol=1e-6
    )
    np.testing.assert_allclose(plan.radius, min(2 * 2.0 / LAMBDA, 2.0))
    assert 0.6 * BUDGET.epsilon < plan.certificate().epsilon < BUDGET.epsilon
    assert planned().certificate().epsilon > 0.999 * BUDGET.epsilon
    printed = 320 * 25 * (DIM / (USERS**2 * rho)) ** (1 - 1 / 2.4) + 35 * 4 / USERS
    np.testing.assert_allclose(plan.gap_bound, printed)
    # The bound needs that many steps, and the failure of the corollary.
    assert planned(constants="paper", num_steps=steps - 1).gap_bound == math.inf
    assert planned(constants="paper", num_steps=None, failure=0.3).gap_bound == math.inf


def test_nothing_is_proven_of_a_ridge_without_end_or_of_a_loss_that_is_not_convex():
    endless = {"ridge": 0.1, "domain": domains.whole_space()}
    for changes in (endless, {"loss_strong_convexity": -0.1, "ridge": 0.1}):
        problem = Problem(LINEAR._replace(**changes), num_users=USERS, dim=DIM)
        plan = clipped_gd.plan(
            problem, BUDGET, moments=Moments(math.inf, 3.0), regularization=1.0, num_steps=9
        )
        assert plan.gap_bound == plan.excess_bound == math.inf


def test_a_ridge_is_a_slope_that_is_known():
    """⟨g, x⟩ + (1/2)·‖x‖² with a pull of 1: minimized at -ḡ/2; the bound has G_1 and the length of x."""
    ridged, rows = LINEAR._replace(ridge=1.0), gradients(1)
    problem = Problem(ridged, num_users=USERS, dim=DIM, distance=1.0)
    given = {"moments": MOMENTS, "regularization": LAMBDA, "num_steps": 400, "clip_norm": 2.0}
    plan = clipped_gd.plan(problem, BUDGET, **given)
    assert plan.radius == min(MOMENTS.first + 1.0, 2.0) == 2.0
    assert plan.gap_bound > planned(num_steps=400, clip_norm=2.0).gap_bound

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def run(key, rows):
        return clipped_gd.solve(key, plan, ridged, users_of(rows), jnp.zeros(DIM)).params

    points = np.asarray(run(jax.random.split(jax.random.key(1), 50), rows), float)
    mean = rows.astype(float).mean(0)
    value = lambda x: x @ mean + np.sum(x**2, -1)  # noqa: E731
    gaps = value(points) - value(-mean / 2)
    v = DIM * (2 * float(plan.noise_multiplier) / USERS) ** 2
    bias = np.linalg.norm(rows.mean(0) - clipped(rows, 2.0).mean(0))
    bound = clipped_descent.descent(400) * (9 + 4 * v) + clipped_descent.pulled(400) + bias**2
    assert gaps.min() > -1e-5
    assert gaps.mean() + 3 * gaps.std() / math.sqrt(50) <= bound


def test_how_many_answers_may_fail():
    """The binomial tail, by its sum; the thesis has 0.45 for J = 400·log(1/failure)."""
    for copies, failure in ((1, 0.1), (3, 0.05), (5, 0.01), (100, 1e-3)):
        q = clipped_descent.share_that_may_fail(copies, failure)
        majority = math.ceil(0.51 * copies - 1e-9)
        assert np.isclose(scipy.stats.binom(copies, 1 - q).cdf(majority - 1), failure, rtol=1e-6)
    printed = math.ceil(400 * math.log(1 / 0.01))
    assert clipped_descent.share_that_may_fail(printed, 0.01) > 0.45


def test_strengths_of_phases_have_the_least_bound():
    """Added up phase by phase, at the chosen λ and at others."""
    distances, first, far = [3.0, 4.5, 7.0, 11.0], 2.0, 6.0

    def bound(strengths):
        starts = [far] + [c / s for c, s in zip(distances, strengths, strict=True)]
        moved = [s / 2 * e**2 for s, e in zip(strengths, starts, strict=False)]
        return first * starts[-1] + sum(moved)

    found = clipped_descent.localized(distances, first, far)
    np.testing.assert_allclose(found.bound, bound(found.strengths))
    for factor in (0.7, 1.4):
        assert bound([factor * s for s in found.strengths]) > found.bound
    kept = clipped_descent.localized(distances, first, far, strength=0.25)
    np.testing.assert_allclose(kept.strengths, 0.25 * 32.0 ** np.arange(1, 5))
    np.testing.assert_allclose(kept.bound, bound(kept.strengths))
    assert kept.bound >= found.bound


def test_the_sample_s_minimizer_is_near_the_population_s():
    """E‖y - x*‖² <= G_2²/(λ²m): of ½‖x - s‖² clipped to linear losses, the mean of m slopes over λ."""
    answer = clipped_descent.in_the_mean(Moments(math.inf, 3.0, 1.5, 1.0), 100, 10**6, 0.0, 3.0)
    stray = 1.5 / math.sqrt(100)
    assert stray <= answer.distance <= stray + math.sqrt(2 * (4.1 * 1.03 + 1) / 10**6)
    rng = np.random.default_rng(0)
    means = rng.choice([-1.5, 1.5], (2000, 100)).mean(1)
    np.testing.assert_allclose(np.mean(means**2), stray**2, rtol=0.1)


def test_the_bias_of_the_planner_is_the_sharp_one():
    level = float(clipped_descent._biases(MOMENTS, 7.0))
    np.testing.assert_allclose(level, clip_bias(5.0, 2.4, 7.0, sharp=True), rtol=1e-9)


def test_a_user_who_is_not_finite_counts_as_zero_and_trees_run():
    rows = gradients(3)
    rows[7] = np.nan
    plan = quiet(planned(clip_norm=2.0))
    found = solver()(jax.random.split(jax.random.key(0), 1), plan, rows)
    rows[7] = 0.0
    wanted = solver()(jax.random.split(jax.random.key(0), 1), plan, rows)
    np.testing.assert_array_equal(found, wanted)
    tree = LINEAR._replace(
        loss=lambda w, item: jnp.vdot(item.features, jnp.concatenate([w["a"], w["b"]])),
        linear_model=None,
    )
    start = {"a": jnp.zeros(2), "b": jnp.zeros(3)}
    plan = dataclasses.replace(plan, made_for=None)
    run = jax.jit(lambda key: clipped_gd.solve(key, plan, tree, users_of(rows), start).params)
    split = run(jax.random.key(0))
    np.testing.assert_allclose(np.concatenate([split["a"], split["b"]]), wanted[0], rtol=1e-3)
