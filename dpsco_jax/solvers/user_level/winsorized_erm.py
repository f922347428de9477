"""Empirical risk minimization for users by gradient descent on winsorized means.

What it computes: T steps of projected gradient descent on all users' data. Each step releases the winsorized
mean of the user gradients, whose noise is of the size at which users differ, radius/n, and not of the
gradients themselves, G/n. Step sizes and averages for convex, strongly convex and nonconvex losses.

Source: L Algorithms 3 and 7, Theorem 4, Proposition 3. With these corrections: all intervals of all steps are
composed once, by Rényi curves (the paper nests advanced composition, which needs 5 to 70 times the users);
windows and radii that hold what they should; Δ of the nonconvex case is F(start) - inf F.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, at every point of the run, for any
data, loss, radius and step size: gradients are clipped to G, the Lipschitz constant. Assumed: the key stays
secret. Utility: ``excess_bound`` on the expected excess *empirical* risk; see ``assumes``.

Cost: T·n user gradients and T sorts of n·dim numbers; memory of a few times n gradients.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import winsorized_erm
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = winsorized_erm.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=2, form="clipped")
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: winsorized_erm.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import math
from collections.abc import Callable
from typing import Annotated, TypeVar

import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Constants, Count, Inside, Positive, one_of
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import FORMS, calibrate_winsorized
from dpsco_jax.mechanisms.winsorized.winsorized_releases import WinsorizedReleases
from dpsco_jax.privacy import accountants
from dpsco_jax.problems import concentration
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, means, methods
from dpsco_jax.solvers._schedules import gradient_descent
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.plans import Remarks

__all__ = ["plan", "solve"]

Form = Annotated[str, one_of("auto", *FORMS)]
_Found = TypeVar("_Found")
_MOST_STEPS = 2000
_NEAR = 1.05


@_plan_base.remembers(least_users=1)
@_planning.says_enough_users
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    method: Annotated[str, one_of(*gradient_descent.METHODS)] | None = None,
    num_steps: Count | None = None,
    radius: Positive | None = None,
    failure: Inside = 1e-5,
    form: Form = "auto",
    constants: Constants = "tight",
    chunk_size: Count = 64,
) -> FirstOrder:
    """Checks all arguments, sets the schedule and calibrates the noise. All of them are public.

    Args:
        problem: for the constants, domain and ridge of the objective, which must be smooth, n, the number of
            parameters, m (for users with fewer or more items the number that is typical), and R, the
            distance from the start to a minimizer, which must be finite.
        budget: (ε, δ) of the run, δ > 0.
        method: ``"convex"``, ``"strongly_convex"`` or ``"nonconvex"``; by the objective's strong convexity
            if left out.
        num_steps: T; by the bound, at most 2000, if left out.
        radius: τ, on the distance of a user's gradient from the population's; from i.i.d. items, by
            ``concentration.trajectory_gradient_radius``, if left out. Any number is private that does not
            come from the data: 1.2·(standard deviation of an item's gradient)/√m serves in practice.
        failure: γ of the radius, and of the releases.
        form: of the releases, ``"auto"`` for the one with the least noise; see ``winsorized_mean``.
        constants: ``"tight"``, or ``"paper"`` for the printed noise.
        chunk_size: users whose items are read at once.

    Raises:
        ValueError: an argument is out of range, the loss is not smooth, or R is not finite.
        Infeasible: too few users; ``needed["num_users"]`` would do.
    """
    objective = problem.objective
    smoothness = require_smooth(objective) + objective.ridge
    strong = objective.strong_convexity
    method = ("strongly_convex" if strong > 0 else "convex") if method is None else method
    if method == "strongly_convex":
        strong = _checks.require_real("strong_convexity", strong, 0, smoothness * (1 + 1e-9))
    distance, slope = problem.require_distance(), problem.slope

    def with_steps(steps: int) -> FirstOrder:
        releases, chance = gradient_releases(
            problem,
            budget,
            steps,
            radius=radius,
            failure=failure,
            form=form,
            constants=constants,
        )
        variance = float(releases.noise_variance)
        match method:
            case "convex":
                chosen = gradient_descent.convex(smoothness, distance, variance, steps)
            case "strongly_convex":
                chosen = gradient_descent.strongly_convex(
                    smoothness, strong, distance, variance, steps
                )
            case _:
                # The gradient vanishes at a minimizer, but not at one on the boundary of a domain.
                constrained = math.isfinite(problem.diameter)
                gap = slope * distance if constrained else smoothness * distance**2 / 2
                chosen = gradient_descent.nonconvex(smoothness, gap, variance, steps, constrained)
        # Where a gradient is clipped the risk is at most what the domain allows.
        unlucky = chance * slope * problem.diameter if chance > 0 else 0.0
        stationary = method == "nonconvex"
        excess = math.inf if stationary else chosen.bound + unlucky
        users = "users are independent, with i.i.d. items of the same law"
        reported = "random" if stationary else "average"
        return FirstOrder(
            title="winsorized ERM",
            dim=problem.dim,
            mean=means.Winsorized(chunk_size, releases),
            method=methods.ScheduledSgd(chosen.step_sizes, chosen.shares, reported),
            pull=0.0,
            epsilon=budget.epsilon,
            delta=budget.delta,
            excess_bound=excess,
            details={
                "distance": distance,
                "failure_probability": chance,
                "distance_bound": math.sqrt(2 * excess / strong) if strong > 0 else math.inf,
                "stationarity_bound": chosen.bound if stationary else math.inf,
            },
            remarks=Remarks([("steps", method)]),
            premises=Remarks([] if releases.form == "clipped" else [users]),
        )

    if num_steps is not None:
        return with_steps(num_steps)
    found = _feasible(with_steps, _MOST_STEPS)
    bounds = [min(p.excess_bound, p.stationarity_bound) for p in found]
    # The bound is flat where the noise rules: the fewest steps that come near the best.
    return next(p for p, b in zip(found, bounds, strict=True) if b <= _NEAR * min(bounds))


def gradient_releases(
    problem: Problem,
    budget: privacy.Budget,
    num_steps: int,
    *,
    radius: float | None,
    failure: float,
    form: str,
    constants: str,
) -> tuple[WinsorizedReleases, float]:
    """The releases of T gradient steps, and bound on the probability that a gradient is clipped in them.

    With a radius of the caller's, of which nothing is known, that bound is 1, unless the form needs none. The
    radius left out is one in which the gradients of users with i.i.d. items stay along a trajectory that is
    computed from them (``concentration.trajectory_gradient_radius``), and bears on utility only. How private
    that trajectory is: the noise is at least ``noise_multiplier``·2·radius/n, and the multiplier at least
    that of T plain Gaussian releases with the whole budget, which bounds μ = 2·radius·√T/(n·noise).
    """
    given = radius is not None
    if radius is None:
        # Of T means with all of the budget: what the point tells of one user, however small the radius.
        gdp = 1 / accountants.gaussian_noise_multiplier(budget.epsilon, budget.delta)
        radius = concentration.trajectory_gradient_radius(
            problem.lipschitz, problem.items_per_user, problem.num_users, num_steps, gdp, failure
        )
    releases = calibrate_winsorized(
        problem.num_users,
        problem.dim,
        num_steps,
        budget.epsilon,
        budget.delta,
        radius=radius,
        bound=problem.lipschitz,
        failure=failure,
        form=form,
        constants=constants,
    )
    if releases.form == "clipped":
        return releases, 0.0
    return releases, 1.0 if given else min(1.0, failure + releases.failure_probability())


def require_smooth(objective: Objective) -> float:
    """The smoothness of the loss; ``ValueError`` if it has none."""
    if objective.smoothness is None:
        raise ValueError("smoothness must be a number, got None: smooth the objective first")
    return _checks.require_real("smoothness", objective.smoothness, 0, closed=True)


def _feasible(with_steps: Callable[[int], _Found], most: int) -> list[_Found]:
    """Plans for 1 to ``most`` steps, each number about a third larger, up to the first without a plan."""
    count = math.ceil(math.log(most) / math.log(4 / 3)) + 1
    found = [with_steps(1)]
    for steps in sorted({round(s) for s in np.geomspace(1, most, count)} - {1}):
        try:
            found.append(with_steps(steps))
        except Infeasible:  # too few users for so many steps
            break
    return found
