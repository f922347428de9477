"""The exponential mechanism: its law cell by cell, its ε on worst pairs, its plans, and its chain."""

import dataclasses
import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms import selection
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective, OneHot
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import _cells, exponential_mechanism, rejection_oracle
from dpsco_jax.solvers.sampling._rejection_certificate import inner_variation

pytestmark = pytest.mark.usefixtures("float64")

BOX = domains.box(np.array([-1.0, 0.0]), np.array([1.0, 1.0]))
LINE = domains.box(np.array([-1.0]), np.array([2.0]))
USERS = 6


def linear(bound, domain):
    """⟨features, x⟩ of features within a bound: no label."""

    def loss(params, item):
        norm = jnp.linalg.norm(item.features)
        return jnp.vdot(params, item.features) * jnp.minimum(1.0, bound / jnp.maximum(norm, 1e-30))

    return Objective(loss=loss, lipschitz=bound, smoothness=0.0, domain=domain)


def users(features, labels=None):
    features = jnp.asarray(features, jnp.float64)[:, None, :]
    labels = jnp.zeros(features.shape[:2]) if labels is None else jnp.asarray(labels)[:, None]
    return UserData(Example(features, labels * 1.0))


def some(seed=0, number=USERS, dim=2):
    rng = np.random.default_rng(seed)
    return users(rng.standard_normal((number, dim)), rng.integers(0, 2, number))


def planned(objective, dim, epsilon=1.0, delta=0.0, number=USERS, items=1, **given):
    problem = Problem(objective, num_users=number, dim=dim, items_per_user=items)
    return exponential_mechanism.plan(
        problem, Budget(epsilon, delta, allow_large_delta=True), **given
    )


_SEEN = []


@functools.cache
def _program(objective):
    """A run in which every draw shows its scores instead: plans that are alike have one program."""

    def keep(key, scores, epsilon, sensitivity, monotone=False):
        # As bits: a callback of a compiled program gets no float64.
        numbers = jnp.append(scores, jnp.stack([epsilon, sensitivity]))
        bits = jax.lax.bitcast_convert_type(numbers, jnp.uint32)

        def append(name, x):
            _SEEN.append((name.tolist(), np.array(x).view(np.float64)[:, 0]))

        jax.debug.callback(append, jax.random.key_data(key), bits)
        return jnp.zeros((), jnp.int32)

    @jax.jit
    def run(plan, data):
        with mock.patch.object(selection, "exponential_mechanism", keep):
            start = jnp.zeros(plan.dim)
            return exponential_mechanism.solve(jax.random.key(0), plan, objective, data, start)

    return run


def scores_of(plan, objective, data):
    """The log-weights that are drawn by, without noise."""
    _SEEN.clear()
    jax.block_until_ready(_program(objective)(plan, data))
    jax.effects_barrier()
    # ε·score/(2Δ); draws in the order of their keys, which is the same for all data, not of their arrival.
    found = [seen for _, seen in sorted(_SEEN, key=lambda draw: draw[0])]
    return [seen[:-2] * seen[-2] / (2 * seen[-1]) for seen in found]


def law_of(*arguments):
    """The probabilities of all cells."""
    logs = functools.reduce(np.add.outer, scores_of(*arguments)).ravel()
    mass = np.exp(logs - logs.max())
    return mass / mass.sum()


def centers(plan):
    lower, upper = np.asarray(plan.lower), np.asarray(plan.upper)
    marks = (np.arange(plan.cells) + 0.5) / plan.cells
    axes = [low + (high - low) * marks for low, high in zip(lower, upper, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, plan.dim)


def test_the_law_of_the_cells_is_that_of_the_formula():
    objective, data = losses.logistic(1.0, domain=BOX), some()
    plan = planned(objective, 2, cells=8)
    x = centers(plan)
    rows = np.asarray(data.items.features)[:, 0]
    rows = rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    margins, labels = x @ rows.T, np.asarray(data.items.label)[:, 0]
    risk = np.mean(np.logaddexp(0, margins) - labels * margins, axis=1)
    logs = -float(plan.inverse_temperature) * risk
    expected = np.exp(logs - logs.max())
    found = law_of(plan, objective, data)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-12)
    # k = εn/(2L·D), D the diameter of the centres.
    diameter = np.linalg.norm(x[0] - x[-1])
    assert float(plan.inverse_temperature) == pytest.approx(USERS / (2 * diameter), rel=1e-8)


