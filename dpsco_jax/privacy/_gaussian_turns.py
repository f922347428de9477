"""Gaussian releases of phases of several sizes in one program: what one of them costs, as numbers of a turn.

What it computes: nothing; ``stacked`` takes the noise of ``GaussianReleases`` and the loss of a step of each,
one entry for each phase, so that a loop over phases finds those of its turn.

Source: none.

Formal guarantee: the loss of a step is what the phase's own scheme has proven for its static sizes and for
the noise that runs; nothing is proven here. A phase whose loss is infinite keeps it.

Cost: none.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks
from dpsco_jax._numerics import array_namespace
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.loss import PrivacyLoss, unbounded_unless
from dpsco_jax.privacy.releases import GaussianReleases
from dpsco_jax.privacy.sampling import FullBatch


class TurnScheme(NamedTuple):
    """How the users of a step of this turn are drawn, as ``transforms.privatize`` takes it.

    Attributes:
        sampled: whether they are drawn, and not everybody takes part.
        relation: the one under which ``cost`` was proven.
        population_size: N of the turn.
        batch_size: K of the turn.
        cost: the loss of one Gaussian release of the turn, with the noise that it was proven for.
        proven_multiplier: of that noise; not a number where ``cost`` is not that of Gaussian releases.
    """

    sampled: bool
    relation: NeighboringRelation
    population_size: Number
    batch_size: Number
    cost: PrivacyLoss
    proven_multiplier: Number = math.nan

    def gaussian_loss(self, noise_multiplier: Any, relation: NeighboringRelation) -> PrivacyLoss:
        """``cost``; infinite for another noise than that of the proof.

        Raises:
            ValueError: for another relation than that of the proof.
        """
        wanted = f"{self.relation.name}, of this turn"
        _checks.require(relation is self.relation, "relation", relation, wanted)
        xp = array_namespace(noise_multiplier, self.proven_multiplier)
        same = xp.asarray(noise_multiplier) == xp.asarray(self.proven_multiplier)
        return unbounded_unless(same, self.cost)


@pytree
class GaussianTurn:
    """Noise and loss of a phase, one of several in a program, or the stack of them.

    Attributes:
        sampled: whether the users of a step are drawn, in all of the phases.
        relation: of all of the phases.
        population_size: N.
        batch_size: K, users of a step; N where none are drawn.
        num_steps: T.
        noise_multiplier: σ over the sensitivity.
        cost: the loss of one step.
        proven_multiplier: for which ``cost`` was proven.
    """

    sampled: bool = static()
    relation: NeighboringRelation = static()
    population_size: Number
    batch_size: Number
    num_steps: Number
    noise_multiplier: Number
    cost: PrivacyLoss
    proven_multiplier: Number

    @property
    def scheme(self) -> TurnScheme:
        """For ``transforms.privatize``."""
        sizes = self.population_size, self.batch_size
        return TurnScheme(self.sampled, self.relation, *sizes, self.cost, self.proven_multiplier)


def kind(releases: GaussianReleases) -> tuple[Any, ...] | None:
    """What phases must share to run in one program; ``None`` for Poisson samples."""
    _checks.require_instance("releases", releases, GaussianReleases)
    if releases.sampling != "fixed":
        return None
    return "gaussian", not isinstance(releases.scheme, FullBatch), releases.relation


def stacked(phases: Sequence[GaussianReleases]) -> GaussianTurn:
    """All phases, each number with an axis of phases in front.

    Raises:
        ValueError: there is no phase, they are not of one ``kind``, or one has no positive noise.
    """
    kinds = {kind(phase) for phase in phases}
    _checks.require(len(kinds) == 1 and None not in kinds, "phases", phases, "of one kind")
    _, sampled, relation = next(iter(kinds)) or ("", False, None)

    def column(*numbers: Any) -> Any:
        return array_namespace(*numbers).stack(numbers)

    for phase in phases:
        _checks.require_positive("noise_multiplier", phase.noise_multiplier)
    costs = [phase.scheme.gaussian_loss(phase.noise_multiplier, relation) for phase in phases]
    multipliers = column(*(phase.noise_multiplier for phase in phases))
    return GaussianTurn(
        sampled=sampled,
        relation=relation,
        population_size=np.asarray([phase.population_size for phase in phases], np.int32),
        batch_size=np.asarray([phase.batch_size for phase in phases], np.int32),
        num_steps=np.asarray([phase.num_steps for phase in phases], np.int32),
        noise_multiplier=multipliers,
        cost=jax.tree.map(column, *costs),
        proven_multiplier=multipliers,
    )
