"""Outlier-removed means of parts of several sizes, as turns of one loop; see ``solvers._together``.

What it computes: what ``means.OutlierRemoved`` computes for the users of a turn: those at ``num_users``
positions from ``first`` on. How many they are, how many of them are drawn and for how many steps are numbers
of the turn, as are tests, radii and noise. All data are prepared once.

Source: none.

Formal guarantee: that of ``means.OutlierRemoved``: tests, noise and keys are those of the turn, and its loss
is what its own ``releases`` prove. A row beyond the users of a turn, or beyond its batch, is nobody, whatever
it holds: it is near no one and has weight zero.

Cost: as ``means.OutlierRemoved``; a step takes the gradients and distances of its own users, and draws them
in arrays of the largest turn. Memory of the rows of the largest turn, and of one prepared copy of the data of
all.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from dpsco_jax import _checks, _stacking, transforms
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import sampling, user_gradients
from dpsco_jax.privacy.concentrated import _in_turn
from dpsco_jax.privacy.concentrated.threshold_phase import ConcentratedReleases
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _together, means


@pytree
class OutlierRemoved:
    """``means.OutlierRemoved`` of some of the users, from the position ``first`` on; data are prepared.

    Attributes:
        chunk_size: users whose items are read at once.
        reach: as in ``means.OutlierRemoved``.
        shifted: whether gradients are taken at points shifted for each item.
        releases: sizes, tests and noise of all steps.
        draws: sizes of the draws; ``None`` where everybody takes part.
        first: position of the first user.
        score_radius: users are near each other within it.
        clip_norm: to which gradients are clipped first.
        smoothing_radius: of the shifts; of no account where there are none.
    """

    chunk_size: int = static()
    reach: float = static()
    shifted: bool = static()
    releases: _in_turn.InTurn
    draws: Any
    first: Number
    score_radius: Number
    clip_norm: Number
    smoothing_radius: Number

    def open(self, key: jax.Array, objective: Objective, data: Any, start: Any) -> means.Opened:
        """Oracle, data and release of a run from ``start``; the key is that of the noise."""
        sampler = sampling.Block(
            self.releases.capacity, 1, self.first, self.releases.num_users, self.draws
        ).sampler()
        radius = self.smoothing_radius if self.shifted else None
        oracle, _ = user_gradients.rows_form(
            objective, start, self.clip_norm, sampler, self.chunk_size, radius
        )
        release = transforms.outlier_removed_mean(
            self.releases, self.score_radius, key, anchor=None, reach=self.reach
        )
        return means.Opened(oracle, data, release, may_halt=True)


def kind(mean: means.OutlierRemoved) -> Hashable | None:
    """What the means of parts must share to run in one program; ``None`` where a part has its own."""
    if not isinstance(mean.releases, ConcentratedReleases):
        return None
    shifted = mean.smoothing_radius is not None
    if shifted and mean.shift == "round":
        return None
    return ("tested", *_in_turn.kind(mean.releases), mean.chunk_size, mean.reach, shifted)


def prepared(mean: means.OutlierRemoved, objective: Objective, data: UserData, params: Any) -> Any:
    """The data of all users, for the turns of means of the ``kind`` of this one."""
    radius = None if mean.smoothing_radius is None else 1.0
    _, form = user_gradients.rows_form(objective, params, 1.0, None, mean.chunk_size, radius)
    return form(data)


def stacked(of_parts: Sequence[means.OutlierRemoved]) -> OutlierRemoved:
    """The means of parts of one ``kind``, each number with an axis of parts in front.

    Raises:
        ValueError: there is no part, or they are not of one kind.
    """
    kinds = {kind(mean) for mean in of_parts}
    _checks.require(len(kinds) == 1 and None not in kinds, "of_parts", kinds, "of one kind")
    releases = _in_turn.stacked([mean.releases for mean in of_parts])
    sizes = [(mean.releases.population_size, mean.releases.batch_size) for mean in of_parts]
    first, nowhere = of_parts[0], np.zeros(len(of_parts), np.float32)
    shifted = first.smoothing_radius is not None

    def all_of(name: str) -> Any:
        return _together.column([getattr(mean, name) for mean in of_parts])

    return OutlierRemoved(
        chunk_size=first.chunk_size,
        reach=first.reach,
        shifted=shifted,
        releases=releases,
        draws=_stacking.stacked([sampling.batch_of(*size) for size in sizes])
        if releases.sampled
        else None,
        # A turn fills it in.
        first=np.zeros(len(of_parts), np.int32),
        score_radius=all_of("score_radius"),
        clip_norm=all_of("clip_norm"),
        smoothing_radius=all_of("smoothing_radius") if shifted else nowhere,
    )
