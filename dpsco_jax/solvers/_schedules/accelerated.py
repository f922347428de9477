"""Accelerated phased ERM: users, regularizers, steps and batches of every phase, and what they prove.

What it computes: for users cut in blocks of sizes 1, 2^-q, 4^-q, ... and regularizers λ, λ2^p, λ4^p, ...:

- ``chosen``: number of phases, λ, stages and their lengths such that the bound below is least for a model of
  the noise; per phase the fewest steps that come within a tenth of the least gap;
- ``with_batches``: users of a step, by a rule that keeps the noise near that of full batches;
- ``smoothing_radii``: how far a loss that is not smooth may be smoothed;
- ``printed``: the paper's phases, with the constant one for what it leaves open in O(·).

Source: F, Algorithms 2 and 3, section 4; T, Algorithms 32 and 33, Theorem 10.8.3 and Lemma 10.8.4, made
explicit; Ghadimi and Lan 2012 and 2013 (AC-SA and its stages, as in ``transforms.ac_sa`` and ``restart``).
Corrected in ``chosen``: the first block is half of the users and not a quarter (the exponent counts from
zero), batches are at most blocks, and no λ is too small for the privacy error. One phase minimizes F̂(w) +
(λ/2)‖w - w₀‖², F̂ the mean over n users with m items each, of strong convexity μ and smoothness Λ,
regularizers included:

- Gap. The start is where λ's term has its minimum, so its distance to the minimizer ŵ is r ≤ G/μ, G the slope
  of the objective; N steps with gradients of variance V leave 2Λr²/(N(N+1)) + 2V/(μ(N+1)), each further
  stage 4Λ·gap/(μN(N+1)) + 2V/(μ(N+1)).
- Variance. d·σ² of the noise. For a batch of K of n users, (n-K)/((n-1)K) times the mean squared distance of
  user gradients from their mean: at most L², at most τ² where all lie within τ of the population gradient.
- Population. One item moves ŵ by 2L/(μnm) at most, so E F(ŵ) - E F̂(ŵ) ≤ 2L²/(μnm), and for y chosen before
  the users were seen E F(ŵ) - F(y) ≤ (λ/2)E‖y - w₀‖² + 2L²/(μnm).
- Phases. Chained with y = ŵ of the phase before, for which E‖y - w₀‖² ≤ 2gap/μ of that phase; and
  F(w) - F(ŵ) ≤ G·√(2gap/μ) at the end.

Formal guarantee: none of privacy, which is calibrated for whatever sizes come out; the model of the noise
decides on sizes only. The bounds are theorems for users drawn independently, whose items are i.i.d., m each,
and for losses that are convex, L-Lipschitz and smooth as stated, by every item.

Cost: some ten thousand evaluations of a formula on arrays: some milliseconds.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax import _checks
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry import smoothing
from dpsco_jax.privacy import Budget
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers._sequence import block_sizes

_LENGTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of a stage, in units of √(smoothness/convexity)
_MOST_STAGES = 4
_REGULARIZERS = np.geomspace(0.03, 3e4, 49)  # in units of the paper's λ
NEAR_BEST = 1.1
_FOR_TESTS = 4096.0

NoiseModel = Callable[[int, Any], Any]
"""``(num_users, num_steps) -> σ`` of the mean released in a step, ``inf`` where there is none.

