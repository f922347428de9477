"""Single stages of whitened SGD where it matters that they are guarded: far slopes, radii at their ends."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import ball
from dpsco_jax.oracles import linear
from dpsco_jax.oracles.preconditioned import ScaledSums, TunedPoint
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import _first_intercept, whitened_sgd
from dpsco_jax.solvers.user_level._coordinates import Coordinates
from dpsco_jax.solvers.user_level._linear_models import Bends

STRAIGHT = Bends(1.0, 1.0, 1.0)
FEW, FAR = 5, losses.squared(2.0, 1.0, 100.0)  # slopes of up to 201, expected ones of 2


def _far_plan(items=1, **settings):
    problem = Problem(FAR, num_users=FEW, items_per_user=items, dim=1)
    settings = {"intercept": 0, "start_steps": 1, "radius_steps": 1, "num_steps": 2} | settings
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), **settings)
    names = ("start", "means", "squares", "radius", "warm", "noise")
    return dataclasses.replace(plan, **{f"{name}_multiplier": 1e-6 for name in names})


@pytest.mark.parametrize("items", [1, 3])
@pytest.mark.parametrize("column", [1.0, 2.0])
def test_a_step_on_the_intercept_moves_by_no_more_than_is_accounted(items, column):
    """Slopes far above the expected one, and a column that is not the constant 1."""
    plan, slope = _far_plan(items), 2.0

    def one(where):
        rows = jnp.zeros((FEW, items, 1)).at[0].set(column)
        data = linear.prepare(
            FAR.linear_model, UserData(Example(rows, jnp.zeros((FEW, items))), None), 1
        )
        found = _first_intercept.released(
            jax.random.key(0),
            plan,
            FAR,
            jnp.asarray(slope),
            STRAIGHT,
            data,
            jnp.full(1, where),
            True,
        )
        return float(found[0][0]) - where

    # The whole clip, and no more: one user moves the mean by slope / N.
    assert one(100.0) == pytest.approx(-slope / FEW, rel=1e-3)
    assert one(-100.0) == pytest.approx(slope / FEW, rel=1e-3)


def test_the_intercept_is_drawn_to_the_start_by_as_much_as_noise_hides():
    """Squared loss, all labels c: with noise of deviation t on the mean slope and b ~ N(b₀, 1) a priori.

    The mean of b given what is released is b₀ + (c - b₀)/(1 + t²), and its deviation t/√(1 + t²) at most.
    """
    start, label, runs = 0.25, 0.75, 2000
    problem = Problem(FAR, num_users=FEW, items_per_user=1, dim=1)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), intercept=0)
    plan, slope = dataclasses.replace(plan, start_multiplier=0.25), 50.0  # which nobody reaches
    # Steps are averaged with weights that grow as k²: 9/5 of the variance.
    stddev = 0.25 * (2.0 * slope / FEW) * (1.8 / plan.start_steps) ** 0.5
    rows = UserData(Example(jnp.ones((FEW, 1, 1)), jnp.full((FEW, 1), label)), None)
    data = linear.prepare(FAR.linear_model, rows, 1)

    @jax.jit
    def one(key):
        given = (jnp.asarray(slope), STRAIGHT, data, jnp.full(1, start), True)
        return _first_intercept.released(key, plan, FAR, *given)[0][0]

    found = jax.lax.map(one, jax.random.split(jax.random.key(5), runs), batch_size=50)
    kept = 1 / (1 + stddev**2)
    assert 0.7 < stddev < 1.1
    expected = start + (label - start) * kept
    assert np.mean(found) == pytest.approx(expected, abs=5 * stddev * kept / runs**0.5)
    assert np.std(found) == pytest.approx(stddev * kept, rel=0.15)


def test_an_intercept_far_beyond_the_prior_is_found_where_noise_does_not_hide_it():
    """b is 40 times the prior's deviation, and 20 times that of the noise."""
    start, label, runs = 0.0, 40.0, 100
    objective = losses.squared(2.0, 50.0, 100.0)
    problem = Problem(objective, num_users=FEW, items_per_user=1, dim=1)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), intercept=0, margin_scale=0.5)
    stddev, slope = 2.0, 150.0
    multiplier = stddev / ((2.0 * slope / FEW) * (1.8 / plan.start_steps) ** 0.5)
    plan = dataclasses.replace(plan, start_multiplier=multiplier)
    rows = UserData(Example(jnp.ones((FEW, 1, 1)), jnp.full((FEW, 1), label)), None)
    data = linear.prepare(objective.linear_model, rows, 1)

    @jax.jit
    def one(key):
        given = (jnp.asarray(slope), STRAIGHT, data, jnp.full(1, start), True)
        return _first_intercept.released(key, plan, objective, *given)[0][0]

    found = jax.lax.map(one, jax.random.split(jax.random.key(6), runs), batch_size=50)
    assert np.sqrt(np.mean((np.asarray(found) - label) ** 2)) < 1.3 * stddev


