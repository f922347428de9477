"""Grouping by user and element against pandas; neighbours differ in one unit; the loss against plain sums."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from dpsco_jax.problems import elements, losses, users
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example

KEY = jax.random.key(0)
K = 6


def table(seed=0, num_rows=90, num_users=7):
    """User 3 has no row in element 2, user 5 none but in element 4."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "who": rng.integers(0, num_users, num_rows),
            "element": rng.integers(0, K, num_rows) // 2 * 2 + rng.integers(0, 2, num_rows) // 2,
            "x": np.arange(1.0, num_rows + 1),
        }
    )
    frame.loc[frame.who == 5, "element"] = 4
    return frame[~((frame.who == 3) & (frame.element == 2))].reset_index(drop=True)


def grouped(frame, items=None, **options):
    options = {"order": "sorted", **options}
    rows = {"x": frame.x.to_numpy(np.float32)}
    who, element = frame.who.to_numpy(), frame.element.to_numpy()
    return elements.from_rows(KEY, who, element, rows, K, items, **options)


def held(data, user, slot):
    mask = np.asarray(data.mask)[user, slot]
    return np.asarray(data.items["x"])[user, slot][mask].tolist()


def units_of(data, user):
    return sorted(tuple(held(data, user, slot)) for slot in range(data.mask.shape[1]))


def test_dense_slots_are_the_elements():
    frame = table()
    data = grouped(frame)
    assert (elements.num_users(data), elements.num_slots(data)) == (7, K)
    for user, element in itertools.product(range(7), range(K)):
        wanted = frame[(frame.who == user) & (frame.element == element)].x.tolist()
        assert held(data, user, element) == wanted
    distinct = frame.groupby("who").element.nunique().tolist()
    assert elements.elements_of_users(data).tolist() == distinct
    assert not np.asarray(data.items["x"])[~np.asarray(data.mask)].any()
    assert data.items["x"].shape[2] == frame.groupby(["who", "element"]).size().max()


def test_packed_slots_are_a_users_elements_in_ascending_order():
    frame = table()
    dense, packed = grouped(frame), grouped(frame, elements_per_user=4)
    assert elements.num_slots(packed) == 4
    for user in range(7):
        full = [units for slot in range(K) if (units := held(dense, user, slot))]
        assert [held(packed, user, slot) for slot in range(4)] == full + [[]] * (4 - len(full))
    most = frame.groupby("who").element.nunique().max()
    grouped(frame, elements_per_user=most)
    with pytest.raises(ValueError, match=r"elements_per_user .*none is dropped.*not shown"):
        grouped(frame, elements_per_user=most - 1)


def changes():
    """Units replaced: emptied, filled, enlarged beyond the bound on items, and replaced by other items."""
    frame = table()
    fresh = pd.DataFrame({"who": 3, "element": 2, "x": 1000.0 + np.arange(9)})
    yield frame, 3, 2, pd.concat([frame, fresh], ignore_index=True)
    for user, element in ((5, 4), (0, 0), (6, 4)):
        rest = frame[~((frame.who == user) & (frame.element == element))]
        yield frame, user, element, rest
        other = pd.DataFrame({"who": user, "element": element, "x": 2000.0 + np.arange(12)})
        yield frame, user, element, pd.concat([other, rest], ignore_index=True)


@pytest.mark.parametrize("keep", ["random", "first"])
def test_replacing_a_unit_changes_that_unit_only(keep):
    for frame, user, element, other in changes():
        members = {"members": np.arange(7), "keep": keep}
        first, second = (grouped(rows, 2, **members) for rows in (frame, other))
        differ = np.argwhere(
            (np.asarray(first.items["x"]) != np.asarray(second.items["x"])).any(axis=2)
            | (np.asarray(first.mask) != np.asarray(second.mask)).any(axis=2)
        )
        assert differ.tolist() == [[user, element]]
        # Packed: others are the same, and of this user one unit goes and one comes.
        first, second = (
            grouped(rows, 2, elements_per_user=4, **members) for rows in (frame, other)
        )
        assert first.mask.shape == second.mask.shape
        for who in range(7):
            before, after = units_of(first, who), units_of(second, who)
            common = [
                unit
                for unit in set(before)
                for _ in range(min(before.count(unit), after.count(unit)))
            ]
            assert len(common) == (3 if who == user else 4)


