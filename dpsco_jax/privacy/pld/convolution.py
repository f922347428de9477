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

import numpy as np
from scipy import fft, signal

from dpsco_jax._checks import require_counted, require_integer, require_within
from dpsco_jax.privacy.pld.pairs import Pair
from dpsco_jax.privacy.pld.pld_window import LOST_MASS, Law, choose_window, discretize, log_moments

Component = tuple[Pair, int]
"""A pair and how many times it is composed."""

MAX_POINTS = 2**19

_MIN_POINTS = 2**15
_MAX_PASSES = 5
_FARTHEST = (
    1e12  # loss that has a grid in float64; where there are greater ones, other accountants serve
)
_PRECISION = 1e-5  # of ε, relative, where MAX_POINTS allow
_NEGLIGIBLE = -200.0
_MACHINE = float(np.finfo(np.float64).eps)


def epsilon(components: Sequence[Component], delta: float, max_points: int = MAX_POINTS) -> float:
    """The ε at which the hockey-stick divergence of the composed pairs is at most δ, as an upper bound.

    Args:
        components: pairs with their numbers of repetitions; all of one direction.
        delta: in [1e-200, 1).
        max_points: limit on the size of the grid. Fewer points are faster and give a larger ε.

    Returns:
        ε ≥ 0; ``inf`` if the mass of infinite loss alone exceeds δ, or losses are too great for a grid.
    """
    require_within("delta", delta, 1e-200, 1.0, open_high=True)
    require_integer("max_points", max_points, 1)
    require_counted("components", components, Pair)
    components = [(pair, count) for pair, count in components if count > 0]
    if not components:
        return 0.0
    steps = sum(count for _, count in components)
    tail = LOST_MASS * delta / steps
    supports = [pair.support(tail) for pair, _ in components]
    if not all(abs(end) < _FARTHEST for support in supports for end in support):
        return math.inf
    window = choose_window(components, supports, delta, None, None)
    extent = max(window.high - window.low, *(high - low for low, high in supports))

    def wanted(bound: float, slope: float) -> int:
        # Rounding to a grid of spacing h adds about steps (λ + λ²) h²/12 to the moment at tilt λ.
        fine = math.sqrt(12.0 * _PRECISION * bound / (steps * (1.0 + slope)))
        return max_points if extent >= fine * max_points else math.ceil(extent / fine)

    # Mostly the moments alone tell how fine a grid is wanted, and one pass will do.
    guess = window.center or None
    least = min(_MIN_POINTS, max_points)
    points = least if guess is None else max(least, wanted(guess, window.slope))
    best = math.inf
    for _ in range(_MAX_PASSES):
        spacing = extent / points
        bound, slope = _at_spacing(components, supports, delta, spacing, guess)
        best = min(best, bound)
        if best == 0.0:
            break
        finer = wanted(bound, slope) if bound < math.inf else max_points
        guessed_well = guess is not None and 0.5 * guess < bound < 2.0 * guess
        if finer <= 1.1 * points and (guessed_well or bound == math.inf):
            break
        points, guess = max(points, finer), best if best < math.inf else None
    return best


def _at_spacing(
    components: Sequence[Component],
    supports: Sequence[tuple[float, float]],
    delta: float,
    spacing: float,
    guess: float | None,
) -> tuple[float, float]:
    """The bound on ε from a grid of this spacing, and the slope of -log δ where it lies."""
    steps = sum(count for _, count in components)
    window = choose_window(components, supports, delta, spacing, guess)
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
    rest = delta * (1.0 - LOST_MASS) + math.expm1(log_finite)
    # Relative rounding errors of the cell masses, compounded over the steps.
    rest *= 1.0 - min(1e-13 * (steps + 100.0), 0.5)
    if rest <= 0:
        return math.inf, window.slope
    return _invert(losses, *_convolve(laws, losses, window.tilt), rest), window.slope


def _convolve(
    laws: Sequence[tuple[Law, int]], losses: np.ndarray, tilt: float
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
        log_mean = float(log_moments(law, np.array([tilt]))[0])
        tilted = law.masses * np.exp(log_weights - log_mean)
        positions = np.rint(law.losses / spacing).astype(np.int64) % size
        tilted = np.bincount(positions, tilted, size)
        transform = fft.rfft(tilted)
        sizes = np.abs(transform)
        product *= _power(transform, sizes, count)
        log_scale += count * log_mean
        # Each of `count` factors carries the error of its transform, damped by all the others.
        damping = math.sqrt(float(np.mean(_power(sizes, sizes, 2.0 * (count - 1)))))
        error += count * _norm(tilted) * damping
    first = round(losses[0] / spacing)
    tilted = np.maximum(np.roll(fft.irfft(product, size), -(first % size)), 0.0)
    error += _norm(tilted)
    # In the Euclidean norm, which an orthogonal transform keeps.
    error *= _MACHINE * math.log2(size)
    factors = np.exp(np.minimum(log_scale - tilt * losses, 300.0))
    return tilted * factors, error * np.sqrt(_sum_above(factors**2))


def _power(values: np.ndarray, sizes: np.ndarray, exponent: float) -> np.ndarray:
    """``values**exponent``, and 0 where that is below e^-200, as it is nearly everywhere after many steps.

    Beside the transform's value at zero, which is one, nothing so small survives rounding.

    Args:
        values: of a transform, at most about one.
        sizes: their absolute values.
        exponent: at least 0.
    """
    if exponent == 0:
        return np.ones_like(values)
    found = np.zeros_like(values)
    kept = np.flatnonzero(sizes > math.exp(_NEGLIGIBLE / exponent))
    found[kept] = values[kept] ** exponent
    return found


def _norm(values: np.ndarray) -> float:
    """In the Euclidean sense; a product of BLAS would wake a thread for every core."""
    return math.sqrt(float(np.sum(np.square(values))))


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