@pytest.mark.parametrize("unit", [1e-6, 1e9])
def test_a_ball_is_met_in_columns_of_any_unit(unit):
    plan, there = dataclasses.replace(_far_plan(), margin_scale=1e18), np.diag([1.0, 0.5, 2.0])
    wanted, opening = np.array([1.0, 2.0, 0.5]), jnp.zeros(())
    found = []
    for size in (1.0, unit):
        radius = 0.3 * np.linalg.norm(there @ wanted) / size
        same = Coordinates(jnp.asarray(there / size), jnp.asarray(np.linalg.inv(there) * size))
        descend = whitened_sgd._descent(
            plan,
            0,
            plan.quantile,
            losses.logistic(size, ball(radius)),
            STRAIGHT,
            same,
            jnp.zeros(3),
            opening,
        )
        nobody = ScaledSums(jnp.zeros(3), jnp.zeros(()), jnp.zeros(()))
        update = descend(nobody, TunedPoint(jnp.asarray(wanted, jnp.float32), opening))
        found.append(wanted + np.asarray(update.point))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_the_radius_stays_below_the_opening_one():
    plan = _far_plan()
    opening = jnp.asarray(0.3)
    same = Coordinates(jnp.eye(1), jnp.eye(1))
    descend = whitened_sgd._descent(
        plan, 0, plan.quantile, FAR, STRAIGHT, same, jnp.zeros(1), opening
    )
    nobody = ScaledSums(jnp.zeros(1), jnp.zeros(()), jnp.asarray(-0.1))
    update = descend(nobody, TunedPoint(jnp.zeros(1), opening))
    assert update.log_radius == 0.0


def test_a_radius_that_leaves_the_numbers_costs_infinity():
    """Nobody has an item: everybody is within every radius, and it shrinks to nothing."""
    plan = _far_plan(intercept=None, num_steps=1000, quantile=0.005, matrix=False)
    data = UserData(Example(jnp.zeros((FEW, 1, 1)), jnp.zeros((FEW, 1))), None)
    run = jax.jit(lambda key: whitened_sgd.solve(key, plan, FAR, data, jnp.zeros(1)))
    assert np.isfinite(plan.loss().rdp).any()
    assert not np.isfinite(run(jax.random.key(0)).privacy.rdp).any()


@pytest.mark.parametrize("entry_bound", [1e38, 1e-44])
def test_bounds_that_leave_float32_are_refused(entry_bound):
    problem = Problem(FAR, num_users=FEW, items_per_user=1, dim=1)
    with pytest.raises(ValueError, match="entry_bound"):
        whitened_sgd.plan(problem, Budget(1.0, 1e-5), entry_bound=entry_bound)


@pytest.mark.parametrize("outputs", [None, 3])
@pytest.mark.parametrize("share", [0.02, 0.9, 1.5])
def test_a_step_ends_at_the_nearest_point_of_the_ball_in_the_coordinates(share, outputs):
    """v is nearest to u iff ⟨u - v, v'⟩ is largest at v among all v' of the ball."""
    rng, shape = np.random.default_rng(0), (4,) if outputs is None else (4, outputs)
    to_params = rng.normal(size=(4, 4)) * 10.0 ** rng.uniform(-1, 1, 4)
    wanted = rng.normal(size=shape)
    radius = float(share * np.linalg.norm(to_params @ wanted))
    objective = losses.logistic(1.0, ball(radius))
    there = Coordinates(*(jnp.asarray(m) for m in (to_params, np.linalg.inv(to_params))))
    plan = dataclasses.replace(_far_plan(), margin_scale=1e18)  # no ridge
    opening = jnp.zeros(())
    descend = whitened_sgd._descent(
        plan, 0, plan.quantile, objective, STRAIGHT, there, jnp.zeros(shape), opening
    )
    nobody = ScaledSums(jnp.zeros(shape), jnp.zeros(()), jnp.zeros(()))
    update = descend(nobody, TunedPoint(jnp.asarray(wanted, jnp.float32), opening))
    found = wanted + np.asarray(update.point, float)
    if share > 1:
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        return
    assert np.linalg.norm(to_params @ found) == pytest.approx(radius, rel=1e-4)
    residual = wanted - found
    farthest = radius * np.linalg.norm(np.linalg.solve(to_params.T, residual))
    assert np.sum(residual * found) == pytest.approx(farthest, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("intercept", 99),
        ("intercept", -1),
        ("intercept", 1.0),
        ("start_steps", 0),
        ("radius_steps", 0),
        ("warm_steps", -1),
        ("num_steps", 0),
        ("chunk_size", 0),
        ("outputs", 2),
    ],
)
def test_sizes_that_a_run_cannot_have_are_refused_by_name(name, value):
    data = UserData(Example(jnp.zeros((FEW, 1, 1)), jnp.zeros((FEW, 1))), None)

    def run():
        # What no run of any plan could have is refused here.
        edited = dataclasses.replace(_far_plan(), **{name: value})
        whitened_sgd.solve(jax.random.key(0), edited, FAR, data, jnp.zeros(1))

    with pytest.raises(ValueError, match=rf"{name} must be .*, got {value}"):
        run()


