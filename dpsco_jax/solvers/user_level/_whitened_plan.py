"""The plan of whitened SGD: sizes, how the budget is divided among the releases, and the noise of each."""

import math
from typing import Annotated, Any

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Count, Flag, Inside, Positive, integer
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._numerics import array_namespace
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import preconditioned, row_moments
from dpsco_jax.problems.objective import LinearModel
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _costs, _plan_base, _planning, plans
from dpsco_jax.solvers.user_level import _linear_models
from dpsco_jax.solvers.user_level._linear_models import GaussianSums, smooth_linear_model
from dpsco_jax.solvers.work import Work

INSIDE_WEIGHT = 0.2  # 1 % more noise for the quantile
PER_RADIUS = 2.0 * preconditioned.joint_bound(0.0, INSIDE_WEIGHT)
"""Sensitivity of the sums of a step for a radius of one, REPLACE_ONE."""

_TIMES = (0.5, 1.0)  # of the time τ/s, by phase
_LEAST_TIMES = (3.0, 20.0)  # over the curvature, by phase
_WARM_STEPS = 0.3  # of all steps
_NOISE_AVERSION = 12.0  # of the default quantile
_HIDDEN_BY = 1.5  # what hides a class: noise of its radius, over the slopes that it balances
# With a covariance, which counts no bias by clipping: a radius that leaves hardly anybody outside, found from
# a quantile that noise cannot hide.
_LARGEST_QUANTILE = 0.9
_RADIUS_MULTIPLE = 1.6
# Of the budget; chosen on the tables to design with of experiments/studies/table_solvers.md.
_SHARES = {
    "start": 0.02,
    "means": 0.02,
    "squares": 0.02,
    "matrix": 0.14,
    "check": 0.02,
    "radius": 0.03,
    "warm": 0.15,
    "covariance": 0.06,
}
_MATRICES = 2  # of second moments, and as many for a covariance
_SMALL_CHUNK = 64
_NO_COVARIANCE = "where parameters are a matrix: the Hessian of all of them is not released"
_AT_ONCE = 2**24  # numbers: slices of the data cost more time than one pass over all of them


@pytree
class Plan(GaussianSums):
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
        margin_scale: typical size of ⟨w, x⟩ at a good w; sets the ridge against noise. A run takes the length
            of a released point where that is more.
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

    @property
    def columns(self) -> int:
        """Numbers of a row of the data: parameters of one output."""
        return self.dim // (self.outputs or 1)

    @property
    def matrices_at_once(self) -> int:
        """Users whose matrices of second moments are held at once."""
        return min(self.chunk_size, _SMALL_CHUNK)

    @property
    def largest_moment(self) -> float:
        """About the largest eigenvalue of the second moments of rows: their number without a matrix.

        With one, the noise of a round may hide a variance as large as its floor: at most about three.
        """
        return float(self.columns if self.matrix_multiplier is None else min(self.columns, 3))

    def average_stddev(self, phase: int = 1) -> Any:
        """Of the mean noise of the steps of a phase, for a radius of one."""
        steps, multiplier = self.phases[phase]
        return PER_RADIUS * multiplier / self.num_users / steps**0.5

    def step_size(self, phase: int, bends: _linear_models.Bends, radius: Any, scale: Any) -> Any:
        """η of a phase, by the time that it may last.

        A descent for a time t = η·T leaves e^(-h·t) of the way along a direction of second derivative h, and
        the noise of its average is s/h there, or about s·t where h·t < 1. If what is to be found has the size
        τ along each direction, then after t = τ/s all that is left to find lies where the noise is larger. So
        t is half of this in the first phase, and all of it in the second; τ is ``scale``, the typical margin
        to be found, over the root of the number of columns. No time is shorter than some multiples of
        1/curvature, and no step longer than one over the largest curvature that the mean over rows may be
        taken to have.
        """
        noise = self.average_stddev(phase) * radius
        time = _TIMES[phase] * scale / (noise * self.columns**0.5)
        least = bends.flatness * _LEAST_TIMES[phase] / bends.largest
        steps, _ = self.phases[phase]
        xp = array_namespace(time, least, bends.mean)
        largest = xp.asarray(self.largest_moment)
        return xp.minimum(xp.maximum(time, least) / steps, 1.0 / (largest * bends.mean))

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        steps = self.start_steps + 2 * self.radius_steps + self.warm_steps + self.num_steps
        return steps * self.num_users

    @property
    def phases(self) -> tuple[tuple[int, Any], ...]:
        """Steps, and the multiplier of each, of the two phases of the descent."""
        return ((self.warm_steps, self.warm_multiplier), (self.num_steps, self.noise_multiplier))

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
        found += [(multiplier, steps) for steps, multiplier in self.phases]
        return tuple((multiplier, count) for multiplier, count in found if count)

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

    def __str__(self) -> str:
        remarks = [("ledger_epsilon", f"{self.ledger_epsilon():.5g}")]
        return plans.describe("user-level whitened SGD", self, remarks)


