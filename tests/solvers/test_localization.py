"""Localization with an exact inner solver: trajectories in closed form, blocks, ledgers, bounds."""

import itertools
import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.combinators import composite, localization
from tests.support import exact_solver
from tests.support.planned import planned

BUDGET = {"epsilon": 1.0, "delta": 1e-6, "distance": 2.0}
BALL = exact_solver.quadratic(domain=domains.ball(3.0))


def _plan(num_users, inner=None, objective=BALL, **changes):
    inner = inner or exact_solver.planner(exact_solver.exact_bound(1e-3))
    return planned(localization.plan, inner, objective, num_users=num_users, **(BUDGET | changes))


def _data(num_users, seed=0):
    rng = np.random.default_rng(seed)
    return UserData(rng.normal(size=(num_users, 1, 2)).astype(np.float32), None)


def _inputs(plan, data, objective=BALL):
    """What every phase was given."""
    seen = []
    inner = exact_solver.recorder(seen)
    composite.solve(inner, jax.random.key(0), plan, objective, data, jnp.ones(2))
    return seen


def _ends(plan, data):
    """Where every phase has started, with an exact inner solver, and where the last has ended."""
    points = []

    def inner(key, part, objective, data, params, center):
        np.testing.assert_array_equal(params, center)
        points.append(np.asarray(params))
        return exact_solver.solve(key, part, objective, data, params, center)

    found = composite.solve(inner, jax.random.key(0), plan, BALL, data, jnp.ones(2))
    return [*points, np.asarray(found.params)]


@pytest.mark.parametrize("constants", ["tight", "paper"])
def test_the_trajectory_in_closed_form(constants):
    objective = exact_solver.quadratic()
    plan = _plan(1000, objective=objective, constants=constants, step_size=0.05)
    data = _data(1000)
    found = composite.solve(
        exact_solver.solve, jax.random.key(0), plan, objective, data, jnp.asarray([2.0, -1.0])
    )
    decay, point, start = (4 if constants == "tight" else 32), np.array([2.0, -1.0]), 0
    for i, part in enumerate(plan.parts, start=1):
        strength = 2 * decay**i / (0.05 * part.num_users)
        assert part.regularization == pytest.approx(strength)
        mean = data.items[start : start + part.num_users, 0].astype(np.float64).mean(0)
        point, start = (mean + strength * point) / (1 + strength), start + part.num_users
    np.testing.assert_allclose(found.params, point, rtol=1e-5)
    assert found.gradients == plan.user_gradients


def test_a_term_of_the_objective_keeps_its_own_centre():
    """Two centred terms are one: the phase's at its start, and the objective's at the given centre."""
    objective = exact_solver.quadratic()._replace(domain=domains.ball(9.0))
    outer = np.array([5.0, 5.0], np.float32)
    plan = _plan(400, objective=objective, regularization=0.7)
    data, point, start = _data(400), np.ones(2), 0
    found = composite.solve(
        exact_solver.solve, jax.random.key(0), plan, objective, data, jnp.ones(2), outer
    )
    for part in plan.parts:
        strength = part.regularization - 0.7
        mean = data.items[start : start + part.num_users, 0].astype(np.float64).mean(0)
        point = (mean + strength * point + 0.7 * outer) / (1.7 + strength)
        start += part.num_users
    np.testing.assert_allclose(found.params, point, rtol=1e-5)


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    num_users=strategies.integers(45, 3000), constants=strategies.sampled_from(["tight", "paper"])
)
def test_blocks_are_disjoint(num_users, constants):
    plan = _plan(num_users, constants=constants)
    index = np.arange(2.0 * num_users, dtype=np.float32).reshape(num_users, 1, 2)
    blocks = [items[:, 0, 0] for items, _, _ in _inputs(plan, UserData(index, None))]
    together = np.concatenate(blocks)
    assert len(np.unique(together)) == len(together) <= num_users
    assert [len(block) for block in blocks] == [part.num_users for part in plan.parts]
    assert min(map(len, blocks)) >= 20
    if constants == "tight":
        assert len(together) == num_users
    else:
        assert [len(block) for block in blocks] == [
            num_users // 2**i for i in range(1, len(blocks) + 1)
        ]


