"""Ball oracles without randomness: first-order ones, and the closed form of quadratics.

What it computes: the minimizer x̂ of F(x) + (λ/2)·‖x - y‖² over ‖x - y‖ ≤ r, and the number λ_o ≥ λ with
λ_o(y - x̂) = ∇F(x̂). With them ball acceleration is a deterministic solver in its own right.

- ``quadratic``: F(x) = ½Σh_i·x_i² - <b, x>: one unknown, the multiplier, by Newton's method.
- ``accelerated_gradient``: smooth F, by projected accelerated gradient steps.
- ``gradient_step``: a single step and no ball; with fixed λ ball acceleration is then accelerated gradient
  descent.
- ``newton_ball_oracles`` has the second-order ones.

Source: Moré and Sorensen 1983 (secular equation); Beck and Teboulle 2009 with the restarts of O'Donoghue and
Candès 2015 (accelerated gradient).

Formal guarantee: ``quadratic`` is exact to rounding. ``accelerated_gradient`` is within ``tolerance``·r of x̂
where it stops before its cap on steps, or at the resolution of the floating-point format.

Cost: O(dim) a Newton turn, about five of them; about √(β/λ)·log(1/tolerance) gradients for a β-smooth F.

Example:
    >>> import jax.numpy as jnp
    >>> from dpsco_jax.solvers.convex import exact_ball_oracles
    >>> oracles = exact_ball_oracles.quadratic(jnp.ones(2), jnp.array([4.0, 0.0]), radius=1.0)
    >>> answer = oracles.prox(None, jnp.zeros(2), 1.0)
    >>> [round(float(x), 5) for x in answer.point], round(float(answer.multiplier), 5)
    ([1.0, 0.0], 3.0)
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Count, Function, checked
from dpsco_jax._checks import require_positive
from dpsco_jax.solvers.ball.ball_oracles import BallAnswer, BallOracles


def secular(
    eigenvalues: Float[Array, "dim"],
    gradient: Float[Array, "dim"],
    regularization: Any,
    radius: Any,
) -> tuple[Float[Array, "dim"], Float[Array, ""]]:
    """Minimizes <g, u> + ½Σh_i·u_i² + (λ/2)·‖u‖² over ‖u‖ ≤ r.

    The solution is u_i = -g_i/(h_i + μ) with the least μ ≥ λ at which ‖u‖ ≤ r. 1/‖u(μ)‖ is concave and
    increasing, so Newton's method for 1/‖u(μ)‖ = 1/r climbs to the root from λ without passing it.

    Args:
        eigenvalues: h ≥ 0.
        gradient: g.
        regularization: λ > 0.
        radius: r > 0.

    Returns:
        u, and μ.
    """
    eps = jnp.finfo(gradient.dtype).eps

    def rising(carry: tuple[Any, Any, Any]) -> Any:
        _, change, turns = carry
        return (change > 2 * eps) & (turns < 200)

    def newton(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        mu, _, turns = carry
        move = gradient / (eigenvalues + mu)
        square = jnp.sum(move**2)
        slope = jnp.sum(move**2 / (eigenvalues + mu))
        # (1/r - 1/‖u‖) over the derivative of 1/‖u‖, which is slope/‖u‖³; zero at g = 0.
        rise = (jnp.sqrt(square) / radius - 1) * square / jnp.where(slope > 0, slope, 1.0)
        rise = jnp.maximum(rise, 0.0)
        return mu + rise, rise / mu, turns + 1

    low = jnp.asarray(regularization, gradient.dtype)
    start = (low, jnp.ones_like(low), jnp.zeros((), jnp.int32))
    mu = jax.lax.while_loop(rising, newton, start)[0]
    return -gradient / (eigenvalues + mu), mu


def quadratic(
    eigenvalues: Float[Array, "dim"], linear: Float[Array, "dim"], radius: Any
) -> BallOracles:
    """For F(x) = ½Σh_i·x_i² - <b, x>, in the eigenbasis of its Hessian.

    Args:
        eigenvalues: h ≥ 0.
        linear: b.
        radius: r.

    Returns:
        Three times the same oracle; it counts one kind, problems.

    Raises:
        ValueError: if a concrete radius is not in (0, inf).
    """
    _checks.require_each(_checks.require_number, eigenvalues=eigenvalues, linear=linear)
    require_positive("radius", radius)

    def oracle(key: Any, center: Any, regularization: Any) -> BallAnswer:
        gradient = eigenvalues * center - linear
        move, multiplier = secular(eigenvalues, gradient, regularization, radius)
        return BallAnswer(center + move, multiplier, jnp.ones(1, jnp.int32))

    return BallOracles(oracle, oracle, oracle)


@checked
def accelerated_gradient(
    gradient: Function,
    smoothness: Any,
    radius: Any,
    tolerance: float = 1e-4,
    max_steps: Count = 10_000,
) -> BallOracles:
    """For a smooth F, by accelerated gradient steps projected onto the ball.

    Args:
        gradient: ∇F, flat to flat.
        smoothness: β > 0, Lipschitz constant of ∇F.
        radius: r.
        tolerance: distance to x̂ at which to stop, relative to r.
        max_steps: gradients at most.

    Returns:
        Three times the same oracle; it counts two kinds, problems and gradients. Its answers hold ∇F.

    Raises:
        ValueError: if a concrete argument is not in (0, inf).
    """
    for name, value in (("smoothness", smoothness), ("radius", radius), ("tolerance", tolerance)):
        require_positive(name, value)

    def oracle(key: Any, center: Any, regularization: Any) -> BallAnswer:
        eps = jnp.finfo(center.dtype).eps
        lam = jnp.asarray(regularization, center.dtype)
        steepest = smoothness + lam

        def onto_ball(point: Any) -> Any:
            arrow = point - center
            return center + arrow * jnp.minimum(1.0, radius / jnp.maximum(_norm(arrow), eps))

        def unfinished(carry: Any) -> Any:
            point, _, _, moved, steps = carry
            # The distance to x̂ is at most 2·steepest·moved/λ.
            near = 2 * steepest * moved <= lam * tolerance * radius
            resolved = moved <= 2 * eps * _norm(point)
            return ~near & ~resolved & (steps < max_steps)

        def advance(carry: Any) -> Any:
            point, ahead, momentum, _, steps = carry
            slope = gradient(ahead) + lam * (ahead - center)
            new = onto_ball(ahead - slope / steepest)
            restart = jnp.vdot(ahead - new, new - point) > 0
            momentum = jnp.where(restart, 1.0, momentum)
            following = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
            further = new + (momentum - 1) / following * (new - point)
            return new, further, following, _norm(ahead - new), steps + 1

        one = jnp.ones((), center.dtype)
        start = (center, center, one, one * jnp.inf, jnp.zeros((), jnp.int32))
        point, _, _, _, steps = jax.lax.while_loop(unfinished, advance, start)
        final = gradient(point)
        calls = jnp.stack([jnp.ones((), jnp.int32), steps + 1])
        return BallAnswer(point, multiplier(final, center - point, lam, radius), calls, final)

    return BallOracles(oracle, oracle, oracle)


@checked
def gradient_step(gradient: Function) -> BallOracles:
    """The point x = y - ∇F(y)/λ, near a proximal point where λ is larger than the smoothness.

    For a β-smooth F, ‖x - y + ∇F(x)/λ‖ ≤ (β/λ)·‖x - y‖, and λ ≥ β will do.

    Args:
        gradient: ∇F, flat to flat.

    Returns:
        Three times the same oracle; it counts problems and gradients. Its answers hold ∇F.
    """

    def oracle(key: Any, center: Any, regularization: Any) -> BallAnswer:
        lam = jnp.asarray(regularization, center.dtype)
        point = center - gradient(center) / lam
        return BallAnswer(point, lam, jnp.asarray([1, 2], jnp.int32), gradient(point))

    return BallOracles(oracle, oracle, oracle)


def multiplier(
    gradient: Float[Array, "dim"], arrow: Float[Array, "dim"], least: Any, radius: Any
) -> Any:
    """The λ_o ≥ λ that fits ∇F = λ_o·(y - x̂) best where x̂ is on the sphere; λ where it is inside of the ball.

    Args:
        gradient: ∇F at x̂.
        arrow: y - x̂.
        least: λ.
        radius: r.
    """
    square = jnp.sum(arrow**2)
    fit = jnp.vdot(gradient, arrow) / jnp.where(square > 0, square, 1.0)
    # Inside it is λ exactly, and the quotient little but rounding where F is nearly flat.
    outside = jnp.sqrt(square) >= (1 - 1e-3) * radius
    return jnp.where(outside, jnp.maximum(fit, least), least)


def _norm(vector: Any) -> Any:
    return jnp.sqrt(jnp.sum(vector**2))
