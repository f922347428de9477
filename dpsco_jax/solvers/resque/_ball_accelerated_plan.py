"""The plan of private ERM by ball acceleration: sizes, noise, and refusal of what would return noise.

What it computes: the target ε_opt = LR/κ, the smoothing radius ρ, balls of radius r = ρ/ratio, the outer
iterations, the largest β that the budget allows for every private call that could be made, and how far an
answer will be from the point that it approximates.

Source: thesis, Theorem 2.4.19, (2.29) to (2.33), with these corrections: all line searches are budgeted, not
one an iteration; the bias of Algorithm 11 is that of β at its last level, √dim/(β√(nT)), not √dim/(βn). The
thesis's ρ = ε_opt/(L√dim) is for any loss. A linear model sees one direction of a shift: smoothing raises it
by at most Lρ·E|N(0, 1)|, so ρ = ε_opt/L costs 0.8 ε_opt, and no number of balls depends on the dimension.

Formal guarantee: (ε, δ)-DP under REPLACE_ONE by ``privacy.resque``, whatever the run does within the plan. Of
accuracy none is claimed: ``predicted_error`` is an observed law (constant 5 where 8192 is proved), and a
plan is refused where it says that answers would be noise.

Cost: seconds; a refusal searches for what would do and takes ten times as long.
"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from dpsco_jax import _checks
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.oracles import multilevel
from dpsco_jax.privacy import Budget
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _arguments, _plan_base
from dpsco_jax.solvers.ball import ball_acceleration
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque import _call_settings
from dpsco_jax.solvers.resque._ball_accelerated_budget import Plan, predicted_error
from dpsco_jax.solvers.resque._call_settings import Calls

SHARES = {"without_replacement": 0.2, "with_replacement": 0.05}
"""Of the users, in one call."""

GOOD_ERROR, WORST_ERROR = 0.2, 0.5
"""Of a call's answer, relative to the ball: harmless below the first, useless above the second."""

_ITERATIONS = 2.5  # over K; 3.5 certify the target if all answers are exact


def plan(
    problem: Problem,
    budget: Budget,
    *,
    condition: float = 5.0,
    smoothing_radius: float | None = None,
    calls: Calls = _call_settings.DEFAULT,
    largest_error: float = WORST_ERROR,
) -> Plan:
    """Checks all arguments, lists the calls, calibrates their noise. All arguments are public.

    Args:
        problem: for the objective, a linear model with a loss that is convex and Lipschitz on the whole
            space, n ≥ 2 users, the number of parameters, and R; the domain's diameter in its place if it has
            none.
        budget: (ε, δ) of the run, δ > 0.
        condition: κ ≥ 1 of the target ε_opt = LR/κ. What is reached is mostly 20 to 100 times better.
        smoothing_radius: ρ; if left out, ε_opt/L, or ε_opt/(L√dim) for ``constants="paper"``.
        calls: how private calls are made, a ``Calls``.
        largest_error: refuse plans whose ``predicted_error`` is above.

    Raises:
        ValueError: an argument is out of range, or the loss has no proof.
        Infeasible: the plan would return noise; ``needed`` has values that would do.
    """
    return planned(
        problem,
        budget,
        condition=condition,
        smoothing_radius=smoothing_radius,
        calls=calls,
        largest_error=largest_error,
    )


@_plan_base.remembers
def planned(
    problem: Problem,
    budget: Budget,
    *,
    condition: float,
    smoothing_radius: float | None,
    calls: Calls,
    largest_error: float,
    near: float | None = None,
) -> Plan:
    """``plan``, with the search for β starting from one of a similar plan, if there is one.

    Raises:
        ValueError: as ``plan``.
        Infeasible: as ``plan``.
    """
    _checks.require_within("largest_error", largest_error, 0, math.inf, open_low=True)
    made = draft(
        problem,
        budget,
        condition=condition,
        smoothing_radius=smoothing_radius,
        calls=calls,
    )
    accounting.require_numbers(made.numbers)
    epsilon, delta = float(made.epsilon), float(made.delta)
    beta = accounting.calibrated_beta(made.calls_at, epsilon, delta, near)
    made = dataclasses.replace(made, beta=beta)
    if made.predicted_error > largest_error:
        raise _refusal(made, largest_error)
    made = dataclasses.replace(made, proven=accounting.Proven(beta, made.ratio, delta))
    accounting.proven_loss(made.calls_at, made.proven)  # now, not when a program is traced
    return made


