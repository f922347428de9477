"""Accelerated user-level SGD: one regularized empirical risk, with noise of the size of users' differences.

What it computes: minimizes F̂(w) + (λ/2)‖w - w₀‖², F̂ the mean over users of their mean losses. Each step
takes the gradients of K users drawn without replacement (or of all), tests whether they are close to each
other, and releases the mean of those that are, with noise in proportion to the distance at which users
count as close; AC-SA, restarted after every stage, does the rest.

Source: F, Algorithm 2 and section 3 (radius of Lemma 3.5 with the constants of ``problems.concentration``);
T, Algorithm 32 and Remark 10.8.5; McMahan et al. 2018 (clipping); with these corrections: batches without
replacement; one noisy threshold for all steps; the score at radius 2τ and removal at twice that; gradients at
AC-SA's query point; the aggregate is what is reported, also after a halt. AC-SA as in ``transforms.ac_sa``.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, for all points of the run and the step
at which it halts: Gaussians on tested means (``privacy.concentrated``), or with ``mean=means.Clipped``
on the mean of clipped gradients. Data may be anything. Assumed: the key, the batches and the noisy threshold
stay secret, and w₀ is public. Utility: ``excess_bound``, see ``_schedules.accelerated``, for independent
users with m i.i.d. items each; all τ does is to decide how far users may differ before the run halts. The
noise is about 8τ√T/(nμ) of the mean without outliers, 2L√T/(nμ) of clipped gradients, for μ what (ε, δ)
allows: with τ = 6 to 8 L/√m outlier removal needs m in the hundreds or thousands to win.

Cost: T·K user gradients; with outlier removal T·K²·dim for distances, and memory of K user gradients. A plan
takes milliseconds with full batches, up to some seconds where batches are drawn.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import accelerated_sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(1.0, 1e-5)
    >>> plan = accelerated_sgd.plan(problem, budget, mean=None, stage_length=4, num_stages=1)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: accelerated_sgd.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import functools
import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Count, Inside, Nonnegative, Positive, real
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import float32_above
from dpsco_jax.privacy import accountants
from dpsco_jax.privacy.concentrated.threshold_phase import calibrate_concentrated
from dpsco_jax.privacy.releases import GaussianReleases, fixed_size
from dpsco_jax.problems import concentration
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, means, methods
from dpsco_jax.solvers._schedules import accelerated as schedule
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.plans import Remarks

__all__ = ["of_size", "plan", "solve"]

_MODEL_STEPS = 32  # where the model of the noise is exact
_MANY_STEPS = 8
# Of the noise by Chernoff's bound, what loss distributions may prove to be enough.
_LEAST_SHARE = 0.75
MeanType = type[means.Clipped] | type[means.OutlierRemoved] | None


@_plan_base.remembers(least_users=2)
@_planning.says_enough_users
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    regularization: Positive | None = None,
    stage_length: Count | None = None,
    num_stages: Count | None = None,
    batch_size: int | None = None,
    radius: Positive | None = None,
    mean: MeanType = means.OutlierRemoved,
    smoothing_radius: Nonnegative = 0.0,
    failure: Inside = 1e-3,
    outlier_share: Annotated[float, real(0, 0.2, closed=True)] = 0.0,
    chunk_size: Count = 64,
) -> FirstOrder:
    """Checks all arguments, sets what is left out and calibrates the noise. All of them are public.

    Args:
        problem: for the constants, domain and ridge of the objective, n ≥ 2, the number of parameters, m (a
            user may have fewer items, at the price of the bounds), and R, the distance from the start to a
            minimizer of the risk, which must be finite.
        budget: (ε, δ) of the run, δ > 0.
        regularization: λ; the one with the least bound on the excess risk if left out.
        stage_length: N; to be given together with ``num_stages``, or both are chosen.
        num_stages: S.
        batch_size: K in [1, n]; n if left out.
        radius: τ; along the run all gradients of honest users lie within the default radius but for half of
            ``failure``. Any number is private; with a smaller one bounds are void.
        mean: its type: ``means.OutlierRemoved``, ``means.Clipped`` (of gradients clipped to L), or ``None``
            for the one with less noise; the plan shows both.
        smoothing_radius: r > 0 takes gradients at points shifted uniformly in a ball of this radius,
            independently for every item; needed for losses that are not smooth.
        failure: probability that users deviate or a test halts though they do not, in (0, 1).
        outlier_share: of the users, who may be anywhere without a test failing, in [0, 1/5); needs more
            noise. Bounds on the risk do not cover them; they move the mean of a step by less than 8τ.
        chunk_size: users whose data are read at once.

    Raises:
        ValueError: an argument is out of range, or R is not finite.
        Infeasible: too few users; ``needed["num_users"]`` would do.
    """
    num_users = problem.num_users
    require_mean(mean)
    setting = schedule.of_problem(problem, budget, smoothing_radius)
    request = Request(radius, mean, failure, outlier_share)
    size = schedule.chosen(
        setting,
        noise_model(setting, request),
        ratio=1.0,
        decay=1.0,
        num_phases=1,
        regularization=regularization,
    )[0][0]
    if (stage_length is None) != (num_stages is None):
        raise ValueError(
            "stage_length and num_stages must be given together, got "
            f"{stage_length!r} and {num_stages!r}"
        )
    if stage_length is not None and num_stages is not None:
        size = size._replace(stage_length=stage_length, num_stages=num_stages)
    batch = num_users if batch_size is None else batch_size
    batch = _checks.require_integer("batch_size", batch, 1, num_users)
    return of_size(setting, size._replace(batch_size=batch), request, chunk_size)


class Request(NamedTuple):
    """What the caller wants; see ``plan`` and ``accelerated_phased_erm.plan``."""

    radius: float | None
    mean: MeanType
    failure: float
    outlier_share: float = 0.0
    constants: str = "tight"


def require_mean(mean: Any) -> None:
    """``ValueError`` for what is none of the means among which callers can choose."""
    known = any(mean is kind for kind in (means.Clipped, means.OutlierRemoved, None))
    _checks.require(known, "mean", mean, "means.Clipped, means.OutlierRemoved or None")


def of_size(
    setting: schedule.Setting,
    size: schedule.Size,
    request: Request,
    chunk_size: int,
    printed_stddev: float | None = None,
) -> FirstOrder:
    """The plan of a phase of which all sizes are known: noise, failure probability and bounds.

    Raises:
        ValueError: users are too few, or ``printed_stddev``, σ of the paper, is less than what is needed.
    """
    problem, budget = setting.problem, setting.budget
    batch = size.num_users if size.batch_size is None else size.batch_size
    found, other_stddev = _calibrated(setting, size.num_users, batch, size.num_steps, request)
    if printed_stddev is not None:
        found = _with_stddev(found, printed_stddev)
    variance = schedule.gradient_variance(
        setting, size.num_users, batch, found.stddev, found.radius, found.outside
    )
    gap = float(
        schedule.gap(setting, size.regularization, variance, size.stage_length, size.num_stages)
    )
    phase = schedule.Phase(size.num_users, size.regularization, gap)
    risk = float(schedule.excess_risk(setting, [phase]))
    smoothness, convexity = map(float, setting.curvature(size.regularization))
    shift = setting.smoothing_radius if setting.smoothing_radius > 0 else None
    mean: means.Clipped | means.OutlierRemoved
    if isinstance(found.releases, GaussianReleases):
        mean = means.Clipped(chunk_size, "item", found.releases, problem.lipschitz, shift)
    else:
        mean = means.OutlierRemoved(
            chunk_size=chunk_size,
            reach=found.reach,
            shift="item",
            releases=found.releases,
            score_radius=2 * found.radius,
            clip_norm=problem.lipschitz,
            smoothing_radius=shift,
        )
    premises = [
        f"users are independent, with {problem.items_per_user} i.i.d. items each",
        f"losses are convex and {problem.lipschitz:.4g}-Lipschitz",
    ]
    return FirstOrder(
        title="accelerated user-level SGD",
        dim=problem.dim,
        mean=mean,
        method=methods.AcSa(smoothness, convexity, size.stage_length),
        pull=size.regularization,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=schedule.with_failure(setting, risk, found.failure),
        details={"other_stddev": other_stddev, "failure": found.failure, "gap_bound": gap},
        premises=Remarks(premises),
        promised_relation=_planning.REPLACE_ONE,
    )


class _Noise(NamedTuple):
    """What the steps of a phase add, and what it rests on.

    ``outside`` is the probability that honest users differ by more than ``radius`` allows, ``failure`` that
    the run is spoiled by that or by a test.
    """

    releases: Any
    radius: float
    reach: float
    stddev: float
    outside: float
    failure: float


def _calibrated(
    setting: schedule.Setting, num_users: int, batch_size: int, num_steps: int, request: Request
) -> tuple[_Noise, float]:
    """The noise of a phase, of the mean asked for, and the deviation of the other mean's."""
    sizes = (num_users, batch_size, num_steps)
    chosen = request.mean is means.OutlierRemoved
    tested: _Noise | None
    try:
        tested = _outlier_removed(setting, *sizes, request, "pld" if chosen else "chernoff")
    except Infeasible:
        if chosen:
            raise
        tested = None
    per_multiplier = 2 * setting.problem.lipschitz / batch_size
    steps = fixed_size(*sizes)
    budget = (setting.budget.epsilon, setting.budget.delta)
    rough = per_multiplier * steps.noise_multiplier(*budget, "rdp")
    if request.mean is None and tested is not None and _LEAST_SHARE * tested.stddev <= rough:
        tested = _outlier_removed(setting, *sizes, request, "pld")
        chosen = tested.stddev <= rough
    if chosen and tested is not None:
        return tested, rough
    multiplier = steps.noise_multiplier(*budget, "pld")
    spread, outside = _spread(setting, num_users, num_steps, 1.0 / multiplier, request)
    releases = GaussianReleases(*sizes, "fixed", multiplier, budget[1])
    clipped = _Noise(releases, spread, 1.0, per_multiplier * multiplier, outside, 0.0)
    return clipped, math.inf if tested is None else tested.stddev


