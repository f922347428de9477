"""Excess risks of private convex optimization when only moments of the records' slopes are bounded.

What it computes: with L_s the largest norm of the gradient of record s on the domain and E L_s^j ≤ G_j^j,
the orders of growth that can be reached, without constants,

    bounded slopes       GD·(1/√n + √(d·log(1/δ))/(εn)),
    optimal              G_2·D/√n + G_k·D·(√d/(n√ρ))^{1-1/k},
    in most runs         G_2·D·√(ℓ/n) + G_k·D·(√d·ℓ/(n√ρ))^{1-1/k},     ℓ = log(1/failure),
    smooth, one pass     G_2·D/√n + G_k·D·(√(d·log³(n/δ))/(nε))^{1-1/k},
    strongly convex      G_2²·ℓ/(μn) + (G_k²/μ)·(d·ℓ²/(n²ρ))^{1-1/k},

and two bounds with their constants: that of population-level localization, and that of phased clipped steps
on generalized linear models.

Source: T (12.1), (12.2), (12.3), Propositions 12.3.7, Theorems 12.3.8, 12.7.6, 12.8.2, Corollary 12.5.1. The
printed constants of the two bounds are wrong (docs/corrections/heavy_tails.md), and ``printed=True`` returns
them.

Formal guarantee: none of privacy. ρ is that of zCDP: a run is ρ-zCDP if its Rényi divergence of every order α
> 1 is at most αρ.

Cost: none; float64 on the host.

Example:
    >>> from dpsco_jax.rates import heavy_tailed
    >>> moments = heavy_tailed.Moments(order=4.0, highest=2.0, second=1.0)
    >>> print(f"{heavy_tailed.optimal(moments, 1.0, num_users=10**4, dim=10, rho=0.5):.3e}")
    2.085e-02
"""

import dataclasses
import math
from typing import Annotated

from dpsco_jax._argument_kinds import Count, Flag, Inside, Kind, Nonnegative, Positive, checked
from dpsco_jax._checks import require, require_instance, require_real

__all__ = [
    "Moments",
    "OfMoments",
    "glm_bound",
    "high_probability",
    "lipschitz",
    "localization_bound",
    "optimal",
    "smooth",
    "strongly_convex",
]


@dataclasses.dataclass(frozen=True)
class Moments:
    """Public bounds on the moments of L_s, the largest norm of the gradient of a record on the domain.

    They are inputs: a bound that is estimated from the private records voids the guarantee of whatever is
    calibrated by it.

    Attributes:
        order: k ≥ 2, any real number; ``math.inf`` for L_s ≤ ``highest`` always.
        highest: G_k with E L_s^k ≤ G_k^k.
        second: G_2 with E L_s² ≤ G_2²; ``highest`` if left out, which is always true of it.
        first: G_1 with E L_s ≤ G_1; ``second`` if left out.

    Raises:
        ValueError: k is below 2, a bound is not positive and finite, or not G_1 ≤ G_2 ≤ G_k.
    """

    order: float
    highest: float
    second: float = None  # type: ignore[assignment]
    first: float = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        order = self.order
        if order != math.inf:
            order = require_real("order", order, 2.0, closed=True)
        highest = require_real("highest", self.highest, 0)
        second = highest if self.second is None else require_real("second", self.second, 0)
        first = second if self.first is None else require_real("first", self.first, 0)
        require(second <= highest, "second", second, f"at most highest = {highest}")
        require(first <= second, "first", first, f"at most second = {second}")
        for name, value in zip(
            ("order", "highest", "second", "first"), (order, highest, second, first), strict=True
        ):
            object.__setattr__(self, name, value)

    @property
    def power(self) -> float:
        """1 - 1/k."""
        return 1 - 1 / self.order


OfMoments = Annotated[Moments, Kind(require_instance, (Moments,))]
"""The kind of an argument that is ``Moments``."""


@checked
def lipschitz(
    lipschitz: Positive,
    distance: Positive,
    *,
    num_users: Count,
    dim: Count,
    epsilon: Positive,
    delta: Inside,
) -> float:
    """T (12.1): the order of the excess risk where no record has a slope above G.

    Args:
        lipschitz: G.
        distance: D, the diameter of the domain.
        num_users: n, records.
        dim: d, parameters.
        epsilon: ε.
        delta: δ.
    """
    private = math.sqrt(dim * math.log(1 / delta)) / (epsilon * num_users)
    return lipschitz * distance * (1 / math.sqrt(num_users) + private)


@checked
def optimal(
    moments: OfMoments, distance: Positive, *, num_users: Count, dim: Count, rho: Positive
) -> float:
    """T (12.2): the order that no ρ-zCDP algorithm can be below, in expectation.

    Args:
        moments: bounds on the moments of slopes.
        distance: D, the diameter of the domain.
        num_users: n, records.
        dim: d, parameters.
        rho: ρ of zCDP.
    """
    return _rate(moments, distance, num_users, math.sqrt(dim / rho) / num_users)


@checked
def high_probability(
    moments: OfMoments,
    distance: Positive,
    *,
    num_users: Count,
    dim: Count,
    rho: Positive,
    failure: Inside,
) -> float:
    """T Theorem 12.3.8: the order that population-level localization exceeds rarely; see the file's text.

    Args:
        moments: bounds on the moments of slopes.
        distance: D, the diameter of the domain.
        num_users: n, records.
        dim: d, parameters.
        rho: ρ of zCDP.
        failure: how often the risk may be larger.
    """
    log = math.log(1 / failure)
    return _rate(moments, distance, num_users / log, math.sqrt(dim / rho) * log / num_users)


