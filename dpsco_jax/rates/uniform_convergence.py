"""From a stationary point of the users at hand to one of their population, by uniform convergence.

What it computes: e_G and e_H such that, with probability 1 - ω over n independent users, at all points of a
set of diameter R at once their mean gradient is within e_G of that of the population, and their mean Hessian
within e_H in operator norm; and the α with which a second-order stationary point of the users is one of the
population.

Source: T Theorem 7.5.2; Pinelis 1994, Theorem 3.5; Tropp 2012, Theorem 1.4. Corrected where
docs/corrections.md says so (C7-6): the prefactor of the matrix inequality is 2d, for both ends of the
spectrum, its exponent has a factor ½, and the order is √(d/n), not √d/n.

Formal guarantee: for users whose losses are G-Lipschitz with Hessians of eigenvalues in [-a, M] and
ρ-Lipschitz Hessians. Proof: the set has N ≤ (1 + 2R/r)^d points of which one is within r of every other. At a
point the mean of n independent vectors, each within 2G of its mean, deviates by t with probability at most
2·exp(-nt²/(8G²)). Independent symmetric matrices with eigenvalues in [-a, M] have a variance of at most h²,
h = (M + a)/2, and are within 2h of their means: the mean of n deviates by t with probability at most
2d·exp(-nt²/(2h²+4ht/3)). With ω/2 for each, at all N points at once t_G = 2G·√(2·log(4N/ω)/n), and t_H =
h·(√(2l + 4l²/9) + 2l/3), l = log(4dN/ω)/n. From a point to the nearest of the N both mean gradients move by
at most Mr, and both mean Hessians by ρr: e_G = t_G + 2Mr and e_H = t_H + 2ρr, each for the best r of its
own. If ‖∇F̂‖ ≤ α and λ_min ≥ -√(ρα), then ‖∇F‖ ≤ α + e_G and λ_min ≥ -(√(ρα) + e_H) = -√(ρα'), with
α' = (√α + e_H/√ρ)².

Cost: none; float64 on the host.

Example:
    >>> from dpsco_jax.rates.uniform_convergence import erm_sosp_to_population
    >>> found = erm_sosp_to_population(10**6, dim=10, diameter=2.0, lipschitz=1.0, smoothness=1.0,
    ...     hessian_lipschitz=1.0, stationarity=0.01)
    >>> round(found.gradient, 4), round(found.hessian, 4), round(found.stationarity, 4)
    (0.0284, 0.015, 0.0384)
"""

import math
from typing import NamedTuple

import numpy as np

from dpsco_jax._argument_kinds import Count, Inside, Nonnegative, Positive, checked
from dpsco_jax._checks import require

__all__ = ["Population", "erm_sosp_to_population"]

_HALVINGS = 80


class Population(NamedTuple):
    """What holds for the population, at all points at once.

    Attributes:
        gradient: e_G, how far mean gradients are apart at most.
        hessian: e_H, how far mean Hessians are, in operator norm.
        stationarity: α of a point that is stationary for the users.
    """

    gradient: float
    hessian: float
    stationarity: float


@checked
def erm_sosp_to_population(
    num_users: Count,
    dim: Count,
    diameter: Positive,
    lipschitz: Positive,
    smoothness: Positive,
    hessian_lipschitz: Positive,
    stationarity: Nonnegative,
    failure: Inside = 0.05,
    weak_convexity: Nonnegative | None = None,
) -> Population:
    """The α of the population, of a point that is α-second-order stationary for n users.

    Args:
        num_users: n, independent.
        dim: d.
        diameter: R of the set in which the point may be, fixed before any user is seen.
        lipschitz: G.
        smoothness: M.
        hessian_lipschitz: ρ.
        stationarity: α for the users, such as ``certify`` bounds it; its failure adds to ω.
        failure: ω.
        weak_convexity: a in [0, M], of which no eigenvalue is below its negative; M if left out.
    """
    least = smoothness if weak_convexity is None else weak_convexity
    require(least <= smoothness, "weak_convexity", least, f"at most smoothness = {smoothness:g}")
    radii = diameter * 2.0 ** -np.arange(_HALVINGS)
    points = dim * np.log1p(2.0 * diameter / radii) + math.log(4.0 / failure)
    steep = 2.0 * lipschitz * np.sqrt(2.0 * points / num_users) + 2.0 * smoothness * radii
    level = (points + math.log(dim)) / num_users
    spread = np.sqrt(2.0 * level + 4.0 / 9.0 * level**2) + 2.0 / 3.0 * level
    bent = 0.5 * (smoothness + least) * spread + 2.0 * hessian_lipschitz * radii
    gradient, hessian = float(np.min(steep)), float(np.min(bent))
    down = (math.sqrt(stationarity) + hessian / math.sqrt(hessian_lipschitz)) ** 2
    return Population(gradient, hessian, max(stationarity + gradient, down))
