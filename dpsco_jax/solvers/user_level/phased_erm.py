"""Phased ERM: stochastic convex optimization for users by regularized ERMs on disjoint blocks of them.

What it computes: phase t minimizes, on users of its own, the empirical risk plus (λ_t/2)·‖θ - θ_{t-1}‖² by
gradient descent on winsorized means, and starts where the one before has ended; λ_t grows by 4 a phase. For
strongly convex losses the phases may be repeated in rounds, each from nearer to the minimizer.

Source: L Algorithm 4, Corollary 2, Theorem 5. With these corrections: blocks of equal size and half as many
phases (as printed the last blocks have less than one user), numbers of steps at least H/λ_t; the
regularizer's gradient is added outside of the mean. ``_schedules.phased_erm`` derives the bound with its
constants, by which ``constants="tight"`` chooses phases, λ and steps.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, for any data, loss and radius: each
phase is (ε, δ)-DP, a user takes part in one phase, by position, and later phases post-process. Assumed: the
key stays secret. Utility: ``excess_bound`` on the expected excess risk; see ``assumes``.

Cost: Σ T_t·n_t user gradients; memory of the gradients of one block. Without a trace, phases of
similar size whose releases have one form are turns of one compiled loop.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import phased_erm
    >>> made = synthetic.mean_estimation(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = phased_erm.plan(made.problem(distance=2.0), Budget(1.0, 1e-5), most_steps=3, form="clipped")
    >>> run = jax.jit(lambda key: phased_erm.solve(key, plan, made.objective, made.data, jax.numpy.zeros(3)))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import functools
import math
from typing import Annotated

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Constants, Count, Inside, Positive, one_of
from dpsco_jax.mechanisms.winsorized.winsorized_releases import WinsorizedReleases
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import (
    _plan_base,
    _planning,
    means,
    methods,
)
from dpsco_jax.solvers._schedules import gradient_descent
from dpsco_jax.solvers._schedules import phased_erm as schedule
from dpsco_jax.solvers.first_order import FirstOrder
from dpsco_jax.solvers.phased import Phased, solve
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.user_level import _winsorized_plan

__all__ = ["plan", "solve"]

# A turn sorts as many rows as the largest phase of its program has: others would wait for too many.
_MOST_UNLIKE = 3.0


@_plan_base.remembers(least_users=2)
@_planning.says_enough_users
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    radius: Positive | None = None,
    gradient_stddev: Positive | None = None,
    failure: Inside = 1e-5,
    split: Annotated[str, one_of("equal", "geometric")] = "equal",
    form: _winsorized_plan.Form = "auto",
    constants: Constants = "tight",
    most_steps: Count = 500,
    chunk_size: Count = 64,
) -> Phased:
    """Checks all arguments, sets the schedule and calibrates the noise. All of them are public.

    Args:
        problem: for the constants, domain and ridge of the objective, which must be smooth and convex, n ≥ 2,
            the number of parameters, m (for users with fewer or more items the number that is typical), and
            R, the distance from the start to a minimizer, which must be finite.
        budget: (ε, δ) of each phase and so of all, δ > 0.
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
    objective, num_users = problem.objective, problem.num_users
    smoothness = _winsorized_plan.require_smooth(objective) + objective.ridge
    distance, slope = problem.require_distance(), problem.slope
    setting = schedule.Setting(
        items_per_user=problem.items_per_user,
        lipschitz=problem.lipschitz,
        smoothness=smoothness,
        strong_convexity=objective.strong_convexity,
        slope=slope,
        diameter=problem.diameter,
        distance=distance,
        most_steps=most_steps,
    )

    @functools.cache
    def calibrated(users: int, steps: int) -> tuple[WinsorizedReleases, float]:
        return _winsorized_plan.gradient_releases(
            dataclasses.replace(problem, num_users=users),
            budget,
            steps,
            radius=radius,
            failure=failure,
            form=form,
            constants=constants,
        )

    if constants == "paper":
        if gradient_stddev is None:
            gradient_stddev = problem.lipschitz / math.sqrt(problem.dim)
        stddev = _checks.require_real("gradient_stddev", gradient_stddev, 0)
        sizes = schedule.printed(setting, num_users, problem.dim, stddev, budget.epsilon, split)
        found = schedule.Candidate(tuple(sizes), math.inf, 1.0)
    else:
        found = schedule.best(setting, num_users, split, calibrated)

    def phase_of(sizes: schedule.PhaseSizes) -> FirstOrder:
        releases, _ = calibrated(sizes.num_users, sizes.num_steps)
        strong = sizes.regularization + objective.strong_convexity
        smooth = smoothness + sizes.regularization
        # Only the bound depends on the distance.
        chosen = gradient_descent.strongly_convex(
            smooth, strong, distance, float(releases.noise_variance), sizes.num_steps
        )
        return FirstOrder(
            title="phase",
            dim=problem.dim,
            mean=means.Winsorized(chunk_size, releases),
            method=methods.ScheduledSgd(chosen.step_sizes, chosen.shares),
            pull=sizes.regularization,
            epsilon=budget.epsilon,
            delta=budget.delta,
            excess_bound=math.inf,
        )

    unlucky = found.chance * slope * problem.diameter if found.chance > 0 else 0.0
    assumed = "losses are convex; users are independent, with i.i.d. items of the same law"
    return Phased(
        title="phased ERM",
        num_users=num_users,
        parts=tuple(map(phase_of, found.phases)),
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=found.bound + unlucky,
        details={"distance": distance, "failure_probability": found.chance},
        most_unlike=_MOST_UNLIKE,
        remarks=Remarks([("split", split), ("constants", constants)]),
        premises=Remarks([assumed]),
    )
