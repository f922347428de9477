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

Cost: for T steps about sqrt(12 T / precision) grid points, at most 2²⁰; 5 to 100 ms.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import fft, signal, special

from dpsco_jax.privacy.pairs import Pair

Component = tuple[Pair, int]
"""A pair and how many times it is composed."""

_PRECISION = 1e-5
_MAX_POINTS = 2**20
_LOST_MASS = 1e-9  # of δ: what truncation may move to infinite loss
_LOG_ALIASED = math.log(1e-8)  # of the tilted law: what may wrap around the window
_TILTS = np.geomspace(1e-4, 1e6, 120)
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
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.exp(np.log(lower[1:-1]) - np.log(inner) + losses[1:])
        down = np.clip((ratio - 1.0) / np.expm1(gaps), 0.0, 1.0)
    down = np.where(inner > 0, down, 0.0) * inner
    masses = np.zeros(len(losses))
    masses[:-1] += down
    masses[1:] += inner - down
    masses[0] += upper[0]
    return _Law(losses, masses, float(upper[-1]))


def _log_moments(law: _Law, tilts: np.ndarray) -> np.ndarray:
    """log E exp(λ L) on the finite losses, for every tilt λ."""
    positive = law.masses > 0
    exponents = tilts[:, None] * law.losses[positive] + np.log(law.masses[positive])
    return special.logsumexp(exponents, axis=1)


class _Window(NamedTuple):
    """Where the composed loss matters for a target δ."""

    tilt: float
    low: float
    high: float
    epsilon: float  # the Chernoff bound on ε, an upper estimate


def _window(components: Sequence[Component], delta: float, tail: float) -> _Window:
    moments = np.zeros_like(_TILTS)
    lower_moments = np.zeros_like(_TILTS)
    for pair, count in components:
        low, high = pair.support(tail)
        # Spacing proportional to the loss: moments are right to the square of the relative spacing.
        reach = max(-low, high)
        positive = reach * np.geomspace(1e-9, 1.0, 1500)
        law = discretize(pair, np.concatenate([-positive[::-1], [0.0], positive]))
        moments += count * _log_moments(law, _TILTS)
        lower_moments += count * _log_moments(law, -_TILTS)
    best = _saddlepoint(moments, delta)
    tilt, moment = float(_TILTS[best]), float(moments[best])
    # Chernoff bounds, over all other tilts: beyond `high` the law has little mass, tilted or not; below
    # `low` the tilted law has little mass.
    high = float(np.min((moments - math.log(_LOST_MASS * delta)) / _TILTS))
    if best + 1 < len(_TILTS):
        larger = _TILTS[best + 1 :] - tilt
        high = max(high, float(np.min((moments[best + 1 :] - moment - _LOG_ALIASED) / larger)))
    smaller = np.concatenate([-_TILTS[::-1], [0.0], _TILTS[:best]])
    of_smaller = np.concatenate([lower_moments[::-1], [0.0], moments[:best]])
    low = float(np.max((_LOG_ALIASED + moment - of_smaller) / (tilt - smaller)))
    estimate = max(float(np.min((moments - math.log(delta)) / _TILTS)), 0.0)
    return _Window(tilt, min(low, estimate), high, estimate)


def _saddlepoint(moments: np.ndarray, delta: float) -> int:
    """The index of the tilt under which the law is centred on the ε that belongs to δ."""
    mean = np.gradient(moments, _TILTS)
    variance = np.maximum(np.gradient(mean, _TILTS), 1e-300)
    spread = np.maximum(_TILTS * (1.0 + _TILTS) * np.sqrt(2.0 * np.pi * variance), 1.0)
    small_enough = moments - _TILTS * mean - np.log(spread) <= math.log(delta)
    return int(np.argmax(small_enough)) if np.any(small_enough) else len(_TILTS) - 1


