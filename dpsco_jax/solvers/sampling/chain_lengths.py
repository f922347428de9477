"""How long a proximal chain must be: steps until it has mixed, and trials until it has made them.

What it computes: bounds on the total variation between the last point of ``alternating_sampler`` and its
target (too few steps), and on the probability that the trials run out; and the least numbers for which they
hold.

Source: T, Theorem 3.5.2, with constants; Chernoff's bound.

Formal guarantee: both hold on every data set on which the constants do (docs/theory/proximal_sampler.md).
They are rounded up.

Cost: none. The bounds may be traced.

Example:
    >>> from dpsco_jax.solvers.sampling import chain_lengths
    >>> steps = chain_lengths.mixing_steps(1e-9, 0.01, 1.0, 3.0)
    >>> steps, chain_lengths.capped_trials(steps, 0.5, 1e-9)
    (2356, 5175)
"""

import math
from collections.abc import Callable
from typing import Any, SupportsFloat

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Count, Inside, checked
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import Scalar, as_floats

__all__ = ["capped_trials", "mixing_steps", "mixing_variation", "trials_variation"]

MOST_TRIALS = 2**31 - 1
_LEAST = 2.0**-1000
_ULPS = 16.0


def mixing_variation(
    num_steps: Scalar, step_size: Scalar, convexity: Scalar, start_distance: Scalar
) -> Any:
    """How far the law of x_T is at most from the target, in total variation, if every step is exact.

    Args:
        num_steps: T, at least 1; may be traced, as all the others.
        step_size: η, above 0.
        convexity: m, above 0: V is m-strongly convex, on every data set.
        start_distance: W, at least 0: √E‖x_0 - x‖² is at most W for x of the target, on every data set.

    Returns:
        (1 + ηm)^{-(T-1)}·W/(2√η), rounded up, at most 1.

    Raises:
        ValueError: a concrete argument is out of range.

    Example:
        >>> round(float(mixing_variation(20, 1.0, 1.0, 0.5)) * 2**21, 9)
        1.0
    """
    _checks.require_positive("convexity", convexity)
    return left_after(1.0, num_steps, step_size, convexity, start_distance)


def mixing_steps(
    variation: SupportsFloat,
    step_size: SupportsFloat,
    convexity: SupportsFloat,
    start_distance: SupportsFloat,
) -> int:
    """The least T for which ``mixing_variation`` is at most the given one.

    Args:
        variation: in (2^-1000, 1).
        step_size: η, as the next ones those of ``mixing_variation``.
        convexity: m.
        start_distance: W.

    Raises:
        ValueError: an argument is out of range.
        Infeasible: that are more steps than a loop can count, 2³¹.
    """
    return least_steps(
        mixing_variation, "convexity", variation, step_size, convexity, start_distance
    )


def trials_variation(num_steps: Scalar, num_trials: Scalar, acceptance: Scalar) -> Any:
    """The probability, at most, that fewer than T of N trials succeed, by Chernoff's bound.

    Args:
        num_steps: T, at least 1; may be traced, as the others.
        num_trials: N, at least 1.
        acceptance: p, in (0, 1], whatever came before.

    Raises:
        ValueError: a concrete argument is out of range.

    Example:
        >>> bool(0.5**100 < trials_variation(1, 100, 0.5) < 1e-27)
        True
    """
    _checks.require_whole("num_steps", num_steps, 1)
    _checks.require_whole("num_trials", num_trials, 1)
    _checks.require_within("acceptance", acceptance, 0.0, 1.0, open_low=True)
    xp, (steps, trials, p) = as_floats(num_steps, num_trials, acceptance)
    share = steps / trials
    covered = share <= p
    # Chernoff: Pr[Binomial(N, p) <= T - 1] <= exp(-N·KL(T/N, p)).
    least, unit = xp.finfo(p.dtype).tiny, xp.finfo(p.dtype).eps
    there = xp.where(covered, share, 0.5 * p)
    failing, left = xp.maximum(1.0 - p, least), xp.maximum(1.0 - there, least)
    met, missed = there * xp.log(there / p), (1.0 - there) * xp.log(left / failing)
    rounding = _ULPS * unit * (xp.abs(met) + xp.abs(missed) + unit)
    bound = xp.exp(-trials * xp.maximum(met + missed - rounding, 0.0))
    bound = xp.where(p >= 1.0, 0.0, xp.maximum(bound, least))
    return xp.where(covered, xp.minimum(bound, 1.0), 1.0)


