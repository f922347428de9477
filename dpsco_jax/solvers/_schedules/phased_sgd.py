"""Groups, phases, steps and radii of phased SGD, and what is proven of its risk.

What it computes: the bound below for given sizes and steps, the step size that minimizes it, and the printed
choices of the paper.

Source: F, Algorithm 1 and Theorem 2.1 (T, Algorithm 31, Theorem 10.2.1; Lemma 10.7.3 with its halves put
back). The concentration of SGD runs is that of ``problems.concentration``: no smoothness is needed, so
neither is it here, unlike in the theorem.

Formal guarantee: none of privacy. Phase i starts at x_{i-1} and makes T_i steps of length η_i in each group.
With a_i the mean of the groups' averages and y any point, E F(a_i) - F(y) ≤ ‖x_{i-1} - y‖²/(2η_iT_i) +
η_iL²/2, as each group's samples are fresh. Take y = u, within R of the start, in the first phase and
y = a_{i-1} after it, where ‖x_{i-1} - a_{i-1}‖² ≤ ‖noise‖². If no group is ever filtered,

    E F(x_l) - F(u) ≤ R²/(2η_1T_1) + Σ_{i≥2} dσ²_{i-1}/(2η_iT_i) + Σ_i η_iL²/2 + L√d·σ_l.

An event of probability p that some group is filtered, or a phase halts, adds at most p·L times the domain's
diameter, or without one pL(R + Σ η_iLT_i) + L√p·Σ√d·σ_i.

Cost: none.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize

from dpsco_jax.problems import concentration

_LEVELS = np.arange(0.5, 200.0, 0.5).tolist()


class Setting(NamedTuple):
    """What the schedule depends on, all of it public.

    Attributes:
        num_users: n.
        items_per_user: m.
        dim: d.
        lipschitz: L, of the loss without the ridge.
        ridge: of the objective; nothing is proven of the risk with one.
        contraction: strong convexity that draws two runs together.
        distance: R.
        diameter: of the domain, possibly ``inf``.
        failure: probability allowed that groups are too far apart although users are i.i.d., all phases.
    """

    num_users: int
    items_per_user: int
    dim: int
    lipschitz: float
    ridge: float
    contraction: float
    distance: float
    diameter: float
    failure: float


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


def phases(
    setting: Setting,
    num_groups: int,
    num_steps: Sequence[int],
    step_sizes: Sequence[float],
    radii: Sequence[float] | None,
) -> list[Phase]:
    """The phases for given lengths and steps, without their noise.

    Args:
        setting: all else.
        num_groups: C.
        num_steps: T_i.
        step_sizes: η_i.
        radii: of the scores; those within which i.i.d. groups stay if ``None``.
    """
    allowed = setting.failure / (_pairs(num_groups) * len(num_steps))
    found = []
    for i, (steps, step) in enumerate(zip(num_steps, step_sizes, strict=True)):
        radius = (
            concentration.sgd_iterate_radius(
                step, setting.lipschitz, steps, allowed, setting.contraction
            )
            if radii is None
            else radii[i]
        )
        # The average is of x_0, ..., x_(T-1), and x_t is within ηtL of x_0. A ridge pulls farther.
        moved = (
            2 * setting.distance if setting.ridge else step * setting.lipschitz * (steps - 1) / 2
        )
        farthest = min(setting.diameter, moved)
        void = not setting.ridge and 0.0 < 2 * farthest <= radius
        found.append(Phase(steps, step, radius, farthest, void))
    return found


def concentration_failure(setting: Setting, num_groups: int, found: Sequence[Phase]) -> float:
    """Bound, at most 1, on the probability that in some phase some i.i.d. groups are too far apart."""
    total = 0.0
    for phase in found:
        radius = [
            concentration.sgd_iterate_radius(
                phase.step_size,
                setting.lipschitz,
                phase.num_steps,
                math.exp(-level),
                setting.contraction,
            )
            for level in _LEVELS
        ]
        # The least failure probability, of a fine grid, whose radius is no larger than the phase's.
        within = [
            level for level, size in zip(_LEVELS, radius, strict=True) if size <= phase.radius
        ]
        total += _pairs(num_groups) * math.exp(-max(within)) if within else 1.0
    return min(total, 1.0)


def _pairs(num_groups: int) -> int:
    return max(1, num_groups * (num_groups - 1) // 2)


def excess_bound(setting: Setting, found: Sequence[Phase], failure: float) -> float:
    """The bound of the file's docstring.

    Args:
        setting: all else.
        found: the phases.
        failure: p.
    """
    slope, squared = setting.lipschitz, setting.distance**2
    total = 0.0
    for phase in found:
        total += squared / (2 * phase.step_size * phase.num_steps) + phase.step_size * slope**2 / 2
        squared = setting.dim * phase.stddev**2
    total += slope * math.sqrt(squared)
    if math.isfinite(setting.diameter):
        return total + failure * slope * setting.diameter
    path = sum(phase.step_size * phase.num_steps * slope for phase in found)
    noise = math.sqrt(setting.dim) * sum(phase.stddev for phase in found)
    return total + slope * (failure * (setting.distance + path) + math.sqrt(failure) * noise)


def best_step(bound: Callable[[float], float], scale: float) -> float:
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


def printed(setting: Setting, epsilon: float, delta: float) -> Printed:
    """The numbers of F, Algorithm 1, with constant 1 where the paper has O(·).

    C = ⌈100 ln(20nme^ε/δ)/ε⌉ groups; l = ⌊log₂ n⌋ phases of (1 - 2^-q)·n·2^(-iq) users, q such that the last
    holds as many as it can; η_i = 2^(-pi)·R/(L√(dmnε)) with p = J + 3/2, m ≤ n^J; radii 1000η_iL√T_i·ln(ndm).

    Raises:
        ValueError: the last phase has fewer users than groups; names the smallest number of users.
    """

    def groups(users: int) -> int:
        level = math.log(20.0 * users * setting.items_per_user / delta) + epsilon
        return math.ceil(100.0 * level / epsilon)

    if not _fits(setting.num_users, groups(setting.num_users)):
        low, high = setting.num_users, 2 * setting.num_users
        while not _fits(high, groups(high)):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _fits(middle, groups(middle)) else (middle, high)
        raise ValueError(
            f"num_users must be at least {high} for the paper's sizes, got {setting.num_users}"
        )
    n, m = setting.num_users, setting.items_per_user
    num_groups, q = groups(n), _decay(n)
    count = max(1, math.floor(math.log2(n)))
    group_users = tuple(
        int((1 - 2.0**-q) * n * 2.0 ** (-i * q)) // num_groups for i in range(1, count + 1)
    )
    power = max(1, math.ceil(math.log(m) / math.log(n) - 1e-12)) + 1.5
    first = setting.distance / (setting.lipschitz * math.sqrt(setting.dim * m * n * epsilon))
    step_sizes = tuple(first * 2.0 ** (-power * i) for i in range(1, count + 1))
    level = 1000.0 * setting.lipschitz * math.log(n * setting.dim * m)
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
