"""Reading the program of a loss: where parameters meet data, and what is known of either there.

A walk over the equations of a traced loss gives every value a kind: ``CONSTANT``, ``HELD`` (a function of
parameters alone) or ``DATA``. An equation that has operands of both of the last two kinds is a *use* of
parameters. Calls are entered, and so are the bodies of ``scan`` and of ``jax.checkpoint``; other control flow
that holds parameters is one use as a whole, and so is a function with a derivative of its own. The order of
uses is a function of the program and the kinds of its inputs, so that two walks over one program count the
same uses.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.extend import core


class Kind(enum.IntEnum):
    """What a value depends on; the larger one of the operands is that of a result."""

    CONSTANT = 0
    HELD = 1
    DATA = 2


class Value(NamedTuple):
    """A value on the way: its kind, and what the domain knows of it."""

    kind: Kind
    known: Any


@runtime_checkable
class Domain(Protocol):
    """What is done with equations, by who takes part in them."""

    def literal(self, value: Any) -> Any:
        """Of a constant in the program."""

    def fixed(self, eqn: Any, known: Sequence[Any]) -> list[Any]:
        """Of an equation without data."""

    def data(self, eqn: Any, known: Sequence[Any]) -> list[Any]:
        """Of an equation without parameters."""

    def use(self, eqn: Any, operands: Sequence[Value]) -> list[Any]:
        """Of an equation with both."""

    def scan(self, eqn: Any, operands: Sequence[Value]) -> list[Any]:
        """Of a loop with both, whose body is to be walked."""

    def again(self, eqn: Any, body: core.ClosedJaxpr, operands: Sequence[Value]) -> list[Value]:
        """Of a call with both (``jax.checkpoint``) whose body, to be walked, is computed again backward."""


_AGAIN = ("remat2", "remat", "checkpoint")
_CALLS = ("jit", "pjit", "closed_call", "core_call", *_AGAIN)


def called(eqn: Any) -> core.ClosedJaxpr | None:
    """The program of a call without a derivative of its own; ``None`` of any other equation."""
    if eqn.primitive.name not in _CALLS:
        return None
    body = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return body if isinstance(body, core.ClosedJaxpr) else core.ClosedJaxpr(body, ())


def bind(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation for these operands."""
    bound = eqn.primitive.get_bind_params(eqn.params)
    # Releases of JAX before 0.9 hand out the functions in the parameters apart from them.
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    results = eqn.primitive.bind(*functions, *operands, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


def walk(program: core.ClosedJaxpr, arguments: Sequence[Value], domain: Domain) -> list[Value]:
    """The outputs of a program in a domain."""
    known: dict[Any, Value] = {}

    def read(atom: Any) -> Value:
        if isinstance(atom, core.Literal):
            return Value(Kind.CONSTANT, domain.literal(atom.val))
        return known[atom]

    constants = [Value(Kind.CONSTANT, domain.literal(c)) for c in program.consts]
    known.update(zip(program.jaxpr.constvars, constants, strict=True))
    known.update(zip(program.jaxpr.invars, arguments, strict=True))
    for eqn in program.jaxpr.eqns:
        results = _results(eqn, [read(atom) for atom in eqn.invars], domain)
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in program.jaxpr.outvars]


def kinds(program: core.ClosedJaxpr, arguments: Sequence[Kind]) -> list[Kind]:
    """The kinds of the outputs of a program."""
    values = [Value(kind, None) for kind in arguments]
    return [value.kind for value in walk(program, values, _KindsAlone())]


def _results(eqn: Any, operands: list[Value], domain: Domain) -> list[Value]:
    present = {value.kind for value in operands}
    kind = max(present, default=Kind.CONSTANT)
    body = called(eqn)
    if Kind.HELD in present and body is not None:
        again = kind == Kind.DATA and eqn.primitive.name in _AGAIN
        return domain.again(eqn, body, operands) if again else walk(body, operands, domain)
    everything = [value.known for value in operands]
    if eqn.primitive.name == "stop_gradient" and kind == Kind.HELD:
        # Nothing is carried back through it.
        return [Value(Kind.CONSTANT, result) for result in domain.fixed(eqn, everything)]
    if kind != Kind.DATA:
        results = domain.fixed(eqn, everything)
    elif Kind.HELD not in present or not any(differentiable(v.aval) for v in eqn.outvars):
        results = domain.data(eqn, everything)
    elif eqn.primitive.name == "scan" and _can_be_entered(eqn, operands):
        results = domain.scan(eqn, operands)
    else:
        results = domain.use(eqn, operands)
    return [Value(kind, result) for result in results]


def differentiable(aval: Any) -> bool:
    """Whether cotangents of such values are numbers, real or complex."""
    return jnp.issubdtype(aval.dtype, jnp.inexact)


class Loop(NamedTuple):
    """A ``scan``, taken apart."""

    body: core.ClosedJaxpr
    length: int
    reverse: bool
    unroll: Any
    constants: list[Value]
    carry: list[Value]
    slices: list[Value]


def loop_of(eqn: Any, operands: Sequence[Value]) -> Loop:
    """The parts of a ``scan``."""
    p = eqn.params
    first, second = p["num_consts"], p["num_consts"] + p["num_carry"]
    parts = list(operands[:first]), list(operands[first:second]), list(operands[second:])
    return Loop(p["jaxpr"], p["length"], p["reverse"], p["unroll"], *parts)


def _can_be_entered(eqn: Any, operands: Sequence[Value]) -> bool:
    """Whether parameters come into the body of a loop as they are, and do not leave it as they are."""
    loop = loop_of(eqn, operands)
    if any(value.kind == Kind.HELD for value in loop.carry):
        return False
    inside = [v.kind for v in loop.constants] + [Kind.DATA] * len(loop.carry)
    return Kind.HELD not in kinds(loop.body, inside + [v.kind for v in loop.slices])


class _KindsAlone:
    """The domain in which nothing is known."""

    def literal(self, value: Any) -> None:
        del value

    def fixed(self, eqn: Any, known: Sequence[Any]) -> list[Any]:
        return [None] * len(eqn.outvars)

    def data(self, eqn: Any, known: Sequence[Any]) -> list[Any]:
        return [None] * len(eqn.outvars)

    def use(self, eqn: Any, operands: Sequence[Value]) -> list[Any]:
        return [None] * len(eqn.outvars)

    def scan(self, eqn: Any, operands: Sequence[Value]) -> list[Any]:
        return [None] * len(eqn.outvars)

    def again(self, eqn: Any, body: core.ClosedJaxpr, operands: Sequence[Value]) -> list[Value]:
        del eqn
        return walk(body, operands, self)


def trace(loss: Callable[..., Any], params: Any, example: Any) -> core.ClosedJaxpr:
    """The program of a loss of one example, whose arguments are the leaves of both, parameters first."""
    leaves, structure = jax.tree.flatten(params)
    given, form = jax.tree.flatten(example)

    def flat(*arguments: Any) -> Any:
        first, second = arguments[: len(leaves)], arguments[len(leaves) :]
        return loss(jax.tree.unflatten(structure, first), jax.tree.unflatten(form, second))

    return jax.make_jaxpr(flat)(*leaves, *given)
