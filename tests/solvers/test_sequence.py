"""Blocks of users: sizes, slices, the joint loss and the joint solution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import _counts, privacy
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import Solution, Status, _sequence


def test_sizes_hold_everybody_and_follow_the_weights():
    assert _sequence.block_sizes(1000, 2.0, 4) == (66, 133, 266, 535)
    assert _sequence.block_sizes(1000, 0.5, 4) == (535, 266, 133, 66)
    assert _sequence.block_sizes(10, [1.0, 1.0, 1.0]) == (4, 3, 3)
    for users in (7, 100, 12_345):
        for weights, count in ((2.0, 3), (0.5, 2), (1.0, 5)):
            sizes = _sequence.block_sizes(users, weights, count)
            assert sum(sizes) == users
            assert len(sizes) == count


def test_slices_are_disjoint_and_in_order():
    data = UserData(jnp.arange(20.0).reshape(10, 2), jnp.ones((10, 2), bool))
    parts = [_sequence.slice_users(data, start, size) for start, size in ((0, 3), (3, 7))]
    np.testing.assert_array_equal(np.concatenate([part.items for part in parts]), data.items)
    assert parts[1].mask.shape == (7, 2)


def test_the_joint_loss_is_the_largest_not_the_sum():
    losses = [privacy.gaussian(4.0), privacy.pure_dp(0.3), privacy.approximate_dp(0.1, 1e-6)]
    joint = _sequence.parallel_loss(losses)
    assert privacy.epsilon(joint, 1e-5) >= max(privacy.epsilon(x, 1e-5) for x in losses)
    assert privacy.epsilon(joint, 1e-5) < privacy.epsilon(privacy.compose(*losses), 1e-5)
    np.testing.assert_array_equal(joint.delta, 1e-6)


def _solution(value, status, gradients):
    return Solution(
        params=jnp.asarray(value),
        privacy=privacy.PrivacyLoss(*map(jnp.asarray, privacy.gaussian(5.0 + value))),
        status=jnp.asarray(int(status), jnp.int32),
        gradients=_counts.count(gradients),
        unprivate={"gradients": _counts.count(gradients - 1), "trace": None},
    )


def test_joined_solutions():
    parts = [_solution(1.0, Status.HALTED, 10), _solution(2.0, Status.OK, 5)]
    joint = jax.jit(lambda: _sequence.join(parts))()
    assert joint.params == 2.0
    assert joint.status == Status.HALTED
    assert joint.gradients == 15
    assert joint.unprivate["gradients"] == 13
    np.testing.assert_allclose(joint.privacy.rdp, parts[0].privacy.rdp, rtol=1e-6)
    diverged = _sequence.join([*parts, _solution(3.0, Status.DIVERGED, 2**40 - 3)])
    assert diverged.status == Status.DIVERGED
    assert diverged.gradients == 2**40 + 12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: _sequence.block_sizes(3, 2.0, 4),
            "num_users must be at least 15 for 4 blocks, got 3",
        ),
        (lambda: _sequence.block_sizes(3, 2.0, 0), "count must be at least 1"),
        (lambda: _sequence.block_sizes(3, [1.0, -1.0]), "weights must be positive"),
        (lambda: _sequence.slice_users(UserData(jnp.zeros((4, 1))), 2, 3), "at most 4 users"),
        (lambda: _sequence.join([]), "solutions must be at least one"),
        (lambda: _sequence.parallel_loss([]), "losses must be at least one"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
