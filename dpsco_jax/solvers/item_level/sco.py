"""Private stochastic convex optimization, non-smooth losses included, with few gradients.

What it computes: a point of small population risk, from i.i.d. users. Convex: iterative localization, each
phase by restarts of private AC-SA. Strongly convex: restarts of that on blocks of users that double.

Source: T, Lemma 1.5.4, Theorems 1.1.2 and 1.5.6, Lemma 1.5.5. Corrections: see ``combinators.localization``,
``combinators.restarts`` and ``private_ac_sa``; losses must be Lipschitz within the smoothing radius of the
domain, which can be further out than the theorem says.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, by the joint event of all phases.
Utility: ``excess_bound`` on the expected excess population risk, for convex G-Lipschitz losses and i.i.d.
users. With ℓ = log(1/δ) it is of order GR(1/√N + √(dℓ)/(εN)), if μ-strongly convex (G²/μ)(1/N + dℓ/(ε²N²)).

Cost: of order N + min(√ε·N^{5/4}·d^{1/8}, εN^{3/2}/(d^{1/8}ℓ^{1/4})) user gradients; the plan counts them.
A tight plan takes seconds, as does the compilation of each stage of each phase, whose sizes are its own.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import sco
    >>> made = synthetic.mean_estimation(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = sco.plan(made.problem(distance=2.0), Budget(1.0, 1e-5))
    >>> run = jax.jit(lambda key: sco.solve(key, plan, made.objective, made.data, jax.numpy.zeros(3)))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import functools
from typing import Annotated

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Constants, Count, one_of
from dpsco_jax.privacy import Budget
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base
from dpsco_jax.solvers.combinators import localization, restarts
from dpsco_jax.solvers.combinators.composite import Plan, start_distance
from dpsco_jax.solvers.item_level import _stages
from dpsco_jax.solvers.item_level._stages import solve

__all__ = ["Plan", "plan", "solve"]

_STAGES, _BLOCKS = 3, 2
METHODS = ("localization", "restarts")


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: Budget,
    *,
    constants: Constants = "tight",
    method: Annotated[str, one_of("auto", *METHODS)] = "auto",
    num_stages: Count | None = _STAGES,
    num_phases: Count | None = None,
    num_blocks: Count | None = _BLOCKS,
    chunk_size: Count = 64,
) -> Plan:
    """Checks all arguments, sets the schedule and calibrates the noise. All of them are public.

    Args:
        problem: for the objective, N ≥ 2, the number of parameters, and R; what domain and strong convexity
            say in its place if it has none.
        budget: (ε, δ) of the run, δ > 0; both at most 1/2 for ``constants="paper"``.
        constants: ``"tight"`` or ``"paper"``, for all parts: schedules, budgets and noise.
        method: ``"localization"``, ``"restarts"`` (strongly convex only), or ``"auto"``: of the two the one
            that proves more (``"paper"``: restarts, if strongly convex).
        num_stages: of AC-SA in each phase; ``None`` for the number that proves most. ``"paper"`` has its own,
            and refuses another one.
        num_phases: see ``combinators.localization``.
        num_blocks: of the restarts around the localization; ``None`` for the number that proves most. To be
            left out for ``"paper"``, which has its own, and where there are none.
        chunk_size: users whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, R is not finite, or users are too few.
    """
    problem = dataclasses.replace(problem, distance=start_distance(problem))
    paper = constants == "paper"
    stage = functools.partial(
        _stages.plan, constants=constants, population=True, chunk_size=chunk_size
    )
    phase = functools.partial(
        restarts.plan, stage, num_stages=None if paper else num_stages, constants=constants
    )
    localized = functools.partial(
        localization.plan, phase, constants=constants, num_phases=num_phases
    )

    def under(method: str) -> Plan:
        if method == "localization":
            return localized(problem, budget)
        return restarts.plan(
            localized,
            problem,
            budget,
            on_blocks=True,
            num_stages=None if paper else num_blocks,
            constants=constants,
        )

    methods = METHODS if problem.objective.strong_convexity > 0 else METHODS[:1]
    if paper:
        methods = methods[-1:]
    methods = methods if method == "auto" else (method,)
    # What is as by default may be left out.
    stages, blocks = (
        None if found == usual else found
        for found, usual in ((num_stages, _STAGES), (num_blocks, _BLOCKS))
    )
    own = "with constants='paper', which has its own"
    _checks.require_absent(not paper, own, num_stages=stages, num_blocks=blocks)
    restarted = "restarts" in methods
    _checks.require_absent(restarted, "without restarts around phases", num_blocks=blocks)
    return _stages.best(under, methods, f"private population risk, {constants}")
