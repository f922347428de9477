"""What float64 costs a chain of ``rejection_oracle``: roundings of losses, sums and uniform numbers.

What it computes: e, how much the probability that a trial accepts x is off, in the mean square over x; what
that adds to the total variation of T steps; and how far from its start a chain on the whole space ever is.

Source: ours; papers compute with real numbers.

Formal guarantee: derived in docs/theory/rejection_oracle.md, section 4. Normal numbers are taken for exact,
and points for the real numbers that they are. If the computed loss is one function of point and record
(``consistent``), its roundings change the target, once; otherwise they change every step.

Cost: none. Numbers may be traced, in float64.
"""

import math
from typing import Any, NamedTuple, SupportsFloat

from dpsco_jax import _checks
from dpsco_jax._numerics import Scalar, as_floats
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

    at_start: Any
    slope: Any
    consistent: bool = True

    def within(self, distance: Any) -> Any:
        """The largest error at points that are at most so far from the start."""
        return self.at_start + self.slope * distance


class Target(NamedTuple):
    """The target that the computed losses have, where they are consistent.

    Attributes:
        c: for which differences of computed losses have the tails of exact ones.
        convexity: the logarithmic Sobolev constant.
        start_distance: the root mean square distance of its points from the start.
        variation: how far it is from the target of the exact losses.
    """

    c: Any
    convexity: Any
    start_distance: Any
    variation: Any


def computed_target(c: Scalar, convexity: Scalar, start_distance: Scalar, error: Scalar) -> Target:
    """The target of losses, times k, that are wrong by at most the given error."""
    xp, (size, bend, start, wrong) = as_floats(c, convexity, start_distance, error)
    # Beyond these the tails of the proof are not those of (√c + error)².
    proven = (wrong == 0.0) | ((wrong <= 1e-3) & (size <= 0.05))
    off = xp.where(proven, wrong, 0.0)
    return Target(
        xp.where(proven, xp.where(off > 0.0, (xp.sqrt(size) + off) ** 2, size), 1.0),
        bend * xp.exp(-4.0 * off),
        start * xp.exp(off),
        xp.where(proven, _UP * 0.5 * xp.expm1(2.0 * off), 1.0),
    )


def acceptance_error(c: Any, num_terms: int, num_records: int, error: Any) -> Any:
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


def power_norms(c: Any, num_terms: int, error: Any) -> list[Any]:
    """Bounds on the root mean squares of (|X| + error)^b, b = 0, ..., A."""
    each = range(1, num_terms + 1)
    return [1.0] + [(moment(c, 2 * b) ** (0.5 / b) + error) ** b for b in each]


def steps_rounding(
    error: Any, counts: Any, spread: Any, drift: Any, num_steps: Any, contracts: bool
) -> Any:
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
    xp, (every, few) = as_floats(num_steps * once, once + moved)
    return _UP * xp.minimum(every, few)


def farthest_point(
    dim: int,
    step_size: Scalar,
    convexity: Scalar,
    start_distance: Scalar,
    num_steps: Scalar,
    variation: Scalar,
) -> Any:
    """The r with which no point of a chain, nor any proposal, is farther than r from x_0, but so likely."""
    xp, (eta, convexity, start, steps, tau) = as_floats(
        step_size, convexity, start_distance, num_steps, variation
    )
    lengths = 2.0 * start + 2.0 * xp.sqrt(eta * dim)
    tail = xp.sqrt(2.0 * xp.log(4.0 * 2.0**31 * steps / tau))
    return _UP * (lengths + tail * xp.sqrt(1.0 / convexity + 2.0 * eta))


def rounded_losses(
    scale: Scalar,
    dim: int,
    lipschitz: SupportsFloat,
    start_norm: SupportsFloat,
    start_loss: SupportsFloat,
    link_ulps: SupportsFloat = 4.0,
) -> Rounding:
    """Of losses ℓ(⟨x, s⟩) whose link is computed within so many units of 2^-53 of its size.

    A sum of d products in any order is within γ_d·‖x‖·‖s‖ of what it stands for, γ_d = d·2^-53/(1 - d·2^-53).

    Args:
        scale: k; may be traced.
        dim: d.
        lipschitz: G, at least Lip(ℓ)·‖s‖.
        start_norm: ‖x_0‖, or more.
        start_loss: the largest |ℓ(⟨x_0, s⟩)|.
        link_ulps: the error of the link.

    Raises:
        ValueError: a concrete argument is out of range.
    """
    dim = _checks.require_integer("dim", dim, 1)
    _checks.require_positive("scale", scale)
    slope = _checks.require_real("lipschitz", lipschitz, 0.0)
    norm = _checks.require_real("start_norm", start_norm, 0.0, closed=True)
    loss = _checks.require_real("start_loss", start_loss, 0.0, closed=True)
    ulps = _checks.require_real("link_ulps", link_ulps, 0.0, closed=True)
    order = dim * _UNIT / (1.0 - dim * _UNIT)
    at_start = scale * (slope * norm * order + ulps * _UNIT * (loss + slope * norm * order))
    return Rounding(_UP * at_start, _UP * scale * slope * (order + ulps * _UNIT * (1.0 + order)))
