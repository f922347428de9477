"""Private optimization by values in ℓp norms: one draw from exp(-k·(F + μ·r)), r a log-Laplace transform.

What it computes: a point of that law, F the mean user loss of a linear model and r = ηψ(· - start), ψ the
log-Laplace transform of a·‖y‖_q², a = η(p-1)/2, 1/p + 1/q = 1, by the sampler of ``llt_sampler``: T steps,
each with about two trials that read a few losses. r is 1-strongly convex in ℓp, and the number of steps
does not know the norm: in ℓ2 the same draw would take d^(2/p-1) times as many.

Source: T, Proposition 5.5.6, Theorem 5.5.8 and Corollary 5.5.9 for vectors (Gopi, Lee, Liu, Shen and Tian
2023). Corrected (docs/corrections.md): losses that are G-Lipschitz each differ by 2G; μ for the
population's risk is twice the printed one; near p = 1, where T takes p' = 1 + 1/log d in place of p, losses
of rows within B in ℓ_p* are d^(1/p - 1/p')·B-Lipschitz times the slope; r is centred at the start, and its
range Θ comes from a certificate, not from a constant that is 10 to 33 times larger. For Schatten norms the
transform has no known efficient evaluation (T (5.30), an open question).

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE. With G the Lipschitz constant of
every user's loss in ℓp an exact draw is s-Gaussian DP, s = 2G·√k/(n·√μ). The law of the draw is within τ of
that in total variation on every data set: steps, estimates, trials that run out, errors of ψ and roundings
are bounded and counted; docs/theory/llt_sampler.md has the proofs. The domain of the draw is a ball in ℓp
around the start that is so large that the chain hardly sees its end. What the proofs need of the loss is
never taken from the caller: losses, with their constants, are those that ``problems.losses`` made. One draw
is all that is released; how many trials were made is in ``Solution.unprivate``, and the time that a run
takes depends on it, unless ``constant_time``. Where the bound is no better than the start's, the start is
returned, which costs nothing. Utility, R ≥ ‖start - minimizer‖_p: E F - F* ≤ μΘ + d/k for an exact draw,
and 2G²/(nμ) more for the population.

Cost: T ≈ (s²n²/4c)·(s²n²/8 + log(1/(2τ))), 1/c about 250: hundreds of steps at s·n = 0.5, 1e4 at 4. A
reference for tiny sizes, n = 2 to 20 and d ≤ 3. On one busy core, at δ = 1e-3: n = 10, d = 1, ε = 2 takes
65,117 steps in 1.5 s, excess bound 0.41·G·R; n = 10, d = 2, p = 1.5, ε = 1 takes 12,369 in 45 s. Compiling
takes 10 to 50 s, tables of ψ some more. For larger sizes take ``value_queries`` or ``regularized``, which
work in ℓ2. Needs ``jax_enable_x64``.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget, Problem
    >>> from dpsco_jax.problems import losses, synthetic
    >>> from dpsco_jax.solvers.sampling import zeroth_order
    >>> with jax.enable_x64(True):
    ...     problem = Problem(losses.absolute(1.0), num_users=4, dim=1, distance=1.0)
    ...     plan = zeroth_order.plan(problem, Budget(0.5, 1e-3), norm=1.5, draw_anyway=True)
    >>> plan.certificate().epsilon <= 0.5, plan.num_steps < 1000
    (True, True)
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax import _checks, _counts, _sharding, privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates import norms, sampling
from dpsco_jax.solvers import _arguments, _plan_base
from dpsco_jax.solvers.sampling import _user_losses, alternating_sampler, llt_sampler
from dpsco_jax.solvers.sampling import _zeroth_order_constants as constants
from dpsco_jax.solvers.sampling._llt_numbers import MOST_PARAMETERS, Setting
from dpsco_jax.solvers.sampling._precision import require_x64
from dpsco_jax.solvers.sampling._zeroth_order_plan import Plan
from dpsco_jax.solvers.sampling._zeroth_order_search import planned
from dpsco_jax.solvers.solution import Solution, Status

__all__ = ["Plan", "plan", "solve"]

_SIZES = (1e-100, 1e100)
_HALVINGS = 40
_START_NORMS = 16.0


@_plan_base.remembers
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    norm: Any = 1.5,
    row_bound: float | None = None,
    radius: float | None = None,
    risk: str = "empirical",
    max_steps: int | None = None,
    draw_anyway: bool = False,
    constant_time: bool = False,
) -> Plan:
    """Checks all arguments and finds temperature, regularization, step size, steps and trials.

    Args:
        problem: for the objective, a linear model of ``problems.losses`` on vectors with a Lipschitz
        constant on the
            whole space and without ridge (``logistic``, ``hinge``, ``huber``, ``absolute``, ``quantile``),
            whose domain is the whole space; for n ≥ 2, d ≤ 10, the most items that a user may have, and the
            distance.
        budget: (ε, δ) of the draw, δ > 0. Where roundings would take too much of δ at this ε the draw is
        made for a
            smaller ε.
        norm: p in [1.1, 2]; or ``("schatten", p)``, which is refused.
        row_bound: bound on rows in ℓ_p*, 1/p + 1/p* = 1: longer ones are scaled onto it, beside
            ``feature_bound``. Without it p below 2 gains nothing.
        radius: R, a bound on ‖start - minimizer‖_p; d^(1/p - 1/2) times ``problem.distance`` if left out.
        risk: ``"empirical"``, of the users who are there, or ``"population"``, of the law that they were
        drawn from.
        max_steps: the most steps T that are wanted: s is lowered until they do.
        draw_anyway: whether to draw where the bound is no better than that of the start, which is G·R.
        constant_time: whether all trials and attempts are made, so that the time tells nothing: some
        thousand times
            as many.

    Raises:
        ValueError: an argument is out of range, ``jax_enable_x64`` is off, or the loss is not of these
        kinds or
            claims more than is proven of it.
        NotImplementedError: the norm is a Schatten norm.
        Infeasible: δ is too small for what float64 can prove, or ``max_steps`` too few for any draw.
    """
    problem, budget = _arguments.require_request(problem, budget)
    require_x64("zeroth_order")
    exponent = constants.exponent(norm)
    if row_bound is not None:
        row_bound = _checks.require_real("row_bound", row_bound, *_SIZES)
    population = _checks.require_choice("risk", risk, ("empirical", "population")) == "population"
    _checks.require_given(_checks.require_count, max_steps=max_steps)
    constant_time = _checks.require_flag("constant_time", constant_time)
    draw_anyway = _checks.require_flag("draw_anyway", draw_anyway)
    dim, users = problem.dim, problem.num_users
    _checks.require_integer("problem.dim", dim, 1, MOST_PARAMETERS)
    model = constants.model(problem.objective)
    _checks.require_real("problem.objective.lipschitz", problem.objective.lipschitz, *_SIZES)
    # (1) The norm that is worked in, and the constants in it.
    inner = constants.working_exponent(exponent, dim)
    slope = constants.working_lipschitz(problem.objective, exponent, inner, dim, row_bound)
    if radius is None:
        reach = problem.require_distance()
        radius = norms.norm_ratio(inner, 2.0, dim) * reach
    distance = _checks.require_real("radius", radius, *_SIZES)
    largest = math.inf
    if population:
        largest = math.sqrt(2.0 * dim / users)
    setting = Setting(
        num_users=users,
        items_per_user=problem.items_per_user,
        dim=dim,
        exponent=inner,
        lipschitz=slope,
        feature_bound=float(model.feature_bound),
        slope=float(problem.objective.lipschitz) / float(model.feature_bound),
        inner=0.01,
        farthest=1.0,
        start_norm=_START_NORMS * distance,
        reach=1.0,
        row_bound=row_bound,
    )

    def parameters(s: float, theta: float) -> sampling.Draw:
        if population:
            return sampling.sco(s, users, dim, slope, 2.0 * slope, theta)
        return sampling.erm(s, users, dim, 2.0 * slope, theta)

    def under(most: float) -> Plan:
        return planned(
            setting,
            budget,
            norm=exponent,
            distance=distance,
            parameters=parameters,
            largest_gdp=most,
            constant_time=constant_time,
            draw_anyway=draw_anyway,
        )

    made = under(largest)
    if max_steps is None or not made.draws or made.num_steps <= max_steps:
        return made
    return _shortened(under, float(made.gdp), max_steps)


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
        params: the start, ``[dim]``: the centre of the regularizer. It may not depend on the data. One that
        is
            longer than ``plan.setting.start_norm`` costs infinity.

    Raises:
        ValueError: the sizes are not the planned ones, ``jax_enable_x64`` is off, or the objective does not
        have
            the proven constants that were planned for.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    require_x64("zeroth_order")
    setting = plan.setting
    slots = jax.tree.leaves(data.items)[0].shape[1]
    most = setting.items_per_user
    _checks.require(slots <= most, "data", f"{slots} item slots", f"of at most {most} as planned")
    model = constants.model(objective)
    found = constants.working_lipschitz(
        objective, plan.norm, setting.exponent, setting.dim, setting.row_bound
    )
    bounds = (float(model.feature_bound), float(objective.lipschitz) / float(model.feature_bound))
    if found != setting.lipschitz or bounds != (setting.feature_bound, setting.slope):
        raise ValueError(
            f"objective must be that of plan.setting = {setting}, got {found}, {bounds}"
        )
    # Numbers that were narrowed are those that run, and are reckoned with in float64.
    plan = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), plan)
    start = jnp.asarray(params, jnp.float64).ravel()
    none = jnp.zeros((), jnp.int32)
    counted = {"gradients": _counts.count(0), "trials": none, "steps": none, "trace": None}
    if not plan.draws:
        return _solution(plan, params, jnp.array(True), jnp.zeros((), jnp.int64), counted)

    numbers, psi = plan.numbers, plan.transform
    moves = _moves(plan, objective, data, start)
    end = llt_sampler.alternate(
        key,
        moves,
        psi,
        setting.dim,
        drift=numbers.start_convexity,
        radius=numbers.radius,
        num_steps=plan.num_steps,
        num_trials=plan.num_trials,
        num_starts=setting.num_starts,
        constant_time=plan.constant_time,
    )
    # A place on a public grid, whose digits tell nothing of how the point came about.
    placed = jnp.round(end.params / numbers.release_unit) * numbers.release_unit
    draw = (start + numbers.unit * placed).reshape(params.shape).astype(params.dtype)
    near = jnp.linalg.norm(start) <= setting.start_norm
    most_values = jnp.asarray(plan.user_gradients, jnp.int64) * slots
    realized = end.num_trials.astype(jnp.int64) * (2 * setting.num_terms * slots)
    counted |= {
        "gradients": _counts.count(realized),
        "trials": end.num_trials,
        "steps": end.num_accepted,
    }
    return _solution(plan, draw, near, most_values, counted)


def _moves(
    plan: Plan, objective: Objective, data: UserData, start: Any
) -> alternating_sampler.Oracle:
    """The moves of the chain, in units around the start; all that is read of the data is read here."""
    setting, numbers = plan.setting, plan.numbers
    users = _user_losses.user_losses(
        *(objective, constants.model(objective), data, start),
        _user_losses.Sizes(setting.start_norm, setting.label_bound),
        *(plan.norm, setting.row_bound),
    )
    return llt_sampler.oracle(
        lambda x, record: users.loss(numbers.unit * x, record),
        users.records,
        plan.transform,
        drift=numbers.start_convexity,
        radius=numbers.radius,
        num_records=setting.num_users,
        scale=plan.inverse_temperature,
        num_terms=setting.num_terms,
        num_attempts=setting.num_attempts,
        num_newton=numbers.newton,
        constant_time=plan.constant_time,
    )


def _solution(plan: Plan, draw: Any, near: Any, values: Any, counted: dict[str, Any]) -> Solution:
    good = jnp.all(jnp.isfinite(draw))
    return Solution(
        params=draw,
        privacy=privacy.unbounded_unless(near, plan.loss()),
        status=jnp.where(good, int(Status.OK), int(Status.DIVERGED)).astype(jnp.int32),
        gradients=_counts.count(values),
        unprivate=counted,
    )


def _shortened(under: Any, gdp: float, max_steps: int) -> Plan:
    """The plan with the largest s whose chain is short enough."""
    low, high, best = 0.0, gdp, None
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        made = under(middle)
        if not made.draws or made.num_steps <= max_steps:
            low, best = middle, made
        else:
            high = middle
        if best is not None and high - low < 1e-3 * high:
            break
    if best is None:
        raise Infeasible(f"max_steps must be larger for any draw, got {max_steps}")
    return best
