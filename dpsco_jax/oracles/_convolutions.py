"""Losses whose gradients must be taken one example at a time, since compiled batches of them mix.

What it computes: whether a program holds convolutions whose gradients XLA computes together for all
examples of a batch; and a map over examples that keeps them apart.

Source: none; found by search. XLA on a CPU and on a GPU turns a convolution with groups of a batch
(``batch_group_count``) into one of everything with everything, in which what does not belong together is
multiplied by zero. That is right for numbers, but zero times NaN or infinity is NaN: one example that is not
finite makes the gradients of all others NaN. JAX makes such convolutions where it takes the derivative in the
kernel of a grouped convolution, or in the kernels of a batch in which every example has one of its own.

Formal guarantee: a map over examples by ``lax.map`` runs one after the other, so that what comes of an
example is a function of it alone, whatever the others hold.

Cost: one walk over a program. A loop over examples in place of a batch, where it is needed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core


def grouped(program: Any) -> bool:
    """Whether there is a convolution with groups of channels or of images anywhere in a program."""
    return any(
        (eqn.primitive.name == "conv_general_dilated" and _groups(eqn) > 1)
        or any(grouped(body) for body in _bodies(eqn))
        for eqn in program.jaxpr.eqns
    )


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
            # number of the branch.
            if eqn.primitive.name in ("scan", "while"):
                inside = [any(operands)] * number
                if eqn.primitive.name == "scan":
                    shared = eqn.params["num_consts"]
                    end = shared + eqn.params["num_carry"]
                    inside = [*operands[:shared], *inside[shared:end], *operands[end:]]
            elif len(operands) >= number:
                inside = operands[len(operands) - number :]
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
        loss: ``(params, items, mask) -> scalar``.
    """

    def apart(params: Any, items: Any, mask: Any) -> Any:
        program = jax.make_jaxpr(loss)(params, items, mask)
        first = len(jax.tree.leaves(params))
        varies = [i >= first for i in range(len(program.jaxpr.invars))]
        if not grouped(program) and not of_two(program, varies):
            return gradient(params, items, mask)
        return jax.custom_batching.sequential_vmap(gradient)(params, items, mask)

    return apart


def _groups(eqn: Any) -> int:
    return eqn.params["feature_group_count"] * eqn.params["batch_group_count"]


def _bodies(eqn: Any) -> list[Any]:
    """The programs in the parameters of an equation."""
    found = []
    for value in eqn.params.values():
        for body in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(body, core.ClosedJaxpr):
                found.append(body)
            elif isinstance(body, core.Jaxpr):
                found.append(core.ClosedJaxpr(body, ()))
    return found
