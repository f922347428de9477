"""Composite terms: convex functions h that a method treats exactly, through their proximal point.

What it computes: the minimizer of ``step``·h(w) + ‖w - z‖²/2 in closed form, for h a ridge around any
point and for h a multiple of the ℓ1 norm; over a convex set where the closed form extends to it. The
indicator of a set is no term but a ``Domain``: its proximal point is the projection.

Source: Parikh and Boyd 2014, Proximal algorithms, chapter 6; thesis, Algorithm 3 (its term h). Over a
set K, "proximal point, then projection" is the joint minimizer for

- a ridge (λ/2)‖w - c‖² and every convex K: with step s, s·h(w) + ‖w - z‖²/2 is, up to a constant,
  ((1 + sλ)/2)·‖w - p‖² with p = (z + sλc)/(1 + sλ), so the nearest point of K to p is the minimizer;
- λ‖w‖₁ and a box: coordinates separate, and a convex function of one variable is smallest over an
  interval at its minimizer, clipped;
- λ‖w‖₁ and a ball around the origin: a multiplier ν for the constraint adds (ν/2)‖w‖², which divides
  the thresholded point by 1 + ν, and that is what the projection does;
- λ‖w‖₁ and an ℓ1 ball around the origin: a multiplier raises the threshold, and that is what the
  projection of a thresholded point does.

For the ℓ1 norm over a ball around another point, or a simplex, it is not, and ``splits`` says so.

Formal guarantee: terms do not look at data.

Cost: one pass over the parameters.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PyTree

from dpsco_jax._checks import require_given, require_nonnegative, require_tree
from dpsco_jax.geometry.domains import Domain


class Term(NamedTuple):
    """A convex function with a proximal point in closed form; called, it is its proximal map.

    Attributes:
        value: h(w), a scalar.
        prox: ``prox(point, step)``, the minimizer of ``step * h(w) + ‖w - point‖²/2`` over all of space;
            keeps structure, shapes and dtypes.
        splits: whether the minimizer over a set is that point, projected onto the set.
    """

    value: Callable[[PyTree], Array]
    prox: Callable[[PyTree, ArrayLike], PyTree]
    splits: Callable[[Domain], bool]

    def __call__(self, point: PyTree, step: ArrayLike) -> PyTree:
        """The proximal map."""
        return self.prox(point, step)


def ridge(weight: ArrayLike, center: PyTree | None = None) -> Term:
    """h(w) = (weight/2)·‖w - center‖². Splits over every domain.

    The guarantee of ``transforms.ac_sa`` has no use for the strong convexity of h. Where it is to count,
    add the ridge's gradient to f instead.

    Args:
        weight: nonnegative, finite; may be traced.
        center: structure and shapes of the parameters; the origin if None. May be traced.
    """
    require_given(require_tree, center=center)
    require_nonnegative("weight", weight)

    def offsets(point: PyTree) -> PyTree:
        return point if center is None else jax.tree.map(jnp.subtract, point, center)

    def value(point: PyTree) -> Array:
        squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(offsets(point))]
        return jnp.asarray(0.5 * weight * sum(squares))

    def prox(point: PyTree, step: ArrayLike) -> PyTree:
        pull = step * weight / (1 + step * weight)
        return jax.tree.map(
            lambda z, arrow: (z - pull * arrow).astype(jnp.result_type(z)), point, offsets(point)
        )

    return Term(value, prox, lambda domain: True)


def l1(weight: ArrayLike) -> Term:
    """h(w) = weight·‖w‖₁. Splits over the whole space, boxes, and ℓ2 and ℓ1 balls around the origin.

    Args:
        weight: nonnegative, finite; may be traced.
    """
    require_nonnegative("weight", weight)

    def value(point: PyTree) -> Array:
        return jnp.asarray(weight * sum(jnp.sum(jnp.abs(x)) for x in jax.tree.leaves(point)))

    def threshold(leaf: Any, by: Any) -> Array:
        # As a difference, so that NaN stays NaN and a point within the threshold becomes zero exactly.
        return (leaf - jnp.clip(leaf, -by, by)).astype(jnp.result_type(leaf))

    def prox(point: PyTree, step: ArrayLike) -> PyTree:
        return jax.tree.map(lambda leaf: threshold(leaf, step * weight), point)

    return Term(value, prox, lambda domain: domain.thresholds)
