"""Random draws whose tails are those of the law that a privacy proof assumes.

Exponential, Laplace, Gumbel and Gaussian variables in float32 (or float64), each a function of 64 random
bits. ``jax.random.normal`` in float32 never exceeds 5.42 standard deviations and ``jax.random.laplace``
never exceeds 16.64 scales, because both invert a 23-bit uniform variable. The outputs that this makes
impossible under one data set and possible under its neighbour have a probability of about 1e-7 per draw,
for which a guarantee with a small δ leaves no room.

Here tails end at 44 scales (exponential, Laplace) and 9 standard deviations (Gaussian), beyond which the
true laws have mass 2^-63: inversion takes the complement of the uniform in integers, so that both ends of
the unit interval are resolved. Results are rounded to the grid of their dtype; that rounding is outside
every guarantee of this package (see Mironov 2012).

The bits of an entry are one block of the counter-based generator (Salmon, Moraes, Dror and Shaw 2011) at the
entry's place, so a draw is a function of the key and the place: an array and the first rows of a longer one
have the same entries, devices that hold parts of an array draw their parts (``_own_draws``), and a compiler
makes bits, variable and sum in one kernel, without an array of either.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry2x32_p
from jax.typing import DTypeLike
from numpy.polynomial import chebyshev

from dpsco_jax import _keys
from dpsco_jax._checks import require
from dpsco_jax._redact import Words

_WORD = 2.0**-32
_ALL_ONES = 0xFFFFFFFF
_MOST = 2**32
# The upper word of counters, which is 0 where JAX splits and folds keys and draws up to 2^32 numbers: a key
# that is used for noise and, by mistake, for keys too has no key among the words of its noise.
_NOISE = 0x6E6F6973
_REUSE_CHECK = "jax_debug_key_reuse"
_THREEFRY = ("fry", "threefry2x32")

# What a Gaussian variable is over the probability q of a smaller one, as a function of w = -log(1 - q²):
# Chebyshev coefficients for w in [0, 6.25], and for √w in [2.5, √45]. Computed with 50 digits;
# tests/mechanisms/test_draws.py computes the quantiles in another way.
_JOINT, _END = 2.5, math.sqrt(45.0)
_CENTRE = (
    2.305765044722146,
    1.0345926034631325,
    -0.030030870453358588,
    -0.009306780414984178,
    0.0027561200013109547,
    -0.00020022921237746285,
    -6.971063769670688e-05,
    2.086373419342222e-05,
    -8.643558180848161e-07,
    -7.222384894840152e-07,
    1.6391127254540676e-07,
    2.1083094151888694e-09,
    -7.417234461717055e-09,
    1.2046137468522514e-09,
    1.1196357896170784e-10,
    -7.211680483615828e-11,
    7.687986701399123e-12,
    1.82756299916019e-12,
    -6.584669872959101e-13,
    3.430454489061927e-14,
    2.3198332145147143e-14,
    -5.585522294488511e-15,
    -5.520524311181497e-17,
    2.58983633590195e-16,
    -4.2932732133352794e-17,
    -4.070432152505362e-18,
    2.6402405900191245e-18,
    -2.8060556334551623e-19,
    -6.949534328953428e-20,
)
_TAIL = (
    6.295878444539383,
    3.0002772995538147,
    0.0036293995400498943,
    -0.0025439182203780865,
    0.0010426338946973662,
    -0.0004167028406152512,
    0.000175550400448376,
    -7.460947866651435e-05,
    2.9529934905528077e-05,
    -9.964295931118894e-06,
    2.45546023211351e-06,
    -1.716265501495089e-07,
    -2.3351918012283193e-07,
    1.614950827055063e-07,
    -6.149887834693867e-08,
    1.3255232853215856e-08,
    5.685614747260333e-10,
    -1.894285781982935e-09,
    8.884720916320996e-10,
    -2.2258273711850137e-10,
    1.021532924678416e-11,
    1.8296185676661247e-11,
    -9.305821490528006e-12,
    2.398361718021967e-12,
    -2.0903534180272737e-13,
    -1.128645501916156e-13,
    6.393064173373801e-14,
    -1.850106932226488e-14,
    3.4759156058219673e-15,
)

Law = Callable[[jax.Array, jax.Array, DTypeLike], jax.Array]
"""A variable of two uint32 words."""


def exponential(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Exponential variables of mean 1."""
    return exponential_of_words(*words(key, shape), dtype)


