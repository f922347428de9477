"""Restart: begins an accelerated method afresh, every so many steps, from the point it would report.

What it computes: the inner transformation, whose state is made anew from the point to report after every
``num_steps`` updates; the parameters jump to that point. The state of the whole chain around it, with its
keys and ledgers, goes on.

Source: Ghadimi and Lan 2013, Optimal stochastic approximation algorithms for strongly convex stochastic
composite optimization II (multi-stage AC-SA); thesis, Remark 10.8.5.

Formal guarantee: none of privacy; post-processing of the updates that it is given. With ``ac_sa`` inside,
on an L-smooth, μ-strongly convex objective and gradients of variance V, a stage of N steps takes the gap Δ
to at most 4LΔ/(μN(N+1)) + 2V/(μ(N+1)), since ‖w - w*‖² ≤ 2Δ/μ: what is left of the start falls
geometrically with the stages, what is left of the noise does not grow.

Cost: a copy of the parameters for the fresh state.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import privacy
from dpsco_jax.geometry._checks import require


class RestartState(NamedTuple):
    """State of ``restart_every``.

    Attributes:
        inner: the state of the inner transformation.
        steps: updates since the last start, int32.
    """

    inner: Any
    steps: jax.Array


def restart_every(
    inner: optax.GradientTransformation,
    num_steps: int,
    eval_params: Callable[[Any, Any], Any],
) -> optax.GradientTransformationExtraArgs:
    """Starts ``inner`` again after every ``num_steps`` updates.

    Args:
        inner: a method without randomness or price of its own, such as ``ac_sa``; what it follows in a
            chain is not restarted.
        num_steps: N ≥ 1, static.
        eval_params: ``eval_params(state, params)`` is the point to start again from, such as
            ``ac_sa_eval_params``. After a restart it must give that point back.

    Raises:
        ValueError: ``num_steps`` is less than 1; or, at ``init``, ``inner`` holds a ledger or a key, which
            a restart would forget.
    """
    require(num_steps >= 1, "num_steps", num_steps, "at least 1")
    inner = optax.with_extra_args_support(inner)

    def init(params: Any) -> RestartState:
        state = inner.init(params)
        leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, privacy.Ledger))
        spends = any(map(_spends, leaves))
        require(not spends, "inner", "a ledger or a key in its state", "without both")
        return RestartState(state, jnp.zeros([], jnp.int32))

    def update(
        updates: Any, state: RestartState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, RestartState]:
        if params is None:
            raise ValueError("params must be given to the update of restart_every, got None")
        moves, going_on = inner.update(updates, state.inner, params, **extra_args)
        steps = state.steps + 1
        due = steps >= num_steps
        point = eval_params(going_on, params)
        fresh = inner.init(point)
        jump = jax.tree.map(lambda q, p: (q - p).astype(jnp.result_type(p)), point, params)

        def choose(first: Any, second: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(due, a, b), first, second)

        new_state = RestartState(choose(fresh, going_on), jnp.where(due, 0, steps))
        return choose(jump, moves), new_state

    return optax.GradientTransformationExtraArgs(init, update)


def _spends(leaf: Any) -> bool:
    if isinstance(leaf, privacy.Ledger):
        return True
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
