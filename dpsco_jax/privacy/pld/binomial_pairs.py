"""Dominating pairs of several units changed at once, each of which is sampled by itself.

Of k units j are drawn, with probability p_j = C(k, j) q^j (1-q)^(k-j). Distances are over the sensitivity to
one unit, which is 2ρ under replacement and ρ where units are replaced by nothing:

    replaced:  P = Σ_j p_j N(j/2, s²)  against  Q = Σ_j p_j N(-j/2, s²),
    removed:   P = Σ_j p_j N(j, s²)    against  Q = N(0, s²).

Source: E Corollary 2.2 asks for k units; that these pairs dominate is proven in docs/theory/mixtures.md,
section 5.

Formal guarantee: at every ε, the first in both directions and as its own reverse; the second, with its
reverse, as that of one unit does. Counts that are all but impossible are taken for greater ones, which the
proof allows. A noise multiplier s is σ over the sensitivity to one unit.

Cost: per cell one exponential for every count that is likely, some √k·10 of them, in each of about four steps
of Newton's method.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy import special, stats

from dpsco_jax._checks import require_integer, require_positive, require_within
from dpsco_jax.privacy.pld.pairs import Pair, gaussian

_NEWTON_STEPS = 100  # each halves the bracket at least; mostly four are enough
_LAST_STEPS = 2  # of which each doubles the digits, from nine on
_TABLE = 2**11
_UNLIKELY = 1e-25  # what is moved to greater counts on either side
_BLOCK = 2**20

_Masses = Callable[[np.ndarray], np.ndarray]


def binomial_replaced_gaussian(
    noise_multiplier: float, sampling_probability: float, count: int
) -> Pair:
    """Σ_j p_j N(j/2, s²) against Σ_j p_j N(-j/2, s²): ``count`` units replaced, under REPLACE_ONE of each.

    The pair is its own reverse.
    """
    s, places, logs = _checked(noise_multiplier, sampling_probability, count)
    if sampling_probability == 1.0:
        return gaussian(s / count)
    places = 0.5 * places

    def loss(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ahead, mean_ahead = _moment(z, s, places, logs)
        behind, mean_behind = _moment(-z, s, places, logs)
        return ahead - behind, (mean_ahead + mean_behind) / s**2

    def of_loss(x: np.ndarray) -> np.ndarray:
        return _inverse(x, loss, s)

    ahead, behind = (_mixture(s, sign * places, logs) for sign in (1.0, -1.0))

    def support(tail: float) -> tuple[float, float]:
        high = float(loss(np.array([_quantile(s, places, logs, tail)]))[0][0])
        return -high, high

    return _pair(of_loss, ahead, behind, support)


def binomial_removed_gaussian(
    noise_multiplier: float, sampling_probability: float, count: int
) -> Pair:
    """Σ_j p_j N(j, s²) against N(0, s²): ``count`` units replaced by nothing, REPLACE_SPECIAL of each.

    Its reverse is needed as well; see ``pairs.poisson_gaussian``.
    """
    s, places, logs = _checked(noise_multiplier, sampling_probability, count)
    if sampling_probability == 1.0:
        return gaussian(s / count)
    # Below the log of p_0 there is no loss; where no unit is never drawn, or all but never, it has no floor.
    floor = float(logs[0]) if places[0] == 0.0 else -math.inf

    def loss(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, mean = _moment(z, s, places, logs)
        return value, mean / s**2

    def of_loss(x: np.ndarray) -> np.ndarray:
        found = np.full(x.shape, -np.inf)
        reached = x > floor
        found[reached] = _inverse(x[reached], loss, s)
        return found

    def support(tail: float) -> tuple[float, float]:
        # Q lies below P, and it is what the reverse draws from.
        ends = s * float(special.ndtri(tail)), _quantile(s, places, logs, tail)
        low, high = (float(loss(np.array([z]))[0][0]) for z in ends)
        return low, high

    single = _mixture(s, np.zeros(1), np.zeros(1))
    return _pair(of_loss, _mixture(s, places, logs), single, support)


def _checked(s: float, q: float, count: int) -> tuple[float, np.ndarray, np.ndarray]:
    """s, the counts that are likely, and the logarithms of their probabilities."""
    require_positive("noise_multiplier", s)
    require_within("sampling_probability", q, 0.0, 1.0, open_low=True)
    k = require_integer("count", count, 1)
    counts = np.arange(k + 1, dtype=float)
    return float(s), *_likely(counts, stats.binom(k, q).logpmf(counts))


def _likely(counts: np.ndarray, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The counts that are likely, with the logs of their probabilities; the rest goes to greater counts."""
    below = np.logaddexp.accumulate(logs)
    above = np.logaddexp.accumulate(logs[:0:-1])[::-1]  # of more than each, but for the last
    first = int(np.searchsorted(below, math.log(_UNLIKELY)))
    last = int(np.searchsorted(-above, -math.log(_UNLIKELY)))
    kept, chances = counts[first : last + 1], logs[first : last + 1].copy()
    chances[0] = below[first]
    if last < len(counts) - 1:
        # The rest is taken for the case of all.
        kept, chances = np.append(kept, counts[-1]), np.append(chances, above[last])
    return kept, chances


