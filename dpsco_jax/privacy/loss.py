"""The privacy loss as data: an approximate-RDP curve that composes, scales and converts.

A ``PrivacyLoss`` holds Rényi-DP values on the fixed grid ``ORDERS`` together with the probability that
they fail (δ-approximate RDP, in the sense of Bun and Steinke 2016, Definition 8.1). It is a pytree of
plain arrays, so it can be batched, differentiated, carried through ``scan`` and stored in a checkpoint.

Source: Mironov 2017 (RDP and its composition); Bun and Steinke 2016 (approximate form); Canonne, Kamath
and Steinke 2020, Proposition 12 (conversion); Bretagnolle and Huber 1979 (the total-variation bound).

Formal guarantee: if every composed loss bounds its release under one neighbouring relation, then so does
the result, for adaptively chosen releases, under that relation. A ``PrivacyLoss`` does not record the
relation; whatever forms one states it.

Cost: one array of ``len(ORDERS)`` numbers; no operation looks at more than a few of them.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from dpsco_jax._checks import (
    require,
    require_inside,
    require_instance,
    require_multiplier,
    require_whole,
)
from dpsco_jax._numerics import Array, Scalar, array_namespace, as_floats, round_up
from dpsco_jax.privacy.orders import ORDERS

_ROUNDING_ULPS = 16.0
_CANCELLATION_ULPS = 4.0


class PrivacyLoss(NamedTuple):
    """What a release, or a sequence of releases, has cost.

    Attributes:
        rdp: Rényi divergence bound at each order of ``ORDERS``, shape ``[..., orders]``, nonnegative,
            ``inf`` where nothing is known.
        delta: probability that the bound fails, shape ``[...]``, in [0, 1].
    """

    rdp: Float[Array, "*batch orders"]
    delta: Float[Array, "*batch"]


def zero() -> PrivacyLoss:
    """The loss of releasing nothing."""
    return PrivacyLoss(rdp=np.zeros(len(ORDERS)), delta=np.zeros(()))


def unbounded() -> PrivacyLoss:
    """The loss of a release of which nothing is proved: ε is infinite at every δ below 1."""
    return PrivacyLoss(rdp=np.full(len(ORDERS), np.inf), delta=np.zeros(()))


def unbounded_unless(holds: Any, loss: PrivacyLoss) -> PrivacyLoss:
    """The loss where a condition holds, and ``unbounded()`` where it does not: how a program fails closed.

    Inside ``jit`` a number out of its range cannot raise. Whatever forms a loss from traced numbers states
    the condition under which its formula is a bound; a condition on NaN is false: the loss is infinite.

    Args:
        holds: booleans of shape ``[...]``, traced or not.
        loss: the loss that is proven where ``holds`` is true; it may hold anything elsewhere.

    Raises:
        ValueError: ``holds`` is not of booleans (NaN would count as true).
    """
    is_bool = getattr(holds, "dtype", None) == np.bool_ or isinstance(holds, bool)
    require(is_bool, "holds", holds, "a boolean or an array of booleans")
    require_instance("loss", loss, PrivacyLoss)
    xp = array_namespace(holds, loss)
    good = xp.asarray(holds, bool)
    # As constants of a program NumPy arrays would have another dtype once x64 has been turned on.
    rdp, failure = (xp.asarray(x) for x in loss)
    return PrivacyLoss(
        rdp=xp.where(good[..., None], rdp, xp.inf), delta=xp.where(good, failure, 0.0)
    )


def compose(*losses: PrivacyLoss) -> PrivacyLoss:
    """The loss of all releases together, on the same data, each allowed to depend on those before.

    What a release does may depend on those before; how much it costs, and how many there are, may not.

    Rényi divergences add, and so do failure probabilities (union bound). ``compose()`` is ``zero()``.
    """
    _require_losses(losses)
    total = losses[0] if losses else zero()
    for loss in losses[1:]:
        total = PrivacyLoss(total.rdp + loss.rdp, total.delta + loss.delta)
    return total


def parallel(*losses: PrivacyLoss) -> PrivacyLoss:
    """The loss of releases each of which sees a fixed, disjoint part of the users.

    A neighbour differs in one user, hence in one part; the others have the same law (or post-process).
    Valid when the split into parts does not depend on the data. ``parallel()`` is ``zero()``.
    """
    _require_losses(losses)
    total = losses[0] if losses else zero()
    for loss in losses[1:]:
        xp = array_namespace(total, loss)
        total = PrivacyLoss(xp.maximum(total.rdp, loss.rdp), xp.maximum(total.delta, loss.delta))
    return total


def scale(loss: PrivacyLoss, count: Scalar) -> PrivacyLoss:
    """The loss of ``count`` releases of the same cost: the one place where repetition is multiplied.

    Args:
        loss: the cost of one release.
        count: number of repetitions, a nonnegative whole number (may be traced: a traced number that is not
            one gives ``unbounded()``). No release costs nothing, also where one costs ``inf``.
    """
    require_instance("loss", loss, PrivacyLoss)
    require_whole("count", count, 0)
    xp, (rdp, failure, times) = as_floats(*loss, count)
    none = (times == 0)[..., None]
    scaled = PrivacyLoss(
        rdp=xp.where(none, 0.0, rdp * xp.where(none, 1.0, times[..., None])),
        delta=failure * times,
    )
    # An infinite count is no count either: floor leaves infinity as it is.
    whole = (times >= 0) & (times == xp.floor(times)) & (times < xp.inf)
    return unbounded_unless(whole, scaled)


def epsilon(loss: PrivacyLoss, delta: Scalar) -> Any:
    """The smallest ε that the loss proves at a given δ, rounded up.

    The least, over the grid of orders, of the conversion of Canonne, Kamath and Steinke (Proposition 12),

        ε = rdp(α) + log(1 - 1/α) - (log δ + log α) / (α - 1),

    and zero where the total variation is at most δ, by the Bretagnolle-Huber bound sqrt(1 - exp(-rdp)).
    The failure probability of the loss is taken off δ first.

    Args:
        loss: any privacy loss, batched or not.
        delta: the probability with which ε may be exceeded, in (0, 1); broadcast against the batch.

    Returns:
        ε of shape ``[...]``; ``inf`` where δ does not exceed the failure probability of the loss, where a
        traced δ is not in (0, 1), and where the loss holds a number that no loss has, such as NaN.
    """
    require_instance("loss", loss, PrivacyLoss)
    require_inside("delta", delta)
    xp, (rdp, failure, allowed) = as_floats(*loss, delta)
    eps = xp.finfo(rdp.dtype).eps
    rest = (allowed * (1.0 - 2.0 * eps) - failure) / (1.0 - xp.minimum(failure, 0.5))
    feasible = rest > 0
    log_rest = xp.log(xp.where(feasible, rest, 1.0))
    finite = xp.isfinite(rdp)
    safe_rdp = xp.where(finite, rdp, 0.0)
    offset = (np.log1p(-1.0 / ORDERS) - np.log(ORDERS) / (ORDERS - 1.0)).astype(rdp.dtype)
    needed = log_rest[..., None] * (1.0 / (ORDERS - 1.0)).astype(rdp.dtype)
    # The terms may cancel: what their rounding can have taken off is added.
    slack = _CANCELLATION_ULPS * eps * (safe_rdp + np.abs(offset) + xp.abs(needed))
    converted = safe_rdp + offset - needed + slack
    # Total variation: δ² + exp(-rdp) - 1 > 0 for some order means that (0, δ) already holds.
    variation = -xp.expm1(-safe_rdp) * (1.0 + 8.0 * eps)
    allowed_variation = (xp.where(feasible, rest, 0.0) ** 2)[..., None]
    within_variation = xp.any(finite & (allowed_variation > variation), axis=-1)
    best = xp.min(xp.where(finite, converted, xp.inf), axis=-1)
    best = xp.where(within_variation, 0.0, xp.maximum(best, 0.0))
    proven = feasible & (allowed < 1) & _is_a_loss(xp, rdp, failure)
    best = xp.where(proven, best, xp.inf)
    return round_up(best, _ROUNDING_ULPS)[()]


def delta(loss: PrivacyLoss, epsilon: Scalar) -> Any:
    """The smallest δ that the loss proves at a given ε ≥ 0, rounded up.

    The same two conversions as ``epsilon``, solved for δ, plus the failure probability of the loss.

    Returns:
        δ of shape ``[...]``, at most 1; 1 where a traced ε is negative or NaN, and where the loss holds a
        number that no loss has, such as NaN.
    """
    require_instance("loss", loss, PrivacyLoss)
    require_multiplier("epsilon", epsilon)
    xp, (rdp, failure, allowed) = as_floats(*loss, epsilon)
    proven = (allowed >= 0) & _is_a_loss(xp, rdp, failure)
    finite = xp.isfinite(rdp)
    safe_rdp = xp.where(finite, rdp, 0.0)
    above_one = (ORDERS - 1.0).astype(rdp.dtype)
    offset = ((ORDERS - 1.0) * np.log1p(-1.0 / ORDERS) - np.log(ORDERS)).astype(rdp.dtype)
    allowed = xp.minimum(allowed, 1e30)[..., None]
    size = above_one * (safe_rdp + allowed) + np.abs(offset)
    slack = _CANCELLATION_ULPS * xp.finfo(rdp.dtype).eps * size
    log_converted = above_one * (safe_rdp - allowed) + offset + slack
    positive = safe_rdp > 0
    squared_variation = -xp.expm1(-xp.where(positive, safe_rdp, 1.0))
    log_variation = xp.where(positive, 0.5 * xp.log(squared_variation), -xp.inf)
    log_delta = xp.where(finite, xp.minimum(log_converted, log_variation), xp.inf)
    best = xp.exp(xp.minimum(xp.min(log_delta, axis=-1), 0.0))
    best = failure + (1.0 - xp.minimum(failure, 1.0)) * best
    best = xp.minimum(round_up(best, _ROUNDING_ULPS), 1.0)
    return xp.where(proven, best, 1.0)[()]


def _require_losses(losses: tuple[PrivacyLoss, ...]) -> None:
    for loss in losses:
        require_instance("losses", loss, PrivacyLoss)


def _is_a_loss(xp: Any, rdp: Any, failure: Any) -> Any:
    """Whether all numbers can be those of a loss; false for NaN, of which nothing follows."""
    return xp.all(rdp >= 0, axis=-1) & (failure >= 0)
