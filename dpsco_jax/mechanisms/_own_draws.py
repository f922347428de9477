"""Noise for an array that is spread over devices, each of which draws the part that it holds.

The words of an entry are a function of the key and of the place in the whole array (``_draws.words_at``),
so the noise is drawn once: two devices that hold the same entry add the same noise, and different entries
have words of different counters. Words are the same to the last bit on any number of devices; a compiler
may round a logarithm of them in another way where it makes other loops. Keys of other generators than
threefry, whose words are no function of a counter, draw the whole on every device.
"""

from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpsco_jax import _parts
from dpsco_jax.mechanisms import _draws


def like(leaf: jax.Array, law: _draws.Law, key: jax.Array, dtype: Any) -> jax.Array:
    """A variable for every entry of the leaf, drawn where the leaf lies.

    Args:
        leaf: what the noise is for.
        law: what is made of two words, as ``_draws.normal_of_words``.
        key: a typed key.
        dtype: of the noise.

    Raises:
        ValueError: the leaf has more entries than there are counters of 32 bits.
    """
    aval = jax.typeof(leaf).sharding
    explicit = AxisType.Explicit in aval.mesh.axis_types
    if not (explicit and any(aval.spec) and _draws.of_counters(key)):
        # Entry by entry, so that a compiler that lays arrays out itself may cut it as it cuts the leaf.
        return law(*_draws.words(key, leaf.shape), dtype)

    def own(part: jax.Array, words: jax.Array) -> jax.Array:
        starts = [
            0 if axis is None else lax.axis_index(axis) * width
            for axis, width in zip(aval.spec, part.shape, strict=True)
        ]
        return law(*_draws.words_at(words, _draws.places(part.shape, leaf.shape, starts)), dtype)

    whole = PartitionSpec()
    words = jax.sharding.reshard(jax.random.key_data(key), NamedSharding(aval.mesh, whole))
    return _parts.shard_map(own, aval.mesh, (aval.spec, whole), aval.spec)(leaf, words)
