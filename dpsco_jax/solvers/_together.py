"""Parts of several sizes in one compiled loop: how the parts of a sequence share a program.

What it computes: the same as parts that run one after another, each in code of its own (``_sequence.run``).
A compiler takes as long for each of those as for one; here neighbours that differ in numbers and sizes alone
are turns of one loop: where a turn has fewer users or steps than another, its inner loops are shorter.

Source: none.

Formal guarantee: that of the parts. A turn is given the position of its first user and the number of its
users, both public, and reads nobody else; blocks are disjoint as in ``_sequence``. Turn i has the key
``_keys.of_part(key, i)``, whether or not it shares a program.

Cost: that of the parts, and one compiled part.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _counts, _keys, _sharding
from dpsco_jax._numerics import array_namespace
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.solution import Solution, Status


class Turns(NamedTuple):
    """How the parts of one kind of plan become turns of a loop.

    Attributes:
        kind: of a part: what must be equal for two neighbours to share a program; ``None`` for a part that
            shares none.
        stacked: of parts of one kind: a pytree whose arrays have an axis of parts in front.
        prepared: of a part of the kind, objective, data of all users and a point: the data in the form that
            ``solver`` takes.
        solver: ``solver(key, turn, objective, prepared, first, params)``; ``turn`` is an entry of what
            ``stacked`` returns, ``first`` the position of the first user, both traced. Its ``gradients`` are
            of no account, and it has no trace.
        gradients: of a part and the data: the public number of item gradients.
        check: of a part, the objective, the shapes of the part's data, and a point: ``ValueError`` unless
            they fit together.
    """

    kind: Callable[[Any], Hashable | None]
    stacked: Callable[[Sequence[Any]], Any]
    prepared: Callable[[Any, Objective, UserData, Any], Any]
    solver: Callable[..., Solution]
    gradients: Callable[[Any, UserData], int]
    check: Callable[[Any, Objective, UserData, Any], None] = lambda *given: None


class InnerTurns(NamedTuple):
    """How plans of a solver become turns of a solver that is made of it, by ``combinators.composite``.

    Attributes:
        kind: as of ``Turns``; ``stacked``, ``gradients`` and ``check`` are too.
        stacked: of plans of one kind.
        prepared: as of ``Turns``.
        solver: as of ``Turns``, with the centre of the term that is added to the objective at the end.
        gradients: of a plan and the data.
        check: of a plan, the objective, shapes of its data, and a point.
    """

    kind: Callable[[Any], Hashable | None]
    stacked: Callable[[Sequence[Any]], Any]
    prepared: Callable[[Any, Objective, UserData, Any], Any]
    solver: Callable[..., Solution]
    gradients: Callable[[Any, UserData], int]
    check: Callable[[Any, Objective, UserData, Any], None]


class Places(NamedTuple):
    """Where the turns of a loop are in their sequence and among the users; arrays, one entry for each.

    Attributes:
        numbers: positions in the sequence.
        firsts: positions of the first users.
        parts: what ``Turns.stacked`` returns.
    """

    numbers: Any
    firsts: Any
    parts: Any


def groups(parts: Sequence[Any], turns: Turns | None, data: UserData) -> list[list[Any]]:
    """The parts in order, neighbours of one kind together; one by one where users lie on several devices."""
    alone = turns is None or _sharding.found(data) is not None
    found: list[list[Any]] = []
    last: Hashable | None = None
    for part in parts:
        kind = None if alone or turns is None else turns.kind(part)
        if kind is not None and kind == last:
            found[-1].append(part)
        else:
            found.append([part])
        last = kind
    return found


def until_stopped(
    stopped: jax.Array, point: Any, found: Solution
) -> tuple[Any, jax.Array, Solution]:
    """Point, whether it is over, and the solution of a part: of no account if it was over before."""
    point = jax.tree.map(lambda old, new: jnp.where(stopped, old, new), point, found.params)
    status = jnp.where(stopped, int(Status.OK), found.status).astype(jnp.int32)
    over = stopped | (status != int(Status.OK))
    return point, over, found._replace(params=point, status=status)


def run(
    key: jax.Array,
    turns: Turns,
    parts: Sequence[Any],
    number: int,
    start: int,
    objective: Objective,
    data: UserData,
    point: Any,
    stopped: jax.Array,
    on_blocks: bool = True,
) -> tuple[Any, jax.Array, list[Solution]]:
    """Runs parts of one kind as turns of a loop.

    Args:
        key: of the whole sequence.
        turns: how.
        parts: neighbours, with ``num_users`` each.
        number: of the first of them in the sequence.
        start: the position of the first user of the first of them.
        objective: static.
        data: of all users.
        point: where the first starts.
        stopped: whether it was over before.
        on_blocks: whether each has users of its own; if not, all have those of the first.

    Returns:
        The point at the end, whether it is over, and a solution for each part.
    """
    places = places_of(turns, parts, number, start, on_blocks)
    rows = turns.prepared(parts[0], objective, data, point)
    point, stopped, found = loop(key, turns, places, objective, rows, point, stopped)
    solutions = [
        solution._replace(gradients=_counts.count(turns.gradients(part, data)))
        for solution, part in zip(apart(found, len(parts)), parts, strict=True)
    ]
    return point, stopped, solutions


def places_of(
    turns: Turns, parts: Sequence[Any], number: int, start: int, on_blocks: bool = True
) -> Places:
    """The places of parts of one kind, the first of which is ``number`` and starts at user ``start``."""
    sizes = np.asarray([part.num_users for part in parts], np.int32)
    firsts = (start + np.cumsum(sizes) - sizes).astype(np.int32)
    if not on_blocks:
        firsts = np.full(len(parts), start, np.int32)
    numbers = np.arange(number, number + len(parts), dtype=np.int32)
    return Places(numbers, firsts, turns.stacked(parts))


def loop(
    key: jax.Array,
    turns: Turns,
    places: Places,
    objective: Objective,
    rows: Any,
    point: Any,
    stopped: jax.Array,
) -> tuple[Any, jax.Array, Solution]:
    """The turns one after the other: the point at the end, whether it is over, all solutions stacked."""

    def turn(carry: tuple[Any, Any], place: Places) -> tuple[Any, Solution]:
        point, stopped = carry
        i, first, part = place
        found = turns.solver(_keys.of_part(key, i), part, objective, rows, first, point)
        point, stopped, found = until_stopped(stopped, point, found)
        return (point, stopped), found

    each = jax.tree.map(jnp.asarray, places)
    (point, stopped), found = jax.lax.scan(turn, (point, stopped), each)
    return point, stopped, found


def apart(found: Solution, count: int) -> list[Solution]:
    """Stacked solutions one by one."""
    return [jax.tree.map(lambda leaf, i=i: leaf[i], found) for i in range(count)]


def column(numbers: Sequence[Any]) -> Any:
    """The numbers of all parts as one array."""
    return array_namespace(*numbers).stack(numbers)
