"""Phases of gradient descent on winsorized means as turns of one loop; see ``solvers._together``.

What it computes: what ``_winsorized_plan.solve_phase`` computes for phases that report a weighted average.
The numbers of users and steps are numbers of the turn, as are radii, noise, lengths and shares of steps.

Source: as ``_winsorized_plan``.

Formal guarantee: as ``_winsorized_plan``: releases, noise and keys are the same, and the loss of a turn is
what the phase's own ``releases`` prove. A row beyond the users of a turn is nobody, whatever it holds.

Cost: as ``_winsorized_plan``; a step of a turn takes the gradients of its own users, and sorts and sums as
many rows as the largest phase has. Phases of less than a third of the users of another share no program with
it. Memory of the rows of the largest phase, and one prepared copy of the data of all.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, transforms
from dpsco_jax._numerics import array_namespace
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms.winsorized import _in_turn, private_range
from dpsco_jax.mechanisms.winsorized.winsorized_releases import BOXED
from dpsco_jax.oracles import sampling, user_gradients
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _planning, _together, first_order, means
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.user_level._winsorized_plan import Phase, require_steps

_LEAST_SHARE = 3  # a phase of fewer users would wait for the rows of too many others


@pytree
class _Mean:
    """``means.Winsorized`` of some of the users, from the position ``first`` on; data are prepared."""

    chunk_size: int = static()
    releases: _in_turn.WinsorizedTurn
    first: Number

    def open(self, key: jax.Array, objective: Objective, data: Any, start: Any) -> means.Opened:
        """Oracle, data and release of a run from ``start``; the key is that of the noise."""
        releases = self.releases
        sampler = sampling.Block(
            releases.capacity, 1, self.first, releases.num_users, None
        ).sampler()
        oracle, _ = user_gradients.rows_form(
            objective, start, releases.bound, sampler, self.chunk_size
        )
        return means.Opened(oracle, data, transforms.winsorized_mean(releases, key))


@pytree
class _Turn:
    """The numbers of a phase, or of all; steps beyond those of a phase have no length."""

    mean: _Mean
    num_steps: Number
    step_sizes: Number
    shares: Number
    regularization: Number


def turns_of(phases: Sequence[Phase]) -> _together.Turns:
    """How phases of ``phased_erm`` become turns: those of one form of releases, and of similar size."""
    sizes = sorted({phase.num_users for phase in phases}, reverse=True)
    largest, largest_like = sizes[0], {}
    for size in sizes:
        if _LEAST_SHARE * size < largest:
            largest = size
        largest_like[size] = largest

    def kind(phase: Phase) -> Hashable | None:
        if phase.method == "nonconvex":  # draws the point that it reports
            return None
        size = largest_like[phase.num_users]
        return (*_in_turn.kind(phase.releases), phase.chunk_size, size)

    return _together.Turns(kind, _stacked, _prepared, _solve, _gradients, _check)


def _stacked(phases: Sequence[Phase]) -> _Turn:
    longest = max(phase.num_steps for phase in phases)

    def of_steps(name: str) -> Any:
        def padded(phase: Phase) -> Any:
            steps = getattr(phase, name)
            xp = array_namespace(steps)
            return xp.pad(xp.asarray(steps), (0, longest - phase.num_steps))

        return _together.column([padded(phase) for phase in phases])

    return _Turn(
        mean=_Mean(
            chunk_size=phases[0].chunk_size,
            releases=_in_turn.stacked([phase.releases for phase in phases]),
            # A turn fills it in.
            first=np.zeros(len(phases), np.int32),
        ),
        num_steps=np.asarray([phase.num_steps for phase in phases], np.int32),
        step_sizes=of_steps("step_sizes"),
        shares=of_steps("shares"),
        regularization=_together.column([phase.regularization for phase in phases]),
    )


def _solve(
    key: jax.Array, turn: _Turn, objective: Objective, rows: Any, first: jax.Array, params: Any
) -> Solution:
    mean = dataclasses.replace(turn.mean, first=first)
    method = first_order.scheduled_sgd(turn.step_sizes, turn.shares, objective.domain)
    pull = first_order.Pull(turn.regularization)
    return first_order.run(key, mean, method, objective, rows, params, turn.num_steps, 0, pull)


def _prepared(phase: Phase, objective: Objective, data: UserData, params: Any) -> Any:
    del phase
    _, form = user_gradients.rows_form(objective, params, 1.0, None, 1)
    return form(data)


def _gradients(phase: Phase, data: UserData) -> int:
    return phase.user_gradients * jax.tree.leaves(data.items)[0].shape[1]


def _check(phase: Phase, objective: Objective, data: UserData, params: Any) -> None:
    """Refuses what a phase in a program of its own refuses."""
    del objective
    releases = phase.releases
    _planning.require_accounted(releases.num_users, data)
    require_steps(phase)
    _checks.require_probability("shares", phase.shares)
    _checks.require_positive("noise_multiplier", releases.noise_multiplier)
    _checks.require_positive("bound", releases.bound)
    if releases.form in BOXED:
        private_range.require_numbers(
            releases.range_epsilon, releases.coordinate_radius, releases.bound, releases.bin_width
        )
    if releases.form in ("refined", "recentred"):
        _checks.require_nonnegative("coarse_multiplier", releases.coarse_multiplier)
        _checks.require_positive("ball_radius", releases.ball_radius)
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    _checks.require(size == releases.dim, "params", size, f"of {releases.dim} numbers")