Numbers of steps may be an array."""


class Setting(NamedTuple):
    """The public numbers that schedules and bounds depend on.

    Attributes:
        problem: n, m, d, L, R, the domain and the ridge.
        budget: (ε, δ) of every phase.
        smoothness: of the loss of an item, smoothed if it is.
        smoothing_radius: r, zero without smoothing.
    """

    problem: Problem
    budget: Budget
    smoothness: float
    smoothing_radius: float

    @property
    def bias(self) -> float:
        """What smoothing adds to the risk."""
        return smoothing.ball_bias(self.problem.lipschitz, self.smoothing_radius, self.problem.dim)

    @property
    def strong_convexity(self) -> float:
        """That of the objective, ridge included."""
        return float(self.problem.objective.strong_convexity)

    def curvature(self, regularization: Any) -> tuple[Any, Any]:
        """Smoothness and strong convexity of what a phase minimizes, for each regularizer."""
        convexity = self.strong_convexity + regularization
        smoothness = self.smoothness + float(self.problem.objective.ridge) + regularization
        return np.maximum(smoothness, convexity), convexity


class Phase(NamedTuple):
    """What the bound of a run of phases needs to know of one.

    Attributes:
        num_users: n.
        regularization: λ; an array for several phases to choose from.
        gap: bound on the expected gap, of each.
    """

    num_users: int
    regularization: Any
    gap: Any


def of_problem(problem: Problem, budget: Budget, smoothing_radius: float) -> Setting:
    """The numbers of a problem whose loss is smoothed if the radius is positive.

    Raises:
        ValueError: if the loss is not smooth and the radius is zero, or R is not finite.
    """
    smooth = problem.objective.smoothness
    if smoothing_radius > 0:
        ball = smoothing.ball_smoothness(problem.objective.lipschitz, smoothing_radius, problem.dim)
        smooth = ball if smooth is None else min(smooth, ball)
    if smooth is None:
        raise ValueError(
            "smoothing_radius must be in (0, inf) for a loss without a smoothness constant, got 0.0"
        )
    problem.require_distance()
    return Setting(problem, budget, float(smooth), smoothing_radius)


def gradient_variance(
    setting: Setting,
    num_users: int,
    batch_size: int,
    noise_stddev: float,
    spread: float,
    failure: float = 0.0,
) -> float:
    """V: noise, choice of the batch, and smoothing shifts.

    User gradients are within ``spread`` of the population gradient, except with probability ``failure``.
    """
    problem, lipschitz = setting.problem, setting.problem.lipschitz
    between = min(lipschitz**2, spread**2 + failure * lipschitz**2)
    chosen = between * (num_users - batch_size) / max(num_users - 1, 1) / batch_size
    shifts = lipschitz**2 / (batch_size * problem.items_per_user)
    return problem.dim * noise_stddev**2 + chosen + (shifts if setting.smoothing_radius else 0.0)


def gap(
    setting: Setting, regularization: Any, variance: Any, stage_length: Any, num_stages: int
) -> Any:
    """Bound on the expected gap of one phase after its last stage; all but ``num_stages`` may be arrays."""
    smoothness, convexity = setting.curvature(regularization)
    reach = np.minimum(setting.problem.slope / convexity, setting.problem.diameter)
    square = stage_length * (stage_length + 1)
    rest = 2.0 * variance / (convexity * (stage_length + 1))
    value = 2.0 * smoothness * reach**2 / square + rest
    for _ in range(num_stages - 1):
        value = 4.0 * smoothness * value / (convexity * square) + rest
    return value


def excess_risk(setting: Setting, phases: Sequence[Phase]) -> Any:
    """Bound on the expected excess risk after all phases, if nothing fails; an array if phases hold some."""
    problem = setting.problem
    nearness: Any = problem.farthest**2
    total: Any = setting.bias
    for phase in phases:
        convexity = setting.strong_convexity + phase.regularization
        total += 0.5 * phase.regularization * nearness
        total += 2.0 * problem.lipschitz**2 / (convexity * phase.num_users * problem.items_per_user)
        nearness = 2.0 * phase.gap / convexity
    return total + problem.slope * np.sqrt(nearness)


def with_failure(setting: Setting, risk: float, failure: float) -> float:
    """The bound for all runs: those that fail have at most the excess of the worst point of the domain."""
    worst = failure * setting.problem.slope * setting.problem.diameter if failure > 0 else 0.0
    return risk + worst


class Size(NamedTuple):
    """One phase.

    Attributes:
        num_users: n.
        regularization: λ.
        stage_length: N, steps between restarts.
        num_stages: S.
        batch_size: K; ``None`` where it is yet to be set.
    """

    num_users: int
    regularization: float
    stage_length: int
    num_stages: int
    batch_size: int | None = None

    @property
    def num_steps(self) -> int:
        """T = S·N."""
        return self.stage_length * self.num_stages


def base_regularization(setting: Setting) -> float:
    """The paper's λ = (L/R)(1/√(nm) + √d/(εn√m))."""
    problem = setting.problem
    users, items = problem.num_users, problem.items_per_user
    statistical = 1.0 / math.sqrt(users * items)
    private = math.sqrt(problem.dim) / (setting.budget.epsilon * users * math.sqrt(items))
    return problem.lipschitz / problem.farthest * (statistical + private)