def test_one_record_is_in_one_phase_and_a_phase_starts_where_the_last_has_ended():
    plan, data = _plan(300), _data(300)
    first, before = _inputs(plan, data), _ends(plan, data)
    for position in (0, 170, 299):
        items = data.items.copy()
        items[position] = 7.0
        second = _inputs(plan, data._replace(items=items))
        changed = [not np.array_equal(a[0], b[0]) for a, b in zip(first, second, strict=True)]
        assert sum(changed) == 1
        where = changed.index(True)
        after = _ends(plan, data._replace(items=items))
        same = [np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
        assert same == [i <= where for i in range(len(same))]


def test_the_ledgers():
    parallel, paper = _plan(1000), _plan(1000, constants="paper")
    data = _data(1000)
    for plan in (parallel, paper):
        found = composite.solve(
            exact_solver.solve, jax.random.key(0), plan, BALL, data, jnp.zeros(2)
        )
        losses = [privacy.gaussian(part.multiplier) for part in plan.parts]
        joint = privacy.parallel(*losses) if plan is parallel else privacy.compose(*losses)
        np.testing.assert_allclose(found.privacy.rdp, joint.rdp, rtol=1e-5)
        assert plan.user_gradients == sum(3 * part.num_users + 1 for part in plan.parts)
    assert {part.budget for part in parallel.parts} == {(1.0, 1e-6)}
    one = privacy.certificate(parallel.parts[0].event, 1e-6, parallel.certificate().relation)
    assert parallel.certificate().epsilon == one.epsilon
    assert [part.budget for part in paper.parts] == [
        (0.5**i, 1e-6 * 0.5**i) for i in range(1, len(paper.parts) + 1)
    ]
    assert 0.55 < paper.certificate().epsilon <= 1.0


def test_the_bound_is_the_sum_of_its_terms_and_the_step_its_best():
    error, g = 0.04, 4.0
    inner = exact_solver.planner(exact_solver.exact_bound(error))

    def bound(plan):
        added = [part.regularization for part in plan.parts]
        sizes = [part.num_users for part in plan.parts]
        total = added[0] * 2.0**2 / 2
        total += sum(2 * g**2 / (a * n) for a, n in zip(added, sizes, strict=True))
        total += sum(error / a * b / a for a, b in itertools.pairwise(added))
        return total + g * math.sqrt(2 * error / added[-1] / added[-1])

    best = _plan(4000, inner)
    assert best.excess_bound == pytest.approx(bound(best))
    assert len(best.parts) == math.ceil(math.log2(4000) / 4) + 1
    eta = 8 / (best.parts[0].regularization * best.parts[0].num_users)
    for factor in (0.8, 1.25):
        other = _plan(4000, inner, step_size=factor * eta)
        assert other.excess_bound == pytest.approx(bound(other))
        assert other.excess_bound > best.excess_bound
    # The distance within a phase: at most G/λ, at most the diameter.
    for part, distance in zip(best.parts, best.distances, strict=True):
        assert distance == pytest.approx(min(6.0, g / part.regularization))
        assert part.distance == distance


def test_phases_that_are_too_small_are_left_out_and_named():
    plan = _plan(1000, exact_solver.planner(fewest=200))
    assert [part.num_users for part in plan.parts] == [667, 333]
    words = " ".join(str(plan).split())
    assert "phases left out 2: num_users must be at least 200" in words
    assert "left out" not in str(_plan(1000))
    paper = _plan(1000, constants="paper")
    assert [part.num_users for part in paper.parts] == [500, 250, 125, 62, 31]
    assert "phases left out 5: num_users must leave 20" in " ".join(str(paper).split())
    with pytest.raises(ValueError, match=r"num_users must be .*at least 2000"):
        _plan(1000, exact_solver.planner(fewest=2000))


def test_sizes_and_sets_without_a_plan_are_refused():
    with pytest.raises(ValueError, match="num_users must leave 20 for each of 1 phases, got 19"):
        _plan(19)
    with pytest.raises(ValueError, match=r"distance must be in \(0, inf\)"):
        _plan(100, objective=exact_solver.quadratic(), distance=None)
    plan = _plan(100)
    with pytest.raises(ValueError, match=r"plan\.num_users = 100 users, got 99"):
        _inputs(plan, _data(99))
