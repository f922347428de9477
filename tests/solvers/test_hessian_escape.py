"""Descent that leaves saddles by its Hessian: its schedule, its jumps, and the points that it finds."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.oracles import hessians
from dpsco_jax.problems import fixtures, losses, nonconvex_losses
from dpsco_jax.solvers.nonconvex import _escape_schedule, hessian_escape
from dpsco_jax.solvers.nonconvex._drift_schedule import Goal
from dpsco_jax.solvers.nonconvex._escape_schedule import Bends
from dpsco_jax.solvers.solution import Status

WELLS = fixtures.two_wells(jax.random.key(0), 1000, 1, 2, jitter=0.0)
SADDLE = np.zeros(2, np.float32)


@functools.cache
def _plan(users=1000, **given):
    settings = {"budget": Budget(100.0, 1e-5)} | given
    problem = Problem(WELLS.objective, num_users=users, dim=2)
    return hessian_escape.plan(problem, settings.pop("budget"), **settings)


@functools.cache
def _solver(ridge):
    loss = WELLS.objective._replace(ridge=ridge)

    def solve(keys, plan, start, data):
        def one(key):
            return hessian_escape.solve(key, plan, loss, data, start)

        return jax.lax.map(one, keys)

    return jax.jit(solve)


def _run(seeds, plan, start=SADDLE, data=WELLS.data, ridge=0.0):
    keys = jax.random.split(jax.random.key(0), seeds)
    return _solver(ridge)(keys, plan, jnp.asarray(start), data)


def _statistics(w):
    """‖∇F‖ and λ_min at a point of the two wells ±1.5, by hand."""
    parts = []
    for sign in (-1.5, 1.5):
        away = np.asarray(w, float) - np.array([sign, 0.0])
        weight = np.exp(-0.5 * away @ away)
        parts.append((weight * away, weight * (np.eye(2) - np.outer(away, away))))
    gradient, hessian = (sum(part) / 2 for part in zip(*parts, strict=True))
    return np.linalg.norm(gradient), np.linalg.eigvalsh(hessian)[0]


def _goal(users, one_pass=False, dim=10):
    return Goal(1.0, 1.0, 1.0, 1.0, dim, users, 2.0, 0.05, one_pass)


def _least_fall(c, e, rho):
    """By search: how much the best jump lowers c·x²/2 - ρ·x³/6 - e·x."""
    x = np.linspace(0, 3 * c / rho, 200_001)
    return np.max(c * x**2 / 2 - rho * x**3 / 6 - e * x)


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("users", [10**5, 10**7])
def test_the_schedule_keeps_its_budget_and_proof(users, one_pass):
    goal, bends, budget = _goal(users, one_pass), Bends(2.0, 1.5, 2.0), 0.035
    found = _escape_schedule.schedule(goal, bends, budget, 10**6)
    e, h, alpha = found.gradient_error, found.hessian_error, found.stationarity
    gamma, s = math.sqrt(2.0 * alpha), alpha - e
    assert found.threshold == pytest.approx(s)
    jump = _least_fall(gamma - 2 * h, e, 2.0)
    step = s * (s - 2 * e) / 2
    assert jump > 0
    assert found.most_looks == 1 + math.floor(1 / jump)
    assert found.num_steps == 1 + math.floor(1 / min(jump, step))
    moved = 2 / (1 - 2 * e / s)
    beginnings = 1 + math.floor(1 / jump) + math.floor(moved / found.drift)
    assert found.most_refreshes == min(found.num_steps, beginnings)
    others = found.num_steps - found.most_refreshes
    g, k, m = found.shares
    first, other = found.batch_sizes
    if one_pass:
        spent = found.most_refreshes * first + others * other
        assert spent + found.most_looks * found.hessian_batch <= users
        assert g == k == m == budget
        assert first >= other
        deviation = 2 * 1.5 / found.hessian_batch / math.sqrt(budget)
        batch = found.hessian_batch
        log = math.log(8 * 10 * found.most_looks / 0.05)
        drawn = 4 * log / (3 * batch) + math.sqrt(2 * log / batch)
        tail = math.sqrt(2 * math.log(8 * found.most_looks / 0.05))
    else:
        spent = found.most_refreshes * g + max(others, 1) * k + found.most_looks * m
        assert spent == pytest.approx(budget, rel=1e-3) or spent <= budget
        assert g >= k
        deviation, drawn = 2 * 1.5 / users / math.sqrt(m), 0.0
        tail = math.sqrt(2 * math.log(4 * found.most_looks / 0.05))
    assert deviation * (math.sqrt(20) + tail) + drawn <= h * (1 + 1e-6)
    # A little less is not to be had: the search is near an optimum that does not know its grid.
    coarse = _escape_schedule.schedule(goal, bends, budget, 10**4)
    assert coarse.stationarity >= alpha * (1 - 1e-5)


def test_estimates_are_as_near_as_the_schedule_says():
    """Noise of a beginning and of differences up to a drift of κ, in all beginnings: 2,000 runs."""
    goal = _goal(1000, dim=3)
    found = _escape_schedule.schedule(goal, Bends(1.0, 1.0, 2.0), 4.0, 10**4)
    rng, worst = np.random.default_rng(0), np.zeros(2000)
    sigma = [2 / 1000 / math.sqrt(share) for share in found.shares[:2]]
    pieces = 6 if found.num_steps > found.most_refreshes else 1
    for _ in range(found.most_refreshes):
        off = sigma[0] * rng.normal(size=(2000, 3))
        worst = np.maximum(worst, np.linalg.norm(off, axis=1))
        for _ in range(pieces - 1):
            off += sigma[1] * math.sqrt(found.drift / 5) * rng.normal(size=(2000, 3))
            worst = np.maximum(worst, np.linalg.norm(off, axis=1))
    assert np.mean(worst > found.gradient_error) <= 0.025
    assert np.mean(worst > 0.5 * found.gradient_error) > 0.05


def test_noise_of_hessians_is_as_small_as_the_schedule_says():
    """Of 4,000 matrices the largest eigenvalue is beyond √(2d) + √(2·log(1/p)) less often than p."""
    dim, chance = 6, 0.05
    vectors = np.random.default_rng(1).normal(size=(4000, 21)).astype(np.float32)
    made = jax.jit(jax.vmap(lambda v: hessians.symmetric(v, dim)))(vectors)
    largest = np.linalg.eigvalsh(np.asarray(made))[:, -1]
    bound = _escape_schedule._spread(_goal(10, dim=dim)._replace(failure=1.0), 1 / chance)
    assert bound == pytest.approx(math.sqrt(12) + math.sqrt(2 * math.log(20)))
    assert np.mean(largest > bound) <= chance
    # A diagonal entry has variance one, and any other one half.
    variances = np.var(np.asarray(made), axis=0)
    np.testing.assert_allclose(variances, 0.5 + 0.5 * np.eye(dim), rtol=0.12)
    assert np.mean(largest > 0.55 * bound) > 0.1


def test_a_jump_lowers_a_cubic_by_what_is_proven_and_no_other_by_less():
    """F = -c·x²/2 + ρ·x³/6 + e·x attains it; twice the bend is worth more, at its own length."""
    c, e, rho = 0.3, 0.01, 1.7
    r = float(_escape_schedule.jump(c, e, rho))
    found = float(_escape_schedule.fall(c, e, rho))
    assert -(-c * r**2 / 2 + rho * r**3 / 6 + e * r) == pytest.approx(found)
    assert found == pytest.approx(_least_fall(c, e, rho), rel=1e-6)
    assert _escape_schedule.fall(2 * c, e, rho) > found
    assert _escape_schedule.fall(math.sqrt(e * rho / 0.375), e, rho) == pytest.approx(0, abs=1e-9)
    # The sheet's own: r = ½·√(α/ρ) with a noise of ¼·√(ρα) lowers F by √(α³/ρ)/96.
    alpha = 0.2
    fixed = 0.5 * math.sqrt(alpha / rho)
    kept = 0.25 * math.sqrt(rho * alpha)
    assert kept * fixed**2 / 2 - rho * fixed**3 / 6 == pytest.approx(alpha**1.5 / rho**0.5 / 96)
    assert _escape_schedule.fall(kept, 0.0, rho) >= alpha**1.5 / rho**0.5 / 96


def test_twenty_of_twenty_runs_from_a_saddle_end_in_a_minimum():
    plan = _plan()
    norm, curvature = float(plan.guaranteed_norm), float(plan.guaranteed_curvature)
    assert -0.4058 < curvature == pytest.approx(-math.sqrt(1.3801 * norm), rel=1e-3)
    found = _run(20, plan)
    assert np.all(found.released["found"])
    np.testing.assert_array_equal(found.status, int(Status.OK))
    for w, looks, steps in zip(
        found.params, found.released["looks"], found.released["steps"], strict=True
    ):
        gradient, least = _statistics(w)
        assert gradient <= norm
        assert least >= curvature
        assert abs(float(w[0])) > 1.0
        assert 2 <= looks <= plan.most_looks
        assert looks < steps <= plan.num_steps
    # Both wells: the side is that of the noise.
    assert {float(np.sign(w[0])) for w in found.params} == {-1.0, 1.0}


def test_the_guarantee_holds_where_it_is_meant_for_a_population():
    plan = _plan(2000, sampling="one_pass", budget=Budget(200.0, 1e-5))
    assert plan.num_users <= 2000
    data = fixtures.two_wells(jax.random.key(0), plan.num_users, 1, 2, jitter=0.0).data
    found = _run(20, plan, data=data)
    assert np.all(found.released["found"])
    for w in found.params:
        gradient, least = _statistics(w)
        assert gradient <= plan.guaranteed_norm
        assert least >= plan.guaranteed_curvature


def test_where_no_error_lets_a_saddle_go_the_hessian_does():
    """The counterexample of C6-5: its estimates are 0 within γ/c of the saddle, all pushes stay there."""
    made = fixtures.escape_counterexample()
    plan = _plan().replace(
        gradient_error=made.error / 100, hessian_error=0.01, floor=0.05, hessian_lipschitz=0.01
    )
    points = 0.004 * jax.random.normal(jax.random.key(0), (8, 2))
    for point in np.asarray(points):
        slope = made.oracle(point)
        np.testing.assert_array_equal(slope, np.zeros(2))
        saddle, jumped = hessian_escape._jump(
            plan, jnp.diag(jnp.asarray([1.0, -made.curvature])), slope
        )
        assert bool(saddle)
        assert abs(float(jumped[1])) > made.error / made.curvature
        assert float(made.value(point + jumped)) < float(made.value(point)) - 1.0


def test_a_jump_goes_down_the_estimate():
    plan = _plan().replace(gradient_error=0.0, hessian_error=0.0, floor=0.1, hessian_lipschitz=1.0)
    bent = jnp.diag(jnp.asarray([1.0, -0.3]))
    for side in (-1.0, 1.0):
        _, jumped = hessian_escape._jump(plan, bent, {"a": jnp.asarray([0.2, side * 0.01])})
        np.testing.assert_allclose(jumped["a"], [0.0, -side * 0.6], atol=1e-6)
    assert not bool(hessian_escape._jump(plan, jnp.diag(jnp.asarray([1.0, -0.09])), SADDLE)[0])


def _quiet(plan, **given):
    loud = {"refresh_multiplier": 1e-7, "difference_multiplier": 1e-7, "hessian_multiplier": 1e-7}
    return plan.replace(**loud | given)


def test_without_noise_it_is_descent_and_jumps_by_numpy():
    """From a slope that is no saddle's: steps, a jump where the gradient is short, and the end."""
    plan = _quiet(_plan(), gradient_error=0.0, hessian_error=0.0, threshold=0.03, floor=0.3)
    start = np.array([1e-3, 0.8], np.float32)
    found = _run(1, plan, start)
    w, looks = start.astype(float), 0
    steps = 0
    while steps < 100:
        steps += 1
        parts = []
        for sign in (-1.5, 1.5):
            away = w - np.array([sign, 0.0])
            weight = np.exp(-0.5 * away @ away)
            parts.append((weight * away, weight * (np.eye(2) - np.outer(away, away))))
        gradient, hessian = (sum(part) / 2 for part in zip(*parts, strict=True))
        if np.linalg.norm(gradient) > 0.03:
            w = w - gradient
            continue
        looks += 1
        values, vectors = np.linalg.eigh(hessian)
        if values[0] >= -0.3:
            break
        u = vectors[:, 0] * -np.sign(gradient @ vectors[:, 0])
        w = w + 2 * -values[0] / float(plan.hessian_lipschitz) * u
    assert looks == 2
    np.testing.assert_allclose(found.params[0], w, atol=1e-3)
    assert int(found.released["steps"][0]) == steps
    assert int(found.released["looks"][0]) == looks


