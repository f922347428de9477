"""Losses have to be functions: what a program does beside computing its results is refused by name.

- A write to a mutable reference (``jax.new_ref``) leaves records of one example behind for the next one, or
  for whoever holds the reference; and JAX does not differentiate through those that are closed over.
- A callback to the host (``io_callback``, ``jax.debug.callback``, ``jax.debug.breakpoint``) may put what it
  is given anywhere, without noise.
- An ordered effect keeps the examples of a batch in a row, and a collective over a named axis adds them up.

``jax.debug.print`` may stand in a loss, unless it is ordered: it changes no result, and its text goes to the
standard output of the process that holds the data. What it prints is private all the same. A
``pure_callback`` is taken at its word.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core


def require_none_of(name: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Trace a function, and raise ``ValueError`` if its program has effects.

    Args:
        name: of the argument that the function is, for the message.
        function: hashable; its trace is kept by JAX, so that a second one is free.
        arguments: of the function: pytrees of arrays or of shapes, of which only shapes are taken.
    """
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), arguments
    )
    require_none(name, jax.make_jaxpr(function)(*shapes))


def checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of arrays, which raises ``ValueError`` if its program has effects; traced once a shape."""

    def evaluate(*arguments: Any) -> Any:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        require_none(name, program)
        results = core.jaxpr_as_fun(program)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return evaluate


def require_none(name: str, program: core.ClosedJaxpr) -> None:
    """Raise ``ValueError`` if a program has effects, with the names of the equations that have them."""
    if not program.effects:
        return
    found = list(_effects_in(program.jaxpr))
    if any(_is_collective(effect) for _, effect in found):
        raise ValueError(
            f"{name} must look at one example alone, got a collective over a named axis (as of batch "
            "normalization), which mixes examples; layer and group normalization work"
        )
    names = sorted({called for called, _ in found})
    if names:
        raise ValueError(
            f"{name} must be a function without side effects, since what it writes or calls may keep private "
            f"data, or mix examples; got {', '.join(names)}. Of jax.debug only an unordered print works"
        )


def _effects_in(program: core.Jaxpr) -> Iterator[tuple[str, Any]]:
    """The names of equations with effects, and these; of calls and loops, what stands inside of them."""
    for eqn in program.eqns:
        if not eqn.effects:
            continue
        inside = [body for value in eqn.params.values() for body in programs_in(value)]
        named = {type(effect) for body in inside for effect in body.jaxpr.effects}
        for body in inside:
            yield from _effects_in(body.jaxpr)
        for effect in eqn.effects:
            if type(effect) not in named and not _is_harmless(eqn):
                yield eqn.primitive.name, effect


def programs_in(value: Any) -> list[core.ClosedJaxpr]:
    """The programs in a parameter of an equation."""
    found = []
    for body in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(body, core.ClosedJaxpr):
            found.append(body)
        elif isinstance(body, core.Jaxpr):
            # Constants of a body that has none at hand are operands.
            operands = [*body.constvars, *body.invars]
            found.append(core.ClosedJaxpr(body.replace(constvars=[], invars=operands), ()))
    return found


def _is_harmless(eqn: Any) -> bool:
    return bool(eqn.primitive.name == "debug_print" and not eqn.params["ordered"])


def _is_collective(effect: Any) -> bool:
    return type(effect).__name__ == "NamedAxisEffect"
