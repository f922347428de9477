"""Moves inside of a convex set: projection relative to a point, as precise as the move where that is small.

After some work once for a point p, there is for many moves m the move P(p + m) - p, where P projects onto
the set W, widened so that it holds p: rounding, if nothing else, puts a point that was projected outside of
it. P(p + m) in float32 is rounded at the size of p; here no number of the size of p is added to a move:

    ball        (2⟨a, m⟩ + |m|²)/R² + (|a|²/R² - 1), a the arrow from the center, tells how far p + m is out
    box         m is cut off at lower - p and upper - p
    simplex     max(m - τ, -p), and 0 at least where p is negative, with τ such that the sum is 0
    ℓ1 ball     soft-thresholding at τ: min(max(t - τ, -|p|), t + τ) for t = ±m, signs as of p; the norm of
                the point grows by Σ max(t, -t - 2|p|), which τ keeps to R - ‖p‖₁

What depends on p alone (|a|²/R² - 1, lower - p, R - ‖p‖₁) is rounded once: whatever it is rounded to belongs
to some set of the same kind, the same one for all moves from p.

Source: elementary; Duchi, Shalev-Shwartz, Singer and Chandra 2008 for simplex and ℓ1 ball, with τ found by
halving in place of a sort.

In exact arithmetic the move is the projection onto W less p, so two moves are brought no further apart.
Floats add an error of some units in the last place of the larger of the moves, before or after, times √dim.

Cost: one pass over the move; 30 passes for simplex and ℓ1 ball.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float

Vector = Float[Array, "dim"]
Move = Callable[[Vector], Vector]

_HALVINGS = 30  # beyond the resolution of float32


def ball(radius: ArrayLike, center: Any = None) -> Callable[[Vector], Move]:
    """Moves in the ℓ2 ball of that radius around the center, ``[dim]``, or around the origin."""

    def start(point: Vector) -> Move:
        arrow = point if center is None else point - center
        # A point outside widens the ball.
        radius_square = jnp.maximum(jnp.vdot(arrow, arrow), jnp.square(radius))
        excess = jnp.vdot(arrow, arrow) / radius_square - 1.0
        return lambda move: drawn_back(arrow, radius_square, excess, move)

    return start


def drawn_back(arrow: Vector, radius_square: ArrayLike, excess: ArrayLike, move: Vector) -> Vector:
    """The projection of arrow + move onto the ball around the origin, less the arrow.

    Args:
        arrow: from the center of the ball, ``[dim]``.
        radius_square: R².
        excess: |arrow|²/R² - 1: the same number for all moves, so its rounding brings none apart.
        move: ``[dim]``.
    """
    outside = (2.0 * jnp.vdot(arrow, move) + jnp.vdot(move, move)) / radius_square
    outside = jnp.maximum(excess + outside, 0.0)
    stretch = jnp.sqrt(1.0 + outside)
    return (move - outside / (1.0 + stretch) * arrow) / stretch


def box(lower: Any, upper: Any) -> Callable[[Vector], Move]:
    """Moves in the box between two corners, ``[dim]`` each."""

    def start(point: Vector) -> Move:
        least, most = jnp.minimum(lower - point, 0.0), jnp.maximum(upper - point, 0.0)
        return lambda move: jnp.clip(move, least, most).astype(move.dtype)

    return start


def simplex() -> Callable[[Vector], Move]:
    """Moves in the simplex through the point: no entry becomes negative, the sum stays."""

    def start(point: Vector) -> Move:
        least = -jnp.maximum(point, 0.0)

        def inside(move: Vector) -> Vector:
            def at(threshold: Array) -> Vector:
                return jnp.maximum(move - threshold, least)

            ends = jnp.min(move), jnp.max(move)
            return at(_halved(lambda threshold: jnp.sum(at(threshold)), *ends))

        return inside

    return start


def l1_ball(radius: ArrayLike) -> Callable[[Vector], Move]:
    """Moves in the ℓ1 ball of that radius around the origin."""

    def start(point: Vector) -> Move:
        size, sign = jnp.abs(point), jnp.where(point < 0, -1.0, 1.0).astype(point.dtype)
        room = jnp.maximum(radius - jnp.sum(size), 0.0)

        def inside(move: Vector) -> Vector:
            along = sign * move

            def at(threshold: Array) -> Vector:
                return jnp.minimum(jnp.maximum(along - threshold, -size), along + threshold)

            def above(threshold: Array) -> Array:
                shrunk = at(threshold)
                return jnp.sum(jnp.maximum(shrunk, -shrunk - 2.0 * size)) - room

            nothing = jnp.zeros((), move.dtype)
            threshold = _halved(above, nothing, jnp.max(jnp.abs(move)))
            return sign * jnp.where(above(nothing) > 0, at(threshold), along)

        return inside

    return start


def both(first: Callable[[Vector], Move], second: Callable[[Vector], Move]) -> Any:
    """Into the first set, then into the second: still brings no two moves further apart."""

    def start(point: Vector) -> Move:
        into, then = first(point), second(point)
        return lambda move: then(into(move))

    return start


def _halved(above: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Where a decreasing function has come down to 0, which it has at ``high``: never before it has."""

    def turn(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = low + 0.5 * (high - low)
        too_low = above(middle) > 0
        return jnp.where(too_low, middle, low), jnp.where(too_low, high, middle)

    return lax.fori_loop(0, _HALVINGS, turn, (low, high))[1]
