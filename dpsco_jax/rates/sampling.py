"""What a draw from exp(-k(F + μr)) promises: parameters, privacy and risk.

What it computes: for n records, d parameters, losses that are G-Lipschitz in some norm with differences of
two losses G_Δ-Lipschitz, r 1-strongly convex in that norm with range Θ over the domain, and a draw that is to
be s-Gaussian DP under the replacement of one record:

    erm               k = (sn/G_Δ)·√(d/Θ)        risk μΘ + d/k = 2·G_Δ·√(dΘ)/(sn)
    sco               k = √((d + C₂)/C₁)         risk μΘ + d/k + G_Δ·G'/(nμ) = 2·√(C₁(d + C₂))
    strongly_convex   μ is that of the losses    risk d/k, or d/k + G_Δ·G'/(nμ) for the population
    pure_erm          k = εn/(G_Δ·D), no r       risk d/k

with μ = G_Δ²k/(s²n²) throughout, C₁ = G_Δ²Θ/(s²n²), C₂ = s²n·G'/G_Δ, G' = min(G, G_Δ). Further how far one
draw is above its mean. Figure 3.1 and Table 4.1 are in ``sampling_tables``, lower bounds in
``value_queries``.

Source: T Lemma 3.6.1, Theorems 3.6.2 to 3.6.9, 4.1.3, 4.4.2, 4.4.6, 4.5.2, 4.5.3, Lemma 4.4.14, Proposition
5.5.6; to the letter they are in ``sampling_printed``. Corrected where docs/corrections.md says so: privacy
has G_Δ, which is 2G unless proved smaller; s comes from the exact curve; generalization costs G_Δ·G'/(nμ).

Formal guarantee: the draw is s-Gaussian DP with s = G_Δ·√k/(n·√μ), which is ``gdp_of_draw``, whatever k and μ
are. Proof of the risks: E F(x) + μ·E r(x) <= min(F + μr) + d/k; replacing a record moves the law of x by at
most G_Δ/(nμ) in transport distance, and what is compared is G- and G_Δ-Lipschitz. With an exact sampler and n
independent records for the population's risk; every risk is an expectation over the draw (and the records).

Cost: none; float64 on the host.
"""

import math
from typing import NamedTuple, SupportsFloat

from dpsco_jax._checks import (
    require,
    require_each,
    require_inside,
    require_positive,
)


class Draw(NamedTuple):
    """Parameters of a draw, and what they promise.

    Attributes:
        inverse_temperature: k.
        regularization: μ, of the regularizer or of the losses.
        gdp: s, as spent; for ``thrifty_sco`` it may be less than what was given.
        regularization_risk: μΘ.
        temperature_risk: d/k.
        generalization_risk: G_Δ·G'/(nμ); 0 for the empirical risk.
    """

    inverse_temperature: float
    regularization: float
    gdp: float
    regularization_risk: float
    temperature_risk: float
    generalization_risk: float

    @property
    def risk(self) -> float:
        """The bound on the expected excess risk: the sum of its three parts."""
        return self.regularization_risk + self.temperature_risk + self.generalization_risk


def gdp_of_draw(
    inverse_temperature: SupportsFloat,
    regularization: SupportsFloat,
    num_users: SupportsFloat,
    lipschitz_diff: SupportsFloat,
) -> float:
    """The s = G_Δ·√k/(n·√μ) for which an exact draw is s-Gaussian DP (T Thms 3.2.1, 4.1.3).

    Args:
        inverse_temperature: k.
        regularization: μ.
        num_users: n, of which one record is replaced.
        lipschitz_diff: G_Δ.
    """
    require_each(
        require_positive,
        inverse_temperature=inverse_temperature,
        regularization=regularization,
        num_users=num_users,
        lipschitz_diff=lipschitz_diff,
    )
    slope = float(lipschitz_diff) * math.sqrt(float(inverse_temperature))
    return slope / (float(num_users) * math.sqrt(float(regularization)))


def erm(
    gdp: SupportsFloat,
    num_users: SupportsFloat,
    dim: SupportsFloat,
    lipschitz_diff: SupportsFloat,
    regularizer_range: SupportsFloat,
) -> Draw:
    """The draw of least empirical risk (T Thms 3.6.4, 4.4.2).

    Args:
        gdp: s.
        num_users: n.
        dim: d, number of parameters; of matrices the product of the sides.
        lipschitz_diff: G_Δ.
        regularizer_range: Θ.

    Example:
        >>> draw = erm(0.311, 100, 10, 2.0, 0.5)
        >>> [round(x, 3) for x in (draw.inverse_temperature, draw.regularization, draw.risk)]
        [69.542, 0.288, 0.288]
    """
    given = {"gdp": gdp, "num_users": num_users, "dim": dim, "lipschitz_diff": lipschitz_diff}
    require_each(require_positive, **given, regularizer_range=regularizer_range)
    s, n, d, slope = float(gdp), float(num_users), float(dim), float(lipschitz_diff)
    k = s * n / slope * math.sqrt(d / float(regularizer_range))
    return _draw(k, slope**2 * k / (s * n) ** 2, s, d, float(regularizer_range), 0.0)


