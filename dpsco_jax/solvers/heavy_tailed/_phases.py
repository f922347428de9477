"""Localization at the population's minimizers: plans of phases, strengths of the best bound, rounds of these.

Phase i has half as many users as the one before, the pull λ_i to where that one has ended, and the whole
budget. What each proves is of the form a_i/λ_i (``_schedules.clipped_descent``), so that strengths are chosen
once all phases are known. Proof: docs/theory/heavy_tails.md.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from dpsco_jax import _checks, privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.problems.problem import Problem
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers import _sequence
from dpsco_jax.solvers._schedules import clipped_descent
from dpsco_jax.solvers._schedules.clipped_descent import Answer, Localized
from dpsco_jax.solvers.copies import Copies
from dpsco_jax.solvers.heavy_tailed import clipped_gd
from dpsco_jax.solvers.heavy_tailed._terms import MOST_STEPS, known_slope, rho_of
from dpsco_jax.solvers.phased import Phased

MOST_PHASES = 8
_FEWEST_USERS = 4  # of a copy: with fewer its mean is all noise


class Setting(NamedTuple):
    """What all phases share."""

    problem: Problem
    budget: privacy.Budget
    moments: Moments
    num_steps: int | None
    accountant: str
    chunk_size: int
    within: float | None = None
    """What is proven of the start's distance, where that of the problem is what is to be expected."""

    @property
    def known(self) -> float:
        """B: the largest slope of the ridge, whose gradient is added as it is."""
        return known_slope(self.problem)

    @property
    def first(self) -> float:
        """G_1 + B, the slope of the risk."""
        return self.moments.first + self.known

    @property
    def rho(self) -> float:
        """ρ of zCDP that a phase spends, which is that of the run."""
        return rho_of(self.problem.num_users, self.budget, "tight", self.accountant)

    def steps(self, users: int) -> int:
        """T of a copy of so many users."""
        printed = clipped_descent.paper_steps(users, self.problem.dim, self.rho)
        return min(printed, MOST_STEPS) if self.num_steps is None else self.num_steps

    def typical(self, users: int) -> Answer:
        """What a copy of so many users is to be expected to answer."""
        noise = math.sqrt(self.variance(users) / self.steps(users))
        return clipped_descent.typical(self.moments, users, noise)

    def variance(self, users: int) -> float:
        """d·σ²/C² of a copy's noise."""
        return 2 * self.problem.dim * self.steps(users) / (users**2 * self.rho)


class Phases(NamedTuple):
    """Sizes of the phases' blocks, users of a copy, what each answers, and the strengths."""

    sizes: tuple[int, ...]
    users: tuple[int, ...]
    answers: tuple[Answer, ...]
    localized: Localized
    expected: float
    """The least bound, of what was looked for: of what is to be expected, or of what is proven."""


