"""Helpers on optimizer states: finding one in a nest, and copying parameters into one."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

State = TypeVar("State")


def find(opt_state: Any, kind: type[State]) -> State:
    """The one state of a kind in any nesting of optimizer states.

    Raises:
        ValueError: there is none, or more than one.
    """
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, kind))
    found = [node for node in nodes if isinstance(node, kind)]
    if len(found) != 1:
        raise ValueError(f"state must hold exactly one {kind.__name__}, found {len(found)}")
    return found[0]


def wide_copy(params: Any) -> Any:
    """A copy in at least float32 that shares no buffer with the original (for donation)."""
    return jax.tree.map(
        lambda p: jnp.array(p, jnp.promote_types(jnp.result_type(p), jnp.float32), copy=True),
        params,
    )
