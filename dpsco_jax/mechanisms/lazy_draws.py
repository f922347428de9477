"""Lazy draws: a point that is kept until a coin says that it is drawn anew.

What it computes: the point that there is with the probability exp(-exponent), and otherwise a fresh draw.

Source: Geulen, Vöcking and Winkler 2010 (the shrinking dartboard); thesis, Algorithm 44.

Formal guarantee: that of whoever forms the exponent: coin and draw of a whole run are accounted for by
``privacy.LazyReleases``. The coin is exact to the last bits also where the point is nearly always kept: it
compares an exponential variable of 64 bits with the exponent, of which no probability near one is formed.

Cost: one exponential variable, and a draw where the coin asks for it; under ``jax.vmap`` always a draw.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from dpsco_jax._checks import require_callable, require_key, require_number
from dpsco_jax.mechanisms import _draws

__all__ = ["Drawn", "lazy_draw"]


class Drawn(NamedTuple):
    """A point, and whether it is new.

    Attributes:
        point: kept or fresh.
        fresh: whether it was drawn anew. Secret, unless it is accounted for.
    """

    point: Any
    fresh: Bool[Array, ""]


def coin(key: jax.Array) -> tuple[Any, jax.Array]:
    """The exponential variable that keeps a point unless the exponent is above it, and the draw's key."""
    coin_key, draw_key = jax.random.split(key)
    return _draws.exponential(coin_key, (), jnp.result_type(float)), draw_key


def lazy_draw(
    key: jax.Array, point: Any, exponent: jax.typing.ArrayLike, draw: Callable[[jax.Array], Any]
) -> Drawn:
    """Keeps a point with the probability exp(-exponent), or draws it anew.

    Args:
        key: a typed key, used up.
        point: a pytree of arrays.
        exponent: at least 0, or infinite: then nothing is kept. May be traced.
        draw: a function of a key, with results of the shapes and dtypes of ``point``.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpsco_jax.mechanisms import lazy_draws
        >>> uniform = lambda key: jax.random.uniform(key)
        >>> kept = lazy_draws.lazy_draw(jax.random.key(0), jnp.float32(7.0), 0.0, uniform)
        >>> float(kept.point), bool(kept.fresh)
        (7.0, False)
    """
    require_key(key)
    require_number("exponent", exponent)
    require_callable("draw", draw)
    variable, draw_key = coin(key)
    fresh = variable < jnp.asarray(exponent, variable.dtype)
    # Words: of keys in a batch a condition selects, which the check of key reuse takes for a use.
    words, impl = jax.random.key_data(draw_key), jax.random.key_impl(draw_key)

    def drawn(words: jax.Array) -> Any:
        return draw(jax.random.wrap_key_data(words, impl=impl))

    return Drawn(jax.lax.cond(fresh, drawn, lambda _: point, words), fresh)
