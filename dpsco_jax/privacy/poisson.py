"""The Rényi curve of the Poisson-subsampled Gaussian, at integer and fractional orders alike.

With u = q (exp((2z-1)/(2σ²)) - 1) and z ~ N(0, σ²), the mean of u is zero, so

    A(α) = E[(1+u)^α] = 1 + E[(1+u)^α - 1 - αu],    rdp(α) = log A(α) / (α - 1),

and the last integrand is nowhere negative: a small loss is computed without cancellation. The
trapezoidal rule in t = z/σ converges exponentially. Proofs: docs/privacy/subsampling.md.

Source: Mironov, Talwar and Zhang 2019, "Rényi differential privacy of the sampled Gaussian mechanism"
(the divergence, and that this direction of it is the larger one).

Formal guarantee: ADD_OR_REMOVE_ONE, each user in the batch independently with probability q, and the
batch never revealed. Where the nodes do not reach (orders far above σ² log(1/q), which no optimum
uses) the curve is Minkowski's bound A ≤ (1 + q (exp((α-1)/(2σ²)) - 1))^α; ``is_exact`` tells where.

Cost: about 15,000 exponentials for the whole curve.
"""

from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Bool

from dpsco_jax.privacy import _quadrature
from dpsco_jax.privacy._numerics import Array, Scalar, as_floats, require, round_up
from dpsco_jax.privacy.loss import PrivacyLoss
from dpsco_jax.privacy.orders import ORDERS

_SMALL = 1.0  # below this, |u| times the order goes through the binomial series
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
        relation: ADD_OR_REMOVE_ONE, the only one under which the curve holds.

    Raises:
        ValueError: for another relation, or an argument out of range.
    """
    if relation != NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise ValueError(
            f"relation must be ADD_OR_REMOVE_ONE for Poisson sampling, got {relation.name}"
        )
    xp, sigma, q = _checked(noise_multiplier, sampling_probability)
    log_moment, _ = log_moments(xp, sigma, q)
    rdp = round_up(log_moment, _ROUNDING_ULPS) / (ORDERS - 1.0).astype(sigma.dtype)
    return PrivacyLoss(rdp, xp.zeros(rdp.shape[:-1], rdp.dtype))


def is_exact(
    noise_multiplier: Scalar, sampling_probability: Scalar
) -> Bool[Array, "*batch orders"]:
    """Where the curve is the divergence itself; elsewhere it is a looser proven bound.

    Args:
        noise_multiplier: as in ``poisson_subsampled_gaussian``.
        sampling_probability: as in ``poisson_subsampled_gaussian``.

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
    settings = _quadrature.precision(sigma.dtype)
    orders = ORDERS.astype(sigma.dtype)
    noisy, partial = sigma > 0, (q > 0) & (q < 1)
    safe_sigma = xp.where(noisy, sigma, 1.0)[..., None]
    safe_q = xp.where(partial, q, 0.5)[..., None]
    bound = _quadrature.minkowski(xp, orders, safe_sigma, safe_q, settings.cap)
    value, reached = _quadrature_of_moments(xp, xp.maximum(safe_sigma, 0.05), safe_q, settings)
    reached = reached & (safe_sigma >= 0.05)
    result = xp.where(reached, xp.minimum(value, bound), bound)
    # A is at least its largest binomial term q^α exp(α(α-1)/(2σ²)), which the bound approaches.
    y = (orders - 1.0) / (2.0 * safe_sigma * safe_sigma)
    gap = orders * xp.log1p((1.0 - safe_q) / safe_q * xp.exp(-y))
    exact = reached | (gap < _LOOSENESS * bound)
    tiny = xp.finfo(sigma.dtype).tiny
    unsampled = (orders - 1.0) * orders / (2.0 * safe_sigma * safe_sigma)
    result = xp.where((q < 1)[..., None], xp.maximum(result, tiny), unsampled)
    result = xp.where(noisy[..., None], result, xp.inf)
    return xp.where((q > 0)[..., None], result, 0.0), exact | ~(partial & noisy)[..., None]


