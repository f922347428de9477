"""The loss of a phase of tested means as one approximate Rényi curve, for ledgers.

It bounds the part of the phase that does not fail, with the probability of failure
(docs/theory/concentrated_mean.md, section 9). Of plans that spend a budget, ε of it is 0.97 to 1.05 of the
budget for a stream, and up to 1.25 for fresh tests where sampling protects most, or where nearly all of δ is
spent on batches that pass by mistake (one release).
"""

from typing import Any

import numpy as np

from dpsco_jax._numerics import Scalar, as_floats, round_up, special_namespace
from dpsco_jax.privacy import curves, loss
from dpsco_jax.privacy.concentrated import _coins
from dpsco_jax.privacy.concentrated._proof import Phase
from dpsco_jax.privacy.curves import subsampling
from dpsco_jax.privacy.loss import PrivacyLoss, compose
from dpsco_jax.privacy.orders import ORDERS


def phase_loss(phase: Phase) -> PrivacyLoss:
    """The loss of a phase, of numbers that may be traced."""
    xp, (eps, mu, failure) = as_floats(phase.test_epsilon, phase.mu, phase.failure)
    multiplier, steps = 1.0 / mu, phase.num_steps
    if phase.rate < 1.0 and phase.test == "fresh":
        mixture = () if phase.coins is None else _coins.mixture(phase.coins)
        step = sampled_response_gaussian(multiplier, eps, phase.rate, *mixture)
        total = loss.scale(step, steps)
    elif phase.rate < 1.0:
        values = loss.scale(_step_loss(phase, multiplier, phase.effective_rate), steps)
        # The failing step changes every probability by e^±(ε₁/2) at most.
        failing = (ORDERS / (ORDERS - 1.0)).astype(values.rdp.dtype) * (0.5 * eps)
        total = PrivacyLoss(values.rdp + failing + curves.laplace(2.0 / eps).rdp, values.delta)
    elif phase.test == "stream":
        either = xp.minimum(curves.pure_dp(eps).rdp, 0.5 * eps + curves.laplace(2.0 / eps).rdp)
        values = loss.scale(_step_loss(phase, multiplier, None), steps)
        total = PrivacyLoss(values.rdp + either, values.delta)
    else:
        step = loss.compose(curves.laplace(1.0 / eps), _step_loss(phase, multiplier, None))
        total = loss.scale(step, steps)
    xp, (rdp, failure) = as_floats(total.rdp, failure)
    # A failure that is too small a number for its precision is not none.
    failure = xp.maximum(failure, xp.finfo(rdp.dtype).tiny)
    # Conditioned on what does not fail, divergences grow by this.
    # Nothing is said of a phase that fails more often than not.
    conditioning = xp.where(failure <= 0.5, -xp.log1p(-xp.minimum(failure, 0.5)), xp.inf)[..., None]
    orders = (ORDERS / (ORDERS - 1.0)).astype(rdp.dtype)
    return PrivacyLoss(rdp + orders * conditioning, total.delta + failure)


def _step_loss(phase: Phase, multiplier: Any, rate: Any) -> PrivacyLoss:
    """The Rényi curve of the mean released in one step, at a rate; None for everybody."""
    if phase.coins is not None:
        return _coins.loss(*_coins.mixture(phase.coins), multiplier, rate)
    if rate is None:
        return curves.gaussian(multiplier)
    return subsampling.subsampled_gaussian_of_fraction(multiplier, rate)


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

    With H the curve q δ(log(1 + (e^ε - 1)/q)) of ``_accounting.sampled_pair``, v = e^ε, A(α) = exp((α-1)
    D_α),

        A(α) ≤ 1 + α(α-1) ∫ (v^(α-2) + v^(-α-1)) H(log v) dv over v > 1

    (Sason and Verdú 2016; docs/theory/subsampling.md, sections 1 and 3). H falls and is convex in v. On a
    cell, the integral is at most that of the weight times the larger H; where the weight grows (α ≥ 2, first
    term), at most times the mean of the two ends (Chebyshev). What lies beyond the last cell is bounded by a
    moment, and the curve never exceeds that of a fixed batch.

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
