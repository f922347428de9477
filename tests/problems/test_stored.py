"""Rows from disk are those of the array, whatever is asked; files that are none, or are cut, are refused."""

import copy
import gc
import os
import pickle

import jax
import numpy as np
import polars
import pytest

from dpsco_jax.problems import StoredUsers, parquet
from dpsco_jax.problems.objective import Example
from tests.problems import saved

USERS = 50
FEATURES = np.random.default_rng(0).normal(size=(USERS, 2, 3)).astype(np.float32)
LABEL = np.arange(2.0 * USERS, dtype=np.float32).reshape(USERS, 2)
MASK = LABEL % 3 > 0


def _stored(folder, **settings):
    paths = saved(folder, features=FEATURES, label=LABEL, mask=MASK)
    return StoredUsers(Example(paths["features"], paths["label"]), paths["mask"], **settings)


ASKED = ([], [0], [49], [7, 3, 3, 48, 0, 4, 5, 6], list(range(50)), [10, 11, 12, 20, 21], [5, 5, 5])


@pytest.mark.parametrize("numbers", ASKED, ids=str)
@pytest.mark.parametrize("way", ["file", "map", "array"])
def test_rows_are_those_of_the_array_in_the_order_asked_for(tmp_path, numbers, way):
    wanted = np.asarray(numbers, np.int32)
    paths = saved(tmp_path, features=FEATURES, label=LABEL, mask=MASK)
    given = {
        "file": paths,
        "map": {name: np.load(path, mmap_mode="r") for name, path in paths.items()},
        "array": {"features": FEATURES, "label": LABEL, "mask": MASK},
    }[way]
    data = StoredUsers(Example(given["features"], given["label"]), given["mask"])
    found = data.read(wanted)
    np.testing.assert_array_equal(found.items.features, FEATURES[wanted])
    np.testing.assert_array_equal(found.items.label, LABEL[wanted])
    np.testing.assert_array_equal(found.mask, MASK[wanted])
    assert (data.num_users, data.items.features.shape) == (USERS, FEATURES.shape)
    assert jax.tree.leaves(data) == [data]  # no tree that a compiled program could look into


@pytest.mark.parametrize("numbers", [[-1], [USERS], [[1]], [1.5], [True]], ids=str)
def test_there_is_no_such_user(tmp_path, numbers):
    with pytest.raises(ValueError, match="numbers must"):
        _stored(tmp_path).read(np.asarray(numbers))


def test_files_that_are_none_or_cut_or_of_other_sizes_are_refused(tmp_path):
    paths = saved(tmp_path, features=FEATURES, label=LABEL)
    text = tmp_path / "text.npy"
    text.write_text("no array")
    cut = tmp_path / "cut.npy"
    cut.write_bytes((tmp_path / "features.npy").read_bytes()[:-4])
    long = tmp_path / "long.npy"
    long.write_bytes((tmp_path / "features.npy").read_bytes() + b"1234")
    turned = tmp_path / "turned.npy"
    np.save(turned, np.asfortranarray(FEATURES))
    for bad in (text, cut, long, turned, FEATURES[:-1], FEATURES[0], 7, FEATURES.tolist()):
        with pytest.raises(ValueError, match="items must"):
            StoredUsers(Example(bad, paths["label"]))
    wide = FEATURES.astype(np.float64), FEATURES.astype(complex), FEATURES.astype(str)
    for bad in (*wide, FEATURES.astype(object), FEATURES.astype(">f4")):
        with pytest.raises(ValueError, match="numbers as JAX holds them"):
            StoredUsers(Example(bad, paths["label"]))
    for bad in (MASK[:-1], MASK.astype(np.float32), MASK[:, 0]):
        with pytest.raises(ValueError, match="mask must"):
            StoredUsers(Example(FEATURES, LABEL), bad)
    for bad in ({"block_users": 0}, {"prefetch": 0}, {"prefetch": 1.5}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            StoredUsers(Example(FEATURES, LABEL), **bad)
    with pytest.raises(FileNotFoundError):
        StoredUsers(Example("/no/such/file.npy", LABEL))


@pytest.mark.parametrize("way", ["file", "map", "view"])
def test_a_file_that_changes_is_noticed(tmp_path, way):
    data = _stored(tmp_path)
    if way != "file":
        rows = np.load(tmp_path / "features.npy", mmap_mode="r")
        # A view of a map is no map any more, but lies in its file all the same.
        data = StoredUsers(rows if way == "map" else np.asarray(rows)[1:].reshape(-1, 1, 6))
    data.require_same()
    np.save(tmp_path / "features.npy", 2 * FEATURES)
    with pytest.raises(ValueError, match="must not change"):
        data.require_same()


def test_a_file_that_is_cut_gives_no_rows(tmp_path):
    data = _stored(tmp_path)
    path = tmp_path / "features.npy"
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 100)
    assert data.read(np.array([0])).items.features[0, 0, 0] == FEATURES[0, 0, 0]
    with pytest.raises(ValueError, match="cut file"):
        data.read(np.arange(USERS))


