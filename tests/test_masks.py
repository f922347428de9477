"""Booleans whose bytes are not 0 and 1 count as NumPy counts them, in and out of compiled programs.

Bytes of 2 and 255 that are viewed as booleans are true to NumPy. XLA counts a byte of 2 as two in one place
and as none in another. Everything public that takes a mask is asked with such bytes, on the host, on a device
and as an argument of a compiled program, and must answer, bit for bit, as with bytes of 1.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import transforms
from dpsco_jax._checks import of_true_and_false
from dpsco_jax.geometry import block_norms, clipping
from dpsco_jax.mechanisms import histograms
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import calibrate_winsorized
from dpsco_jax.oracles import ghost, gradients, linear, unclipped
from dpsco_jax.privacy.audits import one_run
from dpsco_jax.privacy.concentrated.threshold_phase import ConcentratedReleases
from dpsco_jax.problems import elements, labels, losses, reference, tables, users
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.element_level import glm

USERS, ITEMS, DIM = 6, 2, 3
RAW = np.array([1, 0, 2, 255, 128, 1], np.uint8)
GRID = np.array([[1, 2], [0, 0], [255, 0], [1, 1], [3, 128], [0, 2]], np.uint8)
ROWS = np.random.default_rng(0).normal(size=(USERS, DIM)).astype(np.float32)
ITEM = Example(
    np.random.default_rng(1).normal(size=(USERS, ITEMS, DIM)).astype(np.float32),
    np.tile(np.array([1.0, -1.0], np.float32), (USERS, 1)),
)
LOGISTIC = losses.logistic(1.0)
POINT = jnp.full(DIM, 0.3)


def _of_aggregate(made):
    def total(mask):
        state = made.init(jnp.zeros(DIM))
        return made.update(jnp.asarray(ROWS), state, jnp.zeros(DIM), user_mask=mask)[0]

    return total


def _of_transform(make, rows=ROWS):
    def released(mask):
        made = make()
        mask = (
            jnp.resize(mask, len(rows))
            if isinstance(mask, jax.Array)
            else np.resize(mask, len(rows))
        )
        return made.update(jnp.asarray(rows), made.init(jnp.zeros(DIM)), user_mask=mask)[0]

    return released


def _of_oracle(oracle):
    return lambda mask: tuple(oracle(jax.random.key(0), POINT, UserData(ITEM, mask))[::2])


def _tested():
    releases = ConcentratedReleases(
        USERS, USERS, 2, "fresh", "weighted", NeighboringRelation.REPLACE_ONE,
        0.75, 1.0, 4.5, 4.0, 0.0, 0.1, 4.0, 1e-3,
    )  # fmt: skip
    return transforms.outlier_removed_mean(releases, 9.0, jax.random.key(0))


def _winsorized():
    releases = calibrate_winsorized(200, DIM, 1, 9.0, 1e-3, radius=1.0, bound=9.0)
    return transforms.winsorized_mean(releases, jax.random.key(0))


def _by_example(mask):
    def loss(w, example):
        return jnp.sum((example @ w - 1.0) ** 2)

    return ghost.clipped_sum(loss, POINT, jnp.asarray(ROWS), 1.0, counted=mask)


OF_USERS = {
    "clipped_sum": _of_aggregate(transforms.clipped_sum(1.0)),
    "clipped_sum in chunks": _of_aggregate(transforms.clipped_sum(1.0, microbatch_size=4)),
    "clipped_mean": _of_aggregate(transforms.clipped_mean(1.0, USERS)),
    "centred_clip": _of_aggregate(transforms.centred_clip(1.0, USERS)),
    "winsorized_mean": _of_transform(_winsorized, np.resize(ROWS, (200, DIM))),
    "outlier_removed_mean": _of_transform(_tested),
    "sum_of_clipped": lambda mask: clipping.sum_of_clipped(jnp.asarray(ROWS), 1.0, mask),
    "ghost.clipped_sum": _by_example,
    "concentration": lambda mask: concentrated_mean.concentration(
        jnp.asarray(ROWS), 2.0, user_mask=mask
    ),
    "block_norms": lambda mask: block_norms.block_norms(ROWS[:, 0], mask),
    "clip_blocks": lambda mask: block_norms.clip_blocks(ROWS[:, 0], mask, 0.5),
}
OF_ITEMS = {
    "frequencies": lambda mask: histograms.frequencies(
        np.arange(USERS * ITEMS).reshape(USERS, ITEMS) % 3, 3, mask
    ),
    "items_per_user": lambda mask: users.items_per_user(UserData(ITEM, mask)),
    "mean_loss": lambda mask: users.mean_loss(LOGISTIC)(POINT, UserData(ITEM, mask)),
    "elements_of_users": lambda mask: elements.elements_of_users(_elements(mask)),
    "mean_element_loss": lambda mask: elements.mean_element_loss(LOGISTIC)(POINT, _elements(mask)),
    "as_units": lambda mask: elements.as_units(_elements(mask)).mask,
    "gradients, rows": _of_oracle(
        gradients.per_user_gradients(gradients.user_gradient(LOGISTIC), 0.1)
    ),
    "gradients, sum": _of_oracle(
        gradients.clipped_gradient_sum(gradients.user_gradient(LOGISTIC), 0.1, chunk_size=4)
    ),
    "unclipped": _of_oracle(unclipped.mean_gradient(LOGISTIC, USERS)),
    "ghost": _of_oracle(ghost.clipped_gradient_sum(LOGISTIC, 0.1)),
    "linear": lambda mask: tuple(
        linear.clipped_gradient_sum(LOGISTIC.linear_model, 0.1)(
            jax.random.key(0),
            POINT,
            linear.prepare(LOGISTIC.linear_model, UserData(ITEM, mask), DIM),
        )[::2]
    ),
}
# What works on the host alone.
ON_HOST = {
    "padding_waste": lambda mask: users.padding_waste(UserData(ITEM, mask)),
    "user_gradients": lambda mask: glm.user_gradients(LOGISTIC, POINT, _elements(mask)),
    "reference": lambda mask: (
        reference.solve(losses.logistic(1.0, ridge=0.1), UserData(ITEM, mask), DIM).params
    ),
    "labels": lambda mask: labels.check_labels(LOGISTIC, UserData(ITEM, mask)),
    "from_rows": lambda mask: tables.from_rows(
        jax.random.key(0),
        np.arange(USERS * ITEMS) % 5,
        ROWS.repeat(ITEMS, 0),
        2,
        kept=np.asarray(mask).ravel(),
    ),
    "elements.from_rows": lambda mask: elements.from_rows(
        jax.random.key(0),
        np.arange(USERS * ITEMS) % 5,
        np.arange(USERS * ITEMS) % 2,
        ROWS.repeat(ITEMS, 0),
        num_elements=2,
        items_per_element=2,
        kept=np.asarray(mask).ravel(),
    ),
    "one_run": lambda mask: one_run.one_run_audit(
        np.arange(12.0), np.asarray(mask).ravel(), 6, 1e-2
    ),
}


def _elements(mask):
    """Users of two elements, each of one item."""
    data = UserData(ITEM, mask)
    return ElementData(*jax.tree.map(lambda x: x.reshape(USERS, ITEMS, 1, *x.shape[2:]), data))


def _same(found, wanted):
    jax.tree.map(np.testing.assert_array_equal, *map(_arrays, (found, wanted)))


def _arrays(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def _require_same_as_in_numpy(of, raw, compiled):
    dirty, clean = raw.view(bool), raw != 0
    assert np.asarray(jnp.asarray(dirty)).view(np.uint8).max() == 255
    wanted = of(clean)
    for mask in (dirty, jnp.asarray(dirty), np.broadcast_to(dirty, raw.shape)[::1]):
        _same(of(mask), wanted)
    if compiled:
        wanted = jax.jit(of)(clean)
        for mask in (dirty, jnp.asarray(dirty)):
            _same(jax.jit(of)(mask), wanted)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "winsorized_mean"))  # to compile
        for name in OF_USERS
    ],
)
def test_a_mask_of_users_counts_as_in_numpy(name):
    _require_same_as_in_numpy(OF_USERS[name], RAW, True)


@pytest.mark.parametrize("name", [*OF_ITEMS, *ON_HOST])
def test_a_mask_of_items_counts_as_in_numpy(name):
    _require_same_as_in_numpy((OF_ITEMS | ON_HOST)[name], GRID, name in OF_ITEMS)


def test_the_mask_of_a_sharded_array_stays_where_it_is():
    mesh = jax.make_mesh((1,), ("users",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("users"))
    dirty = jax.device_put(RAW.view(bool), where)
    found = of_true_and_false(dirty)
    assert found.sharding.is_equivalent_to(where, 1)
    np.testing.assert_array_equal(np.asarray(found).view(np.uint8), RAW != 0)
