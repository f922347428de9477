"""Adaptive Spider: one pass over the users, in batches as large as the steps are long.

What it computes: x_{t+1} = x_t - η·v_t, η = 1/M, where v_t is a private estimate of the gradient of the risk
on the population: begun anew from b users once Σ M·‖x_s - x_{s-1}‖ since it began is at least κ, or after L
steps, and kept up in between by the differences of ⌈max(r/c, rκ/a²)⌉ users, r = M·‖x_t - x_{t-1}‖: short
steps ask few users. Every user takes part once; a run for which users run out halts.

For first-order goals the point with the shortest v_t is reported. With ``second_order`` a step is pushed at
random where v_t is short, and the last point is reported.

Source: thesis, Algorithms 21 and 22, Lemmas 7.3.5 to 7.3.10, Theorem 7.3.11, corrected: a stream of noise for
each beginning, from its first step on (C7-1, C7-5), noise for 2c a user (C7-2), sizes by the step before,
rounded up (C7-3), and pushes that reset nothing (C7-4): docs/corrections/nonconvex.md. Noise of a few
buffers, of which sums have less than of a tree; ``constants="paper"`` has trees.

Formal guarantee: (ε, δ)-DP for a user's whole data, at every point of the run, under REPLACE_ONE, or
REPLACE_SPECIAL: a user's share of each mean is clipped to c (``_adaptive_mean``). Nothing is assumed of the
loss. Utility, for losses that are G-Lipschitz and M-smooth on the whole space, F(x_0) - inf F ≤ B and users
who are drawn independently: with probability 1 - ω all estimates are off by at most e, users run out in no
run without pushes, and its point of the shortest estimate has

    ‖∇F(x)‖ ≤ (2BM/T + e²)^½ + 2e

(docs/theory/nonconvex.md, section 4). That the rate is better than that of ``drift_spider`` is seen for very
many users only: the plans of both say what they prove.

Cost: 2·n user gradients at most; memory of one chunk of user gradients, and of n positions.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import fixtures
    >>> from dpsco_jax.solvers.nonconvex import adaptive_spider
    >>> made = fixtures.two_wells(jax.random.key(0), num_users=1000, items_per_user=1, dim=2)
    >>> plan = adaptive_spider.plan(made.problem(), Budget(4.0, 1e-5), most_steps=20)
    >>> start = jax.numpy.asarray([0.5, 0.5])
    >>> run = jax.jit(lambda key: adaptive_spider.solve(key, plan, made.objective, made.data, start))
    >>> run(jax.random.key(1)).params.shape, plan.certificate().epsilon <= 4.0
    ((2,), True)
"""

import math
from typing import Any

from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Constants, Count, Flag, Inside, Positive
from dpsco_jax.privacy.releases import fixed_size
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, methods
from dpsco_jax.solvers.first_order import FirstOrder, solve
from dpsco_jax.solvers.nonconvex import _adaptive_schedule, _stationary
from dpsco_jax.solvers.nonconvex._adaptive_mean import Adaptive, AdaptiveReleases
from dpsco_jax.solvers.nonconvex._drift_schedule import Goal, pushed
from dpsco_jax.solvers.plans import Remarks

__all__ = ["plan", "solve"]


@_plan_base.remembers(least_users=2, convex=False)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    initial_gap: Positive | None = None,
    second_order: Flag = False,
    failure_probability: Inside = 0.05,
    most_steps: Count = 10_000,
    num_steps: Count | None = None,
    gradient_clip: Positive | None = None,
    difference_clip: Positive | None = None,
    chunk_size: Count = 64,
    accountant: _planning.Accountant = "pld",
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
    constants: Constants = "tight",
) -> FirstOrder:
    """Chooses steps, sizes and noise by the bound. All arguments are public.

    Args:
        problem: for n, d, and the constants of the loss up to the second derivative, with ``second_order``
            the third.
        budget: (ε, δ) of the run, δ > 0.
        initial_gap: B ≥ F(x_0) - inf F; the range of the loss, if it has one, if left out.
        second_order: whether steps are pushed where the gradient is small, and the last point is reported.
        failure_probability: ω.
        most_steps: T is at most this.
        num_steps: T; the best that is at most ``most_steps`` if left out.
        gradient_clip: G; the objective's Lipschitz constant if left out.
        difference_clip: M; the objective's smoothness constant if left out.
        chunk_size: users whose gradients are held at once.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        relation: of neighbours: REPLACE_ONE, or REPLACE_SPECIAL, where a user is replaced by nobody.
        constants: ``"tight"``; or ``"paper"``, those of the paper's proof, with noise of trees.

    Raises:
        ValueError: an argument is out of range, or left out although the loss does not know it.
    """
    users, objective = problem.num_users, problem.objective
    clip = _stationary.smoothness_of(problem, difference_clip, "difference_clip")
    goal = Goal(
        initial_gap=_stationary.gap_of(problem, initial_gap),
        lipschitz=problem.lipschitz if gradient_clip is None else gradient_clip,
        smoothness=clip,
        curvature=clip + objective.ridge,
        dim=problem.dim,
        num_users=users,
        per_norm=_stationary.per_norm(relation),
        failure=failure_probability,
        one_pass=True,
    )
    joint = fixed_size(users, users, 1).noise_multiplier(budget.epsilon, budget.delta, accountant)
    if constants == "paper":
        _checks.require(num_steps is None, "num_steps", num_steps, 'None for constants="paper"')
        found = _adaptive_schedule.paper_schedule(goal, budget, most_steps)
    else:
        steps = _stationary.grid(most_steps, 60) if num_steps is None else [num_steps]
        found = _adaptive_schedule.schedule(goal, float(joint) ** -2, steps)
    releases = AdaptiveReleases(
        population_size=users,
        num_steps=found.num_steps,
        longest=found.longest,
        first_batch=found.first_batch,
        correlation=found.correlation,
        noise_multiplier=joint,
        delta=budget.delta,
        neighbours=relation,
    )
    mean = Adaptive(chunk_size, releases, found.share_norm, clip, found.drift, found.accuracy)
    proven = math.isinf(problem.diameter)
    method: Any = methods.ShortestGradient(1 / goal.curvature)
    if second_order:
        third = _checks.require_real("hessian_lipschitz", objective.hessian_lipschitz, 0)
        method = methods.Perturbed(*pushed(goal, found.bound, found.error, third))
    return FirstOrder(
        title="adaptive private Spider" + (", second order" if second_order else ""),
        dim=problem.dim,
        mean=mean,
        method=method,
        pull=None,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=math.inf,
        details={
            "gradient_norm_bound": found.bound if proven and not second_order else math.inf,
            "estimate_error_bound": found.error,
        },
        remarks=Remarks(
            (("reported", "the last point" if second_order else "where the estimate is shortest"),)
        ),
        premises=Remarks((*_stationary.PREMISES, "users are drawn independently")),
        promised_relation=_stationary.promised(relation),
    )