def noise_model(setting: schedule.Setting, request: Request) -> schedule.NoiseModel:
    """The noise of full batches, fast: exact at some number of steps, and growing as their root.

    The schedule is chosen by it; a schedule with smaller batches has more noise.
    """
    budget = setting.budget

    @functools.cache
    def tested(num_users: int) -> float:
        try:
            sizes = (num_users, num_users, _MODEL_STEPS)
            found = _outlier_removed(setting, *sizes, request, "pld")
        except Infeasible:
            return math.inf
        return num_users * found.stddev / math.sqrt(_MODEL_STEPS)

    multiplier = accountants.gaussian_noise_multiplier(budget.epsilon, budget.delta)
    clipped = 2 * setting.problem.lipschitz * multiplier

    def of(num_users: int, num_steps: Any) -> Any:
        noises = [clipped] * (request.mean is not means.OutlierRemoved)
        if request.mean is not means.Clipped:
            # Between powers of two the noise is nearly inverse to the number of users.
            noises.append(tested(2 ** (num_users.bit_length() - 1)))
        return min(noises) * np.sqrt(num_steps) / num_users

    return of


def _with_stddev(found: _Noise, stddev: float) -> _Noise:
    """The same with more noise; ``ValueError`` if it is less, or outliers are not removed."""
    if isinstance(found.releases, GaussianReleases) or not stddev >= found.stddev:
        raise ValueError(
            f"noise_stddev must be at least {found.stddev:g} to meet the budget, got {stddev:g}"
        )
    per_radius = float(found.releases.noise_stddev) * stddev / found.stddev
    releases = dataclasses.replace(found.releases, noise_stddev=float32_above(per_radius))
    return found._replace(releases=releases, stddev=stddev)


