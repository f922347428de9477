"""User gradients of a linear model in scaled coordinates, and what is needed to choose the scales.

What it computes: for positive scales a, the sums over users of

- r_u / ρ clipped to 1, where v_u = a⊙g_u is user u's gradient in the coordinates w/a, and r_u is v_u without
  its component along a unit vector q (or v_u itself);
- that component, ⟨q, v_u⟩, clipped to its bound: one number, so that what most of a user's items have in
  common takes no room in the clip of the rest;
- the indicator of ‖r_u‖ ≤ ρ, or a fraction of ρ, less one half, from which a radius can be adapted;

and, beforehand, Σ_u s_u with s_u the mean of x_j² over user u's items.

Source: own. Clipping in scaled coordinates is what a Gaussian of unequal variances needs: noise of standard
deviation σ·a_j on coordinate j hides a change of a⊙g of norm one. The indicator is that of Andrew, Thakkar,
McMahan and Ramaswamy 2021 (adaptive clipping).

With K outputs a user's gradient is a matrix ``[dim, K]``: all K numbers of row j are scaled by a_j, q is a
matrix of Frobenius norm one, and norms and products are those of the dim·K numbers.

Formal guarantee: every sum is over users, of terms that depend on one user's items, the point, the scales
and the radius. The three terms of ``scaled_sums`` together have ℓ2 norm at most √(1 + b² + c²/4), b and c the
weights of component and indicator: the first has norm at most one by ``geometry.norms``, the second is
clipped to b, the third is ±c/2. A user whose gradient is not finite, in the coordinates or over the radius,
contributes r = 0 and no component. The terms of ``second_moments`` have nonnegative entries and norm at most
``second_moment_bound``: s_u is a mean of vectors x², whose entries sum to ‖x‖² ≤ B² and, in one-hot rows of
k entries, are at most B²/k.

Cost: as ``linear``, and two more passes over the gradients of a chunk.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax import _compensated, _sharding
from dpsco_jax._checks import (
    require,
    require_callable,
    require_count,
    require_each,
    require_given,
    require_instance,
    require_nonnegative,
    require_number,
    require_positive,
)
from dpsco_jax.geometry import norms
from dpsco_jax.oracles import Estimate, Oracle, _linear_rows
from dpsco_jax.oracles._summed import summed
from dpsco_jax.oracles.chunks import most_rows, split_sum_over_users, sum_over_users
from dpsco_jax.oracles.gradients import Sampler
from dpsco_jax.oracles.linear import HEAD_ROOM, LinearData
from dpsco_jax.problems.objective import LinearModel

_TINY = float(jnp.finfo(jnp.float32).tiny)


class TunedPoint(NamedTuple):
    """A point and the radius that gradients are clipped to there.

    Attributes:
        point: ``[dim]``, or ``[dim, K]``.
        log_radius: natural logarithm of ρ, in scaled coordinates.
    """

    point: Float[Array, "dim *outputs"]
    log_radius: Float[Array, ""]


class Component(NamedTuple):
    """The direction that is clipped by itself.

    Attributes:
        direction: q, of norm one and of the shape of the point; zeros for none.
        bound: of |⟨q, v_u⟩|.
        weight: b, what the component is scaled to before noise; 0 leaves it out.
    """

    direction: Float[Array, "dim *outputs"]
    bound: ArrayLike
    weight: ArrayLike


class ScaledSums(NamedTuple):
    """Sums over users, see the file's docstring.

    Attributes:
        rest: Σ_u clip(r_u/ρ), of the shape of the point, orthogonal to q.
        component: b·Σ_u clip(⟨q, v_u⟩/bound).
        inside: c·Σ_u (1[‖r_u‖ ≤ ρ] - ½).
    """

    rest: Float[Array, "dim *outputs"]
    component: Float[Array, ""]
    inside: Float[Array, ""]


def joint_bound(component_weight: ArrayLike, inside_weight: ArrayLike) -> ArrayLike:
    """The norm of one user's terms of ``scaled_sums``: √(1 + b² + c²/4)."""
    require_each(
        require_nonnegative, component_weight=component_weight, inside_weight=inside_weight
    )
    return (1.0 + component_weight**2 + inside_weight**2 / 4.0) ** 0.5  # type: ignore[operator]


