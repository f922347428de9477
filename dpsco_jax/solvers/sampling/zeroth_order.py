"""Private optimization by values in ℓp norms: one draw from exp(-k·(F + μ·r)), r a log-Laplace transform.

What it computes: a point of that law, F the mean user loss of a linear model and r = ηψ(· - start), ψ the
log-Laplace transform of a·‖y‖_q², a = η(p-1)/2, 1/p + 1/q = 1, by the sampler of ``llt_sampler``: T steps,
each with about two trials that read a few losses. r is 1-strongly convex in ℓp, and the number of steps
does not know the norm: in ℓ2 the same draw would take d^(2/p-1) times as many.

Source: T, Proposition 5.5.6, Theorem 5.5.8 and Corollary 5.5.9 for vectors (Gopi, Lee, Liu, Shen and Tian
2023). Corrected (docs/corrections.md): losses that are G-Lipschitz each differ by 2G; μ for the population's
risk is twice the printed one; near p = 1 losses of rows within B in ℓ_p* are d^(1/p - 1/p')·B-Lipschitz times
the slope, p' = 1 + 1/log d; r is centred at the start, and its range Θ comes from a certificate. For Schatten
norms the transform has no known efficient evaluation (T (5.30), an open question).

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE. With G the Lipschitz constant of
every user's loss in ℓp an exact draw is s-Gaussian DP, s = 2G·√k/(n·√μ). The law of the draw is within τ of
that in total variation on every data set (docs/theory/llt_sampler.md): steps, estimates, trials that run out,
errors of ψ and roundings are counted. Losses, with their constants, are those that ``problems.losses`` made.
Only the draw is released; how many trials were made is in ``Solution.unprivate``, and the time that a run
takes depends on it, unless ``constant_time``. Utility, R ≥ ‖start - minimizer‖_p: E F - F* ≤ μΘ + d/k for an
exact draw, and 2G²/(nμ) more for the population; where that is above G·R the start itself is as good.

Cost: T ≈ (s²n²/4c)·(s²n²/8 + log(1/(2τ))), 1/c about 250: hundreds of steps at s·n = 0.5, 1e4 at 4. A
reference for tiny sizes, n = 2 to 20 and d ≤ 3: on one core, at δ = 1e-3, n = 10, d = 2, p = 1.5, ε = 1 takes
12,369 steps in 45 s. For larger sizes take ``value_queries`` or ``regularized``, which work in ℓ2. Needs
``jax_enable_x64``.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget, Problem
    >>> from dpsco_jax.problems import losses, synthetic
    >>> from dpsco_jax.solvers.sampling import zeroth_order
    >>> with jax.enable_x64(True):
    ...     problem = Problem(losses.absolute(1.0), num_users=4, dim=1, distance=1.0)
    ...     plan = zeroth_order.plan(problem, Budget(0.5, 1e-3), norm=1.5)
    >>> plan.certificate().epsilon <= 0.5, plan.num_steps < 1000
    (True, True)
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Count, Flag, one_of, real
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry.log_laplace import LpLogLaplace
from dpsco_jax.privacy.variation import gdp_within, variation_delta
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates import norms, sampling
from dpsco_jax.solvers import _plan_base
from dpsco_jax.solvers.sampling import (
    _draw,
    _llt_numbers,
    _user_losses,
    alternating_sampler,
    llt_sampler,
)
from dpsco_jax.solvers.sampling._llt_numbers import MOST_PARAMETERS, Setting
from dpsco_jax.solvers.sampling._precision import require_x64
from dpsco_jax.solvers.sampling._rejection_certificate import bisected
from dpsco_jax.solvers.sampling.chain_lengths import capped_trials
from dpsco_jax.solvers.sampling.llt_sampler import Errors, Transform, transform
from dpsco_jax.solvers.solution import Solution

__all__ = ["Plan", "plan", "solve"]

_SIZES = (1e-100, 1e100)
_START_NORMS = 16.0
_UP = 1.0 + 2.0**-40
_EACH = 0.02  # of δ/(1 + e^ε): what each of mixing, estimates and the cap on trials takes
_FIRST = 3.1  # times that: τ, as a first guess
_FURTHEST = 4096.0
_TRIES = 30
_ROOM = 1.05  # of reach and radius over what the planned numbers need


@pytree
class Plan(_draw.GaussianDraw):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        setting: sizes of the data, constants of the loss in the norm that is worked in, and bounds.
        norm: p, as asked for.
        step_size: η; the regularizer is ηψ.
    """

    setting: Setting = static()
    norm: float = static()
    step_size: Number

    def __post_init__(self) -> None:
        _llt_numbers.exponent(self.norm)

    @property
    def transform(self) -> Transform:
        """ψ, tabulated as far as the setting says."""
        return transform(self.setting.exponent, self.setting.dim, self.setting.reach)

    @property
    def numbers(self) -> _llt_numbers.Numbers:
        """What else follows for the run."""
        return _llt_numbers.numbers(
            self.setting,
            self.transform.errors,
            *(self.inverse_temperature, self.regularization, self.step_size),
            *(self.num_steps, self.num_trials),
        )

    @property
    def gdp(self) -> Any:
        """The s of an exact draw, rounded up."""
        k, change = self.inverse_temperature, 2.0 * self.setting.lipschitz
        return _draw.gdp(change, self.num_users, k, self.regularization)

    @property
    def variation(self) -> Any:
        """τ: how far the law of the draw is at most from that of an exact one."""
        return self.numbers.variation.total

    @property
    def user_gradients(self) -> Any:
        """Losses of single users that are read, at most: two for each of A terms of each trial."""
        return 2.0 * self.setting.num_terms * self.num_trials

    @property
    def accounted(self) -> Any:
        """Whether the proof covers a run with these numbers; a bool, may be traced."""
        return self.numbers.valid

    def __str__(self) -> str:
        made, values = self.numbers, 2.0 * (math.e - 1.0) * self.num_trials
        return self.table(
            "zeroth-order draw in an lp norm",
            made.variation._asdict(),
            ("radius of the set", f"{float(made.radius * made.unit):.5g}"),
            ("success of a trial, at least", f"{float(made.acceptance):.3g}"),
            ("values, expected at most", f"{float(values):.4g}"),
        )


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    norm: Any = 1.5,
    row_bound: Annotated[float, real(*_SIZES)] | None = None,
    radius: float | None = None,
    risk: Annotated[str, one_of("empirical", "population")] = "empirical",
    max_steps: Count | None = None,
    constant_time: Flag = False,
) -> Plan:
    """Checks all arguments and finds temperature, regularization, step size, steps and trials.

    Args:
        problem: for the objective, a linear model of ``problems.losses`` on vectors with a Lipschitz constant
            on the whole space and without ridge (``logistic``, ``hinge``, ``huber``, ``absolute``,
            ``quantile``), whose domain is the whole space; for n ≥ 2, d ≤ 10, the most items that a user may
            have, and the distance.
        budget: (ε, δ) of the draw, δ > 0. Where roundings would take too much of δ at this ε the draw is made
            for a smaller ε.
        norm: p in [1.1, 2]; or ``("schatten", p)``, which is refused.
        row_bound: bound on rows in ℓ_p*, 1/p + 1/p* = 1: longer ones are scaled onto it, beside
            ``feature_bound``. Without it p below 2 gains nothing.
        radius: R, a bound on ‖start - minimizer‖_p; d^(1/p - 1/2) times ``problem.distance`` if left out.
        risk: ``"empirical"``, of the users who are there, or ``"population"``, of the law they were drawn
            from.
        max_steps: the most steps T that are wanted: s is lowered until they do.
        constant_time: whether all trials and attempts are made, some thousand times as many, so that the time
            tells nothing.

    Raises:
        ValueError: an argument is out of range, ``jax_enable_x64`` is off, or the loss is not of these kinds
            or claims more than is proven of it.
        NotImplementedError: the norm is a Schatten norm.
        Infeasible: δ is too small for what float64 can prove, or ``max_steps`` too few for any draw.
    """
    require_x64("zeroth_order")
    exponent = _llt_numbers.exponent(norm)
    population = risk == "population"
    dim, users = problem.dim, problem.num_users
    _checks.require_integer("problem.dim", dim, 1, MOST_PARAMETERS)
    model = _llt_numbers.model_of(problem.objective)
    _checks.require_real("problem.objective.lipschitz", problem.objective.lipschitz, *_SIZES)
    # The norm that is worked in, and the constants in it.
    inner = _llt_numbers.working_exponent(exponent, dim)
    slope = _llt_numbers.working_lipschitz(problem.objective, exponent, inner, dim, row_bound)
    if radius is None:
        radius = norms.norm_ratio(inner, 2.0, dim) * problem.require_distance()
    distance = _checks.require_real("radius", radius, *_SIZES)
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
    asked = _Request(setting, budget, exponent, distance, population, constant_time)
    made = _planned(asked, math.sqrt(2.0 * dim / users) if population else math.inf)
    if max_steps is None or made.num_steps <= max_steps:
        return made
    best, _ = _largest(
        lambda s: _planned(asked, s),
        lambda plan: plan.num_steps <= max_steps,
        float(made.gdp),
        1e-3,
    )
    if best is None:
        raise Infeasible(f"max_steps must be larger for any draw, got {max_steps}")
    return best


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: jax.Array
) -> Solution:
    """Makes the draw. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``, for this very objective.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users, of at most ``plan.setting.items_per_user`` slots.
        params: the start, ``[dim]``: the centre of the regularizer. It may not depend on the data. One that
            is longer than ``plan.setting.start_norm`` costs infinity.

    Raises:
        ValueError: the sizes are not the planned ones, ``jax_enable_x64`` is off, or the objective does not
            have the proven constants that were planned for.
    """
    plan = _draw.begun("zeroth_order", Plan, key, plan, objective, data, params)
    setting, slots = plan.setting, _draw.slots_of(data)
    model = _llt_numbers.model_of(objective)
    found = _llt_numbers.working_lipschitz(
        objective, plan.norm, setting.exponent, setting.dim, setting.row_bound
    )
    bounds = (float(model.feature_bound), float(objective.lipschitz) / float(model.feature_bound))
    if found != setting.lipschitz or bounds != (setting.feature_bound, setting.slope):
        raise ValueError(
            f"objective must be that of plan.setting = {setting}, got {found}, {bounds}"
        )
    start, numbers = jnp.asarray(params, jnp.float64).ravel(), plan.numbers
    end = llt_sampler.alternate(
        key,
        _moves(plan, objective, data, start),
        plan.transform,
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
    return _draw.left_of(plan, draw, near, end, most_values, realized)


def _moves(
    plan: Plan, objective: Objective, data: UserData, start: Any
) -> alternating_sampler.Oracle:
    """The moves of the chain, in units around the start; all that is read of the data is read here."""
    setting, numbers = plan.setting, plan.numbers
    users = _user_losses.user_losses(
        *(objective, _llt_numbers.model_of(objective), data, start),
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


class _Request(NamedTuple):
    """What is asked for, checked. ``inner``, ``farthest`` and ``reach`` of the setting are chosen here."""

    setting: Setting
    budget: privacy.Budget
    norm: float
    distance: float  # R, in the norm that is worked in
    population: bool
    constant_time: bool

    def parameters(self, s: float, theta: float) -> sampling.Draw:
        """k, μ and the risk that they promise, for an s and a range of the regularizer."""
        users, dim, slope = self.setting.num_users, self.setting.dim, self.setting.lipschitz
        if self.population:
            return sampling.sco(s, users, dim, slope, 2.0 * slope, theta)
        return sampling.erm(s, users, dim, 2.0 * slope, theta)


def _planned(asked: _Request, largest_gdp: float) -> Plan:
    """The plan for a budget with the largest s, at most the one that is given."""
    setting, (epsilon, delta) = asked.setting, (asked.budget.epsilon, asked.budget.delta)
    least = _draw.share(_EACH, asked.budget)
    limit = asked.distance**2 / (2.0 * (setting.exponent - 1.0))
    s = min(gdp_within(epsilon, delta, _FIRST * least), largest_gdp) / _UP

    def under(s: float) -> Plan:
        return _of_gdp(asked, s, asked.parameters(s, limit), least)

    def fits(made: Plan) -> bool:
        tau = float(made.variation)
        return bool(made.accounted) and variation_delta(float(made.gdp), tau, epsilon) <= delta

    best = under(s)
    if fits(best):
        return best
    found, refusal = _largest(under, fits, s, 0.02)
    if found is None:
        raise Infeasible(f"budget.delta must be far above what the sampler is off. {refusal}")
    return found


def _largest(
    under: Callable[[float], Plan], fits: Callable[[Plan], bool], high: float, precision: float
) -> tuple[Plan | None, str]:
    """The plan with the largest s that fits, or ``None``; and the last refusal on the way."""
    low, best, refusal = 0.0, None, ""
    for _ in range(_TRIES):
        middle = 0.5 * (low + high)
        try:
            made = under(middle)
        except (Infeasible, ValueError) as refused:
            made, refusal = None, str(refused)
        if made is not None and fits(made):
            low, best = middle, made
        else:
            high = middle
        if high - low < precision * high or high < 1e-6:
            break
    return best, refusal


def _of_gdp(asked: _Request, s: float, ideal: sampling.Draw, each: float) -> Plan:
    """The plan for an s, whose mixing, estimates and cap take ``each`` of total variation."""
    setting = asked.setting
    nothing = Errors(0.0, 0.0)
    steps, known = 1.0, 1.0
    while True:
        # A larger T asks for a smaller δ of a step, so for a smaller η and a larger T.
        inner = _widest(each / known)
        eta = (1.0 - 2.0**-10) * inner / (ideal.inverse_temperature * setting.lipschitz) ** 2
        unit = math.sqrt(0.5 * eta * (setting.exponent - 1.0))
        # Θ of ηψ, a little more than its limit; η stays, and c only falls.
        theta = eta * LpLogLaplace(setting.exponent, 1.0, setting.dim).range(asked.distance / unit)
        draw = asked.parameters(s, theta)
        k, mu = draw.inverse_temperature, draw.regularization
        drift = eta * k * mu
        warm = (k * setting.lipschitz) ** 2 / (k * mu)
        steps = 1.0 + math.floor((0.5 * warm + math.log(0.5 / each)) / math.log1p(drift) + 1e-6)
        if steps >= 2.0**31:
            raise Infeasible("budget must ask for fewer than 2^31 steps, got " + repr(steps))
        if steps <= known:
            break
        known = steps
    unbounded = setting._replace(inner=inner, farthest=math.inf, reach=math.inf)
    draft = _llt_numbers.numbers(
        unbounded._replace(farthest=1.0), nothing, k, mu, eta, known, 2.0**31 - 1
    )
    # Of a few sizes, for which tables are made once.
    reach = 2.0 ** (math.ceil(4.0 * math.log2(_ROOM * float(draft.radius))) / 4.0)
    found = unbounded._replace(farthest=_ROOM * float(draft.radius) * unit, reach=reach)
    if setting.exponent < 2.0 and reach > _FURTHEST:
        raise Infeasible(
            f"budget must ask for a chain that goes at most {_FURTHEST:g} units far, got {reach:.4g}"
        )
    made = Plan(
        setting=found,
        norm=asked.norm,
        constant_time=asked.constant_time,
        inverse_temperature=k,
        regularization=mu,
        step_size=eta,
        num_steps=known,
        num_trials=2.0**31 - 1,
        epsilon=asked.budget.epsilon,
        delta=asked.budget.delta,
        excess_bound=draw.risk,
    )
    if not bool(made.accounted):
        return made
    trials = capped_trials(int(known), float(made.numbers.acceptance), each)
    return dataclasses.replace(made, num_trials=float(trials))


def _widest(share: float) -> float:
    """The largest c̄ for which a step is within the share, with the best A; Infeasible if there is none."""
    low, high = math.log(1e-9), math.log(0.05)
    if _llt_numbers.least_error(math.exp(low))[0] > share:
        raise Infeasible(f"budget.delta must be larger: no step is within {share:.3g} of its law")
    fits = lambda log_c: _llt_numbers.least_error(math.exp(log_c))[0] <= share  # noqa: E731
    return math.exp(bisected(fits, low, high, 40))