@_plan_base.remembers(least_users=1)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    intercept: int | None = None,
    entry_bound: float | None = None,
    num_steps: Annotated[int, integer(2)] = 300,
    start_steps: Count = 60,
    radius_steps: Count = 30,
    matrix: bool | None = None,
    covariance: Flag = False,
    quantile: Inside | None = None,
    margin_scale: Positive | None = None,
    accountant: _planning.Accountant = "pld",
    chunk_size: Count | None = None,
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
            1/(1 + 12·s), s the norm of the noise of all steps' average over the radius: a small radius pays
            where there is much noise, and only adds a bias where there is little (a rule of thumb). With an
            intercept that shows a rare class the run takes a quantile with half of that class inside, if
            that is more (``_first_intercept``). Soft labels are no classes: give a quantile with them.
        margin_scale: typical size of ⟨w - start, x⟩ at a good w: the scale of a prior around the start, where
            what the noise hides stays. Where a released point is farther out the run takes its length
            instead. Smaller where the start is known to be near. If left out half of the
            largest margin that a label asks for (with the squared loss the largest label), or 0.5.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once. If left out all where they have at most 16 million
            numbers, which is fastest, and 64 otherwise. Some three copies are held (200 MB), for
            each of the runs that are mapped at once: give a number where that is too much.

    Raises:
        ValueError: an argument is out of range, or the objective is not a smooth linear model.
    """
    model, _ = smooth_linear_model(problem.objective, matrix=True)
    num_users, dim, columns = problem.num_users, problem.dim, _columns_of(model, problem.dim)
    if intercept is not None:
        intercept = _checks.require_integer("intercept", intercept, 0, columns - 1)
    entry_bound = model.feature_bound if entry_bound is None else entry_bound
    entry_bound = _checks.require_real("entry_bound", entry_bound, 0)
    squares_bound = entry_bound * model.feature_bound
    most = "such that its product with the feature bound is in [1e-18, 1e18], where float32 can square it"
    _checks.require(1e-18 <= squares_bound <= 1e18, "entry_bound", entry_bound, most)
    if chunk_size is None:
        chunk_size = num_users if num_users * dim <= _AT_ONCE else _SMALL_CHUNK
    if margin_scale is None:
        margin_scale = _linear_models.margin_scale(model, problem.objective)
    margin_scale = _checks.require_real("margin_scale", margin_scale, 0)

    whole = _linear_models.whole_multiplier(problem, budget, accountant)
    # The norm of the noise of all steps' average, over the radius.
    noise, least_class = 2.0 * math.sqrt(dim) * whole / num_users, 1.0
    if quantile is None:
        least_class = noise * math.sqrt(columns) / _HIDDEN_BY
        quantile = 1.0 / (1.0 + _NOISE_AVERSION * noise)
        quantile = min(quantile, _LARGEST_QUANTILE) if covariance else quantile
    quantile = _checks.require_real("quantile", quantile, 0, 1)
    matrix = _shows(problem, columns, whole, matrix)
    possible = not covariance or model.outputs is None
    _checks.require(possible, "covariance", covariance, f"False {_NO_COVARIANCE}")
    warm_steps = max(1, round(_WARM_STEPS * num_steps))
    counts = {"start": start_steps, "radius": 2 * radius_steps}
    counts |= {"warm": warm_steps, "noise": num_steps - warm_steps}
    made = _multipliers(
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
        quantile=quantile,
        least_class=least_class,
        radius_multiple=_RADIUS_MULTIPLE if covariance else 1.0,
        margin_scale=margin_scale,
        epsilon=budget.epsilon,
        delta=budget.delta,
        **{f"{name}_multiplier": multiplier for name, multiplier in made.items()},
    )


def _shows(problem: Problem, columns: int, whole: float, matrix: bool | None) -> bool:
    """Whether matrices of second moments are to be released: as asked, or where their sizes say so.

    Raises:
        ValueError: if they are asked for and users have too many items for them.
    """
    covered = row_moments.rounding_covered(problem.items_per_user, columns)
    if matrix is not None:
        _checks.require_flag("matrix", matrix)
        most = f"False for {problem.items_per_user} items a user: rounding of their sums is not covered"
        _checks.require(covered or not matrix, "matrix", matrix, most)
        return matrix
    # Eigenvalues within the edge of the noise cannot be told apart; all of them sum to about their number.
    multiplier = whole * math.sqrt(_MATRICES / _SHARES["matrix"])
    edge = 2.0 * math.sqrt(columns) * columns * multiplier / problem.num_users
    return covered and edge < columns


def _multipliers(
    whole: float, counts: dict[str, int], *, intercept: bool, matrix: bool, covariance: bool
) -> dict[str, Any]:
    """The multiplier of each kind of release, ``None`` where it is not made; "noise" has what is left."""
    left_out = [] if intercept else ["start", "means"]
    left_out += [] if matrix else ["matrix", "check"]
    left_out += [] if covariance else ["covariance"]
    shares = {name: share for name, share in _SHARES.items() if name not in left_out}
    shares["noise"] = 1.0 - sum(shares.values())
    often = counts | {"matrix": _MATRICES, "covariance": _MATRICES}
    made = {
        name: _planning.float32_above(whole * math.sqrt(often.get(name, 1) / share))
        for name, share in shares.items()
    }
    return made | dict.fromkeys(left_out)


def _columns_of(model: LinearModel, dim: int) -> int:
    """Numbers of a row, from the number of parameters; ``ValueError`` if outputs do not divide it."""
    outputs = model.outputs or 1
    _checks.require(
        dim % outputs == 0, "problem.dim", dim, f"a multiple of the {outputs} outputs of the model"
    )
    return dim // outputs


def require_sizes(plan: Any, model: LinearModel) -> None:
    """``ValueError``, by the name of the field, unless a run can have the plan's sizes, edited or not."""
    _checks.require(plan.outputs == model.outputs, "plan.outputs", plan.outputs, str(model.outputs))
    columns = _columns_of(model, plan.dim)
    if plan.intercept is not None:
        _checks.require_integer("plan.intercept", plan.intercept, 0, columns - 1)
        for name in ("start_multiplier", "means_multiplier"):
            given = getattr(plan, name) is not None
            _checks.require(given, f"plan.{name}", None, "a number where there is an intercept")
    _checks.require_integer("plan.start_steps", plan.start_steps, int(plan.intercept is not None))
    covariance = plan.covariance_multiplier
    possible = covariance is None or model.outputs is None
    name = "plan.covariance_multiplier"
    _checks.require(possible, name, covariance, f"None {_NO_COVARIANCE}")
