"""What whitened SGD does with its released sums: the step, its ridge, the radius that follows.

A step is v ← (I + η·ridges)⁻¹·(v - η·(gradient - ridge·centre)), projected onto the domain, and
log ρ ← log ρ - rate·(share inside - quantile), never above the radius that the phase began with.

A ball around the origin is met by a multiplier μ, as a further ridge, at its nearest point in these
coordinates: such a descent ends at the minimizer over the ball. One that is brought back to the nearest point
in ℓ2 ends elsewhere on the border; this is done for sets that have no such form.
"""

from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax.oracles.preconditioned import ScaledSums, TunedPoint
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers.user_level._coordinates import Coordinates
from dpsco_jax.solvers.user_level._typical_link import Bends
from dpsco_jax.solvers.user_level._whitened_plan import INSIDE_WEIGHT, PER_RADIUS, Plan

_LARGEST_RATE = 0.1  # of log ρ, a step
_RADIUS_VARIANCE = 0.06  # of log ρ, about, by the noise of the share inside
_NEWTON_STEPS = 10


def descent(
    plan: Plan, phase: int, quantile: Any, objective: Objective, bends: Bends,
    coordinates: Coordinates, centre: jax.Array, opening: jax.Array,
) -> Any:  # fmt: skip
    """The function from released sums and the point to the move.

    Args:
        plan: of the solver.
        phase: 0 or 1.
        quantile: the share of users that is to be inside the radius.
        objective: for its domain and ridge.
        bends: of the link.
        coordinates: of the rows.
        centre: the point to which the ridge pulls.
        opening: the log ρ that the phase begins with.
    """
    share_stddev = plan.phases[phase][1] * PER_RADIUS / plan.num_users / INSIDE_WEIGHT
    spare = 1.0 - quantile
    # The radius follows the share outside, as a multiple of the share that is to be outside.
    rate = jnp.minimum(_LARGEST_RATE, _RADIUS_VARIANCE * jnp.square(spare / share_stddev))
    stddev = plan.average_stddev()
    longest = plan.step_size(phase, bends, jnp.exp(opening))

    # Steps are implicit in the ridges: in some direction T may be as large as columns are small.
    # By singular values of T: those of TᵀT lose what is small, and its sign, in float32.
    _, lengths, rotated = jnp.linalg.svd(coordinates.to_params)
    squares, directions = jnp.square(lengths), rotated.T
    # In units of the largest, so that no unit of columns leaves float32.
    units = squares / squares[0]

    def descend(sums: ScaledSums, now: TunedPoint) -> TunedPoint:
        radius = jnp.exp(now.log_radius)
        # The ridge under which v is the most probable if a priori ⟨v, z⟩ ~ N(0, margin_scale²·flatness).
        ridge = (stddev * radius / plan.margin_scale) ** 2 * plan.columns / bends.flatness
        wanted = now.point - longest * (radius * sums.rest - ridge * centre)
        scales = 1.0 + longest * (ridge + objective.ridge * squares)
        scales = jnp.expand_dims(scales, tuple(range(1, wanted.ndim)))
        along = directions.T @ wanted
        if objective.domain.radius is not None:
            weights = jnp.expand_dims(units, tuple(range(1, wanted.ndim)))
            border = objective.domain.radius / lengths[0]
            scales += weights * _multiplier(along, scales, weights, border)
        point = directions @ (along / scales)
        projected = objective.domain.project(coordinates.to_params @ point)
        moved = coordinates.from_params @ projected - now.point
        inside = jnp.clip(sums.inside / INSIDE_WEIGHT + 0.5, 0.0, 1.0)
        log_radius = jnp.minimum(now.log_radius - rate * (inside - quantile) / spare, opening)
        return TunedPoint(moved, log_radius - now.log_radius)

    return descend


def _multiplier(along: jax.Array, scales: jax.Array, bends: jax.Array, radius: Any) -> jax.Array:
    """μ ≥ 0 for which Σ bends·(along/(scales + μ·bends))² is at most the radius squared, the least one.

    Newton's method on one over the root of that sum, from below (Moré and Sorensen 1983).
    """

    def nearer(_: Any, multiplier: jax.Array) -> jax.Array:
        whole = scales + multiplier * bends
        square = jnp.sum(bends * jnp.square(along / whole))
        slope = jnp.sum(jnp.square(bends * along / whole) / whole)
        size = jnp.sqrt(square)
        further = square / slope * (size - radius) / radius
        return jnp.where((size > radius) & (slope > 0.0), multiplier + further, multiplier)

    return jnp.asarray(jax.lax.fori_loop(0, _NEWTON_STEPS, nearer, jnp.zeros(())))
