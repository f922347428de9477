"""Parts of a composite as turns of one loop, parts that are composites themselves as loops inside of it.

What it computes: what ``composite.solve`` computes where all parts are of one kind: plans of one solver that
says how they become turns (``_together.offer``), or composites of equally many of these.

Source: none.

Formal guarantee: as ``composite``. Keys, centres and users are those of parts with programs of their own: of
a part inside of a part, users count from the first user of the outer one.

Cost: as ``composite``, and one compiled part.
"""

import functools
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _sequence, _together
from dpsco_jax.solvers.solution import Solution


@pytree
class _Turn:
    """A part, or the stack of several.

    Attributes:
        composition: of the parts inside of it; empty where there are none.
        center_share: θ.
        inside: numbers of the plan, or of the places of the parts inside of it.
    """

    composition: str = static(choices=("parallel", "sequential", ""))
    center_share: Number
    inside: Any


def turns_of(inner: _together.InnerTurns, center: Any) -> _together.Turns:
    """How parts of a composite become turns of one loop.

    Args:
        inner: how plans of the innermost solver do.
        center: the given centre, of the composite that the parts are of.
    """

    def prepared(part: Any, objective: Objective, data: UserData, params: Any) -> Any:
        return inner.prepared(_leaves(part)[0], objective, data, params)

    def gradients(part: Any, data: UserData) -> int:
        return sum(inner.gradients(plan, data) for plan in _leaves(part))

    return _together.Turns(
        kind=lambda part: _kind(inner, part),
        stacked=lambda some: _stacked(inner, some),
        prepared=prepared,
        solver=_solver(inner, center),
        gradients=gradients,
        check=functools.partial(_check, inner),
    )


def _leaves(part: Any) -> list[Any]:
    """The plans of the innermost solver, in their order."""
    return [plan for each in part.inside for plan in _leaves(each)] if part.inside else [part.plan]


def _check(
    inner: _together.InnerTurns, part: Any, objective: Objective, data: UserData, params: Any
) -> None:
    """``ValueError`` unless what is inside of a part has the users that the part has."""
    if not part.inside:
        inner.check(part.plan, objective, data, params)
        return
    _arguments.require_problem(type(part.plan), part.plan, objective, data, params)
    start = 0
    for each in part.inside:
        block = data
        if part.plan.on_blocks:
            of_each = functools.partial(_sequence.slice_users, start=start, size=each.num_users)
            block = jax.eval_shape(of_each, data)
            start += each.num_users
        _check(inner, each, objective, block, params)


def _kind(inner: _together.InnerTurns, part: Any) -> Hashable | None:
    if not part.inside:
        return inner.kind(part.plan)
    kinds = {_kind(inner, each) for each in part.inside}
    if len(kinds) > 1 or None in kinds:
        return None
    return part.plan.on_blocks, part.plan.composition, len(part.inside), kinds.pop()


def _stacked(inner: _together.InnerTurns, parts: Sequence[Any]) -> _Turn:
    """Of parts of one kind; what is inside of them has the same static sizes for all."""
    shares = _together.column([part.center_share for part in parts])
    if not parts[0].inside:
        return _Turn("", shares, inner.stacked([part.plan for part in parts]))
    plan, count = parts[0].plan, len(parts[0].inside)
    within = _stacked(inner, [each for part in parts for each in part.inside])
    by_part = jax.tree.map(lambda x: x.reshape(len(parts), count, *x.shape[1:]), within)
    firsts = np.zeros((len(parts), count), np.int32)
    if plan.on_blocks:
        sizes = np.asarray([[each.num_users for each in part.inside] for part in parts], np.int32)
        firsts = np.cumsum(sizes, axis=1, dtype=np.int32) - sizes
    numbers = np.tile(np.arange(count, dtype=np.int32), (len(parts), 1))
    return _Turn(plan.composition, shares, _together.Places(numbers, firsts, by_part))


def _solver(inner: _together.InnerTurns, center: Any) -> Any:
    def solve(
        key: jax.Array, turn: _Turn, objective: Objective, rows: Any, first: jax.Array, start: Any
    ) -> Solution:
        share = turn.center_share
        middle = jax.tree.map(
            lambda c, w: (share * c + (1 - share) * w).astype(w.dtype), center, start
        )
        if not turn.composition:
            return inner.solver(key, turn.inside, objective, rows, first, start, middle)
        places = turn.inside._replace(firsts=first + turn.inside.firsts)
        nested = _together.Turns(None, None, None, _solver(inner, middle), None)  # type: ignore[arg-type]
        point, running = objective.domain.project(start), jnp.zeros([], bool)
        _, _, found = _together.loop(key, nested, places, objective, rows, point, running)
        each = _together.apart(found, len(turn.inside.numbers))
        return _sequence.joined(each, turn.composition)

    return solve
