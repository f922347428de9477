"""Multilevel Monte Carlo: the mean of an expensive accurate estimate at the price of cheap ones.

What it computes: given estimates x_0, x_1, ..., x_m of increasing accuracy and cost (the levels), a random
combination whose mean is exactly E x_m:

    x_0 + 2^J·(x_J - x_{J-1})   with P(J = j) = 2^-j for j = 1..m;   x_0 alone otherwise,

the three estimates with independent randomness. Σ_j P(J=j)·2^j·(E x_j - E x_{j-1}) telescopes to E x_m - E
x_0.

Source: Blanchet and Glynn 2015; thesis, Algorithm 11 and Proposition 2.2.9 (after Asi, Carmon, Jambulapati,
Jin and Sidford 2021, and Carmon and Hinder 2022).

Formal guarantee: if E‖x_j - x*‖² ≤ e²·2^-j for every level, the bias is at most e·2^(-m/2) and the mean
squared error at most 14·m·e² (2 for x_0, and 2·(1+√2)² ≤ 11.7 for each level). The level does not depend on
data.

Cost: on average 1.5·2^-j estimates of level j (``expected_calls``). Under ``vmap`` a choice by ``lax.switch``
runs every level: map over keys with ``lax.map``, or draw the levels beforehand.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from dpsco_jax._checks import (
    require,
    require_callable,
    require_integer,
    require_integers,
    require_key,
    require_shape,
    require_tree,
    require_whole,
    require_within,
)


def draw_levels(
    key: Key[Array, ""], max_level: int, shape: tuple[int, ...] = ()
) -> Int[Array, "..."]:
    """Levels J with P(J = j) = 2^-j for j = 1..max_level, and 0 (no correction) otherwise. Exact.

    The number of leading zeros of uniform bits is geometric.
    """
    require_key(key)
    require_integer("max_level", max_level, 0, 31)
    require_shape("shape", shape)
    bits = jax.random.bits(key, shape, jnp.uint32)
    level = jax.lax.clz(bits).astype(jnp.int32) + 1
    return jnp.where(level <= max_level, level, 0)


def combine(base: Any, fine: Any, coarse: Any, level: Any) -> Any:
    """Adds the correction: base + 2^level·(fine - coarse), leaf by leaf, for levels of at least 1."""
    require_whole("level", level, 0)
    require_within("level", level, 0, 31)
    for name, tree in (("base", base), ("fine", fine), ("coarse", coarse)):
        require_tree(name, tree)
    weight = 2.0**level
    return jax.tree.map(lambda b, f, c: b + weight * (f - c), base, fine, coarse)


def expected_calls(max_level: int) -> np.ndarray:
    """Expected number of estimates of each level 0..max_level in one combination, float64."""
    require_integer("max_level", max_level, 0, 31)
    calls = 1.5 * 0.5 ** np.arange(max_level + 1)
    calls[max_level] = 0.5**max_level
    return calls


def estimate(
    key: Key[Array, ""],
    levels: Sequence[Callable[[Key[Array, ""]], tuple[Any, Any]]],
    level: Int[Array, ""] | int | None = None,
) -> tuple[Any, Any]:
    """One combination.

    Args:
        key: for the level (if not given) and the estimates.
        levels: the estimates x_0..x_m, each a function of a key that returns a point (any pytree) and
            counters, which are added up; all with the same structures.
        level: a level of ``draw_levels`` (0: no correction), to fix the levels of a run beforehand; drawn
            from ``key`` if left out. A Python integer compiles that one combination only.

    Returns:
        The combination, and the sum of the counters.
    """
    require_key(key)
    require(
        isinstance(levels, Sequence) and len(levels) > 0, "levels", levels, "functions of a key"
    )
    for function in levels:
        require_callable("levels", function)
    if level is not None:
        require_integers("level", level)
        require_within("level", level, 0, len(levels) - 1)
    level_key, base_key, fine_key, coarse_key = jax.random.split(key, 4)
    if level is None:
        level = draw_levels(level_key, len(levels) - 1)

    def corrected(j: int) -> tuple[Any, Any]:
        base, count = levels[0](base_key)
        if j == 0:
            return base, count
        fine, fine_count = levels[j](fine_key)
        coarse, coarse_count = levels[j - 1](coarse_key)
        total = jax.tree.map(lambda a, b, c: a + b + c, count, fine_count, coarse_count)
        return combine(base, fine, coarse, j), total

    if isinstance(level, int):
        return corrected(level)
    branches = [lambda j=j: corrected(j) for j in range(len(levels))]
    return jax.lax.switch(level, branches)
