"""The fused sum is the sum of the clipped rows, in one block, in many, and with a remainder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
