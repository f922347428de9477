"""Item-level DP-SGD whose guarantee is carried over to users: the baseline that ignores who owns an item.

What it computes: in each step the gradients of all items, or of a few items drawn with replacement, are
clipped one by one, summed, divided by a public number and covered with Gaussian noise; the parameters move
against the result, are projected onto the domain and averaged.

Source: the "trivial" algorithm of T section 10.1 (footnote 2), U section 1 and L section 1: item-level
privacy at (ε/m, δ₀) and group privacy of the m items of a user. Averaging and step size as in ``sgd``.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, at every point of the run. A user has
at most m items, the public number of item slots; replacing a user replaces what is in those m slots.
- All items in every step: the sum moves by at most 2mC. A Gaussian for that sensitivity is accounted
  exactly; group privacy of Gaussians loses nothing.
- B draws from the N·m slots: a user's slots are drawn k ~ Bin(B, 1/N) times, which moves the sum by at
  most 2kC. This is sampling of users with replacement (docs/theory/subsampling.md, section 5).
That is ``constants="tight"``. ``"paper"`` takes the noise from the black box: an (ε₀, δ₀) guarantee for
one item is (m·ε₀, δ₀·(e^(mε₀) - 1)/(e^ε₀ - 1)) for m. Its certificate and ledger are still computed as
above, so they show how much the black box gives away. Assumed: the key and the draws stay secret.
Utility, for a convex loss, no ridge, clip_norm ≥ its Lipschitz constant and m items for every user:
E F(average) - F* ≤ (1 + 1/(2T))·R·√(V/T), V = clip_norm² + dim·σ². Users with fewer items weigh less.

Cost: T·N·m item gradients, or T·B; memory of one chunk, and for linear models of a second copy of the data,
prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import item_group_privacy
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = item_group_privacy.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=20)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: item_group_privacy.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

from collections.abc import Callable
from typing import Any

import jax

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _averaged_steps, _plan_base, _planning, first_order, means
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.user_level._item_group_plan import (
    Plan,
    item_budget,
    noise_multiplier,
    noise_stddev,
)

__all__ = ["Plan", "item_budget", "plan", "solve"]


@_plan_base.remembers
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: int,
    batch_size: int | None = None,
    clip_norm: float | None = None,
    step_size: float | None = None,
    constants: str = "tight",
    chunk_size: int = 64,
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the Lipschitz constant, domain and ridge of the objective, N ≥ 2, the number of
            parameters, m, which must be the number of item slots of a user, and R, the distance from the
            start to a minimizer, which is needed for the step size only.
        budget: (ε, δ) of the run, δ > 0.
        num_steps: T ≥ 1.
        batch_size: items drawn in a step, in [1, N]; all N·m slots if left out.
        clip_norm: the objective's Lipschitz constant if left out.
        step_size: R/√(T·V) if left out.
        constants: ``"tight"`` or ``"paper"``, see the file's docstring.
        chunk_size: items whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, or the step size is left out and R is not finite.
    """
    problem, budget = _arguments.require_request(problem, budget)
    num_users, items_per_user = problem.num_users, problem.items_per_user
    num_steps = _checks.require_count("num_steps", num_steps)
    chunk_size = _checks.require_count("chunk_size", chunk_size)
    _checks.require_choice("constants", constants, ("tight", "paper"))
    if batch_size is not None:
        batch_size = _checks.require_integer("batch_size", batch_size, 1, num_users)
    clip_norm = problem.lipschitz if clip_norm is None else clip_norm
    clip_norm = _checks.require_real("clip_norm", clip_norm, 0)
    if constants == "tight":
        multiplier = noise_multiplier(
            num_users, batch_size, num_steps, budget.epsilon, budget.delta
        )
    else:
        each = item_budget(budget.epsilon, budget.delta, items_per_user)
        multiplier = noise_multiplier(num_users * items_per_user, batch_size, num_steps, *each)
        if batch_size is None:  # from the sensitivity to an item to that to a user
            multiplier = _planning.float32_above(multiplier / items_per_user)
    step_size, excess_bound = _averaged_steps.step_and_bound(
        problem,
        num_steps=num_steps,
        batch_size=num_users if batch_size is None else batch_size,
        rate=None,
        clip_norm=clip_norm,
        noise_stddev=noise_stddev(multiplier, clip_norm, num_users, batch_size),
        step_size=step_size,
        averaging="uniform",
    )
    return Plan(
        num_users=num_users,
        items_per_user=items_per_user,
        dim=problem.dim,
        num_steps=num_steps,
        batch_size=batch_size,
        constants=constants,
        chunk_size=chunk_size,
        noise_multiplier=multiplier,
        clip_norm=clip_norm,
        step_size=step_size,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=excess_bound,
    )


@_sharding.solver
def solve(
    key: jax.Array,
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: Any,
    trace: Callable[[Any, Any, Any], Any] | None = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users and ``plan.items_per_user`` item slots.
        params: the starting point; projected onto the domain.
        trace: see ``loop.run``; its output goes to ``unprivate["trace"]``.

    Raises:
        ValueError: if the number of users, of item slots or of parameters is not the planned one.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params, trace)
    slots = jax.tree.leaves(data.items)[0].shape[1]
    planned = f"of plan.items_per_user = {plan.items_per_user} slots"
    _checks.require(slots == plan.items_per_user, "data", slots, planned)
    mean = means.ClippedItems(
        chunk_size=plan.chunk_size,
        scheme=plan.scheme,
        clip_norm=plan.clip_norm,
        noise_multiplier=plan.noise_multiplier,
    )
    method = first_order.projected_sgd(plan.step_size, objective.domain)
    found = first_order.run(
        key, mean, method, objective, data, params, plan.num_steps, plan.item_gradients, trace=trace
    )
    return found._replace(privacy=privacy.unbounded_unless(plan.accounted, found.privacy))
