"""Phased ERM: disjoint blocks, one phase's budget, the descent that each phase is, bounds that hold."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import phased_erm
from tests.support.planned import planned

USERS, ITEMS, DIM = 120, 3, 2
LOGISTIC = losses.logistic(feature_bound=1.0, domain=domains.ball(2.0))
QUADRATIC = Objective(
    loss=lambda w, z: 0.5 * jnp.sum((w - z) ** 2),
    lipschitz=2.0,
    smoothness=1.0,
    domain=domains.ball(1.0),
)
SIZES = {"num_users": USERS, "items_per_user": ITEMS, "dim": DIM, "epsilon": 1.0, "delta": 1e-5}


def points(seed=0, center=0.3, spread=0.1):
    rng = np.random.default_rng(seed)
    items = center + spread * rng.normal(size=(USERS, ITEMS, DIM))
    return UserData(jnp.asarray(items, jnp.float32), None)


@functools.cache
def plan_of(phases=3, **changes):
    """A plan with a given number of phases."""
    plan = planned(phased_erm.plan, QUADRATIC, most_steps=3, form="clipped", **(SIZES | changes))
    size = USERS // phases
    phase = plan.parts[0]
    releases = dataclasses.replace(phase.releases, num_users=size, num_queries=2)
    made = [
        phase.replace(releases=releases, pull=4.0**t / 10,
            step_sizes=np.array([0.4, 0.3]) / (1 + 4.0**t / 10), shares=np.array([0.0, 1.0]),
        )
        for t in range(phases)
    ]  # fmt: skip
    return plan.replace(parts=tuple(made))


def with_noise(plan, multiplier):
    return plan.replace(
        parts=tuple(
            p.replace(
                releases=dataclasses.replace(p.releases, noise_multiplier=multiplier, bound=50.0),
            )
            for p in plan.parts
        ),
    )


@jax.jit
def solve(key, plan, data, start):
    return phased_erm.solve(key, plan, QUADRATIC, data, start)


def test_each_phase_descends_on_its_own_block_around_its_start():
    data, plan = points(), with_noise(plan_of(), 1e-9)
    blocks = np.split(np.asarray(data.items).mean(1), 3)
    point = np.array([0.0, -0.5])
    for phase, block in zip(plan.parts, blocks, strict=True):
        start = point
        for step in phase.step_sizes:
            gradient = point - block.mean(0) + phase.pull * (point - start)
            point = point - step * gradient
            point = point / max(1, np.linalg.norm(point))
    found = solve(jax.random.key(0), plan, data, jnp.asarray([0.0, -0.5]))
    np.testing.assert_allclose(found.params, point, atol=1e-5)


def test_a_user_takes_part_in_one_phase():
    """Moving a user moves the points from its own phase on, and leaves those before as they are."""
    data, plan = points(), with_noise(plan_of(), 1e-9)
    trace = lambda w, state, estimate: w  # noqa: E731
    run = jax.jit(
        lambda d: phased_erm.solve(jax.random.key(0), plan, QUADRATIC, d, jnp.zeros(DIM), trace)
    )
    before = run(data).unprivate["trace"]
    for user, first in [(0, 0), (39, 0), (40, 1), (119, 2)]:
        moved = data._replace(items=data.items.at[user].add(30.0))
        after = run(moved).unprivate["trace"]
        changed = [
            bool(np.any(np.asarray(a) != np.asarray(b))) for a, b in zip(before, after, strict=True)
        ]
        assert changed == [phase >= first for phase in range(3)]


@pytest.mark.parametrize("split", ["equal", "geometric"])
def test_plans(split):
    settings = SIZES | {"num_users": 5000, "items_per_user": 20, "split": split}
    plan = planned(phased_erm.plan, LOGISTIC, **settings)
    assert plan.certificate().epsilon <= 1.0
    sizes = [phase.num_users for phase in plan.parts]
    assert sum(sizes) == 5000
    if split == "equal":
        assert max(sizes) - min(sizes) < len(sizes)
    else:
        assert all(a > b for a, b in itertools.pairwise(sizes))
    weights = [float(phase.pull) for phase in plan.parts]
    np.testing.assert_allclose(np.diff(np.log(weights)), math.log(4.0), rtol=1e-6)
    assert plan.excess_bound < LOGISTIC.lipschitz * 4.0
    assert "num_steps" in str(plan)


def test_as_printed_but_for_the_blocks():
    """n = 10⁴, m = 100, d = 10, G = 10·σ√d: the printed last block has 0.02 users, ours have all."""
    unit = losses.squared_distance(point_bound=0.5, radius=0.5)
    problem = Problem(unit, num_users=10**4, items_per_user=100, dim=10, distance=1.0)
    stddev = 0.1 / math.sqrt(10)
    count = math.ceil(math.log2(10**4 * 10 / (stddev * 10)))
    assert count == 19
    assert 10**4 / 2**count < 0.03
    equal = phased_erm._printed(problem, 500, stddev, 1.0, "equal")
    assert len(equal) == 10
    assert min(phase.num_users for phase in equal) == 1000
    geometric = phased_erm._printed(problem, 500, stddev, 1.0, "geometric")
    assert min(phase.num_users for phase in geometric) >= 1
    weight = math.sqrt(0.1 / 1e6 + (stddev * 10 / 1e5) ** 2)
    np.testing.assert_allclose([p.regularization for p in equal], weight * 4.0 ** np.arange(1, 11))
    for phase in equal:
        strong = phase.regularization
        assert phase.num_steps >= min(500, math.ceil((1 + strong) / strong))
    paper = planned(
        phased_erm.plan,
        LOGISTIC,
        constants="paper",
        **(SIZES | {"num_users": 2000, "epsilon": 0.5}),
    )
    assert paper.excess_bound == math.inf
    assert paper.certificate().epsilon <= 0.5


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"constants": "paper", "gradient_stddev": -1.0}, "gradient_stddev"),
        ({"form": "refined", "num_users": 20}, "num_users must be at least"),
    ],
)
def test_arguments(changes, named):
    with pytest.raises(ValueError, match=named):
        planned(phased_erm.plan, LOGISTIC, **(SIZES | changes))


def test_more_arguments():
    with pytest.raises(ValueError, match="smoothness"):
        planned(phased_erm.plan, LOGISTIC._replace(smoothness=None), **SIZES)
