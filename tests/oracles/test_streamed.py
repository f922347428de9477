"""Sums over users on disk are those in memory, to the last bit; readers that fail are heard of, and leave."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import _compensated, transforms
from dpsco_jax.oracles import ghost, gradients, linear, sampling, smoothed, streamed
from dpsco_jax.oracles.streamed import _prefetched as prefetched
from dpsco_jax.problems import StoredUsers, losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from tests.problems import saved

_FIRST = lambda key, params, items, mask: items[0]  # noqa: E731
USERS, ITEMS, DIM = 203, 2, 3
OBJECTIVE = losses.logistic(1.0)
_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=(USERS, ITEMS, DIM)).astype(np.float32)
DATA = UserData(
    Example(_X, np.sign(_X[..., 0] + _RNG.normal(size=(USERS, ITEMS))).astype(np.float32)),
    _RNG.random((USERS, ITEMS)) < 0.8,
)
DATA.items.features[3] = np.nan
DATA.items.label[200] = np.inf  # in the last block
SINGLE = UserData(jax.tree.map(lambda x: x[:, :1], DATA.items))
POINT = jnp.asarray([0.5, -1.0, 2.0])
SAMPLERS = {
    "all": None,
    "poisson": lambda key: sampling.poisson(key, USERS, 0.3),
    "nobody": lambda key: sampling.poisson(key, USERS, 0.0),
    "fixed": lambda key: sampling.without_replacement(key, USERS, 61),
    "few": lambda key: sampling.without_replacement(key, USERS, 5),
    "again": lambda key: sampling.with_replacement(key, USERS, 40),
}


def _oracle(kind, sampler, chunk=8):
    if kind == "linear":
        return linear.clipped_gradient_sum(OBJECTIVE.linear_model, 0.4, sampler, chunk)
    if kind == "ghost":
        return ghost.clipped_gradient_sum(OBJECTIVE, 0.4, sampler, chunk)
    if kind == "shifted":
        return gradients.clipped_gradient_sum(
            smoothed.user_gradient(OBJECTIVE, 0.5), 0.4, sampler, chunk
        )
    return gradients.clipped_gradient_sum(gradients.user_gradient(OBJECTIVE), 0.4, sampler, chunk)


def _form(kind, data):
    return linear.prepare(OBJECTIVE.linear_model, data, DIM) if kind == "linear" else data


def _both(kind, sampler, data=DATA, chunk=8, block_users=50):
    oracle = _oracle(kind, sampler, chunk)
    stored = StoredUsers(data.items, data.mask, block_users=block_users)
    sums = streamed.Sums(oracle, stored.mapped(lambda block: _form(kind, block)))
    memory = jax.jit(lambda key, data: oracle(key, POINT, _form(kind, data)))
    return memory(jax.random.key(3), data), sums.estimate(jax.random.key(3), POINT)


def _same(memory, disk):
    for a, b in zip(jax.tree.leaves(memory), jax.tree.leaves(disk), strict=True):
        # Numbers that somebody said, as clip norms, went through a program on one of the two ways.
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))


LATER = ("few", "again", "nobody")  # drawn like the others; in programs of their own
EVERY = [pytest.param(x, marks=[pytest.mark.slow] * (x in LATER)) for x in SAMPLERS]


@pytest.mark.parametrize("sampler", EVERY)
def test_the_sum_of_gradients_is_that_in_memory(sampler):
    memory, disk = _both("gradients", SAMPLERS[sampler])
    _same(memory, disk)
    assert sampler == "nobody" or np.linalg.norm(disk.gradient) > 0


@pytest.mark.parametrize(
    "kind", ["linear", "shifted", pytest.param("ghost", marks=pytest.mark.slow)]
)
def test_the_sums_of_other_oracles_are_those_in_memory(kind):
    _same(*_both(kind, SAMPLERS["poisson"]))


@pytest.mark.parametrize(
    ("chunk", "block_users"), [(8, 1), pytest.param(7, 203, marks=pytest.mark.slow)]
)
def test_the_sum_is_that_in_memory_for_other_blocks(chunk, block_users):
    _same(*_both("linear", None, chunk=chunk, block_users=block_users))


@pytest.mark.parametrize(
    ("data", "chunk", "close"),
    [(SINGLE, 8, 2.0**-40), pytest.param(DATA, 900, 1e-6, marks=pytest.mark.slow)],
    ids=["single", "one chunk"],
)
def test_where_everybody_is_one_chunk_the_same_groups_are_added_block_by_block(data, chunk, close):
    """Of several items a user's own gradient is rounded by another program, and not the same."""
    data = jax.tree.map(lambda x: np.concatenate([x, 2 * x if x.dtype != bool else x] * 2), data)
    memory, disk = _both("linear", None, data, chunk, block_users=256)
    assert memory.num_gradients == disk.num_gradients
    exact = [np.float64(x.gradient) + np.float64(x.extra_args["remainder"]) for x in (memory, disk)]
    np.testing.assert_allclose(*exact, rtol=close)


def test_draws_of_few_users_are_the_chunks_of_memory():
    few = jax.tree.map(lambda x: x[:5], DATA)
    sampler = lambda key: sampling.with_replacement(key, 5, 40)  # noqa: E731
    memory, disk = _both("gradients", sampler, few, block_users=16)
    _same(memory, disk)
    stored = StoredUsers(few.items, few.mask)
    assert streamed.Sums(_oracle("gradients", sampler), stored).at_once(POINT) == 8