def test_a_byte_of_a_mask_is_true_or_false(tmp_path):
    """Programs that are compiled take a byte of 2 for both, and a user's weight is then no sum of items."""
    raw = np.array([[0, 1], [2, 3], [255, 254]], np.uint8)
    np.save(tmp_path / "mask.npy", raw.view(bool))
    for mask in (tmp_path / "mask.npy", raw.view(bool)):
        found = StoredUsers(FEATURES[:3], mask).read(np.arange(3)).mask
        np.testing.assert_array_equal(found.view(np.uint8), [[0, 1], [1, 1], [1, 1]])


def test_data_are_told_apart_by_what_is_in_them(tmp_path):
    for name, rows in (("a", FEATURES), ("b", FEATURES + 1)):
        np.save(tmp_path / f"{name}.npy", rows)
        os.utime(tmp_path / f"{name}.npy", (1, 1))  # as unpacked from an archive
    first, other = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "ab")
    changed = np.load(tmp_path / "a.npy", mmap_mode="c")
    changed[7] = 0
    pairs = (
        (FEATURES, FEATURES + 1),
        (tmp_path / "a.npy", tmp_path / "b.npy"),
        (first, other),
        (np.load(tmp_path / "a.npy", mmap_mode="c"), changed),
        (first[:25], first[25:]),
        (np.asarray(first)[:25], np.asarray(first)[25:]),
        (first[:, :1].reshape(-1, 1, 3), first[:, 1:].reshape(-1, 1, 3)),
    )
    for one, another in pairs:
        assert StoredUsers(one).state() == StoredUsers(one).state()
        assert StoredUsers(one).state() != StoredUsers(another).state()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_a_copy_reads_the_same_file(tmp_path, again):
    """Also when the first has closed its own, and another file has got its number."""
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.full((9, 1, 1), ord(name), np.float32))
    first = StoredUsers(tmp_path / "a.npy")
    data = again(first)
    del first
    gc.collect()
    opened = [StoredUsers(tmp_path / "b.npy") for _ in range(3)]
    assert data.read(np.arange(3)).items.ravel().tolist() == [ord("a")] * 3
    assert opened[0].num_users == 9


def test_another_form_is_made_of_each_block():
    data = StoredUsers(FEATURES, block_users=4)
    longer = data.mapped(lambda block: block.items[:, 0]).mapped(lambda rows: rows[:, :2] * 2)
    assert longer.shapes.shape == (USERS, 2)
    np.testing.assert_array_equal(longer.form(longer.read(np.array([3]))), 2 * FEATURES[3:4, 0, :2])
    assert data.shapes.items.shape == FEATURES.shape


