"""The regularized exponential mechanism by value queries alone: any convex Lipschitz loss, no gradients.

What it computes: one point of the law exp(-k·(F + ridge + μ·r(x - start))) on the whole space, a ball or a
box, F the mean user loss, by the proximal sampler with the oracle that rejects by an estimated exponential:
two trials of a few loss values for each of T steps.

    r(x) = ½‖x‖²,  or (w/2)·‖x‖_q² for ``norm`` = p below 2, which is strongly convex in ℓ_p

Source: T, Algorithms 13 and 14; Theorems 3.2.1, 3.6.2, 3.6.4, 3.6.8, 3.6.9, 4.1.3, 4.4.2, 4.4.6, 4.5.2 and
4.5.3, Propositions 4.4.7 to 4.4.9, Corollaries 4.4.10 to 4.4.12. Corrected (docs/corrections.md): differences
of losses are 2G-Lipschitz, τ costs 1 + e^ε times itself, and all constants are explicit.
``constants="paper"`` is the print, which is refused wherever its true ε is above the budget.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE. An exact draw is s-Gaussian DP, s =
G_Δ·√k/(n·√(σμ + ridge)); the law of the draw is within τ of that on every data set
(docs/theory/rejection_oracle.md): T steps, the clip of the estimate, the cap on trials and the rounding of
float64 have their parts. The loss is one of ``problems.losses``, with rows, labels and points within public
bounds. Only the draw is released, on a public grid; how many trials were made, and unless ``constant_time``
how long that took, depends on data. The start may not.
Utility: E F - F* ≤ μΘ + d/k for an exact draw, Θ = max r within the distance, and G_Δ·min(G, G_Δ)/(n·(σμ +
ridge)) more for the population.

Cost: T of about 13·log(T/τ)·(G/G_Δ)²·(sn)²·log(1/τ) steps in a row, whatever μ, times d^(2/q - 1) for q < 2,
and 3.44 losses of one user a trial. For n up to a few hundred. Needs ``jax_enable_x64``.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget, Problem
    >>> from dpsco_jax.problems import losses, synthetic
    >>> from dpsco_jax.solvers.sampling import value_queries
    >>> with jax.enable_x64(True):
    ...     made = synthetic.logistic_regression(jax.random.key(0), num_users=8, items_per_user=1, dim=2)
    ...     objective = losses.hinge(1.0)
    ...     problem = Problem(objective, num_users=8, dim=2, distance=3.0)
    ...     plan = value_queries.plan(problem, Budget(1.0, 1e-2))
    ...     start = jax.numpy.zeros(2)
    ...     run = jax.jit(lambda key: value_queries.solve(key, plan, objective, made.data, start))
    ...     solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((2,), 0, True)
"""

import math
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Constants, Count, Flag, Nonnegative, one_of, real
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry import domains, lp
from dpsco_jax.privacy.variation import gdp_within, variation_epsilon
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates import sampling_printed
from dpsco_jax.rates.norms import norm_ratio, regularizer_range, require_exponent
from dpsco_jax.solvers import _plan_base
from dpsco_jax.solvers._schedules import nominal_model
from dpsco_jax.solvers.sampling import (
    _draw,
    _rows,
    _user_losses,
    attempt_bounds,
    rejection_oracle,
    restricted_gaussian,
)
from dpsco_jax.solvers.sampling import _rejection_certificate as certificate
from dpsco_jax.solvers.sampling._precision import require_x64
from dpsco_jax.solvers.sampling._value_queries_plan import (
    Plan,
    Setting,
    center_of,
    ends_of,
    model_of,
    setting_of,
    target,
)
from dpsco_jax.solvers.solution import Solution

__all__ = ["Plan", "plan", "solve"]

_SIZES = (1e-30, 1e30)
_RELEASED = 32.0  # units of the grid of the released point in a deviation of a proposal, at least
_NEAR = 2.0**-20  # of a ball's radius: where a start in float32 may be for its centre
_WIDER = 1.0 + 2.0**-16
_SAMPLER = 0.1  # of δ/(1 + e^ε): τ; a fiftieth makes s 0.8 % larger and the chain a tenth longer
_LESS = 1.0 - 2.0**-10
_DOWN = 1.0 - 2.0**-30
_FARTHEST = 1000.0  # distances that a start may be from the origin
_TRIES = 6
_LEAST = 1e-6  # s


