"""Bounds that a chain by log-Laplace transforms rests on, each in closed form, in units of ``_llt_numbers``.

They are upper bounds, but ``start_acceptance``, which is a lower one; ``xp`` says which library computes
(docs/theory/llt_sampler.md, sections 2, 4 and 5).
"""

import functools
import math
from typing import Any

from dpsco_jax.solvers.sampling._rejection_error import MOST_TERMS, inner_variation


@functools.cache
def least_error(c: float) -> tuple[float, int]:
    """δ(c, A) and A, for the A with the least."""
    return min((inner_variation(c, terms), terms) for terms in range(3, MOST_TERMS + 1))


def start_acceptance(xp: Any, dim: int, p: float, drift: Any) -> Any:
    """Half of a lower bound on the probability that an attempt at the start counts: half for the set.

    The proposal has the density of exp(-(m/2)‖x‖_p²), so that m‖x‖_p² is χ²_d distributed, and counts with
    probability at least exp(-(α/2)·m‖x‖_p² - √(m)‖x‖_p·√(d·drift/(p-1))), α = (2-p)/(p-1); the square of the
    second term over 2 and a half bound it, and χ² has a closed form.
    """
    ratio = (2.0 - p) / (p - 1.0)
    pull = dim * drift / (p - 1.0)
    # √(pull)·t ≤ (pull·t² + 1)/2.
    return 0.5 * xp.exp(-0.5 * dim * xp.log1p(ratio + pull) - 0.5)


def mixing(xp: Any, steps: Any, rate: Any, log_warm: Any) -> Any:
    """½·(1 + ηm)^{-T}·√χ², rounded up, at most 1."""
    lost = steps * rate
    bound = 0.5 * xp.exp(
        xp.minimum(0.5 * log_warm - lost + 2.0**-44 * (lost + log_warm + 1.0), 1.0)
    )
    return xp.minimum(xp.maximum(bound, 1e-300), 1.0)


def second_moment(xp: Any, dim: int, p: float, radius: Any) -> Any:
    """A bound on E‖y‖_q² under D_x, for ‖x‖_p at most ``radius``: by Jensen, with ψ of the scale θ = 0.8."""
    share = 0.8
    rise = radius * math.sqrt(0.5 * dim / share) + 0.25 * radius * radius * (1.0 / share - 1.0)
    return (rise - 0.5 * dim * math.log(share * (p - 1.0))) / (1.0 - share)


def height(xp: Any, dim: int, p: float, drift: Any, inside: Any, rare: Any) -> Any:
    """How far V(x) is above its minimum for y ~ D_x, x within ``inside``, but for a probability e^{-rare}."""
    # All coordinates of y - E y, over their deviations, stay below this one.
    stretch, tail = 2.0 / (p - 1.0), rare + 2.0 * xp.log1p(rare) + 1.0
    near = xp.sqrt(dim * stretch * stretch * second_moment(xp, dim, p, inside)) * tail
    near = near + math.sqrt(stretch)
    spread = xp.sqrt(second_moment(xp, dim, p, inside + near))
    ball = 0.5 * dim * math.log(math.pi) - math.lgamma(0.5 * dim + 1.0)
    covered = dim * xp.log(4.0 * near * spread) - ball
    rise = inside * math.sqrt(0.5 * dim) + 0.25 * inside * inside
    return rare + 1.0 + covered + drift * rise
