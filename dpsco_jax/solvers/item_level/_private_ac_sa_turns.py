"""Runs of private AC-SA as turns of one loop, of solvers that are made of it; see ``solvers._together``.

What it computes: what ``private_ac_sa.solve`` computes. The numbers of users and steps, and how many users
are drawn, are numbers of the turn.

Source: as ``private_ac_sa``.

Formal guarantee: as ``private_ac_sa``: releases, noise and keys are the same, and the loss of a turn is what
the plan's own ``releases`` prove.

Cost: as ``private_ac_sa``, and one prepared copy of the data of all users.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from dpsco_jax._pytrees import Number, pytree
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _clipped_turns, _together, first_order
from dpsco_jax.solvers.item_level._private_ac_sa_plan import Plan
from dpsco_jax.solvers.solution import Solution


@pytree
class _Turn:
    """The numbers of a run, or of all."""

    mean: _clipped_turns.Clipped
    num_steps: Number
    smoothness: Number
    strong_convexity: Number
    regularization: Number


def _kind(plan: Plan) -> Hashable | None:
    shared = _clipped_turns.kind(plan.mean)
    return None if shared is None else (shared, plan.dim)


def _stacked(plans: Sequence[Plan]) -> _Turn:
    def all_of(name: str) -> Any:
        return _together.column([getattr(plan, name) for plan in plans])

    return _Turn(
        mean=_clipped_turns.stacked([plan.mean for plan in plans]),
        num_steps=np.asarray([plan.num_steps for plan in plans], np.int32),
        smoothness=all_of("smoothness"),
        strong_convexity=all_of("strong_convexity"),
        regularization=all_of("regularization"),
    )


def _prepared(plan: Plan, objective: Objective, data: UserData, params: Any) -> Any:
    return _clipped_turns.prepared(plan.mean, objective, data, params)


def _solve(
    key: jax.Array,
    turn: _Turn,
    objective: Objective,
    data: Any,
    first: jax.Array,
    params: Any,
    center: Any,
) -> Solution:
    mean = dataclasses.replace(turn.mean, first=first)
    method = first_order.ac_sa(turn.smoothness, turn.strong_convexity, objective.domain)
    pull = first_order.Pull(turn.regularization, center)
    return first_order.run(key, mean, method, objective, data, params, turn.num_steps, 0, pull)


def _gradients(plan: Plan, data: UserData) -> int:
    return plan.user_gradients * jax.tree.leaves(data.items)[0].shape[1]


def _check(plan: Plan, objective: Objective, data: UserData, params: Any) -> None:
    _arguments.require_problem(Plan, plan, objective, data, params)


TURNS = _together.InnerTurns(_kind, _stacked, _prepared, _solve, _gradients, _check)
