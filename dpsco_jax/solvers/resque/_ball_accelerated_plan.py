"""The plan of private ERM by ball acceleration: its sizes, its noise, and refusal of what would return noise.

All line searches are budgeted, where the thesis has one an iteration (2.29), and ρ = ε_opt/L: a linear model
sees one direction of a shift, smoothing raises it by at most Lρ·E|N(0, 1)|, and no number of balls depends on
the dimension. The thesis's ρ = ε_opt/(L√dim) is for any loss.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import numpy as np

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import (
    Constants,
    Count,
    Flag,
    Kind,
    Positive,
    integer,
    one_of,
    real,
    require_fields,
)
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import multilevel
from dpsco_jax.privacy import Budget
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, plans
from dpsco_jax.solvers.ball import ball_acceleration
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque import _calls
from dpsco_jax.solvers.resque._accounting import OfCalls
from dpsco_jax.solvers.resque._calls import SAMPLINGS
from dpsco_jax.solvers.resque._one_ball import Ratio, Sampling

SEARCHES = ("doubling", "bisection", "fixed")
PROXES = ("plain", "mlmc", "mlmc_extended")

GOOD_ERROR, WORST_ERROR = 0.2, 0.5
"""Of a call's answer, relative to the ball: harmless below the first, useless above the second."""

Condition = Annotated[float, real(1, closed=True)]
_ABOVE_ZERO = functools.partial(_checks.require_within, low=0, high=math.inf, open_low=True)
LargestError = Annotated[float, Kind(_ABOVE_ZERO)]

LEAST_CONDITION = 5.0
"""Of a κ that is chosen: a target worth a run."""

_OBSERVED = 5.0  # C_sc of Algorithm 10; 8192 is proved
_ITERATIONS = 2.5  # over K; 3.5 certify the target if all answers are exact
_CLOSE = 1.05  # an error this near to a harmless one is it
_ATTEMPTS = 8  # at a κ; four mostly do


@dataclasses.dataclass(frozen=True)
class Calls:
    """How a run makes its private calls. What is left out depends on ``constants`` and the problem.

    Attributes:
        radius_ratio: ρ/r ≥ 2.001, the radius of smoothing over that of the balls; 10 to 16 is best.
        sampling: of the users of a call, ``"without_replacement"`` or ``"with_replacement"``; the first for
            ``constants="tight"`` if left out, the second for ``"paper"``.
        num_queries: T ≥ 4 of a call, rounded down to a power of two; a fifth of the users (1/20 with
            replacement) if left out.
        search: ``"doubling"`` (tight if left out), ``"bisection"`` (paper) or ``"fixed"`` (none: λ = L/r).
        prox: ``"plain"``: one call (tight if left out). ``"mlmc"``: Algorithm 11, with levels up to n
            queries. ``"mlmc_extended"``: with levels up to n²/T queries, without which its bias is not what
            Theorem 2.4.19 asks for (paper).
        reuse: whether the accepted answer of the search serves as ball and prox point (tight if left out);
            a heuristic, not a matter of privacy.
        search_runs: calls that a line search aggregates, best an odd number; 1 (tight) or the theorem's
            (paper) if left out.
        num_iterations: outer iterations at most; 2.5 K, K = (R/r)^(2/3), if left out (3.5 K certify the
            target if all answers are exact).
        max_searches: line searches in an iteration; 2 if left out.
        levels_seed: of the public coins of ``prox="mlmc"``.
        constants: ``"tight"`` or ``"paper"``. The printed constants themselves ask for 10^9 users or more.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> from dpsco_jax.solvers.item_level import ball_accelerated_erm
        >>> ball_accelerated_erm.Calls(num_queries=64, search="fixed").radius_ratio
        12.0
    """

    radius_ratio: Ratio = 12.0
    sampling: Sampling | None = None
    num_queries: Annotated[int, integer(4)] | None = None
    search: Annotated[str, one_of(*SEARCHES)] | None = None
    prox: Annotated[str, one_of(*PROXES)] | None = None
    reuse: Flag | None = None
    search_runs: Count | None = None
    num_iterations: Count | None = None
    max_searches: Count | None = None
    levels_seed: Annotated[int, integer(0)] = 0
    constants: Constants = "tight"

    def __post_init__(self) -> None:
        require_fields(self)


DEFAULT = Calls()


