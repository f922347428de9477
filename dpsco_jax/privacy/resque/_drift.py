"""How far two coupled runs of reweighted stochastic gradient descent drift apart.

Two runs of a phase of T steps start at the same point, take the same perturbations and stay in a ball of
radius r, but one of their records differs. The distance of their averages, divided by twice the step size
times the Lipschitz constant, is a random number X; in units of it is the sensitivity of the phase.

Lemma 2.4.7 of the thesis asks for ρ/r >= 1728 log²(...) and bounds X² by 750. Here the moments of X are
bounded one by one, with exact constants, and the best is chosen. The bounds on P(X > x) hold for convex
losses that are Lipschitz on the whole space, steps of at most 2r / (4^i L √T̂) in phase i, which has T̂ / 2^i
steps, projection of every iterate and of the start of each phase, averages with equal weights of the points
at which the gradients were used. The first phase has the largest bounds and stands for all. Proof:
docs/theory/resque.md, Lemma 2. A new size and radius takes 5 to 20 ms.
"""

import functools
import math

import numpy as np
from jaxtyping import Float
from scipy import special

_MOST = 200  # half the largest moment
_ROUNDING = 1e-11  # relative; the sums have at most 400 terms
_POINTS = 64  # of a law of shifts
_SHARES = 128  # shares are rounded up to multiples of 1/128
_FINE = 2048


