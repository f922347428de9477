"""Blocks of private SCO by ball acceleration as turns of one loop; see ``solvers._together``.

What it computes: what ``ball_accelerated_erm.solve`` computes for each block, around its start, where all
calls of a block are of one size (no multilevel prox). The numbers of users and queries are numbers of the
turn, as are radii, noise and weights.

Source: as ``ball_accelerated_sco``.

Formal guarantee: as ``ball_accelerated_sco``: calls, noise and keys are the same. The loss of a turn is
formed from the block's own sizes, proven numbers and numbers of the run, before there are turns.

Cost: as ``ball_accelerated_sco``; see ``_calls_in_turn``. One prepared copy of the data of all users.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, _counts, privacy
from dpsco_jax._numerics import array_namespace
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _together
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque import _calls, _calls_in_turn, ball_accelerated_erm
from dpsco_jax.solvers.resque._ball_accelerated_plan import Plan
from dpsco_jax.solvers.solution import Solution


class Block(NamedTuple):
    """A block.

    Attributes:
        num_users: of the block.
        plan: of ``ball_accelerated_erm``.
        regularization: μ of the term around the start.
    """

    num_users: int
    plan: Plan
    regularization: Any


@pytree
class _Turn:
    """The numbers of a block, or of all.

    Attributes:
        search_runs: as in the plan.
        replacement: whether a user may be drawn several times in a call.
        outer: of ``ball_acceleration.plan``.
        sizes: of the calls.
        gradients: user gradients of a call.
        smoothing_radius: ρ.
        beta: of a call.
        regularization: μ.
        loss: what the run is charged.
    """

    search_runs: int = static()
    replacement: bool = static()
    outer: Any
    sizes: _calls_in_turn.Sizes
    gradients: Number
    smoothing_radius: Number
    beta: Number
    regularization: Number
    loss: privacy.PrivacyLoss


def _kind(block: Block) -> Hashable | None:
    plan, outer = block.plan, block.plan.outer
    (queries, _, replacement), *others = plan.kinds
    if others or not _calls_in_turn.has_turns(plan.num_users, queries, replacement):
        return None
    sizes = outer.search, outer.reuse, outer.num_iterations, outer.max_searches
    return plan.dim, replacement, plan.search_runs, sizes


def _loss(block: Block) -> privacy.PrivacyLoss:
    """What ``ball_accelerated_erm.solve`` charges for the block."""
    plan, weight = block.plan, block.regularization
    numbers = plan.numbers
    numbers = numbers._replace(quadratics={**numbers.quadratics, "regularization": weight})
    return accounting.carried(plan.calls_at, plan.proven, numbers)


def _stacked(blocks: Sequence[Block]) -> _Turn:
    plans = [block.plan for block in blocks]
    first = plans[0]

    def column(*numbers: Any) -> Any:
        return array_namespace(*numbers).stack(numbers)

    def all_of(name: str) -> Any:
        return _together.column([getattr(plan, name) for plan in plans])

    calls = [(plan.num_users, plan.num_queries) for plan in plans]
    made = [_calls.num_drawn(queries) for _, queries in calls]
    (_, _, replacement), *_ = first.kinds
    return _Turn(
        search_runs=first.search_runs,
        replacement=replacement,
        outer=jax.tree.map(column, *[plan.outer for plan in plans]),
        sizes=_calls_in_turn.stacked(calls, replacement),
        gradients=np.asarray(made, np.int32),
        smoothing_radius=all_of("smoothing_radius"),
        beta=all_of("beta"),
        regularization=_together.column([block.regularization for block in blocks]),
        loss=jax.tree.map(column, *map(_loss, blocks)),
    )


def _prepared(block: Block, objective: Objective, data: UserData, params: Any) -> _calls.Setting:
    """The setting of the first block, with the data of all; its numbers are of no account."""
    del params
    return _calls.make_setting(objective, data, block.plan)


def _solve(
    key: jax.Array,
    turn: _Turn,
    objective: Objective,
    prepared: _calls.Setting,
    first: jax.Array,
    params: Any,
) -> Solution:
    start = objective.domain.project(jnp.asarray(params, float))
    setting = prepared._replace(
        radius=turn.outer.ball_radius,
        smoothing_radius=turn.smoothing_radius,
        lipschitz=jnp.maximum(turn.outer.lipschitz, objective.lipschitz),
        replacement=turn.replacement,
    )
    users = _calls_in_turn.Users(setting, first)

    def call(kind: int, key: Any, center: Any, weight: Any, toward: Any) -> Any:
        del kind
        return _calls_in_turn.strongly_convex(
            key, users, turn.sizes, center, turn.beta, weight, toward
        )

    rounds = ball_accelerated_erm.Rounds(turn.outer, 1, turn.search_runs, 1, None)
    project = objective.domain.project
    extra, moment = turn.regularization + objective.ridge, turn.regularization * start
    state = ball_accelerated_erm.accelerated(key, rounds, call, extra, moment, start, project)
    made = _counts.times(
        _counts.times(state.calls[0], turn.gradients), prepared.data.labels.shape[1]
    )
    return ball_accelerated_erm.ended(state, project, turn.loss, 0, made)


def _gradients(block: Block, data: UserData) -> int:
    """Item gradients of all calls that could be made."""
    plan = block.plan
    sizes = [_calls.num_drawn(queries) for queries, _, _ in plan.kinds]
    each = sum(n * size for n, size in zip(plan.budgeted, sizes, strict=True))
    return each * jax.tree.leaves(data.items)[0].shape[1]


def _check(block: Block, objective: Objective, data: UserData, params: Any) -> None:
    _arguments.require_problem(Plan, block.plan, objective, data, params)
    _checks.require_nonnegative("regularization", block.regularization)


TURNS = _together.Turns(_kind, _stacked, _prepared, _solve, _gradients, _check)
"""How blocks of ``ball_accelerated_sco`` become turns."""
