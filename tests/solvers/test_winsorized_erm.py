"""ERM on winsorized means: the descent that it is, bounds that hold, budgets met, nothing leaks."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers._schedules import gradient_descent
from dpsco_jax.solvers.user_level import winsorized_erm
from tests.support.planned import planned

USERS, ITEMS, DIM, STEPS = 200, 4, 2, 4
QUADRATIC = Objective(
    loss=lambda w, z: 0.5 * jnp.sum((w - z) ** 2),
    lipschitz=2.0,
    smoothness=1.0,
    domain=domains.ball(1.0),
    loss_strong_convexity=1.0,
)
LOGISTIC = losses.logistic(feature_bound=1.0, domain=domains.ball(2.0))
SIZES = {"num_users": USERS, "items_per_user": ITEMS, "dim": DIM, "epsilon": 20.0, "delta": 1e-5}


def points(seed=0, center=0.3, spread=0.1):
    rng = np.random.default_rng(seed)
    items = center + spread * rng.normal(size=(USERS, ITEMS, DIM))
    return UserData(jnp.asarray(items, jnp.float32), None)


@functools.cache
def plan_of(form="recentred", method="strongly_convex", **changes):
    settings = SIZES | {"num_steps": STEPS, "radius": 0.3, "form": form, "method": method}
    return planned(winsorized_erm.plan, QUADRATIC, **(settings | changes))


def noiseless(plan):
    releases = dataclasses.replace(plan.releases, noise_multiplier=1e-9, bound=50.0)
    return plan.replace(releases=releases)


@jax.jit
def solve(key, plan, data, start):
    return winsorized_erm.solve(key, plan, QUADRATIC, data, start)


@pytest.mark.parametrize("method", ["convex", "strongly_convex"])
def test_without_noise_it_is_projected_gradient_descent(method):
    plan, data = noiseless(plan_of("clipped", method)), points(center=0.9)
    mean = np.mean(np.asarray(data.items), axis=(0, 1))
    point, average = np.zeros(DIM), np.zeros(DIM)
    for step, share in zip(plan.step_sizes, plan.shares, strict=True):
        point = point - step * (point - mean)
        point = point / max(1.0, np.linalg.norm(point))
        average = average + share * (point - average)
    found = solve(jax.random.key(0), plan, data, jnp.zeros(DIM)).params
    np.testing.assert_allclose(found, average, atol=1e-5)


def test_nonconvex_returns_a_uniformly_drawn_iterate():
    plan, data = noiseless(plan_of("clipped", "nonconvex")), points()
    mean = np.mean(np.asarray(data.items), axis=(0, 1))
    iterates = [np.zeros(DIM)]
    for step in plan.step_sizes[:-1]:
        iterates.append(iterates[-1] - step * (iterates[-1] - mean))
    keys = jax.random.split(jax.random.key(0), 80)
    many = jax.jit(jax.vmap(solve, in_axes=(0, None, None, None)))
    found = np.asarray(many(keys, plan, data, jnp.zeros(DIM)).params)
    distance = np.linalg.norm(found[:, None] - np.asarray(iterates)[None], axis=2)
    assert distance.min(1).max() < 1e-5
    counts = np.bincount(distance.argmin(1), minlength=STEPS)
    assert counts.min() >= 8
    assert plan.excess_bound == np.inf
    assert np.isfinite(plan.stationarity_bound)


@pytest.mark.parametrize(
    ("smoothness", "strong", "variance", "steps", "inside"),
    [(1, 0.1, 0.01, 100, True), (1, 0.01, 0.1, 40, True), (5, 1, 0.5, 200, False), (1, 1, 0.3, 30, True)],
)  # fmt: skip
def test_bounds_hold_on_noisy_quadratics(smoothness, strong, variance, steps, inside):
    """Interior and boundary minimizers; the bounds are within a factor that a rate would forgive."""
    rng, dim, chains = np.random.default_rng(0), 6, 500
    curvature = np.geomspace(strong, smoothness, dim)
    target = np.eye(dim)[0] * (0.8 if inside else 1.5)
    schedules = [
        gradient_descent.strongly_convex(smoothness, strong, 1.0, variance, steps),
        gradient_descent.convex(smoothness, 1.0, variance, steps),
    ]

    def risk(x):
        return 0.5 * np.sum(curvature * (x - target) ** 2, axis=-1)

    def project(x):
        return x / np.maximum(1, np.linalg.norm(x, axis=-1, keepdims=True))

    best = np.zeros((1, dim))
    for _ in range(3000):
        best = project(best - curvature * (best - target) / smoothness)
    for schedule in schedules:
        point = average = np.zeros((chains, dim))
        for step, share in zip(schedule.step_sizes, schedule.shares, strict=True):
            noise = rng.normal(size=point.shape) * np.sqrt(variance / dim)
            point = project(point - step * (curvature * (point - target) + noise))
            average = average + share * (point - average)
        excess = risk(average).mean() - risk(best)[0]
        assert 0.02 * schedule.bound < excess < schedule.bound
    # The printed bound, 16·HR²·exp(-μT/2H) + 36ν²/(μT), is never the smaller one.
    printed = 16 * smoothness * np.exp(-strong * steps / (2 * smoothness))
    assert schedules[0].bound < printed + 36 * variance / (strong * steps)


def test_many_items_choose_two_steps_and_less_noise():
    def variance(items, **kw):
        plan = planned(winsorized_erm.plan,
            LOGISTIC, num_users=20_000, items_per_user=items, dim=8, epsilon=1.0, delta=1e-6,
            num_steps=20, **kw,
        )  # fmt: skip
        return plan.releases.form, plan.releases.noise_variance

    assert variance(10)[0] == "clipped"
    form, noise = variance(2000)
    assert form in ("refined", "recentred")
    assert noise < variance(2000, form="clipped")[1] / 10
    # A radius of one's own is private, and needs fewer items.
    assert variance(10, radius=0.1)[0] != "clipped"


def test_steps_and_method_are_chosen_by_the_bound():
    settings = SIZES | {"epsilon": 2.0, "num_users": 2000}
    chosen = planned(winsorized_erm.plan, LOGISTIC, **settings)
    assert dict(chosen.remarks)["steps"] == "convex"
    others = [
        planned(winsorized_erm.plan, LOGISTIC, num_steps=s, **settings) for s in (1, 10, 100, 1000)
    ]
    assert chosen.excess_bound <= 1.06 * min(p.excess_bound for p in others)
    ridge = LOGISTIC._replace(ridge=0.1)
    strong = planned(winsorized_erm.plan, ridge, **settings)
    assert dict(strong.remarks)["steps"] == "strongly_convex"
    paper = planned(
        winsorized_erm.plan,
        LOGISTIC,
        num_steps=3,
        constants="paper",
        **(settings | {"epsilon": 0.9}),
    )
    assert paper.releases.form == "laplace"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"method": "strongly_convex"}, "strong_convexity"),
        ({"num_users": 20, "epsilon": 0.5, "form": "refined"}, "num_users must be at least"),
    ],
)
def test_arguments(changes, named):
    with pytest.raises(ValueError, match=named):
        planned(winsorized_erm.plan, LOGISTIC, **(SIZES | changes))


def test_more_arguments():
    with pytest.raises(ValueError, match="smoothness"):
        planned(winsorized_erm.plan, LOGISTIC._replace(smoothness=None), **SIZES)
    with pytest.raises(ValueError, match="distance"):
        planned(winsorized_erm.plan, LOGISTIC._replace(domain=domains.whole_space()), **SIZES)