def test_a_ridge_counts_in_gradients_and_curvatures():
    """With one of 0.42 the saddle is a minimum; the estimates are those of the losses alone."""
    loss = WELLS.objective._replace(ridge=0.42)
    problem = Problem(loss, num_users=1000, dim=2)
    plan = hessian_escape.plan(problem, Budget(100.0, 1e-5))
    assert plan.step_size == pytest.approx(1 / 1.42)
    quiet = _quiet(plan, threshold=0.01, floor=0.01)
    there = _run(1, quiet, ridge=0.42)
    assert int(there.released["steps"][0]) == int(there.released["looks"][0]) == 1
    assert bool(there.released["found"][0])
    far = _run(1, quiet, np.float32([3.0, -2.0]), ridge=0.42)
    assert bool(far.released["found"][0])
    w = np.asarray(far.params[0], float)
    sides = [np.array([sign, 0.0]) for sign in (-1.5, 1.5)]
    slope = sum((w - z) * np.exp(-0.5 * (w - z) @ (w - z)) for z in sides) / 2
    assert np.linalg.norm(slope + 0.42 * w) < 0.011


def test_one_that_may_look_no_more_halts_where_it_is():
    plan = _quiet(_plan(), threshold=10.0, floor=-10.0, most_looks=3)
    found = _run(1, plan)
    assert int(found.released["looks"][0]) == 3
    assert int(found.released["steps"][0]) == 4
    assert not bool(found.released["found"][0])
    assert int(found.status[0]) == Status.HALTED
    # The last step of all is a jump from a saddle.
    last = _run(1, _quiet(_plan(), threshold=10.0, floor=-10.0, num_steps=1))
    assert (int(last.released["looks"][0]), int(last.released["steps"][0])) == (1, 1)
    assert not bool(last.released["found"][0])
    few = _run(1, _quiet(_plan(), threshold=0.0, num_steps=5))
    assert int(few.released["steps"][0]) == 5
    assert int(few.status[0]) == Status.HALTED


