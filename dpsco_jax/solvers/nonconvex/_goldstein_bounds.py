"""What O2NC proves on private estimates of a smoothed gradient, and the numbers that prove most.

For users whose losses are L-Lipschitz, F_α is the risk averaged over balls of radius α. An estimate of its
gradient is begun anew every Σ steps, and kept up in between by coupled differences. At place j = 0, ..., Σ -
1 of a period the root mean square of its error is at most

    (V_1/B_1 + j·V_2/B_2 + d·noise_j²)^½ + bias_1 + j·bias_2,

V_1 and V_2 the second moments of a user's terms, the biases what clips may take of their means. The mean
square over a run is at most G_0², and ``transforms.o2nc`` makes of it the bound

    gap/(D·T) + 2·(L + G_0)/√M + 2·G_0,   gap = F(start) - inf F + L·α·d/(d+1),   D = α/M

on the norm of a vector of ∂_α F_α, and so of ∂_{2α} F, at the point that is reported. Proofs:
docs/theory/goldstein.md.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import one_of
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry.smoothing import smoothness_factor
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import methods
from dpsco_jax.solvers.first_order import FirstOrder
from dpsco_jax.solvers.nonconvex import _stationary
from dpsco_jax.solvers.nonconvex._smoothed_means import ORDERS
from dpsco_jax.solvers.plans import Remarks

Order = Annotated[str, one_of(*ORDERS)]

# Two points in a row are at most D·(1 - s + s') apart, s and s' independent and uniform in [0, 1].
MEAN_SQUARE = 7 / 6
_ROOMS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
_LONGEST_PERIOD = 4096


class Setting(NamedTuple):
    """What is known of the problem, and how gradients are estimated.

    Attributes:
        dim: d.
        lipschitz: L of a user's loss.
        radius: α of the smoothing.
        gap: F(start) - inf F, at most.
        order: ``"zeroth"`` or ``"first"``.
        draws: m, directions of an estimate, or pairs of points of a difference.
        sampled: whether users are a sample, whose risk is another one than that which is minimized.
    """

    dim: int
    lipschitz: float
    radius: float
    gap: float
    order: str
    draws: float
    sampled: bool

    @property
    def smoothed_gap(self) -> float:
        """F_α(start) - inf F_α, at most: F_α ≤ F + Lα·d/(d+1), and no mean is below the least value."""
        return self.gap + self.lipschitz * self.radius * self.dim / (self.dim + 1)

    @property
    def smoothness(self) -> float:
        """H of F_α."""
        return smoothness_factor(self.dim) * self.lipschitz / self.radius

    @property
    def _spread(self) -> float:
        """Of the two-point estimate along one direction: E of its squared norm, less that of its mean."""
        return 0.0 if self.dim == 1 else (self.lipschitz * self.dim) ** 2 / (self.dim - 1)

    @property
    def gradient_moment(self) -> float:
        """V_1: of a user's estimate of a gradient, E of its squared norm, or of its distance to its mean."""
        if self.order == "first":
            return self.lipschitz**2
        return self._spread / self.draws + (self.lipschitz**2 if self.sampled else 0.0)

    def difference_moment(self, move: Any) -> Any:
        """V_2: the same of a difference, between two points in a row."""
        square = MEAN_SQUARE * move**2
        mean = self.smoothness**2 * square if self.sampled else 0.0
        return mean + self._difference_spread(square, move) / self.draws

    def _difference_spread(self, square: Any, distance: Any) -> Any:
        if self.order == "zeroth":
            return (self.dim * self.lipschitz / self.radius) ** 2 * square
        # They differ with probability H/(2L) times the distance, and then by 2L at most.
        return 2 * self.lipschitz * self.smoothness * distance

    def gradient_bias(self, room: float) -> float:
        """How far the clip at (1 + room)·L moves the mean of a user's estimates of a gradient, at most."""
        if self.order == "first" or self.dim == 1:
            return 0.0
        longest = self.lipschitz * (self.dim + 1)
        return float(_excess(room * self.lipschitz, self._spread, longest, self.draws))

    def difference_bias(self, room: float, distance: Any) -> Any:
        """The same of the clip at (1 + room)·H·(distance), of points that are no farther apart."""
        mean = self.smoothness * distance
        longest = 2 * self.lipschitz
        if self.order == "zeroth":
            longest = self.dim * self.lipschitz / self.radius * distance
        spread = self._difference_spread(distance**2, distance)
        found = _excess(room * mean, spread, longest + mean, self.draws)
        return np.where((1 + room) * mean >= longest, 0.0, found)

    def relative_bias(self, room: float, move: Any) -> Any:
        """The same of the clip at (1 + room)·H·‖w - v‖, in proportion to the distance of the two points."""
        if self.order == "zeroth":
            # In proportion to the distance, which is at most D on average.
            return self.difference_bias(room, 1.0) * move
        # Second moments alone, which say the same for all distances; and never more than the mean.
        return np.minimum(self.lipschitz / (2 * self.draws * room), self.smoothness * move)


