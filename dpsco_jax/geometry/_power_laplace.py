"""log Z(t), Z(t) = ∫ exp(t·w - |w|^q) dw on the line, q > 2: the only function of one variable that ψ needs.

log Z is even, convex and smooth. With p = q/(q - 1), w* = (|t|/q)^(1/(q-1)) the largest
point of the exponent and P = w*^q = (|t|/q)^p, it is about (q - 1)P. A table holds

    log Z(t) - (q - 1)·((1 + t²)^(1/2)/q)^p     as a function of z = log(1 + t²),

whose first part takes out the growth and which is smooth at 0; beyond the table stands the Laplace expansion

    log Z(t) = (q - 1)P + ½·log(2π/(q(q - 1)P)) + log w* + a₁/P + ... + a₅/P⁵ + O(P⁻⁶),

where what is left of Z, from w near 0, is below exp(-(q - 1)P). Its coefficients are computed, not printed.

Source: T (5.29), which needs Z and names no way to evaluate it.

Formal guarantee: (i) log Z(t) - log Z(0) <= (q - 1)(|t|/q)^p: the derivative of log Z is the mean of w, and
the mean is at most w*, since |w|^q has a convex derivative on w >= 0, so that the density falls faster above
w* than below. (ii) The variance of w is largest at t = 0 (GHS inequality), Γ(3/q)/Γ(1/q).
The table's error was measured against quadrature, as ``_log_laplace_error`` says.

Cost: two lookups' worth of arithmetic for each argument.
"""

import functools
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax.geometry import _piecewise

# The expansion stands in where P is above this.
_FAR = 2000.0
_TERMS = 5
_CELLS_PER_UNIT = 5
_NODES = 6144


def log_power_laplace(t: ArrayLike, q: float) -> Float[Array, "*shape"]:
    """Log Z(t), in JAX, differentiable at every t.

    Args:
        t: float64, of any shape.
        q: above 2, a Python number.
    """
    p = q / (q - 1.0)
    t = jnp.asarray(t)
    table, far = _table(q), _far_terms(q)
    z = jnp.log1p(t * t)
    smooth = (q - 1.0) * q**-p * jnp.exp(0.5 * p * z)
    near = smooth + table(jnp.minimum(z, table.high))
    beyond = z > table.high
    size = jnp.where(beyond, jnp.abs(t), math.exp(0.5 * table.high))
    log_power = p * (jnp.log(size) - math.log(q))
    power = jnp.exp(log_power)
    series = jnp.zeros_like(power)
    for coefficient in far[::-1]:
        series = (series + coefficient) / power
    # Half of log(2π/(q(q-1)P)), and log w* = log(P)/q.
    constant = 0.5 * math.log(2.0 * math.pi / (q * (q - 1.0)))
    expansion = (q - 1.0) * power + constant + (1.0 / q - 0.5) * log_power + series
    return jnp.where(beyond, expansion, near)


def log_at_zero(q: float) -> float:
    """Log Z(0) = log(2Γ(1 + 1/q))."""
    return math.log(2.0) + math.lgamma(1.0 + 1.0 / q)


@functools.lru_cache(maxsize=32)
def _table(q: float) -> _piecewise.Piecewise:
    p = q / (q - 1.0)
    high = math.log1p((q * _FAR ** (1.0 / p)) ** 2)

    def remainder(z: np.ndarray) -> np.ndarray:
        t = np.sqrt(np.expm1(z))
        # What is large in both is taken out before they are subtracted.
        root = np.exp(0.5 * z)
        gap = np.log1p(1.0 / np.maximum(t, 1e-300) ** 2)
        excess = np.where(
            t > 1.0,
            (q - 1.0) * (t / q) ** p * np.expm1(0.5 * p * gap),
            (q - 1.0) * ((root / q) ** p - (t / q) ** p),
        )
        return log_ratio_by_quadrature(t, q) - excess

    return _piecewise.fit(remainder, 0.0, high, math.ceil(_CELLS_PER_UNIT * high))


def log_ratio_by_quadrature(t: np.ndarray, q: float, refined: bool = False) -> np.ndarray:
    """Log Z(t) - (q - 1)(t/q)^p by the trapezoidal rule in log w, on the host.

    ∫ 2cosh(tw)·exp(-w^q) dw over w > 0 has, in s = log w, an analytic integrand with one peak; the rule
    converges geometrically.

    Args:
        t: ``[points]``, at least 0.
        q: above 2.
        refined: whether more nodes are taken.
    """
    nodes = 3 * _NODES // 2 if refined else _NODES
    found = np.empty(len(t))
    for start in range(0, len(t), 512):
        part = slice(start, start + 512)
        found[part] = _peak_integrals(t[part, None], q, nodes)
    return found


def _peak_integrals(t: np.ndarray, q: float, nodes: int) -> np.ndarray:
    p = q / (q - 1.0)
    power = (t / q) ** p
    # Without slope the peak of w·exp(-w^q), in log w, is at q^(-1/q).
    center = np.log(np.maximum(power, 1.0 / q)) / q

    def exponent(s: np.ndarray) -> np.ndarray:
        w = np.exp(s)
        scale = np.exp(center)
        rising = t * scale * np.expm1(s - center) - scale**q * np.expm1(q * (s - center))
        top = t * scale - scale**q - (q - 1.0) * power
        return rising + top + np.log1p(np.exp(-2.0 * t * w)) + s

    floor = exponent(center) - 46.0

    def end(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
        for _ in range(60):
            middle = 0.5 * (inside + outside)
            low = exponent(middle) < floor
            inside, outside = np.where(low, inside, middle), np.where(low, middle, outside)
        return outside

    low, high = end(center, center - 60.0 - np.abs(floor)), end(center, center + 6.0)
    s = low + (high - low) * np.linspace(0.0, 1.0, nodes)
    value = exponent(s)
    top = value.max(axis=1, keepdims=True)
    total = np.exp(value - top).sum(axis=1) * ((high - low)[:, 0] / (nodes - 1))
    return np.asarray(np.log(total) + top[:, 0])


@functools.lru_cache(maxsize=32)
def _far_terms(q: float) -> tuple[float, ...]:
    """a₁, a₂, ...: of log E exp(-Σ_k r_k·P^(1 - k/2)·x^k) for a normal x, r_k the scaled derivatives."""
    orders = 2 * _TERMS
    curvature = q * (q - 1.0)
    # terms[i] holds the polynomial in x that stands beside P^(-i/2).
    terms = np.zeros((orders + 1, 3 * orders + 1))
    falling = curvature
    for k in range(3, orders + 3):
        falling *= q - k + 1.0
        terms[k - 2, k] = -falling / math.factorial(k) / curvature ** (k / 2.0)
    # exp of a power series without constant, by n·e_n = Σ j·f_j·e_(n-j).
    grown = np.zeros_like(terms)
    grown[0, 0] = 1.0
    for n in range(1, orders + 1):
        for j in range(1, n + 1):
            product = np.convolve(terms[j], grown[n - j])[: terms.shape[1]]
            grown[n] += j / n * product
    moments = np.zeros(terms.shape[1])
    moments[::2] = [math.prod(range(1, m, 2)) for m in range(0, terms.shape[1], 2)]
    mean = (grown @ moments)[::2]
    # log of the series, by n·e_n = Σ j·a_j·e_(n-j).
    logarithm = np.zeros(_TERMS + 1)
    for n in range(1, _TERMS + 1):
        lower = sum(j * logarithm[j] * mean[n - j] for j in range(1, n))
        logarithm[n] = mean[n] - lower / n
    return tuple(float(a) for a in logarithm[1:])
