"""The one-sided stable density, on a scale of logarithms: E exp(-λs) = exp(-s^c), λ > 0, 0 < c < 1.

With x = λ^(-c/(1-c)) and the increasing function

    B(u) = sin(cu)^(c/(1-c))·sin((1-c)u)/sin(u)^(1/(1-c)),    B(0) = (1-c)·c^(c/(1-c)),

the density of v = log λ is (c/(1-c))·x·(1/π)∫_0^π B(u)·exp(-x·B(u)) du. A table holds its logarithm plus
B(0)·x, which grows without bound to the left, as a function of v.

Source: Zolotarev 1986; Kanter 1975. T (5.29) names this law a stable count, which is another one.

The integral is a trapezoidal sum in s, u = π/(1 + e^(-s)), whose integrand is analytic for
|Im s| < (1-c)·π/2: the step (1-c)/4 leaves e^(-π²·4) of it. The table's error was measured.
"""

import functools
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax.geometry import _piecewise

# log(sin(z)/z) = -Σ ζ(2k)/(kπ^(2k))·z^(2k), by its first coefficients.
_LOG_SINC = (1 / 6, 1 / 180, 1 / 2835, 1 / 37800, 1 / 467775, 691 / 3831077250, 2 / 127702575)


def least_rate(c: float) -> float:
    """B(0)."""
    return (1.0 - c) * c ** (c / (1.0 - c))


def log_density(log_lambda: ArrayLike, c: float, low: float, high: float) -> Float[Array, "*shape"]:
    """The logarithm of the density of log λ, in JAX.

    Args:
        log_lambda: v, in [low, high].
        c: the index, in (0, 1).
        low: where the table begins.
        high: where it ends.
    """
    v = jnp.asarray(log_lambda)
    return _table(c, low, high)(v) - least_rate(c) * jnp.exp(-v * (c / (1.0 - c)))


@functools.lru_cache(maxsize=32)
def _table(c: float, low: float, high: float) -> _piecewise.Piecewise:
    width = min(0.25, 0.25 * (1.0 - c) / c)
    return _piecewise.fit(
        lambda v: log_density_by_quadrature(v, c), low, high, math.ceil((high - low) / width)
    )


def log_density_by_quadrature(
    log_lambda: np.ndarray, c: float, refined: bool = False
) -> np.ndarray:
    """The logarithm of the density of log λ, plus B(0)·x, on the host.

    Args:
        log_lambda: ``[points]``.
        c: the index, in (0, 1).
        refined: whether the step is a smaller one.
    """
    log_x = -np.asarray(log_lambda, np.float64) * (c / (1.0 - c))
    step = (0.17 if refined else 0.25) * (1.0 - c)
    # From e^(-42) of the width of the peak at u = 0, to where exp(-x·B) has died for the smallest x.
    first = -0.5 * max(float(log_x.max()), 0.0) - 42.0
    last = max((1.0 - c) * (8.0 - float(log_x.min())), 0.0) + 8.0
    s = np.arange(first, last, step)
    excess, log_weight = _log_rate_excess(s, c)
    log_rate = math.log(least_rate(c)) + excess
    growth = np.expm1(np.minimum(excess, 700.0)) * least_rate(c)
    found = np.empty(len(log_x))
    for start in range(0, len(log_x), 256):
        part = slice(start, start + 256)
        value = log_rate + log_weight - np.exp(log_x[part, None]) * growth
        top = value.max(axis=1, keepdims=True)
        total = np.exp(value - top).sum(axis=1)
        found[part] = np.log(total) + top[:, 0] + log_x[part]
    return np.asarray(found + math.log(step * c / (1.0 - c) / math.pi))


def _log_rate_excess(s: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
    """log(B(u)/B(0)) and log(du/ds), for u = π/(1 + e^(-s))."""
    # u, and its distance from π, both to full relative precision.
    u = np.pi / (1.0 + np.exp(-s))
    across = np.pi / (1.0 + np.exp(s))
    near_end = np.log(np.sin(across)) - np.log(u)
    ratio = (
        c / (1.0 - c) * _log_sinc(c * u)
        + _log_sinc((1.0 - c) * u)
        - np.where(u < 1.5, _log_sinc(np.minimum(u, 1.5)), near_end) / (1.0 - c)
    )
    return ratio, np.log(u) + np.log(across) - math.log(math.pi)


def _log_sinc(z: np.ndarray) -> np.ndarray:
    square = z * z
    series = np.zeros_like(z)
    for coefficient in _LOG_SINC[::-1]:
        series = square * (coefficient + series)
    wide = np.maximum(z, 0.25)
    return np.where(z < 0.25, -series, np.log(np.sin(wide) / wide))
