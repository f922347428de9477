"""Noise of the concentration tests: how likely a test errs, in closed form or by one integral.

Tails of a Laplace variable and of a difference of two, scales 4Δ/ε for the query and 2Δ/ε for the threshold
(Dwork and Roth 2014, Algorithm 1), their inverses, and the probability that perfectly concentrated data fail
one of T tests. ``wrong_pass`` bounds what the privacy proof needs (docs/theory/concentrated_mean.md, sections
4 to 6); the false halts are of utility only.
"""

import functools
import math
from typing import Any

import numpy as np
from scipy import optimize

from dpsco_jax._numerics import as_floats

_NODES = np.linspace(-45.0, 75.0, 6001)  # of the threshold noise, in its own scale


def wrong_pass(test: str, gap: Any, test_epsilon: Any, score_sensitivity: float) -> Any:
    """Probability that one test passes a score that lies ``gap`` below the threshold.

    Of a Laplace variable of scale s = ``score_sensitivity``/ε₁ (fresh), or of a sum of two of scales 2s and
    4s (stream): P(X + Y > t) = (b² e^(-t/b) - a² e^(-t/a))/(2 (b² - a²)) for t >= 0 and scales a ≠ b, which
    is (4 e^(-t/b) - e^(-2t/b))/6 for b = 2a.

    Args:
        test: ``"fresh"`` or ``"stream"``.
        gap: t, may be traced; where it is negative the answer is 1.
        test_epsilon: ε₁, may be traced.
        score_sensitivity: of the score.
    """
    xp, (gap, eps) = as_floats(gap, test_epsilon)
    decay = xp.maximum(gap, 0.0) * eps / score_sensitivity / (1.0 if test == "fresh" else 4.0)
    fall = xp.exp(-decay)
    found = 0.5 * fall if test == "fresh" else (4.0 * fall - fall * fall) / 6.0
    found = found * (1.0 + 8.0 * xp.finfo(gap.dtype).eps * (1.0 + decay))
    return xp.where(gap >= 0, xp.minimum(found, 1.0), 1.0)


def gap_for(test: str, failure: float, test_epsilon: float, score_sensitivity: float) -> float:
    """The gap at which ``wrong_pass`` is ``failure``, at least 0."""
    scale = score_sensitivity / test_epsilon
    if test == "fresh":
        return max(-scale * math.log(2.0 * failure), 0.0)
    # With x = e^(-gap/4scale): (4x - x²)/6 = failure.
    root = 6.0 * failure / (2.0 + math.sqrt(max(4.0 - 6.0 * failure, 0.0)))
    return max(-4.0 * scale * math.log(min(root, 1.0)), 0.0)


def false_halt(
    test: str, gap: float, num_steps: int, test_epsilon: float, score_sensitivity: float
) -> float:
    """Probability that scores ``gap`` above the threshold fail one of ``num_steps`` tests."""
    scale = score_sensitivity / test_epsilon
    if test == "fresh":
        fail = 0.5 * math.exp(-gap / scale) if gap >= 0 else 1.0 - 0.5 * math.exp(gap / scale)
        return -math.expm1(num_steps * math.log1p(-fail)) if fail < 1.0 else 1.0
    return _stream_false_halt(gap / (2.0 * scale), num_steps)


def false_halt_gap(
    test: str, probability: float, num_steps: int, test_epsilon: float, score_sensitivity: float
) -> float:
    """The gap at which ``false_halt`` is ``probability``, at least 0."""
    scale = score_sensitivity / test_epsilon
    if test == "fresh":
        fail = -math.expm1(math.log1p(-probability) / num_steps)
        return max(-scale * math.log(2.0 * fail), 0.0)
    return 2.0 * scale * _stream_gap(probability, num_steps)


@functools.cache
def _stream_gap(probability: float, num_steps: int) -> float:
    """In units of the threshold noise."""
    if _stream_false_halt(0.0, num_steps) <= probability:
        return 0.0
    above = 2.0 * math.log(2.0 * num_steps / (3.0 * probability)) + 1.0
    root = optimize.brentq(
        lambda g: math.log(_stream_false_halt(g, num_steps) / probability), 0.0, above, xtol=1e-9
    )
    return float(root) + 1e-9


def _stream_false_halt(gap: float, num_steps: int) -> float:
    """For threshold noise of scale 1 and query noise of scale 2."""
    density = 0.5 * np.exp(-np.abs(_NODES))
    distance = 0.5 * (gap - _NODES)
    fail = np.where(
        distance >= 0, 0.5 * np.exp(-np.abs(distance)), 1.0 - 0.5 * np.exp(-np.abs(distance))
    )
    with np.errstate(divide="ignore"):
        some = -np.expm1(num_steps * np.log1p(-fail))
    return float(min(np.trapezoid(density * some, _NODES), 1.0))
