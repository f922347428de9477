"""The localized calls of which a strongly convex one consists: sizes, noise and step sizes.

What it computes: numbers only. A call of T queries on a λ-strongly convex problem consists of k levels of
T_i = 2^(i-k)·T queries with β_i = 2^((k-i)/2)·β, for i = 0, ..., k - 1, k = ⌈log2 log2 T⌉. Level i starts
from a gap of at most D_i, adds E_i, and uses the distance √(2·D_i/λ) as its reach.

Source: thesis, Algorithm 10 and Lemma 2.4.13. D_i = 4·E_i·(D_0/(4·E_0))^(2^-i), with the 2^i-th root without
which (2.27) does not satisfy D_{i+1} = √(D_i·E_i). D_0 = L²/(2λ), a quarter of the printed one. Equal noise
in all levels (β_i = β), which costs less privacy where the Rényi curve decides, measures the same or worse
where the privacy loss distribution does.

Formal guarantee: with the constant at which a localized call is proved (16), all gaps are as said, and
E_{i+1} = E_i/2. The first levels have the largest β: an accountant must see every level.

Cost: none.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import ArrayLike


class Level(NamedTuple):
    """One localized call of a strongly convex one.

    Attributes:
        num_queries: its T.
        beta_factor: its β over that of the whole call; at least 1.
    """

    num_queries: int
    beta_factor: float


def levels(num_queries: int) -> tuple[Level, ...]:
    """The localized calls of a strongly convex one: their sizes add up to less than ``num_queries``.

    Raises:
        ValueError: if ``num_queries`` is not a power of two, at least 4.
    """
    if num_queries < 4 or num_queries & (num_queries - 1):
        raise ValueError(f"num_queries must be a power of two, at least 4, got {num_queries}")
    count = max(1, math.ceil(math.log2(math.log2(num_queries))))
    return tuple(Level(num_queries >> (count - i), 2.0 ** ((count - i) / 2)) for i in range(count))


def level_errors(
    sizes: tuple[Level, ...],
    dim: int,
    beta: ArrayLike,
    lipschitz: ArrayLike,
    regularization: ArrayLike,
    constant: float,
) -> list[tuple[Any, Any]]:
    """(E_i, D_i) of the levels: what a level adds to the gap, and the gap that it starts from.

    Args:
        sizes: of ``levels``.
        dim: number of parameters.
        beta: of the whole call.
        lipschitz: L.
        regularization: λ > 0.
        constant: C in E_i = (2C²L²/λ)·(√dim/(β_i·T_i) + 1/√T_i)².
    """
    scale = lipschitz**2 / regularization
    gap = 0.5 * scale
    pairs = []
    for level in sizes:
        noise = math.sqrt(dim) / (beta * level.beta_factor * level.num_queries)
        error = 2 * constant**2 * scale * (noise + level.num_queries**-0.5) ** 2
        pairs.append((error, gap))
        gap = (error * gap) ** 0.5
    return pairs


def reaches(
    sizes: tuple[Level, ...],
    dim: int,
    beta: ArrayLike,
    lipschitz: ArrayLike,
    regularization: ArrayLike,
    radius: ArrayLike,
    constant: float,
) -> list[Any]:
    """Of every level the distance from its start to the minimizer, as its gap allows.

    Never above twice the radius of the ball, nor above the radius in the first level, which starts at the
    center. Arguments as of ``level_errors``.
    """
    pairs = level_errors(sizes, dim, beta, lipschitz, regularization, constant)
    first = jnp.minimum(radius, lipschitz / regularization)
    later = [jnp.minimum(2 * radius, jnp.sqrt(2 * gap / regularization)) for _, gap in pairs[1:]]
    return [first, *later]
