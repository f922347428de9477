"""Which objective a plan was made for: constants that ``solve`` compares with those of the one it is given.

What it computes: ``remembers`` decorates a ``plan``; what it returns holds the constants of its problem's
objective. Bounds, step sizes and, where nothing is clipped, sensitivities follow from them, so that a run of
another objective would not be the one that was planned.

Formal guarantee: none; losses and certificates of plans rest on numbers that the run itself uses. Two
objectives with the same constants are not told apart.

Cost: none.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np

from dpsco_jax._pytrees import pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem

_Arguments = ParamSpec("_Arguments")
_Plan = TypeVar("_Plan", bound="MadeFor")


class Constants(NamedTuple):
    """What plans take from an objective; see ``Objective``."""

    lipschitz: float
    smoothness: float | None
    ridge: float
    loss_strong_convexity: float
    diameter: float


@pytree
class MadeFor:
    """What plans inherit that remember their objective.

    Attributes:
        made_for: its constants; ``None`` where it is not known, as for a phase that is run by itself.
    """

    made_for: Constants | None = static(default=None, kw_only=True)


def remembers(plan: Callable[_Arguments, _Plan]) -> Callable[_Arguments, _Plan]:
    """The ``plan`` of which every result holds the constants of the objective that it was made for."""

    @functools.wraps(plan)
    def planned(*given: _Arguments.args, **named: _Arguments.kwargs) -> _Plan:
        made = plan(*given, **named)
        _require_affordable(made)
        problem = next(value for value in (*given, *named.values()) if isinstance(value, Problem))
        return dataclasses.replace(made, made_for=_constants(problem.objective))

    return planned


def _require_affordable(plan: Any) -> None:
    """``ValueError`` where a run of the plan would cost infinity: its noise is less than float32 can draw."""
    if not hasattr(plan, "loss"):
        return
    divergences = plan.loss().rdp
    if not isinstance(divergences, jax.core.Tracer) and not np.any(np.isfinite(divergences)):
        raise ValueError(
            "problem and budget must leave noise that float32 can draw, got a plan with an infinite loss"
        )


def require_same(plan: Any, objective: Objective) -> None:
    """``ValueError`` unless the objective has the constants that the plan was made for, if it knows them."""
    planned = getattr(plan, "made_for", None)
    if planned is None:
        return
    found = _constants(objective)
    for name, expected, value in zip(Constants._fields, planned, found, strict=True):
        if not isinstance(value, jax.core.Tracer) and value != expected:
            raise ValueError(
                f"objective must be the one that the plan was made for, with {name} = {expected}, "
                f"got {value}"
            )


def _constants(objective: Objective) -> Constants:
    return Constants(
        lipschitz=_number(objective.lipschitz),
        smoothness=_number(objective.smoothness),
        ridge=_number(objective.ridge),
        loss_strong_convexity=_number(objective.loss_strong_convexity),
        diameter=_number(objective.domain.diameter),
    )


def _number(value: Any) -> Any:
    """On the host, so that it can be part of a structure; what is traced stays so."""
    if value is None or isinstance(value, jax.core.Tracer):
        return value
    return float(np.asarray(value))