def test_draws_follow_the_law_and_are_uniform_in_their_cells():
    objective, data = losses.logistic(1.0, domain=LINE), some(1, dim=1)
    plan = planned(objective, 1, epsilon=8.0, cells=16)
    law = law_of(plan, objective, data)
    start, number = jnp.zeros(1), 4000
    draw = jax.jit(
        jax.vmap(lambda key: exponential_mechanism.solve(key, plan, objective, data, start).params)
    )
    found = np.asarray(draw(jax.random.split(jax.random.key(0), number)))[:, 0]
    at = (found + 1.0) / 3.0 * 16
    counts = np.bincount(at.astype(int), minlength=16)
    assert stats.chisquare(counts, number * law).pvalue > 1e-3
    assert stats.kstest(at % 1.0, "uniform").statistic < 1.95 / math.sqrt(number)
    # Against the law on the line, by quadrature: cells of 3/16 are all that is between.
    grid = np.linspace(-1, 2, 3001)
    rows = np.clip(np.asarray(data.items.features)[:, 0, 0], -1, 1)
    labels = np.asarray(data.items.label)[:, 0]
    margins = grid[:, None] * rows
    risk = np.mean(np.logaddexp(0, margins) - labels * margins, axis=1)
    density = np.exp(-float(plan.inverse_temperature) * risk)
    law = np.interp(found, grid, np.cumsum(density) / density.sum())
    near = float(plan.inverse_temperature) * 3 / 32  # the potential moves by half a cell
    assert stats.kstest(law, "uniform").statistic < 1.95 / math.sqrt(number) + near / 4


WORST = [
    np.array([[1.0, 0.0]]), np.array([[-1.0, 0.0]]), np.array([[2.0, 1.0]]) / math.sqrt(5),
    np.array([[-2.0, -1.0]]) / math.sqrt(5), np.array([[math.nan, 1.0]]), np.array([[1e30, 1e30]]),
]  # fmt: skip


def test_on_a_ball_the_worst_pair_lies_along_a_diameter():
    objective = linear(1.0, domains.ball(1.5))
    plan = planned(objective, 2, epsilon=0.7, cells=41)
    rest = np.asarray(some(2).items.features)[:-1, 0]
    one, other = (
        law_of(plan, objective, users(np.concatenate([rest, [[sign, 0.0]]])))
        for sign in (1.0, -1.0)
    )
    ratio = np.log(one[one > 0] / other[one > 0])
    assert 0.97 * float(plan.range) < np.ptp(ratio) <= float(plan.range) <= 0.7
    assert float(plan.offset) == 1.5


@pytest.mark.parametrize("route", ["grid", "linear"])
def test_the_worst_pair_has_the_epsilon_that_is_planned_and_no_pair_has_more(route):
    """Linear losses along the diagonal attain the range of log-weights, from end to end."""
    objective = linear(1.0, BOX)
    plan = planned(objective, 2, epsilon=0.7, cells=8, route=route)
    rest = np.asarray(some(2).items.features)[:-1, 0]
    laws = [law_of(plan, objective, users(np.concatenate([rest, last]))) for last in WORST]
    spent = float(plan.range)
    assert plan.certificate().epsilon == spent <= 0.7
    ranges = []
    for one in laws:
        for other in laws:
            ratio = np.log(one / other)
            assert np.max(np.abs(ratio)) <= spent
            ranges.append(np.ptp(ratio))
    assert 0.9999 * spent < max(ranges) <= spent


