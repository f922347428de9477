"""Grouping by user against pandas; one user's rows never decide about another's."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from dpsco_jax.problems import losses, users
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData

COUNTS = {7: 1, 3: 5, 11: 12, 5: 3}


def frame_of(counts):
    rng = np.random.default_rng(0)
    rows = [(user, 1000.0 * user + i, float(i % 2)) for user, n in counts.items() for i in range(n)]
    return pd.DataFrame(rows, columns=["who", "x", "y"]).iloc[rng.permutation(len(rows))]


def from_frame(frame, bound=None, seed=0):
    return users.from_frame(jax.random.key(seed), frame, "who", ["x", "y"], "y", bound)


def held(data, user):
    """The ``x`` of the items of a user."""
    return np.asarray(data.items.features)[user][np.asarray(data.mask)[user], 0].tolist()


def test_all_rows_are_grouped_by_user_in_order():
    frame = frame_of(COUNTS)
    data = from_frame(frame)
    assert data.items.features.shape == (4, 12, 2)
    assert data.items.features.dtype == jnp.float32
    for position, user in enumerate(sorted(COUNTS)):
        assert held(data, position) == frame[frame.who == user].x.tolist()
    np.testing.assert_array_equal(users.items_per_user(data), [COUNTS[u] for u in sorted(COUNTS)])
    assert users.num_users(data) == 4
    np.testing.assert_allclose(users.padding_waste(data), 1 - 21 / 48)
    assert not np.asarray(data.items.features)[~np.asarray(data.mask)].any()


def test_contributions_are_bounded_by_a_seeded_subset():
    frame = frame_of(COUNTS)
    data = from_frame(frame, bound=4)
    assert data.items.label.shape == (4, 4)
    for position, user in enumerate(sorted(COUNTS)):
        everything = frame[frame.who == user].x.tolist()
        kept = held(data, position)
        assert len(kept) == min(4, COUNTS[user])
        assert kept == [x for x in everything if x in kept]
    again = from_frame(frame, bound=4)
    jax.tree.map(np.testing.assert_array_equal, data, again)
    assert held(from_frame(frame, bound=4, seed=1), 3) != held(data, 3)


def test_every_item_is_kept_equally_often():
    frame = frame_of({1: 10})
    kept = [held(from_frame(frame, bound=3, seed=seed), 0) for seed in range(300)]
    _, counts = np.unique(np.concatenate(kept), return_counts=True)
    assert len(counts) == 10
    # 300 draws of 3 of 10: mean 90, standard deviation 8.
    assert np.abs(counts - 90).max() < 36


def test_replacing_a_user_changes_that_user_only():
    first = from_frame(frame_of(COUNTS), bound=4)
    frame = frame_of(COUNTS)
    others = [frame[frame.who != 5], frame_of({5: 9})]
    second = from_frame(pd.concat(others[::-1]), bound=4)
    for position, user in enumerate(sorted(COUNTS)):
        if user != 5:
            assert held(first, position) == held(second, position)
    assert first.mask.shape == second.mask.shape


def test_split_is_a_partition_of_the_users():
    data = from_frame(frame_of(dict.fromkeys(range(10), 2)))
    train, test = users.split_users(jax.random.key(3), data, 0.8)
    assert (users.num_users(train), users.num_users(test)) == (8, 2)
    both = [held(part, i) for part in (train, test) for i in range(users.num_users(part))]
    assert sorted(map(sorted, both)) == [[1000.0 * u, 1000.0 * u + 1] for u in range(10)]
    other, _ = users.split_users(jax.random.key(4), data, 0.8)
    assert not np.array_equal(other.items.features, train.items.features)
    with pytest.raises(ValueError, match="fraction"):
        users.split_users(jax.random.key(0), data, 1.5)


def test_subset_repeats_and_orders():
    data = from_frame(frame_of(COUNTS))
    chosen = users.subset(data, np.asarray([2, 0, 2]))
    assert held(chosen, 0) == held(chosen, 2) == held(data, 2)
    assert users.subset(UserData(jnp.arange(6.0).reshape(3, 2)), np.asarray([1])).mask is None


def test_user_loss_is_the_mean_over_the_users_items():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(5, 4, 3)).astype(np.float32) / 3
    labels = rng.integers(0, 2, (5, 4)).astype(np.float32)
    mask = rng.random((5, 4)) < 0.6
    mask[2] = False
    mask[3] = True
    objective = losses.logistic(1e3, ridge=0.1)
    data = UserData(Example(jnp.asarray(features), jnp.asarray(labels)), jnp.asarray(mask))
    params = jnp.asarray([0.5, -1.0, 2.0])

    margins = features @ np.asarray(params)
    items = np.logaddexp(0.0, margins) - labels * margins
    by_user = np.array(
        [row[m].mean() if m.any() else 0.0 for row, m in zip(items, mask, strict=True)]
    )
    one = jax.jit(users.user_loss(objective))
    got = [
        one(params, jax.tree.map(lambda leaf, u=u: leaf[u], data.items), mask[u]) for u in range(5)
    ]
    np.testing.assert_allclose(got, by_user, rtol=1e-5)
    gradient = jax.jit(jax.grad(users.user_loss(objective)))(
        params, jax.tree.map(lambda leaf: leaf[2], data.items), mask[2]
    )
    np.testing.assert_array_equal(gradient, 0.0)

    whole = jax.jit(users.mean_loss(objective))
    ridge = 0.05 * float(params @ params)
    np.testing.assert_allclose(whole(params, data), by_user.mean() + ridge, rtol=1e-5)
    full = data._replace(mask=None)
    np.testing.assert_allclose(whole(params, full), items.mean() + ridge, rtol=1e-5)
    np.testing.assert_array_equal(users.items_per_user(full), 4)
    assert users.padding_waste(full) == 0.0


def test_no_items_at_all():
    objective = losses.logistic(1.0)
    empty = Example(jnp.zeros((0, 3)), jnp.zeros(0))
    for mask in (None, jnp.zeros(0, bool)):
        assert float(users.user_loss(objective)(jnp.ones(3), empty, mask)) == 0.0
    data = users.from_rows(jax.random.key(0), np.zeros(0), np.zeros((0, 2), np.float32))
    assert (users.num_users(data), data.items.shape) == (0, (0, 0, 2))


def test_bad_frames_are_refused():
    frame = frame_of(COUNTS)
    with pytest.raises(ValueError, match="columns must be among"):
        users.from_frame(jax.random.key(0), frame, "who", ["z"], "y")
    with pytest.raises(ValueError, match="max_items_per_user"):
        from_frame(frame, bound=0)
    with pytest.raises(ValueError, match="as many as users"):
        users.from_rows(jax.random.key(0), np.zeros(3), np.zeros(2))
    with pytest.raises(ValueError, match="missing"):
        users.from_rows(jax.random.key(0), np.asarray([0.0, np.nan]), np.zeros(2))
