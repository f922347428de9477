"""Users spread over devices: on which mesh axis they lie, and loops that stay on each device.

``summed`` and ``mapped`` are sums and maps in which every device does its own users; ``automatic`` is for
whole functions.

- An array on a mesh with explicit axes, which ``jax.make_mesh`` makes by default, says in its type how its
  users are spread.
- On a mesh with automatic axes it says only which mesh it is on. Users are taken to lie on the axis called
  ``"users"``, or on the only one. With several axes and none of that name the compiler is left to it.
- On no mesh nothing is changed. Inside of a ``shard_map`` that somebody else has made, rows that are parts
  are refused (``dpsco_jax._parts``).

Every user is counted on one device, and no row leaves it: there is one exchange of sums of the size of a
result (``dpsco_jax._device_sums``). Who is sampled is drawn as on one device, from the same key, and each
device takes those whom it holds; docs/scaling.md has the laws.
"""

import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpsco_jax import _checks, _device_sums, _parts

USERS = "users"

Function = TypeVar("Function", bound=Callable[..., Any])

# Of users whose explicit mesh is taken as an automatic one inside of ``automatic``.
_known_axis: contextvars.ContextVar[Any] = contextvars.ContextVar("users_axis", default=None)


class Spread(NamedTuple):
    """How users are spread.

    Attributes:
        mesh: the mesh, an abstract one where the devices are not known yet.
        axis: the name of its axis on which users lie, or a tuple of names.
        devices: how many parts there are.
        each: users in each.
    """

    mesh: Any
    axis: Any
    devices: int
    each: int


def found(rows: Any) -> Spread | None:
    """How the users of these rows are spread; ``None`` where they are in one place or it is not known.

    Args:
        rows: a pytree of arrays with a leading axis of users.

    Raises:
        ValueError: so many devices have so few users that sums over them have no bound; or somebody has
            divided the rows by hand.
    """
    _parts.require_same_everywhere("rows", rows)
    for leaf in jax.tree.leaves(rows):
        if not isinstance(leaf, jax.Array) or not leaf.ndim:
            continue
        sharding = jax.typeof(leaf).sharding
        axis = _users_axis(sharding)
        if axis is None:
            continue
        devices = 1
        for name in axis if isinstance(axis, tuple) else (axis,):
            devices *= sharding.mesh.shape[name]
        if len(leaf) == 0 or len(leaf) % devices:
            continue
        each = len(leaf) // devices
        _device_sums.require_devices(devices, each)
        return Spread(sharding.mesh, axis, devices, each)
    return None


def summed(spread: Spread, work: Callable[..., Any], rows: Any, *others: Any) -> Any:
    """The sum over devices of ``work(own rows, number of the first of them, *others)``, on every device.

    Args:
        spread: of ``found``.
        work: returns a pytree of ``_compensated.Split`` and of arrays; may close over arrays of no mesh, or
            of one with automatic axes.
        rows: a pytree of arrays with the leading axis of users.
        others: pytrees of arrays, whole on every device; on whatever mesh.
    """

    def on_device(own: Any, *others: Any) -> Any:
        return _device_sums.total(work(own, _first(spread), *others), spread.axis)

    return _on_devices(spread, on_device, PartitionSpec(), rows, *others)


def mapped(spread: Spread, work: Callable[[Any, jax.Array], Any], rows: Any) -> Any:
    """What ``work(own rows, number of the first of them)`` has for each user, spread as the users are."""

    def on_device(own: Any) -> Any:
        return work(own, _first(spread))

    return _on_devices(spread, on_device, PartitionSpec(spread.axis), rows)


def placed(spread: Spread, tree: Any, spec: PartitionSpec) -> Any:
    """The arrays, laid out as the specification says, where their types have to say so."""
    if not _explicit(spread.mesh):
        return tree
    sharding = NamedSharding(spread.mesh, spec)
    return jax.tree.map(lambda x: jax.sharding.reshard(x, sharding), tree)


