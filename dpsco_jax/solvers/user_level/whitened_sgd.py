"""Whitened DP-SGD for linear models of dense rows: no column's units, mean or correlation matter.

What it computes, each stage from the releases of those before it:

1. coordinates in which columns have mean zero, deviation one and, as far as it shows above the noise, no
   correlation (``_coordinates``);
2. the intercept alone, by noisy gradient descent on one number; the less of it can be seen through the
   noise, the nearer to its start it stays;
3. the radius within which a given share of the users' gradients lie, at the start; the share is larger where
   the intercept shows that a class is rare (``_first_intercept``);
4. a first, cheap phase of gradient descent that brings the point near;
5. the radius again, there: where the fit is good gradients are smaller;
6. a second phase whose iterates are averaged. In both phases gradients are clipped to a radius that follows
   the quantile, but never above the one that was found.

The lengths of steps (``Plan.step_size``) and the ridges balance noise against signal: the less of the
parameters can be seen through the noise, the nearer to the start they stay. So what is known beforehand, from
public data or another study, belongs into ``params``, the mean of a prior. Its scale is the plan's
``margin_scale``, or the distance of the point from the start of both phases where that is more: in these
coordinates it is about the deviation of margins, and it is known, for points are made of releases (empirical
Bayes). Where margins are large the link of two classes is flat, and steps are as much longer, up to eight
times.

With K outputs, such as the classes of ``losses.softmax``, params is a matrix W = T·V, ``[columns, K]``:
coordinates are of its rows, gradients are clipped in Frobenius norm, the intercept is K numbers, and time
constants are those of the curvature at margins of zero (``_linear_models``).

A step is v ← (I + η·ridges)⁻¹·(v - η·(gradient - ridge·centre)), projected onto the domain, and log ρ ← log ρ
- rate·(share inside - quantile). A ball around the origin is met by a multiplier μ, as a further ridge, at
its nearest point in these coordinates: such a descent ends at the minimizer over the ball. One that is
brought back to the nearest point in ℓ2 ends elsewhere on the border; this is done for sets that have no such
form.

How far the result may be off, by noise and by chance, a covariance says that two further releases make. With
H the mean Hessian of the clipped loss at the result, ρ²G the mean square of the users' clipped gradients, λ
the ridge (of the objective and against noise) and s²·I the covariance of the mean noise of the averaged
steps, all in these coordinates, it is

    (H + λ)⁻¹·(ρ²G/N + s²·I)·(H + λ)⁻¹,

carried back to the parameters. The first term of the middle is chance: N users were drawn from all the world.
The second is the noise of privacy. H and G are sums of positive semi-definite matrices
(``oracles.sandwich``), each released once, of whose noise as much is taken away as can be told. That
intervals cover is not proven: it rests on averaged steps that have forgotten their start, on a bias by
clipping and ridge that is small, and on matrices that are larger than their noise.

Source: own. Adaptive radius: Andrew, Thakkar, McMahan and Ramaswamy 2021; averaging: Polyak and Juditsky
1992; curvature at large margins: MacKay 1992; sandwich: Huber 1967, White 1980; multiplier of a ball: Moré
and Sorensen 1983.

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
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax import _checks, _counts, _sharding, privacy, transforms
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._counts import Count
from dpsco_jax.oracles import Estimate, linear, preconditioned, row_moments, sandwich
from dpsco_jax.oracles.preconditioned import Component, ScaledSums, TunedPoint
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, loop
from dpsco_jax.solvers.solution import Solution, finished
from dpsco_jax.solvers.user_level import _coordinates, _first_intercept, _linear_models
from dpsco_jax.solvers.user_level._coordinates import Coordinates
from dpsco_jax.solvers.user_level._linear_models import Bends, smooth_linear_model
from dpsco_jax.solvers.user_level._whitened_plan import (
    INSIDE_WEIGHT,
    PER_RADIUS,
    Plan,
    plan,
    require_sizes,
)

__all__ = ["Plan", "plan", "solve"]

_LARGEST_RATE = 0.1  # of log ρ, a step
_RADIUS_VARIANCE = 0.06  # of log ρ, about, by the noise of the share inside
_NEWTON_STEPS = 10
_FLATTEST = 8.0  # steps for far margins over those for margins of zero; by what was tried


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
        private too). ``released`` holds ``"mean_squares"``, ``[columns]``, those of the columns with noise of
        the deviation ``"mean_squares_stddev"``: of a column of zeros and ones, its share of ones, each user's
        rows counted by their mean. With a covariance planned it holds ``"covariance"``, ``[dim, dim]``, that
        of the params by noise and by the chance that drew the users, and ``"margin_variance"``, the mean over
        rows of the variance of ⟨params, x⟩; what they rest on stands above.

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
    slope = _linear_models.slope(model, objective)
    bends = _linear_models.bends(model, smoothness / model.feature_bound**2)

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
        common, quantile, bends = _first_intercept.informed(
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
        descend = _descent(plan, phase, quantile, objective, bends, coordinates, centre, opening)
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
    extra = {
        "mean_squares": coordinates.mean_squares,
        "mean_squares_stddev": coordinates.squares_stddev,
    }
    if plan.covariance_multiplier is not None:
        errors, loss = _covariance_of(
            keys[5], plan, objective, model, bends.largest, coordinates, rows,
            TunedPoint(average, end.params.log_radius), end.trace, _scale(plan, average, centre),
        )  # fmt: skip
        losses.append(loss)
        extra |= errors
    gradients = plan.user_gradients * prepared.labels.shape[1]
    realized = functools.reduce(_counts.add, counts)
    solution = finished(point, end.opt_state, gradients, realized, end.trace)
    covered = plan.accounted & jnp.all(positive_and_finite(end.trace, jnp.exp(opening)))
    covered &= jnp.all(jnp.isfinite(coordinates.to_params)) & jnp.all(
        jnp.isfinite(coordinates.from_params)
    )
    spent = privacy.compose(*losses)
    return solution._replace(privacy=privacy.unbounded_unless(covered, spent), released=extra)


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


def _descent(
    plan: Plan, phase: int, quantile: Any, objective: Objective, bends: Bends,
    coordinates: Coordinates, centre: jax.Array, opening: jax.Array,
) -> Any:  # fmt: skip
    """The function from released sums and the point to the move.

    The ridge pulls to ``centre``; ``opening`` is the log ρ that the phase begins with.
    """
    share_stddev = plan.phases[phase][1] * PER_RADIUS / plan.num_users / INSIDE_WEIGHT
    spare = 1.0 - quantile
    # The radius follows the share outside, as a multiple of the share that is to be outside.
    rate = jnp.minimum(_LARGEST_RATE, _RADIUS_VARIANCE * jnp.square(spare / share_stddev))
    stddev = plan.average_stddev()
    two_classes = plan.outputs is None and _first_intercept.of_classes(objective)

    # Steps are implicit in the ridges: in some direction T may be as large as columns are small.
    # By singular values of T: those of TᵀT lose what is small, and its sign, in float32.
    _, lengths, rotated = jnp.linalg.svd(coordinates.to_params)
    squares, directions = jnp.square(lengths), rotated.T
    # In units of the largest, so that no unit of columns leaves float32.
    units = squares / squares[0]

    def descend(sums: ScaledSums, now: TunedPoint) -> TunedPoint:
        radius = jnp.exp(now.log_radius)
        scale = _scale(plan, now.point, centre)
        known = _flatter_by_margins(bends, scale) if two_classes else bends
        longest = plan.step_size(phase, known, jnp.exp(opening), scale)
        # The ridge under which v is the most probable if a priori ⟨v, z⟩ ~ N(0, scale²·flatness).
        ridge = (stddev * radius / scale) ** 2 * plan.columns / bends.flatness
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


def _scale(plan: Plan, point: jax.Array, centre: jax.Array) -> jax.Array:
    """The typical margin of one output: the planned one, or that of a released point if it is larger."""
    length = jnp.linalg.norm(point - centre) / float(plan.outputs or 1) ** 0.5
    return jnp.maximum(plan.margin_scale, length)


def _flatter_by_margins(bends: Bends, scale: jax.Array) -> Bends:
    """The curvatures where margins are N(0, scale²): the mean one of the logistic link is smaller there.

    It is largest/√(1 + π·scale²/8), nearly (MacKay 1992).
    """
    flatter = jnp.minimum(jnp.sqrt(1.0 + np.pi / 8.0 * jnp.square(scale)), _FLATTEST)
    return bends._replace(mean=bends.mean / flatter)


def _multiplier(along: jax.Array, scales: jax.Array, bends: jax.Array, radius: Any) -> jax.Array:
    """μ ≥ 0 for which Σ bends·(along/(scales + μ·bends))² is at most the radius squared, the least one.

    Newton's method on one over the root of that sum, from below.
    """

    def nearer(_: Any, multiplier: jax.Array) -> jax.Array:
        whole = scales + multiplier * bends
        square = jnp.sum(bends * jnp.square(along / whole))
        slope = jnp.sum(jnp.square(bends * along / whole) / whole)
        size = jnp.sqrt(square)
        further = square / slope * (size - radius) / radius
        return jnp.where((size > radius) & (slope > 0.0), multiplier + further, multiplier)

    return jnp.asarray(jax.lax.fori_loop(0, _NEWTON_STEPS, nearer, jnp.zeros(())))


def _covariance_of(
    key: jax.Array, plan: Plan, objective: Objective, model: LinearModel, curvature: float,
    coordinates: Coordinates, rows: linear.LinearData, at: TunedPoint, radii: jax.Array, scale: Any,
) -> tuple[dict[str, jax.Array], privacy.PrivacyLoss]:  # fmt: skip
    """What ``solve`` returns as released, and what it cost."""
    to_params = coordinates.to_params
    variance = jnp.mean(jnp.square(radii)) * plan.average_stddev() ** 2
    ridge = variance * plan.dim / scale**2 * jnp.eye(plan.dim)
    ridge += objective.ridge * to_params.T @ to_params
    found, loss = _covariance(key, plan, model, curvature, rows, at, ridge, variance)
    # Rows have second moments of about the identity in these coordinates.
    made = {"covariance": to_params @ found @ to_params.T, "margin_variance": jnp.trace(found)}
    return made, loss


def _covariance(
    key: jax.Array, plan: Any, model: LinearModel, curvature: float, rows: linear.LinearData,
    at: TunedPoint, ridge: Float[Array, "dim dim"], noise_variance: Float[Array, ""],
) -> tuple[Float[Array, "dim dim"], privacy.PrivacyLoss]:  # fmt: skip
    """The covariance of the result in the coordinates of ``rows``, and what it costs.

    ``at`` is the result and the radius there, ``curvature`` a bound on the second derivative of the link.
    """
    dim, users = plan.dim, plan.num_users
    # A whitened row has ‖z‖² = dim on average, and a Gaussian one stays below this in 19 of 20 cases.
    bound = curvature * (dim + 2.0 * (2.0 * dim) ** 0.5)
    sums = sandwich.sandwich_sums(model, curvature, bound, plan.matrices_at_once)(at, rows)
    keys = jax.random.split(key, 2)

    multiplier = plan.covariance_multiplier
    first = _linear_models.released(keys[0], users, sums.hessian, bound, multiplier, True)
    second = _linear_models.released(keys[1], users, sums.gradients, 1.0, multiplier, True)
    hessian = _shrunk(*_released_matrix(first, dim), (0.003 * curvature, curvature))
    gradients = _shrunk(*_released_matrix(second, dim), (0.01 / dim, 1.0 / dim))
    middle = jnp.exp(2.0 * at.log_radius) * gradients / users + noise_variance * jnp.eye(dim)
    inverse = jnp.linalg.inv(hessian + ridge)
    return inverse @ middle @ inverse, privacy.compose(first.loss, second.loss)


def _released_matrix(found: _linear_models.Release, dim: int) -> tuple[Array, Any]:
    """The matrix, and the deviation of the noise on an entry off its diagonal."""
    # The triangle holds these entries times √2.
    return row_moments.from_triangle(found.mean, dim), found.stddev / 2.0**0.5


def _shrunk(
    noisy: Float[Array, "dim dim"], stddev: ArrayLike, mean_range: tuple[ArrayLike, ArrayLike]
) -> Float[Array, "dim dim"]:
    """A matrix with noise, moved towards a multiple of the identity as far as its spread is noise.

    The noise has N(0, s²) off the diagonal and N(0, 2s²) on it, so that its squared Frobenius norm is
    s²·dim·(dim + 1) on average: the share of it in the spread around the identity's multiple is taken away.
    Eigenvalues are at least a tenth of their mean, which is kept within the range.
    """
    dim = len(noisy)
    identity = jnp.eye(dim)
    mean = jnp.clip(jnp.trace(noisy) / dim, *mean_range)
    spread = noisy - mean * identity
    noise = jnp.square(stddev) * dim * (dim + 1)
    kept = jnp.maximum(0.0, 1.0 - noise / jnp.sum(jnp.square(spread)))
    values, vectors = jnp.linalg.eigh(mean * identity + kept * spread)
    return (vectors * jnp.maximum(values, 0.1 * mean)) @ vectors.T
