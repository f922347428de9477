"""The regularized exponential mechanism: one draw from exp(-k·(F + (μ/2)‖x - start‖²)), and no noise to tune.

What it computes: a point of that law, F the mean user loss of a linear model plus ridge, by the proximal
sampler: T steps, each with an anchor by gradient steps and trials by rejection. A loss with a kink is
replaced by its Moreau envelope.

Source: T, Theorems 3.2.1, 3.6.2, 3.6.4, 3.6.8 and 3.6.9 (Gopi, Lee and Liu 2022), Algorithm 13 for the chain;
the oracle and its certificate are this package's.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE. With L the Lipschitz constant of every
user's loss an exact draw is s-Gaussian DP, s = 2L·√k/(n·√(μ + ridge)). The law of the draw is within τ of
that in total variation, on every data set (docs/theory/proximal_sampler.md): T steps mix to a share of τ,
trials are capped at N, and the rounding of float64 is counted. Losses, with their constants, are those that
``problems.losses`` made. Only the draw is released: not the points before it, and not how many trials were
made, which ``Solution.unprivate`` tells, and the time that a run takes, unless ``constant_time``.
Utility, R ≥ ‖start - minimizer‖: E F - F* ≤ μR²/2 + d/k for an exact draw; what an envelope hides is added,
and 2L²/(n·(μ + ridge)) for the risk of the population (Theorem 3.6.7). Where losses are smooth and noise is
small, noisy gradient steps do better: ``routes`` compares.

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

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Count, Flag, Nonnegative, Positive, one_of
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.variation import gdp_within
from dpsco_jax.problems import envelopes
from dpsco_jax.problems.objective import Objective, OneHot
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _costs, _plan_base
from dpsco_jax.solvers._schedules import nominal_model
from dpsco_jax.solvers.sampling import _draw, _rows
from dpsco_jax.solvers.sampling import proximal_oracle as proximal
from dpsco_jax.solvers.sampling._precision import require_x64
from dpsco_jax.solvers.sampling.chain_lengths import capped_trials, mixing_steps
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "plan", "solve"]

_SIZES = (1e-100, 1e100)
_HIDDEN = 0.3  # by an envelope, of what is lost anyway
_UP = 1.0 + 2.0**-40
_SAMPLER = 0.2  # of δ: what τ may take of it, times 1 + e^ε
_EACH = 0.02  # of δ/(1 + e^ε): what mixing and the cap on trials take where rounding takes less
_FIRST = 2.05  # times that: τ, as a first guess
_TRIES = 60
_SMALLEST = 1e-100
_LONGEST = 200.0  # of ηm, for anchors to be found on their grid
_RAREST = 1e-4  # success of a trial
_MOST_DOUBLINGS = 12
_WORSE = 4  # regularizations in a row, of which the first is the best, end the search
_BOUND_BY_ROUNDING = 0.9  # of the s that δ allows without it
_LESS = 0.75  # of ε, tried in turn


@pytree
class Plan(_draw.GaussianDraw):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        setting: sizes of the data and proven constants of the loss.
        ridge: of the objective, centred at the origin.
        smoothing: γ of the Moreau envelope that stands in for a loss with a kink; 0 for a smooth loss.
        relative_step: c = ηkH.
        predicted_excess: what a draw is expected to reach on the nominal problem, and half of what an
            envelope may hide; no bound.
    """

    setting: proximal.Setting = static()
    ridge: float = static()
    smoothing: float = static()
    relative_step: Number
    predicted_excess: Number

    @property
    def numbers(self) -> proximal.Numbers:
        """What else follows for the run."""
        return proximal.numbers(
            self.setting,
            self.inverse_temperature,
            self.regularization + self.ridge,
            self.relative_step,
            self.num_steps,
            self.num_trials,
        )

    @property
    def gdp(self) -> Any:
        """The s of an exact draw, rounded up."""
        convexity = self.regularization + self.ridge
        change = 2.0 * self.setting.lipschitz
        return _draw.gdp(change, self.num_users, self.inverse_temperature, convexity)

    @property
    def variation(self) -> Any:
        """τ: how far the law of the draw is at most from that of an exact one."""
        return self.numbers.variation.total

    @property
    def user_gradients(self) -> Any:
        """Passes over the users, at most: J for each step and one for each trial; times the users."""
        most = self.num_steps * self.numbers.most_gradients + self.num_trials
        return most * self.num_users

    @property
    def accounted(self) -> Any:
        """Whether the proof covers a run with these numbers; a bool, may be traced."""
        return self.numbers.valid & (self.regularization >= 0)

    def work_for(self, item: _costs.Item) -> Work:
        """What a run costs at most: passes over the users, and a proposal for every trial."""
        return _costs.gradients(self.user_gradients, item) + self.proposals(item)

    def __str__(self) -> str:
        made = self.numbers
        return self.table(
            "regularized exponential mechanism",
            made.variation._asdict(),
            ("step size", f"{float(made.step_size):.5g}"),
            ("acceptance, at least", f"{float(made.acceptance):.3g}"),
            ("gradients of a step, at most", f"{float(made.most_gradients):.0f}"),
        )


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    regularization: Nonnegative | None = None,
    smoothing: float | None = None,
    columns_per_row: Count | None = None,
    risk: Annotated[str, one_of("empirical", "population")] = "empirical",
    relative_step: Positive = 3.0,
    max_steps: Count | None = None,
    constant_time: Flag = False,
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
    require_x64("regularized")
    population = risk == "population"
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
    asked = _Request(
        setting=proximal.sized(smooth, problem.num_users, problem.items_per_user, problem.dim),
        nominal=nominal_model.nominal(problem, columns_per_row),
        distance=distance,
        ridge=ridge,
        smoothing=smoothing,
        gap=gap,
        population=population,
        relative_step=relative_step,
        max_steps=max_steps,
        constant_time=constant_time,
    )
    if regularization is None:
        return _within(lambda spent: _best(asked, spent, middle), budget)
    if regularization + ridge <= 0:
        raise ValueError("regularization must be positive where the objective has no ridge, got 0")
    return _within(lambda spent: _planned(asked, spent, regularization), budget)


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
    plan = _draw.begun("regularized", Plan, key, plan, objective, data, params)
    slots = _draw.slots_of(data)
    if not isinstance(data.items.features, OneHot):
        width = np.shape(data.items.features)[-1]
        _checks.require(
            width == plan.dim, "data.items.features", width, f"of plan.dim = {plan.dim} columns"
        )
    if plan.smoothing:
        objective = envelopes.moreau_envelope(objective, plan.smoothing)
    setting = plan.setting
    found = proximal.sized(objective, plan.num_users, setting.items_per_user, plan.dim)
    if found != setting or float(objective.ridge) != plan.ridge:
        raise ValueError(f"objective must be that of plan.setting = {setting}, got {found}")

    convexity = plan.regularization + plan.ridge
    center = jnp.asarray(params, jnp.float64).ravel() * (plan.regularization / convexity)
    oracle = proximal.proximal_oracle(
        objective,
        data,
        center,
        inverse_temperature=plan.inverse_temperature,
        convexity=convexity,
        relative_step=plan.relative_step,
        num_steps=plan.num_steps,
        all_gradients=plan.constant_time,
    )
    end = _draw.chain(key, plan, oracle)
    draw = (center + end.params).reshape(params.shape).astype(params.dtype)
    # Beyond this, margins of the centre are not exact.
    unit = plan.numbers.anchor_unit * _rows.feature_unit(setting.feature_bound)
    longest = 2.0 ** (_rows.SIGNIFICAND_BITS - 1) * unit / setting.feature_bound
    near = jnp.linalg.norm(center) <= longest
    passes = jnp.asarray(plan.user_gradients, jnp.int64) * slots
    realized = (end.state.evaluations + end.num_trials).astype(jnp.int64)
    realized = realized * (plan.num_users * slots)
    return _draw.left_of(plan, draw, near, end, passes, realized)