def test_users_at_their_bound_have_the_room_of_all_users():
    users = 4000
    one = np.tile(np.float32([1.0, 0.0]), (users, 1, 1))
    of_user = lambda key, params, items, mask: items[0]  # noqa: E731
    oracle = gradients.clipped_gradient_sum(of_user, 0.5, None, 8)
    memory = jax.jit(lambda key, data: oracle(key, (), data))
    disk = streamed.Sums(oracle, StoredUsers(one, block_users=80)).estimate(jax.random.key(0), ())
    _same(memory(jax.random.key(0), UserData(one)), disk)
    # One float tells the room of all users from that of a block.
    assert (
        disk.gradient[0] * np.float32(_compensated.room(80) / _compensated.room(users))
        > disk.gradient[0]
    )


def test_a_private_histogram_of_users_on_disk():
    """A statistic of one's own, and an existing mechanism: float64 counts, and noise around them."""
    kinds = np.arange(USERS)[:, None] % 4
    of_user = lambda key, params, items, mask: jax.nn.one_hot(items[0], 4)  # noqa: E731
    oracle = gradients.clipped_gradient_sum(of_user, 1.0)
    sums = streamed.Sums(oracle, StoredUsers(kinds.astype(np.int32), block_users=64))
    found = sums.estimate(jax.random.key(0), ())
    np.testing.assert_allclose(found.gradient, np.bincount(kinds[:, 0]), rtol=3e-5)
    chain = transforms.privatize(transforms.summed_contributions(1.0, 1), jax.random.key(1), 2.0)
    state = chain.init(jnp.zeros(4))
    noised, state = chain.update(found.gradient, state, jnp.zeros(4), **found.extra_args)
    assert 0 < np.abs(noised - found.gradient).max() < 4 * 6


def test_what_is_no_sum_over_users_is_refused():
    stored = StoredUsers(DATA.items)
    rows = gradients.per_user_gradients(gradients.user_gradient(OBJECTIVE))
    with pytest.raises(ValueError, match="oracle must"):
        streamed.Sums(rows, stored)
    with pytest.raises(ValueError, match="data must"):
        streamed.Sums(_oracle("gradients", None), DATA)
    with pytest.raises(ValueError, match="key must"):
        streamed.Sums(_oracle("gradients", None), stored).estimate(0, POINT)
    with pytest.raises(ValueError, match="key must be concrete"):
        jax.jit(lambda k: streamed.Sums(_oracle("gradients", None), stored).estimate(k, POINT))(
            jax.random.key(0)
        )


def test_of_a_total_that_was_left_unfinished_the_rest_is_nobodys():
    """Otherwise the users of the blocks that are gone are left out, and all later totals have other users."""
    stored = StoredUsers(np.ones((8, 1, 1), np.float32), block_users=2)
    sums = streamed.Sums(gradients.clipped_gradient_sum(_FIRST, 1.0, None, 2), stored)
    keys, added = [jax.random.key(0), jax.random.key(1)], sums._add

    def interrupted(*given, **named):
        if int(given[4][1][0]) == 4:
            raise KeyboardInterrupt
        return added(*given, **named)

    sums._add = interrupted
    with sums.totals(keys, ()) as total:
        with pytest.raises(KeyboardInterrupt):
            total(keys[0], ())
        for key in keys:
            with pytest.raises(RuntimeError, match="unfinished"):
                total(key, ())
    sums._add = added
    with sums.totals(keys, ()) as total, pytest.raises(ValueError, match="the next of those"):
        total(keys[1], ())
    with sums.totals(keys, ()) as total:
        assert [int(total(key, ())[1]) for key in keys] == [8, 8]
        with pytest.raises(RuntimeError, match="more keys"):
            total(keys[1], ())


def test_files_are_not_read_into_a_compiled_program():
    stored, key = StoredUsers(np.ones((8, 1, 1), np.float32)), jax.random.key(0)
    sums = streamed.Sums(gradients.clipped_gradient_sum(_FIRST, 1.0, None, 2), stored)
    with pytest.raises(ValueError, match="params must be concrete"):
        jax.vmap(lambda params: sums.estimate(key, params))(jnp.ones(3))
    with pytest.raises(ValueError, match="key must be concrete"):
        jax.jit(lambda: sums.estimate(key, ()))()


def test_an_error_of_the_reader_is_raised_and_the_thread_ends():
    def work(number):
        if number == 3:
            raise OSError("the disk is gone")
        return number**2

    found = []
    with (
        pytest.raises(OSError, match="the disk is gone"),
        prefetched(work, range(10), 2) as pairs,
    ):
        found.extend(pairs)
    assert found == [(0, 0), (1, 1), (2, 4)]
    assert not [t for t in threading.enumerate() if t.name.startswith("dpsco-jax-reader")]


def test_no_more_is_read_ahead_than_was_asked_for_and_an_interrupt_leaves_nothing():
    begun = []

    def interrupted():
        with prefetched(begun.append, range(1000), 2) as pairs:
            next(pairs)
            time.sleep(0.05)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert begun == [0, 1, 2]
    assert not [t for t in threading.enumerate() if t.name.startswith("dpsco-jax-reader")]


def test_a_file_that_changes_during_a_pass_gives_no_sum(tmp_path):
    paths = saved(tmp_path, x=DATA.items.features, y=DATA.items.label)
    stored = StoredUsers(Example(paths["x"], paths["y"]), block_users=50)
    sums = streamed.Sums(_oracle("gradients", None), stored)
    saved(tmp_path, x=2 * DATA.items.features)
    with pytest.raises(ValueError, match="must not change"):
        sums.estimate(jax.random.key(0), POINT)


def test_several_processes_are_refused(monkeypatch):
    """Each would have other users, and the same noise."""
    oracle, data = (
        gradients.clipped_gradient_sum(_FIRST, 1.0),
        StoredUsers(np.ones((4, 2, 3), "f4")),
    )
    streamed.Sums(oracle, data)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="data must be UserData where there are several processes"):
        streamed.Sums(oracle, data)
