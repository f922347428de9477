"""What an argument may be, and what not: the bad values with which every argument of a kind is tried."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _argument_kinds, _checks

NAN, INF = math.nan, math.inf


class Fresh(NamedTuple):
    """A value that is made when a call needs it: a key anew for each, a plan, which costs time, once."""

    make: Callable[[], Any]


class Argument(NamedTuple):
    """A kind, and one value with which the call works."""

    kind: "Kind"
    value: Any

    def good(self) -> Any:
        return self.value.make() if isinstance(self.value, Fresh) else self.value


class Kind(NamedTuple):
    """What an argument is, and values that it is not."""

    name: str
    bad: tuple[Any, ...]

    def __call__(self, value: Any) -> Argument:
        return Argument(self, value)

    def but(self, *allowed: Any) -> "Kind":
        """The same kind where some of the bad values are good ones."""
        # NaN is not equal to itself, and True is equal to 1.
        known = {(type(value), str(value)) for value in allowed}
        kept = [bad for bad in self.bad if (type(bad), str(bad)) not in known]
        assert len(kept) == len(self.bad) - len(known), (self.name, allowed)
        return Kind(f"{self.name} or {allowed}", tuple(kept))

    def also(self, *refused: Any) -> "Kind":
        """The same kind with further bad values."""
        return Kind(self.name, (*self.bad, *refused))


_NO_NUMBER = ("1", None, 1j, True)
_NO_INTEGER = (NAN, INF, 1.5, 2.99, *_NO_NUMBER)

COUNT = Kind("integer >= 1", (0, -1, *_NO_INTEGER))
COUNT_OR_ZERO = COUNT.but(0)
COUNT_FROM_TWO = Kind("integer >= 2", (1, *COUNT.bad))
INTEGER = Kind("integer", _NO_INTEGER)
WHOLE = Kind("whole number, perhaps an array", (-1, 1.5, NAN, INF, *_NO_NUMBER))
SIGNED = Kind("real", (NAN, INF, *_NO_NUMBER))
NONNEGATIVE = Kind("real >= 0", (-1.0, *SIGNED.bad))
NONNEGATIVE_OR_INF = NONNEGATIVE.but(INF)
POSITIVE = Kind("real > 0", (0.0, *NONNEGATIVE.bad))
POSITIVE_OR_INF = POSITIVE.but(INF)
AT_LEAST_ONE = Kind("real >= 1", (0.5, *POSITIVE.bad))
PROBABILITY = Kind("in [0, 1]", (-0.1, 1.5, *SIGNED.bad))
POSITIVE_PROBABILITY = Kind("in (0, 1]", (0.0, *PROBABILITY.bad))
SHARE = Kind("in [0, 1)", (1.0, *PROBABILITY.bad))
OPEN_PROBABILITY = Kind("in (0, 1)", (0.0, 1.0, *PROBABILITY.bad))

RELATION = Kind("relation", ("REPLACE_ONE", None, 7))
REPLACE_ONLY = Kind("REPLACE_ONE", (NeighboringRelation.REPLACE_SPECIAL, *RELATION.bad))
KEY = Kind("key", (0, None, np.zeros(2, np.uint32), "nonsense"))
MASK = Kind("mask", (np.array([1.0, 0.3, 0.0, 1.0]), "nonsense", 7, None))
CHOICE = Kind("word", ("nonsense", 7, None))
CHOICE_OR_SHARE = Kind("word or share", ("nonsense", "1", NAN, -0.1, 1.5, 1j, True, None))
FLAG = Kind("flag", ("yes", 7, None, 0.5))
FUNCTION = Kind("function", ("nonsense", 7, None))
OBJECT = Kind("object of a class of the package", ("nonsense", 7, None))
NUMBERS = Kind("array of real numbers", ("nonsense", None, np.array([1j, 2j, 0j, 1j])))
SHARES = Kind(
    "list of numbers in [0, 1]", ("nonsense", np.array([0.5, 1.5]), np.array([[0.5]]), 0.5)
)
INTEGERS = Kind("array of integers", ("nonsense", None, np.array([1.5, 2.5]), np.array([1j, 2j])))
TREE = Kind("tree of real arrays", ("nonsense", np.array([1j, 2j, 0j, 1j])))
COUNTS = Kind("sequence of integers", ((0,), (-1,), (1.5,), ("1",), (True,), 7, None))
WORDS = Kind("text", (7,))
ANY = Kind("anything", ())


def fresh_key() -> Argument:
    """A typed key, new for every call."""
    return KEY(Fresh(lambda: jax.random.key(0)))


def annotated(kind: _argument_kinds.Kind) -> Argument:
    """What an argument is of which an annotation says its kind, with a value that works."""
    check, limits = kind
    if check is _checks.require_integer:
        lower, *upper = limits
        outside = (lower - 1, *(most + 1 for most in upper))
        return Kind(f"integer in {limits}", (*outside, *INTEGER.bad))(lower + 1)
    if check is _checks.require_real:
        lower, upper, closed = limits
        outside = (lower - 0.5, *(() if closed else (lower,)), upper, upper + 0.5)
        finite = tuple(bad for bad in outside if math.isfinite(bad))
        return Kind(f"real in {limits}", (*finite, *SIGNED.bad))(lower + 0.1)
    if check is _checks.require_choice:
        return CHOICE(limits[0][0])
    return _OF_CHECKS[check](None)


_OF_CHECKS = {
    _checks.require_multiplier: NONNEGATIVE_OR_INF,
    _checks.require_flag: FLAG,
    _checks.require_callable: FUNCTION,
    _checks.require_relation: RELATION,
    _checks.require_share: PROBABILITY,
}
