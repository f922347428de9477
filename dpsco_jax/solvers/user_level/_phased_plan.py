"""The plan of phased SGD, what is proven of it, and the search for its groups, phases, steps and radii.

Phase i starts at x_{i-1} and makes T_i steps of length η_i in each group. With a_i the mean of the groups'
averages and y any point, E F(a_i) - F(y) ≤ ‖x_{i-1} - y‖²/(2η_iT_i) + η_iL²/2, as each group's samples are
fresh. Take y = u, within R of the start, in the first phase and y = a_{i-1} after it, where ‖x_{i-1} -
a_{i-1}‖² ≤ ‖noise‖². If no group is ever filtered,

    E F(x_l) - F(u) ≤ R²/(2η_1T_1) + Σ_{i≥2} dσ²_{i-1}/(2η_iT_i) + Σ_i η_iL²/2 + L√d·σ_l.

An event of probability p that some group is filtered, or a phase halts, adds at most p·L times the domain's
diameter, or without one pL(R + Σ η_iLT_i) + L√p·Σ√d·σ_i. Radii are those of ``problems.concentration``, for
which losses need not be smooth, unlike in the theorem (T, Lemma 10.7.3 with its halves put back).
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize

from dpsco_jax import _checks, privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import array_namespace
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy import Budget
from dpsco_jax.privacy.concentrated import threshold_phase
from dpsco_jax.privacy.releases import GaussianReleases, Releases, parallel_certificate
from dpsco_jax.problems import concentration
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _costs, _planning, _sequence, means, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.work import Work

_LEVELS = np.arange(0.5, 200.0, 0.5).tolist()


def clipped_releases(noise_multiplier: Any, delta: Any) -> GaussianReleases:
    """What a phase without a test releases: one mean of all its groups, one of which may be replaced."""
    return GaussianReleases(1, 1, 1, "fixed", noise_multiplier, delta)


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        items_per_user: m.
        dim: number of parameters.
        group_users: users in a group, one number for each phase.
        constants: ``"tight"`` or ``"paper"``.
        clipped: by phase, whether the mean is that of clipped averages, as the radius would test nothing.
        reaches: of ``concentrated_mean``, by phase: no honest average is farther from the phase's start.
        releases: of the outlier-removed mean, for every phase; they hold C, the number of groups.
        noise_multiplier: σ over the sensitivity 2·clip_norm/C of a mean of clipped averages.
        radii: bounds on the distance of groups' averages from their mean, by phase; the scores count pairs
            that are within twice as much of each other.
        clip_norms: how far honest averages can be from the phase's start, by phase.
        step_sizes: η, by phase.
        epsilon: ε of the budget, of each phase and of all together.
        delta: δ of the budget, of each phase and of all together.
        failure: probability, for groups within the radii of each other, that the run halts.
        concentration_failure: bound on the probability that some are not, for i.i.d. items.
        excess_bound: proven bound on the expected excess population risk, ``inf`` where none applies.
        assumed_concentration: whether the bound takes the radii on trust; 0 or 1.
    """

    num_users: int = static()
    items_per_user: int = static()
    dim: int = static()
    group_users: tuple[int, ...] = static()
    constants: str = static(choices=("tight", "paper"))
    clipped: tuple[bool, ...] = static()
    reaches: tuple[float, ...] = static()
    releases: Any
    noise_multiplier: Number
    radii: Number
    clip_norms: Number
    step_sizes: Number
    epsilon: Number
    delta: Number
    failure: Number
    concentration_failure: Number
    excess_bound: Number
    assumed_concentration: Number

    def __post_init__(self) -> None:
        _planning.require_replacement(self.releases)
        phases = len(self.group_users)
        _checks.require(
            len(self.clipped) == phases, "clipped", self.clipped, f"{phases} of True, False"
        )

    @property
    def num_groups(self) -> int:
        """C, in every phase."""
        return self.releases.population_size

    @property
    def phase_users(self) -> tuple[int, ...]:
        """Users of each phase; the others are left out, by position."""
        return tuple(self.num_groups * users for users in self.group_users)

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run: one for each user who is in a group."""
        return sum(self.phase_users)

    @property
    def item_gradients(self) -> int:
        """Item gradients of the whole run: Σ C·N_i·m."""
        return self.user_gradients * self.items_per_user

    @property
    def noise_stddevs(self) -> tuple[Any, ...]:
        """Noise on each coordinate of the result of each phase."""
        each = zip(self.clipped, self.radii, self.clip_norms, self.reaches, strict=True)
        return tuple(
            self.noise_multiplier * 2 * clip / self.num_groups
            if clipped
            else means.tested_stddev(self.releases, 2 * radius, span, self.dim)
            for clipped, radius, clip, span in each
        )

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bound on the excess risk assumes; privacy assumes none of it."""
        assumed = [
            "losses are convex and Lipschitz as the objective says",
            f"users are independent, each with {self.items_per_user} i.i.d. items",
        ]
        if float(self.assumed_concentration):
            assumed.append(
                "the averages of all groups of a phase are within its radius of their mean"
            )
        return tuple(assumed)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs: a pass over all items, one after the other in every group."""
        walked = _costs.walks(self.num_groups, self.user_gradients * item.slots, item)
        means_of_groups = [
            _costs.release(item.dim) if clipped else _costs.near_most(self.num_groups, item.dim)
            for clipped in self.clipped
        ]
        return functools.reduce(operator.add, means_of_groups, walked)

    def loss(self) -> privacy.PrivacyLoss:
        """The loss of the run, whenever it halts."""
        lengths, stddevs = self._lengths
        losses = [_planning.bounded_loss(lengths, stddevs, kind) for kind in self._kinds]
        return _sequence.parallel_loss(losses)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run: of phases on users of their own.

        Raises:
            ValueError: if a number is out of the range in which there is a proof.
        """
        _planning.require_accounted_length("clip_norms and radii", *self._lengths)
        return parallel_certificate([kind.certificate() for kind in self._kinds])

    @property
    def _lengths(self) -> tuple[Any, Any]:
        """What sensitivities are in proportion to, and the noise before rounding is paid for, by phase."""
        xp = array_namespace(self.clip_norms, self.radii)
        each = xp.where(
            xp.asarray(self.clipped),
            2 * xp.asarray(self.clip_norms) * self.noise_multiplier / self.num_groups,
            2 * xp.asarray(self.radii) * self.releases.noise_stddev,
        )
        return xp.stack([self.clip_norms, self.radii]), each

    @property
    def _kinds(self) -> list[Releases]:
        """What the phases release; those with the same mean release the same."""
        kinds = {True: clipped_releases(self.noise_multiplier, self.delta), False: self.releases}
        return [kinds[clipped] for clipped in dict.fromkeys(self.clipped)]

    def __str__(self) -> str:
        because = "the radius holds any two averages: it tests nothing"
        remarks = [("clipped because", because)] if any(self.clipped) else []
        return plans.describe("phased SGD with outlier iterates removed", self, remarks)