def test_a_cap_on_items_is_a_uniform_draw_of_the_units_own():
    who, element, x = np.zeros(20, int), np.repeat([1, 4], 10), np.arange(20.0)
    kept = [elements.from_rows(jax.random.key(seed), who, element, x, K, 3) for seed in range(300)]
    for slot in (1, 4):
        values = [np.asarray(data.items)[0, slot] for data in kept]
        _, counts = np.unique(np.concatenate(values), return_counts=True)
        # 300 draws of 3 of 10: mean 90, standard deviation 8.
        assert len(counts) == 10
        assert np.abs(counts - 90).max() < 36
    same = [np.asarray(data.items)[0, 1] + 10 == np.asarray(data.items)[0, 4] for data in kept]
    assert np.mean(np.all(same, axis=1)) < 0.1  # another element has another draw


def test_members_without_rows_and_without_kept_rows_stay():
    frame = table()
    assert grouped(frame[frame.who != 5]).mask.shape[0] == 6
    data = grouped(frame[frame.who != 5], members=np.arange(8)[::-1])
    assert elements.elements_of_users(data).tolist()[5::2] == [0, 0]
    dropped = grouped(frame, kept=(frame.who != 5).to_numpy())
    jax.tree.map(
        np.testing.assert_array_equal,
        dropped.items,
        grouped(frame[frame.who != 5], members=np.arange(7)).items,
    )
    for members, name in ((np.arange(3), "users"), ([1, 1, 2], "members")):
        with pytest.raises(ValueError, match=f"^{name} must be"):
            grouped(frame, members=members)


def test_random_order_moves_users_whole():
    frame = table()
    sorted_, shuffled = grouped(frame, 2), grouped(frame, 2, order="random")
    place = [
        next(v for v in range(7) if np.array_equal(shuffled.items["x"][v], sorted_.items["x"][u]))
        for u in range(7)
    ]
    assert sorted(place) == list(range(7))
    assert place != sorted(place)


def test_units_are_user_major():
    data = grouped(table(), 3)
    flat = elements.as_units(data)
    assert users.num_users(flat) == 7 * K
    for user, slot in itertools.product(range(7), range(K)):
        np.testing.assert_array_equal(flat.items["x"][user * K + slot], data.items["x"][user, slot])
        np.testing.assert_array_equal(flat.mask[user * K + slot], data.mask[user, slot])
    whole = ElementData(jnp.ones((3, 2, 4)))
    assert elements.as_units(whole).mask is None
    assert elements.elements_of_users(whole).tolist() == [2, 2, 2]


def refusals():
    who, element, x = np.array([1, 1, 2]), np.array([0, 3, 5]), np.zeros((3, 2), np.float32)
    good = {
        "key": KEY,
        "users": who,
        "elements": element,
        "rows": x,
        "num_elements": K,
        "items_per_element": 2,
    }
    bad = {
        "key": (0, None),
        "users": (np.array([1.0, np.nan, 2.0]), who[:2], who[:, None]),
        "elements": (
            element.astype(float),
            element[:2],
            "x",
            None,
            [0, -1, 1],
            [0, 6, 1],
            [True] * 3,
        ),
        "rows": (x[:2], {}, np.array(["a"] * 3)),
        "num_elements": (0, 2.5, True, None, 2**31),
        "items_per_element": (0, 2.5, True),
        "elements_per_user": (0, K + 1, 1.5),
        "kept": (np.ones(2, bool), np.ones(3)),
        "keep": ("last", None),
        "order": ("given", None),
    }
    return good, [(name, value) for name, values in bad.items() for value in values]


