"""Regularization: a convex problem by a solver for strongly convex ones.

What it computes: runs the inner solver on the objective plus (u/2)·‖w - center‖², where the centre is the
starting point.

Source: T, Lemma 1.4.10, for empirical and for population risk. With this correction: the term is centred at
the start; the printed u·‖w‖² proves what it should only if the origin is near the domain.

Formal guarantee: privacy is the inner solver's. Utility, for R ≥ ‖w_0 - w*‖, with E the inner bound for the
sum H of objective and term:

    F(w) - F(w*) ≤ E + uR²/2,    since F(w) ≤ H(w) ≤ H(w*) + E = F(w*) + (u/2)‖w* - w_0‖² + E.

Cost: that of the inner solver.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.convex import composite, regularization
    >>> from dpsco_jax.solvers.item_level import private_ac_sa as inner
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=200, items_per_user=2, dim=3)
    >>> plan = regularization.plan(inner.plan, made.problem(distance=5.0), Budget(1.0, 1e-5))
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: composite.solve(inner.solve, key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> len(plan.parts), int(solution.status), plan.certificate().epsilon <= 1.0
    (1, 0, True)
"""

import dataclasses
import math

from dpsco_jax._argument_kinds import Function, Positive
from dpsco_jax.privacy import Budget
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base
from dpsco_jax.solvers.combinators.composite import Plan, farthest, start_distance

_ROUNDS = 2


@_plan_base.remembers(least_users=2)
def plan(
    inner: Function,
    problem: Problem,
    budget: Budget,
    *,
    regularization: Positive | None = None,
) -> Plan:
    """Checks all arguments and plans the inner solver. All of them are public.

    Args:
        inner: ``plan`` of a solver for strongly convex problems; see ``composite``.
        problem: for the objective, N ≥ 2 and R; the diameter of the domain in its place if it has none.
        budget: (ε, δ) of the run, δ > 0.
        regularization: u > 0; if left out, what balances uR²/2 with an inner bound of the form κ·G²/u, for
            κ as found.

    Raises:
        ValueError: an argument is out of range or R is not finite.
    """
    distance = start_distance(problem)

    def under(strength: float) -> Plan:
        reach = min(distance, farthest(problem.objective, strength))
        near = dataclasses.replace(problem, distance=reach)
        part = inner(near, budget, regularization=strength)
        return Plan(
            title="regularization",
            num_users=problem.num_users,
            on_blocks=False,
            composition="sequential",
            remarks=(),
            premises=(),
            distance=distance,
            parts=(part,),
            distances=(reach,),
            strengths=(strength,),
            center_shares=(1.0,),
            epsilon=budget.epsilon,
            delta=budget.delta,
            excess_bound=part.excess_bound + strength * distance**2 / 2,
        )

    if regularization is not None:
        return under(regularization)
    strength = problem.lipschitz / distance / math.sqrt(problem.num_users)
    best = under(strength)
    for _ in range(_ROUNDS):
        error = best.parts[0].excess_bound
        if not math.isfinite(error):
            break
        strength = math.sqrt(2 * error * strength) / distance
        best = min(best, under(strength), key=lambda found: found.excess_bound)
    return best