def _excess(room: Any, moment: Any, longest: Any, draws: float) -> Any:
    """E (‖mean of m terms - its mean‖ - room)₊: by second moments, or by an exponential inequality.

    Pinelis 1994: P(‖·‖ ≥ t) ≤ 2·exp(-m·t²/(2(v + b·t/3))), where t/(v + b·t/3) only grows beyond the room.
    """
    rate = draws * room / (2 * (moment + longest * room / 3))
    return np.minimum(moment / (4 * draws * room), 2 * np.exp(-rate * room) / rate)


def plan_of(
    title: str, problem: Problem, budget: privacy.Budget, mean: Any, found: "Schedule"
) -> FirstOrder:
    """The plan of these numbers, with its bound: infinite with a ridge, which is not Lipschitz far out."""
    radius = mean.smoothing_radius
    return FirstOrder(
        title=title,
        dim=problem.dim,
        mean=mean,
        method=methods.O2nc(radius / found.block_length, found.step_size, found.block_length),
        pull=None,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=math.inf,
        details={
            "goldstein_bound": found.bound if problem.objective.ridge == 0 else math.inf,
            "goldstein_radius": 2 * radius,
        },
        remarks=Remarks((("reported", "the average of a block of points, all equally likely"),)),
        premises=Remarks(
            ("users' losses are Lipschitz on the whole space, and F(start) - inf F ≤ initial_gap",)
        ),
        promised_relation=_stationary.promised(mean.releases.relation),
    )


def setting_of(
    problem: Problem,
    initial_gap: float,
    smoothing_radius: float,
    order: str,
    draws: int,
    sampled: bool,
) -> Setting:
    """What bounds need to know of a problem, whose domain is the whole space."""
    wanted = "of the whole space, as moves are not projected"
    whole = math.isinf(problem.diameter)
    _checks.require(whole, "problem.objective.domain", problem.diameter, wanted)
    return Setting(
        dim=problem.dim,
        lipschitz=float(problem.lipschitz),
        radius=smoothing_radius,
        gap=initial_gap,
        order=order,
        draws=draws,
        sampled=sampled,
    )


class Schedule(NamedTuple):
    """The numbers of a run, and what they prove.

    Attributes:
        num_steps: T.
        period: Σ.
        batches: B_1 and B_2, users of a first step of a period and of a later one.
        block_length: M.
        room: by how much clips are above the bounds of the means.
        share: of the budget μ², that first steps get; 1 where all steps are one release.
        step_size: η.
        bound: β.
    """

    num_steps: int
    period: int
    batches: tuple[int, int]
    block_length: int
    room: float
    share: float
    step_size: float
    bound: float


def proven(setting: Setting, blocks: Any, steps: Any, error: Any) -> tuple[Any, Any]:
    """β and η of so many steps in blocks of length M, with this root mean square error of all of them."""
    move, whole = setting.radius / blocks, steps // blocks * blocks
    # Of the steps in whole blocks, whose mean square may be larger than that of all.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        error = error * np.sqrt(steps / whole)
        first = setting.lipschitz + error
        bound = setting.smoothed_gap / (move * whole) + 2 * first / np.sqrt(blocks) + 2 * error
        return np.where(whole > 0, bound, np.inf), 2 * move / (first * np.sqrt(blocks))


def clips(setting: Setting, room: float, far: Any = 1.0) -> tuple[float, Any]:
    """To what a user's gradient is clipped, and a user's difference between points so far apart."""
    gradient = setting.lipschitz * (1.0 if setting.order == "first" else 1 + room)
    return gradient, (1 + room) * setting.smoothness * far