def test_bad_arguments_are_refused_by_name():
    good, bad = refusals()
    for name, value in bad:
        said = "users|rows" if name == "users" and np.shape(value) == (2,) else name
        with pytest.raises(ValueError, match=f"^({said}) must be") as refused:
            elements.from_rows(**{**good, name: value})
        assert "-1" not in str(refused.value)
    for function in (
        elements.num_users,
        elements.num_slots,
        elements.as_units,
        elements.elements_of_users,
    ):
        for data in (
            None,
            ElementData(jnp.ones((2, 3))),
            ElementData(jnp.ones((2, 3, 4)), jnp.ones((2, 3, 4))),
        ):
            with pytest.raises(ValueError, match=r"^data"):
                function(data)


def instance(mask_share=0.6):
    rng = np.random.default_rng(1)
    features = rng.normal(size=(5, 4, 3, 2)).astype(np.float32)
    labels = rng.integers(0, 2, (5, 4, 3)).astype(np.float32)
    mask = rng.random((5, 4, 3)) < mask_share
    mask[1] = False
    return ElementData(Example(jnp.asarray(features), jnp.asarray(labels)), jnp.asarray(mask))


def by_hand(params, data):
    """NumPy, item by item."""
    (features, labels), mask = data
    total = []
    for user in range(len(labels)):
        of_user = 0.0
        for slot in range(labels.shape[1]):
            own = [
                np.logaddexp(0.0, m := np.float64(np.asarray(features[user, slot, i]) @ params))
                - float(labels[user, slot, i]) * m
                for i in range(labels.shape[2])
                if mask[user, slot, i]
            ]
            of_user += np.mean(own) if own else 0.0
        total.append(of_user)
    return np.mean(total)


def test_the_loss_is_the_sum_of_means_over_elements():
    data, params = instance(), np.array([0.5, -1.0])
    objective = losses.logistic(1e3)
    loss = jax.jit(elements.mean_element_loss(objective))
    np.testing.assert_allclose(loss(jnp.asarray(params), data), by_hand(params, data), rtol=1e-6)
    # An item that is there twice counts as it did.
    doubled = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf], axis=2), data)
    np.testing.assert_allclose(loss(params, doubled), loss(params, data), rtol=1e-6)
    # One element: the mean over users of their means. One item an element: the plain sum.
    flat = jax.tree.map(lambda leaf: leaf.reshape(5, 1, 12, *leaf.shape[3:]), data)
    one = users.UserData(*jax.tree.map(lambda leaf: leaf[:, 0], tuple(flat)))
    np.testing.assert_allclose(
        loss(params, flat), jax.jit(users.mean_loss(objective))(params, one), rtol=1e-6
    )
    single = jax.tree.map(lambda leaf: leaf.reshape(5, 12, 1, *leaf.shape[3:]), data)
    each = jax.vmap(jax.vmap(jax.vmap(objective.loss, (None, 0)), (None, 0)), (None, 0))
    plain = np.sum(np.asarray(jax.jit(each)(params, data.items)) * np.asarray(data.mask)) / 5
    np.testing.assert_allclose(loss(params, single), plain, rtol=1e-5)


def test_the_gradient_is_the_sum_of_those_of_units():
    data, params = instance(), np.float32([0.5, -1.0])
    objective = losses.logistic(1e3)
    whole = jax.jit(jax.grad(elements.mean_element_loss(objective)))(params, data)
    units = elements.as_units(data)
    each = jax.jit(jax.vmap(jax.grad(users.user_loss(objective)), (None, 0, 0)))
    slopes = np.asarray(each(params, *units))
    np.testing.assert_allclose(whole, slopes.sum(axis=0) / elements.num_users(data), atol=1e-6)
    empty = ~np.asarray(units.mask).any(axis=1)
    assert empty.sum() >= 4
    assert not slopes[empty].any()
