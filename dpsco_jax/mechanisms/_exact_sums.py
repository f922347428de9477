"""Sums of numbers in [-1, 1] by place, exact: what one number moves is never more than itself.

What it computes: every number is cut into two integers, both are summed as integers, and the sum is returned
as two floats, a multiple of 16 and a rest that is small.

Source: none. Mironov 2012 and Casacuberta et al. 2022 on what rounding does to private sums.

Formal guarantee: floats that are added one after the other make a sum whose rounding depends on all of them:
where it passes a power of two, one number that is there or not moves it by up to twice itself, and more with
every further power. Integers have no such rounding. A number x becomes (a + b·2^-k)·2^-k, rounded towards
zero, which is a function of x alone of no larger magnitude, and the sums of a and b are exact as long as at
most ``most`` numbers share a place, since ``most``·2^k < 2^31. Noise must be added to the rest, before the
two are added up and the sum is rounded.

Cost: two integer sums.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_COARSE = 16


class Sums(NamedTuple):
    """Sums by place: ``coarse`` plus ``rest``.

    Attributes:
        coarse: multiples of 16.
        rest: from 0 to 17, to which noise is added.
    """

    coarse: Float[Array, "places"]
    rest: Float[Array, "places"]


def exact_sums(
    values: Float[Array, "entries"], places: Int[Array, "entries"], size: int, most: int
) -> Sums:
    """The sums of the values by place, of which those in [0, ``size``) are returned.

    Args:
        values: in [-1, 1]; others, and NaN, have no meaning.
        places: of every value.
        size: number of places.
        most: at most as many values share a place.
    """
    bits = min(26, 30 - min(most, len(values)).bit_length())
    scaled = values * 2.0**bits
    high = jnp.trunc(scaled)
    low = jnp.trunc((scaled - high) * 2.0**bits)
    highs, lows = (
        jax.ops.segment_sum(part.astype(jnp.int32), places, size) for part in (high, low)
    )
    # Whole units of the low part go up, so that the rest is small.
    highs, lows = highs + (lows >> bits), lows & (2**bits - 1)
    rest = highs & (_COARSE * 2**bits - 1)
    coarse = (highs - rest).astype(values.dtype) * 2.0**-bits
    small = rest.astype(values.dtype) + lows.astype(values.dtype) * 2.0**-bits
    return Sums(coarse, small * 2.0**-bits)