def _smoothing(objective: Objective, smoothing: float | None, lost: float) -> float:
    """γ of the envelope; 0 where none is needed."""
    if objective.smoothness is not None:
        _checks.require(smoothing is None, "smoothing", smoothing, "None for a smooth loss")
        return 0.0
    if smoothing is not None:
        return _checks.require_real("smoothing", smoothing, 0.0)
    return _HIDDEN * lost / envelopes.envelope_gap(objective, 1.0)


class _Request(NamedTuple):
    """What is asked for, checked; the regularization is searched for or given apart."""

    setting: proximal.Setting
    nominal: nominal_model.Nominal
    distance: float
    ridge: float
    smoothing: float
    gap: float  # what the envelope hides at most
    population: bool
    relative_step: float
    max_steps: int | None
    constant_time: bool


def _within(plan: Callable[[privacy.Budget], Plan], budget: privacy.Budget) -> Plan:
    """The best plan for the budget or for a smaller ε.

    Raises:
        Infeasible: there is none; where δ is too small the refusal names one that would do, if there is any.
    """
    found = _draw.naming_delta(
        lambda delta: plan(privacy.Budget(budget.epsilon, delta)), budget.delta, 0.0, True
    )
    while found.gdp < _BOUND_BY_ROUNDING * privacy.gdp_within(found.epsilon, budget.delta):
        try:
            smaller = plan(privacy.Budget(_LESS * found.epsilon, budget.delta))
        except Infeasible:
            break
        if smaller.predicted_excess >= found.predicted_excess:
            break
        found = smaller
    return found


