"""The Rényi curves of Gaussian releases from batches of a fixed size, without and with replacement.

Under REPLACE_ONE a batch holds the differing user with probability q or not at all, and amplification by
subsampling bounds, in both directions, every hockey-stick divergence with ε ≥ 0 by that of
(1-q) N(0, σ²) + q N(1, σ²) from N(0, σ²). A Rényi divergence is an integral of such divergences, so

    A(α) ≤ 1 + α(α-1) ∫ (exp((α-1)ε) + exp(-αε)) H(ε) dε over ε > 0,    rdp(α) = log A(α) / (α - 1),

where H(ε) is that bound (``_profile``). Under ADD_OR_REMOVE_ONE a batch of fixed size changes by
a replacement, twice the sensitivity, with probability q: the Poisson curve at half the multiplier. With
replacement, both are averaged over how often the user was drawn. Proofs: docs/theory/subsampling.md.

Source: Balle, Barthe and Gaboardi 2018 (amplification by subsampling); Sason and Verdú 2016 (the integral
representation); Lebeda, Regehr, Kamath and Steinke 2024 (fixed-size batches under add/remove). Smaller at
every order than Theorem 27 of Wang, Balle and Kasiviswanathan 2019, which has a factor 4.

Formal guarantee: a bound under each relation above; who was drawn is never revealed.

Cost: about 60,000 exponentials for the whole curve, 16 times that with replacement.
"""

import functools
from typing import Any

import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax._checks import (
    require_instance,
    require_multiplier,
    require_positive,
    require_probability,
    require_relation,
    require_whole,
    require_within,
)
from dpsco_jax._numerics import Scalar, as_floats, round_up
from dpsco_jax.privacy.curves import _profile, poisson
from dpsco_jax.privacy.loss import PrivacyLoss, unbounded_unless
from dpsco_jax.privacy.orders import ORDERS

_ROUNDING_ULPS = 24.0
_MAX_MULTIPLICITY = 16
_RELATIONS = (NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE)


def subsampled_gaussian_without_replacement(
    noise_multiplier: Scalar,
    population_size: Scalar,
    batch_size: Scalar,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
) -> PrivacyLoss:
    """The loss of one noisy sum over a uniformly random set of ``batch_size`` distinct users.

    Args:
        noise_multiplier: standard deviation over the ℓ2 sensitivity of a fixed batch's sum under
            ``relation``: the clip norm C for ADD_OR_REMOVE_ONE, 2C for REPLACE_ONE. Shape ``[...]``.
        population_size: number of users, at least 1. Under ADD_OR_REMOVE_ONE a public lower bound on the
            number in the larger of two neighbours.
        batch_size: users in a batch, between 0 and ``population_size``.
        relation: REPLACE_ONE or ADD_OR_REMOVE_ONE.

    Sizes are whole numbers. A traced number that is out of its range, not whole or NaN has an unbounded loss.

    Raises:
        ValueError: there is no proof under the relation.
    """
    _check(noise_multiplier, population_size, batch_size, 1, relation)
    if not isinstance(population_size, jax.core.Tracer):
        require_within("batch_size", batch_size, 0.0, float(np.min(population_size)))
    xp, (sigma, users, batch) = as_floats(noise_multiplier, population_size, batch_size)
    sigma, users, batch = xp.broadcast_arrays(sigma, users, batch)
    valid = _are_sizes(xp, sigma, users, batch, 1) & (batch <= users)
    fraction = xp.where(valid, batch, 0.0) / xp.where(valid, users, 1.0)
    if xp is np and sigma.ndim == 0:
        return unbounded_unless(valid, _known(float(sigma), float(fraction), relation))
    return unbounded_unless(valid, _of_fraction(xp, sigma, fraction, relation))


def subsampled_gaussian_of_fraction(
    noise_multiplier: Scalar,
    sampling_fraction: Scalar,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
) -> PrivacyLoss:
    """``subsampled_gaussian_without_replacement`` in terms of the batch's share of the population alone.

    Args:
        noise_multiplier: standard deviation over the ℓ2 sensitivity of a fixed batch's sum under
            ``relation``. Shape ``[...]``.
        sampling_fraction: batch size over population size, in [0, 1].
        relation: REPLACE_ONE or ADD_OR_REMOVE_ONE.

    A traced number that is out of its range, or NaN, has an unbounded loss.

    Raises:
        ValueError: there is no proof under the relation.
    """
    require_relation("relation", relation, _RELATIONS)
    require_multiplier("noise_multiplier", noise_multiplier)
    require_probability("sampling_fraction", sampling_fraction)
    xp, (sigma, fraction) = as_floats(noise_multiplier, sampling_fraction)
    sigma, fraction = xp.broadcast_arrays(sigma, fraction)
    valid = (sigma >= 0) & (fraction >= 0) & (fraction <= 1)
    return unbounded_unless(valid, _of_fraction(xp, sigma, fraction, relation))


