"""Zeroth-order draws in ℓp norms: what a plan promises, what it costs, and draws against quadrature."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from dpsco_jax import Budget, Infeasible, Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import _llt_numbers as constants
from dpsco_jax.solvers.sampling import llt_sampler, zeroth_order
from tests.support.edited_plans import gaussian_curve

pytestmark = pytest.mark.usefixtures("float64")

ABSOLUTE = losses.absolute(1.0)


def problem(objective=ABSOLUTE, num_users=2, dim=1, distance=1.0, **sizes):
    return Problem(objective, num_users=num_users, dim=dim, distance=distance, **sizes)


@functools.cache
def planned(epsilon=0.5, delta=1e-3, sizes=(("dim", 1),), **settings):
    settings = {"norm": 2.0} | settings
    return zeroth_order.plan(problem(**dict(sizes)), Budget(epsilon, delta), **settings)


def users(labels, rows=None):
    labels = np.asarray(labels, float)[:, None]
    rows = np.ones((*labels.shape, 1)) if rows is None else np.asarray(rows)[:, None, :]
    return UserData(Example(rows, labels), np.ones(labels.shape, bool))


def spent(plan, epsilon):
    """δ at an ε from k, μ, G, n and τ, in a second writing."""
    s = 2 * plan.setting.lipschitz / plan.num_users
    s *= math.sqrt(plan.inverse_temperature / plan.regularization)
    return gaussian_curve(s, epsilon) + (1 + math.exp(epsilon)) * float(
        plan.numbers.variation.total
    )


@pytest.mark.parametrize("settings", [{}, {"risk": "population"}, {"max_steps": 60}])
def test_plans_spend_the_budget_and_no_more(settings):
    plan = planned(**settings)
    delta = spent(plan, 0.5)
    assert delta <= 1e-3
    assert ("max_steps" in settings) != (delta >= 0.97e-3)
    certificate = plan.certificate()
    assert certificate.epsilon <= 0.5
    assert abs(spent(plan, certificate.epsilon) - 1e-3) <= 1e-8
    assert float(privacy.epsilon(plan.loss(), 1e-3)) >= certificate.epsilon
    assert certificate.relation.name == "REPLACE_ONE"
    assert plan.num_steps <= settings.get("max_steps", math.inf)
    assert "total variation" in str(plan)


def test_temperature_and_regularization_are_those_of_the_theorem_with_its_factors():
    """ERM: k = (sn/G_Δ)·√(d/Θ), μ = G_Δ²k/(s²n²), Θ of the transform and not of its limit R²/(2(p-1))."""
    plan = planned()
    s, n, change = float(plan.gdp), 2, 2.0
    k, mu = float(plan.inverse_temperature), float(plan.regularization)
    theta = (s * n / change) ** 2 / k**2
    # Of one parameter log E exp(R·r), r = |N(0, ½)| in units, in closed form.
    far = 1.0 / math.sqrt(plan.step_size / 2)
    range_of = far * far / 4 + math.log(2 * special.ndtr(far / math.sqrt(2)))
    assert math.isclose(theta, plan.step_size * range_of, rel_tol=1e-6)
    assert theta > 0.5
    assert math.isclose(mu, change**2 * k / (s * n) ** 2, rel_tol=1e-6)
    assert math.isclose(plan.excess_bound, 1 / k + mu * theta, rel_tol=1e-6)
    assert math.isclose(plan.excess_bound, 2 * change * math.sqrt(theta) / (s * n), rel_tol=1e-6)


def test_norms_near_one_are_worked_in_another_one_with_larger_slopes():
    """d = 3: p' = 1 + 1/log 3, in which rows within 1 in ℓp* are as long as d^(1/p - 1/p'), or as in ℓ2."""
    assert constants.working_exponent(1.1, 3) == 1 + 1 / math.log(3)
    assert constants.working_exponent(1.93, 3) == 1.93
    assert constants.working_exponent(1.1, 2) == 1.1
    assert constants.working_exponent(1.1, 1) == constants.working_exponent(1.97, 3) == 2.0
    inner = 1 + 1 / math.log(3)

    def slope(bound, row_bound, p, of=inner, dim=3):
        made = losses.quantile(bound, 0.8)
        return constants.working_lipschitz(made, p, of, dim, row_bound) / 0.8

    for p in (1.1, 1.5, 1.8):
        # The row of ones, scaled onto the bound of ℓp*, is as long as any.
        row = np.ones(3) / np.linalg.norm(np.ones(3), p / (p - 1))
        assert math.isclose(slope(9.0, 1.0, p), np.linalg.norm(row, inner / (inner - 1)))
    assert slope(9.0, None, 1.1) == 9.0
    assert math.isclose(slope(1.01, 1.0, 1.1), 1.01)
    assert math.isclose(slope(9.0, 1.0, 1.5, 1.5, 2), 1.0)
    assert math.isclose(slope(9.0, 1.0, 1.97, 2.0), 3 ** (1 / 1.97 - 1 / 2))


@functools.cache
def bounded():
    """p = 1.5, d = 2, rows within 1 in ℓ3, whose ℓ2 norm may be 2^(1/6)."""
    objective = losses.absolute(math.sqrt(2.0))
    sizes = (("objective", objective), ("dim", 2))
    plan = planned(0.5, 1e-3, sizes, norm=1.5, row_bound=1.0, max_steps=300)
    return objective, plan


def test_a_bound_on_rows_is_what_one_gains_by(monkeypatch):
    """G is 1 in ℓp and not √2; rows beyond it are scaled onto it, and the objective has to be the same."""
    objective, plan = bounded()
    assert plan.setting.lipschitz == 1.0
    assert math.isclose(plan.gdp, math.sqrt(plan.inverse_temperature / plan.regularization))
    monkeypatch.setattr(llt_sampler, "oracle", lambda loss, data, *_, **__: (loss, data))
    rows = [[1.0, 1.0], [0.5, -0.5]]
    start, move = jnp.asarray([0.3, -0.2]), jnp.asarray([5.0, 2.0])
    loss, records = zeroth_order._moves(plan, objective, users([3.0, 0.1], rows), start)
    at = start + float(plan.numbers.unit) * move
    for user, factor in ((0, 2 ** (-1 / 3)), (1, 1.0)):
        record = jax.tree.map(lambda leaf, user=user: leaf[user], records)
        label = (3.0, 0.1)[user]
        expected = abs(factor * np.asarray(rows[user]) @ at - label)
        assert math.isclose(float(loss(move, record)), expected, rel_tol=1e-9)
    wide = dataclasses.replace(plan, setting=plan.setting._replace(row_bound=1.2))
    for broken in (wide, dataclasses.replace(plan, norm=1.2)):
        # Another norm has another dual, in which rows are bounded: G is not the one that is charged for.
        with pytest.raises(ValueError, match="objective"):
            zeroth_order.solve(jax.random.key(0), broken, objective, users([3.0, 0.1], rows), start)


def test_the_population_s_risk_takes_no_more_than_values_allow():
    """s is at most √(2d/n), and μ = G_Δ²·k/(s²n²)."""
    plan = zeroth_order.plan(problem(num_users=40), Budget(4.0, 1e-2), norm=2.0, risk="population")
    assert math.isclose(float(plan.gdp), math.sqrt(2 / 40), rel_tol=1e-6)
    k, mu = float(plan.inverse_temperature), float(plan.regularization)
    assert math.isclose(mu, 4 * k / (plan.gdp * 40) ** 2, rel_tol=1e-6)


@pytest.mark.parametrize("leaf", ["inverse_temperature", "step_size"])
def test_an_edited_plan_claims_nothing_where_its_bounds_do_not_reach(leaf):
    plan = planned()
    wide = dataclasses.replace(plan, **{leaf: 1.1 * getattr(plan, leaf)})
    assert wide.certificate().epsilon == math.inf
    few = dataclasses.replace(plan, num_steps=plan.num_steps - 20)
    assert few.certificate().epsilon > plan.certificate().epsilon


LANES = 600


@functools.cache
def _runs():
    return jax.jit(
        jax.vmap(
            lambda key, data, start: zeroth_order.solve(key, planned(), ABSOLUTE, data, start),
            (0, None, None),
        )
    )


def runs(seed, data, start=0.0, lanes=LANES):
    """Draws of one plan, of one compiled function."""
    return _runs()(jax.random.split(jax.random.key(seed), lanes), data, jnp.full(1, start))


def test_one_draw_leaves_and_its_counts_stay_behind():
    plan, data = planned(), users([3.0, -3.0])
    shapes = jax.eval_shape(
        lambda start: zeroth_order.solve(jax.random.key(0), plan, ABSOLUTE, data, start),
        jnp.zeros(1, jnp.float32),
    )
    assert shapes.params.dtype == jnp.float32
    made = runs(1, data)
    assert np.all(made.status == 0)
    assert np.all(made.unprivate["steps"] == plan.num_steps)
    assert np.all(made.unprivate["trials"] >= plan.num_steps)
    assert np.all(made.unprivate["gradients"] <= made.gradients)
    assert np.all(made.gradients == int(plan.user_gradients))
    # Whoever has no items, or none that are numbers, has the loss zero.
    gone = data._replace(mask=np.array([[True], [False]]))
    one, two = (runs(2, other).params for other in (gone, users([3.0, math.nan])))
    np.testing.assert_array_equal(one, two)
    bad = users([3.0, 0.0], [[1.0], [math.nan]])
    np.testing.assert_array_equal(one, runs(2, bad).params)
    far = jax.tree.map(lambda leaf: leaf[0], runs(1, data, 1e3))
    assert float(privacy.epsilon(far.privacy, 1e-3)) == math.inf


def test_the_point_that_leaves_is_on_a_public_grid():
    numbers = planned().numbers
    places = np.asarray(runs(4, users([3.0, -3.0])).params)[:, 0]
    places = places / float(numbers.unit * numbers.release_unit)
    np.testing.assert_allclose(places, np.round(places), atol=1e-9)
    # Sixty-four places in √η.
    assert math.isclose(float(numbers.unit * numbers.release_unit), planned().step_size ** 0.5 / 64)


@pytest.mark.parametrize("lanes", [LANES, pytest.param(20_000, marks=pytest.mark.slow)])
def test_draws_have_the_law_of_quadrature(lanes):
    """exp(-k(F + μ(x - start)²/2)) in one dimension, labels inside and far outside."""
    plan, start = planned(), 0.5
    found = np.asarray(runs(3, users([0.8, -1e9]), start, lanes).params)[:, 0]
    k, mu = plan.inverse_temperature, plan.regularization
    x = np.linspace(start - 12, start + 12, 40_001)
    losses_at = 0.5 * (np.abs(x - 0.8) + x)
    law = np.cumsum(np.exp(-k * (losses_at + 0.5 * mu * (x - start) ** 2)))
    statistic = stats.kstest(found, lambda at: np.interp(at, x, law / law[-1])).statistic
    assert statistic <= 1.95 / math.sqrt(lanes)


@pytest.mark.slow
def test_the_worst_pair_is_told_apart_as_well_as_is_claimed_and_no_better():
    """Two users with labels beyond all margins, one of whom is replaced: d' of the draws, and the best
    threshold.
    """
    plan = zeroth_order.plan(problem(), Budget(1.0, 1e-2), norm=2.0)
    objective = ABSOLUTE
    lanes, found = 4000, []

    @jax.jit
    def run(keys, data):
        return jax.vmap(
            lambda key: zeroth_order.solve(key, plan, objective, data, jnp.zeros(1)).params[0]
        )(keys)

    for sign, key in ((1.0, 11), (-1.0, 12)):
        data = users([sign * 1e6, 1e6])
        found.append(np.asarray(run(jax.random.split(jax.random.key(key), lanes), data)))
    apart = abs(found[0].mean() - found[1].mean()) / math.sqrt(
        0.5 * (found[0].var() + found[1].var())
    )
    s = float(plan.gdp)
    assert abs(apart - s) <= 4 * math.sqrt(2 / lanes) * (1 + s)
    middle = 0.5 * (found[0].mean() + found[1].mean())
    wrong = [np.sum(found[0] < middle), np.sum(found[1] > middle)]
    high = [stats.beta.ppf(1 - 5e-4, w + 1, lanes - w) for w in wrong]
    learned = stats.norm.ppf(1 - high[0]) - stats.norm.ppf(high[1])
    assert 0.7 * s <= learned <= s


@pytest.mark.parametrize("stated", [ABSOLUTE.label_range, losses.hinge(1.0).label_range])
def test_labels_are_cut_beyond_all_margins_of_a_run(monkeypatch, stated):
    """Whatever range of labels the objective states."""
    plan, objective = planned(), ABSOLUTE._replace(label_range=stated)
    monkeypatch.setattr(llt_sampler, "oracle", lambda loss, data, *_, **__: data)
    *_, labels, _ = zeroth_order._moves(plan, objective, users([1e30, -0.5]), jnp.zeros(1))
    bound = plan.setting.label_bound
    assert labels.ravel().tolist() == [bound, -0.5]
    assert bound >= 2 * plan.setting.largest_margin
    assert plan.setting.farthest >= float(plan.numbers.radius * plan.numbers.unit)


REFUSED = [
    ({"norm": 1.05}, {}, "norm"),
    ({"norm": 2.5}, {}, "norm"),
    ({}, {"dim": 11}, "problem.dim"),
    ({}, {"objective": losses.absolute(1.0, domains.ball(1.0))}, "objective.domain"),
    ({}, {"objective": losses.absolute(1.0, ridge=0.1)}, "objective.ridge"),
    ({}, {"objective": ABSOLUTE._replace(lipschitz=0.5)}, "lipschitz"),
    ({}, {"objective": losses.softmax(1.0, 3)}, "vectors"),
    ({}, {"objective": losses.squared(1.0, 1.0, 1.0)}, "globally_convex_lipschitz"),
]


@pytest.mark.parametrize(("settings", "sizes", "name"), REFUSED)
def test_what_a_plan_does_not_take_is_refused_by_name(settings, sizes, name):
    with pytest.raises(ValueError, match=name):
        zeroth_order.plan(problem(**sizes), Budget(1.0, 1e-3), **({"norm": 2.0} | settings))


def test_schatten_norms_are_an_open_question():
    with pytest.raises(NotImplementedError, match="open question"):
        zeroth_order.plan(problem(), Budget(1.0, 1e-3), norm=("schatten", 1.5))


def test_float64_is_asked_for():
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        zeroth_order.plan(problem(), Budget(1.0, 1e-3))


def test_a_delta_that_float64_cannot_prove_is_refused():
    with pytest.raises(Infeasible, match="delta"):
        zeroth_order.plan(problem(), Budget(1.0, 1e-15), norm=2.0)


@pytest.mark.slow
def test_a_norm_between_one_and_two_runs_whole():
    """n = 2, d = 2, p = 1.5, rows on and beyond their bound: the points that leave, against a grid."""
    objective, plan = bounded()
    lanes, start = 200, np.asarray([0.5, -0.25])
    rows, labels = np.asarray([[1.0, 1.0], [0.9, -0.2]]), np.asarray([4.0, -1.0])
    data = users(labels, rows)

    def one(key):
        made = zeroth_order.solve(key, plan, objective, data, jnp.asarray(start))
        return made.params, made.unprivate["steps"]

    keys = jax.random.split(jax.random.key(4), lanes)
    found, steps = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
    assert np.all(steps == plan.num_steps)

    unit, drift = float(plan.numbers.unit), float(plan.numbers.start_convexity)
    side = np.linspace(-1.0, 1.0, 81) * 6.5 / math.sqrt(drift / 4)
    x = np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    inside = np.linalg.norm(x, 1.5, axis=1) <= float(plan.numbers.radius)
    x = x[inside]
    psi = np.asarray(jax.jit(lambda x: jax.lax.map(plan.transform.value, x, batch_size=64))(x))
    bounded_rows = rows / np.maximum(1.0, np.linalg.norm(rows, 3, axis=1))[:, None]
    losses_at = np.mean(np.abs((start + unit * x) @ bounded_rows.T - labels), axis=1)
    log = -plan.inverse_temperature * losses_at - drift * psi
    mass = np.exp(log - log.max())
    places = start + unit * x
    shifts = (np.arange(6) - 2.5) / 6 * unit * (side[1] - side[0])
    shifts = np.stack(np.meshgrid(shifts, shifts), -1).reshape(-1, 2)
    places = (places[:, None] + shifts).reshape(-1, 2)
    mass = np.repeat(mass / mass.sum() / len(shifts), len(shifts))
    for direction in ([1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -0.618]):
        order = np.argsort(places @ direction)
        ends, at = np.cumsum(mass[order]), (places @ direction)[order]
        law = lambda z, at=at, ends=ends: np.interp(z, at, ends)  # noqa: E731
        assert stats.kstest(np.asarray(found) @ direction, law).statistic <= 1.95 / math.sqrt(lanes)
