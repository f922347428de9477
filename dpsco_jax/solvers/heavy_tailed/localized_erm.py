"""Localization at the population's minimizers where slopes are bounded: private risk in expectation.

What it computes: ``population_localize`` with one copy and the clip at the largest slope L, which changes no
gradient of honest data: nothing has to be boosted, and the bound is on the mean. Strongly convex objectives
have rounds, as there.

Source: T, Proposition 12.6.6, by Algorithms 36 and 37 (the thesis cites Feldman, Koren and Talwar 2020,
Theorem 4.8, whose phases are around empirical minimizers).

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE: a user is in one phase, each of which
has the whole budget; every gradient is clipped, so that a wrong L costs utility alone. Utility:
``excess_bound``, with all constants, for convex losses of i.i.d. users with slopes of at most L, with a ridge
on bounded domains alone, and D at least the distance from the start to a minimizer. Of order G_2·D/√n +
L·D·√d/(n√ρ), if T is large; in rounds of G_2²/(μn) + L²d/(μn²ρ).

Cost: T·n user gradients, one program.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.heavy_tailed import localized_erm
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=150, items_per_user=2, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(1.0, 1e-5)
    >>> plan = localized_erm.plan(problem, budget, num_phases=2, num_steps=20)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: localized_erm.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import functools
import math
from typing import Annotated

from dpsco_jax import privacy
from dpsco_jax._argument_kinds import Count, Positive, one_of
from dpsco_jax.problems.problem import Problem
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers import _plan_base, _planning
from dpsco_jax.solvers.heavy_tailed import _phases
from dpsco_jax.solvers.heavy_tailed._terms import always_covered
from dpsco_jax.solvers.phased import Phased, solve
from dpsco_jax.solvers.plans import Remarks

__all__ = ["plan", "solve"]


@_plan_base.remembers(least_users=4)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    second_moment: Positive | None = None,
    num_rounds: Count | None = None,
    num_phases: Count | None = None,
    strength: Positive | None = None,
    num_steps: Count | None = None,
    clip_norm: Positive | None = None,
    constants: Annotated[str, one_of("practical", "tight")] = "practical",
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
) -> Phased:
    """Checks all arguments, chooses phases and strengths and plans each phase. All arguments are public.

    Args:
        problem: for the domain, L, n, the number of parameters and D, which must be finite.
        budget: (ε, δ) of the run, δ > 0.
        second_moment: G_2 with E L_u² ≤ G_2², at most L; L if left out.
        num_rounds: K of a strongly convex objective; if left out the best, up to ⌈log₂ log₂ n⌉ + 1.
        num_phases: I of every round; if left out the best, 8 at most.
        strength: λ, of λ_i = λ·32^i; if left out the best, with the best growth in place of 32.
        num_steps: T of every phase; if left out 1,000 at most.
        clip_norm: C, in place of L. With a smaller one nothing is proven.
        constants: ``"practical"``: phases and strengths by what is to be expected of noise and sample;
            ``"tight"``: by the proven bound. The bound stated is that of the numbers chosen.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, D is not finite, or users are too few for the phases.
    """
    clip = problem.lipschitz if clip_norm is None else clip_norm
    moments = Moments(math.inf, clip, clip if second_moment is None else second_moment)
    setting = _phases.Setting(problem, budget, moments, num_steps, accountant, chunk_size)
    practical = constants == "practical"

    def one_round(setting: _phases.Setting, count: int) -> _phases.Round:
        del count
        found = _phases.best_in_the_mean(setting, clip, num_phases, strength, practical)
        parts = functools.partial(_phases.parts, setting, found, 1)
        users = setting.problem.num_users
        return _phases.Round(users, parts, found.expected, found.localized.bound)

    made = _phases.rounds(setting, one_round, num_rounds, False)
    title = "localization at the population's minimizers, of bounded slopes"
    parts = _phases.phased(title, made, budget)
    covered = always_covered(problem) and clip >= problem.lipschitz
    return Phased(
        title=title,
        num_users=problem.num_users,
        parts=parts,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=made[-1].proven if covered else math.inf,
        details={"distance": problem.require_distance()},
        remarks=Remarks([*_phases.counted(made, parts), ("constants", constants)]),
        premises=Remarks(["users are i.i.d."]),
    )
