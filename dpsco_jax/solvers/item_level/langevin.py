"""Noisy gradient descent that releases its last point only: private however many steps it makes.

What it computes: T times, on all users,

    x ← Π(x - η·(∇F(x) + ridge·x + u·(x - start)) + N(0, ν²·I)),

and the last x. Π projects onto the domain and keeps points within R of the start.

Source: own composition of known parts: Altschuler and Talwar 2022; Bok, Su and Altschuler 2024 (privacy of
the last point). With T → ∞ and η → 0 it is the Langevin diffusion, whose stationary law is the exponential
mechanism of T section 3.2 for the same F + (u/2)·‖w - start‖².

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, n public. With L, M and m as in
``_langevin_plan``, which has the proof, a step is (1 - ηm)-Lipschitz on every data set, and moves of
neighbours differ by at most Δ = η·G_Δ/n. By ``privacy.iteration`` the last point is μ-Gaussian DP with

    μ = (Δ/ν)·√((1 - c^T)(1 + c)/((1 + c^T)(1 - c))),    c = 1 - ηm,

which gains on composition, (Δ/ν)·√T, once T > 2/(ηm). Only losses that are convex, Lipschitz and smooth on
the whole space by construction are taken: gradients that are clipped are those of no convex function. Here
they are clipped a little above L, which does nothing but drop users with NaN. Points on the way do not leave,
so there is no trace, no average, no stopping; η, u and T come from the plan alone.
Utility, if a minimizer lies within R of the start (docs/theory/langevin.md): with V = c^{2T}·R² + dim·ν²·(1 -
c^{2T})/(1 - c²), E F - F* ≤ uR²/2 plus the least of slope·√V; (M + m)·V/2 in the whole space; and for steps η
≤ 1/(M + m), R²/(2ηT) + (1 + log T)·dim·ν²/η. The plan is not chosen by a bound but by ``predicted_excess``,
what a quadratic with nominal curvatures would reach.

Cost: T·n user gradients in one compiled loop; memory of a second copy of a linear model's data, prepared
once, and of one chunk of user gradients, or of one number for a user of one item.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import langevin
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = langevin.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=20)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: langevin.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from dpsco_jax import _checks, _counts, _sharding, privacy
from dpsco_jax._argument_kinds import Count, Nonnegative, Positive, integer, one_of
from dpsco_jax.geometry import domains
from dpsco_jax.geometry.norms import global_norm
from dpsco_jax.mechanisms import noisy_iteration
from dpsco_jax.oracles import user_gradients
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.problems.users import items_per_user as items_of_each
from dpsco_jax.solvers import _arguments, _plan_base
from dpsco_jax.solvers._schedules import langevin as schedule
from dpsco_jax.solvers._schedules import nominal_model
from dpsco_jax.solvers.item_level._langevin_plan import (
    CLIP_ROOM,
    MOST_SLOTS,
    PRECISIONS,
    REPLACE,
    Plan,
    proven_constants,
)
from dpsco_jax.solvers.solution import Solution, finished

__all__ = ["Plan", "plan", "solve"]

_PASSES = 1000


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    regularization: Nonnegative | None = None,
    num_steps: Annotated[int, integer(1, 2**31 - 1)] | None = None,
    step_size: Positive | None = None,
    columns_per_row: Count | None = None,
    gradient_budget: int | None = None,
    precision: Annotated[str, one_of(*PRECISIONS)] = "float32",
    chunk_size: Count = 64,
) -> Plan:
    """Checks all arguments, chooses the numbers and calibrates the noise. All of them are public.

    Args:
        problem: for the objective, which must be a smooth loss of ``problems.losses`` that is Lipschitz on
            the whole space, on a domain of ``geometry.domains``; n ≥ 2, the number of parameters, m, and R,
            which must be finite: points are kept within R of the start.
        budget: (ε, δ) of the run, δ > 0.
        regularization: u ≥ 0; what is not given of u, T and η is what ``predicted_excess`` is least for.
        num_steps: T.
        step_size: η, at most 2/(M + 2m), m the strong convexity of ridge and u together.
        columns_per_row: entries of a one-hot row, which the prediction counts with; ``None`` for dense rows.
        gradient_budget: item gradients that a run may take; 1000·n·m if left out. Not looked at where
            ``num_steps`` is given.
        precision: ``"float32"``, with an allowance for the rounding of sums over users that matters from some
            1e5 users on, or ``"float64"``, which needs ``jax_enable_x64`` and parameters of that type.
        chunk_size: users whose gradients are held at once; without effect for users of one item.

    Raises:
        ValueError: an argument is out of range, the loss is not of these kinds or claims more than is proven
            of it, or the step is so long that nothing is proven.
    """
    one_pass = problem.num_users * problem.items_per_user
    if gradient_budget is None:
        gradient_budget = _PASSES * one_pass
    gradient_budget = _checks.require_integer("gradient_budget", gradient_budget, one_pass)
    radius = problem.require_distance()
    own = proven_constants(problem.objective, radius)
    if step_size is not None:
        longest = schedule.longest_step(own.smoothness, own.ridge + (regularization or 0.0))
        within = (
            f"in (0, {longest:.6g}], at most 2/(M + 2m) for steps to contract by 1 - step_size*m"
        )
        _checks.require(step_size <= longest, "step_size", step_size, within)

    draft = Plan(
        num_users=problem.num_users,
        items_per_user=problem.items_per_user,
        dim=problem.dim,
        num_steps=1,
        precision=precision,
        chunk_size=chunk_size,
        radius=radius,
        proven_for=own,
        noise_multiplier=1.0,
        step_size=1.0,
        regularization=0.0,
        epsilon=budget.epsilon,
        delta=budget.delta,
        predicted_excess=math.inf,
        excess_bound=math.inf,
    )
    setting = schedule.Setting(
        nominal=nominal_model.nominal(problem, columns_per_row),
        dim=problem.dim,
        smoothness=own.smoothness,
        ridge=own.ridge,
        slope=problem.slope,
        distance=radius,
        move=float(draft.sensitivity),  # of a step of length 1
        mu=privacy.gdp_within(budget.epsilon, budget.delta),
        whole_space=math.isinf(own.diameter),
        exact_projection=math.isinf(own.diameter) or radius >= own.diameter,
    )
    most = max(1, gradient_budget // one_pass)
    numbers = schedule.best(setting, most, num_steps, step_size, regularization)
    chosen = dataclasses.replace(
        draft, **numbers._asdict(), noise_multiplier=schedule.noise_multiplier(setting, numbers)
    )
    setting = setting._replace(move=float(chosen.sensitivity) / numbers.step_size)
    bound = schedule.bound(setting, numbers)
    # The model knows nothing of the ball that points are kept in.
    predicted = min(schedule.expected(setting, numbers), bound)
    return dataclasses.replace(chosen, predicted_excess=predicted, excess_bound=bound)


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
        params: the starting point, public; projected onto the domain.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one, the parameters are
            narrower than planned, or the objective does not have the proven constants that were planned for.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    kind = _require_kind(plan.precision, params)
    slots = jax.tree.leaves(data.items)[0].shape[1]
    _checks.require(slots <= MOST_SLOTS, "data.items", slots, f"of at most {MOST_SLOTS} slots")
    found = proven_constants(objective, plan.radius)
    if found != plan.proven_for:
        raise ValueError(f"objective must have plan.proven_for = {plan.proven_for}, got {found}")
    oracle_key, noise_key = jax.random.split(key)
    start = objective.domain.project(params)
    clip = plan.proven_for.lipschitz * CLIP_ROOM
    oracle, oracle_data = user_gradients.clipped_sum_oracle(
        objective, data, start, clip, None, plan.chunk_size, unaltered=True
    )
    # Once and here, or all rows are converted in every step.
    oracle_data = jax.tree.map(
        lambda x: x.astype(kind) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x,
        oracle_data,
    )

    def move(t: Any, point: Any) -> Any:
        total = oracle(jax.random.fold_in(oracle_key, t), point, oracle_data).gradient

        def one(g: Any, ridge: Any, w: Any, origin: Any) -> Any:
            slope = g / plan.num_users + ridge + plan.regularization * (w - origin)
            return (-plan.step_size * slope).astype(w.dtype)

        return jax.tree.map(one, total, objective.regularizer_gradient(point), point, start)

    near = domains.ball(plan.radius, start)

    def project(point: Any) -> Any:
        # The second moves along a segment to the start, which does not leave the domain.
        return near.project(objective.domain.project(point))

    sensitivity = jnp.asarray(plan.sensitivity_from(global_norm(start)))
    end = noisy_iteration.last_point(
        noise_key, start, move, project, plan.num_steps, sensitivity, plan.noise_multiplier
    )
    loss = privacy.unbounded_unless(jnp.isfinite(sensitivity), plan.loss())
    ledger = privacy.charge(privacy.open_ledger(REPLACE), loss)
    items = jnp.sum(items_of_each(data), dtype=jnp.int32)
    return finished(
        end,
        ledger,
        plan.user_gradients * slots,
        _counts.times(items, plan.num_steps),
        None,
    )


def _require_kind(precision: str, params: Any) -> Any:
    """The one dtype of the parameters; ``ValueError`` if it is narrower than planned."""
    if precision == "float64" and jnp.result_type(float) != jnp.float64:
        raise ValueError("jax_enable_x64 must be on for a plan of precision 'float64', got False")
    kinds = {jnp.result_type(leaf) for leaf in jax.tree.leaves(params)}
    for kind in kinds:
        wide = jnp.promote_types(kind, precision) == kind
        _checks.require(wide, "params", kind, f"real floating, at least {precision}")
    return jnp.result_type(*kinds)
