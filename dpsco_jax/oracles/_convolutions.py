"""Losses whose gradients must be taken one example at a time, since batches of them mix.

A convolution with groups of a batch (``batch_group_count``) becomes one of everything with everything, in
which what does not belong together is multiplied by zero. That is right for numbers, but zero times NaN or
infinity is NaN: one example that is not finite makes the gradients of all others NaN. JAX makes such
convolutions where it takes the derivative in the kernel of a grouped convolution, or in the kernels of a
batch in which every example has one of its own; and a loss with a rule of its own for derivatives
(``jax.custom_vjp``) may hold them in that rule alone. This was found by search on a CPU. Programs that hold
such convolutions, or equations that ask for all examples (``of_batches``), go by ``lax.map`` on every
platform: what comes of an example is a function of it alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from dpsco_jax import _effects

_OF_BATCHES = ("custom_vmap_call", "unvmap_any", "unvmap_all", "unvmap_max")


def grouped(program: Any) -> bool:
    """Whether there is a convolution with groups of channels or of images anywhere in a program.

    Of a rule for derivatives that a function has the program shows nothing: that of a gradient does.
    """
    return holds(program, _has_groups)


def grouped_in_rules(program: Any) -> bool:
    """Whether such a convolution may be in a rule for derivatives that a function in a program has.

    A rule is asked for the derivative in all operands, which is more than it may give: if it refuses, it
    counts as one that has groups.
    """
    return holds(program, lambda eqn: has_rule(eqn) and _groups_in_rule(eqn))


def _groups_in_rule(eqn: Any) -> bool:
    try:
        return grouped(_derivative(eqn))
    except Exception:
        return True


def of_batches(program: Any) -> bool:
    """Whether there is an equation that, in a batch, asks for all examples: one that any of them may change.

    So do functions with a rule of their own for batches (``jax.custom_batching.custom_vmap``) and the
    ``unvmap_any`` of equinox, by which ``error_if(..., on_error="nan")`` makes all examples NaN where one
    fails. What asks when a ``while`` ends is left out: an example that is done there stays as it is.
    """
    for eqn in program.jaxpr.eqns:
        if eqn.primitive.name in _OF_BATCHES:
            return True
        params = {name: value for name, value in eqn.params.items() if name != "cond_jaxpr"}
        bodies = [body for value in params.values() for body in _effects.programs_in(value)]
        if any(map(of_batches, bodies)):
            return True
    return False


def of_two(program: Any, varies: Sequence[bool]) -> bool:
    """Whether there is a convolution of two operands both of which may be others in every example.

    Args:
        program: a closed jaxpr.
        varies: which of its arguments are an example's own.
    """
    seen = dict(zip(program.jaxpr.invars, varies, strict=True))

    def own(atom: Any) -> bool:
        return not isinstance(atom, core.Literal) and seen.get(atom, False)

    for eqn in program.jaxpr.eqns:
        operands = [own(atom) for atom in eqn.invars]
        if eqn.primitive.name == "conv_general_dilated" and all(operands):
            return True
        for body in _bodies(eqn):
            number = len(body.jaxpr.invars)
            # A loop may carry what is an example's own to where nothing was; of branches the first is the
            # number of the branch. Others, as linear solves, deal their operands out among several programs.
            if eqn.primitive.name in ("scan", "while"):
                inside = [any(operands)] * number
                if eqn.primitive.name == "scan":
                    shared = eqn.params["num_consts"]
                    end = shared + eqn.params["num_carry"]
                    inside = [*operands[:shared], *inside[shared:end], *operands[end:]]
            elif eqn.primitive.name == "cond":
                inside = operands[1:]
            elif len(operands) == number and "linear_solve" not in eqn.primitive.name:
                inside = operands
            else:
                inside = [any(operands)] * number
            if of_two(body, inside):
                return True
        seen.update(dict.fromkeys(eqn.outvars, any(operands)))
    return False


def in_turn(function: Callable[..., Any], in_axes: Sequence[int | None]) -> Callable[..., Any]:
    """As ``jax.vmap``, by a loop; axes are 0 or ``None``."""

    def mapped(*arguments: Any) -> Any:
        given = [x for x, axis in zip(arguments, in_axes, strict=True) if axis == 0]

        def one(rows: Sequence[Any]) -> Any:
            rest = iter(rows)
            whole = zip(arguments, in_axes, strict=True)
            return function(*(next(rest) if axis == 0 else x for x, axis in whole))

        return lax.map(one, given)

    return mapped


def kept_apart(gradient: Callable[..., Any], loss: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a loss, which ``jax.vmap`` runs in turn if a batch of it would mix.

    Args:
        gradient: a function of the same arguments.
        loss: ``(params, *data) -> scalar``, as ``(params, items, mask)``.
    """

    def apart(params: Any, *data: Any) -> Any:
        program = jax.make_jaxpr(loss)(params, *data)
        # A new function each time, as JAX keeps what it has traced, and what one closes over may change.
        slope, shapes = jax.make_jaxpr(lambda *given: gradient(*given), return_shape=True)(
            params, *data
        )
        for each in (program, slope):
            _effects.require_none("loss", each)

        def evaluate(*given: Any) -> Any:
            results = core.jaxpr_as_fun(slope)(*jax.tree.leaves(given))
            return jax.tree.unflatten(jax.tree.structure(shapes), results)

        first = len(jax.tree.leaves(params))
        varies = [i >= first for i in range(len(program.jaxpr.invars))]
        mixed = any(grouped(each) or of_batches(each) for each in (program, slope))
        if not mixed and not of_two(program, varies):
            return evaluate(params, *data)
        return jax.custom_batching.sequential_vmap(evaluate)(params, *data)

    return apart


def _derivative(eqn: Any) -> Any:
    """The program of an equation and of its derivative, which is by the equation's own rule."""
    given = [jnp.zeros(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    moving = [i for i, x in enumerate(given) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def both(*moved: Any) -> Any:
        def call(*moved: Any) -> list[Any]:
            operands = list(given)
            for i, x in zip(moving, moved, strict=True):
                operands[i] = x
            bound = eqn.primitive.get_bind_params(eqn.params)
            # Releases of JAX before 0.9 hand out the functions in the parameters apart from them.
            functions, params = bound if isinstance(bound, tuple) else ((), bound)
            results = eqn.primitive.bind(*functions, *operands, **params)
            return [x for x in results if jnp.issubdtype(x.dtype, jnp.inexact)]

        results, back = jax.vjp(call, *moved)
        return back(results)

    return jax.make_jaxpr(both)(*(given[i] for i in moving))


def holds(program: Any, asked: Callable[[Any], bool]) -> bool:
    """Whether something is true of an equation anywhere in a program."""
    return any(
        asked(eqn) or any(holds(body, asked) for body in _bodies(eqn)) for eqn in program.jaxpr.eqns
    )


def _has_groups(eqn: Any) -> bool:
    if eqn.primitive.name != "conv_general_dilated":
        return False
    return eqn.params["feature_group_count"] * eqn.params["batch_group_count"] > 1


def has_rule(eqn: Any) -> bool:
    """Whether an equation is a function with a rule of its own for derivatives."""
    return eqn.primitive.name in ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


def _bodies(eqn: Any) -> list[Any]:
    return [body for value in eqn.params.values() for body in _effects.programs_in(value)]
