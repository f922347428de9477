"""Private ERM under heavy tails, J times: near the population's minimizer in all but few runs.

What it computes: J copies of ``clipped_gd`` on disjoint blocks of users, all from the same start, and of
their answers the one that most are near to (``solvers.copies``). Target is the minimizer of F(x) + (λ/2)·‖x
- x_0‖² over the domain, F the population's risk; a single sample may have a mean of clipped gradients that is
far off.

Source: T, Algorithm 38, Corollary 12.3.6. Corrections: H3, H4 (docs/corrections/heavy_tails.md): aggregation
needs no radius, and its point is within three times the distance of the majority.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE: each copy has the whole budget, a user
is in one. Utility: but for a share ``bound_failure`` of all runs and samples the point is within
``distance_bound`` of the minimizer, for convex losses of i.i.d. users whose slopes have the moments given,
with a ridge on bounded domains alone. Of J copies ⌈0.51·J⌉ have to be near; how often one may be far is by
the binomial law.

Cost: T·n user gradients: those of one run on all users.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.rates.heavy_tailed import Moments
    >>> from dpsco_jax.solvers.heavy_tailed import aggregate_erm
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=150, items_per_user=2, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(1.0, 1e-5)
    >>> moments = Moments(order=4.0, highest=1.0)
    >>> plan = aggregate_erm.plan(
    ...     problem, budget, moments=moments, regularization=0.1, num_copies=3, num_steps=20
    ... )
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: aggregate_erm.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import math

from dpsco_jax import privacy
from dpsco_jax._argument_kinds import Constants, Count, Inside, Positive
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.problems.problem import Problem
from dpsco_jax.rates.heavy_tailed import OfMoments
from dpsco_jax.solvers import _plan_base, _planning
from dpsco_jax.solvers._schedules import clipped_descent
from dpsco_jax.solvers.copies import Copies, solve
from dpsco_jax.solvers.heavy_tailed import _phases, clipped_gd
from dpsco_jax.solvers.heavy_tailed._terms import always_covered, rho_of
from dpsco_jax.solvers.plans import Remarks

__all__ = ["plan", "solve"]


@_plan_base.remembers(least_users=1)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    moments: OfMoments,
    regularization: Positive,
    num_copies: Count | None = None,
    num_steps: Count | None = None,
    clip_norm: Positive | None = None,
    failure: Inside = 0.1,
    constants: Constants = "tight",
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
) -> Copies:
    """Checks all arguments, cuts the users into copies and plans one of them. All arguments are public.

    Args:
        problem: for the domain, n and the number of parameters.
        budget: (ε, δ) of the run, δ > 0.
        moments: of the users' slopes, k ≥ 2; known beforehand, never taken from the data.
        regularization: λ > 0.
        num_copies: J; if left out 5, and ⌈400·log(1/failure)⌉ for ``"paper"``. The n - J·⌊n/J⌋ users that are
            left over are not touched.
        num_steps: T of a copy; see ``clipped_gd.plan``.
        clip_norm: C, in place of the one with the least bound.
        failure: how often the bound may be exceeded.
        constants: ``"tight"``: the proof of docs/theory/heavy_tails.md. ``"paper"``: J, C, T and noise of the
            thesis, and the distance of Corollary 12.3.6 with the constants that its proof gives.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users of a copy whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, or there are fewer users than copies.
    """
    paper = constants == "paper"
    copies = num_copies
    if copies is None:
        copies = math.ceil(400 * math.log(1 / failure)) if paper else 5
    users = problem.num_users // copies
    if users == 0:
        what = f"num_users must be at least {copies}, one for each copy, got {problem.num_users}"
        raise Infeasible(what, {"num_users": copies})
    one = dataclasses.replace(problem, num_users=users)
    rho, dim = rho_of(users, budget, constants, accountant), problem.dim
    share = clipped_descent.share_that_may_fail(copies, failure)
    setting = _phases.Setting(one, budget, moments, num_steps, accountant, chunk_size)
    if paper:
        steps = clipped_descent.paper_steps(users, dim, rho) if num_steps is None else num_steps
        distance = clipped_descent.paper_distance(moments, users, dim, rho)
        enough = share >= 0.45 and steps >= clipped_descent.paper_steps(users, dim, rho)
        distance = distance if enough and clip_norm is None else math.inf
        answer = clipped_descent.Answer(math.nan, distance, math.nan)
    else:
        steps = setting.steps(users)
        answer = clipped_descent.in_most_runs(
            moments, users, steps, setting.variance(users), share, clip_norm, known=setting.known
        )
        clip_norm = answer.clip_norm
    base = clipped_gd.plan(
        one,
        budget,
        moments=moments,
        regularization=regularization,
        num_steps=steps,
        clip_norm=clip_norm,
        constants=constants,
        accountant=accountant,
        chunk_size=chunk_size,
    )
    bound = _phases.repeated(answer, copies).distance / regularization
    # The printed numbers know no ridge.
    covered = always_covered(problem) and not (paper and problem.objective.ridge)
    return Copies(
        title="clipped gradient descent, the point that most copies are near",
        num_users=problem.num_users,
        copies=copies,
        base=base,
        details={"bound_failure": failure, "distance_bound": bound if covered else math.inf},
        remarks=Remarks([("constants", constants)]),
    )
