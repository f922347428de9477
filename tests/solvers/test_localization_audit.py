"""Private AC-SA and localization attacked on worst-case neighbours, and faults that the attack must find.

The loss <z, w> makes every gradient a record, far beyond the clip: one user moves a sum by the whole
sensitivity 2G in the steps that see it. Scores are sums over all that was released.
"""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _sequence
from dpsco_jax.solvers.combinators import composite, localization
from dpsco_jax.solvers.item_level import private_ac_sa
from tests.support.planned import planned

LINEAR = Objective(
    loss=lambda w, z: jnp.vdot(z, w),
    lipschitz=1.0,
    smoothness=1e-3,
    domain=domains.whole_space(),
)
USERS, EPSILON, DELTA, RUNS = 60, 1.0, 1e-2, 200_000


def _data(users, position, sign):
    return UserData(jnp.zeros((users, 1, 1)).at[position].set(50.0 * sign), None)


def _learned(mechanism, first, second, delta=DELTA, runs=RUNS):
    key = jax.random.key(0)
    return privacy.audit(key, mechanism, first, second, lambda x: x, runs, delta).epsilon


def _quieter(plan, factor):
    return plan.replace(noise_multiplier=plan.noise_multiplier / factor)


def _ac_sa(plan):
    def mechanism(key, data):
        return private_ac_sa.solve(key, plan, LINEAR, data, jnp.zeros(1)).params[0]

    return mechanism


@pytest.mark.slow
def test_sampled_batches():
    plan = planned(
        private_ac_sa.plan,
        LINEAR,
        num_users=6,
        dim=1,
        epsilon=EPSILON,
        delta=DELTA,
        distance=1.0,
        num_steps=3,
        batch_size=3,
    )
    pair = _data(6, 0, 1.0), _data(6, 0, -1.0)
    assert 0.6 * EPSILON < _learned(_ac_sa(plan), *pair) <= EPSILON
    assert _learned(_ac_sa(_quieter(plan, 2.0)), *pair) > EPSILON


def _localization():
    def inner(problem, budget, **request):
        everybody = problem.num_users
        return private_ac_sa.plan(problem, budget, num_steps=1, batch_size=everybody, **request)

    return planned(
        localization.plan,
        inner,
        LINEAR,
        num_users=USERS,
        epsilon=EPSILON,
        delta=DELTA,
        distance=1.0,
        num_phases=2,
    )


PLAN = _localization()


def _transcript(plan):
    """The sum of the noisy sums of both phases, read off where they start and end."""

    def mechanism(key, data):
        sums = []

        def inner(key, part, objective, data, params, center):
            found = private_ac_sa.solve(key, part, objective, data, params, center=center)
            # The first step of AC-SA: w - g/(μ + 2L), for g the noisy mean.
            step = 1 / (part.strong_convexity + 2 * part.smoothness)
            sums.append((params[0] - found.params[0]) / step * part.num_users)
            return found

        composite.solve(inner, key, plan, LINEAR, data, jnp.zeros(1))
        return jnp.stack(sums)

    return mechanism


def _phase(plan, phase):
    transcript = _transcript(plan)
    return lambda key, data: transcript(key, data)[phase]


def _both(plan):
    transcript = _transcript(plan)
    return lambda key, data: jnp.sum(transcript(key, data))


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "position"), [(0, 39), (1, 40)])
def test_localization_reveals_no_more_than_a_phase(phase, position):
    pair = _data(USERS, position, 1.0), _data(USERS, position, -1.0)
    assert 0.7 * EPSILON < _learned(_phase(PLAN, phase), *pair) <= EPSILON
    quiet = dataclasses.replace(PLAN, parts=tuple(_quieter(part, 2.0) for part in PLAN.parts))
    assert _learned(_phase(quiet, phase), *pair) > EPSILON
    # What the other phase has released says nothing more.
    assert _learned(_both(PLAN), *pair) <= EPSILON


@pytest.mark.slow
def test_a_user_in_two_blocks_is_caught():
    """The printed index sets share a user at the ends of blocks: too much for parallel composition."""
    cut = _sequence.slice_users

    def overlapping(data, start, size):
        return cut(data, max(start - 1, 0), size)

    pair = _data(USERS, 39, 1.0), _data(USERS, 39, -1.0)
    with mock.patch.object(_sequence, "slice_users", overlapping):
        assert _learned(_both(PLAN), *pair) > EPSILON


def test_the_canary_moves_the_sum_of_one_phase_by_two():
    """Power of the audits above: the whole sensitivity, in the phase that has the user, without noise."""
    quiet = dataclasses.replace(PLAN, parts=tuple(_quieter(part, 1e9) for part in PLAN.parts))
    assert [part.num_users for part in PLAN.parts] == [40, 20]
    run = jax.jit(_transcript(quiet))
    for position, expected in ((39, [2.0, 0.0]), (40, [0.0, 2.0])):
        sums = [run(jax.random.key(0), _data(USERS, position, sign)) for sign in (1.0, -1.0)]
        np.testing.assert_allclose(sums[0] - sums[1], expected, rtol=1e-4, atol=1e-3)
