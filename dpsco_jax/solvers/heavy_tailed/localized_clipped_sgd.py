"""Localized clipped SGD for smooth losses: one pass, with clip events behind a hidden noisy test.

What it computes: the users are cut into phases that halve. Phase i makes one pass of projected SGD, with
steps η_i, from where the last has ended. A user's gradient is clipped to C if its norm reaches C in a noisy
test against one noisy threshold, drawn once a phase; other gradients are left as they are, up to a guard of
11C/8. Once so many were clipped as a noisy limit allows the phase has failed, the run halts, and what the
last phase has released is returned. Else the average of the points leaves, with Gaussian noise, projected.

Source: T, Algorithm 42, Theorem 12.7.6, **which has no proof of privacy as it is printed** (H8, H9, H18 in
docs/corrections/heavy_tails.md). Four changes are made: phases are disjoint; the threshold is not drawn
anew; what leaves is projected; a run that halts returns the last point that was released, and not where.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, in all:
docs/theory/localized_clipping.md. An unclipped step of a convex β-smooth loss with η_iβ ≤ 2 expands nothing,
a clipped one at most by 1 + η_iβ, so with at most c clipped steps averages are S = 2·(11/8)·η_iC·(1 +
η_iβ)^c apart, and gradients' norms Δ = βS, if decisions on all other users are the same. Decisions are
covered by the sparse vector technique with one threshold, in which the replaced user's own decision is
hidden; the limit by Laplace noise; the average by Gaussian noise for S. What all that misses has a
probability that ``loss`` charges. A run takes as long wherever it halts. Convexity, smoothness and exact
projections are by construction: losses and domains of this package.

Heavy tails: as of ``phased_clipped_glm``. The test needs Δ far below C, so **η_iβ of the order of 10^-5**:
losses that are nearly linear, or very many users. For linear models use ``phased_clipped_glm``.

Utility: ``excess_bound``, for i.i.d. users with the moments given: the explicit sum of what phases lose, and
G_1·D for a run that halts, which is rare.

Cost: one gradient for each item, one user after the other, in float64 (``jax_enable_x64``); phases are turns
of one compiled loop.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.rates.heavy_tailed import Moments
    >>> from dpsco_jax.solvers.heavy_tailed import localized_clipped_sgd
    >>> made = synthetic.linear_regression(jax.random.key(0), num_users=500, items_per_user=2, dim=3)
    >>> problem, start = made.problem(), jax.numpy.zeros(3)
    >>> with jax.enable_x64(True):
    ...     plan = localized_clipped_sgd.plan(problem, Budget(2.0, 1e-5), moments=Moments(4.0, 2.0))
    ...     run = jax.jit(
    ...         lambda key: localized_clipped_sgd.solve(key, plan, made.objective, made.data, start)
    ...     )
    ...     solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 2.0
    ((3,), 0, True)
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Constants, Count, Positive
from dpsco_jax._conditions import drawable, positive_and_finite
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import array_namespace, as_floats, float32_above
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry.norms import all_finite, clip_bias, clip_to_norm, global_norm
from dpsco_jax.mechanisms import additive, sparse_vector
from dpsco_jax.privacy.certificates import accounted_by
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates.heavy_tailed import Moments, OfMoments
from dpsco_jax.solvers import _arguments, _costs, _plan_base, _planning, _sequence, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.heavy_tailed import _one_pass_plan, onepass_clipped_sgd
from dpsco_jax.solvers.solution import Solution, Status, finished
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "TestedPhase", "plan", "solve"]

_GUARD = 11 / 8
_STEP_RATIO = 1 / 4
_FAILING = 1 / 4  # the share of δ for what the tests may miss
_LIMIT_SHARE = 1 / 8  # of ε for the noise of the limit
_MOST_NOISE = 2.0  # over that of a release without tests
_ROOM = 1 - 1e-4  # of ε: ledgers round up in float32
_NAME = "localized_clipped_sgd"


@pytree
class TestedPhase:
    """A phase: its pass, its hidden tests, and what it releases.

    Attributes:
        num_users: of the largest phase of those that share a program.
        max_answers: c, more than which are never clipped; of the largest phase likewise.
        dim: number of parameters.
        smoothness: β.
        diameter: of the domain.
        norm: the largest of a point of it.
        steepest: Lipschitz constant of an item's loss.
        count: n_i, users.
        answers: c of this phase.
        step_size: η_i.
        clip_norm: C.
        limit: how many may be clipped, before its noise.
        threshold_epsilon: Δ over the scale of the threshold's noise.
        answer_epsilon: 2Δ over the scale of a query's noise.
        limit_epsilon: 1 over the scale of the limit's noise.
        noise_multiplier: σ over the sensitivity of the average.
    """

    num_users: int = static(joined=max)
    max_answers: int = static(joined=max)
    dim: int = static()
    smoothness: float = static()
    diameter: float = static()
    norm: float = static()
    steepest: float = static()
    count: Number
    answers: Number
    step_size: Number
    clip_norm: Number
    limit: Number
    threshold_epsilon: Number
    answer_epsilon: Number
    limit_epsilon: Number
    noise_multiplier: Number

    @property
    def sensitivity(self) -> Any:
        """S: how far one user moves the average, of a pass that starts at the origin."""
        xp, (step, clip, most) = as_floats(self.step_size, self.clip_norm, self.answers)
        longest = _GUARD * clip
        sizes = self.diameter, self.norm, self.steepest
        lost = _one_pass_plan.rounding(self.dim, self.count, step, longest, *sizes)
        bend = step * self.smoothness
        # Of so many bends the last digits of a float32 are lost: exp is above, and as exact as its argument.
        grown = xp.exp(most * bend)
        return (2.0 * step * longest + lost) * grown * (1.0 + 2.0**-18)

    @property
    def query_sensitivity(self) -> Any:
        """Δ = βS, and what rounds gradients: how far one user moves the norms of other users' gradients."""
        longest = _GUARD * self.clip_norm
        rounded = _one_pass_plan.gradient_rounding(self.dim, longest, self.steepest)
        return self.smoothness * self.sensitivity + 2.0 * rounded

    @property
    def missed(self) -> Any:
        """Probability of what is not covered: a long gradient unclipped, or a limit beyond all answers."""
        xp, (change, clip, first, each, last) = as_floats(
            self.query_sensitivity,
            self.clip_norm,
            self.threshold_epsilon,
            self.answer_epsilon,
            self.limit_epsilon,
        )
        threshold = 0.5 * xp.exp(-clip / 8 * first / change)
        queries = 0.5 * self.count * xp.exp(-(clip / 4 - change) * each / (2 * change))
        beyond = 0.5 * xp.exp(-(self.answers - 1 - self.limit) * last)
        return (threshold + queries + beyond) * (1.0 + 2.0**-16)

    @property
    def accounted(self) -> Any:
        """Whether the proof covers a run of these numbers; may be traced."""
        xp = array_namespace(self.noise_multiplier, self.step_size)
        change = self.query_sensitivity
        good = positive_and_finite(
            self.step_size,
            self.clip_norm,
            self.threshold_epsilon,
            self.answer_epsilon,
            self.limit_epsilon,
            self.noise_multiplier,
            self.sensitivity,
        )
        good = good & drawable(self.noise_multiplier * self.sensitivity)
        good = good & (self.step_size * self.smoothness <= 2.0) & (change < self.clip_norm / 4)
        whole = xp.asarray(self.answers == self.max_answers)
        return good & whole & (self.limit <= self.answers - 1) & (self.missed < 0.5)

    def loss(self) -> privacy.PrivacyLoss:
        """What the phase costs, infinite where the proof does not cover its numbers; may be traced."""
        good = self.accounted
        xp = array_namespace(good, self.noise_multiplier)

        def safe(number: Any) -> Any:
            return xp.where(good, number, 1.0)

        tests = sparse_vector.fixed_threshold_loss(
            safe(self.threshold_epsilon), safe(self.answer_epsilon), self.max_answers
        )
        limit = privacy.laplace(1.0 / safe(self.limit_epsilon))
        average = privacy.gaussian(safe(self.noise_multiplier))
        released = privacy.compose(tests, limit, average)
        missed = xp.where(good, self.missed, 0.0)
        # Of laws that are cut down to what is covered, and normalized.
        orders = privacy.ORDERS.astype(released.rdp.dtype)
        rdp = released.rdp + (orders / (orders - 1)) * -xp.log1p(-missed)[..., None]
        return privacy.unbounded_unless(good, privacy.PrivacyLoss(rdp, released.delta + missed))


