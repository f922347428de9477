"""Steps, sizes and noise of adaptive Spider, and what they prove.

What it computes: see ``schedule`` and ``paper_schedule``; plain numbers, in float64.

Source: thesis, Lemmas 7.3.5 to 7.3.10, with the constants of docs/theory/nonconvex.md, section 4.

Formal guarantee: none of privacy; noise is accounted for by the releases.

Cost: a second.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from dpsco_jax import privacy
from dpsco_jax.solvers.nonconvex._drift_schedule import Goal, concentrated
from dpsco_jax.solvers.nonconvex._stream_mean import correlation_of

__all__ = ["Schedule", "paper_goal", "paper_schedule", "schedule"]


class Schedule(NamedTuple):
    """The numbers of a run, and what they prove.

    Attributes:
        num_steps: T.
        longest: L, after which the estimate begins anew.
        first_batch: b.
        correlation: of the noise of a stream.
        share_norm: c.
        drift: κ.
        accuracy: a.
        error: e, which no estimate is off by more, with probability 1 - ω.
        bound: on ‖∇F(x)‖ at the point of the shortest estimate; ``inf`` where users may run out.
    """

    num_steps: int
    longest: int
    first_batch: int
    correlation: str
    share_norm: float
    drift: float
    accuracy: float
    error: float
    bound: float


def schedule(goal: Goal, budget: float, steps: Sequence[int]) -> Schedule:
    """The numbers that make the bound least, by a search over T, L, κ and parts of the error.

    Args:
        goal: what it is made for.
        budget: μ² of the whole run.
        steps: the T to choose from.
    """
    kappas = goal.lipschitz * 10 ** (np.arange(-16, 17) / 8)
    kappa, part = np.meshgrid(kappas, np.linspace(0.1, 0.9, 9), indexing="ij")
    found = []
    for number in steps:
        for longest in sorted({min(number, size) for size in (8, 32, 128, 512)}):
            noise = _noise(goal, number, "buffers", longest) / math.sqrt(budget)
            low, high = (np.full(kappa.shape, goal.lipschitz * end) for end in (1e-9, 1e3))
            for _ in range(50):
                error = np.sqrt(low * high)
                share, accuracy = _scales(goal, number, part * error, (1 - part) * error, noise)
                users = _users(goal, number, longest, kappa, share, accuracy, error)
                enough = users <= goal.num_users
                low, high = np.where(enough, low, error), np.where(enough, error, high)
            at = np.unravel_index(np.argmin(high), high.shape)
            first, other = (float(high[at] * each[at]) for each in (part, 1 - part))
            share, accuracy = _scales(goal, number, first, other, noise)
            made = _made(goal, number, longest, "buffers", share, float(kappa[at]), accuracy, noise)
            found.append(made)
    return min(found, key=lambda made: made.bound)


def paper_schedule(goal: Goal, budget: privacy.Budget, most_steps: int) -> Schedule:
    """The same with the constants of the paper's proof, and noise of trees; see ``paper_goal``."""
    rho = concentrated(budget)
    gamma, kappa = paper_goal(goal, rho)
    number = min(math.ceil(11 * goal.initial_gap * goal.curvature / gamma**2), most_steps)
    share, accuracy = _paper_scales(goal, rho, gamma)
    noise = _noise(goal, number, "tree", number) / math.sqrt(2 * rho)
    return _made(goal, number, number, "tree", share, kappa, accuracy, noise)


def paper_goal(goal: Goal, rho: float) -> tuple[float, float]:
    """The least γ for which the paper's constants need no more than n users, and its κ, by bisection.

    T = 11·BM/γ² steps, S = (BM/γ)(9·11/8 + 4) of which Σ M‖x_{t+1} - x_t‖ is at most, errors of γ/8 each.

    Args:
        goal: what it is made for.
        rho: of concentrated privacy.
    """
    kappas = 10 ** (np.arange(-96, 65) / 16)

    def users(gamma: float) -> Any:
        steps = max(11 * goal.initial_gap * goal.curvature / gamma**2, 2.0)
        total = goal.initial_gap * goal.curvature / gamma * (9 * 11 / 8 + 4)
        share, accuracy = _paper_scales(goal, rho, gamma)
        batch = max(goal.lipschitz / share, (goal.lipschitz / accuracy) ** 2)
        each = np.maximum(1 / share, kappas / accuracy**2)
        return batch * (1 + total / kappas) + total * each + steps

    low, high = 1e-9, 1e6
    while high > low * (1 + 1e-9):
        middle = math.sqrt(low * high)
        enough = float(np.min(users(middle))) <= goal.num_users
        low, high = (low, middle) if enough else (middle, high)
    return high, float(kappas[int(np.argmin(users(high)))])


def _paper_scales(goal: Goal, rho: float, gamma: float) -> tuple[float, float]:
    steps = max(11 * goal.initial_gap * goal.curvature / gamma**2, 2.0)
    log = math.log(2 * steps / goal.failure)
    levels = math.log2(steps) + 1
    radius = math.sqrt(goal.dim) + math.sqrt(2 * log)
    moves = gamma / 8 * math.sqrt(2 * rho) / (levels * radius)
    return moves / goal.per_norm, gamma / (32 * math.sqrt(log))


def _noise(goal: Goal, steps: int, kind: str, longest: int) -> float:
    """What the noise of a run is off by, for a share of one and μ = 1: the worst sum, and ω/2."""
    worst = float(np.max(correlation_of(kind, longest).prefix_stddev()))
    return (
        goal.per_norm
        * worst
        * math.sqrt(scipy.special.chdtri(goal.dim, goal.failure / (2 * steps)))
    )


def _scales(goal: Goal, steps: int, noise_error: Any, users_error: Any, noise: float) -> Any:
    """C and a for what noise, and users, may add to the error."""
    # Squares of what users of a beginning add are at most 4G²/b + 4a² ≤ 8a², by the choice of b.
    return noise_error / noise, users_error / math.sqrt(16 * math.log(4 * steps / goal.failure))


def _users(
    goal: Goal, steps: Any, longest: int, kappa: Any, share: Any, accuracy: Any, error: Any
) -> Any:
    """How many users a run reads at most, if no estimate is off by more."""
    fall = 2 * goal.initial_gap * goal.curvature
    total = math.sqrt(steps) * (np.sqrt(fall + steps * error**2) + math.sqrt(steps) * error)
    total = total * goal.smoothness / goal.curvature
    begun = np.minimum(1 + np.floor(total / kappa) + steps // longest, steps)
    batch = np.ceil(np.maximum(goal.lipschitz / share, (goal.lipschitz / accuracy) ** 2))
    return begun * batch + total * np.maximum(1 / share, kappa / accuracy**2) + (steps - begun)


def _bound(goal: Goal, steps: int, error: Any) -> Any:
    return np.sqrt(2 * goal.initial_gap * goal.curvature / steps + error**2) + 2 * error


def _made(
    goal: Goal,
    steps: int,
    longest: int,
    kind: str,
    share: float,
    kappa: float,
    accuracy: float,
    noise: float,
) -> Schedule:
    batch = math.ceil(max(goal.lipschitz / share, (goal.lipschitz / accuracy) ** 2))
    users_error = accuracy * math.sqrt(16 * math.log(4 * steps / goal.failure))
    error = share * noise + users_error
    users = float(_users(goal, steps, longest, kappa, share, accuracy, error))
    bound = float(_bound(goal, steps, error)) if users <= goal.num_users * (1 + 1e-9) else math.inf
    first = min(batch, goal.num_users)
    return Schedule(steps, longest, first, kind, share, kappa, accuracy, error, bound)
