"""Noisy gradient descent, last point: its chain, its law, how steps shrink and differ, what edits cost."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.mechanisms import additive
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import Status
from dpsco_jax.solvers._schedules import langevin as schedule
from dpsco_jax.solvers._schedules.nominal_model import Nominal
from dpsco_jax.solvers.item_level import langevin
from tests.support.edited_plans import everybody
from tests.support.langevin_cases import (
    DELTA,
    DIM,
    LINEAR,
    OBJECTIVES,
    QUADRATIC,
    USERS,
    edited,
    noiseless,
    plan_of,
    random_data,
    solver,
)


def _chain(objective, plan, data, start, noises):
    """The chain in NumPy, in float64, of logistic or Huber losses, from the noise of each step."""
    model = objective.linear_model
    rows = np.asarray(data.items.features, float)
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    rows = rows * np.minimum(1.0, model.feature_bound / np.maximum(lengths, 1e-30))
    labels = np.asarray(data.items.label, float)
    radius = np.inf if objective.domain.radius is None else float(objective.domain.radius)

    def inside(w):
        w = w * min(1.0, radius / max(np.linalg.norm(w), 1e-30))
        away = w - origin
        return origin + away * min(1.0, plan.radius / max(np.linalg.norm(away), 1e-30))

    origin = np.asarray(start, float)
    origin = origin * min(1.0, radius / max(np.linalg.norm(origin), 1e-30))
    w = origin
    for noise in noises:
        margins = rows @ w
        if objective is OBJECTIVES["huber"]:
            slopes = np.clip(margins - labels, -0.5, 0.5)
        else:
            slopes = 1 / (1 + np.exp(-margins)) - labels
        mean = np.mean(np.mean(slopes[..., None] * rows, axis=1), axis=0)
        pull = float(plan.regularization) * (w - origin) + objective.ridge * w
        w = inside(w - float(plan.step_size) * (mean + pull) + noise)
    return w


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_chain_is_that_of_numpy_given_the_same_noise(name):
    objective = OBJECTIVES[name]
    plan = plan_of(
        objective, num_steps=9, regularization=0.2, items_per_user=2, distance=0.9, epsilon=4.0
    )
    data = random_data(np.random.default_rng(1), items=2, size=1.5)
    start = jnp.asarray([0.3, -0.2, 0.5], jnp.float32)
    found = solver(name)(jax.random.key(5), plan, data, start)
    stddev = float(plan.noise_multiplier) * float(plan.sensitivity_from(np.linalg.norm(start)))
    noise_key = jax.random.split(jax.random.key(5))[1]
    keys = [jax.random.fold_in(noise_key, t) for t in range(9)]
    noises = [np.asarray(additive.gaussian(k, jnp.zeros(3), stddev), float) for k in keys]
    expected = _chain(objective, plan, data, start, noises)
    np.testing.assert_allclose(found.params, expected, atol=2e-5)
    assert np.linalg.norm(expected - np.asarray(start)) <= 0.9 * (1 + 1e-6)
    assert found.status == Status.OK
    assert found.gradients == found.unprivate["gradients"] == 9 * USERS * 2
    assert found.unprivate["trace"] is None
    assert found.released is None


def _far(sign, users=USERS):
    """Rows on one line and labels far away, where the loss is linear; one user pulls up or down."""
    labels = np.full((users, 1), -1e3, np.float32)
    labels[0] = 1e3 * sign
    return UserData(Example(jnp.ones((users, 1, 1)), jnp.asarray(labels)))


def test_on_linear_losses_the_last_point_is_as_private_as_is_said_and_no_more():
    """Means and deviation in closed form and measured; an average of points would be told apart better."""
    plan = plan_of(
        LINEAR, dim=1, num_steps=60, regularization=0.2, step_size=0.5, distance=1.0, epsilon=2.0
    )
    powers = (1 - 0.5 * 0.2) ** np.arange(60)
    gap, stddev = 2 * 0.01 / USERS * 0.5, plan.noise_stddev
    shift, spread = gap * powers.sum(), stddev * math.sqrt(np.sum(powers**2))
    # What is above 1 is room for rounding, in float32 of sums over users.
    assert 1.0 <= float(plan.mu) / (shift / spread) < 1.0 + 3e-4
    assert float(plan.mu) < 0.7 * math.sqrt(60) / float(plan.noise_multiplier)

    run = jax.jit(
        lambda data: jax.vmap(
            lambda key: langevin.solve(key, plan, LINEAR, data, jnp.zeros(1)).params[0]
        )(jax.random.split(jax.random.key(0), 20_000))
    )
    ends = [np.asarray(run(_far(sign)), float) for sign in (1.0, -1.0)]
    # One key, one noise: the difference is that of the means.
    np.testing.assert_allclose(ends[0] - ends[1], shift, rtol=1e-3)
    assert ends[0].std() == pytest.approx(spread, rel=4 / math.sqrt(2 * 20_000))


def _least_squares(rng, users=40):
    rows = rng.normal(size=(users, 1, DIM)) * np.array([1.0, 0.5, 0.2])
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    labels = (rows @ np.array([1.0, -0.5, 0.25])) + 0.1 * rng.normal(size=(users, 1))
    return rows, labels


def test_on_a_quadratic_the_law_is_that_of_the_recursion_and_so_is_what_is_expected():
    rows, labels = _least_squares(np.random.default_rng(2))
    data = UserData(Example(jnp.asarray(rows, jnp.float32), jnp.asarray(labels, jnp.float32)))
    x, y = rows[:, 0], labels[:, 0]
    hessian, target = x.T @ x / 40, x.T @ y / 40
    plan = plan_of(
        QUADRATIC, num_users=40, num_steps=25, regularization=0.05, step_size=0.4, distance=10.0,
    )  # fmt: skip
    plan = edited(plan, noise_multiplier=1e-3 * float(plan.noise_multiplier))
    step, stddev, u = 0.4, plan.noise_stddev, 0.05
    turn = np.eye(DIM) - step * (hessian + u * np.eye(DIM))
    mean, covariance = np.zeros(DIM), np.zeros((DIM, DIM))
    for _ in range(25):
        mean = turn @ mean + step * target
        covariance = turn @ covariance @ turn + stddev**2 * np.eye(DIM)
    runs = 20_000
    found = np.asarray(
        jax.jit(
            jax.vmap(lambda k: langevin.solve(k, plan, QUADRATIC, data, jnp.zeros(DIM)).params)
        )(jax.random.split(jax.random.key(1), runs)),
        float,
    )
    error = 4 * np.sqrt(np.diag(covariance) / runs)
    assert np.all(np.abs(found.mean(0) - mean) <= error + 1e-5)
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert np.all(np.abs(np.cov(found.T) - covariance) <= 4 * math.sqrt(2 / runs) * scale)

    minimizer = np.linalg.solve(hessian, target)
    away = mean - minimizer
    excess = 0.5 * (away @ hessian @ away + np.trace(hessian @ covariance))
    values, directions = np.linalg.eigh(hessian)
    model = Nominal(
        values, np.ones(DIM), (directions.T @ minimizer) ** 2, 1.0, math.inf, 1.0, 0.0, 1
    )
    setting = schedule.Setting(
        nominal=model,
        dim=DIM,
        smoothness=1.0,
        ridge=0.0,
        slope=100.0,
        distance=10.0,
        move=float(plan.sensitivity) / 0.4 * 1e-3,
        mu=float(privacy.gdp_within(1.0, DELTA)),
        whole_space=True,
        exact_projection=True,
    )
    numbers = schedule.Numbers(25, 0.4, 0.05)
    assert schedule.expected(setting, numbers) == pytest.approx(excess, rel=1e-4)
    assert excess <= schedule.bound(setting._replace(distance=1.5), numbers)


def test_steps_cost_nothing_more_once_they_are_many():
    few, many, most = (
        plan_of(OBJECTIVES["huber"], num_steps=t, regularization=0.1, step_size=0.5)
        for t in (10, 1000, 100_000)
    )
    assert float(many.noise_multiplier) == pytest.approx(float(most.noise_multiplier), rel=1e-3)
    assert float(few.noise_multiplier) < 0.9 * float(many.noise_multiplier)
    flat = plan_of(OBJECTIVES["whole space"], num_steps=100, regularization=0.0)
    composed = everybody(float(flat.noise_multiplier), 100, DELTA)
    assert composed == pytest.approx(1.0, abs=1e-3)


def test_in_float64_no_room_is_left_for_rounding():
    objective = OBJECTIVES["whole space"]
    given = {
        "num_users": 10**6,
        "delta": 1e-7,
        "num_steps": 30,
        "regularization": 0.1,
        "distance": 5.0,
    }
    narrow, wide = (plan_of(objective, precision=p, **given) for p in ("float32", "float64"))
    exact = float(wide.step_size) * wide.proven_for.gap / 10**6
    assert exact < float(wide.sensitivity) < 1.002 * exact
    exact = float(narrow.step_size) * narrow.proven_for.gap / 10**6
    assert float(narrow.sensitivity) > 1.5 * exact
    assert wide.assumes == ()
    with jax.enable_x64(True):
        plan = plan_of(OBJECTIVES["whole space"], precision="float64", num_steps=4)
        data, start = random_data(np.random.default_rng(0), size=0.2), jnp.zeros(DIM)
        run = jax.jit(lambda k, p: langevin.solve(k, p, objective, data, start).params)
        found = run(jax.random.key(0), noiseless(plan))
        expected = _chain(objective, plan, data, start, np.zeros((4, DIM)))
        np.testing.assert_allclose(found, expected, atol=1e-10)


def test_what_is_chosen_is_expected_to_be_best():
    objective = losses.logistic(1.0)
    best = plan_of(objective, num_users=2000, distance=3.0)
    assert float(best.step_size) * 0.25 <= 1.0
    assert 0 < float(best.predicted_excess) < float(best.excess_bound) < 3.0
    for changes in (
        {"num_steps": best.num_steps // 3},
        {"step_size": float(best.step_size) / 4, "num_steps": best.num_steps},
        {"regularization": float(best.regularization) + 0.1},
    ):
        other = plan_of(objective, num_users=2000, distance=3.0, **changes)
        assert float(other.predicted_excess) > 1.02 * float(best.predicted_excess), changes
    short = plan_of(objective, num_users=2000, distance=3.0, gradient_budget=2000 * 10)
    assert short.num_steps <= 10
    assert plan_of(objective, num_users=2000, distance=3.0, columns_per_row=2) != best
