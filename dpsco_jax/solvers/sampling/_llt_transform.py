"""What a sampler needs of a log-Laplace transform: values, derivatives, and draws of the dual variable.

For φ(y) = ‖y‖_q², 1/p + 1/q = 1, these are the transform ψ with its gradient and Hessian
(``geometry.log_laplace``), and y from D_x ∝ exp(⟨x, y⟩ - φ(y)): the λ of the mixture exp(-‖y‖_q²) =
∫ μ(λ)·exp(-λ·Σ|y_i|^q) dλ by inversion on its grid, with the weights that x gives it (T, section 5.5.3, has
μ; docs/corrections.md), then each coordinate. docs/theory/llt_sampler.md, section 3, proves the errors.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dpsco_jax import _checks
from dpsco_jax.geometry import log_laplace
from dpsco_jax.geometry._power_laplace import log_power_laplace

REACH = 16.0
_UNIT = 2.0**-52  # of a sum of weights, for each of them, and of the uniform number


class Errors(NamedTuple):
    """Of a transform, at points with ‖x‖_p at most its reach."""

    value: float  # of values
    draw: float  # of draws, in total variation


class Transform(NamedTuple):
    """ψ and the laws D_x, for points x in float64.

    Attributes:
        exponent: p.
        gaussian: whether ψ is ‖x‖²/4 and a constant.
        value: ``value(x) -> ψ(x)``.
        local: ``local(x) -> (∇ψ(x), ∇²ψ(x))``, mean and covariance of D_x.
        draw: ``draw(key, x) -> y``.
        errors: of values and of draws.
    """

    exponent: float
    gaussian: bool
    value: Callable[[Any], Any]
    local: Callable[[Any], Any]
    draw: Callable[[Array, Any], Any]
    errors: Errors


def transform(p: float, dim: int, reach: float = REACH) -> Transform:
    """ψ for an exponent.

    Args:
        p: in [1.05, 1.95], or 2.
        dim: d, at least 1.
        reach: the largest ‖x‖_p at which it is needed, at most 4096.

    Raises:
        ValueError: an argument is out of range, or jax_enable_x64 is off.

    Example:
        >>> import jax
        >>> with jax.enable_x64(True):
        ...     transform(2.0, dim=3).gaussian
        True
    """
    dim = _checks.require_count("dim", dim)
    reach = _checks.require_real("reach", reach, 0.0)
    return _transform(_checks.require_real("p", p, 1.0, math.nextafter(2.0, 3.0)), dim, reach)


@functools.lru_cache(maxsize=32)
def _transform(p: float, dim: int, reach: float) -> Transform:
    psi = log_laplace.LpLogLaplace(p, scale=1.0, dim=dim, reach=reach)

    def flat(x: Array) -> tuple[Array, Array]:
        return 0.5 * x, 0.5 * jnp.eye(dim, dtype=jnp.float64)

    def moments(x: Array) -> tuple[Array, Array]:
        # Given λ the coordinates are independent: the law of total covariance.
        log_lambda, log_weights = psi.mixture(x)
        weights, shrink = jnp.exp(log_weights), jnp.exp(-log_lambda / psi.q)
        mean, variance = _log_derivatives(x[:, None] * shrink, psi.q)
        mean, variance = mean * shrink, variance * shrink * shrink
        center = mean @ weights
        apart = mean - center[:, None]
        return center, (apart * weights) @ apart.T + jnp.diag(variance @ weights)

    def gaussian(key: Array, x: Array) -> Array:
        return 0.5 * x + jax.random.normal(key, x.shape, jnp.float64) / 2.0**0.5

    def mixed(key: Array, x: Array) -> Array:
        place_key, coordinate_key = jax.random.split(key)
        log_lambda, log_weights = psi.mixture(x)
        sums = jnp.cumsum(jnp.exp(log_weights))
        aim = sums[-1] * jax.random.uniform(place_key, (), jnp.float64)
        place = jnp.minimum(jnp.sum(sums <= aim, dtype=jnp.int32), len(sums) - 1)
        shrink = jnp.exp(-log_lambda[place] / psi.q)
        return shrink * psi.coordinate_draw(coordinate_key, x * shrink)

    return Transform(
        exponent=p,
        gaussian=p == 2.0,
        value=psi.value,
        local=flat if p == 2.0 else moments,
        draw=gaussian if p == 2.0 else mixed,
        errors=Errors(
            float(psi.error), 0.0 if p == 2.0 else float(psi.draw_error) + psi.size * _UNIT
        ),
    )


def _log_derivatives(t: Array, q: float) -> tuple[Array, Array]:
    """The first two derivatives of log Z, elementwise: mean and variance of the density ∝ exp(tw - |w|^q)."""
    ones = jnp.ones_like(t)

    def first(at: Array) -> Array:
        return jax.jvp(lambda z: log_power_laplace(z, q), (at,), (ones,))[1]

    return jax.jvp(first, (t,), (ones,))