@_plan_base.remembers(least_users=1)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    regularization: Nonnegative | None = None,
    norm: float = 2.0,
    row_bound: Annotated[float, real(*_SIZES)] | None = None,
    risk: Annotated[str, one_of("empirical", "population")] = "empirical",
    thrifty: Flag = False,
    constants: Constants = "tight",
    max_steps: Count | None = None,
    columns_per_row: Count | None = None,
    constant_time: Flag = False,
) -> Plan:
    """Checks all arguments and finds temperature, regularization, steps and trials. All of them are public.

    Args:
        problem: for the objective, which must have a loss of ``problems.losses`` on the whole space, a ball
            around the start, or a box; n; the number of parameters; m, which is the most items that a user
            may have; and R, the distance in ``norm`` from the start to a minimizer. Where it is left out,
            that of the ball or box; with a ridge there need be none.
        budget: (ε, δ) of the draw, δ > 0.
        regularization: μ ≥ 0; the one of the least ``excess_bound`` if left out: none where the ridge is
            enough.
        norm: p ≥ 1. Below 2 the domain must be the whole space, unless log(dim) ≤ 2.
        row_bound: bound on rows in ℓ_p*, 1/p + 1/p* = 1: longer ones are scaled onto it, beside
            ``feature_bound``. Without it p below 2 gains nothing. For vector linear models.
        risk: ``"empirical"`` or ``"population"``: which risk ``excess_bound`` bounds.
        thrifty: of the population's risk: less is released where that saves steps, min(s, √(2d/n)), which
            costs a constant factor of risk.
        constants: ``"tight"``, or ``"paper"``: k, μ and τ as printed.
        max_steps: the most steps T; s is lowered to what they do, and the draw is more private.
        columns_per_row: entries of a one-hot row, which the prediction counts with; ``None`` for dense rows.
        constant_time: whether all N trials are made, each with all its values, so that time tells nothing.

    Raises:
        ValueError: an argument is out of range, ``jax_enable_x64`` is off, the loss or the domain is not of
            these kinds, or printed constants are not private: the message has their true ε.
        Infeasible: float64 or 2³¹ trials are too few for such a draw, or ``max_steps``.
    """
    require_x64("value_queries")
    norm = require_exponent("norm", norm)
    population = risk == "population"
    _checks.require(population or not thrifty, "thrifty", thrifty, "False for the empirical risk")
    _checks.require_integer("problem.num_users", problem.num_users, 1, 2**31 - 1)
    _checks.require_real("problem.objective.lipschitz", problem.objective.lipschitz, *_SIZES)
    ridge = float(problem.objective.ridge)
    if problem.distance is not None or not ridge:
        _checks.require_real("problem.distance", problem.require_distance(), *_SIZES)
    if regularization == 0.0 and not ridge:
        raise ValueError("regularization must be positive without a ridge, got 0")
    setting = setting_of(
        *(problem.objective, problem.num_users, problem.items_per_user),
        *(problem.dim, norm, row_bound),
    )
    asked = _Request(
        *(problem, setting, regularization, population, thrifty, max_steps),
        *(columns_per_row, constant_time),
    )
    return _printed(asked, budget) if constants == "paper" else _tight(asked, budget)


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Makes the draw. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``, for this very objective.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users, of at most ``plan.setting.items_per_user`` slots.
        params: the start, the centre of the regularization, of the shape that the loss takes, which may not
            depend on the data. On a box it is put into the box; on a ball a start that is not its centre
            costs infinity, as on the whole space one that is farther out than ``plan.sizes.start_norm``.

    Returns:
        The draw. ``gradients`` is public, so it counts the values that all N trials would read. What was read
        is in ``unprivate``, as are the trials.

    Raises:
        ValueError: the sizes are not the planned ones, ``jax_enable_x64`` is off, or the objective does not
            have the proven constants that were planned for.
    """
    plan = _draw.begun("value_queries", Plan, key, plan, objective, data, params)
    setting, model, slots = plan.setting, model_of(objective), _draw.slots_of(data)
    start, shaped = _start(params)
    sizes = (setting.num_users, setting.items_per_user, setting.dim)
    found = setting_of(objective, *sizes, setting.norm, setting.row_bound)
    if found != setting:
        raise ValueError(f"objective must be that of plan.setting = {setting}, got {found}")

    center, pull, near = _center(plan, objective, jnp.ravel(start))
    users_losses = _user_losses.user_losses(
        *(objective, model, data, center.reshape(start.shape), plan.sizes),
        *(setting.norm, setting.row_bound),
    )
    oracle = _oracle(plan, users_losses, _restricted(plan, objective, center, pull))
    end = _draw.chain(key, plan, oracle)
    draw = _released(plan, objective, center, end.params)
    each = 2.0 * plan.num_terms if plan.constant_time else 2.0 * (math.e - 1.0)
    queries, realized = (
        jnp.ceil(count).astype(jnp.int64) * slots
        for count in (plan.value_queries, each * end.num_trials)
    )
    return _draw.left_of(plan, shaped(draw), near, end, queries, realized)


def _start(params: Any) -> tuple[Any, Any]:
    """The start in float64, a vector unless it is one array, and the way back to its form."""
    if jax.tree_util.treedef_is_leaf(jax.tree.structure(params)):
        kind = jnp.asarray(params).dtype
        start = jnp.asarray(params).astype(jnp.float64)
        return start, lambda point: point.reshape(start.shape).astype(kind)
    flat, back = jax.flatten_util.ravel_pytree(params)
    return flat.astype(jnp.float64), lambda point: back(point.astype(flat.dtype))


def _center(plan: Plan, objective: Objective, start: Any) -> tuple[Any, Any, Any]:
    """Where moves are counted from, from there the centre of the pull, and whether that is covered."""
    setting = plan.setting
    share = plan.setting.ridge / setting.convexity(plan.regularization)
    near = jnp.array(True)
    if setting.set_name == "whole_space":
        center, pull = (1.0 - share) * start, jnp.zeros_like(start)
    else:
        if setting.set_name == "ball":
            center = jnp.asarray(center_of(objective, start.shape))
            near = jnp.linalg.norm(start - center) <= _NEAR * setting.radius
        else:
            center = jnp.clip(start, *ends_of(objective))
        pull = -share * center
    return center, pull, near & (jnp.linalg.norm(center) <= plan.sizes.start_norm)


def _restricted(plan: Plan, objective: Objective, center: Any, pull: Any) -> Any:
    """The law of proposals for moves."""
    setting, k = plan.setting, plan.inverse_temperature
    if setting.tangent:
        regularizer = lp.Regularizer(setting.norm, setting.dim)
        scale = k * plan.regularization
        return restricted_gaussian.tangent(
            plan.step_size,
            lambda move: scale * regularizer.value(move),
            lambda move: scale * regularizer.gradient(move),
        )
    around = (plan.step_size, k * setting.convexity(plan.regularization), pull)
    if setting.set_name == "ball":
        return restricted_gaussian.convex_set(*around, domains.ball(setting.radius))
    if setting.set_name == "box":
        lower, upper = ends_of(objective)
        return restricted_gaussian.box(*around, lower - center, upper - center)
    return restricted_gaussian.whole_space(*around)


def _oracle(plan: Plan, users: _user_losses.UserLosses, restricted: Any) -> Any:
    return rejection_oracle.oracle(
        users.loss,
        users.records,
        restricted,
        num_records=plan.num_users,
        scale=plan.inverse_temperature,
        num_terms=plan.num_terms,
        constant_time=plan.constant_time,
    )


def _released(plan: Plan, objective: Objective, center: Any, move: Any) -> Any:
    """The point on a grid of its own, towards the centre: its last digits would tell how it was reached."""
    convexity = plan.inverse_temperature * plan.setting.convexity(plan.regularization)
    deviation = jnp.sqrt(plan.step_size / (1.0 + plan.step_size * convexity))
    unit = _rows.power_below(deviation / _RELEASED)
    point = center + jnp.trunc(move / unit) * unit
    return jnp.clip(point, *ends_of(objective)) if plan.setting.set_name == "box" else point


class _Request(NamedTuple):
    """What is asked for, checked."""

    problem: Problem
    setting: Setting
    regularization: float | None
    population: bool
    thrifty: bool
    max_steps: int | None
    columns_per_row: int | None
    constant_time: bool

    @property
    def reach(self) -> float:
        """Θ: how far r ranges within the distance; infinite if there is none."""
        problem, setting = self.problem, self.setting
        ranges = [math.inf]
        if problem.distance is not None:
            ranges.append(regularizer_range(setting.norm, setting.dim, problem.distance))
        if not setting.tangent:
            farthest = {"ball": setting.radius, "box": setting.diameter}.get(setting.set_name)
            ranges.append(0.5 * setting.weight * (farthest or math.inf) ** 2)
        return min(ranges)

    @property
    def generalization(self) -> float:
        """What the population's risk has more than the empirical one, times λ; 0 if it is not asked for."""
        setting = self.setting
        apart = setting.change * min(setting.lipschitz, setting.change) / setting.num_users
        return apart if self.population else 0.0


