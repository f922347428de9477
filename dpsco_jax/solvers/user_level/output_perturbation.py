"""Output perturbation: gradient descent on a strongly convex objective, Gaussian noise on its last point.

What it computes: K steps of projected gradient descent on F + (u/2)·‖w - start‖², F the mean user loss plus
ridge, over all users; then Gaussian noise on the last point, and a projection onto the domain.

Source: Chaudhuri, Monteleoni and Sarwate 2011 (output perturbation); Wu et al. 2017 and Zhang et al. 2017
(noise for the stability of the program instead of the exact minimizer). Baseline of U section 1, T section
10.1 and L section 1: privacy for one item, carried over to users by group privacy (``constants="paper"``).

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE. With L the Lipschitz constant of
every user's loss and λ the strong convexity of the regularized objective, gradient steps of length η ≤
2/(H' + λ) are contractions, and replacing a user moves the last point by at most 2L/(λN); ``_output_plan``
has the proof, and the bound for other steps. The minimizers themselves may be that far apart: nothing has
to be added for stopping early, and the data decide nothing on the way. Here L is 2^-10 larger than the
objective's, so that the oracle's clip never acts (it only drops users with NaN). For rounding, 2·(2^-20·L/λ
+ 2^-22·D·H'/λ) is added, D how far iterates can be from the start plus the norm of the start: an allowance
for float32 sums in blocks, not a proof. What the proof needs of the loss is never taken from the caller:
losses, with their constants, and domains are those that ``problems.losses`` and ``geometry.domains`` made;
others are refused. Strong convexity has to hold whatever the data are. A user without items, or with NaN,
has the loss zero, which only ridge and regularization make strongly convex; if the loss itself is strongly
convex, with μ, a user without items gets (μ/2)·‖w‖².
Utility, R ≥ ‖start - minimizer‖, σ the noise, S = σ·√dim, τ = c^K·R the distance from the minimizer:
- whole space: E F - F* ≤ uR²/2 + uRτ + (H + ridge)·(S + τ)²/2;
- other domains: E F - F* ≤ uR²/2 + (L + ridge·D)·(S + τ), D the diameter or the largest norm of a point.

Cost: K·N user gradients, K of the order of H'/λ; memory of one chunk of user gradients, and for linear models
of a second copy of the data, prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import output_perturbation
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = output_perturbation.plan(made.problem(distance=5.0), Budget(1.0, 1e-5))
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: output_perturbation.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import _checks, _sharding, privacy, transforms
from dpsco_jax.geometry.norms import global_norm
from dpsco_jax.oracles import user_gradients
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.problems.users import items_per_user as items_of_each
from dpsco_jax.solvers import _arguments, _plan_base, _planning, loop
from dpsco_jax.solvers.solution import Solution, finished
from dpsco_jax.solvers.user_level._item_group_plan import item_budget
from dpsco_jax.solvers.user_level._output_plan import REPLACE, Plan, bare, proven_constants

__all__ = ["Plan", "plan", "solve"]

_SOLVED_TO = 0.01  # optimization error as a share of the noise


@_plan_base.remembers
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    regularization: float | None = None,
    constants: str = "tight",
    chunk_size: int = 64,
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the objective, which must be a smooth loss of ``problems.losses`` on a domain of
            ``geometry.domains``, N ≥ 2, the number of parameters, m, which is without effect for
            ``"tight"``, and R, the distance from the start to a minimizer, which must be finite.
        budget: (ε, δ) of the run, δ > 0.
        regularization: u ≥ 0; the one with the smallest ``excess_bound`` if left out.
        constants: ``"tight"``: the noise for a user, at once. ``"paper"``: the noise that makes one item
            (ε/m, δ₀)-private, and group privacy (``item_group_privacy.item_budget``).
        chunk_size: users whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, the loss is not of these kinds or claims more than is proven
            of it, or nothing is strongly convex (``regularization=0`` without ridge).
    """
    problem, budget = _arguments.require_request(problem, budget)
    num_users, items_per_user = problem.num_users, problem.items_per_user
    chunk_size = _checks.require_count("chunk_size", chunk_size)
    _checks.require_choice("constants", constants, ("tight", "paper"))
    own = proven_constants(problem.objective)
    convex, distance = own.loss_strong_convexity + own.ridge, problem.require_distance()

    once = _planning.fixed_size(num_users, num_users, 1)
    if constants == "tight":
        multiplier = once.noise_multiplier(budget.epsilon, budget.delta, "pld")
    else:
        each = item_budget(budget.epsilon, budget.delta, items_per_user)
        multiplier = once.noise_multiplier(*each, "pld")
        multiplier = _planning.float32_above(multiplier / items_per_user)

    def under(added: float) -> Plan:
        draft = bare(problem, budget, constants, chunk_size, own, multiplier, added)
        kept = 1.0 - draft.step_size * (convex + added)
        spread = draft.noise_stddev * math.sqrt(problem.dim)
        goal = _SOLVED_TO * spread / distance
        steps = max(1, math.ceil(math.log(goal) / math.log(kept))) if kept > 0 else 1
        error = distance * max(kept, 0.0) ** steps + draft.rounding
        off = spread + error
        excess = added * distance**2 / 2
        if math.isinf(own.diameter):
            excess += added * distance * error + (own.smoothness + own.ridge) * off**2 / 2
        else:
            excess += (draft.clip_norm + problem.slope - problem.lipschitz) * off
        return dataclasses.replace(
            draft, num_steps=steps, optimization_error=error, excess_bound=excess
        )

    if regularization is not None:
        added = _checks.require_real("regularization", regularization, 0, closed=True)
        if added + convex <= 0:
            raise ValueError("regularization must be positive where nothing else is convex, got 0")
        return under(added)
    unit = own.lipschitz / distance
    choices = [unit * 2.0 ** (k / 4) for k in range(-80, 41)]
    if convex > 0:
        choices.append(0.0)
    return min(map(under, choices), key=lambda candidate: candidate.excess_bound)


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``, for this very objective.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: the starting point; projected onto the domain.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one, the parameters are
            narrower than float32, or the objective does not have the proven constants that were planned for.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    for leaf in jax.tree.leaves(params):
        # The sensitivity allows for the rounding of float32: iterates in fewer bits are rounded apart.
        kind = jnp.result_type(leaf)
        wide = jnp.promote_types(kind, jnp.float32) == kind
        _checks.require(wide, "params", kind, "real floating, at least float32")
    found = proven_constants(objective)
    if found != plan.proven_for:
        raise ValueError(f"objective must have plan.proven_for = {plan.proven_for}, got {found}")
    oracle_key, noise_key = jax.random.split(key)
    start = objective.domain.project(params)
    oracle, oracle_data = user_gradients.clipped_sum_oracle(
        objective, data, start, plan.clip_norm, None, plan.chunk_size, unaltered=True
    )

    # So that every user's loss is as convex as is said, there is one of a user without items as well.
    bare_users = jnp.sum(items_of_each(data) == 0)
    missing = plan.proven_for.loss_strong_convexity * bare_users

    def regularized(total: Any, point: Any) -> Any:
        def add(g: Any, ridge: Any, w: Any, origin: Any) -> Any:
            mean = (g + missing * w) / plan.num_users
            return mean + ridge + plan.regularization * (w - origin)

        return jax.tree.map(add, total, objective.regularizer_gradient(point), point, start)

    descent = optax.chain(
        optax.stateless(regularized),
        optax.scale(-plan.step_size),
        transforms.project(objective.domain),
    )
    end = loop.run(oracle_key, oracle, descent, start, oracle_data, plan.num_steps)

    # The statistic is how far the program moved; its sensitivity is that of the last point.
    statistic = transforms.Aggregate(
        lambda params: optax.EmptyState(),
        lambda updates, state, params=None, **extra: (updates, state),
        plan.sensitivity + plan.start_rounding(global_norm(start)),
        REPLACE,
    )
    release = transforms.privatize(statistic, noise_key, plan.noise_multiplier)
    moved = jax.tree.map(jnp.subtract, end.params, start)
    noised, state = release.update(moved, release.init(moved))
    reported = objective.domain.project(jax.tree.map(jnp.add, start, noised))
    slots = jax.tree.leaves(data.items)[0].shape[1]
    solution = finished(reported, state, plan.user_gradients * slots, end.num_gradients, None)
    return solution._replace(privacy=privacy.unbounded_unless(plan.accounted, solution.privacy))
