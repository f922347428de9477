"""Stability of projected SGD, the generalization that follows, and the excess risk of both together.

What it computes: how far one replaced item of N moves the iterates, how far the population loss can then
be from the empirical loss, and the bound on the excess population risk of T steps with the projected mean
of all gradients plus noise.

Source: U Lemmas 4.7 to 4.9 and Proposition 4.10; T Lemmas 9.4.7 to 9.4.9; Bassily, Feldman, Guzmán and
Talwar 2020 (non-smooth stability); Hardt, Recht and Singer 2016 (smooth); Bubeck 2015, Theorem 6.3 (SGD
with step 1/(β + 1/η)). With the constants that the proofs give: the papers print Gη√T + GηT/N, and
replacing one of N items moves the mean of the gradients by 2G/N, not G/N.

Formal guarantee: for convex G-Lipschitz losses, common noise and common smoothing draws in both runs,
a step size at most 2/β where the smooth form is used, and items that are independent.

Cost: none; float64 on the host.
"""

import math
from typing import SupportsFloat

from dpsco_jax._checks import (
    require_each,
    require_flag,
    require_given,
    require_nonnegative,
    require_positive,
    require_probability,
)


def iterate_stability(
    lipschitz: SupportsFloat,
    step_size: SupportsFloat,
    num_steps: SupportsFloat,
    num_items: SupportsFloat,
    smooth: bool,
) -> float:
    """Bound on ‖θ_T - θ'_T‖ if one of N items is replaced.

    2Gγ√T + 4GγT/N for losses that are not smooth; 2GγT/N for β-smooth losses with γ ≤ 2/β.

    Args:
        lipschitz: G.
        step_size: γ.
        num_steps: T.
        num_items: N, over which the gradient is averaged.
        smooth: which of the two.
    """
    require_each(require_nonnegative, lipschitz=lipschitz, step_size=step_size)
    require_each(require_positive, num_steps=num_steps, num_items=num_items)
    require_flag("smooth", smooth)
    move = float(lipschitz) * float(step_size)
    steps, items = float(num_steps), float(num_items)
    if smooth:
        return 2.0 * move * steps / items
    return 2.0 * move * math.sqrt(steps) + 4.0 * move * steps / items


def generalization_gap(
    lipschitz: SupportsFloat,
    step_size: SupportsFloat,
    num_steps: SupportsFloat,
    num_items: SupportsFloat,
    smooth: bool,
) -> float:
    """Bound on E[population loss - empirical loss] at the average of θ_1 to θ_T.

    A G-Lipschitz loss moves by G times the stability; averaging the smooth bound over t = 1 .. T leaves
    (T + 1)/2 of its T.
    """
    require_flag("smooth", smooth)
    require_each(require_nonnegative, lipschitz=lipschitz, step_size=step_size)
    require_each(require_positive, num_steps=num_steps, num_items=num_items)
    if smooth:
        mean = 0.5 * (float(num_steps) + 1.0)
        return float(lipschitz) * iterate_stability(lipschitz, step_size, mean, num_items, True)
    return float(lipschitz) * iterate_stability(lipschitz, step_size, num_steps, num_items, False)


def sgd_excess_risk(
    lipschitz: SupportsFloat,
    distance: SupportsFloat,
    num_steps: SupportsFloat,
    num_items: SupportsFloat,
    variance: SupportsFloat,
    smoothness: SupportsFloat | None = None,
    dim: SupportsFloat = 1.0,
    failure: SupportsFloat = 0.0,
) -> float:
    """Bound on the excess population risk of noisy projected SGD at the best step size η.

    Smooth:       βR²/(2T) + R·√((V + 2G²(T+1)/N)/T) + G·R·p
    Not smooth:   R·√((V + 4G²√T + 8G²T/N)/T) + G·R·d^(1/4)·√(2/T) + G·R·p, with fresh ball smoothing

    Args:
        lipschitz: G.
        distance: R, from the start to the population's minimizer.
        num_steps: T.
        num_items: N = nm.
        variance: V, the expected squared norm of the noise of one step, smoothing's included.
        smoothness: β; the non-smooth form if ``None``.
        dim: d, for the non-smooth form only.
        failure: p, the probability that the gradients were not the mean of all users'.
    """
    require_each(require_nonnegative, lipschitz=lipschitz, distance=distance, variance=variance)
    require_each(require_positive, num_steps=num_steps, num_items=num_items, dim=dim)
    require_given(require_nonnegative, smoothness=smoothness)
    require_probability("failure", failure)
    g, r, steps, items = float(lipschitz), float(distance), float(num_steps), float(num_items)
    failed = g * r * float(failure)
    if smoothness is None:
        spread = float(variance) + 4.0 * g * g * math.sqrt(steps) + 8.0 * g * g * steps / items
        smoothing = g * r * float(dim) ** 0.25 * math.sqrt(2.0 / steps)
        return r * math.sqrt(spread / steps) + smoothing + failed
    spread = float(variance) + 2.0 * g * g * (steps + 1.0) / items
    return float(smoothness) * r * r / (2.0 * steps) + r * math.sqrt(spread / steps) + failed