class Phase(NamedTuple):
    """The numbers of one phase.

    Attributes:
        num_steps: T.
        step_size: η.
        radius: of the concentration score.
        farthest: how far from its start an honest average can be.
        void: whether the radius holds any two averages, whatever the data.
        stddev: σ, on each coordinate of the result; 0 until it is known.
    """

    num_steps: int
    step_size: float
    radius: float
    farthest: float
    void: bool
    stddev: float = 0.0

    @property
    def reach(self) -> float:
        """No honest average is farther from the phase's start, in radii."""
        return means.tested_reach(self.farthest, self.radius)

    def with_noise(self, dim: int, releases: Any, noise_multiplier: float) -> "Phase":
        """The phase with the noise of its mean."""
        if self.void:
            clip = noise_multiplier * 2 * self.farthest
            return self._replace(stddev=clip / releases.population_size)
        stddev = means.tested_stddev(releases, self.radius, self.reach, dim)
        return self._replace(stddev=float(stddev))


class Request(NamedTuple):
    """What was asked for: the checked arguments of ``phased_sgd.plan``.

    ``printed`` are the paper's choices in place of steps, ratios and radii, ``plain`` is the noise multiplier
    of a mean of clipped averages.
    """

    problem: Problem
    budget: Budget
    step_size: float | None
    step_ratio: float
    size_ratio: float
    radius: float | Sequence[float] | None
    failure: float
    printed: "Printed | None"
    plain: float


def best(
    request: Request,
    calibrate: Callable[[int], Any],
    num_groups: int | None,
    counts: Sequence[int],
) -> Plan:
    """The plan that proves most, of some numbers of phases and of C groups, or of all that the test allows.

    Raises:
        Infeasible: too few users, or too few groups, for the test or for the phases.
    """
    users = request.problem.num_users
    if num_groups is None:
        fewest = threshold_phase.fewest_users(calibrate)
        if fewest > users:
            raise Infeasible(
                f"num_users must be at least {fewest} here, got {users}", {"num_users": fewest}
            )
        choices = [fewest]
        while (larger := math.ceil(4 * choices[-1] / 3)) <= users:
            choices.append(larger)
    else:
        choices = [num_groups]
        try:
            calibrate(num_groups)
        except Infeasible as refusal:
            least = refusal.needed.get("num_users")
            needed = {} if least is None else {"num_groups": least}
            raise Infeasible(str(refusal).replace("num_users", "num_groups"), needed) from None
    found = [
        made
        for groups, releases in ((groups, calibrate(groups)) for groups in choices)
        for count in counts
        if (made := _candidate(request, groups, count, releases)) is not None
    ]
    if not found:
        raise Infeasible(
            f"num_users must be enough for {counts[0]} phases of {choices[0]} groups, got {users}"
        )
    return min(found, key=lambda made: made[0])[1]