def here(tree: Any) -> Any:
    """Arrays over which a function inside of ``summed``, ``mapped`` or ``automatic`` closes, made its own.

    An array from outside has the type of its mesh there, so that ``jnp.zeros_like`` of it, for one, is
    refused. Anywhere else the tree is returned as it is.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or _explicit(mesh):
        return tree
    whole = NamedSharding(mesh, PartitionSpec())

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        found = jax.typeof(leaf).sharding.mesh
        outside = not found.empty and found.axis_types != mesh.axis_types
        return jax.sharding.reshard(leaf, whole) if outside else leaf

    return jax.tree.map(own, tree)


def solver(function: Function) -> Function:
    """``automatic`` for ``solve(key, plan, objective, data, ...)``."""
    return automatic(function, "data")


def automatic(
    function: Function, data: str, out: Callable[[Any, Any], Any] = lambda rows, whole: whole
) -> Function:
    """The function, made to take arguments that lie on a mesh with explicit axes: automatic ones inside.

    Without such arguments it is called as it is. What has a mask beside its users (``UserData``) has one of
    true and false inside, whatever its bytes (``_checks.of_true_and_false``).

    Args:
        function: of arrays, with closures over none that lie on a mesh with explicit axes.
        data: the name of the argument that has the leading axis of users.
        out: ``out(rows, whole)`` says of the parts of a result, by a tree that is a prefix of it, whether
            they are spread as users are, or whole on every device, as all are if it is left out.
    """
    names = list(inspect.signature(function).parameters)
    place = names.index(data)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            _parts.require_same_everywhere(name, value)
        if place < len(args):
            args = (*args[:place], _of_true_and_false(args[place]), *args[place + 1 :])
        elif data in kwargs:
            kwargs = {**kwargs, data: _of_true_and_false(kwargs[data])}
        mesh = next((m for m in map(_mesh_of, jax.tree.leaves((args, kwargs))) if m), None)
        if mesh is None:
            return function(*args, **kwargs)
        spread = found(args[place] if place < len(args) else kwargs.get(data))
        leaves, structure = jax.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

        def of_arrays(*arrays: jax.Array) -> Any:
            given = list(leaves)
            for i, array in zip(places, arrays, strict=True):
                given[i] = array
            new_args, new_kwargs = jax.tree.unflatten(structure, given)
            token = _known_axis.set(None if spread is None else spread.axis)
            try:
                result = function(*new_args, **new_kwargs)
            finally:
                _known_axis.reset(token)
            return result

        axes = tuple(
            n
            for n, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
            if kind == AxisType.Explicit
        )
        whole = NamedSharding(mesh, PartitionSpec())
        rows = whole if spread is None else NamedSharding(mesh, PartitionSpec(spread.axis))
        inside = jax.sharding.auto_axes(of_arrays, axes=axes, out_sharding=out(rows, whole))
        arrays = [leaves[i] for i in places]
        with _devices_known(arrays):
            return inside(*arrays)

    return cast(Function, wrapped)


def transformation(update: Function) -> Function:
    """``automatic`` for the ``update`` of a transformation that takes users, ``[users, ...]``, or their sum.

    What it returns lies on a mesh with explicit axes as the parameters and the state that it got do, where
    these have its shapes; else it is whole on every device. There it is traced twice, for the shapes.
    """

    @functools.wraps(update)
    def wrapped(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> Any:
        def out(rows: Any, whole: Any) -> Any:
            del rows
            run = automatic(update, "updates")
            shapes = jax.eval_shape(lambda: run(updates, state, params, **extra_args))
            pairs = zip(shapes, (params, state), strict=True)
            return tuple(_cut_alike(tree, others, whole) for tree, others in pairs)

        return automatic(update, "updates", out)(updates, state, params, **extra_args)

    return cast(Function, wrapped)


def _devices_known(arrays: list[Any]) -> contextlib.AbstractContextManager[Any]:
    """Outside of ``jit``, where arrays say on which devices they are, a context of their mesh."""
    traced = [jnp.zeros([]), *arrays]
    if any(isinstance(array, jax.core.Tracer) for array in traced):
        return contextlib.nullcontext()
    on_mesh: Any = next(array for array in arrays if _mesh_of(array) is not None)
    return jax.set_mesh(on_mesh.sharding.mesh)


def _cut_alike(tree: Any, others: Any, whole: Any) -> Any:
    """How the leaves of a tree are to be laid out: as those of the other, where they are of one shape."""
    found: Any = jax.tree.structure(tree)
    if found != jax.tree.structure(others):
        return jax.tree.map(lambda leaf: whole, tree)

    def like(leaf: Any, other: Any) -> Any:
        known = _mesh_of(other) is not None and other.shape == leaf.shape
        return jax.typeof(other).sharding if known else whole

    return jax.tree.map(like, tree, others)


def _of_true_and_false(data: Any) -> Any:
    mask = getattr(data, "mask", None)
    if getattr(mask, "dtype", None) != np.bool_ or not hasattr(data, "_replace"):
        return data
    return data._replace(mask=_checks.of_true_and_false(mask))


def _on_devices(spread: Spread, on_device: Any, out: PartitionSpec, rows: Any, *others: Any) -> Any:
    split, whole = PartitionSpec(spread.axis), PartitionSpec()
    run = _parts.shard_map(on_device, spread.mesh, (split, *(whole for _ in others)), out)
    return run(placed(spread, rows, split), *(placed(spread, other, whole) for other in others))


def _first(spread: Spread) -> jax.Array:
    return lax.axis_index(spread.axis) * spread.each


def _users_axis(sharding: Any) -> Any:
    mesh = sharding.mesh
    if mesh.empty or AxisType.Manual in mesh.axis_types:
        return None
    if _explicit(mesh):
        return sharding.spec[0] if len(sharding.spec) else None
    known = _known_axis.get()
    if known is not None:
        return known
    if USERS in mesh.axis_names:
        return USERS
    return mesh.axis_names[0] if len(mesh.axis_names) == 1 else None


def _explicit(mesh: Any) -> bool:
    return AxisType.Explicit in mesh.axis_types


def _mesh_of(leaf: Any) -> Any:
    """The mesh with explicit axes on which an array lies, if any."""
    if not isinstance(leaf, jax.Array):
        return None
    mesh = jax.typeof(leaf).sharding.mesh
    return mesh if not mesh.empty and _explicit(mesh) else None
