"""Plans from one flat set of keywords, as tables of tests hold them."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from dpsco_jax import Budget, Problem
from dpsco_jax.solvers.item_level import ball_accelerated_erm

SIZES = ("num_users", "dim", "items_per_user", "distance")
BUDGET = ("epsilon", "delta", "allow_large_delta")


def planned(plan: Callable[..., Any], *first: Any, **given: Any) -> Any:
    """``plan(*inner, Problem(...), Budget(...), **others)``.

    Args:
        plan: of a solver or a combinator.
        *first: what the plan takes before the problem, an inner planner for example, and the objective.
        **given: the sizes of the problem, the numbers of the budget (none of a solver without one), and the
            plan's own arguments; those of its ``calls``, where it has that argument.
    """
    *inner, objective = first
    # Combinators, and solvers over a finite set, do not look at the dimension.
    sizes = {"dim": 1} | {name: given.pop(name) for name in SIZES if name in given}
    cost = {name: given.pop(name) for name in BUDGET if name in given}
    budget = (Budget(**cost),) if cost else ()
    if "calls" in inspect.signature(plan).parameters and "calls" not in given:
        names = [field.name for field in dataclasses.fields(ball_accelerated_erm.Calls)]
        given["calls"] = ball_accelerated_erm.Calls(
            **{name: given.pop(name) for name in names if name in given}
        )
    return plan(*inner, Problem(objective, **sizes), *budget, **given)
