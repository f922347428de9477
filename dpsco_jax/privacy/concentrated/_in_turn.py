"""Phases of several sizes in one program: what one of them releases, with its sizes as numbers.

What it computes: nothing; ``stacked`` takes the numbers of ``ConcentratedReleases`` and their losses, one
entry for each phase, so that a loop over phases finds those of its turn.

Source: none.

Formal guarantee: sensitivities and losses are those that ``ConcentratedReleases`` has proven for its own
static sizes and for the numbers that run; nothing is proven here. A phase whose loss is infinite keeps it.

Cost: none.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks
from dpsco_jax._numerics import array_namespace
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy._gaussian_turns import TurnScheme
from dpsco_jax.privacy.concentrated._proof import SCORE_SENSITIVITY
from dpsco_jax.privacy.concentrated.threshold_phase import ConcentratedReleases
from dpsco_jax.privacy.loss import PrivacyLoss


@pytree
class InTurn:
    """A phase, one of several in a program, or the stack of them.

    Attributes:
        capacity: users of a step of the largest phase; vectors have so many rows.
        sampled: whether the users of a step are drawn, in all of the phases.
        test: as in ``ConcentratedReleases``.
        selection: as in ``ConcentratedReleases``.
        relation: REPLACE_ONE or REPLACE_SPECIAL.
        population_size: N of this phase.
        num_users: K of this phase, users of a step, at most ``capacity``; N where none are drawn.
        num_steps: T of this phase.
        keep_level: θ.
        threshold: of the score.
        test_epsilon: pure-DP share of the stream, or of one fresh test.
        noise_stddev: σ in score radii.
        sensitivity: κ, of the mean, in score radii.
        cost: the loss of the whole phase.
    """

    capacity: int = static()
    sampled: bool = static()
    test: str = static()
    selection: str = static()
    relation: NeighboringRelation = static()
    population_size: Number
    num_users: Number
    num_steps: Number
    keep_level: Number
    threshold: Number
    test_epsilon: Number
    noise_stddev: Number
    sensitivity: Number
    cost: PrivacyLoss

    @property
    def scheme(self) -> TurnScheme:
        """How the users of a step of this turn are drawn."""
        sizes = self.population_size, self.num_users
        return TurnScheme(self.sampled, self.relation, *sizes, self.cost)

    @property
    def score_sensitivity(self) -> float:
        """2, as for ``ConcentratedReleases``."""
        return SCORE_SENSITIVITY

    def loss(self) -> PrivacyLoss:
        """What the whole phase costs."""
        return self.cost


def kind(releases: ConcentratedReleases) -> tuple[Any, ...]:
    """What phases must share to run in one program."""
    _checks.require_instance("releases", releases, ConcentratedReleases)
    sampled = releases.batch_size != releases.population_size
    return releases.test, releases.selection, releases.relation, sampled


def stacked(phases: Sequence[ConcentratedReleases]) -> InTurn:
    """All phases, each number with an axis of phases in front.

    Raises:
        ValueError: there is no phase, or they are not of one ``kind``.
    """
    kinds = set(map(kind, phases))
    _checks.require(len(kinds) == 1, "phases", phases, "of one kind")
    ((test, selection, relation, sampled),) = kinds

    def column(*numbers: Any) -> Any:
        return array_namespace(*numbers).stack(numbers)

    sizes = [phase.batch_size for phase in phases]
    return InTurn(
        capacity=max(sizes),
        sampled=sampled,
        test=test,
        selection=selection,
        relation=relation,
        population_size=np.asarray([phase.population_size for phase in phases], np.int32),
        num_users=np.asarray(sizes, np.int32),
        num_steps=np.asarray([phase.num_steps for phase in phases], np.int32),
        keep_level=column(*(phase.keep_level for phase in phases)),
        threshold=column(*(phase.threshold for phase in phases)),
        test_epsilon=column(*(phase.test_epsilon for phase in phases)),
        noise_stddev=column(*(phase.noise_stddev for phase in phases)),
        sensitivity=column(*(phase.sensitivity for phase in phases)),
        cost=jax.tree.map(column, *(phase.loss() for phase in phases)),
    )
