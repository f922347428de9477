"""Corrections E1 to E6 of docs/corrections.md: each test fails on the printed version."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem, transforms
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.privacy.concentrated.threshold_phase import calibrate_concentrated
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import Status
from dpsco_jax.solvers._schedules import accelerated as schedule
from dpsco_jax.solvers._sequence import block_sizes
from dpsco_jax.solvers.user_level import accelerated_sgd
from tests.support.planned import planned


def test_e1_removal_needs_twice_the_radius_of_the_score():
    users = 100
    # One in the middle sees all; 90 to its right do not see the 9 to its left at the radius of the score.
    vectors = jnp.asarray([0.0] + [0.6] * 90 + [-0.9] * 9)[:, None]
    score = concentrated_mean.concentration(vectors, 1.0).score
    assert score >= 0.8 * users
    twice = concentrated_mean.concentration(vectors, 1.0).degrees
    once = concentrated_mean.concentration(vectors, 0.5).degrees
    kept = concentrated_mean.inlier_weights(twice, users, 2 / 3)
    printed = concentrated_mean.inlier_weights(once, users, 2 / 3)
    # All lie in the ball around the first: all must be kept for the proof.
    np.testing.assert_array_equal(kept, 1.0)
    assert np.all(np.asarray(printed)[-9:] == 0)


def test_e2_the_papers_batches_are_larger_than_its_blocks():
    n, m, d, eps, delta, q = 10**9, 10, 10, 1.0, 1e-9, 0.1
    level = math.log(20 * n * m * d * math.exp(eps) / delta)
    assert n ** (1 - q) > 100 * level / (eps * (1 - 2**-q))  # all that is asked for
    objective = losses.logistic(feature_bound=1.0, domain=domains.ball(1.0))
    problem = Problem(objective, num_users=n, items_per_user=m, dim=d, distance=1.0)
    setting = schedule.of_problem(problem, Budget(eps, delta), smoothing_radius=0.0)
    for size in schedule.printed(setting, ratio=q):
        assert size.batch_size > size.num_users


def test_e3_the_number_of_steps_decides_how_many_users_the_test_needs():
    enough = _fewest_users(10)
    calibrate_concentrated(enough, 10, 4.0, 1e-6, test="stream")
    with pytest.raises(ValueError, match=r"num_users must be .*at least"):
        calibrate_concentrated(enough, 10**6, 4.0, 1e-6, test="stream")


def _fewest_users(num_steps):
    try:
        calibrate_concentrated(2, num_steps, 4.0, 1e-6, test="stream")
    except ValueError as error:
        return int(str(error).split("at least ")[1].split(" ")[0])
    raise AssertionError("two users are never enough")


def test_e4_a_halted_run_returns_a_point_of_the_domain():
    center = jnp.asarray([10.0, 0.0])
    objective = Objective(
        loss=lambda w, z: 0.5 * jnp.sum(jnp.square(w - z)),
        lipschitz=5.0,
        smoothness=1.0,
        domain=domains.ball(2.0, center),
    )
    sizes = {"num_users": 40, "items_per_user": 1, "dim": 2, "epsilon": 60.0, "delta": 1e-2}
    plan = planned(
        accelerated_sgd.plan,
        objective,
        **sizes,
        regularization=0.5,
        stage_length=2,
        num_stages=1,
        radius=0.5,
    )
    rows = np.repeat(np.float32([100.0, 0.0]), 20)[:, None, None] * np.ones((1, 1, 2), np.float32)
    start = center + np.float32([0.5, 0.5])
    run = jax.jit(
        lambda plan: accelerated_sgd.solve(
            jax.random.key(0), plan, objective, UserData(rows, None), start
        )
    )
    found = run(plan)
    assert found.status == Status.HALTED
    np.testing.assert_array_equal(found.params, start)
    assert objective.domain.contains(found.params, 1e-6)
    assert not objective.domain.contains(jnp.zeros(2), 1e-6)
    # What the end of a phase hands on is projected as well.
    near = plan.replace(
        releases=dataclasses.replace(plan.releases, threshold=-1e9, noise_stddev=100.0)
    )
    ended = run(near)
    assert ended.status == Status.OK
    assert objective.domain.contains(ended.params, 1e-5)


def test_e5_gradients_are_taken_at_the_query_point():
    """Within the bound of AC-SA at the query point, far outside at the prox point."""
    ratio, steps = 1000.0, 60
    curvature = jnp.geomspace(1 / ratio, 1.0, 20)
    optimizer = transforms.ac_sa(1.0, 1 / ratio)

    def gap(at_prox):
        w, state = jnp.ones(20), None
        state = optimizer.init(w)
        for _ in range(steps):
            point = state.prox_point if at_prox else w
            moves, state = optimizer.update(curvature * point, state, w)
            w = w + moves
        return 0.5 * float(jnp.sum(curvature * jnp.square(state.aggregate)))

    bound = 2 * 20 / (steps * (steps + 1))
    assert gap(at_prox=False) <= bound
    assert not gap(at_prox=True) <= bound


def test_e6_all_users_are_used():
    objective = losses.logistic(feature_bound=1.0, domain=domains.ball(1.0))
    problem = Problem(objective, num_users=2**14, items_per_user=10, dim=10, distance=1.0)
    setting = schedule.of_problem(problem, Budget(1.0, 1e-6), smoothing_radius=0.0)
    printed = sum(size.num_users for size in schedule.printed(setting, ratio=1.0))
    assert printed < 2**13  # half of them, less what rounding takes
    assert sum(block_sizes(2**14, 0.5, 4)) == 2**14
