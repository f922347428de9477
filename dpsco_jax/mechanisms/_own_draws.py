"""Noise for an array that is spread over devices, each of which draws the part that it holds.

The entries are those that ``_draws.normal`` and ``_draws.laplace`` return for the key and the whole shape:
the words of an entry are those that a counter-based generator (Salmon, Moraes, Dror and Shaw 2011) has at the
places that the whole draw would take them from, in the layout of ``jax.random.bits`` with
``jax_threefry_partitionable``, JAX's default. Words are the same to the last bit on any number of devices; a
compiler may round a logarithm of them in another way where it makes other loops.

So the noise is a function of the key and of the place in the whole array and is drawn once: two devices that
hold the same entry add the same noise, and different entries have words of different counters. Gaussian noise
takes three words an entry in place of three for two. Keys of other generators than threefry, whose words are
no function of a counter, draw the whole on every device.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry2x32_p
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpsco_jax import _parts
from dpsco_jax._checks import require
from dpsco_jax.mechanisms import _draws

_LAYOUT = "jax_threefry_partitionable"

Draw = Callable[[jax.Array, tuple[int, ...], Any], jax.Array]


def like(leaf: jax.Array, draw: Draw, key: jax.Array, dtype: Any) -> jax.Array:
    """``draw(key, leaf.shape, dtype)``, drawn where the leaf lies.

    Args:
        leaf: what the noise is for.
        draw: ``_draws.normal`` or ``_draws.laplace``.
        key: a typed key.
        dtype: of the noise.

    Raises:
        ValueError: the leaf is spread over devices and has more entries than there are counters of 32 bits.
    """
    mesh = jax.typeof(leaf).sharding.mesh
    if mesh.empty or mesh.size == 1 or AxisType.Manual in mesh.axis_types or not _counts(key):
        return draw(key, leaf.shape, dtype)
    spec = jax.typeof(leaf).sharding.spec
    explicit = AxisType.Explicit in mesh.axis_types
    if explicit and not any(spec):
        return draw(key, leaf.shape, dtype)
    most = 2**32 // 3 - 1
    require(leaf.size <= most, "size of a leaf that is spread", leaf.size, f"at most {most}")
    at = _normal_at if draw is _draws.normal else _laplace_at
    words = jax.random.key_data(key)
    if not explicit:
        # Entry by entry, so that the compiler may cut it as it cuts the leaf.
        return at(words, _places(leaf.shape, leaf.shape, [0] * leaf.ndim), leaf.size, dtype)

    def own(part: jax.Array, words: jax.Array) -> jax.Array:
        starts = [
            0 if axis is None else lax.axis_index(axis) * width
            for axis, width in zip(spec, part.shape, strict=True)
        ]
        return at(words, _places(part.shape, leaf.shape, starts), leaf.size, dtype)

    whole = PartitionSpec()
    words = jax.sharding.reshard(words, NamedSharding(mesh, whole))
    return _parts.shard_map(own, mesh, (spec, whole), spec)(leaf, words)


def _counts(key: jax.Array) -> bool:
    """Whether the words of this key are a function of a counter."""
    threefry = str(jax.random.key_impl(key)) in ("fry", "threefry2x32")
    return threefry and bool(getattr(jax.config, _LAYOUT))


def _places(part: tuple[int, ...], shape: tuple[int, ...], starts: list[Any]) -> jax.Array:
    """The places of a part's entries in the whole array, counted row by row, uint32."""
    places = jnp.zeros(part, jnp.uint32)
    for axis, start in enumerate(starts):
        stride = math.prod(shape[axis + 1 :])
        index = lax.broadcasted_iota(jnp.uint32, part, axis) + jnp.asarray(start, jnp.uint32)
        places = places + index * jnp.uint32(stride)
    return places


def _words(key_words: jax.Array, counters: jax.Array) -> jax.Array:
    high, low = threefry2x32_p.bind(key_words[0], key_words[1], jnp.zeros_like(counters), counters)
    return high ^ low


def _normal_at(key_words: jax.Array, places: jax.Array, size: int, dtype: Any) -> jax.Array:
    pairs = (size + 1) // 2
    second = places >= pairs
    pair = jnp.where(second, places - jnp.uint32(pairs), places)
    words = [_words(key_words, pair + jnp.uint32(which * pairs)) for which in range(3)]
    radius, angle = _draws.polar_of_words(words[0], words[1], words[2], dtype)
    return radius * jnp.where(second, jnp.sin(angle), jnp.cos(angle))


def _laplace_at(key_words: jax.Array, places: jax.Array, size: int, dtype: Any) -> jax.Array:
    words = [_words(key_words, places + jnp.uint32(which * size)) for which in range(2)]
    return _draws.laplace_of_words(words[0], words[1], dtype)