def _best(asked: _Request, budget: privacy.Budget, middle: float) -> Plan:
    """The plan with the least prediction, over regularizations around the one in the middle."""

    def prediction(made: Plan) -> Any:
        return made.predicted_excess

    tried: list[Plan] = []
    refusal: Infeasible | None = None
    for doublings in range(-4 * _MOST_DOUBLINGS, 4 * _MOST_DOUBLINGS + 1):
        try:
            tried.append(_planned(asked, budget, middle * 2.0 ** (doublings / 4)))
        except Infeasible as refused:
            # The last one that lacks δ says what is the matter, if any does.
            refusal = refused if refusal is None or refused.needed else refusal
        # Once one is possible, larger ones are, and in the end they only get worse.
        if len(tried) > _WORSE and min(tried[-_WORSE:], key=prediction) is tried[-_WORSE]:
            break
    if not tried:
        assert refusal is not None
        raise refusal
    return min(tried, key=prediction)


def _planned(asked: _Request, budget: privacy.Budget, regularization: float) -> Plan:
    """The plan for one regularization.

    Raises:
        Infeasible: no numbers of steps and trials make the draw private enough for the budget.
    """
    epsilon, delta = budget.epsilon, budget.delta
    setting, convexity = asked.setting, regularization + asked.ridge
    change = 2.0 * setting.lipschitz / setting.num_users
    least = _draw.share(_EACH, budget)
    guess, bias = _FIRST * least, regularization * asked.distance**2 / 2
    # Neighbours' laws are 2L/(nμ) apart in the Wasserstein distance, and losses L-Lipschitz.
    stability = 2.0 * setting.lipschitz**2 / (setting.num_users * convexity)
    generalization = stability if asked.population else 0.0
    for _ in range(_TRIES):
        # From the largest τ that may come out: the ε at which it takes a part of δ, which may be less than
        # what there is to spend, the temperature that it leaves, and what τ is then.
        left = _SAMPLER * delta / guess - 1.0
        if left <= _UP:
            raise Infeasible(
                "budget.delta must be far above the rounding of the sampler, a total variation of "
                f"{guess:.3g}, got {delta:.6g}",
                {"delta": delta},
            )
        s = gdp_within(min(epsilon, math.log(left)), delta, guess)
        k = (s / (_UP * _UP)) ** 2 * convexity / change**2
        steps, trials = _lengths(
            setting, k, convexity, asked.relative_step, max(least, 0.1 * guess)
        )
        made = Plan(
            setting=setting,
            ridge=asked.ridge,
            smoothing=asked.smoothing,
            constant_time=asked.constant_time,
            regularization=regularization,
            inverse_temperature=k,
            relative_step=asked.relative_step,
            num_steps=float(steps),
            num_trials=float(trials),
            epsilon=epsilon,
            delta=delta,
            excess_bound=bias + setting.dim / k + asked.gap + generalization,
            predicted_excess=_draw.expected_excess(asked.nominal, k, regularization)
            + asked.gap / 2
            + generalization,
        )
        if not made.accounted:
            raise Infeasible(
                "regularization must be larger for the grids of the sampler to hold its points, got "
                f"{regularization:.6g}"
            )
        spent = float(made.variation)
        if spent > guess:
            guess = 1.02 * spent
            continue
        if asked.max_steps is not None and made.num_steps > asked.max_steps:
            raise Infeasible(
                f"max_steps must be at least {made.num_steps:.0f} for regularization = "
                f"{regularization:.6g} and smoothing = {asked.smoothing:.6g}, got {asked.max_steps}",
                {"max_steps": made.num_steps},
            )
        return made
    raise Infeasible(f"budget must leave room for the sampler, got ({epsilon}, {delta})")


def _lengths(
    setting: proximal.Setting, k: float, convexity: float, relative_step: float, variation: float
) -> tuple[int, int]:
    """Steps and trials that leave the given total variation each."""
    larger = f"regularization must be larger, got {convexity:.6g} with the ridge"
    if not _SMALLEST < k * setting.smoothness < 1.0 / _SMALLEST:
        raise Infeasible(larger + ": the temperature is beyond what can be computed with")
    eta = relative_step / (k * setting.smoothness)
    hardest = -1.6 * math.log(_RAREST)
    if relative_step > hardest:
        raise Infeasible(
            f"relative_step must be {hardest:.3g} at most, for trials to succeed, got {relative_step:.6g}"
        )
    if eta * k * convexity > _LONGEST:
        limit = _LONGEST * setting.smoothness / relative_step
        raise Infeasible(
            f"regularization must be smaller, {limit:.6g} at most with the ridge for this relative_step, got "
            f"{convexity:.6g}"
        )
    acceptance = float(proximal.numbers(setting, k, convexity, relative_step, 1, 1).acceptance)
    start = setting.lipschitz / convexity + (setting.dim / (k * convexity)) ** 0.5
    try:
        steps = mixing_steps(min(variation, 0.5), eta, k * convexity, start)
        return steps, capped_trials(steps, acceptance, variation)
    except Infeasible as refusal:
        raise Infeasible(
            f"{larger}, or relative_step closer to 3, got {relative_step:.6g}: {refusal}"
        ) from None
