"""Masked arrays and integers of 64 bits, at every door through which arrays of a user come in."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

from dpsco_jax import _given
from dpsco_jax.mechanisms import (
    additive,
    clustered_histogram,
    heavy_hitters,
    histograms,
    robust_point,
)
from dpsco_jax.mechanisms.winsorized import winsorized_mean
from dpsco_jax.oracles import chunks, ghost, linear, resque
from dpsco_jax.problems import elements, kmeans, labels, losses, partition, reference, tables, users
from dpsco_jax.problems import objective as objectives
from dpsco_jax.problems.element_distance import element_distance
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example, OneHot
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.problems.users import UserData
from dpsco_jax.transforms import restart
from tests.solvers.test_entry import BY_NAME

LOSS = losses.softmax(1.0, 3, ridge=0.1)
ROWS = np.zeros((3, 1, 2), np.float32)
PUBLIC = partition.Partition(np.eye(2), public=True)


def key():
    """Each call uses its own."""
    return jax.random.key(0)


def column(values):
    """Users with one item each, which is such a number."""
    return UserData(values.reshape(3, 1))


def labelled(values):
    return UserData(Example(ROWS, values.reshape(3, 1)))


def one_hot(values):
    return UserData(Example(OneHot(values.reshape(3, 1, 1)), np.zeros((3, 1), np.float32)))


def by_mesh(items):
    mesh = jax.make_mesh((1,), ("users",), axis_types=(jax.sharding.AxisType.Auto,))
    return users.UserData.from_process_local(mesh, items)


def table(values):
    return np.ma.stack([values, values], 1) if np.ma.isMA(values) else np.stack([values, values], 1)


def in_elements(values):
    return ElementData(values.reshape(3, 1, 1))


def total(values):
    return chunks.sum_over_users(lambda rows, counted, _: jnp.sum(rows), values, None, 2)


def ghosts(values):
    def loss(params, example):
        return jnp.sum(params) * example

    return ghost.clipped_sum(loss, jnp.ones(2), values, 1.0)


READ = {
    "examples of ghost sums": ghosts,
    "rows of tables": lambda x: tables.from_rows(key(), np.arange(3), x, 1),
    "a leaf of rows of tables": lambda x: tables.from_rows(key(), np.arange(3), {"a": x}, 1),
    "rows of elements": lambda x: elements.from_rows(
        key(), np.arange(3), np.zeros(3, int), x, 1, 1
    ),
    "a process": by_mesh,
    "the number of users": lambda x: users.num_users(column(x)),
    "items of users": lambda x: users.items_per_user(column(x)),
    "a subset": lambda x: users.subset(column(x), np.arange(2)),
    "a split": lambda x: users.split_users(key(), column(x), 0.5),
    "a mean loss": lambda x: users.mean_loss(LOSS)(jnp.zeros((2, 3)), labelled(x)),
    "elements of users": lambda x: elements.elements_of_users(in_elements(x)),
    "units": lambda x: elements.as_units(in_elements(x)),
    "a mean loss of elements": lambda x: elements.mean_element_loss(LOSS)(
        jnp.zeros((2, 3)), ElementData(Example(ROWS[:, None], x.reshape(3, 1, 1)))
    ),
    "a distance of elements": lambda x: element_distance(in_elements(x), in_elements(x)),
    "a reference": lambda x: reference.solve(losses.logistic(1.0, ridge=0.1), labelled(x), 2),
    "a linear oracle": lambda x: linear.prepare(LOSS.linear_model, labelled(x), 2),
    "a linear oracle, one-hot": lambda x: linear.prepare(LOSS.linear_model, one_hot(x), 2),
    "a query of a user": lambda x: resque.sampled_user_gradient(LOSS, labelled(x)),
    "a sum over users": total,
    "a map over users": lambda x: chunks.map_over_users(lambda rows, *_: rows, x, None, 2),
}
COMPARED = {
    "users of tables": lambda x: tables.from_rows(key(), x, np.zeros(3), 1),
    "users of elements": lambda x: elements.from_rows(
        key(), x, np.zeros(3, int), np.zeros(3), 1, 1
    ),
    "members": lambda x: elements.from_rows(
        key(), np.array([0, 2, 2]), np.zeros(3, int), np.zeros(3), 1, 1, members=x
    ),
    "frequencies": lambda x: histograms.frequencies(x[:, None], 3),
    "users of counts": lambda x: heavy_hitters.heavy_hitter_counts(key(), x, x, 3, 3, 1.0),
    "users of a histogram": lambda x: clustered_histogram.project_clusters(
        x, np.arange(3), np.ones(3), np.zeros(3, int), 1.0
    ),
    "counts of a histogram": lambda x: clustered_histogram.project_clusters(
        np.arange(3), np.arange(3), x, np.zeros(3, int), 1e12
    ),
    "columns": lambda x: objectives.column_indices(OneHot(x), 3),
    "labels": lambda x: labels.check_labels(losses.huber(1.0, 1.0), labelled(x)),
    "users of a block": lambda x: users.subset(column(np.zeros(3)), x),
}
MORE = {
    "elements": lambda x: elements.from_rows(key(), np.arange(3), x, np.zeros(3), 3, 1),
    "stored users": lambda x: StoredUsers(x.astype(np.float32).reshape(3, 1)),
    "rows of a partition": lambda x: partition.assign_elements(PUBLIC, table(x)),
    "centres of a partition": lambda x: partition.Partition(table(x), public=True),
    "rows of clusters": lambda x: kmeans.kmeans_pp(key(), table(x), 2, public=True),
}
KEPT = {
    "kept rows": lambda x: tables.from_rows(key(), np.arange(3), np.zeros(3), 1, kept=x),
    "kept rows of elements": lambda x: elements.from_rows(
        key(), np.arange(3), np.zeros(3, int), np.zeros(3), 1, 1, kept=x
    ),
    "a mask": lambda x: users.items_per_user(UserData(ROWS, x[:, None])),
    "a mask of frequencies": lambda x: histograms.frequencies(np.zeros((3, 1), int), 2, x[:, None]),
    "a mask of labels": lambda x: labels.check_labels(
        LOSS, UserData(Example(ROWS, np.zeros((3, 1))), x[:, None])
    ),
    "a stored mask": lambda x: StoredUsers(ROWS, x[:, None]),
}
HIDDEN = np.array([False, True, False])


@pytest.mark.parametrize("door", READ | COMPARED | MORE)
def test_masked_arrays_are_refused(door):
    """By their type: what is masked, and whether anything is, plays no part. All were read as without."""
    call = (READ | COMPARED | MORE)[door]
    call(np.array([0, 1, 2]))
    said = set()
    for hidden in (HIDDEN, ~HIDDEN, False):
        with pytest.raises(ValueError, match="must be without a mask of NumPy") as refusal:
            call(np.ma.array([0, 1, 2], mask=hidden))
        said.add(str(refusal.value))
    assert len(said) == 1


@pytest.mark.parametrize("door", KEPT)
def test_masked_masks_are_refused(door):
    KEPT[door](np.array([True, False, True]))
    with pytest.raises(ValueError, match="must be without a mask of NumPy"):
        KEPT[door](np.ma.array([True, False, True], mask=HIDDEN))


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_no_solver_reads_what_is_masked_or_wraps(name):
    row = BY_NAME[name]
    with jax.enable_x64(row.float64):
        plan, data = row.plan(), row.data()
        labels = data.items.label
        hidden = np.ma.array(labels, mask=np.zeros(labels.shape, bool))
        wide = np.full(labels.shape, 2**32 + 1)
        for label, said in ((hidden, "without a mask"), (wide, "integers in .* which JAX holds")):
            if label is hidden or not row.float64:
                other = data._replace(items=data.items._replace(label=label))
                with pytest.raises(ValueError, match=f"^data.* must be {said}"):
                    row.solve(key(), plan, other)


# In 32 bits 0, 1 and 2, each in its own way.
WIDE = [np.array([0, 2**32 + 1, 2]), np.array([0, 1 - 2**32, 2]), np.uint64([0, 2**63 + 1, 2])]


@pytest.mark.parametrize("wide", WIDE, ids=str)
@pytest.mark.parametrize("door", READ)
def test_integers_that_jax_does_not_hold_are_refused(door, wide):
    with pytest.raises(ValueError, match=r"must be integers in \[.*\], which JAX holds") as refusal:
        READ[door](wide)
    assert "42949" not in str(refusal.value).replace("4294967295", "")


@pytest.mark.parametrize("wide", WIDE, ids=str)
def test_integers_out_of_range_count_as_nothing_however_wide(wide):
    narrow, there = np.array([0, -1, 2]), np.array([1.0, 0.0, 1.0])
    np.testing.assert_array_equal(histograms.frequencies(wide[None], 3)[0], there / 2)
    found = heavy_hitters.heavy_hitter_counts(key(), np.arange(3), wide, 3, 3, 0.0)
    np.testing.assert_array_equal(found, there)
    np.testing.assert_array_equal(objectives.column_indices(OneHot(wide), 3), [0, 3, 2])
    for who, what in ((wide, narrow), (np.arange(3), wide)):
        counts = clustered_histogram.project_clusters(who, what, np.ones(3), np.zeros(3, int), 9.0)
        assert float(jnp.sum(counts.counts)) == 2.0
    data = tables.from_rows(key(), wide, np.arange(3.0, dtype=np.float32), 1)
    assert users.num_users(data) == 3
    with pytest.raises(ValueError, match=r"data\.items\.label must be"):
        labels.check_labels(LOSS, labelled(wide))


def test_a_size_that_narrow_integers_do_not_hold_is_no_number_below_it():
    """In int8 the 200 that stands for nobody was -56, and counted."""
    who = np.int8([0, 3, -1])
    np.testing.assert_array_equal(_given.inside(who, 200), [0, 3, 200])
    found = clustered_histogram.project_clusters(who, who, np.ones(3), np.zeros(200, int), 9.0)
    assert float(jnp.sum(found.counts)) == 2.0
    np.testing.assert_array_equal(found.users[2:], [clustered_histogram.MOST_USERS])


def test_a_count_of_64_bits_is_that_count():
    counts = np.array([2**32 + 3, 1, 1])
    found = clustered_histogram.project_clusters(
        np.arange(3), np.zeros(3, int), counts, np.zeros(1, int), 2.0**40
    )
    np.testing.assert_array_equal(np.sort(found.counts), np.sort(counts.astype(np.float32)))


def test_numbers_of_64_bits_are_rounded_to_floats_and_not_wrapped():
    far = np.array([2**32 + 3, 2**33, 5])
    wanted = far.astype(np.float32)
    np.testing.assert_array_equal(_given.floats_of(far), wanted)
    np.testing.assert_array_equal(additive.gaussian(key(), far, 0.0), wanted)
    np.testing.assert_array_equal(robust_point.aggregate_points(far[:2, None]), wanted[:1])
    mean = winsorized_mean.winsorized_mean_1d(key(), np.full(50, 2**33), 1e6, 2.0**20, 2.0**34)
    assert float(mean) == pytest.approx(2.0**33, rel=1e-3)


def test_stages_are_not_wrapped():
    with pytest.raises(ValueError, match="lengths must be"):
        restart.restart_stages(lambda stage: optax.sgd(0.1), np.array([2**32 + 1]), lambda s, p: p)


def test_what_jax_holds_passes():
    least, most = -(2**31), 2**31 - 1
    for good in ([least, most], np.int32([least, most]), np.uint32([2**32 - 1]), np.zeros(0, int)):
        _given.require_held("x", np.asarray(good))
    _given.require_held("x", {"a": np.zeros(2), "b": None, "c": jnp.arange(3), "d": np.int64(7)})
    with jax.enable_x64(True):
        _given.require_held("x", WIDE[0])
    jax.jit(lambda x: _given.require_held("x", x))(WIDE[0])  # traced: wrapped before
    with pytest.raises(ValueError, match="x must be"):
        _given.require_held("x", np.int64(2**31))
    for listed in ([np.ma.array([1.0], mask=[True])], [1.0, np.ma.masked]):
        with pytest.raises(ValueError, match="x must be without a mask"):
            _given.plain("x", listed)


@pytest.mark.parametrize("make", [pd.Series, lambda x: pd.DataFrame({"a": x}), np.asarray])
def test_integers_of_columns_are_not_wrapped(make):
    wide = make(np.array([2**32 + 1, 2, 3]))
    for door in ("rows of tables", "a leaf of rows of tables", "rows of elements"):
        with pytest.raises(ValueError, match="rows must be integers in"):
            READ[door](wide)
    held = tables.from_rows(key(), np.arange(3), make(np.array([2**24 + 1, 2, 3])), 1)
    assert sorted(np.ravel(held.items).tolist()) == [2, 3, 2**24 + 1]


@pytest.mark.parametrize("values", [[2**24 + 1, 3, 4], [2**24 + 1, 3, None]])
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_that_could_have_nulls_are_refused_as_rows_by_their_dtype(library, values):
    polars = pytest.importorskip("polars")
    column = pd.Series(values, dtype="Int64") if library == "pandas" else polars.Series(values)
    tables_of = [column, column.to_frame()] if library == "pandas" else [column]
    for rows in tables_of:
        with pytest.raises(ValueError, match="rows must be of NumPy's dtypes"):
            tables.from_rows(key(), np.arange(3), rows, 1)


COUNTED = {
    "users": lambda x: heavy_hitters.heavy_hitter_counts(key(), x, np.arange(2), 2, 2, 1.0),
    "items": lambda x: heavy_hitters.heavy_hitter_counts(key(), np.arange(2), x, 2, 2, 1.0),
    "categories": lambda x: histograms.frequencies(x, 2),
    "data": lambda x: users.mean_loss(LOSS)(jnp.zeros((2, 3)), UserData(pd.Series(list(x)))),
}


@pytest.mark.parametrize("door", COUNTED)
def test_columns_and_lists_are_no_arrays_and_are_not_shown(door):
    polars = pytest.importorskip("polars")
    ids = [7654321, 1]
    many = [ids, set(ids), tuple(ids), pd.Series(ids), polars.Series(ids), pd.DataFrame({"a": ids})]
    for values in many:
        with pytest.raises(ValueError, match=f"{door}.* must be ") as raised:
            COUNTED[door](values)
        assert "7654321" not in str(raised.value)
