"""The proximal sampler: a chain whose steps are exact, so that only their number decides how good a draw is.

What it computes: from a point x, T times: y ← x + √η·N(0, I), and x ← a draw from the density in proportion
to exp(-V(x) - ‖x - y‖²/(2η)). What draws it, by trials each of which may fail, is an ``Oracle``. All trials
of all steps are made in one flat loop of at most N trips, so that lanes under ``vmap`` do not wait for one
another in each step.

Source: T, Algorithm 13 (Lee, Shen and Tian 2021); the law of the loop is that of Theorem 3.5.2, with the
number of steps that ``chain_lengths.mixing_steps`` proves.

Formal guarantee: let V be m-strongly convex on a convex set and W ≥ √E‖x_0 - x‖² for x of the law π ∝ e^{-V}.
With exact draws the law of x_T is within total variation

    (1 + ηm)^{-(T-1)}·W/(2√η)

of π (docs/theory/proximal_sampler.md). If each trial succeeds with probability at least p, whatever came
before, fewer than T of N succeed with probability at most Pr[Binomial(N, p) < T]; the loop then returns the
last point that it has. Not covered: how many trials were made, and how long that took, which depends on the
data; ``constant_time=True`` makes all N trips, and both branches of each.

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

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from dpsco_jax import _checks, _keys, _released
from dpsco_jax.solvers.sampling.chain_lengths import MOST_TRIALS

__all__ = ["Draw", "Oracle", "run"]


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
    key = _keys.alone(key)
    _checks.require_instance("oracle", oracle, Oracle)
    _checks.require_whole("num_steps", num_steps, 1)
    _checks.require_whole("num_trials", num_trials, 1)
    _checks.require_within("num_trials", num_trials, 1, MOST_TRIALS)
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
    state = _released.without_derivatives(state)
    return Draw(oracle.point(state), accepted, trips, state)


def _choose(condition: Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