@functools.lru_cache(maxsize=1024)
def log_drift_norms(num_queries: int, radius_ratio: float) -> Float[np.ndarray, "halves"]:
    """Log of bounds on ‖X‖_{2p} in the first phase, for p = 1, ..., 200.

    ‖X‖_{2p} <= ω g^(T-1) with T = T̂/2, ω the norm of the weight where the records differ, and g the growth
    in a step where they do not: g^{2p} = 1 + Σ_{q=2}^{2p} C(2p, q) (η L M_q / ρ)^q.

    Args:
        num_queries: T̂ of the call, a power of two.
        radius_ratio: ρ/r.
    """
    radius = 1.0 / radius_ratio
    log_step = math.log(2.0 * radius / (4.0 * math.sqrt(num_queries)))  # η L / ρ
    halves = np.arange(1, _MOST + 1)
    q = np.arange(2, 2 * _MOST + 1, dtype=float)
    powers = q * (log_step + log_difference_norm(q, radius)) - special.gammaln(q + 1.0)
    twice = 2.0 * halves[:, None]
    inside = q <= twice
    log_choose = special.gammaln(twice + 1.0) - special.gammaln(
        np.where(inside, twice - q, 0) + 1.0
    )
    terms = np.where(inside, log_choose + powers, -np.inf)
    log_growth = np.logaddexp(0.0, special.logsumexp(terms, axis=1)) / (2.0 * halves)
    norms = log_weight_norm(2.0 * halves, radius) + (num_queries // 2 - 1) * log_growth
    norms = norms * (1.0 + _ROUNDING) + _ROUNDING
    norms.setflags(write=False)
    return norms


def drift_factor(num_queries: int, radius_ratio: float, failure: float) -> float:
    """F with P(X > F) <= ``failure`` in every phase: the least of ω g^(T-1) δ^{-1/(2p)} over p.

    Args:
        num_queries: T̂ of the call, a power of two.
        radius_ratio: ρ/r.
        failure: probability in one phase, in (0, 1]; 1 gives the bound on the root mean square of X.
    """
    halves = np.arange(1, _MOST + 1)
    norms = log_drift_norms(num_queries, radius_ratio)
    return float(np.exp(np.min(norms - math.log(failure) / (2.0 * halves))))


def log_tail(
    num_queries: int, radius_ratio: float, drift: Float[np.ndarray, "points"]
) -> Float[np.ndarray, "points"]:
    """Log of a bound on P(X > drift)."""
    halves = np.arange(1, _MOST + 1)
    excess = log_drift_norms(num_queries, radius_ratio) - np.log(drift)[:, None]
    return np.minimum(np.min(2.0 * halves * excess, axis=1), 0.0)


@functools.lru_cache(maxsize=1024)
def shift_law(
    num_queries: int, radius_ratio: float, uses: int, failure: float
) -> tuple[Float[np.ndarray, "points"], Float[np.ndarray, "points"]]:
    """A law that dominates the shift caused by a record that is used at ``uses`` random positions.

    A record used in step j of a phase of T steps moves only y_j, ... of the averaged y_0, ..., y_{T-1}, hence
    the average by at most the share f = (T - j)/T of what X allows. All T̂ - 1 positions are equally likely.
    Used more often, it moves the phases, as one vector, by at most the sum of the shares times the largest X.

    Args:
        num_queries: T̂ of the call, a power of two.
        radius_ratio: ρ/r.
        uses: b, at least 1.
        failure: probability that X is larger than it should be in one phase.

    Returns:
        Increasing values and their probabilities. The shift, in units of twice step size times Lipschitz
        constant, is above the last value with probability at most ``uses * failure``, and otherwise
        stochastically smaller than this law.
    """
    largest = drift_factor(num_queries, radius_ratio, failure)
    grid = largest * uses * np.linspace(0.0, 1.0, _POINTS + 1)[1:]
    shares, chances = _share_law(num_queries, uses)
    # The bound falls with the drift: looked up at the next smaller one of a fine grid.
    drifts = np.concatenate([[0.0], np.geomspace(0.5, largest, _FINE)])
    tails = np.concatenate([[1.0], np.exp(log_tail(num_queries, radius_ratio, drifts[1:]))])
    found = tails[np.searchsorted(drifts, grid / shares[:, None], side="right") - 1]
    above = chances @ np.minimum(uses * found, 1.0) * (1.0 + _ROUNDING)
    above = np.minimum(above, 1.0)
    above[-1] = 0.0
    probabilities = -np.diff(np.concatenate([[1.0], above]))
    kept = probabilities > 0
    return grid[kept], probabilities[kept]


def _share_law(
    num_queries: int, uses: int
) -> tuple[Float[np.ndarray, "shares"], Float[np.ndarray, "shares"]]:
    """The sum of the shares of distinct random positions, rounded up, each to 1/128 at least.

    Distinct positions are independent ones that happen to be distinct: no event is more likely than among
    independent ones, divided by the probability that those are distinct.

    Returns:
        Values, and their chances, of sum at least 1.
    """
    counts = np.zeros(_SHARES)
    steps = num_queries // 2
    while steps >= 1:
        after = np.maximum(np.arange(steps), 1e-9)  # averaged points that the record may move
        counts += np.bincount(np.ceil(after * _SHARES / steps).astype(int) - 1, minlength=_SHARES)
        steps //= 2
    one = counts / (num_queries - 1)
    chances = one
    for _ in range(uses - 1):
        chances = np.convolve(chances, one)
    shares = np.arange(uses, uses * _SHARES + 1) / _SHARES
    distinct = np.prod(1.0 - np.arange(uses) / (num_queries - 1))
    return shares, chances / distinct


# Moments of ReSQue weights, in closed form. A gradient at x̄ + ξ, ξ ~ N(0, ρ² I), serves every point x̄ + v of
# a ball when it is multiplied by w(v, ξ) = exp(⟨v, ξ⟩/ρ² - |v|²/(2ρ²)). Lengths here are in units of ρ. The
# thesis (Lemma 2.2.4) has the constants 2 and 24 p for |v| ≤ 1/p; a change of measure needs no such
# condition: docs/theory/resque.md, Lemma 1.

Orders = float | np.ndarray


def log_weight_norm(order: Orders, radius: float) -> Float[np.ndarray, "..."]:
    """Log of ‖w(v, ξ)‖_p for |v| = ``radius``, exactly; it grows with the radius.

    Args:
        order: p, above 0.
        radius: |v|, in units of ρ.
    """
    return np.asarray(0.5 * (np.asarray(order, float) - 1.0) * radius * radius)


def normal_norm(order: Orders) -> Float[np.ndarray, "..."]:
    """‖N(0, 1)‖_p."""
    p = np.asarray(order, float)
    log_moment = special.gammaln(0.5 * (p + 1.0)) - 0.5 * np.log(np.pi)
    return np.asarray(np.sqrt(2.0) * np.exp(log_moment / p))


def log_difference_norm(order: Orders, radius: float) -> Float[np.ndarray, "..."]:
    """Log of M_p: ‖w(v, ξ) - w(v', ξ)‖_p <= M_p |v - v'| for |v|, |v'| <= ``radius``.

    M_p = exp((p-1) a²/2) ((p-1) a + ‖N(0, 1)‖_p), about √p while a is at most 1/√p.

    Args:
        order: p, at least 1.
        radius: a, in units of ρ, as are |v|, |v'| and |v - v'|.
    """
    p = np.asarray(order, float)
    return np.asarray(log_weight_norm(p, radius) + np.log((p - 1.0) * radius + normal_norm(p)))
