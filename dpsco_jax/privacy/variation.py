"""Mechanisms that are drawn by an inexact sampler: Gaussian DP up to a total variation distance.

What it computes: what is proven of a mechanism whose law is, on EVERY data set, within total variation τ of
the law of an ideal one. Of one release of an ideal mechanism that is μ-Gaussian DP,

    δ(ε) = δ_μ(ε) + (1 + e^ε)·τ,    δ_μ(ε) = Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ):

for a set S, P'(S) ≤ P(S) + τ ≤ e^ε·Q(S) + δ_μ + τ ≤ e^ε·(Q'(S) + τ) + δ_μ + τ. Papers charge τ alone, which
is false: a set of mass τ under one neighbour may have the mass e^ε·τ under the ideal law of the other. For
the same reason ``PrivacyLoss(rdp, delta=τ)`` is no bound; ``with_variation`` gives one that composes.

Source: T (3.9), Lemma 3.6.3, Fact 4.2.4, Theorems 3.6.4 and 3.6.9, corrected (docs/corrections.md); the
proofs are in docs/privacy/variation.md.

Formal guarantee: the bounds hold in both directions of a pair of neighbours, under the relation of the
ideal mechanism. That τ bounds the distance on every data set, whatever the sampler was given, is for the
caller to prove.

Cost: some evaluations of the curve, on the host; ``with_variation`` runs anywhere.
"""

import math
from collections.abc import Callable
from typing import SupportsFloat

from scipy import special

from dpsco_jax._checks import (
    require_inside,
    require_instance,
    require_probability,
    require_real,
    require_within,
)
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import Scalar, as_floats, round_up
from dpsco_jax.privacy.curves.composition import log_gaussian_delta
from dpsco_jax.privacy.loss import PrivacyLoss, unbounded_unless
from dpsco_jax.privacy.loss import delta as delta_of
from dpsco_jax.privacy.orders import ORDERS

_ROUNDING_ULPS = 16.0
_UP = 1.0 + 2.0**-40
_HALVINGS = 200


def variation_delta(mu: SupportsFloat, variation: SupportsFloat, epsilon: SupportsFloat) -> float:
    """δ at an ε of one release that is μ-Gaussian DP up to a total variation distance, rounded up.

    Args:
        mu: of the ideal mechanism, at least 0.
        variation: τ, the distance of its law from that of the mechanism that runs, in [0, 1].
        epsilon: at least 0.

    Returns:
        The bound, at most 1. It rises where ε is large and τ positive: a larger δ at a larger ε is no
        contradiction, as δ at any smaller ε is valid there too.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> [round(variation_delta(0.2367, tau, 1.0) * 1e6, 2) for tau in (0.0, 1e-6)]
        [1.0, 4.72]
    """
    mu = require_real("mu", mu, 0.0, closed=True)
    require_probability("variation", variation)
    variation = float(variation)
    epsilon = require_real("epsilon", epsilon, 0.0, closed=True)
    ideal = math.exp(log_gaussian_delta(mu, epsilon)) if mu > 0 else 0.0
    # exp overflows, and the bound is 1 long before.
    lost = variation * (1.0 + math.exp(min(epsilon, 700.0)))
    return min(_UP * (ideal + lost), 1.0)


def variation_epsilon(mu: SupportsFloat, variation: SupportsFloat, delta: SupportsFloat) -> float:
    """The least ε at which one release that is μ-Gaussian DP up to a total variation distance has this δ.

    Args:
        mu: of the ideal mechanism, at least 0.
        variation: τ, in [0, 1].
        delta: in (0, 1).

    Returns:
        ε, rounded up; ``inf`` if there is none.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> variation_epsilon(0.2367, 0.0, 1e-6) < variation_epsilon(0.2367, 1e-8, 1e-6) < 1.01
        True
    """
    delta = require_real("delta", delta, 0.0, 1.0)

    def holds(epsilon: float) -> bool:
        return variation_delta(mu, variation, epsilon) <= delta

    if holds(0.0):
        return 0.0
    last = _best_epsilon(mu, variation)
    if not holds(last):
        return math.inf
    return _UP * _bisected(holds, 0.0, last)


