"""The Rényi curve of items that are sampled one by one, for users who have several of them.

A user has at most k items, each of which takes part with probability q by itself and adds a vector of norm
1 at most. Of the user with and without them, Σ_j p_j N(j, σ²) against N(0, σ²), p_j binomial, is the worst:

    f(z) = Σ_j p_j exp((2zj - j²)/(2σ²)),    A(α) - 1 = E[f(z)^α - 1 - α(f(z) - 1)],  z ~ N(0, σ²).

What is in the mean is never negative. It is summed at equal steps of z/σ, which for a function that is
analytic in a strip is exact but for exp(-decay); what lies beyond the last step is bounded by Minkowski's
inequality, which is tight where the curve is steep.

Source: Charles et al. 2024, "Fine-tuning large language models with user-level differential privacy"
(example-level sampling); Choquette-Choo et al. 2024 (mixtures of Gaussians in several dimensions). Proofs,
and that this direction of the divergence is the larger one: docs/theory/mixtures.md, section 8.

Formal guarantee: ADD_OR_REMOVE_ONE and REPLACE_SPECIAL of a user with at most k items, wherever these point
to; who was drawn is never revealed. Orders whose bumps lie beyond the last step have a looser proven bound.

Cost: about 400 times as many exponentials as there are orders, and as there are items.

Example:
    >>> from dpsco_jax import privacy
    >>> loss = privacy.scale(privacy.item_sampled_gaussian(4.0, 0.01, 10), 100)
    >>> round(float(privacy.epsilon(loss, 1e-5)), 2)
    1.09
"""

import math
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation
from scipy import special

from dpsco_jax._checks import (
    require_integer,
    require_multiplier,
    require_probability,
    require_relation,
)
from dpsco_jax._numerics import Scalar, as_floats, round_up
from dpsco_jax.privacy.curves._profile import _log_one_plus
from dpsco_jax.privacy.curves._profile_nodes import Precision, precision
from dpsco_jax.privacy.loss import PrivacyLoss, unbounded_unless
from dpsco_jax.privacy.orders import ORDERS

RELATIONS = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)
_ROUNDING_ULPS = 32.0
_NODES = 400
_LEAST_NOISE = 1e4
_NEAR = 0.5  # below it e^x - 1 - x and the like are taken from their series


def item_sampled_gaussian(
    noise_multiplier: Scalar,
    sampling_probability: Scalar,
    items_per_user: int,
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
) -> PrivacyLoss:
    """The loss, for a user with all items, of one noisy sum over items that are each sampled by itself.

    Args:
        noise_multiplier: standard deviation over the norm to which an item's contribution is clipped. Shape
            ``[...]``, at least 0.
        sampling_probability: of each item, in [0, 1]; broadcast against the multiplier.
        items_per_user: k ≥ 1, static: no user has more items. Whoever has fewer is covered.
        relation: ADD_OR_REMOVE_ONE or REPLACE_SPECIAL: one of two neighbours lacks all items of a user.

    A traced number that is out of its range, or NaN, has an unbounded loss.

    Raises:
        ValueError: there is no proof under the relation.
    """
    require_relation("relation", relation, RELATIONS)
    require_multiplier("noise_multiplier", noise_multiplier)
    require_probability("sampling_probability", sampling_probability)
    k = require_integer("items_per_user", items_per_user, 1)
    xp, numbers = as_floats(noise_multiplier, sampling_probability)
    sigma, q = xp.broadcast_arrays(*numbers)
    valid = (sigma >= 0) & (q >= 0) & (q <= 1)
    rdp = round_up(_log_moments(xp, sigma, q, k), _ROUNDING_ULPS)
    rdp = rdp / (ORDERS - 1.0).astype(sigma.dtype)
    return unbounded_unless(valid, PrivacyLoss(rdp, xp.zeros(rdp.shape[:-1], rdp.dtype)))


