"""The μ that a budget leaves to a Gaussian next to a randomized response, for many budgets at once.

What it computes: ``composition.response_gaussian_mu`` in arrays, by Newton's steps inside a bracket.

Source: ``composition``, whose formula for δ is evaluated here in arrays.

Formal guarantee: none: for searches, whose choice is certified by the scalar function.

Cost: some ten evaluations of δ, all requests at once.
"""

import math

import numpy as np
from scipy import special

_MACHINE = float(np.finfo(np.float64).eps)
_MOST_NEWTON = 80
_NEAR_ROOT = 1e-12


def mus(
    response_epsilons: np.ndarray, epsilons: np.ndarray | float, deltas: np.ndarray
) -> np.ndarray:
    """``composition.response_gaussian_mu`` of many: checked by nobody and exact to some 1e-9, relative.

    Args:
        response_epsilons: ε₁, ``[requests]``, in [0, ε).
        epsilons: positive, one or ``[requests]``.
        deltas: ``[requests]``, in (0, 1).

    Returns:
        μ, on either side of the exact one, ``[requests]``.
    """
    test, eps, target = np.broadcast_arrays(response_epsilons, epsilons, np.log(deltas))
    weights = -np.logaddexp(0.0, -test), -np.logaddexp(0.0, test)

    def curve(log_mu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The logarithm of δ over what is allowed, and its slope in log μ."""
        mu = np.exp(log_mu)
        parts, slopes = [], []
        for at, weight in zip((eps - test, eps + test), weights, strict=True):
            first, second = 0.5 * mu - at / mu, -0.5 * mu - at / mu
            one, other = special.log_ndtr(first), at + special.log_ndtr(second)
            rounding = 8.0 * _MACHINE * (np.abs(one) + np.abs(other) + np.abs(at) + 1.0)
            gap = one - other + rounding
            parts.append(weight + one + rounding + np.log(-np.expm1(-gap)))
            slopes.append(weight + log_mu - 0.5 * first**2 - 0.5 * math.log(2.0 * math.pi))
        both = np.logaddexp(*parts)
        return both + 4.0 * _MACHINE - target, np.exp(np.logaddexp(*slopes) - both)

    point = np.log(0.5 * (eps - test) / np.sqrt(2.0 * np.maximum(-target, 1.0)))
    low, high = np.full_like(point, -40.0), np.full_like(point, 20.0)
    # Newton's steps where they stay in the bracket, bisections elsewhere.
    for _ in range(_MOST_NEWTON):
        with np.errstate(all="ignore"):
            value, slope = curve(point)
            ahead = point - value / slope
        if np.all(np.abs(ahead - point) <= _NEAR_ROOT):
            break
        low, high = np.where(value <= 0.0, point, low), np.where(value <= 0.0, high, point)
        point = np.where((ahead > low) & (ahead < high), ahead, 0.5 * (low + high))
    return np.exp(point)
