"""Steps, looks, jumps and noise of a descent that leaves saddles by its Hessian, and what they prove.

What it computes: see ``schedule``; plain numbers, in float64.

Source: docs/theory/nonconvex.md, section 5.

Formal guarantee: none of privacy; the budgets are shared out here, and accounted for by the releases.

Cost: half a second.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax._infeasible import Infeasible
from dpsco_jax.solvers.nonconvex._drift_schedule import Goal, scales

__all__ = ["Bends", "Schedule", "descent", "fall", "jump", "schedule"]


class Bends(NamedTuple):
    """What is known of Hessians.

    Attributes:
        hessian_lipschitz: ρ.
        clip: C, of the Frobenius norm of a user's Hessian.
        width: of the interval in which its eigenvalues are.
    """

    hessian_lipschitz: float
    clip: float
    width: float


class Schedule(NamedTuple):
    """The numbers of a run, and what they prove.

    Attributes:
        stationarity: α: with probability 1 - ω a point is found, with ‖∇F‖ ≤ α and λ_min(∇²F) ≥ -√(ρα).
        num_steps: T, estimates of the gradient.
        most_refreshes: N, how often they may begin anew.
        most_looks: K, how many Hessians are released.
        drift: κ, at which the estimate begins anew.
        batch_sizes: users of a gradient, and of a difference.
        hessian_batch: users of a Hessian.
        shares: μ² of a release of gradients, of differences, and of a Hessian.
        gradient_error: e, which no estimate is off by more.
        hessian_error: h, which no Hessian is off by more, in operator norm.
    """

    stationarity: float
    num_steps: int
    most_refreshes: int
    most_looks: int
    drift: float
    batch_sizes: tuple[int, int]
    hessian_batch: int
    shares: tuple[float, float, float]
    gradient_error: float
    hessian_error: float

    @property
    def threshold(self) -> float:
        """Where the estimate is no longer than that, s = α - e, the Hessian is looked at."""
        return self.stationarity - self.gradient_error


def jump(curvature: Any, error: Any, hessian_lipschitz: Any, sqrt: Any = np.sqrt) -> Any:
    """The r = (c + √(c² - 2ρe))/ρ at which c·r²/2 - ρ·r³/6 - e·r is largest; for c² > 2ρe.

    Args:
        curvature: c, what is left of the curvature -uᵀ∇²F·u of the direction u when its error is taken off.
        error: e, of the estimate that says on which side to jump.
        hessian_lipschitz: ρ.
        sqrt: of NumPy, or of JAX for what is traced.
    """
    room = curvature**2 - 2.0 * hessian_lipschitz * error
    return (curvature + sqrt(room * (room > 0))) / hessian_lipschitz


def fall(curvature: Any, error: Any, hessian_lipschitz: float) -> Any:
    """The D = c·r²/2 - ρ·r³/6 - e·r by which such a jump lowers the risk at least."""
    r = jump(curvature, error, hessian_lipschitz)
    return r * (curvature * r / 2 - hessian_lipschitz * r**2 / 6 - error)


def descent(threshold: Any, error: Any, smoothness: float) -> Any:
    """The s·(s - 2e)/(2M) by which a step against an estimate longer than s lowers the risk."""
    return threshold * (threshold - 2 * error) / (2 * smoothness)


def schedule(goal: Goal, bends: Bends, budget: float, most_steps: int) -> Schedule:
    """The least α that is proven, by bisection, with the e, h and κ for which it asks least.

    Args:
        goal: what it is made for; half of its ω is for gradients, half for Hessians.
        bends: what is known of Hessians.
        budget: μ² of the whole run; in one pass of every release.
        most_steps: T is at most this.

    Raises:
        Infeasible: one pass has too few users for a step of each kind.
    """
    # Shares of α, of the √(ρα) that is left, and κ.
    e_share, h_share = np.geomspace(0.004, 0.3, 24), np.linspace(0.02, 0.48, 24)
    kappas = goal.initial_gap / goal.curvature * 10 ** (np.arange(-64, 17) / 8)
    grid = np.meshgrid(e_share, h_share, kappas, indexing="ij")
    # A jump lowers the risk if e < (3/8)c²/ρ, c = (1 - 2y)·√(ρα).
    good = grid[0] < 0.999 * 0.375 * (1 - 2 * grid[1]) ** 2
    shares = [x[good] for x in grid]

    def needed(alpha: float) -> tuple[Any, list[Any]]:
        made = _made(goal, bends, budget, alpha, *shares)
        return np.where(made[0] <= most_steps, made[3], math.inf), made

    most = goal.num_users if goal.one_pass else budget
    low, high = 1e-14, 1e10
    if float(np.min(needed(high)[0])) > most:
        raise Infeasible(
            f"problem.num_users must be enough for a step of each kind, got {goal.num_users}"
        )
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        if float(np.min(needed(middle)[0])) <= most:
            high = middle
        else:
            low = middle
    asked, made = needed(high)
    at = int(np.argmin(asked))
    steps, refreshes, looks, _, first, other, bent, e, h = (float(x[at]) for x in made)
    sizes, batch = (goal.num_users, goal.num_users), goal.num_users
    parts = budget, budget, budget
    if goal.one_pass:
        sizes, batch = (int(first), int(other)), int(bent)
    else:
        # What is left of the budget makes the errors smaller.
        left = budget / float(asked[at])
        parts = first * left, other * left, bent * left
    return Schedule(
        high,
        int(steps),
        int(refreshes),
        int(looks),
        float(shares[2][at]),
        sizes,
        batch,
        parts,
        e,
        h,
    )


def _made(
    goal: Goal, bends: Bends, budget: float, alpha: float, x: Any, y: Any, kappa: Any
) -> list[Any]:
    """T, N, K, what is asked of the budget, or of the users, the shares of the releases, e and h."""
    rho, gamma = bends.hessian_lipschitz, math.sqrt(bends.hessian_lipschitz * alpha)
    e, s, h = x * alpha, (1 - x) * alpha, y * gamma
    step = descent(s, e, goal.curvature)
    jumped = fall((1 - 2 * y) * gamma, e, rho)
    gap = goal.initial_gap
    jumps = np.floor(gap / jumped)
    steps = np.floor(gap / np.minimum(step, jumped)) + 1
    # A step moves by ‖v‖/M and lowers the risk by (1 - 2e/s)·‖v‖²/(2M) or more.
    moved = 2 * gap / (goal.curvature * (1 - 2 * e / s))
    refreshes = np.minimum(1 + jumps + np.floor(moved / kappa), steps)
    looks, others = jumps + 1, np.maximum(steps - refreshes, 1)
    half = goal._replace(failure=goal.failure / 2)
    if goal.one_pass:
        found = _users(half, bends, budget, kappa, refreshes, others, looks, e, h)
    else:
        found = _budget(half, bends, kappa, steps, refreshes, others, looks, e, h)
    asked, first, other, bent = (np.where(np.isfinite(steps), part, math.inf) for part in found)
    return [steps, refreshes, looks, asked, first, other, bent, e, h]


def _budget(
    goal: Goal,
    bends: Bends,
    kappa: Any,
    steps: Any,
    refreshes: Any,
    others: Any,
    looks: Any,
    e: Any,
    h: Any,
) -> tuple[Any, Any, Any, Any]:
    """μ² of everything, and of a release of each kind, for errors of e and h."""
    users = goal.num_users
    a, b = scales(goal, kappa, refreshes, (users, users))
    # The least of N·g + (T - N)·k with a/√g + b/√k = e; all alike where differences would get more.
    whole = np.cbrt(a**2 * refreshes) + np.cbrt(b**2 * others)
    g, k = (
        (whole / e) ** 2 * np.cbrt(a / refreshes) ** 2,
        (whole / e) ** 2 * np.cbrt(b / others) ** 2,
    )
    same = ((a + b) / e) ** 2
    g, k = np.where(g >= k, g, same), np.where(g >= k, k, same)
    bent = (goal.per_norm * bends.clip / users * _spread(goal, 2 * looks) / h) ** 2
    return np.where(g > k, refreshes * g + others * k, steps * k) + looks * bent, g, k, bent


def _users(
    goal: Goal,
    bends: Bends,
    budget: float,
    kappa: Any,
    refreshes: Any,
    others: Any,
    looks: Any,
    e: Any,
    h: Any,
) -> tuple[Any, Any, Any, Any]:
    """How many users everything takes, and a release of each kind, for errors of e and h."""
    a, b = scales(goal, kappa, refreshes, (1.0, 1.0))
    # In proportion to z: as few as Pinelis' inequality asks for.
    first = goal.lipschitz / np.sqrt(refreshes)
    other = goal.smoothness * np.sqrt(kappa / others)
    squares = 4 * goal.lipschitz**2 / first + 4 * goal.smoothness**2 * kappa / other
    noise = (a / first + b / other) / math.sqrt(budget)
    z = _solved(e, noise, np.sqrt(2 * np.log(4 * refreshes / goal.failure) * squares))
    first, other = np.ceil(z * first), np.ceil(z * other)
    other = np.where(others + refreshes > 1, other, 1)
    first = np.maximum(first, other)
    # Noise has one half of the chances, and whom a batch is of the other.
    log = np.log(4 * goal.dim * looks / goal.failure)
    noise = goal.per_norm * bends.clip * _spread(goal, 4 * looks) / math.sqrt(budget)
    noise = noise + 2 * log * bends.width / 3
    bent = np.ceil(_solved(h, noise, bends.width * np.sqrt(log / 2)))
    return refreshes * first + others * other + looks * bent, first, other, bent


def _solved(error: Any, per_user: Any, per_root: Any) -> Any:
    """The number z with per_user/z + per_root/√z = error."""
    return ((per_root + np.sqrt(per_root**2 + 4 * error * per_user)) / (2 * error)) ** 2


def _spread(goal: Goal, sides: Any) -> Any:
    """What no eigenvalue of a noise of standard deviation one, of so many ends, is above, but with ω."""
    return math.sqrt(2 * goal.dim) + np.sqrt(2 * np.log(sides / goal.failure))
