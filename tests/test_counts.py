"""Counts in two words are Python's integers, in and out of compiled functions, batched or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsco_jax import _counts
from dpsco_jax._counts import Count

_WORDS = st.integers(0, 2**62 - 1)  # sums of two are shown
_add = jax.jit(_counts.add)
_times = jax.jit(_counts.times)
_divided = jax.jit(_counts.divided, static_argnums=1)


@settings(max_examples=60, deadline=None)
@given(_WORDS, _WORDS, st.integers(0, 2**32 - 1))
def test_sums_and_products_are_those_of_integers(a, b, factor):
    assert int(_counts.count(a)) == a
    assert int(_add(_counts.count(a), _counts.count(b))) == a + b
    found = _times(_counts.count(a), jnp.uint32(factor))
    assert (int(found.high) << 32) + int(found.low) == a * factor % 2**64


@pytest.mark.parametrize("divisor", [1, 2, 255, 256, 65_537, 2**23 + 1, 2**24 - 1])
def test_quotients_are_those_of_integers(divisor):
    rng = np.random.default_rng(divisor)
    for a in (0, 1, divisor - 1, divisor, 2**32 - 1, 2**32, 2**48 - 1, 2**63 - 1):
        for number in (a, int(rng.integers(0, a + 1))):
            quotient, rest = _divided(_counts.count(number), divisor)
            assert (int(quotient), int(rest)) == divmod(number, divisor)


def test_a_loop_counts_beyond_32_bits():
    """Nothing is run that costs so many gradients: the body of a loop adds large numbers."""

    @jax.jit
    def counted(each):
        return jax.lax.fori_loop(0, 1000, lambda i, n: _counts.add(n, each), _counts.count(0))

    for each in (1, 2**31 - 1, 2**31 - 12_345):
        assert int(counted(jnp.int32(each))) == 1000 * each


def test_a_sum_over_rows_is_exact():
    words = np.random.default_rng(0).integers(0, 2**32, 5000, np.uint32)
    assert int(jax.jit(_counts.total)(words)) == int(np.sum(words, dtype=np.uint64))
    assert int(jax.jit(_counts.total)(np.full(5000, 2**32 - 1, np.uint32))) == 5000 * (2**32 - 1)


def test_a_batch_of_counts_is_an_array():
    batch = jax.vmap(_counts.times)(
        _counts.count(jnp.arange(4)), jnp.full(4, 2**31 + 1, jnp.uint32)
    )
    expected = np.arange(4) * (2**31 + 1)
    assert batch.shape == (4,)
    assert len(batch) == 4
    np.testing.assert_array_equal(batch, expected)
    assert int(batch[3]) == expected[3]
    assert np.asarray(batch).dtype == np.int64
    assert np.all(batch <= expected)
    assert np.all(batch // 2 == expected // 2)
    assert repr(batch) == str(expected)
    np.testing.assert_allclose(jax.jit(Count.as_float)(batch), expected, rtol=1e-6)


def test_a_traced_count_is_not_read_as_something_else():
    with pytest.raises(jax.errors.TracerArrayConversionError):
        jax.jit(lambda n: _counts.count(n) > 3)(1)
    assert f"{_counts.count(2**40)!r}" == str(2**40)
    assert list(range(5))[_counts.count(3)] == 3
    assert float(_counts.count(2**40)) == 2.0**40


def test_it_is_the_same_with_wide_integers():
    with jax.enable_x64(True):
        assert int(_counts.count(jnp.asarray(2**40 + 7))) == 2**40 + 7
        assert int(_counts.add(_counts.count(2**40), 2**33)) == 2**40 + 2**33


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _counts.count(-1), "count must be an integer in"),
        (lambda: _counts.count(2**63), "count must be an integer in"),
        (lambda: _counts.count(1.0), "count must be an integer in"),
        (lambda: _counts.count(jnp.ones(2)), "count must be an array of integers"),
        (lambda: _counts.times(1, 2**32), "factor must be an integer in"),
        (lambda: _counts.divided(_counts.count(1), 2**24), "divisor must be an integer in"),
        (lambda: _counts.shifted(_counts.count(1), 32), "bits must be from 1 to 31"),
        (
            lambda: jax.eval_shape(_counts.total, jax.ShapeDtypeStruct((2**24,), jnp.int32)),
            "counts must be at most 16777215",
        ),
    ],
)
def test_what_is_no_count_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
