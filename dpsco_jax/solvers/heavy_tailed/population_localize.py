"""Population-level localization: private stochastic convex optimization under heavy tails.

What it computes: phases on disjoint blocks of users that halve. Phase i finds a point near the minimizer of
F(x) + (λ_i/2)·‖x - x_{i-1}‖², F the population's risk, from where the phase before has ended, by J copies of
``clipped_gd`` and the point that most of them are near; the λ_i grow geometrically. x_I is the result. If the
objective is μ-strongly convex, by its loss or its ridge, there are rounds of such phases, on blocks of users
that double: a bound E on the excess risk of a round says that the next one starts within √(2E/μ).

Source: T, Algorithms 37 and 38, Proposition 12.3.7, Theorem 12.3.8, Corollary 12.5.1. Corrections: H2 to H5
(docs/corrections/heavy_tails.md): the printed bound of the proposition is false, ours has all constants.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE: a user is in one copy of one phase,
and each of these has the whole budget. Nothing is assumed of the losses; all arguments are public, and
moments that were taken from the data void the guarantee. Utility: F(x_I) - min F is at most
``high_probability_bound`` but for a share ``bound_failure`` of all runs and samples, for convex losses of
i.i.d. users whose slopes have the moments given, and D at least the distance from the start to a minimizer;
the diameter of the domain does not enter. With a ridge on bounded domains alone, where it adds to G_1 what
it is steep. On a bounded domain ``excess_bound`` is on the mean. Of order G_2·D·√(ℓ/n) +
G_k·D·(√d·ℓ/(n√ρ))^{1-1/k}, ℓ = log(1/failure); in rounds of that of ``rates.heavy_tailed.strongly_convex``.

Cost: about T·n user gradients; a program for each phase, or a single one if J = 1.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.rates.heavy_tailed import Moments
    >>> from dpsco_jax.solvers.heavy_tailed import population_localize
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=150, items_per_user=2, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(1.0, 1e-5)
    >>> moments = Moments(order=4.0, highest=1.0)
    >>> plan = population_localize.plan(
    ...     problem, budget, moments=moments, num_copies=3, num_phases=2, num_steps=20
    ... )
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: population_localize.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Count, Inside, Positive, one_of
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.problems.problem import Problem
from dpsco_jax.rates import heavy_tailed as rates
from dpsco_jax.rates.heavy_tailed import OfMoments
from dpsco_jax.solvers import _plan_base, _planning
from dpsco_jax.solvers._schedules import clipped_descent
from dpsco_jax.solvers.copies import Copies
from dpsco_jax.solvers.heavy_tailed import _phases, aggregate_erm
from dpsco_jax.solvers.heavy_tailed._terms import PREMISES, always_covered, rho_of
from dpsco_jax.solvers.phased import Phased, solve
from dpsco_jax.solvers.plans import Remarks

__all__ = ["plan", "solve"]

_COPIES = (1, 3, 5)


@_plan_base.remembers(least_users=4)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    moments: OfMoments,
    failure: Inside = 0.1,
    num_rounds: Count | None = None,
    num_copies: Count | None = None,
    num_phases: Count | None = None,
    strength: Positive | None = None,
    num_steps: Count | None = None,
    constants: Annotated[str, one_of("practical", "tight", "paper")] = "practical",
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
) -> Phased:
    """Checks all arguments, chooses phases and strengths and plans each copy. All arguments are public.

    Args:
        problem: for the domain, n, the number of parameters and D, which must be finite.
        budget: (ε, δ) of the run, δ > 0.
        moments: of the users' slopes, k ≥ 2; known beforehand, never taken from the data.
        failure: how often the bound may be exceeded.
        num_rounds: K of a strongly convex objective; if left out that of the least bound, up to ⌈log₂ log₂ n⌉
            + 1, and that number itself for ``"paper"``. 1 if nothing is strongly convex.
        num_copies: J of every phase; if left out 1, and for ``"tight"`` that of 1, 3 and 5 with the least
            bound.
        num_phases: I of every round; if left out that of the least bound, 8 at most.
        strength: λ, of λ_i = λ·32^i; if left out the best, with the best growth in place of 32.
        num_steps: T of every copy; if left out 1,000 at most.
        constants: ``"practical"``: I, λ and C by what is to be expected of noise, sample and clip.
            ``"tight"``: by the bound of docs/theory/heavy_tails.md, which is for the worst losses, so that
            pulls are strong. ``"paper"``: J = ⌈400·log(I/failure)⌉, I = ⌊log₂(n/J)⌋, and T, C, noise and λ of
            the theorem, for millions of users. The bound is that of the numbers chosen.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users of a copy whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, D is not finite, or a copy of the last phase has too few
            users.
    """
    setting = _phases.Setting(problem, budget, moments, num_steps, accountant, chunk_size)
    problem.require_distance()
    paper, practical = constants == "paper", constants == "practical"
    if paper:
        own = "with constants='paper', which has its own"
        _checks.require_absent(
            False, own, num_copies=num_copies, num_phases=num_phases, strength=strength
        )

    def one_round(setting: _phases.Setting, count: int) -> _phases.Round:
        share = failure / count
        if paper:
            return _paper(setting, share)

        def of(copies: int) -> _phases.Phases:
            def answer(users: int, phases: int, clip: float | None) -> clipped_descent.Answer:
                one = clipped_descent.in_most_runs(
                    moments,
                    users,
                    setting.steps(users),
                    setting.variance(users),
                    clipped_descent.share_that_may_fail(copies, share / phases),
                    clip,
                    known=setting.known,
                )
                return _phases.repeated(one, copies)

            return _phases.best(setting, copies, answer, num_phases, strength, practical)

        candidates = _COPIES if constants == "tight" else _COPIES[:1]
        copies, found = _least(of, candidates if num_copies is None else (num_copies,))
        parts = functools.partial(_phases.parts, setting, found, copies)
        users = setting.problem.num_users
        return _phases.Round(users, parts, found.expected, found.localized.bound, copies)

    made = _phases.rounds(setting, one_round, num_rounds, paper)
    title = "population-level localization"
    parts = _phases.phased(title, made, budget)
    # The printed numbers know no ridge.
    covered = always_covered(problem) and not (paper and problem.objective.ridge)
    bound = made[-1].proven if covered else math.inf
    copies = sorted({one.copies for one in made})
    remarks = [*_phases.counted(made, parts), ("copies", ", ".join(map(str, copies)))]
    remarks.append(("constants", constants))
    if bound > setting.first * problem.require_distance():
        remarks.append(("bound", "no better than that of the start: users are too few"))
    return Phased(
        title=title,
        num_users=problem.num_users,
        parts=parts,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=_phases.in_expectation(bound, failure, moments, problem),
        details={
            "distance": problem.require_distance(),
            "bound_failure": failure,
            "high_probability_bound": bound,
        },
        remarks=Remarks(remarks),
        premises=PREMISES,
    )


def _least(
    of: Callable[[int], _phases.Phases], candidates: Sequence[int]
) -> tuple[int, _phases.Phases]:
    """The number of copies with the least bound, and its phases; refuses what none allows."""
    found = [
        (candidates[0], of(candidates[0]))
    ]  # of the fewest copies: what refuses it refuses all
    for copies in candidates[1:]:
        with contextlib.suppress(Infeasible):
            found.append((copies, of(copies)))
    return min(found, key=lambda each: each[1].localized.bound)


def _paper(setting: _phases.Setting, failure: float) -> _phases.Round:
    """Theorem 12.3.8: J, I and m of the theorem, λ of the mended Proposition 12.3.7."""
    problem, moments = setting.problem, setting.moments
    users, phases = problem.num_users, 1
    for _ in range(3):
        copies = math.ceil(400 * math.log(phases / failure))
        phases = max(1, int(math.log2(max(2, users // copies))))
    each = users // copies
    if each < 2**phases:
        needed = 2 * copies
        what = f"num_users must be at least {needed} for {copies} copies of a phase, got {users}"
        raise Infeasible(what, {"num_users": needed})
    rho = rho_of(users, setting.budget, "paper", setting.accountant)
    error = 3 * clipped_descent.paper_distance(moments, each, problem.dim, rho)
    far, first = problem.require_distance(), moments.first
    strength = math.sqrt(first * error / 8.0**phases + 16 * error**2) / (4 * far)

    def phase(i: int) -> Copies:
        return aggregate_erm.plan(
            dataclasses.replace(problem, num_users=copies * (each // 2**i)),
            setting.budget,
            moments=moments,
            regularization=math.exp(math.log(strength) + i * math.log(32)),
            num_copies=copies,
            num_steps=setting.num_steps,
            failure=failure / phases,
            constants="paper",
            accountant=setting.accountant,
            chunk_size=setting.chunk_size,
        )

    def parts() -> tuple[Copies, ...]:
        return tuple(phase(i) for i in range(1, phases + 1))

    bound = rates.localization_bound(first, error, far, strength=strength, num_phases=phases)
    proven = bound if setting.num_steps is None else math.inf
    return _phases.Round(users, parts, proven, proven, copies)
