"""Means of clipped gradients of parts of several sizes, as turns of one loop; see ``solvers._together``.

What it computes: what ``means.Clipped`` computes for the users of a turn: those at ``num_users`` positions
from ``first`` on. How many they are, how many of them are drawn and for how many steps are numbers of the
turn. All data are prepared once.

Source: none.

Formal guarantee: that of ``means.Clipped``: sums have the room of the largest turn, which is less than the
turn's own; the noise, the divisor and the loss are those of the turn. A place beyond the users of a turn, or
beyond its batch, has weight zero.

Cost: as ``means.Clipped``; a step takes the gradients of its own users, in chunks. Memory of one prepared
copy of the data of all.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, _stacking, transforms
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import Estimate, Oracle, sampling, user_gradients
from dpsco_jax.privacy import _gaussian_turns
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _together, means


@pytree
class Clipped:
    """``means.Clipped`` of some of the users, from the position ``first`` on; data are prepared.

    Attributes:
        capacity: users of the largest turn, or of its batch where users are drawn.
        chunk_size: users whose gradients are held at once.
        shift: as in ``means.Clipped``.
        shifted: whether gradients are taken at shifted points.
        least: users of the smallest turn.
        releases: noise and loss of a step.
        draws: sizes of the draws; ``None`` where everybody takes part.
        first: position of the first user.
        clip_norm: C.
        smoothing_radius: of the shifts; of no account where there are none.
    """

    capacity: int = static()
    least: int = static()
    chunk_size: int = static()
    shift: str = static(choices=("user", "item", "round"))
    shifted: bool = static()
    releases: _gaussian_turns.GaussianTurn
    draws: Any
    first: Number
    clip_norm: Number
    smoothing_radius: Number

    def open(self, key: jax.Array, objective: Objective, data: Any, start: Any) -> means.Opened:
        """Oracle, data and release of a run from ``start``; the key is that of the noise."""
        batch = self.releases.batch_size
        oracle = self._oracle(objective, data.shapes, start)
        combine = transforms.clipped_mean if self._by_item else transforms.summed_contributions
        aggregate = combine(self.clip_norm, batch, self.releases.relation)
        scheme = self.releases.scheme
        release = transforms.privatize(aggregate, key, self.releases.noise_multiplier, scheme)
        return means.Opened(oracle, data.rows, release)

    @property
    def _by_item(self) -> bool:
        return self.shifted and self.shift == "item"

    def _oracle(self, objective: Objective, shapes: UserData, start: Any) -> Oracle:
        chunk, radius = self.chunk_size, self.smoothing_radius if self.shifted else None
        batch = self.releases.batch_size
        users = sampling.Block(self.capacity, self.least, self.first, batch, self.draws).sampler()
        if self._by_item:
            rows, _ = user_gradients.rows_form(
                objective, start, self.clip_norm, users, chunk, radius
            )
            return self._of_this_turn(rows)
        single = jax.tree.leaves(shapes.items)[0].shape[1] == 1
        if single and not self.shifted and self.draws is None:
            # As many as nobody's rows are read for: where users have one item no gradient is held.
            chunk = max(chunk, self.least)
        return user_gradients.clipped_sum_form(
            objective, shapes, start, self.clip_norm, users, chunk, radius
        )[0]

    def _of_this_turn(self, rows: Oracle) -> Oracle:
        """The oracle of rows, with a mask of those that stand for somebody."""

        def oracle(key: jax.Array, params: Any, data: Any) -> Estimate:
            found = rows(key, params, data)
            counted = jnp.arange(self.capacity, dtype=jnp.int32) < self.releases.batch_size
            return found._replace(extra_args={**found.extra_args, "user_mask": counted})

        return oracle


class Prepared(NamedTuple):
    """The data of all users in the form that the oracles of all turns take.

    Attributes:
        rows: that form.
        shapes: of the data themselves.
    """

    rows: Any
    shapes: UserData


def kind(mean: means.Clipped) -> Hashable | None:
    """What the means of parts must share to run in one program; ``None`` where a part has its own."""
    shared = _gaussian_turns.kind(mean.releases)
    shifted = mean.smoothing_radius is not None
    if shared is None or (shifted and mean.shift == "round"):
        return None
    return (*shared, mean.chunk_size, mean.shift, shifted)


def prepared(mean: means.Clipped, objective: Objective, data: UserData, params: Any) -> Prepared:
    """The data of all users, for the turns of means of the ``kind`` of this one."""
    shapes = jax.eval_shape(lambda: data)
    radius = None if mean.smoothing_radius is None else 1.0
    if radius is not None and mean.shift == "item":
        _, form = user_gradients.rows_form(objective, params, 1.0, None, mean.chunk_size, radius)
        return Prepared(form(data), shapes)
    _, form = user_gradients.clipped_sum_form(
        objective, shapes, params, 1.0, None, mean.chunk_size, radius
    )
    return Prepared(form(data), shapes)


def stacked(of_parts: Sequence[means.Clipped]) -> Clipped:
    """The means of parts of one ``kind``, each number with an axis of parts in front.

    Raises:
        ValueError: there is no part, they are not of one kind, or a number is out of its range.
    """
    kinds = {kind(mean) for mean in of_parts}
    _checks.require(len(kinds) == 1 and None not in kinds, "of_parts", kinds, "of one kind")
    for mean in of_parts:
        _checks.require_positive("clip_norm", mean.clip_norm)
        _checks.require_given(_checks.require_nonnegative, smoothing_radius=mean.smoothing_radius)
    releases = _gaussian_turns.stacked([mean.releases for mean in of_parts])
    batches = [mean.releases.batch_size for mean in of_parts]
    sizes = [(mean.releases.population_size, mean.releases.batch_size) for mean in of_parts]
    first, nowhere = of_parts[0], np.zeros(len(of_parts), np.float32)
    shifted = first.smoothing_radius is not None
    radii = [mean.smoothing_radius for mean in of_parts]
    return Clipped(
        capacity=max(batches),
        least=min(batches),
        chunk_size=first.chunk_size,
        shift=first.shift,
        shifted=shifted,
        releases=releases,
        draws=_stacking.stacked([sampling.batch_of(*size) for size in sizes])
        if releases.sampled
        else None,
        # A turn fills it in.
        first=np.zeros(len(of_parts), np.int32),
        clip_norm=_together.column([mean.clip_norm for mean in of_parts]),
        smoothing_radius=_together.column(radii) if shifted else nowhere,
    )
