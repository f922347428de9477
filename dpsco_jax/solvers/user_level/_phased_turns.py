"""A phase of phased SGD: the passes of its groups, its release, and phases as turns of one loop.

What it computes: see ``phased_sgd``. In a loop over phases (``solvers._together``) the number of users of a
group is a number of the turn: a pass is as long as that phase's, and takes its items where they lie.

Source: F, Algorithm 1.

Formal guarantee: as ``phased_sgd``: a user moves the average of one group, by position.

Cost: one gradient for each item; where a phase has a program of its own, a copy of its data in the order of
the steps.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import _checks, _counts, _record_keys, transforms
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import _convolutions
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _together
from dpsco_jax.solvers.solution import Solution, Status, finished
from dpsco_jax.solvers.user_level._phased_plan import Plan, clipped_releases


@pytree
class Phase:
    """A phase, or the numbers of several. In a loop over phases ``num_users`` is of no account."""

    num_users: int = static(least=0)
    clipped: bool = static()
    reach: float = static()
    group_users: Number
    step_size: Number
    clip_norm: Number
    radius: Number


def turns_of(plan: Plan) -> _together.Turns:
    """How phases become turns of one loop: those whose means are of one kind."""

    def stacked(phases: Sequence[Phase]) -> Phase:
        def all_of(name: str) -> Any:
            return _together.column([getattr(phase, name) for phase in phases])

        first = phases[0]
        for phase in phases:
            name = "clip_norm" if first.clipped else "radius"
            _checks.require_positive(name, getattr(phase, name))
        return Phase(
            num_users=0,
            clipped=first.clipped,
            reach=first.reach,
            group_users=jnp.asarray([phase.group_users for phase in phases], jnp.int32),
            step_size=all_of("step_size"),
            clip_norm=all_of("clip_norm"),
            radius=all_of("radius"),
        )

    def solver(
        key: Any, phase: Phase, objective: Any, data: UserData, first: Any, start: Any
    ) -> Solution:
        def at(step: jax.Array) -> tuple[Any, Any]:
            item, user = jnp.divmod(step, phase.group_users)
            users = first + jnp.arange(plan.num_groups, dtype=jnp.int32) * phase.group_users + user
            return jax.tree.map(
                lambda x: x.at[users, item].get(mode="promise_in_bounds"), (data.items, data.mask)
            )

        begin, move = _steps(objective, plan.num_groups, start, phase.step_size)

        def step(t: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            carry, counted = carry
            items, present = at(t)
            here = 0 if present is None else jnp.sum(present, dtype=jnp.int32)
            return move(carry, (items, present))[0], counted + here

        steps = phase.group_users * plan.items_per_user
        nobody = jnp.zeros([], jnp.int32)
        (_, averages, _), present = jax.lax.fori_loop(0, steps, step, (begin, nobody))
        counted = plan.num_groups * steps if data.mask is None else present
        return solve_phase(key, plan, phase, objective, averages, counted, start)

    return _together.Turns(
        kind=lambda phase: (phase.clipped, phase.reach),
        stacked=stacked,
        prepared=lambda phase, objective, data, params: jax.tree.map(jnp.asarray, data),
        solver=solver,
        gradients=lambda phase, data: phase.num_users * plan.items_per_user,
    )


def solve_phase(
    key: jax.Array,
    plan: Plan,
    phase: Phase,
    objective: Objective,
    averages: Any,
    counted: Any,
    point: Any,
) -> Solution:
    """Where the averages of the groups move the point; the point itself if the test fails."""
    # Relative to the phase's start, which is public: small numbers, and an anchor at the origin.
    moves = jax.tree.map(jnp.subtract, averages, point)
    release = _release(key, plan, phase)
    update, state = release.update(moves, release.init(point), point)
    stopped = transforms.halted(state)
    moved = objective.domain.project(optax.apply_updates(point, update))
    point = jax.tree.map(functools.partial(jnp.where, stopped), point, moved)
    done = finished(point, state, 0, _counts.count(counted), None)
    status = jnp.where(stopped, int(Status.HALTED), done.status).astype(jnp.int32)
    return done._replace(status=status)


def group_averages(
    objective: Objective, data: UserData, num_groups: int, start: Any, step_size: Any
) -> Any:
    """One pass of projected SGD in every group, and the average of the points it took gradients at.

    Args:
        objective: its regularizer is part of every step.
        data: users of all groups, ``[groups * users, items, ...]``: group by group. A group takes first
            items first: an order that is public.
        num_groups: C; divides the number of users.
        start: where all groups start.
        step_size: η; may be traced.

    Returns:
        Averages over x_0, ..., x_{T-1}, leaves ``[groups, ...]``. A missing item is a step of the
        regularizer alone.
    """

    def in_order(leaf: jax.Array) -> jax.Array:
        """``[groups * users, items, ...]`` to ``[items * users, groups, ...]``."""
        grouped = leaf.reshape(num_groups, -1, *leaf.shape[1:])
        ordered = jnp.moveaxis(grouped, (2, 1), (0, 1))
        return ordered.reshape(-1, *ordered.shape[2:])

    begin, step = _steps(objective, num_groups, start, step_size)
    samples = jax.tree.map(in_order, (data.items, data.mask))
    (_, average, _), _ = jax.lax.scan(step, begin, samples)
    return average


def _steps(
    objective: Objective, num_groups: int, start: Any, step_size: Any
) -> tuple[tuple[Any, Any, jax.Array], Callable[..., Any]]:
    """Points, averages and their number at the start, and a step by one item of every group."""
    slope = _convolutions.kept_apart(jax.grad(objective.loss), objective.loss)
    gradient = _record_keys.over_users(slope)
    project = jax.vmap(objective.domain.project)

    def step(carry: tuple[Any, Any, jax.Array], sample: tuple[Any, Any]) -> tuple[Any, None]:
        points, average, count = carry
        items, present = sample

        def move(point: jax.Array, slope: jax.Array, ridge: jax.Array) -> jax.Array:
            if present is not None:
                there = present.reshape(-1, *[1] * (slope.ndim - 1))
                slope = jnp.where(there, slope, jnp.zeros_like(slope))
            return (point - step_size * (slope + ridge)).astype(point.dtype)

        average = jax.tree.map(lambda a, x: a + (x - a) / (count + 1), average, points)
        slopes = gradient(points, items)
        moved = jax.tree.map(move, points, slopes, objective.regularizer_gradient(points))
        return (project(moved), average, count + 1), None

    points = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (num_groups, *jnp.shape(x))), jax.tree.map(jnp.asarray, start)
    )
    # Averages of many points, in float32 or wider.
    wide = jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), points)
    return (points, wide, jnp.zeros([], jnp.float32)), step


def _release(key: jax.Array, plan: Plan, phase: Phase) -> optax.GradientTransformationExtraArgs:
    if phase.clipped:
        releases = clipped_releases(plan.noise_multiplier, plan.delta)
        clipped = transforms.clipped_mean(phase.clip_norm, plan.num_groups, releases.relation)
        return optax.with_extra_args_support(
            transforms.privatize(clipped, key, releases.noise_multiplier, releases.scheme)
        )
    return transforms.outlier_removed_mean(
        plan.releases, 2 * phase.radius, key, anchor=None, reach=phase.reach
    )
