"""Multi-pass SGD on outlier-removed means: noise at the scale at which users differ, not of their gradients.

What it computes: T steps of projected gradient descent. In each, all users' gradients (a user's loss is the
mean over the user's items) are compared in pairs; if most are within ``radius`` of each other, by a noisy
test, their outlier-removed mean is released with Gaussian noise of order radius/n; else the run halts. The
average of the iterates is returned, or the start (or the average so far) if the run has halted.

Source: U, Algorithm 2 and Theorem 4.1 (T, Algorithm 29, Theorem 9.4.1). With these corrections: one running
test for all steps, not a new one in each; noise and threshold from the accountant of
``privacy.concentrated``; the score looks at pairwise distances, at twice the ``radius`` around the mean;
step 1/(β + 1/η); at the halt the start is returned; radii with constants, without a dependence on the
dimension. Smoothing, which the paper uses for losses that are not smooth, changes nothing in what is proven
(see ``_schedules.multipass``): it is done for ``constants="paper"``, or when asked for.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, at every point of the run, for any
data, loss, radius and step size. Assumed: the key stays secret. Utility, for convex G-Lipschitz losses and
users whose items are i.i.d.: ``excess_bound``, derived in ``_schedules.multipass``.
If radius ≥ G the test would test nothing (all gradients are clipped to G). The plan, which sees public
numbers only, then takes the mean of clipped gradients with noise of order 2G/n, and says so.

Cost: T·n user gradients and T·n²/2·dim multiplications for the distances; memory of n gradients.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import multipass_sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = multipass_sgd.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=5)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: multipass_sgd.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import functools
import math
from typing import Annotated, Any

import jax
import numpy as np

from dpsco_jax import privacy
from dpsco_jax._argument_kinds import Constants, Count, Inside, InsideOrAuto, Positive, one_of
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.privacy.concentrated import threshold_phase
from dpsco_jax.privacy.releases import GaussianReleases, fixed_size
from dpsco_jax.problems import concentration
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, means, methods
from dpsco_jax.solvers._schedules import multipass as schedule
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.plans import Remarks

__all__ = ["plan", "solve"]

SMOOTHING = ("none", "per_item", "per_round")
Smoothing = Annotated[str, one_of(*SMOOTHING)]


@_plan_base.remembers(least_users=2)
@_planning.says_enough_users
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: Count | None = None,
    radius: Positive | None = None,
    step_size: Positive | None = None,
    constants: Constants = "tight",
    smoothing: Smoothing | None = None,
    smoothing_radius: Positive | None = None,
    test_share: InsideOrAuto = "auto",
    selection: means.Selection = "weighted",
    failure: Inside | None = None,
    on_halt: Annotated[str, one_of("start", "average")] = "start",
    chunk_size: Count = 64,
) -> FirstOrder:
    """Checks all arguments, sets the schedule and calibrates test and noise. All of them are public.

    Args:
        problem: for the constants, domain and ridge of the objective, n ≥ 2, the number of parameters, m
            (for users with fewer or more items the number that is typical), and R, the distance from the
            start to a minimizer, which must be finite.
        budget: (ε, δ) of the run, δ > 0.
        num_steps: T; by the bound, at most 10,000, if left out (``"paper"``: m²n² + mn√dim).
        radius: on the distance of users' gradients from their mean; any number that does not come from the
            data. If left out, one within which i.i.d. users stay with probability 1 - failure/2. Too small a
            radius halts the run, too large a one means noise: 2.6·(standard deviation of an item's
            gradient)/√m is what users need in practice.
        step_size: γ, in place of the one that balances the bound; nothing is proven then.
        constants: ``"tight"``, or ``"paper"`` for the printed T, radius (read as a pairwise distance),
            η, smoothing radius and inner δ. Noise and threshold are the accountant's in both.
        smoothing: ``"none"``, ``"per_item"`` or ``"per_round"`` (one shift for all users and items).
        smoothing_radius: r > 0, if smoothing.
        test_share: of ε for the test, in (0, 1), or ``"auto"``.
        selection: ``"weighted"``, or ``"bernoulli"`` for the paper's random subset, with more noise.
        failure: probability that honest users are filtered or halt the run; 1/(nm) if left out.
        on_halt: what a halted run returns: the ``"start"``, or the ``"average"`` of the iterates so far.
        chunk_size: users whose items are read at once.

    Raises:
        ValueError: an argument is out of range, or R is not finite.
        Infeasible: too few users; ``needed["num_users"]`` would do.
    """
    objective, num_users = problem.objective, problem.num_users
    items_per_user, lipschitz = problem.items_per_user, problem.lipschitz
    failure = min(0.05, 1 / (num_users * items_per_user)) if failure is None else failure
    distance = problem.require_distance()
    paper, smooth = constants == "paper", objective.smoothness is not None
    if smoothing is None:
        smoothing = "per_item" if paper and not smooth else "none"
    setting = schedule.Setting(
        num_users=num_users,
        items_per_user=items_per_user,
        dim=problem.dim,
        lipschitz=lipschitz,
        smoothness=objective.smoothness + objective.ridge
        if objective.smoothness is not None
        else None,
        distance=distance,
        diameter=problem.diameter,
        smoothed=smoothing,
        provable=not objective.ridge or (smooth and smoothing == "none"),
    )
    printed = None
    if paper:
        printed = schedule.printed(setting, budget.epsilon, budget.delta, num_steps)
        num_steps = printed.num_steps

    def pairwise(num_steps: int, gdp: float) -> float:
        if radius is not None:
            return 2 * radius
        if printed is not None:
            return printed.radius
        return 2 * concentration.trajectory_gradient_radius(
            lipschitz, items_per_user, num_users, num_steps, gdp, failure / 2
        )

    def noise(num_steps: int) -> tuple[Any, float, float, float]:
        """Releases, radius, the trajectory's privacy, and the multiplier of clipped means."""
        everybody = fixed_size(num_users, num_users, num_steps)
        plain = everybody.noise_multiplier(budget.epsilon, budget.delta, "pld")
        clipped = GaussianReleases(
            population_size=num_users,
            batch_size=num_users,
            num_steps=num_steps,
            sampling="fixed",
            noise_multiplier=plain,
            delta=budget.delta,
        )
        if pairwise(num_steps, 0.0) >= 2 * lipschitz:
            return clipped, pairwise(num_steps, 0.0), 0.0, plain
        releases = threshold_phase.calibrate_concentrated(
            num_users,
            num_steps,
            budget.epsilon,
            budget.delta if printed is None else printed.delta,
            test="stream",
            selection=selection,
            test_share=test_share,
            false_halt_probability=failure / 2,
            constants=constants,
        )
        gdp = math.sqrt(num_steps) / (num_users * float(releases.noise_stddev))
        score_radius = pairwise(num_steps, gdp)
        return releases if score_radius < 2 * lipschitz else clipped, score_radius, gdp, plain

    def reach(score_radius: float) -> float:
        """The least power of 2 that holds all honest gradients: a static number shared by many radii."""
        least = max(concentrated_mean.REACH, 1.01 * lipschitz / score_radius)
        return 2.0 ** math.ceil(math.log2(least))

    def stddev(found: tuple[Any, float, float, float]) -> float:
        releases, score_radius, _, plain = found
        if isinstance(releases, GaussianReleases):
            return plain * 2 * lipschitz / num_users
        head = 1 + concentrated_mean.headroom(
            jax.ShapeDtypeStruct((problem.dim,), np.float32), reach(score_radius)
        )
        return float(releases.noise_stddev) * score_radius * head

    if num_steps is None:
        trial = schedule.enough_steps(setting, 0.0)
        floor = stddev(noise(trial)) * distance * math.sqrt(problem.dim / trial)
        num_steps = schedule.enough_steps(setting, floor)
    found = releases, score_radius, gdp, plain = noise(num_steps)
    clipped = isinstance(releases, GaussianReleases)
    if smoothing == "none":
        smoothing_radius = 0.0
    elif smoothing_radius is None:
        balanced = schedule.balanced_radius(setting, num_steps)
        smoothing_radius = balanced if printed is None else printed.smoothing_radius
    step = schedule.steps(
        setting,
        num_steps,
        stddev(found),
        smoothing_radius,
        None if printed is None else printed.eta,
        step_size,
    )
    false_halt = unconcentrated = 0.0
    if not clipped:
        false_halt = releases.false_halt()
        unconcentrated = concentration.trajectory_gradient_failure(
            score_radius / 2, lipschitz, items_per_user, num_users, num_steps, gdp
        )
    # Users nearer to each other than i.i.d. items make them are an assumption, a premise of the plan.
    counted = false_halt + (unconcentrated if unconcentrated <= failure else 0.0)
    by_round = smoothing == "per_round"
    shift = smoothing_radius if smoothing != "none" else None
    mean: means.Clipped | means.OutlierRemoved
    if clipped:
        where = "round" if by_round else "user"
        mean = means.Clipped(chunk_size, where, releases, lipschitz, shift)
    else:
        mean = means.OutlierRemoved(
            chunk_size=chunk_size,
            reach=reach(score_radius),
            shift="round" if by_round else "item",
            releases=releases,
            score_radius=score_radius,
            clip_norm=lipschitz,
            smoothing_radius=shift,
        )
    premises = [
        f"losses are convex and {lipschitz:.4g}-Lipschitz within {smoothing_radius:.3g} of the domain",
        f"users are independent, each with {items_per_user} i.i.d. items",
    ]
    if not clipped and unconcentrated > false_halt:
        premises.append(
            f"in every step all user gradients are within {score_radius / 2:.4g} of their mean"
        )
    spread, clipping = float(mean.noise_stddev(problem.dim)), plain * 2 * lipschitz / num_users
    break_even = math.inf if clipped else clipping / spread * score_radius / 2
    remarks: list[tuple[str, Any]] = [("constants", constants), ("smoothing", smoothing)]
    if clipped:
        why = f"the radius {score_radius / 2:.4g} is at least G: it tests nothing"
        remarks.append(("clipped because", why))
    else:
        better = "less" if spread < clipping else "more"
        said = f"{spread:.4g} per coordinate, {better} than {clipping:.4g} of clipping"
        needed = functools.partial(_users_needed, releases, budget.epsilon, false_halt, constants)
        remarks += [("noise", said), ("users needed", needed)]
    return FirstOrder(
        title="multi-pass SGD on outlier-removed means",
        dim=problem.dim,
        mean=mean,
        method=methods.ProjectedSgd(step.step_size),
        pull=None,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=schedule.after_failure(setting, num_steps, stddev(found), step, counted),
        details={
            "break_even_radius": break_even,
            "failure": false_halt,
            "concentration_failure": unconcentrated,
            "stability_bound": step.stability_bound,
        },
        on_halt="start" if on_halt == "start" else "report",
        remarks=Remarks(remarks),
        premises=Remarks(premises),
        promised_relation=_planning.REPLACE_ONE,
    )


def _users_needed(releases: Any, epsilon: float, failure: float, constants: str) -> int:
    """The smallest number of users for which this test is possible."""
    return threshold_phase.fewest_users(
        lambda users: threshold_phase.calibrate_concentrated(
            users,
            releases.num_steps,
            epsilon,
            releases.delta,
            test=releases.test,
            selection=releases.selection,
            false_halt_probability=failure,
            constants=constants,
        )
    )
