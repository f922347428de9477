"""Restarts and regularization with an exact inner solver: distances, budgets, ledgers, counts."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.combinators import composite, localization, regularization, restarts
from tests.support import exact_solver
from tests.support.planned import planned

BUDGET = {"num_users": 1000, "epsilon": 1.0, "delta": 1e-6}
MU = 0.5
CONVEX = exact_solver.quadratic(domain=domains.ball(4.0))
STRONG = CONVEX._replace(loss_strong_convexity=MU)


def _private_bound(num_users, epsilon, distance, convexity):
    """Like that of private solvers: G²a²/μ + GRa, with a = 10/(εN) and G = 4."""
    a = 10 / (epsilon * num_users)
    return 16 * a**2 / convexity + 4 * distance * a


INNER = exact_solver.planner(_private_bound)


def _plan(objective=STRONG, inner=INNER, **changes):
    return planned(restarts.plan, inner, objective, **(BUDGET | changes))


def test_distances_are_those_of_the_recursion():
    """A bound that is exactly that of the lemma: x = (μ/2)R²/E goes to √x + 1."""
    floor = 1e-7
    inner = exact_solver.planner(
        lambda distance, convexity, **rest: (
            floor * (math.sqrt(convexity * distance**2 / 2 / floor) + 1)
        )
    )
    plan = _plan(inner=inner, on_blocks=True, num_stages=6, distance=3.0)
    x = MU * 3.0**2 / 2 / floor
    assert len(plan.parts) == 6
    for part, distance in zip(plan.parts, plan.distances, strict=True):
        assert MU * distance**2 / 2 / floor == pytest.approx(x)
        assert part.distance == distance
        x = math.sqrt(x) + 1
    assert plan.excess_bound / floor == pytest.approx(x)
    assert x <= 16


def test_shares_of_the_budget_and_the_joint_event():
    plan = _plan(num_stages=3)
    epsilons = np.array([part.budget[0] for part in plan.parts])
    np.testing.assert_allclose(epsilons / epsilons[-1], [0.25, 0.5, 1.0])
    assert {part.budget[1] for part in plan.parts} == {1e-6}
    assert 0.985 <= plan.certificate().epsilon <= 1.0
    # Three Gaussians are one: exactly.
    together = 1 / math.sqrt(sum(part.multiplier**-2 for part in plan.parts))
    once = exact_solver.Plan(1000, 1, (1.0, 1e-6), 1.0, 0.0, 0.0).multiplier
    assert once <= together <= 1.02 * once
    assert plan.user_gradients == 3 * 3001
    assert plan.distances[1:] == pytest.approx(
        [math.sqrt(2 * part.excess_bound / MU) for part in plan.parts[:-1]]
    )
    assert plan.distances[0] == min(8.0, 4.0 / MU)


def test_the_number_of_stages_is_the_one_that_proves_most():
    best = _plan()
    bounds = {j: _plan(num_stages=j).excess_bound for j in (1, 2, 3, 4, 5)}
    assert 1 < len(best.parts) <= 5
    assert best.excess_bound == pytest.approx(bounds[len(best.parts)])
    assert best.excess_bound <= 1.03 * min(bounds.values())


def test_the_budgets_of_the_paper():
    users = 100_000
    plan = _plan(constants="paper", num_users=users)
    count = math.ceil(math.log2(math.log2(users**3)))
    assert [part.budget for part in plan.parts] == [
        (0.5**j, 1e-6 * 0.5**j) for j in range(count, 0, -1)
    ]
    assert sum(part.budget[0] for part in plan.parts) < 1.0
    assert plan.certificate().epsilon < 1.0
    blocks = _plan(constants="paper", on_blocks=True, num_users=users, num_stages=5)
    assert [part.num_users for part in blocks.parts] == [users // 2**j for j in range(5, 0, -1)]
    assert blocks.composition == "sequential"


def test_stages_that_get_no_nearer_are_left_out():
    useless = exact_solver.planner(lambda epsilon, **rest: 1e-3 if epsilon > 0.7 else 1e3)
    plan = _plan(inner=useless, num_stages=3)
    assert len(plan.parts) == 1
    assert plan.distances == (8.0,)
    assert "stages left out 2" in " ".join(str(plan).split())
    # With nothing spent on them, the last has the whole budget.
    assert plan.certificate().epsilon >= 0.985
    small = exact_solver.planner(_private_bound, fewest=10_000)
    paper = _plan(inner=small, constants="paper", on_blocks=True, num_users=100_000)
    assert [part.num_users for part in paper.parts] == [12_500, 25_000, 50_000]
    assert "stages left out 3: num_users must be at least 10000" in " ".join(str(paper).split())
    with pytest.raises(ValueError, match=r"num_users must be .*at least 600"):
        _plan(inner=exact_solver.planner(fewest=600), constants="paper", on_blocks=True)


@pytest.mark.parametrize("on_blocks", [False, True])
def test_who_sees_what_and_what_it_costs(on_blocks):
    plan = _plan(num_stages=3, on_blocks=on_blocks)
    seen = []
    data = UserData(np.arange(2000.0, dtype=np.float32).reshape(1000, 1, 2), None)
    found = composite.solve(
        exact_solver.recorder(seen), jax.random.key(0), plan, STRONG, data, jnp.ones(2)
    )
    losses = [privacy.gaussian(part.multiplier) for part in plan.parts]
    joint = privacy.parallel(*losses) if on_blocks else privacy.compose(*losses)
    np.testing.assert_allclose(found.privacy.rdp, joint.rdp, rtol=1e-5)
    assert found.gradients == plan.user_gradients == sum(p.user_gradients for p in plan.parts)
    if on_blocks:
        np.testing.assert_array_equal(np.concatenate([items for items, _, _ in seen]), data.items)
        sizes = [len(items) for items, _, _ in seen]
        assert sizes == [142, 285, 573]
        assert plan.certificate().epsilon == pytest.approx(1.0, rel=1e-6)
    else:
        for items, _, _ in seen:
            np.testing.assert_array_equal(items, data.items)


def test_the_centre_stays_where_the_run_has_started():
    objective = exact_solver.quadratic(domain=domains.ball(4.0))
    plan = _plan(objective, regularization=0.5, num_stages=3)
    centers = []

    def inner(key, part, objective, data, params, center):
        centers.append(np.asarray(center))
        assert part.regularization == 0.5
        return exact_solver.solve(key, part, objective, data, params + 1, center)

    data = UserData(np.ones((1000, 1, 2), np.float32), None)
    start = jnp.asarray([1.0, -1.0])
    composite.solve(inner, jax.random.key(0), plan, objective, data, start)
    np.testing.assert_array_equal(centers, [start] * 3)


def test_regularization_balances_its_bias():
    inner = exact_solver.planner(exact_solver.exact_bound(0.01))
    plan = planned(regularization.plan, inner, CONVEX, **BUDGET, distance=2.0)
    # 0.01/u + uR²/2 is least at u = √0.02/R.
    assert plan.strengths[0] == pytest.approx(math.sqrt(0.02) / 2)
    assert plan.excess_bound == pytest.approx(math.sqrt(0.02) * 2)
    given = planned(regularization.plan, inner, CONVEX, **BUDGET, distance=2.0, regularization=0.3)
    assert given.excess_bound == pytest.approx(0.01 / 0.3 + 0.3 * 2.0**2 / 2)
    assert given.user_gradients == 3001
    assert given.certificate().epsilon == pytest.approx(1.0, rel=1e-6)
    data = UserData(np.ones((1000, 1, 2), np.float32), None)
    start = jnp.asarray([2.0, 0.0])
    found = composite.solve(exact_solver.solve, jax.random.key(0), given, CONVEX, data, start)
    np.testing.assert_allclose(found.params, (1 + 0.3 * start) / 1.3, rtol=1e-6)
    with pytest.raises(ValueError, match=r"regularization must be in \(0, inf\)"):
        planned(regularization.plan, inner, CONVEX, **BUDGET, regularization=0.0)
    unbounded = exact_solver.quadratic()
    with pytest.raises(ValueError, match=r"distance must be in \(0, inf\)"):
        planned(regularization.plan, inner, unbounded, **BUDGET)


def test_combinators_nest():
    """Every arrow of the figure at once: restarts on blocks, localization, restarts, regularization."""

    phase = functools.partial(restarts.plan, INNER, num_stages=2)
    inner = functools.partial(localization.plan, phase, num_phases=2)
    strongly_convex = functools.partial(restarts.plan, inner, on_blocks=True, num_stages=2)

    users = 100_000
    budget = BUDGET | {"num_users": users, "distance": 2.0, "regularization": 0.5}
    plan = planned(regularization.plan, strongly_convex, CONVEX, **budget)
    blocks = plan.parts[0].parts
    leaves = [leaf for block in blocks for phase in block.parts for leaf in phase.parts]
    assert len(leaves) == 8
    assert plan.user_gradients == sum(leaf.user_gradients for leaf in leaves)
    phases = [phase for block in blocks for phase in block.parts]
    worst = max(phase.certificate().epsilon for phase in phases)
    assert plan.certificate().epsilon == worst <= 1.0
    assert sum(phase.num_users for phase in phases) == users
    assert {
        leaf.regularization - phase.strengths[0] for phase in phases for leaf in phase.parts
    } == {0.0}
    data = UserData(np.ones((users, 1, 2), np.float32), None)
    start = jnp.zeros(2)
    found = composite.solve(exact_solver.solve, jax.random.key(0), plan, CONVEX, data, start)
    joint = privacy.parallel(
        *(privacy.compose(*(privacy.gaussian(leaf.multiplier) for leaf in p.parts)) for p in phases)
    )
    np.testing.assert_allclose(found.privacy.rdp, joint.rdp, rtol=1e-5)
    assert found.gradients == plan.user_gradients
    # Blocks of ones: every phase goes from its start towards (1 + 0.5·0)/1.5.
    assert np.all((found.params > 0.1) & (found.params <= 1 / 1.5 + 1e-6))


def test_a_loss_without_strong_convexity_is_refused():
    with pytest.raises(ValueError, match=r"strong_convexity must be in \(0, inf\)"):
        _plan(CONVEX)
