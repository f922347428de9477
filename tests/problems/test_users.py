"""Grouping by user against pandas; one user's rows never decide about another's."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from dpsco_jax.problems import elements, losses, tables, users
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData

COUNTS = {7: 1, 3: 5, 11: 12, 5: 3}


def frame_of(counts):
    rng = np.random.default_rng(0)
    rows = [(user, 1000.0 * user + i, float(i % 2)) for user, n in counts.items() for i in range(n)]
    return pd.DataFrame(rows, columns=["who", "x", "y"]).iloc[rng.permutation(len(rows))]


def grouped(frame, bound=None, seed=0, order="sorted", keep="random"):
    rows = Example(frame[["x", "y"]].to_numpy(np.float32), frame["y"].to_numpy(np.float32))
    key = jax.random.key(seed)
    return tables.from_rows(key, frame["who"].to_numpy(), rows, bound, order=order, keep=keep)


def held(data, user):
    """The ``x`` of the items of a user."""
    return np.asarray(data.items.features)[user][np.asarray(data.mask)[user], 0].tolist()


def test_all_rows_are_grouped_by_user_in_order():
    frame = frame_of(COUNTS)
    data = grouped(frame)
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
    data = grouped(frame, bound=4)
    assert data.items.label.shape == (4, 4)
    for position, user in enumerate(sorted(COUNTS)):
        everything = frame[frame.who == user].x.tolist()
        kept = held(data, position)
        assert len(kept) == min(4, COUNTS[user])
        assert kept == [x for x in everything if x in kept]
    again = grouped(frame, bound=4)
    jax.tree.map(np.testing.assert_array_equal, data, again)
    assert held(grouped(frame, bound=4, seed=1), 3) != held(data, 3)


def test_every_item_is_kept_equally_often():
    frame = frame_of({1: 10})
    kept = [held(grouped(frame, bound=3, seed=seed), 0) for seed in range(300)]
    _, counts = np.unique(np.concatenate(kept), return_counts=True)
    assert len(counts) == 10
    # 300 draws of 3 of 10: mean 90, standard deviation 8.
    assert np.abs(counts - 90).max() < 36


def test_replacing_a_user_changes_that_user_only():
    first = grouped(frame_of(COUNTS), bound=4)
    frame = frame_of(COUNTS)
    others = [frame[frame.who != 5], frame_of({5: 9})]
    second = grouped(pd.concat(others[::-1]), bound=4)
    for position, user in enumerate(sorted(COUNTS)):
        if user != 5:
            assert held(first, position) == held(second, position)
    assert first.mask.shape == second.mask.shape


def test_split_is_a_partition_of_the_users():
    data = grouped(frame_of(dict.fromkeys(range(10), 2)))
    train, test = users.split_users(jax.random.key(3), data, 0.8)
    assert (users.num_users(train), users.num_users(test)) == (8, 2)
    both = [held(part, i) for part in (train, test) for i in range(users.num_users(part))]
    assert sorted(map(sorted, both)) == [[1000.0 * u, 1000.0 * u + 1] for u in range(10)]
    other, _ = users.split_users(jax.random.key(4), data, 0.8)
    assert not np.array_equal(other.items.features, train.items.features)
    for fraction in (1.5, -0.1, float("nan"), "0.5", None, True):
        with pytest.raises(ValueError, match="fraction"):
            users.split_users(jax.random.key(0), data, fraction)
    for key in (0, jax.random.PRNGKey(0)):
        with pytest.raises(ValueError, match="key"):
            users.split_users(key, data, 0.5)


def test_arrays_of_different_users_are_refused():
    """Rows and gathers beyond the end of the shorter one would be the last of it."""
    data = UserData(jnp.zeros((4, 2)), jnp.ones((3, 2), bool))
    pairs = UserData((jnp.zeros((4, 2)), jnp.zeros((3, 2))))
    for bad in (data, pairs):
        for asked in (
            users.num_users,
            users.items_per_user,
            lambda d: users.subset(d, jnp.arange(2)),
        ):
            with pytest.raises(ValueError, match="data must be arrays with one leading axis"):
                asked(bad)


def test_subsets_are_of_these_users():
    data = UserData(jnp.zeros((4, 2)))
    for place in (-1, 4, 2**31 - 1):
        with pytest.raises(ValueError, match=r"indices must be in \[0, 4\)"):
            users.subset(data, jnp.asarray([0, place]))


def test_subset_repeats_and_orders():
    data = grouped(frame_of(COUNTS))
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
    nobody = np.zeros((0, 2), np.float32)
    data = tables.from_rows(jax.random.key(0), np.zeros(0), nobody, None)
    assert (users.num_users(data), data.items.shape) == (0, (0, 0, 2))


def test_random_order_depends_on_the_key_alone():
    """All orders come equally often, and each user stays whole."""
    counts = {user: n for user, n in COUNTS.items() if user != 11}
    frame = frame_of(counts)
    seen = {}
    for seed in range(180):
        data = grouped(frame, bound=5, seed=seed, order="random")
        firsts = tuple(round(held(data, i)[0] // 1000) for i in range(3))
        seen[firsts] = seen.get(firsts, 0) + 1
        for i, user in enumerate(firsts):
            assert held(data, i) == frame[frame.who == user].x.tolist()
    # 180 draws of 6 orders: mean 30, standard deviation 5.
    assert len(seen) == 6
    assert max(abs(n - 30) for n in seen.values()) < 25


def test_the_kept_subsets_do_not_tell_the_order():
    """The order must not be drawn from the numbers of a subset: both are uniform and independent."""
    frame = frame_of({0: 2, 1: 2})
    table = np.zeros((2, 2))
    for seed in range(160):
        data = grouped(frame, bound=1, seed=seed, order="random")
        first = [held(data, i)[0] for i in range(2)]
        place = int(min(first) == first[0])  # whether user 0 is first
        kept = frame[frame.who == 0].x.tolist().index(min(first))
        table[place, kept] += 1
    # Four cells of mean 40 and standard deviation 5.5.
    assert np.abs(table - 40).max() < 27


def test_the_first_items_are_kept_on_request():
    frame = frame_of(COUNTS)
    data = grouped(frame, bound=4, keep="first")
    for position, user in enumerate(sorted(COUNTS)):
        assert held(data, position) == frame[frame.who == user].x.tolist()[:4]
    jax.tree.map(np.testing.assert_array_equal, data, grouped(frame, bound=4, keep="first", seed=5))


def test_a_user_whose_rows_are_all_left_out_stays():
    key, who = jax.random.key(0), np.array([2, 1, 2, 3])
    rows = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
    kept = np.array([True, False, True, True])
    data = tables.from_rows(key, who, rows, 2, kept=kept, order="sorted")
    np.testing.assert_array_equal(data.mask, [[False, False], [True, True], [True, False]])
    np.testing.assert_array_equal(data.items[..., 0], [[0, 0], [1, 3], [4, 0]])
    # The shape is that of the data in which nothing is left out.
    whole = tables.from_rows(key, who, rows, 2, order="sorted")
    assert whole.items.shape == data.items.shape


@pytest.mark.parametrize(
    ("who", "names"),
    [
        (np.array([2.5, 1.0, 2.5]), [1.0, 2.5]),
        (np.array(["b", "a", "b"]), ["a", "b"]),
        (np.array(["b", "a", "b"], object), ["a", "b"]),
        (np.array([True, False, True]), [False, True]),
        (np.array(["2020-02-01", "2020-01-01", "2020-02-01"], "datetime64[D]"), [0, 1]),
        (["b", "a", "b"], ["a", "b"]),
    ],
)
def test_identifiers_of_any_sortable_type(who, names):
    rows = np.arange(3.0, dtype=np.float32)
    data = tables.from_rows(jax.random.key(0), who, rows, None, order="sorted")
    np.testing.assert_array_equal(data.items, [[1, 0], [0, 2]])
    assert users.num_users(data) == len(names)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"users": np.zeros(3)}, "rows must be as many as users"),
        ({"users": np.zeros((2, 1))}, "users must be an array of one dimension"),
        ({"users": np.array([0.0, np.nan])}, "users must be present in every row"),
        ({"users": np.array(["a", None], object)}, "users must be present in every row"),
        ({"users": np.array(["a", np.nan], object)}, "users must be present in every row"),
        ({"users": np.array(["a", pd.NA], object)}, "users must be present in every row"),
        ({"users": np.array(["2020-01-01", "NaT"], "datetime64[D]")}, "users must be present"),
        ({"users": np.array(["a", 1], object)}, "users must be all numbers, or all of one"),
        ({"rows": np.array(["a", "b"])}, "rows must be arrays of real numbers"),
        ({"rows": np.array(["a", 1], object)}, "rows must be arrays of real numbers"),
        ({"rows": np.array([1j, 1.0])}, "rows must be arrays of real numbers"),
        ({"rows": np.float32(1.0)}, "rows must be as many as users"),
        ({"rows": {}}, "rows must be a tree of arrays"),
        ({"rows": {"a": np.zeros(2), "b": np.zeros(1)}}, "rows must be as many as users"),
        ({"max_items_per_user": 0}, "max_items_per_user must be an integer at least 1"),
        ({"max_items_per_user": -2}, "max_items_per_user must be an integer at least 1"),
        ({"max_items_per_user": 1.5}, "max_items_per_user must be an integer at least 1"),
        ({"max_items_per_user": True}, "max_items_per_user must be an integer at least 1"),
        ({"keep": "last"}, "keep must be one of random, first"),
        ({"order": None}, "order must be one of random, sorted"),
        ({"kept": np.ones(3, bool)}, "kept must be an array of booleans"),
        ({"kept": np.ones(2)}, "kept must be an array of booleans"),
        ({"key": 0}, "key must be a single typed key"),
    ],
)
def test_bad_rows_are_refused_by_name(changes, said):
    good = {
        "key": jax.random.key(0),
        "users": np.zeros(2),
        "rows": np.zeros(2, np.float32),
        "max_items_per_user": 1,
    }
    tables.from_rows(**good)
    with pytest.raises(ValueError, match=f"^{said}"):
        tables.from_rows(**good | changes)


class Person:
    """Has an order, but is equal to nobody."""

    def __init__(self, number):
        self.number = number

    def __lt__(self, other):
        return self.number < other.number


@pytest.mark.parametrize(
    "who",
    [
        [Person(1), Person(2), Person(1)],
        [frozenset([1]), frozenset([2]), frozenset([1])],  # by np.unique these are three users
        [{1}, {2}, {1}],
        [("a", 1), (1, "a"), ("a", 1)],
    ],
)
def test_users_in_no_order_are_refused(who):
    users = np.empty(3, object)
    users[:] = who
    with pytest.raises(ValueError, match="users must be values that can be sorted") as refusal:
        tables.from_rows(jax.random.key(0), users, np.zeros(3, np.float32), 1)
    assert refusal.value.__cause__ is None


@pytest.mark.parametrize("door", ["users", "rows", "kept", "elements", "a leaf of rows"])
def test_rows_of_another_order_are_refused(door):
    """By position they would be other people's."""
    index = [f"Rosebud {i}" for i in range(3)]
    given = {
        "users": pd.Series([1, 2, 1], index),
        "rows": {"x": pd.Series([1.0, 2.0, 3.0], index), "y": np.zeros(3)},
        "kept": pd.Series([True, True, True], index),
    }
    more = {"elements": pd.Series([0, 1, 0], index), "num_elements": 2, "items_per_element": 2}
    key = jax.random.key(0)

    def both(given, more):
        tables.from_rows(jax.random.clone(key), **given, max_items_per_user=2)
        elements.from_rows(jax.random.clone(key), **given, **more)

    both(given, more)
    both(given | {"rows": np.zeros(3), "kept": None}, more | {"elements": np.zeros(3, int)})
    if door == "elements":
        more["elements"] = more["elements"][::-1]
    elif door == "a leaf of rows":
        given["rows"]["y"] = pd.Series([1.0, 2.0, 3.0], index)[::-1]
    else:
        given[door] = jax.tree.map(lambda leaf: leaf[::-1], given[door])
    name = r"(rows|elements|kept) must be rows with the index of users, in its order"
    if door != "elements":
        with pytest.raises(ValueError, match=f"^{name}") as refusal:
            tables.from_rows(key, **given, max_items_per_user=2)
        assert "Rosebud" not in str(refusal.value)
    with pytest.raises(ValueError, match=f"^{name}"):
        elements.from_rows(key, **given, **more)


