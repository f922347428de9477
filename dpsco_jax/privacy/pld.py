"""Tight ε of a composition, from the privacy loss distributions of dominating pairs.

The loss of each pair is rounded to a uniform grid so that no hockey-stick divergence decreases (connect
the dots), the rounded laws are convolved by FFT, and the hockey-stick divergence of the result is
inverted. The convolution is done under an exponential tilt that moves the bulk of the law to the losses
that decide δ: its rounding errors are then relative to δ, however small δ is.

Source: Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022 (connect the dots); Koskela, Jälkö and
Honkela 2020 (FFT); the tilt is the change of measure of saddlepoint methods.

Formal guarantee: an upper bound on ε for the composed pairs. Mass beyond the window is counted as
infinite loss through a Chernoff bound; mass that wraps around only adds; the rounding errors of the FFT
are bounded and added. Which relation it speaks of is decided by the pairs.

Cost: for T steps about sqrt(12 T / precision) grid points, at most 2¹⁹; 10 to 200 ms.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import fft, signal

from dpsco_jax.privacy.pairs import Pair

Component = tuple[Pair, int]
"""A pair and how many times it is composed."""

MAX_POINTS = 2**19

_MIN_POINTS = 2**15
_PRECISION = 1e-5  # of ε, relative, where MAX_POINTS allow
_LOST_MASS = 1e-9  # of δ: what truncation may move to infinite loss
_ALIASED = 1e-6  # of δ: what may wrap around the window to where it counts
_MAX_STRETCH = 3.0  # by how much the window may grow so that little wraps around
_STRETCH_PRICE = 1e-4  # of a window twice as long, in relative error of δ
_TILTS = np.geomspace(1e-4, 1e6, 128)
_MACHINE = float(np.finfo(np.float64).eps)


class _Law(NamedTuple):
    """A rounded privacy loss distribution: masses on loss values, and the mass at infinity."""

    losses: np.ndarray
    masses: np.ndarray
    infinite: float


def discretize(pair: Pair, losses: np.ndarray) -> _Law:
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
    return _Law(losses, masses, float(upper[-1]))


def epsilon(components: Sequence[Component], delta: float, max_points: int = MAX_POINTS) -> float:
    """The ε at which the hockey-stick divergence of the composed pairs is at most δ, as an upper bound.

    Args:
        components: pairs with their numbers of repetitions; all of one direction.
        delta: in [1e-200, 1).
        max_points: limit on the size of the grid. Fewer points are faster and give a larger ε.

    Returns:
        ε ≥ 0; ``inf`` if the mass of infinite loss alone exceeds δ.

    Raises:
        ValueError: if δ is out of range.
    """
    if not 1e-200 <= delta < 1.0:
        raise ValueError(f"delta must be in [1e-200, 1), got {delta}.")
    components = [(pair, count) for pair, count in components if count > 0]
    if not components:
        return 0.0
    steps = sum(count for _, count in components)
    tail = _LOST_MASS * delta / steps
    supports = [pair.support(tail) for pair, _ in components]
    window = _window(components, supports, delta, None, None)
    extent = max(window.high - window.low, *(high - low for low, high in supports))
    points, guess = min(_MIN_POINTS, max_points), None
    while True:
        spacing = extent / points
        bound, slope = _at_spacing(components, supports, delta, spacing, guess)
        if bound == 0.0:
            return 0.0
        # Rounding to a grid of spacing h adds about steps (λ + λ²) h²/12 to the log-moment at tilt λ.
        fine = math.sqrt(12.0 * _PRECISION * bound / (steps * (1.0 + slope)))
        wanted = min(math.ceil(extent / fine), max_points) if math.isfinite(bound) else max_points
        guessed_well = guess is not None and bound > 0.8 * guess
        if wanted <= 1.1 * points and guessed_well:
            return bound
        points, guess = max(points, wanted), bound if math.isfinite(bound) else guess


def _at_spacing(
    components: Sequence[Component],
    supports: Sequence[tuple[float, float]],
    delta: float,
    spacing: float,
    guess: float | None,
) -> tuple[float, float]:
    """The bound on ε from a grid of this spacing, and the slope of -log δ where it lies."""
    steps = sum(count for _, count in components)
    window = _window(components, supports, delta, spacing, guess)
    laws = []
    for (pair, count), (low, high) in zip(components, supports, strict=True):
        indices = np.arange(
            min(math.floor(low / spacing), -1), max(math.ceil(high / spacing), 1) + 1
        )
        laws.append((discretize(pair, spacing * indices), count))
    first = math.floor(window.low / spacing)
    size = fft.next_fast_len(math.ceil(window.high / spacing) - first + 1, real=True)
    losses = spacing * np.arange(first, first + size)
    log_finite = sum(count * math.log1p(-law.infinite) for law, count in laws)
    rest = delta * (1.0 - _LOST_MASS) + math.expm1(log_finite)
    # Relative rounding errors of the cell masses, compounded over the steps.
    rest *= 1.0 - min(1e-13 * (steps + 100.0), 0.5)
    if rest <= 0:
        return math.inf, window.slope
    return _invert(losses, *_convolve(laws, losses, window.tilt), rest), window.slope


class _Window(NamedTuple):
    """Where the composed loss matters for a target δ.

    Attributes:
        low: the tilted law has next to no mass below.
        high: the law has at most ``_LOST_MASS`` of δ above, and the tilted law next to nothing.
        tilt: centres the law on the ε that belongs to δ, as far as ``high`` allows.
        slope: the tilt that does so, allowed or not.
    """

    low: float
    high: float
    tilt: float
    slope: float


def _window(
    components: Sequence[Component],
    supports: Sequence[tuple[float, float]],
    delta: float,
    spacing: float | None,
    guess: float | None,
) -> _Window:
    """Chernoff bounds over a range of tilts, for laws rounded to a grid of this spacing, or not at all.

    ``guess`` is about what ε will be.

    The moments are taken of laws on a few of the points of that grid, those in geometric progression.
    Fewer points dominate more, so these moments are not below those of the laws on all points.
    """
    moments, opposite = np.zeros_like(_TILTS), np.zeros_like(_TILTS[::4])
    for (pair, count), support in zip(components, supports, strict=True):
        reach = max(abs(end) for end in support)
        if spacing is None:
            positive = reach * np.geomspace(1e-9, 1.0, 500)
        else:
            last = max(math.ceil(reach / spacing), 1)
            positive = spacing * np.unique(np.rint(np.geomspace(1, last, 500)))
        law = discretize(pair, np.concatenate([-positive[::-1], [0.0], positive]))
        moments += count * _log_moments(law, _TILTS)
        opposite += count * _log_moments(law, -_TILTS[::4])
    top = float(np.min((moments - math.log(_LOST_MASS * delta)) / _TILTS))
    best = _saddlepoint(moments, delta)
    if guess is None:
        guess = max(float(np.gradient(moments, _TILTS)[best]), 0.0)
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
    return _Window(
        min(float(low), mean), float(highs[chosen]), float(_TILTS[chosen]), float(_TILTS[best])
    )


def _saddlepoint(moments: np.ndarray, delta: float) -> int:
    """The index of the tilt under which the law is centred on the ε that belongs to δ."""
    mean = np.gradient(moments, _TILTS)
    variance = np.maximum(np.gradient(mean, _TILTS), 1e-300)
    spread = np.maximum(_TILTS * (1.0 + _TILTS) * np.sqrt(2.0 * np.pi * variance), 1.0)
    small_enough = moments - _TILTS * mean - np.log(spread) <= math.log(delta)
    # The last tilt only serves the Chernoff bounds of those before it.
    return int(np.argmax(small_enough)) if np.any(small_enough[:-1]) else len(_TILTS) - 2


def _log_moments(law: _Law, tilts: np.ndarray) -> np.ndarray:
    """For every tilt λ, the logarithm of E exp(λ L) on the finite losses."""
    positive = law.masses > 0
    exponents = tilts[:, None] * law.losses[positive] + np.log(law.masses[positive])
    largest = np.max(exponents, axis=1)
    return largest + np.log(np.sum(np.exp(exponents - largest[:, None]), axis=1))


def _convolve(
    laws: Sequence[tuple[_Law, int]], losses: np.ndarray, tilt: float
) -> tuple[np.ndarray, np.ndarray]:
    """The composed law on a grid of losses, and what rounding may have added to or taken off its tails.

    Position k of the transform stands for all loss values congruent to k grid steps.

    Returns:
        The masses, and for each loss a bound on the rounding error of any sum over greater losses that
        weighs the masses by at most one.
    """
    size, spacing = len(losses), losses[1] - losses[0]
    product = np.ones(size // 2 + 1, complex)
    log_scale, error = 0.0, 0.0
    for law, count in laws:
        log_weights = tilt * law.losses
        log_mean = float(_log_moments(law, np.array([tilt]))[0])
        tilted = law.masses * np.exp(log_weights - log_mean)
        positions = np.rint(law.losses / spacing).astype(np.int64) % size
        tilted = np.bincount(positions, tilted, size)
        transform = fft.rfft(tilted)
        product *= transform**count
        log_scale += count * log_mean
        # Each of `count` factors carries the error of its transform, damped by all the others.
        damping = math.sqrt(float(np.mean(np.abs(transform) ** (2.0 * (count - 1)))))
        error += count * math.sqrt(float(tilted @ tilted)) * damping
    first = round(losses[0] / spacing)
    tilted = np.maximum(np.roll(fft.irfft(product, size), -(first % size)), 0.0)
    error += math.sqrt(float(tilted @ tilted))
    error *= (
        4.0 * _MACHINE * math.log2(size)
    )  # in the Euclidean norm, as of any orthogonal transform
    factors = np.exp(np.minimum(log_scale - tilt * losses, 300.0))
    return tilted * factors, error * np.sqrt(_sum_above(factors**2))


def _sum_above(values: np.ndarray) -> np.ndarray:
    """For each position, the sum over those after it."""
    return np.append(np.cumsum(values[::-1])[::-1][1:], 0.0)


def _invert(losses: np.ndarray, masses: np.ndarray, errors: np.ndarray, delta: float) -> float:
    """The smallest ε ≥ 0 at which the hockey-stick divergence of the law, plus the error, is δ."""
    spacing = losses[1] - losses[0]
    above = _sum_above(masses)
    # E[(1 - e^(x - L))₊] at x = losses[j] is e^-h times the one at j + 1, plus (1 - e^-h) above[j].
    divergence = signal.lfilter([-math.expm1(-spacing)], [1.0, -math.exp(-spacing)], above[::-1])[
        ::-1
    ]
    exceeding = np.flatnonzero(divergence + errors > delta)
    if len(exceeding) == 0:
        return max(0.0, float(losses[0]))
    j = int(exceeding[-1])
    if j + 1 == len(losses):
        return float(losses[-1]) + spacing
    # Up to losses[j + 1] the divergence is above[j] - e^(ε - losses[j + 1]) weight.
    excess, weight = above[j] + errors[j] - delta, above[j] - divergence[j + 1]
    step = min(math.log(excess / weight), 0.0) if 0 < excess < weight else 0.0
    return max(0.0, float(losses[j + 1]) + step)