@checked
def capped_trials(num_steps: Count, acceptance: float, variation: Inside) -> int:
    """A number of trials of which fewer than T succeed with at most the given probability.

    Args:
        num_steps: T, at least 1.
        acceptance: p, in (0, 1]: each trial succeeds with at least this probability, whatever came before.
        variation: that probability, in (0, 1).

    Returns:
        The least N for which ``trials_variation`` is at most ``variation``.

    Raises:
        ValueError: an argument is out of range.
        Infeasible: that are more trials than a loop can count, 2³¹.
    """

    def enough(trials: int) -> bool:
        return trials_variation(num_steps, trials, acceptance) <= variation

    low, high = num_steps - 1, num_steps
    while not enough(high):
        low, high = high, 2 * high
        if high > MOST_TRIALS:
            raise Infeasible(
                f"num_steps must be such that all trials are fewer than 2^31, got {num_steps}"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def left_after(
    free: float, num_steps: Scalar, step_size: Scalar, rate: Scalar, start_distance: Scalar
) -> Any:
    """(1 + ηα)^{-(T - free)}·W/(2√η), rounded up, at most 1."""
    _checks.require_whole("num_steps", num_steps, 1)
    _checks.require_positive("step_size", step_size)
    _checks.require_nonnegative("start_distance", start_distance)
    xp, (steps, eta, alpha, start) = as_floats(num_steps, step_size, rate, start_distance)
    least, unit = xp.finfo(eta.dtype).tiny, xp.finfo(eta.dtype).eps
    # As a sum of logarithms where the product is above all floats.
    far = xp.maximum(xp.log(eta) + xp.log(alpha), 0.0)
    product = xp.where(far > 60.0, 1.0, eta) * xp.where(far > 60.0, 1.0, alpha)
    lost = (steps - free) * xp.where(far > 60.0, far, xp.log1p(product))
    first = xp.log(xp.maximum(start, least)) - xp.log(2.0 * xp.sqrt(eta))
    rounding = _ULPS * unit * (xp.abs(first) + lost + 1.0)
    bound = xp.exp(xp.minimum(first - lost + rounding, 0.0))
    return xp.minimum(xp.maximum(bound, least), 1.0)


def least_steps(
    bound: Callable[..., Any],
    name: str,
    variation: SupportsFloat,
    step_size: SupportsFloat,
    rate: SupportsFloat,
    start_distance: SupportsFloat,
) -> int:
    """The least T for which a bound of the form of ``left_after`` is at most the given variation."""
    variation = _checks.require_real("variation", variation, _LEAST, 1.0)
    eta = _checks.require_real("step_size", step_size, 0.0)
    alpha = _checks.require_real(name, rate, 0.0)
    start = _checks.require_real("start_distance", start_distance, 0.0, closed=True)
    log_first = math.log(max(start, 1e-300)) - math.log(2.0 * math.sqrt(eta))
    each = math.log1p(eta * alpha) if eta * alpha < math.inf else math.log(eta) + math.log(alpha)
    needed = (log_first - math.log(variation)) / each if each > 0 else math.inf
    if needed > MOST_TRIALS:
        raise Infeasible(
            f"step_size and {name} must be such that all steps are fewer than 2^31, got {eta} and {alpha}"
        )
    steps = max(1, math.floor(needed))
    while bound(steps, eta, alpha, start) > variation:
        steps += 1
    return steps
