"""Phases of accelerated user-level SGD as turns of one loop; see ``solvers._together``.

What it computes: what ``accelerated_sgd.solve`` computes for phases of clipped or of outlier-removed means.
The numbers of users and steps, how many users are drawn, and the length of a stage are numbers of the turn.

Source: as ``accelerated_sgd``.

Formal guarantee: as ``accelerated_sgd``: releases, noise and keys are the same, and the loss of a turn is
what the phase's own ``releases`` prove.

Cost: as ``accelerated_sgd``; a step of a turn takes the gradients and distances of its own users. Memory of
the users of the largest phase, and one prepared copy of the data of all.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from dpsco_jax import _checks
from dpsco_jax._pytrees import Number, pytree
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _mean_turns, _together, first_order
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.user_level._accelerated_plan import Plan


@pytree
class _Turn:
    """The numbers of a phase, or of all."""

    mean: _mean_turns.Turn
    num_steps: Number
    stage_length: Number
    regularization: Number
    smoothness: Number
    strong_convexity: Number


def _kind(part: Plan) -> Hashable | None:
    shared = _mean_turns.kind(part.mean)
    return None if shared is None else (shared, part.items_per_user, part.dim)


def _stacked(parts: Sequence[Plan]) -> _Turn:
    def all_of(name: str) -> Any:
        return _together.column([getattr(part, name) for part in parts])

    for part in parts:
        _checks.require_integer("stage_length", part.stage_length, 1)
    return _Turn(
        mean=_mean_turns.stacked([part.mean for part in parts]),
        num_steps=np.asarray([part.num_steps for part in parts], np.int32),
        stage_length=np.asarray([part.stage_length for part in parts], np.int32),
        regularization=all_of("regularization"),
        smoothness=all_of("smoothness"),
        strong_convexity=all_of("strong_convexity"),
    )


def _solve(
    key: jax.Array, turn: _Turn, objective: Objective, rows: Any, first: jax.Array, params: Any
) -> Solution:
    mean = dataclasses.replace(turn.mean, first=first)
    method = first_order.ac_sa(
        turn.smoothness, turn.strong_convexity, objective.domain, turn.stage_length
    )
    pull = first_order.Pull(turn.regularization)
    return first_order.run(key, mean, method, objective, rows, params, turn.num_steps, 0, pull)


def _prepared(part: Plan, objective: Objective, data: UserData, params: Any) -> Any:
    return _mean_turns.prepared(part.mean, objective, data, params)


def _gradients(part: Plan, data: UserData) -> int:
    return part.user_gradients * jax.tree.leaves(data.items)[0].shape[1]


def _check(part: Plan, objective: Objective, data: UserData, params: Any) -> None:
    _arguments.require_problem(Plan, part, objective, data, params)
    _mean_turns.check(part.mean)


TURNS = _together.Turns(_kind, _stacked, _prepared, _solve, _gradients, _check)
"""How phases of ``accelerated_phased_erm`` become turns."""
