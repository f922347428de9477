"""Keys of the parts of a run, which nobody's folding can bring together; keys that have draws of their own.

``jax.random.fold_in`` makes a key for every number. Keys of ``unsafe_rbg`` are folded by an exclusive or with
a word of the number, so that numbers folded in by caller, run and step could be exchanged: step j of part i
would have the key, and so the noise, of step i of part j, and part i of trial j that of part j of trial i.
These keys are split before and after; all others are folded as they are.

Keys in a batch whose draws are not those that each of them makes alone are refused under ``jax.vmap``
wherever noise or samples are drawn (``alone``), and taken in turn where a batch of keys is our own
(``over``). So no two runs under ``jax.vmap`` have noise, or a sample, in common because they share the key of
the first lane, whatever is around the map or inside of it.
"""

import functools
from collections.abc import Callable
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


def alone(key: jax.Array) -> jax.Array:
    """The key, to draw noise or a sample by: of one run, or of one lane of several that draw apart.

    Under ``jax.vmap`` over other keys, in whatever order it is combined with ``jit``, ``scan`` and ``grad``,
    tracing raises ``ValueError``: every lane would draw by the key of the first, so that another map that has
    that key again would repeat the noise of all lanes, bit by bit.

    Args:
        key: a typed key. What is drawn has to come of the key that is returned.
    """
    if draw_apart(key.dtype):
        return key
    impl = jax.random.key_impl(key)
    # Its words: the check of key reuse knows of no other functions of keys.
    return jax.random.wrap_key_data(_of_one_lane(impl)(jax.random.key_data(key)), impl=impl)


@functools.cache
def _of_one_lane(impl: Any) -> Callable[[jax.Array], jax.Array]:
    @jax.custom_batching.custom_vmap
    def words_alone(words: jax.Array) -> jax.Array:
        return words

    @words_alone.def_vmap
    def refused(axis_size: int, in_batched: list[bool], words: jax.Array) -> Any:
        raise ValueError(
            f"key must be one of threefry2x32 under jax.vmap, got {axis_size} of {impl}, all of which"
            " would draw by the first: take them in turn, by jax.lax.map, or make them by"
            ' jax.random.key(seed, impl="threefry2x32")'
        )

    return words_alone


def noise_is_own(key: jax.Array, released: Any) -> jax.Array:
    """Whether no two lanes of a batch have released different things with the noise of one key, a boolean.

    Under ``jax.vmap`` it is false where what is released is in the batch and the key is not: the lanes then
    differ by data, or by the size of one noise, without noise. A key that is in the batch may be that of
    another lane, which is not seen.

    Args:
        key: a typed key, by which the noise was drawn; not used up.
        released: the statistic with its noise, a pytree of arrays.
    """
    return _apart(jax.random.key_data(key), jnp.array(True), jax.tree.leaves(released))


@jax.custom_batching.custom_vmap
def _apart(words: jax.Array, so_far: jax.Array, released: list[jax.Array]) -> jax.Array:
    del words, released
    return so_far


@_apart.def_vmap
def _apart_in_lanes(
    axis_size: int, in_batched: Any, words: jax.Array, so_far: jax.Array, released: list[jax.Array]
) -> tuple[jax.Array, bool]:
    words_are, so_far_is, released_are = in_batched
    if any(released_are) and not words_are:
        shape = jnp.shape(so_far)  # of a constant too
        return jnp.zeros(shape if so_far_is else (axis_size, *shape), bool), True
    # Asked once more, of a batch that may be around this one.
    return _apart(words, so_far, released), so_far_is


def over(function: Callable[..., Any]) -> Callable[..., Any]:
    """As ``jax.vmap`` of a function of a key and other arguments; in turn, if keys do not draw apart.

    For a batch of keys that are split off one: under a ``jax.vmap`` around it, the function is in a batch of
    lanes like any other.
    """

    def mapped(keys: jax.Array, *others: Any) -> Any:
        if draw_apart(keys.dtype):
            return jax.vmap(function)(keys, *others)
        return jax.lax.map(lambda each: function(*each), (keys, *others))

    return mapped
