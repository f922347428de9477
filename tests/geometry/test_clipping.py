"""The fused sum is the sum of the clipped rows, in one block, in many, and with a remainder."""

import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dpsco_jax.geometry import clipping, norms


@pytest.mark.parametrize("users", [0, 1, 16, 17, 50])
def test_it_is_the_sum_of_clipped_rows(users):
    keys = jax.random.split(jax.random.key(users), 3)
    rows = {
        "a": 3.0 * jax.random.normal(keys[0], (users, 4, 2)),
        "b": jax.random.normal(keys[1], (users,)).astype(jnp.float16),
    }
    counted = jax.random.bernoulli(keys[2], 0.7, (users,))
    if users > 1:
        rows["a"] = rows["a"].at[1, 2, 0].set(jnp.nan)
    found = jax.jit(clipping.sum_of_clipped)(rows, 1.5, counted)
    clipped = jax.jit(jax.vmap(lambda row: norms.clip_to_norm(row, 1.5)))(rows)
    for name, leaf in clipped.items():
        kept = np.asarray(leaf, np.float64)[np.asarray(counted)]
        assert found[name].dtype == jnp.float32
        np.testing.assert_allclose(found[name], kept.sum(axis=0), atol=1e-5)


def test_only_real_rows_are_clipped():
    """The norm is of real numbers: the imaginary part of a row would not count in it."""
    for wrong in (jnp.ones((3, 2), jnp.complex64), jnp.ones((3, 2), int)):
        for bound in (1.0, {"a": 1.0}):
            rows = {"a": wrong} if isinstance(bound, dict) else wrong
            with pytest.raises(ValueError, match="rows must be a tree of real"):
                clipping.sum_of_clipped(rows, bound, jnp.ones(3, bool))


def test_layers_without_entries():
    rows = {"a": jnp.ones((3, 2)), "b": {}}
    found = clipping.sum_of_clipped(rows, {"a": 1.0, "b": 2.0}, jnp.ones(3, bool))
    assert found["b"] == {}
    np.testing.assert_allclose(found["a"], 3 / np.sqrt(2), rtol=1e-5)


def _on_grid(rows, bound):
    """What accelerators add, run here."""
    everyone = jnp.ones(len(rows), bool)
    with mock.patch.object(lax, "platform_dependent", lambda *given, cpu, default: default(*given)):
        return clipping.split_sum_of_clipped(rows, bound, everyone)


def _exact(total):
    return np.asarray(total.high, np.float64) + np.asarray(total.low, np.float64)


def _rows_of_all_sizes(users, dim):
    rng = np.random.default_rng(users + dim)
    rows = rng.normal(size=(users, dim)) * 10.0 ** rng.uniform(-4, 4, (users, 1))
    rows[0], rows[1] = 1e30, 1e-30
    rows[2, 0], rows[3, -1] = np.nan, np.inf
    return rows.astype(np.float32)


@pytest.mark.parametrize("bound", [1.0, 0.3, 1e-20, 3e10])
@pytest.mark.parametrize("dim", [1, 300, 5000])
def test_on_a_grid_rows_stay_within_the_bound_and_sums_have_no_order(bound, dim):
    rows = _rows_of_all_sizes(600, dim)
    total = jax.jit(_on_grid)(rows, bound)
    order = np.random.default_rng(1).permutation(len(rows))
    for own, other in zip(total, jax.jit(_on_grid)(rows[order], bound), strict=True):
        np.testing.assert_array_equal(own, other)
    each = _exact(jax.jit(jax.vmap(lambda row: _on_grid(row[None], bound)))(rows))
    lengths = np.linalg.norm(each, axis=1)
    assert np.all(lengths <= np.float32(bound))
    assert np.all(each[2:4] == 0)
    assert np.max(lengths) > 0.999 * bound
    # No rounding in the sum: it is that of the rounded rows.
    np.testing.assert_array_equal(_exact(total), np.sum(each, axis=0))
    good = rows[4:].astype(np.float64)
    factors = np.minimum(1, np.float32(bound) / np.linalg.norm(good, axis=1))
    step = 2.0 ** (math.ceil(math.log2(bound)) - 24)
    error = each[4:] - factors[:, None] * good
    assert (
        np.max(np.abs(error))
        < step + 4e-4 * bound * np.max(np.abs(good * factors[:, None])) / bound
    )


def test_a_grid_holds_the_largest_sum_of_as_many_rows_as_are_added_at_once():
    more, fewer = clipping._MOST + 5, clipping._MOST - 3
    for users, value in ((more, 100.0), (more, -100.0), (fewer, 0.7), (fewer, -0.7)):
        total = jax.jit(_on_grid)(jnp.full((users, 1), value, jnp.float32), 1.0)
        one = _exact(jax.jit(_on_grid)(jnp.full((1, 1), value, jnp.float32), 1.0))
        np.testing.assert_array_equal(_exact(total), users * one)


def test_a_grid_of_float64_is_finer():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 7))
    with jax.enable_x64(True):
        total = jax.jit(_on_grid)(jnp.asarray(rows), jnp.float64(1e-3))
        assert total.high.dtype == jnp.float64
        exact = (rows * (1e-3 / np.linalg.norm(rows, axis=1))[:, None]).sum(axis=0)
        np.testing.assert_allclose(_exact(total), exact, rtol=1e-5)
        each = jax.jit(jax.vmap(lambda row: _on_grid(row[None], jnp.float64(1e-3))))(rows)
        np.testing.assert_allclose(_exact(each).sum(axis=0), _exact(total), rtol=1e-15, atol=1e-17)
        beyond = jax.jit(_on_grid)(jnp.full((3, 2), 1e200), jnp.float64(1e150))
    np.testing.assert_array_equal(_exact(beyond), 0)


@pytest.mark.parametrize("bound", [3.4e38, 1e35, 1e-29])
def test_grids_at_the_ends_of_the_range(bound):
    rows = np.float32([[0.9 * min(bound, 1e38), 0.0], [3e38, 3e38], [1e-30, 1e-30]])
    each = _exact(jax.jit(jax.vmap(lambda row: _on_grid(row[None], bound)))(rows))
    assert np.all(np.hypot(*(each.T / bound)) <= 1)
    assert each[0, 0] > 0.89 * min(bound, 1e38)


def test_accelerators_add_on_the_grid_and_a_cpu_in_pairs():
    def total(rows):
        return clipping.sum_of_clipped(rows, 1.0, jnp.ones(100, bool))

    shape = jax.ShapeDtypeStruct((100, 3), jnp.float32)
    for platform, grid in (("cpu", False), ("cuda", True), ("tpu", True)):
        text = jax.export.export(jax.jit(total), platforms=[platform])(shape).mlir_module()
        assert ("shift_right_arithmetic" in text) is grid
