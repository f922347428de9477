"""A convex set cut with an ℓ2 ball: projection, diameter, membership; in closed form for two balls.

What it computes: the Euclidean projection of a vector onto B(a, R) ∩ B(b, r), where a ball subproblem with
centre b lives inside a ball-shaped domain with centre a; and onto X ∩ B(b, r) for any other domain X that
holds b. Centres and radii may be traced.

Source: elementary, by cases: the nearest point is the point itself, its projection onto one ball if that
lies in the other, or else a point of the sphere in which the two boundaries meet: the one in the direction
of the part of z - b orthogonal to the line through the centres. Other domains: by the condition of the first
order with a multiplier μ ≥ 0 of ‖x - b‖² ≤ r², the projection is P_X(b + s·(z - b)) with s = 1/(1 + μ): s =
1, or the s at which this is at the distance r from b, which grows with s (Calamai and Moré 1987, Lemma 2.2).

Formal guarantee: a projection does not look at data. The intersection must not be
empty: ‖a - b‖ ≤ R + r, which nothing checks for traced centres. Membership of the candidates is tested with
a tolerance of a few roundings of the lengths involved, so a point may lie outside by that much.

Cost: a few passes over the vector; for other domains 41 projections.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, PyTree

from dpsco_jax._checks import (
    require_each,
    require_instance,
    require_number,
    require_positive,
    require_tree,
)
from dpsco_jax.geometry import _moves
from dpsco_jax.geometry.domains import Domain, ball, enter_moves
from dpsco_jax.geometry.norms import global_norm

_ROUNDINGS = 8
_HALVINGS = 40


def project_two_balls(
    point: Float[Array | np.ndarray, "dim"],
    center_a: Float[Array | np.ndarray, "dim"],
    radius_a: ArrayLike,
    center_b: Float[Array | np.ndarray, "dim"],
    radius_b: ArrayLike,
) -> Float[Array, "dim"]:
    """The point of the intersection of two balls nearest to ``point``; NaN stays NaN.

    Most accurate where the second ball is the smaller one. If the intersection is empty, some point
    between the balls.

    Args:
        point: z, ``[dim]``.
        center_a: a, ``[dim]``.
        radius_a: R > 0; may be traced.
        center_b: b, ``[dim]``.
        radius_b: r > 0; may be traced.
    """
    require_each(require_number, point=point, center_a=center_a, center_b=center_b)
    require_each(require_positive, radius_a=radius_a, radius_b=radius_b)
    ball_a, ball_b = ball(radius_a, center_a), ball(radius_b, center_b)
    onto_a, onto_b = ball_a.project(point), ball_b.project(point)
    axis = jnp.asarray(center_b - center_a)
    between = global_norm(axis)
    tol = _ROUNDINGS * jnp.finfo(between.dtype).eps * (between + radius_a + radius_b)

    # The edge, seen from b: the boundaries meet in the plane at `depth` towards a, in a sphere
    # around its foot. Factored differences keep the digits when r is much smaller than R.
    tiny = jnp.finfo(between.dtype).tiny
    direction = axis / jnp.maximum(between, tiny)
    gap = (between - radius_a) * (between + radius_a) + radius_b * radius_b
    at_most = jnp.asarray(radius_b)
    depth = jnp.clip(gap / jnp.maximum(2 * between, tiny), -at_most, at_most)
    edge_radius = jnp.sqrt((radius_b - depth) * (radius_b + depth))
    arrow = point - center_b
    across = arrow - jnp.dot(arrow, direction, precision=jax.lax.Precision.HIGHEST) * direction
    across = across / jnp.maximum(global_norm(across), tiny)
    on_edge = center_b - depth * direction + edge_radius * across

    nearest = jnp.where(ball_a.contains(onto_b, tol), onto_b, on_edge)
    # Also takes the point itself: then its projection onto either ball is the point.
    return jnp.where(ball_b.contains(onto_a, tol), onto_a, nearest).astype(jnp.asarray(point).dtype)


def two_balls(
    center_a: Float[Array | np.ndarray, "dim"],
    radius_a: ArrayLike,
    center_b: Float[Array | np.ndarray, "dim"],
    radius_b: ArrayLike,
) -> Domain:
    """The intersection as a domain for vectors ``[dim]``; see ``project_two_balls`` for the arguments."""
    require_each(require_number, center_a=center_a, center_b=center_b)
    require_positive("radius_a", radius_a)
    require_positive("radius_b", radius_b)
    ball_a, ball_b = ball(radius_a, center_a), ball(radius_b, center_b)
    between = global_norm(jnp.asarray(center_b - center_a))
    small, large = jnp.minimum(radius_a, radius_b), jnp.maximum(radius_a, radius_b)
    # The edge is the widest place unless the centre of the smaller ball lies on its inner side.
    depth = ((between - large) * (between + large) + small * small) / jnp.maximum(
        2 * between, jnp.finfo(between.dtype).tiny
    )
    depth = jnp.clip(depth, 0.0, small)
    domain = Domain(
        project=lambda point: project_two_balls(point, center_a, radius_a, center_b, radius_b),
        diameter=2 * jnp.sqrt((small - depth) * (small + depth)),
        contains=lambda point, tol: ball_a.contains(point, tol) & ball_b.contains(point, tol),
        # One after the other: not the nearest place of the intersection, but no further from any of it.
        moves=_moves.both(_moves.ball(radius_a, center_a), _moves.ball(radius_b, center_b)),
    )
    return enter_moves(domain)


def cut_with_ball(domain: Domain, center: PyTree, radius: ArrayLike) -> Domain:
    """The points of a domain within a distance of one of them, as a domain.

    In closed form for a ball around the origin and for the whole space; other projections are found by
    halving an interval, and lie in both sets, as near to the nearest point as 10^-12 of the way that is
    projected, or as float32 can say.

    Args:
        domain: X, a closed convex set.
        center: b, a point of X, with the structure and shapes of the parameters; may be traced.
        radius: r > 0; may be traced.
    """
    require_instance("domain", domain, Domain)
    require_tree("center", center)
    require_positive("radius", radius)
    near = ball(radius, center)
    unbounded = not isinstance(domain.diameter, jax.core.Tracer) and np.isinf(domain.diameter)

    def in_balls(point: PyTree) -> PyTree:
        flat, restore = ravel_pytree(point)
        middle = ravel_pytree(center)[0]
        assert domain.radius is not None
        origin = jnp.zeros_like(middle)
        return restore(project_two_balls(flat, origin, domain.radius, middle, radius))

    def halved(point: PyTree) -> PyTree:
        def at(share: Any) -> PyTree:
            between = jax.tree.map(
                lambda z, b: (b + share * (z - b)).astype(z.dtype), point, center
            )
            return domain.project(between)

        def halve(_: Any, ends: Any) -> Any:
            low, high = ends
            middle = (low + high) / 2
            inside = near.contains(at(middle), 0.0)
            return jnp.where(inside, middle, low), jnp.where(inside, high, middle)

        whole = domain.project(point)
        low, _ = jax.lax.fori_loop(0, _HALVINGS, halve, (jnp.zeros([]), jnp.ones([])))
        return jax.tree.map(lambda a, b: jnp.where(near.contains(whole, 0.0), a, b), whole, at(low))

    exact = near.project if unbounded else in_balls
    return Domain(
        project=exact if unbounded or domain.radius is not None else halved,
        diameter=jnp.minimum(domain.diameter, near.diameter),
        contains=lambda point, tol: domain.contains(point, tol) & near.contains(point, tol),
    )
