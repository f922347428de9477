"""Whitened DP-SGD for linear models of dense rows: no column's units, mean or correlation matter.

What it computes, each stage from the releases of those before it:

1. the intercept alone, by noisy gradient descent on one number;
2. coordinates in which columns have mean zero, deviation one and, as far as it shows above the noise, no
   correlation (``_coordinates``);
3. the radius within which a given share of the users' gradients lie, at the start;
4. a first, cheap phase of gradient descent that brings the point near, and a second one whose iterates are
   averaged, with gradients clipped to a radius that follows the quantile, but never above the opening one.

Steps are set by time constants: η = a/(T·curvature), at most one over the largest curvature: larger ones gain
nothing from an average, and walk farther under the noise. A ridge balances noise against signal.

Source: own. Adaptive radius: Andrew, Thakkar, McMahan and Ramaswamy 2021; averaging: Polyak and Juditsky
1992.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, for everything that is released:
Gaussian releases of sums over users whose terms have a bounded norm for any data (``oracles.linear``,
``oracles.row_moments``, ``oracles.preconditioned``). Coordinates, radius, ridge and steps are functions of
these releases and of public numbers. The loss is that of the noise that ran; it is infinite if a number of
the plan is out of its range, or if coordinates or radii have left the numbers on the way. No bound on the
risk is proven: clipping may bias.

Cost: one pass over the data for each step of every stage and three more, memory of a copy of the features and
of one chunk of user gradients.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import whitened_sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(1.0, 1e-5)
    >>> plan = whitened_sgd.plan(problem, budget, num_steps=20)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: whitened_sgd.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpsco_jax import _checks, privacy, transforms
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax.oracles import Estimate, linear, preconditioned
from dpsco_jax.oracles.preconditioned import Component, ScaledSums, TunedPoint
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, loop
from dpsco_jax.solvers.solution import Solution, finished
from dpsco_jax.solvers.user_level import _coordinates
from dpsco_jax.solvers.user_level._coordinates import Coordinates
from dpsco_jax.solvers.user_level._whitened_plan import Plan, plan, smooth_linear_model

__all__ = ["Plan", "plan", "solve"]

_INSIDE_WEIGHT = 0.2  # 1 % more noise for the quantile
_LARGEST_RATE = 0.2  # of the radius: a factor of 1.2 a step at most
_RADIUS_VARIANCE = 0.03  # of log ρ, over the variance of the released share
_CONSTANTS = (3.0, 20.0)  # time constants of the two phases


def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users; dense features.
        params: the starting point ``[dim]``; projected onto the domain.

    Returns:
        The averaged point. ``unprivate["trace"]`` holds the radius of each step of the second phase (which is
        private too).

    Raises:
        ValueError: if the data are not what was planned.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    model, smoothness = smooth_linear_model(objective)
    prepared = linear.prepare(model, data, plan.dim)
    dense = not jnp.issubdtype(prepared.features.dtype, jnp.integer)
    _checks.require(
        dense, "data", "one-hot rows", "dense rows; preconditioned_sgd takes the others"
    )
    keys = jax.random.split(key, 5)
    curvature = smoothness / model.feature_bound**2
    slope = _typical_slope(model, objective)

    first = objective.domain.project(params)
    losses, counts = [], []
    if plan.intercept is not None:
        first, loss, count = _intercept_first(
            keys[0], plan, model, slope, curvature, prepared, first
        )
        first = objective.domain.project(first)
        losses.append(loss)
        counts.append(count)
    coordinates, loss = _coordinates.released(keys[1], plan, model.feature_bound, prepared)
    losses.append(loss)
    rows = _coordinates.transformed(prepared, coordinates.to_params)
    guess = slope * jnp.sqrt(float(plan.dim))
    start = TunedPoint(coordinates.from_params @ first, jnp.log(guess))
    opening, loss, count = _opening_radius(keys[2], plan, model, rows, start)
    losses.append(loss)
    counts.append(count)

    centre = start.point
    start = start._replace(log_radius=opening)
    lengths = (plan.warm_steps, plan.num_steps)
    multipliers = (plan.warm_multiplier, plan.noise_multiplier)
    for phase in (0, 1):
        noise_key, oracle_key = jax.random.split(keys[3 + phase])
        descend = _descent(
            plan, objective, curvature, coordinates, centre, opening,
            multipliers[phase], lengths[phase], _CONSTANTS[phase],
        )  # fmt: skip
        aggregate = transforms.summed_contributions(
            preconditioned.joint_bound(0.0, _INSIDE_WEIGHT), plan.num_users
        )
        chain = optax.chain(
            transforms.privatize(aggregate, noise_key, multipliers[phase]),
            optax.stateless(descend),
            transforms.average(),
        )
        end = loop.run(
            oracle_key, _sums(plan, model, _INSIDE_WEIGHT), chain, start, rows, lengths[phase],
            lambda now, state, estimate: jnp.exp(now.log_radius),
        )  # fmt: skip
        start = end.params
        losses.append(privacy.privacy_spent(end.opt_state))
        counts.append(end.num_gradients)
    point = transforms.average_eval_params(end.opt_state, end.params).point
    point = objective.domain.project(coordinates.to_params @ point)
    gradients = plan.user_gradients * prepared.labels.shape[1]
    realized = sum(counts[1:], counts[0])
    solution = finished(point, end.opt_state, gradients, realized, end.trace)
    covered = plan.accounted & jnp.all(positive_and_finite(end.trace, jnp.exp(opening)))
    covered &= jnp.all(jnp.isfinite(coordinates.to_params)) & jnp.all(
        jnp.isfinite(coordinates.from_params)
    )
    spent = privacy.compose(*losses)
    return solution._replace(privacy=privacy.unbounded_unless(covered, spent))


def _typical_slope(model: LinearModel, objective: Objective) -> jax.Array:
    """The slope of the link that users may be expected to have; a public number, and no bound."""
    largest = objective.lipschitz / model.feature_bound
    known = objective.label_range
    if known is None or not np.isfinite([known.low, known.high]).all():
        return jnp.asarray(largest)
    ends = jnp.asarray([known.low, known.high], jnp.float32)
    return jnp.minimum(largest, 2.0 * jnp.max(jnp.abs(model.derivative(jnp.zeros(2), ends))))


def _intercept_first(
    key: jax.Array, plan: Plan, model: LinearModel, slope: jax.Array, curvature: float,
    data: linear.LinearData, params: jax.Array,
) -> tuple[jax.Array, privacy.PrivacyLoss, jax.Array]:  # fmt: skip
    """Descent along the intercept alone: the point, the cost, the number of gradients."""
    noise_key, oracle_key = jax.random.split(key)
    column = plan.intercept
    assert column is not None
    feature = data.features[..., column : column + 1]
    lengths = jnp.maximum(jnp.abs(feature[..., 0]), 1e-6 * model.feature_bound)
    chosen = data._replace(features=feature, row_norms=lengths / linear.HEAD_ROOM)
    inner = linear.clipped_gradient_sum(model, slope, None, plan.chunk_size)
    chain = optax.chain(
        transforms.privatize(
            transforms.summed_contributions(slope, plan.num_users), noise_key, plan.start_multiplier
        ),
        optax.scale(-1.0 / curvature),
        transforms.average(2.0),
    )
    start = params[column : column + 1]
    end = loop.run(oracle_key, inner, chain, start, chosen, plan.start_steps)
    found = transforms.average_eval_params(end.opt_state, end.params)
    return params.at[column].set(found[0]), privacy.privacy_spent(end.opt_state), end.num_gradients


def _opening_radius(
    key: jax.Array, plan: Plan, model: LinearModel, data: linear.LinearData, start: TunedPoint
) -> tuple[jax.Array, privacy.PrivacyLoss, jax.Array]:
    """The log ρ at which the planned share of users is inside, by stochastic approximation."""
    noise_key, oracle_key = jax.random.split(key)
    sums = _sums(plan, model, 1.0)

    def inside(key: jax.Array, log_radius: jax.Array, rows: linear.LinearData) -> Estimate:
        found = sums(key, start._replace(log_radius=log_radius), rows)
        return found._replace(gradient=found.gradient.inside)

    steps = jnp.arange(plan.radius_steps)
    rates = 2.0 / (1.0 + steps / 4.0)
    chain = optax.chain(
        transforms.privatize(
            transforms.summed_contributions(0.5, plan.num_users), noise_key, plan.radius_multiplier
        ),
        optax.stateless(lambda share, now: -(jnp.clip(share + 0.5, -0.5, 1.5) - plan.quantile)),
        optax.scale_by_schedule(lambda t: rates[t]),
    )
    end = loop.run(oracle_key, inside, chain, start.log_radius, data, plan.radius_steps)
    return end.params, privacy.privacy_spent(end.opt_state), end.num_gradients


def _sums(plan: Plan, model: LinearModel, inside_weight: float) -> Any:
    """The oracle of clipped sums in the coordinates that the data are in."""
    nothing = Component(jnp.zeros(plan.dim), 1.0, 0.0)
    return preconditioned.scaled_sums(
        model, jnp.ones(plan.dim), nothing, inside_weight, chunk_size=plan.chunk_size
    )


def _descent(
    plan: Plan, objective: Objective, curvature: float, coordinates: Coordinates,
    centre: jax.Array, opening: jax.Array, multiplier: Any, num_steps: int, constants: float,
) -> Any:  # fmt: skip
    """What a phase does with its released sums."""
    per_radius = 2.0 * preconditioned.joint_bound(0.0, _INSIDE_WEIGHT) / plan.num_users
    share_stddev = multiplier * per_radius / _INSIDE_WEIGHT
    rate = jnp.minimum(_LARGEST_RATE, _RADIUS_VARIANCE / share_stddev**2)
    # Of the average of the second phase, for a radius of one.
    stddev = plan.noise_multiplier * per_radius / plan.num_steps**0.5
    longest = jnp.minimum(constants / num_steps, 1.0 / coordinates.largest) / curvature

    def descend(sums: ScaledSums, now: TunedPoint) -> TunedPoint:
        radius = jnp.exp(now.log_radius)
        params = coordinates.to_params @ now.point
        # The ridge under which v is the most probable if a priori ⟨v, z⟩ ~ N(0, margin_scale²).
        ridge = (stddev * radius / plan.margin_scale) ** 2 * plan.dim
        gradient = radius * sums.rest + ridge * (now.point - centre)
        gradient += objective.ridge * (coordinates.to_params.T @ params)
        point = now.point - gradient * longest / (1.0 + longest * ridge)
        projected = objective.domain.project(coordinates.to_params @ point)
        moved = coordinates.from_params @ projected - now.point
        inside = jnp.clip(sums.inside / _INSIDE_WEIGHT + 0.5, 0.0, 1.0)
        log_radius = jnp.minimum(now.log_radius - rate * (inside - plan.quantile), opening)
        return TunedPoint(moved, log_radius - now.log_radius)

    return descend
