"""Steps, refreshes and noise of a Spider that begins anew once it has drifted, and what they prove.

What it computes: see ``schedule`` and ``paper_schedule``; plain numbers, in float64.

Source: thesis, Lemmas 6.3.3 to 6.3.7, with the constants of docs/theory/nonconvex.md, section 3.

Formal guarantee: none of privacy; the budgets are shared out here, and accounted for by the releases.

Cost: a tenth of a second, half a second for one pass.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from dpsco_jax import _checks, privacy

__all__ = [
    "Goal",
    "Schedule",
    "concentrated",
    "paper_goal",
    "paper_schedule",
    "pushed",
    "scales",
    "schedule",
]


class Goal(NamedTuple):
    """What a schedule is made for.

    Attributes:
        initial_gap: B.
        lipschitz: G.
        smoothness: M, of differences of users' gradients.
        curvature: M of F, which a ridge adds to.
        dim: d.
        num_users: n.
        per_norm: how far a sum of clipped vectors of norm at most one moves: 2, or 1 for REPLACE_SPECIAL.
        failure: ω.
        one_pass: whether every user takes part in one step at most.
    """

    initial_gap: float
    lipschitz: float
    smoothness: float
    curvature: float
    dim: int
    num_users: int
    per_norm: float
    failure: float
    one_pass: bool


class Schedule(NamedTuple):
    """The numbers of a run, and what they prove.

    Attributes:
        num_steps: T.
        most_refreshes: N, how often the estimate may begin anew.
        drift: κ, at which it does.
        batch_sizes: users of a step that begins anew, and of any other.
        gradient_share: μ_1² of a release of gradients.
        difference_share: μ_2² of a release of differences.
        error: e, which no estimate is off by more, with probability 1 - ω.
        bound: on ‖∇F(x)‖ at the point of the shortest estimate, with probability 1 - ω.
    """

    num_steps: int
    most_refreshes: int
    drift: float
    batch_sizes: tuple[int, int]
    gradient_share: float
    difference_share: float
    error: float
    bound: float


def schedule(
    goal: Goal, budget: float, steps: Sequence[int], drifts: Sequence[float] | None = None
) -> Schedule:
    """The numbers that make the bound least, by a search over T, κ and how users or budget are shared.

    If no estimate is off by more than e, F falls by (‖∇F‖² - e²)/2M in a step, so that the least gradient of
    T steps has ‖∇F‖² ≤ 2BM/T + e², and M²·Σ‖x_{t+1} - x_t‖² ≤ ((2BM + Te²)^½ + (Te²)^½)², whose share by κ
    says how often the estimate begins anew. Estimates in use have drifted by less than κ: their differences
    have the noise of a Brownian motion until then, and what users of a pass add is a martingale.

    Args:
        goal: what it is made for.
        budget: μ² of the whole run.
        steps: the T to choose from.
        drifts: the κ to choose from; the best if ``None``.
    """
    per_scale = goal.initial_gap / goal.curvature
    kappas = per_scale * 10 ** (np.arange(-48, 17) / 8) if drifts is None else np.array(drifts)
    # Of the users of a pass; the best part of a budget has a closed form.
    parts = np.linspace(0.1, 0.9, 9) if goal.one_pass else np.array([0.5])
    length, kappa, part = np.meshgrid(np.array(steps, float), kappas, parts, indexing="ij")

    def needed(error: Any) -> Any:
        refreshes = _refreshes(goal, length, kappa, error)
        spread = _spread(goal, budget, length, kappa, refreshes, part)
        return _error(goal, kappa, refreshes, *spread)

    error = _least(needed, needed(np.full(length.shape, math.inf)))
    bound = _bound(goal, length, error)
    at = np.unravel_index(np.argmin(bound), bound.shape)
    best = int(length[at]), float(kappa[at])
    refreshes = float(_refreshes(goal, *best, error[at]))
    while True:
        spread = _spread(goal, budget, *best, refreshes, float(part[at]), whole=True)
        made = _made(goal, *best, int(refreshes), *spread)
        wanted = float(_refreshes(goal, *best, made.error))
        # Of whole users the error may be larger, and the refreshes more.
        if wanted <= refreshes:
            return made
        refreshes = wanted


def paper_schedule(goal: Goal, budget: float, most_steps: int) -> Schedule:
    """The same with the constants of the paper's proof, where its logarithms are those of a union bound.

    For a goal γ: T = 11·BM/γ² steps, N = 1 + (6 + 9·11/32)·B/(Mκ) refreshes, errors of at most γ/4, halves
    of the budget or of the users; see ``paper_goal``.
    """
    _, steps, refreshes, kappa = paper_goal(goal, budget)
    number = min(math.ceil(steps), most_steps)
    most, users = min(number, int(refreshes)), goal.num_users
    if goal.one_pass:
        sizes, shares = (users // (2 * most), users // (2 * number)), (budget, budget)
    else:
        sizes, shares = (users, users), (budget / (2 * most), budget / (2 * number))
    return _made(goal, number, kappa, most, sizes, shares)


def paper_goal(goal: Goal, budget: float) -> tuple[float, float, float, float]:
    """The least γ that the paper's constants prove, by bisection, with its T, N and κ; μ² is the budget.

    In one pass T and N are real numbers, and so are the sizes of batches.
    """
    kappas = 10 ** (np.arange(-96, 33) / 8)

    def of(gamma: float) -> tuple[float, Any, Any]:
        steps = max(11 * goal.initial_gap * goal.curvature / gamma**2, 1.0)
        refreshes = 1 + (6 + 9 * 11 / 32) * goal.initial_gap / (goal.curvature * kappas)
        if not goal.one_pass:
            steps, refreshes = float(np.ceil(steps)), np.floor(refreshes)
        return steps, refreshes, _paper_error(goal, budget, steps, kappas, refreshes)

    low, high = 1e-12, 1e6
    while high > low * (1 + 1e-9):
        middle = math.sqrt(low * high)
        proven = 4 * np.min(of(middle)[2]) <= middle
        low, high = (low, middle) if proven else (middle, high)
    steps, refreshes, error = of(high)
    best = int(np.argmin(error))
    return high, steps, float(refreshes[best]), float(kappas[best])


def _made(
    goal: Goal, steps: int, kappa: float, refreshes: int, sizes: Any, shares: Any
) -> Schedule:
    """The schedule of whole users, with what it proves."""
    _checks.require(min(sizes) >= 1, "num_users", goal.num_users, f"at least {2 * steps}")
    error = float(_error(goal, kappa, refreshes, sizes, shares))
    enough = _refreshes(goal, steps, kappa, error) <= refreshes
    bound = float(_bound(goal, steps, error)) if enough else math.inf
    whole = int(sizes[0]), int(sizes[1])
    first, other = map(float, shares)
    return Schedule(steps, refreshes, kappa, whole, first, other, error, bound)


def _bound(goal: Goal, steps: Any, error: Any) -> Any:
    return np.sqrt(2 * goal.initial_gap * goal.curvature / steps + error**2) + 2 * error


def _refreshes(goal: Goal, steps: Any, kappa: Any, error: Any) -> Any:
    """How often the estimate begins anew, at most, if it is off by at most so much."""
    noise = steps * error**2
    fall = 2 * goal.initial_gap * goal.curvature
    moved = (np.sqrt(fall + noise) + np.sqrt(noise)) ** 2 / goal.curvature**2
    return np.minimum(1 + np.floor(moved / kappa), steps)


def _spread(
    goal: Goal,
    budget: float,
    steps: Any,
    kappa: Any,
    refreshes: Any,
    part: Any,
    whole: bool = False,
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Users and μ² of a release where the estimate begins anew, and of a difference.

    Of T steps at most N begin anew, and the others are T - N or more, so that N·a + (T - N)·b is all that is
    used, of users or of the budget, if a ≥ b; otherwise all steps get the same.
    """
    users, others = goal.num_users, np.maximum(steps - refreshes, 1)
    if goal.one_pass:
        first, other = users * part / refreshes, users * (1 - part) / others
        if whole:
            first = np.floor(first)
            other = np.floor((users - refreshes * first) / others)
        even = np.floor(users / steps) if whole else users / steps
        more = first >= other
        return (np.where(more, first, even), np.where(more, other, even)), (budget, budget)
    gradients, differences = scales(goal, kappa, refreshes, (users, users))
    # The least of a/√g + b/√h for N·g + (T - N)·h = μ².
    roots = np.cbrt(gradients / refreshes), np.cbrt(differences / others)
    unit = budget / (refreshes * roots[0] ** 2 + others * roots[1] ** 2)
    more = roots[0] >= roots[1]
    shares = tuple(np.where(more, unit * root**2, budget / steps) for root in roots)
    return (users, users), (shares[0], shares[1])


