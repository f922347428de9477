"""Accelerated user-level SGD attacked from end to end, and faults that the attack must find.

The loss <z, w> makes every gradient a record, so the result is a weighted sum of all noisy means: along the
canary's direction nearly the likelihood ratio of the whole run, of which the halt is the rest.
"""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import accelerated_sgd
from tests.support.planned import planned

USERS, EPSILON, DELTA, RUNS, RADIUS = 150, 6.0, 5e-2, 30_000, 0.5
LINEAR = Objective(
    loss=lambda w, z: jnp.vdot(z, w),
    lipschitz=100.0,
    smoothness=1e-3,
    domain=domains.whole_space(),
)


@functools.cache
def _plan():
    return planned(
        accelerated_sgd.plan,
        LINEAR,
        num_users=USERS,
        items_per_user=1,
        dim=1,
        epsilon=EPSILON,
        delta=DELTA,
        allow_large_delta=True,
        distance=1.0,
        regularization=1.0,
        stage_length=3,
        num_stages=1,
        radius=RADIUS,
    )


def _changed(**changes):
    plan = _plan()
    return plan.replace(releases=dataclasses.replace(plan.releases, **changes))


def _learned(plan, others, first, second, score=lambda found: found.params[0]):
    """What is learned about one user, at ``first`` or ``second`` among the others."""

    def data(value):
        return UserData(jnp.asarray([value, *others], jnp.float32)[:, None, None], None)

    def mechanism(key, data):
        return accelerated_sgd.solve(key, plan, LINEAR, data, jnp.zeros(1))

    key = jax.random.key(0)
    return privacy.audit(key, mechanism, data(first), data(second), score, RUNS, DELTA).epsilon


# The score radius is 1: a user at 2 from all others has full weight, and fails no test.
TOGETHER = [0.0] * (USERS - 1)


@pytest.mark.slow
def test_the_means_reveal_no_more_than_claimed_and_less_noise_is_caught():
    learned = _learned(_plan(), TOGETHER, 1.99, -1.99)
    # The pair moves the mean by 4 radii over the users, the proof allows for 8.
    assert 0.1 * EPSILON < learned <= EPSILON
    quiet = _changed(noise_stddev=_plan().releases.noise_stddev / 20)
    assert _learned(quiet, TOGETHER, 1.99, -1.99) > EPSILON


@pytest.mark.slow
def test_a_mean_that_keeps_everybody_is_caught():
    keep_all = mock.patch.object(
        concentrated_mean, "inlier_weights", lambda degrees, *_: jnp.ones(len(degrees))
    )
    assert _learned(_plan(), TOGETHER, 100.0, -100.0) <= 0.1 * EPSILON
    with keep_all:
        assert _learned(_plan(), TOGETHER, 100.0, -100.0) > EPSILON


@pytest.mark.slow
def test_the_halt_reveals_no_more_than_claimed_and_a_sharp_test_is_caught():
    threshold = float(_plan().releases.threshold)
    near = next(n for n in range(USERS) if (n + 1) ** 2 / USERS > threshold + 0.5)
    # So many at zero, the others far from everybody: the user decides on which side the score is.
    others = [0.0] * near + [10.0 * (i + 2) for i in range(USERS - 1 - near)]
    middle = ((near + 1) ** 2 + near**2) / (2 * USERS)

    def halted(found):
        return found.status.astype(float)

    plan = _changed(threshold=middle)
    assert _learned(plan, others, 0.0, 9.0, halted) <= EPSILON
    sharp = _changed(threshold=middle, test_epsilon=400.0)
    assert _learned(sharp, others, 0.0, 9.0, halted) > EPSILON


def test_the_canary_moves_the_mean_by_four_radii():
    """Power of the first audit: the distance between the two runs, without noise."""
    plan = _changed(noise_stddev=1e-9, threshold=-1e9)
    ends = []
    for value in (1.99, -1.99):
        rows = jnp.asarray([value, *TOGETHER], jnp.float32)[:, None, None]
        found = accelerated_sgd.solve(
            jax.random.key(0), plan, LINEAR, UserData(rows, None), jnp.zeros(1)
        )
        ends.append(float(found.params[0]))
    # The minimizer of <mean, w> + w²/2 is -mean; three steps of AC-SA go most of the way.
    assert ends[1] - ends[0] == pytest.approx(0.63 * 4 * 0.995 / USERS, rel=0.01)
    assert np.isfinite(ends).all()
