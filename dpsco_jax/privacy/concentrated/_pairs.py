"""Dominating pairs of a pure test with a Gaussian, whole and on a random batch.

What it computes: the masses that a pair puts on cells of loss values, as ``pairs.Pair`` holds them.

Source: Kairouz, Oh and Viswanath 2015 (randomized response dominates a pure test); Balle, Barthe and Gaboardi
2018 (amplification). docs/theory/concentrated_mean.md, sections 5 and 6.

Formal guarantee: ``response_gaussian`` dominates an ε₁-DP release with a Gaussian under the relation of
both; ``sampled`` dominates a release on a uniform batch of fixed size, given that the pair dominates the
replacement of one of the batch's vectors by any other, whatever the relation.

Cost: a few vectorized special functions per cell.
"""

import math

import numpy as np

from dpsco_jax.privacy.pld import pairs
from dpsco_jax.privacy.pld.pairs import Pair


def response_gaussian(noise_multiplier: float, response_epsilon: float) -> Pair:
    """Randomized response of ε₁ times N(1, s²) against N(0, s²)."""
    return with_response(pairs.gaussian(noise_multiplier), response_epsilon)


def with_response(pair: Pair, response_epsilon: float) -> Pair:
    """Randomized response of ε₁ times a pair: the loss is that of the pair, plus or minus ε₁."""
    likely = 1.0 / (1.0 + math.exp(-response_epsilon))
    unlikely = likely * math.exp(-response_epsilon)

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        up_p, up_q = pair.cells(edges - response_epsilon)
        down_p, down_q = pair.cells(edges + response_epsilon)
        return likely * up_p + unlikely * down_p, unlikely * up_q + likely * down_q

    def support(tail: float) -> tuple[float, float]:
        low, high = pair.support(tail)
        return low - response_epsilon, high + response_epsilon

    return Pair(cells, support)


def sampled(pair: Pair, sampling_fraction: float) -> Pair:
    """The pair whose curve is q δ(log(1 + (e^ε - 1)/q)) for ε >= 0, and which is its own reverse.

    Args:
        pair: of continuous losses and its own reverse, with the curve δ.
        sampling_fraction: q in (0, 1].
    """
    q = sampling_fraction

    def unsampled(losses: np.ndarray) -> np.ndarray:
        """U with e^x = 1 + q (e^u - 1), for x >= 0."""
        return losses - math.log(q) + np.log1p((q - 1.0) * np.exp(-losses))

    def positive_half(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        upper, lower = (masses[1:] for masses in pair.cells(unsampled(edges)))
        return q * upper + (1.0 - q) * lower, lower

    # P and Q lose the same mass to losses of zero.
    above, below = (masses[0] for masses in positive_half(np.zeros(1)))
    at_zero = max(1.0 - above - below, 0.0)

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        zero = int(np.searchsorted(edges, 0.0))
        upper, lower = positive_half(edges[zero:])
        mirrored_upper, mirrored_lower = positive_half(-edges[zero::-1])
        p = np.concatenate([mirrored_lower[::-1], upper])
        q_masses = np.concatenate([mirrored_upper[::-1], lower])
        p[zero] += at_zero
        q_masses[zero] += at_zero
        return p, q_masses

    def support(tail: float) -> tuple[float, float]:
        _, high = pair.support(tail)
        reach = float(np.logaddexp(math.log1p(-q), math.log(q) + high)) if q < 1.0 else high
        return -reach, reach

    return Pair(cells, support)
