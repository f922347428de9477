"""A smooth function of one variable as polynomials on equal cells: made on the host, evaluated in JAX.

Each cell has the polynomial that agrees with the function at the Chebyshev points, in powers
of the position within the cell; a lookup and a Horner scheme evaluate it.

Where the function is analytic and bounded by M in an ellipse around the cell whose half axes, in half widths
of the cell, add up to ρ, the error is at most 4Mρ^(-degree)/(ρ - 1) (Trefethen 2013, Theorem 8.2).

Cost: ``degree`` multiplications and one lookup of ``degree + 1`` numbers for each argument.

Example:
    >>> import numpy as np
    >>> from dpsco_jax.geometry import _piecewise
    >>> table = _piecewise.fit(np.exp, 0.0, 1.0, 4)
    >>> bool(abs(table(0.3) - np.exp(0.3)) < 1e-6)
    True
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

DEGREE = 11


@dataclasses.dataclass(frozen=True, eq=False)
class Piecewise:
    """Polynomials on equal cells.

    Attributes:
        low: left end of the first cell.
        width: of a cell.
        coefficients: ``[cells, degree + 1]``, constants first, in the position in [-1, 1] within the cell.
    """

    low: float
    width: float
    coefficients: Float[np.ndarray, "cells terms"]

    @property
    def high(self) -> float:
        """Right end of the last cell."""
        return self.low + self.width * len(self.coefficients)

    def __call__(self, argument: ArrayLike) -> Float[Array, "*shape"]:
        """The value; outside of all cells, the polynomial of the nearest."""
        place = (jnp.asarray(argument) - self.low) / self.width
        last = len(self.coefficients) - 1
        cell = jnp.clip(jnp.floor(jax.lax.stop_gradient(place)), 0, last)
        terms = jnp.asarray(self.coefficients)[cell.astype(jnp.int32)]
        within = 2.0 * (place - cell) - 1.0
        value = terms[..., -1]
        for power in range(terms.shape[-1] - 2, -1, -1):
            value = value * within + terms[..., power]
        return value


def fit(
    function: Callable[[np.ndarray], np.ndarray],
    low: float,
    high: float,
    cells: int,
    degree: int = DEGREE,
) -> Piecewise:
    """The table of a function.

    Args:
        function: of a vector, in float64.
        low: left end.
        high: right end, above it.
        cells: how many.
        degree: of the polynomials.
    """
    nodes = np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
    width = (high - low) / cells
    points = low + width * (np.arange(cells)[:, None] + 0.5 * (nodes + 1.0))
    values = function(points.ravel()).reshape(points.shape)
    to_chebyshev = np.polynomial.chebyshev.chebvander(nodes, degree).T * (2.0 / (degree + 1))
    to_chebyshev[0] *= 0.5
    to_powers = np.zeros((degree + 1, degree + 1))
    for order, row in enumerate(np.eye(degree + 1)):
        powers = np.polynomial.chebyshev.cheb2poly(row)
        to_powers[: len(powers), order] = powers
    return Piecewise(low, width, values @ to_chebyshev.T @ to_powers.T)