def test_a_covariance_of_a_matrix_is_refused_in_an_edited_plan():
    objective = losses.softmax(2.0, 3)
    problem = Problem(objective, num_users=FEW, items_per_user=1, dim=6)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), num_steps=2)
    edited = dataclasses.replace(plan, covariance_multiplier=1.0)
    data = UserData(Example(jnp.zeros((FEW, 1, 2)), jnp.zeros((FEW, 1))), None)
    with pytest.raises(ValueError, match="covariance_multiplier"):
        whitened_sgd.solve(jax.random.key(0), edited, objective, data, jnp.zeros((2, 3)))


@pytest.mark.parametrize("flatness", [1.0, 5.0])
def test_noise_draws_to_the_centre_by_less_where_the_link_is_flat(flatness):
    """Without gradients a step shrinks v by 1/(1 + η·ridge)."""
    problem = Problem(losses.logistic(2.0), num_users=50, items_per_user=1, dim=3)
    plan = whitened_sgd.plan(problem, Budget(1.0, 1e-5), margin_scale=0.5)
    there = Coordinates(jnp.eye(3), jnp.eye(3))
    opening, radius = jnp.asarray(0.3), np.exp(0.3)
    bends = Bends(0.25, flatness, 0.25)
    given = (losses.logistic(2.0), bends, there, jnp.zeros(3), opening)
    descend = whitened_sgd._descent(plan, 1, plan.quantile, *given)
    nobody = ScaledSums(jnp.zeros(3), jnp.zeros(()), jnp.zeros(()))
    found = 1.0 + np.asarray(descend(nobody, TunedPoint(jnp.ones(3), opening)).point)
    noise = float(plan.average_stddev()) * radius
    # The point is √3 from the centre, beyond the planned scale: margins are that large, and the link is flat.
    known = bends._replace(mean=0.25 / (1 + np.pi / 8 * 3) ** 0.5)
    length = float(plan.step_size(1, known, radius, 3**0.5))
    expected = 1 / (1 + length * 3 * noise**2 / 3 / flatness)
    assert expected < 0.98
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 10.0])
def test_the_logistic_link_is_as_flat_as_gaussian_margins_make_it(scale):
    points = np.linspace(-9, 9, 20_001)
    weights = np.exp(-(points**2) / 2)
    share = 1 / (1 + np.exp(-scale * points))
    mean = weights @ (share * (1 - share)) / weights.sum()
    found = whitened_sgd._flatter_by_margins(Bends(0.25, 1.0, 0.25), jnp.asarray(scale)).mean
    assert found == pytest.approx(mean, rel=0.05)
    assert whitened_sgd._flatter_by_margins(Bends(0.25, 1.0, 0.25), 1e9).mean == 0.25 / 8


@pytest.mark.parametrize(("outputs", "expected"), [(None, 5.0), (4, 2.5)])
def test_a_point_beyond_the_planned_margin_is_the_scale(outputs, expected):
    plan = dataclasses.replace(_far_plan(margin_scale=2.0), outputs=outputs)
    centre, away = jnp.ones(2), jnp.asarray([3.0, 4.0])
    assert whitened_sgd._scale(plan, centre + away, centre) == pytest.approx(expected)
    assert whitened_sgd._scale(plan, centre + 0.1 * away, centre) == 2.0


def test_gradients_of_all_users_are_held_at_once_where_they_fit():
    def plan(users, dim, **settings):
        objective = losses.logistic(2.0)
        problem = Problem(objective, num_users=users, items_per_user=1, dim=dim)
        return whitened_sgd.plan(problem, Budget(1.0, 1e-7), **settings)

    assert plan(1000, 50).chunk_size == 1000
    assert plan(1000, 50).matrices_at_once == 64
    assert plan(2**20, 16).chunk_size == 2**20
    assert plan(2**20, 17).chunk_size == 64
    assert plan(1000, 50, chunk_size=7).chunk_size == plan(1000, 50, chunk_size=7).matrices_at_once