def laplace(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Laplace variables of scale 1 (density exp(-|x|) / 2)."""
    return laplace_of_words(*words(key, shape), dtype)


def bounded_laplace(
    key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike, most: jax.Array
) -> jax.Array:
    """Laplace variables of scale 1, given that each is at most ``most`` in size."""
    return bounded_laplace_of_words(*words(key, shape), dtype, most)


def gumbel(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Standard Gumbel variables (distribution function exp(-exp(-x)))."""
    return -jnp.log(exponential(key, shape, dtype))


def normal(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Standard Gaussian variables."""
    return normal_of_words(*words(key, shape), dtype)


def words(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Two uint32 words for every entry of an array.

    Raises:
        ValueError: the array has more than 2^32 entries, which are as many as there are counters.
    """
    key = _keys.alone(key)
    if not of_counters(key):
        both = jax.random.bits(key, (2, *shape), jnp.uint32)
        return both[0], both[1]
    if getattr(jax.config, _REUSE_CHECK):  # which knows nothing of the words of a key
        jax.random.bits(key, ())
    return words_at(jax.random.key_data(key), places(shape, shape, [0] * len(shape)))


def of_counters(key: jax.Array) -> bool:
    """Whether the words of this key are made by ``words_at``."""
    return str(jax.random.key_impl(key)) in _THREEFRY


def places(part: tuple[int, ...], shape: tuple[int, ...], starts: Sequence[Any]) -> jax.Array:
    """The places of a part's entries in the whole array, counted row by row, uint32.

    Axes may have symbols for lengths, of which ``jax.export.symbolic_shape`` was told that the size is not
    too large.
    """
    _require_few(math.prod(shape))
    found = jnp.zeros(part, jnp.uint32)
    for axis, start in enumerate(starts):
        stride = math.prod(shape[axis + 1 :])
        index = lax.broadcasted_iota(jnp.uint32, part, axis) + jnp.asarray(start, jnp.uint32)
        found = found + index * _modulo(stride)
    return found


def _modulo(stride: Any) -> jax.Array:
    # A symbol is an integer of 32 bits, and products of them wrap as counters do.
    known = isinstance(stride, int)
    return jnp.uint32(stride % _MOST) if known else jnp.asarray(stride).astype(jnp.uint32)


def _require_few(size: Any) -> None:
    within = f"at most {_MOST}"
    try:
        few = bool(size <= _MOST)
    except jax.errors.InconclusiveDimensionOperation:
        few = False
        # Exported programs check constraints in 32 bits.
        told = f"{size} <= {2**31 - 1}"
        within += f', told to jax.export.symbolic_shape as constraints=("{told}",)'
        size = Words(size)
    require(few, "size of an array that gets noise", size, within)


def words_at(key_words: jax.Array, counters: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The two words that a key of threefry has at each counter of noise."""
    apart = jnp.full_like(counters, _NOISE)
    high, low = threefry2x32_p.bind(key_words[0], key_words[1], apart, counters)
    return high, low


def exponential_of_words(high: jax.Array, low: jax.Array, dtype: DTypeLike) -> jax.Array:
    """``-log U`` for the uniform variable U whose binary digits are two words."""
    upper, distance = _nearer_end(high, low, dtype)
    return jnp.where(upper, -jnp.log1p(-distance), -jnp.log(distance))


def laplace_of_words(high: jax.Array, low: jax.Array, dtype: DTypeLike) -> jax.Array:
    """A Laplace variable of two words."""
    # The lowest of 64 bits is the sign; what is left of the uniform variable is 63 bits.
    return _sign(low, dtype) * exponential_of_words(high, low | 1, dtype)


def bounded_laplace_of_words(
    high: jax.Array, low: jax.Array, dtype: DTypeLike, most: jax.Array
) -> jax.Array:
    """A Laplace variable of two words, given that its size is at most ``most`` scales: its law inverted."""
    upper, distance = _nearer_end(high, low | 1, dtype)
    within = -jnp.expm1(-most)  # the mass of an exponential variable below the bound
    far = -jnp.log(jnp.exp(-most) + distance * within)
    size = jnp.where(upper, -jnp.log1p(-distance * within), far)
    return _sign(low, dtype) * jnp.minimum(size, most)


def normal_of_words(high: jax.Array, low: jax.Array, dtype: DTypeLike) -> jax.Array:
    """A standard Gaussian variable of two words: a sign and, of 63 bits, the probability of a larger one."""
    upper, distance = _nearer_end(high, low | 1, dtype)
    # Of a larger one p and of a smaller one q: the smaller of the two is exact, and 1 - q² = p(2 - p).
    smaller = jnp.where(upper, distance, 1 - distance)
    squares = jnp.where(upper, distance * distance, distance * (2 - distance))
    w = -jnp.log(jnp.where(upper, 1 - squares, squares))
    far = w > _JOINT**2
    t = jnp.where(
        far,
        (jnp.sqrt(jnp.where(far, w, 1)) - (_END + _JOINT) / 2) * (2 / (_END - _JOINT)),
        w * (2 / _JOINT**2) - 1,
    )
    ratio = jnp.zeros_like(t)
    for in_centre, in_tail in zip(*_powers(dtype), strict=True):
        ratio = ratio * t + jnp.where(far, in_tail, in_centre)
    return _sign(low, dtype) * smaller * ratio


def _powers(dtype: DTypeLike) -> list[np.ndarray]:
    """Coefficients of powers of centre and tail, the highest first, as many as the dtype can tell apart."""
    many = 13 if jnp.finfo(dtype).bits <= 32 else len(_CENTRE)
    return [chebyshev.cheb2poly(some[:many])[::-1].astype(dtype) for some in (_CENTRE, _TAIL)]


def _nearer_end(high: jax.Array, low: jax.Array, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
    """Whether the uniform variable of two words is above ½, and its distance to the nearer end of (0, 1).

    The distance has the full relative precision of the dtype.
    """
    upper = (high >> 31) != 0
    flip = jnp.where(upper, jnp.uint32(_ALL_ONES), jnp.uint32(0))
    fraction = (jnp.asarray(low ^ flip, dtype) + 0.5) * _WORD
    return upper, (jnp.asarray(high ^ flip, dtype) + fraction) * _WORD


def _sign(low: jax.Array, dtype: DTypeLike) -> jax.Array:
    return 1 - 2 * jnp.asarray(low & 1, dtype)
