"""Random selection of inliers: how many coins differ between neighbours, and the Gaussians that follow.

With k differing coins of shared vectors the means are at most (k₁ + k) u apart, u the share of one vector and
k₁ = 2 or 1. At most n coins can differ, each with probability at most p, so k is stochastically below Bin(n,
p), and a step is dominated by the Gaussian pair at distance (k₁ + k) u/σ with k ~ Bin(n, p) shown, but for
the probability that k exceeds ``most``, which is accounted for apart. This replaces U Lemmas 3.4, 3.5 and T
Lemmas 9.3.4, 9.3.5; proof: docs/theory/concentrated_mean.md, section 8.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from dpsco_jax._numerics import as_floats, special_namespace
from dpsco_jax.privacy.curves import gaussian, subsampling
from dpsco_jax.privacy.loss import PrivacyLoss
from dpsco_jax.privacy.orders import ORDERS
from dpsco_jax.privacy.pld import pairs
from dpsco_jax.privacy.pld.pairs import Pair

_TERMS = 64
_SURE = 0.999


class Coins(NamedTuple):
    """The coins that may differ in one step; numbers may be traced, counts are whole.

    Attributes:
        total: n, shared vectors outside of the core.
        probability: p, with which one of them differs at most.
        always: k₁, what counts whatever the coins show: 2, or 1 for REPLACE_SPECIAL.
        most: the largest k that the sensitivity allows for.
    """

    total: Any
    probability: Any
    always: float
    most: Any

    def weights(self) -> np.ndarray:
        """Probabilities of k = 0, ..., most, that of more counted as ``most``; on the host."""
        counts = np.arange(int(self.most) + 1)
        found = stats.binom.pmf(counts, self.total, self.probability)
        found[-1] = stats.binom.sf(self.most - 1, self.total, self.probability)
        return found

    def fractions(self) -> np.ndarray:
        """The distance for k = 0, ..., most over the largest one."""
        counts = np.arange(int(self.most) + 1)
        return (self.always + counts) / (self.always + self.most)


def pair(coins: Coins, mu: float) -> Pair:
    """The mixture of Gaussian pairs, ``mu`` being the distance of the largest."""
    weights = coins.weights()
    kept = weights > 0
    members = [
        (weight, pairs.gaussian(1.0 / (fraction * mu)))
        for weight, fraction in zip(weights[kept], coins.fractions()[kept], strict=True)
    ]

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p, q = np.zeros(len(edges) + 1), np.zeros(len(edges) + 1)
        for weight, member in members:
            upper, lower = member.cells(edges)
            p, q = p + weight * upper, q + weight * lower
        return p, q

    def support(tail: float) -> tuple[float, float]:
        ends = [m.support(min(tail / weight, 0.4)) for weight, m in members if weight > tail]
        return min(low for low, _ in ends), max(high for _, high in ends)

    return Pair(cells, support)


def mixture(coins: Coins) -> tuple[Any, Any]:
    """Logarithms of the weights of k = 0, 1, ..., 63 and their distances over the largest one.

    Where ``most`` is above 63, or coins nearly always differ, the largest distance is taken for all k.
    """
    xp, (total, probability, most) = as_floats(coins.total, coins.probability, coins.most)
    always = coins.always
    sure = probability >= _SURE
    probability = xp.where(sure, 0.5, probability)
    counts = np.arange(_TERMS, dtype=total.dtype)
    odds = probability / (1.0 - probability)
    ratios = xp.maximum(total - counts, 0.0) / (counts + 1.0) * odds
    steps = xp.where(ratios > 0, xp.log(xp.where(ratios > 0, ratios, 1.0)), -xp.inf)
    log_weights = total * xp.log1p(-probability) + xp.concatenate(
        [counts[:1], xp.cumsum(steps)[:-1]]
    )
    # What is beyond the last k counts as the last: at most a geometric series.
    at_most = xp.sum(xp.where(counts == most, ratios, 0.0))
    known = (most < _TERMS) & (at_most < 0.9) & ~sure
    log_weights = log_weights - xp.where(counts == most, xp.log1p(-xp.minimum(at_most, 0.9)), 0.0)
    log_weights = xp.where(known, log_weights, 0.0)
    rounding = 16.0 * xp.finfo(total.dtype).eps * (1.0 + xp.abs(log_weights[0]) + 2.0 * most)
    log_weights = xp.where(counts <= xp.where(known, most, 0.0), log_weights + rounding, -xp.inf)
    fractions = xp.where(known, (always + xp.minimum(counts, most)) / (always + most), 1.0)
    return log_weights, fractions


def loss(log_weights: Any, fractions: Any, multiplier: Any, rate: Any) -> PrivacyLoss:
    """The Rényi curve of one step.

    Args:
        log_weights: of ``mixture``.
        fractions: of ``mixture``.
        multiplier: σ over the largest distance.
        rate: at which batches are amplified; None for everybody.
    """
    if rate is None:
        rdp = gaussian(multiplier / fractions).rdp
    else:
        rdp = subsampling.subsampled_gaussian_of_fraction(multiplier / fractions, rate).rdp
    xp, (rdp, log_weights) = as_floats(rdp, log_weights)
    above_one = (ORDERS - 1.0).astype(rdp.dtype)
    exponents = above_one * xp.minimum(rdp, 1e30) + log_weights[:, None]
    mean = special_namespace(xp).logsumexp(exponents, axis=0)
    slack = 16.0 * xp.finfo(rdp.dtype).eps * (1.0 + xp.abs(mean))
    mixed = xp.maximum(mean + slack, 0.0) / above_one
    return PrivacyLoss(xp.minimum(mixed, rdp.max(0)), xp.zeros((), rdp.dtype))