def subsampled_gaussian_with_replacement(
    noise_multiplier: Scalar,
    population_size: Scalar,
    batch_size: Scalar,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
    tail_probability: Scalar = 1e-15,
) -> PrivacyLoss:
    """The loss of one noisy sum over ``batch_size`` users drawn uniformly and independently.

    That a user is drawn more than K times counts as failure and is the ``delta`` of the result, with K at
    most 16 and the smallest for which that probability is at most ``tail_probability``.

    Args:
        noise_multiplier: standard deviation over the ℓ2 sensitivity of the sum to one draw under
            ``relation``: the clip norm C for ADD_OR_REMOVE_ONE, 2C for REPLACE_ONE. Shape ``[...]``.
        population_size: number of users, at least 2. Under ADD_OR_REMOVE_ONE a public lower bound on the
            number in the larger of two neighbours.
        batch_size: number of draws, at least 0.
        relation: REPLACE_ONE or ADD_OR_REMOVE_ONE.
        tail_probability: failure probability to aim at, in one release.

    Sizes are whole numbers. A traced number that is out of its range, not whole or NaN has an unbounded loss.

    Raises:
        ValueError: there is no proof under the relation.
    """
    _check(noise_multiplier, population_size, batch_size, 2, relation)
    require_probability("tail_probability", tail_probability)
    numbers = noise_multiplier, population_size, batch_size, tail_probability
    xp, (sigma, users, draws, tail) = as_floats(*numbers)
    sigma, users, draws = xp.broadcast_arrays(sigma, users, draws)
    valid = _are_sizes(xp, sigma, users, draws, 2) & (tail >= 0) & (tail <= 1)
    users, draws = xp.where(valid, users, 2.0), xp.where(valid, draws, 0.0)
    # Without noise every draw reveals all; the formula is for noise.
    valid = valid & ((sigma > 0) | (draws == 0))
    sigma = xp.where(sigma > 0, sigma, 1.0)
    drawn, failure = _multiplicities(xp, users, draws, tail)
    ever = drawn[..., 1:].sum(-1)
    rate = ever / (drawn[..., 0] + ever)
    weights = drawn[..., 1:] / xp.where(ever > 0, ever, 1.0)[..., None]
    times = np.arange(1, _MAX_MULTIPLICITY + 1, dtype=sigma.dtype)
    log_moments = _log_moments(
        xp, sigma[..., None] / times, xp.broadcast_to(rate[..., None], weights.shape), relation
    )
    loss = _loss(xp, _log_mean_exp(xp, log_moments, weights[..., None]), failure)
    return unbounded_unless(valid, loss)


# A plan's loss, the check that it is finite and its certificate ask for one curve again and again.
@functools.lru_cache(maxsize=1024)
def _known(sigma: float, fraction: float, relation: NeighboringRelation) -> PrivacyLoss:
    """``_of_fraction`` on the host: callers get copies, so that nobody writes to what is kept."""
    return _of_fraction(np, np.asarray(sigma), np.asarray(fraction), relation)


def at_orders(noise_multiplier: float, sampling_fraction: float, which: slice) -> PrivacyLoss:
    """``subsampled_gaussian_of_fraction`` under REPLACE_ONE at some ``ORDERS`` in a row, else infinite.

    For searches on the host: a bound like any other, in a third of the time.

    Raises:
        ValueError: if the multiplier is not positive and finite, or the fraction not in [0, 1].
    """
    require_positive("noise_multiplier", noise_multiplier)
    require_within("sampling_fraction", sampling_fraction, 0.0, 1.0)
    require_instance("which", which, slice)
    numbers = np.asarray(float(noise_multiplier)), np.asarray(float(sampling_fraction))
    rdp = np.full(len(ORDERS), np.inf)
    rdp[which] = _rdp(_symmetric_log_moments(np, *numbers, which), ORDERS[which])
    return PrivacyLoss(rdp, np.zeros(()))


def _of_fraction(xp: Any, sigma: Any, fraction: Any, relation: NeighboringRelation) -> PrivacyLoss:
    log_moments = _log_moments(xp, sigma, fraction, relation)
    return _loss(xp, log_moments, xp.zeros(log_moments.shape[:-1], sigma.dtype))


