"""Blocks of users: sizes, slices, the joint loss and the joint solution."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import _counts, privacy
from dpsco_jax.problems import losses
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


class _Part(NamedTuple):
    num_users: int
    halts: bool = False


def test_every_part_has_its_own_key_and_users_and_starts_where_the_one_before_has_ended():
    seen = []

    def solver(key, part, objective, data, point):
        del objective
        seen.append((np.asarray(jax.random.key_data(key)).tobytes(), np.ravel(data.items), point))
        status = Status.HALTED if part.halts else Status.OK
        return _solution(point + jnp.sum(data.items), status, part.num_users)

    users = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    data = UserData(jnp.asarray(users)[:, None])
    objective = losses.absolute(1.0)
    parts = [_Part(3), _Part(2), _Part(1)]
    found = _sequence.run(jax.random.key(3), parts, solver, objective, data, jnp.asarray(100.0))
    keys, blocks, points = zip(*seen, strict=True)
    assert len(set(keys)) == 3
    assert np.concatenate(blocks).tolist() == users[:6].tolist()
    assert [float(point) for point in points] == [100.0, 107.0, 131.0]
    assert float(found.params) == 163.0
    # After a halt nothing moves; on the same users all parts see all of them.
    halting = [_Part(3), _Part(2, halts=True), _Part(1)]
    found = _sequence.run(jax.random.key(3), halting, solver, objective, data, jnp.asarray(100.0))
    assert (float(found.params), int(found.status)) == (131.0, Status.HALTED)
    whole = [_Part(7), _Part(7)]
    args = (
        jax.random.key(3),
        whole,
        solver,
        objective,
        data,
        jnp.asarray(0.0),
        "sequential",
        False,
    )
    assert float(_sequence.run(*args).params) == 254.0
    np.testing.assert_array_equal(seen[-1][1], users)


def _first_and_key(point, first, key):
    """A solution that is traced: where its users begin is added to the point, and it says its key."""
    found = _solution(0.0, Status.OK, 1)
    more = found.unprivate | {"trace": jax.random.key_data(key)}
    return found._replace(params=point + first, unprivate=more)


def test_parts_between_turns_have_keys_and_users_of_their_own():
    class Sized(NamedTuple):
        num_users: int
        turns: bool = True

    together = _sequence.Turns(
        lowered=lambda part: part.num_users if part.turns else None,
        prepared=lambda part, objective, data, point: data,
        solver=lambda key, part, objective, rows, first, point: _first_and_key(point, first, key),
        gradients=lambda part, data: part.num_users,
        check=lambda part, objective, data, point: None,
    )

    def alone(key, part, objective, data, point):
        return _first_and_key(point, data.items[0, 0], key)

    parts = [Sized(3), Sized(2), Sized(1, turns=False), Sized(4), Sized(5)]
    data = UserData(jnp.arange(15.0)[:, None])
    start = jnp.asarray(0.0)
    asked = jax.random.key(3), parts, alone, losses.absolute(1.0), data, start
    found = _sequence.run(*asked, turns=together)
    assert float(found.params) == 0 + 3 + 5 + 6 + 10
    by_themselves = _sequence.run(*asked)
    assert float(by_themselves.params) == float(found.params)
    keys = [np.asarray(key) for key in found.unprivate["trace"]]
    assert len({key.tobytes() for key in keys}) == 5
    np.testing.assert_array_equal(keys, by_themselves.unprivate["trace"])


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
