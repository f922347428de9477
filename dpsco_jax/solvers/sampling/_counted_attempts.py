"""What a certificate knows of the attempts of a chain: how often they count, and how exactly.

What it computes: for proposals on the whole space, on a ball, or by tangents the least probability that an
attempt counts, and the probability that it is not so; and a step for which tangents count often enough.

Source: ``attempt_bounds`` for balls, ``_tangent_numbers`` for tangents.

Formal guarantee: docs/theory/rejection_oracle.md, sections 2, 5 and 6. On a ball the bound falls with the
deviation of a proposal, since a ball that touches from inside holds less; so one that is known for the widest
deviation holds for all others.

Cost: none. Numbers may be traced where ``ball_bounds`` are given.
"""

import math
from typing import Any

from scipy import special

from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import as_floats
from dpsco_jax.solvers.sampling import _tangent_numbers as tangents
from dpsco_jax.solvers.sampling._rejection_rounding import farthest_point
from dpsco_jax.solvers.sampling.attempt_bounds import ball_acceptance, farthest_start

_UP = 1.0 + 2.0**-30
_OFTEN = 0.55  # of attempts by tangents: steps are as 1/η, and a trial needs two that count


def counted(
    dim: int,
    tangent: tangents.Power | None,
    ball_radius: float | None,
    ball_bounds: tuple[float, float] | None,
    num_steps: Any,
    step_size: Any,
    deviation: Any,
    reach: Any,
    escape: Any,
) -> tuple[tangents.Attempts, Any]:
    """What is known of attempts, and the probability that it is not so.

    Args:
        dim: d.
        tangent: ψ where tangents draw.
        ball_radius: where ``convex_set`` draws on a ball.
        ball_bounds: the widest deviation, and how far outside means are over it; ``None`` for those of the
            chain and of ``escape``.
        num_steps: T.
        step_size: η.
        deviation: √v of a proposal.
        reach: how far points are from the centre.
        escape: the probability that no bound has to hold for.
    """
    xp, (steps, deviation) = as_floats(num_steps, deviation)
    zero = xp.zeros_like(deviation)
    if tangent is not None:
        return tangents.attempts(tangent, dim, step_size, reach), zero
    if ball_radius is None:
        return tangents.Attempts(zero + 1.0, zero, zero), zero
    if ball_bounds is None:
        farthest = farthest_start(dim, int(steps), escape)
        likely = ball_acceptance(dim, ball_radius, deviation, farthest)
        return tangents.Attempts(zero + likely, zero, zero), zero + escape
    widest, farthest = ball_bounds
    likely = ball_acceptance(dim, ball_radius, widest, farthest)
    longer = _UP * float(special.gammaincc(dim / 2.0, farthest**2 / 2.0))
    within = xp.where(deviation <= widest, likely, 0.0)
    return tangents.Attempts(within, zero, zero), xp.minimum(1.0, steps * longer)


def tangent_step(
    tangent: tangents.Power,
    dim: int,
    step_size: float,
    convexity: float,
    start_distance: float,
    num_steps: int,
    escape: float,
) -> float:
    """The step size, or a smaller one at which attempts by tangents count often enough.

    Raises:
        Infeasible: roundings of ψ forbid all of them.
    """

    def often(log_step: float) -> bool:
        eta = math.exp(log_step)
        reach = farthest_point(dim, eta, convexity, start_distance, num_steps, escape)
        return bool(tangents.attempts(tangent, dim, eta, reach).acceptance >= _OFTEN)

    high = math.log(step_size)
    if often(high):
        return step_size
    low = high - 60.0
    if not often(low):
        raise Infeasible(
            "norm must be closer to 2, or dim smaller: roundings of the regularizer are too large for "
            f"exponent = {tangent.exponent:.4g} and dim = {dim}"
        )
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if often(middle) else (low, middle)
    return math.exp(low)
