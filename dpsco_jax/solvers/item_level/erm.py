"""Private empirical risk minimization, non-smooth losses included, with few gradients.

What it computes: a point of small mean loss over the users. Strongly convex objectives: restarts of private
AC-SA. Convex ones: one run of AC-SA's convex policy, or restarts on the objective with a centred term.

Source: T, Theorems 1.1.1, 1.4.9 (strongly convex) and 1.4.11 (convex, by Lemma 1.4.10); the direct method is
Algorithm 4 with the policy for no strong convexity. Corrections: see the parts.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, by the joint event of all stages.
Utility: ``excess_bound`` on the expected excess empirical risk, for convex G-Lipschitz losses. With ℓ =
log(1/δ) it is of order G²dℓ/(με²N²) (strongly convex) or GR√(dℓ)/(εN) (convex).

Cost: of order εN^{3/2}/(d^{1/8}ℓ^{1/4}) + ε²N²/(dℓ) user gradients; the plan counts them.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import erm
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = erm.plan(made.problem(distance=5.0), Budget(1.0, 1e-5))
    >>> run = jax.jit(lambda key: erm.solve(key, plan, made.objective, made.data, jax.numpy.zeros(3)))
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
from dpsco_jax.solvers.combinators import regularization, restarts
from dpsco_jax.solvers.combinators.composite import Plan, start_distance
from dpsco_jax.solvers.item_level import _stages, private_ac_sa
from dpsco_jax.solvers.item_level._stages import solve

__all__ = ["Plan", "plan", "solve"]

METHODS = ("restarts", "direct", "regularize")


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: Budget,
    *,
    constants: Constants = "tight",
    method: Annotated[str, one_of("auto", *METHODS)] = "auto",
    num_stages: Count | None = None,
    chunk_size: Count = 64,
) -> Plan:
    """Checks all arguments, sets the schedule and calibrates the noise. All of them are public.

    Args:
        problem: for the objective, N ≥ 2, the number of parameters, and R; what domain and strong convexity
            say in its place if it has none.
        budget: (ε, δ) of the run, δ > 0; both at most 1/2 for ``constants="paper"``.
        constants: ``"tight"`` or ``"paper"``, for restarts and for AC-SA.
        method: ``"restarts"`` (strongly convex only), ``"direct"``, ``"regularize"``, or ``"auto"``: of the
            first two the one that proves more. ``"paper"``: restarts, or regularization if only convex.
        num_stages: of the restarts; the number that proves most if left out, or the paper's. To be left out
            where nothing is restarted.
        chunk_size: users whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, or R is not finite; the message says which.
    """
    problem = dataclasses.replace(problem, distance=start_distance(problem))
    stage = functools.partial(
        _stages.plan, constants=constants, population=False, chunk_size=chunk_size
    )
    restarted = functools.partial(restarts.plan, stage, num_stages=num_stages, constants=constants)

    def under(method: str) -> Plan:
        if method == "restarts":
            return restarted(problem, budget)
        if method == "regularize":
            return regularization.plan(restarted, problem, budget)
        return Plan.of(
            private_ac_sa.plan(
                problem, budget, constants=constants, policy="direct", chunk_size=chunk_size
            )
        )

    curved = problem.objective.strong_convexity > 0
    if method != "auto":
        methods: tuple[str, ...] = (method,)
    elif constants == "paper":
        methods = ("restarts",) if curved else ("regularize",)
    else:
        methods = METHODS[:2] if curved else ("direct",)
    nothing = "where nothing is restarted: method='direct', or 'auto' for what is convex only"
    _checks.require_absent(methods != ("direct",), nothing, num_stages=num_stages)
    return _stages.best(under, methods, f"private empirical risk, {constants}")
