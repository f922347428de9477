"""What a draw by an inexact sampler costs: its certificate, and a loss that ledgers can add.

What it computes: for one release that is μ-Gaussian DP up to a total variation distance τ (``variation``),
its certificate at a δ, exactly, and a ``PrivacyLoss`` for plans, in numbers that may be traced. There are two
such losses. The Rényi curve of the ideal mechanism, enlarged as ``with_variation`` says, composes well and is
taken where τ is so small that its ε at δ is at most 1.24 times that of the other; the other, of an (ε, δ)-DP
release, needs no more than the certificate does (docs/theory/variation.md, section 3).

Source: own; docs/theory/variation.md.

Formal guarantee: both bounds of the release are those of ``variation``, in both directions of a pair of
neighbours. The loss is infinite where neither is proven.
"""

import math
from collections.abc import Iterable
from typing import Any, SupportsFloat

import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax._checks import (
    require_inside,
    require_nonnegative,
    require_positive,
    require_probability,
    require_relation,
    require_sentences,
)
from dpsco_jax._numerics import Scalar, as_floats, known_zero, special_namespace
from dpsco_jax.privacy import curves
from dpsco_jax.privacy.certificates import Certificate, accounted_by
from dpsco_jax.privacy.loss import PrivacyLoss, unbounded_unless
from dpsco_jax.privacy.loss import epsilon as epsilon_of
from dpsco_jax.privacy.variation import variation_epsilon, with_variation

_ENLARGED_SHARE = 0.5  # of δ: the failure probability of the enlarged curve
_WHOLE_SHARE = 0.8  # and of the other loss: at δ itself its ε would be infinite
_WORTH = 1.24  # what the ε of one release may be larger for a loss that composes: in all it stays below 1.3
# Of the ε that is hinted at: finely where it was planned for, coarsely where it was not.
_STRETCHES = np.union1d(1.0 + np.arange(65) / 64.0, 2.0 ** (np.arange(-48, 129) / 8.0))


def inexact_certificate(
    mu: SupportsFloat,
    variation: SupportsFloat,
    delta: SupportsFloat,
    relation: NeighboringRelation,
    assumptions: Iterable[str] = (),
) -> Certificate:
    """The guarantee of one release that is μ-Gaussian DP up to a total variation distance.

    Args:
        mu: of the ideal mechanism, at least 0.
        variation: τ, a bound for every data set, in [0, 1].
        delta: in (0, 1).
        relation: the neighbouring relation of μ.
        assumptions: sentences to carry along.

    Example:
        >>> from dp_accounting import NeighboringRelation
        >>> relation = NeighboringRelation.REPLACE_ONE
        >>> inexact_certificate(0.2367, 1e-8, 1e-6, relation).epsilon < 1.01
        True
    """
    require_relation("relation", relation)
    carried = require_sentences("assumptions", assumptions)
    bound = variation_epsilon(mu, variation, delta)
    by = accounted_by("closed form with total variation")
    return Certificate(bound, float(delta), relation, by, carried)


def inexact_loss(mu: Scalar, variation: Scalar, epsilon: Scalar, delta: Scalar) -> PrivacyLoss:
    """The loss of one release that is μ-Gaussian DP up to a total variation distance; it may be traced.

    Args:
        mu: of the ideal mechanism, of shape ``[...]``, at least 0.
        variation: τ, a bound for every data set, in [0, 1].
        epsilon: ε of the budget that the release was planned for, above 0: a hint, checked here.
        delta: δ of that budget, in (0, 1).

    Returns:
        The loss, of shape ``[...]``. Its ε at δ is above that of the certificate, by at most 1.3 where the
        release was planned for (ε, δ), ε in [0.1, 8], δ in [1e-9, 1e-3] and τ·(1 + e^ε) at most 0.3·δ.
        Infinite where τ is too large for either, where a traced number is out of its range, and where e^ε is
        beyond the floats of the dtype. A τ in JAX counts as no less than its least normal number.

    Example:
        >>> from dpsco_jax import privacy
        >>> float(privacy.epsilon(inexact_loss(0.2, 1e-9, 1.0, 1e-6), 1e-6)) < 1.0
        True
    """
    require_nonnegative("mu", mu)
    require_probability("variation", variation)
    require_positive("epsilon", epsilon)
    require_inside("delta", delta)
    xp, (shift, tau, eps, total) = as_floats(mu, variation, epsilon, delta)
    furthest = _furthest(xp, eps)
    valid = (shift >= 0) & (shift < xp.inf) & (tau >= 0) & (tau <= 1)
    valid = valid & (eps > 0) & (eps <= furthest) & (total > 0) & (total < 1)
    shift, eps = xp.where(valid, shift, 1.0), xp.where(valid, eps, 1.0)
    total, tau = xp.where(valid, total, 0.5), xp.where(valid, tau, 0.0)

    charged = xp.where(known_zero(variation), 0.0, xp.maximum(tau, xp.finfo(tau.dtype).tiny))
    whole = _whole(xp, shift, charged, eps, _WHOLE_SHARE * total)
    # A zero stays one that is known. At twice the ε an exact draw fails with far less than δ.
    off = tau if isinstance(variation, jax.Array) else variation
    enlarged = with_variation(curves.gdp(shift), off, 2.0 * eps, _ENLARGED_SHARE * total)
    composes = epsilon_of(enlarged, total) <= _WORTH * epsilon_of(whole, total)
    loss = PrivacyLoss(
        xp.where(composes[..., None], enlarged.rdp, whole.rdp),
        xp.where(composes, enlarged.delta, whole.delta),
    )
    return unbounded_unless(valid, loss)


def _furthest(xp: Any, like: Any) -> float:
    """The largest ε whose exponential is taken in a dtype."""
    return math.log(float(xp.finfo(like.dtype).max)) - 1.0


def _whole(xp: Any, mu: Any, tau: Any, eps: Any, failure: Any) -> PrivacyLoss:
    """The loss of an (ε', δ')-DP release, δ' given, with the least ε' of several that is proven."""
    tried = eps[..., None] * _STRETCHES.astype(eps.dtype)
    floats = xp.finfo(eps.dtype)
    # What underflows is below the least normal number; at the largest exponential τ alone is above 1.
    ideal = xp.exp(_log_delta(xp, mu[..., None], tried)) + floats.tiny
    spent = ideal + tau[..., None] * (1.0 + xp.exp(xp.minimum(tried, _furthest(xp, eps))))
    slack = 1.0 - 64.0 * floats.eps
    proven = spent <= failure[..., None] * slack
    least = xp.min(xp.where(proven, tried, tried[..., -1:]), axis=-1)
    return unbounded_unless(xp.any(proven, axis=-1), curves.approximate_dp(least, failure))


def _log_delta(xp: Any, mu: Any, eps: Any) -> Any:
    """The logarithm of the privacy curve of a μ-Gaussian DP release, rounded up."""
    log_ndtr = special_namespace(xp).log_ndtr
    floats = xp.finfo(eps.dtype)
    # It rises with μ, and at μ = 1e-15·ε it is below any float.
    positive = xp.maximum(mu, xp.maximum(1e-15 * eps, floats.tiny))
    first = log_ndtr(0.5 * positive - eps / positive)
    second = eps + log_ndtr(-0.5 * positive - eps / positive)
    rounding = 16.0 * floats.eps * (xp.abs(first) + xp.abs(second) + eps + 1.0)
    gap = first - second + rounding
    return first + rounding + xp.log(-xp.expm1(-xp.minimum(gap, 80.0)))
