"""Accelerated phased ERM: optimal risk at the user level, from regularized problems on disjoint users.

What it computes: users are cut into blocks of halving sizes. Each phase runs ``accelerated_sgd`` on one
block, regularized around the point where the phase before has ended, with a regularizer that grows by a
fixed factor: early phases find the region on many users, late ones stay near and average out the noise.
Losses that are not smooth are smoothed, by a shift of the point for every item.

Source: F, Algorithm 3 and section 4; T, Algorithm 33 and section 10.4. Corrected: the first block is half of
the users and not a quarter; batches are at most blocks; after a halt the run ends at the last private
point; the smoothed version has both terms in λ too.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE: users are assigned to phases by
position, each phase is (ε, δ)-DP for its users (``accelerated_sgd``), and phases see different users, so
the joint loss is the largest. Data may be anything. Once a phase halts, later phases are computed and
thrown away. Utility: ``excess_bound``, by the chain of ``_schedules.accelerated``; in the papers' regime
LR·Õ(1/√(nm) + √d/(εn√m)).

Cost: ΣT·K user gradients; memory of one batch of user gradients, and of one prepared copy of the data where
the model is linear. Phases are turns of one compiled loop, those in which users are drawn of one and those in
which everybody takes part of another.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import accelerated_phased_erm
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(1.0, 1e-5)
    >>> plan = accelerated_phased_erm.plan(problem, budget, mean=None, num_phases=1)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: accelerated_phased_erm.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

from collections.abc import Sequence
from typing import Annotated

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Constants, Count, Inside, Positive, real
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, means
from dpsco_jax.solvers._schedules import accelerated as schedule
from dpsco_jax.solvers.phased import Phased, solve
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.user_level import accelerated_sgd

__all__ = ["plan", "solve"]


@_plan_base.remembers(least_users=2)
@_planning.says_enough_users
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    constants: Constants = "tight",
    mean: accelerated_sgd.MeanType = means.OutlierRemoved,
    smoothing_radius: Positive | None = None,
    num_phases: Count | None = None,
    regularization: Positive | None = None,
    ratio: Positive = 1.0,
    decay: float | None = None,
    batch_size: int | Sequence[int] | None = None,
    radius: Positive | None = None,
    failure: Inside = 1e-3,
    outlier_share: Annotated[float, real(0, 0.2, closed=True)] = 0.0,
    chunk_size: Count = 64,
) -> Phased:
    """Checks all arguments, chooses the phases and calibrates their noise. All of them are public.

    Args:
        problem: for the constants, domain and ridge of the objective, n ≥ 2, the number d of parameters, m (a
            user may have fewer items, at the price of the bounds), and R, the distance from the start to a
            minimizer of the risk, which must be finite.
        budget: (ε, δ) of each phase and so of all, δ > 0.
        constants: ``"tight"``: what is left out is chosen for the least bound on the excess risk.
            ``"paper"``: users, regularizers, steps, batches, radius and noise of the phases as printed;
            accepted only where they are possible and the accountant confirms them.
        mean: its type: ``means.OutlierRemoved``, ``means.Clipped`` (of gradients clipped to L), or ``None``,
            for each phase the one with less noise.
        smoothing_radius: r > 0 takes gradients at points shifted uniformly in a ball of this radius,
            independently for every item. Left out, none for a loss that is smooth. For others the paper's
            √d·R/(εn√m), or (``"tight"``) the largest multiple by a power of four that costs at most a tenth
            of the bound: steps are as many as one over its root. The loss must be defined and Lipschitz
            within it around the domain.
        num_phases: number of phases.
        regularization: λ of the first phase.
        ratio: q > 0; blocks shrink by 2^-q.
        decay: p > 2q; regularizers grow by 2^p. 3 if left out.
        batch_size: users of a step, at most those of the phase; one for all phases or one for each.
            Left out, a rule that keeps the noise near that of full batches, see ``default_batch``.
        radius: τ of every phase, as in ``accelerated_sgd.plan``.
        failure: probability, for each phase, that users deviate or a test halts though they do not.
        outlier_share: of the users of a phase, in [0, 1/5), as there.
        chunk_size: users whose data are read at once.

    Raises:
        ValueError: an argument is out of range, or R is not finite.
        Infeasible: too few users; ``needed["num_users"]`` would do.
    """
    for size in batch_size if isinstance(batch_size, Sequence) else (batch_size,):
        _checks.require_given(_checks.require_count, batch_size=size)
    accelerated_sgd.require_mean(mean)
    distance = problem.require_distance()
    if decay is not None:
        decay = _checks.require_real("decay", decay, 2 * ratio)
    if constants == "paper" and radius is None:
        radius = schedule.printed_radius(problem)
    request = accelerated_sgd.Request(radius, mean, failure, outlier_share, constants)
    if smoothing_radius is None:
        least = schedule.printed_smoothing(problem, budget.epsilon)
        radii = schedule.smoothing_radii(problem.objective, least, distance)
    else:
        radii = [smoothing_radius]
    stddevs: list[float | None]
    if constants == "paper":
        setting = schedule.of_problem(problem, budget, radii[0])
        sizes = schedule.printed(setting, ratio=ratio, decay=decay, num_phases=num_phases)
        sizes = schedule.with_batches(setting, sizes, batch_size, constants)
        stddevs = [schedule.printed_stddev(setting, size, radius or 0.0) for size in sizes]
    else:
        settings = [schedule.of_problem(problem, budget, r) for r in radii]
        found = [
            schedule.chosen(
                candidate,
                accelerated_sgd.noise_model(candidate, request),
                ratio=ratio,
                decay=3.0 * ratio if decay is None else decay,
                num_phases=num_phases,
                regularization=regularization,
            )
            for candidate in settings
        ]
        enough = schedule.NEAR_BEST * min(risk for _, risk in found)
        # The last that is good enough: radii grow, and with them steps get fewer.
        i = max(i for i, (_, risk) in enumerate(found) if risk <= enough)
        setting = settings[i]
        sizes = schedule.with_batches(setting, found[i][0], batch_size, constants)
        stddevs = [None] * len(sizes)
    phases = tuple(
        accelerated_sgd.of_size(setting, size, request, chunk_size, stddev)
        for size, stddev in zip(sizes, stddevs, strict=True)
    )
    pieces = [schedule.Phase(p.num_users, p.pull, p.gap_bound) for p in phases]
    risk = float(schedule.excess_risk(setting, pieces))
    risk = schedule.with_failure(setting, risk, sum(p.failure for p in phases))
    return Phased(
        title="accelerated phased ERM",
        num_users=problem.num_users,
        parts=phases,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=risk,
        details={"distance": distance},
        remarks=Remarks([("constants", constants)]),
    )