@checked
def smooth(
    moments: OfMoments,
    distance: Positive,
    *,
    num_users: Count,
    dim: Count,
    epsilon: Positive,
    delta: Inside,
) -> float:
    """T Theorem 12.7.6: the order of one pass over records whose losses are smooth.

    Args:
        moments: bounds on the moments of slopes.
        distance: D, the diameter of the domain.
        num_users: n, records.
        dim: d, parameters.
        epsilon: ε.
        delta: δ.
    """
    noise = math.sqrt(dim * math.log(num_users / delta) ** 3) / (num_users * epsilon)
    return _rate(moments, distance, num_users, noise)


@checked
def strongly_convex(
    moments: OfMoments,
    convexity: Positive,
    *,
    num_users: Count,
    dim: Count,
    rho: Positive,
    failure: Inside,
    printed: Flag = False,
) -> float:
    """T Corollary 12.5.1: the order that rounds of localization exceed rarely on μ-strongly convex losses.

    A round of excess E starts the next one within D = √(2E/μ), and its own excess is r·D, r the order of
    ``high_probability`` at D = 1: so E comes down to the order of r²/μ, whose two terms are these.

    Args:
        moments: bounds on the moments of slopes.
        convexity: μ.
        num_users: n, records.
        dim: d, parameters.
        rho: ρ of zCDP.
        failure: how often the risk may be larger.
        printed: with ℓ³ in place of ℓ², as printed, which is true and more.
    """
    log = math.log(1 / failure)
    private = dim * log ** (3 if printed else 2) / (num_users**2 * rho)
    statistical = moments.second**2 * log / num_users
    return (statistical + moments.highest**2 * private**moments.power) / convexity


@checked
def localization_bound(
    first: Nonnegative,
    error: Nonnegative,
    distance: Positive,
    *,
    strength: Positive,
    num_phases: Count,
    printed: Flag = False,
) -> float:
    """T Proposition 12.3.7: F(x_I) - F(x*) of population-level localization, λ_i = λ·32^i.

    G_1Δ/(8^I λ) + 16Δ²/λ + 16λD², if every phase ends within Δ·4^i/λ_i of the minimizer of its own
    objective. Proof: phase i compares its minimizer with that of the phase before, at λ_i/2 times the squared
    distance from where that phase has *ended*. That is (λ_1/2)·D² = 16λD² first, then (λ_{i+1}/2)·(Δ4^i/λ_i)²
    = (16Δ²/λ)·2^{-i} for i = 1, 2, ....

    Args:
        first: G_1, Lipschitz constant of the risk.
        error: Δ.
        distance: D, from the start to a minimizer of the risk.
        strength: λ.
        num_phases: I.
        printed: what the thesis prints, G_1Δ/(8^I λ) + Δ²/(4λ) + λD²/2, which is false.
    """
    last = first * error / strength * 8.0**-num_phases
    if printed:
        return last + error**2 / (4 * strength) + strength * distance**2 / 2
    return last + 16 * error**2 / strength + 16 * strength * distance**2


@checked
def glm_bound(
    moments: OfMoments,
    distance: Positive,
    *,
    num_users: Count,
    dim: Count,
    rho: Positive,
    step_size: Positive,
    clip_norm: Positive,
    printed: Flag = False,
) -> float:
    """T Theorem 12.8.2: the expected excess risk of one pass of phased clipped steps on a GLM.

    With η and C, phase i has n/2^i records, steps η/16^i, clips to 2^i·C and adds noise of deviation η_i·C_i·
    √(2/ρ). The sum of what the phases lose is at most

        16D²/(ηn) + ηG_2²/30 + 32dηC²/(ρn) + G_k^k·D/C^{k-1} + G_1·η·C·√(2d/ρ)·8^{-I},   I = ⌊log₂ n⌋.

    Args:
        moments: bounds on the moments of slopes.
        distance: D, the diameter of the domain.
        num_users: n, records used, a power of two.
        dim: d, parameters.
        rho: ρ of zCDP.
        step_size: η.
        clip_norm: C.
        printed: 4G_2·D/√n + 26G_k·D·(√d/(n√ρ))^{1-1/k}, which is not what the proof adds up to.
    """
    if printed:
        noise = math.sqrt(dim / rho) / num_users
        second, highest = moments.second, moments.highest
        return distance * (4 * second / math.sqrt(num_users) + 26 * highest * noise**moments.power)
    phases = num_users.bit_length() - 1
    steps = 16 * distance**2 / (step_size * num_users) + step_size * moments.second**2 / 30
    noise = 32 * dim * step_size * clip_norm**2 / (rho * num_users)
    end = moments.first * step_size * clip_norm * math.sqrt(2 * dim / rho) * 8.0**-phases
    return steps + noise + distance * _dropped(moments, clip_norm) + end


def _rate(moments: Moments, distance: float, num_users: float, noise: float) -> float:
    statistical = moments.second * distance / math.sqrt(num_users)
    return statistical + moments.highest * distance * noise**moments.power


def _dropped(moments: Moments, clip_norm: float) -> float:
    """G_k^k/C^{k-1}; nothing where slopes are bounded by the clip."""
    if moments.order == math.inf:
        return 0.0 if clip_norm >= moments.highest else math.inf
    return moments.highest * (moments.highest / clip_norm) ** (moments.order - 1)
