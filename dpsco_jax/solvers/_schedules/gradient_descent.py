"""Step sizes of projected gradient descent on noisy gradients, and what they are proven to reach.

What it computes: γ_t of θ_{t+1} = P(θ_t - γ_t·(g_t + regularizers)), and which point is returned, for three
kinds of objectives. With H the smoothness, μ the strong convexity, R the distance from the start to a
minimizer, ν² = E‖noise‖² of one gradient:

    convex           γ = 1/(H + ν√T/R); the average of θ_1, ..., θ_T
                     E excess <= HR²/(2T) + νR/√T
    strongly convex  γ = 1/H, from t₀ on 2/(μk), k = 2H/μ + t - t₀; weights k
                     E excess <= ``strongly_convex_bound``: about 4ν²/(μT)
    nonconvex        γ as in ``nonconvex``; θ_s for s uniform in 0, ..., T - 1

Source: L Algorithm 7 and Proposition 3; Stich 2019 (strongly convex); Ghadimi, Lan and Zhang 2016. The paper
averages the points queried, its theorem those after the steps, which we take. It leaves the strongly convex
schedule open ("a fixed step size, then a restart"); this one is ours.

Formal guarantee: none of privacy. The bounds need noise that is independent with mean zero: of winsorized
means, true while no row is clipped. Proofs: docs/theory/gradient_descent.md.

Cost: microseconds; NumPy on the host.
"""

import math
from typing import Any, NamedTuple

import numpy as np

METHODS = ("convex", "strongly_convex", "nonconvex")


class Schedule(NamedTuple):
    """Step sizes of a run.

    Attributes:
        step_sizes: γ_0, ..., γ_{T-1}.
        shares: the share of θ_{t+1} in the average of the points so far; ignored if nonconvex.
        bound: on E F(returned) - min F, or on the mean squared gradient mapping if nonconvex.
    """

    step_sizes: np.ndarray
    shares: np.ndarray
    bound: float


def convex(smoothness: float, distance: float, variance: float, num_steps: int) -> Schedule:
    """See the file's docstring; ``variance`` is ν², ``distance`` R."""
    noise = math.sqrt(variance)
    step = 1 / (smoothness + noise * math.sqrt(num_steps) / distance)
    bound = smoothness * distance**2 / (2 * num_steps) + noise * distance / math.sqrt(num_steps)
    return Schedule(np.full(num_steps, step), 1 / np.arange(1.0, num_steps + 1), bound)


def strongly_convex(
    smoothness: float, strong_convexity: float, distance: float, variance: float, num_steps: int
) -> Schedule:
    """The choice of t₀ with the least bound; see ``strongly_convex_bound``."""
    starts = _starts(num_steps)
    bounds = [
        strongly_convex_bound(smoothness, strong_convexity, distance, variance, num_steps, start)
        for start in starts
    ]
    start = int(starts[int(np.argmin(bounds))])
    rate = strong_convexity / smoothness
    time = np.arange(float(num_steps))
    if start == num_steps:
        # Normalized as they grow, so that no weight overflows: 1/Σ_{s<=t} (1 - μ/H)^{t-s}.
        shares = rate / -np.expm1((time + 1) * np.log1p(-min(rate, 1 - 1e-16)))
        return Schedule(np.full(num_steps, 1 / smoothness), shares, float(min(bounds)))
    counter = 2 / rate + np.maximum(time - start, 0)
    steps = np.where(time < start, 1 / smoothness, 2 / (strong_convexity * counter))
    weights = np.where(time < start, 0.0, counter)
    shares = weights / np.maximum(np.cumsum(weights), 1e-300)
    return Schedule(steps, shares, float(min(bounds)))


def strongly_convex_bound(
    smoothness: Any, strong_convexity: Any, distance: Any, variance: Any, num_steps: Any, start: Any
) -> Any:
    """What is proven for t₀ = ``start``, elementwise on the host: docs/theory/gradient_descent.md."""
    rate = strong_convexity / smoothness
    log_keep = np.log1p(-np.minimum(rate, 1 - 1e-16))
    kept = np.exp(log_keep * start)
    # Where kept underflows, an infinite distance still has to stay infinite.
    infinite = np.isinf(distance)
    reached = np.where(infinite, np.inf, kept * np.where(infinite, 0.0, distance) ** 2)
    near = reached + 2 * variance * (1 - kept) / (strong_convexity * smoothness)
    first, left = 2 / rate, np.maximum(num_steps - start, 1)
    # Σ min(1, k/(2s)) over s = 0, ..., left - 1 with k = first + s: one up to s = first.
    full = np.minimum(left, np.floor(first) + 1)
    rest = np.maximum(left - full, 0)
    logs = np.where(rest > 0, np.log(np.maximum(left - 1, 1) / np.maximum(full - 1, 1)), 0.0)
    noise = 2 / strong_convexity * (full + rest / 2 + first / 2 * logs)
    begun = strong_convexity * first * np.maximum(first - 2, 0) / 4
    falling = (begun * near + variance * noise) / (left * first + left * (left - 1) / 2)
    growth = np.expm1(np.minimum(-log_keep * num_steps, 600.0)) / rate  # Σ q^-(t+1)
    constant = smoothness * distance**2 / (2 * growth) + variance / smoothness
    return np.where(start < num_steps, falling, constant)


def best_strongly_convex_bound(
    smoothness: Any, strong_convexity: Any, distance: Any, variances: Any, num_steps: Any
) -> Any:
    """The bound of ``strongly_convex`` for arrays of variances and numbers of steps."""
    steps, starts = num_steps[..., None], _starts(num_steps)
    every = strongly_convex_bound(
        smoothness, strong_convexity, distance, variances[..., None], steps, starts
    )
    return np.min(every, axis=-1)


def _starts(num_steps: Any) -> np.ndarray:
    """The t₀ to choose from, last axis: with many steps most of them may go into averaging."""
    shares = np.array([0.0, 0.1, 0.25, 0.5, 0.75, 1.0])
    return np.floor(np.asarray(num_steps)[..., None] * shares)


def nonconvex(
    smoothness: float, gap: float, variance: float, num_steps: int, constrained: bool
) -> Schedule:
    """γ = 1/(2H), on the whole space at most √(2Δ/(Hν²T)); Δ = ``gap`` bounds F(start) - inf F.

    Bounds the mean of E‖G‖² over the points queried, G the gradient mapping of step 1/H (the gradient, on the
    whole space): by (4/3)(Δ/(γT) + Hγν²/2) there, and on a domain by 2(Δ/(γT) + ν²)/(1 - Hγ/2) + 2ν².
    """
    step = 1 / (2 * smoothness)
    if constrained:
        bound = 8 / 3 * (gap / (step * num_steps) + variance) + 2 * variance
    else:
        if variance > 0:
            step = min(step, math.sqrt(2 * gap / (smoothness * variance * num_steps)))
        bound = 4 / 3 * (gap / (step * num_steps) + smoothness * step * variance / 2)
    return Schedule(np.full(num_steps, step), np.zeros(num_steps), bound)
