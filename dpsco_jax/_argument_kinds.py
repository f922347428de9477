"""Kinds of arguments, said by annotations: what is not of its kind is refused by name, value and range.

A function says of each argument what it may be where it declares it, and its body keeps what relates two of
them::

    @checked
    def plan(problem, *, num_steps: Count, radius: Positive | None = None): ...

``None`` is left alone where the annotation has it. Values come to the body as their check returns them:
integers of NumPy as ``int``, real numbers as ``float``. The tests read the same annotations, and try what is
not of each kind.
"""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

from dpsco_jax import _checks

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Kind(NamedTuple):
    """A check of ``_checks``, and what it asks for beside a name and a value.

    Attributes:
        check: refuses a value by its name; returns it as it is to be used, or nothing.
        limits: further positional arguments of the check.
    """

    check: Callable[..., Any]
    limits: tuple[Any, ...] = ()

    def of(self, name: str, value: Any) -> Any:
        """The value as it is to be used; ``ValueError`` unless it is of this kind."""
        found = self.check(name, value, *self.limits)
        return value if found is None else found


def integer(lower: int, upper: int | None = None) -> Kind:
    """An integer in [lower, upper]."""
    return Kind(_checks.require_integer, (lower,) if upper is None else (lower, upper))


def real(lower: float, upper: float = math.inf, closed: bool = False) -> Kind:
    """One number in (lower, upper), or in [lower, upper) if it is closed."""
    return Kind(_checks.require_real, (lower, upper, closed))


def one_of(*words: str) -> Kind:
    """One of several words."""
    return Kind(_checks.require_choice, (words,))


# Names are those of the checks where there is one: what is inside is in (0, 1), below one in [0, 1).
Count = Annotated[int, integer(1)]
Positive = Annotated[float, real(0)]
Finite = Annotated[float, real(-math.inf)]
Nonnegative = Annotated[float, real(0, closed=True)]
NonnegativeOrInfinite = Annotated[float, Kind(_checks.require_multiplier)]
Inside = Annotated[float, real(0, 1)]
BelowOne = Annotated[float, real(0, 1, closed=True)]
Flag = Annotated[bool, Kind(_checks.require_flag)]
Function = Annotated[Callable[..., Any], Kind(_checks.require_callable)]
Constants = Annotated[str, one_of("tight", "paper")]


def kinds_of(function: Callable[..., Any]) -> dict[str, tuple[Kind, bool]]:
    """By the name of an argument its kind, and whether it may be ``None``, where an annotation says so."""
    found = {}
    for name, hint in inspect.get_annotations(inspect.unwrap(function)).items():
        several = typing.get_origin(hint) in (typing.Union, types.UnionType)
        parts = typing.get_args(hint) if several else (hint,)
        for part in parts:
            for said in getattr(part, "__metadata__", ()):
                if isinstance(said, Kind):
                    found[name] = said, types.NoneType in parts
    return found


def require_fields(made: Any) -> None:
    """``ValueError`` for a field of a dataclass that is not of the kind that its annotation says."""
    for name, (kind, optional) in kinds_of(type(made)).items():
        value = getattr(made, name)
        if not (optional and value is None):
            kind.of(name, value)


def binder(
    function: Callable[..., Any],
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], inspect.BoundArguments]:
    """What binds the arguments of a call by their names, each as the check of its kind returns it."""
    signature, kinds = inspect.signature(function), kinds_of(function)

    def bound(given: tuple[Any, ...], named: Mapping[str, Any]) -> inspect.BoundArguments:
        call = signature.bind(*given, **named)
        for name, value in call.arguments.items():
            kind, optional = kinds.get(name, (None, False))
            if kind is not None and not (optional and value is None):
                call.arguments[name] = kind.of(name, value)
        return call

    return bound


def checked(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The function, called only with arguments of the kinds that its annotations say."""
    bound = binder(function)

    @functools.wraps(function)
    def call(*given: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        arguments = bound(given, named)
        return function(*arguments.args, **arguments.kwargs)

    return call
