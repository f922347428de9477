"""What plans for stationary points of smooth losses share: numbers, premises, and which point is reported."""

from typing import Annotated, NamedTuple

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import one_of
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import methods
from dpsco_jax.solvers.plans import Remarks

Reported = Annotated[str, one_of("random", "last")]
PREMISES = Remarks(("the loss is smooth on the whole space, and F(start) - inf F ≤ initial_gap",))


class Schedule(NamedTuple):
    """The numbers of a run, and what they prove.

    Attributes:
        num_steps: T.
        period: after how many steps an estimate of the gradient is begun anew; 1 where there is no other.
        step_size: η.
        gradient_share: μ² of a release of gradients, of the μ² of the whole run.
        difference_share: μ² of a release of differences of gradients.
        bound: proven bound on (E‖∇F(x)‖²)^½ at the reported point.
    """

    num_steps: int
    period: int
    step_size: float
    gradient_share: float
    difference_share: float
    bound: float


def steps(found: Schedule, reported: str) -> methods.ScheduledSgd:
    """The steps of a schedule, with the point to report: ``"random"`` or ``"last"``."""
    lengths = np.full(found.num_steps, found.step_size)
    if reported == "random":
        return methods.ScheduledSgd(lengths, np.full(len(lengths), 1 / len(lengths)), "random")
    return methods.ScheduledSgd(lengths, 1.0 * (np.arange(len(lengths)) == len(lengths) - 1))


def grid(most: int, points: int) -> list[int]:
    """Integers from 1 to ``most``, in ratio."""
    return sorted({int(x) for x in np.geomspace(1, most, points).round()} | {1, most})


def per_norm(relation: NeighboringRelation) -> float:
    """How far a sum of vectors of norm at most one moves between neighbours, each of whom has one."""
    distances = {NeighboringRelation.REPLACE_ONE: 2.0, NeighboringRelation.REPLACE_SPECIAL: 1.0}
    wanted = "REPLACE_ONE or REPLACE_SPECIAL"
    _checks.require(relation in distances, "relation", relation, wanted)
    return distances[relation]


def promised(relation: NeighboringRelation) -> NeighboringRelation | None:
    """The relation of a plan whose samples say another: replacement of a user by any other."""
    return relation if relation is NeighboringRelation.REPLACE_ONE else None


def gap_of(problem: Problem, initial_gap: float | None) -> float:
    """B: as given, or the range of the loss."""
    known = problem.objective.loss_range if initial_gap is None else initial_gap
    wanted = "given where the loss has no loss_range"
    _checks.require(known is not None, "initial_gap", initial_gap, wanted)
    return _checks.require_real("initial_gap", known, 0)


def smoothness_of(problem: Problem, given: float | None, name: str) -> float:
    """M: as given under a name, or that of the objective."""
    known = problem.objective.smoothness if given is None else given
    wanted = "given where the loss has no smoothness constant"
    _checks.require(known is not None and known > 0, name, known, wanted)
    return float(known)  # type: ignore[arg-type]
