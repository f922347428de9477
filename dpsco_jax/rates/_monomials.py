"""Orders of growth as sums of minima of monomials: their values, and their exponents as exact fractions.

An example is min{N^(5/4)·d^(1/8), N^(3/2)/d^(1/8)} + N. Where every variable is a power t^e of one growing t,
it grows as a power of t: monomials give linear functions of the e, a sum their largest, a minimum their
least.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np


class Monomial(NamedTuple):
    """A product of powers.

    Attributes:
        powers: name of a variable to the power at which it stands.
    """

    powers: Mapping[str, Fraction]

    def value(self, at: Mapping[str, Any]) -> Any:
        """The product at positive numbers or arrays, which broadcast."""
        product: Any = 1.0
        for name, power in self.powers.items():
            product = product * (1.0 * np.asarray(at[name])) ** float(power)
        return product[()] if isinstance(product, np.ndarray) else product

    def exponent(self, of: Mapping[str, Fraction]) -> Fraction:
        """The power of t if every variable is t to the power given; those not given do not grow."""
        return sum((power * of.get(name, 0) for name, power in self.powers.items()), Fraction(0))


Expression = tuple[tuple[Monomial, ...], ...]
"""A sum; each addend is the minimum of its monomials."""


def monomial(**powers: Fraction | int) -> Monomial:
    """A monomial by the powers of its variables."""
    return Monomial({name: Fraction(power) for name, power in powers.items()})


def total(*addends: Monomial | tuple[Monomial, ...]) -> Expression:
    """A sum of monomials, or of minima of monomials where an addend is a tuple of them."""
    return tuple((addend,) if isinstance(addend, Monomial) else addend for addend in addends)


def times(factor: Monomial, expression: Expression) -> Expression:
    """The expression with every monomial multiplied by ``factor``."""

    def product(other: Monomial) -> Monomial:
        names = {**factor.powers, **other.powers}
        zero = Fraction(0)
        return Monomial(
            {name: factor.powers.get(name, zero) + other.powers.get(name, zero) for name in names}
        )

    return tuple(tuple(map(product, addend)) for addend in expression)


def value(expression: Expression, at: Mapping[str, Any]) -> Any:
    """The sum at positive numbers or arrays."""
    return sum(_least([one.value(at) for one in addend]) for addend in expression)


def exponent(expression: Expression, of: Mapping[str, Fraction]) -> Fraction:
    """The power of t at which the sum grows; see the file's docstring."""
    return max(min(one.exponent(of) for one in addend) for addend in expression)


def _least(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else np.minimum.reduce(np.broadcast_arrays(*values))[()]
