"""Multi-pass SGD on outlier-removed means: noise at the scale at which users differ, not of their gradients.

What it computes: T steps of projected gradient descent. In each, all users' gradients (a user's loss is the
mean over the user's items) are compared in pairs; if most are within ``radius`` of each other, by a noisy
test, their outlier-removed mean is released with Gaussian noise of order radius/n; else the run halts. The
average of the iterates is returned, or the start (or the average so far) if the run has halted.

Source: U, Algorithm 2 and Theorem 4.1 (T, Algorithm 29, Theorem 9.4.1). With these corrections: one running
test for all steps, not a new one in each; noise and threshold from the accountant of
``privacy.concentrated``; the score looks at pairwise distances, at twice the ``radius`` around the mean;
step 1/(β + 1/η); at the halt the start is returned; radii with constants, without a dependence on the
dimension. Bound: U, Lemmas 4.7-4.9; Bubeck 2015, Theorem 6.3; stability on non-smooth losses by Bassily,
Feldman, Guzmán and Talwar 2020.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, at every point of the run, for any
data, loss, radius and step size. Assumed: the key stays secret.
If radius ≥ G the test would test nothing (all gradients are clipped to G). The plan, which sees public
numbers only, then takes the mean of clipped gradients with noise of order 2G/n, and says so.
Utility, for convex G-Lipschitz losses and users whose items are i.i.d.: with u a fixed point within R of the
start (the population's minimizer), N = nm items, V = d·σ², step γ, average over x_1, ..., x_T and no user
ever filtered or run halted,

    E L(average) - L(u) ≤ R²/(2γT) + noise + stability.

- β-smooth losses, γ = 1/(β + 1/η): noise ηV/2, stability G²γ(T+1)/N (steps are nonexpansive, one item
  moves each by 2Gγ/N at most).
- any convex losses, γ = η: noise η(G² + V)/2 + ηG(G + √V) (the second since gradients are taken at x_0,
  ..., x_{T-1}), stability G²γ·s with s = (4/3)√T(1 + 1/T)^1.5 + 2(T+1)/N.
- smoothed within r: as for β-smooth with β = c_d·G/r, V + G²/N (shifts of items) or V + G² (of rounds),
  the second stability, and G·r·d/(d+1). Since √T dominates there, smoothing earns nothing: it is done for
  ``constants="paper"`` only, or when asked for.

An event of probability p that somebody is filtered or the run halts adds at most p times G·(the reach of
the iterates), where the reach is the domain's diameter, or R + γTG + γT·√(V/p) without one.

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
from typing import Annotated, Any, NamedTuple

from dpsco_jax import privacy
from dpsco_jax._argument_kinds import Constants, Count, Inside, Positive, one_of
from dpsco_jax.geometry import smoothing as ball
from dpsco_jax.privacy.concentrated import threshold_phase
from dpsco_jax.privacy.releases import GaussianReleases, fixed_size
from dpsco_jax.problems import concentration
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, means, methods
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.plans import Remarks

__all__ = ["plan", "solve"]

Smoothing = Annotated[str, one_of("none", "per_item", "per_round")]
_MOST_STEPS = 10_000


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
        selection: ``"weighted"``, or ``"bernoulli"`` for the paper's random subset, with more noise.
        failure: probability that honest users are filtered or halt the run; 1/(nm) if left out.
        on_halt: what a halted run returns: the ``"start"``, or the ``"average"`` of the iterates so far.
        chunk_size: users whose items are read at once.

    Raises:
        ValueError: an argument is out of range, or R is not finite.
        Infeasible: too few users; ``needed["num_users"]`` would do.
    """
    num_users, items_per_user = problem.num_users, problem.items_per_user
    lipschitz, distance = problem.lipschitz, problem.require_distance()
    failure = min(0.05, 1 / (num_users * items_per_user)) if failure is None else failure
    if smoothing is None:
        rough = problem.objective.smoothness is None
        smoothing = "per_item" if constants == "paper" and rough else "none"
    printed = None
    if constants == "paper":
        printed = _printed(problem, budget, num_steps)
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
        sizes = num_users, num_users, num_steps
        plain = fixed_size(*sizes).noise_multiplier(budget.epsilon, budget.delta, "pld")
        clipped = GaussianReleases(*sizes, "fixed", plain, budget.delta)
        if pairwise(num_steps, 0.0) >= 2 * lipschitz:
            return clipped, pairwise(num_steps, 0.0), 0.0, plain
        releases = threshold_phase.calibrate_concentrated(
            num_users,
            num_steps,
            budget.epsilon,
            budget.delta if printed is None else printed.delta,
            test="stream",
            selection=selection,
            false_halt_probability=failure / 2,
            constants=constants,
        )
        gdp = math.sqrt(num_steps) / (num_users * float(releases.noise_stddev))
        score_radius = pairwise(num_steps, gdp)
        return releases if score_radius < 2 * lipschitz else clipped, score_radius, gdp, plain

    def stddev(found: tuple[Any, float, float, float]) -> float:
        releases, score_radius, _, plain = found
        if isinstance(releases, GaussianReleases):
            return plain * 2 * lipschitz / num_users
        span = means.tested_reach(lipschitz, score_radius)
        return float(means.tested_stddev(releases, score_radius, span, problem.dim))

    if num_steps is None:
        trial = _enough_steps(problem, smoothing, 0.0)
        floor = stddev(noise(trial)) * distance * math.sqrt(problem.dim / trial)
        num_steps = _enough_steps(problem, smoothing, floor)
    found = releases, score_radius, gdp, plain = noise(num_steps)
    clipped = isinstance(releases, GaussianReleases)
    if smoothing == "none":
        smoothing_radius = 0.0
    elif smoothing_radius is None:
        balanced = _balanced_radius(problem, num_steps)
        smoothing_radius = balanced if printed is None else printed.smoothing_radius
    sizes = num_steps, stddev(found)
    if step_size is not None:
        step = _Step(step_size, math.inf, math.inf)
    else:
        eta = None if printed is None else printed.eta
        step = _step(problem, smoothing, *sizes, smoothing_radius, eta)
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
            reach=means.tested_reach(lipschitz, score_radius),
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
        excess_bound=_after_failure(problem, *sizes, step, counted),
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


