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
from typing import Annotated

from dpsco_jax._argument_kinds import Flag, Kind, Nonnegative, Positive, checked
from dpsco_jax._checks import require_share


@checked
def iterate_stability(
    lipschitz: Nonnegative,
    step_size: Nonnegative,
    num_steps: Positive,
    num_items: Positive,
    smooth: Flag,
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
    move = lipschitz * step_size
    if smooth:
        return 2.0 * move * num_steps / num_items
    return 2.0 * move * math.sqrt(num_steps) + 4.0 * move * num_steps / num_items


@checked
def generalization_gap(
    lipschitz: Nonnegative,
    step_size: Nonnegative,
    num_steps: Positive,
    num_items: Positive,
    smooth: Flag,
) -> float:
    """Bound on E[population loss - empirical loss] at the average of θ_1 to θ_T.

    A G-Lipschitz loss moves by G times the stability; averaging the smooth bound over t = 1 .. T leaves
    (T + 1)/2 of its T.
    """
    steps = 0.5 * (num_steps + 1.0) if smooth else num_steps
    return lipschitz * iterate_stability(lipschitz, step_size, steps, num_items, smooth)


@checked
def sgd_excess_risk(
    lipschitz: Nonnegative,
    distance: Nonnegative,
    num_steps: Positive,
    num_items: Positive,
    variance: Nonnegative,
    smoothness: Nonnegative | None = None,
    dim: Positive = 1.0,
    failure: Annotated[float, Kind(require_share)] = 0.0,
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
    g, r, steps, items = lipschitz, distance, num_steps, num_items
    failed = g * r * failure
    if smoothness is None:
        spread = variance + 4.0 * g * g * math.sqrt(steps) + 8.0 * g * g * steps / items
        smoothing = g * r * dim**0.25 * math.sqrt(2.0 / steps)
        return r * math.sqrt(spread / steps) + smoothing + failed
    spread = variance + 2.0 * g * g * (steps + 1.0) / items
    return smoothness * r * r / (2.0 * steps) + r * math.sqrt(spread / steps) + failed
