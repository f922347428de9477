"""AC-SA in stages for convex losses: the steps, the distances between stages, the bound."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import methods
from dpsco_jax.solvers.item_level import private_ac_sa, staged_ac_sa

USERS, DIM = 12, 3
LOSS = losses.huber(1.0, domain=domains.ball(0.5))
PROBLEM = Problem(LOSS, num_users=USERS, dim=DIM)
BUDGET = Budget(2.0, 1e-3)


def _reference(gradient, start, gammas, lengths, project):
    """Ghadimi and Lan's recursion in their own variables, stage after stage."""
    aggregate = np.array(start, float)
    for gamma, steps in zip(gammas, lengths, strict=True):
        prox = aggregate.copy()
        for t in range(1, steps + 1):
            share = 2 / (t + 1)
            middle = (1 - share) * aggregate + share * prox
            prox = project(prox - t / (2 * gamma) * gradient(middle))
            aggregate = share * prox + (1 - share) * aggregate
    return aggregate


def test_steps_are_those_of_the_recursion():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((USERS, 1, DIM)).astype(np.float32)
    data = UserData(Example(rows, rng.standard_normal((USERS, 1)).astype(np.float32)))
    plan = staged_ac_sa.plan(PROBLEM, BUDGET, num_steps=14, num_stages=3)
    assert plan.lengths == (2, 4, 8)
    releases = dataclasses.replace(plan.releases, noise_multiplier=0.0)
    plan = plan.replace(releases=releases, smoothness=np.array([3.0, 1.5, 2.0]))
    solve = jax.jit(lambda k, p: staged_ac_sa.solve(k, p, LOSS, data, jnp.zeros(DIM)))
    found = solve(jax.random.key(0), plan).params

    unit = np.asarray(rows, float)
    unit /= np.maximum(1.0, np.linalg.norm(unit, axis=-1, keepdims=True))

    def gradient(point):
        slopes = np.clip(unit @ point - np.asarray(data.items.label, float), -1, 1)
        return (slopes[..., None] * unit).mean((0, 1))

    def project(point):
        return point * min(1.0, 0.5 / np.linalg.norm(point))

    expected = _reference(gradient, np.zeros(DIM), [3.0, 1.5, 2.0], plan.lengths, project)
    # The clip is shorter by what sums may round.
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-7)


@pytest.mark.parametrize("curvatures", [(1.0, 0.01), (0.1, 0.0), (1.0, 1.0)])
def test_neither_the_gap_nor_the_distance_exceeds_what_is_claimed(curvatures):
    """Quadratics with noise, from a point at the distance R: means over runs, at the end of every stage."""
    stddev, distance, runs = 0.7, 1.0, 4000
    variance = 2 * stddev**2
    curvature, lengths = jnp.array(curvatures), [5, 10, 20]
    problem = Problem(LOSS, num_users=USERS, dim=2, distance=distance)
    problem = dataclasses.replace(
        problem, objective=LOSS._replace(smoothness=1.0, domain=domains.whole_space())
    )
    start = jnp.array([1.0, 1.0]) / math.sqrt(2)
    for stages in (1, 2, 3):
        gammas, bound = staged_ac_sa._stages(problem, variance, lengths[:stages])
        # The distance that the next stage would be planned for, from its parameter or its bound.
        staged = methods.StagedAcSa(np.array(gammas), tuple(lengths[:stages]))
        method = staged.on(domains.whole_space(), sum(lengths[:stages]))

        @jax.jit
        @jax.vmap
        def run(key, method=method, stages=stages):
            def step(carry, noise):
                point, state = carry
                moves, state = method.steps.update(curvature * point + noise, state, point)
                return (optax.apply_updates(point, moves), state), None

            noise = stddev * jax.random.normal(key, (sum(lengths[:stages]), 2))
            (point, state), _ = jax.lax.scan(step, (start, method.steps.init(start)), noise)
            return method.report(state, point)

        ends = np.asarray(run(jax.random.split(jax.random.key(stages), runs)), float)
        gaps = 0.5 * ends**2 @ np.array(curvatures)
        assert gaps.mean() <= bound
        squares = np.sum(ends**2, axis=1)
        reached = distance**2
        for gamma, steps in zip(gammas, lengths, strict=False):
            cube = steps * (steps + 1) * (2 * steps + 1)
            reached += variance * cube / (12 * gamma**2)
        assert squares.mean() - 3 * squares.std() / math.sqrt(runs) <= reached


def test_one_stage_proves_what_private_ac_sa_proves():
    smooth = losses.logistic(1.0, domain=domains.ball(1.0))
    problem = Problem(smooth, num_users=500, dim=2, distance=1.0)
    given = {"num_steps": 15, "batch_size": 500}
    staged = staged_ac_sa.plan(problem, BUDGET, num_stages=1, **given)
    direct = private_ac_sa.plan(problem, BUDGET, policy="direct", **given)
    assert direct.smoothing_radius is None
    assert staged.excess_bound == pytest.approx(direct.excess_bound)
    assert staged.smoothness[0] == pytest.approx(direct.smoothness)
    assert staged.releases.noise_multiplier == direct.noise_multiplier
    assert staged_ac_sa.plan(problem, BUDGET, **given, clip_norm=0.5).excess_bound == math.inf


def test_stages_are_refused_where_there_is_no_room_or_no_smoothness():
    with pytest.raises(ValueError, match="num_steps must be an integer at least 7"):
        staged_ac_sa.plan(PROBLEM, BUDGET, num_steps=6)
    rough = dataclasses.replace(PROBLEM, objective=losses.absolute(1.0, domains.ball(1.0)))
    with pytest.raises(ValueError, match=r"problem\.objective\.smoothness"):
        staged_ac_sa.plan(rough, BUDGET, num_steps=20)
