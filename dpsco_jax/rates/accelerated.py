"""Rates of item-level private convex optimization: excess risk and gradients of every algorithm.

What it computes: Tables 1.1 to 1.4 of the thesis for N records, d parameters and losses that are G-Lipschitz
on a set of diameter D, or G-Lipschitz and μ-strongly convex: the excess risk and the number of gradients of
each algorithm, up to constants, and the exact exponents of N for d = N^a, as in Figure 1.2. These are orders
of growth; what a run will do is in the plans of ``solvers.item_level``.

Source: T Tables 1.1 to 1.4, Theorems 1.1.1 and 1.1.2 (our rows with ε and log(1/δ), as the theorems have
them; for ε and δ constant they are what the tables print), §1.1.3. BST14 is Bassily, Smith and Thakurta 2014,
KST12 Kifer, Smith and Thakurta 2012, BFTGT19 Bassily, Feldman, Talwar and Guha Thakurta 2019, FKT20 Feldman,
Koren and Talwar 2020, BFGT20 Bassily, Feldman, Guzmán and Talwar 2020, AFKT21 Asi, Feldman, Koren and Talwar
2021. With the corrections of docs/corrections.md: the logarithm stands under the root, and lower bounds are
minima with the trivial risk.

Formal guarantee: none. ``lower_bound`` holds for (ε, δ)-privacy under replacement of one record, up to a
constant; no algorithm in the tables is better.

Cost: none; float64 on the host, elementwise on arrays, or exact fractions.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax._checks import require_instance, require_nonnegative
from dpsco_jax.rates import _monomials
from dpsco_jax.rates._monomials import Expression, monomial, total

PROBLEMS = ("convex ERM", "strongly convex ERM", "convex SCO", "strongly convex SCO")
"""Tables 1.1 to 1.4, in this order. ERM: excess empirical risk; SCO: excess population risk."""

OURS = "accelerated"
"""The row of the thesis: private AC-SA, with regularization or localization around it."""


class Setting(NamedTuple):
    """A problem class. Fields may be arrays, which broadcast.

    Attributes:
        num_records: N.
        dim: d.
        epsilon: ε.
        delta: δ.
        lipschitz: G.
        diameter: D, of the domain; not read for strongly convex losses.
        strong_convexity: μ, for strongly convex losses.
    """

    num_records: Any
    dim: Any
    epsilon: Any = 1.0
    delta: Any = 1 / math.e
    lipschitz: Any = 1.0
    diameter: Any = 1.0
    strong_convexity: Any = 1.0


class Row(NamedTuple):
    """An algorithm's entry in a table.

    Attributes:
        excess: the excess risk.
        gradients: the number of gradients; ``None`` where the table has none.
    """

    excess: Expression
    gradients: Expression | None


def gradient_complexity(method: str, problem: str, setting: Setting) -> Any:
    """The number of gradients that a method needs, up to a constant.

    Args:
        method: a row, such as ``"AFKT21"`` or ``OURS``.
        problem: one of ``PROBLEMS``.
        setting: ε and δ enter where the source gives them.

    Raises:
        ValueError: if the tables have no such row, or no number of gradients in it.
    """
    require_instance("setting", setting, Setting)
    return _monomials.value(_gradients(method, problem), variables(setting))


def excess_risk(method: str, problem: str, setting: Setting) -> Any:
    """The excess risk that a method proves, up to a constant; it takes what ``gradient_complexity`` does."""
    require_instance("setting", setting, Setting)
    return _monomials.value(_row(method, problem).excess, variables(setting))


def log_exponent(method: str, problem: str, dim_exponent: Fraction | int) -> Fraction:
    """The power of N by which the number of gradients grows for d = N^a; the curves of Figure 1.2.

    Args:
        method: a row, such as ``"AFKT21"`` or ``OURS``.
        problem: one of ``PROBLEMS``.
        dim_exponent: a, at least 0; the papers' regime ends at 2.

    Raises:
        ValueError: the tables have no such row, or no number of gradients in it.
    """
    require_nonnegative("dim_exponent", dim_exponent)
    return _monomials.exponent(_gradients(method, problem), _growth(dim_exponent))


def risk_exponent(method: str, problem: str, dim_exponent: Fraction | int) -> Fraction:
    """The power of N by which the excess risk grows (negative: falls) for d = N^a."""
    require_nonnegative("dim_exponent", dim_exponent)
    return _monomials.exponent(_row(method, problem).excess, _growth(dim_exponent))


def lower_bound(problem: str, setting: Setting) -> Any:
    """No (ε, δ)-private algorithm has a smaller excess risk, up to a constant (BST14).

    min{GD, GD√d/(Nε)} for ERM, and GD/√N more before the minimum for SCO; with G²/μ and squares for
    strongly convex losses.
    """
    require_instance("setting", setting, Setting)
    _table(problem)
    at = variables(setting)
    private = np.sqrt(at["dim"]) / (at["records"] * at["epsilon"])
    sampled = 1.0 / np.sqrt(at["records"]) if problem.endswith("SCO") else 0.0
    if problem.startswith("strongly"):
        scale = at["lipschitz"] ** 2 / at["strong_convexity"]
        return scale * np.minimum(1.0, private**2 + sampled**2)
    return at["lipschitz"] * at["diameter"] * np.minimum(1.0, private + sampled)


def variables(setting: Setting) -> dict[str, Any]:
    """The variables of the tables' expressions: the setting's numbers and two logarithms."""
    require_instance("setting", setting, Setting)
    n, d, eps, delta, lipschitz, diameter, convexity = (1.0 * np.asarray(x) for x in setting)
    return {
        "records": n,
        "dim": d,
        "epsilon": eps,
        "log_delta": -np.log(delta),
        "log_ratio": np.log(n / delta),
        "log_records": np.log(n),
        "lipschitz": lipschitz,
        "diameter": diameter,
        "strong_convexity": convexity,
    }


def _table(problem: str) -> Mapping[str, Row]:
    if problem not in TABLES:
        raise ValueError(f"problem must be one of {', '.join(PROBLEMS)}, got {problem!r}")
    return TABLES[problem]


def _row(method: str, problem: str) -> Row:
    table = _table(problem)
    if method not in table:
        raise ValueError(f"method must be one of {', '.join(table)} for {problem}, got {method!r}")
    return table[method]


def _gradients(method: str, problem: str) -> Expression:
    counted = _row(method, problem).gradients
    if counted is None:
        raise ValueError(f"method must be one with a number of gradients, got {method!r}")
    return counted


def _growth(dim_exponent: Fraction | int) -> dict[str, Fraction]:
    return {"records": Fraction(1), "dim": Fraction(dim_exponent)}


def _f(numerator: int, denominator: int = 1) -> Fraction:
    return Fraction(numerator, denominator)


_SCALE = monomial(lipschitz=1, diameter=1)
_SQUARE = monomial(lipschitz=2, strong_convexity=-1)
_PRIVATE = monomial(dim=_f(1, 2), log_delta=_f(1, 2), records=-1, epsilon=-1)
_PRIVATE_SQUARE = monomial(dim=1, log_delta=1, records=-2, epsilon=-2)
_SAMPLED, _SAMPLED_SQUARE = monomial(records=_f(-1, 2)), monomial(records=-1)

_QUADRATIC, _MOREAU = total(monomial(records=2)), total(monomial(records=_f(9, 2)))
_MIRROR = monomial(records=2, dim=_f(-1, 2))
_OURS_TALL = monomial(epsilon=1, records=_f(3, 2), dim=_f(-1, 8), log_delta=_f(-1, 4))
_OURS_WIDE = monomial(epsilon=_f(1, 2), records=_f(5, 4), dim=_f(1, 8))

_ERM_GRADIENTS: dict[str, Expression | None] = {
    "KST12": None,
    "BST14": _QUADRATIC,
    "BFTGT19": _MOREAU,
    "BFGT20": _QUADRATIC,
    "AFKT21": total(_MIRROR),
    OURS: total(_OURS_TALL, monomial(epsilon=2, records=2, dim=-1, log_delta=-1)),
}
_SCO_GRADIENTS: dict[str, Expression | None] = {
    "BST14": _QUADRATIC,
    "BFTGT19": _MOREAU,
    "FKT20": total(monomial(records=2, log_delta=1)),
    "BFGT20": _QUADRATIC,
    "AFKT21": total((monomial(records=_f(3, 2)), _MIRROR)),
    OURS: total(monomial(records=1), (_OURS_WIDE, _OURS_TALL)),
}


def _rows(
    scale: Any,
    gradients: Mapping[str, Expression | None],
    usual: Expression,
    others: Mapping[str, Expression],
    absent: tuple[str, ...] = (),
) -> dict[str, Row]:
    """A table in which all rows have the usual excess risk, but for some."""
    return {
        name: Row(_monomials.times(scale, others.get(name, usual)), counted)
        for name, counted in gradients.items()
        if name not in absent
    }


TABLES: dict[str, dict[str, Row]] = {
    "convex ERM": _rows(
        _SCALE,
        _ERM_GRADIENTS,
        total(_PRIVATE),
        {
            "KST12": total(monomial(dim=_f(1, 2), log_delta=1, records=_f(-1, 2), epsilon=-1)),
            "BST14": _monomials.times(monomial(log_ratio=_f(3, 2)), total(_PRIVATE)),
        },
    ),
    "strongly convex ERM": _rows(
        _SQUARE,
        _ERM_GRADIENTS,
        total(_PRIVATE_SQUARE),
        {
            "KST12": total(monomial(dim=1, log_delta=1, records=_f(-3, 2), epsilon=-2)),
            "BST14": _monomials.times(monomial(log_ratio=2), total(_PRIVATE_SQUARE)),
        },
        absent=("AFKT21",),
    ),
    "convex SCO": _rows(
        _SCALE,
        _SCO_GRADIENTS,
        total(_SAMPLED, _PRIVATE),
        {
            "BST14": total(
                monomial(dim=_f(1, 4), log_ratio=1, records=_f(-1, 2)),
                monomial(dim=_f(1, 2), log_ratio=2, records=-1, epsilon=-1),
            ),
        },
    ),
    "strongly convex SCO": _rows(
        _SQUARE, _SCO_GRADIENTS, total(_SAMPLED_SQUARE, _PRIVATE_SQUARE), {}, absent=("BST14",)
    ),
}
"""The tables: problem to method to entry."""
