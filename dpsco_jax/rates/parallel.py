"""Rates of parallel and of private stochastic optimization with ReSQue estimators, beside those before.

What it computes: Table 2.1 of the thesis: rounds of parallel queries, depth of the computation and queries of
each algorithm for a convex L-Lipschitz function of d variables on a ball of radius R, to accuracy ε_opt, in
κ = LR/ε_opt. Table 2.2: excess risk and gradients of private stochastic convex optimization with N records.
The exact exponents of both, those of Figure 2.1 among them. Constants are left out and so are logarithms,
except in the excess risks.

Source: T Tables 2.1 and 2.2, Theorems 2.3.2, 2.3.3 and 2.4.22. SGD is Nesterov 2018, DBW12 Duchi, Bartlett
and Wainwright 2012, BJL+19 Bubeck, Jiang, Lee, Li and Sidford 2019, CPM Khachiyan, Tarasov and Erlikh 1988,
KLL21 Kulkarni, Lee and Liu 2021 (chapter 1 of the thesis); the others as in ``accelerated``. With the
correction of docs/corrections.md: the logarithms of the last row of Table 2.2 stand outside the root.

Cost: none; float64 on the host, elementwise on arrays, or exact fractions.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

from dpsco_jax._checks import (
    require_each,
    require_instance,
    require_nonnegative,
    require_positive,
    require_within,
)
from dpsco_jax.rates import _monomials, accelerated
from dpsco_jax.rates._monomials import Expression, monomial, total
from dpsco_jax.rates.accelerated import Row, Setting

_Entry = TypeVar("_Entry")


class Costs(NamedTuple):
    """What a row of Table 2.1 counts.

    Attributes:
        query_depth: rounds, in each of which all queries are made at once.
        compute_depth: operations on vectors that have to wait for one another.
        queries: in all.
    """

    query_depth: Any
    compute_depth: Any
    queries: Any


def costs(method: str, dim: Any, accuracy: Any, lipschitz: Any = 1.0, radius: Any = 1.0) -> Costs:
    """Rounds, depth and queries to accuracy ε_opt, up to constants and logarithms; Table 2.1.

    Args:
        method: a key of ``PARALLEL``.
        dim: d.
        accuracy: ε_opt.
        lipschitz: L.
        radius: R.

    Raises:
        ValueError: if there is no such row.
    """
    require_each(require_positive, dim=dim, accuracy=accuracy, lipschitz=lipschitz, radius=radius)
    at = {"dim": dim, "kappa": lipschitz * radius / accuracy}
    return Costs(*(_monomials.value(cost, at) for cost in _row(PARALLEL, method)))


def cost_exponents(method: str, accuracy_exponent: Fraction | int) -> Costs:
    """The powers of d by which the costs grow for κ = d^a.

    Args:
        method: a key of ``PARALLEL``.
        accuracy_exponent: a ≥ 0; ball acceleration has the least query depth for a in [1/4, 1].

    Raises:
        ValueError: there is no such row.
    """
    require_nonnegative("accuracy_exponent", accuracy_exponent)
    growth = {"dim": Fraction(1), "kappa": Fraction(accuracy_exponent)}
    return Costs(*(_monomials.exponent(cost, growth) for cost in _row(PARALLEL, method)))


def excess_risk(method: str, setting: Setting) -> Any:
    """The excess population risk of a private method, up to a constant; Table 2.2.

    Args:
        method: a key of ``PRIVATE``.
        setting: convex losses; the strong convexity is not looked at.

    Raises:
        ValueError: if there is no such row.
    """
    require_instance("setting", setting, Setting)
    return _monomials.value(_row(PRIVATE, method).excess, accelerated.variables(setting))


def gradient_complexity(method: str, setting: Setting) -> Any:
    """The number of gradients of a private method, up to constants and logarithms; Table 2.2.

    It takes what ``excess_risk`` does.
    """
    require_instance("setting", setting, Setting)
    return _monomials.value(_counted(method), accelerated.variables(setting))


def log_exponent(
    method: str, dim_exponent: Fraction | int, epsilon_exponent: Fraction | int = 0
) -> Fraction:
    """The power of N by which the gradients grow for d = N^a and ε = N^b; Figure 2.1 at b = 0.

    Args:
        method: a key of ``PRIVATE``.
        dim_exponent: a, at least 0; the regime of Figure 2.1 ends at 2.
        epsilon_exponent: b, at most 0.

    Raises:
        ValueError: there is no such row.
    """
    require_nonnegative("dim_exponent", dim_exponent)
    require_within("epsilon_exponent", epsilon_exponent, -math.inf, 0.0, open_low=True)
    growth = {
        "records": Fraction(1),
        "dim": Fraction(dim_exponent),
        "epsilon": Fraction(epsilon_exponent),
    }
    return _monomials.exponent(_counted(method), growth)


def _counted(method: str) -> Expression:
    counted = _row(PRIVATE, method).gradients
    assert counted is not None
    return counted


def _row(table: Mapping[str, _Entry], method: str) -> _Entry:
    if method not in table:
        raise ValueError(f"method must be one of {', '.join(table)}, got {method!r}")
    return table[method]


def _f(numerator: int, denominator: int) -> Fraction:
    return Fraction(numerator, denominator)


_LOW = monomial(kappa=2)  # what any method needs: the statistical rate
_SMOOTHED = monomial(dim=_f(1, 4), kappa=1)
_BALLS = monomial(dim=_f(1, 3), kappa=_f(2, 3))
_POLYNOMIAL = total(monomial(dim=_f(4, 3), kappa=_f(8, 3)))
_CUTS = total(monomial(dim=1))

EPOCH_SGD, AC_SA, RESQUE = "ball acceleration, EpochSGD", "ball acceleration, AC-SA", "ReSQue"

PARALLEL: dict[str, Costs] = {
    "SGD": Costs(total(_LOW), total(_LOW), total(_LOW)),
    "DBW12": Costs(total(_SMOOTHED), total(_SMOOTHED), total(_SMOOTHED, _LOW)),
    "BJL+19": Costs(total(_BALLS), _POLYNOMIAL, _POLYNOMIAL),
    "CPM": Costs(_CUTS, _CUTS, _CUTS),
    EPOCH_SGD: Costs(total(_BALLS), total(_BALLS, _LOW), total(_BALLS, _LOW)),
    AC_SA: Costs(total(_BALLS), total(_BALLS, _SMOOTHED), total(_BALLS, _LOW)),
}
"""Table 2.1: method to costs."""

_CONVEX = accelerated.TABLES["convex SCO"]
_OPTIMAL = _CONVEX["BFGT20"].excess
_QUADRATIC = total(monomial(records=2))
_MIRROR = (monomial(records=_f(3, 2)), monomial(records=2, epsilon=1, dim=_f(-1, 2)))
_ACCELERATED = (
    monomial(records=_f(5, 4), dim=_f(1, 8), epsilon=_f(1, 2)),
    monomial(records=_f(3, 2), dim=_f(-1, 8), epsilon=1),
)
_SAMPLES = (monomial(records=1), monomial(records=2, epsilon=2, dim=-1))
_RESQUE = (
    monomial(records=_f(2, 3), dim=_f(2, 3), epsilon=-1),
    monomial(records=_f(4, 3), epsilon=_f(1, 3)),
)
_RESQUE_RISK = _monomials.times(
    monomial(lipschitz=1, diameter=1),
    total(
        monomial(records=_f(-1, 2)),
        monomial(
            dim=_f(1, 2),
            log_delta=_f(1, 2),
            log_records=1,
            log_ratio=_f(3, 2),
            records=-1,
            epsilon=-1,
        ),
    ),
)

PRIVATE: dict[str, Row] = {
    "BST14": _CONVEX["BST14"],
    "BFTGT19": _CONVEX["BFTGT19"],
    "FKT20": Row(_OPTIMAL, _QUADRATIC),
    "BFGT20": _CONVEX["BFGT20"],
    "AFKT21": Row(_OPTIMAL, total(_MIRROR)),
    "KLL21": Row(_OPTIMAL, total(_ACCELERATED)),
    RESQUE: Row(_RESQUE_RISK, total(_SAMPLES, _RESQUE)),
}
"""Table 2.2: method to entry; L and R of the paper are the fields G and D of a setting."""
