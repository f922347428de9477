"""Predictions of auto: responses by simulation, limits without and with much noise, and what is monotone."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.privacy import FullBatch, certified_noise_multiplier
from dpsco_jax.problems import losses
from dpsco_jax.solvers import methods
from dpsco_jax.solvers._schedules import nominal_descent as descent
from dpsco_jax.solvers._schedules import nominal_model as model
from dpsco_jax.solvers.user_level import _auto_predictions as predictions
from dpsco_jax.solvers.user_level import auto
from dpsco_jax.solvers.user_level._auto_predictions import Setting
from dpsco_jax.solvers.user_level.auto import planned_row

H = np.array([0.0, 0.01, 0.3, 1.0])
T = 30
NAMED = {candidate.name: candidate for candidate in auto.CANDIDATES}
LOGISTIC = losses.logistic(1.0, domains.ball(4.0))
GAUSSIAN = (
    "sgd", "sgd, a tenth of the users", "sgd, clipped at 2L/sqrt(m)", "private_ac_sa, full batches",
    "momentum_sgd", "whitened_sgd", "preconditioned_sgd", "item_group_privacy, drawn",
)  # fmt: skip


def _setting(objective=LOGISTIC, epsilon=2.0, users=2000, items=16, dim=6, distance=3.0, **form):
    problem = Problem(objective, num_users=users, items_per_user=items, dim=dim, distance=distance)
    unit = certified_noise_multiplier(
        FullBatch(), 1, epsilon, 1e-5, NeighboringRelation.REPLACE_ONE
    )
    return Setting(problem, Budget(epsilon, 1e-5), None, 200, unit, **form)


def _prediction(name, setting):
    row, plan = planned_row(NAMED[name], setting, 10**12, {})
    assert not row.reason, row.reason
    return row.prediction, plan


def _simulated(method, gradients):
    """The reported point of the chain of a method on the quadratics of curvatures H, from 1."""

    def run(noise):
        def step(carry, xi):
            point, state = carry
            updates, state = method.steps.update(
                jnp.asarray(H, jnp.float32) * point + xi, state, point
            )
            return (optax.apply_updates(point, updates), state), None

        start = jnp.ones(len(H))
        (point, state), _ = jax.lax.scan(step, (start, method.steps.init(start)), noise)
        return method.report(state, point)

    return jax.jit(jax.vmap(run))(gradients)


METHODS = {
    "averaged": (
        methods.ProjectedSgd(0.4),
        lambda: descent.averaged(H, 0.4, T),
    ),
    "scheduled": (
        methods.ScheduledSgd(np.linspace(0.5, 0.1, T), np.linspace(1.0, 0.1, T)),
        lambda: descent.scheduled(H, np.linspace(0.5, 0.1, T), np.linspace(1.0, 0.1, T)),
    ),
    "momentum": (
        methods.Momentum(0.8, 0.7, "linear"),
        lambda: descent.heavy_ball(H, 0.8 * (T - np.arange(T)) / (T + 1), 0.7),
    ),
    "ac_sa": (
        methods.AcSa(2.0, 0.0),
        lambda: descent.ac_sa(H, 2.0, 0.0, T),
    ),
    "ac_sa, strongly convex": (
        methods.AcSa(1.0, 0.2),
        lambda: descent.ac_sa(H, 1.0, 0.2, T),
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_responses_are_those_of_the_methods(name):
    made, response = METHODS[name]
    runs = 4000
    noise = jax.random.normal(jax.random.key(0), (runs, T, len(H)))
    method = made.on(domains.whole_space(), T)
    still = _simulated(method, jnp.zeros((1, T, len(H))))[0]
    points = _simulated(method, noise)
    found = response()
    np.testing.assert_allclose(found.kept, still, rtol=1e-4, atol=1e-5)
    error = math.sqrt(2 / runs)
    np.testing.assert_allclose(found.noise, np.var(points, axis=0), rtol=5 * error)


def test_the_closed_form_of_the_average_is_the_sum():
    for step, steps in ((0.3, 1), (0.5, 7), (1.9, 40), (2.5, 6)):
        ours = descent.averaged(H, step, steps)
        shares = 1 / np.arange(1, steps + 1)
        summed = descent.scheduled(H, np.full(steps, step), shares)
        np.testing.assert_allclose(ours.kept, summed.kept, rtol=1e-6)
        np.testing.assert_allclose(ours.noise, summed.noise, rtol=1e-6)


def test_a_pull_towards_the_start_keeps_its_share():
    u, still = 0.5, descent.Response(np.zeros(4), np.ones(4))
    pulled = still.pulled(H, u)
    np.testing.assert_allclose(pulled.kept, u / (H + u))  # the minimizer of the sum
    np.testing.assert_allclose(pulled.noise, 1.0)


def test_a_diverging_method_has_a_large_and_finite_response():
    wild = descent.averaged(H, 1e3, 500)
    assert np.isfinite(wild.kept).all()
    assert np.isfinite(wild.noise).all()
    assert abs(wild.kept[-1]) > 1e50
    assert np.isfinite(predictions.risk(_setting(dim=4), wild._replace(kept=wild.kept[:1]), 1.0))


def test_the_nominal_rows_sum_to_what_is_public():
    nominal = model.nominal(Problem(LOGISTIC, num_users=10, dim=300, distance=9.0))
    assert nominal.size == pytest.approx(1.0)
    assert nominal.counts.sum() == 300
    assert len(nominal.counts) < 60
    assert nominal.counts @ nominal.starts <= 81.0 * (1 + 1e-9)
    wide = losses.logistic(math.sqrt(7.0))
    table = model.nominal(
        Problem(wide, num_users=10, dim=7, distance=9.0), intercept=0, entry_bound=1.0
    )
    assert table.size == pytest.approx(1 + 6 / 3)
    assert table.curvatures[0] == pytest.approx(table.size / 2)
    hot = model.nominal(Problem(LOGISTIC, num_users=10, dim=30, distance=9.0), columns_per_row=3)
    assert hot.size == pytest.approx(1.0)
    assert hot.curvatures[0] == pytest.approx(1 / 9)
    points = model.nominal(Problem(losses.squared_distance(1.0, 1.0), num_users=10, dim=5))
    assert points.counts @ points.starts == pytest.approx(1.0)  # half of the diameter, squared


def test_small_excess_is_the_quadratic_and_large_one_grows_with_the_slope():
    nominal = model.nominal(Problem(LOGISTIC, num_users=10, dim=5, distance=9.0))
    for margin, expected in ((1e-5, 0.25 * 1e-10 / 2), (1e4, 1e4)):
        squares = np.full_like(nominal.starts, margin**2 / nominal.size)
        assert nominal.excess(squares) == pytest.approx(expected, rel=1e-3)


def test_clipping_keeps_all_of_short_gradients_and_a_share_of_long_ones():
    nominal = model.nominal(Problem(LOGISTIC, num_users=10, dim=5, distance=9.0))
    norm = nominal.user_gradient
    assert nominal.kept(100 * norm) == pytest.approx(1.0)
    assert nominal.kept(0.01 * norm) == pytest.approx(0.01, rel=1e-4)
    alike = dataclasses.replace(
        Problem(LOGISTIC, num_users=10, dim=5, distance=9.0), items_per_user=50
    )
    assert model.nominal(alike).user_gradient < norm


@pytest.mark.parametrize("name", GAUSSIAN)
def test_without_noise_convergence_is_left_and_with_much_noise_no_more_than_noise(name):
    setting = _setting()
    prediction, plan = _prediction(name, setting)
    predict = NAMED[name].predict
    quiet = plan.replace(noise_multiplier=1e-9)
    bias = predict(setting, quiet)
    assert 0 <= bias < prediction
    if name == "sgd":
        nominal, step, clip = setting.nominal, float(plan.step_size), float(plan.clip_norm)
        r = (1 - step * nominal.kept(clip) * 0.25 * nominal.curvatures) ** np.arange(
            1, plan.num_steps + 1
        )[:, None]
        expected = nominal.excess(r.mean(axis=0) ** 2 * nominal.starts)
        assert bias == pytest.approx(expected, rel=1e-6)


def test_with_much_noise_the_error_is_that_of_the_noise():
    setting = _setting(epsilon=0.5, users=50)
    _, plan = _prediction("sgd", setting)
    loud = plan.replace(noise_multiplier=1e3, step_size=1.0, num_steps=1)
    # One step: e₁ = e₀ - η(h·e₀ + ξ), and what is left of e₀ is nothing beside ξ.
    stddev = 2 * 1e3 / 50
    nominal = setting.nominal
    expected = nominal.excess(np.full_like(nominal.starts, stddev**2))
    assert predictions.sgd(setting, loud) == pytest.approx(expected, rel=1e-2)
