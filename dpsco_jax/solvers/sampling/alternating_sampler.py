"""The proximal sampler: a chain whose steps are exact, so that only their number decides how good a draw is.

What it computes: from a point x, T times: y ← x + √η·N(0, I), and x ← a draw from the density in proportion
to exp(-V(x) - ‖x - y‖²/(2η)). What draws it, by trials each of which may fail, is an ``Oracle``. All trials
of all steps are made in one flat loop of at most N trips, so that lanes under ``vmap`` do not wait for one
another in each step.

Source: T, Algorithm 13 (Lee, Shen and Tian 2021); the law of the loop is that of Theorem 3.5.2, with the
number of steps that ``mixing_steps`` proves.

Formal guarantee: let V be m-strongly convex on a convex set and W ≥ √E‖x_0 - x‖² for x of the law π ∝ e^{-V}.
With exact draws the law of x_T is within total variation

    (1 + ηm)^{-(T-1)}·W/(2√η)

of π (docs/privacy/proximal_sampler.md). If each trial succeeds with probability at least p, whatever came
before, fewer than T of N succeed with probability at most Pr[Binomial(N, p) < T]; the loop then returns the
last point that it has, and never says so. Privacy rests on these two numbers, not on the data. What the
guarantee does not cover: how many trials were made (``Draw.num_trials``), and how long that took.
``constant_time=True`` makes all N trips, and both branches of each.

Cost: T steps of a Gaussian vector each, and what the oracle asks for. Memory of one state.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.solvers.sampling import alternating_sampler
    >>> def diffuse(key, state):
    ...     return state[0], state[0] + jax.random.normal(key, (2,))
    >>> def trial(key, state):  # the target N(0, I) with η = 1: y/2 + N(0, I/2)
    ...     x = state[1] / 2 + jax.random.normal(key, (2,)) / 2**0.5
    ...     return (x, state[1]), jnp.array(True)
    >>> oracle = alternating_sampler.Oracle(lambda x: (x, x), diffuse, trial, lambda state: state[0])
    >>> draw = alternating_sampler.run(jax.random.key(0), oracle, jnp.zeros(2), num_steps=20, num_trials=20)
    >>> draw.params.shape, int(draw.num_accepted)
    ((2,), 20)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, SupportsFloat

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from dpsco_jax import _checks
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import Scalar, as_floats

__all__ = [
    "Draw",
    "Oracle",
    "capped_trials",
    "mixing_steps",
    "mixing_variation",
    "run",
    "trials_variation",
]

_ULPS = 16.0
_MOST_TRIALS = 2**31 - 1
_LEAST = 2.0**-1000


class Oracle(NamedTuple):
    """Draws from exp(-V(x) - ‖x - y‖²/(2η)) by trials, exact given that one succeeds.

    The state holds x and y in whatever form suits, and what was prepared for y.

    Attributes:
        init: ``init(x) -> state``, of the starting point.
        diffuse: ``diffuse(key, state) -> state``: y ← x + √η·N(0, I), and all that is prepared once for a y.
        trial: ``trial(key, state) -> (state, accepted)``: the state with a proposal for x, which counts only
            if ``accepted``, and the bool whether it does. Conditioned on that, x has the law above. The y
            of the state and what was prepared for it stay.
        point: ``point(state) -> x``.
    """

    init: Callable[[Any], Any]
    diffuse: Callable[[Array, Any], Any]
    trial: Callable[[Array, Any], tuple[Any, Array]]
    point: Callable[[Any], Any]


class Draw(NamedTuple):
    """The end of a chain.

    Attributes:
        params: the last point that was accepted; the start if none was.
        num_accepted: steps that were made, T unless the loop was capped. Depends on the data.
        num_trials: trials that were made. Depends on the data.
        state: the last state of the oracle, with whatever it counts.
    """

    params: Any
    num_accepted: Int[Array, ""]
    num_trials: Int[Array, ""]
    state: Any


def run(
    key: jax.Array,
    oracle: Oracle,
    params: Any,
    num_steps: Any,
    num_trials: Any,
    constant_time: bool = False,
) -> Draw:
    """Runs the chain. Pure JAX.

    Args:
        key: a typed key. Trip i uses ``fold_in(key, i)``, a stream for the trial and one for the next y.
        oracle: of the target and η.
        params: the starting point.
        num_steps: T, at least 1; may be traced.
        num_trials: N, at least 1 and below 2³¹; may be traced.
        constant_time: static; whether all N trips are made, whatever happens.

    Raises:
        ValueError: an argument is of another kind or out of its range.
    """
    _checks.require_key(key)
    _checks.require_instance("oracle", oracle, Oracle)
    _checks.require_whole("num_steps", num_steps, 1)
    _checks.require_whole("num_trials", num_trials, 1)
    _checks.require_within("num_trials", num_trials, 1, _MOST_TRIALS)
    constant_time = _checks.require_flag("constant_time", constant_time)
    first, rest = jax.random.split(key)

    def pending(carry: tuple[Any, Array, Array]) -> Array:
        _, accepted, trips = carry
        return (accepted < num_steps) & (trips < num_trials)

    def diffused(words: Array, held: Any) -> Any:
        return oracle.diffuse(jax.random.wrap_key_data(words, impl=jax.random.key_impl(key)), held)

    def trip(i: Any, carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        state, accepted, trips = carry
        trial_key, next_key = jax.random.split(jax.random.fold_in(rest, i))
        proposed, success = oracle.trial(trial_key, state)
        counted = success & pending(carry)
        state = _choose(counted, proposed, state)
        going_on = counted & (accepted + 1 < num_steps)
        if constant_time:
            state = _choose(going_on, oracle.diffuse(next_key, state), state)
        else:
            # Under vmap a branch selects what it is given; words may be, a key would count as used twice.
            words = jax.random.key_data(next_key)
            state = jax.lax.cond(going_on, diffused, lambda _, held: held, words, state)
        return state, accepted + counted, trips + pending(carry)

    none = jnp.zeros((), jnp.int32)
    start = (oracle.diffuse(first, oracle.init(params)), none, none)
    if constant_time:
        end = jax.lax.fori_loop(0, jnp.asarray(num_trials, jnp.int32), trip, start)
    else:
        end = jax.lax.while_loop(pending, lambda carry: trip(carry[2], carry), start)
    state, accepted, trips = end
    return Draw(oracle.point(state), accepted, trips, state)


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
    _checks.require_whole("num_steps", num_steps, 1)
    _checks.require_positive("step_size", step_size)
    _checks.require_positive("convexity", convexity)
    _checks.require_nonnegative("start_distance", start_distance)
    xp, (steps, eta, m, start) = as_floats(num_steps, step_size, convexity, start_distance)
    lost = (steps - 1.0) * xp.log1p(eta * m)
    least, unit = xp.finfo(eta.dtype).tiny, xp.finfo(eta.dtype).eps
    first = xp.log(xp.maximum(start, least)) - xp.log(2.0 * xp.sqrt(eta))
    rounding = _ULPS * unit * (xp.abs(first) + lost + 1.0)
    bound = xp.exp(xp.minimum(first - lost + rounding, 0.0))
    return xp.minimum(xp.maximum(bound, least), 1.0)


def mixing_steps(
    variation: SupportsFloat,
    step_size: SupportsFloat,
    convexity: SupportsFloat,
    start_distance: SupportsFloat,
) -> int:
    """The least T for which ``mixing_variation`` is at most the given one.

    Args:
        variation: in (2^-1000, 1).
        step_size: η, above 0.
        convexity: m, above 0.
        start_distance: W, at least 0.

    Raises:
        ValueError: an argument is out of range.
        Infeasible: that are more steps than a loop can count, 2³¹.

    Example:
        >>> mixing_steps(1e-9, 0.01, 1.0, 3.0)
        2356
    """
    variation = _checks.require_real("variation", variation, _LEAST, 1.0)
    eta = _checks.require_real("step_size", step_size, 0.0)
    m = _checks.require_real("convexity", convexity, 0.0)
    start = _checks.require_real("start_distance", start_distance, 0.0, closed=True)
    log_first = math.log(max(start, 1e-300)) - math.log(2.0 * math.sqrt(eta))
    rate = math.log1p(eta * m)
    needed = (log_first - math.log(variation)) / rate if rate > 0 else math.inf
    if needed > _MOST_TRIALS:
        raise Infeasible(
            f"step_size and convexity must be such that all steps are fewer than 2^31, got {eta} and {m}"
        )
    steps = 1 + max(0, math.floor(needed) - 1)
    while mixing_variation(steps, eta, m, start) > variation:
        steps += 1
    return steps


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


def capped_trials(num_steps: int, acceptance: float, variation: SupportsFloat) -> int:
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

    Example:
        >>> capped_trials(1000, 0.5, 1e-9)
        2309
    """
    num_steps = _checks.require_integer("num_steps", num_steps, 1)
    variation = _checks.require_real("variation", variation, 0.0, 1.0)

    def enough(trials: int) -> bool:
        return trials_variation(num_steps, trials, acceptance) <= variation

    low, high = num_steps - 1, num_steps
    while not enough(high):
        low, high = high, 2 * high
        if high > _MOST_TRIALS:
            raise Infeasible(
                f"num_steps must be such that all trials are fewer than 2^31, got {num_steps}"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _choose(condition: Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
