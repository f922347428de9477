"""The loss of a phase of tested means as one approximate Rényi curve, for ledgers.

Source: docs/privacy/concentrated_mean.md, section 9.

Formal guarantee: a bound on the part of the phase that does not fail, with the probability of failure; looser
than the certificate by some percent of ε.

Cost: one curve; runs on tracers.
"""

from typing import Any

from dp_accounting import NeighboringRelation

from dpsco_jax.privacy import _threshold_coins, _threshold_curve, curves, loss, subsampling
from dpsco_jax.privacy._mean_sensitivity import coins_of, vectors_of_one_user
from dpsco_jax.privacy._numerics import as_floats
from dpsco_jax.privacy.loss import PrivacyLoss
from dpsco_jax.privacy.orders import ORDERS

TEST_ROUNDING = 1.0 + 1e-6
"""Of a test, whose scale is computed from ε in float32: the accounting takes ε that much larger."""


def phase_loss(releases: Any, compared: NeighboringRelation) -> PrivacyLoss:
    """The loss of a ``ConcentratedReleases``, ``compared`` being how two batches of a step may differ."""
    xp, (eps, kappa, noise, failure) = as_floats(
        releases.test_epsilon, releases.sensitivity, releases.noise_stddev, releases.failure
    )
    eps, multiplier, steps = eps * TEST_ROUNDING, noise / kappa, releases.num_steps
    rate = releases.sampling_rate
    if rate < 1.0 and releases.test == "fresh":
        mixture = _mixture(releases, compared) if releases.selection == "bernoulli" else ()
        step = _threshold_curve.sampled_response_gaussian(multiplier, eps, rate, *mixture)
        total = loss.scale(step, steps)
    elif rate < 1.0:
        odds = rate * xp.exp(0.25 * eps)
        step = _step_loss(releases, compared, multiplier, odds / (1.0 - rate + odds))
        total = loss.scale(step, steps)
        # The shift of the threshold changes every probability by e^±ε₁ at most.
        factor = (ORDERS / (ORDERS - 1.0)).astype(total.rdp.dtype)
        total = PrivacyLoss(total.rdp + factor * eps[..., None], total.delta)
    else:
        tests_made = 1 if releases.test == "stream" else steps
        test = loss.scale(curves.pure_dp(eps), tests_made)
        total = loss.compose(
            test, loss.scale(_step_loss(releases, compared, multiplier, None), steps)
        )
    xp, (rdp, failure) = as_floats(total.rdp, failure)
    # Conditioned on what does not fail, divergences grow by this.
    conditioning = -xp.log1p(-xp.minimum(failure, 0.5))[..., None]
    orders = (ORDERS / (ORDERS - 1.0)).astype(rdp.dtype)
    return PrivacyLoss(rdp + orders * conditioning, total.delta + failure)


def _step_loss(
    releases: Any, compared: NeighboringRelation, multiplier: Any, rate: Any
) -> PrivacyLoss:
    """The Rényi curve of the mean released in one step, at a rate; None for everybody."""
    if releases.selection == "bernoulli":
        return _threshold_coins.loss(*_mixture(releases, compared), multiplier, rate)
    if rate is None:
        return curves.gaussian(multiplier)
    return subsampling.subsampled_gaussian_of_fraction(multiplier, rate)


def _mixture(releases: Any, compared: NeighboringRelation) -> tuple[Any, Any]:
    """Of the Gaussians that a random selection can lead to."""
    _, (core, keep, kappa) = as_floats(releases.core, releases.keep_level, releases.sensitivity)
    sides = vectors_of_one_user(compared)
    coins = coins_of(releases.batch_size, core, keep, kappa, sides)
    return _threshold_coins.mixture(*coins)
