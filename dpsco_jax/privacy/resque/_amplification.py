"""Rényi divergences of a subsampled release from the ternary moments of three Gaussians.

U = s P + (1-s) R and V = s Q + (1-s) R, where the differing record is used with probability s, P and Q are
the laws of the release on either data set given that it is, and R given that it is not. Conditionally on
positions and perturbations these are three Gaussians, pairwise at most sqrt(2 c) b standard deviations apart
if the record was used b times. Then, for integer α,

    E_V (U/V)^α <= 1 + Σ_{j=2}^α C(α, j) s^j Σ_b q_b V_j(b),

with V_j(b) a bound on ∫ |P - Q|^j R^{1-j}; the linear term vanishes because P and Q have the same mass. This
replaces the closed form 13 s² α τ of the thesis (Proposition 2.4.8 and Lemma 2.4.10; 5 to 13 times smaller at
the same numbers). Proof: docs/theory/resque.md, Lemma 5.
"""

import functools
import math

import numpy as np
from jaxtyping import Float
from scipy import special

from dpsco_jax.privacy.orders import ORDERS

LARGEST_ORDER = 256
_ROUNDING = 1e-12


def log_ternary_moments(cost: float, times: int) -> Float[np.ndarray, "degrees"]:
    """Log of V_j(times) for j = 2, ..., 256.

    Args:
        cost: c, half the squared distance that one use allows, in squared standard deviations.
        times: b, how often the record is used.
    """
    j = np.arange(2, LARGEST_ORDER + 1, dtype=float)
    divergence = math.log(2.0) + j * (j - 1.0) * cost * times * times
    if times > 1:
        divergence[0] = math.log(4.0) + _log_expm1(2.0 * cost * times * times)
        return divergence
    # |P - Q| / R is the difference of two weights at a distance and radii of at most t.
    t = math.sqrt(2.0 * cost)
    log_normal = (special.gammaln(0.5 * (j + 1.0)) - 0.5 * math.log(math.pi)) / j + 0.5 * math.log(
        2
    )
    growth = 0.5 * (j - 1.0) * t * t
    difference = j * (math.log(t) + growth + np.log((j - 1.0) * t + np.exp(log_normal)))
    moments = np.minimum(divergence, difference)
    moments[0] = math.log(2.0) + cost + _log_expm1(cost)
    return moments


def subsampled_rdp(
    cost: float, rate: float, uses: Float[np.ndarray, "counts"]
) -> Float[np.ndarray, "orders"]:
    """The divergences at ``ORDERS``; ``inf`` above order 256.

    The log-moment is convex in the order, so the line between two integer orders is above it; between 1 and
    2 the divergence is at most that of order 2.

    Args:
        cost: c, above 0.
        rate: s, the probability that the record is used, in [0, 1].
        uses: q_b for b = 1, 2, ...: the law of the number of uses given that there is one.
    """
    if rate == 0.0:
        return np.zeros(len(ORDERS))
    moments = special.logsumexp(
        [math.log(q) + log_ternary_moments(cost, b + 1) for b, q in enumerate(uses) if q > 0],
        axis=0,
    )
    j = np.arange(2, LARGEST_ORDER + 1, dtype=float)
    terms = _log_choose() + (j * math.log(rate) + moments)
    log_moment = np.logaddexp(0.0, special.logsumexp(terms, axis=1))
    log_moment = np.concatenate([[0.0], log_moment])  # of orders 1, 2, ...
    below = np.minimum(np.floor(ORDERS), LARGEST_ORDER).astype(int)
    above = np.minimum(below + 1, LARGEST_ORDER)
    part = np.minimum(ORDERS - below, 1.0)
    line = (1.0 - part) * log_moment[below - 1] + part * log_moment[above - 1]
    line = np.where(ORDERS <= LARGEST_ORDER, line, np.inf)
    return line * (1.0 + _ROUNDING) / (ORDERS - 1.0)


@functools.lru_cache
def _log_choose() -> Float[np.ndarray, "orders degrees"]:
    """Log of C(α, j), above what rounding makes of it; -inf for j > α."""
    whole = np.arange(2, LARGEST_ORDER + 1, dtype=float)[:, None]
    j = whole.T
    rest = np.maximum(whole - j, 0.0)
    # gammaln errs by a few units of its own size, at most 1200 here.
    value = special.gammaln(whole + 1) - special.gammaln(j + 1) - special.gammaln(rest + 1)
    return np.where(j <= whole, value + _ROUNDING, -np.inf)


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))
