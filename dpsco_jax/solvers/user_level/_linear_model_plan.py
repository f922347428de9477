"""What plans share that fit smooth linear models by Gaussian releases of sums over all users.

Releases of multipliers s_i are together as private as one of the multiplier (Σ 1/s_i²)^(-1/2), which is what
is calibrated. Losses and certificates are those of the multipliers that run, and infinite where a number of
the plan is out of its range.
"""

import math
from typing import Any

from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._pytrees import pytree
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.solvers._plan_base import MadeFor


@pytree
class GaussianSums(MadeFor):
    """What plans inherit that have ``releases``: pairs of a multiplier and how often it is used."""

    excess_bound = math.inf  # none is proven

    @property
    def event(self: Any) -> events.DpEvent:
        """What is released."""
        return events.composed(
            *(events.repeated(events.gaussian(float(s)), count) for s, count in self.releases)
        )

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return NeighboringRelation.REPLACE_ONE

    def loss(self: Any) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where one is out of its range; may be traced.

        Raises:
            ValueError: a multiplier is known not to be positive, or is none where one is needed.
        """
        losses = [privacy.scale(privacy.gaussian(s), count) for s, count in self.releases]
        return privacy.unbounded_unless(self.accounted, privacy.compose(*losses))

    def certificate(self: Any) -> privacy.Certificate:
        """The (ε, δ) of a run of these numbers, by the tightest accountant; infinite as ``loss`` is.

        Raises:
            ValueError: ``delta`` is not in (0, 1), or a multiplier is none.
        """
        event = self.event if bool(self.accounted) else events.NonPrivateDpEvent()
        return privacy.certificate(
            event, float(self.delta), self.relation, ("the key stays secret",)
        )

    def ledger_epsilon(self: Any) -> float:
        """ε of the run by its Rényi curve."""
        return float(privacy.epsilon(self.loss(), float(self.delta)))


def smooth_linear_model(objective: Objective, matrix: bool = False) -> tuple[LinearModel, float]:
    """The linear model and the smoothness; ``ValueError`` if there is none of either.

    Args:
        objective: of the solver.
        matrix: whether the parameters may be a matrix.
    """
    model = objective.linear_model if matrix else objective.vector_model
    if model is None or objective.smoothness is None:
        of_vectors = "" if matrix else " whose parameters are a vector"
        raise ValueError(
            f"objective must be a smooth linear model{of_vectors}, got "
            f"linear_model = {objective.linear_model}, smoothness = {objective.smoothness}"
        )
    return model, objective.smoothness
