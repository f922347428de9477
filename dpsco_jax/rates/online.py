"""Regret of private online learning: Table 13.1 and Figure 13.1 of the thesis, as printed and as proven.

What it computes: orders of the regret in the number of rounds T, in ε and in d, without constants and
logarithms (log d included), and their exponents as exact fractions where ε = T^-a and d is a power of T. Rows
whose names end in ``", printed"`` are what the thesis claims and what is not proven: batches of B rounds cost
ηTB in regret, not TB²η² (docs/corrections/online.md, C13-1). The rows beside them are what is.

Source: T Table 13.1, Figure 13.1, Theorems 13.3.10, 13.3.12, 13.4.2; corrections C13-1 and C13-2.

Formal guarantee: none.

Cost: none; float64 on the host. Arrays broadcast.

Example:
    >>> from fractions import Fraction
    >>> from dpsco_jax.rates.online import regret_exponent
    >>> a = Fraction(1, 4)
    >>> [str(regret_exponent(name, a)) for name in ("L2P, experts, printed", "L2P, experts")]
    ['1/2', '11/20']
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dpsco_jax._checks import require, require_choice, require_each, require_positive
from dpsco_jax.rates._monomials import Expression, exponent, monomial, total, value

__all__ = ["FIGURE", "REGRET", "regret", "regret_exponent"]


def _term(rounds: str, epsilon: str = "0", dim: str = "0") -> Any:
    powers = {"num_rounds": rounds, "epsilon": epsilon, "dim": dim}
    return monomial(**{name: Fraction(power) for name, power in powers.items()})


_ROOT = _term("1/2")

REGRET: Mapping[str, Expression] = {
    "L2P, experts, printed": total(_ROOT, _term("1/3", "-2/3")),
    "L2P, experts": total(_ROOT, _term("2/5", "-3/5")),
    "L2P, experts, one round a batch": total(_ROOT, _term("1/3", "-1")),
    "redraw, experts": total(_term("1/2", "-1/2")),
    "AS17 and AFKT23b, experts": total(
        _ROOT, (_term("0", "-1", "1/2"), _term("1/3", "-1"), _term("2/5", "-4/5"))
    ),
    "L2P, convex, printed": total(_ROOT, _term("1/3", "-2/3", "1/2")),
    "L2P, convex": total(_ROOT, _term("2/5", "-3/5", "3/10")),
    "redraw, convex": total(_term("1/2", "-1/2", "1/4"), _ROOT),
    "AKST23b, convex": total(_ROOT, _term("1/3", "-1", "1/2"), _term("3/8", "-3/4", "1/2")),
    "DP-FTRL, convex": total(_term("1/2", "-1/2", "1/4"), _ROOT),
    "AS17, linear losses": total(_ROOT, _term("0", "-1", "1/2")),
    "lower bound, switching, printed": total(_ROOT, _term("1/3", "-2/3")),
}
"""Regret by method."""

FIGURE: Mapping[str, tuple[Fraction, tuple[str, ...]]] = {
    "a": (
        Fraction(0),
        ("L2P, convex, printed", "L2P, convex", "AKST23b, convex", "DP-FTRL, convex"),
    ),
    "b": (
        Fraction(1, 3),
        ("L2P, convex, printed", "L2P, convex", "AKST23b, convex", "DP-FTRL, convex"),
    ),
    "c": (
        Fraction(1),
        (
            "L2P, experts, printed",
            "L2P, experts",
            "AS17 and AFKT23b, experts",
            "redraw, experts",
        ),
    ),
}
"""Figure 13.1: of each panel the power of T that d is, and the curves, ours among them."""


def regret(method: str, num_rounds: Any, epsilon: Any, dim: Any = 1.0) -> Any:
    """The order of the regret of a method.

    Args:
        method: a key of ``REGRET``.
        num_rounds: T.
        epsilon: ε.
        dim: d.
    """
    require_choice("method", method, tuple(REGRET))
    numbers = {"num_rounds": num_rounds, "epsilon": epsilon, "dim": dim}
    require_each(require_positive, **numbers)
    return value(REGRET[method], numbers)


def regret_exponent(
    method: str, privacy_exponent: Fraction | int, dim_exponent: Fraction | int = 0
) -> Fraction:
    """B of a regret T^b where ε = T^-a and d is a power of T; at most 1, which any plays have.

    Args:
        method: a key of ``REGRET``.
        privacy_exponent: a, at least 0.
        dim_exponent: the power of T that d is, at least 0; 0 for powers of its logarithm.
    """
    require_choice("method", method, tuple(REGRET))
    powers = {"privacy_exponent": privacy_exponent, "dim_exponent": dim_exponent}
    for name, power in powers.items():
        exact = isinstance(power, Fraction | int) and not isinstance(power, bool)
        require(exact and power >= 0, name, power, "a fraction or an integer, at least 0")
    of = {
        "num_rounds": Fraction(1),
        "epsilon": Fraction(-privacy_exponent),
        "dim": Fraction(dim_exponent),
    }
    return min(exponent(REGRET[method], of), Fraction(1))
