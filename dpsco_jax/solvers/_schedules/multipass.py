"""Steps, smoothing radius and number of steps of multi-pass DP-SGD, and what is proven of its risk.

What it computes: for given noise, the step size that balances the terms of the bound below, and the bound;
also the printed choices of the paper.

Source: U, Theorem 4.1 with Lemmas 4.7-4.9 (T, Theorem 9.4.1); stochastic gradient descent as in Bubeck 2015,
Theorem 6.3; stability on non-smooth losses by Bassily, Feldman, Guzmán and Talwar 2020.

Formal guarantee: none of privacy. With u a fixed point within R of the start (the population's minimizer),
N = nm items, V = d·σ², step γ, average over x_1, ..., x_T and no user ever filtered or run halted,

    E L(average) - L(u) ≤ R²/(2γT) + noise + stability.

- β-smooth losses, γ = 1/(β + 1/η): noise ηV/2, stability G²γ(T+1)/N (steps are nonexpansive, one item
  moves each by 2Gγ/N at most).
- any convex losses, γ = η: noise η(G² + V)/2 + ηG(G + √V) (the second since gradients are taken at x_0,
  ..., x_{T-1}), stability G²γ·s with s = (4/3)√T(1 + 1/T)^1.5 + 2(T+1)/N.
- smoothed within r: as for β-smooth with β = c_d·G/r, V + G²/N (shifts of items) or V + G² (of rounds),
  the second stability, and G·r·d/(d+1). Since √T dominates there, smoothing earns nothing: it is done for
  ``"paper"`` only, or when asked for.

An event of probability p that somebody is filtered or the run halts adds at most p times G·(the reach of
the iterates), where the reach is the domain's diameter, or R + γTG + γT·√(V/p) without one.

Cost: none.
"""

import math
from typing import NamedTuple

from dpsco_jax.geometry import smoothing

_MOST_STEPS = 10_000


class Setting(NamedTuple):
    """What the schedule depends on, all of it public.

    Attributes:
        num_users: n.
        items_per_user: m.
        dim: d.
        lipschitz: G.
        smoothness: β, with the ridge; ``None`` for losses that are not smooth.
        distance: R.
        diameter: of the domain, possibly ``inf``.
        smoothed: whether gradients are taken at shifted points, and how: ``"none"``, ``"per_item"`` or
            ``"per_round"``.
        provable: whether the bound applies (not with a ridge on losses that are not smooth).
    """

    num_users: int
    items_per_user: int
    dim: int
    lipschitz: float
    smoothness: float | None
    distance: float
    diameter: float
    smoothed: str
    provable: bool


class Steps(NamedTuple):
    """A step size and what it proves.

    Attributes:
        step_size: γ.
        excess_bound: on the population risk, if nobody is filtered; ``inf`` where nothing is proven.
        stability_bound: the part of it by which population risk can exceed empirical risk.
    """

    step_size: float
    excess_bound: float
    stability_bound: float


def steps(
    setting: Setting,
    num_steps: int,
    stddev: float,
    smoothing_radius: float,
    printed_step: float | None = None,
    step_size: float | None = None,
) -> Steps:
    """The step size and its bound.

    Args:
        setting: all else.
        num_steps: T.
        stddev: σ of the noise on each coordinate of the mean gradient.
        smoothing_radius: r; 0 without smoothing.
        printed_step: η, in place of the one that balances the bound.
        step_size: γ itself, in place of all this; then nothing is proven.
    """
    if step_size is not None:
        return Steps(step_size, math.inf, math.inf)
    items, slope = setting.num_users * setting.items_per_user, setting.lipschitz
    variance = setting.dim * stddev**2
    stable = (num_steps + 1) / items
    curvature = setting.smoothness if setting.smoothed == "none" else None
    bias = 0.0
    if curvature is None:
        stable = 4 / 3 * math.sqrt(num_steps) * (1 + 1 / num_steps) ** 1.5 + 2 * stable
    if setting.smoothed != "none":
        curvature = smoothing.ball_smoothness(slope, smoothing_radius, setting.dim)
        variance += slope**2 / (items if setting.smoothed == "per_item" else 1)
        bias = smoothing.ball_bias(slope, smoothing_radius, setting.dim)
    noise = variance / 2
    if curvature is None:
        noise += slope**2 / 2 + slope * (slope + math.sqrt(variance))
    cost = noise + slope**2 * stable
    eta = printed_step or setting.distance / math.sqrt(2 * num_steps * cost)
    gamma = eta if curvature is None else 1 / (curvature + 1 / eta)
    stability = slope**2 * gamma * stable
    excess = setting.distance**2 / (2 * gamma * num_steps) + eta * noise + stability + bias
    return Steps(gamma, excess if setting.provable else math.inf, stability)


