"""What is known of a program by its structure, without running it: what depends on data, how much is drawn.

A fault that shows on some data only, a point that is chosen by its true loss for example, passes every
comparison of neighbours that happens to lie on one side. Here no data are run: the program is traced, and the
arguments that are marked mark every result that is computed from them, through loops, branches and calls.
What is marked by mistake (``0 * x`` depends on x) is rare; what is not marked does not depend.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax._src.core import DropVar
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

__all__ = ["dependent", "drawn", "draws", "marked"]


def dependent(run: Any, argument: Any) -> list[str]:
    """The paths of the leaves of ``run(argument)`` that are computed from any leaf of the argument."""
    closed, result = jax.make_jaxpr(run, return_shape=True)(argument)
    return marked(closed, result, [True] * len(closed.jaxpr.invars))


def marked(closed: ClosedJaxpr, result: Any, arguments: Sequence[bool]) -> list[str]:
    """The paths of the leaves of the result of a traced program that the marked arguments reach."""
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(result)]
    marks = _outputs(closed.jaxpr, arguments)
    return [path for path, mark in zip(paths, marks, strict=True) if mark]


def draws(run: Any, *arguments: Any) -> int:
    """How often ``run(*arguments)`` draws random bits; in a loop of unknown length, in one turn."""
    return drawn(jax.make_jaxpr(run)(*arguments))


def drawn(closed: ClosedJaxpr) -> int:
    """The same of a traced program."""
    return _draws(closed.jaxpr)


def _draws(jaxpr: Jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name, settings = equation.primitive.name, equation.params
        inner = [_draws(part) for value in settings.values() for part in _programs(value)]
        each = max(inner, default=0) if name == "cond" else sum(inner)
        # Words of keys are drawn by blocks; what JAX's check of key reuse is told besides has no result.
        used = not all(isinstance(variable, DropVar) for variable in equation.outvars)
        drawn_here = used and name in ("random_bits", "threefry2x32")
        total += (settings["length"] if name == "scan" else 1) * each + drawn_here
    return total


def _programs(value: Any) -> list[Jaxpr]:
    parts = value if isinstance(value, tuple | list) else [value]
    return [program for part in parts if (program := _program(part)) is not None]


def _outputs(jaxpr: Jaxpr, marked: Sequence[bool]) -> list[bool]:
    """Which results depend on the arguments that are marked."""
    marks = dict(zip(jaxpr.invars, marked, strict=True))

    def is_marked(variable: Any) -> bool:
        return not isinstance(variable, Literal) and marks.get(variable, False)

    for equation in jaxpr.eqns:
        given = [is_marked(variable) for variable in equation.invars]
        found = _of_equation(equation, given)
        marks.update(zip(equation.outvars, found, strict=True))
    return [is_marked(variable) for variable in jaxpr.outvars]


def _of_equation(equation: Any, given: list[bool]) -> list[bool]:
    name, settings = equation.primitive.name, equation.params
    if name == "scan":
        constants, carried = settings["num_consts"], settings["num_carry"]
        body, fixed = settings["jaxpr"].jaxpr, given[:constants]
        carry, xs = given[constants : constants + carried], given[constants + carried :]

        def step(carry: list[bool]) -> list[bool]:
            return _outputs(body, [*fixed, *carry, *xs])

        carry = _closure(lambda carry: step(carry)[:carried], carry)
        return carry + step(carry)[carried:]
    if name == "while":
        first, second = settings["cond_nconsts"], settings["body_nconsts"]
        test, body = settings["cond_jaxpr"].jaxpr, settings["body_jaxpr"].jaxpr

        def turn(carry: list[bool]) -> list[bool]:
            stops = _outputs(test, [*given[:first], *carry])[0]
            found = _outputs(body, [*given[first : first + second], *carry])
            return [mark or stops for mark in found]

        return _closure(turn, given[first + second :])
    if name == "cond":
        branches = [_outputs(branch.jaxpr, given[1:]) for branch in settings["branches"]]
        return [given[0] or any(marks) for marks in zip(*branches, strict=True)]
    inner = [part for value in settings.values() if (part := _program(value)) is not None]
    if len(inner) == 1 and len(inner[0].invars) == len(given):
        return _outputs(inner[0], given)
    return [any(given)] * len(equation.outvars)


def _closure(turn: Any, carry: list[bool]) -> list[bool]:
    """What a loop marks after any number of turns."""
    while True:
        after = [a or b for a, b in zip(carry, turn(carry), strict=True)]
        if after == carry:
            return carry
        carry = after


def _program(value: Any) -> Jaxpr | None:
    if isinstance(value, ClosedJaxpr):
        return value.jaxpr
    return value if isinstance(value, Jaxpr) else None