def _convolve(
    laws: Sequence[tuple[_Law, int]], spacing: float, window: _Window
) -> tuple[np.ndarray, np.ndarray, float]:
    """The composed law on the window: losses, masses, and a bound on the error of any tail sum, per δ.

    Position k of the transform stands for all loss values congruent to k grid steps.
    """
    first = math.floor(window.low / spacing)
    size = fft.next_fast_len(math.ceil(window.high / spacing) - first + 1, real=True)
    product = np.ones(size // 2 + 1, complex)
    log_scale = 0.0
    steps = 0
    for law, count in laws:
        log_weights = window.tilt * law.losses
        log_mean = special.logsumexp(log_weights, b=law.masses)
        tilted = law.masses * np.exp(log_weights - log_mean)
        positions = np.rint(law.losses / spacing).astype(np.int64) % size
        product *= fft.rfft(np.bincount(positions, tilted, size)) ** count
        log_scale += count * log_mean
        steps += count
    # Each factor is off by machine precision times log₂ of the size, and the power by `steps` times it.
    rounding = 8.0 * _MACHINE * math.log2(size) * steps * float(np.mean(np.abs(product)))
    tilted = np.roll(fft.irfft(product, size), -(first % size))
    losses = spacing * np.arange(first, first + size)
    factors = np.exp(np.minimum(log_scale - window.tilt * losses, 600.0))
    return losses, (np.maximum(tilted, 0.0) + rounding) * factors, log_scale


def epsilon(components: Sequence[Component], delta: float) -> float:
    """The ε at which the hockey-stick divergence of the composed pairs is at most δ, as an upper bound.

    Args:
        components: pairs with their numbers of repetitions; all of one direction.
        delta: in (0, 1).

    Returns:
        ε ≥ 0; ``inf`` if mass of infinite loss alone exceeds δ.
    """
    components = [(pair, count) for pair, count in components if count > 0]
    if not components:
        return 0.0
    steps = sum(count for _, count in components)
    tail = max(_LOST_MASS * delta / steps, 1e-300)
    window = _window(components, delta, tail)
    spacing = math.sqrt(
        12.0 * _PRECISION * max(window.epsilon, 1e-9) / (steps * (1.0 + window.tilt))
    )
    supports = [pair.support(tail) for pair, _ in components]
    extent = max(window.high - window.low, *(high - low for low, high in supports))
    spacing = max(spacing, extent / _MAX_POINTS)

    laws = []
    for (pair, count), (low, high) in zip(components, supports, strict=True):
        indices = np.arange(
            min(math.floor(low / spacing), -1), max(math.ceil(high / spacing), 1) + 1
        )
        laws.append((discretize(pair, spacing * indices), count))
    log_finite = sum(count * math.log1p(-law.infinite) for law, count in laws)
    rest = delta - _LOST_MASS * delta + math.expm1(log_finite)
    if rest <= 0:
        return math.inf
    # Relative rounding errors of the cell masses, compounded over the steps.
    rest *= 1.0 - min(1e-13 * (steps + 100.0), 0.5)
    return _invert(*_convolve(laws, spacing, window)[:2], spacing, rest)


def _invert(losses: np.ndarray, masses: np.ndarray, spacing: float, delta: float) -> float:
    """The smallest ε ≥ 0 at which the law with these masses has hockey-stick divergence δ."""
    above = np.concatenate([np.cumsum(masses[::-1])[::-1][1:], [0.0]])  # strictly above each loss
    # E[(1 - e^(x - L))₊] at x = losses[j] is e^-h times the one at j+1, plus (1 - e^-h) above[j].
    decay = math.exp(-spacing)
    divergence = signal.lfilter([-math.expm1(-spacing)], [1.0, -decay], above[::-1])[::-1]
    exceeding = np.flatnonzero(divergence > delta)
    if len(exceeding) == 0:
        return max(0.0, float(losses[0]))
    j = int(exceeding[-1])
    next_loss, next_divergence = (
        (losses[j + 1], divergence[j + 1]) if j + 1 < len(losses) else (losses[j] + spacing, 0.0)
    )
    # On [losses[j], next_loss) the divergence is above[j] - e^(ε - next_loss) (above[j] - next).
    weight = above[j] - next_divergence
    return max(0.0, float(next_loss + math.log((above[j] - delta) / weight)))
