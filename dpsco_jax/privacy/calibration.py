"""Calibration: the least noise, the most steps or the largest sampling probability within a budget (ε, δ).

Every search keeps an end at which the budget was seen to hold, and returns that end. The bracket is closed by
the ITP method: interpolation that never takes more steps than bisection.

Source: Oliveira and Takahashi 2020, "An enhancement of the bisection method average performance preserving
minmax optimality".

Formal guarantee: ``epsilon(loss, delta) <= epsilon`` for the loss at the value returned; that loss is of the
relation under which its curve holds (Poisson sampling: ADD_OR_REMOVE_ONE).

Cost: about 10 evaluations of the curve; runs inside ``jit`` and ``vmap`` for JAX arrays, else in NumPy.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.privacy._numerics import Scalar, as_floats, require
from dpsco_jax.privacy.loss import PrivacyLoss, scale
from dpsco_jax.privacy.loss import epsilon as epsilon_of
from dpsco_jax.privacy.poisson import poisson_subsampled_gaussian

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
        ValueError: if an argument is out of range, or (host numbers) neither end meets the budget.
    """
    _check_budget(epsilon, delta)
    require("lower", lower, 0.0, np.inf, open_low=True)
    if not any(isinstance(v, jax.core.Tracer) for v in (lower, upper)):
        require("upper", upper, float(np.max(lower)), np.inf)
    xp, (target, delta, lower, upper) = as_floats(epsilon, delta, lower, upper)
    at_lower = epsilon_of(loss_of(lower), delta)
    at_upper = epsilon_of(loss_of(upper), delta)
    rising = at_lower < at_upper
    private, useful = xp.where(rising, lower, upper), xp.where(rising, upper, lower)
    return _search(xp, loss_of, target, delta, private, useful)


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

    Raises:
        ValueError: if an argument is out of range.
    """
    _check_budget(epsilon, delta)
    require("num_steps", num_steps, 1.0, np.inf, open_high=True)
    require("sampling_probability", sampling_probability, 0.0, 1.0, open_low=True)
    xp, (target, delta, steps, q) = as_floats(epsilon, delta, num_steps, sampling_probability)
    # So much noise that the total variation of all steps is at most δ.
    most = 2.0 * xp.sqrt(steps) / delta
    return _search(
        xp,
        lambda sigma: scale(poisson_subsampled_gaussian(sigma, q), steps),
        target,
        delta,
        xp.maximum(most, 2.0 * _LEAST_MULTIPLIER),
        xp.full_like(most, _LEAST_MULTIPLIER),
    )


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
        ValueError: if an argument is out of range, or (host numbers) even 1e-9 is too much.
    """
    _check_budget(epsilon, delta)
    require("noise_multiplier", noise_multiplier, 0.0, np.inf, open_low=True)
    require("num_steps", num_steps, 1.0, np.inf, open_high=True)
    xp, (target, delta, sigma, steps) = as_floats(epsilon, delta, noise_multiplier, num_steps)
    return _search(
        xp,
        lambda q: scale(poisson_subsampled_gaussian(sigma, q), steps),
        target,
        delta,
        xp.full_like(target + sigma + steps, _LEAST_PROBABILITY),
        xp.ones_like(target + sigma + steps),
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

    Raises:
        ValueError: if an argument is out of range.
    """
    _check_budget(epsilon, delta)
    require("noise_multiplier", noise_multiplier, 0.0, np.inf, open_low=True)
    require("sampling_probability", sampling_probability, 0.0, 1.0)
    xp, (target, failure, sigma, q) = as_floats(
        epsilon, delta, noise_multiplier, sampling_probability
    )
    loss = poisson_subsampled_gaussian(sigma, q)
    target = _tightened(xp, target)

    def add_bit(bit: Any, count: Any) -> Any:
        more = count + (1 << (_MOST_STEPS_LOG2 - bit))
        return xp.where(epsilon_of(scale(loss, more), failure) <= target, more, count)

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
    private: Any,
    useful: Any,
) -> Any:
    """Closes the bracket between an end that is private enough and an end that is too useful."""
    target = _tightened(xp, epsilon)
    private, useful = xp.broadcast_arrays(private, useful, target, delta)[:2]
    tolerance = max(4.0 * float(xp.finfo(private.dtype).eps), 1e-9)
    bisections = math.ceil(math.log2(100.0 / tolerance))

    def excess(value: Any) -> Any:
        """log(ε / target), at most 0 where the budget holds."""
        spent = epsilon_of(loss_of(value), delta)
        ratio = xp.clip(spent / target, 1e-4, 1e4)
        return xp.where(
            spent <= target, xp.minimum(xp.log(ratio), -1e-6), xp.maximum(xp.log(ratio), 1e-6)
        )

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        count, held, broken, at_held, at_broken = state
        width = xp.log(broken / held)  # of either sign
        size = xp.abs(width)
        # ITP on [0, size]: regula falsi, moved towards the middle, projected near the middle.
        middle = 0.5 * size
        falsi = size * at_held / (at_held - at_broken)
        towards = xp.sign(middle - falsi)
        moved = falsi + towards * xp.minimum(
            0.2 * size * size / (1.0 + size), xp.abs(middle - falsi)
        )
        slack = xp.maximum(tolerance * 2.0 ** (bisections + 1 - count) - middle, 0.0)
        where = xp.where(
            xp.abs(moved - middle) <= slack, moved, middle - towards * xp.minimum(slack, middle)
        )
        where = xp.clip(where, 0.3 * tolerance, xp.maximum(size - 0.3 * tolerance, 0.3 * tolerance))
        value = held * xp.exp(xp.sign(width) * where)
        found = excess(value)
        holds = found <= 0
        active = size > tolerance
        return (
            count + 1,
            xp.where(active & holds, value, held),
            xp.where(active & ~holds, value, broken),
            xp.where(active & holds, found, at_held),
            xp.where(active & ~holds, found, at_broken),
        )

    def unfinished(state: tuple[Any, ...]) -> Any:
        count, held, broken, *_ = state
        return (count < bisections + 2) & xp.any(xp.abs(xp.log(broken / held)) > tolerance)

    at_private, at_useful = excess(private), excess(useful)
    start = (0, private, xp.where(at_useful > 0, useful, private), at_private, at_useful)
    if xp is jnp:
        held = jax.lax.while_loop(unfinished, step, start)[1]
    else:
        state: tuple[Any, ...] = start
        while unfinished(state):
            state = step(state)
        held = state[1]
    found = xp.where(at_useful > 0, held, useful)
    reached = (at_private <= 0) | (at_useful <= 0)
    if xp is np and not np.all(reached):
        raise ValueError(
            f"epsilon must be one that some value between {np.min(private):g} and {np.max(useful):g}"
            f" meets, got {epsilon}"
        )
    found = xp.where(reached, found, xp.nan)
    return float(found) if xp is np and found.ndim == 0 else found


def _tightened(xp: Any, epsilon: Any) -> Any:
    """A budget that leaves room for rounding to differ between one compilation and another."""
    return epsilon * (1.0 - 16.0 * xp.finfo(epsilon.dtype).eps)


def _check_budget(epsilon: Any, delta: Any) -> None:
    require("epsilon", epsilon, 0.0, np.inf, open_low=True, open_high=True)
    require("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
