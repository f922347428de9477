"""Average: running averages of the iterates, uniform or weighted towards the last.

What it computes: with η ≥ 0, over the iterates w_1, w_2, ... (the parameters after each update),

    avg_t = (1 - (η + 1)/(t + η)) avg_{t-1} + (η + 1)/(t + η) w_t,

so that w_s has weight proportional to the rising power s(s + 1)...(s + η - 1): the uniform average
for η = 0, weights proportional to s for η = 1, nearer to the last iterate the larger η is. Other weights are
given by shares s_t in place of (η + 1)/(t + η).

Source: Shamir and Zhang 2013, Stochastic gradient descent for non-smooth optimization, section 4
(polynomial-decay averaging).

Formal guarantee: none of privacy; post-processing.

Cost: one copy of the parameters in at least float32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpsco_jax._checks import require, require_nonnegative, require_probability
from dpsco_jax.transforms import _states


class AverageState(NamedTuple):
    """State of ``average``.

    Attributes:
        average: the average of the iterates so far, in at least float32; the start before the first.
        steps: how many iterates are in it.
    """

    average: Any
    steps: jax.Array


def average_eval_params(state: Any, params: Any) -> Any:
    """The averaged iterate, in the dtypes of the parameters.

    Args:
        state: an optimizer state that holds the state of ``average``, at any depth of nesting: one for all
            parameters, or under ``optax.masked`` and ``optax.partition`` at most one for each.
        params: the parameters that the caller holds; where no ``average`` saw them they are returned.

    Raises:
        ValueError: the state holds no ``AverageState``, or two of them average one parameter.
    """
    return _states.point_in(state, AverageState, lambda found: found.average, params)


def average(
    decay_power: jax.typing.ArrayLike = 0.0, shares: jax.typing.ArrayLike | None = None
) -> optax.GradientTransformationExtraArgs:
    """Passes updates through and averages the iterates they lead to; the last in a chain.

    Args:
        decay_power: η ≥ 0 above: 0 for the uniform average; may be traced.
        shares: in place of it, for each step the share in [0, 1] that its iterate takes of the average of all
            iterates so far, ``[steps]``: weights w_1, w_2, ... are shares w_t/(w_1 + ... + w_t). Later
            iterates than there are entries take the last one; may be traced.
    """
    require_nonnegative("decay_power", decay_power)
    if shares is not None:
        require_probability("shares", shares)
        require(np.ndim(shares) == 1, "shares", shares, "one number for each step")
        shares = jnp.asarray(shares)

    def init(params: Any) -> AverageState:
        return AverageState(_states.wide_copy(params), jnp.zeros([], jnp.int32))

    def update(
        updates: Any, state: AverageState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, AverageState]:
        del extra_args
        if params is None:
            raise ValueError("params must be given to the update of average, got None")
        steps = optax.safe_increment(state.steps)
        if shares is None:
            weight = (decay_power + 1) / (jnp.asarray(steps, jnp.result_type(float)) + decay_power)
        else:
            weight = shares[state.steps]
        iterate = optax.apply_updates(params, updates)
        averaged = jax.tree.map(
            lambda a, w: (a + weight * (w - a)).astype(a.dtype), state.average, iterate
        )
        return updates, AverageState(averaged, steps)

    return optax.GradientTransformationExtraArgs(init, update)
