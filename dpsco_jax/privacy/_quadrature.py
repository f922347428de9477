"""What the curves of subsampled Gaussians share: groups of orders, nodes, and the bound beyond the nodes.

The curves are integrals over t of exp(α L(t) - t²/2) times tame factors, with L = log(1 + u) and
u = q (exp(w) - 1), where w = t/σ - 1/(2σ²) is the log-likelihood ratio of two Gaussians 1/σ apart. Such an
integrand lives between t = 0 and t = α/σ with Gaussian tails outside, and is analytic for |Im t| < πσ.
Orders are taken in octaves, each with as many nodes as its highest order may need.

Source: Trefethen and Weideman 2014, section 5 (exponential convergence of the trapezoidal rule).

Formal guarantee: none by itself; the proofs are in docs/privacy/subsampling.md.

Cost: none by itself.
"""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax.privacy.orders import ORDERS


class Precision(NamedTuple):
    """How far a dtype needs the rule to go.

    Attributes:
        decay: the discretization error is at most 256 exp(-decay) of the result, which is added to it.
        reach: length of the Gaussian tails that are kept.
        terms: length of the binomial series for small u.
        coverage: an order α has enough nodes wherever α <= coverage · σ² (or σ is at least 0.3).
        cap: largest exponent that is exponentiated.
    """

    decay: float
    reach: float
    terms: int
    coverage: float
    cap: float


def precision(dtype: Any) -> Precision:
    """The settings for float64, or for everything narrower."""
    if np.dtype(dtype) == np.float64:
        return Precision(decay=38.0, reach=9.0, terms=19, coverage=70.0, cap=600.0)
    return Precision(decay=20.0, reach=6.5, terms=10, coverage=40.0, cap=80.0)


class Octave(NamedTuple):
    """Neighbouring orders that share nodes: ``ORDERS[start:stop]``, all within (top/2, top]."""

    start: int
    stop: int
    top: float


def octaves() -> list[Octave]:
    """The grid of orders cut at the powers of two."""
    exponents = np.maximum(np.ceil(np.log2(ORDERS)), 1)
    cuts = np.flatnonzero(np.diff(exponents)) + 1
    edges = [0, *cuts.tolist(), len(ORDERS)]
    return [
        Octave(start, stop, float(ORDERS[stop - 1])) for start, stop in itertools.pairwise(edges)
    ]


def step_length(xp: Any, sigma: Any, decay: float, strip: float = math.inf) -> Any:
    """The largest step with error exp(-decay): exp(y²/2 - 2πy/h) with y the half-width of the strip.

    It is cut to few bits, so that the nodes are exact and equally spaced in floating point too.
    """
    y = xp.minimum(math.pi * sigma, min(strip, math.sqrt(2.0 * decay)))
    return xp.floor(512.0 * 2.0 * math.pi * y / (0.5 * y * y + decay)) / 512.0


def node_count(top: float, settings: Precision, strip: float = math.inf, left: float = 0.0) -> int:
    """How many nodes the orders up to ``top`` need at the smallest multiplier that is covered.

    Args:
        top: the highest order.
        settings: of the dtype.
        strip: half-width of the strip in which the integrand is analytic for large multipliers.
        left: length of the lower tail; that of the upper one by default.
    """
    sigma = math.sqrt(top / settings.coverage)
    step = float(step_length(np, np.float64(sigma), settings.decay, strip))
    return math.ceil((top / sigma + settings.reach + (left or settings.reach)) / step) + 2


def log_likelihood(xp: Any, w: Any, q: Any, cap: float) -> tuple[Any, Any]:
    """U = q (exp(w) - 1), cut at w = cap, and L = log(1 + u), continued beyond by its largest slope."""
    u = q * xp.expm1(xp.minimum(w, cap))
    return u, xp.log1p(u) + xp.maximum(w - cap, 0.0)


def minkowski(xp: Any, orders: Any, sigma: Any, q: Any, cap: float) -> Any:
    """Bound on log A(α): the α-norm of 1 + u is at most 1 - q plus q times the α-norm of exp(w)."""
    y = (orders - 1.0) / (2.0 * sigma * sigma)
    return orders * log_likelihood(xp, y, q, cap)[1]


def log_of_scaled(xp: Any, scaled: Any, peak: Any, decay: float) -> Any:
    """Log A from (A - 1) exp(-peak), peak >= 0, with the discretization error on top."""
    return peak + xp.log1p(scaled * (1.0 + 256.0 * math.exp(-decay)) + xp.expm1(-peak))
