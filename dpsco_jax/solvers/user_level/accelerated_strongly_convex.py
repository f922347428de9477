"""Accelerated phased ERM for strongly convex risks: runs on blocks of doubling sizes, ever closer.

What it computes: users are cut into blocks, each twice as large as the one before. Each block runs
``accelerated_phased_erm``, started where the block before has ended and told how far from a minimizer
that is: R₁ = R, then Rⱼ₊₁ = √(2·boundⱼ/μ), since F(w) - F(w*) ≥ (μ/2)‖w - w*‖²; never more than 2L/μ.

Source: T, Remark 10.3.6 and Algorithm 30; Feldman, Koren and Talwar 2020, section 5.1. The distances follow
from the proven bounds of the blocks in place of an unnamed constant.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE: blocks see different users. Distances
are public numbers and used for regularizers only. Utility: ``excess_bound``; the chain of
``_schedules.accelerated`` needs a bound on E‖start - w*‖², and has one. Rate: (L²/μ)·Õ(1/(nm) + d/(ε²n²m)).

Cost: that of the runs; half of it and of the users belong to the last block.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import accelerated_strongly_convex
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(1.0, 1e-5)
    >>> plan = accelerated_strongly_convex.plan(problem, budget, mean=None, num_blocks=1)
    >>> data, start = made.data, jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: accelerated_strongly_convex.solve(key, plan, made.objective, data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import math

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Count, Inside, Nonnegative, Positive
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, _sequence, means
from dpsco_jax.solvers.phased import Phased, solve
from dpsco_jax.solvers.user_level import accelerated_phased_erm, accelerated_sgd

__all__ = ["plan", "solve"]


@_plan_base.remembers(least_users=2)
@_planning.says_enough_users
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_blocks: Count | None = None,
    mean: accelerated_sgd.MeanType = means.OutlierRemoved,
    smoothing_radius: Nonnegative | None = None,
    batch_size: Count | None = None,
    radius: Positive | None = None,
    failure: Inside = 1e-3,
    chunk_size: Count = 64,
) -> Phased:
    """Checks all arguments and plans all blocks. All of them are public.

    Args:
        problem: for the constants and domain of the objective, which must be strongly convex, by its loss or
            its ridge, n ≥ 2, the number of parameters, m (a user may have fewer items, at the price of the
            bounds), and R, the distance from the start to the minimizer of the risk.
        budget: (ε, δ) of each block and so of all, δ > 0.
        num_blocks: the paper's ⌈log2 log2 mn⌉ if left out, or the largest smaller number for which all
            blocks have enough users.
        mean: its type, as in ``accelerated_phased_erm.plan``, for every phase of every block.
        smoothing_radius: r > 0 of every block, as there.
        batch_size: users of a step, at most those of the phase; by the rule of there if left out.
        radius: τ of every phase, as there.
        failure: probability, for each phase, that users deviate or a test halts though they do not.
        chunk_size: users whose data are read at once.

    Raises:
        ValueError: an argument is out of range, or the objective is not strongly convex.
        Infeasible: too few users; ``needed["num_users"]`` would do.
    """
    objective, num_users = problem.objective, problem.num_users
    convexity = _checks.require_real("strong_convexity", objective.strong_convexity, 0)
    farthest = min(problem.diameter, 2.0 * problem.slope / convexity)
    first = min(problem.farthest, farthest)
    if num_blocks is not None:
        counts = [num_blocks]
    else:
        most = math.ceil(math.log2(max(math.log2(num_users * problem.items_per_user), 2.0)))
        counts = list(range(most, 0, -1))

    def block(users: int, distance: float) -> Phased:
        return accelerated_phased_erm.plan(
            dataclasses.replace(problem, num_users=users, distance=distance),
            budget,
            mean=mean,
            smoothing_radius=smoothing_radius,
            batch_size=batch_size,
            radius=radius,
            failure=failure,
            chunk_size=chunk_size,
        )

    def of(count: int) -> Phased:
        sizes = _sequence.block_sizes(num_users, 2.0, count, least=2)
        parts, _ = _sequence.nearer(block, sizes, first, farthest, convexity)
        return Phased(
            title="accelerated phased ERM, strongly convex",
            num_users=num_users,
            parts=parts,
            epsilon=budget.epsilon,
            delta=budget.delta,
            excess_bound=parts[-1].excess_bound,
        )

    for count in counts[:-1]:
        try:
            return of(count)
        except Infeasible:  # users of the first block are too few: try with fewer and larger ones
            continue
    return of(counts[-1])