def _tight(asked: _Request, budget: privacy.Budget) -> Plan:
    """The plan whose certificate is at most the budget."""
    epsilon, delta = budget.epsilon, budget.delta
    tau = _draw.share(_SAMPLER, budget)
    s = gdp_within(epsilon, delta, tau) * _DOWN
    if asked.thrifty:
        s = min(s, math.sqrt(2.0 * asked.setting.dim / asked.setting.num_users))
    while True:
        try:
            found = _with_gdp(asked, budget, s, tau)
            break
        except Infeasible:
            if asked.max_steps is None or s < _LEAST:
                raise
            s *= 0.5
    if asked.max_steps is None or found.num_steps <= asked.max_steps:
        return _private(found, budget)
    # Steps are as s², but for logarithms: what fits best of a few.
    best: Plan | None = None
    for _ in range(_TRIES):
        s *= math.sqrt(asked.max_steps / float(found.num_steps))
        found = _with_gdp(asked, budget, s, tau)
        if found.num_steps > asked.max_steps:
            s *= 1.0 - 1e-3
        elif best is None or found.gdp > best.gdp:
            best = found
    if best is None:
        raise Infeasible(
            f"max_steps must be at least {found.num_steps:.0f} for s = {s:.3g}, got {asked.max_steps}",
            {"max_steps": float(found.num_steps)},
        )
    return _private(best, budget)