def _quadrature_of_moments(
    xp: Any, sigma: Any, q: Any, settings: _quadrature.Precision
) -> tuple[Any, Any]:
    """Log A by the trapezoidal rule, and which orders the nodes reach."""
    eps = xp.finfo(sigma.dtype).eps
    parts = _quadrature.octaves()
    counts = [_quadrature.node_count(part.top, settings) for part in parts]
    step = _quadrature.step_length(xp, sigma, settings.decay)
    first = xp.ceil(settings.reach / step)
    t = (np.arange(max(counts), dtype=sigma.dtype) - first) * step
    w = t / sigma - 0.5 / (sigma * sigma)
    u, log_ratio = _quadrature.log_likelihood(xp, w, q, settings.cap)
    half_square = 0.5 * t * t
    density = xp.exp(-half_square)
    shifted = xp.exp(log_ratio - half_square)  # (1 + u) times the density, finite where u is not
    first_moment = xp.where(u < 1.0, xp.minimum(u, 1.0) * density, shifted - density)
    scale = step / np.sqrt(2.0 * np.pi)
    log_ratio = log_ratio + 2.0 * eps * xp.abs(log_ratio)  # exponents are rounded up as well
    half_square = half_square * (1.0 - eps)

    values, reached = [], []
    for part, count in zip(parts, counts, strict=True):
        orders = ORDERS[part.start : part.stop].astype(sigma.dtype)
        cut = _SMALL / max(part.top, 4.0)
        near = xp.abs(u[..., :count]) < cut
        far_density = xp.where(near, 0.0, density[..., :count])
        far_moment = xp.where(near, 0.0, first_moment[..., :count])
        near_sum = _binomial_tail(
            xp,
            orders,
            xp.where(near, u[..., :count] / cut, 0.0),
            density[..., :count],
            cut,
            settings,
        )
        far_ratio = log_ratio[..., None, :count]
        far_square = xp.where(near, 1e30, half_square[..., :count])[..., None, :]
        if part.top <= 2.0:
            # Near order 1 everything is proportional to α - 1: take it out before subtracting.
            rise = xp.expm1((orders - 1.0)[:, None] * far_ratio)
            far_shifted = xp.where(near, 0.0, shifted[..., :count])[..., None, :]
            plus = (far_shifted * rise).sum(-1)
            minus = (orders - 1.0) * far_moment.sum(-1, keepdims=True)
            peak = xp.zeros_like(plus)
        else:
            exponent = orders[:, None] * far_ratio - far_square
            peak = xp.maximum(exponent.max(-1), 0.0)
            plus = xp.exp(exponent - peak[..., None]).sum(-1)
            minus = (
                far_density.sum(-1, keepdims=True) + orders * far_moment.sum(-1, keepdims=True)
            ) * xp.exp(-peak)
        excess = plus - minus + 4.0 * eps * (xp.abs(plus) + xp.abs(minus))
        total = scale * (xp.maximum(excess, 0.0) + near_sum * xp.exp(-peak))
        values.append(_quadrature.log_of_scaled(xp, total, peak, settings.decay))
        last = (count - 1 - first) * step
        reached.append(orders / sigma + settings.reach <= last)
    return xp.concatenate(values, axis=-1), xp.concatenate(reached, axis=-1)


def _binomial_tail(xp: Any, orders: Any, v: Any, density: Any, cut: float, settings: Any) -> Any:
    """Σ_t density ((1+u)^α - 1 - αu) over the nodes with u = cut v small, from the moments of v."""
    power = density * v
    total, coefficient = 0.0, orders.astype(np.float64) * cut
    for k in range(2, settings.terms + 2):
        power = power * v
        coefficient = coefficient * (orders.astype(np.float64) - k + 1) / k * cut
        total = total + coefficient.astype(orders.dtype) * power.sum(-1, keepdims=True)
    return total


def _checked(noise_multiplier: Scalar, sampling_probability: Scalar) -> tuple[Any, Any, Any]:
    require("noise_multiplier", noise_multiplier, 0.0, np.inf)
    require("sampling_probability", sampling_probability, 0.0, 1.0)
    xp, (sigma, q) = as_floats(noise_multiplier, sampling_probability)
    return xp, sigma, q