def steps(
    setting: Setting, num_users: int, regularizations: np.ndarray, noise: NoiseModel
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The stages of one phase, and the gap that the model of the noise lets expect, for each regularizer.

    Returns:
        Steps of a stage, number of stages, and gaps, each ``[regularizers]``.
    """
    smoothness, convexity = setting.curvature(regularizations)
    root = np.sqrt(smoothness / convexity)
    lengths = np.ceil(np.multiply.outer(_LENGTHS, root))
    gaps = []
    for count in range(1, _MOST_STAGES + 1):
        variance = setting.problem.dim * noise(num_users, count * lengths) ** 2
        gaps.append(gap(setting, regularizations, variance, lengths, count))
    stages = np.repeat(np.arange(1, _MOST_STAGES + 1), len(_LENGTHS))
    lengths, found = np.tile(lengths, (_MOST_STAGES, 1)), np.concatenate(gaps)
    enough = found <= NEAR_BEST * np.min(found, axis=0)
    chosen = np.argmin(np.where(enough, stages[:, None] * lengths, np.inf), axis=0)
    each = np.arange(len(regularizations))
    return lengths[chosen, each], stages[chosen], found[chosen, each]


def chosen(
    setting: Setting,
    noise: NoiseModel,
    *,
    ratio: float,
    decay: float,
    num_phases: int | None,
    regularization: float | None,
) -> tuple[list[Size], float]:
    """The phases with the least bound, and that bound for the model of the noise; one if it allows none.

    Numbers of phases and λ of the first are those given, or chosen; ratio and decay are q and p.
    """
    num_users, items = setting.problem.num_users, setting.problem.items_per_user
    most = max(1, math.ceil(math.log2(num_users * items) / decay))
    counts = range(1, most + 1) if num_phases is None else (num_phases,)
    base = base_regularization(setting)
    starts = base * _REGULARIZERS if regularization is None else np.array([regularization])
    best, least = None, math.inf
    for count in counts:
        if num_phases is None and num_users * 0.5 ** (ratio * (count - 1)) < 2:
            break
        blocks = block_sizes(num_users, 0.5**ratio, count)
        if count > 1 and not math.isfinite(noise(blocks[-1], 1)):
            break
        strengths = [starts * 2.0 ** (decay * i) for i in range(count)]
        found = [
            steps(setting, users, each, noise)
            for users, each in zip(blocks, strengths, strict=True)
        ]
        phases = [
            Phase(users, each, gaps)
            for users, each, (_, _, gaps) in zip(blocks, strengths, found, strict=True)
        ]
        risks = excess_risk(setting, phases)
        i = int(np.argmin(risks))
        if best is None or risks[i] < least:
            best = [
                Size(users, float(each[i]), int(lengths[i]), int(stages[i]))
                for users, each, (lengths, stages, _) in zip(blocks, strengths, found, strict=True)
            ]
            least = float(risks[i])
    assert best is not None
    return best, least


def default_batch(setting: Setting, size: Size) -> int:
    """K = max(n/T, nε/√T) + 4096/ε, at most n.

    With q = K/n, T subsampled steps need little more noise than full ones once q√T is about ε or more; the
    last term is for tests, which need some hundred users over ε.
    """
    n, steps, epsilon = size.num_users, size.num_steps, setting.budget.epsilon
    wanted = max(n / steps, n * epsilon / math.sqrt(steps))
    return min(n, math.ceil(wanted + _FOR_TESTS / epsilon))


def smoothing_radii(objective: Objective, least: float, distance: float) -> list[float]:
    """Radii to choose from: zero for smooth losses; else the least that privacy can resolve, and larger ones.

    Raises:
        ValueError: even the least is larger than R: there is no better bound than that of the start then.
    """
    if objective.smoothness is not None:
        return [0.0]
    if least > distance:
        raise ValueError(
            f"smoothing_radius must be at most distance = {distance:g}, but privacy resolves "
            f"{least:g} at best: more users or a larger epsilon are needed"
        )
    return [least * 4.0**k for k in range(math.floor(math.log(distance / least, 4)) + 1)]


def with_batches(
    setting: Setting,
    sizes: Sequence[Size],
    batch_size: int | Sequence[int] | None,
    constants: str,
) -> list[Size]:
    """The phases with their batches set: as given (at most the block), printed, or by default.

    Raises:
        ValueError: a batch is not positive, there are not as many as phases, or what the paper prints is
            larger than the block that it is drawn from.
    """
    if batch_size is None and constants == "tight":
        return [s._replace(batch_size=default_batch(setting, s)) for s in sizes]
    if batch_size is None:
        for i, s in enumerate(sizes, 1):
            assert s.batch_size is not None
            if s.batch_size > s.num_users:
                raise Infeasible(
                    "num_users must be large enough for constants='paper': phase "
                    f"{i} of {len(sizes)} has {s.num_users} users and draws {s.batch_size} of them"
                )
        return list(sizes)
    given = [batch_size] * len(sizes) if isinstance(batch_size, int) else list(batch_size)
    if len(given) != len(sizes):
        raise ValueError(f"batch_size must be one for each of {len(sizes)} phases, got {given}")
    for batch in given:
        _checks.require_integer("batch_size", batch, 1)
    return [s._replace(batch_size=min(b, s.num_users)) for s, b in zip(sizes, given, strict=True)]


def printed(
    setting: Setting, *, ratio: float, decay: float | None = None, num_phases: int | None = None
) -> list[Size]:
    """The paper's phases, batches included, which may be larger than blocks.

    In one stage T = ⌈(1 + √(β/λ))·ln(ndm)⌉. Left out, the decay is the least that the paper allows,
    3q + 5/2 + log_n √m, and phases are ⌊log2 n⌋.
    """
    problem, budget = setting.problem, setting.budget
    n, m, d = problem.num_users, problem.items_per_user, problem.dim
    decay = 3 * ratio + 2.5 + math.log(m) / (2 * math.log(n)) if decay is None else decay
    count = math.floor(math.log2(n)) if num_phases is None else num_phases
    base, log_delta = base_regularization(setting), math.log(1 / budget.delta)
    sizes = []
    for i in range(1, count + 1):
        users = math.floor((1 - 2.0**-ratio) * n * 2.0 ** (-i * ratio))
        lam = base * 2.0 ** (decay * i)
        length = math.ceil((1 + math.sqrt(setting.smoothness / lam)) * math.log(n * d * m))
        batch = printed_batch(users, m, length, budget.epsilon, log_delta)
        sizes.append(Size(users, lam, length, 1, batch))
    return sizes


def printed_batch(
    num_users: int, items_per_user: int, num_steps: int, epsilon: float, log_delta: float
) -> int:
    """K = 500·ln(n²m²e^ε/δ)·(1/ε + nε/√(T·ln(1/δ))), which is not compared with n there."""
    level = 2 * math.log(max(num_users, 1) * items_per_user) + epsilon + log_delta
    rate = 1 / epsilon + num_users * epsilon / math.sqrt(num_steps * log_delta)
    return math.ceil(500 * level * rate)


def printed_radius(problem: Problem) -> float:
    """τ = L·ln(ndm)/√m, with the constant 1 in place of the paper's O(·)."""
    items = problem.items_per_user
    level = math.log(problem.num_users * problem.dim * items)
    return problem.lipschitz * level / math.sqrt(items)


def printed_stddev(setting: Setting, size: Size, radius: float) -> float:
    """The noise of a coordinate, σ = 1000·τ√T·ln(nde^ε/δ)/(εn)."""
    epsilon, delta = setting.budget.epsilon, setting.budget.delta
    level = math.log(size.num_users * setting.problem.dim / delta) + epsilon
    return 1000 * radius * math.sqrt(size.num_steps) * level / (epsilon * size.num_users)


def printed_smoothing(problem: Problem, epsilon: float) -> float:
    """The smoothing radius √d·R/(εn√m)."""
    root = math.sqrt(problem.dim / problem.items_per_user)
    return root * problem.farthest / (epsilon * problem.num_users)
