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
from typing import NamedTuple

from dpsco_jax._argument_kinds import Inside, Positive, checked
from dpsco_jax._checks import require


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


@checked
def gdp_of_draw(
    inverse_temperature: Positive,
    regularization: Positive,
    num_users: Positive,
    lipschitz_diff: Positive,
) -> float:
    """The s = G_Δ·√k/(n·√μ) for which an exact draw is s-Gaussian DP (T Thms 3.2.1, 4.1.3).

    Args:
        inverse_temperature: k.
        regularization: μ.
        num_users: n, of which one record is replaced.
        lipschitz_diff: G_Δ.
    """
    slope = lipschitz_diff * math.sqrt(inverse_temperature)
    return slope / (num_users * math.sqrt(regularization))


@checked
def erm(
    gdp: Positive,
    num_users: Positive,
    dim: Positive,
    lipschitz_diff: Positive,
    regularizer_range: Positive,
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
    s, n, d, slope = gdp, num_users, dim, lipschitz_diff
    k = s * n / slope * math.sqrt(d / regularizer_range)
    return _draw(k, slope**2 * k / (s * n) ** 2, s, d, regularizer_range, 0.0)


@checked
def sco(
    gdp: Positive,
    num_users: Positive,
    dim: Positive,
    lipschitz: Positive,
    lipschitz_diff: Positive,
    regularizer_range: Positive,
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
    slope, least = _slopes(lipschitz, lipschitz_diff)
    s, n, d, theta = gdp, num_users, dim, regularizer_range
    bias = (slope / (s * n)) ** 2 * theta  # C₁
    k = math.sqrt((d + s**2 * n * least / slope) / bias)
    mu = slope**2 * k / (s * n) ** 2
    return _draw(k, mu, s, d, theta, slope * least / (n * mu))


@checked
def thrifty_sco(
    gdp: Positive,
    num_users: Positive,
    dim: Positive,
    lipschitz: Positive,
    lipschitz_diff: Positive,
    regularizer_range: Positive,
) -> Draw:
    """``sco`` at min(s, √(2d/n)): more privacy, O(nd) queries, a constant factor of risk (T Thm 3.6.9).

    Arguments are those of ``sco``.

    Example:
        >>> round(thrifty_sco(0.311, 100, 2, 1.0, 2.0, 0.5).gdp, 6)
        0.2
    """
    enough = math.sqrt(2.0 * dim / num_users)
    return sco(min(gdp, enough), num_users, dim, lipschitz, lipschitz_diff, regularizer_range)


@checked
def strongly_convex(
    gdp: Positive,
    num_users: Positive,
    dim: Positive,
    lipschitz_diff: Positive,
    strong_convexity: Positive,
    lipschitz: Positive | None = None,
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
    s, n, d, mu = gdp, num_users, dim, strong_convexity
    apart = 0.0
    if lipschitz is not None:
        slope, least = _slopes(lipschitz, lipschitz_diff)
        apart = slope * least / (n * mu)
    return _draw((s * n / lipschitz_diff) ** 2 * mu, mu, s, d, 0.0, apart)


@checked
def pure_erm(
    epsilon: Positive,
    num_users: Positive,
    dim: Positive,
    lipschitz_diff: Positive,
    diameter: Positive,
) -> float:
    """G_Δ·D·d/(nε): empirical risk of the exponential mechanism exp(-kF), pure ε at k = εn/(G_Δ·D) (T (3.2)).

    Args:
        epsilon: ε.
        num_users: n.
        dim: d.
        lipschitz_diff: G_Δ.
        diameter: D, of the domain in the norm in which G_Δ is meant.
    """
    return lipschitz_diff * diameter * dim / (num_users * epsilon)


@checked
def deviation(
    lipschitz: Positive,
    inverse_temperature: Positive,
    regularization: Positive,
    failure: Inside,
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
    curvature = inverse_temperature * regularization
    return lipschitz * math.sqrt(-2.0 * math.log(failure) / curvature)


def _slopes(g: float, slope: float) -> tuple[float, float]:
    """G_Δ, and the smaller of G and G_Δ."""
    require(slope <= 2.0 * g, "lipschitz_diff", slope, f"at most 2 * lipschitz = {2.0 * g}")
    return slope, min(g, slope)


def _draw(k: float, mu: float, s: float, d: float, theta: float, apart: float) -> Draw:
    return Draw(k, mu, s, mu * theta, d / k, apart)
