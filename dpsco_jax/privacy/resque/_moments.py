"""Moments of ReSQue weights and of their differences, in closed form.

A gradient at x̄ + ξ, ξ ~ N(0, ρ² I), serves every point x̄ + v of a ball when it is multiplied by the weight
w(v, ξ) = exp(⟨v, ξ⟩/ρ² - |v|²/(2ρ²)). All lengths here are in units of ρ.

Source: thesis, Definition 2.2.2 and Lemma 2.2.4. Its constants (2 for weights, 24 p for differences, within
|v| <= 1/p) are replaced by what a change of measure gives, without a condition on the radius. Proofs:
docs/theory/resque.md, Lemma 1.

Formal guarantee: upper bounds on Lp norms over ξ; no privacy by itself.

Cost: a few operations.
"""

import numpy as np
from jaxtyping import Float
from scipy import special

Orders = float | np.ndarray


def log_weight_norm(order: Orders, radius: float) -> Float[np.ndarray, "..."]:
    """Log of ‖w(v, ξ)‖_p for |v| = ``radius``, exactly; it grows with the radius.

    Args:
        order: p, above 0.
        radius: |v|, in units of ρ.
    """
    return np.asarray(0.5 * (np.asarray(order, float) - 1.0) * radius * radius)


def normal_norm(order: Orders) -> Float[np.ndarray, "..."]:
    """‖N(0, 1)‖_p."""
    p = np.asarray(order, float)
    log_moment = special.gammaln(0.5 * (p + 1.0)) - 0.5 * np.log(np.pi)
    return np.asarray(np.sqrt(2.0) * np.exp(log_moment / p))


def log_difference_norm(order: Orders, radius: float) -> Float[np.ndarray, "..."]:
    """Log of M_p: ‖w(v, ξ) - w(v', ξ)‖_p <= M_p |v - v'| for |v|, |v'| <= ``radius``.

    M_p = exp((p-1) a²/2) ((p-1) a + ‖N(0, 1)‖_p), about √p while a is at most 1/√p.

    Args:
        order: p, at least 1.
        radius: a, in units of ρ, as are |v|, |v'| and |v - v'|.
    """
    p = np.asarray(order, float)
    return np.asarray(log_weight_norm(p, radius) + np.log((p - 1.0) * radius + normal_norm(p)))
