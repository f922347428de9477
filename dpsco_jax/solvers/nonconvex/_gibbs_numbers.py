"""Draws from a Gibbs law on a ball by rejection: how often a proposal counts, and what follows for privacy.

With v = kLR and w = κR² a proposal has the density q ∝ exp(kL‖x‖ - κ‖x‖²/2) on the ball of radius R, by coins
that look at no data, and counts with probability exp(-k·(S(x)/n + L‖x‖)), S the sum over users of their
losses, less those at the centre, each clipped to L‖x‖. So what counts has the law π ∝ exp(-k·S/n - κ‖x‖²/2),
and a proposal counts with probability at least

    p(v, w, d) = E_q e^{-2kL‖x‖} = ∫ t^{d-1}e^{-vt - wt²/2} dt / ∫ t^{d-1}e^{vt - wt²/2} dt    over [0, 1],

which is 2.5e-3 at v = 6 in one dimension, where e^{-2v} is 6e-6. If none of N counts, which has the
probability f ≤ (1 - p)^N, a further proposal is released: the law is (1 - f)π + f·q, and q ≤ e^{2v}·π, so
that its density is within [1 - f, 1 + f·e^{2v}] of that of π. A cap on the loop costs a little ε, and no δ.
"""

import contextlib
import math
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from dpsco_jax import privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import Scalar, as_floats, round_up
from dpsco_jax.privacy.orders import ORDERS
from dpsco_jax.solvers.sampling import log_sobolev

_NODES, _WEIGHTS = (
    0.5 * (part + shift)
    for part, shift in zip(np.polynomial.legendre.leggauss(64), (1, 0), strict=True)
)
_STEEPEST = 24.0  # v and w up to which 64 nodes are exact to 2^-40
_MOST_DIM = 64
_DOWN = 1.0 - 2.0**-30
_UNIT = 2.0**-53
MOST_TRIPS = (
    4096  # of coins for one proposal: what it leaves undone is below 1e-50 for p above e^-60
)


def acceptance(v: Scalar, w: Scalar, dim: int) -> Any:
    """p, rounded down; may be traced."""
    xp, (steep, bend) = as_floats(v, w)
    proven = (steep <= _STEEPEST) & (bend <= _STEEPEST) & (dim <= _MOST_DIM)
    slope, curve = (xp.where(proven, x, 1.0)[..., None] for x in (steep, bend))
    mass = _WEIGHTS * _NODES ** (min(dim, _MOST_DIM) - 1) * xp.exp(-0.5 * curve * _NODES**2)
    down = xp.sum(mass * xp.exp(-slope * _NODES), axis=-1)
    up = xp.sum(mass * xp.exp(slope * _NODES), axis=-1)
    return _DOWN * xp.where(proven, down / up, xp.exp(-2.0 * xp.minimum(steep, 300.0)))


class Slack(NamedTuple):
    """How far the density that runs is from that of the exact law: within [e^{-below}, e^{above}]."""

    below: Any
    above: Any


def slack(v: Scalar, w: Scalar, dim: int, num_proposals: Scalar) -> Slack:
    """What the cap on proposals and roundings cost; may be traced."""
    xp, (steep, trials) = as_floats(v, num_proposals)
    p = xp.maximum(acceptance(v, w, dim), 1e-300)
    logs = trials * xp.log1p(-xp.minimum(p, 0.5))
    missed = xp.exp(xp.minimum(logs, 0.0)) * (1.0 + 2.0**-30)
    far = xp.exp(xp.minimum(xp.log(xp.maximum(missed, 1e-300)) + 2.0 * steep, 600.0))
    # Chances are multiples of 2^-53, and at least e^{-2v}; exponents are rounded a few times.
    rounded = _UNIT * (16.0 * (1.0 + steep) + xp.exp(xp.minimum(2.0 * steep, 600.0)))
    likely = missed < 0.999
    below = xp.where(likely, -xp.log1p(-xp.where(likely, missed, 0.5)), xp.inf)
    # Roundings both of the weight of a point and of what normalizes it.
    return Slack(below + 2.0 * rounded, xp.log1p(far) + 2.0 * rounded)


def proposals_for(v: float, w: float, dim: int, share: float) -> int:
    """The N at which the cap costs at most this much of a density; 2^62 where that are too many."""
    needed = (2.0 * v - math.log(share)) / float(acceptance(v, w, dim))
    return math.ceil(needed) + 1 if needed < 2.0**62 else 2**62


class LogSobolev(NamedTuple):
    """Laws with kLR at most v and κR² at least w, of which a constant is proven on every data set."""

    v: float
    w: float

    @property
    def rate(self) -> float:
        """α·R² of exp(-kF - κ‖x‖²/2) on the ball for losses that are L-Lipschitz there, convex or not.

        The larger of those of a perturbation of oscillation 2v (Holley and Stroock) and of one of slope v/R.
        It follows from v and w, so that no edit of a plan states another one.
        """
        rate = log_sobolev.bounded_perturbation(self.w, 2.0 * self.v)
        with contextlib.suppress(Infeasible):
            rate = max(rate, log_sobolev.lipschitz_perturbation(self.w, self.v))
        return rate


def log_sobolev_of(v: float, w: float) -> LogSobolev:
    """The laws with these numbers, and with what float32 makes of them."""
    return LogSobolev(v * (1.0 + 2.0**-20), w * (1.0 - 2.0**-20))


def concentrated(v: Scalar, w: Scalar, num_users: int, proven: LogSobolev) -> Any:
    """ρ = 2v²/(α·R²·n²): the exact law is ρ-zCDP if losses are L-Lipschitz; infinite where α is not proven.

    The privacy loss of neighbours is 2kL/n-Lipschitz, and by Herbst's argument D_a ≤ a·(2kL/n)²/(2α).
    """
    xp, (steep, bend) = as_floats(v, w)
    good = (steep <= proven.v) & (bend >= proven.w)
    return xp.where(good, 2.0 * (steep / num_users) ** 2 / proven.rate * (1.0 + 2.0**-40), xp.inf)


def concentrated_loss(rho: Scalar, off: Slack) -> privacy.PrivacyLoss:
    """The loss of a ρ-zCDP law of which a density within the slack runs; may be traced."""
    xp, (found, below, above) = as_floats(rho, *off)
    good = (found >= 0) & (found < xp.inf)
    found, below, above = (xp.where(good, x, 1.0)[..., None] for x in (found, below, above))
    orders = ORDERS.astype(found.dtype)
    # ∫ P'^a Q'^(1-a) ≤ e^{a·above + (a-1)·below}·∫ P^a Q^(1-a).
    added = above * (orders / (orders - 1.0)) + below
    divergences = round_up(orders * found + added, 8.0)
    loss = privacy.PrivacyLoss(divergences, xp.zeros(divergences.shape[:-1], found.dtype))
    return privacy.unbounded_unless(good, loss)


def zcdp_within(epsilon: float, delta: float) -> float:
    """ρ = (√(log(1/δ) + ε) - √log(1/δ))²: ρ-zCDP is then (ε, δ)-DP, by ε = ρ + 2√(ρ·log(1/δ))."""
    tail = math.log(1.0 / delta)
    return (epsilon / (math.sqrt(tail + epsilon) + math.sqrt(tail))) ** 2


def concentrated_exponent(num_users: int, dim: int, rho: float) -> float:
    """The u = 2v at which 2u²e^u/(d·n²) = ρ, the cost by Holley and Stroock with κ = d/D²: by Lambert's W."""
    return 2.0 * float(
        special.lambertw(num_users * math.sqrt(dim * rho) / (2.0 * math.sqrt(2.0))).real
    )