def _error(goal: Goal, kappa: Any, refreshes: Any, sizes: Any, shares: Any) -> Any:
    """What no estimate is off by more: noise, and what the users of a pass add."""
    few = np.minimum(*sizes) < 1
    sizes = [np.maximum(size, 1) for size in sizes]
    gradients, differences = scales(goal, kappa, refreshes, sizes)
    error = gradients / np.sqrt(shares[0]) + differences / np.sqrt(shares[1])
    if goal.one_pass:
        # Pinelis' inequality, of martingales.
        squares = 4 * goal.lipschitz**2 / sizes[0] + 4 * goal.smoothness**2 * kappa / sizes[1]
        error = error + np.sqrt(2 * np.log(4 * refreshes / goal.failure) * squares)
    return np.where(few, math.inf, error)


def scales(goal: Goal, kappa: Any, refreshes: Any, sizes: Any) -> tuple[Any, Any]:
    """What estimates are off by, for noise of multiplier one: where they begin anew, and by differences.

    Levy's inequality doubles the chance that a Brownian motion is ever far off, once in a refresh.
    """
    half = 0.5 if goal.one_pass else 1.0
    first = half * goal.failure / (2 * refreshes)
    lengths = [_radius(goal.dim, chance) for chance in (first, first / 2)]
    gradients = goal.per_norm * goal.lipschitz / sizes[0] * lengths[0]
    differences = goal.per_norm * goal.smoothness * np.sqrt(kappa) / sizes[1] * lengths[1]
    return gradients, differences


