"""Rounded privacy loss distributions, and where their composition matters for a given δ.

Source: Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022 (connect the dots); Chernoff bounds and the
saddlepoint approximation for the choice of window and tilt.

Formal guarantee: ``discretize`` lowers no hockey-stick divergence. Of the window, only ``high`` carries a
proof: the composed law has mass of at most ``LOST_MASS`` times δ above it. The rest is a matter of tightness.

Cost: about 10⁵ exponentials per pair.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpsco_jax.privacy.pld._chernoff import chernoff_epsilon
from dpsco_jax.privacy.pld.pairs import Pair

LOST_MASS = 1e-9
"""Of δ: what truncation may move to infinite loss."""
_ALIASED = 1e-6  # of δ: what may wrap around the window to where it counts
_MAX_STRETCH = 3.0  # by how much the window may grow so that little wraps around
_STRETCH_PRICE = 1e-4  # of a window twice as long, in relative error of δ
# Of a law on each side of zero; the moments of its roundings are some 1e-3 above its own.
_NODES = 250
_TILTS = np.geomspace(1e-4, 1e6, 128)
_MACHINE = float(np.finfo(np.float64).eps)


class Law(NamedTuple):
    """A rounded privacy loss distribution: masses on loss values, and the mass at infinity."""

    losses: np.ndarray
    masses: np.ndarray
    infinite: float


def discretize(pair: Pair, losses: np.ndarray) -> Law:
    """The smallest law on the given loss values (and infinity) that dominates the pair.

    The masses that P and Q give to the cell between two neighbouring values are divided between them so
    that both totals are kept. This is the piecewise linear interpolation, in e^ε, of the hockey-stick
    divergence; what lies below the first value is moved up to it, what lies above the last to infinity.
    """
    upper, lower = pair.cells(losses)
    inner, gaps = upper[1:-1], np.diff(losses)
    # Masses near the smallest floats are imprecise: as zero, they send the mass of P up.
    lower = np.where(lower > 1e-290, lower, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.log(lower[1:-1]) - np.log(inner) + losses[:-1]
    # (e^gap ratio - 1) / (e^gap - 1), also where e^gap overflows.
    down = np.clip(
        (np.exp(np.minimum(log_ratio, 0.0)) - np.exp(-gaps)) / -np.expm1(-gaps), 0.0, 1.0
    )
    down = np.where(inner > 0, down, 0.0) * inner
    masses = np.zeros(len(losses))
    masses[:-1] += down
    masses[1:] += inner - down
    masses[0] += upper[0]
    return Law(losses, masses, float(upper[-1]))


class Window(NamedTuple):
    """Where the composed loss matters for a target δ.

    Attributes:
        low: the tilted law has next to no mass below.
        high: the law has at most ``LOST_MASS`` of δ above, and the tilted law next to nothing.
        tilt: centres the law on the ε that belongs to δ, as far as ``high`` allows.
        slope: the tilt that does so, allowed or not.
        center: about the ε that belongs to δ, mostly within some percent; 0 where that is not known.
    """

    low: float
    high: float
    tilt: float
    slope: float
    center: float


def choose_window(
    components: Sequence[tuple[Pair, int]],
    supports: Sequence[tuple[float, float]],
    delta: float,
    spacing: float | None,
    guess: float | None,
) -> Window:
    """Chernoff bounds over a range of tilts, for laws rounded to a grid of this spacing, or not at all.

    ``guess`` is about what ε will be.

    The moments are taken of laws on a few of the points of that grid, those in geometric progression.
    Fewer points dominate more, so these moments are not below those of the laws on all points.
    """
    moments, opposite = np.zeros_like(_TILTS), np.zeros_like(_TILTS[::4])
    for (pair, count), support in zip(components, supports, strict=True):
        reach = max(abs(end) for end in support)
        if spacing is None:
            positive = reach * np.geomspace(1e-9, 1.0, _NODES)
        else:
            last = max(math.ceil(reach / spacing), 1)
            positive = spacing * np.unique(np.rint(np.geomspace(1, last, _NODES)))
        law = discretize(pair, np.concatenate([-positive[::-1], [0.0], positive]))
        moments += count * log_moments(law, _TILTS)
        opposite += count * log_moments(law, -_TILTS[::4])
    top = float(np.min((moments - math.log(LOST_MASS * delta)) / _TILTS))
    best, center = _saddlepoint(moments, delta)
    if guess is None:
        guess = center
    # Candidates are all tilts up to that one: less tilt needs a shorter window and lets rounding errors
    # weigh more. A tilted mass m is worth m exp(moment - tilt L) at a loss L. Rounding counts where L is
    # about ε; what wraps around may land anywhere above ε, which is seldom below the mean of the law.
    tilts, own = _TILTS[: best + 1], moments[: best + 1]
    mean = max(float(moments[0] / _TILTS[0]), 0.0)
    worth = own - tilts * mean - math.log(delta)
    ahead = _TILTS - tilts[:, None]
    ahead = np.where(ahead > 0, ahead, np.nan)
    gain = moments - own[:, None]
    allowed = math.log(_ALIASED) - np.maximum(worth, 0.0)
    highs = np.nanmin((gain - allowed[:, None]) / ahead, axis=1)
    highs = np.clip(highs, top, _MAX_STRETCH * top)
    aliased = np.nanmin(gain - ahead * highs[:, None], axis=1) + worth
    steps = sum(count for _, count in components)
    rounded = math.log(20.0 * _MACHINE * steps) + own - tilts * guess - math.log(delta)
    errors = np.exp(np.minimum(aliased, 50.0)) + np.exp(np.minimum(rounded, 50.0))
    chosen = int(np.argmin(errors + _STRETCH_PRICE * highs / top))

    smaller = np.concatenate([-_TILTS[::4][::-1], [0.0], _TILTS[:chosen]])
    of_smaller = np.concatenate([opposite[::-1], [0.0], moments[:chosen]])
    low = np.max((allowed[chosen] + moments[chosen] - of_smaller) / (_TILTS[chosen] - smaller))
    return Window(
        low=min(float(low), mean),
        high=float(highs[chosen]),
        tilt=float(_TILTS[chosen]),
        slope=float(_TILTS[best]),
        center=center,
    )


def _saddlepoint(moments: np.ndarray, delta: float) -> tuple[int, float]:
    """The index of the tilt under which the law is centred on the ε that belongs to δ, and that ε, about."""
    mean = np.gradient(moments, _TILTS)
    variance = np.maximum(np.gradient(mean, _TILTS), 1e-300)
    spread = np.maximum(_TILTS * (1.0 + _TILTS) * np.sqrt(2.0 * np.pi * variance), 1.0)
    excess = moments - _TILTS * mean - np.log(spread) - math.log(delta)
    # The last tilt only serves the Chernoff bounds of those before it.
    if not np.any(excess[:-1] <= 0.0):
        return len(_TILTS) - 2, max(float(mean[-2]), 0.0)
    best = int(np.argmax(excess <= 0.0))
    if best == 0:
        return 0, max(float(mean[0]), 0.0)
    # ε lies between those of two tilts, and below every Chernoff bound.
    share = excess[best - 1] / (excess[best - 1] - excess[best])
    between = mean[best - 1] + share * (mean[best] - mean[best - 1])
    return best, max(float(min(between, chernoff_epsilon(moments, _TILTS, delta))), 0.0)


def log_moments(law: Law, tilts: np.ndarray) -> np.ndarray:
    """For every tilt λ, the logarithm of E exp(λ L) on the finite losses."""
    positive = law.masses > 0
    exponents = tilts[:, None] * law.losses[positive] + np.log(law.masses[positive])
    largest = np.max(exponents, axis=1)
    return largest + np.log(np.sum(np.exp(exponents - largest[:, None]), axis=1))