def _printed(asked: _Request, budget: privacy.Budget) -> Plan:
    """The plan with k, μ and τ of the theorem for the request, refused where its true ε is too large."""
    setting, epsilon, delta = asked.setting, budget.epsilon, budget.delta
    slope = setting.lipschitz / math.sqrt(setting.modulus)
    if setting.ridge > 0 or asked.regularization is not None:
        # Theorems 4.5.2 and 4.5.3.
        mu = asked.regularization or 0.0
        k = (setting.num_users * epsilon / setting.lipschitz) ** 2 * setting.convexity(mu)
        k, tau = k / (2.0 * _log_half(delta)), delta / 2.0
    else:
        theorem = ("3.6.9" if asked.population else "3.6.4") if setting.norm == 2.0 else ""
        theorem = theorem or ("4.4.6" if asked.population else "4.4.2")
        sizes = (setting.num_users, setting.dim, epsilon, delta, slope, asked.reach, slope)
        drawn = sampling_printed.printed(theorem, *sizes)
        k, mu = drawn.inverse_temperature, drawn.regularization
        tau = delta / 3.0 if theorem.startswith("3") else delta / 2.0
    return _private(_made(asked, budget, k, mu, tau), budget, "as printed")


def _log_half(delta: float) -> float:
    if not delta < 0.5:
        raise ValueError(f"budget.delta must be in (0, 0.5) for printed constants, got {delta}")
    return -math.log(2.0 * delta)


