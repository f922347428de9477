"""Phases of accelerated user-level SGD as turns of one loop; see ``solvers._together``.

What it computes: what ``accelerated_sgd.solve`` computes for phases of clipped means, or of outlier-removed
means in which everybody takes part. The numbers of users and steps, how many users are drawn, and the length
of a stage are numbers of the turn.

Source: as ``accelerated_sgd``.

Formal guarantee: as ``accelerated_sgd``: releases, noise and keys are the same, and the loss of a turn is
what the phase's own ``releases`` prove.

Cost: as ``accelerated_sgd``; a step of a turn takes the gradients and distances of its own users. Memory of
the users of the largest phase, and one prepared copy of the data of all.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp

from dpsco_jax import _checks, transforms
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.concentrated import _in_turn
from dpsco_jax.privacy.concentrated.threshold_phase import ConcentratedReleases
from dpsco_jax.privacy.releases import GaussianReleases
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _clipped_turns, _together, _user_rows, first_order, means
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.user_level._accelerated_plan import Plan


@pytree
class _Mean:
    """``means.OutlierRemoved`` of some of the users, from the position ``first`` on; data are prepared.

    Attributes:
        chunk_size: users whose items are read at once.
        reach: as in ``means.OutlierRemoved``.
        smoothed: whether gradients are taken at shifted points.
        releases: sizes, tests and noise of all steps.
        first: position of the first user.
        score_radius: users are near each other within it.
        clip_norm: to which gradients are clipped first.
        smoothing_radius: of the shifts.
    """

    chunk_size: int = static()
    reach: float = static()
    smoothed: bool = static()
    releases: _in_turn.InTurn
    first: Number
    score_radius: Number
    clip_norm: Number
    smoothing_radius: Number

    def open(self, key: jax.Array, objective: Objective, data: Any, start: Any) -> means.Opened:
        """Oracle, data and release of a run from ``start``; the key is that of the noise."""
        del start
        oracle = _user_rows.oracle_of_turn(
            objective,
            self.clip_norm,
            self.first,
            self.releases.num_users,
            self.releases.capacity,
            data,
            self.chunk_size,
            self.smoothing_radius if self.smoothed else None,
        )
        release = transforms.outlier_removed_mean(
            self.releases, self.score_radius, key, anchor=None, reach=self.reach
        )
        return means.Opened(oracle, data, release, may_halt=True)


@pytree
class _Turn:
    """The numbers of a phase, or of all."""

    mean: Any
    num_steps: Number
    stage_length: Number
    regularization: Number
    smoothness: Number
    strong_convexity: Number


def _kind(part: Plan) -> Hashable | None:
    if isinstance(part.releases, GaussianReleases):
        shared = _clipped_turns.kind(_clipped(part))
    elif isinstance(part.releases, ConcentratedReleases):
        shared = _in_turn.kind(part.releases)
    else:
        return None
    if shared is None:
        return None
    return (shared, part.chunk_size, part.reach, part.smoothed, part.items_per_user, part.dim)


def _stacked(parts: Sequence[Plan]) -> _Turn:
    def all_of(name: str) -> Any:
        return _together.column([getattr(part, name) for part in parts])

    clipped = isinstance(parts[0].releases, GaussianReleases)
    return _Turn(
        mean=_clipped_turns.stacked([_clipped(part) for part in parts])
        if clipped
        else _means(parts),
        num_steps=jnp.asarray([part.num_steps for part in parts], jnp.int32),
        stage_length=jnp.asarray([part.stage_length for part in parts], jnp.int32),
        regularization=all_of("regularization"),
        smoothness=all_of("smoothness"),
        strong_convexity=all_of("strong_convexity"),
    )


def _clipped(part: Plan) -> means.Clipped:
    mean = part.mean
    _checks.require_instance("part.mean", mean, means.Clipped)
    return cast(means.Clipped, mean)


def _means(parts: Sequence[Plan]) -> _Mean:
    def all_of(name: str) -> Any:
        return _together.column([getattr(part, name) for part in parts])

    return _Mean(
        chunk_size=parts[0].chunk_size,
        reach=parts[0].reach,
        smoothed=parts[0].smoothed,
        releases=_in_turn.stacked([part.releases for part in parts]),
        # A turn fills it in.
        first=jnp.zeros(len(parts), jnp.int32),
        score_radius=_together.column([2 * part.radius for part in parts]),
        clip_norm=all_of("clip_norm"),
        smoothing_radius=all_of("smoothing_radius"),
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


def turns_of(parts: Sequence[Plan]) -> _together.Turns:
    """How phases of ``accelerated_phased_erm`` become turns; the parts say whether points are shifted."""
    shifted, of_first = parts[0].smoothed, parts[0].mean

    def prepared(objective: Objective, data: UserData, params: Any) -> Any:
        if isinstance(of_first, means.Clipped):
            return _clipped_turns.prepared(of_first, objective, data, params)
        return _user_rows.prepared(objective, data, params, 1.0 if shifted else None)

    def gradients(part: Plan, data: UserData) -> int:
        return part.user_gradients * jax.tree.leaves(data.items)[0].shape[1]

    def check(part: Plan, objective: Objective, data: UserData, params: Any) -> None:
        _arguments.require_problem(Plan, part, objective, data, params)

    return _together.Turns(_kind, _stacked, prepared, _solve, gradients, check)