def test_values_are_clipped_whatever_the_loss_is():
    """A loss that claims a hundredth of its slope, and is not convex, costs no more than is said."""

    def loss(params, item):
        return 100.0 * jnp.sin(7.0 * jnp.vdot(params, item.features)) / item.label

    wild = Objective(loss=loss, lipschitz=1.0, smoothness=None, domain=BOX)
    for route in ("grid", "linear"):
        plan = planned(wild, 2, epsilon=1.0, cells=8, route=route)
        laws = [
            law_of(plan, wild, users(x, np.ones(USERS) * y))
            for x, y in (
                (np.tile([[0.5, 0.5]], (USERS, 1)), 1.0),
                (np.concatenate([np.tile([[0.5, 0.5]], (USERS - 1, 1)), [[-3.0, 1.0]]]), 1.0),
                (np.concatenate([np.tile([[0.5, 0.5]], (USERS - 1, 1)), [[math.inf, 1.0]]]), 1.0),
                (np.concatenate([np.tile([[0.5, 0.5]], (USERS - 1, 1)), [[-0.5, -0.5]]]), 1.0),
            )
        ]
        for one in laws:
            for other in laws:
                assert np.ptp(np.log(one / other)) <= float(plan.range)
        assert np.max(np.abs(np.log(laws[0] / laws[1]))) > 0.01


def test_sums_over_users_do_not_depend_on_their_order():
    objective, number = losses.logistic(1.0, domain=BOX), 300
    data, order = some(3, number), np.random.default_rng(0).permutation(number)
    moved = jax.tree.map(lambda leaf: leaf[order], data)
    for route in ("grid", "linear"):
        plan = planned(objective, 2, cells=8, number=number, route=route)
        for one, other in zip(
            scores_of(plan, objective, data),
            scores_of(plan, objective, moved),
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)


def test_cells_outside_of_a_ball_are_never_drawn_and_points_stay_in_it():
    objective, data = losses.logistic(1.0, domain=domains.ball(2.0)), some(4)
    plan = planned(objective, 2, epsilon=0.01, cells=8)
    run = jax.jit(
        jax.vmap(
            lambda key: exponential_mechanism.solve(key, plan, objective, data, jnp.zeros(2)).params
        )
    )
    found = np.asarray(run(jax.random.split(jax.random.key(1), 2000)))
    assert np.max(np.linalg.norm(found, axis=1)) <= 2.0 * (1 + 1e-12)
    x = centers(plan)
    law = law_of(plan, objective, data)
    np.testing.assert_array_equal(law > 0, np.linalg.norm(x, axis=1) <= 2.0)
    # Almost uniform: a quarter in each quadrant, within 5 standard errors.
    quarter = np.mean((found[:, 0] > 0) & (found[:, 1] > 0))
    assert abs(quarter - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 2000)


def test_nothing_but_the_cell_depends_on_data(monkeypatch):
    """With the cell frozen two data sets give the same solution, to the last bit."""
    monkeypatch.setattr(
        selection, "exponential_mechanism", lambda *given, **named: jnp.ones((), jnp.int32)
    )
    objective = losses.logistic(1.0, domain=BOX)
    for route in ("grid", "linear"):
        plan = planned(objective, 2, cells=8, route=route)

        @jax.jit
        def run(data, plan=plan):
            key, start = jax.random.key(4), jnp.zeros(2)
            return exponential_mechanism.solve(key, plan, objective, data, start)

        one, other = map(run, (some(9), users(np.full((USERS, 2), math.nan), np.ones(USERS))))
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_linear_losses_on_a_box_have_truncated_exponential_coordinates():
    dim, number = 5, 2000
    box = domains.box(-np.ones(dim), np.array([1.0, 2.0, 1.0, 1.0, 3.0]))
    objective = linear(1.0, box)
    rows = np.random.default_rng(5).standard_normal((40, dim)) + np.arange(dim)
    plan = planned(objective, dim, epsilon=6.0, number=40, route="linear")
    assert plan.cells == 600 // 5 * 2  # 5nε/d
    run = jax.jit(
        jax.vmap(
            lambda key: (
                exponential_mechanism.solve(
                    key, plan, objective, users(rows), jnp.zeros(dim)
                ).params
            )
        )
    )
    found = np.asarray(run(jax.random.split(jax.random.key(2), number)))
    rows = rows * np.minimum(1.0, 1.0 / np.linalg.norm(rows, axis=1, keepdims=True))
    rates = float(plan.inverse_temperature) * rows.mean(axis=0)
    for j in range(dim):
        low, high = float(plan.lower[j]), float(plan.upper[j])
        law = -np.expm1(-rates[j] * (found[:, j] - low)) / -np.expm1(-rates[j] * (high - low))
        step = rates[j] * (high - low) / plan.cells  # the density is flat in a cell
        assert stats.kstest(law, "uniform").statistic < 1.95 / math.sqrt(number) + abs(step) / 8
    assert np.max(np.abs(np.corrcoef(found.T) - np.eye(dim))) < 5 / math.sqrt(number)


