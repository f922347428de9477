"""Phased ERM: stochastic convex optimization for users by regularized ERMs on disjoint blocks of them.

What it computes: phase t minimizes, on users of its own, the empirical risk plus (λ_t/2)·‖θ - θ_{t-1}‖² by
gradient descent on winsorized means, and starts where the one before has ended; λ_t grows by 4 a phase. For
strongly convex losses the phases may be repeated in rounds, each from nearer to the minimizer.

Source: L Algorithm 4, Corollary 2, Theorem 5 (rates); Feldman, Koren and Talwar 2020 (the scheme);
Shalev-Shwartz, Shamir, Srebro and Sridharan 2009 (stability). With these corrections: blocks of equal size
and half as many phases (as printed, n_t = n/2^t, the last of log₂(Gn√m·ε/(σd)) phases has less than one
user), with the same rate up to logarithms; numbers of steps at least H/λ_t; the regularizer's gradient is
added outside of the mean.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, for any data, loss and radius: each
phase is (ε, δ)-DP, a user takes part in one phase, by position, and later phases post-process. Assumed: the
key stays secret. Utility: ``excess_bound`` on the expected excess risk; see ``assumes``. With a_t a bound on
the root-mean-square distance of what phase t returns from its minimizer, a_0 = R, D the diameter of the
domain (or its largest norm), and s_t = 2G²/((λ_t + μ)n_t·m) for stability, it is

    E F(x_k) - F* <= Σ_t (λ_t·a_{t-1}²/2 + s_t) + (G + ridge·D)·a_k

(docs/theory/phased_erm.md), and phases, λ and steps are those for which it is least. Some 100 to 200
calibrations, for each size of a block and number of steps, take seconds.

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
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Constants, Count, Inside, Positive, one_of
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.mechanisms.winsorized.winsorized_releases import WinsorizedReleases
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, means, methods
from dpsco_jax.solvers._schedules import gradient_descent
from dpsco_jax.solvers._sequence import block_sizes
from dpsco_jax.solvers.first_order import FirstOrder
from dpsco_jax.solvers.phased import Phased, solve
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.user_level import winsorized_erm

__all__ = ["plan", "solve"]

# A turn sorts as many rows as the largest phase of its program has: others would wait for too many.
_MOST_UNLIKE = 3.0
_MOST_PHASES = 6
_MOST_ROUNDS = 3
_RATIO = 4.0
_NEAR = 1.1


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
    form: winsorized_erm.Form = "auto",
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
        radius: τ, on the distance of a user's gradient from the population's, as in ``winsorized_erm.plan``.
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
    smoothness = winsorized_erm.require_smooth(objective) + objective.ridge
    problem = dataclasses.replace(problem, distance=problem.require_distance())

    @functools.cache
    def calibrated(users: int, steps: int) -> tuple[WinsorizedReleases, float]:
        return winsorized_erm.gradient_releases(
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
        sizes = _printed(problem, most_steps, stddev, budget.epsilon, split)
        found = _Schedule(tuple(sizes), math.inf, 1.0)
    else:
        found = _best(problem, most_steps, split, calibrated)

    def phase_of(sizes: _Phase) -> FirstOrder:
        releases, _ = calibrated(sizes.num_users, sizes.num_steps)
        strong = sizes.regularization + objective.strong_convexity
        smooth = smoothness + sizes.regularization
        # Only the bound depends on the distance.
        chosen = gradient_descent.strongly_convex(
            smooth, strong, problem.farthest, float(releases.noise_variance), sizes.num_steps
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

    unlucky = found.chance * problem.slope * problem.diameter if found.chance > 0 else 0.0
    assumed = "losses are convex; users are independent, with i.i.d. items of the same law"
    return Phased(
        title="phased ERM",
        num_users=num_users,
        parts=tuple(map(phase_of, found.phases)),
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=found.bound + unlucky,
        details={"distance": problem.farthest, "failure_probability": found.chance},
        most_unlike=_MOST_UNLIKE,
        remarks=Remarks([("split", split), ("constants", constants)]),
        premises=Remarks([assumed]),
    )


_Calibrated = Callable[[int, int], tuple[WinsorizedReleases, float]]
"""``(num_users, num_steps) -> (releases, chance of clipping)``; ``Infeasible`` with too few users."""
_Noises = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""Variances and chances of clipping over the grid of numbers of steps, for the users of a block."""


class _Phase(NamedTuple):
    """Users, steps, regularization, and the bound on the distance from its minimizer."""

    num_users: int
    num_steps: int
    regularization: float
    reach: float


class _Schedule(NamedTuple):
    """The phases, the bound on the excess risk while no gradient is clipped, and the chance that one is."""

    phases: tuple[_Phase, ...]
    bound: float
    chance: float


