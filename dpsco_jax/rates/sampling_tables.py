"""Tables of the thesis on sampling: queries for a draw, risks in general norms, orders of the lower bounds.

What it computes: Figure 3.1, orders of growth without logarithms; Table 4.1 with the constants that its
corollaries have; the lower bounds without constants, which with constants are in ``value_queries`` and
``bounded_losses``. Names that end in ``_rate`` leave constants out, but for ``general_norm_rate``.

Source: T Figure 3.1; Table 4.1, Corollaries 4.4.10 to 4.4.13; Corollaries 3.7.6, 3.7.7, Proposition 5.7.4,
Corollaries 5.7.5, 5.7.6. Corrected where docs/corrections.md says so: G is G_Δ, twice the Lipschitz constant
of a loss unless proved smaller; δ is split, so log(1/(2δ)) is log(1/δ); at p = 1 there is no √(p - 1) in the
bound for matrices, and d is at least 3; Corollary 3.7.6 has log(nd), not log n.

Formal guarantee: none for Figure 3.1. Table 4.1 bounds the expected excess risk of draws that are (ε, δ)-DP
under the replacement of one record, where ε is small; ``sampling`` has what holds for all ε.

Cost: none; float64 on the host.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpsco_jax._argument_kinds import Count, Flag, Inside, Positive, checked
from dpsco_jax._checks import (
    require,
    require_choice,
    require_each,
    require_inside,
    require_positive,
)
from dpsco_jax.rates.norms import Exponent, norm_ratio
from dpsco_jax.rates.value_queries import UpToTwo


@checked
def general_norm_rate(
    p: Exponent,
    num_users: Positive,
    dim: Count,
    epsilon: Positive,
    delta: Inside,
    lipschitz_diff: Positive = 1.0,
    diameter: Positive = 1.0,
    population: Flag = False,
    columns: Count | None = None,
) -> float:
    """Table 4.1 with the constants of Corollaries 4.4.10 to 4.4.13, which need a small ε.

    What ``sampling.erm`` and ``sco`` promise at the exact s and the best regularizer is smaller wherever
    ε/√(2·log(1/δ)) is no more than the s of (ε, δ/2), for which ε <= 0.3 is enough.

    Args:
        p: exponent of the norm, in [1, inf]. Below 2 the constant grows like 1/√(p - 1).
        num_users: n.
        dim: d; for matrices the larger side.
        epsilon: ε.
        delta: δ.
        lipschitz_diff: G_Δ, where print has G.
        diameter: D, in the norm.
        population: whether for the population's risk, else the empirical one.
        columns: for matrices in Schatten norms the smaller side.

    Raises:
        ValueError: p is 1 and d (of matrices the smaller side) below 3, where the corollary's exponent 1 +
            1/log d is none.

    Example:
        >>> round(general_norm_rate(1.5, 10_000, 100, 0.1, 1e-6), 4)
        0.1051
    """
    require(columns is None or columns <= dim, "columns", columns, f"at most dim = {dim}")
    side, entries = (dim, dim) if columns is None else (columns, dim * columns)
    if p == 1.0:
        smaller = "dim" if columns is None else "columns"
        require(side >= 3, smaller, side, "at least 3 for p = 1")
        factor = 6.0 * math.sqrt(math.log(side))
    elif p < 2.0:
        factor = 2.0 / math.sqrt(p - 1.0)
    else:
        factor = 2.0 * norm_ratio(2.0, p, side)
    private = math.sqrt(-entries * math.log(delta)) / (num_users * epsilon)
    sampled = 1.0 / math.sqrt(num_users) if population else 0.0
    return factor * lipschitz_diff * diameter * (sampled + private)


QUERIES: Mapping[str, Mapping[str, float | None]] = {
    "BST14": {"dim": None},
    "CDJB20": {"lipschitz": None, "dim": 2.5, "epsilon": -4.0},
    "JLLV21": {"dim": 3.0},
    "GT20": {"order": 2.0, "lipschitz": 4.0, "dim": 1.0, "epsilon": -2.0},
    "LC22": {"lipschitz": 2.0, "delta": -1.0},
    "alternating": {"lipschitz": 2.0},
}
"""Figure 3.1: the exponent of every number, ``None`` where print has O(1) for it."""


def sampling_complexity(
    method: str,
    dim: Any,
    lipschitz: Any = 1.0,
    epsilon: Any = 1.0,
    delta: Any = 1e-6,
    order: Any = 2.0,
) -> Any:
    """Figure 3.1: queries for a draw from exp(-F), F a mean of G-Lipschitz losses and 1-strongly convex.

    Orders of growth, without constants and logarithms. Queries are of F for BST14 and JLLV21 (with Che21a),
    of its gradient for CDJB20, GT20 and LC22, and of the value of one loss for ``alternating``, which is the
    thesis's. What a query of F costs is n queries of losses. Arrays broadcast.

    Args:
        method: a key of ``QUERIES``.
        dim: d.
        lipschitz: G.
        epsilon: ε; of CDJB20 and GT20, the distance or divergence of what is drawn.
        delta: δ, the distance in variation; of LC22.
        order: α of the Rényi divergence, of GT20.

    Returns:
        The number; ``inf`` where print leaves the exponent of a number other than 1 open.

    Example:
        >>> sampling_complexity("alternating", 100, 30.0), sampling_complexity("GT20", 100, 30.0)
        (900.0, 324000000.0)
    """
    require_choice("method", method, tuple(QUERIES))
    numbers = {"dim": dim, "lipschitz": lipschitz, "epsilon": epsilon, "order": order}
    require_each(require_positive, **numbers)
    require_inside("delta", delta)
    numbers["delta"] = delta
    found = np.ones(())
    for name, exponent in QUERIES[method].items():
        number = np.asarray(numbers[name], np.float64)
        unknown = np.where(number == 1.0, 1.0, np.inf)
        found = found * (unknown if exponent is None else number**exponent)
    return float(found) if found.ndim == 0 else found


@checked
def minimax_rate(
    queries: Positive,
    dim: Count,
    lipschitz: Positive = 1.0,
    diameter: Positive = 1.0,
    p: UpToTwo = 2.0,
    bounded: Flag = False,
) -> float:
    """GD·max(1 - 1/p, 1/log d)·min(1, √(d/(k·log d))) as printed; log(dk) where ‖s‖_q <= G surely.

    (T Prop 5.7.4, Cor 5.7.5.) Logarithms are at least 1.

    Args:
        queries: k.
        dim: d.
        lipschitz: G.
        diameter: D.
        p: in [1, 2].
        bounded: whether every loss is G-Lipschitz, not only on average.
    """
    log = max(math.log(dim), 1.0)
    seen = max(math.log(dim * queries), 1.0) if bounded else log
    largest = lipschitz * diameter * max(1.0 - 1.0 / p, 1.0 / log)
    return largest * min(1.0, math.sqrt(dim / (queries * seen)))


@checked
def sco_lower_bound_rate(
    num_users: Positive,
    dim: Positive,
    epsilon: Positive,
    delta: Inside,
    lipschitz: Positive = 1.0,
    diameter: Positive = 1.0,
) -> float:
    """GD/√(1 + log(nd)/d)·min(√(d·log(1/δ))/(εn) + 1/√n, 1), from fewer than ``sco_queries_rate`` values.

    What a private algorithm reaches with more (T Cor 3.7.6; printed with log n).

    Args:
        num_users: n.
        dim: d.
        epsilon: ε.
        delta: δ.
        lipschitz: G, of every loss.
        diameter: D.
    """
    n, d = num_users, dim
    reached = min(math.sqrt(-d * math.log(delta)) / (epsilon * n) + 1.0 / math.sqrt(n), 1.0)
    return lipschitz * diameter * reached / math.sqrt(1.0 + math.log(n * d) / d)


@checked
def sco_queries_rate(num_users: Positive, dim: Positive, epsilon: Positive, delta: Inside) -> float:
    """min(ε²n²/log(1/δ), nd): values that optimal private optimization needs (T Cor 3.7.6).

    Args:
        num_users: n.
        dim: d.
        epsilon: ε.
        delta: δ.
    """
    return min((epsilon * num_users) ** 2 / -math.log(delta), num_users * dim)


@checked
def sampling_queries_rate(
    lipschitz: Positive,
    regularization: Positive,
    dim: Count,
    p: UpToTwo = 2.0,
) -> float:
    """(G²/μ)/(1 + log(G²/μ)/d) values for a draw from exp(-F - μr) (T Cor 3.7.7); (G²/μ)/log⁴d for p < 2.

    (The second from T Cor 5.7.6.) Logarithms are at least 1 in the second, at least 0 in the first.

    Args:
        lipschitz: G.
        regularization: μ.
        dim: d.
        p: in [1, 2].
    """
    condition = lipschitz**2 / regularization
    if p < 2.0:
        return condition / max(math.log(dim), 1.0) ** 4
    return condition / (1.0 + max(math.log(condition), 0.0) / dim)


@checked
def sampling_distance_rate(
    queries: Positive,
    lipschitz: Positive,
    regularization: Positive,
    dim: Count,
    p: UpToTwo = 2.0,
) -> float:
    """How near in variation fewer values do not come: min(½, √(dμ)/G) (T Cor 3.7.7).

    For p < 2 min(1/log d, √(d/(k·log³(dk)))) (T Cor 5.7.6), with logarithms of at least 1.

    Args:
        queries: k.
        lipschitz: G.
        regularization: μ.
        dim: d.
        p: in [1, 2].
    """
    if p < 2.0:
        logs = max(math.log(dim), 1.0), max(math.log(dim * queries), 1.0)
        return min(1.0 / logs[0], math.sqrt(dim / (queries * logs[1] ** 3)))
    return min(0.5, math.sqrt(dim * regularization) / lipschitz)