@pytree
class Plan(OfCalls):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree.

    Attributes:
        num_users: n.
        dim: number of parameters.
        num_queries: T of a strongly convex call, a power of two.
        sampling: ``"without_replacement"`` or ``"with_replacement"``, of the users of a call.
        prox: ``"plain"``, ``"mlmc"`` or ``"mlmc_extended"``.
        search_runs: independent calls that a line search aggregates.
        max_level: the highest level of the prox oracle; level j makes 2^j T queries with β 2^(-j/2).
        prox_levels: of every prox estimate of the run, one tuple of ``copies`` levels for each iteration,
            static; drawn beforehand, of public coins. 0: no correction. Empty where ``max_level`` is 0.
        proven: the β, ρ/r and δ that the loss is for, static; ``None`` before calibration. A plan whose
            numbers are changed beyond them is charged an unbounded loss.
        outer: of ``ball_acceleration.plan``.
        smoothing_radius: ρ.
        beta: of a call at level 0.
        epsilon: ε of the budget.
        delta: δ of the budget.
    """

    num_users: int = static()
    dim: int = static()
    num_queries: int = static()
    sampling: str = static(choices=SAMPLINGS)
    prox: str = static(choices=PROXES)
    search_runs: int = static()
    max_level: int = static(least=0)
    prox_levels: tuple[tuple[int, ...], ...] = static()
    proven: accounting.Proven | None = static()
    outer: Any
    smoothing_radius: Number
    beta: Number
    epsilon: Number
    delta: Number

    @property
    def lipschitz(self) -> Any:
        """Lipschitz constant L of every user's loss."""
        return self.outer.lipschitz

    @property
    def ball_radius(self) -> Any:
        """Radius r of the balls."""
        return self.outer.ball_radius

    @property
    def quadratics(self) -> Mapping[str, Any]:
        """By name the weights of all quadratic terms; λ stays between two numbers of the outer plan."""
        outer = self.outer
        return {"outer.regularization": outer.regularization, "outer.largest": outer.largest}

    @property
    def copies(self) -> int:
        """Multilevel estimates that a prox oracle averages; 0 where answers are reused."""
        if self.outer.reuse:
            return 0
        return max(map(len, self.prox_levels), default=0) if self.max_level else 1

    @property
    def kinds(self) -> tuple[tuple[int, float, bool], ...]:
        """(queries, β over that of level 0, with replacement) of a strongly convex call at each level."""
        queries = _checks.require_integer("num_queries", self.num_queries, 4)
        return tuple(
            (
                queries << j,
                2.0 ** (-j / 2),
                self.sampling == "with_replacement" or queries << j > self.num_users,
            )
            for j in range(self.max_level + 1)
        )

    @property
    def level_counts(self) -> tuple[int, ...]:
        """Calls of each level for all prox estimates: one of level 0, and J and J - 1 where J > 0."""
        iterations, counts = self.outer.num_iterations, [0] * (self.max_level + 1)
        if self.outer.reuse:
            return tuple(counts)
        if self.max_level == 0:
            return (iterations,)
        shape = {len(row) for row in self.prox_levels}
        if len(self.prox_levels) != iterations or len(shape) != 1 or 0 in shape:
            raise ValueError(
                "prox_levels must have a row, all of one length, for each of outer.num_iterations ="
                f" {iterations} iterations, got {len(self.prox_levels)} rows of lengths {sorted(shape)}"
            )
        for level in itertools.chain(*self.prox_levels):
            _checks.require_integer("prox_levels", level, 0, self.max_level)
            for made in {0: (0,)}.get(level, (0, level, level - 1)):
                counts[made] += 1
        return tuple(counts)

    @property
    def budgeted(self) -> tuple[int, ...]:
        """How many strongly convex calls of each kind could be made."""
        outer = self.outer
        search = _checks.require_choice("outer.search", outer.search, SEARCHES)
        iterations = _checks.require_integer("outer.num_iterations", outer.num_iterations, 1)
        runs = _checks.require_integer("search_runs", self.search_runs, 1)
        counts = list(self.level_counts)
        if search != "fixed":
            most = _checks.require_integer("outer.max_searches", outer.max_searches, 1)
            counts[0] += iterations * most * runs
        if search == "fixed" or not outer.reuse:
            counts[0] += iterations
        return tuple(counts)

    def calls_at(self, beta: float, radius_ratio: float) -> accounting.Calls:
        """The localized calls that could be made with another β of level 0 and ρ/r."""
        made: list[Any] = []
        for (queries, factor, replacement), count in zip(self.kinds, self.budgeted, strict=True):
            if count:
                call = self.call_of(queries, beta * factor, radius_ratio, replacement)
                made += accounting.repeated(accounting.strongly_convex_calls(call), count)
        return made

    @property
    def user_gradients(self) -> int:
        """Bound on the user gradients of a run."""
        sizes = (queries for queries, _, _ in self.kinds)
        return sum(count * size for count, size in zip(self.budgeted, sizes, strict=True))

    @property
    def predicted_error(self) -> float:
        """Root mean square distance of a call's answer from its target over r, as observed, at λ_min.

        It is (L/λ)·√(2 C_sc (dim/(βT)² + 1/T))/r with C_sc = 5, as observed, at the least λ of the run.
        """
        beta, outer = float(self.beta), self.outer
        noise = self.dim / (beta * self.num_queries) ** 2 + 1.0 / self.num_queries
        scale = float(outer.lipschitz) / float(outer.regularization)
        return scale * math.sqrt(2.0 * _OBSERVED * noise) / float(outer.ball_radius)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What privacy and accuracy assume."""
        near = f"a minimizer lies within {float(self.outer.distance):.4g} of the start"
        return (*super().assumes, near)

    def __str__(self) -> str:
        remarks = [
            ("smoothing_adds_at_most", f"{self.smoothing_bias:.5g}"),
            ("private_calls_budgeted", sum(self.budgeted)),
            ("passes at most", f"{self.user_gradients / self.num_users:.4g}"),
        ]
        return plans.describe("private ERM by ball acceleration", self, remarks)


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: Budget,
    *,
    condition: Condition | None = None,
    smoothing_radius: Positive | None = None,
    calls: Calls = DEFAULT,
    largest_error: LargestError = WORST_ERROR,
) -> Plan:
    """Checks all arguments, lists the calls, calibrates their noise. All arguments are public.

    Args:
        problem: for the objective, a linear model with a loss that is convex and Lipschitz on the whole
            space, n ≥ 2 users, the number of parameters, and R; the domain's diameter in its place if it has
            none.
        budget: (ε, δ) of the run, δ > 0.
        condition: κ ≥ 1 of the target ε_opt = LR/κ; if left out, the largest one from 5 on at which the
            ``predicted_error`` is harmless, at most 0.2 and ``largest_error``. What is reached is mostly 20
            to 100 times better than the target.
        smoothing_radius: ρ; if left out, ε_opt/L, or ε_opt/(L√dim) for ``constants="paper"``.
        calls: how private calls are made, a ``Calls``.
        largest_error: refuse plans whose ``predicted_error`` is above.

    Raises:
        ValueError: an argument is out of range, or the loss has no proof.
        Infeasible: the plan would return noise; ``needed`` has values that would do.
    """
    drafted = functools.partial(
        draft, problem, budget, smoothing_radius=smoothing_radius, calls=calls
    )
    return conditioned(drafted, condition, largest_error)


def conditioned(
    drafted: Callable[[float], Plan],
    condition: float | None,
    largest_error: float,
    near: float | None = None,
    first: float = LEAST_CONDITION,
) -> Plan:
    """The calibrated plan of κ; of the largest one with a harmless error if that is left out.

    Args:
        drafted: a plan of κ, with ε, δ, and no β yet.
        condition: κ, or ``None``.
        largest_error: as for ``plan``.
        near: about β, if something is known.
        first: κ that is tried first.
    """
    if condition is not None:
        return calibrated(drafted(condition), largest_error, near)
    good = min(GOOD_ERROR, largest_error)
    kappa = max(LEAST_CONDITION, first)
    made = _attempt(drafted(kappa), near)
    for _ in range(_ATTEMPTS):
        left = good / (made.predicted_error if made is not None else math.inf)
        if 1 <= left <= _CLOSE or (left < 1 and kappa == LEAST_CONDITION):
            break
        # The error grows a little slower than κ: up it comes nearer from below.
        kappa = max(LEAST_CONDITION, kappa * (left if left > 1 else max(0.98 * left, 0.25)))
        made = _attempt(drafted(kappa), None if made is None else float(made.beta))
    if made is None or made.predicted_error > good:
        return calibrated(drafted(LEAST_CONDITION), largest_error, near)
    return made


def _attempt(drafted: Plan, near: float | None) -> Plan | None:
    """The calibrated plan, or nothing where none can be run."""
    with contextlib.suppress(Infeasible):
        return calibrated(drafted, math.inf, near)
    return None


def calibrated(drafted: Plan, largest_error: float, near: float | None = None) -> Plan:
    """The plan with the largest β that its budget allows; ``near`` is one of a similar plan, if there is one.

    ``Infeasible`` if the predicted error is above the largest.
    """
    accounting.require_runnable(drafted)
    accounting.require_numbers(drafted)
    beta = accounting.largest_beta(drafted, near)
    made = dataclasses.replace(drafted, beta=beta)
    if made.predicted_error > largest_error:
        raise _refusal(made, largest_error)
    return accounting.proved(made, beta, float(made.delta))


def draft(
    problem: Problem,
    budget: Budget,
    condition: float = 5.0,
    smoothing_radius: float | None = None,
    calls: Calls = DEFAULT,
) -> Plan:
    """The sizes, from the arguments of ``plan``; β = 1 and no loss yet."""
    num_users, distance = problem.num_users, problem.require_distance()
    _calls.require_linear(problem.objective)
    _checks.require_instance("calls", calls, Calls)
    paper = calls.constants == "paper"
    sampling = calls.sampling or ("with_replacement" if paper else "without_replacement")
    search = calls.search or ("bisection" if paper else "doubling")
    prox = calls.prox or ("mlmc_extended" if paper else "plain")
    lipschitz = problem.lipschitz
    excess = lipschitz * distance / condition
    if smoothing_radius is None:
        smoothing_radius = excess / (lipschitz * (math.sqrt(problem.dim) if paper else 1.0))
    smoothing = _checks.require_real("smoothing_radius", smoothing_radius, 0)
    queries = _calls.power_of_two(num_users, calls.num_queries, sampling, least=4, most=num_users)
    num_iterations, max_searches = calls.num_iterations, calls.max_searches
    if not paper and search != "fixed":
        balls = (distance * calls.radius_ratio / smoothing) ** (2 / 3)
        num_iterations = num_iterations or math.ceil(_ITERATIONS * balls)
        max_searches = max_searches or 2
    outer = ball_acceleration.plan(
        lipschitz=lipschitz,
        distance=distance,
        ball_radius=smoothing / calls.radius_ratio,
        excess=excess,
        search=search,
        reuse=not paper if calls.reuse is None else calls.reuse,
        log_power=2.0 if paper else 0.0,
        num_iterations=num_iterations,
        max_searches=max_searches,
    )
    iterations = outer.num_iterations
    search_runs = calls.search_runs
    if search_runs is None:
        failure = 1 / (condition * iterations * max(outer.max_searches, 1))
        search_runs = math.ceil(20 * math.log(1 / failure)) if paper else 1
    max_level = copies = 0
    if not outer.reuse and prox != "plain":
        octaves = math.log2(num_users / queries)
        max_level = copies = math.floor(octaves) if prox == "mlmc" else math.ceil(2 * octaves)
        if max_level < 1:
            raise ValueError(
                f"num_queries must be at most {num_users // 2} for prox={prox!r}, got {queries}"
            )
    levels: tuple[tuple[int, ...], ...] = ()
    if max_level:
        coins = jax.random.key(calls.levels_seed)
        drawn = multilevel.draw_levels(coins, max_level, (iterations, copies))
        levels = tuple(tuple(row) for row in np.asarray(drawn).tolist())
    return Plan(
        num_users=num_users,
        dim=problem.dim,
        num_queries=queries,
        sampling=sampling,
        prox=prox,
        search_runs=search_runs,
        max_level=max_level,
        prox_levels=levels,
        proven=None,
        outer=outer,
        smoothing_radius=smoothing,
        beta=1.0,
        epsilon=budget.epsilon,
        delta=budget.delta,
    )


def _refusal(plan: Plan, largest: float) -> Infeasible:
    """Says by how much, and which number of users or which ε would do."""

    def enough(**changes: Any) -> bool:
        changed = dataclasses.replace(plan, **changes)
        beta = accounting.largest_beta(changed)
        return dataclasses.replace(changed, beta=beta).predicted_error <= largest

    # The error falls at most like 1/n or 1/ε; a few doublings beyond what that asks for.
    least = max(1, math.floor(math.log2(plan.predicted_error / largest)))
    factors = [2**i for i in range(least, least + 6)]
    needed: dict[str, float] = {"largest_error": plan.predicted_error}
    remedies = ["a smaller condition"]
    epsilons = (factor * float(plan.epsilon) for factor in factors)
    if epsilon := next((one for one in epsilons if enough(epsilon=one)), None):
        needed["epsilon"] = epsilon
        remedies.insert(0, f"epsilon = {epsilon:g}")
    sizes = ((factor * plan.num_users, factor * plan.num_queries) for factor in factors)
    if size := next((n for n, t in sizes if enough(num_users=n, num_queries=t)), None):
        needed["num_users"] = size
        remedies.insert(0, f"{size} users")
    return Infeasible(
        f"condition = {float(plan.outer.lipschitz) * float(plan.outer.distance) / float(plan.outer.excess):g}"
        f" is out of reach of {plan.num_users} users at epsilon = {float(plan.epsilon):g}: answers would be"
        f" {plan.predicted_error:.3g} ball radii from their targets, which is above largest_error ="
        f" {largest:g}; {' or '.join(remedies)} would do",
        needed,
    )
