"""Keys of the parts of a run, which nobody's folding can bring together; keys that have draws of their own.

What it computes: a key for every number, by ``jax.random.fold_in``; and whether keys in a batch draw what
each of them draws alone.

Source: none.

Formal guarantee: keys of ``unsafe_rbg`` are folded by an exclusive or with a word of the number, so that
numbers folded in by caller, run and step could be exchanged: step j of part i would have the key, and so the
noise, of step i of part j, and part i of trial j that of part j of trial i. These keys are split before and
after; all others are folded as they are.

Cost: none, or two splits.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

# Of these a batch of keys draws what each of them draws alone. With the generator of XLA, which is that of
# "rbg" and "unsafe_rbg", JAX draws for a whole batch from its first key. Of others nothing is known.
_EACH_ITS_OWN = ("threefry2x32", "threefry4x32", "philox2x32", "philox4x32")


def of_part(key: jax.Array, number: Any) -> jax.Array:
    """The key of a part, by its number in the sequence.

    Args:
        key: a typed key.
        number: an integer, may be traced.
    """
    if jax.random.key_impl(key) != "unsafe_rbg":
        return jax.random.fold_in(key, number)
    (own,) = jax.random.split(jax.random.clone(key), 1)
    (found,) = jax.random.split(jax.random.fold_in(own, number), 1)
    return found


def draw_apart(dtype: Any) -> bool:
    """Whether keys of this dtype draw in a batch, under ``jax.vmap``, what each of them draws alone.

    Args:
        dtype: of typed keys; of anything else it is true.
    """
    return not jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype in _dtypes_that_draw_apart()


@functools.cache
def _dtypes_that_draw_apart() -> frozenset[Any]:
    found = set()
    for name in _EACH_ITS_OWN:
        try:
            found.add(jax.eval_shape(functools.partial(jax.random.key, 0, impl=name)).dtype)
        except ValueError:  # of a release of JAX that does not have it
            continue
    return frozenset(found)
