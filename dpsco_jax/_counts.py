"""Counts beyond 32 bits: two words, since JAX has no wider integers unless they are switched on.

Sums and products are modulo 2^64; the quotient is by a whole number below 2^24. Outside of compiled functions
a count behaves as a NumPy array of ``int64``, or of one number of it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Integer, UInt32

from dpsco_jax._checks import require, require_integer, require_integers

MOST = 2**63 - 1
"""The largest count that is shown."""

_DIGIT = 8
_LARGEST_DIVISOR = 2**24 - 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Count(np.lib.mixins.NDArrayOperatorsMixin):
    """A count, or an array of counts, in two words.

    ``int(count)``, comparisons and arithmetic with numbers work where the words are known, and give NumPy's
    ``int64``. In compiled functions take ``as_float()``.

    Attributes:
        high: how many times 2^32.
        low: the rest.
    """

    high: UInt32[Array, "*shape"]
    low: UInt32[Array, "*shape"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array of counts."""
        return np.shape(self.low)

    def as_float(self) -> Array:
        """The count in the default floating dtype, rounded; jit-safe."""
        high, low = (jnp.asarray(word, float) for word in (self.high, self.low))
        return high * 2.0**32 + low

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # it always is one
        high, low = (np.asarray(word).astype(np.int64) for word in (self.high, self.low))
        found = np.asarray((high << 32) + low)
        return found if dtype is None else found.astype(dtype)

    def __array_ufunc__(
        self, ufunc: Callable[..., Any], method: str, *inputs: Any, **given: Any
    ) -> Any:
        known = [np.asarray(x) if isinstance(x, Count) else x for x in inputs]
        return getattr(ufunc, method)(*known, **given)

    def __int__(self) -> int:
        return int(np.asarray(self))

    def __float__(self) -> float:
        return float(int(self))

    def __index__(self) -> int:
        return int(self)

    def __getitem__(self, index: Any) -> "Count":
        return Count(self.high[index], self.low[index])

    def __len__(self) -> int:
        return len(self.low)

    def __repr__(self) -> str:
        if isinstance(self.low, jax.core.Tracer):
            return f"Count(high={self.high}, low={self.low})"
        return str(np.asarray(self))

    __hash__ = None  # type: ignore[assignment]


def count(value: Integer[Array, "*shape"] | int | Count) -> Count:
    """The value, nonnegative and below 2^63, in two words."""
    if isinstance(value, Count):
        return value
    if not isinstance(value, jax.Array):
        found = require_integer("count", value, 0, MOST)
        return Count(jnp.uint32(found >> 32), jnp.uint32(found & 0xFFFFFFFF))
    require_integers("count", value)
    wide = value.dtype.itemsize > 4
    high = (value >> 32 if wide else jnp.zeros_like(value)).astype(jnp.uint32)
    return Count(high, value.astype(jnp.uint32))


def add(a: Count | Array | int, b: Count | Array | int) -> Count:
    """A + b."""
    a, b = count(a), count(b)
    low = a.low + b.low
    carry = (low < a.low).astype(jnp.uint32)
    return Count(a.high + b.high + carry, low)


def times(a: Count | Array | int, factor: Array | int) -> Count:
    """The product of a count and a whole number below 2^32, modulo 2^64."""
    a = count(a)
    if not isinstance(factor, jax.Array):
        factor = require_integer("factor", factor, 0, 2**32 - 1)
    factor = jnp.asarray(factor, jnp.uint32)
    first, second = (factor & 0xFFFF, factor >> 16)
    one, other = (a.low & 0xFFFF, a.low >> 16)
    # Each of the four is below 2^32.
    middle = count(one * second)
    middle = add(middle, count(other * first))
    total = add(count(one * first), shifted(middle, 16))
    high = a.high * factor + other * second
    return Count(total.high + high, total.low)


def shifted(a: Count, bits: int) -> Count:
    """The count times 2^bits, for bits from 1 to 31."""
    require(0 < bits < 32, "bits", bits, "from 1 to 31")
    return Count((a.high << bits) | (a.low >> (32 - bits)), a.low << bits)


def total(counts: Integer[Array, "rows"]) -> Count:
    """The exact sum of at most 2^24 - 1 numbers from 0 to 2^32 - 1."""
    require(len(counts) <= _LARGEST_DIVISOR, "counts", len(counts), f"at most {_LARGEST_DIVISOR}")
    words = counts.astype(jnp.uint32)
    digits = [words >> place & 0xFF for place in (0, 8, 16, 24)]
    # Sums of digits below 2^8 are below 2^32.
    sums = [count(jnp.sum(digit, dtype=jnp.uint32)) for digit in digits]
    whole = sums[0]
    for place, found in zip((8, 16, 24), sums[1:], strict=True):
        whole = add(whole, shifted(found, place))
    return whole


def divided(a: Count, divisor: int | Integer[Array, ""]) -> tuple[Count, UInt32[Array, "*shape"]]:
    """Quotient and remainder by a whole number from 1 to 2^24 - 1, digit after digit; it may be traced."""
    if isinstance(divisor, jax.Array):
        divisor = divisor.astype(jnp.uint32)
    else:
        divisor = require_integer("divisor", divisor, 1, _LARGEST_DIVISOR)
    rest = jnp.zeros_like(a.low)
    quotients = []
    for word in (a.high, a.low):
        quotient = jnp.zeros_like(word)
        for place in (24, 16, 8, 0):
            # The rest is below 2^24: with a digit more it is below 2^32.
            rest = (rest << _DIGIT) | (word >> place & 0xFF)
            quotient |= (rest // divisor) << place
            rest %= divisor
        quotients.append(quotient)
    return Count(*quotients), rest
