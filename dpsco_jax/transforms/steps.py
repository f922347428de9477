"""The proximal step of ball subproblems: a gradient step, a quadratic pull and a projection at once.

What it computes: the minimizer of ⟨ηg, x⟩ + ½‖x - y‖² + (ηΛ/2)‖x - c‖² over a ball around a centre, and
within a ball-shaped domain if there is one. The quadratics are isotropic, so that the projection of the free
minimizer (y + ηΛc - ηg)/(1 + ηΛ) is exact.

Source: thesis, chapter 2, line 8 of Algorithms 6, 8 and 9.

Formal guarantee: none of privacy; the step does not look at data beyond the gradient that it is given. As a
map of y - ηg it is 1/(1 + ηΛ)-Lipschitz, since projections are nonexpansive.

Cost: a few passes over the vector.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax._checks import (
    require_each,
    require_given,
    require_nonnegative,
    require_number,
    require_positive,
)
from dpsco_jax.geometry.domains import Domain, ball
from dpsco_jax.geometry.two_balls import two_balls


def ball_domain(
    center: Float[Array | np.ndarray, "dim"],
    radius: ArrayLike,
    domain_radius: ArrayLike | None = None,
) -> Domain:
    """The ball around ``center``, cut with the ball of ``domain_radius`` around the origin if given.

    Args:
        center: ``[dim]``.
        radius: positive; may be traced.
        domain_radius: positive, at least ‖center‖ - radius; may be traced.
    """
    require_number("center", center)
    require_given(require_positive, domain_radius=domain_radius)
    if domain_radius is None:
        return ball(radius, center)
    return two_balls(jnp.zeros_like(center), domain_radius, center, radius)


def ball_step(
    point: Float[Array | np.ndarray, "dim"],
    gradient: Float[Array | np.ndarray, "dim"],
    step_size: ArrayLike,
    regularization: ArrayLike,
    anchor: Float[Array | np.ndarray, "dim"],
    center: Float[Array | np.ndarray, "dim"],
    radius: ArrayLike,
    domain_radius: ArrayLike | None = None,
) -> Float[Array, "dim"]:
    """The minimizer of ⟨ηg, x⟩ + ½‖x - y‖² + (ηΛ/2)‖x - c‖² over ‖x - center‖ ≤ radius.

    Args:
        point: y, ``[dim]``.
        gradient: g, ``[dim]``; zero for a step of the regularizer alone.
        step_size: η ≥ 0; may be traced.
        regularization: Λ ≥ 0; may be traced.
        anchor: c, the point to which the regularizer pulls, ``[dim]``; often the center.
        center: of the ball, ``[dim]``.
        radius: of the ball, positive; may be traced.
        domain_radius: of a ball around the origin to stay in too; none if ``None``. May be traced.
    """
    require_each(require_number, point=point, gradient=gradient, anchor=anchor)
    require_each(require_nonnegative, step_size=step_size, regularization=regularization)
    pull = step_size * regularization
    # A small move from y, rather than a mean of long vectors, keeps the digits far from the origin.
    move = (pull * (anchor - point) - step_size * gradient) / (1 + pull)
    return ball_domain(center, radius, domain_radius).project(jnp.asarray(point + move))


def combined_quadratics(
    regularization: ArrayLike,
    anchor: Float[Array | np.ndarray, "dim"],
    other_regularization: ArrayLike,
    other_anchor: Float[Array | np.ndarray, "dim"],
) -> tuple[jax.Array, Float[Array, "dim"]]:
    """One quadratic in place of two: (λ/2)‖x - a‖² + (μ/2)‖x - b‖² = (Λ/2)‖x - c‖² + constant.

    Args:
        regularization: λ ≥ 0; may be traced.
        anchor: a, ``[dim]``.
        other_regularization: μ ≥ 0; may be traced.
        other_anchor: b, ``[dim]``.

    Returns:
        Λ = λ + μ and c = (λa + μb)/Λ; c = a if both are zero.
    """
    require_each(require_number, anchor=anchor, other_anchor=other_anchor)
    require_each(
        require_nonnegative,
        regularization=regularization,
        other_regularization=other_regularization,
    )
    total = jnp.asarray(regularization + other_regularization)
    share = other_regularization / jnp.where(total > 0, total, 1.0)
    return total, jnp.asarray(anchor + share * (other_anchor - anchor))
