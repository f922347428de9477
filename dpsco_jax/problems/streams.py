"""Streams of losses of experts, or of linear losses, round by round: T × d numbers are never held.

A stream is a function ``losses(t) -> [dim]`` of the number of a round, which may be traced: it draws by the
key of the round, or reads a row. It is a pytree (``jax.tree_util.Partial``), so that another key compiles
nothing.

Source: own; ``repeated`` is the stream of the lower bound of the thesis, Theorem 13.4.2.

Formal guarantee: none; the losses of a round do not depend on anything but its number.

Cost: of a round d draws.

Example:
    >>> import jax
    >>> from dpsco_jax.problems import streams
    >>> losses = streams.repeated(jax.random.key(0), dim=4, length=100)
    >>> losses(0).shape, bool((losses(0) == losses(99)).all())
    ((4,), True)
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Count, checked

__all__ = ["bernoulli", "drifting", "repeated", "rows"]


def bernoulli(key: jax.Array, means: Float[ArrayLike, " dim"]) -> Partial:
    """Losses of 0 and 1, independent over rounds and experts.

    Args:
        key: a typed key; that of round t is folded from it.
        means: chances of a loss of one.
    """
    _checks.require_key(key)
    _checks.require_probability("means", means)
    return Partial(_coins, key, jnp.asarray(means, float))


@checked
def drifting(key: jax.Array, means: Float[ArrayLike, " dim"], period: Count) -> Partial:
    """Losses of 0 and 1 whose chances move from one expert to the next, once around in a number of rounds.

    Args:
        key: a typed key; that of round t is folded from it.
        means: chances of a loss of one at the beginning.
        period: rounds after which chances are those of the beginning again.
    """
    _checks.require_key(key)
    _checks.require_probability("means", means)
    return Partial(_moving, key, jnp.asarray(means, float), jnp.asarray(period))


@checked
def repeated(key: jax.Array, dim: Count, length: Count) -> Partial:
    """One vector of fair coins for each epoch, the same in all of its rounds.

    Args:
        key: a typed key; that of an epoch is folded from it.
        dim: d.
        length: rounds of an epoch.
    """
    _checks.require_key(key)
    return Partial(_epochs, key, jnp.full(dim, 0.5), jnp.asarray(length))


def rows(table: Float[ArrayLike, "rounds dim"]) -> Partial:
    """The rows of a table that is there.

    Args:
        table: losses of all rounds.
    """
    _checks.require_number("table", table, "an array of real numbers")
    _checks.require(
        jnp.ndim(table) == 2, "table", f"{jnp.ndim(table)} axes", "of rounds and experts"
    )
    return Partial(_row, jnp.asarray(table))


def _coins(key: jax.Array, means: Array, t: Any) -> Array:
    drawn = jax.random.bernoulli(jax.random.fold_in(key, t), means)
    return drawn.astype(means.dtype)


def _moving(key: jax.Array, means: Array, period: Array, t: Any) -> Array:
    turned = (t % period) * means.shape[0] // period
    return _coins(key, jnp.roll(means, turned), t)


def _epochs(key: jax.Array, means: Array, length: Array, t: Any) -> Array:
    return _coins(key, means, t // length)


def _row(table: Array, t: Any) -> Array:
    return table[t]
