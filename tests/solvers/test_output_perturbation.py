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
from dpsco_jax.problems import losses, synthetic
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


@pytest.mark.parametrize("name", OBJECTIVES)
def test_replacing_a_user_moves_the_last_point_by_at_most_the_sensitivity(name):
    objective = OBJECTIVES[name]
    plan = _noiseless(_plan(objective, regularization=0.1))
    solver, rng = _solver(name), np.random.default_rng(1)
    furthest = 0.0
    for _ in range(12):
        data = _data(name, int(rng.integers(1000)))
        size = float(np.exp(rng.normal(0.0, 3.0)))

        def replaced(leaf, at, scale=size):
            return leaf.at[at].set(-scale * leaf[at])

        if name == "no closed form":
            other = UserData(replaced(data.items, 4))
        else:
            flipped = data.items.label.at[4].set(1.0 - data.items.label[4])
            features = data.items.features.at[4].set(size * data.items.features[5])
            other = UserData(Example(features, flipped))
        ends = [solver(jax.random.key(0), plan, d).params for d in (data, other)]
        furthest = max(furthest, float(np.linalg.norm(np.subtract(*ends))))
    assert 0.0 < furthest <= float(plan.sensitivity)


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


@pytest.mark.parametrize("name", ["whole space", "ball"])
@pytest.mark.slow
def test_the_regularization_is_the_best_and_the_bound_holds(name):
    problem = synthetic.logistic_regression(jax.random.key(3), 400, 2, 3, 0.0, slope_norm=1.0)
    objective = OBJECTIVES[name]._replace(ridge=problem.objective.ridge)
    if name == "ball":
        objective = objective._replace(domain=domains.ball(2.0))
    best = _plan(objective, num_users=400)
    for factor in (0.25, 4.0):
        other = _plan(objective, num_users=400, regularization=factor * float(best.regularization))
        assert other.excess_bound >= best.excess_bound

    loss = mean_loss(problem.objective)
    keys = jax.random.split(jax.random.key(0), 64)

    def excess(key):
        solution = output_perturbation.solve(key, best, objective, problem.data, jnp.zeros(3))
        return loss(solution.params, problem.data)

    risk = np.asarray(jax.jit(jax.vmap(excess))(keys), np.float64)
    optimum = float(loss(jnp.asarray(problem.minimizer, jnp.float32), problem.data))
    assert np.linalg.norm(problem.minimizer) <= BUDGET["distance"]
    assert 0.0 < risk.mean() - optimum <= best.excess_bound
    assert best.excess_bound < 1.0


def test_a_user_without_a_number_counts_as_nothing():
    objective, data = OBJECTIVES["whole space"], _data("whole space")
    broken = data.items._replace(label=data.items.label.at[2].set(jnp.nan))
    plan = _noiseless(_plan(objective, regularization=0.1))
    run = _solver("whole space")
    found = run(jax.random.key(0), plan, UserData(broken))
    assert found.status == Status.OK
    # The user's loss is zero: features that are zero give a constant loss as well.
    absent = data.items._replace(features=data.items.features.at[2].set(0.0))
    expected = run(jax.random.key(0), plan, UserData(absent))
    np.testing.assert_allclose(found.params, expected.params, atol=1e-6)


def test_bad_arguments():
    objective = OBJECTIVES["whole space"]
    for name, value in (
        ("num_users", 1), ("dim", 0), ("epsilon", 0.0), ("delta", 0.0), ("delta", 1.0),
        ("regularization", -1.0), ("distance", math.inf), ("items_per_user", 0), ("constants", "loose"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{name} must be"):
            _plan(objective, **{name: value})
    with pytest.raises(ValueError, match="regularization must be positive"):
        _plan(objective, regularization=0.0)
    with pytest.raises(ValueError, match="distance must be"):
        _plan(objective, distance=None)
    assert _plan(OBJECTIVES["ball"], distance=None).excess_bound < math.inf
    with pytest.raises(ValueError, match=r"plan\.num_users = 11"):
        output_perturbation.solve(
            jax.random.key(0), _plan(objective, num_users=11), objective,
            _data("whole space"), jnp.zeros(3),
        )  # fmt: skip


def test_the_table_shows_what_happens():
    text = str(_plan(OBJECTIVES["ball"]))
    for word in (
        "output perturbation",
        "sensitivity",
        "regularization",
        "REPLACE_ONE",
        "closed form",
    ):
        assert word in text