def one_pass(
    setting: Setting,
    users: int,
    per_share: float,
    mean_squares: Callable[[int], float],
    period: int | None = None,
) -> Schedule:
    """The best numbers where every user takes part once.

    Args:
        setting: of the problem.
        users: n.
        per_share: the standard deviation of one release for the whole run over a user's share of a mean.
        mean_squares: of a Σ: of the noise in the sums of the first 1, ..., Σ steps of a stream, in units of
            that deviation, the mean of the squares.
        period: Σ; the best if ``None``.

    Raises:
        Infeasible: there are too few users for a period.
    """
    if period is not None and period > users:
        raise Infeasible(
            f"num_users must be at least {period}, one for each step of a period, got {users}",
            {"num_users": period},
        )
    blocks = np.array(in_ratio(1, 10**6, 100))[:, None]
    move = setting.radius / blocks
    best, found = math.inf, None
    for sigma in in_ratio(1, min(users, _LONGEST_PERIOD), 30) if period is None else [period]:
        noise = mean_squares(sigma)
        later = np.array(in_ratio(1, max(1, users // sigma), 40))[None]
        for room in _ROOMS:
            gradient, difference = clips(setting, room, 2 * move)
            # Shares of both kinds of steps are the same.
            first = np.maximum(np.ceil(later * (gradient / difference)), 1)
            if sigma == 1:
                first, share = later + 0 * first, gradient / later
            else:
                share = difference / later
            share = np.maximum(share, gradient / first)
            steps = users // (first + (sigma - 1) * later) * sigma
            variance = setting.gradient_moment / first
            variance = variance + (sigma - 1) / 2 * setting.difference_moment(move) / later
            variance = variance + setting.dim * (per_share * share) ** 2 * noise
            bias = setting.gradient_bias(room) + (sigma > 1) * math.sqrt(
                (sigma - 1) * (2 * sigma - 1) / 6
            ) * setting.difference_bias(room, 2 * move)
            bound, size = proven(setting, blocks, steps, np.sqrt(variance) + bias)
            row, column = np.unravel_index(np.argmin(bound), bound.shape)
            if found is None or bound[row, column] < best:
                best = float(bound[row, column])
                batches = int(first[row, column]), int(later[0, column])
                found = Schedule(
                    num_steps=max(int(steps[row, column]), sigma),
                    period=sigma,
                    batches=batches,
                    block_length=int(blocks[row, 0]),
                    room=room,
                    share=1.0,
                    step_size=float(size[row, column]),
                    bound=best,
                )
    assert found is not None
    return found


def full_batches(
    setting: Setting,
    users: int,
    per_share: float,
    steps: list[int],
    period: int | None = None,
) -> Schedule:
    """The best numbers where everybody takes part in every step.

    Args:
        setting: of the problem.
        users: n.
        per_share: as in ``one_pass``.
        steps: the T to choose from.
        period: Σ; the best if ``None``.
    """
    blocks = np.array(in_ratio(1, max(steps), 60))[:, None]
    move = setting.radius / blocks
    best, found = math.inf, None
    for number in steps:
        each = [min(period, number)] if period is not None else in_ratio(1, number, 40)
        periods = np.array(each)[None]
        begun = -(-number // periods)
        for room in _ROOMS:
            gradient, difference = clips(setting, room)
            wide = math.sqrt(setting.dim) * per_share / users
            # Squares of the noise of first steps, and of all later ones at the end, if each had all of μ².
            of_first = (wide * gradient) ** 2 * begun
            of_later = (wide * difference) ** 2 * MEAN_SQUARE * move**2 * (periods - 1) / 2
            of_later = of_later * (number - begun)
            share = np.sqrt(of_first) / (np.sqrt(of_first) + np.sqrt(of_later))
            variance = (np.sqrt(of_first) + np.sqrt(of_later)) ** 2
            variance = variance + setting.gradient_moment / users
            variance = variance + (periods - 1) / 2 * setting.difference_moment(move) / users
            places = np.sqrt((periods - 1) * (2 * periods - 1) / 6)
            bias = setting.gradient_bias(room) + places * setting.relative_bias(room, move)
            bound, size = proven(setting, blocks, number, np.sqrt(variance) + bias)
            row, column = np.unravel_index(np.argmin(bound), bound.shape)
            if found is None or bound[row, column] < best:
                best = float(bound[row, column])
                found = Schedule(
                    num_steps=number,
                    period=int(periods[0, column]),
                    batches=(users, users),
                    block_length=int(blocks[row, 0]),
                    room=room,
                    share=float(share[row, column]),
                    step_size=float(size[row, column]),
                    bound=best,
                )
    assert found is not None
    return found


def in_ratio(least: int, most: int, points: int) -> list[int]:
    """Integers from the least to the most, in ratio."""
    found = {int(x) for x in np.geomspace(least, most, points).round()}
    return sorted(found | {least, most})
