"""All that one ψ needs besides its point, and how wrong the tables are.

What it computes: the grids of ``_mixture_grid``, the span that the table of the stable density has to cover,
and the error of a value.

Formal guarantee: the error is a sum of three. The rule over λ: proven. The tables: measured, against
quadratures with other steps, between the points that the tables were made from, and doubled. An error of
the weights' logarithms is averaged by the sum over λ; that of log Z is relative to 1 + (q-1)(|t|/q)^p,
whose sum over the coordinates has, under the tilted law of λ, a mean of at most d + 2(q-1)/q·(N + d), N =
‖u‖_p²/4. Roundings: the terms of the sum are at most some multiples of N + d, each rounded a few times;
2^-49 of that is allowed for.

Cost: a second on the host, once for each (p, d, shells).
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from dpsco_jax.geometry import _power_laplace, _stable_density
from dpsco_jax.geometry._mixture_grid import PROVEN_ERROR, mixture_grid

_PROBES = 400


class MixtureTables(NamedTuple):
    """Grids by shell, span and error.

    Attributes:
        low: ``[shells]``, log λ_0.
        step: ``[shells]``, of log λ.
        size: number of λ in each grid.
        first: where the table of the stable density begins.
        last: where it ends.
        error: of a value.
    """

    low: Float[np.ndarray, " shells"]
    step: Float[np.ndarray, " shells"]
    size: int
    first: float
    last: float
    error: float


@functools.lru_cache(maxsize=32)
def mixture_tables(p: float, dim: int, shells: int) -> MixtureTables:
    """Tables for ‖u‖_p in [0, shells).

    Args:
        p: in (1, 2).
        dim: d.
        shells: of width 1.
    """
    q = p / (p - 1.0)
    grid = mixture_grid(p, dim, shells)
    first = float(np.min(grid.low))
    last = float(np.max(grid.low + grid.step * (grid.size - 1)))
    height = 0.25 * shells**2
    density, power = _density_error(2.0 / q, first, last), _power_error(q)
    measured = density + power * (dim + 2.0 * (q - 1.0) / q * (height + dim))
    error = PROVEN_ERROR + 2.0 * measured + 2.0**-49 * (height + dim + 1.0)
    return MixtureTables(grid.low, grid.step, grid.size, first, last, error)


@functools.lru_cache(maxsize=32)
def _density_error(c: float, first: float, last: float) -> float:
    v = first + (last - first) * _spread()
    known = _stable_density.log_density_by_quadrature(v, c, refined=True)
    known = known - _stable_density.least_rate(c) * np.exp(-v * (c / (1.0 - c)))
    with jax.ensure_compile_time_eval():
        found = np.asarray(_stable_density.log_density(jnp.asarray(v), c, first, last))
    # Where the exponent is huge its own rounding is, which is counted with the roundings.
    size = 1.0 + _stable_density.least_rate(c) * np.exp(-v * (c / (1.0 - c)))
    return float(np.max(np.abs(found - known) / size))


@functools.lru_cache(maxsize=32)
def _power_error(q: float) -> float:
    t = np.expm1(math.log(1e4) * _spread())
    leading = (q - 1.0) * (t / q) ** (q / (q - 1.0))
    known = _power_laplace.log_ratio_by_quadrature(t, q, refined=True) + leading
    with jax.ensure_compile_time_eval():
        found = np.asarray(_power_laplace.log_power_laplace(jnp.asarray(t), q))
    return float(np.max(np.abs(found - known) / (1.0 + leading)))


def _spread() -> np.ndarray:
    """Points of (0, 1) of low discrepancy, multiples of the golden ratio: on no regular grid of a table."""
    return np.mod((np.arange(_PROBES) + 0.5) * (0.5 * math.sqrt(5.0) + 0.5), 1.0)
