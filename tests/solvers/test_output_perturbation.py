"""Output perturbation: its last point, its sensitivity, its bound, and what it refuses."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData, mean_loss
from dpsco_jax.solvers import Status
from dpsco_jax.solvers.user_level import output_perturbation
from tests.support.planned import planned

BUDGET = {"num_users": 10, "dim": 3, "epsilon": 1.0, "delta": 1e-5, "distance": 2.0}
OBJECTIVES = {
    "whole space": losses.logistic(1.0),
    "ball": losses.logistic(1.0, domains.ball(0.7), ridge=0.02),
    "no closed form": losses.squared_distance(1.0, 1.0),
}


def _plan(objective, **changes):
    return planned(output_perturbation.plan, objective, **(BUDGET | changes))


def _noiseless(plan):
    return dataclasses.replace(plan, noise_multiplier=1e-12)


def _examples(rng, users=10, items=2, dim=3):
    features = jnp.asarray(rng.normal(size=(users, items, dim)), jnp.float32)
    return UserData(Example(features, jnp.asarray(rng.integers(0, 2, (users, items)), jnp.float32)))


def _points(rng, users=10, items=2, dim=3):
    return UserData(jnp.asarray(rng.normal(size=(users, items, dim)), jnp.float32))


def _data(name, seed=0):
    rng = np.random.default_rng(seed)
    return _points(rng) if name == "no closed form" else _examples(rng)


@functools.cache
def _solver(name):
    objective = OBJECTIVES[name]

    def run(key, plan, data):
        return output_perturbation.solve(key, plan, objective, data, jnp.full(3, 0.1))

    return jax.jit(run)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_without_noise_it_ends_at_the_regularized_minimizer(name):
    objective, data = OBJECTIVES[name], _data(name)
    plan = _plan(objective, regularization=0.05)
    end = np.asarray(_solver(name)(jax.random.key(0), _noiseless(plan), data).params)

    loss = mean_loss(objective)

    def total(w):
        return loss(w, data) + 0.025 * jnp.sum(jnp.square(w - 0.1))

    def step(_, w):
        return objective.domain.project(w - float(plan.step_size) * jax.grad(total)(w))

    point = jax.jit(lambda w: jax.lax.fori_loop(0, 600, step, w))(jnp.full(3, 0.1))
    distance = np.linalg.norm(end - np.asarray(point))
    assert distance <= float(plan.optimization_error)
    assert float(plan.optimization_error) <= 0.02 * plan.noise_stddev * math.sqrt(3)


def test_the_sensitivity_is_reached():
    """One direction, one user at each end of it, losses that are linear there: nothing is left over."""
    objective = losses.huber(1.0, delta=1e-3)
    plan = _noiseless(_plan(objective, num_users=2, dim=1, regularization=1e-3))
    ends = []
    for label in (1.0, -1.0):
        labels = jnp.asarray([[label], [-1.0]])
        data = UserData(Example(jnp.ones((2, 1, 1)), labels))
        run = jax.jit(
            lambda d: output_perturbation.solve(jax.random.key(0), plan, objective, d, jnp.zeros(1))
        )
        ends.append(float(run(data).params[0]))
    assert float(plan.sensitivity) == pytest.approx(2 * 1e-3 / (1e-3 * 2), rel=2e-3)
    assert abs(ends[0] - ends[1]) == pytest.approx(1.0, rel=0.03)


def test_noise_and_privacy():
    objective = OBJECTIVES["ball"]._replace(domain=domains.whole_space())
    plan = _plan(objective, num_users=1000)
    data = _data("ball")
    small = dataclasses.replace(plan, num_users=10)
    keys = jax.random.split(jax.random.key(0), 2000)
    run = jax.jit(
        jax.vmap(
            lambda k: output_perturbation.solve(k, small, objective, data, jnp.zeros(3)).params
        )
    )
    found = np.asarray(run(keys), np.float64)
    # The sensitivity is that of the users that run, whatever was planned for.
    np.testing.assert_allclose(found.std(0), small.noise_stddev, rtol=0.07)
    assert small.noise_stddev == pytest.approx(100 * plan.noise_stddev, rel=0.05)
    assert plan.noise_stddev == pytest.approx(plan.noise_multiplier * plan.sensitivity)

    certificate = plan.certificate()
    assert 0.9999 < certificate.epsilon <= 1.0
    spent = _solver("ball")(jax.random.key(0), _plan(OBJECTIVES["ball"]), data)
    assert privacy.epsilon(spent.privacy, 1e-5) == pytest.approx(
        float(privacy.epsilon(privacy.gaussian(plan.noise_multiplier), 1e-5)), rel=1e-4
    )
    assert spent.status == Status.OK
    assert spent.gradients == _plan(OBJECTIVES["ball"]).num_steps * 10 * 2


def test_the_black_box_adds_noise_and_keeps_the_promise():
    objective = OBJECTIVES["whole space"]
    tight, paper = (
        _plan(objective, items_per_user=20, constants=c, regularization=0.1)
        for c in ("tight", "paper")
    )
    assert paper.sensitivity == tight.sensitivity
    assert 1.0 < paper.noise_multiplier / tight.noise_multiplier < 1.1
    assert paper.certificate().epsilon <= 1.0
    one = _plan(objective, items_per_user=1, constants="paper", regularization=0.1)
    assert one.noise_multiplier == pytest.approx(tight.noise_multiplier)


def test_bad_arguments():
    objective = OBJECTIVES["whole space"]
    with pytest.raises(ValueError, match="regularization must be positive"):
        _plan(objective, regularization=0.0)
    with pytest.raises(ValueError, match="distance must be"):
        _plan(objective, distance=None)
    assert _plan(OBJECTIVES["ball"], distance=None).excess_bound < math.inf
