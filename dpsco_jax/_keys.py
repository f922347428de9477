"""Keys of the parts of a run, which nobody's folding can bring together.

What it computes: a key for every number, by ``jax.random.fold_in``.

Source: none.

Formal guarantee: keys of ``unsafe_rbg`` are folded by an exclusive or with a word of the number, so that
numbers folded in by caller, run and step could be exchanged: step j of part i would have the key, and so the
noise, of step i of part j, and part i of trial j that of part j of trial i. These keys are split before and
after; all others are folded as they are.

Cost: none, or two splits.
"""

from typing import Any

import jax


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
