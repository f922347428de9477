"""The laws of the draws, tails included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpsco_jax.mechanisms import _draws

LAWS = {
    "exponential": (_draws.exponential, scipy.stats.expon),
    "laplace": (_draws.laplace, scipy.stats.laplace),
    "gumbel": (_draws.gumbel, scipy.stats.gumbel_r),
    "normal": (_draws.normal, scipy.stats.norm),
}


@pytest.mark.parametrize("name", LAWS)
def test_law(name):
    draw, law = LAWS[name]
    sample = np.asarray(draw(jax.random.key(1), (200_001,), jnp.float32), np.float64)
    assert scipy.stats.kstest(sample, law.cdf).pvalue > 1e-3
    # Both halves of Box and Muller's pairs, and neighbours in the array, are independent.
    half = len(sample) // 2
    for lag in (1, half, half + 1):
        assert abs(scipy.stats.spearmanr(sample[:-lag], sample[lag:]).statistic) < 0.015


def _exponential_of(bits):
    high, low = jnp.uint32(bits >> 32), jnp.uint32(bits & 0xFFFFFFFF)
    return float(_draws.exponential_of_words(high, low, jnp.float32))


@pytest.mark.parametrize(
    "bits",
    [0, 1, 12345, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, 3 << 62]
    + [(1 << 64) - 1 - distance for distance in (0, 1, 12345, 1 << 32, 1 << 40)],
)
def test_exponential_resolves_both_tails(bits):
    # Uniform (bits + ½) / 2^64; relative precision also where the variable is 1e-20.
    distance = min(bits, (1 << 64) - 1 - bits) + 0.5
    fraction = distance * 2.0**-64
    expected = -np.log(fraction) if bits < 1 << 63 else -np.log1p(-fraction)
    assert _exponential_of(bits) == pytest.approx(expected, rel=1e-6)


def test_shapes_and_dtypes():
    key = jax.random.key(0)
    for draw, _ in LAWS.values():
        for shape in [(), (0,), (1,), (3, 5)]:
            sample = jax.eval_shape(lambda k, d=draw, s=shape: d(k, s, jnp.float32), key)
            assert (sample.shape, sample.dtype) == (shape, jnp.float32)
    with jax.enable_x64(True):
        assert _draws.normal(key, (3,), jnp.float64).dtype == jnp.float64
