"""Does the chain x -> y -> x of a log-Laplace transform contract as it should? In one dimension.

for φ on the line, ψ(x) = log ∫ exp(xy - φ(y)) dy and F on an interval, the joint law

    (x, y) ∝ exp(-F(x) - (1 + κ)·ψ(x) + xy - φ(y)),    κ = ημ,

whose two conditional laws are what the chain draws in turn. Its kernel over the root of the product of its
marginals has singular values 1 = σ₁ > σ₂ >= ...; one step of the chain contracts variances by σ₂² = max
corr(h(y), g(x))².

Source: T Algorithm 15, Theorem 5.4.12; the bound is own, and takes the place of T Lemma 5.3.7 (correction
X25).

Formal guarantee: for convex F, σ₂² <= 1/(1 + κ). For u(x) = E[h(y)|x] the derivative is the covariance of h
and y under D_x; Brascamp and Lieb with the potential F + κψ give Var u <= E[Cov(h, y)²/ψ″]/κ <= E
Var(h|x)/κ, as ψ″ is the variance of y; and Var h = Var u + E Var(h|x) >= (1 + κ)·Var u. Equality for F = 0
on the whole line. What is computed is the matrix on the nodes of two Gauss-Legendre rules; ``change`` says
what half as many nodes would give.

Cost: one singular value decomposition of ``num_nodes``² numbers, on the host.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Float

from dpsco_jax import _checks

Potential = Callable[[Float[np.ndarray, " points"]], Float[np.ndarray, " points"]]


class GapCheck(NamedTuple):
    """What was found.

    Attributes:
        contraction: σ₂².
        bound: 1/(1 + κ).
        change: between the contraction for these nodes and for half as many.
    """

    contraction: float
    bound: float
    change: float


def llt_gap_check(
    phi: Potential,
    relative_convexity: float,
    *,
    domain: tuple[float, float],
    support: tuple[float, float],
    potential: Potential | None = None,
    num_nodes: int = 400,
) -> GapCheck:
    """The contraction of a chain beside its bound.

    Args:
        phi: φ, of a vector of y.
        relative_convexity: κ = ημ, above 0.
        domain: the interval of x. A long one stands for the line.
        support: the interval of y. A long one stands for the line.
        potential: F, of a vector of x, convex; 0 if left out.
        num_nodes: of each rule; even, at least 32.

    Raises:
        ValueError: an argument is out of its range, or φ or F is not finite somewhere.
    """
    _checks.require_callable("phi", phi)
    if potential is not None:
        _checks.require_callable("potential", potential)
    kappa = _checks.require_real("relative_convexity", relative_convexity, 0.0)
    num_nodes = _checks.require_integer("num_nodes", num_nodes, 32)
    _checks.require(num_nodes % 2 == 0, "num_nodes", num_nodes, "even")
    sides = tuple(
        _interval(name, value) for name, value in (("domain", domain), ("support", support))
    )
    found = _contraction(phi, kappa, potential, sides, num_nodes)
    coarse = _contraction(phi, kappa, potential, sides, num_nodes // 2)
    return GapCheck(found, 1.0 / (1.0 + kappa), abs(found - coarse))


def _contraction(
    phi: Potential,
    kappa: float,
    potential: Potential | None,
    sides: tuple[tuple[float, float], ...],
    num_nodes: int,
) -> float:
    x, x_weights = _nodes(*sides[0], num_nodes)
    y, y_weights = _nodes(*sides[1], num_nodes)
    log_y = np.log(y_weights) - _values("phi", phi, y)
    exponents = x[:, None] * y + log_y
    transform = scipy.special.logsumexp(exponents, axis=1)
    log_x = np.log(x_weights) - (1.0 + kappa) * transform
    if potential is not None:
        log_x = log_x - _values("potential", potential, x)
    joint = exponents + log_x[:, None]
    joint = joint - scipy.special.logsumexp(joint)
    over = scipy.special.logsumexp(joint, axis=1, keepdims=True)
    under = scipy.special.logsumexp(joint, axis=0, keepdims=True)
    kernel = np.exp(joint - 0.5 * (over + under))
    return float(np.linalg.svd(kernel, compute_uv=False)[1] ** 2)


def _nodes(low: float, high: float, num: int) -> tuple[np.ndarray, np.ndarray]:
    """A Gauss-Legendre rule that is as fine in the middle of a long interval as in a short one."""
    points, weights = np.polynomial.legendre.leggauss(num)
    half = 0.5 * (high - low)
    bend = math.asinh(half)
    stretch = half / math.sinh(bend)
    x = 0.5 * (low + high) + stretch * np.sinh(bend * points)
    return x, weights * bend * stretch * np.cosh(bend * points)


def _values(name: str, function: Potential, points: np.ndarray) -> np.ndarray:
    values = np.asarray(function(points), np.float64)
    _checks.require(
        values.shape == points.shape, f"{name} by its shape", values.shape, "of a vector"
    )
    _checks.require_finite(f"values of {name}", values)
    return values


def _interval(name: str, value: tuple[float, float]) -> tuple[float, float]:
    good = isinstance(value, tuple) and len(value) == 2
    _checks.require(good, name, value, "a pair of numbers")
    low = _checks.require_real(f"{name}[0]", value[0], -math.inf)
    return low, _checks.require_real(f"{name}[1]", value[1], low)
