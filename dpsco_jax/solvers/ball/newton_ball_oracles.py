"""Ball oracles from second derivatives: Newton's method in a ball; the Monteiro-Svaiter-Newton step.

What it computes: with one eigendecomposition of the Hessian at a point, minimizers of the quadratic model
there for every λ at the price of two products with the eigenvectors.

- ``newton``: the minimizer x̂ of F(x) + (λ/2)·‖x - y‖² over ‖x - y‖ ≤ r, by Newton steps whose quadratic
  models are minimized over the same ball exactly.
- ``monteiro_svaiter``: no ball; the smallest λ, within a factor of two, at which one regularized Newton step
  x = y - (∇²F(y) + λ)⁻¹∇F(y) satisfies ‖x - y + ∇F(x)/λ‖ ≤ σ‖x - y‖.

Source: Carmon, Jambulapati, Jiang, Jin, Lee, Sidford and Tian 2020 (balls in which the Hessian is stable);
Carmon, Hausler, Jambulapati, Jin and Sidford 2022, section 4 (``monteiro_svaiter``: their adaptive oracle of
second order).

Formal guarantee: ``newton`` converges to x̂ where F's Hessian is stable in the ball, such as r ≤ 1 for the
logistic loss with features of norm 1; steps are halved while the slope at their end is steep, which helps
elsewhere.

Cost: one Hessian and its eigenvectors (dim³) for each Newton step; ``monteiro_svaiter`` one for each call,
and a gradient for each λ that it tries. Problems, Hessians and λ tried (linear systems) are counted.

Example:
    >>> import jax.numpy as jnp
    >>> from dpsco_jax.solvers.convex import newton_ball_oracles
    >>> slope = jnp.array([4.0, 0.0])
    >>> oracles = newton_ball_oracles.newton(lambda x: x - slope, lambda x: jnp.eye(2), radius=1.0)
    >>> answer = oracles.prox(None, jnp.zeros(2), 1.0)
    >>> [round(float(x), 5) for x in answer.point], round(float(answer.multiplier), 5)
    ([1.0, 0.0], 3.0)
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Count, Flag, Function, checked
from dpsco_jax.solvers.ball._regularized_step import least_regularization
from dpsco_jax.solvers.ball.ball_oracles import BallAnswer, BallOracle, BallOracles
from dpsco_jax.solvers.ball.exact_ball_oracles import multiplier, secular


@checked
def newton(
    gradient: Function,
    hessian: Function,
    radius: Any,
    tolerance: float = 1e-4,
    max_steps: Count = 50,
) -> BallOracles:
    """Newton's method in the ball.

    Args:
        gradient: ∇F, flat to flat.
        hessian: ∇²F, ``[dim]`` to ``[dim, dim]``.
        radius: r; ``inf`` for none.
        tolerance: length of a step after which to stop, relative to r (to the step's own point where r is
            infinite).
        max_steps: steps at most; 1 is a step of regularized Newton.

    Returns:
        Three times the same oracle; it counts problems, Hessians and linear systems. Its answers hold ∇F.

    Raises:
        ValueError: if a concrete argument is not positive.
    """
    _checks.require_within("radius", radius, 0.0, math.inf, open_low=True)
    _checks.require_positive("tolerance", tolerance)

    def oracle(key: Any, center: Any, regularization: Any) -> BallAnswer:
        eps = jnp.finfo(center.dtype).eps
        lam = jnp.asarray(regularization, center.dtype)

        def unfinished(carry: Any) -> Any:
            point, _, length, steps = carry
            size = jnp.linalg.norm(point)
            scale = jnp.where(jnp.isinf(radius), size, radius)
            enough = length <= jnp.maximum(tolerance * scale, 4 * eps * size)
            return ~enough & (steps < max_steps)

        def advance(carry: Any) -> Any:
            point, slope, _, steps = carry
            curvature = hessian(point)
            eigenvalues, vectors = jnp.linalg.eigh(curvature)
            # The model's gradient at the center, where the ball and the regularizer sit.
            central = slope - curvature @ (point - center)
            move, _ = secular(jnp.maximum(eigenvalues, 0.0), vectors.T @ central, lam, radius)
            step = center + vectors @ move - point
            steepness = jnp.abs(jnp.vdot(slope + lam * (point - center), step))

            def at(share: Any) -> Any:
                new = point + share * step
                return new, gradient(new)

            def steep(tried: Any) -> Any:
                share, (new, after) = tried
                end = jnp.vdot(after + lam * (new - center), step)
                return (end > 0.25 * steepness) & (share > 1e-3)

            whole = jnp.ones((), center.dtype)
            share, (new, after) = jax.lax.while_loop(
                steep, lambda tried: (tried[0] / 2, at(tried[0] / 2)), (whole, at(whole))
            )
            return new, after, share * jnp.linalg.norm(step), steps + 1

        infinite = jnp.full((), jnp.inf, center.dtype)
        start = (center, gradient(center), infinite, jnp.zeros((), jnp.int32))
        point, slope, _, steps = jax.lax.while_loop(unfinished, advance, start)
        calls = jnp.stack([jnp.ones((), jnp.int32), steps, steps])
        return BallAnswer(point, multiplier(slope, center - point, lam, radius), calls, slope)

    return BallOracles(oracle, oracle, oracle)


@checked
def monteiro_svaiter(
    gradient: Function,
    hessian: Function,
    accuracy: float = 0.5,
    lazy: Flag = False,
) -> BallOracle:
    """One regularized Newton step with a λ found by doubling exponents, then by bisection.

    The λ that the oracle is asked at is the first one tried; its answer's multiplier is the one found.

    Args:
        gradient: ∇F, flat to flat.
        hessian: ∇²F, ``[dim]`` to ``[dim, dim]``.
        accuracy: σ in (0, 1).
        lazy: whether to take the first λ as it is where it fits.

    Returns:
        An oracle that counts problems, Hessians and linear systems. Its answers hold ∇F.

    Raises:
        ValueError: if σ is not in (0, 1).
    """
    _checks.require_within("accuracy", accuracy, 0.0, 1.0, open_low=True, open_high=True)

    def oracle(key: Any, center: Any, regularization: Any) -> BallAnswer:
        slope = gradient(center)
        eigenvalues, vectors = jnp.linalg.eigh(hessian(center))
        eigenvalues = jnp.maximum(eigenvalues, 0.0)
        components = vectors.T @ slope

        def move(lam: Any, kept: Any) -> tuple[Any, Any]:
            return -(vectors @ (components / (eigenvalues + lam))), kept

        answer, _ = least_regularization(
            gradient, center, slope, regularization, move, None, accuracy, lazy
        )
        one = jnp.ones((), jnp.int32)
        return answer._replace(calls=jnp.stack([one, one, answer.calls]))

    return oracle
