"""Phased SGD with outlier iterates removed: user-level privacy in linear time.

What it computes: the users are cut into phases, disjoint and shrinking, and each phase into groups. Every
group makes one pass of SGD over its samples, from where the last phase has ended, and averages its
iterates. If most averages are within a radius of each other, by a noisy test, their outlier-removed mean is
released with Gaussian noise and is where the next phase starts, with shorter steps; else the run halts and
returns where the last phase has ended.

Source: F, Algorithm 1 and Theorem 2.1 (T, Algorithm 31, Theorem 10.2.1). With these corrections: sizes count
phases from zero, so that all users are used; the number of groups, the test and the noise come from the
accountant (propose, test, release); results are projected, so that the next phase starts inside of the
domain; a halt returns the last private point, not 0; losses need not be smooth.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, in all, for any data: a user is in one
group of one phase, by position, and moves one average; phases are disjoint (parallel composition, see
``_sequence``). Assumed: the key stays secret. Utility, for convex L-Lipschitz losses and users with i.i.d.
items: ``excess_bound``, derived in ``_phased_plan``.
Where the radius is no less than the farthest that two averages can be, η(T-1)L, the test would test
nothing: the plan, which sees public numbers only, then takes the mean of clipped averages, and says so.

Cost: one gradient for each item, of the users that fill groups; C²·dim for the distances of C groups. Phases
with means of one kind, and one reach, are turns of one compiled loop.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import phased_sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=200, items_per_user=2, dim=3)
    >>> plan = phased_sgd.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_groups=100, num_phases=1)
    >>> run = jax.jit(lambda key: phased_sgd.solve(key, plan, made.objective, made.data, jax.numpy.zeros(3)))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import _checks, _counts, _record_keys, _sharding, privacy, transforms
from dpsco_jax._argument_kinds import Constants, Count, Inside, Positive, real
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import _convolutions
from dpsco_jax.privacy.concentrated import threshold_phase
from dpsco_jax.privacy.concentrated.threshold_phase import ConcentratedReleases
from dpsco_jax.privacy.releases import fixed_size
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _plan_base, _planning, _sequence, means
from dpsco_jax.solvers.solution import Solution, Status, finished
from dpsco_jax.solvers.user_level import _phased_plan as search
from dpsco_jax.solvers.user_level._phased_plan import Plan, clipped_releases

__all__ = ["Plan", "group_averages", "plan", "solve"]

_MOST_PHASES = 8
_Ratio = Annotated[float, real(0, 1 + 1e-12)]


@_plan_base.remembers(least_users=2)
@_planning.says_enough_users
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_groups: int | None = None,
    num_phases: Count | None = None,
    step_size: Positive | None = None,
    step_ratio: _Ratio = 0.25,
    size_ratio: _Ratio = 0.5,
    radius: float | Sequence[float] | None = None,
    constants: Constants = "tight",
    selection: means.Selection = "weighted",
    failure: Inside | None = None,
) -> Plan:
    """Checks all arguments, chooses sizes and steps and calibrates test and noise. All of them are public.

    Args:
        problem: for the constants, domain and ridge of the objective, n ≥ 2, the number of parameters, m,
            which must be the number of item slots of every user (a missing item is a step of length 0), and
            R, the distance from the start to a minimizer, which must be finite.
        budget: (ε, δ) of each phase and so of all, δ > 0.
        num_groups: C; of those that the test allows, the one that proves most if left out.
        num_phases: l; of 1 to 8, the one that proves most if left out.
        step_size: η of the first phase; the one that proves most if left out.
        step_ratio: in (0, 1]; each phase's η over that of the one before (2^-p in the paper).
        size_ratio: in (0, 1]; each phase's number of users over that of the one before (2^-q).
        radius: on the distance of groups' averages from their mean, one number for each phase or one for all;
            if left out, those within which i.i.d. groups stay with probability 1 - failure/2. Any number that
            does not come from the data is private; losses that contract allow much smaller ones.
        constants: ``"tight"``, or ``"paper"`` for the printed sizes, steps and radii, which need more than
            10⁴ users; the noise is the accountant's in both.
        selection: ``"weighted"`` or ``"bernoulli"``.
        failure: probability that honest groups are filtered or halt the run; 1/(nm) if left out.

    Raises:
        ValueError: an argument is out of range, or R is not finite.
        Infeasible: there are too few users; ``needed`` says how many would do.
    """
    num_users = problem.num_users
    for value in radius if isinstance(radius, tuple | list) else (radius,):
        _checks.require_given(_checks.require_positive, radius=value)
    if num_groups is not None:
        _checks.require_integer("num_groups", num_groups, 1, num_users)
    if num_phases is None and isinstance(radius, tuple | list):
        num_phases = _checks.require_count("num_phases", len(radius))
    if failure is None:
        failure = min(0.05, 1 / (num_users * problem.items_per_user))
    problem = dataclasses.replace(problem, distance=problem.require_distance())
    printed = None
    if constants == "paper":
        printed = search.printed(problem, budget)
        num_groups, num_phases = printed.num_groups, len(printed.group_users)
    counts = range(1, _MOST_PHASES + 1) if num_phases is None else [num_phases]

    def calibrate(groups: int) -> Any:
        return threshold_phase.calibrate_concentrated(
            groups,
            1,
            budget.epsilon,
            budget.delta,
            test="fresh",
            selection=selection,
            false_halt_probability=failure / 2 / max(counts),
            constants=constants,
        )

    request = search.Request(
        problem=problem,
        budget=budget,
        step_size=step_size,
        step_ratio=step_ratio,
        size_ratio=size_ratio,
        radius=radius,
        failure=failure,
        printed=printed,
        plain=fixed_size(1, 1, 1).noise_multiplier(budget.epsilon, budget.delta, "pld"),
    )
    return search.best(request, calibrate, num_groups, counts)


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users of ``plan.items_per_user`` item slots; phases and groups take
            them in their order, those left over take no part.
        params: the starting point; projected onto the domain. Must not depend on the data.

    Returns:
        As ``_sequence.join`` says; once halted, the point where the last phase that passed has ended.

    Raises:
        ValueError: if the number of users, of item slots or of parameters is not the planned one.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    _checks.require_instance("plan.releases", plan.releases, ConcentratedReleases)
    _planning.require_everybody(plan.releases)
    slots = jax.tree.leaves(data.items)[0].shape[1]
    if slots != plan.items_per_user:
        raise ValueError(
            f"data must have plan.items_per_user = {plan.items_per_user} slots, got {slots}"
        )
    for name in ("radii", "clip_norms", "step_sizes"):
        numbers, count = getattr(plan, name), len(plan.group_users)
        found = len(numbers) if isinstance(numbers, tuple | list) else jnp.size(numbers)
        _checks.require(found == count, f"plan.{name}", numbers, f"{count} numbers, one a phase")
    phases = [
        _Phase(
            num_users=plan.num_groups * plan.group_users[i],
            group_users=plan.group_users[i],
            clipped=plan.clipped[i],
            reach=plan.reaches[i],
            step_size=plan.step_sizes[i],
            clip_norm=plan.clip_norms[i],
            radius=plan.radii[i],
        )
        for i in range(len(plan.group_users))
    ]
    turns = _turns(plan)

    def alone(
        key: Any, phase: _Phase, objective: Objective, block: UserData, start: Any
    ) -> Solution:
        rows = turns.prepared(phase, objective, block, start)
        done = turns.solver(key, phase, objective, rows, 0, start)
        return done._replace(gradients=_counts.count(turns.gradients(phase, data)))

    return _sequence.run(key, phases, alone, objective, data, params, turns=turns)


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
    users, _ = jax.tree.leaves(data.items)[0].shape[:2]
    arrays = jax.tree.map(jnp.asarray, data)
    return _passes(objective, arrays, num_groups, users // num_groups, 0, start, step_size)[0]


@pytree
class _Phase:
    """A phase, whose sizes are numbers: or several, of which ``num_users`` is that of the largest."""

    num_users: int = static(joined=max)
    clipped: bool = static()
    reach: float = static()
    group_users: Number
    step_size: Number
    clip_norm: Number
    radius: Number


def _turns(plan: Plan) -> _sequence.Turns:
    """How phases share a program."""

    def lowered(phase: _Phase) -> _Phase:
        name = "clip_norm" if phase.clipped else "radius"
        _checks.require_positive(name, getattr(phase, name))
        return phase

    def solver(
        key: Any, phase: _Phase, objective: Any, data: UserData, first: Any, start: Any
    ) -> Solution:
        sizes = plan.num_groups, phase.group_users, first
        averages, counted = _passes(objective, data, *sizes, start, phase.step_size)
        return _end_of_phase(key, plan, phase, objective, averages, counted, start)

    return _sequence.Turns(
        lowered=lowered,
        prepared=lambda phase, objective, data, params: jax.tree.map(jnp.asarray, data),
        solver=solver,
        gradients=lambda phase, data: phase.num_users * plan.items_per_user,
        check=lambda *given: None,
    )


def _passes(
    objective: Objective,
    data: UserData,
    num_groups: int,
    group_users: Any,
    first: Any,
    start: Any,
    step_size: Any,
) -> tuple[Any, Any]:
    """Averages of all groups, and how many items they took; users of a group may be a traced number.

    Groups are those of the users from the position ``first`` on, of which each takes its items where they
    lie.
    """
    slots = jax.tree.leaves(data.items)[0].shape[1]
    slope = _convolutions.kept_apart(jax.grad(objective.loss), objective.loss)
    gradient = _record_keys.over_users(slope)
    project = jax.vmap(objective.domain.project)

    def step(t: jax.Array, carry: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        points, average, count, counted = carry
        item, user = jnp.divmod(t, group_users)
        users = first + jnp.arange(num_groups, dtype=jnp.int32) * group_users + user
        items, present = jax.tree.map(
            lambda x: x.at[users, item].get(mode="promise_in_bounds"), (data.items, data.mask)
        )
        here = 0 if present is None else jnp.sum(present, dtype=jnp.int32)

        def move(point: jax.Array, slope: jax.Array, ridge: jax.Array) -> jax.Array:
            if present is not None:
                there = present.reshape(-1, *[1] * (slope.ndim - 1))
                slope = jnp.where(there, slope, jnp.zeros_like(slope))
            return (point - step_size * (slope + ridge)).astype(point.dtype)

        average = jax.tree.map(lambda a, x: a + (x - a) / (count + 1), average, points)
        slopes = gradient(points, items)
        moved = jax.tree.map(move, points, slopes, objective.regularizer_gradient(points))
        return project(moved), average, count + 1, counted + here

    points = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (num_groups, *jnp.shape(x))), jax.tree.map(jnp.asarray, start)
    )
    # Averages of many points, in float32 or wider.
    wide = jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), points)
    steps, begin = group_users * slots, (points, wide, jnp.zeros([], jnp.float32))
    nobody = jnp.zeros([], jnp.int32)
    _, averages, _, present = jax.lax.fori_loop(0, steps, step, (*begin, nobody))
    return averages, num_groups * steps if data.mask is None else present


def _end_of_phase(
    key: jax.Array,
    plan: Plan,
    phase: _Phase,
    objective: Objective,
    averages: Any,
    counted: Any,
    point: Any,
) -> Solution:
    """Where the averages of the groups move the point; the point itself if the test fails."""
    # Relative to the phase's start, which is public: small numbers, and an anchor at the origin.
    moves = jax.tree.map(jnp.subtract, averages, point)
    if phase.clipped:
        releases = clipped_releases(plan.noise_multiplier, plan.delta)
        clipped = transforms.clipped_mean(phase.clip_norm, plan.num_groups, releases.relation)
        release = optax.with_extra_args_support(
            transforms.privatize(clipped, key, releases.noise_multiplier, releases.scheme)
        )
    else:
        release = transforms.outlier_removed_mean(
            plan.releases, 2 * phase.radius, key, anchor=None, reach=phase.reach
        )
    update, state = release.update(moves, release.init(point), point)
    stopped = transforms.halted(state)
    moved = objective.domain.project(optax.apply_updates(point, update))
    point = jax.tree.map(functools.partial(jnp.where, stopped), point, moved)
    done = finished(point, state, 0, _counts.count(counted), None)
    status = jnp.where(stopped, int(Status.HALTED), done.status).astype(jnp.int32)
    return done._replace(status=status)
