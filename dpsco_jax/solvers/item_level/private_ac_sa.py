"""Private AC-SA: accelerated stochastic approximation on a smoothed loss, with noisy large batches.

What it computes: minimizes the mean over users of convex G-Lipschitz losses. Each step draws a batch of
exactly B users, takes their gradients at points shifted within a small ball (which makes the loss smooth in
expectation), clips them to G, sums, adds Gaussian noise, divides by B, and feeds the AC-SA recursion.

Source: thesis, Algorithm 4, Lemmas 1.4.4 and 1.4.5; parameters of Theorem 1.4.9; the convex case by
regularization (Lemma 1.4.10) or directly by AC-SA's convex policy. With these corrections: one replaced
user moves the sum by 2G (not G); the smoothing radius is that of the proof, R·d^(1/4)/T (not
R/(T·d^(1/4))); the regularizer is centred at the start; it stays outside of clip and noise.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, at every point of the run. Nothing is
assumed of the losses: gradients are clipped to G. Smoothing, steps and projection are post-processing.
Assumed: the key and the batches stay secret. Utility, for losses convex and G-Lipschitz within r of the
domain and R ≥ the distance from the start to a minimizer, with V = G²/B + dim·σ²/B²:

    strongly convex: E F(w) - F* ≤ β + 2LR²/(T(T+1)) + 2V/(μ(T+1))
    direct:          E F(w) - F* ≤ β + 4LR²/(T(T+1)) + 2R·√(V(2T+1)/(3T(T+1)))
    regularize:      the first line with μ = u, L + u, plus uR²/2

where β = G·r·d/(d+1) and L = c_d·G/r with smoothing; β = 0 and L the loss's own constant without it.

Cost: T·B user gradients; memory of one chunk of them, shifts included; a linear model's
data are held in a second copy, prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import private_ac_sa
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = private_ac_sa.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=8)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: private_ac_sa.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _plan_base, _planning, _together, first_order
from dpsco_jax.solvers._schedules import private_ac_sa as schedule
from dpsco_jax.solvers.item_level import _private_ac_sa_turns
from dpsco_jax.solvers.item_level._private_ac_sa_plan import Plan
from dpsco_jax.solvers.solution import Solution

__all__ = ["Plan", "plan", "solve"]


@_plan_base.remembers
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    constants: str = "tight",
    policy: str = "auto",
    num_steps: int | None = None,
    batch_size: int | None = None,
    clip_norm: float | None = None,
    accountant: str = "pld",
    chunk_size: int = 64,
    regularization: float = 0.0,
) -> Plan:
    """Checks all arguments, sets the schedule and calibrates the noise. All of them are public.

    Args:
        problem: for the objective, N ≥ 2, the number of parameters, and R; the diameter of the domain in its
            place if it has none.
        budget: (ε, δ) of the run, δ > 0; both at most 1/2 for ``constants="paper"``.
        constants: ``"tight"``: no smoothing where the loss is smooth enough, sharp smoothing constants,
            few steps, noise from ``accountant``. ``"paper"``: the theorem's schedule, noise from its closed
            form, checked by its own accountant (tCDP).
        policy: ``"strongly_convex"``, ``"direct"``, ``"regularize"``, or ``"auto"``: of the first two, if
            both apply, the one that proves more (``"paper"``: the first).
        num_steps: T, in place of the schedule's.
        batch_size: B, in place of the schedule's; N for full batches.
        clip_norm: G, in place of the objective's Lipschitz constant. A smaller one means less noise and
            gradients that are biased: nothing is proved of the excess risk then.
        accountant: for ``"tight"``: ``"pld"`` (least noise) or ``"rdp"`` (the ledger meets ε as well).
        chunk_size: users whose gradients are held at once.
        regularization: u ≥ 0; if positive, the objective is the loss plus (u/2)·‖w - center‖², with the
            centre given to ``solve``: R and ``excess_bound`` speak of that sum. Strongly convex policy.

    Raises:
        ValueError: an argument is out of range, R is not finite, or a precondition of the paper's theorem
            fails; the message says which.
    """
    problem, budget = _arguments.require_request(problem, budget)
    chunk_size = _checks.require_integer("chunk_size", chunk_size, 1)
    _checks.require_choice("constants", constants, ("tight", "paper"))
    _checks.require_choice("policy", policy, ("auto", *schedule.POLICIES))
    _checks.require_choice("accountant", accountant, _planning.ACCOUNTANTS)
    paper = constants == "paper"
    most = 0.5 + 1e-12  # the paper's theorem holds up to one half
    if paper:
        _checks.require_real("budget.epsilon", budget.epsilon, 0, most)
        _checks.require_real("budget.delta", budget.delta, 0, most)
    num_users, distance, lipschitz = (
        problem.num_users,
        problem.require_distance(),
        problem.lipschitz,
    )
    clip = _checks.require_real("clip_norm", lipschitz if clip_norm is None else clip_norm, 0)
    if paper and clip < lipschitz:
        raise ValueError(f"clip_norm must be at least {lipschitz:g} for 'paper', got {clip:g}")
    if num_steps is not None:
        num_steps = _checks.require_integer("num_steps", num_steps, 1)
    if batch_size is not None:
        batch_size = _checks.require_integer("batch_size", batch_size, 1, num_users)

    regularization = _checks.require_real("regularization", regularization, 0, closed=True)
    if regularization > 0:
        _checks.require_choice("policy", policy, ("auto", "strongly_convex"))
        policy = "strongly_convex"

    setting = schedule.Setting(
        num_users=num_users,
        dim=problem.dim,
        epsilon=budget.epsilon,
        delta=budget.delta,
        distance=distance,
        paper=paper,
        objective=problem.objective,
        clip_norm=clip,
        regularization=regularization,
    )

    def under(policy: str) -> Plan:
        steps, batch = schedule.sizes(setting, policy, num_steps, batch_size)
        if paper:
            multiplier = schedule.paper_noise_multiplier(setting, steps, batch)
        else:
            multiplier = _planning.fixed_size(num_users, batch, steps).noise_multiplier(
                budget.epsilon, budget.delta, accountant
            )
        numbers = schedule.step_sizes(setting, policy, steps, batch, multiplier)
        return Plan(
            num_users=num_users,
            dim=problem.dim,
            num_steps=steps,
            batch_size=batch,
            constants=constants,
            smoothed=numbers.smoothing_radius > 0,
            chunk_size=chunk_size,
            noise_multiplier=multiplier,
            clip_norm=clip,
            epsilon=budget.epsilon,
            delta=budget.delta,
            distance=distance,
            bounds_regularized=regularization > 0,
            **numbers._asdict(),
        )

    if policy == "strongly_convex":
        _checks.require_real("strong_convexity", setting.strong_convexity, 0)
    policies = schedule.candidates(setting) if policy == "auto" else (policy,)
    best = min(map(under, policies), key=lambda candidate: candidate.excess_bound)
    return best if clip >= lipschitz else dataclasses.replace(best, excess_bound=math.inf)


@_sharding.solver
def solve(
    key: jax.Array,
    plan: Plan,
    objective: Objective,
    data: UserData | StoredUsers,
    params: Any,
    center: Any = None,
    trace: Callable[[Any, Any, Any], Any] | None = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users; not under ``jit`` if they are on disk.
        params: the starting point; projected onto the domain.
        center: of the added regularization, a public point; the starting point if left out.
        trace: see ``loop.run``; its output goes to ``unprivate["trace"]``.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one, or ``center`` is no real
            floating tree of the shape of the parameters.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params, trace, stored=True)
    if center is not None:
        _arguments.require_like("center", center, params)
    method = first_order.ac_sa(plan.smoothness, plan.strong_convexity, objective.domain)
    pull = first_order.Pull(plan.regularization, center)
    gradients = plan.user_gradients * jax.tree.leaves(data.items)[0].shape[1]
    return first_order.run(
        key, plan.mean, method, objective, data, params, plan.num_steps, gradients, pull, trace
    )


_together.offer(solve, _private_ac_sa_turns.TURNS)
