"""Parts in order: how phased, localized and restarted solvers cut the users, and put the pieces together.

What it computes: sizes of blocks from weights, the plans of parts that come ever nearer, the run of parts
each of which starts where the one before has ended, and one ``Solution`` from theirs. One rule for all: once
a part has not ended well (a test has failed, a number was not finite) nothing moves any more; later parts are
computed, as a compiled program must, and thrown away.

A compiler takes as long for each part in code of its own as for one. Neighbours that differ in numbers and
sizes alone are turns of one loop, where they say how (``Turns``): a turn is the same run, its sizes numbers.

Source: localization over disjoint samples as in Feldman, Koren and Talwar 2020, section 5.1; T, Algorithms
30, 31 and 33; parallel composition (McSherry 2009).

Formal guarantee: a user is assigned to a block by position alone, a public fact, so two neighbouring data
sets differ in one block. The runs on earlier blocks have the same law on both, the run on that block is
as private as its own loss says for any starting point, and later runs post-process. The joint loss is thus
the largest of the losses, not their sum, under whichever relation keeps positions: REPLACE_ONE and
REPLACE_SPECIAL. Under ADD_OR_REMOVE_ONE all later positions move and nothing of this is true. A turn is given
the position of its first user and the number of its users, both public, and reads nobody else. Part i has
the key ``_keys.of_part(key, i)``, whether or not it shares a program.

Cost: a block is a slice; where parts are turns of one loop nothing is copied, and one part is compiled. A
turn that has fewer users or steps than another makes fewer trips in its inner loops.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _counts, _keys, _sharding, _stacking, privacy
from dpsco_jax._checks import require, require_integer
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, num_users
from dpsco_jax.solvers import _costs, _planning
from dpsco_jax.solvers.solution import Solution, Status
from dpsco_jax.solvers.work import Work


def block_sizes(
    num_users: int, weights: float | Sequence[float], count: int | None = None, least: int = 1
) -> tuple[int, ...]:
    """Sizes of disjoint blocks that together hold all users, in proportion to positive weights, rounded down.

    One number r and a ``count`` stand for the weights 1, r, r², ...: 2 for blocks that double, ½ for blocks
    that halve. The users left over join the largest block.

    Raises:
        ValueError: if a weight is not positive.
        Infeasible: if a block would have fewer than ``least`` users.
    """
    if isinstance(weights, int | float):
        require(count is not None and count >= 1, "count", count, "at least 1")
        weights = [float(weights) ** i for i in range(count or 0)]
    good = len(weights) >= 1 and all(0.0 < w < math.inf for w in weights)
    require(good, "weights", weights, "positive and finite, at least one")
    total = math.fsum(weights)
    sizes = [int(num_users * (w / total)) for w in weights]
    sizes[max(range(len(sizes)), key=sizes.__getitem__)] += num_users - sum(sizes)
    if min(sizes) < least:
        needed = math.ceil(least * total / min(weights))
        raise Infeasible(
            f"num_users must be at least {needed} for {len(sizes)} blocks, got {num_users}",
            {"num_users": needed},
        )
    return tuple(sizes)


class OfParts:
    """What plans of parts in order have in common; a plan that inherits has the field ``parts``."""

    parts: Any

    @property
    def dim(self) -> int:
        """Number of parameters."""
        dim: int = self.parts[0].dim
        return dim

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        return sum(part.user_gradients for part in self.parts)

    def work_for(self, item: _costs.Item) -> Work:
        """What a run costs: the sum of the parts, all of which are computed, also after a halt."""
        return functools.reduce(operator.add, (part.work_for(item) for part in self.parts))


class OnBlocks(OfParts):
    """What plans of parts on disjoint users have in common."""

    def loss(self) -> privacy.PrivacyLoss:
        """The loss of the run, wherever parts halt: order by order that of the worst part."""
        return parallel_loss([part.loss() for part in self.parts])

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run: the largest ε and the largest δ of the parts, each of any part."""
        return privacy.parallel_certificate([part.certificate() for part in self.parts])


def slice_users(data: UserData, start: int, size: int) -> UserData:
    """The users at positions start, ..., start + size - 1, static; ``ValueError`` if there are none such."""
    users = num_users(data)
    start = require_integer("start", start, 0)
    size = require_integer("num_users", size, 1)
    require(start + size <= users, "start + size", start + size, f"at most {users} users")
    return jax.tree.map(lambda leaf: leaf[start : start + size], data)


def parallel_loss(losses: Sequence[privacy.PrivacyLoss]) -> privacy.PrivacyLoss:
    """The loss of releases from disjoint blocks: order by order the largest; see the file's docstring."""
    require(len(losses) >= 1, "losses", losses, "at least one")
    return privacy.parallel(*losses)


