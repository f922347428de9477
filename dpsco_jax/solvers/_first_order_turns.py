"""First-order runs of several sizes as turns of one loop; see ``solvers._together``.

A turn is what ``first_order.solve`` runs, with the numbers of users and steps as numbers. Releases, noise and
keys are those of a run of its own, and the loss of a turn is what the plan's own releases prove.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _mean_turns, _together, first_order
from dpsco_jax.solvers.first_order import FirstOrder
from dpsco_jax.solvers.solution import Solution

_LEAST_SHARE = 3  # a phase of fewer users would wait for the rows of too many others


@pytree
class _Turn:
    """The numbers of a run, or of all."""

    on_halt: str = static(choices=("report", "start"))
    mean: _mean_turns.Turn
    method: Any
    pull: Number | None
    num_steps: Number


def _kind(plan: FirstOrder) -> Hashable | None:
    shared = _mean_turns.kind(plan.mean)
    if shared is None or getattr(plan.method, "reported", "") == "random":
        return None
    return (
        shared,
        jax.tree.structure(_among(plan.method, plan.num_steps)),
        plan.pull is None,
        plan.on_halt,
        plan.dim,
    )


def _stacked(plans: Sequence[FirstOrder]) -> _Turn:
    longest = max(plan.num_steps for plan in plans)
    each = [_among(plan.method, longest) for plan in plans]
    return _Turn(
        on_halt=plans[0].on_halt,
        mean=_mean_turns.stacked([plan.mean for plan in plans]),
        method=jax.tree.map(lambda *x: _together.column(x), *each),
        pull=None if plans[0].pull is None else _together.column([plan.pull for plan in plans]),
        num_steps=np.asarray([plan.num_steps for plan in plans], np.int32),
    )


def _among(method: Any, longest: int) -> Any:
    """The method as a turn has it: sizes of its own are numbers, or padded."""
    return method.among(longest) if hasattr(method, "among") else method


def _prepared(plan: FirstOrder, objective: Objective, data: UserData, params: Any) -> Any:
    return _mean_turns.prepared(plan.mean, objective, data, params)


def _solve(
    key: jax.Array,
    turn: _Turn,
    objective: Objective,
    rows: Any,
    first: jax.Array,
    params: Any,
    center: Any = None,
) -> Solution:
    mean = dataclasses.replace(turn.mean, first=first)
    pull = None if turn.pull is None else first_order.Pull(turn.pull, center)
    steps, halt = turn.num_steps, turn.on_halt
    return first_order.run(
        key, mean, turn.method, objective, rows, params, steps, 0, pull, on_halt=halt
    )


def _gradients(plan: FirstOrder, data: UserData) -> int:
    return plan.user_gradients * jax.tree.leaves(data.items)[0].shape[1]


def _check(plan: FirstOrder, objective: Objective, data: UserData, params: Any) -> None:
    """Refuses what a run in a program of its own refuses."""
    _arguments.require_problem(FirstOrder, plan, objective, data, params)
    plan.method.on(objective.domain, plan.num_steps)
    _mean_turns.check(plan.mean, params)


TURNS = _together.Turns(_kind, _stacked, _prepared, _solve, _gradients, _check)
"""How plans of first-order runs become turns."""


def of_similar_size(plans: Sequence[FirstOrder]) -> _together.Turns:
    """``TURNS`` for plans of similar numbers of users, where a turn has the memory of the largest."""
    sizes = sorted({plan.num_users for plan in plans}, reverse=True)
    largest, largest_like = sizes[0], {}
    for size in sizes:
        if _LEAST_SHARE * size < largest:
            largest = size
        largest_like[size] = largest

    def kind(plan: FirstOrder) -> Hashable | None:
        shared = _kind(plan)
        return None if shared is None else (shared, largest_like[plan.num_users])

    return TURNS._replace(kind=kind)


INNER = _together.InnerTurns(*TURNS)
"""The same with a centre, for solvers that are made of first-order runs."""
