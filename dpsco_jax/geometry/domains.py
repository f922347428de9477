"""Convex sets that parameters live in: projection, diameter, membership.

What it computes: the Euclidean projection onto the whole space, a ball, a box, a scaled simplex and
an ℓ1 ball. A point is any pytree; norms, sums and distances run over all leaves together.

Source: Duchi, Shalev-Shwartz, Singer and Chandra 2008 (simplex and ℓ1 ball, by sorting), as
implemented in ``optax.projections``.

Formal guarantee: a projection does not look at data, so it is post-processing. The sets, with their
radii and centers, must themselves be chosen without looking at the data. Where privacy rests on more,
that a projection brings no two points farther apart, ``proven_diameter`` passes only the sets of this
file, since a ``Domain`` is a tuple that anybody may build.

Cost: one pass over the parameters; a sort for simplex and ℓ1 ball.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import ArrayLike, PyTree

from dpsco_jax._checks import (
    require,
    require_each,
    require_given,
    require_positive,
    require_tree,
)
from dpsco_jax.geometry import _moves
from dpsco_jax.geometry._domain import (
    Domain,
    enter_moves,
    entered,
    proven_diameter,
    proven_maker,
    require_proven_moves,
)
from dpsco_jax.geometry.norms import global_norm

__all__ = [
    "Domain",
    "ball",
    "box",
    "enter_moves",
    "l1_ball",
    "proven_diameter",
    "proven_maker",
    "require_proven_moves",
    "simplex",
    "whole_space",
]


@entered
def whole_space() -> Domain:
    """All of space: projection is the identity, the diameter is infinite."""
    return Domain(
        project=lambda point: point,
        diameter=math.inf,
        contains=lambda point, tol: jnp.asarray(True),
        thresholds=True,
        moves=lambda point: lambda move: move,
    )


@entered
def ball(radius: ArrayLike, center: PyTree | None = None) -> Domain:
    """The ℓ2 ball around a center.

    Args:
        radius: positive, finite; may be traced.
        center: a point with the structure and shapes of the parameters; ``None`` is the origin.

    Raises:
        ValueError: if a concrete radius is not in (0, inf).
    """
    require_given(require_tree, center=center)
    require_positive("radius", radius)

    def from_center(point):
        return point if center is None else jax.tree.map(jnp.subtract, point, center)

    def project(point):
        arrow = from_center(point)
        distance = global_norm(arrow)
        # `distance <= radius` is false for NaN, which then spreads to the whole point and is seen.
        inside = distance <= radius
        shrink = radius / jnp.where(inside, radius, distance)

        def nearest(leaf, arrow_leaf, center_leaf):
            leaf = jnp.asarray(leaf)
            return jnp.where(inside, leaf, (center_leaf + shrink * arrow_leaf).astype(leaf.dtype))

        origin = jax.tree.map(lambda leaf: 0.0, point) if center is None else center
        return jax.tree.map(nearest, point, arrow, origin)

    return Domain(
        project=project,
        diameter=2 * radius,
        contains=lambda point, tol: global_norm(from_center(point)) <= radius + tol,
        thresholds=center is None,
        moves=_moves.ball(radius, center),
        norm=radius if center is None else radius + _number(_above(center)),
        radius=radius if center is None else None,
    )


@entered
def box(lower: PyTree, upper: PyTree) -> Domain:
    """The box of points with ``lower <= point <= upper`` in every coordinate.

    Args:
        lower: structure and shapes of the parameters. The dimension, and with it the diameter, is
            read off them, so a bare number bounds a scalar parameter only. May be traced.
        upper: as ``lower``, with at least its values; may be traced.

    Raises:
        ValueError: if a concrete lower bound exceeds the upper one, or (on use) shapes differ.
    """
    require_each(require_tree, lower=lower, upper=upper)
    sides = jax.tree.map(lambda low, high: jnp.subtract(high, low).astype(float), lower, upper)
    for side in jax.tree.leaves(sides):
        require(jnp.all(side >= 0), "upper - lower", side, "nonnegative in every coordinate")

    def checked(point):
        shapes = [jax.tree.map(jnp.shape, tree) for tree in (point, lower, upper)]
        if not shapes[0] == shapes[1] == shapes[2]:
            raise ValueError(f"point, lower and upper must have the same shapes, got {shapes}")
        return point

    def project(point):
        nearest = optax.projections.projection_box(checked(point), lower, upper)
        return _cast_like(nearest, point)

    def contains(point, tol):
        def within(leaf, low, high):
            return jnp.all((leaf >= low - tol) & (leaf <= high + tol))

        flags = jax.tree.map(within, checked(point), lower, upper)
        return jnp.all(jnp.asarray(jax.tree.leaves(flags)))

    diameter = _number(global_norm(sides))
    moves = _moves.box(lower, upper)
    outermost = jax.tree.map(lambda *ends: jnp.maximum(*map(jnp.abs, ends)), lower, upper)
    norm = _number(_above(outermost))
    return Domain(project, diameter, contains, thresholds=True, moves=moves, norm=norm)


@entered
def simplex(scale: ArrayLike = 1.0) -> Domain:
    """The points with nonnegative entries that sum to ``scale``, over all leaves together.

    Raises:
        ValueError: if a concrete scale is not in (0, inf).
    """
    require_positive("scale", scale)

    def contains(point, tol):
        entries = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(_wide(point))])
        return (jnp.min(entries) >= -tol) & (jnp.abs(jnp.sum(entries) - scale) <= tol)

    return Domain(
        project=lambda point: _cast_like(
            optax.projections.projection_simplex(_wide(point), scale), point
        ),
        diameter=math.sqrt(2.0) * scale,
        contains=contains,
        moves=_moves.simplex(),
        norm=scale,
    )


@entered
def l1_ball(radius: ArrayLike) -> Domain:
    """The points whose absolute entries sum to at most ``radius``, over all leaves together.

    Raises:
        ValueError: if a concrete radius is not in (0, inf).
    """
    require_positive("radius", radius)

    def project(point: PyTree) -> PyTree:
        wide = _wide(point)
        largest = optax.tree.norm(wide, ord=jnp.inf)

        # Far out the threshold is at least what the largest entry has above the radius. Taken off first, it
        # leaves numbers of the size of the radius, of which nothing is lost in sums.
        def nearer(x: Any) -> Any:
            left = jnp.maximum(radius - (largest - jnp.abs(x)), 0.0)
            return jnp.where(largest > radius, jnp.sign(x) * left, x)

        near = jax.tree.map(nearer, wide)
        return _cast_like(optax.projections.projection_l1_ball(near, radius), point)

    return Domain(
        project=project,
        diameter=2 * radius,
        contains=lambda point, tol: optax.tree.norm(_wide(point), ord=1) <= radius + tol,
        thresholds=True,
        moves=_moves.l1_ball(radius),
        norm=radius,
    )


def _wide(tree: PyTree) -> PyTree:
    """All leaves in one dtype, at least float32: optax computes in the dtype that it is given."""
    dtype = jnp.result_type(jnp.float32, *jax.tree.leaves(tree))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), tree)


def _cast_like(tree: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(lambda new, old: new.astype(jnp.asarray(old).dtype), tree, like)


def _above(point: PyTree) -> Any:
    """The norm of a point, and a little more than its rounding may have taken off."""
    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), point)
    return global_norm(wide) * (1 + 1e-3)


def _number(value: Any) -> Any:
    """A concrete scalar as a Python float, for plans on the host; a traced one as it is."""
    return value if isinstance(value, jax.core.Tracer) else float(np.asarray(value))
