"""The plan of whitened SGD: sizes, shares of the budget, and noise.

What it computes: sizes, bounds and the noise of each release, from public numbers; how the budget is divided
is in ``_whitened_budget``.

Source: own; see ``whitened_sgd``.

Formal guarantee: all releases are Gaussian, with multipliers s_i: together they are as private as one of
multiplier (Σ 1/s_i²)^(-1/2), which is what is calibrated. ``Plan.loss`` and ``Plan.certificate`` are those of
the multipliers that run, and infinite where a number of the plan is out of its range.

Cost: one calibration of a Gaussian.
"""

import math
from typing import Any

from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _arguments, _costs, _plan_base, _planning, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.user_level import _typical_link, _whitened_budget, _whitened_sizes
from dpsco_jax.solvers.user_level._preconditioned_plan import smooth_linear_model
from dpsco_jax.solvers.work import Work

_WARM_STEPS = 0.3  # of all steps
_NOISE_AVERSION = 12.0  # of the default quantile
_HIDDEN_BY = 1.5  # what hides a class: noise of its radius, over the slopes that it balances
# With a covariance, which knows nothing of a bias by clipping: a radius that leaves hardly anybody outside,
# found from a quantile that noise cannot hide.
_LARGEST_QUANTILE = 0.9
_RADIUS_MULTIPLE = 1.6


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: N.
        dim: number of parameters.
        outputs: columns of the matrix of parameters, such as classes; ``None`` if it is a vector.
        intercept: which column is the constant 1; ``None`` if none is.
        start_steps: steps on the intercept alone; 0 without one.
        radius_steps: steps that look for the radius, before each phase.
        warm_steps: steps of the first phase, which is not averaged.
        num_steps: steps of the second phase.
        chunk_size: users whose gradients are held at once.
        squares_bound: to which the vector of a user's mean squares is clipped.
        start_multiplier: σ over the ℓ2 sensitivity of a step on the intercept.
        means_multiplier: of the means of the columns; not used without an intercept.
        squares_multiplier: of their mean squares.
        matrix_multiplier: of each of two matrices of second moments; ``None`` where they would show nothing.
        check_multiplier: of the mean squares after them; ``None`` without them.
        radius_multiplier: of a step that looks for the radius.
        warm_multiplier: of a step of the first phase.
        noise_multiplier: of a step of the second phase.
        covariance_multiplier: of each of the two matrices that a covariance is made of; ``None`` without one.
        quantile: the share of users whose gradients are within the radius found, if no class is rare.
        least_class: a rare class of a share p raises the quantile if p·(1 - p) is above this; 1 for never.
        radius_multiple: of the radius found, to which gradients are clipped.
        margin_scale: typical size of ⟨w, x⟩ at a good w; sets the ridge against noise.
        epsilon: the budget that was planned for; what is spent follows from the multipliers.
        delta: δ of that budget; the certificate is for this δ.
    """

    num_users: int = static()
    dim: int = static()
    outputs: int | None = static()
    intercept: int | None = static(least=0)
    start_steps: int = static(least=0)
    radius_steps: int = static()
    warm_steps: int = static()
    num_steps: int = static()
    chunk_size: int = static()
    squares_bound: Number
    start_multiplier: Number | None
    means_multiplier: Number | None
    squares_multiplier: Number
    matrix_multiplier: Number | None
    check_multiplier: Number | None
    radius_multiplier: Number
    warm_multiplier: Number
    noise_multiplier: Number
    covariance_multiplier: Number | None
    quantile: Number
    least_class: Number
    radius_multiple: Number
    margin_scale: Number
    epsilon: Number
    delta: Number

    excess_bound = math.inf  # none is proven

    @property
    def columns(self) -> int:
        """Numbers of a row of the data: parameters of one output."""
        return self.dim // (self.outputs or 1)

    @property
    def matrices_at_once(self) -> int:
        """Users whose matrices of second moments are held at once."""
        return min(self.chunk_size, _whitened_sizes.SMALL_CHUNK)

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        steps = self.start_steps + 2 * self.radius_steps + self.warm_steps + self.num_steps
        return steps * self.num_users

    @property
    def releases(self) -> tuple[tuple[Any, int], ...]:
        """Multiplier and number of each kind of release."""
        found = [(self.squares_multiplier, 1), (self.radius_multiplier, 2 * self.radius_steps)]
        if self.intercept is not None:
            found += [(self.start_multiplier, self.start_steps), (self.means_multiplier, 1)]
        if self.matrix_multiplier is not None:
            found += [(self.matrix_multiplier, 2), (self.check_multiplier, 1)]
        if self.covariance_multiplier is not None:
            found.append((self.covariance_multiplier, 2))
        found += [(self.warm_multiplier, self.warm_steps), (self.noise_multiplier, self.num_steps)]
        return tuple((multiplier, count) for multiplier, count in found if count)

    @property
    def event(self) -> events.DpEvent:
        """What is released."""
        return events.composed(
            *(events.repeated(events.gaussian(float(s)), count) for s, count in self.releases)
        )

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return NeighboringRelation.REPLACE_ONE

    @property
    def accounted(self) -> Any:
        """Whether the guarantee covers a run with these numbers; a bool, may be traced."""
        good = positive_and_finite(self.margin_scale, self.radius_multiple)
        # Beyond these noise for squares is lost in float32.
        good &= (self.squares_bound > 0.9e-18) & (self.squares_bound < 1.1e18)
        good = good & positive_and_finite(*(multiplier for multiplier, _ in self.releases))
        return good & (self.quantile > 0) & (self.quantile < 1)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs."""
        step = _costs.clipped_sum(self.num_users, item) + _costs.release(item.dim)
        step += _costs.method(item.dim)
        steps = self.user_gradients / self.num_users
        matrices = 2 * (
            (self.matrix_multiplier is not None) + (self.covariance_multiplier is not None)
        )
        matrix = _costs.moments(self.num_users, item.slots, self.columns)
        # Coordinates are found, and rows are written in them, before each phase.
        row = item._replace(dim=self.columns)
        changed = _costs.coordinates(self.num_users * item.slots, self.columns)
        once = _costs.prepared(self.num_users, row) + changed
        return step * steps + matrix * matrices + once

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where one is out of its range; may be traced.

        Raises:
            ValueError: a multiplier is known not to be positive, or is none where one is needed.
        """
        losses = [privacy.scale(privacy.gaussian(s), count) for s, count in self.releases]
        return privacy.unbounded_unless(self.accounted, privacy.compose(*losses))

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
        return plans.describe("user-level whitened SGD", self, remarks)


@_plan_base.remembers
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    intercept: int | None = None,
    entry_bound: float | None = None,
    num_steps: int = 300,
    start_steps: int = 60,
    radius_steps: int = 30,
    matrix: bool | None = None,
    covariance: bool = False,
    quantile: float | None = None,
    margin_scale: float | None = None,
    accountant: str = "pld",
    chunk_size: int | None = None,
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the objective, which must be a smooth linear model, N, and the number of parameters: of a
            matrix all of them. The distance of the problem is not used.
        budget: (ε, δ) of the run, δ > 0.
        intercept: which column is the constant 1, as declared, counted from 0; ``None`` if none is. With it
            columns are centred, and it is fitted first, alone.
        entry_bound: no entry of a row is larger, as 1 for rows of ``tables.from_frame``; the feature bound if
            left out. Larger entries are not forbidden: where they matter they are clipped.
        num_steps: of both phases together, at least 2; three in ten are the first phase's.
        start_steps: steps on the intercept alone; without effect where there is none.
        radius_steps: steps that look for the radius, before each phase.
        matrix: whether second moments are released. If left out they are where their largest possible
            eigenvalue is above the noise, and users have fewer than some thousands of items.
        covariance: whether a covariance of the result is released too, for 6 % of the budget. Of a matrix of
            parameters there is none: it would have (dim·(dim + 1)/2) numbers, all under noise.
        quantile: share of users whose gradients are within the opening radius, in (0, 1). If left out
            1/(1 + 12·s), s the norm of the noise of all steps' average over the radius: where there is much
            noise a small radius pays, where there is little it only biases (a rule of thumb); and
            with an intercept and a rare class that noise does not hide, the midst of that class, if that is
            more (``_rare_class``). Soft labels are no classes: give a quantile with them.
        margin_scale: typical size of ⟨w - start, x⟩ at a good w: the scale of a prior around the start, to
            which what noise hides is drawn. Smaller where the start is known to be near. If left out half
            of the largest margin that a label asks for (with the squared loss the largest label), or 0.5.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once. If left out all where they have at most 16 million
            numbers, which is fastest, and 64 otherwise. Some three copies are held (200 MB), for
            each of the runs that are mapped at once: give a number where that is too much.

    Raises:
        ValueError: an argument is out of range, or the objective is not a smooth linear model.
    """
    problem, budget = _arguments.require_request(problem, budget, least_users=1)
    model, _ = smooth_linear_model(problem.objective, matrix=True)
    num_users, dim, columns = (
        problem.num_users,
        problem.dim,
        _whitened_sizes.columns_of(model, problem.dim),
    )
    if intercept is not None:
        intercept = _checks.require_integer("intercept", intercept, 0, columns - 1)
    entry_bound = model.feature_bound if entry_bound is None else entry_bound
    entry_bound = _checks.require_real("entry_bound", entry_bound, 0)
    squares_bound = entry_bound * model.feature_bound
    most = "such that its product with the feature bound is in [1e-18, 1e18], where float32 can square it"
    _checks.require(1e-18 <= squares_bound <= 1e18, "entry_bound", entry_bound, most)
    num_steps = _checks.require_integer("num_steps", num_steps, 2)
    start_steps = _checks.require_count("start_steps", start_steps)
    radius_steps = _checks.require_count("radius_steps", radius_steps)
    chunk_size = _whitened_sizes.chunk(chunk_size, num_users, dim)
    if margin_scale is None:
        margin_scale = _typical_link.margin_scale(model, problem.objective)
    margin_scale = _checks.require_real("margin_scale", margin_scale, 0)
    _checks.require_choice("accountant", accountant, _planning.ACCOUNTANTS)

    once = _planning.fixed_size(num_users, num_users, 1)
    whole = once.noise_multiplier(budget.epsilon, budget.delta, accountant)
    # The norm of the noise of all steps' average, over the radius.
    noise, least_class = 2.0 * math.sqrt(dim) * whole / num_users, 1.0
    if quantile is None:
        least_class = noise * math.sqrt(columns) / _HIDDEN_BY
        quantile = 1.0 / (1.0 + _NOISE_AVERSION * noise)
        quantile = min(quantile, _LARGEST_QUANTILE) if covariance else quantile
    quantile = _checks.require_real("quantile", quantile, 0, 1)
    matrix = _whitened_budget.shows(problem, columns, whole, matrix)
    _checks.require_flag("covariance", covariance)
    possible = not covariance or model.outputs is None
    _checks.require(possible, "covariance", covariance, f"False {_whitened_sizes.NO_COVARIANCE}")
    warm_steps = max(1, round(_WARM_STEPS * num_steps))
    counts = {"start": start_steps, "radius": 2 * radius_steps}
    counts |= {"warm": warm_steps, "noise": num_steps - warm_steps}
    made = _whitened_budget.multipliers(
        whole, counts, intercept=intercept is not None, matrix=matrix, covariance=covariance
    )
    return Plan(
        num_users=num_users,
        dim=dim,
        outputs=model.outputs,
        intercept=intercept,
        start_steps=0 if intercept is None else start_steps,
        radius_steps=radius_steps,
        warm_steps=warm_steps,
        num_steps=num_steps - warm_steps,
        chunk_size=chunk_size,
        squares_bound=squares_bound,
        start_multiplier=made["start"],
        means_multiplier=made["means"],
        squares_multiplier=made["squares"],
        matrix_multiplier=made["matrix"],
        check_multiplier=made["check"],
        radius_multiplier=made["radius"],
        warm_multiplier=made["warm"],
        noise_multiplier=made["noise"],
        covariance_multiplier=made["covariance"],
        quantile=quantile,
        least_class=least_class,
        radius_multiple=_RADIUS_MULTIPLE if covariance else 1.0,
        margin_scale=margin_scale,
        epsilon=budget.epsilon,
        delta=budget.delta,
    )