def _best(problem: Problem, most_steps: int, split: str, calibrated: _Calibrated) -> _Schedule:
    """The schedule with the least bound."""
    steps = np.unique(np.round(np.geomspace(1, most_steps, 16)))

    @functools.cache
    def noises(num_users: int) -> tuple[np.ndarray, np.ndarray]:
        found = []
        for count in steps:
            try:
                releases, chance = calibrated(num_users, int(count))
                found.append((float(releases.noise_variance), chance))
            except Infeasible:
                found.append((math.inf, 1.0))
        variances, chances = np.array(found).T
        return variances, chances

    rounds = _MOST_ROUNDS if problem.objective.strong_convexity > 0 else 1
    found = [
        schedule
        for count in range(1, rounds + 1)
        for phases in range(1, _MOST_PHASES + 1)
        if problem.num_users >= count * 2**phases
        for schedule in [_rounds(problem, split, count, phases, noises, steps)]
        if math.isfinite(schedule.bound)
    ]
    if not found:
        # The message of the calibration says how many users it needs.
        calibrated(problem.num_users, 1)
        raise ValueError("domain must be bounded if there is a ridge, got infinite diameter")
    return min(found, key=lambda schedule: schedule.bound)


def _rounds(
    problem: Problem, split: str, rounds: int, phases: int, noises: _Noises, steps: np.ndarray
) -> _Schedule:
    """The phases again on further users, each round from as near as the one before has come if μ > 0."""
    sizes = _sizes(problem.num_users // rounds, split, phases)
    all_phases: tuple[_Phase, ...] = ()
    convexity, bound, chance = problem.objective.strong_convexity, math.inf, 0.0
    for _ in range(rounds):
        options = _options(problem, sizes, noises, steps)
        chosen = min(options, key=lambda schedule: schedule.bound)
        all_phases += chosen.phases
        bound, chance = chosen.bound, min(1.0, chance + chosen.chance)
        if convexity > 0:
            nearer = min(problem.farthest, math.sqrt(2 * bound / convexity))
            problem = dataclasses.replace(problem, distance=nearer)
    return _Schedule(all_phases, bound, chance)


def _options(
    problem: Problem, sizes: tuple[int, ...], noises: _Noises, steps: np.ndarray
) -> Iterator[_Schedule]:
    """Blocks of these sizes, with regularizations to choose from."""
    natural = problem.lipschitz / problem.farthest
    lowest = natural / math.sqrt(sum(sizes) * problem.items_per_user) / 8
    for regularization in np.geomspace(lowest, 4 * natural, 40):
        yield _bounded(problem, sizes, regularization, noises, steps)


def _bounded(
    problem: Problem,
    sizes: tuple[int, ...],
    regularization: float,
    noises: _Noises,
    steps: np.ndarray,
) -> _Schedule:
    """The bound of given blocks and regularizations, each phase with its best number of steps."""
    objective, slope = problem.objective, problem.slope
    convexity = objective.strong_convexity
    smoothness = winsorized_erm.require_smooth(objective) + objective.ridge
    phases, total, chance = [], 0.0, 0.0
    reach = problem.farthest
    lambdas = regularization * _RATIO ** np.arange(len(sizes))
    for size, weight in zip(sizes, map(float, lambdas), strict=True):
        strong = weight + convexity
        stability = 2 * problem.lipschitz**2 / (strong * size * problem.items_per_user)
        total += weight * reach**2 / 2 + stability
        start = min(slope / (weight + convexity / 2), problem.diameter)
        variances, chances = noises(size)
        feasible = np.isfinite(variances)
        known = np.where(feasible, variances, 0)
        missing = gradient_descent.best_strongly_convex_bound(
            smoothness + weight, strong, start, known, steps
        )
        missing = np.where(feasible, missing, math.inf)
        # Flat where the noise rules: the fewest steps that come near the best.
        index = int(np.argmax(missing <= _NEAR * np.min(missing)))
        reach = math.sqrt(2 * missing[index] / strong)
        chance += chances[index]
        phases.append(_Phase(size, int(steps[index]), weight, reach))
    return _Schedule(tuple(phases), total + slope * reach, min(1.0, chance))


def _sizes(num_users: int, split: str, phases: int) -> tuple[int, ...]:
    """Equal blocks, or blocks that halve."""
    return block_sizes(num_users, 1.0 if split == "equal" else 0.5, phases)


def _printed(
    problem: Problem, most_steps: int, stddev: float, epsilon: float, split: str
) -> list[_Phase]:
    """The printed λ and numbers of steps, on blocks that have users; gradients are σ²-sub-Gaussian."""
    users, items, dim = problem.num_users, problem.items_per_user, problem.dim
    lipschitz, distance = problem.lipschitz, problem.farthest
    smoothness = winsorized_erm.require_smooth(problem.objective) + problem.objective.ridge
    private = stddev * dim / (users * math.sqrt(items) * epsilon)
    spread = min(lipschitz, stddev * math.sqrt(dim))
    sampling = lipschitz * spread / (users * items)
    weight = math.sqrt(sampling + private**2) / distance
    log_count = math.log2(max(lipschitz / private, 2.0))
    if split == "equal":
        count = max(1, math.ceil(0.5 * log_count))
    else:
        # As many as leave one user.
        count = max(1, min(math.ceil(log_count), int(math.log2(users))))
    phases = []
    for t, size in enumerate(_sizes(users, split, count), start=1):
        strong = 4.0**t * weight
        precision = lipschitz * distance * strong / (private * users / size) ** 2
        ratio = (smoothness + strong) / strong
        steps = math.ceil(ratio * max(1.0, math.log(max(precision, 1.0))))
        phases.append(_Phase(size, min(steps, most_steps), strong, math.inf))
    return phases
