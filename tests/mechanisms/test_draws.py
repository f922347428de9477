"""The laws of the draws, tails included."""

import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
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
    for lag in (1, len(sample) // 2):
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


def _words(bits):
    parts = [(number >> 32, number & 0xFFFFFFFF) for number in bits]
    return tuple(np.array(word, np.uint32) for word in zip(*parts, strict=True))


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 4e-7), (jnp.float64, 2e-15)])
def test_normal_variables_are_quantiles_of_63_bits_and_a_sign(dtype, tolerance):
    rng = np.random.default_rng(0)
    sizes = np.concatenate([2 ** rng.uniform(0, 64, 3000), 2**64 - 2 ** rng.uniform(11, 63, 3000)])
    bits = [int(size) % 2**64 for size in sizes] + [
        near + step for near in (0, 2**63 - 8, 2**64 - 16) for step in range(16)
    ]
    with jax.enable_x64(dtype == jnp.float64):
        found = jax.jit(lambda *both: _draws.normal_of_words(*both, dtype))(*_words(bits))
        assert found.dtype == dtype
        # Of a larger one the probability, or, where that is near one, of a smaller one.
        larger = np.array([min(b | 1, 2**64 - 1 - (b | 1)) + 0.5 for b in bits]) * 2.0**-64
        wanted = np.where(
            np.array([b < 2**63 for b in bits]),
            -scipy.special.ndtri(larger / 2),
            np.sqrt(2) * scipy.special.erfinv(larger),
        )
        signs = np.array([-1.0 if b & 1 else 1.0 for b in bits])
        np.testing.assert_allclose(np.asarray(found, np.float64), signs * wanted, rtol=tolerance)
    assert np.max(np.abs(found)) > 9.1


def test_an_entry_is_a_function_of_key_and_place():
    """The first rows of a longer array are those of a shorter one, and no two places share a block."""
    for draw, _ in LAWS.values():
        few, many = (draw(jax.random.key(5), (rows, 4), jnp.float32) for rows in (3, 7))
        np.testing.assert_array_equal(few, many[:3])
    own = _draws.words(jax.random.key(5), (3, 4))
    flat = _draws.words(jax.random.key(5), (12,))
    for one, other in zip(own, flat, strict=True):
        np.testing.assert_array_equal(np.ravel(one), other)
    # No block is one that makes keys or other numbers of the same key.
    noise = {tuple(map(int, pair)) for pair in zip(*flat, strict=True)}
    for made in (
        jax.random.split(jax.random.key(5), 12),
        jnp.stack([jax.random.fold_in(jax.random.key(5), i) for i in range(12)]),
    ):
        assert not noise & {tuple(map(int, pair)) for pair in jax.random.key_data(made)}
    assert not np.any(flat[0] ^ flat[1] == jax.random.bits(jax.random.key(5), (12,)))
    blocks = np.stack([np.asarray(word) for word in _draws.words(jax.random.key(6), (300, 300))])
    assert len(np.unique(blocks.reshape(2, -1), axis=1).T) == 300 * 300


def test_more_numbers_than_counters_are_refused():
    with pytest.raises(
        ValueError, match="size of an array that gets noise must be at most 4294967296"
    ):
        jax.eval_shape(
            lambda key: _draws.normal(key, (2**16 + 1, 2**16), jnp.float32), jax.random.key(0)
        )


@pytest.mark.parametrize("shape", ["n", "n, 3", "2, n, 3", "2, n, m"])
def test_an_array_with_symbols_for_lengths_has_the_noise_of_its_shape(shape):
    def drawn(words, like):
        return _draws.normal(jax.random.wrap_key_data(words), like.shape, jnp.float32)

    def exported(*constraints):
        symbols = jax.export.symbolic_shape(shape, constraints=constraints)
        given = jax.ShapeDtypeStruct((2,), jnp.uint32), jax.ShapeDtypeStruct(symbols, jnp.float32)
        return jax.export.export(jax.jit(drawn))(*given)

    with pytest.raises(ValueError, match="size of an array that gets noise must be at") as said:
        exported()
    (fix,) = re.findall(r'constraints=\("(.*)",\)', str(said.value))
    found = tuple({"n": 4, "m": 5}.get(axis) or int(axis) for axis in shape.split(", "))
    words = jax.random.key_data(jax.random.key(3))
    noise = exported(fix).call(words, jnp.zeros(found))
    np.testing.assert_array_equal(noise, jax.jit(drawn)(words, jnp.zeros(found)))


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_of_other_generators_draw_their_own_words(impl):
    sample = np.asarray(_draws.normal(jax.random.key(1, impl=impl), (20_001,), jnp.float32))
    assert scipy.stats.kstest(sample, scipy.stats.norm.cdf).pvalue > 1e-3


def test_shapes_and_dtypes():
    key = jax.random.key(0)
    for draw, _ in LAWS.values():
        for shape in [(), (0,), (1,), (3, 5)]:
            sample = jax.eval_shape(lambda k, d=draw, s=shape: d(k, s, jnp.float32), key)
            assert (sample.shape, sample.dtype) == (shape, jnp.float32)
    with jax.enable_x64(True):
        assert _draws.normal(key, (3,), jnp.float64).dtype == jnp.float64
