"""Blocks of multi-pass SGD as turns of one loop, of ``localized_sgd``; see ``solvers._together``.

What it computes: what ``multipass_sgd.solve`` computes, for means of one kind: clipped, or with outliers
removed. The numbers of users and steps are numbers of the turn, as are radii, noise and step sizes.

Source: as ``multipass_sgd``.

Formal guarantee: as ``multipass_sgd``: releases, noise and keys are the same, and the loss of a turn is what
the block's own ``releases`` prove. A turn that halts returns its start, where its plan says so.

Cost: as ``multipass_sgd``; a step of a turn takes the gradients and distances of its own users. Memory of
the rows of the largest block, and one prepared copy of the data of all users.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from dpsco_jax import _checks
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _mean_turns, _planning, _together, first_order
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.user_level._multipass_plan import Plan


@pytree
class _Turn:
    """The numbers of a block, or of all."""

    on_halt: str = static(choices=("start", "average"))
    mean: _mean_turns.Turn
    num_steps: Number
    step_size: Number


def _kind(part: Plan) -> Hashable | None:
    shared = _mean_turns.kind(part.mean)
    return None if shared is None else (shared, part.on_halt, part.dim)


def _stacked(parts: Sequence[Plan]) -> _Turn:
    return _Turn(
        on_halt=parts[0].on_halt,
        mean=_mean_turns.stacked([part.mean for part in parts]),
        num_steps=np.asarray([part.num_steps for part in parts], np.int32),
        step_size=_together.column([part.step_size for part in parts]),
    )


def _solve(
    key: jax.Array, turn: _Turn, objective: Objective, rows: Any, first: jax.Array, params: Any
) -> Solution:
    mean = dataclasses.replace(turn.mean, first=first)
    method = first_order.projected_sgd(
        turn.step_size, objective.domain, on_halt="start" if turn.on_halt == "start" else "report"
    )
    return first_order.run(key, mean, method, objective, rows, params, turn.num_steps, 0)


def _gradients(part: Plan, data: UserData) -> int:
    return part.user_gradients * jax.tree.leaves(data.items)[0].shape[1]


def _check(part: Plan, objective: Objective, data: UserData, params: Any) -> None:
    """Refuses what a block in a program of its own refuses."""
    _arguments.require_problem(Plan, part, objective, data, params)
    _planning.require_everybody(part.releases)
    _checks.require_number("step_size", part.step_size, "a real number")
    _mean_turns.check(part.mean)


def _prepared(part: Plan, objective: Objective, data: UserData, params: Any) -> Any:
    return _mean_turns.prepared(part.mean, objective, data, params)


TURNS = _together.Turns(_kind, _stacked, _prepared, _solve, _gradients, _check)
"""How blocks of ``localized_sgd`` become turns."""
