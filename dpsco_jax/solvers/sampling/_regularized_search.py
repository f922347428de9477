"""Which regularization and which ε a draw is planned for, of those that a budget allows.

What it computes: the plan with the least ``predicted_excess`` over regularizations; and, where rounding takes
much of δ at the budget's ε, over smaller ε, at which it may take so much less that more is left.

Source: none.

Formal guarantee: none. Every plan that is tried is within the budget by itself.

Cost: that of some tens of plans, a tenth of a second for each ε that is tried.
"""

from collections.abc import Callable
from typing import Any

from dpsco_jax import privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.solvers.sampling._regularized_plan import Plan

_MOST_DOUBLINGS = 12
_WORSE = 4  # regularizations in a row, of which the first is the best, end the search
_BOUND_BY_ROUNDING = 0.9  # of the s that δ allows without it
_LESS = 0.75  # of ε, tried in turn


def within(plan: Callable[[privacy.Budget], Plan], budget: privacy.Budget) -> Plan:
    """The best plan for the budget or for a smaller ε.

    Raises:
        Infeasible: there is none; where δ is too small the refusal names one that would do, if there is any.
    """
    found = _naming_delta(plan, budget)
    while found.gdp < _BOUND_BY_ROUNDING * privacy.gdp_within(found.epsilon, budget.delta):
        try:
            smaller = plan(privacy.Budget(_LESS * found.epsilon, budget.delta))
        except Infeasible:
            break
        if smaller.predicted_excess >= found.predicted_excess:
            break
        found = smaller
    return found


def best(under: Callable[[float], Plan], middle: float) -> Plan:
    """The plan with the least prediction, over regularizations around the one in the middle."""
    tried: list[Plan] = []
    refusal: Infeasible | None = None
    for doublings in range(-4 * _MOST_DOUBLINGS, 4 * _MOST_DOUBLINGS + 1):
        try:
            tried.append(under(middle * 2.0 ** (doublings / 4)))
        except Infeasible as refused:
            # The last one that lacks δ says what is the matter, if any does.
            refusal = refused if refusal is None or refused.needed else refusal
        # Once one is possible, larger ones are, and in the end they only get worse.
        if len(tried) > _WORSE and min(tried[-_WORSE:], key=_prediction) is tried[-_WORSE]:
            break
    if not tried:
        assert refusal is not None
        raise refusal
    return min(tried, key=_prediction)


def _naming_delta(plan: Callable[[privacy.Budget], Plan], budget: privacy.Budget) -> Plan:
    """The plan; where δ is too small, the refusal names one that would do, if there is any."""
    try:
        return plan(budget)
    except Infeasible as refusal:
        if "delta" not in refusal.needed:
            raise
        said = str(refusal)
    delta = 4.0 * budget.delta
    while delta < 1.0:
        try:
            plan(privacy.Budget(budget.epsilon, delta))
        except Infeasible:
            delta *= 4.0
        else:
            raise Infeasible(f"{said}; delta = {delta!r} would do", {"delta": delta})
    raise Infeasible(said)


def _prediction(made: Plan) -> Any:
    return made.predicted_excess
