"""Tables of the thesis on non-convex problems: how near to stationary, at which risk, of how many users.

What it computes: Table 6.1, the α of a first- or second-order stationary point and the excess risk, with
Lipschitz constant, smoothness and range all 1; Table 8.1, how many users make an (α, β)-stationary point in
the sense of Goldstein, with their constants L and Φ. Orders of growth, without constants and logarithms but
for those that a row is made of. Rows of names that end in ``", printed"`` are what the thesis prints where
that is not proven.

Source: T Tables 6.1 and 8.1, Theorems 6.3.9, 6.3.12, 6.4.6, 6.4.8, 7.3.11, 7.5.2, 8.3.1, 8.4.1, 8.10.5.
Corrected where docs/corrections.md says so (C6-14, C8-5, C8-8).

Formal guarantee: none.

Cost: none; float64 on the host. Arrays broadcast.

Example:
    >>> from dpsco_jax.rates.nonconvex import stationarity
    >>> print(f"{stationarity('spider, empirical', num_users=10**6, dim=100):.3e}")
    4.642e-04
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from dpsco_jax._checks import require_choice, require_each, require_positive
from dpsco_jax.rates._monomials import Expression, monomial, total, value

__all__ = ["RISKS", "SAMPLES", "STATIONARITY", "excess_risk", "goldstein_samples", "stationarity"]


def _private(power: Fraction | int) -> Any:
    """(√d/(nε))^power."""
    p = Fraction(power)
    return monomial(dim=p / 2, num_users=-p, epsilon=-p)


_THIRD, _HALF = Fraction(1, 3), Fraction(1, 2)
_SAMPLED = monomial(num_users=-_THIRD)

STATIONARITY: Mapping[str, Expression] = {
    "WCX19, empirical": total(
        (
            monomial(dim=_HALF / 2, num_users=-_HALF),
            monomial(dim=Fraction(4, 7), num_users=-Fraction(4, 7)),
        )
    ),
    "spider, empirical": total(_private(2 * _THIRD)),
    "spider, population": total(_SAMPLED, _private(Fraction(3, 7))),
    "adaptive spider, population": total(_SAMPLED, _private(_HALF)),
    "ABGGMU23, population, first order": total(_SAMPLED, _private(_HALF)),
    "uniform convergence, population": total(
        monomial(dim=_HALF, num_users=-_HALF), _private(2 * _THIRD)
    ),
    "lower bound, empirical, first order": total(_private(1)),
    "lower bound, population, first order": total(monomial(num_users=-_HALF), _private(1)),
}
"""Table 6.1: α by method, for second-order stationary points where it does not say first order."""

RISKS = (
    "WCX19",
    "Gibbs, printed",
    "Gibbs, empirical",
    "exponential mechanism",
)
"""Table 6.1: methods of ``excess_risk``; of the last, nothing is better."""

SAMPLES: Mapping[str, Expression] = {
    "ZTC24": total(
        monomial(gap=1, lipschitz=2, dim=1, radius=-1, norm=-3),
        monomial(gap=1, lipschitz=1, dim=Fraction(3, 2), epsilon=-1, radius=-1, norm=-2),
    ),
    "single pass": total(
        monomial(gap=1, lipschitz=2, dim=_HALF, radius=-1, norm=-3),
        monomial(gap=1, lipschitz=1, dim=1, epsilon=-1, radius=-1, norm=-2),
    ),
    "single pass, printed": total(
        monomial(gap=1, lipschitz=2, radius=-1, norm=-3),
        monomial(gap=1, lipschitz=1, dim=1, epsilon=-1, radius=-1, norm=-2),
        monomial(
            gap=1,
            lipschitz=Fraction(3, 2),
            dim=Fraction(3, 4),
            epsilon=-_HALF,
            radius=-1,
            norm=-Fraction(5, 2),
        ),
    ),
    "multi-pass, empirical": total(
        monomial(
            gap=_HALF,
            lipschitz=1,
            dim=Fraction(3, 4),
            epsilon=-1,
            radius=-_HALF,
            norm=-Fraction(3, 2),
        )
    ),
    "multi-pass, population": total(
        monomial(
            gap=_HALF,
            lipschitz=1,
            dim=Fraction(3, 4),
            epsilon=-1,
            radius=-_HALF,
            norm=-Fraction(3, 2),
        ),
        monomial(lipschitz=2, dim=1, norm=-2),
    ),
    "optimal smoothing": total(
        monomial(reach=_THIRD, lipschitz=1, dim=2 * _THIRD, epsilon=-1, radius=-_THIRD, norm=-1)
    ),
    "optimal smoothing, printed": total(
        monomial(
            reach=_THIRD, lipschitz=4 * _THIRD, dim=2 * _THIRD, epsilon=-1, radius=-_THIRD, norm=-1
        )
    ),
}
"""Table 8.1: n by method."""


def stationarity(method: str, num_users: Any, dim: Any, epsilon: Any = 1.0) -> Any:
    """Table 6.1: the order of the α that a method makes of n users.

    Args:
        method: a key of ``STATIONARITY``.
        num_users: n.
        dim: d.
        epsilon: ε, which the row of WCX19 does not have.
    """
    require_choice("method", method, tuple(STATIONARITY))
    numbers = {"num_users": num_users, "dim": dim, "epsilon": epsilon}
    require_each(require_positive, **numbers)
    return value(STATIONARITY[method], numbers)


def excess_risk(method: str, num_users: Any, dim: Any, epsilon: Any = 1.0) -> Any:
    """Table 6.1: the order of the excess risk of a Lipschitz loss over a set of diameter 1.

    The rows of Gibbs and WCX19 take polynomial time; that of the exponential mechanism is also the lower
    bound. With log-Sobolev constants by Holley and Stroock the temperature may grow as log(nε) whatever ε,
    so that there is no 1/ε, which ``"Gibbs, printed"`` has.

    Args:
        method: one of ``RISKS``.
        num_users: n, above 3.
        dim: d.
        epsilon: ε, with nε above 3.
    """
    require_choice("method", method, RISKS)
    require_each(require_positive, num_users=num_users, dim=dim, epsilon=epsilon)
    n, d, e = (np.asarray(number, np.float64) for number in (num_users, dim, epsilon))
    log = np.log(n * e) if method == "Gibbs, empirical" else np.log(n)
    rows = {
        "WCX19": lambda: d / (e**2 * log),
        "Gibbs, printed": lambda: d * np.log(log) / (e * log),
        "Gibbs, empirical": lambda: d * np.log(log) / log,
        "exponential mechanism": lambda: d / (n * e) + np.sqrt(d / n),
    }
    return rows[method]()[()]


def goldstein_samples(
    method: str,
    radius: Any,
    norm: Any,
    dim: Any,
    epsilon: Any = 1.0,
    lipschitz: Any = 1.0,
    gap: Any = 1.0,
    reach: Any = 1.0,
) -> Any:
    """Table 8.1: the order of the number of users with which a method makes an (α, β)-stationary point.

    Args:
        method: a key of ``SAMPLES``.
        radius: α, of the ball over which gradients are mixed.
        norm: β, of the mixture.
        dim: d.
        epsilon: ε.
        lipschitz: L of every loss.
        gap: Φ, of the risk at the start above its infimum.
        reach: R, of the ball in which optimal smoothing looks for a start; other rows do not have it.
    """
    require_choice("method", method, tuple(SAMPLES))
    numbers = {
        "radius": radius,
        "norm": norm,
        "dim": dim,
        "epsilon": epsilon,
        "lipschitz": lipschitz,
        "gap": gap,
        "reach": reach,
    }
    require_each(require_positive, **numbers)
    return value(SAMPLES[method], numbers)