def _candidate(
    request: Request, groups: int, count: int, releases: Any
) -> tuple[float, Plan] | None:
    """The bound (without regard to a ridge) and the plan; ``None`` if some phase has too few users."""
    problem, printed = request.problem, request.printed
    radii: Sequence[float] | None
    if printed is not None:
        group_users, steps, radii = printed.group_users, printed.step_sizes, printed.radii
    else:
        sizes = _sequence.block_sizes(problem.num_users, request.size_ratio, count)
        group_users = tuple(size // groups for size in sizes)
        steps = tuple(request.step_ratio**i for i in range(count))
        radii = None if request.radius is None else _by_phase(request.radius, count)
    if min(group_users) < 1:
        return None
    lengths = [users * problem.items_per_user for users in group_users]

    def under(factor: float) -> list[Phase]:
        found = _phases(request, groups, lengths, [factor * s for s in steps], radii)
        return [phase.with_noise(problem.dim, releases, request.plain) for phase in found]

    factor = request.step_size if printed is None else 1.0
    if factor is None:
        factor = _best_step(
            lambda eta: excess_bound(problem, under(eta), 0.0),
            problem.farthest / (problem.lipschitz * math.sqrt(lengths[0])),
        )
    found = under(factor)
    tested = [phase for phase in found if not phase.void]
    false_halt = len(tested) * releases.false_halt()
    apart = _concentration_failure(problem, groups, tested)
    on_trust = apart > request.failure
    counted = min(1.0, false_halt + (0.0 if on_trust else apart))
    bound = excess_bound(problem, found, counted)
    plan = Plan(
        num_users=problem.num_users,
        items_per_user=problem.items_per_user,
        dim=problem.dim,
        group_users=group_users,
        constants="tight" if printed is None else "paper",
        clipped=tuple(phase.void for phase in found),
        reaches=tuple(phase.reach for phase in found),
        releases=releases,
        noise_multiplier=request.plain,
        radii=tuple(phase.radius / 2 for phase in found),
        clip_norms=tuple(phase.farthest for phase in found),
        step_sizes=tuple(phase.step_size for phase in found),
        epsilon=request.budget.epsilon,
        delta=request.budget.delta,
        failure=false_halt,
        concentration_failure=apart,
        excess_bound=math.inf if problem.objective.ridge else bound,
        assumed_concentration=float(on_trust),
    )
    return bound, plan


def _by_phase(radius: float | Sequence[float], count: int) -> tuple[float, ...]:
    if isinstance(radius, int | float):
        radius = [radius] * count
    if len(radius) != count:
        raise ValueError(
            f"radius must be one number or {count}, one for each phase, got {radius!r}"
        )
    # Scores look at pairs.
    return tuple(2 * _checks.require_real("radius", value, 0) for value in radius)


def _phases(
    request: Request,
    num_groups: int,
    num_steps: Sequence[int],
    step_sizes: Sequence[float],
    radii: Sequence[float] | None,
) -> list[Phase]:
    """The phases for given lengths, steps and radii, or those within which i.i.d. groups stay."""
    problem, lipschitz = request.problem, request.problem.lipschitz
    allowed = request.failure / 2 / (_pairs(num_groups) * len(num_steps))
    found = []
    for i, (steps, step) in enumerate(zip(num_steps, step_sizes, strict=True)):
        radius = (
            concentration.sgd_iterate_radius(step, lipschitz, steps, allowed, _contraction(problem))
            if radii is None
            else radii[i]
        )
        # The average is of x_0, ..., x_(T-1), and x_t is within ηtL of x_0. A ridge pulls farther.
        ridge = problem.objective.ridge
        moved = 2 * problem.farthest if ridge else step * lipschitz * (steps - 1) / 2
        farthest = min(problem.diameter, moved)
        void = not ridge and 0.0 < 2 * farthest <= radius
        found.append(Phase(steps, step, radius, farthest, void))
    return found


def _concentration_failure(problem: Problem, num_groups: int, found: Sequence[Phase]) -> float:
    """Bound, at most 1, on the probability that in some phase some i.i.d. groups are too far apart."""
    total = 0.0
    for phase in found:
        radius = [
            concentration.sgd_iterate_radius(
                phase.step_size,
                problem.lipschitz,
                phase.num_steps,
                math.exp(-level),
                _contraction(problem),
            )
            for level in _LEVELS
        ]
        # The least failure probability, of a fine grid, whose radius is no larger than the phase's.
        within = [
            level for level, size in zip(_LEVELS, radius, strict=True) if size <= phase.radius
        ]
        total += _pairs(num_groups) * math.exp(-max(within)) if within else 1.0
    return min(total, 1.0)


def _contraction(problem: Problem) -> float:
    """Strong convexity that draws two runs together."""
    # With a ridge a step shrinks distances by (1 - η·ridge)² ≤ 1 - η·ridge.
    objective = problem.objective
    return objective.ridge / 2 if objective.ridge else objective.loss_strong_convexity


def _pairs(num_groups: int) -> int:
    return max(1, num_groups * (num_groups - 1) // 2)


def excess_bound(problem: Problem, found: Sequence[Phase], failure: float) -> float:
    """The bound of the head, with the probability that some group is filtered or a phase halts."""
    slope, squared = problem.lipschitz, problem.farthest**2
    total = 0.0
    for phase in found:
        total += squared / (2 * phase.step_size * phase.num_steps) + phase.step_size * slope**2 / 2
        squared = problem.dim * phase.stddev**2
    total += slope * math.sqrt(squared)
    if math.isfinite(problem.diameter):
        return total + failure * slope * problem.diameter
    path = sum(phase.step_size * phase.num_steps * slope for phase in found)
    noise = math.sqrt(problem.dim) * sum(phase.stddev for phase in found)
    return total + slope * (failure * (problem.farthest + path) + math.sqrt(failure) * noise)


def _best_step(bound: Callable[[float], float], scale: float) -> float:
    """The step size with the least bound, within a factor of 10⁴ of ``scale``."""
    grid = math.log(scale) + np.linspace(-9.0, 9.0, 37)
    values = [bound(math.exp(point)) for point in grid]
    center = grid[int(np.argmin(values))]
    refined = scipy.optimize.minimize_scalar(
        lambda point: bound(math.exp(point)), bounds=(center - 0.5, center + 0.5), method="bounded"
    )
    return math.exp(refined.x)


class Printed(NamedTuple):
    """The paper's sizes and numbers; see ``printed``."""

    num_groups: int
    group_users: tuple[int, ...]
    step_sizes: tuple[float, ...]
    radii: tuple[float, ...]


def printed(problem: Problem, budget: Budget) -> Printed:
    """The numbers of F, Algorithm 1, with constant 1 where the paper has O(·).

    C = ⌈100 ln(20nme^ε/δ)/ε⌉ groups; l = ⌊log₂ n⌋ phases of (1 - 2^-q)·n·2^(-iq) users, q such that the last
    holds as many as it can; η_i = 2^(-pi)·R/(L√(dmnε)) with p = J + 3/2, m ≤ n^J; radii 1000η_iL√T_i·ln(ndm).

    Raises:
        ValueError: the last phase has fewer users than groups; names the smallest number of users.
    """
    n, m, epsilon = problem.num_users, problem.items_per_user, budget.epsilon

    def groups(users: int) -> int:
        level = math.log(20.0 * users * m / budget.delta) + epsilon
        return math.ceil(100.0 * level / epsilon)

    if not _fits(n, groups(n)):
        low, high = n, 2 * n
        while not _fits(high, groups(high)):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _fits(middle, groups(middle)) else (middle, high)
        raise ValueError(f"num_users must be at least {high} for the paper's sizes, got {n}")
    num_groups, q = groups(n), _decay(n)
    count = max(1, math.floor(math.log2(n)))
    group_users = tuple(
        int((1 - 2.0**-q) * n * 2.0 ** (-i * q)) // num_groups for i in range(1, count + 1)
    )
    power = max(1, math.ceil(math.log(m) / math.log(n) - 1e-12)) + 1.5
    first = problem.farthest / (problem.lipschitz * math.sqrt(problem.dim * m * n * epsilon))
    step_sizes = tuple(first * 2.0 ** (-power * i) for i in range(1, count + 1))
    level = 1000.0 * problem.lipschitz * math.log(n * problem.dim * m)
    radii = tuple(
        step * level * math.sqrt(users * m)
        for users, step in zip(group_users, step_sizes, strict=True)
    )
    return Printed(num_groups, group_users, step_sizes, radii)


def _decay(num_users: int) -> float:
    """The q for which the last phase has most users, (1 - 2^-q)·n·2^(-lq): 2^q = 1 + 1/l."""
    count = max(1, math.floor(math.log2(num_users)))
    return math.log2(1.0 + 1.0 / count)


def _fits(num_users: int, num_groups: int) -> bool:
    q, count = _decay(num_users), max(1, math.floor(math.log2(num_users)))
    return int((1 - 2.0**-q) * num_users * 2.0 ** (-count * q)) >= num_groups