def test_a_plan_reaches_its_bound_on_the_risk():
    """The exact mean over the cells is below the bound."""
    cases = (
        (losses.logistic(1.0, domain=LINE), 1),
        (linear(1.0, BOX), 2),
        (linear(1.0, domains.ball(1.5)), 2),
    )
    for objective, dim in cases:
        data = some(6, 30, dim)
        plan = planned(objective, dim, epsilon=4.0, number=30, cells=64)
        x, law = centers(plan), law_of(plan, objective, data)
        mean = jax.vmap(
            lambda w, data=data, objective=objective: jnp.mean(
                jax.vmap(lambda item: objective.loss(w, jax.tree.map(lambda a: a[0], item)))(
                    data.items
                )
            )
        )
        values = np.asarray(mean(jnp.asarray(x)))
        # The bound is for all of the set: half a cell more for its minimum, and for its points.
        cell = np.linalg.norm(np.asarray(plan.upper) - np.asarray(plan.lower)) / 64
        excess = law @ values - values[law > 0].min()
        assert excess <= plan.excess_bound - 0.5 * cell
        assert plan.excess_bound < 3.0 * 2 * 3.0


@pytest.mark.parametrize("cells", [2, 3, 5])
def test_the_bound_on_a_ball_counts_what_its_cells_lose(cells):
    """F = ⟨v, x⟩ at a huge ε, where the law is one cell: its points, projected, by sums."""
    objective = linear(1.0, domains.ball(1.0))
    plan = planned(objective, 2, epsilon=1e4, cells=cells)
    x = centers(plan)
    x = x[np.linalg.norm(x, axis=1) <= 1.0]
    marks = (np.arange(40) + 0.5) / 40 - 0.5
    inner = np.stack(np.meshgrid(marks, marks), axis=-1).reshape(-1, 2) * 2.0 / cells
    worst = 0.0
    for angle in np.linspace(0.0, 2 * math.pi, 33):
        v = np.array([math.cos(angle), math.sin(angle)])
        points = x[np.argmin(x @ v)] + inner
        points = points / np.maximum(1.0, np.linalg.norm(points, axis=1, keepdims=True))
        worst = max(worst, np.mean(points @ v) + 1.0)
    finite = 2 * math.log(cells) / float(plan.inverse_temperature)
    assert 5 * finite < worst < plan.excess_bound


CHAIN = {"route": "chain", "epsilon": 1.0, "delta": 1e-4}


def chain_plan(domain=BOX, number=USERS, dim=2, **given):
    return planned(losses.logistic(1.0, domain=domain), dim, number=number, **CHAIN | given)


def test_a_chain_is_epsilon_delta_and_its_parts_add_up():
    plan = chain_plan()
    spent, tau = float(plan.range), plan.variation
    assert plan.certificate().epsilon == spent <= 1.0
    assert plan.certificate().delta == 1e-4
    assert float(plan.failure) == pytest.approx((1 + math.exp(spent)) * tau, rel=1e-6)
    assert 0.5e-4 < float(plan.failure) <= 0.8e-4
    assert float(privacy.epsilon(plan.loss(), 1e-4)) < 1.25
    assert float(plan.loss().delta) == pytest.approx(float(plan.failure))
    # k = εn/(2L·D), μ = 2d/(kR²): a bias of d/k.
    k, mu = float(plan.inverse_temperature), float(plan.regularization)
    radius = math.sqrt(5) / 2
    assert k == pytest.approx(USERS / (4 * radius), rel=1e-6)
    assert mu == pytest.approx(4 / (k * radius**2), rel=1e-6)
    assert plan.excess_bound == pytest.approx(4 / k, rel=1e-3)
    # Mixing takes most of τ, and steps that are off a good quarter, for these k and μ.
    eta, terms, steps = plan.chain[:3]
    mixing = radius / (2 * math.sqrt(eta)) * (1 + eta * k * mu) ** -(steps - 1)
    assert 0.45 * tau < mixing < 0.7 * tau
    assert 0.2 * tau < steps * inner_variation(eta * k**2, terms) < 0.4 * tau


