"""Whitened DP-SGD for linear models of dense rows: no column's units, mean or correlation matter.

What it computes, each stage from the releases of those before it:

1. coordinates in which columns have mean zero, deviation one and, as far as it shows above the noise, no
   correlation (``_coordinates``);
2. the intercept alone, by noisy gradient descent on one number; the less of it can be seen through the
   noise, the nearer to its start it stays;
3. the radius within which a given share of the users' gradients lie, at the start; the share is larger where
   the intercept shows that a class is rare (``_rare_class``);
4. a first, cheap phase of gradient descent that brings the point near;
5. the radius again, there: where the fit is good gradients are smaller;
6. a second phase whose iterates are averaged. In both phases gradients are clipped to a radius that follows
   the quantile, but never above the one that was found.

The lengths of steps (``Plan.step_size``) and the ridges (``_whitened_descent``) balance noise against signal:
the less of the parameters can be seen through the noise, the nearer to the start they stay. So what is known
beforehand, from public data or another study, belongs into ``params``, the mean of a prior whose scale is the
plan's ``margin_scale``.

With K outputs, such as the classes of ``losses.softmax``, params is a matrix W = T·V, ``[columns, K]``:
coordinates are of its rows, gradients are clipped in Frobenius norm, the intercept is K numbers, and time
constants are those of the curvature at margins of zero (``_typical_link``).

Source: own. Adaptive radius: Andrew, Thakkar, McMahan and Ramaswamy 2021; averaging: Polyak and Juditsky
1992.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, for everything that is released:
Gaussian releases of sums over users whose terms have a bounded norm for any data (``oracles.linear``,
``oracles.row_moments``, ``oracles.preconditioned``). Coordinates, radius, ridge and steps are functions of
these releases and of public numbers. The loss is that of the noise that ran; it is infinite if a number of
the plan is out of its range, or if coordinates or radii have left the numbers on the way. No bound on the
risk is proven: clipping may bias.

Cost: one pass over the data for each step of every stage and three more (four with a covariance), memory of a
copy of the features and of one chunk of user gradients.

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

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import _checks, _counts, _sharding, privacy, transforms
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._counts import Count
from dpsco_jax.oracles import Estimate, linear, preconditioned
from dpsco_jax.oracles.preconditioned import Component, TunedPoint
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, loop
from dpsco_jax.solvers.solution import Solution, finished
from dpsco_jax.solvers.user_level import (
    _coordinates,
    _covariance,
    _first_intercept,
    _rare_class,
    _typical_link,
    _whitened_descent,
)
from dpsco_jax.solvers.user_level._coordinates import Coordinates
from dpsco_jax.solvers.user_level._linear_model_plan import smooth_linear_model
from dpsco_jax.solvers.user_level._whitened_plan import INSIDE_WEIGHT, Plan, plan, require_sizes

__all__ = ["Plan", "plan", "solve"]


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users; dense features.
        params: the starting point, ``[dim]`` or ``[columns, outputs]``; projected onto the domain. Zeros, or
            public prior knowledge.

    Returns:
        The averaged point. ``unprivate["trace"]`` holds the radius of each step of the second phase (which is
        private too). With a covariance planned, ``released`` holds ``"covariance"``, ``[dim, dim]``, that of
        the params by noise and by the chance that drew the users, and ``"margin_variance"``, the mean over
        rows of the variance of ⟨params, x⟩; what they rest on is in ``_covariance``.

    Raises:
        ValueError: if the data are not what was planned.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    model, smoothness = smooth_linear_model(objective, matrix=True)
    require_sizes(plan, model)
    shape = model.params_shape(plan.columns)
    _checks.require(jnp.shape(params) == shape, "params", jnp.shape(params), f"of shape {shape}")
    prepared = linear.prepare(model, data, plan.columns)
    dense = not jnp.issubdtype(prepared.features.dtype, jnp.integer)
    _checks.require(
        dense, "data", "one-hot rows", "dense rows; preconditioned_sgd takes the others"
    )
    keys = jax.random.split(key, 5 if plan.covariance_multiplier is None else 6)
    slope = _typical_link.slope(model, objective)
    bends = _typical_link.bends(model, smoothness / model.feature_bound**2)

    first = objective.domain.project(params)
    coordinates, loss = _coordinates.released(keys[1], plan, model.feature_bound, prepared)
    losses, counts, quantile = [loss], [], plan.quantile
    if plan.intercept is not None:
        first, loss, count = _first_intercept.released(
            keys[0], plan, objective, slope, bends, prepared, first, coordinates.constant
        )
        first = objective.domain.project(first)
        losses.append(loss)
        counts.append(count)
        common, quantile, bends = _informed(
            plan, objective, bends, first[plan.intercept],
            objective.domain.project(params)[plan.intercept], prepared.labels.shape[1],
            _first_intercept.prior(plan, slope, bends).slope_stddev, coordinates.constant,
        )  # fmt: skip
        first = objective.domain.project(first.at[plan.intercept].set(common))
    rows = _coordinates.transformed(prepared, coordinates.to_params)
    guess = slope * jnp.sqrt(float(plan.columns))
    start = TunedPoint(coordinates.from_params @ first, jnp.log(guess))
    radius_keys = jax.random.split(keys[2])
    centre = start.point
    for phase, (length, multiplier) in enumerate(plan.phases):
        # Found anew in each phase: where the point is good gradients are smaller than they were at the start.
        opening, loss, count = _opening_radius(
            radius_keys[phase], plan, quantile, model, rows, start
        )
        start = start._replace(log_radius=opening)
        losses.append(loss)
        counts.append(count)
        noise_key, oracle_key = jax.random.split(keys[3 + phase])
        descend = _whitened_descent.descent(
            plan, phase, quantile, objective, bends, coordinates, centre, opening
        )
        aggregate = transforms.summed_contributions(
            preconditioned.joint_bound(0.0, INSIDE_WEIGHT), plan.num_users
        )
        chain = optax.chain(
            transforms.privatize(aggregate, noise_key, multiplier),
            optax.stateless(descend),
            transforms.average(),
        )
        end = loop.run(
            oracle_key, _sums(plan, model, INSIDE_WEIGHT), chain, start, rows, length,
            lambda now, state, estimate: jnp.exp(now.log_radius),
        )  # fmt: skip
        start = end.params
        losses.append(privacy.privacy_spent(end.opt_state))
        counts.append(end.num_gradients)
    average = transforms.average_eval_params(end.opt_state, end.params).point
    point = objective.domain.project(coordinates.to_params @ average)
    extra = None
    if plan.covariance_multiplier is not None:
        extra, loss = _covariance_of(
            keys[5], plan, objective, model, bends.largest, coordinates, rows,
            TunedPoint(average, end.params.log_radius), end.trace,
        )  # fmt: skip
        losses.append(loss)
    gradients = plan.user_gradients * prepared.labels.shape[1]
    realized = functools.reduce(_counts.add, counts)
    solution = finished(point, end.opt_state, gradients, realized, end.trace)
    covered = plan.accounted & jnp.all(positive_and_finite(end.trace, jnp.exp(opening)))
    covered &= jnp.all(jnp.isfinite(coordinates.to_params)) & jnp.all(
        jnp.isfinite(coordinates.from_params)
    )
    spent = privacy.compose(*losses)
    return solution._replace(privacy=privacy.unbounded_unless(covered, spent), released=extra)


def _informed(
    plan: Plan, objective: Objective, bends: _typical_link.Bends, found: jax.Array,
    start: jax.Array, items: int, stddev: Any, constant: Any,
) -> tuple[jax.Array, Any, _typical_link.Bends]:  # fmt: skip
    """The intercept, the quantile and the curvatures of the link by what is known of the classes.

    Args:
        plan: of the solver.
        objective: a linear model.
        bends: of the link, before.
        found: the intercept as the descent found it.
        start: what it began with.
        items: of a user.
        stddev: of the noise of a share.
        constant: whether the intercept's column may be the constant 1.
    """
    bounded = _rare_class.within_noise(objective, found, start, stddev)
    intercept = jnp.where(constant, bounded, found).astype(found.dtype)
    raised = _rare_class.quantile(
        plan.quantile, plan.least_class, objective, intercept, items, found, stddev
    )
    quantile = jnp.where(constant, raised, plan.quantile)
    flat = _rare_class.bends(bends, objective, intercept, stddev)
    # Where noise hides the radius a rare class is clipped, and longer descents go astray.
    longer = constant & (1.0 - quantile > plan.radius_multiplier / plan.num_users)
    return intercept, quantile, bends._replace(mean=jnp.where(longer, flat.mean, bends.mean))


def _opening_radius(
    key: jax.Array, plan: Plan, quantile: Any, model: LinearModel, data: linear.LinearData,
    start: TunedPoint,
) -> tuple[jax.Array, privacy.PrivacyLoss, Count]:  # fmt: skip
    """The log ρ at which this share of users is inside, by stochastic approximation."""
    noise_key, oracle_key = jax.random.split(key)
    sums = _sums(plan, model, 1.0)

    def inside(key: jax.Array, log_radius: jax.Array, rows: linear.LinearData) -> Estimate:
        found = sums(key, start._replace(log_radius=log_radius), rows)
        known = {name: found.extra_args[name].inside for name in ("remainder", "checksum")}
        known["clipped_to"] = 0.5
        return found._replace(gradient=found.gradient.inside, extra_args=known)

    steps = jnp.arange(plan.radius_steps)
    rates = 1.0 / (1.0 + steps / 4.0)
    spare = 1.0 - quantile
    chain = optax.chain(
        transforms.privatize(
            transforms.summed_contributions(0.5, plan.num_users), noise_key, plan.radius_multiplier
        ),
        optax.stateless(lambda share, now: jnp.clip((quantile - share - 0.5) / spare, -1.0, 1.0)),
        optax.scale_by_schedule(lambda t: rates[t]),
    )
    # Of ρ a fraction of which holds the share that is planned.
    end = loop.run(oracle_key, inside, chain, start.log_radius, data, plan.radius_steps)
    return end.params, privacy.privacy_spent(end.opt_state), end.num_gradients


def _sums(plan: Plan, model: LinearModel, inside_weight: float) -> Any:
    """The oracle of clipped sums in the coordinates that the data are in."""
    nothing = Component(jnp.zeros(model.params_shape(plan.columns)), 1.0, 0.0)
    return preconditioned.scaled_sums(
        model, jnp.ones(plan.columns), nothing, inside_weight,
        chunk_size=plan.chunk_size, inside_fraction=1.0 / plan.radius_multiple,
    )  # fmt: skip


def _covariance_of(
    key: jax.Array, plan: Plan, objective: Objective, model: LinearModel, curvature: float,
    coordinates: Coordinates, rows: linear.LinearData, at: TunedPoint, radii: jax.Array,
) -> tuple[dict[str, jax.Array], privacy.PrivacyLoss]:  # fmt: skip
    """What ``solve`` returns as released, and what it cost."""
    to_params = coordinates.to_params
    variance = jnp.mean(jnp.square(radii)) * plan.average_stddev() ** 2
    ridge = variance * plan.dim / plan.margin_scale**2 * jnp.eye(plan.dim)
    ridge += objective.ridge * to_params.T @ to_params
    found, loss = _covariance.released(key, plan, model, curvature, rows, at, ridge, variance)
    # Rows have second moments of about the identity in these coordinates.
    made = {"covariance": to_params @ found @ to_params.T, "margin_variance": jnp.trace(found)}
    return made, loss
