"""Mechanisms that are drawn by an inexact sampler: Gaussian DP up to a total variation distance.

What it computes: what is proven of a mechanism whose law is, on EVERY data set, within total variation τ of
the law of an ideal one. Of one release of an ideal mechanism that is μ-Gaussian DP,

    δ(ε) = δ_μ(ε) + (1 + e^ε)·τ,    δ_μ(ε) = Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ):

for a set S, P'(S) ≤ P(S) + τ ≤ e^ε·Q(S) + δ_μ + τ ≤ e^ε·(Q'(S) + τ) + δ_μ + τ. Papers charge τ alone, which
is false: a set of mass τ under one neighbour may have the mass e^ε·τ under the ideal law of the other. For
the same reason ``PrivacyLoss(rdp, delta=τ)`` is no bound; ``with_variation`` gives one that composes.

Source: T (3.9), Lemma 3.6.3, Fact 4.2.4, Theorems 3.6.4 and 3.6.9, corrected (docs/corrections.md); the
proofs are in docs/theory/variation.md.

Formal guarantee: the bounds hold in both directions of a pair of neighbours, under the relation of the
ideal mechanism. That τ bounds the distance on every data set, whatever the sampler was given, is for the
caller to prove.

Cost: some evaluations of the curve, on the host; ``with_variation`` runs anywhere.
"""

import math
import sys
from collections.abc import Callable
from typing import SupportsFloat

from scipy import special

from dpsco_jax._checks import (
    require_inside,
    require_instance,
    require_probability,
    require_real,
    require_share,
    require_within,
)
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import Scalar, as_floats, known_zero, round_up
from dpsco_jax.privacy.curves.composition import log_gaussian_delta
from dpsco_jax.privacy.loss import PrivacyLoss, unbounded_unless
from dpsco_jax.privacy.loss import delta as delta_of
from dpsco_jax.privacy.orders import ORDERS

_ROUNDING_ULPS = 16.0
_UP = 1.0 + 2.0**-40
_HALVINGS = (
    2200  # from the largest float to the least, and through all digits: all that there can be
)


def variation_delta(mu: SupportsFloat, variation: SupportsFloat, epsilon: SupportsFloat) -> float:
    """δ at an ε of one release that is μ-Gaussian DP up to a total variation distance, rounded up.

    Args:
        mu: of the ideal mechanism, at least 0.
        variation: τ, the distance of its law from that of the mechanism that runs, in [0, 1].
        epsilon: at least 0.

    Returns:
        The bound, at most 1, and zero only where μ and τ are: what underflows is the least positive number.
        It rises where ε is large and τ positive: a larger δ at a larger ε is no contradiction, as δ at any
        smaller ε is valid there too.

    Example:
        >>> [round(variation_delta(0.2367, tau, 1.0) * 1e6, 2) for tau in (0.0, 1e-6)]
        [1.0, 4.72]
    """
    mu = require_real("mu", mu, 0.0, closed=True)
    tau = require_share("variation", variation)
    epsilon = require_real("epsilon", epsilon, 0.0, closed=True)
    ideal = _exp_above(log_gaussian_delta(mu, epsilon)) if mu > 0 else 0.0
    # e^ε may overflow where τ·e^ε does not; beyond e it makes no difference.
    lost = tau + _exp_above(min(math.log(tau) + epsilon, 1.0)) if tau > 0 else 0.0
    bound = _UP * (ideal + lost)
    return bound if bound < 1.0 else 1.0


def variation_epsilon(mu: SupportsFloat, variation: SupportsFloat, delta: SupportsFloat) -> float:
    """The least ε at which one release that is μ-Gaussian DP up to a total variation distance has this δ.

    Args:
        mu: of the ideal mechanism, at least 0.
        variation: τ, in [0, 1].
        delta: in (0, 1).

    Returns:
        ε, at which ``variation_delta`` is at most δ; ``inf`` if there is none, or (with μ above 1e9) none
        that floats can show.

    Example:
        >>> variation_epsilon(0.2367, 0.0, 1e-6) < variation_epsilon(0.2367, 1e-8, 1e-6) < 1.01
        True
    """
    mu = require_real("mu", mu, 0.0, closed=True)
    tau = require_share("variation", variation)
    delta = require_real("delta", delta, 0.0, 1.0)

    def holds(epsilon: float) -> bool:
        return variation_delta(mu, tau, epsilon) <= delta

    if holds(0.0):
        return 0.0
    last = _best_epsilon(mu, tau)
    return _bisected(holds, last, 0.0) if holds(last) else math.inf


