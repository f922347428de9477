"""Ball oracles without randomness: the subproblem solved to machine precision.

What it computes: the minimizer x̂ of F(x) + (λ/2)·‖x - y‖² over ‖x - y‖ ≤ r, and the number λ_o ≥ λ with
λ_o(y - x̂) = ∇F(x̂). With them ball acceleration is a deterministic solver in its own right.

- ``quadratic``: F(x) = ½Σh_i·x_i² - <b, x>: one unknown, the multiplier, by Newton's method.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax.solvers.convex.ball_oracles import BallAnswer, BallOracles


def secular(
    eigenvalues: Float[Array, "dim"],
    gradient: Float[Array, "dim"],
    regularization: Any,
    radius: Any,
) -> tuple[Float[Array, "dim"], Float[Array, ""]]:
    """Minimizes <g, u> + ½Σh_i·u_i² + (λ/2)·‖u‖² over ‖u‖ ≤ r.

    The solution is u_i = -g_i/(h_i + μ) with the least μ ≥ λ at which ‖u‖ ≤ r. 1/‖u(μ)‖ is concave and
    increasing, so Newton's method for 1/‖u(μ)‖ = 1/r climbs to the root from λ without passing it.

    Returns:
        u, and μ.
    """
    eps = jnp.finfo(gradient.dtype).eps

    def reached(carry: tuple[Any, Any, Any]) -> Any:
        _, change, turns = carry
        return (change > 2 * eps) & (turns < 200)

    def newton(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        mu, _, turns = carry
        u = gradient / (eigenvalues + mu)
        square = jnp.sum(u**2)
        norm = jnp.sqrt(square)
        slope = jnp.sum(u**2 / (eigenvalues + mu))
        # (1/r - 1/‖u‖) over the derivative of 1/‖u‖, which is slope/‖u‖³.
        rise = jnp.maximum((norm / radius - 1) * square / slope, 0.0)
        return mu + rise, rise / mu, turns + 1

    low = jnp.asarray(regularization, gradient.dtype)
    start = (low, jnp.ones_like(low), jnp.zeros((), jnp.int32))
    mu = jax.lax.while_loop(reached, newton, start)[0]
    return -gradient / (eigenvalues + mu), mu


def quadratic(
    eigenvalues: Float[Array, "dim"], linear: Float[Array, "dim"], radius: Any
) -> BallOracles:
    """For F(x) = ½Σh_i·x_i² - <b, x>, in the eigenbasis of its Hessian.

    Args:
        eigenvalues: h ≥ 0.
        linear: b.
        radius: r.
    """

    def oracle(key: Any, center: Any, regularization: Any) -> BallAnswer:
        gradient = eigenvalues * center - linear
        move, multiplier = secular(eigenvalues, gradient, regularization, radius)
        return BallAnswer(center + move, multiplier, jnp.ones(1, jnp.int32))

    return BallOracles(oracle, oracle, oracle)
