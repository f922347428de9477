"""Winsorized means of phases of several sizes in one program: what a phase releases, as numbers of a turn.

What it computes: nothing; ``stacked`` takes the numbers of ``WinsorizedReleases``, the scales of their noise
and the loss of one of their queries, one entry for each phase, so that a loop over phases finds those of its
turn.

Source: none.

Formal guarantee: scales, sensitivities and losses are those that ``WinsorizedReleases`` has proven for its
own static sizes and for the numbers that run; nothing is proven here. A loss that is infinite stays so.

Cost: none.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dpsco_jax import _checks
from dpsco_jax._numerics import array_namespace
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms.winsorized.winsorized_releases import WinsorizedReleases
from dpsco_jax.privacy.loss import PrivacyLoss


@pytree
class WinsorizedTurn:
    """The queries of a phase, one of several in a program, or the stack of them.

    Attributes:
        capacity: users of the largest phase; vectors have so many rows.
        dim: length of the vectors.
        form: as in ``WinsorizedReleases``.
        num_users: n of this phase, at most ``capacity``.
        num_queries: T of this phase.
        bound: B.
        coordinate_radius: τ after the rotation, in each coordinate.
        bin_width: of the intervals' bins.
        range_epsilon: η of each interval.
        ball_radius: r, of the ball around the coarse mean.
        noise_multiplier: of the final mean.
        sensitivity: how far the final mean moves.
        coarse_multiplier: of the coarse mean.
        coarse_sensitivity: how far the coarse mean moves.
        noise_scale: of the final mean.
        coarse_stddev: of the noise of the coarse mean.
        cost: the loss of one query.
    """

    capacity: int = static()
    dim: int = static()
    form: str = static()
    num_users: Number
    num_queries: Number
    bound: Number
    coordinate_radius: Number
    bin_width: Number
    range_epsilon: Number
    ball_radius: Number
    noise_multiplier: Number
    sensitivity: Number
    coarse_multiplier: Number
    coarse_sensitivity: Number
    noise_scale: Number
    coarse_stddev: Number
    cost: PrivacyLoss

    def query_loss(self) -> PrivacyLoss:
        """What one query of the phase costs."""
        return self.cost


def kind(releases: WinsorizedReleases) -> tuple[Any, ...]:
    """What phases must share to run in one program."""
    _checks.require_instance("releases", releases, WinsorizedReleases)
    return releases.form, releases.dim


def stacked(phases: Sequence[WinsorizedReleases]) -> WinsorizedTurn:
    """All phases, each number with an axis of phases in front.

    Raises:
        ValueError: there is no phase, or they are not of one ``kind``.
    """
    kinds = set(map(kind, phases))
    _checks.require(len(kinds) == 1, "phases", phases, "of one kind")
    ((form, dim),) = kinds

    def column(*numbers: Any) -> Any:
        return array_namespace(*numbers).stack(numbers)

    def all_of(name: str) -> Any:
        return column(*(getattr(phase, name) for phase in phases))

    sizes = [phase.num_users for phase in phases]
    return WinsorizedTurn(
        capacity=max(sizes),
        dim=dim,
        form=form,
        num_users=np.asarray(sizes, np.int32),
        num_queries=np.asarray([phase.num_queries for phase in phases], np.int32),
        bound=all_of("bound"),
        coordinate_radius=all_of("coordinate_radius"),
        bin_width=all_of("bin_width"),
        range_epsilon=all_of("range_epsilon"),
        ball_radius=all_of("ball_radius"),
        noise_multiplier=all_of("noise_multiplier"),
        sensitivity=all_of("sensitivity"),
        coarse_multiplier=all_of("coarse_multiplier"),
        coarse_sensitivity=all_of("coarse_sensitivity"),
        noise_scale=all_of("noise_scale"),
        coarse_stddev=all_of("coarse_stddev"),
        cost=jax.tree.map(column, *(phase.query_loss() for phase in phases)),
    )