def test_how_many_items_are_kept_must_be_chosen():
    with pytest.raises(TypeError, match="max_items_per_user"):
        tables.from_rows(jax.random.key(0), np.zeros(2), np.zeros(2))


@pytest.mark.parametrize("kind", [np.int32, np.bool_, np.float16, np.float64, jnp.bfloat16])
def test_rows_of_any_real_dtype(kind):
    rows = np.asarray([1, 0, 1]).astype(kind)
    data = tables.from_rows(jax.random.key(0), [0, 0, 1], rows, 2, order="sorted")
    np.testing.assert_array_equal(np.asarray(data.items, np.float32), [[1, 0], [1, 0]])


APART = {
    "a text and a missing number": ["nan", float("nan")],
    "numbers beyond 2^63 and below 0": [2**63 + 1, 2**63 + 2, -1],
    "numbers beyond 2^53 and a float": [2**53 + 1, 2**53, 0.5],
    "numbers of NumPy": [np.int64(2**53 + 1), np.float64(2**53)],
    "texts that end in zeros": ["a", "a\0"],
}


@pytest.mark.parametrize("who", APART.values(), ids=APART)
@pytest.mark.parametrize("door", [tables, elements], ids=["tables", "elements"])
def test_people_in_a_list_are_no_one_elses_for_the_company_they_are_in(door, who):
    def users(who):
        rows = np.ones(len(who), np.float32)
        if door is tables:
            return tables.from_rows(jax.random.key(0), who, rows, 1).mask.shape[0]
        given = [np.zeros(len(who), int), rows, 1, 1]
        listed = elements.from_rows(jax.random.key(0), who, *given, members=who).mask.shape[0]
        assert listed == elements.from_rows(jax.random.key(0), who, *given).mask.shape[0]
        return listed

    if any(user != user for user in who):
        with pytest.raises(ValueError, match="users must be present"):
            users(who)
    else:
        assert users(who) == len(who)


