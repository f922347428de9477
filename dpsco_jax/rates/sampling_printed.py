"""Parameters of the regularized exponential mechanism as the thesis prints them, and how private they are.

What it computes: k and μ of six theorems, for (ε, δ), and of the draw with them what ``sampling`` says of any
k and μ: s, from G_Δ, and the parts of the risk.

Source: T Theorems 3.6.4, 3.6.9, 4.4.2, 4.4.6, Proposition 5.5.6, with the roots that the text shows to be
meant.

Formal guarantee: that of ``sampling.gdp_of_draw``, which is not what is printed. Theorems 3.6.4 and 3.6.9
mean G_Δ by G, and are (ε, 2δ/3)-DP, the second for ε < 1/10. The others mean the Lipschitz constant of a
loss: as G_Δ is twice that unless proved smaller, k is four times too large at the same μ. Besides, 4.4.2 and
4.4.6 take s = ε/√(2·log(1/(2δ))), too much for large ε, and the second of 5.5.6 takes √2 times as much.

Cost: none; float64 on the host.
"""

import math
from typing import Annotated

from dpsco_jax._argument_kinds import Positive, checked, one_of, real
from dpsco_jax._checks import require
from dpsco_jax.rates.sampling import Draw, gdp_of_draw

THEOREMS = ("3.6.4", "3.6.9", "4.4.2", "4.4.6", "5.5.6 ERM", "5.5.6 SCO")
_POPULATION = ("3.6.9", "4.4.6", "5.5.6 SCO")


@checked
def printed(
    theorem: Annotated[str, one_of(*THEOREMS)],
    num_users: Positive,
    dim: Positive,
    epsilon: Positive,
    delta: Annotated[float, real(0.0, 0.5)],
    lipschitz: Positive,
    regularizer_range: Positive,
    lipschitz_diff: Positive | None = None,
) -> Draw:
    """The draw with k and μ of a theorem to the letter; ``gdp`` is the s that it has, not the one it claims.

    Args:
        theorem: one of ``THEOREMS``; 3.6.9, 4.4.6 and 5.5.6 SCO are for the population.
        num_users: n.
        dim: d.
        epsilon: ε.
        delta: δ, below ½.
        lipschitz: G, of every loss.
        regularizer_range: Θ; where print has D²/2.
        lipschitz_diff: G_Δ, at most 2G; 2G if ``None``.

    Example:
        >>> round(printed("4.4.2", 500, 10, 1.0, 1e-6, 1.0, 0.5).gdp, 3)  # 0.237 is (1, 1e-6)-DP
        0.39
    """
    n, d, e, g, theta = num_users, dim, epsilon, lipschitz, regularizer_range
    slope = 2.0 * g if lipschitz_diff is None else lipschitz_diff
    require(slope <= 2.0 * g, "lipschitz_diff", slope, f"at most 2 * lipschitz = {2.0 * g}")
    if theorem in ("3.6.4", "3.6.9"):
        k, mu = _chapter_3(theorem, n, d, e, -math.log(4.0 * delta / 3.0), slope, theta)
    else:
        k, mu = _later(theorem, n, d, e, -math.log(2.0 * delta), g, theta)
    apart = slope * min(g, slope) / (n * mu) if theorem in _POPULATION else 0.0
    return Draw(k, mu, gdp_of_draw(k, mu, n, slope), mu * theta, d / k, apart)


def _chapter_3(
    theorem: str, n: float, d: float, e: float, log: float, g: float, theta: float
) -> tuple[float, float]:
    """Here log is log(3/(4δ)) and G that of differences."""
    diameter = math.sqrt(2.0 * theta)
    if theorem == "3.6.4":
        root = math.sqrt(log + e) - math.sqrt(log)
        mu = g * math.sqrt(d) / (n * diameter * root)
        return 2.0 * mu * (n * root / g) ** 2, mu
    mu = g / diameter * math.sqrt(2.0 * (2.0 * log * d / (e * n) ** 2 + 0.5 / n))
    return mu / g**2 * min((e * n) ** 2 / (2.0 * log), 2.0 * n * d), mu


def _later(
    theorem: str, n: float, d: float, e: float, log: float, g: float, theta: float
) -> tuple[float, float]:
    """Here log is log(1/(2δ)) and G that of a loss."""
    if theorem == "5.5.6 SCO":
        k = math.sqrt((d * log / (e * n) ** 2 + 1.0 / n) / theta) / g
        k *= min((e * n) ** 2 / log, n * d)
        return k, g**2 * k * max(log / (e * n) ** 2, 1.0 / (n * d))
    bias = 2.0 * g**2 * theta * log / (e * n) ** 2  # C₁
    spread = n * e**2 / (2.0 * log) if theorem == "4.4.6" else 0.0  # C₂
    k = math.sqrt((d + spread) / bias)
    return k, 2.0 * g**2 * k * log / (e * n) ** 2
