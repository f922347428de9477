"""Every public function of the package, every argument of it, and what happens to bad values.

Public is what a user can name without an underscore: a function or class of a module whose path has none,
that is defined there, or named in ``__all__`` where the module has one. Classes that are pytrees (all
``NamedTuple`` states and results, plans, releases) are left out: JAX builds them itself, of tracers and of
placeholders, so they cannot look at their fields; what forms a claim from the fields does. Sampling schemes
are tried through ``gaussian_loss``, ``gaussian_event`` and ``gaussian_release``, where they are used.

``python -m tests.support.public`` prints how many bad values are refused, and how.
"""

import collections
import enum
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

import dpsco_jax
from dpsco_jax._argument_kinds import kinds_of
from tests.support.arguments import ARGUMENTS
from tests.support.good_calls import EXEMPT, GOOD, SCHEMES
from tests.support.kinds import Argument, Kind, annotated

NAMED, UNNAMED, SILENT, OTHER = "by name", "without the name", "silently", "another exception"
_VARIADIC = inspect.Parameter.VAR_POSITIONAL
_HIDDEN = inspect.Parameter.VAR_KEYWORD


def public_modules() -> Iterator[types.ModuleType]:
    """All modules whose path has no underscore."""
    for found in pkgutil.walk_packages(dpsco_jax.__path__, "dpsco_jax."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            yield importlib.import_module(found.name)


@functools.cache
def public_functions() -> dict[str, Callable[..., Any]]:
    """The public functions and constructors by path, without the name of the package."""
    found: dict[str, Callable[..., Any]] = dict(SCHEMES)
    for module in public_modules():
        path = module.__name__.removeprefix("dpsco_jax.")
        listed = getattr(module, "__all__", None)
        for name, value in vars(module).items():
            if name.startswith("_") or not callable(value) or typing.get_origin(value):
                continue
            if listed is not None and name not in listed:
                continue
            home = getattr(value, "__module__", "")
            # What a room only hands on is tried in the module that defines it, unless that is private.
            handed_on = listed is not None and re.search(r"^dpsco_jax\..*\._", f"{home}.{name}")
            if home != module.__name__ and not handed_on:
                continue
            if inspect.isclass(value) and not _is_checked_class(value):
                continue
            found[f"{path}.{name}"] = value
    return found


def _is_checked_class(value: type) -> bool:
    if issubclass(value, tuple | enum.Enum | Exception) or getattr(value, "_is_protocol", False):
        return False
    try:
        return jax.tree.leaves(blank := object.__new__(value)) == [blank]
    except AttributeError:  # a registered class, of which the fields are missing
        return False


class Parameter(NamedTuple):
    """One argument of one function."""

    function: str
    name: str
    argument: Argument
    optional: bool
    variadic: bool
    none_works: bool


@functools.cache
def parameters(path: str) -> list[Parameter]:
    """The arguments of a function, with the kinds that a table, an annotation or a name says, in this order.

    Raises:
        KeyError: for a name of which none of them knows anything.
    """
    found = []
    annotations = kinds_of(public_functions()[path])
    for name, parameter in _signature(path).items():
        said, argument = GOOD.get(path, {}).get(name), ARGUMENTS.get(name)
        if name in annotations and not isinstance(said, Argument):
            kind, value = annotated(annotations[name][0])
            argument = Argument(kind, value if argument is None else argument.value)
        if isinstance(said, Argument):
            argument = said
        elif isinstance(said, Kind):
            argument = Argument(said, parameter.default if argument is None else argument.value)
        elif argument is None:
            raise KeyError(f"{path}: {name} is in no table of tests/support")
        elif name in GOOD.get(path, {}):
            argument = Argument(argument.kind, said)
        found.append(
            Parameter(
                path,
                name,
                argument,
                parameter.default is not parameter.empty,
                parameter.kind is _VARIADIC,
                parameter.default is None or _takes_none(parameter.annotation),
            )
        )
    return found


def _takes_none(annotation: Any) -> bool:
    several = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Union else ()
    return types.NoneType in several or (not several and "None" in str(annotation))


def _signature(path: str) -> dict[str, inspect.Parameter]:
    """The arguments of a function; a solver names all of them and hides none behind ``**arguments``."""
    named = dict(inspect.signature(public_functions()[path]).parameters)
    hidden = [name for name, parameter in named.items() if parameter.kind is _HIDDEN]
    assert not (hidden and path.startswith("solvers.")), f"{path} hides **{hidden[0]}"
    return {name: parameter for name, parameter in named.items() if name not in hidden}


def good_call(path: str, /, **changes: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with which the function works, but for the changes."""
    positional: tuple[Any, ...] = ()
    named = {}
    for parameter in parameters(path):
        said = parameter.name in GOOD.get(path, {}) and not isinstance(
            GOOD[path][parameter.name], Kind
        )
        if parameter.name in changes:
            value = changes[parameter.name]
        elif parameter.optional and not said:
            continue
        else:
            value = parameter.argument.good()
        if parameter.variadic:
            positional = (value,)
        else:
            named[parameter.name] = value
    return positional, named


def bad_values(parameter: Parameter) -> list[Any]:
    """What this argument must refuse."""
    if (parameter.function, parameter.name) in EXEMPT:
        return []
    return [
        bad for bad in parameter.argument.kind.bad if not (bad is None and parameter.none_works)
    ]


def outcome(path: str, name: str, bad: Any) -> tuple[str, str]:
    """What the function does about a bad value, and what it says."""
    positional, named = good_call(path, **{name: bad})
    try:
        result = public_functions()[path](*positional, **named)
    except ValueError as error:
        spoken = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(error))
        return (NAMED if spoken else UNNAMED), f"{str(error)[:160]}"
    except Exception as error:
        return OTHER, f"{type(error).__name__}: {str(error)[:160]}"
    return SILENT, f"{result!r}"[:80]


def tried(path: str) -> Iterator[tuple[str, Any, str, str]]:
    """Every bad value of every argument of a function, with what came of it."""
    if (path, "*") in EXEMPT:
        return
    for parameter in parameters(path):
        for bad in bad_values(parameter):
            yield parameter.name, bad, *outcome(path, parameter.name, bad)


def main() -> None:
    """Print the count; with names of functions (or their beginnings), what is not refused by name."""
    chosen = sys.argv[1:]
    total: collections.Counter[str] = collections.Counter()
    rooms: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    count = 0
    for path in public_functions():
        if chosen and not path.startswith(tuple(chosen)):
            continue
        count += 1
        for name, bad, kind, said in tried(path):
            total[kind] += 1
            rooms[".".join(path.split(".")[: 2 if path.startswith("solvers") else 1])][kind] += 1
            if chosen and kind != NAMED:
                print(f"{path}({name}={bad!r}): {kind}: {said}")
    kinds = (NAMED, UNNAMED, SILENT, OTHER)
    print(f"{'':24}" + "".join(f"{kind:>20}" for kind in kinds))
    for room, counts in [*rooms.items(), (f"{count} functions", total)]:
        print(f"{room:24}" + "".join(f"{counts[kind]:20}" for kind in kinds))


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