def join(
    solutions: Sequence[Solution],
    joint_loss: Callable[[Sequence[privacy.PrivacyLoss]], privacy.PrivacyLoss] = parallel_loss,
) -> Solution:
    """One solution from those of runs, in their order, on disjoint blocks unless ``joint_loss`` says other.

    Returns:
        The params of the last; the joint loss; the sum of the gradients; the gravest status (so halted
        if any run halted, diverged if any diverged); ``unprivate`` holds the sum of the realized gradients
        and the tuple of traces.
    """
    require(len(solutions) >= 1, "solutions", solutions, "at least one")
    statuses = jnp.stack([solution.status for solution in solutions])
    return Solution(
        params=solutions[-1].params,
        privacy=joint_loss([solution.privacy for solution in solutions]),
        status=jnp.max(statuses, axis=0),
        gradients=functools.reduce(_counts.add, [solution.gradients for solution in solutions]),
        unprivate={
            "gradients": functools.reduce(
                _counts.add, [solution.unprivate["gradients"] for solution in solutions]
            ),
            "trace": tuple(solution.unprivate["trace"] for solution in solutions),
        },
    )


def nearer(
    part_of: Callable[[int, float], Any],
    sizes: Sequence[int],
    first: float,
    farthest: float,
    convexity: float,
) -> tuple[tuple[Any, ...], tuple[float, ...]]:
    """Plans of parts, and the distances from a minimizer for which ``part_of(users, distance)`` made them.

    Where the risk is μ-strongly convex, (μ/2)·‖w - w*‖² is at most its excess, in expectation: the bound of a
    part says how far the next one starts, as a root mean square. A part may end farther away than it has
    started, but never beyond ``farthest``, what is known of all points.
    """
    parts: list[Any] = []
    distances = [first]
    for size in sizes:
        parts.append(part_of(size, distances[-1]))
        distances.append(min(farthest, math.sqrt(2 * parts[-1].excess_bound / convexity)))
    return tuple(parts), tuple(distances[:-1])


class Turns(NamedTuple):
    """How parts of several sizes run in one program.

    Attributes:
        lowered: of a part: a pytree of all that its run uses, sizes as numbers; ``None`` for a part that has
            a program of its own. Parts of which these can be stacked share one.
        prepared: of a part, the objective, the data of all users and a point: the data in the form that the
            solver takes, the same for all parts that share a program.
        solver: ``solver(key, lowered, objective, prepared, first, params)``; ``first`` is the position of the
            first user, and traced, as are the leaves of what ``lowered`` returned. Its ``gradients`` are not
            looked at, and it has no trace.
        gradients: of a part and the data: the public number of item gradients.
        check: of a part, the objective, the shapes of the part's data, and a point: ``ValueError`` unless
            they fit together.
    """

    lowered: Callable[[Any], Any | None]
    prepared: Callable[[Any, Objective, UserData, Any], Any]
    solver: Callable[..., Solution]
    gradients: Callable[[Any, UserData], int]
    check: Callable[[Any, Objective, UserData, Any], None]


@pytree
class Places:
    """Parts that are turns of a loop, and where they are.

    Attributes:
        count: how many there are.
        numbers: positions in the sequence, ``[count]``.
        firsts: positions of the first users, ``[count]``.
        parts: what ``Turns.lowered`` returned of them, stacked.
    """

    count: int = static()
    numbers: Number
    firsts: Number
    parts: Any