def draft(
    problem: Problem,
    budget: Budget,
    *,
    condition: float = 5.0,
    smoothing_radius: float | None = None,
    calls: Calls = _call_settings.DEFAULT,
) -> Plan:
    """Checks all arguments, those of ``plan``, and sets the sizes; β = 1 and no loss yet.

    Raises:
        ValueError: an argument is out of range, or the loss has no proof.
    """
    problem, budget = _arguments.require_request(problem, budget)
    num_users, distance = problem.num_users, problem.require_distance()
    accounting.require_linear(problem.objective)
    _checks.require_instance("calls", calls, Calls)
    paper = calls.constants == "paper"
    sampling = calls.sampling or ("with_replacement" if paper else "without_replacement")
    search = calls.search or ("bisection" if paper else "doubling")
    prox = calls.prox or ("mlmc_extended" if paper else "plain")
    condition = _checks.require_real("condition", condition, 1, closed=True)
    lipschitz = problem.lipschitz
    excess = lipschitz * distance / condition
    if smoothing_radius is None:
        smoothing_radius = excess / (lipschitz * (math.sqrt(problem.dim) if paper else 1.0))
    smoothing = _checks.require_real("smoothing_radius", smoothing_radius, 0)
    num_queries = calls.num_queries
    if num_queries is None:
        num_queries = max(4, int(SHARES[sampling] * num_users))
    most = num_users if sampling == "without_replacement" else None
    queries = 1 << (_checks.require_integer("num_queries", num_queries, 4, most).bit_length() - 1)
    num_iterations, max_searches = calls.num_iterations, calls.max_searches
    if not paper and search != "fixed":
        balls = (distance * calls.radius_ratio / smoothing) ** (2 / 3)
        num_iterations = num_iterations or math.ceil(_ITERATIONS * balls)
        max_searches = max_searches or 2
    outer = ball_acceleration.plan(
        lipschitz=lipschitz,
        distance=distance,
        ball_radius=smoothing / calls.radius_ratio,
        excess=excess,
        search=search,
        reuse=not paper if calls.reuse is None else calls.reuse,
        log_power=2.0 if paper else 0.0,
        num_iterations=num_iterations,
        max_searches=max_searches,
    )
    iterations = outer.num_iterations
    search_runs = calls.search_runs
    if search_runs is None:
        failure = 1 / (condition * iterations * max(outer.max_searches, 1))
        search_runs = math.ceil(20 * math.log(1 / failure)) if paper else 1
    max_level = copies = 0
    if not outer.reuse and prox != "plain":
        octaves = math.log2(num_users / queries)
        max_level = copies = math.floor(octaves) if prox == "mlmc" else math.ceil(2 * octaves)
        if max_level < 1:
            raise ValueError(
                f"num_queries must be at most {num_users // 2} for prox={prox!r}, got {queries}"
            )
    levels: tuple[tuple[int, ...], ...] = ()
    if max_level:
        coins = jax.random.key(calls.levels_seed)
        drawn = multilevel.draw_levels(coins, max_level, (iterations, copies))
        levels = tuple(tuple(row) for row in np.asarray(drawn).tolist())
    return Plan(
        num_users=num_users,
        dim=problem.dim,
        num_queries=queries,
        sampling=sampling,
        prox=prox,
        search_runs=search_runs,
        max_level=max_level,
        prox_levels=levels,
        proven=None,
        outer=outer,
        smoothing_radius=smoothing,
        beta=1.0,
        epsilon=budget.epsilon,
        delta=budget.delta,
    )


def _refusal(plan: Plan, largest: float) -> Infeasible:
    """Says by how much, and which number of users or which ε would do."""

    def enough(**changes: Any) -> bool:
        changed = dataclasses.replace(plan, **changes)
        beta = accounting.calibrated_beta(changed.calls_at, float(changed.epsilon), plan.delta)
        return predicted_error(changed, beta) <= largest

    # The error falls at most like 1/n or 1/ε; a few doublings beyond what that asks for.
    least = max(1, math.floor(math.log2(plan.predicted_error / largest)))
    factors = [2**i for i in range(least, least + 6)]
    needed: dict[str, float] = {"largest_error": plan.predicted_error}
    remedies = ["a smaller condition"]
    for factor in factors:
        if enough(epsilon=factor * float(plan.epsilon)):
            needed["epsilon"] = factor * float(plan.epsilon)
            remedies.insert(0, f"epsilon = {needed['epsilon']:g}")
            break
    for factor in factors:
        if enough(num_users=factor * plan.num_users, num_queries=factor * plan.num_queries):
            needed["num_users"] = factor * plan.num_users
            remedies.insert(0, f"{needed['num_users']} users")
            break
    return Infeasible(
        f"condition = {float(plan.outer.lipschitz) * float(plan.outer.distance) / float(plan.outer.excess):g}"
        f" is out of reach of {plan.num_users} users at epsilon = {float(plan.epsilon):g}: answers would be"
        f" {plan.predicted_error:.3g} ball radii from their targets, which is above largest_error ="
        f" {largest:g}; {' or '.join(remedies)} would do",
        needed,
    )