def test_gradients_and_each_hessian_are_of_users_of_their_own():
    """In one pass; a user without numbers has gradient and Hessian zero."""
    plan = _plan(2000, sampling="one_pass", budget=Budget(200.0, 1e-5))
    plan = _quiet(plan, threshold=10.0, floor=0.2)
    first, batch = plan.mean.releases.population_size, plan.hessian_batch
    data = fixtures.two_wells(jax.random.key(0), plan.num_users, 1, 2, jitter=0.0).data

    def looks(begin, end):
        rows = np.array(data.items)
        rows[begin:end] = np.nan
        return int(_run(1, plan, data=data._replace(items=rows)).released["looks"][0])

    whole = looks(0, 0)
    assert whole >= 2
    assert looks(0, first) == whole, "Hessians are of those after"
    # The first look sees its own users alone: without them the saddle is none.
    assert looks(first, first + batch) == 1
    assert looks(first + whole * batch, len(data.items)) == whole


def test_costs_are_those_of_all_that_may_be_released():
    plan = _plan()
    of = plan.mean.releases
    squares = plan.most_looks / plan.hessian_multiplier**2 + of.joint_multiplier**-2
    assert plan.joint_multiplier == pytest.approx(squares**-0.5, rel=1e-6)
    assert 99.0 < plan.certificate().epsilon <= 100.0
    # One look more costs more, and everybody is in each.
    more = plan.replace(most_looks=2 * plan.most_looks)
    assert more.certificate().epsilon > plan.certificate().epsilon * 1.05
    assert np.all(np.asarray(more.loss().rdp) > np.asarray(plan.loss().rdp))
    one = _plan(2000, sampling="one_pass", budget=Budget(200.0, 1e-5))
    assert one.replace(hessian_multiplier=1e-3).certificate().epsilon > 1e4
    for wrong in ({"hessian_multiplier": 0.0}, {"hessian_clip": 0.0}, {"hessian_clip": math.nan}):
        assert np.all(np.isinf(plan.replace(**wrong).loss().rdp))
        with pytest.raises(ValueError, match="hessian_"):
            plan.replace(**wrong).certificate()
    special = _plan(relation=NeighboringRelation.REPLACE_SPECIAL)
    assert special.guaranteed_norm < plan.guaranteed_norm
    assert special.relation is NeighboringRelation.REPLACE_SPECIAL