def run(
    key: jax.Array,
    parts: Sequence[Any],
    solver: Callable[..., Solution],
    objective: Objective,
    data: UserData,
    params: Any,
    composition: str = "parallel",
    on_blocks: bool = True,
    turns: Turns | None = None,
    most_unlike: float = math.inf,
) -> Solution:
    """Runs parts on consecutive blocks of users, each from where the one before has ended, until one halts.

    Args:
        key: a typed key.
        parts: plans, with ``num_users`` each.
        solver: ``solve(key, part, objective, data, params)``.
        objective: static.
        data: of all users.
        params: the starting point; projected onto the domain.
        composition: ``"parallel"``, or ``"sequential"``: the losses add up.
        on_blocks: if not, every part runs on all users; sequential composition then.
        turns: how neighbours share a program; ``None`` where each part has its own.
        most_unlike: parts share a program with parts of up to so many times their users.

    Returns:
        As ``join``, with the params of the last run that did not come after a halt.
    """
    require(on_blocks or composition == "sequential", "composition", composition, "sequential here")
    if on_blocks:
        for part in parts:
            _planning.require_replacement(getattr(part, "releases", None))
    point, stopped = objective.domain.project(params), jnp.zeros([], bool)
    solutions: list[Solution] = []
    start = 0
    for group in groups(parts, turns, data, most_unlike):
        i, blocks = len(solutions), []
        for part, _ in group:
            blocks.append(
                functools.partial(_block, start=start, size=part.num_users, on_blocks=on_blocks)
            )
            start += part.num_users if on_blocks else 0
        if turns is None or len(group) == 1:
            ((part, _),), (block,) = group, blocks
            found = solver(_keys.of_part(key, i), part, objective, block(data), point)
            point, stopped, found = until_stopped(stopped, point, found)
            solutions.append(found)
            continue
        for (part, _), block in zip(group, blocks, strict=True):
            turns.check(part, objective, jax.eval_shape(block, data), point)
        firsts = [block.keywords["start"] for block in blocks]
        places = places_of([lowered for _, lowered in group], i, firsts)
        rows = turns.prepared(group[0][0], objective, data, point)
        point, stopped, found = loop(key, turns.solver, places, objective, rows, point, stopped)
        for solution, (part, _) in zip(apart(found, len(group)), group, strict=True):
            public = _counts.count(turns.gradients(part, data))
            solutions.append(solution._replace(gradients=public))
    return joined(solutions, composition)


def _block(data: UserData, start: int, size: int, on_blocks: bool) -> UserData:
    return slice_users(data, start, size) if on_blocks else data


def groups(
    parts: Sequence[Any], turns: Turns | None, data: UserData, most_unlike: float = math.inf
) -> list[list[tuple[Any, Any]]]:
    """The parts in order, each with its numbers, neighbours that share a program together.

    Where users lie on several devices each part has its own.
    """
    alone = turns is None or _sharding.found(data) is not None
    found: list[list[tuple[Any, Any]]] = []
    for part in parts:
        lowered = None if alone or turns is None else turns.lowered(part)
        last = found[-1] if found else []
        if last and lowered is not None and last[-1][1] is not None:
            sizes = [part.num_users for part, _ in [*last, (part, lowered)]]
            alike = max(sizes) <= most_unlike * min(sizes)
            if alike and _stacking.fit([last[-1][1], lowered]):
                last.append((part, lowered))
                continue
        found.append([(part, lowered)])
    return found


def places_of(lowered: Sequence[Any], number: int, firsts: Sequence[int]) -> Places:
    """The places of parts of which the first is ``number`` of a sequence."""
    numbers = np.arange(number, number + len(lowered), dtype=np.int32)
    stacked = _stacking.stacked(lowered)
    return Places(len(lowered), numbers, np.asarray(firsts, np.int32), stacked)


def loop(
    key: jax.Array,
    solver: Callable[..., Solution],
    places: Places,
    objective: Objective,
    rows: Any,
    point: Any,
    stopped: jax.Array,
) -> tuple[Any, jax.Array, Solution]:
    """The turns one after the other: the point at the end, whether it is over, all solutions stacked."""

    def turn(carry: tuple[Any, Any], place: tuple[Any, Any, Any]) -> tuple[Any, Solution]:
        point, stopped = carry
        i, first, part = place
        found = solver(_keys.of_part(key, i), part, objective, rows, first, point)
        point, stopped, found = until_stopped(stopped, point, found)
        return (point, stopped), found

    each = jax.tree.map(jnp.asarray, (places.numbers, places.firsts, places.parts))
    (point, stopped), found = jax.lax.scan(turn, (point, stopped), each)
    return point, stopped, found


def apart(found: Solution, count: int) -> list[Solution]:
    """Stacked solutions one by one."""
    return [jax.tree.map(lambda leaf, i=i: leaf[i], found) for i in range(count)]


def until_stopped(
    stopped: jax.Array, point: Any, found: Solution
) -> tuple[Any, jax.Array, Solution]:
    """The point, whether the sequence is over, and the solution of a part.

    Once it is over the point stays, and whatever a later part has found is thrown away.
    """
    point = jax.tree.map(lambda old, new: jnp.where(stopped, old, new), point, found.params)
    status = jnp.where(stopped, int(Status.OK), found.status).astype(jnp.int32)
    over = stopped | (status != int(Status.OK))
    return point, over, found._replace(params=point, status=status)


def joined(solutions: Sequence[Solution], composition: str) -> Solution:
    """One solution from those of parts that compose in ``"parallel"`` or in ``"sequential"`` order."""
    return join(solutions) if composition == "parallel" else join(solutions, _composed)


def _composed(losses: Sequence[privacy.PrivacyLoss]) -> privacy.PrivacyLoss:
    return privacy.compose(*losses)