def after_failure(
    setting: Setting, num_steps: int, stddev: float, step: Steps, failure: float
) -> float:
    """The bound on the excess risk with the event counted in that nobody is filtered with."""
    if failure == 0.0:
        return step.excess_bound
    reach = setting.diameter
    if not math.isfinite(reach):
        path = step.step_size * num_steps
        noise = stddev * math.sqrt(setting.dim / failure)
        reach = setting.distance + path * (setting.lipschitz + noise)
    return step.excess_bound + min(failure, 1.0) * setting.lipschitz * reach


def balanced_radius(setting: Setting, num_steps: int) -> float:
    """The smoothing radius that balances bias and curvature: R√(c_d(d+1)/(2Td))."""
    factor = smoothing.smoothness_factor(setting.dim) * (setting.dim + 1) / setting.dim
    return setting.distance * math.sqrt(factor / (2 * num_steps))


def enough_steps(setting: Setting, floor: float) -> int:
    """The T from which the terms that fall with T are no larger than those that do not; at most 10,000.

    Args:
        setting: all else.
        floor: the privacy part of the bound, √(d)·σR/√T, which T hardly moves.
    """
    slope, distance = setting.lipschitz, setting.distance
    floor += slope * distance / math.sqrt(setting.num_users * setting.items_per_user)
    if setting.smoothness is not None and setting.smoothed == "none":
        wanted = setting.smoothness * distance**2 / floor
    else:
        wanted = (2 * slope * distance / floor) ** 4
    return max(1, math.ceil(min(wanted, _MOST_STEPS)))


class Printed(NamedTuple):
    """The paper's choices; see ``printed``."""

    num_steps: int
    delta: float
    radius: float
    eta: float
    smoothing_radius: float


def printed(setting: Setting, epsilon: float, delta: float, num_steps: int | None) -> Printed:
    """The numbers of U, Theorem 4.1, with constant 1 where the paper has O(·).

    Args:
        setting: all else.
        epsilon: budget.
        delta: budget.
        num_steps: T; m²n² + mn√d if ``None``.

    Returns:
        T; the δ that the releases are calibrated to, δ/(2Tmnd); the score radius 2G·log(n d m e^ε T/δ)/√m
        (twice the printed one: the score compares pairs); η; r.
    """
    n, m, d = setting.num_users, setting.items_per_user, setting.dim
    if num_steps is None:
        num_steps = (m * n) ** 2 + math.ceil(m * n * math.sqrt(d))
    level = math.log(n * d * m) + math.log(num_steps / delta) + epsilon
    eta = min(
        math.sqrt(m) * n * epsilon / (num_steps * math.sqrt(d) * math.log(m * n * d / delta)),
        num_steps**-0.75,
        math.sqrt(n * m) / num_steps,
    )
    return Printed(
        num_steps=num_steps,
        delta=delta / (2.0 * num_steps * m * n * d),
        radius=2.0 * setting.lipschitz * level / math.sqrt(m),
        eta=eta * setting.distance / setting.lipschitz,
        smoothing_radius=d**0.25 * setting.distance / math.sqrt(num_steps),
    )
