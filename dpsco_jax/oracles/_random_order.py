"""Samples in random order, whatever order their users come in.

What it computes: the users at the front of an array, sorted by 64 random bits each. That order is uniform as
long as no two have the same bits; otherwise, and where there are more users than bits, a shuffle, which is
uniform from whatever order it starts.

Source: the shuffle of Fisher and Yates (Knuth 1998, section 3.4.2).

Formal guarantee: all orders of the same users are equally likely, whoever they are.

Cost: a sort; a shuffle takes a loop as long as the sample.
"""

import jax
import jax.numpy as jnp


def shuffled_where_undecided(
    key: jax.Array, bits: jax.Array, indices: jax.Array, size: int | jax.Array
) -> jax.Array:
    """The first ``size`` users sorted by their two words each; shuffled where that decides nothing."""
    length = bits.shape[1]
    places = jnp.arange(length, dtype=jnp.int32)
    # Who does not count comes last: the sort is stable, and in the sample they are last already.
    bits = jnp.where(places < size, bits, jnp.uint32(2**32 - 1))
    high, low, first = jax.lax.sort((bits[0], bits[1], indices[:length]), num_keys=2)
    equal = (high[1:] == high[:-1]) & (low[1:] == low[:-1]) & (places[1:] < size)
    undecided = jnp.any(equal) | (size > length)

    def swap(place: jax.Array, indices: jax.Array) -> jax.Array:
        other = jax.random.randint(jax.random.fold_in(key, place), (), 0, place + 1)
        here, there = indices[place], indices[other]
        return indices.at[place].set(there).at[other].set(here)

    indices = indices.at[:length].set(first)
    return jax.lax.fori_loop(0, jnp.where(undecided, size, 0), swap, indices)
