"""Drift-triggered Spider: its schedule, estimate, batches, pushes and bound."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem, transforms
from dpsco_jax.geometry import domains
from dpsco_jax.problems import fixtures, losses
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.nonconvex import _drift_schedule, drift_spider
from dpsco_jax.solvers.nonconvex._drift_schedule import Goal
from dpsco_jax.solvers.nonconvex._spider_mean import SpiderReleases

CONCENTRATED = 2 * (math.sqrt(math.log(1e6) + 1) - math.sqrt(math.log(1e6))) ** 2
WELLS = fixtures.two_wells(jax.random.key(0), 400, 1, 3, jitter=0.0)


def _goal(users, one_pass=False, lipschitz=1.0, dim=10):
    return Goal(1.0, lipschitz, 1.0, 1.0, dim, users, 2.0, 0.05, one_pass)


@pytest.mark.parametrize(
    ("users", "gamma"),
    [
        (10**3, 1.91),
        (3000, 0.935),
        (10**4, 0.425),
        (10**5, 0.0955),
        (10**6, 0.0214),
        (10**7, 0.00476),
    ],
)
def test_the_papers_constants_prove_what_was_computed_by_hand(users, gamma):
    assert _drift_schedule.paper_goal(_goal(users), CONCENTRATED)[0] == pytest.approx(
        gamma, rel=0.01
    )


@pytest.mark.parametrize(
    ("users", "gamma"), [(10**4, 2.33), (10**5, 1.03), (10**6, 0.476), (10**7, 0.224)]
)
def test_the_papers_constants_of_one_pass(users, gamma):
    """The half of the users that is left for the choice of a point takes no part."""
    found = _drift_schedule.paper_goal(_goal(users // 2, one_pass=True), CONCENTRATED)
    assert found[0] == pytest.approx(gamma, rel=0.01)


def test_the_papers_goal_falls_by_the_power_two_thirds():
    logs = np.linspace(4, 11, 8)
    found = [_drift_schedule.paper_goal(_goal(int(10**x)), CONCENTRATED)[0] for x in logs]
    slope = np.polyfit(logs, np.log10(found), 1)[0]
    assert -0.668 <= slope <= -0.645


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("users", [10**4, 10**6])
def test_the_schedule_keeps_its_budget_and_proves_more_than_the_papers(users, one_pass):
    """Against the proof in numbers, in the other order of its steps."""
    goal = _goal(users, one_pass)
    found = _drift_schedule.schedule(goal, CONCENTRATED, [3, 30, 100, 300, 3000, 30_000])
    paper = _drift_schedule.paper_goal(goal, CONCENTRATED)[0]
    assert found.bound < paper
    steps, most = found.num_steps, found.most_refreshes
    first, other = found.batch_sizes
    if one_pass:
        assert most * first + (steps - most) * other <= users
        assert first >= other
        assert found.gradient_share == found.difference_share == CONCENTRATED
    else:
        spent = most * found.gradient_share + max(steps - most, 1) * found.difference_share
        assert spent == pytest.approx(CONCENTRATED)
        assert found.gradient_share >= found.difference_share
    # Chances of all deviations together, at the radii that the error leaves for each.
    e, moved = found.error, 0.0
    fall = 2.0 + steps * e**2
    moved = (math.sqrt(fall) + math.sqrt(steps) * e) ** 2
    assert 1 + math.floor(moved / found.drift) <= most or most == steps
    assert found.bound == pytest.approx(math.sqrt(fall / steps) + 2 * e)


def test_no_estimate_is_off_by_more_than_the_schedule_says():
    """Noise alone: refreshes and Brownian motion up to a drift of κ, 20,000 runs of a small schedule."""
    found = _drift_schedule.schedule(_goal(2000, dim=4), 1.0, [40], [0.02])
    rng = np.random.default_rng(0)
    worst = np.zeros(20_000)
    sigma = [2 / 2000 / math.sqrt(s) for s in (found.gradient_share, found.difference_share)]
    for _ in range(found.most_refreshes):
        off = sigma[0] * rng.normal(size=(20_000, 4))
        for _ in range(9):
            worst = np.maximum(worst, np.linalg.norm(off, axis=1))
            off += sigma[1] * math.sqrt(found.drift / 8) * rng.normal(size=(20_000, 4))
        worst = np.maximum(worst, 0)
    off_too_often = np.mean(worst > found.error)
    assert off_too_often <= 0.05
    # The error is no idle bound: at four fifths of it, most runs are beyond.
    assert np.mean(worst > 0.6 * found.error) > 0.2


@functools.cache
def _plan(**given):
    settings = {"initial_gap": 1.0, "num_steps": 30} | given
    budget = settings.pop("budget", Budget(4.0, 1e-6))
    problem = Problem(WELLS.objective, num_users=400, dim=3, items_per_user=1)
    return drift_spider.plan(problem, budget, **settings)


def _seen(params, state, estimate):
    (found,) = (
        node
        for node in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, transforms.SpiderState))
        if isinstance(node, transforms.SpiderState)
    )
    return params, found.estimate, found.last


@functools.cache
def _solver():
    def run(key, plan, start):
        return drift_spider.solve(key, plan, WELLS.objective, WELLS.data, start, trace=_seen)

    return jax.jit(run)


def _quiet(plan, **given):
    return plan.replace(refresh_multiplier=1e-7, difference_multiplier=1e-7, **given)


def _gradient(w):
    rows = np.asarray(WELLS.data.items, np.float64)[:, 0]
    away = w - rows
    return np.mean(away * np.exp(-0.5 * np.sum(away**2, axis=1, keepdims=True)), axis=0)


START = jnp.asarray([0.3, 0.2, -0.1])


@pytest.mark.parametrize("kappa", [1e-30, 0.01, 1e30])
def test_without_noise_it_is_gradient_descent_however_often_it_begins_anew(kappa):
    solution = _solver()(jax.random.key(0), _quiet(_plan(drift=1e-6), every=kappa), START)
    points, estimates, step = solution.unprivate["trace"]
    w = np.asarray(START, np.float64)
    for t in range(30):
        np.testing.assert_allclose(estimates[t], _gradient(w), atol=2e-6)
        w = w - _gradient(w)
        np.testing.assert_allclose(points[t], w, atol=1e-5)
    # All steps begin anew, or the first alone.
    fresh = np.asarray(step.fresh)
    assert fresh[0]
    assert fresh.sum() == {1e-30: 30, 1e30: 1}.get(kappa, fresh.sum())
    assert 1 < fresh.sum() < 30 or kappa != 0.01


def test_of_no_drift_it_is_the_method_that_begins_anew_in_every_step_bit_by_bit():
    plan = _quiet(_plan(drift=1e-6), every=1e-30)
    mean = dataclasses.replace(plan.mean, refresh="periodic", every=1.0)
    points = [
        _solver()(jax.random.key(0), each, START).unprivate["trace"][0]
        for each in (plan, dataclasses.replace(plan, mean=mean))
    ]
    np.testing.assert_array_equal(*points)


def test_the_drift_is_that_of_the_steps_since_the_estimate_began():
    plan = _plan(drift=0.02)
    solution = _solver()(jax.random.key(3), plan, START)
    points, _, step = solution.unprivate["trace"]
    points = np.concatenate([np.asarray(START)[None], points]).astype(np.float64)
    drift, fresh = 0.0, []
    for t in range(30):
        drift += np.sum((points[t] - points[t - 1]) ** 2) if t else 0.0
        fresh.append(t == 0 or drift >= 0.02)
        drift = 0.0 if fresh[-1] else drift
    assert 3 < sum(fresh) < 20
    np.testing.assert_array_equal(step.fresh, fresh)


def test_the_point_of_the_shortest_estimate_is_reported():
    solution = _solver()(jax.random.key(4), _plan(drift=0.02), START)
    points, estimates, _ = solution.unprivate["trace"]
    at = int(np.argmin(np.linalg.norm(estimates, axis=1)))
    before = np.concatenate([np.asarray(START)[None], points])[at]
    np.testing.assert_array_equal(solution.params, before)


def test_the_gradient_is_below_the_bound_as_often_as_is_said():
    plan = _plan(
        budget=Budget(
            20.0,
            1e-3,
        ),
        drift=0.05,
    )
    run = jax.jit(
        jax.vmap(lambda key: drift_spider.solve(key, plan, WELLS.objective, WELLS.data, START))
    )
    found = run(jax.random.split(jax.random.key(1), 200))
    norms = [np.linalg.norm(_gradient(np.float64(w))) for w in found.params]
    assert np.mean(np.array(norms) > plan.gradient_norm_bound) <= 0.05
    assert np.all(found.status == 0)


@functools.cache
def _pushed(users, **given):
    made = fixtures.two_wells(jax.random.key(1), users, 1, 10, jitter=0.0)
    problem = Problem(made.objective, num_users=users, dim=10, items_per_user=1)
    plan = drift_spider.plan(
        problem,
        Budget(1.0, 1e-6),
        initial_gap=1.0,
        second_order=True,
        constants="paper",
        chunk_size=2000,
        accountant="rdp",
        **given,
    )

    def count(params, state, estimate):
        found = _seen(params, state, estimate)
        return optax.tree.get(state, "pushes"), found[2].fresh

    def run(key):
        solution = drift_spider.solve(
            key, plan, made.objective, made.data, jnp.zeros(10), trace=count
        )
        pushes, fresh = solution.unprivate["trace"]
        return solution.params, pushes[-1], fresh.sum(), solution.status

    return made, plan, jax.jit(lambda keys: jax.lax.map(run, keys))


@pytest.mark.slow
def test_all_seeds_leave_the_saddle_between_two_wells():
    made, plan, run = _pushed(10_000)
    points, pushes, fresh, status = run(jax.random.split(jax.random.key(2), 20))
    assert (plan.num_steps, plan.most_refreshes, plan.method.wait) == (84, 39, 10.0)
    assert np.all(status == 0)
    rows = np.asarray(made.data.items, np.float64)[:, 0]
    for w in np.asarray(points, np.float64):
        away = w - rows
        norm = np.linalg.norm(
            np.mean(away * np.exp(-0.5 * np.sum(away**2, axis=1, keepdims=True)), axis=0)
        )
        assert norm <= 0.363
        assert abs(w[0]) > 1
    # Pushes outnumber gradients asked for: where each asked for one, they would have to be paid for.
    assert np.all(pushes > fresh)


def test_in_one_pass_nobody_takes_part_twice():
    """User i pulls at coordinate i alone, harder the further the first coordinate has gone."""
    users = 60

    def loss(w, item):
        return 0.2 * (w[item] * (1 + 0.3 * jnp.sin(w[0])) + w[0])

    objective = Objective(loss, 1.0, 1.0, domains.whole_space(), loss_strong_convexity=-1.0)
    data = UserData(np.arange(1, users + 1)[:, None])
    problem = Problem(objective, num_users=users, dim=users + 1, items_per_user=1)
    plan = drift_spider.plan(
        problem, Budget(1.0, 1e-3), initial_gap=1.0, sampling="one_pass", num_steps=6, drift=0.05
    )
    plan = _quiet(plan)
    start = jnp.zeros(users + 1)
    solution = jax.jit(
        lambda key: drift_spider.solve(key, plan, objective, data, start, trace=_seen)
    )(jax.random.key(0))
    _, estimates, step = solution.unprivate["trace"]
    estimates, fresh = np.asarray(estimates)[:, 1:], np.asarray(step.fresh)
    assert fresh[0]
    assert 0 < fresh.sum() < 6
    seen, sizes = [], plan.mean.releases.batch_sizes
    for t in range(6):
        before = np.zeros(users) if fresh[t] else estimates[t - 1]
        there = np.flatnonzero(np.abs(estimates[t] - before) > 1e-5)
        assert len(there) == sizes[0 if fresh[t] else 1], t
        seen.extend(there)
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(("steps", "caps"), [(5, (2, 4)), (5, (5, 4)), (7, (3, 3)), (4, (9, 9))])
def test_releases_cost_what_the_dearest_order_of_them_does(steps, caps):
    """Of all orders of steps of both kinds, until one is one too many of its kind."""
    for multipliers in ((3.0, 5.0), (5.0, 3.0)):
        of = SpiderReleases(9, steps, *caps, (9, 9), *multipliers, 1e-5)
        dearest = 0.0
        for order in itertools.product((0, 1), repeat=steps):
            left, spent = list(caps), 0.0
            for kind in order:
                if left[kind] == 0:
                    break
                left[kind] -= 1
                spent += multipliers[kind] ** -2
            dearest = max(dearest, spent)
        assert of.joint_multiplier**-2 == pytest.approx(dearest, rel=1e-12)


def test_one_pass_costs_what_its_dearest_release_does():
    plan = _plan(sampling="one_pass", num_steps=5)
    of = plan.mean.releases
    assert of.refresh_multiplier == of.difference_multiplier
    assert plan.certificate().epsilon == pytest.approx(4.0, abs=1e-3)


def test_bad_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match=r"num_users must be at least \d+"):
        _plan(sampling="one_pass", num_steps=500)
    with pytest.raises(ValueError, match="relation"):
        _plan(relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="drift"):
        _plan(num_steps=None, constants="paper", drift=1.0)
    problem = Problem(losses.hinge(1.0), num_users=40, dim=3, items_per_user=1)
    with pytest.raises(ValueError, match="difference_clip"):
        drift_spider.plan(problem, Budget(1.0, 1e-5), initial_gap=1.0)
    with pytest.raises(ValueError, match="hessian_lipschitz"):
        drift_spider.plan(
            problem, Budget(1.0, 1e-5), initial_gap=1.0, difference_clip=1.0, second_order=True
        )


def test_without_noise_a_pass_is_still_off_by_what_its_users_add():
    """A step has at most all users, whose mean gradient is known to 2G·(2·log(4/ω)/n)^½ only."""
    found = _drift_schedule.schedule(_goal(10**4, one_pass=True), 1e12, [100])
    assert found.error > 2 * math.sqrt(2 * math.log(4 / 0.05) / 10**4)
    assert _drift_schedule.schedule(_goal(10**4), 1e12, [100]).error < 1e-4
