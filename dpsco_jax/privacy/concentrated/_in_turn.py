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
from dpsco_jax.privacy.concentrated._proof import SCORE_SENSITIVITY
from dpsco_jax.privacy.concentrated.threshold_phase import ConcentratedReleases
from dpsco_jax.privacy.loss import PrivacyLoss
from dpsco_jax.privacy.sampling import FullBatch


@pytree
class InTurn:
    """A phase in which everybody takes part, one of several in a program, or the stack of them.

    Attributes:
        capacity: users of the largest phase; vectors have so many rows.
        test: as in ``ConcentratedReleases``.
        selection: as in ``ConcentratedReleases``.
        relation: REPLACE_ONE or REPLACE_SPECIAL.
        num_users: N of this phase, at most ``capacity``.
        num_steps: T of this phase.
        keep_level: θ.
        threshold: of the score.
        test_epsilon: pure-DP share of the stream, or of one fresh test.
        noise_stddev: σ in score radii.
        sensitivity: κ, of the mean, in score radii.
        cost: the loss of the whole phase.
    """

    capacity: int = static()
    test: str = static()
    selection: str = static()
    relation: NeighboringRelation = static()
    num_users: Number
    num_steps: Number
    keep_level: Number
    threshold: Number
    test_epsilon: Number
    noise_stddev: Number
    sensitivity: Number
    cost: PrivacyLoss

    @property
    def scheme(self) -> FullBatch:
        """Everybody takes part in every step."""
        return FullBatch()

    @property
    def sampling_rate(self) -> float:
        """1: nobody is sampled."""
        return 1.0

    @property
    def score_sensitivity(self) -> float:
        """2, as for ``ConcentratedReleases``."""
        return SCORE_SENSITIVITY

    def loss(self) -> PrivacyLoss:
        """What the whole phase costs."""
        return self.cost


def kind(releases: ConcentratedReleases) -> tuple[Any, ...] | None:
    """What phases must share to run in one program; ``None`` for batches, whose draws have static sizes."""
    _checks.require_instance("releases", releases, ConcentratedReleases)
    if releases.batch_size != releases.population_size:
        return None
    return releases.test, releases.selection, releases.relation


def stacked(phases: Sequence[ConcentratedReleases]) -> InTurn:
    """All phases, each number with an axis of phases in front.

    Raises:
        ValueError: there is no phase, or they are not of one ``kind``.
    """
    kinds = {kind(phase) for phase in phases}
    _checks.require(len(kinds) == 1 and None not in kinds, "phases", phases, "of one kind")
    test, selection, relation = next(iter(kinds)) or ("", "", None)

    def column(*numbers: Any) -> Any:
        return array_namespace(*numbers).stack(numbers)

    sizes = [phase.population_size for phase in phases]
    return InTurn(
        capacity=max(sizes),
        test=test,
        selection=selection,
        relation=relation,
        num_users=np.asarray(sizes, np.int32),
        num_steps=np.asarray([phase.num_steps for phase in phases], np.int32),
        keep_level=column(*(phase.keep_level for phase in phases)),
        threshold=column(*(phase.threshold for phase in phases)),
        test_epsilon=column(*(phase.test_epsilon for phase in phases)),
        noise_stddev=column(*(phase.noise_stddev for phase in phases)),
        sensitivity=column(*(phase.sensitivity for phase in phases)),
        cost=jax.tree.map(column, *(phase.loss() for phase in phases)),
    )