def _private(made: Plan, budget: privacy.Budget, which: str = "") -> Plan:
    spent = variation_epsilon(float(made.gdp), float(made.chain.variation), budget.delta)
    if spent > budget.epsilon and not which:
        raise Infeasible(
            "problem must be in units in which temperature, regularization and steps are within 1e30, got "
            f"k = {float(made.inverse_temperature):.3g}, mu = {float(made.regularization):.3g}, "
            f"eta = {float(made.step_size):.3g}"
        )
    if spent > budget.epsilon:
        raise ValueError(
            f"constants must be 'tight': {which} a draw for epsilon = {budget.epsilon:g}, delta = "
            f"{budget.delta:g} has the true epsilon = {spent:.6g}"
        )
    return made


def _with_gdp(asked: _Request, budget: privacy.Budget, s: float, tau: float) -> Plan:
    setting = asked.setting
    cold = (s * setting.num_users / setting.change) ** 2
    mu = asked.regularization
    if mu is None:
        lost = setting.dim / cold + asked.generalization
        # 0 where nothing bounds the distance.
        least = math.sqrt(lost * setting.modulus / asked.reach)
        mu = max(0.0, least - setting.ridge) / setting.modulus
    return _made(asked, budget, cold * setting.convexity(mu), mu, tau)


def _made(asked: _Request, budget: privacy.Budget, k: float, mu: float, tau: float) -> Plan:
    setting, problem = asked.setting, asked.problem
    convexity = setting.convexity(mu)
    lost = mu * asked.reach if mu > 0 else 0.0
    generalization = asked.generalization / convexity
    sizes, variation = _sizes(asked, k, convexity), _LESS * tau
    try:
        chain = certificate.planned(variation, target(setting, sizes, k, mu, None))
    except Infeasible as refusal:
        raise Infeasible(
            "problem.num_users or budget.epsilon must be smaller, or max_steps given, for steps as many as "
            f"their squares, got {setting.num_users} and {budget.epsilon:g}: {refusal}"
        ) from None
    bounds = None
    if setting.set_name == "ball":
        deviation = math.sqrt(chain.step_size / (1.0 + chain.step_size * k * convexity))
        farthest = attempt_bounds.farthest_start(setting.dim, chain.num_steps, chain.escape)
        bounds = (deviation * _WIDER, farthest)
    predicted = math.nan
    if setting.norm == 2.0 and math.isfinite(problem.farthest):
        nominal = nominal_model.nominal(problem, asked.columns_per_row)
        predicted = _draw.expected_excess(nominal, k, mu) + generalization
    return Plan(
        setting=setting,
        sizes=sizes,
        num_terms=chain.num_terms,
        ball_bounds=bounds,
        constant_time=asked.constant_time,
        regularization=mu,
        inverse_temperature=k,
        step_size=float(chain.step_size),
        num_steps=float(chain.num_steps),
        num_trials=float(chain.num_trials),
        escape=float(chain.escape),
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=lost + setting.dim / k + generalization,
        predicted_excess=predicted,
    )


def _sizes(asked: _Request, k: float, convexity: float) -> _user_losses.Sizes:
    """Far beyond where a run goes, and so near that values of that size are computed well enough."""
    problem, setting = asked.problem, asked.setting
    usual = setting.euclidean / convexity + math.sqrt(setting.dim / (k * convexity))
    far = problem.farthest * norm_ratio(2.0, setting.norm, setting.dim)
    distance = usual if math.isinf(far) else far
    start_norm = _FARTHEST * max(distance, 1.0)
    if setting.set_name != "whole_space":
        start_norm = max(start_norm, float(np.asarray(problem.objective.domain.norm)))
    bound = _user_losses.label_bound(setting.feature_bound, start_norm, 8.0 * max(usual, distance))
    return _user_losses.Sizes(
        start_norm, max(bound, _user_losses.label_bound(1.0, setting.slope, 0.0))
    )
