"""Every sampled user is counted once, whatever the chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.oracles.chunks import sum_over_users
from dpsco_jax.oracles.sampling import UserSample

USERS = 11
DATA = {"x": jnp.asarray(2.0) ** jnp.arange(USERS), "y": jnp.ones((USERS, 3))}


def _sum(rows, counted, position):
    places = jnp.sum(jnp.where(counted, 2.0**position, 0.0))
    return jnp.sum(jnp.where(counted, rows["x"], 0.0)), jnp.sum(counted), places


@pytest.mark.parametrize("chunk_size", [1, 2, 4, 5, 10, 11, 100])
def test_everybody(chunk_size):
    total, count, places = jax.jit(lambda d: sum_over_users(_sum, d, None, chunk_size))(DATA)
    assert total == 2.0**USERS - 1
    assert count == USERS
    assert places == 2.0**USERS - 1


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 4, 7, 100])
def test_a_sample(chunk_size):
    indices = jnp.asarray([9, 2, 5, 0, 7, 3, 3, 3, 3, 3, 3], jnp.int32)  # five of them count
    run = jax.jit(lambda n: sum_over_users(_sum, DATA, UserSample(indices, n), chunk_size))
    for size, expected in ((5, 2**9 + 2**2 + 2**5 + 1 + 2**7), (1, 2**9), (0, 0)):
        total, count, places = run(jnp.asarray(size, jnp.int32))
        assert (total, count, places) == (expected, size, 2.0**size - 1)
    fixed = jax.jit(lambda: sum_over_users(_sum, DATA, UserSample(indices[:5], 5), chunk_size))()
    assert fixed[0] == 2**9 + 2**2 + 2**5 + 1 + 2**7


def test_draws_of_few_users_come_in_whole_chunks():
    """The room of a sum is that of chunks of so many draws, however few users there are."""
    seen = []

    def of_chunk(rows, counted, position):
        seen.append(len(counted))
        return _sum(rows, counted, position)

    few, indices = {"x": DATA["x"][:3]}, jnp.arange(20, dtype=jnp.int32) % 3
    total, count, _ = sum_over_users(of_chunk, few, UserSample(indices, 20), 8)
    assert (total, count, set(seen)) == (7 * 1 + 7 * 2 + 6 * 4, 20, {8})


def test_samples_of_different_sizes_in_one_batch():
    indices = jnp.tile(jnp.arange(USERS, dtype=jnp.int32), (3, 1))
    sizes = jnp.asarray([0, 4, 11], jnp.int32)
    run = jax.vmap(lambda i, n: sum_over_users(_sum, DATA, UserSample(i, n), 4)[0])
    np.testing.assert_array_equal(run(indices, sizes), [0, 15, 2**11 - 1])