def test_a_chain_runs_on_the_mean_loss_and_the_set_that_were_planned(monkeypatch):
    seen = {}

    def keep(loss, data, restricted, **given):
        seen.update(given, loss=loss, data=data, restricted=restricted)
        return right(loss, data, restricted, **given)

    right = rejection_oracle.oracle
    monkeypatch.setattr(rejection_oracle, "oracle", keep)
    for domain in (BOX, domains.ball(1.0)):
        objective, data = losses.logistic(1.0, domain=domain), some(8)
        # A user without an item counts, with the loss zero.
        data = data._replace(mask=jnp.arange(USERS)[:, None] > 0)
        plan = chain_plan(domain, delta=0.5, epsilon=0.1, constant_time=domain is not BOX)
        x = jnp.array([0.3, 0.7])
        center = np.array([0.0, 0.5]) if domain is BOX else np.zeros(2)
        far = jnp.asarray(center + np.array([0.3, -0.2]))

        @jax.jit
        def run(data, plan=plan, objective=objective, x=x, far=far):
            start = jnp.zeros(2, jnp.float32)
            made = exponential_mechanism.solve(jax.random.key(5), plan, objective, data, start)
            found = jax.vmap(lambda row: seen["loss"](x, row))(seen["data"])
            return made, seen["scale"], found, seen["restricted"].prepare(far)

        solution, scale, found, prepared = run(data)
        assert solution.params.dtype == jnp.float32
        assert bool(objective.domain.contains(solution.params, 1e-6))
        made, chain = int(solution.unprivate["trials"]), plan.chain
        assert chain.num_steps <= made <= chain.num_trials
        assert float(scale) == float(plan.inverse_temperature)
        assert seen["num_records"] == USERS
        assert seen["num_terms"] == chain.num_terms
        assert seen["constant_time"] is plan.constant_time
        rows = np.asarray(data.items.features)[:, 0]
        rows = rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
        margins, labels = rows @ np.asarray(x), np.asarray(data.items.label)[:, 0]
        expected = (np.logaddexp(0, margins) - labels * margins) * (np.arange(USERS) > 0)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        # The quadratic is around the centre of the set, and as steep as planned.
        eta, bend = chain.step_size, float(plan.inverse_temperature * plan.regularization)
        mean = prepared if domain is BOX else prepared[0]
        np.testing.assert_allclose(mean, center + (far - center) / (1 + eta * bend), rtol=1e-12)


@pytest.mark.parametrize("domain", [BOX, domains.ball(1.0)])
def test_edited_chains_cost_infinity_unless_they_are_certified_anew(domain):
    plan = chain_plan(domain)
    edits = {
        "inverse_temperature": 1.001, "regularization": 0.999, "upper": 1.01, "lower": 0.99,
    }  # fmt: skip
    for name, factor in edits.items():
        edited = dataclasses.replace(plan, **{name: getattr(plan, name) * factor})
        if name == "lower" and domain is BOX:
            edited = dataclasses.replace(plan, lower=plan.lower - 0.01)
        assert edited.certificate().epsilon == math.inf, name
        assert not np.any(np.isfinite(edited.loss().rdp)), name
    away = dataclasses.replace(plan, lower=plan.lower + 0.01, upper=plan.upper + 0.01)
    assert away.certificate().epsilon == math.inf
    # Fewer steps or trials, and longer steps, are reckoned with.
    for name, factor in (("num_steps", 0.5), ("num_trials", 0.4), ("step_size", 2.0)):
        value = getattr(plan.chain, name) * factor
        chain = plan.chain._replace(**{name: type(getattr(plan.chain, name))(value)})
        edited = dataclasses.replace(plan, chain=chain)
        assert edited.variation > 1.5 * plan.variation, name
        assert edited.certificate().epsilon == math.inf, name
    narrow = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), plan)
    assert np.all(np.isfinite(narrow.loss().rdp))
    assert dataclasses.replace(plan, delta=1e-6).certificate().epsilon == math.inf


