"""Losses that draw by a record of a user: refused, where JAX would draw for all users by one of them.

``jax.vmap`` of XLA's generator draws for the whole batch from the key of its first row. Then a loss that
drops out, augments or shifts by a key in the record, or by a number of the record folded into one, is a
function of the first user's record for every user, and one user moves the sum of clipped gradients by as many
bounds as there are users.

If a program is not refused, no draw whose batch differs from draws one by one (``_keys.draw_apart``) depends
on what varies. What varies is followed through all equations; where it is not known how, everything behind is
taken to vary. Keys that depend on no record are public, and work. (Draws of a callback are not seen.) The
program that is looked at is the one that runs.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from dpsco_jax import _effects, _keys

# Calls of one program whose arguments and results are those of the equation, in order.
_CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat2",
    "remat",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "custom_vmap_call",
)


def over_users(
    function: Callable[..., Any], in_axes: Any = 0, public: Collection[int] = ()
) -> Callable[..., Any]:
    """As ``jax.vmap`` over the records of users, for functions that do not draw by them (``refuse``).

    Args:
        function: of the record of a user, and of other arguments.
        in_axes: as of ``jax.vmap``, a number or ``None`` for each argument.
        public: positions of mapped arguments that depend on no record.
    """
    mapped = jax.vmap(function, in_axes)

    def checked(*arguments: Any) -> Any:
        axes = (in_axes,) * len(arguments) if isinstance(in_axes, int) else in_axes
        whole = [i for i, axis in enumerate(axes) if axis is None]
        program, shapes = jax.make_jaxpr(mapped, return_shape=True)(*arguments)
        refuse(program, _which_vary(arguments, (*public, *whole)))
        results = core.jaxpr_as_fun(program)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return checked


def refuse(program: core.ClosedJaxpr, varies: Sequence[bool]) -> None:
    """``ValueError`` if a program draws by keys that depend on a record and do not draw apart.

    Args:
        program: of a loss, or of its gradient, of one user or of several under ``jax.vmap``.
        varies: which of its arguments depend on a record.
    """
    _varying(program.jaxpr, varies)


def _which_vary(arguments: Sequence[Any], public: Collection[int]) -> list[bool]:
    """For each array of the arguments, whether it depends on a record."""
    sizes = [len(jax.tree.leaves(argument)) for argument in arguments]
    return [place not in public for place, size in enumerate(sizes) for _ in range(size)]


def _varying(program: Any, varies: Sequence[bool]) -> list[bool]:
    """Which results of a program vary; ``ValueError`` if a doubtful draw does."""
    seen = dict(zip(program.invars, varies, strict=True))

    def varying(atom: Any) -> bool:
        return not isinstance(atom, core.Literal) and seen.get(atom, False)

    for eqn in program.eqns:
        operands = [varying(atom) for atom in eqn.invars]
        if any(operands):
            programs = _programs(eqn)
            if not programs:
                _require_draws_apart(eqn, operands)
            seen.update(zip(eqn.outvars, _through(eqn, programs, operands), strict=True))
    return [varying(atom) for atom in program.outvars]


def _require_draws_apart(eqn: Any, operands: Sequence[bool]) -> None:
    """``ValueError`` if an equation makes something else than keys of keys that vary and are doubtful."""
    kinds = [atom.aval.dtype for atom, own in zip(eqn.invars, operands, strict=True) if own]
    doubtful = [str(kind) for kind in kinds if not _keys.draw_apart(kind)]
    if all(jnp.issubdtype(atom.aval.dtype, jax.dtypes.prng_key) for atom in eqn.outvars):
        doubtful = []
    if eqn.primitive.name == "rng_bit_generator":
        doubtful.append("raw numbers")
    if doubtful:
        raise ValueError(
            "loss must draw by keys of threefry2x32 where they depend on a user's record, got"
            f" {eqn.primitive.name} of {doubtful[0]}: jax.vmap draws for all users of a batch by the"
            " key of one of them"
        )


def _through(eqn: Any, programs: Sequence[Any], operands: Sequence[bool]) -> list[bool]:
    """Which results of an equation vary, some of whose operands do."""
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
        fixed, carry, slices = operands[:first], operands[first:last], operands[last:]
        return _looped(programs[0], fixed, carry, slices)
    if name == "while":
        first = params["cond_nconsts"]
        last = first + params["body_nconsts"]
        asks, fixed, carry = operands[:first], operands[first:last], operands[last:]
        carry = _looped(params["body_jaxpr"].jaxpr, fixed, carry, ())
        (stops,) = _varying(params["cond_jaxpr"].jaxpr, [*asks, *carry])
        # Who stops when is then an own matter, and so is how far anything has come.
        return (
            _looped(params["body_jaxpr"].jaxpr, fixed, [True] * len(carry), ()) if stops else carry
        )
    if name == "cond":
        results = [_varying(branch, operands[1:]) for branch in programs]
        return [operands[0] or any(each) for each in zip(*results, strict=True)]
    if name in _CALLS and [len(program.invars) for program in programs] == [len(operands)]:
        return _varying(programs[0], operands)
    for program in programs:
        _varying(program, [True] * len(program.invars))
    return [True] * len(eqn.outvars)


def _looped(
    body: Any, fixed: Sequence[bool], carry: Sequence[bool], slices: Sequence[bool]
) -> list[bool]:
    """Which results of a loop vary: of its carry, once no more of it does, and what it stacks."""
    while True:
        results = _varying(body, [*fixed, *carry, *slices])
        after = [before or now for before, now in zip(carry, results, strict=False)]
        if after == list(carry):
            return [*after, *results[len(after) :]]
        carry = after


def _programs(eqn: Any) -> list[Any]:
    """The programs in the parameters of an equation."""
    values = eqn.params.values()
    return [body.jaxpr for value in values for body in _effects.programs_in(value)]
