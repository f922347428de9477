"""The Rényi curve of a pure test with a Gaussian on a random batch of fixed size.

With H the curve q δ(log(1 + (e^ε - 1)/q)) of ``_threshold_pairs.sampled``, v = e^ε, A(α) = exp((α-1) D_α),

    A(α) ≤ 1 + α(α-1) ∫ (v^(α-2) + v^(-α-1)) H(log v) dv over v > 1.

H falls and is convex in v. On a cell, the integral is at most that of the weight times the larger H; where
the weight grows (α ≥ 2, first term), at most times the mean of the two ends (Chebyshev).

Source: Sason and Verdú 2016 (the integral); docs/theory/subsampling.md, sections 1 and 3.

Formal guarantee: never below the bound; what lies beyond the last cell is bounded by a moment, and the curve
never exceeds that of a fixed batch.

Cost: about 1500 exponentials for each order.
"""

from typing import Any

import numpy as np

from dpsco_jax._numerics import Scalar, as_floats, round_up, special_namespace
from dpsco_jax.privacy import curves
from dpsco_jax.privacy.loss import PrivacyLoss, compose
from dpsco_jax.privacy.orders import ORDERS

_CELLS = 1500
_REACH = 12.0  # standard deviations of the loss that the cells cover
_ORDERS_REACHED = 48.0  # the integrand peaks at a loss of about α μ²


def sampled_response_gaussian(
    noise_multiplier: Scalar,
    response_epsilon: Scalar,
    sampling_fraction: float,
    log_weights: Any = 0.0,
    fractions: Any = 1.0,
) -> PrivacyLoss:
    """The loss of one step: an ε₁-DP test with a Gaussian release, on a uniform batch.

    Args:
        noise_multiplier: standard deviation over ℓ2 sensitivity to a replacement, above 0, a scalar.
        response_epsilon: ε₁, a scalar.
        sampling_fraction: q in (0, 1).
        log_weights: of a mixture of Gaussians, shown; a scalar or a vector.
        fractions: their distances over the largest one, to which ``noise_multiplier`` belongs.
    """
    xp, (sigma, e1) = as_floats(noise_multiplier, response_epsilon)
    mu, q, tiny = 1.0 / sigma, sampling_fraction, xp.finfo(sigma.dtype).tiny
    log_weights = xp.atleast_1d(log_weights)[:, None]
    parts = (mu * xp.atleast_1d(fractions))[:, None]
    typical = xp.minimum(2.0 * xp.sqrt(xp.sum(xp.exp(log_weights) * parts**2)), mu)
    last = e1 + _REACH * typical + _ORDERS_REACHED * typical * typical
    # Losses of a fixed batch: dense at zero, where the curve falls fastest.
    u = last * (np.arange(_CELLS + 1.0) / _CELLS).astype(sigma.dtype) ** 2
    eps = xp.where(u < 1.0, xp.log1p(q * xp.expm1(xp.minimum(u, 1.0))), 0.0)
    far = xp.maximum(u, 1.0)
    eps = xp.where(u < 1.0, eps, far + np.log(q) + xp.log1p((1.0 / q - 1.0) * xp.exp(-far)))
    curve = log_weights + _log_response_curve(xp, parts, e1, u)
    curve = np.log(q) + special_namespace(xp).logsumexp(curve, axis=0)
    orders, above_one = ORDERS.astype(sigma.dtype), (ORDERS - 1.0).astype(sigma.dtype)
    alpha, rise = orders[:, None], above_one[:, None]
    width = xp.diff(eps)
    mean = xp.logaddexp(curve[:-1], curve[1:]) - np.log(2.0)
    # Logarithms of the integrals of the weights over the cells, times the curve.
    grown = rise * width
    growth = xp.log(xp.maximum(xp.expm1(xp.minimum(grown, 30.0)), tiny))
    first = rise * eps[:-1] + xp.where(grown < 30.0, growth, grown) - xp.log(rise)
    first = first + xp.where(alpha >= 2, mean, curve[:-1])
    second = -alpha * eps[:-1] + xp.log(xp.maximum(-xp.expm1(-alpha * width), tiny))
    second = second - xp.log(alpha) + curve[:-1]
    total = special_namespace(xp).logsumexp(xp.concatenate([first, second], axis=1), axis=1)
    # Beyond: H(v) <= q P(L > u) <= q e^(-λu) E e^(λL), v <= e^u, dv = q e^u du, for some λ > max(α - 1, 1).
    steepest = xp.maximum(above_one, 1.0)
    tilt = xp.maximum(orders, (last - e1) / (parts * parts) - 0.5)
    moment = 0.5 * tilt * (tilt + 1.0) * parts * parts + tilt * e1
    beyond = log_weights + (steepest - tilt) * last + moment - xp.log(tilt - steepest)
    beyond = special_namespace(xp).logsumexp(beyond, axis=0) + np.log(2.0)
    rough = 64.0 * xp.finfo(sigma.dtype).eps * (1.0 + xp.abs(total) + xp.abs(beyond))
    total = xp.logaddexp(total, beyond) + rough + xp.log(orders * above_one)
    rdp = (
        xp.where(total > 30.0, total + 1e-9, xp.log1p(xp.exp(xp.minimum(total, 30.0)))) / above_one
    )
    whole = compose(curves.pure_dp(e1), curves.gaussian(sigma)).rdp
    return PrivacyLoss(round_up(xp.minimum(rdp, whole), 64.0), xp.zeros((), sigma.dtype))


def _log_response_curve(xp: Any, mu: Any, e1: Any, u: Any) -> Any:
    """Log δ of randomized response times a Gaussian pair, plus what rounding may have taken off."""
    log_ndtr = special_namespace(xp).log_ndtr
    eps = xp.finfo(u.dtype).eps

    def gaussian(loss: Any) -> Any:
        near = log_ndtr(0.5 * mu - loss / mu)
        far = log_ndtr(-0.5 * mu - loss / mu) + loss
        rounding = 8.0 * eps * (1.0 + xp.abs(near) + xp.abs(far) + xp.abs(loss))
        return near + xp.log(-xp.expm1(-(near - far + rounding))) + rounding

    likely, unlikely = -xp.log1p(xp.exp(-e1)), -e1 - xp.log1p(xp.exp(-e1))
    return xp.logaddexp(likely + gaussian(u - e1), unlikely + gaussian(u + e1))
