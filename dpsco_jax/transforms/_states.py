"""Helpers on optimizer states: finding one in a nest, reading points from it, copying parameters into one."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import privacy
from dpsco_jax._checks import require, require_number

State = TypeVar("State")


def found(opt_state: Any, kind: type[State]) -> list[State]:
    """All states of a kind in any nesting of optimizer states."""
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in nodes if isinstance(node, kind)]


def point_in(
    opt_state: Any, kind: type[State], point_of: Callable[[State], Any], params: Any
) -> Any:
    """The parameters, replaced by the point of a state of a kind where that state has one.

    ``optax.masked`` and ``optax.partition`` show a transformation some of the parameters only; the others
    are masked nodes in the trees of its state. Those keep the value that the caller holds.

    Args:
        opt_state: any nesting of optimizer states.
        kind: the class of the state.
        point_of: the point that a state of this kind holds, a tree like the parameters it was shown.
        params: the parameters that the caller holds, whose dtypes the result has.

    Raises:
        ValueError: there is no such state, or two of them hold the same parameter.
    """
    states = found(opt_state, kind)
    require(bool(states), "state", f"none of {kind.__name__}", f"one that holds a {kind.__name__}")
    masked = jax.tree.map(lambda _: optax.MaskedNode(), params)
    for state in states:
        masked = jax.tree.map(
            lambda kept, new: kept if _is_masked(new) else _only(kind, kept, new),
            masked,
            _like(params, point_of(state)),
            is_leaf=_is_masked,
        )

    def placed(new: Any, param: Any) -> Any:
        if _is_masked(new):
            return param
        require_number("params", param, "a tree of real numbers")
        return new.astype(jnp.result_type(param))

    return jax.tree.map(placed, masked, params, is_leaf=_is_masked)


def require_free(name: str, opt_state: Any) -> None:
    """Raise ``ValueError`` if the state holds a ledger or a key, which whoever skips updates would forget."""
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, privacy.Ledger))
    spends = any(map(_spends, leaves))
    require(not spends, name, "a ledger or a key in its state", "without both")


def require_transformation(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless the value has what makes a gradient transformation."""
    made = callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))
    require(made, name, value, "a gradient transformation")


def wide_copy(params: Any) -> Any:
    """A copy in at least float32 that shares no buffer with the original (for donation)."""
    return jax.tree.map(
        lambda p: jnp.array(p, jnp.promote_types(jnp.result_type(p), jnp.float32), copy=True),
        params,
    )


def _only(kind: type, kept: Any, new: Any) -> Any:
    once = f"one with a single {kind.__name__} for each parameter"
    require(_is_masked(kept), "state", f"several of {kind.__name__} for one parameter", once)
    return new


def _like(params: Any, point: Any) -> Any:
    """The point with a masked node for every parameter that one masked node of it stands for."""
    return jax.tree.map(
        lambda new, part: jax.tree.map(lambda _: new, part) if _is_masked(new) else new,
        point,
        params,
        is_leaf=_is_masked,
    )


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _spends(leaf: Any) -> bool:
    if isinstance(leaf, privacy.Ledger):
        return True
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