def test_clips_of_hessians_are_those_of_the_loss():
    linear = Problem(nonconvex_losses.welsch(1.0), num_users=1000, dim=9)
    assert hessian_escape.plan(linear, Budget(4.0, 1e-5)).hessian_clip == pytest.approx(1.0)
    assert _plan().hessian_clip == pytest.approx(math.sqrt(2))
    assert hessian_escape.plan(
        linear, Budget(4.0, 1e-5), hessian_clip=0.5
    ).hessian_clip == pytest.approx(0.5)


def test_numbers_compile_nothing_and_seeds_map():
    traces = []

    def once(key, plan):
        traces.append(None)
        return hessian_escape.solve(key, plan, WELLS.objective, WELLS.data, jnp.asarray(SADDLE))

    plan = _plan()
    mapped = jax.jit(jax.vmap(once, (0, None)))
    for changes in ({}, {"threshold": 0.08}, {"floor": 0.3}, {"hessian_multiplier": 3.0}):
        keys = jax.random.split(jax.random.key(0), 3)
        found = mapped(keys, plan.replace(**changes))
        assert np.all(found.released["found"])
    assert len(traces) == 1
    alone = _run(3, plan.replace(hessian_multiplier=3.0))
    np.testing.assert_allclose(found.params, alone.params, atol=1e-4)


def test_refusals_name_what_would_do():
    boxed = nonconvex_losses.welsch(1.0, domain=domains.ball(2.0))
    for problem, words in (
        (Problem(boxed, num_users=100, dim=2), r"problem\.objective\.domain"),
        (Problem(losses.huber(1.0), num_users=100, dim=2), "hessian_lipschitz"),
        (Problem(nonconvex_losses.welsch(1.0), num_users=100, dim=513), r"problem\.dim"),
    ):
        with pytest.raises(ValueError, match=words):
            hessian_escape.plan(problem, Budget(1.0, 1e-5), initial_gap=1.0)
    with pytest.raises(ValueError, match=r"problem\.num_users"):
        _plan(2, sampling="one_pass", budget=Budget(0.1, 1e-6))
    with pytest.raises(ValueError, match="relation"):
        _plan(relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="hessian_batch"):
        _plan().replace(hessian_batch=10)


def test_a_plan_says_what_it_proves():
    text = str(_plan())
    assert "gradient norm that is guaranteed" in text
    assert "with probability 0.95" in text
