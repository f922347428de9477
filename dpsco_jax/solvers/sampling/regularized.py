"""The regularized exponential mechanism: one draw from exp(-k·(F + (μ/2)‖x - start‖²)), and no noise to tune.

What it computes: a point of that law, F the mean user loss of a linear model plus ridge, by the proximal
sampler: T steps, each with an anchor by gradient steps and trials by rejection. A loss with a kink is
replaced by its Moreau envelope.

Source: T, Theorems 3.2.1, 3.6.2, 3.6.4, 3.6.8 and 3.6.9 (Gopi, Lee and Liu 2022), Algorithm 13 for the chain;
the oracle and its certificate are this package's. An exact draw costs as much as Gaussian noise, whatever the
dimension.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE. With L the Lipschitz constant of every
user's loss an exact draw is s-Gaussian DP, s = 2L·√k/(n·√(μ + ridge)). The law of the draw is within τ of
that in total variation, on every data set: T steps mix to a share of τ, trials are capped at N, and the
rounding of float64 is bounded and counted; docs/theory/proximal_sampler.md has the proofs. What they need of
the loss is never taken from the caller: losses, with their constants, are those that ``problems.losses``
made. One draw is all that is released: not the points before it, no average, and not how many trials were
made, which ``Solution.unprivate`` tells, and the time that a run takes, unless ``constant_time``.
Utility, R ≥ ‖start - minimizer‖: E F - F* ≤ μR²/2 + d/k for an exact draw; what an envelope hides is added,
and 2L²/(n·(μ + ridge)) for the risk of the population (Theorem 3.6.7). The plan is not chosen by that bound
but by ``predicted_excess``, what a quadratic with nominal curvatures would reach. Where losses are smooth and
noise is small, noisy gradient steps do better: ``routes`` compares.

Cost: T = 1 + log(W/(2τ√η))/log(1 + c·(μ + ridge)/H) steps, free of n and d but for the logarithm; at most J
passes over the users for a step, and about e^{5c/8} or fewer for its trials. Needs ``jax_enable_x64``.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget, Problem
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.sampling import regularized
    >>> with jax.enable_x64(True):
    ...     made = synthetic.logistic_regression(jax.random.key(0), num_users=500, items_per_user=1, dim=3)
    ...     plan = regularized.plan(made.problem(distance=5.0), Budget(1.0, 1e-5))
    ...     start = jax.numpy.zeros(3)
    ...     run = jax.jit(lambda key: regularized.solve(key, plan, made.objective, made.data, start))
    ...     solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, _counts, _sharding, privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.problems import envelopes
from dpsco_jax.problems.objective import Objective, OneHot
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _plan_base
from dpsco_jax.solvers._schedules import nominal_model
from dpsco_jax.solvers.sampling import _proximal_numbers as proximal
from dpsco_jax.solvers.sampling import _regularized_search, _rows, alternating_sampler
from dpsco_jax.solvers.sampling._precision import require_x64
from dpsco_jax.solvers.sampling._regularized_plan import Plan, planned
from dpsco_jax.solvers.sampling.proximal_oracle import proximal_oracle
from dpsco_jax.solvers.solution import Solution, Status

__all__ = ["Plan", "plan", "solve"]

_SIZES = (1e-100, 1e100)
_HIDDEN = 0.3  # by an envelope, of what is lost anyway


@_plan_base.remembers
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    regularization: float | None = None,
    smoothing: float | None = None,
    columns_per_row: int | None = None,
    risk: str = "empirical",
    relative_step: float = 3.0,
    max_steps: int | None = None,
    constant_time: bool = False,
) -> Plan:
    """Checks all arguments and finds temperature, steps and trials. All of them are public.

    Args:
        problem: for the objective, which must have a loss of ``problems.losses`` that is smooth with a
            remainder (``logistic`` or ``huber``) or has one kink (``hinge``, ``absolute`` or ``quantile``),
            on the whole space, n ≥ 2, the number of parameters, m, which is the most items that a user may
            have, and R, the distance from the start to a minimizer.
        budget: (ε, δ) of the draw, δ > 0. Where rounding, which grows like s·n·√μ, would take too much of δ
            at this ε, as for 100,000 users at ε = 5 and δ = 1e-6, the draw is made for a smaller ε.
        regularization: μ ≥ 0; the one with the smallest ``predicted_excess`` if left out.
        smoothing: γ > 0 of the Moreau envelope that is drawn from in place of a loss with a kink; left out,
            one that hides at most three tenths of what is lost anyway. Steps are as many as 1/γ.
        columns_per_row: entries of a one-hot row, which the prediction counts with; ``None`` for dense rows.
        risk: ``"empirical"``, of the users who are there, or ``"population"``, of the law that they were
            drawn from, independently: what is predicted, and made small by the choice of μ.
        relative_step: c > 0, the step size over 1/(kH): longer steps are fewer, and accepted with
            probability e^{-5c/8}, at least.
        max_steps: the most steps T that are wanted; the regularization is then as large as they ask.
        constant_time: whether all trials are made, each with all gradients, so that the time tells nothing.

    Raises:
        ValueError: an argument is out of range, ``jax_enable_x64`` is off, or the loss is not of these kinds
            or claims more than is proven of it.
        Infeasible: no such draw is private enough, or none in ``max_steps``.
    """
    problem, budget = _arguments.require_request(problem, budget)
    require_x64("regularized")
    relative_step = _checks.require_real("relative_step", relative_step, 0.0)
    _checks.require_given(
        _checks.require_count, max_steps=max_steps, columns_per_row=columns_per_row
    )
    population = _checks.require_choice("risk", risk, ("empirical", "population")) == "population"
    constant_time = _checks.require_flag("constant_time", constant_time)
    objective, distance = problem.objective, problem.require_distance()
    ridge = float(objective.ridge)
    _checks.require_integer("problem.dim", problem.dim, 1, proximal.MOST_PARAMETERS)
    most = proximal.MOST_ROWS // problem.items_per_user
    _checks.require_integer("problem.num_users", problem.num_users, 2, most)
    _checks.require_real("problem.objective.lipschitz", objective.lipschitz, *_SIZES)
    _checks.require_real("problem.distance", distance, *_SIZES)
    # μR²/2 + a/μ is least at this one, without ridge and envelope.
    change = 2.0 * float(objective.lipschitz) / problem.num_users
    inverse = problem.dim * (change / privacy.gdp_within(budget.epsilon, budget.delta)) ** 2 / 2
    inverse += float(objective.lipschitz) * change if population else 0.0
    middle = (2.0 * inverse) ** 0.5 / distance
    smoothing = _smoothing(objective, smoothing, middle * distance**2)
    smooth, gap = objective, 0.0
    if smoothing:
        smooth = envelopes.moreau_envelope(objective, smoothing)
        gap = envelopes.envelope_gap(objective, smoothing)
    setting = proximal.sized(smooth, problem.num_users, problem.items_per_user, problem.dim)

    nominal = nominal_model.nominal(problem, columns_per_row)

    def under(added: float, spent: privacy.Budget) -> Plan:
        made = planned(
            setting,
            spent,
            ridge=ridge,
            smoothing=smoothing,
            gap=gap,
            population=population,
            regularization=added,
            relative_step=relative_step,
            distance=distance,
            nominal=nominal,
            constant_time=constant_time,
        )
        if max_steps is not None and made.num_steps > max_steps:
            raise Infeasible(
                f"max_steps must be at least {made.num_steps:.0f} for regularization = {added:.6g} and "
                f"smoothing = {smoothing:.6g}, got {max_steps}",
                {"max_steps": made.num_steps},
            )
        return made

    if regularization is not None:
        added = _checks.require_real("regularization", regularization, 0.0, closed=True)
        if added + ridge <= 0:
            raise ValueError(
                "regularization must be positive where the objective has no ridge, got 0"
            )
        return _regularized_search.within(lambda spent: under(added, spent), budget)

    return _regularized_search.within(
        lambda spent: _regularized_search.best(lambda added: under(added, spent), middle), budget
    )


@_sharding.solver
def solve(
    key: jax.Array,
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: jax.Array,
) -> Solution:
    """Makes the draw. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``, for this very objective.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users, of at most ``plan.setting.items_per_user`` slots.
        params: the start, ``[dim]``: the centre of the regularization. It may not depend on the data. One so
            far from the origin that margins there are not exact in float64 costs infinity.

    Raises:
        ValueError: the sizes are not the planned ones, ``jax_enable_x64`` is off, or the objective does not
            have the proven constants that were planned for.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    require_x64("regularized")
    users, slots = jax.tree.leaves(data.items)[0].shape[:2]
    most = plan.setting.items_per_user
    _checks.require(slots <= most, "data", f"{slots} item slots", f"of at most {most} as planned")
    if not isinstance(data.items.features, OneHot):
        width = np.shape(data.items.features)[-1]
        _checks.require(
            width == plan.dim, "data.items.features", width, f"of plan.dim = {plan.dim} columns"
        )
    if plan.smoothing:
        objective = envelopes.moreau_envelope(objective, plan.smoothing)
    found = proximal.sized(objective, users, most, plan.dim)
    if found != plan.setting or float(objective.ridge) != plan.ridge:
        raise ValueError(f"objective must be that of plan.setting = {plan.setting}, got {found}")

    # Numbers that were narrowed are those that run, and are reckoned with in float64.
    plan = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), plan)
    numbers = plan.numbers
    convexity = plan.regularization + plan.ridge
    center = jnp.asarray(params, jnp.float64).ravel() * (plan.regularization / convexity)
    oracle = proximal_oracle(
        objective,
        data,
        center,
        inverse_temperature=plan.inverse_temperature,
        convexity=convexity,
        relative_step=plan.relative_step,
        num_steps=plan.num_steps,
        all_gradients=plan.constant_time,
    )
    end = alternating_sampler.run(
        key,
        oracle,
        jnp.zeros(plan.dim),
        num_steps=plan.num_steps,
        num_trials=plan.num_trials,
        constant_time=plan.constant_time,
    )
    draw = (center + end.params).reshape(params.shape).astype(params.dtype)
    # Beyond this, margins of the centre are not exact.
    unit = numbers.anchor_unit * _rows.feature_unit(plan.setting.feature_bound)
    longest = 2.0 ** (_rows.SIGNIFICAND_BITS - 1) * unit / plan.setting.feature_bound
    near = jnp.linalg.norm(center) <= longest
    good = jnp.all(jnp.isfinite(draw))
    passes = jnp.asarray(plan.user_gradients, jnp.int64) * slots
    realized = (end.state.evaluations + end.num_trials).astype(jnp.int64) * (users * slots)
    return Solution(
        params=draw,
        privacy=privacy.unbounded_unless(near, plan.loss()),
        status=jnp.where(good, int(Status.OK), int(Status.DIVERGED)).astype(jnp.int32),
        gradients=_counts.count(passes),
        unprivate={
            "gradients": _counts.count(realized),
            "trials": end.num_trials,
            "steps": end.num_accepted,
            "trace": None,
        },
    )


def _smoothing(objective: Objective, smoothing: float | None, lost: float) -> float:
    """γ of the envelope; 0 where none is needed."""
    if objective.smoothness is not None:
        _checks.require(smoothing is None, "smoothing", smoothing, "None for a smooth loss")
        return 0.0
    if smoothing is not None:
        return _checks.require_real("smoothing", smoothing, 0.0)
    return _HIDDEN * lost / envelopes.envelope_gap(objective, 1.0)
