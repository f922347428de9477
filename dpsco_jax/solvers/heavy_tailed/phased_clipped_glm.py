"""Phased clipped SGD for generalized linear models: one pass, and one Gaussian release a phase.

What it computes: the users, each with one item, are cut into phases that halve. Phase i makes one pass of
projected SGD from where the last has ended, with gradients clipped to C_i and steps η_i, and releases the
average of its points with Gaussian noise. Steps become shorter by 16 and clips longer by 2 from phase to
phase: whatever a phase has lost by its noise, the next ones put right.

Source: T, Algorithm 43, Lemma 12.8.1, Theorem 12.8.2. Corrections: H15 (G_k is missing in η, and the printed
noise is twice what the proof needs), H16 (the constants of the bound), docs/corrections/heavy_tails.md.

Formal guarantee: (ε, δ)-DP under REPLACE_ONE, in all: a user is in one phase, by position (parallel
composition). Sensitivity of an average: f(x; (a, y)) = φ(⟨a, x⟩, y) with φ convex in the margin and f
β-smooth, and all that a step looks at is a number, clip(φ', C/‖a‖). That number is a nondecreasing function
of the margin with slope at most that of φ', which is β/‖a‖² at most. So x - x' moves along a alone, by the
factor 1 - ηβ' with β' in [0, β] in that direction, and **η_i ≤ 2/β makes the step non-expansive, clipped or
not**. The users before the replaced one make equal steps, that one steps that differ by at most 2η_iC_i, and
later steps and projections expand nothing: averages are at most 2η_iC_i apart, and a little for rounding
(``_one_pass_plan``). It is false of steps in several directions: of users with several items, of softmax,
with a ridge, with momentum (``problems.fixtures.clip_noncontraction``); these are refused, and so are losses
and domains that are not of this package. All arguments are public; moments taken from the data void the
guarantee.

Heavy tails: smoothness needs a bound on features, within which they are cut. What is left of the tail is
that of |φ'|, of labels: free, also for ``losses.squared`` with any bound on labels, on which β does not
depend. ``moments`` are those of slopes after the cut.

Utility: ``excess_bound``, for i.i.d. users with these moments, the explicit sum of what the phases lose:
R²/(2η_1n_1) + Σ_i (d·σ_i²/(2η_{i+1}n_{i+1}) + η_iG_2²/2 + D·bias(C_i)) + G_1·σ_l·√d. Phase i is compared
with the average of the phase before, at distance σ_{i-1}·√d from its start, and the first with a minimizer.

Cost: one gradient for each user, one after the other, in float64 (``jax_enable_x64``); phases are turns of
one compiled loop.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.rates.heavy_tailed import Moments
    >>> from dpsco_jax.solvers.heavy_tailed import phased_clipped_glm
    >>> made = synthetic.linear_regression(jax.random.key(0), num_users=500, items_per_user=1, dim=3)
    >>> start = jax.numpy.zeros(3)
    >>> with jax.enable_x64(True):
    ...     plan = phased_clipped_glm.plan(made.problem(), Budget(2.0, 1e-5), moments=Moments(4.0, 2.0))
    ...     run = jax.jit(lambda key: phased_clipped_glm.solve(key, plan, made.objective, made.data, start))
    ...     solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 2.0
    ((3,), 0, True)
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Constants, Count, Positive
from dpsco_jax._conditions import drawable, positive_and_finite
from dpsco_jax._numerics import array_namespace
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry.norms import clip_bias
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates.heavy_tailed import Moments, OfMoments
from dpsco_jax.solvers import _arguments, _costs, _plan_base, _planning, _sequence, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.heavy_tailed import _one_pass_plan, onepass_clipped_sgd
from dpsco_jax.solvers.solution import Solution, finished
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "plan", "solve"]

_STEP_RATIO, _CLIP_RATIO = 1 / 16, 2.0
_NAME = "phased_clipped_glm"


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        dim: number of parameters.
        phase_users: users of each phase, in order; those left over take no part.
        constants: ``"tight"`` or ``"paper"``.
        proven_for: the constants of the objective that ``solve`` has to be given.
        noise_multiplier: σ over the sensitivity of an average.
        step_sizes: η, by phase.
        clip_norms: C, by phase.
        epsilon: ε of the budget, of each phase and so of all.
        delta: δ of the budget.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
    """

    num_users: int = static()
    dim: int = static()
    phase_users: tuple[int, ...] = static()
    constants: str = static(choices=("tight", "paper"))
    proven_for: _proofs.Contracting = static()
    noise_multiplier: Number
    step_sizes: Number
    clip_norms: Number
    epsilon: Number
    delta: Number
    excess_bound: Number

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        return sum(self.phase_users)

    @property
    def sensitivities(self) -> tuple[Any, ...]:
        """How far one user moves the average of each phase, of a run that starts at the origin."""
        found = []
        for count, step, clip in zip(
            self.phase_users, self.step_sizes, self.clip_norms, strict=True
        ):
            diameter = self.proven_for.diameter
            lost = _one_pass_plan.rounding(self.dim, count, step, clip, diameter)
            found.append(2.0 * step * clip + lost)
        return tuple(found)

    @property
    def noise_stddevs(self) -> tuple[Any, ...]:
        """Noise on each coordinate of the average of each phase, of a run that starts at the origin."""
        return tuple(self.noise_multiplier * change for change in self.sensitivities)

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

    @property
    def accounted(self) -> Any:
        """Whether the proof covers a run with these numbers: no step may expand; may be traced."""
        xp = array_namespace(self.step_sizes, self.clip_norms, self.noise_multiplier)
        steps, clips, noise = (
            xp.stack([xp.asarray(x) for x in each])
            for each in (self.step_sizes, self.clip_norms, self.noise_stddevs)
        )
        good = xp.all(positive_and_finite(steps, clips) & drawable(noise), axis=0)
        # A traced number may be of float32, where a product that is above two may be rounded to it.
        bend = self.proven_for.smoothness * (1.0 - 2.0**-20)
        return good & xp.all(steps * bend <= 2.0, axis=0) & (self.noise_multiplier > 0)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs: a pass over all users, one after the other."""
        walked = _costs.walks(1, self.user_gradients * item.slots, item)
        return walked + _costs.release(item.dim) * len(self.phase_users)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where the proof does not cover them; may be traced."""
        return privacy.unbounded_unless(self.accounted, privacy.gaussian(self.noise_multiplier))

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of a phase, and so of the run, in closed form; infinite as ``loss``."""
        multiplier = float(self.noise_multiplier) if bool(self.accounted) else 0.0
        event = privacy.events.gaussian(multiplier)
        return privacy.certificate(event, float(self.delta), _planning.REPLACE_ONE, self.assumes)

    def __str__(self) -> str:
        remarks = [("noise_stddevs", tuple(f"{float(x):.4g}" for x in self.noise_stddevs))]
        return plans.describe("phased clipped SGD for linear models", self, remarks)


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
    """Checks all arguments, chooses steps, clips and phases and sets the noise. All of them are public.

    Args:
        problem: for n, the number of parameters d, R, and an objective of ``problems.losses`` that is a
            linear model with one output, smooth and without a ridge, of users with one item.
        budget: (ε, δ) of the run, δ > 0.
        moments: of the users' slopes, k ≥ 2; known beforehand, never taken from the data.
        step_size: η_1 of the first phase, at most 2/β; if left out the one with the least bound, and the
            printed one, η/16, for ``"paper"``.
        clip_norm: C_1 of the first phase; chosen likewise.
        num_phases: l ≤ log₂ n; chosen likewise, ⌊log₂ n⌋ for ``"paper"``.
        constants: ``"tight"``: the phases hold all users, and numbers have the least ``excess_bound``.
            ``"paper"``: of the first 2^⌊log₂ n⌋ users phase i has n/2^i; steps and clips as printed, with the
            G_k that is missing there. The noise is the accountant's in both.

    Raises:
        ValueError: an argument is out of range, the objective is not of the kind that is proven, steps are
            longer than 2/β, or the domain is unbounded and ``step_size`` and ``clip_norm`` are left out.
    """
    own = _require_linear(problem.objective, problem.items_per_user)
    most = 2.0 / own.smoothness
    if step_size is not None:
        _checks.require(step_size <= most, "step_size", step_size, f"at most 2/β = {most:.6g}")
    if math.isinf(problem.diameter) and (step_size is None or clip_norm is None):
        raise ValueError(
            "step_size and clip_norm must be given where the domain is unbounded: no bound is known to choose"
            f" them by, got {step_size} and {clip_norm}"
        )
    users = problem.num_users
    multiplier = _planning.fixed_size(users, users, 1).noise_multiplier(
        budget.epsilon, budget.delta, "pld"
    )
    most_phases = users.bit_length() - 1
    count = None if num_phases is None else _checks.require_integer(
        "num_phases", num_phases, 1, most_phases
    )  # fmt: skip
    if constants == "paper":
        printed = _printed(problem, moments, 1 / (2 * multiplier**2))
        steps = [printed[0] / 16 if step_size is None else step_size]
        clips = [2 * printed[1] if clip_norm is None else clip_norm]
        _checks.require(steps[0] <= most, "step_size", steps[0], f"at most 2/β = {most:.6g}")
        sizes = [2 ** (most_phases - i) for i in range(1, (count or most_phases) + 1)]
        tried = [_least(problem, moments, multiplier, sizes, steps, clips)]
    else:
        clips = _clips(moments) if clip_norm is None else [clip_norm]
        steps = _steps(problem, moments, most) if step_size is None else [step_size]
        tried = [
            _least(problem, moments, multiplier, sizes, steps, clips)
            for phases in (range(1, most_phases + 1) if count is None else [count])
            for sizes in [_sequence.block_sizes(users, 0.5, phases)]
        ]
    bound, planned, step, clip = min(tried, key=lambda one: one[0])
    return Plan(
        num_users=users,
        dim=problem.dim,
        phase_users=tuple(planned),
        constants=constants,
        proven_for=own,
        noise_multiplier=multiplier,
        step_sizes=tuple(step * _STEP_RATIO**i for i in range(len(planned))),
        clip_norms=tuple(clip * _CLIP_RATIO**i for i in range(len(planned))),
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=bound,
    )


def _require_linear(objective: Objective, items_per_user: int) -> _proofs.Contracting:
    """What is proven of a linear model of one output; ``ValueError`` for anything else."""
    model, ridge = objective.linear_model, objective.ridge
    _checks.require(
        model is not None and model.outputs is None, "objective", model, "a linear model of one output"
    )  # fmt: skip
    _checks.require(
        not ridge, "objective.ridge", ridge, "0: a clipped step with a ridge may expand"
    )
    _checks.require(
        items_per_user == 1,
        "items_per_user",
        items_per_user,
        "1: a user with several items makes no step along one row",
    )
    return _proofs.require_contracting(objective)


def _printed(problem: Problem, moments: Moments, rho: float) -> tuple[float, float]:
    """η and C of Algorithm 43, with 1/G_k."""
    users, dim, distance = 2 ** (problem.num_users.bit_length() - 1), problem.dim, problem.diameter
    if moments.order == math.inf:
        power, moment = 0.5, math.sqrt(2.0)
    else:
        power = (moments.order - 1) / (2 * moments.order)
        moment = 2.0 ** ((moments.order + 1) / (2 * moments.order))
    first = math.sqrt(8 / users) * distance / moments.second
    noise = (users**2 * rho / (32 * dim)) ** power * moment * distance / (moments.highest * users)
    step = min(first, noise)
    if moments.order == math.inf:
        return step, moments.highest
    ratio = distance * rho * users / (32 * step * dim * moments.highest)
    return step, moments.highest * ratio ** (1 / (moments.order + 1))


def _steps(problem: Problem, moments: Moments, most: float) -> Any:
    """Candidates for η_1, down from the longest that may be worth while."""
    longest = min(most, 16 * problem.require_distance() / moments.second)
    return longest * 2.0 ** (-np.arange(100) / 3)


def _clips(moments: Moments) -> Any:
    if moments.order == math.inf:
        return [moments.highest]
    return moments.highest * 2.0 ** (np.arange(-12, 48) / 3)


def _least(
    problem: Problem,
    moments: Moments,
    multiplier: float,
    sizes: Sequence[int],
    steps: Any,
    clips: Any,
) -> tuple[float, Sequence[int], float, float]:
    """The least sum of the file's text, but for rounding, and what it is of; infinite where none is known."""
    step, clip = np.asarray(steps, float)[:, None], np.asarray(clips, float)
    if math.isinf(problem.diameter):
        return math.inf, sizes, float(steps[0]), float(clips[0])
    bias = np.vectorize(functools.partial(clip_bias, moments.highest, moments.order, sharp=True))
    squares: Any = problem.require_distance() ** 2
    total = np.zeros((len(steps), len(clips)))
    for i, size in enumerate(sizes):
        eta, level = step * _STEP_RATIO**i, clip * _CLIP_RATIO**i
        total += squares / (2 * eta * size) + eta * moments.second**2 / 2
        total += problem.diameter * bias(level)
        squares = problem.dim * (multiplier * 2 * eta * level) ** 2
    total += moments.first * np.sqrt(squares)
    row, column = np.unravel_index(np.argmin(total), total.shape)
    return float(total[row, column]), sizes, float(step[row, 0]), float(clip[column])


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``, for this very objective.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users of one item, in an order that does not depend on what they hold.
        params: the starting point; projected onto the domain. Must not depend on the data.

    Returns:
        The point where the last phase has ended, in the domain.

    Raises:
        ValueError: the numbers of users, items or parameters are not the planned ones, the objective does not
            have the proven constants that were planned for, or ``jax_enable_x64`` is off.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    found = _require_linear(objective, jax.tree.leaves(data.items)[0].shape[1])
    _checks.require(found == plan.proven_for, "objective", found, f"with {plan.proven_for}")
    phases = [
        _Phase(count, count, step, clip, change, plan.noise_multiplier)
        for count, step, clip, change in zip(
            plan.phase_users, plan.step_sizes, plan.clip_norms, plan.sensitivities, strict=True
        )
    ]
    one = functools.partial(_phase, dim=plan.dim)
    done = _one_pass_plan.run_phases(_NAME, key, phases, one, objective, data, params)
    return done._replace(privacy=privacy.unbounded_unless(plan.accounted, done.privacy))


@pytree
class _Phase:
    """The numbers of a phase, or of several, of which ``num_users`` is that of the largest."""

    num_users: int = static(joined=max)
    count: Number
    step_size: Number
    clip_norm: Number
    sensitivity: Number
    noise_multiplier: Number


def _phase(
    key: jax.Array,
    phase: _Phase,
    objective: Objective,
    data: UserData,
    first: Any,
    start: Any,
    *,
    dim: int,
) -> Solution:
    """A pass over the users from a position on, and the release of its average."""
    step = onepass_clipped_sgd.clipped_steps(objective, data, phase.clip_norm)
    average, _ = onepass_clipped_sgd.run(
        step,
        objective.domain.project,
        start,
        first=first,
        count=phase.count,
        step_size=phase.step_size,
    )
    sensitivity = phase.sensitivity + _one_pass_plan.start_rounding(dim, phase.count, start)
    noised, state = _one_pass_plan.release(key, sensitivity, phase.noise_multiplier, start, average)
    return finished(objective.domain.project(noised), state, 0, phase.count, None)
