"""The noise that a budget needs, by the accountants that certificates use.

``certified_noise_multiplier`` is what plans call: it ends on the private side of the budget, with no
tolerance, and the certificate of the same releases confirms it.

Source: root finding by false position, on the logarithms of ε and of the noise.

Formal guarantee: the certificate of the releases is at most the budget.

Cost: three to eight evaluations on a small grid and two or three on a full one; 0.03 to 0.3 s.
"""

import functools
import math
from collections.abc import Callable
from typing import Protocol, SupportsFloat, runtime_checkable

from dp_accounting import NeighboringRelation

from dpsco_jax._checks import require_instance, require_integer, require_real, require_relation
from dpsco_jax.privacy import accountants, pld
from dpsco_jax.privacy._kinds import Release, repeated

_NEWTONS = 4  # steps by slopes, before those that grow without end
_LEAST = math.log(0.01)  # with so little noise, what protects is the sampling alone
_TYPICAL_SLOPE = -1.1  # of log ε against the logarithm of the noise
_NEARBY = 0.02  # to this, log ε by a coarse grid is that of the budget where a fine one begins
_UNDER_BUDGET = 2e-5  # calibration stops when ε is below its target by at most this, relative


@runtime_checkable
class GaussianSampling(Protocol):
    """What ``certified_noise_multiplier`` needs of a sampling scheme."""

    def gaussian_release(self, noise_multiplier: float, relation: NeighboringRelation) -> Release:
        """One Gaussian release on a sample, as accountants see it under the relation."""


def certified_noise_multiplier(
    sampling: GaussianSampling,
    num_steps: int,
    epsilon: SupportsFloat,
    delta: SupportsFloat,
    relation: NeighboringRelation,
    near: float | None = None,
) -> float:
    """The noise multiplier with which ``num_steps`` subsampled Gaussian releases meet (ε, δ).

    Args:
        sampling: ``FullBatch()``, ``Poisson(...)`` or ``WithoutReplacement(...)``.
        num_steps: number of releases, at least 1.
        epsilon: the budget, positive.
        delta: in (0, 1).
        relation: the neighbouring relation.
        near: about what the multiplier will be, if something is known, such as a rule of thumb: it saves
            the search some looks, and decides nothing but the time.

    Returns:
        σ over the ℓ2 sensitivity under ``relation``. ``certificate`` of the releases is at most
        ``epsilon``, without tolerance, and within 2e-5 of it, relative. If 0.01 is already enough, as
        where a record is hardly ever sampled, 0.01.

    Raises:
        ValueError: the scheme has no proof under the relation.
    """
    require_instance("sampling", sampling, GaussianSampling)
    num_steps = require_integer("num_steps", num_steps, 1)
    epsilon = require_real("epsilon", epsilon, 0.0)
    delta = require_real("delta", delta, 0.0, 1.0)
    require_relation("relation", relation)
    if near is not None:
        near = require_real("near", near, 0.0)

    @functools.cache
    def excess(log_multiplier: float, max_points: int = pld.MAX_POINTS) -> float:
        release = sampling.gaussian_release(math.exp(log_multiplier), relation)
        releases = repeated(release, num_steps)
        spent = accountants.closed_form(releases, delta)
        if spent is None:
            spent = accountants.privacy_loss_distribution(releases, delta, max_points)
        assert spent is not None  # all releases are Gaussians
        # Far from the root, how far says nothing about where it is.
        return math.log(min(max(spent / epsilon, 1e-2), 1e2))

    def coarse(log_multiplier: float) -> float:
        return excess(log_multiplier, accountants.FEW_POINTS)

    # Without sampling, num_steps releases are one Gaussian: a multiplier that is always enough, of the
    # sensitivity, or of all items of a user where it is that of one.
    unsampled = accountants.gaussian_noise_multiplier(epsilon, delta) * math.sqrt(num_steps)
    enough = math.log(unsampled * getattr(sampling, "items_per_user", 1))
    start = enough if near is None else min(max(math.log(near), _LEAST), enough)
    # Under ADD_OR_REMOVE_ONE a sample of a fixed size may need more: then the search goes above it.
    if start == enough and -1e-9 < coarse(enough) < 1e-6:
        return math.exp(accountants.raised(enough, lambda x: excess(x) <= 0.0))
    typical = None if near is None else _TYPICAL_SLOPE
    # On either side of the root: that of a fine grid is below that of a coarse one.
    start = root_above(lambda x: coarse(x) - _NEARBY, start, 2 * _NEARBY, _LEAST, slope=typical)
    if start == _LEAST and (coarse(start) <= 0.0 or excess(start) <= 0.0):
        return math.exp(_LEAST)
    # Grids differ by little more than a factor of ε, so that the coarse one knows the slope on the way.
    there = start + (excess(start) + 0.5 * _UNDER_BUDGET) / -_TYPICAL_SLOPE
    slope = None if there == start else (coarse(there) - coarse(start)) / (there - start)
    return math.exp(decreasing_root(excess, start, _UNDER_BUDGET, slope))


class _AtEndError(Exception):
    """A search that has left its range, whose end will do."""


def root_above(
    excess: Callable[[float], float],
    start: float,
    under: float,
    low: float,
    high: float = math.inf,
    slope: float | None = None,
) -> float:
    """Like ``decreasing_root``, between two ends. An end is looked at only once the search goes beyond it.

    Returns:
        ``low`` where the function is not positive there and the search went below it; ``inf`` where it is
        positive at ``high`` and the search went above that.
    """
    seen: set[float] = set()

    def inside(point: float) -> float:
        for end, is_beyond in ((low, point < low), (high, point > high)):
            if is_beyond and end not in seen:
                seen.add(end)
                if (excess(end) <= 0.0) == (end == low):
                    raise _AtEndError(low if end == low else math.inf)
        return excess(point)

    try:
        return decreasing_root(inside, start, under, slope)
    except _AtEndError as reached:
        return float(reached.args[0])


def decreasing_root(
    excess: Callable[[float], float], start: float, under: float, slope: float | None = None
) -> float:
    """A point at which a decreasing function was seen to lie between -under and 0.

    Steps of growing length from the start bracket the root; then false position, aimed a little past
    the root, with a bisection whenever two steps have not halved the bracket. The first step is right
    if the slope is about -1, as that of log ε against the logarithm of the noise mostly is. With a
    negative ``slope`` the first steps are Newton's and the secants that follow.
    """
    low, at_low, high, at_high = -math.inf, math.inf, math.inf, -math.inf
    point, step = start, 0.0
    widths = [math.inf, math.inf]
    known = slope if slope is not None and -math.inf < slope < 0.0 else None
    turns, before = 0, (math.nan, math.nan)
    while True:
        value = excess(point)
        if -under <= value <= 0:
            return point
        if value > 0:
            low, at_low = point, value
        else:
            high, at_high = point, value
        width = high - low
        if width == math.inf:
            ahead = min(1.3 * abs(value) + under, 2.0)
            if known is not None and turns < _NEWTONS:
                secant = (value - before[1]) / (point - before[0])
                known = secant if -math.inf < secant < 0.0 else known
                ahead = min(abs((value + 0.5 * under) / known), 2.0)
                turns, before, step = turns + 1, (point, value), 0.0
            step = max(2.0 * step, ahead)
            point += math.copysign(step, value)
            continue
        if width <= 1e-12 * (1.0 + abs(high)):
            return high
        if width > 0.5 * widths[-2]:
            point = 0.5 * (low + high)
        else:
            point = low + width * (at_low + 0.5 * under) / (at_low - at_high)
        widths.append(width)