def test_edited_grids_cost_what_they_run():
    plan = planned(losses.logistic(1.0, domain=BOX), 2, cells=9)
    spent = plan.certificate().epsilon
    for name, factor in (("inverse_temperature", 3.0), ("cells", 2), ("num_users", 2)):
        edited = dataclasses.replace(plan, **{name: getattr(plan, name) * factor})
        expected = {
            "inverse_temperature": 3.0,
            "cells": (1 - 1 / 18) / (1 - 1 / 9),
            "num_users": 0.5,
        }
        assert edited.certificate().epsilon == pytest.approx(spent * expected[name], rel=1e-6)
    wide = dataclasses.replace(plan, upper=plan.upper + np.array([2.0, 0.0]))
    assert wide.certificate().epsilon == pytest.approx(spent * math.sqrt(17 / 5), rel=1e-6)
    for change in (
        {"upper": plan.lower}, {"inverse_temperature": -1.0}, {"inverse_temperature": math.nan},
        {"cells": 1}, {"cells": 0}, {"route": "chain"}, {"regularization": 0.5},
    ):  # fmt: skip
        edited = dataclasses.replace(plan, **change)
        assert edited.certificate().epsilon == math.inf, change
    batch = dataclasses.replace(plan, inverse_temperature=np.array([1.0, 2.0]))
    assert np.shape(batch.loss().delta) == (2,)


def test_a_grid_of_a_ball_that_is_edited_to_draw_from_the_box_costs_that_of_the_box():
    """The route "linear" draws all cells: those in the corners are √2 farther out than the ball."""
    objective = linear(1.0, domains.ball(1.0))
    plan = planned(objective, 2, cells=64)
    edited = dataclasses.replace(plan, route="linear")
    rest = np.tile([[3.0, 3.0]], (USERS - 1, 1))
    one, other = (
        law_of(edited, objective, users(np.concatenate([rest, [last]])))
        for last in ([3.0, 3.0], [-3.0, -3.0])
    )
    moved = np.ptp(np.log(one / other))
    assert 0.9999 * float(edited.range) < moved <= float(edited.range)
    assert moved > 1.3 * float(plan.range)
    assert edited.certificate().epsilon == float(edited.range)


def test_a_chain_does_not_run_under_a_slope_below_that_of_the_loss():
    """Nothing clips there: with half of L in the plan ε would be half of what is spent."""
    plan, objective = chain_plan(), losses.logistic(1.0, domain=BOX)
    for changes in ({"lipschitz": 0.5}, {"lipschitz": 0.5, "made_for": None}):
        edited = dataclasses.replace(plan, **changes)
        with pytest.raises(ValueError, match=r"plan\.lipschitz must be at least"):
            exponential_mechanism.solve(jax.random.key(0), edited, objective, some(), jnp.zeros(2))


@pytest.mark.parametrize("slope", [-1.0, math.nan])
def test_a_plan_is_not_edited_to_a_slope_that_is_none(slope):
    plan = planned(losses.logistic(1.0, domain=BOX), 2, cells=4)
    with pytest.raises(ValueError, match="lipschitz must be"):
        dataclasses.replace(plan, lipschitz=slope)


@pytest.mark.parametrize("slope", [0.0, math.inf])
def test_a_slope_that_is_no_slope_costs_infinity_and_does_not_run(slope):
    objective = losses.logistic(1.0, domain=BOX)
    edited = dataclasses.replace(planned(objective, 2, cells=4), lipschitz=slope)
    assert edited.certificate().epsilon == math.inf
    assert np.all(np.isinf(edited.loss().rdp))
    with pytest.raises(ValueError, match=r"plan\.lipschitz"):
        exponential_mechanism.solve(jax.random.key(0), edited, objective, some(), jnp.zeros(2))


