"""Norms by numbers: dual exponents, ratios of ℓp norms, and how far strongly convex regularizers range.

What it computes: for r(x) = c·‖x - x₀‖_q²/(2(q - 1)) with c = d^(2(1/p - 1/q)), which is 1-strongly convex in
the ℓp norm for every q in [p, 2] above 1, the q of least range over an ℓp ball, and that range Θ. With
singular values for entries and the smaller side for d, the same for Schatten norms.

Source: Ball, Carlen and Lieb 1994 (‖x‖_q²/(2(q - 1)) is 1-strongly convex in ℓq, 1 < q <= 2); thesis (4.2),
Proposition 4.4.7, Corollaries 4.4.10 to 4.4.13. Corrected where docs/corrections.md says so: q = 1 + 1/log d
at p = 1 exceeds 2 for d < e and divides by 0 at d = 1; here q is the minimizer, and works for every d.

Formal guarantee: ‖v‖_p <= d^(1/p - 1/q)·‖v‖_q for p <= q, so ½·c·‖h‖_q² >= ½·‖h‖_p², which is the strong
convexity. For p <= q, ‖x‖_q <= ‖x‖_p, with equality on the axes: Θ = c·R²/(2(q - 1)). For p >= 2, q = 2 and
c = 1, since ‖h‖_p <= ‖h‖₂, and Θ = ½·d^(1 - 2/p)·R², attained where all entries are equal.

Derivation of q: log Θ = const - (2/q)·L - log(q - 1), L = log d, has the derivative 2L/q² - 1/(q - 1), with
the zeros q = L ± √(L² - 2L). For L < 2 it is negative throughout and q = 2 is best. For L >= 2 the smaller
zero, 2/(1 + √(1 - 2/L)), lies in (1, 2] and is a minimum, and the larger one is at least 2: on [p, 2] the
minimizer is the smaller zero, or p where that is larger.

Cost: none; float64 on the host.
"""

import math
from typing import Annotated, SupportsFloat

import numpy as np

from dpsco_jax._argument_kinds import Count, Kind, Positive, checked
from dpsco_jax._checks import require, require_within


def require_exponent(name: str, value: SupportsFloat) -> float:
    """The exponent of a norm as a ``float``; ``ValueError`` unless it is one number in [1, inf]."""
    require_within(name, value, 1.0, math.inf)
    require(np.ndim(value) == 0, name, value, "one number in [1, inf]")  # type: ignore[arg-type]
    return float(value)


Exponent = Annotated[float, Kind(require_exponent)]


@checked
def dual_exponent(p: Exponent) -> float:
    """The q with 1/p + 1/q = 1; of 1 it is ``inf``, of ``inf`` it is 1.

    Args:
        p: in [1, inf].

    Example:
        >>> dual_exponent(4), dual_exponent(1)
        (1.3333333333333333, inf)
    """
    if p == 1.0:
        return math.inf
    return 1.0 / (1.0 - 1.0 / p)


@checked
def norm_ratio(p: Exponent, q: Exponent, dim: Count) -> float:
    """The largest ‖x‖_p/‖x‖_q over x with d entries: d^(1/p - 1/q) for p <= q, else 1.

    Args:
        p: in [1, inf].
        q: in [1, inf].
        dim: d.

    Example:
        >>> norm_ratio(1, 2, 100), norm_ratio(2, 1, 100)
        (10.0, 1.0)
    """
    return float(dim) ** max(1.0 / p - 1.0 / q, 0.0)


@checked
def best_exponent(p: Exponent, dim: Count) -> float:
    """The q for which c·‖x‖_q²/(2(q - 1)) ranges least over an ℓp ball; 2 for p >= 2.

    Args:
        p: of the norm, in [1, inf].
        dim: d; of matrices in Schatten norms the smaller side.

    Example:
        >>> best_exponent(1.0, 3), best_exponent(1.5, 10**6), round(best_exponent(1.0, 1000), 3)
        (2.0, 1.5, 1.085)
    """
    log = math.log(dim)
    if p >= 2.0 or log <= 2.0:
        return 2.0
    return max(p, 2.0 / (1.0 + math.sqrt(1.0 - 2.0 / log)))


@checked
def regularizer_weight(p: Exponent, dim: Count) -> float:
    """The w = c/(q - 1) with which r(x) = (w/2)·‖x - x₀‖_q², at the best q, is 1-strongly convex in ℓp.

    Args:
        p: of the norm, in [1, inf].
        dim: d; of matrices in Schatten norms the smaller side.

    Example:
        >>> [round(regularizer_weight(*of), 6) for of in ((1.0, 3), (1.5, 10**6), (4.0, 10))]
        [3.0, 2.0, 1.0]
    """
    q = best_exponent(p, dim)
    return norm_ratio(p, q, dim) ** 2 / (q - 1.0)


@checked
def regularizer_range(p: Exponent, dim: Count, radius: Positive = 1.0) -> float:
    """Θ: how far that regularizer ranges over the ℓp ball of a radius around its center.

    Args:
        p: of the norm, in [1, inf].
        dim: d; of matrices in Schatten norms the smaller side.
        radius: R, of a ball around x₀ that holds the domain.

    Example:
        >>> [round(regularizer_range(1.0, dim), 2) for dim in (3, 10, 100)]
        [1.5, 4.64, 11.07]
    """
    q = best_exponent(p, dim)
    farthest = norm_ratio(q, p, dim) * radius
    return 0.5 * regularizer_weight(p, dim) * farthest**2
