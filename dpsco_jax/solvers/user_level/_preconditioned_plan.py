"""The plan of preconditioned DP-SGD: sizes, budget, and noise.

What it computes: how a budget is divided between the feature moments and the steps.

Source: own; see ``preconditioned_sgd``.

Formal guarantee: the moments (one Gaussian release, multiplier s) and the T steps (multiplier σ each) are
together as private as one Gaussian release of multiplier (1/s² + T/σ²)^(-1/2), which is what is calibrated.
``Plan.loss`` and ``Plan.certificate`` are those of the multipliers that run, and infinite where a number of
the plan is out of its range.

Cost: one calibration of a Gaussian.
"""

import math
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._numerics import array_namespace
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _arguments, _costs, _plan_base, _planning, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.work import Work

COMPONENT_WEIGHT = 0.3  # 4 % more noise for the rest
_NOISE_AVERSION = 50.0  # of the default quantile


@pytree
class Plan(MadeFor):
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

    excess_bound = math.inf  # none is proven

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        return self.num_steps * self.num_users

    @property
    def event(self) -> events.DpEvent:
        """What is released."""
        steps = events.repeated(events.gaussian(float(self.noise_multiplier)), self.num_steps)
        if self.moments_multiplier is None:
            return steps
        return events.composed(events.gaussian(float(self.moments_multiplier)), steps)

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return NeighboringRelation.REPLACE_ONE

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

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where one is out of its range; may be traced."""
        loss = privacy.scale(privacy.gaussian(self.noise_multiplier), self.num_steps)
        if self.moments_multiplier is not None:
            loss = privacy.compose(loss, privacy.gaussian(self.moments_multiplier))
        return privacy.unbounded_unless(self.accounted, loss)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of a run of these numbers, by the tightest accountant; infinite as ``loss`` is.

        Raises:
            ValueError: ``delta`` is not in (0, 1), or a multiplier is none.
        """
        event = self.event if bool(self.accounted) else events.NonPrivateDpEvent()
        return privacy.certificate(
            event, float(self.delta), self.relation, ("the key stays secret",)
        )

    def ledger_epsilon(self) -> float:
        """ε of the run by its Rényi curve."""
        return float(privacy.epsilon(self.loss(), float(self.delta)))

    def __str__(self) -> str:
        remarks = [("ledger_epsilon", f"{self.ledger_epsilon():.5g}")]
        return plans.describe("user-level preconditioned DP-SGD", self, remarks)


@_plan_base.remembers
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    columns_per_row: int | None = None,
    second_moments: Any = None,
    num_steps: int = 200,
    moments_share: float = 0.05,
    quantile: float | None = None,
    margin_scale: float = 0.5,
    smoothness: float | None = None,
    accountant: str = "pld",
    chunk_size: int = 64,
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
            1/(1 + 50·s), s the norm of the noise of all steps' average over the radius: where there is much
            noise a small radius pays, where there is little it only biases (a rule of thumb).
        margin_scale: typical size of ⟨w, x⟩ at a good w.
        smoothness: largest eigenvalue of the Hessian in scaled coordinates, where its diagonal is at most
            about one; if left out ``columns_per_row``, or for dense features ``dim``.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, or the objective is not a smooth linear model.
    """
    problem, budget = _arguments.require_request(problem, budget, least_users=1)
    num_users, dim = problem.num_users, problem.dim
    _checks.require_given(_checks.require_number, second_moments=second_moments)
    model, _ = smooth_linear_model(problem.objective)
    if columns_per_row is not None:
        columns_per_row = _checks.require_count("columns_per_row", columns_per_row)
    num_steps = _checks.require_count("num_steps", num_steps)
    chunk_size = _checks.require_count("chunk_size", chunk_size)
    share = _checks.require_real("moments_share", moments_share, 0, 1, closed=True)
    margin_scale = _checks.require_real("margin_scale", margin_scale, 0)
    if smoothness is None:
        smoothness = columns_per_row or dim
    smoothness = _checks.require_real("smoothness", smoothness, 0)
    _checks.require_choice("accountant", accountant, _planning.ACCOUNTANTS)

    if second_moments is None:
        second_moments = np.full(dim, model.feature_bound**2 / dim)
    moments = np.array(second_moments, np.float32)  # a copy: the plan's own
    if moments.shape != (dim,) or not (np.all(moments > 0) and np.all(np.isfinite(moments))):
        raise ValueError(
            f"second_moments must be positive and finite, of shape ({dim},), got {second_moments}"
        )
    # Gaussian releases compose to one: 1/σ² adds up.
    once = _planning.fixed_size(num_users, num_users, 1)
    whole = once.noise_multiplier(budget.epsilon, budget.delta, accountant)
    if quantile is None:
        quantile = 1.0 / (1.0 + _NOISE_AVERSION * 2.0 * math.sqrt(dim) * whole / num_users)
    quantile = _checks.require_real("quantile", quantile, 0, 1)
    moments_multiplier = _planning.float32_above(whole / math.sqrt(share)) if share else None
    noise_multiplier = _planning.float32_above(whole * math.sqrt(num_steps / (1.0 - share)))
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
        component_weight=0.0 if columns_per_row is None else COMPONENT_WEIGHT,
        quantile=quantile,
        margin_scale=margin_scale,
        smoothness=smoothness,
        epsilon=budget.epsilon,
        delta=budget.delta,
    )


def smooth_linear_model(objective: Objective, matrix: bool = False) -> tuple[LinearModel, float]:
    """The linear model and the smoothness; ``ValueError`` if there is none of either.

    Args:
        objective: of the solver.
        matrix: whether the parameters may be a matrix.
    """
    model = objective.linear_model if matrix else objective.vector_model
    if model is None or objective.smoothness is None:
        of_vectors = "" if matrix else " whose parameters are a vector"
        raise ValueError(
            f"objective must be a smooth linear model{of_vectors}, got "
            f"linear_model = {objective.linear_model}, smoothness = {objective.smoothness}"
        )
    return model, objective.smoothness