def _log_moments(xp: Any, sigma: Any, q: Any, k: int) -> Any:
    """Log A at each order, never below the truth."""
    above_one = (ORDERS - 1.0).astype(sigma.dtype)
    # Of less noise than that not even (k/σ)² is a number.
    noisy = sigma > k * _LEAST_NOISE * math.sqrt(xp.finfo(sigma.dtype).tiny)
    partial = (q > 0) & (q < 1)
    safe_sigma, safe_q = xp.where(noisy, sigma, 1.0), xp.where(partial, q, 0.5)
    draws = _Draws(xp, safe_sigma, safe_q, k)
    unsampled = ORDERS.astype(sigma.dtype) * above_one * (0.5 * k * k / safe_sigma**2)[..., None]
    result = xp.minimum(draws.log_moment(), draws.log_beyond(None))
    result = xp.minimum(result, unsampled)
    # Whatever is released costs something: a smaller number, divided by α - 1, may be flushed to zero.
    result = xp.maximum(result, xp.finfo(sigma.dtype).tiny * xp.maximum(above_one, 1.0))
    result = xp.where((q < 1)[..., None], result, unsampled)
    result = xp.where(noisy[..., None], result, xp.inf)
    return xp.where((q > 0)[..., None], result, 0.0)


class _Draws:
    """How many of k items are drawn, and how far that moves the noise; arrays have ``[...]`` in front."""

    def __init__(self, xp: Any, sigma: Any, q: Any, k: int) -> None:
        dtype = sigma.dtype
        self.xp, self.settings, self.eps = xp, precision(dtype), float(np.finfo(dtype).eps)
        self.count = np.arange(1, k + 1)
        largest = float(special.gammaln(k + 1))
        ways = largest - special.gammaln(self.count + 1)
        ways = (ways - special.gammaln(k - self.count + 1)).astype(dtype)
        drawn, left = self.count.astype(dtype), (k - self.count).astype(dtype)
        log_q, log_rest = xp.log(q)[..., None], xp.log1p(-q)[..., None]
        self.log_chance = ways + drawn * log_q + left * log_rest
        sizes = ways + xp.abs(drawn * log_q) + xp.abs(left * log_rest)
        # Of the chance of a count, relative; the ways are a difference of logarithms that may be far larger.
        of_ways = 2.0**-50 * largest
        self.error = (4.0 + 2.0 * sizes) * self.eps + of_ways
        self.log_none, self.distance = k * log_rest, drawn / sigma[..., None]
        # The strip in which f has no zeros is πσ high, and the step that it allows grows to a limit.
        height = xp.minimum(0.95 * math.pi * sigma, math.sqrt(2.0 * self.settings.decay))
        self.step = 2.0 * math.pi * height / (0.5 * height**2 + self.settings.decay)
        self.start = self.settings.reach + 2.0
        self.any_drawn = -xp.expm1(self.log_none[..., 0])

    def log_moment(self) -> Any:
        """Log A: the sum at the nodes, and what may lie beyond them."""
        xp = self.xp
        s = self.step[..., None] * np.arange(_NODES, dtype=self.step.dtype) - self.start
        loss = self._loss(s)
        log_weight = xp.log(self.step)[..., None] - 0.5 * s * s - 0.5 * math.log(2.0 * math.pi)
        log_weight = log_weight + 2.0 * self.eps * (1.0 + xp.abs(log_weight))
        peak, total = self._sum(loss, log_weight)
        unit = xp.ones_like(peak)
        near = _log_one_plus(xp, unit, peak, total, self.settings)
        return xp.logaddexp(near, self.log_beyond(s[..., -1]))

    def log_beyond(self, end: Any) -> Any:
        """Log of ∫ f^α over what lies beyond ``end``, or over everything, by Minkowski's inequality.

        The α-norm of f there is at most Σ_j p_j times those of its parts, and beyond t > 0 deviations from
        its centre a Gaussian has at most exp(-t²/2) of its mass.
        """
        xp, order = self.xp, ORDERS.astype(self.step.dtype)[:, None]
        # A difference of rounded orders would be wrong by as much as they are, relative to less.
        above_one = (ORDERS - 1.0).astype(self.step.dtype)[:, None]
        distance, log_chance = self.distance[..., None, :], self.log_chance[..., None, :]
        parts = log_chance * (1.0 - self.eps) + self.error[..., None, :]
        parts = parts + 0.5 * above_one * distance**2
        none = self.log_none[..., None, :] + 0.0 * order
        if end is not None:
            ahead = xp.maximum(end[..., None, None] - order * distance, 0.0)
            parts = parts - 0.5 * ahead**2 / order
            none = none - 0.5 * xp.maximum(end[..., None, None], 0.0) ** 2 / order
        total = _log_sum(xp, xp.concatenate([none, parts], axis=-1))
        slack = 8.0 * self.eps * (1.0 + xp.abs(total))
        return order[:, 0] * (total + slack)

    def _loss(self, s: Any) -> Any:
        """Log f at the nodes, rounded away from zero."""
        xp, eps = self.xp, self.eps
        distance, s = self.distance[..., None, :], s[..., None]
        log_chance, error = self.log_chance[..., None, :], self.error[..., None, :]
        x = distance * (s - 0.5 * distance)
        sizes = distance * (xp.abs(s) + 0.5 * distance)
        cap = 0.5 * self.settings.cap
        # Σ_{j>0} p_j (exp(x_j) - 1): every term by itself is free of cancellation.
        top = xp.minimum(x, cap)
        grown, chance = xp.exp(log_chance + top), xp.exp(log_chance)
        terms = xp.where(xp.abs(top) < 1.0, chance * xp.expm1(top), grown - chance)
        lost = (error * xp.abs(terms) + 4.0 * eps * (grown * sizes + xp.abs(terms))).sum(-1)
        total = terms.sum(-1)
        rise = total + xp.where(total < 0, -lost, lost)
        # No item may be drawn, so that f is at least the chance of that, however near to zero.
        least, floor = eps - 1.0, self.log_none * (1.0 + 4.0 * eps)
        small = xp.where(rise > least, xp.log1p(xp.maximum(rise, least)) * (1.0 + 4.0 * eps), floor)
        small = xp.maximum(small, floor)
        whole = log_chance + x + error + 4.0 * eps * (xp.abs(log_chance) + sizes)
        large = _log_sum(xp, xp.concatenate([self.log_none[..., None, :] + 0.0 * s, whole], -1))
        large = large + 4.0 * eps * (1.0 + xp.abs(large))
        return xp.where(x.max(-1) > cap, large, small)

    def _sum(self, loss: Any, log_weight: Any) -> tuple[Any, Any]:
        """Σ exp(log_weight) (f^α - 1 - α(f - 1)) over the nodes, as (peak, sum / exp(peak))."""
        xp, dtype, eps = self.xp, loss.dtype, self.eps
        order, above_one = ORDERS.astype(dtype)[:, None], (ORDERS - 1.0).astype(dtype)[:, None]
        loss, log_weight = loss[..., None, :], log_weight[..., None, :]
        power = order * loss
        peak = xp.maximum((power + log_weight).max(-1), 0.0)
        scale = log_weight - peak[..., None]
        tall = xp.exp(power + scale + eps * (xp.abs(power) + xp.abs(scale)))
        flat, line = xp.exp(scale), xp.exp(loss + scale)
        # α e^L - (α - 1), the tangent, is below e^(αL) by what is summed.
        far = (tall - order * line) + above_one * flat
        far = far + 4.0 * eps * (tall + order * line + above_one * flat)
        near = flat * _excess(xp, xp.clip(power, -_NEAR, _NEAR), self.settings)
        terms = xp.where(xp.abs(power) < _NEAR, near * (1.0 + 32.0 * eps), far)
        # Beyond both ends, where f is below 1: at most (α - 1) max(1, α/2) U² of a chance of exp(-start²/2).
        ends = above_one[:, 0] * np.maximum(1.0, 0.5 * ORDERS).astype(dtype)
        ends = ends * (self.any_drawn**2)[..., None] * (2.0 * math.exp(-0.5 * self.start**2))
        return peak, terms.sum(-1) + ends * xp.exp(-peak)


def _excess(xp: Any, x: Any, settings: Precision) -> Any:
    """E^x - 1 - α(e^(x/α) - 1) = Σ_{n≥2} (1 - α^(1-n)) x^n/n!, |x| ≤ 1/2, x of shape ``[..., orders, n]``."""
    last = 16 if settings.decay > 20 else 9
    powers = np.arange(2, last)
    shares = -np.expm1((1 - powers) * np.log(ORDERS)[:, None]) / special.factorial(powers)
    total = xp.zeros_like(x)
    for column in shares.T[::-1]:
        total = total * x + column.astype(x.dtype)[:, None]
    return total * x * x


def _log_sum(xp: Any, terms: Any) -> Any:
    top = terms.max(-1, keepdims=True)
    return top[..., 0] + xp.log(xp.exp(terms - top).sum(-1))
