"""Sums of clipped gradients, or of clipped differences of gradients, for methods that reduce variance.

What it computes: for every user u the vector

    ∇f_u(x) / G                                      in a step that begins anew,
    (∇f_u(x) - ∇f_u(y)) / (M·‖x - y‖)                in any other,

clipped to norm one, and the sum over users. G bounds gradients and M is the smoothness constant, so that
honest losses are not clipped; whoever multiplies the sum by G, or by M·‖x - y‖, which is public, has a sum of
gradients or of differences. For x = y it is zero.

Source: thesis, equations (6.2) and (6.3), where noise on the second sum has to be in proportion to ‖x - y‖
(docs/corrections/nonconvex.md, C6-1): in these units it is the same in every step.

Formal guarantee: a user's vector is a function of the user's items and of the two points, of norm at most one
as it is summed, and zero where a gradient is not finite. Nothing is assumed of the loss.

Of losses that are smoothed, f_u averaged over balls, gradients and differences are unbiased estimates
(``oracles.smoothed``), whose terms may be clipped now and then.

Cost: two gradients of every user of a step, or for linear models two products with the features and one with
their transpose; of smoothed losses 4m values, or 2m + 1 gradients; memory of one chunk of user gradients.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from dpsco_jax.oracles import Oracle, _linear_rows, clipped_sums, gradients, linear, smoothed
from dpsco_jax.problems.objective import LinearModel, Objective

__all__ = ["Query", "Smoothing", "query", "sum_form"]


class Smoothing(NamedTuple):
    """How gradients of a loss that is averaged over balls are estimated.

    Attributes:
        order: ``"zeroth"``, from values, or ``"first"``, from gradients.
        radius: α of the balls.
        draws: m, directions of an estimate from values, or pairs of points of a difference of gradients; a
            gradient itself is taken at one point.
    """

    order: str
    radius: Any
    draws: int


class Query(NamedTuple):
    """Where a sum is asked for.

    Attributes:
        point: x.
        previous: y.
        fresh: whether it is a sum of gradients at x alone.
        unit: what a user's vector is divided by: G, or M·‖x - y‖; ``inf`` for x = y.
    """

    point: Any
    previous: Any
    fresh: Bool[Array, ""]
    unit: Float[Array, ""]


def query(
    point: Any,
    previous: Any,
    fresh: ArrayLike,
    gradient_clip: ArrayLike,
    difference_clip: ArrayLike,
    distance: ArrayLike,
) -> Query:
    """The query of a step.

    Args:
        point: x, a pytree of floats.
        previous: y, of the shapes of x.
        fresh: whether the step begins anew, from gradients at x.
        gradient_clip: G > 0.
        difference_clip: M > 0, of a difference over the distance of its points.
        distance: ‖x - y‖.
    """
    length = jnp.asarray(difference_clip * distance, float)
    unit = jnp.where(fresh, gradient_clip, jnp.where(length > 0, length, jnp.inf))
    return Query(point, previous, jnp.asarray(fresh, bool), unit)


def sum_form(
    objective: Objective, params: Any, chunk_size: int, smoothing: Smoothing | None = None
) -> tuple[Callable[[gradients.Sampler | None], Oracle], Callable[[Any], Any]]:
    """The oracle whose point is a ``Query``, for any sampler, and what makes data into its form.

    Args:
        objective: static.
        params: a point, for its shapes.
        chunk_size: users whose gradients are held at once.
        smoothing: how gradients of the smoothed loss are estimated; those of the loss itself if ``None``.

    Raises:
        ValueError: ``objective.clipped_sums`` asks for ghost sums, which are of one point.
    """
    asked = clipped_sums.require_way(objective, "ghost", ", as differences are of two points")
    model = objective.linear_model
    if smoothing is not None:
        estimate = _smoothed(objective, smoothing)
        return (
            lambda sampler: gradients.clipped_gradient_sum(estimate, 1.0, sampler, chunk_size),
            lambda users: users,
        )
    if asked == "auto" and model is not None:
        return (
            lambda sampler: linear.clipped_gradient_sum(
                model, 1.0, sampler, chunk_size, derivative=_difference
            ),
            lambda users: linear.prepare(model, users, len(params)),
        )
    gradient = gradients.user_gradient(objective)

    def difference(key: jax.Array, at: Query, items: Any, mask: Any) -> Any:
        here = gradient(key, at.point, items, mask)
        there = gradient(jax.random.clone(key), at.previous, items, mask)
        return jax.tree.map(lambda a, b: (a - jnp.where(at.fresh, 0.0, b)) / at.unit, here, there)

    return (
        lambda sampler: gradients.clipped_gradient_sum(difference, 1.0, sampler, chunk_size),
        lambda users: users,
    )


def _difference(model: LinearModel, at: Query, rows: Any, offsets: Any) -> Array:
    here = _linear_rows.at_point(model, at.point, rows, offsets)
    there = _linear_rows.at_point(model, at.previous, rows, offsets)
    return (here - jnp.where(at.fresh, 0.0, there)) / at.unit


def _smoothed(objective: Objective, smoothing: Smoothing) -> gradients.UserGradient:
    order, radius, draws = smoothing
    if order == "zeroth":
        by_values = smoothed.two_point_difference(objective, radius, draws)

        def difference(key: jax.Array, at: Query, items: Any, mask: Any) -> Any:
            asked = at.point, at.previous, jnp.where(at.fresh, 0.0, 1.0)
            return jax.tree.map(lambda g: g / at.unit, by_values(key, asked, items, mask))

        return difference
    one = smoothed.user_gradient(objective, radius)
    coupled = smoothed.gradient_difference(objective, radius, draws)

    def reflected(key: jax.Array, at: Query, items: Any, mask: Any) -> Any:
        first, second = jax.random.split(key)
        here = one(first, at.point, items, mask)
        apart = coupled(second, (at.point, at.previous), items, mask)
        return jax.tree.map(lambda a, b: jnp.where(at.fresh, a, b) / at.unit, here, apart)

    return reflected
