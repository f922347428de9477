"""The Rényi curves of single releases: Gaussian, Laplace, pure, bounded-range, approximate and Gaussian DP.

Each function returns the ``PrivacyLoss`` of ONE release; repetition is ``scale``, and nothing else.

Source: Mironov 2017, Table II (Gaussian, Laplace, randomized response); Bun and Steinke 2016,
Proposition 3.3 (the quadratic bound); Dong, Durfee and Rogers 2020 and Cesar and Rogers 2021 (bounded
range); Kairouz, Oh and Viswanath 2015 (an (ε, δ) guarantee is randomized response that fails with
probability δ); Dong, Roth and Su 2022 (Gaussian differential privacy).

Formal guarantee: the curves bound both directions of a pair of neighbours. None of them depends on what
the neighbours are: the relation is the one under which the sensitivity, the ε or the μ was established.

Cost: a few operations per order.
"""

import functools
import math
from typing import Any, Literal

import numpy as np
from scipy import special

from dpsco_jax._checks import (
    require_choice,
    require_multiplier,
    require_probability,
    require_within,
)
from dpsco_jax._numerics import Scalar, array_namespace, as_floats, exp_remainder, round_up
from dpsco_jax.privacy.loss import PrivacyLoss, unbounded_unless
from dpsco_jax.privacy.orders import ORDERS

_ROUNDING_ULPS = 16.0


def gaussian(noise_multiplier: Scalar) -> PrivacyLoss:
    """Gaussian noise: rdp(α) = α / (2 σ²).

    Args:
        noise_multiplier: standard deviation over ℓ2 sensitivity under the relation at hand, of shape
            ``[...]``, at least 0 (no noise costs ``inf``).
    """
    require_multiplier("noise_multiplier", noise_multiplier)
    xp, (sigma,) = as_floats(noise_multiplier)
    orders = ORDERS.astype(sigma.dtype)
    noisy = sigma > 0
    precision = 1.0 / xp.where(noisy, sigma, 1.0)
    rdp = 0.5 * orders * (precision * precision)[..., None]
    return _loss(xp.where(noisy[..., None], rdp, xp.inf))


def gdp(mu: Scalar) -> PrivacyLoss:
    """μ-Gaussian differential privacy (also of a mechanism that is not Gaussian): rdp(α) = α μ² / 2.

    Args:
        mu: how many standard deviations apart the hardest pair is, shape ``[...]``, at least 0.
    """
    require_multiplier("mu", mu)
    _, (shift,) = as_floats(mu)
    rdp = 0.5 * ORDERS.astype(shift.dtype) * (shift * shift)[..., None]
    return unbounded_unless(shift >= 0, _loss(rdp))


def laplace(scale: Scalar) -> PrivacyLoss:
    """Laplace noise on a statistic of ℓ1 sensitivity 1 (exact).

    With x = 1/scale, A(α) = (α exp((α-1)x) + (α-1) exp(-αx)) / (2α-1) and rdp = log A / (α-1). The terms
    of first order in x cancel, so A - 1 is computed from exp(y) - 1 - y, a sum of positive numbers.

    Args:
        scale: scale parameter of the noise over the ℓ1 sensitivity, shape ``[...]``, above 0.
    """
    require_within("scale", scale, 0.0, np.inf, open_low=True)
    xp, (found,) = as_floats(scale)
    b = xp.where(found > 0, found, 1.0)
    orders, above_one = ORDERS.astype(b.dtype), (ORDERS - 1.0).astype(b.dtype)
    x = (1.0 / b)[..., None]
    rise = above_one * x
    near = xp.minimum(rise, 1.0)
    excess = (
        orders * exp_remainder(xp, near)
        + above_one * exp_remainder(xp, -near * (orders / above_one))
    ) / (2.0 * orders - 1.0)
    log_far = (
        rise
        + np.log(orders / (2.0 * orders - 1.0))
        + xp.log1p((1.0 - 1.0 / orders) * xp.exp(-(2.0 * orders - 1.0) * x))
    )
    rdp = xp.where(rise < 1.0, xp.log1p(excess), log_far) / above_one
    return unbounded_unless(found > 0, _loss(xp.minimum(rdp, x)))