def _outlier_removed(
    setting: schedule.Setting,
    num_users: int,
    batch_size: int,
    num_steps: int,
    request: Request,
    accountant: str,
) -> _Noise:
    calibrate = functools.partial(
        calibrate_concentrated,
        num_users,
        num_steps,
        setting.budget.epsilon,
        setting.budget.delta,
        batch_size=None if batch_size == num_users else batch_size,
        # With all users in many steps, one threshold for all of them needs less noise.
        test="stream" if batch_size == num_users and num_steps >= _MANY_STEPS else "auto",
        false_halt_probability=0.5 * request.failure,
        constants=request.constants,
        accountant=accountant,
    )
    releases = calibrate()
    failure = float(releases.false_halt())
    if request.outlier_share > 0:
        # A share x of users, far from the others, takes the score from K to (1 - x)²K.
        lost = 1.0 - (1.0 - request.outlier_share) ** 2
        releases = calibrate(threshold=float(releases.threshold) / batch_size - lost)
    per_radius = 2 * float(releases.noise_stddev)  # the score radius is twice τ
    shift = 2.0 / (batch_size * per_radius)  # of a mean by a user within τ of the centre, over σ
    radius, outside = _spread(setting, num_users, num_steps, shift, request)
    radius = float32_above(radius)
    # Clipped gradients are all in reach of the origin; a power of two, as it is compiled in.
    least = 1.01 * setting.problem.lipschitz / (2 * radius)
    reach = 2.0 ** max(0, math.ceil(math.log2(least)))
    stddev = float(means.tested_stddev(releases, 2 * radius, reach, setting.problem.dim))
    spoiled = min(1.0, outside + failure)
    return _Noise(releases, radius, reach, stddev, spoiled, spoiled)


def _spread(
    setting: schedule.Setting, num_users: int, num_steps: int, shift: float, request: Request
) -> tuple[float, float]:
    """τ, and the probability that some honest user's gradient is farther away at some step.

    One honest user moves the mean of a step by ``shift`` standard deviations of its noise.
    """
    lipschitz, gdp = setting.problem.lipschitz, shift * math.sqrt(num_steps)
    sizes = (lipschitz, setting.problem.items_per_user, num_users, num_steps, gdp)
    if request.radius is None:
        allowed = 0.5 * request.failure
        radius = concentration.trajectory_gradient_radius(*sizes, allowed)
    else:
        radius = _checks.require_real("radius", request.radius, 0)
        allowed = concentration.trajectory_gradient_failure(radius, *sizes)
    # Clipped gradients lie within L of the origin, always.
    return (radius, allowed) if radius < lipschitz else (lipschitz, 0.0)
