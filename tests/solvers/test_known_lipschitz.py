"""Dummies for steep users: who is one, what they leave of the run, the plan's clip and bound."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers.heavy_tailed import _terms, known_lipschitz, localized_erm

DIM, USERS, STEPS, TAIL = 3, 40, 6, 4.5
OBJECTIVE = losses.squared(10.0, 100.0, 2.0)
PROBLEM = Problem(OBJECTIVE, num_users=USERS, dim=DIM, distance=1.0)
BUDGET = Budget(2.0, 1e-6)
# Of lengths whose tail is t^-4.5: E L^k = 4.5/(4.5 - k).
MOMENTS = Moments(4.0, 9**0.25, 1.8**0.5, 4.5 / 3.5)


@functools.cache
def planned(noise=None, **given):
    settings = {"moments": MOMENTS, "num_steps": STEPS, "num_phases": 1, "accountant": "rdp"}
    plan = known_lipschitz.plan(PROBLEM, BUDGET, **settings | given)
    return plan if noise is None else silent(plan, noise)


def silent(plan, noise):
    parts = tuple(part.replace(noise_multiplier=noise) for part in plan.parts)
    return plan.replace(parts=parts)


def rows(seed=0):
    """Rows of Pareto lengths in all directions, labels around a line."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((USERS, DIM))
    a *= rng.uniform(size=(USERS, 1)) ** (-1 / TAIL) / np.linalg.norm(a, axis=1, keepdims=True)
    return np.float32(a), np.float32(a[:, 0] + 0.5 * rng.standard_normal(USERS))


@jax.jit
def points(key, plan, a, y, slopes):
    data = UserData(Example(a[:, None], y[:, None]), None)
    return known_lipschitz.solve(key, plan, OBJECTIVE, data, jnp.zeros(DIM), slopes).params


def walked(a, y, kept, clip, strength, radius):
    """The whole run without noise, in NumPy: a sum over the kept, a divisor of everybody."""
    x, total = np.zeros(DIM), np.zeros(DIM)
    for t in range(STEPS):
        total += (t + 4) * x
        step, mean = 4 / (strength * (t + 1)), np.zeros(DIM)
        for row, label, in_it in zip(a, y, kept, strict=True):
            if in_it:
                g = (row @ x - label) * row
                mean += g * min(1.0, clip / np.linalg.norm(g)) / len(a)
        x = (x - step * mean) / (1 + step * strength)
        x *= min(1.0, min(radius, 2.0) / np.linalg.norm(x))
    return total / sum(t + 4 for t in range(STEPS))


def test_steep_users_count_as_zero_and_are_counted():
    """Above C, below 0 and no number: dummies; exactly C: none. The sum is over n, and clipped at C."""
    plan, (a, y) = planned(1e-7, clip_norm=1.5, strength=0.5), rows()
    slopes = np.full(USERS, 1.0, np.float32)
    slopes[:5] = 1.5, 1.5001, np.nan, -1.0, np.inf
    slopes[20:30] = 7.0
    kept = np.array([True, False, False, False, False, *[True] * 15, *[False] * 10, *[True] * 10])
    (part,) = plan.parts
    assert float(part.clip_norm) == 1.5
    wanted = walked(a, y, kept, 1.5, float(part.strength), MOMENTS.first / float(part.strength))
    found = points(jax.random.key(0), plan, a, y, slopes)
    # The clip is shorter by what sums may round, and a thousandth of it at most.
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-6)
    assert np.linalg.norm(wanted) > 1e-2
    # Gradients longer than C are met: slopes lie.
    assert np.max(np.linalg.norm(a, axis=1) * np.abs(y)) > 1.5


def test_nobody_steep_is_the_run_of_bounded_slopes_and_everybody_steep_sees_no_data():
    (a, y), (b, z) = rows(), rows(1)
    plan, key = planned(clip_norm=1.5), jax.random.key(3)
    data = UserData(Example(a[:, None], y[:, None]), np.ones((USERS, 1), bool))
    plain = jax.jit(
        lambda key, plan: localized_erm.solve(key, plan, OBJECTIVE, data, jnp.zeros(DIM)).params
    )(key, plan)
    flat, steep = np.ones(USERS, np.float32), np.full(USERS, 9.0, np.float32)
    np.testing.assert_allclose(points(key, plan, a, y, flat), plain, rtol=1e-6)
    alone = points(key, plan, a, y, steep)
    np.testing.assert_array_equal(alone, points(key, plan, b, z, steep))
    assert not np.allclose(alone, plain)


def test_the_clip_and_the_bound_of_the_plan():
    plan = planned(num_phases=2, constants="tight")
    rho = _terms.rho_of(USERS, BUDGET, "tight", "rdp")
    clip = MOMENTS.highest * (USERS**2 * rho / DIM) ** (1 / 8)
    np.testing.assert_allclose([float(part.clip_norm) for part in plan.parts], clip, rtol=1e-6)
    np.testing.assert_allclose(plan.details["largest_slope"], clip, rtol=1e-9)
    # The distance from the last point to a minimizer: two phases' radii and the first distance, at most 4.
    radii = sum(MOMENTS.first / float(part.strength) for part in plan.parts)
    lost = min(1.0 + radii, 4.0) * min(9.0 / clip**3, MOMENTS.first)
    np.testing.assert_allclose(plan.details["dummies_bound"], lost, rtol=1e-5)
    bounded = localized_erm.plan(
        Problem(losses.huber(clip), num_users=USERS, dim=DIM, distance=1.0),
        BUDGET,
        second_moment=MOMENTS.second,
        num_steps=STEPS,
        num_phases=2,
        constants="tight",
        accountant="rdp",
    )
    # That plan knows no G_1 below G_2.
    assert 0.9 * bounded.excess_bound < plan.excess_bound - lost < bounded.excess_bound
    assert "bounds on the slopes" in " ".join(plan.assumes)


def test_bounded_moments_have_no_dummies_and_bounds_fall_with_n():
    assert planned(moments=Moments(math.inf, 2.0)).details["dummies_bound"] == 0.0
    assert planned(moments=Moments(math.inf, 2.0), clip_norm=1.0).details["dummies_bound"] > 1.0
    ridged = losses.squared(1.0, 1.0, 1.0, ridge=0.1)
    ridged = ridged._replace(loss_strong_convexity=-0.1)
    ridged = Problem(ridged, num_users=USERS, dim=DIM)
    plan = known_lipschitz.plan(ridged, BUDGET, moments=MOMENTS, num_steps=2, num_phases=1)
    assert plan.excess_bound == math.inf
    few, many = (
        known_lipschitz.plan(
            Problem(OBJECTIVE, num_users=n, dim=DIM, distance=1.0),
            Budget(2.0, 1e-9),
            moments=MOMENTS,
            constants="tight",
            accountant="rdp",
        ).excess_bound
        for n in (10**3, 10**5)
    )
    assert many < 0.5 * few


def test_what_does_not_fit_is_refused():
    plan, (a, y) = planned(), rows()
    with pytest.raises(ValueError, match="slopes must be of shape"):
        points(jax.random.key(0), plan, a, y, np.ones(USERS - 1, np.float32))
    other = localized_erm.plan(PROBLEM, BUDGET, num_steps=2, num_phases=1, accountant="rdp")
    with pytest.raises(ValueError, match="a plan of known_lipschitz"):
        points(jax.random.key(0), other, a, y, np.ones(USERS, np.float32))
