"""Phased ERM: stochastic convex optimization for users by regularized ERMs on disjoint blocks of them.

What it computes: phase t minimizes, on users of its own, the empirical risk plus (λ_t/2)·‖θ - θ_{t-1}‖² by
gradient descent on winsorized means, and starts where the one before has ended; λ_t grows by 4 a phase. For
strongly convex losses the phases may be repeated in rounds, each from nearer to the minimizer.

Source: L Algorithm 4, Corollary 2, Theorem 5. With these corrections: blocks of equal size and half as many
phases (as printed the last blocks have less than one user), numbers of steps at least H/λ_t; the
regularizer's gradient is added outside of the mean. ``_phased_erm_schedule`` derives the bound with its
constants, by which ``constants="tight"`` chooses phases, λ and steps.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, for any data, loss and radius: each
phase is (ε, δ)-DP, a user takes part in one phase, by position, and later phases post-process. Assumed: the
key stays secret. Utility: ``excess_bound`` on the expected excess risk; see ``assumes``.

Cost: Σ T_t·n_t user gradients; memory of the gradients of one block.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpsco_jax import _checks
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms.winsorized.winsorized_releases import WinsorizedReleases
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _planning, _sequence, plans
from dpsco_jax.solvers._schedules import gradient_descent
from dpsco_jax.solvers._schedules import phased_erm as schedule
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.user_level import _winsorized_plan


@pytree
class Plan(_sequence.OnBlocks):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        items_per_user: m.
        split: ``"equal"`` or ``"geometric"`` blocks.
        constants: ``"tight"`` or ``"paper"``.
        parts: a tuple of ``_winsorized_plan.Phase``.
        epsilon: ε of the budget.
        delta: δ of the budget.
        initial_distance: R.
        failure_probability: bound on the probability that some gradient of i.i.d. users is clipped.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
    """

    num_users: int = static()
    items_per_user: int = static()
    split: str = static()
    constants: str = static()
    parts: Any
    epsilon: Number
    delta: Number
    initial_distance: Number
    failure_probability: Number
    excess_bound: Number

    @property
    def item_gradients(self) -> int:
        """Item gradients of the whole run, for users with all their items."""
        return self.user_gradients * self.items_per_user

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bound assumes; privacy assumes none of it."""
        return (
            "losses are convex; users are independent, with i.i.d. items of the same law",
            *_winsorized_plan.ASSUMES_ORIGIN,
            f"a minimizer lies within {float(self.initial_distance):.4g} of the start",
        )

    def __str__(self) -> str:
        return plans.describe("phased ERM", self)


@_planning.says_enough_users
def plan(
    objective: Objective,
    *,
    num_users: int,
    items_per_user: int,
    dim: int,
    epsilon: float,
    delta: float,
    initial_distance: float | None = None,
    radius: float | None = None,
    gradient_stddev: float | None = None,
    failure: float = 1e-5,
    split: str = "equal",
    form: str = "auto",
    constants: str = "tight",
    most_steps: int = 500,
    chunk_size: int = 256,
) -> Plan:
    """Checks all arguments, sets the schedule and calibrates the noise. All of them are public.

    Args:
        objective: smooth and convex; for its constants, domain and ridge.
        num_users: n ≥ 2.
        items_per_user: m ≥ 1, for users with fewer or more the number that is typical.
        dim: number of parameters.
        epsilon: budget, in (0, inf).
        delta: budget, in (0, 1).
        initial_distance: R, bound on the distance from the start to a minimizer; the diameter of the
            domain if left out.
        radius: τ, on the distance of a user's gradient from the population's; from i.i.d. items if left out.
            Any number is private that does not come from the data.
        gradient_stddev: σ of the paper's λ: gradients of items are σ²-sub-Gaussian in every direction; G/√d
            if left out. For ``"paper"`` only.
        failure: γ of the radius, and of the releases, in each phase.
        split: blocks of ``"equal"`` size, or ``"geometric"``, each half of the one before.
        form: of the releases, ``"auto"`` for the one with the least noise.
        constants: ``"tight"``, or ``"paper"`` for the printed λ, steps and noise.
        most_steps: the largest number of steps of a phase.
        chunk_size: users whose items are read at once.

    Raises:
        ValueError: an argument is out of range, the loss is not smooth, or R is not finite.
        Infeasible: too few users; ``needed["num_users"]`` would do.
    """
    _checks.require_instance("objective", objective, Objective)
    _checks.require_given(_checks.require_positive, gradient_stddev=gradient_stddev)
    num_users = _checks.require_integer("num_users", num_users, 2)
    items_per_user = _checks.require_integer("items_per_user", items_per_user, 1)
    dim = _checks.require_integer("dim", dim, 1)
    most_steps = _checks.require_integer("most_steps", most_steps, 1)
    chunk_size = _checks.require_integer("chunk_size", chunk_size, 1)
    epsilon = _checks.require_real("epsilon", epsilon, 0)
    delta = _checks.require_real("delta", delta, 0, 1)
    failure = _checks.require_real("failure", failure, 0, 1)
    _checks.require_choice("split", split, ("equal", "geometric"))
    _checks.require_choice("constants", constants, ("tight", "paper"))
    if radius is not None:
        radius = _checks.require_real("radius", radius, 0)
    smoothness = _winsorized_plan.require_smooth(objective) + objective.ridge
    diameter = float(np.asarray(objective.domain.diameter))
    distance = diameter if initial_distance is None else initial_distance
    distance = _checks.require_real("initial_distance", distance, 0)
    lipschitz = float(objective.lipschitz)
    slope = _winsorized_plan.largest_slope(objective)
    problem = schedule.Problem(
        items_per_user=items_per_user,
        lipschitz=lipschitz,
        smoothness=smoothness,
        strong_convexity=objective.strong_convexity,
        slope=slope,
        diameter=diameter,
        distance=distance,
        most_steps=most_steps,
    )

    @functools.cache
    def calibrated(users: int, steps: int) -> tuple[WinsorizedReleases, float]:
        return _winsorized_plan.gradient_releases(
            objective,
            users,
            items_per_user,
            dim,
            steps,
            epsilon,
            delta,
            radius=radius,
            failure=failure,
            form=form,
            constants=constants,
        )

    if constants == "paper":
        stddev = lipschitz / math.sqrt(dim) if gradient_stddev is None else gradient_stddev
        stddev = _checks.require_real("gradient_stddev", stddev, 0)
        sizes = schedule.printed(problem, num_users, dim, stddev, epsilon, split)
        found = schedule.Candidate(tuple(sizes), math.inf, 1.0)
    else:
        found = schedule.best(problem, num_users, split, calibrated)

    def phase_of(sizes: schedule.PhaseSizes) -> _winsorized_plan.Phase:
        releases, _ = calibrated(sizes.num_users, sizes.num_steps)
        strong = sizes.regularization + objective.strong_convexity
        smooth = smoothness + sizes.regularization
        # Only the bound depends on the distance.
        chosen = gradient_descent.strongly_convex(
            smooth, strong, distance, float(releases.noise_variance), sizes.num_steps
        )
        return _winsorized_plan.Phase(
            method="strongly convex",
            chunk_size=chunk_size,
            releases=releases,
            step_sizes=chosen.step_sizes,
            shares=chosen.shares,
            regularization=sizes.regularization,
        )

    unlucky = found.chance * slope * diameter if found.chance > 0 else 0.0
    return Plan(
        num_users=num_users,
        items_per_user=items_per_user,
        split=split,
        constants=constants,
        parts=tuple(map(phase_of, found.phases)),
        epsilon=epsilon,
        delta=delta,
        initial_distance=distance,
        failure_probability=found.chance,
        excess_bound=found.bound + unlucky,
    )


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
        data: with ``plan.num_users`` users.
        params: the starting point; projected onto the domain.
        trace: see ``loop.run``; ``unprivate["trace"]`` is a tuple, one entry for each phase.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params, trace)
    solver = functools.partial(_winsorized_plan.solve_phase, trace=trace)
    return _sequence.run(key, plan.parts, solver, objective, data, params)
