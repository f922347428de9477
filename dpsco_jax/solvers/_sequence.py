"""Parts in order: how phased, localized and restarted solvers cut the users, and put the pieces together.

What it computes: sizes of blocks from weights, the plans of parts that come ever nearer, the run of parts
each of which starts where the one before has ended, and one ``Solution`` from theirs. One rule for all: once
a part has not ended well (a test has failed, a number was not finite) nothing moves any more; later parts are
computed, as a compiled program must, and thrown away.

Source: localization over disjoint samples as in Feldman, Koren and Talwar 2020, section 5.1; T, Algorithms
30, 31 and 33; parallel composition (McSherry 2009).

Formal guarantee: a user is assigned to a block by position alone, a public fact, so two neighbouring data
sets differ in one block. The runs on earlier blocks have the same law on both, the run on that block is
as private as its own loss says for any starting point, and later runs post-process. The joint loss is thus
the largest of the losses, not their sum, under whichever relation keeps positions: REPLACE_ONE and
REPLACE_SPECIAL. Under ADD_OR_REMOVE_ONE all later positions move and nothing of this is true.

Cost: a block is a slice; where parts are turns of one loop (``_together``), nothing is copied.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax import _counts, _keys, privacy
from dpsco_jax._checks import require, require_integer
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, num_users
from dpsco_jax.solvers import _costs, _planning, _together
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.work import Work


def block_sizes(
    num_users: int, weights: float | Sequence[float], count: int | None = None, least: int = 1
) -> tuple[int, ...]:
    """Sizes of disjoint blocks that together hold all users.

    Args:
        num_users: how many users there are.
        weights: of the blocks, positive; or one number r, for the weights 1, r, r², ...: 2 for blocks that
            double, ½ for blocks that halve.
        count: number of blocks if ``weights`` is one number.
        least: users of the smallest block, at least 1.

    Returns:
        Sizes proportional to the weights, rounded down; the users left over join the largest block.

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


class OnBlocks:
    """What plans of parts on disjoint users have in common; a plan that inherits has the field ``parts``."""

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

    def loss(self) -> privacy.PrivacyLoss:
        """The loss of the run, wherever parts halt: order by order that of the worst part."""
        return parallel_loss([part.loss() for part in self.parts])

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run: the largest ε and the largest δ of the parts, each of any part."""
        return privacy.parallel_certificate([part.certificate() for part in self.parts])


def slice_users(data: UserData, start: int, size: int) -> UserData:
    """The users at positions start, ..., start + size - 1.

    Args:
        data: users × items.
        start: static, at least 0.
        size: static, at least 1.

    Raises:
        ValueError: if there are no such users.
    """
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
    """Plans of parts, and the distances from a minimizer for which they were made.

    Where the risk is μ-strongly convex, (μ/2)·‖w - w*‖² is at most its excess, in expectation: the bound of a
    part says how far the next one starts, as a root mean square. A part may end farther away than it has
    started, but never beyond what is known of all points.

    Args:
        part_of: the plan for a number of users and a distance; has ``excess_bound``.
        sizes: users of the parts.
        first: distance of the first start.
        farthest: distance of any point of the domain.
        convexity: μ.
    """
    parts: list[Any] = []
    distances = [first]
    for size in sizes:
        parts.append(part_of(size, distances[-1]))
        distances.append(min(farthest, math.sqrt(2 * parts[-1].excess_bound / convexity)))
    return tuple(parts), tuple(distances[:-1])


def run(
    key: jax.Array,
    parts: Sequence[Any],
    solver: Callable[..., Solution],
    objective: Objective,
    data: UserData,
    params: Any,
    composition: str = "parallel",
    on_blocks: bool = True,
    turns: _together.Turns | None = None,
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
        turns: how neighbours of one kind run in one program; ``None`` where each part has its own.

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
    for group in _together.groups(parts, turns, data):
        i = len(solutions)
        if turns is not None and len(group) > 1:
            _require_fit(turns, group, start, objective, data, point, on_blocks)
            point, stopped, found_by_part = _together.run(
                key, turns, group, i, start, objective, data, point, stopped, on_blocks
            )
            solutions += found_by_part
            start += sum(part.num_users for part in group) if on_blocks else 0
            continue
        (part,) = group
        block = slice_users(data, start, part.num_users) if on_blocks else data
        found = solver(_keys.of_part(key, i), part, objective, block, point)
        point, stopped, found = _together.until_stopped(stopped, point, found)
        solutions.append(found)
        start += part.num_users if on_blocks else 0
    return joined(solutions, composition)


def _require_fit(
    turns: _together.Turns,
    parts: Sequence[Any],
    start: int,
    objective: Objective,
    data: UserData,
    point: Any,
    on_blocks: bool,
) -> None:
    """``ValueError`` unless there are users for all parts, and each fits to its own."""
    for part in parts:
        size = part.num_users
        block = jax.eval_shape(lambda d: d, data)
        if on_blocks:
            block = jax.eval_shape(functools.partial(slice_users, start=start, size=size), data)
            start += size
        turns.check(part, objective, block, point)


def joined(solutions: Sequence[Solution], composition: str) -> Solution:
    """One solution from those of parts that compose in ``"parallel"`` or in ``"sequential"`` order."""
    return join(solutions) if composition == "parallel" else join(solutions, _composed)


def _composed(losses: Sequence[privacy.PrivacyLoss]) -> privacy.PrivacyLoss:
    return privacy.compose(*losses)
