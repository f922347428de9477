"""Computations that somebody has divided by hand: what differs between the parts is refused.

Inside of a part of ``jax.shard_map`` or ``jax.pmap`` a key draws the same noise on all devices, a clip sees a
piece of a row, and a sample is one of a part of the users, while a ledger goes on as if all were in one
place. So whatever releases, clips or sums users refuses values that vary over an axis of the mesh. Values
that are the same on all devices may be released there. Which values vary JAX knows with ``check_vma=True``,
its default, inside of one axis; otherwise, and under ``pmap``, every traced value is refused. Axes of
``jax.vmap`` have no devices, and are not looked at. The parts of this library's own loops are made by
``shard_map`` of this file.
"""

import contextvars
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType

# The axes over which this library itself has divided what is traced at present.
_own_axes: contextvars.ContextVar[frozenset[Any]] = contextvars.ContextVar("own_axes")


def require_same_everywhere(name: str, tree: Any) -> None:
    """``ValueError`` if a value of the tree differs between devices, or may, in ``shard_map`` or ``pmap``.

    Args:
        name: of the argument.
        tree: of anything; only what is traced can differ.
    """
    axes = _divided_by_hand()
    if not axes:
        return
    traced = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.core.Tracer)]
    if not traced:
        return
    varying = axes & frozenset().union(*(_varies_over(jax.typeof(leaf)) for leaf in traced))
    # The number of a device varies if anything does: asked beside the program, which is not to hold it. With
    # several axes the values may have come from a ``shard_map`` around this one, and nothing here says
    # whether that one kept track of its axis.
    number = jax.eval_shape(lambda: lax.axis_index(min(axes, key=str)))
    tracked = len(axes) == 1 and axes <= _varies_over(number)
    if varying or not tracked:
        over = f"{'' if varying else 'may '}vary over the mesh axes {sorted(map(str, varying or axes))}"
        raise ValueError(
            f"{name} must be the same on all devices inside of jax.shard_map and jax.pmap, got values that "
            f"{over}: all parts would have the same noise, and a clip would see a piece of a row. Put arrays "
            "on a mesh with jax.device_put, and let jax.jit divide the work (docs/scaling.md)"
        )


def shard_map(function: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any) -> Any:
    """``jax.shard_map`` of a function that knows that it sees a part, and adds up what has to be."""

    def own(*args: Any) -> Any:
        token = _own_axes.set(frozenset(mesh.axis_names) | _own_axes.get(frozenset()))
        try:
            return function(*args)
        finally:
            _own_axes.reset(token)

    return jax.shard_map(own, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _divided_by_hand() -> frozenset[Any]:
    """The axes of the mesh whose parts are traced one by one, but for those of this library's own loops."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    own = _own_axes.get(frozenset())
    return frozenset(name for name, kind in kinds if kind == AxisType.Manual) - own


def _varies_over(kind: Any) -> frozenset[Any]:
    """The axes over which a type says that values vary, or that they are sums yet to be made."""
    # Of later versions of JAX; before, the type had the axes as ``vma``.
    axes = getattr(kind, "manual_axis_type", None)
    if axes is None:
        return getattr(kind, "vma", None) or frozenset()
    return axes.varying | axes.unreduced
