"""Private means of parts of several sizes, as turns of one loop; see ``solvers._together``."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, transforms
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms.winsorized import _in_turn, private_range
from dpsco_jax.mechanisms.winsorized.winsorized_releases import BOXED
from dpsco_jax.oracles import sampling, user_gradients
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _clipped_turns, _tested_turns, means


@pytree
class Winsorized:
    """``means.Winsorized`` of some of the users, from the position ``first`` on; data are prepared."""

    chunk_size: int = static()
    releases: _in_turn.WinsorizedTurn
    first: Number

    def open(self, key: jax.Array, objective: Objective, data: Any, start: Any) -> means.Opened:
        """Oracle, data and release of a run from ``start``; the key is that of the noise."""
        releases = self.releases
        block = sampling.Block(releases.capacity, 1, self.first, releases.num_users, None)
        oracle, _ = user_gradients.rows_form(
            objective, start, releases.bound, block.sampler(), self.chunk_size
        )
        return means.Opened(oracle, data, transforms.winsorized_mean(releases, key))


Turn = _clipped_turns.Clipped | _tested_turns.OutlierRemoved | Winsorized
Given = means.Clipped | means.OutlierRemoved | means.Winsorized


def kind(mean: Given) -> Hashable | None:
    """What the means of parts must share to run in one program; ``None`` where a part has its own."""
    if isinstance(mean, means.Clipped):
        return _clipped_turns.kind(mean)
    if isinstance(mean, means.Winsorized):
        return (*_in_turn.kind(mean.releases), mean.chunk_size)
    return _tested_turns.kind(mean)


def prepared(mean: Given, objective: Objective, data: UserData, params: Any) -> Any:
    """The data of all users, for the turns of means of the ``kind`` of this one."""
    if isinstance(mean, means.Clipped):
        return _clipped_turns.prepared(mean, objective, data, params)
    if isinstance(mean, means.Winsorized):
        return user_gradients.rows_form(objective, params, 1.0, None, 1)[1](data)
    return _tested_turns.prepared(mean, objective, data, params)


def stacked(of_parts: Sequence[Any]) -> Turn:
    """The means of parts of one ``kind``, each number with an axis of parts in front."""
    if isinstance(of_parts[0], means.Clipped):
        return _clipped_turns.stacked(of_parts)
    if isinstance(of_parts[0], means.Winsorized):
        return Winsorized(
            chunk_size=of_parts[0].chunk_size,
            releases=_in_turn.stacked([mean.releases for mean in of_parts]),
            # A turn fills it in.
            first=np.zeros(len(of_parts), np.int32),
        )
    return _tested_turns.stacked(of_parts)


def check(mean: Given, params: Any) -> None:
    """``ValueError`` for numbers, if they are known, that a mean in a program of its own refuses."""
    if isinstance(mean, means.Winsorized):
        _check_winsorized(mean, params)
        return
    _checks.require_positive("clip_norm", mean.clip_norm)
    if mean.smoothing_radius is not None:
        _checks.require_nonnegative("smoothing_radius", mean.smoothing_radius)
    if isinstance(mean, means.OutlierRemoved):
        releases = mean.releases
        _checks.require_positive("radius", mean.score_radius)
        _checks.require_within(
            "keep_level", releases.keep_level, 0.5, 1.0, open_low=True, open_high=True
        )
        _checks.require_finite("threshold", releases.threshold)
        _checks.require_positive("test_epsilon", releases.test_epsilon)
        _checks.require_nonnegative("noise_stddev", releases.noise_stddev)
    else:
        _checks.require_positive("noise_multiplier", mean.releases.noise_multiplier)


def _check_winsorized(mean: means.Winsorized, params: Any) -> None:
    releases = mean.releases
    _checks.require_positive("noise_multiplier", releases.noise_multiplier)
    _checks.require_positive("bound", releases.bound)
    if releases.form in BOXED:
        private_range.require_numbers(
            releases.range_epsilon, releases.coordinate_radius, releases.bound, releases.bin_width
        )
    if releases.form in ("refined", "recentred"):
        _checks.require_nonnegative("coarse_multiplier", releases.coarse_multiplier)
        _checks.require_positive("ball_radius", releases.ball_radius)
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    _checks.require(size == releases.dim, "params", size, f"of {releases.dim} numbers")
