"""Random rotations: orthogonal, invertible, the Hadamard matrix itself, and evenly spread."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from dpsco_jax.geometry import rotations

rotate = jax.jit(rotations.rotate)


@pytest.mark.parametrize("dim", [1, 2, 64, 256])
def test_agrees_with_the_hadamard_matrix(dim):
    signs = rotations.random_signs(jax.random.key(dim), dim)
    dense = scipy.linalg.hadamard(dim) / math.sqrt(dim) * np.asarray(signs)
    found = rotate(signs, jnp.eye(dim)).T
    np.testing.assert_allclose(found, dense, atol=1e-6)
    assert set(np.abs(np.asarray(signs))) == {1.0}


@pytest.mark.parametrize("dim", [1, 3, 33, 100])
def test_inverse_and_isometry(dim):
    rng = np.random.default_rng(0)
    vectors = jnp.asarray(np.float32(rng.normal(size=(2, 5, dim))))
    signs = rotations.random_signs(jax.random.key(0), dim)
    rotated = rotate(signs, vectors)
    assert rotated.shape == (2, 5, rotations.padded_size(dim))
    back = rotations.rotate_back(signs, rotated, dim)
    np.testing.assert_allclose(back, vectors, atol=3e-6)
    np.testing.assert_allclose(
        jnp.linalg.norm(rotated, axis=-1), jnp.linalg.norm(vectors, axis=-1), rtol=1e-5
    )


def test_no_coordinate_is_large():
    """The bound fails as often as it says at most; half of it fails nearly always."""
    users, dim, failure, trials = 20, 64, 0.1, 2000
    # One-hot rows are spread perfectly; two equal entries meet the bound's tail.
    row = jnp.zeros(dim).at[jnp.arange(16)].set(0.25)
    rows = jnp.stack([jnp.roll(row, 3 * i) for i in range(users)])

    @jax.jit
    def largest(key):
        return jnp.max(jnp.abs(rotations.rotate(rotations.random_signs(key, dim), rows)))

    found = np.asarray(jax.lax.map(largest, jax.random.split(jax.random.key(0), trials)))
    bound = rotations.largest_coordinate(1.0, users, dim, failure)
    assert bound == pytest.approx(math.sqrt(2 * math.log(2 * users * dim / failure) / dim))
    assert np.mean(found > bound) <= failure + 3 * math.sqrt(failure / trials)
    assert np.mean(found > bound / 2) > 0.9


def test_bound_may_be_traced_and_is_never_above_the_norm():
    traced = jax.jit(lambda failure: rotations.largest_coordinate(2.0, 50, 33, failure))(0.01)
    np.testing.assert_allclose(traced, rotations.largest_coordinate(2.0, 50, 33, 0.01), rtol=1e-6)
    assert rotations.largest_coordinate(2.0, 50, 2, 0.01) == 2.0


def test_arguments():
    assert [rotations.padded_size(d) for d in (1, 2, 3, 4, 5, 1025)] == [1, 2, 4, 4, 8, 2048]
    with pytest.raises(ValueError, match="dim"):
        rotations.padded_size(0)
    with pytest.raises(ValueError, match="power of two"):
        rotations.hadamard(jnp.zeros(3))
