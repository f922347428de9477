"""The schedule of phased ERM: how many phases, how regularized, with how many steps; and what is proven.

What it computes: for phases t = 1, ..., k on disjoint blocks of n_t users, with regularization λ_t =
4^(t-1)·λ around the point before, the bound on the expected excess risk, and the λ, k and
numbers of steps for which it is least.

Source: L Algorithm 4, Theorem 5 (rates); Feldman, Koren and Talwar 2020 (the scheme); Shalev-Shwartz, Shamir,
Srebro and Sridharan 2009 (stability). The constants are derived here. As printed, n_t = n/2^t, the last of
log₂(Gn√m·ε/(σd)) phases has less than one user; ``"equal"`` blocks and half as many phases serve, with the
same rate up to logarithms.

With a_t a bound on the root-mean-square distance of what phase t returns from its minimizer, a_0 = R, D the
diameter of the domain (or its largest norm), and s_t = 2G²/((λ_t + μ)n_t·m) for stability, the excess is

    E F(x_k) - F* <= Σ_t (λ_t·a_{t-1}²/2 + s_t) + (G + ridge·D)·a_k.

With μ > 0 the phases may be repeated in rounds on further users. Proof: docs/theory/phased_erm.md.

Formal guarantee: none of privacy.

Cost: one calibration for each size of a block and number of steps, some 100 to 200 in all: seconds.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from dpsco_jax._infeasible import Infeasible
from dpsco_jax.mechanisms.winsorized.winsorized_releases import WinsorizedReleases
from dpsco_jax.solvers._schedules import gradient_descent
from dpsco_jax.solvers._sequence import block_sizes

_MOST_PHASES = 6
_MOST_ROUNDS = 3
_RATIO = 4.0
_NEAR = 1.1

Calibrated = Callable[[int, int], tuple[WinsorizedReleases, float]]
"""``(num_users, num_steps) -> (releases, chance of clipping)``; ``Infeasible`` with too few users."""


class Setting(NamedTuple):
    """The public facts.

    Attributes:
        items_per_user: m.
        lipschitz: G.
        smoothness: of the loss with its ridge.
        strong_convexity: μ, of both.
        slope: G + ridge·D.
        diameter: D.
        distance: R.
        most_steps: of a phase.
    """

    items_per_user: int
    lipschitz: float
    smoothness: float
    strong_convexity: float
    slope: float
    diameter: float
    distance: float
    most_steps: int


class PhaseSizes(NamedTuple):
    """One phase: users, steps, regularization, and what is proven of it."""

    num_users: int
    num_steps: int
    regularization: float
    reach: float


class Candidate(NamedTuple):
    """A schedule, its bound on the excess risk while no gradient is clipped, and the chance of that."""

    phases: tuple[PhaseSizes, ...]
    bound: float
    chance: float


@dataclasses.dataclass
class Noises:
    """Noise variances over a grid of numbers of steps, one array for each size of a block."""

    calibrated: Calibrated
    steps: np.ndarray

    def __post_init__(self) -> None:
        self._known: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def of(self, num_users: int) -> tuple[np.ndarray, np.ndarray]:
        """Variances and chances of clipping, ``inf`` where there are too few users."""
        if num_users not in self._known:
            found = []
            for steps in self.steps:
                try:
                    releases, chance = self.calibrated(num_users, int(steps))
                    found.append((float(releases.noise_variance), chance))
                except Infeasible:
                    found.append((math.inf, 1.0))
            variances, chances = np.array(found).T
            self._known[num_users] = variances, chances
        return self._known[num_users]


def best(setting: Setting, num_users: int, split: str, calibrated: Calibrated) -> Candidate:
    """The schedule with the least bound.

    Raises:
        ValueError: there are too few users for a single step of a single phase.
    """
    steps = np.unique(np.round(np.geomspace(1, setting.most_steps, 16)))
    noises = Noises(calibrated, steps)
    rounds = _MOST_ROUNDS if setting.strong_convexity > 0 else 1
    found = [
        candidate
        for count in range(1, rounds + 1)
        for phases in range(1, _MOST_PHASES + 1)
        if num_users >= count * 2**phases
        for candidate in [_rounds(setting, num_users // count, split, count, phases, noises)]
        if math.isfinite(candidate.bound)
    ]
    if not found:
        # The message of the calibration says how many users it needs.
        calibrated(num_users, 1)
        raise ValueError("domain must be bounded if there is a ridge, got infinite diameter")
    return min(found, key=lambda candidate: candidate.bound)


def _rounds(
    setting: Setting, num_users: int, split: str, rounds: int, phases: int, noises: Noises
) -> Candidate:
    sizes = sizes_of(num_users, split, phases)
    all_phases: tuple[PhaseSizes, ...] = ()
    distance, chance = setting.distance, 0.0
    bound = math.inf
    for _ in range(rounds):
        options = _options(setting._replace(distance=distance), sizes, noises)
        chosen = min(options, key=lambda candidate: candidate.bound)
        all_phases += chosen.phases
        bound, chance = chosen.bound, min(1.0, chance + chosen.chance)
        if setting.strong_convexity > 0:
            distance = min(distance, math.sqrt(2 * bound / setting.strong_convexity))
    return Candidate(all_phases, bound, chance)


def _options(setting: Setting, sizes: tuple[int, ...], noises: Noises) -> Iterator[Candidate]:
    users = sum(sizes)
    natural = setting.lipschitz / setting.distance
    lowest = natural / math.sqrt(users * setting.items_per_user) / 8
    for regularization in np.geomspace(lowest, 4 * natural, 40):
        lambdas = regularization * _RATIO ** np.arange(len(sizes))
        yield bounded(setting, sizes, lambdas, noises)


def bounded(
    setting: Setting, sizes: tuple[int, ...], lambdas: np.ndarray, noises: Noises
) -> Candidate:
    """The bound of given blocks and regularizations, each phase with its best number of steps."""
    phases, total, chance = [], 0.0, 0.0
    reach = setting.distance
    for size, weight in zip(sizes, map(float, lambdas), strict=True):
        strong = weight + setting.strong_convexity
        stability = 2 * setting.lipschitz**2 / (strong * size * setting.items_per_user)
        total += weight * reach**2 / 2 + stability
        start = min(setting.slope / (weight + setting.strong_convexity / 2), setting.diameter)
        variances, chances = noises.of(size)
        feasible = np.isfinite(variances)
        missing = gradient_descent.best_strongly_convex_bound(
            setting.smoothness + weight,
            strong,
            start,
            np.where(feasible, variances, 0),
            noises.steps,
        )
        missing = np.where(feasible, missing, math.inf)
        # Flat where the noise rules: the fewest steps that come near the best.
        index = int(np.argmax(missing <= _NEAR * np.min(missing)))
        reach = math.sqrt(2 * missing[index] / strong)
        chance += chances[index]
        phases.append(PhaseSizes(size, int(noises.steps[index]), weight, reach))
    return Candidate(tuple(phases), total + setting.slope * reach, min(1.0, chance))


def sizes_of(num_users: int, split: str, phases: int) -> tuple[int, ...]:
    """Equal blocks, or blocks that halve."""
    return block_sizes(num_users, 1.0 if split == "equal" else 0.5, phases)


def printed(
    setting: Setting, num_users: int, dim: int, stddev: float, epsilon: float, split: str
) -> list[PhaseSizes]:
    """The printed λ and numbers of steps, on blocks that have users: see the file's docstring.

    Args:
        setting: public facts.
        num_users: n.
        dim: d.
        stddev: σ: gradients of items are σ²-sub-Gaussian in every direction.
        epsilon: the budget.
        split: ``"equal"``, with half as many phases, or ``"geometric"``, as many as leave 1 user.
    """
    users, items = num_users, setting.items_per_user
    privacy = stddev * dim / (users * math.sqrt(items) * epsilon)
    spread = min(setting.lipschitz, stddev * math.sqrt(dim))
    sampling = setting.lipschitz * spread / (users * items)
    weight = math.sqrt(sampling + privacy**2) / setting.distance
    log_count = math.log2(max(setting.lipschitz / privacy, 2.0))
    if split == "equal":
        count = max(1, math.ceil(0.5 * log_count))
    else:
        count = max(1, min(math.ceil(log_count), int(math.log2(users))))
    phases = []
    for t, size in enumerate(sizes_of(users, split, count), start=1):
        strong = 4.0**t * weight
        smooth = setting.smoothness + strong
        precision = setting.lipschitz * setting.distance * strong / (privacy * users / size) ** 2
        steps = math.ceil(smooth / strong * max(1.0, math.log(max(precision, 1.0))))
        phases.append(PhaseSizes(size, min(steps, setting.most_steps), strong, math.inf))
    return phases
