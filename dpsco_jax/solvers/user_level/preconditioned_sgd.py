"""Preconditioned DP-SGD for linear models: clip and add noise where all directions matter alike.

What it computes: the mean square of every feature is released once and denoised, and gives scales in which
the Hessian has a diagonal of about one; then full-batch gradient descent runs in those coordinates. In each
step user gradients are clipped to a radius that adapts to a quantile of their norms, the component that the
rows of a user have in common (their mean slope, for one-hot rows) is clipped by itself, a ridge that balances
noise against signal is added, and iterates are averaged. Nothing is to be tuned.

Source: own. Clipping in scaled coordinates: see ``oracles.preconditioned``; adaptive radius: Andrew, Thakkar,
McMahan and Ramaswamy 2021; averaging: Polyak and Juditsky 1992. For a Hessian H and gradients of covariance
about H, isotropic noise costs tr(H)·tr(H⁻¹), noise in these coordinates about dim².

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, for everything that is released: the
feature moments, and in each step one Gaussian release of three sums whose terms have a joint norm of at most
√(1 + b² + c²/4) for any data. Scales, radius, ridge and steps are functions of these releases. Nothing is
assumed of the loss but that it is a smooth linear model. The loss is that of the noise that ran; it is
infinite if a number of the plan is out of its range, or if scales or radii have left the numbers on the way.
No bound on the risk is proven: clipping may bias.

Cost: num_steps passes over the data, memory of one chunk of user gradients and of a second
copy of the data, prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import preconditioned_sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(1.0, 1e-5)
    >>> plan = preconditioned_sgd.plan(problem, budget, columns_per_row=None, num_steps=20)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: preconditioned_sgd.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpsco_jax import _checks, _sharding, privacy, transforms
from dpsco_jax._argument_kinds import BelowOne, Count, Inside, Positive
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._numerics import array_namespace
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms import denoising
from dpsco_jax.oracles import linear, preconditioned
from dpsco_jax.oracles.preconditioned import Component, ScaledSums, TunedPoint
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _costs, _plan_base, _planning, loop, plans
from dpsco_jax.solvers.solution import Solution, finished
from dpsco_jax.solvers.user_level import _linear_models
from dpsco_jax.solvers.user_level._linear_models import GaussianSums, smooth_linear_model
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "one_hot_moments", "plan", "solve"]

_COMPONENT_WEIGHT = 0.3  # 4 % more noise for the rest
_NOISE_AVERSION = 50.0  # of the default quantile
_COMPONENT_SHARE = 0.5  # of the largest possible component: where it is clipped
_INSIDE_WEIGHT = 0.2  # 1 % more noise for the quantile
_LARGEST_RATE = 0.2  # of the radius: a factor of 1.2 a step at most
_RADIUS_VARIANCE = (
    0.03  # of log ρ: the rate of its adaptation is at most this over that of the noise
)


@pytree
class Plan(GaussianSums):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: N.
        items_per_user: m, a public typical number of items of a user.
        dim: number of parameters.
        columns_per_row: entries of a one-hot row; ``None`` for dense features.
        num_steps: T.
        chunk_size: users whose gradients are held at once.
        second_moments: public guess of the mean squares of the features, ``[dim]``.
        moments_multiplier: σ over the ℓ2 sensitivity of the release that corrects the guess; ``None`` if
            the guess is taken as it is.
        noise_multiplier: σ over the ℓ2 sensitivity of the sums of a step.
        component_weight: b, the scale of the common component in the release.
        quantile: the share of users whose gradients are to be within the radius.
        margin_scale: typical size of ⟨w, x⟩ at a good w; sets the ridge against noise.
        smoothness: L in scaled coordinates, for the step sizes.
        epsilon: the budget that was planned for; what is spent follows from the multipliers.
        delta: δ of that budget; the certificate is for this δ.
    """

    num_users: int = static()
    items_per_user: int = static()
    dim: int = static()
    columns_per_row: int | None = static()
    num_steps: int = static()
    chunk_size: int = static()
    second_moments: Number
    moments_multiplier: Number
    noise_multiplier: Number
    component_weight: Number
    quantile: Number
    margin_scale: Number
    smoothness: Number
    epsilon: Number
    delta: Number

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        return self.num_steps * self.num_users

    @property
    def releases(self) -> tuple[tuple[Any, int], ...]:
        """Multiplier and number of each kind of release."""
        steps = (self.noise_multiplier, self.num_steps)
        moments = self.moments_multiplier
        return (steps,) if moments is None else ((moments, 1), steps)

    @property
    def accounted(self) -> Any:
        """Whether the guarantee covers a run with these numbers; a bool, may be traced."""
        good = positive_and_finite(self.noise_multiplier, self.margin_scale, self.smoothness)
        if self.moments_multiplier is not None:
            good = good & positive_and_finite(self.moments_multiplier)
        xp = array_namespace(self.second_moments)
        good = good & xp.all(positive_and_finite(self.second_moments), axis=-1)
        good = good & (self.quantile > 0) & (self.quantile < 1)
        return good & (self.component_weight >= 0) & (self.component_weight < math.inf)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs; of one-hot rows only their columns are read."""
        if self.columns_per_row is not None:
            item = item._replace(operations=4.0 * self.columns_per_row)
        step = _costs.clipped_sum(self.num_users, item) + _costs.release(item.dim)
        step += _costs.method(item.dim)
        once = _costs.prepared(self.num_users, item)
        if self.moments_multiplier is not None:
            once += _costs.denoised(item.dim)
        return step * self.num_steps + once

    def __str__(self) -> str:
        remarks = [("ledger_epsilon", f"{self.ledger_epsilon():.5g}")]
        return plans.describe("user-level preconditioned DP-SGD", self, remarks)


@_plan_base.remembers(least_users=1)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    columns_per_row: Count | None = None,
    second_moments: Any = None,
    num_steps: Count = 200,
    moments_share: BelowOne = 0.05,
    quantile: Inside | None = None,
    margin_scale: Positive = 0.5,
    smoothness: float | None = None,
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the objective, which must be a smooth linear model, N, the number of parameters, and m, a
            public typical number of items of a user, which sets the first radius only. The distance of the
            problem is not used.
        budget: (ε, δ) of the run, δ > 0.
        columns_per_row: entries of a one-hot row; ``None`` for dense features.
        second_moments: public guess of the mean squares of the features, positive, ``[dim]``; all equal if
            left out. For one-hot rows see ``one_hot_moments``: that some columns are rare is worth much.
        num_steps: T ≥ 1.
        moments_share: share of the budget (in 1/σ²) that corrects the guess, in [0, 1).
        quantile: share of users whose gradients are to be within the radius, in (0, 1). If left out
            1/(1 + 50·s), s the norm of the noise of all steps' average over the radius: a small radius pays
            where there is much noise, and only adds a bias where there is little (a rule of thumb).
        margin_scale: typical size of ⟨w, x⟩ at a good w.
        smoothness: largest eigenvalue of the Hessian in scaled coordinates, where its diagonal is at most
            about one; if left out ``columns_per_row``, or for dense features ``dim``.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, or the objective is not a smooth linear model.
    """
    num_users, dim = problem.num_users, problem.dim
    _checks.require_given(_checks.require_number, second_moments=second_moments)
    model, _ = smooth_linear_model(problem.objective)
    if smoothness is None:
        smoothness = columns_per_row or dim
    smoothness = _checks.require_real("smoothness", smoothness, 0)

    if second_moments is None:
        second_moments = np.full(dim, model.feature_bound**2 / dim)
    moments = np.array(second_moments, np.float32)  # a copy: the plan's own
    if moments.shape != (dim,) or not (np.all(moments > 0) and np.all(np.isfinite(moments))):
        raise ValueError(
            f"second_moments must be positive and finite, of shape ({dim},), got {second_moments}"
        )
    whole = _linear_models.whole_multiplier(problem, budget, accountant)
    if quantile is None:
        quantile = 1.0 / (1.0 + _NOISE_AVERSION * 2.0 * math.sqrt(dim) * whole / num_users)
    quantile = _checks.require_real("quantile", quantile, 0, 1)
    moments_multiplier = (
        _planning.float32_above(whole / math.sqrt(moments_share)) if moments_share else None
    )
    noise_multiplier = _planning.float32_above(whole * math.sqrt(num_steps / (1.0 - moments_share)))
    return Plan(
        num_users=num_users,
        items_per_user=problem.items_per_user,
        dim=dim,
        columns_per_row=columns_per_row,
        num_steps=num_steps,
        chunk_size=chunk_size,
        second_moments=moments,
        moments_multiplier=moments_multiplier,
        noise_multiplier=noise_multiplier,
        component_weight=0.0 if columns_per_row is None else _COMPONENT_WEIGHT,
        quantile=quantile,
        margin_scale=margin_scale,
        smoothness=smoothness,
        epsilon=budget.epsilon,
        delta=budget.delta,
    )


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users; features as planned.
        params: the starting point ``[dim]``; projected onto the domain.

    Returns:
        The averaged point. ``unprivate["trace"]`` holds the radius of each step (which is private too).

    Raises:
        ValueError: if the data are not what was planned.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    model, smoothness = smooth_linear_model(objective)
    prepared = linear.prepare(model, data, plan.dim)
    sparse = jnp.issubdtype(prepared.features.dtype, jnp.integer)
    found = prepared.features.shape[-1] if sparse else None
    if found != plan.columns_per_row:
        raise ValueError(f"data must have columns_per_row = {plan.columns_per_row}, got {found}")
    guessed = np.shape(plan.second_moments)
    _checks.require(
        guessed == (plan.dim,), "shape of plan.second_moments", guessed, f"({plan.dim},)"
    )
    moments_key, noise_key, oracle_key = jax.random.split(key, 3)

    moments, moments_loss = _feature_moments(moments_key, plan, model, prepared)
    curvature = smoothness / model.feature_bound**2
    scales = (curvature * moments + objective.ridge) ** -0.5
    # The trace of the data's part of the Hessian: how many directions the ridge leaves to be learned.
    directions = jnp.sum(curvature * moments * scales**2)
    component = _component(plan, objective, scales)
    bound = preconditioned.joint_bound(plan.component_weight, _INSIDE_WEIGHT)
    aggregate = transforms.summed_contributions(bound, plan.num_users)
    # Of the average of all steps, for a radius of one.
    stddev = plan.noise_multiplier * aggregate.sensitivity / math.sqrt(plan.num_steps)
    rate = _radius_rate(plan, aggregate.sensitivity)

    def descend(sums: ScaledSums, now: TunedPoint) -> TunedPoint:
        radius = jnp.exp(now.log_radius)
        across = sums.rest - component.direction * jnp.vdot(component.direction, sums.rest)
        along = jnp.zeros_like(across)
        if plan.columns_per_row is not None:
            along = component.direction * sums.component * component.bound / component.weight
        # The ridge under which w is the most probable if a priori w ~ N(0, margin_scale²/feature_bound²).
        ridge = (stddev * radius * model.feature_bound / plan.margin_scale) ** 2
        gradient = radius * across + along + scales * (objective.ridge + ridge) * now.point
        step = -scales * gradient / (plan.smoothness + ridge * scales**2)
        share = jnp.clip(sums.inside / _INSIDE_WEIGHT + 0.5, -0.5, 1.5)
        return TunedPoint(step, -rate * (share - plan.quantile))

    def stay(update: TunedPoint, now: TunedPoint) -> TunedPoint:
        point = objective.domain.project(now.point + update.point)
        return update._replace(point=point - now.point)

    chain = optax.chain(
        transforms.privatize(aggregate, noise_key, plan.noise_multiplier),
        optax.stateless(descend),
        optax.stateless(stay),
        transforms.average(),
    )
    slope = objective.lipschitz / model.feature_bound
    first_radius = 0.5 * slope * jnp.sqrt(directions / (curvature * plan.items_per_user))
    start = TunedPoint(objective.domain.project(params), jnp.log(first_radius))
    oracle = preconditioned.scaled_sums(
        model, scales, component, _INSIDE_WEIGHT, chunk_size=plan.chunk_size
    )
    end = loop.run(
        oracle_key,
        oracle,
        chain,
        start,
        prepared,
        plan.num_steps,
        lambda params, opt_state, estimate: jnp.exp(params.log_radius),
    )
    point = transforms.average_eval_params(end.opt_state, end.params).point
    gradients = plan.user_gradients * prepared.labels.shape[1]
    solution = finished(point, end.opt_state, gradients, end.num_gradients, end.trace)
    spent = privacy.compose(solution.privacy, moments_loss)
    # The bound of a user's terms is proven for coordinates and radii that are numbers.
    covered = plan.accounted & jnp.all(positive_and_finite(scales, component.bound))
    covered &= jnp.all(positive_and_finite(end.trace, first_radius))
    return solution._replace(privacy=privacy.unbounded_unless(covered, spent))


