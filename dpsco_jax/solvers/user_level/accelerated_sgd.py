"""Accelerated user-level SGD: one regularized empirical risk, with noise of the size of users' differences.

What it computes: minimizes F̂(w) + (λ/2)‖w - w₀‖², F̂ the mean over users of their mean losses. Each step
takes the gradients of K users drawn without replacement (or of all), tests whether they are close to each
other, and releases the mean of those that are, with noise in proportion to the distance at which users
count as close; AC-SA, restarted after every stage, does the rest.

Source: F, Algorithm 2; T, Algorithm 32 and Remark 10.8.5, with these corrections: batches without
replacement; one noisy threshold for all steps; the score at radius 2τ and removal at twice that; gradients at
AC-SA's query point; the aggregate is what is reported, also after a halt. AC-SA as in ``transforms.ac_sa``.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, for all points of the run and the step
at which it halts: Gaussians on tested means (``privacy.concentrated``), or with ``mean=means.Clipped``
on the mean of clipped gradients. Data may be anything. Assumed: the key, the batches and the noisy threshold
stay secret, and w₀ is public. Utility: ``excess_bound``, see ``accelerated_bounds``, for independent
users with m i.i.d. items each; all τ does is to decide how far users may differ before the run halts.

Cost: T·K user gradients; with outlier removal T·K²·dim for distances, and memory of K user gradients.

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

from typing import Annotated

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Count, Inside, Nonnegative, Positive, real
from dpsco_jax.privacy.releases import GaussianReleases
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, means, methods
from dpsco_jax.solvers._schedules import accelerated as schedule
from dpsco_jax.solvers._schedules import accelerated_bounds as bounds
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.user_level import _accelerated_noise as noise

__all__ = ["of_size", "plan", "solve"]


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
    mean: type[means.Clipped] | type[means.OutlierRemoved] | None = means.OutlierRemoved,
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
    noise.require_mean(mean)
    setting = bounds.of_problem(problem, budget, smoothing_radius)
    request = noise.Request(radius, mean, failure, outlier_share)
    size = schedule.chosen(
        setting,
        num_users,
        noise.model(setting, request),
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


def of_size(
    setting: bounds.Setting,
    size: schedule.Size,
    request: noise.Request,
    chunk_size: int,
    printed_stddev: float | None = None,
) -> FirstOrder:
    """The plan of a phase of which all sizes are known: noise, failure probability and bounds.

    Raises:
        ValueError: users are too few, or ``printed_stddev``, σ of the paper, is less than what is needed.
    """
    batch = size.num_users if size.batch_size is None else size.batch_size
    found = noise.calibrated(setting, size.num_users, batch, size.num_steps, request)
    if printed_stddev is not None:
        found = noise.with_stddev(found, printed_stddev)
    variance = bounds.gradient_variance(
        setting, size.num_users, batch, found.stddev, found.radius, found.outside
    )
    gap = float(
        bounds.gap(setting, size.regularization, variance, size.stage_length, size.num_stages)
    )
    phase = bounds.Phase(size.num_users, size.regularization, gap)
    risk = float(bounds.excess_risk(setting, [phase]))
    smoothness, convexity = map(float, setting.curvature(size.regularization))
    shift = setting.smoothing_radius if setting.smoothing_radius > 0 else None
    mean: means.Clipped | means.OutlierRemoved
    if isinstance(found.releases, GaussianReleases):
        mean = means.Clipped(chunk_size, "item", found.releases, setting.lipschitz, shift)
    else:
        mean = means.OutlierRemoved(
            chunk_size=chunk_size,
            reach=found.reach,
            shift="item",
            releases=found.releases,
            score_radius=2 * found.radius,
            clip_norm=setting.lipschitz,
            smoothing_radius=shift,
        )
    return FirstOrder(
        title="accelerated user-level SGD",
        dim=setting.dim,
        mean=mean,
        method=methods.AcSa(smoothness, convexity, size.stage_length),
        pull=size.regularization,
        epsilon=setting.epsilon,
        delta=setting.delta,
        excess_bound=bounds.with_failure(setting, risk, found.failure),
        details={
            "other_stddev": found.other_stddev,
            "failure": found.failure,
            "gap_bound": gap,
        },
        premises=Remarks(
            [
                f"users are independent, with {setting.items_per_user} i.i.d. items each",
                f"losses are convex and {setting.lipschitz:.4g}-Lipschitz",
            ]
        ),
        promised_relation=_planning.REPLACE_ONE,
    )
