"""Plans of ball acceleration, refusals, and the deterministic solver for smooth objectives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses, quadratics, reference
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData, mean_loss
from dpsco_jax.solvers.ball import ball_acceleration, exact_ball_oracles
from dpsco_jax.solvers.solution import Status


def test_plans():
    plan = ball_acceleration.plan(lipschitz=2.0, distance=3.0, ball_radius=0.03, excess=0.06)
    assert plan.largest == pytest.approx(4 * 2 / 0.03)  # not a multiple of L/ε
    balls, log = 100 ** (2 / 3), np.log(100)
    assert plan.regularization == pytest.approx(0.06 * balls**2 / 9 * log)
    assert plan.start_weight == 1.5
    assert plan.target_weight == pytest.approx(3 * 9 / 0.06)
    assert plan.num_iterations == np.ceil(14 * balls * np.log(300) + 3.5 * balls * np.sqrt(log))
    accuracies = plan.accuracies(0.01)
    assert accuracies.search == 1 / 41472
    searches = plan.num_iterations * plan.max_searches
    assert accuracies.search_runs == np.ceil(20 * np.log(searches / 0.01))
    assert "R/r" in str(plan)
    large = ball_acceleration.plan(
        lipschitz=1.0, distance=1.0, ball_radius=1.0, excess=1.0, scale=2.0
    )
    assert "larger than needed" in str(large)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ball_radius": 2.0}, r"ball_radius must be in \(0, distance = 1\], got 2.0"),
        ({"excess": 1.5}, r"excess must be in \(0, lipschitz·distance = 1\], got 1.5"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    good = {"lipschitz": 1.0, "distance": 1.0, "ball_radius": 0.1, "excess": 0.1}
    with pytest.raises(ValueError, match=message):
        ball_acceleration.plan(**(good | change))


def _users(rows=60, dim=4):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((rows, dim)).astype(np.float32)
    labels = (features @ np.ones(dim) + rng.standard_normal(rows) > 0).astype(np.float32)
    return UserData(Example(jnp.asarray(features)[:, None], jnp.asarray(labels)[:, None]))


@pytest.mark.parametrize("inner", ["gradient", pytest.param("newton", marks=pytest.mark.slow)])
def test_solve_finds_the_minimizer_of_a_logistic_loss(inner):
    objective, data = losses.logistic(2.0, ridge=0.01), _users()
    best = reference.solve(objective, data, 4)
    plan = ball_acceleration.plan(
        lipschitz=2.0, distance=4.0, ball_radius=0.5, excess=1e-4, search="adaptive", exact=True
    )
    solve = jax.jit(lambda w: ball_acceleration.solve(plan, objective, data, w, inner=inner))
    end = solve(jnp.zeros(4))
    assert end.status == Status.OK
    assert float(mean_loss(objective)(end.params, data)) - best.value < 1e-4
    assert sum(end.unprivate["trajectory"].oracle_calls) < 40
    assert not np.isfinite(end.privacy.rdp).any()
    assert end.gradients % 60 == 0


def test_fixed_steps_of_gradients_are_accelerated_gradient_descent():
    """A(F(x) - F*) ≤ R²/2 with A ≥ t²/(4λ), λ the smoothness: the rate of Nesterov's method."""
    problem = quadratics.chain(40)
    h, b, best = (jnp.asarray(x, jnp.float32) for x in (*problem, problem.minimizer))
    plan = ball_acceleration.plan(
        lipschitz=1.0, distance=1.0, ball_radius=0.1, excess=1e-3, search="fixed", exact=True
    )
    smoothness = float(h.max())
    plan = dataclasses.replace(plan, regularization=smoothness, num_iterations=60)
    oracles = exact_ball_oracles.gradient_step(lambda x: h * x - b)
    end = jax.jit(lambda x: ball_acceleration.run(jax.random.key(0), plan, oracles, x))(0 * b)
    gap = float(0.5 * jnp.sum(h * (end.params - best) ** 2))
    assert end.iterations == 60
    assert float(end.weight) >= 60**2 / (4 * smoothness)
    assert gap <= 0.5 / float(end.weight)
    assert end.calls.tolist() == [60, 120]


def test_solve_refuses_what_it_cannot_solve():
    plan = ball_acceleration.plan(lipschitz=1.0, distance=1.0, ball_radius=0.5, excess=0.1)
    data, start = _users(), jnp.zeros(4)
    with pytest.raises(ValueError, match="smooth, got smoothness None"):
        ball_acceleration.solve(plan, losses.absolute(1.0), data, start)
    bounded = losses.logistic(1.0, domains.ball(1.0))
    with pytest.raises(ValueError, match=r"whole space, got diameter 2.0"):
        ball_acceleration.solve(plan, bounded, data, start)
    with pytest.raises(ValueError, match="inner must be one of gradient, newton, got 'cg'"):
        ball_acceleration.solve(plan, losses.logistic(1.0), data, start, inner="cg")
