"""Restart: begins an accelerated method afresh, stage by stage, from the point it would report.

What it computes: the inner transformation, whose state is made anew from the point to report at the end of
every stage; the parameters jump to that point. Stages may differ in length and in the numbers of the
transformation, all in one compiled program. The state of the whole chain around it, with its keys and
ledgers, goes on.

Source: Ghadimi and Lan 2013, Optimal stochastic approximation algorithms for strongly convex stochastic
composite optimization II (multi-stage AC-SA); thesis, Remark 10.8.5.

Formal guarantee: none of privacy; post-processing of the updates that it is given. With ``ac_sa`` inside,
on an L-smooth, μ-strongly convex objective and gradients of variance V, a stage of N steps takes the gap Δ
to at most 4LΔ/(μN(N+1)) + 2V/(μ(N+1)), since ‖w - w*‖² ≤ 2Δ/μ: what is left of the start falls
geometrically with the stages, what is left of the noise does not grow.

With lengths and step parameters that follow the noise the gap itself halves: ``solvers.convex.ac_sa``.

Cost: a copy of the parameters for the fresh state.
"""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpsco_jax._checks import require, require_callable, require_count, require_integers
from dpsco_jax.transforms import _states


class RestartState(NamedTuple):
    """State of ``restart_every`` and ``restart_stages``.

    Attributes:
        inner: the state of the inner transformation.
        steps: updates since the last start, int32.
        stage: the number of the stage, int32; stays at that of the last one listed.
    """

    inner: Any
    steps: jax.Array
    stage: jax.Array


def restart_every(
    inner: optax.GradientTransformation,
    num_steps: int | jax.Array,
    eval_params: Callable[[Any, Any], Any],
) -> optax.GradientTransformationExtraArgs:
    """Starts ``inner`` again after every ``num_steps`` updates.

    Args:
        inner: a method without randomness or price of its own, such as ``ac_sa``; what it follows in a
            chain is not restarted.
        num_steps: N ≥ 1; an array of one integer may be traced.
        eval_params: ``eval_params(state, params)`` is the point to start again from, such as
            ``ac_sa_eval_params``. After a restart it must give that point back.

    Raises:
        ValueError: at ``init``, if ``inner`` holds a ledger or a key, which a restart would forget.
    """
    _states.require_transformation("inner", inner)
    require_callable("eval_params", eval_params)
    if isinstance(num_steps, jax.Array):
        require_integers("num_steps", num_steps)
        require(num_steps.ndim == 0, "num_steps", num_steps.shape, "one number")
        return _restarted(lambda stage: inner, num_steps[None], eval_params)
    num_steps = require_count("num_steps", num_steps)
    return restart_stages(lambda stage: inner, (num_steps,), eval_params)


def restart_stages(
    of_stage: Callable[[Any], optax.GradientTransformation],
    lengths: Sequence[int],
    eval_params: Callable[[Any, Any], Any],
) -> optax.GradientTransformationExtraArgs:
    """A method in stages of their own lengths and numbers, each started where the one before has ended.

    Args:
        of_stage: ``of_stage(stage)`` is the method of a stage; ``stage`` is traced, and the states of all
            stages must have the same structure: ``lambda k: ac_sa(smoothness[k])``. Without randomness or
            price of its own.
        lengths: updates of each stage, static, each at least 1. The last stage is repeated if updates go on.
        eval_params: ``eval_params(state, params)`` is the point to start the next stage from, such as
            ``ac_sa_eval_params``. After a restart it must give that point back.

    Raises:
        ValueError: at ``init``, if a stage holds a ledger or a key, which a restart would forget.
    """
    require_callable("of_stage", of_stage)
    require_callable("eval_params", eval_params)
    listed = isinstance(lengths, Sequence | np.ndarray) and len(lengths) > 0
    good = listed and all(
        isinstance(length, Integral) and not isinstance(length, bool) and 1 <= length < 2**31
        for length in lengths
    )
    wanted = "a sequence of integers: at least one number, each in [1, 2^31)"
    require(good, "lengths", lengths, wanted)
    return _restarted(of_stage, np.asarray(lengths, np.int32), eval_params)


def _restarted(
    of_stage: Callable[[Any], optax.GradientTransformation],
    ends: np.ndarray | jax.Array,
    eval_params: Callable[[Any, Any], Any],
) -> optax.GradientTransformationExtraArgs:
    def method(stage: jax.Array) -> optax.GradientTransformationExtraArgs:
        return optax.with_extra_args_support(of_stage(stage))

    def init(params: Any) -> RestartState:
        zero = jnp.zeros([], jnp.int32)
        state = method(zero).init(params)
        _states.require_free("inner", state)
        # Two copies: the buffers of a state may be donated, and then none may be shared.
        return RestartState(state, zero, jnp.zeros([], jnp.int32))

    def update(
        updates: Any, state: RestartState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, RestartState]:
        if params is None:
            raise ValueError("params must be given to the update of a restarted method, got None")
        moves, going_on = method(state.stage).update(updates, state.inner, params, **extra_args)
        steps = state.steps + 1
        due = steps >= jnp.asarray(ends)[state.stage]
        following = jnp.minimum(state.stage + 1, len(ends) - 1)
        point = eval_params(going_on, params)
        fresh = method(following).init(point)
        jump = jax.tree.map(lambda q, p: (q - p).astype(jnp.result_type(p)), point, params)

        def choose(first: Any, second: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(due, a, b), first, second)

        stage = jnp.where(due, following, state.stage)
        new_state = RestartState(choose(fresh, going_on), jnp.where(due, 0, steps), stage)
        return choose(jump, moves), new_state

    return optax.GradientTransformationExtraArgs(init, update)
