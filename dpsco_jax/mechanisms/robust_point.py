"""Robust choice among repeated answers: one point that most of them agree on.

What it computes: of k points, the one whose ball around it that holds at least 51 % of all k points is the
smallest. If some y has at least 51 % of the points within Δ/3, the chosen point is within Δ of y, whatever
the other points are; Δ is not an argument.

Source: thesis, Lemma 2.4.17, made free of its parameter Δ: with ρ_i the distance from point i to its
⌈0.51k⌉-th nearest point (itself included), every point within Δ/3 of y has ρ_i ≤ 2Δ/3, so the chosen one has
too; its ball of radius 2Δ/3 shares a point with the ball of radius Δ/3 around y, as two sets of more than
half of the points do.

Formal guarantee: post-processing of the points; it looks at nothing else.

Cost: k² distances, k²·d multiplications and k²·d numbers of memory.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax._checks import require_number, require_real
from dpsco_jax._given import floats_of

MAJORITY = 0.51


def aggregate_points(points: Float[Array, "runs dim"]) -> Float[Array, "dim"]:
    """The point that the majority of the points is nearest to.

    Args:
        points: k ≥ 1 answers to one question, one a row. A row with a non-finite entry is far from
            everything.

    Returns:
        One of the rows. Within Δ of any y that has ⌈0.51·k⌉ rows within Δ/3. With k = 1 the only row.
    """
    require_number("points", points, "an array of real numbers")
    points = floats_of(points)
    runs = points.shape[0]
    distances = jnp.linalg.norm(points[:, None, :] - points[None, :, :], axis=-1)
    distances = jnp.where(jnp.isnan(distances), jnp.inf, distances)
    majority = math.ceil(MAJORITY * runs - 1e-9)  # the product may round above a whole number
    radii = jnp.sort(distances, axis=1)[:, majority - 1]
    return points[jnp.argmin(radii)]


def runs_for(failure: float) -> int:
    """How many answers, each near with probability 2/3, bring the choice's failure below ``failure``.

    ⌈20·log(1/failure)⌉: fewer than 51 % of k independent answers are near with probability at most
    exp(-k·KL(0.51‖2/3)), and 20·KL = 1.043; 18 would not do.
    """
    failure = require_real("failure", failure, 0.0, 1.0)
    return math.ceil(20 * math.log(1 / failure))
