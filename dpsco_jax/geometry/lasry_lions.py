"""Lasry-Lions smoothing on a grid of one or two dimensions: a function is smooth after it, and little lower.

What it computes: for h on a grid and λ the ``smoothing``

    LL(x) = max over z of [min over y of h(y) + ‖z - y‖²/(4λ)] - ‖z - x‖²/(2λ),

a Moreau envelope and, with half of its weight, the same from above, and its gradient (z* - x)/λ. Squares add
up over axes, so that each axis is passed by itself.

Source: Lasry and Lions 1986; T (8.20), Fact 8.10.2, Lemma 8.10.3, with docs/corrections.md, C8-9: λ is no
Lipschitz constant's unit, and the printed formula is -∞.

Formal guarantee, on the grid as on the line: LL ≤ h, and LL ≥ h - L²λ for an L-Lipschitz h; LL has the minima
of h; its curvature is at least -1/λ, and at most 1/λ, up to the width of the grid. For convex h it is the
Moreau envelope of weight λ. Where the gradient of LL has norm β, a convex combination of gradients of h
within λβ + 2λL ≤ 3λL has it: with λ = α/(3L) the point is (α, β)-stationary in Goldstein's sense, and LL is
3L/α-smooth. Proof: y* is within 2λ·‖(z* - y*)/(2λ)‖ of z*, where the bracket's gradient (z* - y*)/(2λ) is one
of h at y*, of norm at most L, and is the gradient (z* - x)/λ of LL; if z* has several y*, that gradient is a
convex combination of theirs. z* is within λL of x, y* within 3λL: what h is farther from the edge of the grid
than that does not count, and is not smoothed as beyond the edge it would be.

Cost: a product of lengths for each axis: points times the points of the axis; memory of one line of them.

Example:
    >>> import jax.numpy as jnp
    >>> from dpsco_jax.geometry.lasry_lions import lasry_lions
    >>> grid = jnp.linspace(-2.0, 2.0, 401)
    >>> found = lasry_lions(jnp.abs(grid), spacing=0.01, smoothing=0.5)
    >>> [round(float(found.values[place]), 3) for place in (230, 250, 300)]  # Huber's function
    [0.09, 0.25, 0.75]
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax._checks import require, require_number, require_positive

__all__ = ["Smoothed", "grid_envelope", "lasry_lions"]


class Smoothed(NamedTuple):
    """A smoothed function on the grid of the one that was smoothed.

    Attributes:
        values: ``[*grid]``.
        gradient: ``[*grid, axes]``, to within a spacing over λ.
    """

    values: Float[Array, "*grid"]
    gradient: Float[Array, "*grid axes"]


def grid_envelope(
    values: Float[Array, "*grid"], spacing: ArrayLike, weight: ArrayLike
) -> Float[Array, "*grid"]:
    """The Moreau envelope on a grid: min over y of values(y) + ‖x - y‖²/(2·weight).

    Args:
        values: on a grid of one or two axes, alike in all directions.
        spacing: positive, between neighbours of the grid.
        weight: positive; may be traced, as may ``spacing``.
    """
    _require_grid(values)
    require_positive("spacing", spacing)
    require_positive("weight", weight)
    found, _ = _lowest(jnp.asarray(values), spacing, weight)
    return found


def lasry_lions(
    values: Float[Array, "*grid"], spacing: ArrayLike, smoothing: ArrayLike
) -> Smoothed:
    """LL and its gradient on the grid.

    Args:
        values: h on a grid of one or two axes, alike in all directions; over records by ``jax.vmap``. In
            float32 a second difference is off by the rounding of h over the square of the spacing.
        spacing: positive, between neighbours of the grid.
        smoothing: λ > 0; α/(3L) for stationarity within α of an L-Lipschitz h.
    """
    _require_grid(values)
    require_positive("spacing", spacing)
    require_positive("smoothing", smoothing)
    values = jnp.asarray(values)
    inner, _ = _lowest(values, spacing, 2.0 * jnp.asarray(smoothing, values.dtype))
    negative, places = _lowest(-inner, spacing, smoothing)
    own = jnp.stack(jnp.meshgrid(*map(jnp.arange, values.shape), indexing="ij"), axis=-1)
    moves = spacing * (places - own).astype(values.dtype)
    return Smoothed(-negative, jnp.asarray(moves / smoothing))


def _lowest(values: Array, spacing: ArrayLike, weight: ArrayLike) -> tuple[Array, Array]:
    """The envelope, and for every place the one at which it is attained, ``[*grid, axes]``."""
    places: list[Array] = []
    for axis in range(values.ndim):
        values, found = _along(axis, values, spacing, weight)
        # Of the axes before, the place is that of the line on which the lowest was found.
        places = [jnp.take_along_axis(known, found, axis) for known in places]
        places.append(found)
    return values, jnp.stack(places, axis=-1)


def _along(axis: int, values: Array, spacing: ArrayLike, weight: ArrayLike) -> tuple[Array, Array]:
    """The same along one axis."""
    lines = jnp.moveaxis(values, axis, -1)
    numbers = jnp.arange(lines.shape[-1])

    def at(place: Array) -> tuple[Array, Array]:
        away = spacing * (numbers - place).astype(values.dtype)
        raised = lines + jnp.square(away) / (2.0 * weight)
        return jnp.min(raised, axis=-1), jnp.argmin(raised, axis=-1)

    lowest, found = jax.lax.map(at, numbers)
    return jnp.moveaxis(lowest, 0, axis), jnp.moveaxis(found, 0, axis)


def _require_grid(values: Array) -> None:
    require_number("values", values, "an array of real numbers")
    require(jnp.ndim(values) in (1, 2), "values", jnp.shape(values), "on one or two axes")
    require(jnp.issubdtype(jnp.result_type(values), jnp.floating), "values", values.dtype, "floats")