def _moment(
    z: np.ndarray, s: float, places: np.ndarray, logs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The log of Σ_j p_j exp((2 z c_j - c_j²)/2s²), and the mean of c_j under these weights."""
    values, means = np.empty(z.shape), np.empty(z.shape)
    step = max(1, _BLOCK // len(places))
    for start in range(0, len(z), step):
        part = slice(start, start + step)
        terms = logs + places * (2.0 * z[part, None] - places) / (2.0 * s**2)
        top = terms.max(axis=1)
        weights = np.exp(terms - top[:, None])
        total = weights.sum(axis=1)
        values[part], means[part] = top + np.log(total), weights @ places / total
    return values, means


def _mixture(s: float, places: np.ndarray, logs: np.ndarray) -> _Masses:
    """Masses that Σ_j p_j N(c_j, s²) puts between increasing thresholds, exact in both tails."""

    def masses(thresholds: np.ndarray) -> np.ndarray:
        total = np.zeros(len(thresholds) + 1)
        for place, log in zip(places, logs, strict=True):
            ends = (np.concatenate([[-np.inf], thresholds, [np.inf]]) - place) / s
            below, above = special.ndtr(ends), special.ndtr(-ends)
            cell = np.where(ends[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])
            total += math.exp(log) * cell
        return total

    return masses


def _pair(
    of_loss: Callable[[np.ndarray], np.ndarray],
    first: _Masses,
    second: _Masses,
    support: Callable[[float], tuple[float, float]],
) -> Pair:
    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        thresholds = of_loss(edges)
        return first(thresholds), second(thresholds)

    return Pair(cells, support)


def _quantile(s: float, places: np.ndarray, logs: np.ndarray, tail: float) -> float:
    """The z that Σ_j p_j N(c_j, s²) exceeds with probability ``tail``, rounded up."""
    reach = -s * float(special.ndtri(tail))
    low, high = float(places[0]) + min(reach, 0.0), float(places[-1]) + reach
    for _ in range(60):
        middle = 0.5 * (low + high)
        above = float(np.exp(logs) @ special.ndtr((places - middle) / s))
        low, high = (low, middle) if above <= tail else (middle, high)
    return high


def _inverse(
    x: np.ndarray, loss: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], width: float
) -> np.ndarray:
    """The z at which an increasing loss is x, by Newton's method within a bracket that keeps the root."""
    if not len(x):
        return x
    ends = [-width, width]
    for side, out in (
        (0, lambda z: loss(z)[0][0] > x.min()),
        (1, lambda z: loss(z)[0][0] < x.max()),
    ):
        while out(np.array([ends[side]])):
            ends[side] *= 2.0
    table = np.linspace(ends[0], ends[1], _TABLE)
    values = np.maximum.accumulate(loss(table)[0])
    place = np.clip(np.searchsorted(values, x), 1, _TABLE - 1)
    low, high = table[np.maximum(place - 2, 0)], table[np.minimum(place + 1, _TABLE - 1)]
    z, left = np.clip(np.interp(x, values, table), low, high), _LAST_STEPS
    for _ in range(_NEWTON_STEPS):
        value, slope = loss(z)
        low, high = np.where(value <= x, z, low), np.where(value >= x, z, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            new = z - (value - x) / slope
        new = np.where((new >= low) & (new <= high), new, 0.5 * (low + high))
        left -= bool(np.all(np.abs(new - z) <= 1e-9 * (np.abs(new) + width)))
        z = new
        if not left:
            break
    return z
