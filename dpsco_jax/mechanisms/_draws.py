"""Random draws whose tails are those of the law that a privacy proof assumes.

Exponential, Laplace, Gumbel and Gaussian variables in float32 (or float64), from at least 48 random bits
each. ``jax.random.normal`` in float32 never exceeds 5.42 standard deviations and ``jax.random.laplace`` never
exceeds 16.64 scales, because both invert a 23-bit uniform variable. The outputs that this makes impossible
under one data set and possible under its neighbour have a probability of about 1e-7 per draw, for which a
guarantee with a small δ leaves no room.

Here tails end at 44 scales (exponential, Laplace) and 9.4 standard deviations (Gaussian), beyond which the
true laws have mass 2^-64: inversion takes the complement of the uniform in integers so that both ends of the
unit interval are resolved, and the Gaussian is that of Box and Muller 1958. Results are rounded to the grid
of their dtype; that rounding is outside every guarantee of this package (see Mironov 2012). Draws take 1.5 to
2.5 times the time of ``jax.random.normal``.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from dpsco_jax import _keys

_WORD = 2.0**-32
_ALL_ONES = 0xFFFFFFFF


def exponential_of_words(high: jax.Array, low: jax.Array, dtype: DTypeLike) -> jax.Array:
    """``-log U`` for the uniform variable U whose binary digits are two uint32 words."""
    upper = (high >> 31) != 0
    flip = jnp.where(upper, jnp.uint32(_ALL_ONES), jnp.uint32(0))
    # The distance of U to the nearer end of (0, 1), to full relative precision.
    fraction = (jnp.asarray(low ^ flip, dtype) + 0.5) * _WORD
    distance = (jnp.asarray(high ^ flip, dtype) + fraction) * _WORD
    return jnp.where(upper, -jnp.log1p(-distance), -jnp.log(distance))


def exponential(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Exponential variables of mean 1."""
    words = jax.random.bits(_keys.alone(key), (2, *shape), jnp.uint32)
    return exponential_of_words(words[0], words[1], dtype)


def laplace(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Laplace variables of scale 1 (density exp(-|x|) / 2)."""
    words = jax.random.bits(_keys.alone(key), (2, *shape), jnp.uint32)
    return laplace_of_words(words[0], words[1], dtype)


def laplace_of_words(high: jax.Array, low: jax.Array, dtype: DTypeLike) -> jax.Array:
    """A Laplace variable of two uint32 words."""
    # The lowest of 64 bits is the sign; what is left of the uniform variable is 63 bits.
    sign = 1 - 2 * jnp.asarray(low & 1, dtype)
    return sign * exponential_of_words(high, low | 1, dtype)


def gumbel(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Standard Gumbel variables (distribution function exp(-exp(-x)))."""
    return -jnp.log(exponential(key, shape, dtype))


def normal(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Standard Gaussian variables."""
    size = math.prod(shape)
    words = jax.random.bits(_keys.alone(key), (3, (size + 1) // 2), jnp.uint32)
    radius, angle = polar_of_words(words[0], words[1], words[2], dtype)
    # Chosen entry by entry: XLA writes a concatenation on a CPU with a branch in every entry, and vectorizes
    # neither the logarithms nor what adds the noise.
    second = lax.broadcasted_iota(jnp.uint32, (2, *angle.shape), 0) == 1
    pairs = radius[None] * jnp.where(second, jnp.sin(angle)[None], jnp.cos(angle)[None])
    return pairs.reshape(-1)[:size].reshape(shape)


def polar_of_words(
    high: jax.Array, low: jax.Array, turn: jax.Array, dtype: DTypeLike
) -> tuple[jax.Array, jax.Array]:
    """Radius and angle of two Gaussian variables, of three uint32 words."""
    radius = jnp.sqrt(2 * exponential_of_words(high, low, dtype))
    return radius, jnp.asarray(turn, dtype) * (2 * math.pi * _WORD)
