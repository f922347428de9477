"""What float64 costs a chain of ``rejection_oracle``: roundings of losses, sums and uniform numbers.

What it computes: e, how much the probability that a trial accepts x is off, in the mean square over x; what
that adds to the total variation of T steps; and how far from its start a chain on the whole space ever is.

Source: ours; papers compute with real numbers.

Formal guarantee: derived in docs/privacy/rejection_oracle.md, section 4. Normal numbers are taken for exact,
and points for the real numbers that they are. If the computed loss is one function of point and record
(``consistent``), its roundings change the target, once; otherwise they change every step.

Cost: none.
"""

import math
from typing import NamedTuple, SupportsFloat

from dpsco_jax import _checks
from dpsco_jax.solvers.sampling._rejection_error import moment

_UP = 1.0 + 2.0**-30
_UNIT = 2.0**-53


class Rounding(NamedTuple):
    """The error of computed numbers at distance r of the start: at most ``at_start`` + r·``slope``.

    Attributes:
        at_start: of k·f(x; s) if consistent, otherwise of k·(f(z; s) - f(x; s)); for every record.
        slope: what it may grow by for each unit of distance.
        consistent: whether computed differences are those of one computed function, as they are where
            ``rejection_oracle`` computes them from losses.
    """

    at_start: float
    slope: float
    consistent: bool = True

    def within(self, distance: float) -> float:
        """The largest error at points that are at most so far from the start."""
        return self.at_start + self.slope * distance if self.slope else self.at_start


class Target(NamedTuple):
    """The target that the computed losses have, where they are consistent.

    Attributes:
        c: for which differences of computed losses have the tails of exact ones.
        convexity: the logarithmic Sobolev constant.
        start_distance: the root mean square distance of its points from the start.
        variation: how far it is from the target of the exact losses.
    """

    c: float
    convexity: float
    start_distance: float
    variation: float


def computed_target(c: float, convexity: float, start_distance: float, error: float) -> Target:
    """The target of losses, times k, that are wrong by at most the given error."""
    if error == 0.0:
        return Target(c, convexity, start_distance, 0.0)
    if error > 1e-3 or c > 0.05:  # where the tails of the proof are not those of (√c + error)²
        return Target(1.0, convexity, start_distance, 1.0)
    return Target(
        (math.sqrt(c) + error) ** 2,
        convexity * math.exp(-4.0 * error),
        start_distance * math.exp(error),
        _UP * 0.5 * math.expm1(2.0 * error),
    )


def acceptance_error(c: float, num_terms: int, num_records: int, error: float) -> float:
    """e: how much rounding changes the probability that x is accepted, in the mean square over x.

    Args:
        c: η(kG)².
        num_terms: A.
        num_records: n.
        error: of a difference, but for roundings in proportion to it.
    """
    norms = power_norms(c, num_terms, error)
    each = range(1, num_terms + 1)
    values = error * sum(norms[b - 1] / math.factorial(b - 1) for b in each)
    arithmetic = 1.0 + sum((3 * b + num_terms) * norms[b] / math.factorial(b) for b in each)
    indices = (math.e - 1.0) * num_terms * num_records * 2.0**-65
    return 1.01 * (0.5 * (values + _UNIT * (arithmetic + sum(norms[2:]))) + _UNIT + indices)


def power_norms(c: float, num_terms: int, error: float) -> list[float]:
    """Bounds on the root mean squares of (|X| + error)^b, b = 0, ..., A."""
    each = range(1, num_terms + 1)
    return [1.0] + [(moment(c, 2 * b) ** (0.5 / b) + error) ** b for b in each]


def steps_rounding(
    error: float, counts: float, spread: float, drift: float, num_steps: int, contracts: bool
) -> float:
    """What an acceptance error adds to the total variation of T steps.

    Args:
        error: e.
        counts: a lower bound on the probability of acceptance, above e.
        spread: Σ_b of the norms of X^b over b!, which bounds twice the deviation of that probability.
        drift: ηm.
        num_steps: T.
        contracts: whether errors of steps move points, in a chain whose steps contract.
    """
    once = error / (counts - error)
    if not contracts:
        return _UP * num_steps * once
    moved = 0.5 * once * (1.0 + 0.5 * spread / counts) * (1.0 + drift) / drift
    return _UP * min(num_steps * once, once + moved)


def farthest_point(
    dim: int,
    step_size: float,
    convexity: float,
    start_distance: float,
    num_steps: int,
    variation: float,
) -> float:
    """The r with which no point of a chain, nor any proposal, is farther than r from x_0, but so likely."""
    lengths = 2.0 * start_distance + 2.0 * math.sqrt(step_size * dim)
    tail = math.sqrt(2.0 * math.log(4.0 * 2.0**31 * num_steps / variation))
    return _UP * (lengths + tail * math.sqrt(1.0 / convexity + 2.0 * step_size))


def rounded_losses(
    scale: SupportsFloat,
    dim: int,
    lipschitz: SupportsFloat,
    start_norm: SupportsFloat,
    start_loss: SupportsFloat,
    link_ulps: SupportsFloat = 4.0,
) -> Rounding:
    """Of losses ℓ(⟨x, s⟩) whose link is computed within so many units of 2^-53 of its size.

    A sum of d products in any order is within γ_d·‖x‖·‖s‖ of what it stands for, γ_d = d·2^-53/(1 - d·2^-53).

    Args:
        scale: k.
        dim: d.
        lipschitz: G, at least Lip(ℓ)·‖s‖.
        start_norm: ‖x_0‖, or more.
        start_loss: the largest |ℓ(⟨x_0, s⟩)|.
        link_ulps: the error of the link.

    Raises:
        ValueError: an argument is out of range.
    """
    dim = _checks.require_integer("dim", dim, 1)
    scale = _checks.require_real("scale", scale, 0.0)
    slope = _checks.require_real("lipschitz", lipschitz, 0.0)
    norm = _checks.require_real("start_norm", start_norm, 0.0, closed=True)
    loss = _checks.require_real("start_loss", start_loss, 0.0, closed=True)
    ulps = _checks.require_real("link_ulps", link_ulps, 0.0, closed=True)
    order = dim * _UNIT / (1.0 - dim * _UNIT)
    at_start = scale * (slope * norm * order + ulps * _UNIT * (loss + slope * norm * order))
    return Rounding(_UP * at_start, _UP * scale * slope * (order + ulps * _UNIT * (1.0 + order)))
