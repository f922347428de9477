"""Means that a plan chose, clipped or with outliers removed, as turns of one loop; see ``solvers._together``.

What it computes: nothing; which of ``_clipped_turns`` and ``_tested_turns`` a mean belongs to.

Source: none.

Formal guarantee: that of these.

Cost: none.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from dpsco_jax import _checks
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _clipped_turns, _tested_turns, means

Turn = _clipped_turns.Clipped | _tested_turns.OutlierRemoved
Given = means.Clipped | means.OutlierRemoved


def kind(mean: Given) -> Hashable | None:
    """What the means of parts must share to run in one program; ``None`` where a part has its own."""
    if isinstance(mean, means.Clipped):
        return _clipped_turns.kind(mean)
    return _tested_turns.kind(mean)


def prepared(mean: Given, objective: Objective, data: UserData, params: Any) -> Any:
    """The data of all users, for the turns of means of the ``kind`` of this one."""
    if isinstance(mean, means.Clipped):
        return _clipped_turns.prepared(mean, objective, data, params)
    return _tested_turns.prepared(mean, objective, data, params)


def stacked(of_parts: Sequence[Any]) -> Turn:
    """The means of parts of one ``kind``, each number with an axis of parts in front."""
    if isinstance(of_parts[0], means.Clipped):
        return _clipped_turns.stacked(of_parts)
    return _tested_turns.stacked(of_parts)


def check(mean: Given) -> None:
    """``ValueError`` for numbers, if they are known, that a mean in a program of its own refuses."""
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