def test_columns_of_parquet_are_the_arrays(tmp_path):
    path = tmp_path / "users.parquet"
    lists = {"x": FEATURES.reshape(USERS, 6), "y": LABEL, "m": MASK}
    frame = polars.DataFrame(lists).with_columns(polars.col("y").arr.to_list())
    frame.with_columns(one=polars.Series(LABEL[:, 0])).write_parquet(path, row_group_size=16)
    columns = {
        name: parquet.column(path, name, shape=shape, group_rows=16)
        for name, shape in (("x", (2, 3)), ("y", (2,)), ("m", (2,)))
    }
    data = StoredUsers(Example(columns["x"], columns["y"]), columns["m"])
    for numbers in ASKED:
        wanted = np.asarray(numbers, np.int64)
        found = data.read(wanted)
        np.testing.assert_array_equal(found.items.features, FEATURES[wanted])
        np.testing.assert_array_equal(found.items.label, LABEL[wanted])
        np.testing.assert_array_equal(found.mask, MASK[wanted])
    one = parquet.column(path, "one", shape=(1,), group_rows=7)
    np.testing.assert_array_equal(one.take(np.arange(USERS))[:, 0], LABEL[:, 0])
    for bad in ({"name": "z"}, {"shape": (3, 3)}, {"shape": 7}, {"group_rows": 0}, {"name": 7}):
        given = {"path": path, "name": "x", "shape": (2, 3)} | bad
        with pytest.raises(ValueError, match=next(iter(bad))):
            parquet.column(**given)
    frame.head(49).write_parquet(path)
    with pytest.raises(ValueError, match="must not change"):
        data.read(np.array([0, 40]))
    ragged = polars.DataFrame({"x": [[1.0, 2.0]] * 20 + [[1.0]] * 20, "n": [1.0] * 39 + [None]})
    ragged.write_parquet(path)
    for name, wrong in (("x", "shape must"), ("n", "column 'n' must be without nulls")):
        rows = parquet.column(path, name, shape=(2,) if name == "x" else (1,), group_rows=16)
        with pytest.raises(ValueError, match=wrong):
            rows.take(np.arange(40))
    for wrong in (7, __file__, tmp_path):
        with pytest.raises(ValueError, match="path must"):
            parquet.column(wrong, "x", shape=(1,))


@pytest.mark.parametrize(
    "rows",
    [
        [[1.0, 2.0], [3.0, 4.0, 5.0], [6.0]],
        [[1.0, 2.0], [], [5.0, 6.0, 7.0, 8.0]],
        [[1.0, 2.0], [3.0, 4.0], [5.0]],
        [[[1.0, 2.0]], [[3.0, 4.0]], [[5.0], [6.0]]],
        [[[1.0], [2.0]], [[3.0], [4.0]], [[5.0, 6.0], []]],
        [[[1.0], [2.0]], [[3.0, 4.0]], [[5.0], [6.0]]],
        [[1.0, 2.0], None, [3.0, 4.0]],
    ],
)
@pytest.mark.parametrize("group", [1, 2, 3])
def test_numbers_of_a_column_stay_with_their_user_or_are_refused(tmp_path, rows, group):
    path = str(tmp_path / "rows.parquet")
    polars.DataFrame({"x": rows}).cast(_floats(rows[0])).write_parquet(path)
    column = parquet.column(path, "x", shape=(1, 2), group_rows=group)
    with pytest.raises(ValueError, match=r"(column 'x'|shape) must be .*not shown"):
        column.take(np.arange(3))


def _floats(row):
    inner = polars.List(polars.Float32)
    return {"x": polars.List(inner) if isinstance(row[0], list) else inner}


def test_a_copy_of_a_column_holds_no_numbers(tmp_path):
    path, secret = str(tmp_path / "rows.parquet"), np.float32(7654.321)
    polars.DataFrame({"x": [secret, 1.0]}, {"x": polars.Float32}).write_parquet(path)
    column = parquet.column(path, "x", shape=(1,))
    rows = column.take(np.arange(2))
    written = pickle.dumps(column)
    assert secret.tobytes() not in written
    np.testing.assert_array_equal(pickle.loads(written).take(np.arange(2)), rows)
