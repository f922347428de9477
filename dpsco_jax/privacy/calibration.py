"""Calibration: the least noise, the most steps or the largest sampling probability within a budget (ε, δ).

Every search keeps an end at which the budget was seen to hold, and returns that end. The bracket is closed
by interpolation from both sides, with a bisection where that gains little.

Source: regula falsi; nothing here depends on how fast it converges.

Formal guarantee: ``epsilon(loss, delta) <= epsilon`` for the loss at the value returned; that loss is of the
relation under which its curve holds (Poisson sampling: ADD_OR_REMOVE_ONE).

Cost: about 12 evaluations of the curve; runs inside ``jit`` and ``vmap`` for JAX arrays, else in NumPy.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax._checks import (
    require_callable,
    require_inside,
    require_number,
    require_positive,
    require_probability,
    require_whole,
    require_within,
)
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import Scalar, as_floats
from dpsco_jax.privacy.curves.poisson import poisson_subsampled_gaussian
from dpsco_jax.privacy.loss import PrivacyLoss, scale
from dpsco_jax.privacy.loss import epsilon as epsilon_of

_LEAST_MULTIPLIER = 0.01
_LEAST_PROBABILITY = 1e-9
_MOST_STEPS_LOG2 = 30


def calibrate(
    loss_of: Callable[[Any], PrivacyLoss],
    epsilon: Scalar,
    delta: Scalar,
    lower: Scalar,
    upper: Scalar,
) -> Any:
    """The most useful value in [lower, upper] whose loss stays within (ε, δ).

    Args:
        loss_of: the whole loss as a function of the value, monotone: falling (a noise level, and the
            smallest that meets the budget is found) or rising (a number of queries, and the largest is).
        epsilon: budget, above 0.
        delta: budget, in (0, 1).
        lower: positive end of the search.
        upper: the other end, above ``lower``.

    Returns:
        A value within 1e-6 relative of the best, at which the budget holds. A float for Python and NumPy
        numbers. For JAX arrays, an array; ``nan`` where neither end meets the budget.

    Raises:
        ValueError: neither end of the range meets the budget, where numbers are concrete.
    """
    _check_budget(epsilon, delta)
    require_callable("loss_of", loss_of)
    require_positive("lower", lower)
    require_number("upper", upper)
    if not any(isinstance(v, jax.core.Tracer) for v in (lower, upper)):
        require_within("upper", upper, float(np.max(lower)), np.inf, open_high=True)
    # What the loss is computed from may be traced although none of the arguments is.
    ends = as_floats(epsilon, delta, lower, upper)[1]
    at_ends = [epsilon_of(loss_of(end), ends[1]) for end in ends[2:]]
    xp, (target, failure, lower, upper, *at_ends) = as_floats(*ends, *at_ends)
    at_lower, at_upper = (_excess(xp, spent, target) for spent in at_ends)
    rising = at_lower < at_upper
    private = xp.where(rising, lower, upper), xp.where(rising, at_lower, at_upper)
    useful = xp.where(rising, upper, lower), xp.where(rising, at_upper, at_lower)
    return _search(xp, loss_of, target, failure, private, useful)


def calibrate_noise_multiplier(
    epsilon: Scalar, delta: Scalar, num_steps: Scalar, sampling_probability: Scalar = 1.0
) -> Any:
    """The smallest noise multiplier for which ``num_steps`` releases stay within (ε, δ).

    Args:
        epsilon: budget, above 0.
        delta: budget, in (0, 1).
        num_steps: number of releases, at least 1.
        sampling_probability: of each user in each step (Poisson, ADD_OR_REMOVE_ONE), in (0, 1]; with 1,
            a plain Gaussian release under any relation.

    Returns:
        Standard deviation over ℓ2 sensitivity, within 1e-6 relative of the smallest (at least 0.01): a
        float for Python and NumPy numbers, else an array. Every budget can be met.
    """
    _check_budget(epsilon, delta)
    require_whole("num_steps", num_steps, 1)
    require_within("sampling_probability", sampling_probability, 0.0, 1.0, open_low=True)
    xp, (target, failure, steps, q) = as_floats(epsilon, delta, num_steps, sampling_probability)

    def loss_of(sigma: Any) -> PrivacyLoss:
        return scale(poisson_subsampled_gaussian(sigma, q), steps)

    # Without sampling, the best real order asks for this much; sampling divides it by about 1/q, as
    # far as the multiplier stays above 1.
    root = xp.sqrt(-xp.log(failure))
    unsampled = xp.sqrt(0.5 * steps) / (xp.sqrt(root * root + target) - root)
    high = xp.minimum(3.0 * q * unsampled + 1.0, 1.05 * unsampled) + 0.02
    low = xp.maximum(
        xp.minimum(0.5 * q * unsampled + 0.3, 0.5 * unsampled), 2.0 * _LEAST_MULTIPLIER
    )
    # One evaluation for both guesses: half the program to compile.
    guesses = xp.stack(xp.broadcast_arrays(high, low, failure)[:2])
    above, below = _excess(xp, epsilon_of(loss_of(guesses), failure), target)
    # Where a guess fails: at so much noise the total variation of all steps is below δ.
    most = 2.0 * xp.sqrt(steps) / failure + 1.0
    private = xp.where(below <= 0, low, xp.where(above <= 0, high, most))
    useful = xp.where(below <= 0, _LEAST_MULTIPLIER, xp.where(above <= 0, low, high))
    at_private = xp.where(below <= 0, below, xp.where(above <= 0, above, -1.0))
    at_useful = xp.where(below <= 0, 1.0, xp.where(above <= 0, below, above))
    return _search(xp, loss_of, target, failure, (private, at_private), (useful, at_useful))


def calibrate_sampling_probability(
    epsilon: Scalar, delta: Scalar, noise_multiplier: Scalar, num_steps: Scalar
) -> Any:
    """The largest Poisson sampling probability for which ``num_steps`` releases stay within (ε, δ).

    Args:
        epsilon: budget, above 0.
        delta: budget, in (0, 1).
        noise_multiplier: standard deviation over ℓ2 sensitivity (ADD_OR_REMOVE_ONE), above 0.
        num_steps: number of releases, at least 1.

    Returns:
        A probability in [1e-9, 1], within 1e-6 relative of the largest: a float for Python and NumPy
        numbers, else an array, ``nan`` where even 1e-9 is too much.

    Raises:
        ValueError: even 1e-9 is too much, where numbers are concrete.
    """
    _check_budget(epsilon, delta)
    require_positive("noise_multiplier", noise_multiplier)
    require_whole("num_steps", num_steps, 1)
    return calibrate(
        lambda q: scale(poisson_subsampled_gaussian(noise_multiplier, q), num_steps),
        epsilon,
        delta,
        _LEAST_PROBABILITY,
        1.0,
    )


def calibrate_num_steps(
    epsilon: Scalar, delta: Scalar, noise_multiplier: Scalar, sampling_probability: Scalar = 1.0
) -> Any:
    """The largest number of releases that stays within (ε, δ).

    Args:
        epsilon: budget, above 0.
        delta: budget, in (0, 1).
        noise_multiplier: standard deviation over ℓ2 sensitivity, above 0.
        sampling_probability: of each user in each step (Poisson, ADD_OR_REMOVE_ONE), in [0, 1]; with 1,
            a plain Gaussian release under any relation.

    Returns:
        A number below 2^31, possibly 0: an int for Python and NumPy numbers, else an integer array.
    """
    _check_budget(epsilon, delta)
    require_positive("noise_multiplier", noise_multiplier)
    require_probability("sampling_probability", sampling_probability)
    xp, (target, failure, sigma, q) = as_floats(
        epsilon, delta, noise_multiplier, sampling_probability
    )
    loss = poisson_subsampled_gaussian(sigma, q)

    def add_bit(bit: Any, count: Any) -> Any:
        more = count + (1 << (_MOST_STEPS_LOG2 - bit))
        return xp.where(
            _excess(xp, epsilon_of(scale(loss, more), failure), target) <= 0, more, count
        )

    shape = xp.broadcast_shapes(loss.delta.shape, target.shape, failure.shape)
    count = xp.zeros(shape, np.int32)
    if xp is jnp:
        return jax.lax.fori_loop(0, _MOST_STEPS_LOG2 + 1, add_bit, count)
    for bit in range(_MOST_STEPS_LOG2 + 1):
        count = add_bit(bit, count)
    return int(count) if count.ndim == 0 else count


def _search(
    xp: Any,
    loss_of: Callable[[Any], PrivacyLoss],
    epsilon: Any,
    delta: Any,
    private_end: tuple[Any, Any],
    useful_end: tuple[Any, Any],
) -> Any:
    """The last value between two ends, each given with its ``_excess``, at which the budget holds."""
    private, at_private, useful, at_useful = xp.broadcast_arrays(*private_end, *useful_end)
    is_open = (at_private <= 0) & (at_useful > 0)
    far = xp.full_like(private, xp.inf)
    bracket = _Bracket(
        turns=0,
        held=private,
        broken=xp.where(is_open, useful, private),
        at_held=at_private,
        at_broken=xp.where(is_open, at_useful, 1.0),
        size=far,
        size_before=far,
        aside=0.0 * private + 0.01,
    )
    bracket = bracket.closed(
        xp, lambda value: _excess(xp, epsilon_of(loss_of(value), delta), epsilon)
    )
    found = xp.where(at_useful > 0, bracket.held, useful)
    reached = (at_private <= 0) | (at_useful <= 0)
    if xp is np and not np.all(reached):
        raise Infeasible(
            f"epsilon must be what some value between {np.min(private):g} and {np.max(useful):g} meets,"
            f" got {epsilon}"
        )
    found = xp.where(reached, found, xp.nan)
    return float(found) if xp is np and found.ndim == 0 else found


def _excess(xp: Any, spent: Any, epsilon: Any) -> Any:
    """log(spent / ε), at most 0 where the budget holds, with room for differences in rounding.

    The same function may be rounded differently by another compilation.
    """
    target = epsilon * (1.0 - 16.0 * xp.finfo(epsilon.dtype).eps)
    ratio = xp.log(xp.clip(spent / target, 1e-4, 1e4))
    return xp.where(spent <= target, xp.minimum(ratio, -1e-6), xp.maximum(ratio, 1e-6))


def _check_budget(epsilon: Any, delta: Any) -> None:
    require_positive("epsilon", epsilon)
    require_inside("delta", delta)


class _Bracket(NamedTuple):
    """A value at which the budget holds, one at which it does not, and how fast they approach.

    Attributes:
        turns: how many evaluations were made.
        held: a value at which the budget holds.
        broken: a value at which it does not.
        at_held: by how much the budget is exceeded at ``held``, on a scale of logarithms; at most 0.
        at_broken: by how much it is exceeded at ``broken``; above 0.
        size: of the bracket before the last evaluation: |log(broken / held)|.
        size_before: that one evaluation earlier; ``inf`` after a bisection.
        aside: by which share of the bracket the next interpolation aims past the solution.
    """

    turns: Any
    held: Any
    broken: Any
    at_held: Any
    at_broken: Any
    size: Any
    size_before: Any
    aside: Any

    def narrowed(self, xp: Any, excess: Callable[[Any], Any], tolerance: float) -> "Bracket":
        """The bracket after one more evaluation; unchanged where it is narrow enough."""
        width = xp.log(self.broken / self.held)  # of either sign
        size = xp.abs(width)
        # Interpolated points fall a little to the one side and to the other of the solution, by turns,
        # and so enclose it; where two of them gain less than a bisection does, one follows.
        slow = size > 0.5 * self.size_before
        share = xp.where(slow, 0.5, self.at_held / (self.at_held - self.at_broken) + self.aside)
        share = xp.clip(
            share * size, 0.3 * tolerance, xp.maximum(size, tolerance) - 0.3 * tolerance
        )
        value = self.held * xp.exp(xp.sign(width) * share)
        found = excess(value)
        inwards, outwards = (size > tolerance) & (found <= 0), (size > tolerance) & (found > 0)
        return _Bracket(
            turns=self.turns + 1,
            held=xp.where(inwards, value, self.held),
            broken=xp.where(outwards, value, self.broken),
            at_held=xp.where(inwards, found, self.at_held),
            at_broken=xp.where(outwards, found, self.at_broken),
            size=size,
            size_before=xp.where(slow, xp.inf, self.size),
            aside=xp.where(found <= 0, 0.01, -0.01),
        )

    def closed(self, xp: Any, excess: Callable[[Any], Any]) -> "Bracket":
        """The bracket once its values agree to 2e-7, or to what their dtype holds."""
        tolerance = max(4.0 * float(xp.finfo(self.held.dtype).eps), 2e-7)
        most = 4 * math.ceil(math.log2(100.0 / tolerance))  # bisection alone takes a quarter of it

        def narrowed(bracket: _Bracket) -> _Bracket:
            return bracket.narrowed(xp, excess, tolerance)

        def unfinished(bracket: _Bracket) -> Any:
            wide = xp.abs(xp.log(bracket.broken / bracket.held)) > tolerance
            return (bracket.turns < most) & xp.any(wide)

        if xp is jnp:
            return jax.lax.while_loop(unfinished, narrowed, self)
        bracket = self
        while unfinished(bracket):
            bracket = narrowed(bracket)
        return bracket