def pure_dp(epsilon: Scalar, bound: Literal["exact", "quadratic"] = "exact") -> PrivacyLoss:
    """A release that is known to be ε-differentially private, and nothing more.

    Args:
        epsilon: shape ``[...]``, at least 0.
        bound: ``"exact"``, the divergence of randomized response, which is the largest that any ε-private
            release has; or ``"quadratic"``, the bound min(α ε² / 2, ε) that theory uses.
    """
    require_multiplier("epsilon", epsilon)
    require_choice("bound", bound, ("exact", "quadratic"))
    xp, (found,) = as_floats(epsilon)
    orders, above_one = ORDERS.astype(found.dtype), (ORDERS - 1.0).astype(found.dtype)
    eps = xp.where(found >= 0, found, 0.0)[..., None]
    quadratic = xp.minimum(0.5 * orders * eps * eps, eps)
    if bound == "quadratic":
        return unbounded_unless(found >= 0, _loss(quadratic))
    # A - 1 = (exp((α-1)ε) - 1) (1 - exp(-αε)) / (1 + exp(-ε)): a product, so nothing cancels.
    rise = above_one * eps
    excess = xp.expm1(xp.minimum(rise, 1.0)) * -xp.expm1(-orders * eps) / (1.0 + xp.exp(-eps))
    finite = xp.minimum(eps, xp.finfo(eps.dtype).max / 1e9)
    log_far = (
        above_one * finite
        + xp.log1p(xp.exp(-(2.0 * orders - 1.0) * finite))
        - xp.log1p(xp.exp(-finite))
    )
    rdp = xp.where(rise < 1.0, xp.log1p(excess), log_far) / above_one
    rdp = xp.where(xp.isfinite(eps), xp.minimum(rdp, quadratic), xp.inf)
    return unbounded_unless(found >= 0, _loss(rdp))


def threshold_answer(epsilon: Scalar) -> PrivacyLoss:
    """One answer "above" of noisy tests against a fixed noisy threshold; answers "below" are free.

    With a = ε, (α-1) rdp = -log(1 - (1 - exp(-(α-1)a)) (1 - exp(-αa))), at most α(α-1) a² and at most
    (α-1) a: twice the quadratic bound of ε-DP, since it pays for the queries below too. Proof:
    docs/theory/sparse_vector.md, section 2.

    Args:
        epsilon: twice the sensitivity of a query over the scale of its Laplace noise, shape ``[...]``, at
            least 0.
    """
    require_multiplier("epsilon", epsilon)
    xp, (found,) = as_floats(epsilon)
    orders, above_one = ORDERS.astype(found.dtype), (ORDERS - 1.0).astype(found.dtype)
    eps = xp.where(found >= 0, found, 0.0)[..., None]
    finite = xp.minimum(eps, xp.finfo(eps.dtype).max / 1e9)
    fall = -xp.expm1(-above_one * finite)
    product = fall * -xp.expm1(-orders * finite)
    near = -xp.log1p(-xp.minimum(product, 0.5)) / above_one
    # Where the product is near one; a sum of two terms of the same size as the result.
    far = finite - xp.log1p(xp.exp(-finite) * fall) / above_one
    rdp = xp.minimum(xp.where(product < 0.5, near, far), finite)
    rdp = xp.where(xp.isfinite(eps), rdp, xp.inf)
    return unbounded_unless(found >= 0, _loss(rdp))