def _multiplicities(xp: Any, users: Any, draws: Any, tail_probability: Any) -> tuple[Any, Any]:
    """Probabilities that a user is drawn 0, ..., K times, zero from K + 1 to 16, and of more than K."""
    chances = [xp.exp(draws * xp.log1p(-1.0 / users))]
    for k in range(_MAX_MULTIPLICITY + 1):
        chances.append(chances[-1] * xp.maximum(draws - k, 0.0) / ((k + 1) * (users - 1.0)))
    # Beyond the last, each chance is at most this times the one before.
    ratio = draws / ((_MAX_MULTIPLICITY + 2) * (users - 1.0))
    beyond = xp.where(ratio < 0.9, chances.pop() / (1.0 - xp.minimum(ratio, 0.9)), 1.0)
    tails = [beyond]
    for chance in chances[:0:-1]:
        tails.append(tails[-1] + chance)
    tail = xp.stack(tails[::-1], axis=-1)  # of more than 0, ..., more than 16
    allowed = xp.maximum(tail_probability, tail[..., -1:])
    kept = xp.concatenate([xp.ones_like(tail[..., :1], bool), tail[..., :-1] > allowed], axis=-1)
    failure = xp.where(tail <= allowed, tail, 0.0).max(-1)
    return xp.where(kept, xp.stack(chances, axis=-1), 0.0), failure


def _log_moments(xp: Any, sigma: Any, q: Any, relation: NeighboringRelation) -> Any:
    sigma, q = xp.broadcast_arrays(sigma, q)
    if relation == NeighboringRelation.REPLACE_ONE:
        return _symmetric_log_moments(xp, sigma, q)
    return poisson.log_moments(xp, 0.5 * sigma, q)[0]


def _symmetric_log_moments(xp: Any, sigma: Any, q: Any, which: slice = slice(None)) -> Any:
    """Bound on log A under REPLACE_ONE at each order, or some of them; never below what is proven."""
    orders = ORDERS[which].astype(sigma.dtype)
    above_one = (ORDERS[which] - 1.0).astype(sigma.dtype)
    noisy, partial = sigma > 0, (q > 0) & (q < 1)
    safe_sigma, safe_q = xp.where(noisy, sigma, 1.0), xp.where(partial, q, 0.5)
    value, reached = _profile.log_moments(xp, safe_sigma, safe_q, mirrored=True, orders=which)
    # exp(-αL) <= exp((α-1)L): the excess is at most twice that of the sampled pair.
    pair = poisson.minkowski(xp, safe_sigma, safe_q)[..., which]
    unsampled = orders * above_one * (0.5 / safe_sigma / safe_sigma)[..., None]
    bound = xp.minimum(pair + xp.log1p(-xp.expm1(-pair)), unsampled)
    result = xp.where(reached, xp.minimum(value, bound), bound)
    result = xp.maximum(result, xp.finfo(sigma.dtype).tiny)
    result = xp.where((q < 1)[..., None], result, unsampled)
    result = xp.where(noisy[..., None], result, xp.inf)
    return xp.where((q > 0)[..., None], result, 0.0)


def _log_mean_exp(xp: Any, logs: Any, weights: Any) -> Any:
    """Log Σ weights exp(logs) over the axis before the last, for logs >= 0 and weights of sum 1."""
    drawn = weights > 0
    shown = xp.where(drawn, logs, 0.0)
    log_weights = xp.log(xp.where(drawn, weights, 1.0))
    peak = xp.maximum((shown + log_weights).max(-2, keepdims=True), 0.0)
    small = shown < 1.0
    excess = xp.where(
        small,
        weights * xp.expm1(xp.where(small, shown, 0.0)) * xp.exp(-peak),
        xp.where(
            drawn,
            xp.exp(xp.where(small, 0.0, shown) + log_weights - peak) - weights * xp.exp(-peak),
            0.0,
        ),
    )
    return (peak + xp.log1p(excess.sum(-2, keepdims=True) + xp.expm1(-peak)))[..., 0, :]


def _check(
    noise_multiplier: Any, users: Any, batch: Any, least: int, relation: NeighboringRelation
) -> None:
    require_relation("relation", relation, _RELATIONS)
    require_multiplier("noise_multiplier", noise_multiplier)
    require_whole("population_size", users, least)
    require_whole("batch_size", batch, 0)


def _are_sizes(xp: Any, sigma: Any, users: Any, batch: Any, least: int) -> Any:
    """What ``_check`` demands, of numbers that may be traced."""
    whole = (users == xp.floor(users)) & (batch == xp.floor(batch))
    finite = (users < xp.inf) & (batch < xp.inf)
    return (sigma >= 0) & (users >= least) & (batch >= 0) & whole & finite


def _rdp(log_moments: Any, orders: Any) -> Any:
    return round_up(log_moments, _ROUNDING_ULPS) / (orders - 1.0).astype(log_moments.dtype)


def _loss(xp: Any, log_moments: Any, failure: Any) -> PrivacyLoss:
    rdp = _rdp(log_moments, ORDERS)
    return PrivacyLoss(rdp, xp.minimum(round_up(failure, 4.0 * _ROUNDING_ULPS), 1.0))
