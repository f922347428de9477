"""Halt when: stops a chain for good once a condition on its state or its update holds.

What it computes: the inner chain, until an update on which the condition holds. That update and all
later ones are zero, and the inner state stays what it was before: the last good one. Only two
things go on: ledgers are charged, and keys advance, since no key may be used twice.

Source: the halting rule of AboveThreshold-guarded algorithms (Algorithms 28 and 32 of the thesis).

Formal guarantee: the loss stated by the ledger does not depend on when, or whether, the chain halted. The
number of steps until the halt is a function of the data; a loss that stopped growing there would be a random
variable computed from the data, while (ε, δ) bounds what is fixed in advance: a run that halts early states
the price of the steps that it was given. The condition itself must be a function of released values (or its
own price be charged): when a chain stops is visible to everybody.

Cost: a halted chain still computes its steps, under ``jit`` and ``vmap`` nothing is skipped.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import privacy
from dpsco_jax._checks import require_callable
from dpsco_jax.transforms import _states


class HaltState(NamedTuple):
    """State of ``halt_when``.

    Attributes:
        halted: whether the chain has stopped, bool.
        steps: how many updates have been applied, int32.
        inner: the state of the inner chain after the last applied update, ledgers and keys excepted.
    """

    halted: jax.Array
    steps: jax.Array
    inner: Any


def halt_when(
    inner: optax.GradientTransformation, condition: Callable[[Any, Any], jax.typing.ArrayLike]
) -> optax.GradientTransformationExtraArgs:
    """Stops applying the updates of ``inner`` once a condition holds.

    Args:
        inner: any transformation or chain.
        condition: ``condition(inner_state, updates)`` of the state and the updates that ``inner``
            has just returned; a scalar bool, True to halt. The updates on which it holds are not
            applied. It must be a function of released values, or its own price be charged.
    """
    _states.require_transformation("inner", inner)
    require_callable("condition", condition)
    inner = optax.with_extra_args_support(inner)

    def init(params: Any) -> HaltState:
        return HaltState(jnp.zeros([], bool), jnp.zeros([], jnp.int32), inner.init(params))

    def update(
        updates: Any, state: HaltState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, HaltState]:
        updates, new_inner = inner.update(updates, state.inner, params, **extra_args)
        halted = state.halted | jnp.asarray(condition(new_inner, updates), bool)
        # A selection, not a product: zero times a NaN would not stop anything.
        updates = jax.tree.map(lambda u: jnp.where(halted, jnp.zeros_like(u), u), updates)
        frozen = jax.tree.map(
            lambda old, new: new if _goes_on(old) else jnp.where(halted, old, new),
            state.inner,
            new_inner,
            is_leaf=_is_ledger,
        )
        steps = state.steps + jnp.where(halted, 0, 1)
        return updates, HaltState(halted, steps.astype(jnp.int32), frozen)

    return optax.GradientTransformationExtraArgs(init, update)


def _is_ledger(node: Any) -> bool:
    return isinstance(node, privacy.Ledger)


def _goes_on(node: Any) -> bool:
    return _is_ledger(node) or jnp.issubdtype(jnp.result_type(node), jax.dtypes.prng_key)
