"""Rényi divergences of a sampled Gaussian release whose shift is itself random.

With probability q the release is Gaussian around a point that the differing record moves by a random number
of standard deviations. Its privacy profile is at most the mean, over that number, of the profiles of sampled
Gaussians (Balle, Barthe and Gaboardi 2018); this is the profile of a mixture of known dominating pairs (Zhu,
Dong and Wang 2022), rounded to a grid of losses so that no hockey-stick divergence decreases (Doroshenko et
al. 2022). Losses beyond the grid count as failure. The bound holds at every real order, under REPLACE_ONE.
Proof: docs/theory/resque.md, Lemma 4.
"""

import math

import numpy as np
from jaxtyping import Float
from scipy import special

from dpsco_jax._numerics import exp_remainder
from dpsco_jax.privacy.orders import ORDERS
from dpsco_jax.privacy.pld.pairs import (
    Pair,
    gaussian_without_replacement,
    without_replacement_cells,
)
from dpsco_jax.privacy.pld.pld_window import Law, discretize

_POINTS = 400
_LARGE = 60.0  # exp(-60) is below the rounding of a sum
_ROUNDING = 1e-9


def sampled_shift(
    shifts: Float[np.ndarray, "atoms"],
    weights: Float[np.ndarray, "atoms"],
    rate: float,
    tail: float,
) -> Law:
    """The rounded loss of the dominating pair, in which the shift that applies is part of the release.

    Args:
        shifts: distances in standard deviations, above 0.
        weights: their probabilities, of sum 1.
        rate: the probability q with which the record is used.
        tail: about how much mass may lie beyond the grid.

    Returns:
        Losses symmetric around zero, masses under the first distribution (under the second: those of the
        opposite losses), and the mass beyond the grid, which is infinite loss, in either direction.
    """
    _, high = gaussian_without_replacement(1.0 / float(np.max(shifts)), rate).support(tail)
    # Losses spaced geometrically from far below their standard deviation on.
    typical = rate * math.sqrt(float(weights @ shifts**2))
    least = min(0.01 * typical, 0.1 * high)
    positive = least * np.sinh(np.linspace(0.0, math.asinh(high / least), _POINTS))
    losses = np.concatenate([-positive[:0:-1], positive])
    upper, lower = np.zeros(len(losses) + 1), np.zeros(len(losses) + 1)
    for p, q, weight in zip(
        *without_replacement_cells(shifts, rate, positive), weights, strict=True
    ):
        upper += weight * p
        lower += weight * q
    law = discretize(Pair(lambda _: (upper, lower), lambda _: (-high, high)), losses)
    # Beyond the last loss: as much of the mass at it as the second distribution allows.
    with np.errstate(divide="ignore"):
        last = min(float(np.exp(min(np.log(lower[-1]) + high, 0.0))), law.infinite)
    law.masses[-1] += last
    return Law(losses, law.masses, law.infinite - last)


def with_failure(law: Law, failure: float) -> Law:
    """The law with more infinite loss: the release that it dominates may also fail."""
    total = law.infinite + failure
    return Law(law.losses, law.masses * ((1.0 - total) / (1.0 - law.infinite)), total)


def without_tails(law: Law, most: float) -> Law:
    """The law with its largest losses, in either direction, infinite: as many as hold at most that mass.

    Moments are made of them where a record is rarely used for a large shift; as a failure they cost their
    mass. Both distributions lose the same mass, as one is the other mirrored.
    """
    count = len(law.masses)
    tails = np.cumsum((law.masses + law.masses[::-1])[::-1])[::-1]
    first = max(int(np.searchsorted(-tails, -most, side="left")), count // 2 + 1)
    place = np.arange(count)
    kept = (place < first) & (place >= count - first)
    cut = float(law.masses[~kept].sum()) * (1.0 + _ROUNDING)
    return Law(law.losses, np.where(kept, law.masses, 0.0), law.infinite + cut)


def rdp(law: Law) -> Float[np.ndarray, "orders"]:
    """The divergences at ``ORDERS`` given that the loss is finite."""
    kept = law.masses > 0
    log_lower = np.log(law.masses[kept]) - law.losses[kept] - math.log1p(-law.infinite)
    log_excess = special.logsumexp(log_lower[:, None] + _log_power_excess(law.losses[kept]), axis=0)
    log_moment = np.logaddexp(0.0, log_excess + _ROUNDING)
    return log_moment * (1.0 + _ROUNDING) / (ORDERS - 1.0)


def pair_of(law: Law) -> Pair:
    """The law as a pair that composes."""
    losses, masses = law.losses[law.masses > 0], law.masses[law.masses > 0]
    second = np.exp(np.log(masses) - losses)

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cell, count = np.searchsorted(edges, losses, side="left"), len(edges) + 1
        upper = np.bincount(cell, masses, count)
        lower = np.bincount(cell, second, count)
        upper[-1] += law.infinite
        lower[0] += law.infinite
        return upper, lower

    high = float(law.losses[-1])
    return Pair(cells, lambda _: (-high, high))


def _log_power_excess(
    losses: Float[np.ndarray, "losses"],
) -> Float[np.ndarray, "losses orders"]:
    """Log of y^α - 1 - α (y - 1) at y = e^loss, at most, without cancellation."""
    exponent = losses[:, None] * ORDERS
    moderate = exponent < _LARGE
    near = np.where(moderate, exponent, 0.0)
    alone = np.where(losses < _LARGE, losses, 0.0)  # elsewhere, the exponent is not moderate
    excess = exp_remainder(np, near) - ORDERS * exp_remainder(np, alone)[:, None]
    return np.where(moderate, np.log(np.maximum(excess, 1e-300)), exponent)
