"""The Rényi curves of Poisson sampling under replacement: of units, and of users with all their units.

Units are what one record is (a user, or one element of a user), each clipped to ρ, so that replacing one
moves a sum by the sensitivity 2ρ. Distances below are in units of it.

- Each unit is sampled by itself: (1-q) N(0, σ²) + q N(1/2, σ²) against (1-q) N(0, σ²) + q N(-1/2, σ²).
- Users are sampled with all their units, and a user's sum is clipped to κρ: the others' contribution tells
  whether the user was there. The pair is at κ/2 and κ/2 - 1, which of the two is the first may change from
  step to step, and the curve is that of the pair that is its own reverse. At κ = 1 it is the one above, at
  κ = 2 that of sampling without replacement, for κ = ∞ the Gaussian itself with probability q.

Source: E Corollary 2.5, for sampled units; what holds for sampled users is proven in docs/theory/mixtures.md.

Formal guarantee: REPLACE_ONE for one unit, whatever the others are; who was drawn is never revealed. Under
REPLACE_SPECIAL the sensitivity is ρ, and a user's sum clipped to κρ has a cap of 2κ here. Where
the sum does not reach (orders that no optimum uses, σ below max(κ, 1)/8) the curve is a looser proven bound:
Minkowski's, or that of κ = ∞.

Cost: about 37,000 exponentials for the whole curve.

Example:
    >>> import math
    >>> from dpsco_jax import privacy
    >>> loss = privacy.scale(privacy.poisson_replaced_gaussian(1.95, 0.05), 200)
    >>> round(float(privacy.epsilon(loss, 1000**-1.1)), 2)
    1.11
    >>> users = privacy.user_sampled_gaussian(1.95, 0.05, cap=math.inf)
    >>> round(float(privacy.epsilon(privacy.scale(users, 200), 1000**-1.1)), 2)
    13.37
"""

from typing import Any

import numpy as np

from dpsco_jax._checks import require_multiplier, require_probability, require_within
from dpsco_jax._numerics import Scalar, as_floats, round_up
from dpsco_jax.privacy.curves import _mixture_sum, poisson
from dpsco_jax.privacy.loss import PrivacyLoss, unbounded_unless
from dpsco_jax.privacy.orders import ORDERS

_ROUNDING_ULPS = 24.0


def poisson_replaced_gaussian(
    noise_multiplier: Scalar, sampling_probability: Scalar
) -> PrivacyLoss:
    """The loss, under REPLACE_ONE, of one noisy sum over units that are each sampled by itself.

    Args:
        noise_multiplier: standard deviation over the ℓ2 sensitivity of the sum to replacing a unit that
            takes part, twice the clip norm. Shape ``[...]``, at least 0.
        sampling_probability: of each unit, in [0, 1]; broadcast against the multiplier.

    A traced number that is out of its range, or NaN, has an unbounded loss.
    """
    return user_sampled_gaussian(noise_multiplier, sampling_probability, 1.0)


def user_sampled_gaussian(
    noise_multiplier: Scalar, sampling_probability: Scalar, cap: Scalar
) -> PrivacyLoss:
    """The loss, for one unit, of one noisy sum over users sampled with all their units.

    Args:
        noise_multiplier: standard deviation over the ℓ2 sensitivity of a fixed sum to one unit: under
            REPLACE_ONE twice the norm to which a unit is clipped. Shape ``[...]``, at least 0.
        sampling_probability: of each user, in [0, 1].
        cap: the norm to which the sum over a user's units is clipped, over half of that sensitivity (which is
            the norm of one unit, under REPLACE_ONE); at least 1, infinite where a user's sum is not clipped.

    A traced number that is out of its range, or NaN, has an unbounded loss.
    """
    require_multiplier("noise_multiplier", noise_multiplier)
    require_probability("sampling_probability", sampling_probability)
    require_within("cap", cap, 1.0, np.inf)
    xp, numbers = as_floats(noise_multiplier, sampling_probability, cap)
    sigma, q, kappa = xp.broadcast_arrays(*numbers)
    valid = (sigma >= 0) & (q >= 0) & (q <= 1) & (kappa >= 1)
    log_moments = _log_moments(xp, sigma, q, 0.5 * kappa)
    rdp = round_up(log_moments, _ROUNDING_ULPS) / (ORDERS - 1.0).astype(sigma.dtype)
    return unbounded_unless(valid, PrivacyLoss(rdp, xp.zeros(rdp.shape[:-1], rdp.dtype)))


def _log_moments(xp: Any, sigma: Any, q: Any, centre: Any) -> Any:
    """Log A at each order, never below the truth."""
    orders, above_one = ORDERS.astype(sigma.dtype), (ORDERS - 1.0).astype(sigma.dtype)
    noisy, partial = sigma > 0, (q > 0) & (q < 1)
    safe_sigma, safe_q = xp.where(noisy, sigma, 1.0), xp.where(partial, q, 0.5)
    safe_centre = xp.where(centre >= 0.5, centre, 1.0)
    value, reached = _mixture_sum.log_moments(xp, safe_sigma, safe_q, safe_centre)
    unsampled = orders * above_one * (0.5 / safe_sigma / safe_sigma)[..., None]
    bound = _bound(xp, safe_sigma, safe_q, safe_centre, unsampled)
    result = xp.where(reached, xp.minimum(value, bound), bound)
    # Whatever is released costs something: a smaller number, divided by α - 1, may be flushed to zero.
    result = xp.maximum(result, xp.finfo(sigma.dtype).tiny * xp.maximum(above_one, 1.0))
    result = xp.where((q < 1)[..., None], result, unsampled)
    result = xp.where(noisy[..., None], result, xp.inf)
    return xp.where((q > 0)[..., None], result, 0.0)


def _bound(xp: Any, sigma: Any, q: Any, centre: Any, unsampled: Any) -> Any:
    """Proven bounds on log A: that of κ = ∞, and for κ ≤ 2 two by Minkowski's inequality."""
    cap = 80.0 if sigma.dtype != np.float64 else 600.0
    rise = xp.log1p(q[..., None] * xp.expm1(xp.minimum(unsampled, cap)))
    without_cap = rise + xp.maximum(unsampled - cap, 0.0)
    # κ = 2 is a larger cap, and the reverse adds to the excess at most as much again.
    wider = _with_reverse(xp, poisson.minkowski(xp, sigma, q))
    # Q is at least (1-q) N(0, σ²).
    own = -(ORDERS - 1.0).astype(sigma.dtype) * xp.log1p(-q)[..., None]
    own = own + poisson.minkowski(xp, sigma / xp.minimum(centre, 1.0), q)
    own = xp.where((centre == 0.5)[..., None], own, _with_reverse(xp, own))
    narrow = xp.where((centre <= 1.0)[..., None], xp.minimum(wider, own), xp.inf)
    return xp.minimum(without_cap, narrow)


def _with_reverse(xp: Any, log_moment: Any) -> Any:
    """Log of 2A - 1."""
    return log_moment + xp.log1p(-xp.expm1(-log_moment))
