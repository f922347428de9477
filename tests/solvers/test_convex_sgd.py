"""SGD without privacy: steps in NumPy, bounds against closed forms and where nothing is better."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.convex import sgd
from tests.support.planned import planned


def _quadratic(curvature=1.0, lipschitz=math.inf, ridge=0.0, domain=None):
    """(h/2)·‖w - z‖² over z."""
    return Objective(
        loss=lambda w, z: 0.5 * curvature * jnp.sum(jnp.square(w - z)),
        lipschitz=lipschitz,
        smoothness=curvature,
        domain=domains.whole_space() if domain is None else domain,
        ridge=ridge,
    )


def _users(count=8, dim=2):
    return UserData(np.random.default_rng(0).uniform(-1, 1, (count, 1, dim)).astype(np.float32))


def _plan(objective, num_users=8, distance=1.5, **given):
    return planned(sgd.plan, objective, num_users=num_users, dim=2, distance=distance, **given)


def test_step_and_bound_are_the_less_of_the_two_closed_forms():
    smooth = _plan(_quadratic(3.0, ridge=0.5), num_steps=20)
    assert smooth.step_size == pytest.approx(1 / 3.5)
    assert smooth.excess_bound == pytest.approx(3.5 * 1.5**2 / 40)
    sampled = _plan(_quadratic(3.0, lipschitz=4.0), num_steps=20, batch_size=2)
    variance = 16 / 2 * 6 / 7
    assert sampled.step_size == pytest.approx(1 / (3 + math.sqrt(20 * variance) / 1.5))
    assert sampled.excess_bound == pytest.approx(3 * 1.5**2 / 40 + 1.5 * math.sqrt(variance / 20))
    rough = _plan(_quadratic(1e3, lipschitz=4.0), num_steps=20, batch_size=2)
    assert rough.step_size == pytest.approx(1.5 / (4 * math.sqrt(20)))
    assert rough.excess_bound == pytest.approx(41 / 40 * 1.5 * 4 / math.sqrt(20))


def test_full_gradients_are_the_recursion_by_hand():
    objective, data = _quadratic(1.0, ridge=0.5, domain=domains.ball(0.3)), _users()
    plan = _plan(objective, num_steps=7).replace(step_size=0.2)
    found = jax.jit(
        lambda: sgd.solve(jax.random.key(0), plan, objective, data, jnp.array([0.2, -0.1]))
    )()
    center, w, total = data.items.mean((0, 1)), np.array([0.2, -0.1]), 0.0
    for _ in range(7):
        w = w - 0.2 * (w - center + 0.5 * w)
        w = w / max(1.0, np.linalg.norm(w) / 0.3)
        total = total + w
    np.testing.assert_allclose(found.params, total / 7, rtol=1e-5)
    assert int(found.gradients) == 7 * 8
    assert np.all(np.isinf(found.privacy.rdp))


def test_mean_excess_of_sampled_runs_is_below_the_bound_and_of_its_order():
    """Batches of one of users at ±1 on a line: V is one, and so is β."""
    objective = _quadratic(1.0, lipschitz=2.0, domain=domains.ball(1.0))
    data = UserData(np.tile([[[1.0, 0.0]], [[-1.0, 0.0]]], (4, 1, 1)).astype(np.float32))
    plan = _plan(objective, distance=1.0, num_steps=40, batch_size=1)
    run = jax.jit(
        jax.vmap(lambda k: sgd.solve(k, plan, objective, data, jnp.array([0.0, 1.0])).params)
    )
    points = np.asarray(run(jax.random.split(jax.random.key(1), 500)))
    excess = 0.5 * np.sum(points**2, axis=1)
    assert 0.02 * plan.excess_bound < excess.mean() < plan.excess_bound
    # Sampled with an unbiased gradient: the first coordinate is 0 in the mean.
    assert abs(points[:, 0].mean()) < 4 * points[:, 0].std() / math.sqrt(500)


def test_a_linear_loss_of_everybody_has_the_bound_for_lipschitz_losses():
    linear = _quadratic()._replace(loss=jnp.vdot, lipschitz=2.0, smoothness=0.0)
    found = _plan(linear, num_steps=16)
    assert found.step_size == pytest.approx(1.5 / (2 * math.sqrt(16)))
    assert found.excess_bound == pytest.approx((1 + 1 / 32) * 1.5 * 2 / 4)


def test_a_lipschitz_loss_without_smoothness_takes_the_step_of_the_other_bound():
    """One step of R/G on 2·w over the unit ball goes to its minimizer."""
    rough = Objective(
        loss=lambda w, z: 2.0 * w[0] + 0 * z[0],
        lipschitz=2.0,
        smoothness=None,
        domain=domains.ball(1.0),
    )
    plan = _plan(rough, distance=1.0, num_steps=1)
    found = sgd.solve(jax.random.key(0), plan, rough, _users(), jnp.zeros(2))
    np.testing.assert_allclose(found.params, [-1.0, 0.0], atol=1e-6)
    assert plan.excess_bound == pytest.approx(3.0)


def test_refusals():
    with pytest.raises(ValueError, match="loss_strong_convexity"):
        _plan(_quadratic()._replace(loss_strong_convexity=-1.0), num_steps=3)
    with pytest.raises(ValueError, match="finite bound"):
        _plan(_quadratic()._replace(smoothness=None), num_steps=3)
    with pytest.raises(ValueError, match="finite bound"):
        _plan(_quadratic(), num_steps=3, batch_size=2)
    with pytest.raises(ValueError, match="batch_size"):
        _plan(_quadratic(), num_steps=3, batch_size=9)
