"""The nodes at which a pair of mixtures is summed: equal steps that follow the pair.

The half line s > 0 is s = λ log(1 + exp(v)), with equal steps ρ of v. How long these may be is told by how
the integrand grows within a strip around the real line. P and Q have no zero there, but that is not enough:
where the posterior of Q turns from 0 to 1, Q to the power 1 - α grows as if the integrand had bumps that
are far narrower than the normal density. With R = c/σ, r = |c-1|/σ and τ = log(1/cos(ry))/R,

    |P/Q| at s + iy is at most P/Q at s + τ,

and what that costs is counted into the step.

Source: Trefethen and Weideman 2014 (exponential convergence of equal steps). Derivation:
docs/theory/mixtures.md, section 4.

Formal guarantee: none by itself.

Cost: a few exponentials a node.
"""

import math
from typing import Any, NamedTuple

from dpsco_jax.privacy.curves._profile_nodes import Precision

_LOG_ROOM = math.log(16.0)
"""The sum is within 64 exp(-decay) of the integral but for tails, and 256 exp(-decay) of itself is added."""
_HIGHEST = 3.3  # of the strip: a higher one has longer steps and more of them near 0
_ZERO_OF_P = 2.2  # instead of π
_TURN = 1.25  # instead of π/2
_TURN_SLOPE = 0.207  # log(1/cos θ) <= θ²/2 / (1 - this θ²) up to there


class Steps(NamedTuple):
    """Of the nodes of a pair, each of shape ``[..., 1]``.

    Attributes:
        ratio: ρ.
        scale: λ.
    """

    ratio: Any
    scale: Any


class Node(NamedTuple):
    """Nodes, each of shape ``[..., nodes]``.

    Attributes:
        s: where they are.
        log_weight: log of step times normal density.
        ulps: by how much s may be off, over the distance of the numbers of its dtype at 1.
    """

    s: Any
    log_weight: Any
    ulps: Any


def steps(
    xp: Any, mu: Any, centre: Any, log_odds: Any, largest_order: float, settings: Precision
) -> Steps:
    """Steps short enough for all orders up to the largest.

    Args:
        xp: NumPy or jax.numpy.
        mu: 1/σ.
        centre: c, at least 1/2.
        log_odds: log((1-q)/q).
        largest_order: of those that are summed.
        settings: how exact the sum has to be.
    """
    zero_of_p, turn = centre * mu, xp.abs(centre - 1.0) * mu
    log_order = math.log(largest_order)
    # How far, over r, the integrand has to be moved by τ: until Q has turned but for 1/α.
    rarity = xp.where(centre >= 1.0, log_odds, -log_odds) + 0.5 * turn * turn
    excess = xp.maximum(rarity + log_order, 0.0)
    # For c < 1 and q small Q has turned by then wherever it does so more than P.
    order_gone = (2.0 * centre - 1.0) * log_order < log_odds + 0.5 * turn * zero_of_p
    turns = (centre >= 1.0) | ~order_gone
    # Zero where noise is so large that nothing turns.
    distance = xp.where(zero_of_p > 0, zero_of_p, 1.0)
    share = xp.where(turns, turn / distance, 0.0)
    decay = settings.decay - _LOG_ROOM
    bent = 1.0 + share * excess
    height = xp.minimum(_HIGHEST, _ZERO_OF_P / distance)
    height = xp.minimum(height, xp.sqrt(2.0 * decay / bent))
    height = xp.where(turns, xp.minimum(height, _TURN / xp.maximum(turn, 1e-3)), height)
    half_square = 0.5 * height * height
    angle = xp.where(turns, turn * height, 0.0)
    half_square_turned = half_square / (1.0 - _TURN_SLOPE * angle * angle)
    shift = share * turn * half_square_turned
    growth = half_square + share * excess * half_square_turned + 0.5 * shift * shift
    return Steps(math.pi**2 / (decay + growth), (2.0 / math.pi) * height)


def nodes(xp: Any, grid: Steps, indices: Any, settings: Precision) -> Node:
    """The nodes of a grid.

    Args:
        xp: NumPy or jax.numpy.
        grid: of the pair.
        indices: from 0, in the dtype of the pair.
        settings: those of the steps.
    """
    v = grid.ratio * indices - settings.left
    soft = xp.logaddexp(0.0, v)
    s = grid.scale * soft
    log_step = xp.log(grid.ratio * grid.scale) + v - soft
    log_weight = log_step - 0.5 * s * s - 0.5 * math.log(2.0 * math.pi)
    # v is off by half a rounding of itself and of itself plus ``left``, and moves s by λ/(1 + exp(-v)).
    return Node(s, log_weight, 3.0 * s + settings.left * xp.minimum(s, grid.scale))
