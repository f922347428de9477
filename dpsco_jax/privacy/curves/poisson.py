"""The Rényi curve of the Poisson-subsampled Gaussian, at integer and fractional orders alike.

rdp(α) = log E[(1+u)^α] / (α - 1) with u = q (exp((2z-1)/(2σ²)) - 1) and z ~ N(0, σ²): the divergence of
(1-q) N(0, σ²) + q N(1, σ²) from N(0, σ²), summed over positive terms (``_profile``), and so accurate
for tiny losses, for orders near 1, and in float32.

Source: Mironov, Talwar and Zhang 2019, "Rényi differential privacy of the sampled Gaussian mechanism"
(the divergence, and that this direction of it is the larger one).

Formal guarantee: ADD_OR_REMOVE_ONE and REPLACE_SPECIAL, each user in the batch independently with
probability q, and the batch never revealed. Where the sum does not reach (orders far above 2σ² log(1/q),
which no optimum uses, and σ below 0.25) the curve is Minkowski's bound A ≤ (1 + q (exp((α-1)/(2σ²)) - 1))^α,
which is tight where the curve is steep; ``is_exact`` tells which orders are which.

Cost: about 30,000 exponentials for the whole curve.
"""

from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Bool

from dpsco_jax._checks import require_multiplier, require_probability, require_relation
from dpsco_jax._numerics import Array, Scalar, as_floats, round_up
from dpsco_jax.privacy.curves import _profile
from dpsco_jax.privacy.loss import PrivacyLoss, unbounded_unless
from dpsco_jax.privacy.orders import ORDERS

_RELATIONS = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)
_ROUNDING_ULPS = 16.0
_LOOSENESS = 1e-11  # a bound this close counts as exact


def poisson_subsampled_gaussian(
    noise_multiplier: Scalar,
    sampling_probability: Scalar,
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
) -> PrivacyLoss:
    """The loss of one release of a Poisson-sampled sum with Gaussian noise.

    Args:
        noise_multiplier: standard deviation over the ℓ2 sensitivity of the sum to one user's presence,
            shape ``[...]``, at least 0.
        sampling_probability: of each user, in [0, 1]; broadcast against the multiplier.
        relation: ADD_OR_REMOVE_ONE or REPLACE_SPECIAL: one of two neighbours lacks the contribution of a
            user. Under REPLACE_ONE it is ``mixtures.poisson_replaced_gaussian``.

    A traced multiplier or probability that is out of its range, or NaN, has an unbounded loss.

    Raises:
        ValueError: there is no proof under the relation.
    """
    require_relation("relation", relation, _RELATIONS)
    xp, sigma, q = _checked(noise_multiplier, sampling_probability)
    log_moment, _ = log_moments(xp, sigma, q)
    rdp = round_up(log_moment, _ROUNDING_ULPS) / (ORDERS - 1.0).astype(sigma.dtype)
    # Where nobody is sampled nothing is released: that is said of a probability of 0, never of NaN.
    valid = (sigma >= 0) & (q >= 0) & (q <= 1)
    return unbounded_unless(valid, PrivacyLoss(rdp, xp.zeros(rdp.shape[:-1], rdp.dtype)))


def is_exact(
    noise_multiplier: Scalar, sampling_probability: Scalar
) -> Bool[Array, "*batch orders"]:
    """Where the curve is the divergence itself; elsewhere it is a looser proven bound.

    Args:
        noise_multiplier: standard deviation over the ℓ2 sensitivity to one user's presence.
        sampling_probability: with which a user takes part, in [0, 1].

    Returns:
        A mask over the orders. Exact means up to the rounding of the dtype, always upwards.
    """
    xp, sigma, q = _checked(noise_multiplier, sampling_probability)
    return log_moments(xp, sigma, q)[1]


def log_moments(xp: Any, sigma: Any, q: Any) -> tuple[Any, Any]:
    """Log A at each order, never below the truth, and the mask of ``is_exact``.

    Args:
        xp: NumPy or jax.numpy.
        sigma: noise multiplier, shape ``[...]``.
        q: sampling probability, shape ``[...]``, same dtype.
    """
    sigma, q = xp.broadcast_arrays(sigma, q)
    orders, above_one = ORDERS.astype(sigma.dtype), (ORDERS - 1.0).astype(sigma.dtype)
    noisy, partial = sigma > 0, (q > 0) & (q < 1)
    safe_sigma, safe_q = xp.where(noisy, sigma, 1.0), xp.where(partial, q, 0.5)
    value, reached = _profile.log_moments(xp, safe_sigma, safe_q, mirrored=False)
    bound = minkowski(xp, safe_sigma, safe_q)
    result = xp.where(reached, xp.minimum(value, bound), bound)
    # A is at least its last binomial term q^α exp(α(α-1)/(2σ²)), which the bound approaches.
    half_precision = (0.5 / safe_sigma / safe_sigma)[..., None]
    rest = ((1.0 - safe_q) / safe_q)[..., None] * xp.exp(-above_one * half_precision)
    exact = reached | (orders * xp.log1p(rest) < _LOOSENESS * bound)
    result = xp.maximum(result, xp.finfo(sigma.dtype).tiny)
    result = xp.where((q < 1)[..., None], result, orders * above_one * half_precision)
    result = xp.where(noisy[..., None], result, xp.inf)
    return xp.where((q > 0)[..., None], result, 0.0), exact | ~(partial & noisy)[..., None]


def minkowski(xp: Any, sigma: Any, q: Any) -> Any:
    """Bound on log A: the α-norm of 1 + u is at most 1 - q plus q times the α-norm of 1 + u at q = 1.

    It is at most α(α-1)/(2σ²), the value without sampling.

    Args:
        xp: NumPy or jax.numpy.
        sigma: noise multiplier, above 0, shape ``[...]``.
        q: sampling probability, in (0, 1), same shape and dtype.
    """
    orders, above_one = ORDERS.astype(sigma.dtype), (ORDERS - 1.0).astype(sigma.dtype)
    cap = 80.0 if sigma.dtype != np.float64 else 600.0
    y = above_one * (0.5 / sigma / sigma)[..., None]
    rise = xp.log1p(q[..., None] * xp.expm1(xp.minimum(y, cap)))
    return orders * (rise + xp.maximum(y - cap, 0.0))


def _checked(noise_multiplier: Scalar, sampling_probability: Scalar) -> tuple[Any, Any, Any]:
    require_multiplier("noise_multiplier", noise_multiplier)
    require_probability("sampling_probability", sampling_probability)
    xp, (sigma, q) = as_floats(noise_multiplier, sampling_probability)
    return xp, sigma, q