def best(
    setting: Setting,
    copies: int,
    answer: Callable[[int, int, float | None], Answer],
    num_phases: int | None,
    strength: float | None,
    practical: bool,
) -> Phases:
    """The phases of the least bound, of as many as are asked for, or of 1 to 8.

    Args:
        setting: what all phases share.
        copies: J of every phase.
        answer: what J copies answer, of the users of one, the number of phases, and the clip level, if it
            is to be kept.
        num_phases: I.
        strength: λ; ``None`` for the best.
        practical: whether clip levels, strengths and I are those of what is to be expected, not proven.

    Raises:
        Infeasible: a copy would have fewer than 4 users.
    """
    far, first = setting.problem.require_distance(), setting.first
    within = far if setting.within is None else setting.within

    def of(count: int) -> Phases:
        least = copies * _FEWEST_USERS
        sizes = _sequence.block_sizes(setting.problem.num_users, 0.5, count, least)
        users = tuple(size // copies for size in sizes)
        expected = [setting.typical(each) for each in users]
        answers = tuple(
            answer(each, count, one.clip_norm if practical else None)
            for each, one in zip(users, expected, strict=True)
        )
        proven = [each.distance for each in answers]
        aims = [each.distance for each in expected] if practical else proven
        found = clipped_descent.localized(aims, first, far, strength)
        bound = clipped_descent.bound_of(found.strengths, proven, first, within)
        return Phases(sizes, users, answers, Localized(found.strengths, bound), found.bound)

    if num_phases is not None:
        return of(num_phases)
    found = [of(1)]
    for count in range(2, MOST_PHASES + 1):
        try:
            found.append(of(count))
        except Infeasible:
            break
    return min(found, key=lambda each: each.expected)


def best_in_the_mean(
    setting: Setting,
    clip_norm: float,
    num_phases: int | None,
    strength: float | None,
    practical: bool,
) -> Phases:
    """The phases of the least bound in expectation, of single runs on losses without a slope above C.

    Args:
        setting: what all phases share.
        clip_norm: C.
        num_phases: I; ``None`` for the best.
        strength: λ; ``None`` for the best.
        practical: as of ``best``.
    """

    def answer(users: int, count: int, kept: float | None) -> Answer:
        del count, kept
        steps, variance = setting.steps(users), setting.variance(users)
        return clipped_descent.in_the_mean(
            setting.moments, users, steps, variance, clip_norm, known=setting.known
        )

    return best(setting, 1, answer, num_phases, strength, practical)


def parts(setting: Setting, phases: Phases, copies: int, failure: float = 0.4) -> tuple[Any, ...]:
    """The plans of the phases: of one run each, or of its copies."""
    made = []
    strengths = phases.localized.strengths
    for size, users, answer, strength in zip(
        phases.sizes, phases.users, phases.answers, strengths, strict=True
    ):
        whole = size if copies == 1 else users
        base = clipped_gd.plan(
            dataclasses.replace(setting.problem, num_users=whole),
            setting.budget,
            moments=setting.moments,
            regularization=strength,
            num_steps=setting.steps(users),
            clip_norm=answer.clip_norm,
            failure=failure,
            accountant=setting.accountant,
            chunk_size=setting.chunk_size,
        )
        title = "clipped gradient descent, repeated"
        made.append(base if copies == 1 else Copies(title, size, copies, base))
    return tuple(made)


def repeated(answer: Answer, copies: int) -> Answer:
    """What the point that most of J answers are near to is within: three times, of more than one."""
    return answer if copies == 1 else answer._replace(distance=3 * answer.distance)


def in_expectation(bound: float, failure: float, moments: Moments, problem: Problem) -> float:
    """What a bound that is exceeded rarely says of the mean: (G_1 + B)·diameter is the most there is."""
    most = (moments.first + known_slope(problem)) * problem.diameter
    return min(bound + failure * most, most) if math.isfinite(most) else math.inf


class Round(NamedTuple):
    """Localization on a block of users.

    Attributes:
        num_users: of the block.
        parts: makes the plans of its phases.
        expected: its excess risk, by what was looked for.
        proven: its excess risk, by the proof.
        copies: J.
    """

    num_users: int
    parts: Callable[[], tuple[Any, ...]]
    expected: float
    proven: float
    copies: int = 1


def rounds(
    setting: Setting, of: Callable[[Setting, int], Round], num_rounds: int | None, paper: bool
) -> tuple[Round, ...]:
    """The rounds of the least excess risk, on blocks that double, each from where the one before has ended.

    Of a μ-strongly convex risk (μ/2)·‖x - x*‖² is at most the excess of x, so that a bound on it says how far
    the next round starts. A single one, of all users, where nothing is strongly convex.

    Args:
        setting: of all users.
        of: the round of a setting, one of so many.
        num_rounds: K; ``None`` for the best of up to ⌈log₂ log₂ n⌉ + 1.
        paper: whether K is to be that number itself.

    Raises:
        ValueError: more than one round is asked for of what is not strongly convex.
    """
    problem = setting.problem
    convexity = problem.objective.strong_convexity
    good = convexity > 0 or num_rounds in (None, 1)
    _checks.require(good, "num_rounds", num_rounds, "1 where the objective is not strongly convex")
    most = math.ceil(math.log2(max(2.0, math.log2(problem.num_users)))) + 1 if convexity > 0 else 1
    # (μ/2)·‖x - x*‖² <= F(x) - F(x*) <= slope·‖x - x*‖, of every point.
    farthest = 2 * setting.first / convexity if convexity > 0 else math.inf
    far = min(problem.require_distance(), farthest)

    def under(count: int) -> tuple[Round, ...]:
        if count == 1:
            return (of(setting, 1),)
        sizes = _sequence.block_sizes(problem.num_users, 2.0, count, _FEWEST_USERS)
        made: list[Round] = []
        distance = within = far
        for size in sizes:
            own = dataclasses.replace(problem, num_users=size, distance=distance)
            made.append(of(setting._replace(problem=own, within=within), count))
            ends = made[-1].expected, made[-1].proven
            distance, within = (min(farthest, math.sqrt(2 * end / convexity)) for end in ends)
        return tuple(made)

    if num_rounds is not None or paper:
        return under(most if num_rounds is None else num_rounds)
    found = [under(1)]
    for count in range(2, most + 1):
        try:
            found.append(under(count))
        except Infeasible:
            break
    return min(found, key=lambda each: each[-1].expected)


def phased(title: str, made: tuple[Round, ...], budget: privacy.Budget) -> tuple[Any, ...]:
    """The plans of the phases of one round; of several the plans of the rounds."""
    if len(made) == 1:
        return made[0].parts()
    return tuple(
        Phased(title, one.num_users, one.parts(), budget.epsilon, budget.delta, one.proven)
        for one in made
    )


def counted(made: tuple[Round, ...], parts: tuple[Any, ...]) -> list[tuple[str, str]]:
    """Lines for people: how many rounds and phases there are."""
    if len(made) == 1:
        return [("phases", str(len(parts)))]
    phases = ", ".join(str(len(part.parts)) for part in parts)
    return [("rounds", str(len(made))), ("phases", phases)]