def sco(
    gdp: SupportsFloat,
    num_users: SupportsFloat,
    dim: SupportsFloat,
    lipschitz: SupportsFloat,
    lipschitz_diff: SupportsFloat,
    regularizer_range: SupportsFloat,
) -> Draw:
    """The draw of least population risk (T Thms 3.6.9, 4.4.6).

    Args:
        gdp: s.
        num_users: n.
        dim: d.
        lipschitz: G.
        lipschitz_diff: G_Δ, at most 2G.
        regularizer_range: Θ.

    Example:
        >>> round(sco(0.2, 100, 2, 1.0, 2.0, 0.5).risk, 3)
        0.283
    """
    given = {"gdp": gdp, "num_users": num_users, "dim": dim}
    require_each(require_positive, **given, regularizer_range=regularizer_range)
    slope, least = _slopes(lipschitz, lipschitz_diff)
    s, n, d, theta = float(gdp), float(num_users), float(dim), float(regularizer_range)
    bias = (slope / (s * n)) ** 2 * theta  # C₁
    k = math.sqrt((d + s**2 * n * least / slope) / bias)
    mu = slope**2 * k / (s * n) ** 2
    return _draw(k, mu, s, d, theta, slope * least / (n * mu))


def thrifty_sco(
    gdp: SupportsFloat,
    num_users: SupportsFloat,
    dim: SupportsFloat,
    lipschitz: SupportsFloat,
    lipschitz_diff: SupportsFloat,
    regularizer_range: SupportsFloat,
) -> Draw:
    """``sco`` at min(s, √(2d/n)): more privacy, O(nd) queries, a constant factor of risk (T Thm 3.6.9).

    Args:
        gdp: s.
        num_users: n.
        dim: d.
        lipschitz: G.
        lipschitz_diff: G_Δ, at most 2G.
        regularizer_range: Θ.

    Example:
        >>> round(thrifty_sco(0.311, 100, 2, 1.0, 2.0, 0.5).gdp, 6)
        0.2
    """
    require_each(require_positive, gdp=gdp, num_users=num_users, dim=dim)
    enough = math.sqrt(2.0 * float(dim) / float(num_users))
    rest = (num_users, dim, lipschitz, lipschitz_diff, regularizer_range)
    return sco(min(float(gdp), enough), *rest)


def strongly_convex(
    gdp: SupportsFloat,
    num_users: SupportsFloat,
    dim: SupportsFloat,
    lipschitz_diff: SupportsFloat,
    strong_convexity: SupportsFloat,
    lipschitz: SupportsFloat | None = None,
) -> Draw:
    """Losses that are μ-strongly convex each need no regularizer (T Thms 3.6.2, 3.6.8, 4.5.2, 4.5.3).

    Args:
        gdp: s.
        num_users: n.
        dim: d.
        lipschitz_diff: G_Δ.
        strong_convexity: μ, of every record's loss; on a domain of diameter D at most 2G/D.
        lipschitz: G; where it is given the risk is the population's, else the empirical one.

    Example:
        >>> strongly_convex(1.0, 100, 5, 2.0, 1.0).risk
        0.002
    """
    given = {"gdp": gdp, "num_users": num_users, "dim": dim, "lipschitz_diff": lipschitz_diff}
    require_each(require_positive, **given, strong_convexity=strong_convexity)
    s, n, d, mu = float(gdp), float(num_users), float(dim), float(strong_convexity)
    apart = 0.0
    if lipschitz is not None:
        slope, least = _slopes(lipschitz, lipschitz_diff)
        apart = slope * least / (n * mu)
    return _draw((s * n / float(lipschitz_diff)) ** 2 * mu, mu, s, d, 0.0, apart)


def pure_erm(
    epsilon: SupportsFloat,
    num_users: SupportsFloat,
    dim: SupportsFloat,
    lipschitz_diff: SupportsFloat,
    diameter: SupportsFloat,
) -> float:
    """G_Δ·D·d/(nε): empirical risk of the exponential mechanism exp(-kF), pure ε at k = εn/(G_Δ·D) (T (3.2)).

    Args:
        epsilon: ε.
        num_users: n.
        dim: d.
        lipschitz_diff: G_Δ.
        diameter: D, of the domain in the norm in which G_Δ is meant.
    """
    given = {"epsilon": epsilon, "num_users": num_users, "dim": dim, "diameter": diameter}
    require_each(require_positive, **given, lipschitz_diff=lipschitz_diff)
    width = float(lipschitz_diff) * float(diameter)
    return width * float(dim) / (float(num_users) * float(epsilon))


def deviation(
    lipschitz: SupportsFloat,
    inverse_temperature: SupportsFloat,
    regularization: SupportsFloat,
    failure: SupportsFloat,
) -> float:
    """G·√(2·log(1/β)/(kμ)): how far a G-Lipschitz function is above its mean, but for probability β.

    Of one exact draw, given the records; added to a bound on the mean it bounds the risk (T Lemma 4.4.14).

    Args:
        lipschitz: G, of the function: the loss, for either risk.
        inverse_temperature: k.
        regularization: μ.
        failure: β.

    Example:
        >>> round(deviation(1.0, 100.0, 0.02, 0.05), 3)
        1.731
    """
    require_each(
        require_positive,
        lipschitz=lipschitz,
        inverse_temperature=inverse_temperature,
        regularization=regularization,
    )
    require_inside("failure", failure)
    curvature = float(inverse_temperature) * float(regularization)
    return float(lipschitz) * math.sqrt(-2.0 * math.log(float(failure)) / curvature)


def _slopes(lipschitz: SupportsFloat, lipschitz_diff: SupportsFloat) -> tuple[float, float]:
    """G_Δ, and the smaller of G and G_Δ."""
    require_each(require_positive, lipschitz=lipschitz, lipschitz_diff=lipschitz_diff)
    g, slope = float(lipschitz), float(lipschitz_diff)
    require(slope <= 2.0 * g, "lipschitz_diff", slope, f"at most 2 * lipschitz = {2.0 * g}")
    return slope, min(g, slope)


def _draw(k: float, mu: float, s: float, d: float, theta: float, apart: float) -> Draw:
    return Draw(k, mu, s, mu * theta, d / k, apart)