def bounded_range(epsilon: Scalar) -> PrivacyLoss:
    """A release whose privacy loss lies in an interval of length ε: the exponential mechanism.

    The worst case puts two outcomes at the ends of the interval [t - ε, t]; maximizing over t gives
    (α-1) rdp = α g(αε/2) - (α-1) g((α-1)ε/2) - g(ε/2) with g(y) = log(sinh(y)/y), at most α ε²/8.

    Args:
        epsilon: length of the range, shape ``[...]``, at least 0. The exponential mechanism that weighs a
            score of sensitivity Δ by exp(ε score / (2Δ)) has range ε; a monotone score weighed by
            exp(ε score / Δ) too.
    """
    require_multiplier("epsilon", epsilon)
    xp, (found,) = as_floats(epsilon)
    orders, above_one = ORDERS.astype(found.dtype), (ORDERS - 1.0).astype(found.dtype)
    eps = xp.where(found >= 0, found, 0.0)[..., None]
    finite = xp.minimum(eps, xp.finfo(eps.dtype).max / 1e9)
    quadratic = finite * xp.minimum(orders * finite / 8.0, 1.0)  # a square may overflow
    log_moment = xp.where(
        orders * finite < 1.0,
        _bounded_range_series(xp, xp.minimum(finite, 1.0 / orders)),
        _bounded_range_far(xp, xp.maximum(finite, 1.0 / orders)),
    )
    rdp = xp.minimum(log_moment / above_one, quadratic)
    rdp = xp.where(xp.isfinite(eps), rdp, xp.inf)
    return unbounded_unless(found >= 0, _loss(rdp))


def approximate_dp(epsilon: Scalar, delta: Scalar) -> PrivacyLoss:
    """A release that is known to be (ε, δ)-differentially private, and nothing more.

    Such a release post-processes randomized response that reveals everything with probability δ.

    Args:
        epsilon: shape ``[...]``, at least 0.
        delta: shape ``[...]``, in [0, 1].
    """
    require_multiplier("epsilon", epsilon)
    require_probability("delta", delta)
    xp, (eps, failure) = as_floats(epsilon, delta)
    rdp = pure_dp(eps if xp is not np else np.asarray(epsilon, np.float64)).rdp
    batch = np.broadcast_shapes(rdp.shape[:-1], failure.shape)
    loss = PrivacyLoss(xp.broadcast_to(rdp, (*batch, len(ORDERS))), xp.broadcast_to(failure, batch))
    return unbounded_unless((failure >= 0) & (failure <= 1), loss)


def _loss(rdp: Any) -> PrivacyLoss:
    xp = array_namespace(rdp)
    return PrivacyLoss(round_up(rdp, _ROUNDING_ULPS), xp.zeros(rdp.shape[:-1], rdp.dtype))


def _bounded_range_series(xp: Any, eps: Any) -> Any:
    """(α-1) rdp for αε <= 1, from log(sinh(y)/y) = Σ 4^k B_2k y^2k / (2k (2k)!)."""
    alpha = ORDERS.astype(eps.dtype)
    total = xp.zeros_like(eps * alpha)
    y_squared = (0.5 * alpha * eps) ** 2
    for coefficient in _bounded_range_coefficients():
        total = y_squared * (coefficient.astype(eps.dtype) + total)
    return total


@functools.cache
def _bounded_range_coefficients() -> tuple[np.ndarray, ...]:
    """Of (αε/2)^2k in that sum, at each order: from k = 10 down to 1."""
    alpha = ORDERS
    found = []
    for k in range(10, 0, -1):
        bernoulli = 4.0**k * special.bernoulli(2 * k)[-1] / (2 * k * math.factorial(2 * k))
        # α^(2k+1) - (α-1)^(2k+1) - 1 over α^2k: what the three terms leave of each power.
        left = -alpha * np.expm1((2 * k + 1) * np.log1p(-1.0 / alpha)) - alpha ** (-2.0 * k)
        found.append(bernoulli * left)
    return tuple(found)


def _bounded_range_far(xp: Any, eps: Any) -> Any:
    """(α-1) rdp for αε >= 1, by the same formula with its exponentials taken apart."""
    alpha, above_one = ORDERS.astype(eps.dtype), (ORDERS - 1.0).astype(eps.dtype)
    rise = above_one * eps
    up = [rise, above_one * xp.log1p(xp.exp(-rise) * (xp.expm1(-eps) / xp.expm1(-rise)))]
    down = [
        (-(ORDERS - 1.0) * np.log1p(-1.0 / ORDERS)).astype(eps.dtype),
        -xp.log1p(-xp.exp(-alpha * eps)),
        xp.log(alpha * -xp.expm1(-eps)),
    ]
    size = sum(xp.abs(term) for term in up + down)
    # What cancels leaves its absolute error behind: it is added.
    return sum(up) - sum(down) + 4.0 * xp.finfo(eps.dtype).eps * size
