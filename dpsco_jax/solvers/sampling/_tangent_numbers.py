"""How likely attempts by a tangent count, and what their roundings cost, for ψ = (a/2)·‖x‖_q², 1 < q < 2.

What it computes: for ``restricted_gaussian.tangent`` at points y with ‖y‖₂ ≤ r a lower bound on the
probability that an attempt counts, how far its law is off by rounding, and how far the computed ψ is.

Source: ours; T leaves these draws to general samplers.

Formal guarantee: with N = ‖y‖_q and D(h) what ψ/a exceeds its tangent by at y + h,

    D(h) ≤ c₁·N^{2-q}·‖h‖_q^q + c₂·‖h‖_q²,    c₁ = 2^{2-q}/q,    c₂ = max(5/2, (2/q - 1)·(q² + 2^{4-2q})),

so E e^{-aD} ≥ e^{-a·E D} bounds the probability for all y within r (docs/theory/rejection_oracle.md,
section 5, which has the proofs). Where roundings could make a computed aD negative beyond the slack of
``tangent``, the bound is zero: nothing is claimed.

Cost: none. Numbers may be traced, in float64.
"""

import math
from typing import Any, NamedTuple

from dpsco_jax._numerics import Scalar, as_floats
from dpsco_jax.solvers.sampling.restricted_gaussian import TANGENT_SLACK

_UNIT = 2.0**-53
_DOWN = 1.0 - 2.0**-30


class Power(NamedTuple):
    """ψ(x) = (scale/2)·‖x‖_q².

    Attributes:
        exponent: q, in (1, 2); static.
        scale: a; may be traced.
    """

    exponent: float
    scale: Any


class Attempts(NamedTuple):
    """What is known of attempts at points within a distance.

    Attributes:
        acceptance: the least probability that one counts.
        error: how far the law of one that counts is off by rounding, in total variation.
        potential: the largest error of the computed ψ.
    """

    acceptance: Any
    error: Any
    potential: Any


def bregman(power: Power, length: Any, move: Any) -> Any:
    """The bound on aD, for ‖y‖_q = ``length`` and the ℓq norm of a move, in the mean square if random."""
    q = power.exponent
    first = 2.0 ** (2.0 - q) / q * length ** (2.0 - q) * move**q
    second = max(2.5, (2.0 / q - 1.0) * (q * q + 2.0 ** (4.0 - 2.0 * q)))
    return power.scale * (first + second * move**2)


def attempts(power: Power, dim: int, step_size: Scalar, reach: Scalar) -> Attempts:
    """The numbers for points whose ℓ2 distance from the centre is at most ``reach``."""
    q = power.exponent
    xp, (scale, eta, reach) = as_floats(power.scale, step_size, reach)
    widest = dim ** (1.0 / q - 0.5)  # of ‖·‖_q over ‖·‖₂
    length = widest * reach
    # ‖∇ψ‖ is a·N in the dual norm.
    slope_q, slope_2 = scale * length * widest**2, scale * length * widest
    move = eta * slope_q + xp.sqrt(eta) * dim ** (1.0 / q)
    likely = _DOWN * xp.exp(-bregman(power._replace(scale=scale), length, move) - TANGENT_SLACK)
    # A proposal, counted or not, may be farther out than y by the length of ηg.
    farthest = reach + eta * slope_2
    potential = _UNIT * (4.0 * dim + 128.0) * 0.5 * scale * (widest * farthest) ** 2
    steep = _UNIT * (4.0 * dim + 256.0) * slope_2 * farthest
    proven = potential + steep <= 0.25 * TANGENT_SLACK
    likely = xp.where(proven, likely, 0.0)
    lengths = eta * slope_2 + xp.sqrt(eta * dim)
    error = _UNIT * ((dim + 6.0) * slope_2 * lengths + 16.0)
    known = likely > 1e-100
    error = xp.where(known, error / xp.where(known, likely, 1.0), math.inf)
    return Attempts(likely, error, xp.where(proven, potential, math.inf))