@pytest.mark.parametrize("kind", [np.float16, np.float32, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("device", [np.asarray, jnp.asarray])
def test_narrow_numbers_are_accounted_as_they_run(kind, device):
    """``solve`` takes them to float64; so must what is said before."""
    plan = planned(losses.logistic(1.0, domain=BOX), 2, cells=8)
    narrow = jax.tree.map(lambda leaf: device(leaf, kind), plan)
    runs = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), narrow)
    assert narrow.certificate().epsilon == pytest.approx(runs.certificate().epsilon, rel=1e-12)
    with jax.enable_x64(False):
        assert narrow.certificate().epsilon == pytest.approx(runs.certificate().epsilon, rel=1e-12)


def test_integers_do_not_wrap():
    plan = planned(losses.logistic(1.0, domain=BOX), 2, cells=8)
    for low, high, kind in ((-100, 100, np.int8), (0, 16, np.uint8)):
        lower, upper = np.array([low, low]), np.array([high, high])
        whole = dataclasses.replace(plan, lower=lower.astype(kind), upper=upper.astype(kind))
        real = dataclasses.replace(plan, lower=lower * 1.0, upper=upper * 1.0)
        assert whole.certificate().epsilon == real.certificate().epsilon < math.inf
    turned = dataclasses.replace(
        plan, lower=np.array([200, 200], np.uint8), upper=np.array([100, 100], np.uint8)
    )
    assert turned.certificate().epsilon == math.inf


def test_sets_whose_squares_leave_float64_are_refused():
    for low, high in ((0.0, 1e-200), (0.0, 1e-155), (0.0, 1e155), (-1e308, 1e308), (0.0, math.inf)):
        box = domains.box(np.full(2, low), np.full(2, high))
        with pytest.raises(ValueError, match=r"longest side.*\[1e-100, 1e100\]"):
            planned(losses.logistic(1.0, domain=box), 2)
    with pytest.raises(ValueError, match="longest side"):
        planned(losses.logistic(1.0, domain=domains.ball(1e200)), 2)
    plan = planned(losses.logistic(1.0, domain=BOX), 2, cells=4)
    tiny = dataclasses.replace(plan, lower=np.zeros(2), upper=np.full(2, 1e-160))
    assert tiny.certificate().epsilon == math.inf


def test_a_box_of_another_structure_and_a_grid_beyond_memory_are_refused():
    tree = domains.box({"a": np.zeros(2)}, {"a": np.ones(2)})
    with pytest.raises(ValueError, match="ends are vectors"):
        planned(losses.logistic(1.0, domain=tree), 2)
    with pytest.raises(ValueError, match=r"cells must be an integer in \[2, 4096\]"):
        planned(losses.logistic(1.0, domain=BOX), 2, cells=4097)
    assert planned(losses.logistic(1.0, domain=LINE), 1, cells=2**20).cells == 2**20


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_an_epsilon_that_no_chain_has_is_named(delta):
    for epsilon in (40.5, 800.0):
        with pytest.raises(Infeasible, match=r"budget\.epsilon must be at most") as refusal:
            chain_plan(epsilon=epsilon, delta=delta)
        assert refusal.value.needed == {"epsilon": 40.0}
    with pytest.raises(Infeasible, match=r"rounding|step"):
        chain_plan(epsilon=40.0, delta=0.9)


