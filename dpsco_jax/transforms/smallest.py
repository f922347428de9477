"""Smallest: the point at which the update was the shortest, such as a gradient.

What it computes: of the points w_0, w_1, ..., w_{T-1}, at which the updates u_0, ..., u_{T-1} were made, the
first whose ‖u_t‖ is least. Updates are left as they are.

Source: thesis, section 6.3: if all estimates of gradients are off by at most e, the gradient at this point is
at most the least of all plus 2e.

Formal guarantee: none of privacy; post-processing, of updates that have been released.

Cost: one copy of the parameters in at least float32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpsco_jax.geometry.norms import global_norm
from dpsco_jax.transforms import _states

__all__ = ["SmallestState", "smallest", "smallest_eval_params"]


class SmallestState(NamedTuple):
    """State of ``smallest``.

    Attributes:
        point: where the shortest update was made, in at least float32; the start before the first.
        norm: its length; ``inf`` before the first.
    """

    point: Any
    norm: jax.Array


def smallest() -> optax.GradientTransformation:
    """Keeps the point of the shortest update; one that is not finite is none. ``update`` needs ``params``."""

    def init(params: Any) -> SmallestState:
        return SmallestState(_states.wide_copy(params), jnp.full([], jnp.inf, float))

    def update(updates: Any, state: SmallestState, params: Any = None) -> tuple[Any, SmallestState]:
        if params is None:
            raise ValueError("params must be given to the update of smallest, got None")
        norm = global_norm(updates).astype(state.norm.dtype)
        better = norm < state.norm
        point = jax.tree.map(
            lambda new, old: jnp.where(better, new.astype(old.dtype), old), params, state.point
        )
        return updates, SmallestState(point, jnp.where(better, norm, state.norm))

    return optax.GradientTransformation(init, update)


def smallest_eval_params(state: Any, params: Any) -> Any:
    """The point of the shortest update, in the dtypes of the parameters.

    Args:
        state: an optimizer state that holds the state of ``smallest``, at any depth of nesting.
        params: the parameters that the caller holds.
    """
    return _states.point_in(state, SmallestState, lambda held: held.point, params)