@pytest.mark.parametrize(
    "who", [[1, "1"], ["True", True], [1, True], [np.datetime64(1, "ns"), np.datetime64(1, "us")]]
)
def test_people_of_several_kinds_are_refused(who):
    with pytest.raises(ValueError, match=r"users must be .*not shown"):
        tables.from_rows(jax.random.key(0), who, np.ones(2, np.float32), 1)


@pytest.mark.parametrize("missing", [float("nan"), None])
def test_missing_texts_of_any_length_are_missing_users(missing):
    who = np.array(["a", missing], np.dtypes.StringDType(na_object=missing))
    with pytest.raises(ValueError, match="users must be present"):
        tables.from_rows(jax.random.key(0), who, np.ones(2, np.float32), 1)
    whole = np.array(["a", "b", "a"], np.dtypes.StringDType(na_object=missing))
    data = tables.from_rows(jax.random.key(0), whole, np.ones(3, np.float32), 2, order="sorted")
    np.testing.assert_array_equal(data.mask, [[True, True], [True, False]])


def test_missing_members_are_refused():
    rows = np.ones(1, np.float32)
    with pytest.raises(ValueError, match="users must be present"):
        elements.from_rows(jax.random.key(0), ["a"], [0], rows, 1, 1, members=["a", float("nan")])


def test_members_are_compared_with_users_by_value_whatever_integers_hold_them():
    who, many = np.array([2**53 + 1, 2**53 + 1]), np.array([2**53, 2**53 + 1], np.uint64)
    rows = np.ones(2, np.float32)
    given = [jax.random.key(0), who, np.zeros(2, int), rows, 1, 2]
    data = elements.from_rows(*given, members=many, order="sorted")
    np.testing.assert_array_equal(data.mask, [[[False, False]], [[True, True]]])