def test_refusals():
    logistic = losses.logistic(1.0, domain=BOX)
    with pytest.raises(Infeasible, match=r"not exact.*would do") as refusal:
        chain_plan(delta=0.0)
    enough = refusal.value.needed["delta"]
    assert float(chain_plan(delta=enough).failure) <= enough
    with pytest.raises(Infeasible, match=r"rounding.*delta = .* would do"):
        chain_plan(delta=1e-15)
    calls = {
        "problem.dim": lambda: planned(
            losses.logistic(1.0, domain=domains.ball(1.0)), 3, route="grid"
        ),
        "problem.objective.ridge": lambda: planned(losses.logistic(1.0, domain=BOX, ridge=0.1), 2),
        "domain": lambda: planned(losses.logistic(1.0), 2),
        "problem.objective.domain": lambda: planned(losses.logistic(1.0, domain=BOX), 3),
        "a box": lambda: planned(losses.logistic(1.0, domain=domains.ball(1.0)), 2, route="linear"),
        "regularization": lambda: planned(logistic, 2, regularization=0.1),
        "cells": lambda: chain_plan(cells=3),
        "route": lambda: planned(logistic, 2, route="langevin"),
        "items_per_user": lambda: planned(logistic, 2, delta=1e-3, items=2, route="chain"),
        "labels are bounded": lambda: planned(
            losses.huber(1.0, domain=BOX), 2, delta=1e-3, route="chain"
        ),
        "whose labels are bounded": lambda: planned(
            losses.huber(1.0, domain=BOX)._replace(label_range=logistic.label_range),
            2,
            delta=1e-3,
            route="chain",
        ),
        "losses of|problems.losses": lambda: planned(
            linear(1.0, BOX), 2, delta=1e-3, route="chain"
        ),
        "lipschitz": lambda: planned(
            logistic._replace(lipschitz=0.5), 2, delta=1e-3, route="chain"
        ),
        "inside": lambda: planned(
            losses.logistic(1.0, domain=domains.box(np.zeros(2), np.array([1.0, 0.0]))), 2
        ),
    }
    for said, call in calls.items():
        with pytest.raises(ValueError, match=said):
            call()
    plan = chain_plan()
    one_hot = UserData(
        Example(OneHot(np.zeros((USERS, 1, 1), np.int32)), np.zeros((USERS, 1), np.float32))
    )
    with pytest.raises(ValueError, match="dense rows"):
        exponential_mechanism.solve(jax.random.key(0), plan, logistic, one_hot, jnp.zeros(2))
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        planned(logistic, 2)


def test_a_set_that_is_no_box_of_the_package_is_refused():
    with pytest.raises(ValueError, match="diameter"):
        planned(losses.logistic(1.0, domain=BOX._replace(diameter=0.5)), 2)


def test_exact_sums_hold_at_many_users():
    """Units of the grid of values leave room for all users, to the last digit."""
    for users_ in (1, 2, 3, 1000, 2**20, 2**20 + 1, 2**32):
        unit = _cells._unit(users_)
        assert users_ * 2.0 / unit <= 2.0**53
        assert users_ * 2.0 / unit > 2.0**50


@pytest.mark.slow
def test_audit_of_the_grid_on_its_worst_pair():
    """Five users who agree, and one who does or does not: ε = 1.5 is learned to nine tenths, at 99.9 %."""
    objective = linear(1.0, domains.box(np.array([-1.0]), np.array([1.0])))
    plan = planned(objective, 1, epsilon=1.5, cells=2)
    number = 400_000

    @jax.jit
    def left(keys, data):
        def one(key):
            return exponential_mechanism.solve(key, plan, objective, data, jnp.zeros(1)).params[0]

        return jnp.sum(jax.vmap(one)(keys) < 0)

    rest = -np.ones((USERS - 1, 1))
    rare, rarer = (
        stats.binomtest(
            int(
                left(
                    jax.random.split(jax.random.key(seed), number),
                    users(np.concatenate([rest, [[last]]])),
                )
            ),
            number,
        ).proportion_ci(0.999)
        for seed, last in ((0, 1.0), (1, -1.0))
    )
    # Centres at ±½, weights e^{∓S·k/(2n)}: 1/(1 + e^{4k/n}) and 1/(1 + e^{6k/n}) on the left.
    spent = float(plan.range)
    true = math.log((1 + math.exp(6 * spent / 2)) / (1 + math.exp(4 * spent / 2)))
    least, most = math.log(rare.low / rarer.high), math.log(rare.high / rarer.low)
    assert least <= true <= most
    assert 0.9 * spent < least <= spent
