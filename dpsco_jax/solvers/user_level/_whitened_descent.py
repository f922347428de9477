"""What whitened SGD does with its released sums: lengths of steps, the ridge, the radius that follows.

What it computes: v ← (I + η·ridges)⁻¹·(v - η·(gradient - ridge·centre)), projected onto the domain, and
log ρ ← log ρ - rate·(share inside - quantile), never above the radius that the phase began with.

Steps: a descent for a time t = η·T leaves e^(-h·t) of the way along a direction of second derivative h, and
the noise of its average is s/h there, or about s·t where h·t < 1. If what is to be found has the size τ along
each direction, then after t = τ/s all that is left to find lies where the noise is larger; so t is in the
first phase half of this, in the second all; τ is the planned margin over the root of the number of columns.
No time is shorter than some multiples of 1/curvature, and no step longer than one over the largest curvature.

A ball around the origin is met by a multiplier μ, as a further ridge, at its nearest point in these
coordinates: such a descent ends at the minimizer over the ball, and one that is brought back to the nearest
point in ℓ2 ends elsewhere on its border. The latter is done for sets that have no such form.

Source: own.

Formal guarantee: post-processing of released sums, coordinates, radii and points.

Cost: two products of a dim × dim matrix with the point.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpsco_jax.oracles import preconditioned
from dpsco_jax.oracles.preconditioned import ScaledSums, TunedPoint
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers.user_level._coordinates import Coordinates
from dpsco_jax.solvers.user_level._whitened_plan import Plan

INSIDE_WEIGHT = 0.2  # 1 % more noise for the quantile
# Sensitivity of the sums for a radius of one, REPLACE_ONE.
_PER_RADIUS = 2.0 * preconditioned.joint_bound(0.0, INSIDE_WEIGHT)
_LARGEST_RATE = 0.1  # of log ρ, a step
_RADIUS_VARIANCE = 0.06  # of log ρ, about, by the noise of the share inside
_SHARES = (0.5, 1.0)  # of the time τ/s, by phase
_LEAST_TIMES = (3.0, 20.0)  # over the curvature, by phase
_NEWTON_STEPS = 10
_INTERCEPT_MARGINS = 2.0  # typical size of an intercept over that of a margin


def multipliers(plan: Plan) -> tuple[Any, Any]:
    """Of the noise of the two phases."""
    return plan.warm_multiplier, plan.noise_multiplier


def average_stddev(plan: Plan, phase: int = 1) -> Any:
    """Of the mean noise of the steps of a phase, for a radius of one."""
    steps = (plan.warm_steps, plan.num_steps)[phase]
    return _PER_RADIUS * multipliers(plan)[phase] / plan.num_users / steps**0.5


def descent(
    plan: Plan, phase: int, quantile: Any, objective: Objective, curvature: float, flatness: Any,
    coordinates: Coordinates, centre: jax.Array, opening: jax.Array,
) -> Any:  # fmt: skip
    """The function from released sums and the point to the move.

    Args:
        plan: of the solver.
        phase: 0 or 1.
        quantile: the share of users that is to be inside the radius.
        objective: for its domain and ridge.
        curvature: the largest of the link.
        flatness: the largest curvature over the typical one.
        coordinates: of the rows.
        centre: where the ridge draws to.
        opening: the log ρ that it begins with.
    """
    share_stddev = multipliers(plan)[phase] * _PER_RADIUS / plan.num_users / INSIDE_WEIGHT
    spare = 1.0 - quantile
    # Of what the share outside lacks or has too much, over the share that is to be outside.
    rate = jnp.minimum(_LARGEST_RATE, _RADIUS_VARIANCE * jnp.square(spare / share_stddev))
    stddev = average_stddev(plan)
    longest = step(plan, phase, curvature, flatness, coordinates.largest, jnp.exp(opening))

    # Steps are implicit in the ridges: in some direction T may be as large as columns are small.
    # By singular values of T: those of TᵀT lose what is small, and its sign, in float32.
    _, lengths, rotated = jnp.linalg.svd(coordinates.to_params)
    bends, directions = jnp.square(lengths), rotated.T
    # In units of the largest, so that no unit of columns leaves float32.
    units = bends / bends[0]

    def descend(sums: ScaledSums, now: TunedPoint) -> TunedPoint:
        radius = jnp.exp(now.log_radius)
        # The ridge under which v is the most probable if a priori ⟨v, z⟩ ~ N(0, margin_scale²·flatness).
        ridge = (stddev * radius / plan.margin_scale) ** 2 * plan.columns / flatness
        wanted = now.point - longest * (radius * sums.rest - ridge * centre)
        scales = 1.0 + longest * (ridge + objective.ridge * bends)
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


class InterceptPrior(NamedTuple):
    """What is known of an intercept b before anything is released, beside the noise of its descent.

    A priori b ~ N(start, s²), s of twice the planned margin. If the gradient at the start is h·(start - b)
    with noise of variance t², then the descent ends at the mean of b given what was released where b is drawn
    to the start by λ = t²/(s²·h): noise does not carry it far beyond s, whatever the link is there.

    Attributes:
        variance: s².
        noise: (t/h)², what the estimate without λ has.
        curvature: h, the typical one.
    """

    variance: Any
    noise: Any
    curvature: Any

    @property
    def ridge(self) -> Any:
        """λ."""
        return self.curvature * self.noise / self.variance

    def weighed(self, moved: jax.Array) -> jax.Array:
        """The way from the start that the descent has found, longer where it is too long for the prior.

        s² is the prior's, or what the square of the estimate without λ has above four times its noise: an
        intercept that is seen beyond doubt is not drawn back.
        """
        free = moved * (1.0 + self.noise / self.variance)
        seen = jnp.mean(jnp.square(free)) - 4.0 * self.noise
        variance = jnp.maximum(self.variance, seen)
        return free * variance / (variance + self.noise)


def intercept_prior(plan: Plan, slope: Any, curvature: Any) -> InterceptPrior:
    """The prior of a run.

    Args:
        plan: of the solver.
        slope: to which slopes are clipped.
        curvature: h, the typical one.
    """
    sensitivity = 2.0 * slope / plan.num_users
    # Of an average of steps whose weights grow as k²: 9/5 of the variance of one with equal weights.
    stddev = plan.start_multiplier * sensitivity * (1.8 / plan.start_steps) ** 0.5
    variance = jnp.square(_INTERCEPT_MARGINS * plan.margin_scale)
    return InterceptPrior(variance, jnp.square(stddev / curvature), curvature)


def step(
    plan: Plan, phase: int, curvature: float, flatness: Any, largest: Any, radius: Any
) -> jax.Array:
    """η of a phase.

    Args:
        plan: of the solver.
        phase: 0 or 1.
        curvature: the largest of the link.
        flatness: the largest curvature over the typical one.
        largest: about the largest eigenvalue of the second moments of rows.
        radius: to which users' gradients are clipped.
    """
    noise = average_stddev(plan, phase) * radius
    time = _SHARES[phase] * plan.margin_scale / (noise * plan.columns**0.5)
    time = jnp.maximum(time, flatness * _LEAST_TIMES[phase] / curvature)
    steps = (plan.warm_steps, plan.num_steps)[phase]
    return jnp.minimum(time / steps, 1.0 / (largest * curvature))
