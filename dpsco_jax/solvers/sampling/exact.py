"""Draws from exp(-k·(F + (μ/2)‖x - x₀‖²)) in closed form, for any number of users: no chain, no mixing.

What it computes: with F known by one mean over users, the law is a Gaussian, which ``restricted_gaussian``
draws on the whole space, a box or a convex set:
- ``mean_estimation``, F the mean of ½‖x - s‖²: N(mean s, I/k), the Gaussian mechanism;
- ``linear``, F the mean of ⟨s, x⟩: N(x₀ - mean s/μ, I/(kμ)).

Source: T, Theorem 3.2.1, for these losses; both are where its bound is attained.

Formal guarantee: exact, in real arithmetic. If the points s of two users are at most Δ apart, replacing one
moves the Gaussian of the whole space by Δ/n, or Δ/(nμ), and it is s-Gaussian DP with s = Δ·√k/n, or
Δ·√k/(n·√μ), exactly; on a convex set it is no less private (Theorem 3.2.1). The bound Δ is the caller's, who
has to clip the points, and what floating point adds is outside of this: a draw of ``exponential_mechanism``
on a grid is private to the last digit. Utility: E F - min F = d/(2k) for ``mean_estimation``.

Cost: that of the mean, and O(dim).

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.solvers.sampling import exact
    >>> with jax.enable_x64(True):
    ...     points = jnp.linspace(-1.0, 1.0, 1_000_000)[:, None] * jnp.array([1.0, 0.5])
    ...     drawn = exact.mean_estimation(jax.random.key(0), jnp.mean(points, axis=0), 1e10)
    ...     near = bool(jnp.all(jnp.abs(drawn.params) < 1e-4))
    >>> drawn.params.shape, near
    ((2,), True)
"""

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Kind, checked
from dpsco_jax.geometry.domains import Domain, proven_maker
from dpsco_jax.solvers.sampling import restricted_gaussian
from dpsco_jax.solvers.sampling._precision import float64_vector, require_x64
from dpsco_jax.solvers.sampling.restricted_gaussian import Drawn

__all__ = ["linear", "mean_estimation"]

_Above = Annotated[ArrayLike, Kind(_checks.require_positive)]


@checked
def mean_estimation(
    key: jax.Array,
    mean: Float[Array, " dim"],
    inverse_temperature: _Above,
    domain: Domain | None = None,
    num_attempts: int = 1,
) -> Drawn:
    """A draw from exp(-k·F), F(x) the mean of ½‖x - s‖²: N(mean s, I/k) on K.

    Args:
        key: a typed key.
        mean: of the points s, float64.
        inverse_temperature: k, above 0; may be traced.
        domain: K, one of ``geometry.domains``; the whole space if left out. A box is drawn from at once,
            other sets by attempts.
        num_attempts: static, at least 1; for the whole space and boxes one is enough.
            ``attempt_bounds.ball_acceptance`` says how likely all fail on a ball.

    Raises:
        ValueError: an argument is of another kind or out of range, or jax_enable_x64 is off.
    """
    require_x64("exact")
    mean = float64_vector("mean", mean)
    variance = 1.0 / jnp.asarray(inverse_temperature, jnp.float64)
    return _gaussian(key, mean, variance, domain, num_attempts)


@checked
def linear(
    key: jax.Array,
    mean: Float[Array, " dim"],
    center: Float[Array, " dim"],
    inverse_temperature: _Above,
    convexity: _Above,
    domain: Domain | None = None,
    num_attempts: int = 1,
) -> Drawn:
    """A draw from exp(-k·(F + (μ/2)‖x - x₀‖²)), F(x) the mean of ⟨s, x⟩: N(x₀ - mean s/μ, I/(kμ)) on K.

    Args:
        key: a typed key.
        mean: of the slopes s, float64.
        center: x₀, float64, public.
        inverse_temperature: k, above 0; may be traced.
        convexity: μ, above 0; may be traced.
        domain: K, as for ``mean_estimation``.
        num_attempts: static, at least 1, as for ``mean_estimation``.

    Raises:
        ValueError: an argument is of another kind or out of range, or jax_enable_x64 is off.
    """
    require_x64("exact")
    mean, center = float64_vector("mean", mean), float64_vector("center", center)
    _checks.require(
        mean.shape == center.shape, "mean", mean.shape, f"of the shape {center.shape} of center"
    )
    mu = jnp.asarray(convexity, jnp.float64)
    variance = 1.0 / (jnp.asarray(inverse_temperature, jnp.float64) * mu)
    return _gaussian(key, center - mean / mu, variance, domain, num_attempts)


def _gaussian(
    key: jax.Array, mean: Array, variance: Array, domain: Domain | None, num_attempts: int
) -> Drawn:
    """N(mean, variance·I) on a set."""
    origin = jnp.zeros_like(mean)
    if domain is None:
        law = restricted_gaussian.whole_space(variance, 0.0, origin)
    else:
        name, given = proven_maker(domain)
        if name == "box":
            ends = given["lower"], given["upper"]
            plain = jax.tree_util.all_leaves(ends)
            _checks.require(plain, "domain", ends, "a box whose ends are vectors")
            lower, upper = (jnp.asarray(end, jnp.float64) for end in ends)
            law = restricted_gaussian.box(variance, 0.0, origin, lower, upper)
        else:
            law = restricted_gaussian.convex_set(variance, 0.0, origin, domain)
    return restricted_gaussian.draw(key, law, mean, num_attempts)
