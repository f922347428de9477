"""Blocks of one array: norms as NumPy has them in float64, and balls that no rounding leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import block_norms

_clip, _norms = jax.jit(block_norms.clip_blocks), jax.jit(block_norms.block_norms)
BIG = float(np.finfo(np.float32).max)


def _blocks(values, starts):
    first = np.flatnonzero(np.r_[True, starts[1:]])
    return np.split(np.asarray(values, np.float64), first[1:])


def test_norms_are_those_of_numpy():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(5000).astype(np.float32)
    starts = rng.random(5000) < 0.01
    starts[100:4700] = False  # one block longer than a run
    found = np.asarray(_norms(values, starts))
    first = np.flatnonzero(np.r_[True, starts[1:]])
    expected = [np.linalg.norm(block) for block in _blocks(values, starts)]
    np.testing.assert_allclose(found[first], expected, rtol=1e-5)
    assert np.all(np.delete(found, first) == 0)
    assert block_norms.block_norms(values[:0], starts[:0]).shape == (0,)
    assert block_norms.clip_blocks(values[:0], starts[:0], 1.0).shape == (0,)


def test_no_rounding_leaves_the_ball():
    rng = np.random.default_rng(1)
    for size in (1, 7, 5000, 20000):
        starts = rng.random(size) < 0.3
        starts[size // 3 :] = False
        for scale in (1e-30, 1.0, 1e30):
            shape = rng.choice([1.0, 3.0, 1e-3], size) * rng.choice([-1, 1], size)
            values = (scale * shape).astype(np.float32)
            radius = np.float32(0.7 * scale)
            clipped = np.asarray(_clip(values, starts, radius))
            norms = [np.linalg.norm(block / scale) for block in _blocks(clipped, starts)]
            assert max(norms) <= float(radius) / scale
            assert max(norms) > 0.69 or size == 1
    # Equal numbers in one long block: where a sum in float32 drifts most.
    ones = np.full(20000, 1.0, np.float32)
    clipped = np.asarray(_clip(ones, np.zeros(20000, bool), 1.0), np.float64)
    assert 0.999 < np.linalg.norm(clipped) <= 1.0


def test_bad_entries_empty_their_own_block_alone():
    starts = np.array([1, 0, 1, 0, 1, 0, 1], bool)
    values = np.array([np.nan, 1, 0.5, 0.5, np.inf, 1, BIG], np.float32)
    found = np.asarray(_clip(values, starts, 1.0))
    np.testing.assert_array_equal(found[:6], [0, 0, 0.5, 0.5, 0, 0])
    assert 0 <= found[6] <= 1
    per_entry = np.array([1, 1, 0.1, 0.1, 1, 1, 1], np.float32)
    found = np.asarray(_clip(values, starts, per_entry))
    np.testing.assert_allclose(found[2:4], 0.1 / 2**0.5, rtol=1e-5)
    half = block_norms.clip_blocks(values[2:4].astype(jnp.bfloat16), starts[2:4], 0.5)
    assert half.dtype == jnp.float32


def test_arguments():
    values, starts = np.ones(3, np.float32), np.ones(3, bool)
    for changes, named in [
        ({"values": np.ones(3, int)}, "values"),
        ({"values": np.ones((3, 1), np.float32)}, "values"),
        ({"starts": np.ones(2, bool)}, "starts"),
        ({"radius": 0.0}, "radius"),
        ({"radius": np.ones(2)}, "radius"),
    ]:
        with pytest.raises(ValueError, match=named):
            block_norms.clip_blocks(
                **({"values": values, "starts": starts, "radius": 1.0} | changes)
            )