def scaled_sums(
    model: LinearModel,
    scales: Float[Array, "dim"],
    component: Component,
    inside_weight: ArrayLike,
    sampler: Sampler | None = None,
    chunk_size: int = 64,
    inside_fraction: ArrayLike | None = None,
) -> Oracle:
    """The oracle that returns ``ScaledSums`` at a ``TunedPoint``; its data are ``LinearData``.

    Args:
        model: ``objective.linear_model``.
        scales: a, positive and finite, ``[dim]``, whatever K is; may be traced, as may all numbers.
        component: what is clipped by itself.
        inside_weight: c.
        sampler: draws the users of a step from a key; all users if ``None``.
        chunk_size: users whose gradients are held at once.
        inside_fraction: of ρ within which a user is counted as inside; all of it if ``None``.
    """
    require_instance("model", model, LinearModel)
    require_instance("component", component, Component)
    require_number("scales", scales)
    require_nonnegative("inside_weight", inside_weight)
    require_given(require_positive, inside_fraction=inside_fraction)
    require_given(require_callable, sampler=sampler)
    require_count("chunk_size", chunk_size)

    def oracle(key: Array, params: TunedPoint, data: LinearData) -> Estimate:
        sample = None if sampler is None else sampler(key)
        shape = params.point.shape
        dim = shape[0]
        found = component.direction.shape
        require(found == shape, "component.direction", found, f"of the shape of the point, {shape}")
        direction = jnp.ravel(component.direction)
        weight_of_row = jnp.expand_dims(scales, tuple(range(1, len(shape))))
        entry = _linear_rows.entry(model, data)
        radius = jnp.exp(params.log_radius)
        room = HEAD_ROOM * _compensated.room(most_rows(data, sample), chunk_size)

        def chunk_sum(rows: LinearData, counted: Array, position: Array) -> Any:
            del position
            relative, unit = _linear_rows.slopes(model, params.point, rows, counted)
            made = _linear_rows.row_sums(relative, rows, dim)
            # Without the barrier the sums are computed again in every pass over them.
            rest = jax.lax.optimization_barrier(made)[:, :dim] * weight_of_row[None]
            # A matrix is clipped as the vector of its numbers.
            rest = rest.reshape(len(rest), direction.size)
            along = jnp.matmul(rest, direction, precision=_linear_rows.FULL)
            rest = rest - along[:, None] * direction[None]
            size = entry * unit
            limit, ratio = room * radius / size, size / radius
            # What leaves the numbers on the way would be NaN in everybody's sum.
            held = (limit >= _TINY) & jnp.isfinite(ratio) & jnp.isfinite(along)
            held &= jnp.all(jnp.isfinite(rest), axis=1)
            rest = jnp.where(held[:, None], rest, 0.0)
            factor = jax.vmap(norms.clip_factor)(rest, limit)
            weights = jnp.where(held, ratio * factor, 0.0)
            total = _compensated.weighted(weights, rest)
            share = jnp.where(held, jnp.clip(size * along / component.bound, -1.0, 1.0), 0.0)
            nearer = factor
            if inside_fraction is not None:
                nearer = jax.vmap(norms.clip_factor)(rest, inside_fraction * limit)
            inside = jnp.where(held & (nearer >= 1.0), 0.5, -0.5)
            return (
                ScaledSums(
                    rest=jax.tree.map(lambda part: part.reshape(shape), total),
                    component=_compensated.over_rows(room * jnp.asarray(component.weight) * share),
                    inside=_compensated.over_rows(
                        jnp.asarray(inside_weight) * jnp.where(counted, inside, 0.0)
                    ),
                ),
                jnp.sum(jnp.where(counted, rows.num_items, 0), dtype=jnp.int32),
            )

        total, num_gradients = split_sum_over_users(chunk_sum, data, sample, chunk_size)
        bound = joint_bound(component.weight, inside_weight)
        return summed(total, num_gradients, bound, sample)

    return _sharding.automatic(oracle, "data")


def second_moment_bound(feature_bound: float, columns_per_row: int | None) -> float:
    """The ℓ2 norm that Σ_j w_j·x_j², a mean over one user's items, can have: B², or B²/√k if one-hot."""
    require_positive("feature_bound", feature_bound)
    require_given(require_count, columns_per_row=columns_per_row)
    return feature_bound**2 / (columns_per_row or 1) ** 0.5


def second_moments(
    model: LinearModel, dim: int, chunk_size: int = 64
) -> Callable[[LinearData], Float[Array, "dim"]]:
    """The function from ``LinearData`` to Σ_u (mean of x² over user u's items), ``[dim]``.

    Args:
        model: ``objective.linear_model``.
        dim: length of the rows.
        chunk_size: users whose moments are held at once.
    """
    require_instance("model", model, LinearModel)
    require_each(require_count, dim=dim, chunk_size=chunk_size)

    def evaluate(data: LinearData) -> Float[Array, "dim"]:
        sparse = _linear_rows.is_sparse(data)
        square = _linear_rows.entry(model, data) ** 2
        bound = second_moment_bound(
            model.feature_bound, data.features.shape[-1] if sparse else None
        )

        def chunk_sum(rows: LinearData, counted: Array, position: Array) -> _compensated.Split:
            del position
            if sparse:
                means = _linear_rows.row_sums(rows.weights, rows, dim)[:, :dim]
            else:
                means = jnp.einsum(
                    "um,umd->ud", rows.weights, rows.features**2, precision=_linear_rows.FULL
                )
            factor = jax.vmap(norms.clip_factor, (0, None))(means, room * bound / square)
            factor = jnp.where(counted, square * factor, 0.0)
            return _compensated.weighted(factor, means)

        room = _compensated.room(data.labels.shape[0], chunk_size, roundings=1)

        return sum_over_users(chunk_sum, data, None, chunk_size)

    return evaluate
