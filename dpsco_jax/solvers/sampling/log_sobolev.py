"""How long a proximal chain must be when its target has a log-Sobolev constant, convex or not.

What it computes: as ``chain_lengths``, for targets that need not be strongly log-concave, and the constants
of bounded and of Lipschitz perturbations. A law π has the constant α if KL(ρ‖π) ≤ FI(ρ‖π)/(2α) for every ρ,
FI the relative Fisher information; an m-strongly log-concave law on a convex set has α = m (Bakry, Émery).

Source: T, Theorem 6.6.1 (Chen, Chewi, Salim and Wibisono 2022), here with its start; Holley and Stroock
1987. The constant of a Lipschitz perturbation is derived here.

Formal guarantee: docs/theory/log_sobolev.md has the proofs. They hold on every data set on which the
constants do, in any dimension, and are rounded away from what would be unsafe.

Cost: none. The bounds may be traced.

Example:
    >>> from dpsco_jax.solvers.sampling import chain_lengths, log_sobolev
    >>> alpha = log_sobolev.lipschitz_perturbation(convexity=1.0, lipschitz=0.5)
    >>> log_sobolev.log_sobolev_steps(1e-9, 0.01, alpha, 3.0)
    5090
    >>> log_sobolev.log_sobolev_steps(1e-9, 0.01, 1.0, 3.0), chain_lengths.mixing_steps(1e-9, 0.01, 1.0, 3.0)
    (2356, 2356)
"""

import math
from typing import Any, SupportsFloat

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Nonnegative, Positive, checked
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import Scalar
from dpsco_jax.solvers.sampling.chain_lengths import least_steps, left_after

__all__ = [
    "bounded_perturbation",
    "lipschitz_perturbation",
    "log_sobolev_steps",
    "log_sobolev_variation",
]


def log_sobolev_variation(
    num_steps: Scalar, step_size: Scalar, log_sobolev: Scalar, start_distance: Scalar
) -> Any:
    """How far the law of x_T is at most from the target, in total variation, if every step is exact.

    Args:
        num_steps: T, as ``chain_lengths.mixing_variation`` has it, and the others.
        step_size: η.
        log_sobolev: α, above 0, of the target, on every data set.
        start_distance: W.

    Returns:
        (1 + ηα)^{-(T - ½)}·W/(2√η), rounded up, at most 1.

    Raises:
        ValueError: a concrete argument is out of range.

    Example:
        >>> bool(log_sobolev_variation(20, 1.0, 1.0, 0.5) * 2**20 < 0.36)
        True
    """
    _checks.require_positive("log_sobolev", log_sobolev)
    return left_after(0.5, num_steps, step_size, log_sobolev, start_distance)


def log_sobolev_steps(
    variation: SupportsFloat,
    step_size: SupportsFloat,
    log_sobolev: SupportsFloat,
    start_distance: SupportsFloat,
) -> int:
    """The least T for which ``log_sobolev_variation`` is at most the given one.

    Args:
        variation: in (2^-1000, 1).
        step_size: η, as the next ones those of ``log_sobolev_variation``.
        log_sobolev: α.
        start_distance: W.

    Raises:
        ValueError: an argument is out of range.
        Infeasible: that are more steps than a loop can count, 2³¹.
    """
    return least_steps(
        log_sobolev_variation, "log_sobolev", variation, step_size, log_sobolev, start_distance
    )


@checked
def bounded_perturbation(log_sobolev: Positive, oscillation: Nonnegative) -> float:
    """α·e^{-osc}, rounded down: the constant of exp(-V - U) where exp(-V) has α and sup U - inf U ≤ osc.

    Args:
        log_sobolev: α of the law that is perturbed, above 0.
        oscillation: at least 0. Of k·F, F the mean of losses that move by at most b over the set, it is k·b.

    Raises:
        ValueError: an argument is out of range.
        Infeasible: the constant is below all floats.

    Example:
        >>> 0.3678 < bounded_perturbation(1.0, 1.0) < 0.36788
        True
    """
    return _above_zero(log_sobolev * math.exp(-oscillation), "oscillation", oscillation)


@checked
def lipschitz_perturbation(convexity: Positive, lipschitz: Nonnegative) -> float:
    """The constant of exp(-V - U), V m-strongly convex on a convex set and U L-Lipschitz, in any dimension.

    For every γ > 1/m it is at least (m - 1/γ)·exp(-L²γ/2): the upper envelope sup_y U(y) - ‖x - y‖²/(2γ) is
    at most L²γ/2 above U, and bends V by 1/γ at most. This is the largest of these, attained at γ = (1 +
    √(1 + 8m/L²))/(2m).

    Args:
        convexity: m, above 0.
        lipschitz: L of U, at least 0. U need not be smooth, bounded or convex.

    Returns:
        The constant, rounded down; m where L is 0.

    Raises:
        ValueError: an argument is out of range.
        Infeasible: the constant is below all floats.

    Example:
        >>> round(lipschitz_perturbation(1.0, 0.1), 3), round(lipschitz_perturbation(1.0, 3.0), 5)
        (0.866, 0.00075)
    """
    m, slope = convexity, lipschitz
    if slope == 0.0:
        return m
    # With t = mγ - 1 > 0 nothing cancels: t = (√(1 + 8/q) - 1)/2, q = L²/m.
    q = slope * (slope / m)
    if not 0.0 < q < math.inf:  # at t = √(2/q) a slope that underflows makes no difference
        return _above_zero(m * (1.0 - 1e-150) if q == 0.0 else 0.0, "lipschitz", slope)
    t = 4.0 / (q + math.sqrt(q) * math.sqrt(q + 8.0))
    return _above_zero(m * (t / (1.0 + t)) * math.exp(-0.5 * q * (1.0 + t)), "lipschitz", slope)


def _above_zero(constant: float, name: str, value: float) -> float:
    constant *= 1.0 - 2.0**-40
    if not constant > 0.0:
        raise Infeasible(f"{name} must leave a constant above zero in float64, got {value}")
    return constant
