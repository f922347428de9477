"""Private empirical risk minimization by ball acceleration: non-smooth linear models, few gradients.

What it computes: a minimizer of the mean loss of the users, smoothed by N(0, ρ²I), plus a ridge: the
accelerated proximal-point method of ``convex.ball_acceleration``, each of whose subproblems, on a ball of
radius r ≪ ρ, is solved by strongly convex private calls as those of ``resque_erm``.

Source: thesis, Theorem 2.4.19, with Algorithms 10, 11 and 12 as oracles. A ridge (or any quadratic with a
public center) is added to the quadratic of the subproblem, as in Corollary 2.4.20.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE by ``privacy.resque``: iterates, duals
and λ are functions of the points that the private calls return, and every call that could be made is in the
plan, line searches included. Losses must be convex and Lipschitz on the whole space; others are refused. The
number of calls that a run needed is post-processing of private points too. Of accuracy none is claimed:
``plan.predicted_error`` is an observed law, a plan is refused where it says that answers would be noise, and
a call's answer that serves as ball and prox point at once (``reuse``) is a heuristic.

Cost: at most ``plan.user_gradients``, in rounds of one call each; memory of the features of T users.

Example:
    >>> import math, jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import ball_accelerated_erm
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=1, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(4.0, 1e-5)
    >>> plan = ball_accelerated_erm.plan(
    ...     problem, budget, largest_error=math.inf,
    ...     calls=ball_accelerated_erm.Calls(num_iterations=2, num_queries=16),
    ... )
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: ball_accelerated_erm.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 4.0
    ((3,), 0, True)
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key

from dpsco_jax import _checks, _counts, _sharding, privacy
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments
from dpsco_jax.solvers.ball import _step, ball_oracles
from dpsco_jax.solvers.ball.ball_oracles import BallAnswer, BallOracle, BallOracles
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque import _calls
from dpsco_jax.solvers.resque._ball_accelerated_plan import Calls, Plan, plan
from dpsco_jax.solvers.solution import Solution

__all__ = ["Calls", "Plan", "plan", "solve"]


@_sharding.solver
def solve(
    key: Key[Array, ""],
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: Float[Array | np.ndarray, "dim"],
    regularization: ArrayLike = 0.0,
    anchor: Float[Array | np.ndarray, "dim"] | None = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling. Its ridge is part of what is minimized.
        data: with ``plan.num_users`` users, one or several items each.
        params: the start, ``[dim]``; projected onto the domain.
        regularization: μ ≥ 0 of a further term (μ/2)·‖x - anchor‖²; public.
        anchor: its center, public or private already; the start if left out.

    Returns:
        The last point; ``unprivate["trace"]`` holds the calls made, by kind, and the final weight A.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one, ``regularization`` is
            negative, ``anchor`` is no real floating vector ``[dim]``, or a size of the plan was changed to
            one for which there is no proof.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    _checks.require_nonnegative("regularization", regularization)
    numbers = lowered(plan, regularization)
    start = objective.domain.project(jnp.asarray(params, float))
    if start.shape != (plan.dim,):
        raise ValueError(f"params must have shape ({plan.dim},), got {start.shape}")
    anchor = start if anchor is None else anchor
    _arguments.require_like("anchor", anchor, start)
    setting = _calls.make_setting(objective, data, plan)
    done = run(key, numbers, setting, objective, start, anchor)
    return done._replace(gradients=_counts.count(budgeted_gradients(plan, data)))


def budgeted_gradients(plan: Plan, data: UserData) -> int:
    """Item gradients of all calls that could be made."""
    sizes = [_calls.num_drawn(queries) for queries, _, _ in plan.kinds]
    each = sum(n * size for n, size in zip(plan.budgeted, sizes, strict=True))
    return each * jax.tree.leaves(data.items)[0].shape[1]


@pytree
class Lowered:
    """All that a run uses, its sizes as numbers."""

    dim: int = static()
    search_runs: int = static()  # independent calls that a line search aggregates
    copies: int = static(least=0)  # multilevel estimates that a prox averages
    outer: Any  # of ``ball_acceleration.plan``
    kinds: tuple[_calls.Sizes, ...]  # of the calls; more than one for a multilevel prox
    factors: tuple[Any, ...]  # β of each kind over that of the first
    gradients: tuple[Any, ...]  # users that one call of each kind draws
    drawn: Number  # levels of the estimates, [iterations, copies]; unused for a single kind
    beta: Number  # of a call of the first kind
    smoothing_radius: Number  # ρ
    regularization: Number  # of a further quadratic around the anchor of the run
    loss: privacy.PrivacyLoss  # what the run is charged


def lowered(plan: Plan, regularization: Any) -> Lowered:
    """All that a run of the plan uses, with a further quadratic of this weight."""
    queries, factors, replaced = zip(*plan.kinds, strict=True)
    return Lowered(
        dim=plan.dim,
        search_runs=plan.search_runs,
        copies=plan.copies,
        outer=plan.outer,
        kinds=tuple(
            _calls.sizes_of(plan.num_users, _calls.levels(size), again)
            for size, again in zip(queries, replaced, strict=True)
        ),
        factors=factors,
        gradients=tuple(map(_calls.num_drawn, queries)),
        drawn=np.asarray(plan.prox_levels, np.int32),
        beta=plan.beta,
        smoothing_radius=plan.smoothing_radius,
        regularization=regularization,
        loss=accounting.charged(plan, {"regularization": regularization}),
    )


def run(
    key: Any,
    numbers: Lowered,
    setting: _calls.Setting,
    objective: Objective,
    start: Any,
    anchor: Any,
) -> Solution:
    """Runs on the users whose first is ``setting.first``; numbers may be traced. No gradients are counted.

    Each subproblem of an iteration is one or several private calls on the ball around its center.
    """
    setting = setting._replace(
        radius=numbers.outer.ball_radius,
        smoothing_radius=numbers.smoothing_radius,
        # Nothing is clipped: the noise must fit the loss that is run, should the plan be of another.
        lipschitz=jnp.maximum(numbers.outer.lipschitz, objective.lipschitz),
    )
    outer, project, count = numbers.outer, objective.domain.project, len(numbers.kinds)
    # The quadratics around the origin (ridge) and around the anchor, as one: its weight times its center.
    weight = numbers.regularization
    extra, moment = weight + objective.ridge, weight * jnp.asarray(anchor)
    drawn = jnp.asarray(numbers.drawn)

    def subproblem(kind: int) -> BallOracle:
        def answer(key: Any, center: Any, lam: Any) -> BallAnswer:
            beta, sizes = numbers.beta * numbers.factors[kind], numbers.kinds[kind]
            toward, weight = (lam * center + moment) / (lam + extra), lam + extra
            point = _calls.strongly_convex(key, setting, sizes, center, beta, weight, anchor=toward)
            calls = jnp.zeros(count, jnp.int32).at[kind].add(1)
            return BallAnswer(point, jnp.asarray(lam, point.dtype), calls)

        return answer

    kinds = [subproblem(kind) for kind in range(count)]
    search = ball_oracles.aggregated(kinds[0], numbers.search_runs)

    def oracles(iteration: Any) -> BallOracles:
        if count == 1 or outer.reuse:
            return BallOracles(search, kinds[0], kinds[0])
        prox = ball_oracles.debiased(kinds, numbers.copies, drawn[iteration])
        return BallOracles(search, kinds[0], prox)

    def active(state: _step.State) -> Any:
        return (state.iterations < outer.num_iterations) & (state.weight < outer.target_weight)

    def advance(state: _step.State) -> _step.State:
        return _step.step(key, outer, oracles(state.iterations), state, project)

    state = jax.lax.while_loop(active, advance, _step.init(key, outer, oracles(0), start))
    each = [_counts.times(state.calls[i], size) for i, size in enumerate(numbers.gradients)]
    made = _counts.times(functools.reduce(_counts.add, each), setting.data.labels.shape[1])
    trace = {"calls": state.calls, "weight": state.weight, "iterations": state.iterations}
    return accounting.spent(project(state.point), numbers.loss, 0, made, trace)
