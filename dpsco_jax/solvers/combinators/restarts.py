"""Restarts: the distance to the minimizer drops out of the risk of a strongly convex problem.

What it computes: runs an inner solver several times, each from where the last run has ended, with a bound on
the distance to the minimizer w* that is known beforehand: R_1 = R, then R_{j+1} = √(2·bound_j/μ), since
(μ/2)·‖w - w*‖² is at most the excess risk of w. A stage that would get no nearer is left out.

Source: T, Lemmas 1.4.6, 1.4.7 (all stages on all users) and 1.5.5 (each on a block of its own), which restart
with distances that nobody knows. With these corrections: the distances follow from proven bounds, hence from
public numbers; blocks compose in parallel; stages on all users have one joint accounting.

- ``"tight"``, on all users: stage j of J gets a share of ε in proportion to 2^-(J-j), so of the Rényi budget
  to 4^-(J-j), times a common factor for which the joint event just meets (ε, δ). J is the number that proves
  most. On blocks: sizes double and each stage has (ε, δ).
- ``"paper"``: J = ⌈log₂ log₂ N³⌉, stage j has (ε, δ)/2^(J+1-j) and, on blocks, N/2^(J+1-j) users.

Formal guarantee: (ε, δ)-DP under REPLACE_ONE if every inner solver meets its budget, by the joint event.
Utility: the bound of the last stage, for every start whose root-mean-square distance is at most R, as inner
bounds are (those of AC-SA are affine in the mean square). On all users: of the empirical risk. On blocks: of
the population risk, if the inner bound is.

Cost: that of the stages; on all users with T, B as they grow with ε the last one dominates.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.convex import composite, restarts
    >>> from dpsco_jax.solvers.item_level import private_ac_sa as inner
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=200, items_per_user=2, dim=3)
    >>> plan = restarts.plan(inner.plan, made.problem(distance=5.0), Budget(1.0, 1e-5), num_stages=2)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: composite.solve(inner.solve, key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> len(plan.parts), int(solution.status), plan.certificate().epsilon <= 1.0
    (1, 0, True)
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Constants, Count, Flag, Function, Nonnegative
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.privacy import Budget
from dpsco_jax.privacy.accountants import FEW_POINTS
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _sequence
from dpsco_jax.solvers.combinators.composite import Plan, farthest, start_distance

_MOST_STAGES = 6
_WORTH = 0.98  # a further stage must lower the bound to this share
_USED = 0.985  # of ε, by the joint event
_TRIALS = 8
_POINTS = 2**17  # of a grid of losses; mostly within 1e-4 of what the finest proves


class _Stage(NamedTuple):
    """What a stage may use."""

    num_users: int
    budget: Budget


@_plan_base.remembers(least_users=2)
def plan(
    inner: Function,
    problem: Problem,
    budget: Budget,
    *,
    regularization: Nonnegative = 0.0,
    on_blocks: Flag = False,
    num_stages: Count | None = None,
    constants: Constants = "tight",
) -> Plan:
    """Checks all arguments and plans all stages. All of them are public.

    Args:
        inner: ``plan`` of a solver; see ``composite``.
        problem: for the objective, which is strongly convex unless ``regularization`` is positive, N ≥ 2
            and R; what domain and strong convexity say in its place if it has none.
        budget: (ε, δ) of the run, δ > 0.
        regularization: u ≥ 0 of a term (u/2)·‖w - center‖² in the objective.
        on_blocks: whether every stage has users of its own.
        num_stages: J; if left out the number that proves most, or the paper's for ``constants="paper"``.
        constants: ``"tight"`` or ``"paper"``; for the budgets alone, the inner plan has its own.

    Raises:
        ValueError: an argument is out of range, R is not finite, there is no strong convexity, or no stage
            is possible.
    """
    objective, num_users = problem.objective, problem.num_users
    convexity = objective.strong_convexity + regularization
    convexity = _checks.require_real("strong_convexity", convexity, 0)
    distance = start_distance(problem, regularization)
    paper = constants == "paper"
    # Points other than the centre, where the centred term has a slope, can be as far as the domain allows.
    cap = problem.diameter if regularization else farthest(objective)

    def chain(stages: list[_Stage]) -> Plan:
        parts: list[Any] = []
        distances = [distance]
        why = ""
        for stage in stages:
            try:
                asked = dataclasses.replace(
                    problem, num_users=stage.num_users, distance=distances[-1]
                )
                part = inner(asked, stage.budget, regularization=regularization)
            except ValueError as error:
                # The paper's first stages are too small for an inner solver.
                if not paper or stage == stages[-1]:
                    raise
                why = f": {error}"
                continue
            nearer = min(cap, math.sqrt(2 * part.excess_bound / convexity))
            if nearer < distances[-1] or stage == stages[-1]:
                parts.append(part)
                distances.append(nearer)
        remarks = [("stages", str(len(parts)))]
        if len(parts) < len(stages):
            remarks.append(("stages left out", f"{len(stages) - len(parts)}{why}"))
        return Plan(
            title="restarts",
            num_users=num_users,
            on_blocks=on_blocks,
            composition="parallel" if on_blocks and not paper else "sequential",
            remarks=tuple(remarks),
            premises=(),
            distance=distance,
            parts=tuple(parts),
            distances=tuple(distances[:-1]),
            strengths=(regularization,) * len(parts),
            center_shares=(1.0,) * len(parts),
            epsilon=budget.epsilon,
            delta=budget.delta,
            excess_bound=parts[-1].excess_bound,
        )

    if paper:
        return chain(paper_stages(num_users, budget, num_stages, on_blocks))
    if on_blocks:
        return _best(lambda j: chain(_blocks_of(num_users, budget, j)), num_stages)
    best = _best(lambda j: chain(_shares_of(num_users, budget, j)), num_stages)
    count = num_stages or len(best.parts)

    def spending(epsilon: float) -> Plan:
        return chain(_shares_of(num_users, dataclasses.replace(budget, epsilon=epsilon), count))

    return _filled(spending, best)


def paper_stages(
    num_users: int, budget: Budget, num_stages: int | None, on_blocks: bool
) -> list[_Stage]:
    """The stages of Lemma 1.4.7 or, on blocks, of Lemma 1.5.5: (ε, δ) and N over 2^(k+1-i)."""
    count = num_stages or math.ceil(math.log2(math.log2(num_users**3)))
    halves = [2 ** (count - i) for i in range(count)]
    return [
        _Stage(
            num_users // (half if on_blocks else 1),
            dataclasses.replace(budget, epsilon=budget.epsilon / half, delta=budget.delta / half),
        )
        for half in halves
    ]


def _shares_of(num_users: int, budget: Budget, count: int) -> list[_Stage]:
    """Shares of the Rényi budget, which is about ε², in proportion to 4^-(J-j)."""
    total = math.sqrt(math.fsum(0.25**i for i in range(count)))
    shares = [0.5**i / total for i in reversed(range(count))]
    budgets = [dataclasses.replace(budget, epsilon=budget.epsilon * share) for share in shares]
    return [_Stage(num_users, each) for each in budgets]


def _blocks_of(num_users: int, budget: Budget, count: int) -> list[_Stage]:
    sizes = _sequence.block_sizes(num_users, 2.0, count, least=2)
    return [_Stage(size, budget) for size in sizes]


def _best(under: Callable[[int], Plan], num_stages: int | None) -> Plan:
    """The plan with the number of stages that proves most, or with the number that was asked for."""
    if num_stages is not None:
        return under(num_stages)
    best = under(1)
    for count in range(2, _MOST_STAGES + 1):
        try:
            candidate = under(count)
        except Infeasible:  # blocks too small for so many stages
            break
        if candidate.excess_bound > _WORTH * best.excess_bound:
            break
        best = candidate
    return best


def _filled(under: Callable[[float], Plan], first: Plan) -> Plan:
    """The plan scaled until its joint event nearly fills the budget, and does not exceed it."""
    plan, best, spend = first, None, float(first.epsilon)
    for trial in range(2 * _TRIALS):
        # Once scaled, a small grid will do, which proves nearly as much; where it does not, a finer one.
        spent = plan.certificate(FEW_POINTS).epsilon if trial else math.inf
        if not _USED * plan.epsilon <= spent <= plan.epsilon:
            spent = plan.certificate(_POINTS).epsilon
        if spent <= plan.epsilon:
            if best is None or plan.excess_bound <= best.excess_bound:
                best = plan
            if spent == 0.0 or spent >= _USED * plan.epsilon or trial >= _TRIALS:
                return best
        # ε of the whole is nearly proportional; sizes of stages jump.
        spend *= (0.5 + 0.5 * _USED) * (1.0 if trial < _TRIALS else 0.9) * plan.epsilon / spent
        plan = under(spend)
    raise Infeasible(f"epsilon must be what the stages can meet together, got {first.epsilon}")
