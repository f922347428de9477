"""The dominating pair of several units changed at once in samples of a fixed size.

Of k units that are replaced j are drawn, with the probability p_j of B draws without replacement from N.
With d_j = j/s and γ = e^ε ≥ 1, no test tells the two neighbours apart by more than

    H(γ) = max over x of (1-γ) p_0 Φ(x) + Σ_{j>0} p_j (Φ(y_j) - γΦ(y_j - d_j)),

where y_j is d_j/2 - ε/d_j, where Φ(y) - γΦ(y - d_j) is greatest, cut to [x, x + d_j]. As a greatest of
lines H is convex, and what P and Q give to losses above ε is read from the line that touches it:
p_0 Φ(x) + Σ p_j Φ(y_j), and the same with y_j - d_j.

Source: Balle, Barthe and Gaboardi 2018 for a single unit, of which this is the pair; that it dominates for k
is proven in docs/theory/mixtures.md, section 7.

Formal guarantee: under REPLACE_ONE of each of k units, clipped to one norm, at every ε, in both directions
and as its own reverse. Counts that are all but impossible are taken for greater ones, which the proof allows.
A noise multiplier s is σ over the sensitivity to one unit, twice that norm.

Cost: per cell some sixty times two exponentials for every count that is likely.
"""

import math

import numpy as np
from scipy import special

from dpsco_jax._checks import require_integer, require_positive
from dpsco_jax.privacy.pld.binomial_pairs import _likely
from dpsco_jax.privacy.pld.pairs import Pair, gaussian, self_mirrored

_HALVINGS = 60
_BLOCK = 2**20
_PLACES = 2**10


def hypergeometric_replaced_gaussian(
    noise_multiplier: float, population_size: int, batch_size: int, count: int
) -> Pair:
    """It dominates a Gaussian on the sum over B of N units, ``count`` of which are replaced.

    REPLACE_ONE of each. Its own reverse; of one unit it is ``pairs.gaussian_without_replacement``.
    """
    require_positive("noise_multiplier", noise_multiplier)
    population = require_integer("population_size", population_size, 1)
    batch = require_integer("batch_size", batch_size, 1, population)
    k = require_integer("count", count, 1, population)
    if batch == population:
        return gaussian(noise_multiplier / k)
    counts, logs = _likely(np.arange(k + 1, dtype=float), _log_chances(population, batch, k))
    drawn = counts > 0.0
    half = _Half(counts[drawn] / noise_multiplier, logs[drawn], float(np.exp(logs[~drawn]).sum()))
    return self_mirrored(Pair(half.cells, half.support), half.at_zero)


def _log_chances(population: int, batch: int, k: int) -> np.ndarray:
    """The logarithms of the chances C(k, j) C(N-k, B-j) / C(N, B), free of large numbers that cancel."""
    j = np.arange(k + 1)

    def falling(n: int) -> np.ndarray:
        """Log n(n-1)...(n-j+1)/N^j for all j; -inf where there are not as many."""
        with np.errstate(divide="ignore"):
            shares = np.log(np.maximum(n - np.arange(k, dtype=float), 0.0) / population)
        return np.concatenate([[0.0], np.cumsum(shares)])

    ways = special.gammaln(k + 1) - special.gammaln(j + 1) - special.gammaln(k - j + 1)
    logs = ways + falling(batch) + falling(population - batch)[::-1]
    return logs - np.logaddexp.reduce(logs)


class _Half:
    """The pair where its loss is positive: places d_j > 0, the logarithms of their p_j, and p_0."""

    def __init__(self, places: np.ndarray, logs: np.ndarray, none: float) -> None:
        self.places, self.logs, self.none = places, logs, none
        # What is left of the mass: where γ = 1, all y_j are d_j/2 and x is -d_1/2.
        self.at_zero = none * float(special.erf(places[0] / math.sqrt(8.0)))

    def cells(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p, q = self._above(edges)
        return tuple(-np.diff(np.concatenate([[1.0], m, [0.0]])) for m in (p, q))  # type: ignore[return-value]

    def support(self, tail: float) -> tuple[float, float]:
        # Beyond the last place no y_j exceeds the quantile of the tail.
        far = self.places[-1] * (0.5 * self.places[-1] - float(special.ndtri(tail)))
        grid = np.linspace(0.0, far, _PLACES)
        high = float(grid[np.argmax(self._above(grid)[0] <= tail)]) or far
        return -high, high

    def _above(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The masses of P and of Q on losses above those given, and above zero."""
        p, q = np.empty(losses.shape), np.empty(losses.shape)
        step = max(1, _BLOCK // len(self.places))
        for start in range(0, len(losses), step):
            part = slice(start, start + step)
            epsilon = np.maximum(losses[part, None], 0.0)  # below zero is the mirror's
            x = self._best(epsilon)
            y = np.clip(0.5 * self.places - epsilon / self.places, x, x + self.places)
            undrawn, chances = self.none * special.ndtr(x[:, 0]), np.exp(self.logs)
            p[part] = undrawn + special.ndtr(y) @ chances
            q[part] = undrawn + special.ndtr(y - self.places) @ chances
        return p, q

    def _best(self, epsilon: np.ndarray) -> np.ndarray:
        """The x that attains H(e^ε), the least of them, where its slope over γφ(x), which falls, is zero."""
        d, chances = self.places, np.exp(self.logs)
        # Right of ``high`` no count gains; at ``low`` one gains 2, more than all the others lose.
        high = np.max(-0.5 * d - epsilon / d, axis=1, keepdims=True)
        gains = np.logaddexp(0.0, math.log(2.0) - self.logs)
        low = np.max(-0.5 * d - (epsilon + gains) / d, axis=1, keepdims=True)
        for _ in range(_HALVINGS):
            x = 0.5 * (low + high)
            up = np.maximum(np.expm1(np.minimum(-x * d - 0.5 * d**2 - epsilon, 700.0)), 0.0)
            down = np.maximum(np.exp(x * d - 0.5 * d**2) - np.exp(-epsilon), 0.0)
            rises = (up - down) @ chances > -np.expm1(-epsilon[:, 0]) * self.none
            low, high = np.where(rises[:, None], x, low), np.where(rises[:, None], high, x)
        return high
