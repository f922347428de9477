"""Adaptive Spider: its schedule, sizes of batches, streams of noise, and who takes part."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem, privacy, transforms
from dpsco_jax.geometry import domains
from dpsco_jax.problems import fixtures
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.nonconvex import _adaptive_schedule, adaptive_spider
from dpsco_jax.solvers.nonconvex._adaptive_mean import Adaptive, AdaptiveReleases
from dpsco_jax.solvers.nonconvex._drift_schedule import Goal
from dpsco_jax.solvers.nonconvex._stream_mean import correlation_of

RHO = (math.sqrt(math.log(1e6) + 1) - math.sqrt(math.log(1e6))) ** 2
WELL = fixtures.well()
USERS = 600
# All alike, so that every batch has the gradient of all.
ALIKE = UserData(np.broadcast_to(np.float32([1.0, 0.5]), (USERS, 1, 2)))


def _goal(users):
    return Goal(1.0, 1.0, 1.0, 1.0, 10, users, 2.0, 0.05, True)


@pytest.mark.parametrize(
    ("users", "gamma"), [(10**4, 3.18), (10**5, 1.54), (10**6, 0.769), (10**7, 0.379)]
)
def test_the_papers_constants_prove_what_was_computed_by_hand(users, gamma):
    """Half of the users are left for the choice of a point."""
    found = _adaptive_schedule.paper_goal(_goal(users // 2), RHO)
    assert found[0] == pytest.approx(gamma, rel=0.01)


@pytest.mark.parametrize("users", [10**5, 10**7])
def test_the_schedule_needs_no_more_users_than_there_are(users):
    found = _adaptive_schedule.schedule(_goal(users), 2 * RHO, [3, 10, 30, 100, 300])
    assert found.bound < _adaptive_schedule.paper_goal(_goal(users), RHO)[0]
    # By hand, in another order: Σ M‖x_{t+1} - x_t‖ and the users of the dearest run.
    steps, e = found.num_steps, found.error
    total = steps * (math.sqrt(2 / steps + e**2) + e)
    begun = min(steps, 1 + math.floor(total / found.drift) + steps // found.longest)
    each = max(1 / found.share_norm, found.drift / found.accuracy**2)
    assert begun * found.first_batch + total * each + steps - begun <= users * (1 + 1e-6)
    assert found.first_batch >= max(1 / found.share_norm, found.accuracy**-2)
    worst = correlation_of("buffers", found.longest).prefix_stddev().max()
    noise = 2 * found.share_norm * worst / math.sqrt(2 * RHO)
    # √d + √(2 log) is above what a Gaussian is longer than with that chance.
    radius = math.sqrt(10) + math.sqrt(2 * math.log(2 * steps / 0.05))
    users_add = math.sqrt(16 * math.log(4 * steps / 0.05)) * found.accuracy
    assert users_add < e <= users_add + noise * radius


@functools.cache
def _plan(**given):
    settings = {"num_steps": 25} | given
    problem = Problem(WELL, num_users=USERS, dim=2, items_per_user=1)
    plan = adaptive_spider.plan(problem, Budget(8.0, 1e-5), accountant="rdp", **settings)
    # Sizes that the small data allow, and steps that the estimate is kept up for.
    releases = dataclasses.replace(plan.mean.releases, first_batch=60, longest=8)
    mean = dataclasses.replace(
        plan.mean, releases=releases, share_norm=0.02, accuracy=0.1, drift=0.4
    )
    return dataclasses.replace(plan, mean=mean)


def _seen(params, state, estimate):
    found = transforms.adaptive_state(state)
    return params, found.estimate, found.last, found.taken


def _run(plan, data=ALIKE, start=(0.2, -0.5), key=0):
    return jax.jit(
        lambda key: adaptive_spider.solve(key, plan, WELL, data, jnp.asarray(start), trace=_seen)
    )(jax.random.key(key))


def _gradient(w):
    away = np.asarray(w, float) - np.array([1.0, 0.5])
    return away * math.exp(-0.5 * away @ away)


@pytest.mark.parametrize("second_order", [False, True])
def test_sizes_are_those_of_the_step_before_rounded_up_and_pushes_reset_nothing(second_order):
    plan = _plan(second_order=second_order).replace(noise_multiplier=1e-6)
    if second_order:
        plan = plan.replace(threshold=10.0, stddev=0.02, wait=2.0)
    points, estimates, step, taken = _run(plan).unprivate["trace"]
    before = np.concatenate([[[0.2, -0.5]], points]).astype(np.float64)
    drift, since, all_taken, kinds = 0.0, 0, 0, set()
    for t in range(25):
        reach = np.linalg.norm(before[t] - before[t - 1]) if t else 0.0
        drift += reach
        fresh = t == 0 or drift >= 0.4 or since == 8
        exact = 60 if fresh else max(reach / 0.02, reach * 0.4 / 0.1**2, 1)
        if all_taken + exact > USERS:
            assert bool(step.halted[t])
            break
        drift, since = (0.0, 1) if fresh else (drift, since + 1)
        assert bool(step.fresh[t]) == fresh
        assert exact - 1e-3 <= step.size[t] < exact + 1 + 1e-3
        all_taken += int(step.size[t])
        assert taken[t] == all_taken
        kinds.add(fresh)
        # Nobody is clipped, everybody agrees: the estimate is the gradient.
        np.testing.assert_allclose(estimates[t], _gradient(before[t]), atol=1e-4)
    assert kinds == {True, False}


def test_a_run_for_which_users_run_out_halts_and_stands_still():
    plan = _plan().replace(drift=0.05)
    solution = _run(plan)
    points, estimates, step, taken = solution.unprivate["trace"]
    assert int(solution.status) == 1
    first = int(np.argmax(step.halted))
    assert 0 < first < 24
    assert np.all(step.halted[first:])
    assert np.all(step.size[first:] == 0)
    assert np.max(taken) <= USERS
    for seen in (points, estimates):
        np.testing.assert_array_equal(
            seen[first:], np.broadcast_to(seen[first - 1], seen[first:].shape)
        )


def test_nobody_takes_part_twice():
    """User i pulls at coordinate i alone, harder the further the first coordinate has gone."""
    users = 80

    def loss(w, item):
        return 0.2 * (w[item] * (1 + 0.3 * jnp.sin(w[0])) + w[0])

    odd = Objective(loss, 1.0, 1.0, domains.whole_space(), loss_strong_convexity=-1.0)
    problem = Problem(odd, num_users=users, dim=users + 1, items_per_user=1)
    plan = adaptive_spider.plan(
        problem, Budget(1.0, 1e-3), initial_gap=1.0, num_steps=12, accountant="rdp"
    )
    releases = dataclasses.replace(plan.mean.releases, first_batch=13, longest=3)
    mean = dataclasses.replace(
        plan.mean, releases=releases, share_norm=0.03, accuracy=0.3, drift=1.0
    )
    plan = dataclasses.replace(plan, mean=mean).replace(noise_multiplier=1e-7)
    data = UserData(np.arange(1, users + 1)[:, None])
    solution = jax.jit(
        lambda key: adaptive_spider.solve(key, plan, odd, data, jnp.zeros(users + 1), trace=_seen)
    )(jax.random.key(0))
    _, estimates, step, _ = solution.unprivate["trace"]
    estimates, fresh = np.asarray(estimates)[:, 1:], np.asarray(step.fresh)
    seen = []
    for t in range(12):
        if step.halted[t]:
            break
        before = np.zeros(users) if fresh[t] else estimates[t - 1]
        there = np.flatnonzero(np.abs(estimates[t] - before) > 2e-6)
        assert len(there) == step.size[t], t
        seen.extend(there)
    assert len(seen) > 40
    assert len(seen) == len(set(seen))
    assert 1 < fresh[:t].sum() < t


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("correlation", ["buffers", "tree"])
def test_noise_of_an_estimate_is_that_of_its_place_in_a_stream_of_its_own(correlation, length):
    """Of losses without data the estimate is noise: its law at every place, from the first one on.

    Streams end after four steps, or at once where any drift begins the estimate anew.
    """
    flat = WELL._replace(loss=lambda w, item: 0.0 * jnp.sum(w))
    plan = _plan()
    releases = dataclasses.replace(plan.mean.releases, correlation=correlation, longest=4)
    drift = 1e9 if length == 4 else 1e-30
    mean = dataclasses.replace(plan.mean, releases=releases, drift=drift, accuracy=1e9)
    plan = dataclasses.replace(plan, mean=mean)
    plan = dataclasses.replace(plan, method=dataclasses.replace(plan.method, step_size=1e-4))

    def run(key):
        found = adaptive_spider.solve(key, plan, flat, ALIKE, jnp.zeros(2), trace=_seen)
        return found.unprivate["trace"][1]

    estimates = np.asarray(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(3), 3000)), float)
    unit = 2 * 0.02 * float(plan.noise_multiplier)
    expected = unit * correlation_of(correlation, 4).prefix_stddev()
    for t in range(12 if length == 4 else 8):
        # The deviation of 6,000 numbers is known to 0.9 %.
        assert np.std(estimates[:, t]) == pytest.approx(expected[t % length], rel=0.04), t
    between = np.corrcoef(estimates[:, 3, 0], estimates[:, 4, 0])[0, 1]
    assert abs(between) < 0.08


def test_the_run_costs_what_one_stream_does():
    plan = _plan()
    solution = _run(plan)
    spent = np.asarray(solution.privacy.rdp)
    one = np.asarray(privacy.gaussian(plan.noise_multiplier).rdp)
    np.testing.assert_allclose(spent, one, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(plan.loss().rdp), one, rtol=1e-5)
    assert plan.certificate().epsilon <= 8.0
    for bad in (0.0, -1.0, math.inf, math.nan):
        loss = jax.jit(lambda x: plan.replace(noise_multiplier=x).loss())(bad)
        assert np.all(np.isinf(loss.rdp))


@pytest.mark.parametrize("reach", [2.0**24 + 4, 2.0**24 + 2, 2.0**31, math.nan])
def test_no_step_reads_more_users_than_there_are_left(reach):
    """Beyond 2^24 float32 rounds a number of users, up or down."""
    users = 2**24 + 3
    releases = AdaptiveReleases(users, 10, "tree", 1.0, 1e-6, longest=5, first_batch=1)
    mean = Adaptive(64, releases, 1.0, 1.0, 1e30, 1e30)
    none, no = jnp.zeros([], jnp.int32), jnp.zeros([], bool)
    last = transforms.AdaptiveStep(no, none, jnp.zeros([]), no)
    state = transforms.AdaptiveSpiderState((), 0.0, jnp.zeros(1), none + 1, none, none + 1, last)
    step = mean.next_step(state, jnp.full(1, reach, jnp.float32))
    assert bool(step.halted) == (reach != 2.0**24 + 2)
    assert int(step.size) == (0 if step.halted else reach)


def test_bad_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match="num_steps"):
        _plan(constants="paper")
    with pytest.raises(ValueError, match="first_batch"):
        dataclasses.replace(_plan().mean.releases, first_batch=USERS + 1)