def _radius(dim: int, chance: Any) -> Any:
    """What the norm of a standard Gaussian is above with this chance; of many chances nearly."""
    if np.size(chance) == 1:
        return np.sqrt(scipy.special.chdtri(dim, chance))
    logs = np.log(chance)
    some = np.linspace(logs.min(), logs.max(), 100)
    return np.interp(logs, some, np.sqrt(scipy.special.chdtri(dim, np.exp(some))))


def _paper_error(goal: Goal, budget: float, steps: Any, kappa: Any, refreshes: Any) -> Any:
    root, failure = math.sqrt(goal.dim), goal.failure
    users, differences = goal.num_users, goal.smoothness * np.sqrt(kappa)
    last = root + np.sqrt(2 * np.log(4 * steps / failure))
    if not goal.one_pass:
        first = root + np.sqrt(2 * np.log(4 * refreshes / failure))
        kinds = goal.lipschitz * np.sqrt(refreshes) * first + differences * np.sqrt(steps) * last
        return goal.per_norm / users * kinds / math.sqrt(budget / 2)
    sizes = users / (2 * refreshes), users / (2 * steps)
    squares = 4 * goal.lipschitz**2 / sizes[0] + 4 * differences**2 / sizes[1]
    noise = goal.per_norm * (goal.lipschitz / sizes[0] + differences / sizes[1]) * last
    return np.sqrt(2 * np.log(2 * steps / failure) * squares) + noise / math.sqrt(budget)


def _least(needed: Callable[[Any], Any], most: Any) -> Any:
    """A number e of each place, as small as bisection finds it, for which ``needed(e) <= e``."""
    high, low = most, most * 1e-4
    for _ in range(40):
        middle = np.sqrt(low * high)
        good = needed(middle) <= middle
        high, low = np.where(good, middle, high), np.where(good, low, middle)
    return high


def pushed(
    goal: Goal, bound: float, error: float, hessian_lipschitz: float
) -> tuple[float, float, float, float]:
    """Step, threshold, deviation and wait of steps that are pushed where the estimate is short.

    The scales are the corrected ones of Lemma 6.3.4: a push has a variance of γ²/(d·ln(d/ω)) on each
    coordinate, γ the bound; the next one comes after Γ = ⌈M/(ρ·γ)^½·ln(dMB/(ργω))⌉ steps or more. Where an
    estimate is short enough to be pushed, the gradient is at most the bound.

    Args:
        goal: what a schedule was made for.
        bound: what it proves of the gradient.
        error: and of all estimates.
        hessian_lipschitz: ρ.
    """
    ratio = (
        goal.dim * goal.curvature * goal.initial_gap / (hessian_lipschitz * bound * goal.failure)
    )
    wait = goal.curvature / math.sqrt(hessian_lipschitz * bound) * max(1.0, math.log(ratio))
    stddev = bound / math.sqrt(goal.dim * math.log(goal.dim / goal.failure))
    return 1 / goal.curvature, bound - error, stddev, float(math.ceil(wait))


def concentrated(budget: privacy.Budget) -> float:
    """ρ of the concentrated privacy from which (ε, δ) follows by the simple formula."""
    log = math.log(1 / budget.delta)
    return (math.sqrt(log + budget.epsilon) - math.sqrt(log)) ** 2