@pytree
class Plan(_sequence.OnBlocks, MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n; users beyond those of the phases take no part.
        constants: ``"tight"`` or ``"paper"``.
        proven_for: the constants of the objective that ``solve`` has to be given.
        parts: the phases, in order.
        epsilon: ε of the budget, of each phase and so of all.
        delta: δ of the budget.
        halting: bound on the probability that a run halts, for users with the moments given.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
    """

    num_users: int = static()
    constants: str = static(choices=("tight", "paper"))
    proven_for: _proofs.Contracting = static()
    parts: tuple[TestedPhase, ...]
    epsilon: Number
    delta: Number
    halting: Number
    excess_bound: Number

    @property
    def phase_users(self) -> tuple[int, ...]:
        """Users of each phase, by position."""
        return tuple(part.num_users for part in self.parts)

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        return sum(self.phase_users)

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return _planning.REPLACE_ONE

    @property
    def assumes(self) -> tuple[str, ...]:
        """What privacy and the bound assume."""
        return (
            _one_pass_plan.ASSUMES,
            "for the bound: users are i.i.d., and slopes of their losses have the moments given",
        )

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs: a pass over all users, one after the other."""
        walked = _costs.walks(1, self.user_gradients * item.slots, item)
        return walked + _costs.release(item.dim) * len(self.parts)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run, of phases on users of their own, by Rényi curves; infinite as ``loss``."""
        delta = float(self.delta)
        found = max(float(privacy.epsilon(part.loss(), delta)) for part in self.parts)
        by = accounted_by("Rényi curves")
        return privacy.Certificate(found, delta, self.relation, by, self.assumes)

    def __str__(self) -> str:
        stddevs = (part.noise_multiplier * part.sensitivity for part in self.parts)
        remarks = [("noise_stddevs", tuple(f"{float(x):.4g}" for x in stddevs))]
        return plans.describe("localized clipped SGD for smooth losses", self, remarks)


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    moments: OfMoments,
    step_size: Positive | None = None,
    clip_norm: Positive | None = None,
    num_phases: Count | None = None,
    constants: Constants = "tight",
) -> Plan:
    """Checks all arguments, chooses steps, clip and phases, and calibrates tests and noise. All are public.

    Args:
        problem: for n, the number of parameters d, R, and a smooth objective of ``problems.losses`` without a
            ridge on a bounded domain.
        budget: (ε, δ) of the run, δ > 0.
        moments: of the slopes of users' mean losses, k ≥ 2; known beforehand, never taken from the data.
        step_size: η_1 of the first phase; if left out the one with the least bound, and the printed one, η/4,
            for ``"paper"``.
        clip_norm: C of all phases; chosen likewise.
        num_phases: l ≤ log₂ n; chosen likewise, ⌊log₂ n⌋ for ``"paper"``.
        constants: ``"tight"``: the phases hold all users, the limit is that of the binomial number of users
            whose slope is above C/2, and numbers have the least ``excess_bound``. ``"paper"``: steps, clip
            and limit of Theorem 12.7.6, phases of n/2^i users. The noise is the accountant's in both.

    Raises:
        ValueError: an argument is out of range, or the objective is not of the kind that is proven.
        Infeasible: tests that are covered cost more than the budget; ``needed["step_size"]`` would do.
    """
    own = _require_smooth(problem)
    users = problem.num_users
    most_phases = users.bit_length() - 1
    phases = None if num_phases is None else _checks.require_integer(
        "num_phases", num_phases, 1, most_phases
    )  # fmt: skip
    limit, counts = None, [1, 2, 3, 4] if phases is None else [phases]
    clips = _clips(moments) if clip_norm is None else [clip_norm]
    sizes = [_sequence.block_sizes(users, 0.5, count) for count in counts if count <= most_phases]
    if constants == "paper":
        printed = _printed(problem, budget, moments)
        step_size = printed.step_size / 4 if step_size is None else step_size
        clips, limit = [printed.clip_norm] if clip_norm is None else clips, printed.limit
        sizes = [tuple(users >> i for i in range(1, (phases or most_phases) + 1))]

    def first_phase(size: int, step: float, clip: float) -> TestedPhase | None:
        return _calibrated(problem, budget, moments, size, step, clip, limit)

    tried: list[tuple[float, Sequence[int], float, float]] = []
    for size, clip in itertools.product(sizes, clips):
        fits = functools.partial(first_phase, size[0], clip=clip)
        steps = [] if step_size is None else [step_size]
        if step_size is None:
            longest = _longest(fits, problem, moments)
            steps = [longest, longest / 4, longest / 16]
        for step in steps:
            first = fits(step=step)
            if first is not None:
                if step < steps[0]:
                    # Tests cost a quarter of what they may, or less.
                    lower = 0.55 * first.noise_multiplier
                    first = dataclasses.replace(first, noise_multiplier=lower)
                bound, _ = _excess(problem, moments, _alike(first, size))
                tried.append((bound, size, step, clip))
    if not tried:
        fits = functools.partial(first_phase, sizes[-1][0], clip=clips[-1])
        shorter = _longest(fits, problem, moments)
        raise Infeasible(
            f"step_size must be at most {shorter:.6g}, with clip_norm = {clips[-1]:.6g}, for tests to cost"
            f" no more than the budget, got {step_size}: its product with the smoothness has to be small",
            {"step_size": shorter},
        )
    best = min(tried, key=lambda one: one[0])[1:]
    chosen, step, clip = best
    parts = []
    for i, users_of in enumerate(chosen):
        eta = step * _STEP_RATIO**i
        part = first_phase(users_of, eta, clip)
        assert part is not None  # of shorter steps and fewer users tests cost less
        parts.append(_quietest(part, budget))
    bound, halting = _excess(problem, moments, parts)
    return Plan(
        num_users=users,
        constants=constants,
        proven_for=own,
        parts=tuple(parts),
        epsilon=budget.epsilon,
        delta=budget.delta,
        halting=halting,
        excess_bound=bound,
    )


def _require_smooth(problem: Problem) -> _proofs.Contracting:
    objective = problem.objective
    _checks.require(not objective.ridge, "objective.ridge", objective.ridge, "0")
    bounded = not math.isinf(problem.diameter)
    _checks.require(bounded, "objective.domain", objective.domain, "bounded")
    return _proofs.require_contracting(objective)


def _smoothness(problem: Problem) -> float:
    return _checks.require_real("smoothness", problem.objective.smoothness, 0)


class _Printed(NamedTuple):
    step_size: float
    clip_norm: float
    limit: float


def _printed(problem: Problem, budget: privacy.Budget, moments: Moments) -> _Printed:
    """η, C and c of Theorem 12.7.6."""
    n, d, k = problem.num_users, problem.dim, moments.order
    log, diameter, phases = math.log(15 * n / budget.delta), problem.diameter, n.bit_length() - 1
    spent = n**2 * budget.epsilon**2 / (14400 * d * log**2)
    power = 0.5 if k == math.inf else (k - 1) / (2 * k)
    first = 2 * diameter / (moments.second * math.sqrt(n))
    step = min(first, diameter * phases / (moments.highest * n) * spent**power)
    clip = 2 * moments.highest
    if k != math.inf:
        ratio = diameter * phases * spent / (n * step * moments.highest)
        clip *= ratio ** (1 / (k + 1))
    return _Printed(step, clip, 240 * math.sqrt(d) * log / budget.epsilon)


def _limit(size: int, clip: float, moments: Moments, users: int) -> int:
    """So many users have slopes of C/2 in 1 of 100·√n phases at most."""
    chance = _chance(moments, clip)
    rare = 1 / (100 * math.sqrt(users))
    return int(scipy.stats.binom.isf(rare, size, chance)) + 1


def _chance(moments: Moments, clip: float) -> float:
    """Bound on P(L_s ≥ C/2)."""
    if moments.order == math.inf:
        return float(2 * moments.highest > clip)
    return min(1.0, (2 * moments.highest / clip) ** moments.order)


def _calibrated(
    problem: Problem,
    budget: privacy.Budget,
    moments: Moments,
    size: int,
    step: float,
    clip: float,
    limit: float | None,
) -> TestedPhase | None:
    """The phase with tests that miss little, and noise to spare; ``None`` if these cost too much."""
    smoothness = _smoothness(problem)
    norm = float(np.asarray(problem.objective.domain.norm))
    quiet = _limit(size, clip, moments, problem.num_users) if limit is None else limit
    missed = _FAILING * budget.delta / 3
    last = _LIMIT_SHARE * min(budget.epsilon, 4.0)
    slack = math.log(0.5 / missed) / last
    most = math.ceil(quiet + 2 * slack) + 1
    draft = TestedPhase(
        num_users=size,
        max_answers=most,
        dim=problem.dim,
        smoothness=smoothness,
        diameter=problem.diameter,
        norm=norm,
        steepest=problem.lipschitz,
        count=float(size),
        answers=float(most),
        step_size=step,
        clip_norm=clip,
        limit=quiet + slack,
        threshold_epsilon=1.0,
        answer_epsilon=1.0,
        limit_epsilon=float32_above(last),
        noise_multiplier=1.0,
    )
    if most * step * smoothness > math.log(2.0):
        return None
    far = float(draft.query_sensitivity) / clip
    if far >= 0.25:
        return None
    first = 8 * far * math.log(0.5 / missed)
    each = 2 * far / (0.25 - far) * math.log(0.5 * size / missed)
    draft = dataclasses.replace(
        draft,
        threshold_epsilon=float32_above(first * (1 + 1e-4)),
        answer_epsilon=float32_above(each * (1 + 1e-4)),
    )
    alone = _alone(problem.num_users, budget)
    # That much is spent at least, in zCDP, where a budget without tests pays for 1/(2·alone²).
    if most * min(each, 1.0) ** 2 > 4 / alone**2:
        return None
    draft = dataclasses.replace(draft, noise_multiplier=float32_above(_MOST_NOISE * alone))
    return draft if privacy.epsilon(draft.loss(), budget.delta) <= _ROOM * budget.epsilon else None


def _alone(users: int, budget: privacy.Budget) -> float:
    """The multiplier of a release without tests."""
    return _planning.fixed_size(users, users, 1).noise_multiplier(
        budget.epsilon, budget.delta, "pld"
    )


def _quietest(draft: TestedPhase, budget: privacy.Budget) -> TestedPhase:
    """The phase with the least noise that meets the budget; ``draft`` has more than enough."""

    def spent(noise: float) -> privacy.PrivacyLoss:
        return dataclasses.replace(draft, noise_multiplier=noise).loss()

    most = draft.noise_multiplier
    found = privacy.calibrate(spent, _ROOM * budget.epsilon, budget.delta, most / 4, most)
    return dataclasses.replace(draft, noise_multiplier=float32_above(found))


def _clips(moments: Moments) -> list[float]:
    if moments.order == math.inf:
        return [2 * moments.highest]
    return [moments.highest * 2.0**i for i in range(1, 8)]


def _longest(fits: Any, problem: Problem, moments: Moments) -> float:
    """A step that is within the budget, while twice as long a one is not, or is not worth while."""
    step = min(4 * problem.require_distance() / moments.second, 1 / _smoothness(problem))
    while fits(step=step) is None:
        step /= 2
        _checks.require(step > 1e-30, "budget", step, "one that pays for tests of any step")
    return step


def _alike(first: TestedPhase, sizes: Sequence[int]) -> list[TestedPhase]:
    """Phases as if all of them had the multipliers of the first, which has the largest."""
    return [
        dataclasses.replace(
            first, num_users=size, count=size, step_size=first.step_size * _STEP_RATIO**i
        )
        for i, size in enumerate(sizes)
    ]


def _excess(
    problem: Problem, moments: Moments, parts: Sequence[TestedPhase]
) -> tuple[float, float]:
    """The bound on the excess risk, and on the probability of a halt."""
    squares, total, halting = problem.require_distance() ** 2, 0.0, 0.0
    for part in parts:
        bias = clip_bias(moments.highest, moments.order, part.clip_norm, sharp=True)
        total += squares / (2 * part.step_size * part.num_users)
        total += part.step_size * moments.second**2 / 2 + problem.diameter * bias
        squares = problem.dim * float(part.noise_multiplier * part.sensitivity) ** 2
        halting += _halting(part, moments, problem.num_users)
    halting = min(1.0, halting)
    total += moments.first * (math.sqrt(squares) + halting * problem.diameter)
    return total, halting


def _halting(part: TestedPhase, moments: Moments, users: int) -> float:
    """P(halt): noise of C/4 on threshold or queries, a limit far down, or many users with slopes of C/2."""
    far = float(part.query_sensitivity) / part.clip_norm
    noise = 0.5 * math.exp(-part.threshold_epsilon / (4 * far))
    noise += 0.5 * part.num_users * math.exp(-part.answer_epsilon / (8 * far))
    chance = _chance(moments, part.clip_norm)
    quiet = int(scipy.stats.binom.isf(1 / (100 * math.sqrt(users)), part.num_users, chance)) + 1
    room = part.limit - quiet
    low = 0.5 * math.exp(-room * part.limit_epsilon) if room > 0 else 1.0
    return noise + low + float(scipy.stats.binom.sf(quiet - 1, part.num_users, chance))


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``, for this very objective.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users, in an order that does not depend on what they hold.
        params: the starting point; projected onto the domain. Must not depend on the data.

    Returns:
        The point where the last phase has ended, in the domain; once a phase has halted, with status HALTED,
        the point where that phase has started. Which step halted is not said.

    Raises:
        ValueError: the numbers of users or parameters are not the planned ones, the objective does not have
            the proven constants that were planned for, or ``jax_enable_x64`` is off.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    found = _proofs.require_contracting(objective)
    _checks.require(found == plan.proven_for, "objective", found, f"with {plan.proven_for}")
    done = _one_pass_plan.run_phases(_NAME, key, plan.parts, _phase, objective, data, params)
    return done._replace(privacy=plan.loss())


def _phase(
    key: jax.Array, phase: TestedPhase, objective: Objective, data: UserData, first: Any, start: Any
) -> Solution:
    """A hidden pass, and the release of its average, or of the fact that it has halted."""
    pass_key, noise_key = jax.random.split(key)
    average, halted = _hidden_pass(pass_key, phase, objective, data, first, start)
    noised, state = _one_pass_plan.release(
        noise_key, phase.sensitivity, phase.noise_multiplier, start, average
    )
    moved = objective.domain.project(noised)
    point = jax.tree.map(lambda old, new: jnp.where(halted, old, new), start, moved)
    slots = jax.tree.leaves(data.items)[0].shape[1]
    realized = jnp.asarray(phase.count, jnp.int32) * slots
    done = finished(point, state, 0, realized, None)
    status = jnp.where(halted, int(Status.HALTED), done.status).astype(jnp.int32)
    return done._replace(status=status)


def _hidden_pass(
    key: jax.Array, phase: TestedPhase, objective: Objective, data: UserData, first: Any, start: Any
) -> tuple[Any, Any]:
    """The average of a pass, and whether more were clipped than the noisy limit: neither is released."""
    limit_key, threshold_key, test_key = jax.random.split(key, 3)
    stream = sparse_vector.fixed_threshold(
        phase.clip_norm,
        phase.threshold_epsilon,
        phase.answer_epsilon,
        phase.query_sensitivity,
        phase.max_answers,
    )
    limit = additive.laplace(limit_key, jnp.asarray(phase.limit, float), 1.0 / phase.limit_epsilon)
    slope = onepass_clipped_sgd.user_slopes(objective, data)

    def step(state: Any, user: Any, point: Any) -> tuple[Any, Any, Any]:
        gradient = slope(user, point)
        norm = jnp.where(all_finite(gradient), global_norm(gradient), 0.0)
        key = jax.random.fold_in(test_key, state.queries)
        clipped, after = stream.step(key, state, norm)
        level = jnp.where(clipped, 1.0, _GUARD) * phase.clip_norm
        return clip_to_norm(gradient, level), ~_over(after), after

    def _over(state: Any) -> Any:
        return (state.answers >= limit) | (state.answers >= phase.answers)

    average, state = onepass_clipped_sgd.run(
        step,
        objective.domain.project,
        start,
        first=first,
        count=jnp.asarray(phase.count, jnp.int32),
        step_size=phase.step_size,
        state=stream.init(threshold_key),
    )
    return average, _over(state)
