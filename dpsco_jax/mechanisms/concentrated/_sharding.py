"""Users spread over devices: which mesh axis they lie on, and work that is shared out among devices.

What it does: an array whose first axis is sharded over an explicit mesh axis says so in its type.
``shared_out`` then gives every device all rows and its number, and adds up what they return;
``replicated`` gives every device all rows. Both leave other arrays as they are: under ``jit`` with
automatic sharding the compiler places them.

Cost: one all-gather of the rows.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec


def shared_out(work: Callable[..., Any], rows: Any, *others: Any) -> Any:
    """The sum over devices of ``work(device, devices, rows, *others)``, all rows given to each.

    Args:
        work: returns a pytree of arrays; jit-safe.
        rows: pytree of arrays whose first axis may be sharded.
        others: further arguments, pytrees of arrays, replicated.
    """
    found = _users_sharding(rows)
    if found is None:
        return work(0, 1, rows, *others)
    mesh, axis = found

    def on_device(rows: Any, *others: Any) -> Any:
        rows = lax.all_gather(rows, axis, tiled=True)
        return lax.psum(work(lax.axis_index(axis), lax.axis_size(axis), rows, *others), axis)

    def placed(tree: Any, spec: PartitionSpec) -> Any:
        return jax.tree.map(lambda x: jax.sharding.reshard(x, NamedSharding(mesh, spec)), tree)

    split, whole = PartitionSpec(axis), PartitionSpec()
    return jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(split, *(whole for _ in others)),
        out_specs=whole,
        check_vma=False,
    )(placed(rows, split), *(placed(other, whole) for other in others))


def replicated(rows: Any) -> Any:
    """The rows, all of them on every device."""
    found = _users_sharding(rows)
    if found is None:
        return rows
    sharding = NamedSharding(found[0], PartitionSpec())
    return jax.tree.map(lambda x: jax.sharding.reshard(x, sharding), rows)


def _users_sharding(rows: Any) -> tuple[Any, Any] | None:
    """The mesh and the axis of it over which the first axis of some leaf is explicitly sharded."""
    for leaf in jax.tree.leaves(rows):
        sharding = jax.typeof(leaf).sharding
        if not sharding.mesh.empty and len(sharding.spec) and sharding.spec[0] is not None:
            return sharding.mesh, sharding.spec[0]
    return None