class _Step(NamedTuple):
    """A step size, and its bounds on the excess and on the part by which it exceeds the empirical one."""

    step_size: float
    excess_bound: float
    stability_bound: float


def _step(
    problem: Problem,
    smoothing: str,
    num_steps: int,
    stddev: float,
    smoothing_radius: float,
    printed_eta: float | None = None,
) -> _Step:
    """γ of the η that balances the bound of the head, or of the printed one, if nobody is filtered."""
    objective, slope = problem.objective, problem.lipschitz
    items, distance = problem.num_users * problem.items_per_user, problem.require_distance()
    variance = problem.dim * stddev**2
    stable = (num_steps + 1) / items
    curvature = _smoothness(problem, smoothing)
    bias = 0.0
    # Not with a ridge on losses that are not smooth.
    provable = not objective.ridge or curvature is not None
    if curvature is None:
        stable = 4 / 3 * math.sqrt(num_steps) * (1 + 1 / num_steps) ** 1.5 + 2 * stable
    if smoothing != "none":
        curvature = ball.ball_smoothness(slope, smoothing_radius, problem.dim)
        variance += slope**2 / (items if smoothing == "per_item" else 1)
        bias = ball.ball_bias(slope, smoothing_radius, problem.dim)
    noise = variance / 2
    if curvature is None:
        noise += slope**2 / 2 + slope * (slope + math.sqrt(variance))
    cost = noise + slope**2 * stable
    eta = printed_eta or distance / math.sqrt(2 * num_steps * cost)
    gamma = eta if curvature is None else 1 / (curvature + 1 / eta)
    stability = slope**2 * gamma * stable
    excess = distance**2 / (2 * gamma * num_steps) + eta * noise + stability + bias
    return _Step(gamma, excess if provable else math.inf, stability)


def _smoothness(problem: Problem, smoothing: str) -> float | None:
    """β with the ridge; ``None`` for losses that are not smooth, or are smoothed."""
    objective = problem.objective
    if objective.smoothness is None or smoothing != "none":
        return None
    return objective.smoothness + objective.ridge


def _after_failure(
    problem: Problem, num_steps: int, stddev: float, step: _Step, failure: float
) -> float:
    """The bound on the excess risk with the event counted in that somebody is filtered."""
    if failure == 0.0:
        return step.excess_bound
    reach = problem.diameter
    if not math.isfinite(reach):
        path = step.step_size * num_steps
        noise = stddev * math.sqrt(problem.dim / failure)
        reach = problem.require_distance() + path * (problem.lipschitz + noise)
    return step.excess_bound + min(failure, 1.0) * problem.lipschitz * reach


def _balanced_radius(problem: Problem, num_steps: int) -> float:
    """The smoothing radius that balances bias and curvature: R√(c_d(d+1)/(2Td))."""
    factor = ball.smoothness_factor(problem.dim) * (problem.dim + 1) / problem.dim
    return problem.require_distance() * math.sqrt(factor / (2 * num_steps))


def _enough_steps(problem: Problem, smoothing: str, floor: float) -> int:
    """The T from which terms that fall with T are below the others; of these ``floor`` is privacy's part."""
    slope, distance = problem.lipschitz, problem.require_distance()
    floor += slope * distance / math.sqrt(problem.num_users * problem.items_per_user)
    curvature = _smoothness(problem, smoothing)
    if curvature is not None:
        wanted = curvature * distance**2 / floor
    else:
        wanted = (2 * slope * distance / floor) ** 4
    return max(1, math.ceil(min(wanted, _MOST_STEPS)))


class _Printed(NamedTuple):
    """The paper's T, δ of the releases, score radius (twice the printed one: it compares pairs), η and r."""

    num_steps: int
    delta: float
    radius: float
    eta: float
    smoothing_radius: float


def _printed(problem: Problem, budget: privacy.Budget, num_steps: int | None) -> _Printed:
    """The numbers of U, Theorem 4.1, with constant 1 where the paper has O(·); T = m²n² + mn√d by default."""
    n, m, d = problem.num_users, problem.items_per_user, problem.dim
    distance, epsilon, delta = problem.require_distance(), budget.epsilon, budget.delta
    if num_steps is None:
        num_steps = (m * n) ** 2 + math.ceil(m * n * math.sqrt(d))
    level = math.log(n * d * m) + math.log(num_steps / delta) + epsilon
    eta = min(
        math.sqrt(m) * n * epsilon / (num_steps * math.sqrt(d) * math.log(m * n * d / delta)),
        num_steps**-0.75,
        math.sqrt(n * m) / num_steps,
    )
    return _Printed(
        num_steps=num_steps,
        delta=delta / (2.0 * num_steps * m * n * d),
        radius=2.0 * problem.lipschitz * level / math.sqrt(m),
        eta=eta * distance / problem.lipschitz,
        smoothing_radius=d**0.25 * distance / math.sqrt(num_steps),
    )