def one_hot_moments(feature_bound: float, field_sizes: Sequence[int]) -> np.ndarray:
    """Mean squares of one-hot features if the values of each field are equally frequent: a public guess.

    Args:
        feature_bound: of the linear model.
        field_sizes: number of columns of each field, in the order of the columns; a row has one of each.

    Returns:
        ``[dim]``, float64.
    """
    _checks.require_positive("feature_bound", feature_bound)
    _checks.require_shape("field_sizes", field_sizes)
    for size in field_sizes:
        _checks.require_count("field_sizes", size)
    square = feature_bound**2 / len(field_sizes)
    return np.concatenate([np.full(size, square / size) for size in field_sizes])


def _feature_moments(
    key: jax.Array, plan: Plan, model: Any, data: linear.LinearData
) -> tuple[jax.Array, privacy.PrivacyLoss]:
    """Estimates of the mean squares of the features, and what they cost."""
    guess = plan.second_moments
    if plan.moments_multiplier is None:
        return guess, privacy.zero()
    bound = preconditioned.second_moment_bound(model.feature_bound, plan.columns_per_row)
    total = preconditioned.second_moments(model, plan.dim, plan.chunk_size)(data)
    found = _linear_models.released(
        key, plan.num_users, total, bound, plan.moments_multiplier, nonnegative=True
    )
    largest = model.feature_bound**2 / (plan.columns_per_row or 1)
    # What is shared by all features is the law of the ratios: how far the guess is off.
    ratios = denoising.posterior_means(
        found.mean / guess, found.stddev / guess, largest / jnp.min(guess)
    )
    return ratios * guess, found.loss


def _component(plan: Plan, objective: Objective, scales: jax.Array) -> Component:
    """For one-hot rows the direction in which the gradients of all rows agree: ⟨q, v⟩ ∝ Σ_j g_j."""
    if plan.columns_per_row is None:
        return Component(jnp.zeros(plan.dim), 1.0, 0.0)
    length = jnp.sqrt(jnp.sum(scales**-2))
    # The entries of a row's gradient have one sign and sum to at most lipschitz·√k; a user's mean over
    # items is rarely near that.
    largest = objective.lipschitz * math.sqrt(plan.columns_per_row) / length
    return Component(1.0 / (scales * length), _COMPONENT_SHARE * largest, plan.component_weight)


def _radius_rate(plan: Plan, sensitivity: Any) -> jax.Array:
    """How fast log ρ follows the released share: slowly where that is mostly noise."""
    variance = (plan.noise_multiplier * sensitivity / _INSIDE_WEIGHT) ** 2
    return jnp.minimum(_LARGEST_RATE, _RADIUS_VARIANCE / variance)