def gdp_within(
    epsilon: SupportsFloat, delta: SupportsFloat, variation: SupportsFloat = 0.0
) -> float:
    """The largest μ for which one release is (ε, δ)-DP although its law is off by a total variation distance.

    With variation 0 this inverts the curve of the Gaussian, exactly and rounded down. The closed form
    √(2·log(1/(2δ)) + 2ε) - √(2·log(1/(2δ))) of T Lemma 3.6.3 is 1.1 to 3.9 times smaller.

    Args:
        epsilon: above 0.
        delta: in (0, 1).
        variation: τ, at least 0 and less than δ/(1 + e^ε).

    Raises:
        ValueError: an argument is out of range.
        Infeasible: τ is so large that there is no such μ.

    Example:
        >>> round(gdp_within(1.0, 1e-6), 4), gdp_within(1.0, 1e-6, 1e-7) < gdp_within(1.0, 1e-6)
        (0.2367, True)
    """
    epsilon = require_real("epsilon", epsilon, 0.0)
    delta = require_real("delta", delta, 0.0, 1.0)
    require_probability("variation", variation)
    variation = float(variation)
    if not variation_delta(0.0, variation, epsilon) < delta:
        largest = delta / (1.0 + math.exp(min(epsilon, 700.0)))
        raise Infeasible(
            f"variation must be below delta/(1 + exp(epsilon)) = {largest:.6g}, got {variation}"
        )

    def spends_more(mu: float) -> bool:
        return variation_delta(mu, variation, epsilon) > delta

    upper = 1.0
    while not spends_more(upper):
        upper *= 2.0
    low, high = 0.0, upper
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if spends_more(middle) else (middle, high)
    return low


def with_variation(
    loss: PrivacyLoss, variation: Scalar, horizon: Scalar, delta: Scalar
) -> PrivacyLoss:
    """The loss of a mechanism whose law is within a total variation distance of an ideal one; it composes.

    Where both densities are within a factor 1 ± η of the ideal ones, Rényi divergences of order α grow by
    about (2α - 1)·η/(α - 1). What is left has at most the mass

        (2τ/η)·(1 + e^h) + τ + δ(h) + 2·δ_0,

    δ(h) what the ideal loss proves at a horizon ε = h, and δ_0 its own failure probability. η is chosen so
    that this mass is the δ that is asked for: small if τ is far below δ/(1 + e^h).

    Args:
        loss: of the ideal mechanism.
        variation: τ, a bound for every data set, of shape ``[...]``, in [0, 1].
        horizon: h, at least 0: an ε that the ideal loss rarely exceeds.
        delta: the failure probability of the result, in (0, 1).

    Returns:
        The loss; unbounded where δ leaves no room for an η below 1. With τ = 0 it is the ideal loss.

    Raises:
        ValueError: a concrete argument is out of range.

    Example:
        >>> from dpsco_jax import privacy
        >>> real = with_variation(privacy.gdp(0.2), 1e-18, horizon=3.0, delta=1e-9)
        >>> ideal = privacy.epsilon(privacy.gdp(0.4), 1e-6)
        >>> bool(privacy.epsilon(privacy.scale(real, 4), 1e-6) < 1.01 * ideal)
        True
    """
    require_instance("loss", loss, PrivacyLoss)
    require_probability("variation", variation)
    require_within("horizon", horizon, 0.0, math.inf, open_high=True)
    require_inside("delta", delta)
    beyond = delta_of(loss, horizon)
    xp, (rdp, failure, tau, h, total, beyond) = as_floats(*loss, variation, horizon, delta, beyond)
    room = total * (1.0 - 2.0**-20) - tau - beyond - 2.0 * failure
    roomy = room > 0
    eta = round_up(
        2.0 * tau * (1.0 + xp.exp(xp.minimum(h, 700.0))) / xp.where(roomy, room, 1.0),
        _ROUNDING_ULPS,
    )
    small = roomy & (eta < 1)
    eta = xp.where(small, eta, 0.0)[..., None]
    lost = xp.where(small, total, 0.0)[..., None]
    ratio = (ORDERS / (ORDERS - 1.0)).astype(rdp.dtype)
    failed = xp.where(small, failure, 0.0)[..., None]
    grown = ratio * (xp.log1p(eta) - xp.log1p(-lost)) - xp.log1p(-eta) - xp.log1p(-failed)
    real = PrivacyLoss(rdp + round_up(grown, _ROUNDING_ULPS), xp.where(small, total, 0.0))
    exact = tau == 0
    real = PrivacyLoss(
        xp.where(exact[..., None], rdp, real.rdp), xp.where(exact, failure, real.delta)
    )
    valid = (tau >= 0) & (h >= 0) & (h < xp.inf) & (total > 0) & (total < 1)
    return unbounded_unless(valid & (small | exact), real)


def _best_epsilon(mu: SupportsFloat, variation: SupportsFloat) -> float:
    """Where δ is least: its slope in e^ε is τ - Φ(-ε/μ - μ/2). Far out if τ is zero."""
    shift = float(mu)
    if variation == 0:
        return shift * (0.5 * shift + 40.0)
    return max(0.0, -shift * (float(special.ndtri(float(variation))) + 0.5 * shift))


def _bisected(holds: Callable[[float], bool], low: float, high: float) -> float:
    """An end at which it was seen to hold, given that it holds at the upper one."""
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
