"""The loss of a phase of tested means as one approximate Rényi curve, for ledgers.

Source: docs/theory/concentrated_mean.md, section 9.

Formal guarantee: a bound on the part of the phase that does not fail, with the probability of failure. Of
plans that spend a budget, ε of it is 0.97 to 1.05 of the budget for a stream, and up to 1.25 for fresh tests
where sampling protects most, or where nearly all of δ is spent on batches that pass by mistake (one release).

Cost: one curve; runs on tracers.
"""

from typing import Any

from dpsco_jax._numerics import as_floats
from dpsco_jax.privacy import curves, loss
from dpsco_jax.privacy.concentrated import _coins, _curve
from dpsco_jax.privacy.concentrated._proof import Phase
from dpsco_jax.privacy.curves import subsampling
from dpsco_jax.privacy.loss import PrivacyLoss
from dpsco_jax.privacy.orders import ORDERS


def phase_loss(phase: Phase) -> PrivacyLoss:
    """The loss of a phase, of numbers that may be traced."""
    xp, (eps, mu, failure) = as_floats(phase.test_epsilon, phase.mu, phase.failure)
    multiplier, steps = 1.0 / mu, phase.num_steps
    if phase.rate < 1.0 and phase.test == "fresh":
        mixture = () if phase.coins is None else _coins.mixture(phase.coins)
        step = _curve.sampled_response_gaussian(multiplier, eps, phase.rate, *mixture)
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
