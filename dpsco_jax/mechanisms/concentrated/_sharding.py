"""Work on all pairs of users that is shared out among devices.

What it does: ``shared_out`` gives every device all rows and its number, and adds up what they return, on
meshes as ``dpsco_jax._spread`` finds them. Rows on no mesh are left as they are.

Cost: one all-gather of the rows, and one all-reduce of the results.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec

from dpsco_jax import _spread


def shared_out(work: Callable[..., Any], rows: Any, *others: Any) -> Any:
    """The sum over devices of ``work(device, devices, rows, *others)``, all rows given to each.

    Args:
        work: returns a pytree of arrays; jit-safe.
        rows: pytree of arrays whose first axis may be sharded.
        others: further arguments, pytrees of arrays, replicated.
    """
    found = _spread.found(rows)
    if found is None:
        return work(0, 1, rows, *others)
    mesh, axis = found.mesh, found.axis

    def on_device(rows: Any, *others: Any) -> Any:
        rows = lax.all_gather(rows, axis, tiled=True)
        return lax.psum(work(lax.axis_index(axis), lax.axis_size(axis), rows, *others), axis)

    split, whole = PartitionSpec(axis), PartitionSpec()
    return jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(split, *(whole for _ in others)),
        out_specs=whole,
        check_vma=False,
    )(
        _spread.placed(found, rows, split),
        *(_spread.placed(found, other, whole) for other in others),
    )
