"""Dominating pairs of Poisson sampling under replacement: of units, and of users with all their units.

Units are what one record is, each clipped to ρ; distances are over the sensitivity 2ρ. Of
P = (1-q) N(0, s²) + q N(c, s²) and Q = (1-q) N(0, s²) + q N(c-1, s²) the loss log dP/dQ is increasing in z,
and positive for z > c - 1/2. At c = 1/2 it is odd, and its inverse is

    z = 2s² (x/2 + asinh((1-q)/q exp(1/(8s²)) sinh(x/2))).

Source: E Corollary 2.5; that these pairs dominate is proven in docs/theory/mixtures.md.

Formal guarantee: each pair dominates under REPLACE_ONE, at every ε and in both directions, and is its own
reverse. A noise multiplier s is σ over the sensitivity 2ρ. That of users sampled with all their units
dominates under REPLACE_SPECIAL too, with s = σ/ρ and twice the cap for κ.

Cost: a few vectorized special functions per cell, about ten times that where κ is not 1.
"""

import math

import numpy as np
from scipy import special

from dpsco_jax._checks import require_positive, require_within
from dpsco_jax.privacy.pld.pairs import Pair, gaussian, self_mirrored

_NEWTON_STEPS = 100  # each halves the bracket at least; mostly six are enough


def poisson_replaced_gaussian(noise_multiplier: float, sampling_probability: float) -> Pair:
    """P = (1-q) N(0, s²) + q N(1/2, s²) against Q = (1-q) N(0, s²) + q N(-1/2, s²).

    It dominates a Gaussian on a sum over units each of which is sampled with probability q by itself, under
    REPLACE_ONE.
    """
    return user_sampled_gaussian(noise_multiplier, sampling_probability, 1.0)


def user_sampled_gaussian(noise_multiplier: float, sampling_probability: float, cap: float) -> Pair:
    """P = (1-q) N(0, s²) + q N(κ/2, s²) against Q = (1-q) N(0, s²) + q N(κ/2 - 1, s²), made its own reverse.

    It dominates a Gaussian on a sum over users that are sampled with probability q, with all their units,
    the sum over a user's units clipped to κ times the norm of one; one unit is replaced.
    """
    require_positive("noise_multiplier", noise_multiplier)
    require_within("sampling_probability", sampling_probability, 0.0, 1.0, open_low=True)
    require_within("cap", cap, 1.0, math.inf)
    s, q, b = float(noise_multiplier), float(sampling_probability), 0.5 * (float(cap) - 1.0)
    if q == 1.0:
        return gaussian(s)
    half = _half(s, q, b)
    # 1 - P(L > 0) - Q(L > 0); exactly zero for κ = 1.
    at_zero = (1.0 - q) * special.erf(b / (s * math.sqrt(2.0)))
    return self_mirrored(half, float(at_zero))


def _half(s: float, q: float, b: float) -> Pair:
    """P against Q where the loss is positive, along t = z - c + 1/2 > 0, with b = c - 1/2."""
    log_odds = math.log1p(-q) - math.log(q)

    def of_loss(x: np.ndarray) -> np.ndarray:
        """The t at which the loss is x ≥ 0."""
        return _odd_inverse(x, s, log_odds) if b == 0.0 else _inverse(x, s, q, b)

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t = np.concatenate([of_loss(edges) / s, [np.inf]])

        def masses(shift: float) -> np.ndarray:
            below, above = special.ndtr(t + shift), special.ndtr(-t - shift)
            inner = np.where(t[:-1] + shift > 0, above[:-1] - above[1:], below[1:] - below[:-1])
            return np.concatenate([[below[0]], inner])

        unsampled = (1.0 - q) * masses(b / s)
        return unsampled + q * masses(-0.5 / s), unsampled + q * masses(0.5 / s)

    def support(tail: float) -> tuple[float, float]:
        high = float(_loss(np.asarray(0.5 - s * special.ndtri(tail)), s, q, b)[0])
        return -high, high

    return Pair(cells, support)


def _loss(t: np.ndarray, s: float, q: float, b: float) -> tuple[np.ndarray, np.ndarray]:
    """The loss L at t ≥ 0, and its derivative."""
    w = t / s**2
    # Neither 0 times inf nor inf minus inf, wherever a user's sum is not clipped.
    shift = (0.5 - b) * (2.0 * t + 0.5 + b) / (2.0 * s**2)
    odds = math.log1p(-q) - math.log(q) + shift
    rarity = np.logaddexp(0.0, odds)  # -log π
    log_u = w - rarity + np.log(np.maximum(-np.expm1(-w), 1e-300))
    loss = np.logaddexp(0.0, log_u)
    small = log_u < 0.0
    loss = np.where(small, np.log1p(np.exp(np.where(small, log_u, 0.0))), loss)
    # Of log P minus that of log Q: the weights of their sampled parts, each times its distance.
    of_q = np.exp(-rarity)
    of_p = special.expit(w - odds)
    slope = (of_p - of_q) * (b if math.isfinite(b) else 0.0) + 0.5 * (of_p + of_q)
    return loss, np.asarray(np.maximum(slope, 0.0) / s**2)


def _odd_inverse(x: np.ndarray, s: float, log_odds: float) -> np.ndarray:
    """The inverse for b = 0."""
    h = 0.5 * x
    with np.errstate(divide="ignore"):
        log_sinh = h + np.log(-np.expm1(-2.0 * h)) - math.log(2.0)
    y = log_odds + 1.0 / (8.0 * s * s) + log_sinh
    far = y > 20.0
    turned = np.where(far, y + math.log(2.0), np.arcsinh(np.exp(np.where(far, 0.0, y))))
    return 2.0 * s * s * (h + turned)


def _inverse(x: np.ndarray, s: float, q: float, b: float) -> np.ndarray:
    """The inverse by Newton's method within a bracket that never loses the root."""
    low = s * s * x  # L ≤ t/s²
    high = _odd_inverse(x, s, math.log1p(-q) - math.log(q))  # L grows with b
    t = 0.5 * (low + high)
    for _ in range(_NEWTON_STEPS):
        loss, slope = _loss(t, s, q, b)
        low, high = np.where(loss <= x, t, low), np.where(loss >= x, t, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            new = t - (loss - x) / slope
        new = np.where((new > low) & (new < high), new, 0.5 * (low + high))
        if np.all(np.abs(new - t) <= 4.0 * np.finfo(np.float64).eps * new):
            return new
        t = new
    return t
