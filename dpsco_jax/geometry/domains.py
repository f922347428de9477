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

import functools
import inspect
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import ArrayLike, PyTree

from dpsco_jax._checks import (
    require,
    require_each,
    require_given,
    require_instance,
    require_positive,
    require_tree,
)
from dpsco_jax.geometry import _moves
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

_Arguments = ParamSpec("_Arguments")


class Domain(NamedTuple):
    """A closed convex set.

    Attributes:
        project: the nearest point of the set; keeps structure, shapes and dtypes. NaN stays NaN, so
            that a diverged run is seen.
        diameter: the largest ℓ2 distance between two of its points, ``inf`` for the whole space.
        contains: ``contains(point, tol)`` is whether the point violates no constraint by more than
            ``tol`` (in the units of the point); false for NaN, except in the whole space.
        thresholds: whether the minimizer over the set of a multiple of ‖w‖₁ plus ‖w - z‖²/2 is z,
            soft-thresholded and then projected; see ``geometry.prox``.
        moves: for a point ``[dim]`` the function from a move ``[dim]`` to the move from the point to the
            nearest place of the set, which is widened to hold the point; as precise as the move itself where
            that is small, for solvers whose noise is far below the rounding of a point. ``None`` where no
            such form is known.
        norm: the largest ℓ2 norm of a point, which bounds the slope of a ridge; ``inf`` where not known.
        radius: of a ball around the origin; ``None`` for all other sets. Nothing that is proven rests on it.
    """

    project: Callable[[PyTree], PyTree]
    diameter: ArrayLike
    contains: Callable[[PyTree, ArrayLike], Any]
    thresholds: bool = False
    moves: Callable[[Any], Callable[[Any], Any]] | None = None
    norm: ArrayLike = math.inf
    radius: ArrayLike | None = None


_moves_of_sets: weakref.WeakSet[Any] = weakref.WeakSet()


def require_proven_moves(name: str, domain: Domain) -> None:
    """``ValueError`` unless the moves are those of a set of this package: they expand no distance."""
    require_instance("name", name, str)
    require_instance("domain", domain, Domain)
    known = domain.moves is not None and domain.moves in _moves_of_sets
    require(
        known,
        name,
        domain,
        "one that knows its moves, such as a ball, a box, a simplex or an l1 ball: projected points are"
        " rounded by more than late phases move them, and other moves may expand distances",
    )


def enter_moves(domain: Domain) -> Domain:
    """Enters the moves of a set for ``require_proven_moves``, and returns the domain."""
    require_instance("domain", domain, Domain)
    _moves_of_sets.add(domain.moves)
    return domain


_diameters: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
_makers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def proven_diameter(domain: Domain) -> float:
    """The diameter of a set of ``geometry.domains``, whose projection is one: it expands no distance.

    Raises:
        ValueError: the projection is not one that a function of this file made from concrete numbers, or the
            domain claims another diameter than that of its set.
    """
    require_instance("domain", domain, Domain)
    found = _diameters.get(domain.project)
    require(found is not None, "domain", domain, "a set of geometry.domains")
    require(
        domain.diameter == found, "domain.diameter", domain.diameter, f"that of the set, {found}"
    )
    assert found is not None
    return found


def proven_maker(domain: Domain) -> tuple[str, dict[str, Any]]:
    """Which function of ``geometry.domains`` made a set, by name, and from which arguments.

    Raises:
        ValueError: the set is one that ``proven_diameter`` refuses.
    """
    proven_diameter(domain)
    name, given = _makers[domain.project]
    return name, given


def _entered(make: Callable[_Arguments, Domain]) -> Callable[_Arguments, Domain]:
    """Enters what the function makes for ``proven_diameter``, unless its diameter is traced."""

    @functools.wraps(make)
    def made(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Domain:
        args, kwargs = jax.tree.map(_own, (args, kwargs))
        domain = enter_moves(make(*args, **kwargs))
        if not isinstance(domain.diameter, jax.core.Tracer) and np.ndim(domain.diameter) == 0:
            _diameters[domain.project] = float(np.asarray(domain.diameter))
            given = inspect.signature(make).bind(*args, **kwargs).arguments
            _makers[domain.project] = (make.__name__, dict(given))
        return domain

    return made


def _own(leaf: Any) -> Any:
    """A copy of an array that its owner could write to: a set does not change after it was made."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    copy = np.array(leaf)
    copy.setflags(write=False)
    return copy


@_entered
def whole_space() -> Domain:
    """All of space: projection is the identity, the diameter is infinite."""
    return Domain(
        project=lambda point: point,
        diameter=math.inf,
        contains=lambda point, tol: jnp.asarray(True),
        thresholds=True,
        moves=lambda point: lambda move: move,
    )


@_entered
def ball(radius: ArrayLike, center: PyTree | None = None) -> Domain:
    """The ℓ2 ball around a center.

    Args:
        radius: positive, finite; may be traced.
        center: a point with the structure and shapes of the parameters; ``None`` is the origin.
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


@_entered
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


@_entered
def simplex(scale: ArrayLike = 1.0) -> Domain:
    """The points with nonnegative entries that sum to ``scale``, over all leaves together."""
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


@_entered
def l1_ball(radius: ArrayLike) -> Domain:
    """The points whose absolute entries sum to at most ``radius``, over all leaves together."""
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