def gdp_within(
    epsilon: SupportsFloat, delta: SupportsFloat, variation: SupportsFloat = 0.0
) -> float:
    """The largest μ for which one release is (ε, δ)-DP although its law is off by a total variation distance.

    With variation 0 this inverts the curve of the Gaussian, rounded down: by a factor within 1e-11 of 1 for ε
    in [0.1, 100] and δ in [1e-12, 0.5], and by one within 1e-8 at ε = 1e-3. The closed form √(2·log(1/(2δ)) +
    2ε) - √(2·log(1/(2δ))) of T Lemma 3.6.3 is 1.07 to 2.96 times smaller for ε in [0.1, 10] and δ in [1e-12,
    0.01]; it loses most where ε is small and δ large, 8 times at (0.1, 0.2).

    Args:
        epsilon: above 0.
        delta: in (0, 1).
        variation: τ, at least 0 and less than δ/(1 + e^ε).

    Returns:
        μ at which ``variation_delta`` is at most δ; above 0 if ε is above 1e-300.

    Raises:
        Infeasible: τ is so large that there is no such μ; ``needed`` has a τ just below that limit.

    Example:
        >>> round(gdp_within(1.0, 1e-6), 4), gdp_within(1.0, 1e-6, 1e-7) < gdp_within(1.0, 1e-6)
        (0.2367, True)
    """
    epsilon = require_real("epsilon", epsilon, 0.0)
    delta = require_real("delta", delta, 0.0, 1.0)
    tau = require_share("variation", variation)
    found = _largest_mu(epsilon, delta, tau)
    if found > 0.0 or tau == 0.0:
        return found
    named = math.exp(math.log(delta) - epsilon - math.log1p(math.exp(-epsilon))) * (1.0 - 2.0**-30)
    while named > 0.0 and not _largest_mu(epsilon, delta, named) > 0.0:
        named = math.nextafter(named, 0.0)
    raise Infeasible(
        f"variation must be below delta/(1 + exp(epsilon)), such as {named!r}, got {tau!r}",
        {"variation": named},
    )


def with_variation(
    loss: PrivacyLoss, variation: Scalar, horizon: Scalar, delta: Scalar
) -> PrivacyLoss:
    """The loss of a mechanism whose law is within a total variation distance of an ideal one; it composes.

    Where both densities are within a factor 1 ± η of the ideal ones, Rényi divergences of order α grow by
    about (2α - 1)·η/(α - 1). What is left has at most the mass

        (2τ/η)·(1 + e^h) + τ + δ(h) + 2·δ_0,

    δ(h) what the ideal loss proves at a horizon ε = h, and δ_0 its own failure probability. η is chosen so
    that this mass is the δ that is asked for: small if τ is far below δ/(1 + e^h). How to choose h is said in
    docs/theory/variation.md.

    Args:
        loss: of the ideal mechanism.
        variation: τ, a bound for every data set, of shape ``[...]``, in [0, 1].
        horizon: h, at least 0: an ε that the ideal loss rarely exceeds.
        delta: the failure probability of the result, in (0, 1).

    Returns:
        The loss; unbounded where δ leaves no room for an η below 1, and where e^h is beyond the floats of the
        dtype (h above 708, in float32 above 87). With a concrete τ = 0 (a number or an array of NumPy) it is
        the ideal loss. A τ in JAX, traced or not, may have been flushed to zero: it counts as no less than
        the least normal number of its dtype.

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
    exact = known_zero(variation)
    xp, (rdp, failure, tau, h, total, beyond) = as_floats(*loss, variation, horizon, delta, beyond)
    valid = (tau >= 0) & (tau <= 1) & (h >= 0) & (h < xp.inf) & (total > 0) & (total < 1)
    floats = xp.finfo(rdp.dtype)
    tau = xp.maximum(tau, floats.tiny)
    room = total * (1.0 - 2.0**-20) - tau - beyond - 2.0 * failure - 4.0 * float(floats.tiny)
    roomy = room > 0
    furthest = math.log(float(floats.max)) - 1.0
    # A horizon may have been rounded down to its dtype. At the furthest η is above 1, whatever τ is.
    grown = 1.0 + xp.exp(round_up(xp.minimum(h, furthest), 1.0))
    eta = round_up(2.0 * tau * grown / xp.where(roomy, room, 1.0), _ROUNDING_ULPS)
    small = roomy & (eta < 1)
    eta = xp.where(small, eta, 0.0)[..., None]
    lost = xp.where(small, total, 0.0)[..., None]
    ratio = (ORDERS / (ORDERS - 1.0)).astype(rdp.dtype)
    failed = xp.where(small, failure, 0.0)[..., None]
    added = ratio * (xp.log1p(eta) - xp.log1p(-lost)) - xp.log1p(-eta) - xp.log1p(-failed)
    real = PrivacyLoss(round_up(rdp + added, _ROUNDING_ULPS), xp.where(small, total, 0.0))
    real = PrivacyLoss(
        xp.where(exact[..., None], rdp, real.rdp), xp.where(exact, failure, real.delta)
    )
    return unbounded_unless(valid & (small | exact), real)


def _exp_above(log: float) -> float:
    """The exponential, rounded up by its last digit; positive also where it underflows."""
    return math.nextafter(math.exp(log), math.inf)


def _largest_mu(epsilon: float, delta: float, tau: float) -> float:
    """The largest μ at which the bound is seen to be at most δ; 0 if there is none."""

    def holds(mu: float) -> bool:
        return variation_delta(mu, tau, epsilon) <= delta

    if not holds(0.0):
        return 0.0
    upper = 1.0
    while holds(upper):
        upper *= 2.0
    return _bisected(holds, 0.0, upper)


def _best_epsilon(mu: float, tau: float) -> float:
    """Where δ is least: its slope in e^ε is τ - Φ(-ε/μ - μ/2). Far out if τ is zero."""
    if tau == 0.0:
        return min(mu * (0.5 * mu + 40.0), sys.float_info.max)
    # Zero at τ = 1, where the quantile is infinite and μ may be zero.
    quantile = float(special.ndtri(tau)) if tau < 1.0 else 0.0
    return min(max(0.0, -mu * (quantile + 0.5 * mu)), sys.float_info.max)


def _bisected(holds: Callable[[float], bool], good: float, bad: float) -> float:
    """The last number at which it was seen to hold, on the way from one where it does to one where not."""
    for _ in range(_HALVINGS):
        middle = 0.5 * good + 0.5 * bad
        if middle in (good, bad):
            break
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good
