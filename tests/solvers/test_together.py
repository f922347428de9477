"""Phases as turns of one loop: the runs of phases one by one, in a program that does not grow with them."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import Status, _sequence, first_order
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.user_level import (
    accelerated_phased_erm,
    accelerated_sgd,
)
from tests.solvers.private_table import DIM, OBJECTIVE, ROWS
from tests.support.planned import planned

(ROW,) = [row for row in ROWS if row.name == "accelerated_phased_erm, tested"]


@functools.cache
def _parts(batches=None):
    if batches is None:
        return ROW.plan().parts
    return planned(
        accelerated_phased_erm.plan, OBJECTIVE, num_users=180, items_per_user=ROW.items, dim=DIM,
        num_phases=2, radius=0.5, epsilon=40.0, delta=1e-2,
        allow_large_delta=True, batch_size=list(batches),
    ).parts  # fmt: skip


def _data(far=()):
    """The users of the row, some of them without an item; those named disagree with all others."""
    data = ROW.data()
    mask = np.array(data.mask)
    mask[::7, 0] = False
    label = np.array(data.items.label)
    label[list(far)] *= np.where(np.arange(len(far)) % 2, 1.0, -1.0)[:, None]
    return UserData(data.items._replace(label=label), mask)


def _run(key, data, turns, parts):
    start = jnp.zeros(parts[0].dim)
    found = _sequence.run(key, parts, accelerated_sgd.solve, OBJECTIVE, data, start, turns=turns)
    return found._replace(unprivate={"gradients": found.unprivate["gradients"]})


@pytest.mark.parametrize("far", [(), range(120, 180)], ids=["to the end", "the last halts"])
def test_turns_are_the_phases_one_by_one(far):
    parts, data = _parts(), _data(far)
    turns = first_order.TURNS
    assert [len(group) for group in _sequence.groups(parts, turns, data)] == [2]
    one, other = (_both(jax.random.key(3), data, which) for which in (True, False))
    assert int(one.status) == (Status.HALTED if far else Status.OK)
    np.testing.assert_allclose(one.params, other.params, rtol=2e-6, atol=1e-7)
    assert np.linalg.norm(one.params) > 0.5
    for name in ("status", "gradients"):
        assert int(getattr(one, name)) == int(getattr(other, name))
    assert one.unprivate["gradients"] == other.unprivate["gradients"] < one.gradients
    for found, wanted in zip(one.privacy, other.privacy, strict=True):
        np.testing.assert_array_equal(found, wanted)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _both(key, data, together, batches=None):
    parts = _parts(batches)
    return _run(key, data, first_order.TURNS if together else None, parts)


def test_the_program_does_not_grow_with_the_phases():
    first, second = _parts()
    turns = first_order.TURNS

    def size(*parts):
        users = sum(part.num_users for part in parts)
        data = jax.tree.map(lambda leaf: np.resize(leaf, (users, *leaf.shape[1:])), _data())
        lowered = jax.jit(lambda key: _run(key, data, turns, parts)).lower(jax.random.key(0))
        return len(lowered.as_text(debug_info=False).splitlines())

    assert size(first, *4 * (second,)) < 1.1 * size(first, second)


def test_parts_of_other_kinds_have_programs_of_their_own():
    kinds = _sequence.Turns(lambda part: None if part == "c" else {part: 1}, None, None, None, None)
    data = UserData(jnp.zeros((4, 1)))

    class Named(str):
        num_users = 2

    def grouped(names, turns):
        found = _sequence.groups(list(map(Named, names)), turns, data)
        return ["".join(part for part, _ in group) for group in found]

    assert grouped("aab", kinds) == ["aa", "b"]
    assert grouped("aba", kinds) == ["a", "b", "a"]
    assert grouped("aa", None) == ["a", "a"]
    assert grouped("cc", kinds) == ["c", "c"]


@pytest.mark.parametrize("users", [3, 256])
def test_the_first_users_of_more_rows_have_the_scores_of_these_alone(users):
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(300, 3)), jnp.float32)
    count = jnp.asarray(users, jnp.int32)
    found = concentrated_mean.concentration(rows, 1.0, num_users=count, block_size=128)
    alone = concentrated_mean.concentration(rows[:users], 1.0, block_size=128)
    assert found.score == alone.score
    np.testing.assert_array_equal(found.degrees[:users], alone.degrees)
    assert not np.any(found.degrees[users:])
    weights = concentrated_mean.inlier_weights(found.degrees, count, 0.6)
    np.testing.assert_array_equal(
        weights[:users], concentrated_mean.inlier_weights(alone.degrees, users, 0.6)
    )
    # Whatever weight it is given, a row beyond them does not count.
    mean = concentrated_mean.mean_deviation(rows, jnp.ones(300), num_users=count)
    wanted = concentrated_mean.mean_deviation(rows[:users], jnp.ones(users))
    np.testing.assert_allclose(mean, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("users", [0, 301, 2.0, 5])
def test_a_number_of_users_that_is_none_is_refused(users):
    given = users if users == 5 else jnp.asarray(users)
    with pytest.raises(ValueError, match="num_users must be an array of one integer from 1 to 300"):
        concentrated_mean.concentration(jnp.zeros((300, 3)), 1.0, num_users=given)


def test_whatever_comes_after_a_halt_is_of_no_account():
    stopped, point = jnp.zeros([], bool), jnp.zeros([])
    for status, end in ((Status.OK, 1.0), (Status.HALTED, 2.0), (Status.OK, 2.0), (Status.OK, 2.0)):
        found = Solution(point + 1, None, jnp.asarray(int(status)), 0, None)
        point, stopped, seen = _sequence.until_stopped(stopped, point, found)
        assert point == seen.params == end
        assert bool(stopped) == (end > 1)
        assert int(seen.status) == status


def test_turns_after_other_parts_have_keys_and_users_of_their_own():
    places = _sequence.places_of([1.0, 2.0], 3, [10, 24])
    assert places.count == 2
    assert places.numbers.tolist() == [3, 4]
    assert places.firsts.tolist() == [10, 24]
    assert places.parts.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_steps_of_parts_and_parts_of_parts_have_keys_of_their_own(impl):
    key = jax.random.key(0, impl=impl)
    words = []

    def alone(key, part, objective, data, point):
        words.append(tuple(jax.random.key_data(key).tolist()))
        for step in range(3):
            words.append(tuple(jax.random.key_data(jax.random.fold_in(key, step)).tolist()))
        return Solution(point, None, jnp.zeros([], jnp.int32), 0, {"gradients": 0, "trace": None})

    def of_turn(key, part, objective, rows, first, point):
        return Solution(jax.random.key_data(key), None, jnp.zeros([], jnp.int32), 0, {})

    parts = 3 * (_parts()[0],)
    data = jax.tree.map(lambda leaf: np.resize(leaf, (360, *leaf.shape[1:])), _data())
    with mock.patch.object(_sequence, "joined"):
        _sequence.run(key, parts, alone, OBJECTIVE, data, jnp.zeros(3))
    # For such keys, folding alone gave step 1 of part 0 the key of step 0 of part 1.
    assert len(set(words)) == len(words) == 12
    places = _sequence.Places(3, jnp.arange(3), jnp.zeros(3, jnp.int32), None)
    point, no = jnp.zeros_like(jax.random.key_data(key)), jnp.zeros([], bool)
    found = _sequence.loop(key, of_turn, places, OBJECTIVE, None, point, no)[2].params
    assert [tuple(row) for row in found.tolist()] == words[::4]


def test_nothing_moves_after_a_part_that_came_after_a_halt():
    found = Solution(jnp.ones(1), None, jnp.int32(Status.OK), 0, {})
    point, over, same = _sequence.until_stopped(jnp.asarray(True), jnp.zeros(1), found)
    assert over
    assert point == same.params == 0
    assert int(same.status) == Status.OK
