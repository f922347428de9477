"""A statistic of every coordinate of users who are spread over devices: each device takes some coordinates.

``of_columns(numbers, columns)`` gets, for some coordinates, the values of all users. Each device makes the
columns of its own users and sends to every other device those coordinates which that one takes: one exchange,
by which no device holds more numbers than before. Results, one number a coordinate, are then told to all.
Meshes are those that ``dpsco_jax._sharding`` finds.

Every coordinate is taken by one device, which has the values of all users in their order, so that its result,
and the key of its draw, are those of one device, up to the rounding of a sum that is compiled for fewer
coordinates. Axes in another order than the mesh's make another order of the users. Coordinates are filled up
to a multiple of the devices, with columns of zeros whose results are dropped.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from dpsco_jax import _parts, _sharding


def found(
    spread: _sharding.Spread,
    columns_of: Callable[..., jax.Array],
    of_columns: Callable[..., jax.Array],
    num_columns: int,
    rows: Any,
    *others: Any,
) -> jax.Array:
    """Results ``[num_columns]``, on every device.

    Args:
        spread: of ``_sharding.found``.
        columns_of: ``columns_of(rows, *others)`` of some users returns ``[num_columns, users]``; what it
            makes of a user depends on no other user.
        of_columns: ``of_columns(numbers, columns, *others)`` returns a result for each of the columns of
            these numbers.
        num_columns: how many coordinates there are.
        rows: a pytree of arrays with the leading axis of users.
        others: pytrees of arrays, whole on every device.
    """
    # Of several axes in another order than the mesh's, a device's number and what it is sent would disagree.
    given = spread.axis if isinstance(spread.axis, tuple) else (spread.axis,)
    axis = tuple(name for name in spread.mesh.axis_names if name in given)
    each = -(-num_columns // spread.devices)

    def on_device(rows: Any, *others: Any) -> jax.Array:
        columns = columns_of(rows, *others)
        columns = jnp.pad(columns, ((0, each * spread.devices - num_columns), (0, 0)))
        own = lax.all_to_all(columns, axis, split_axis=0, concat_axis=1, tiled=True)
        numbers = lax.axis_index(axis) * each + jnp.arange(each)
        results = of_columns(numbers, own, *others)
        return lax.all_gather(results, axis, tiled=True)[:num_columns]

    split, whole = PartitionSpec(spread.axis), PartitionSpec()
    specs = (split, *(whole for _ in others))
    return _parts.shard_map(on_device, spread.mesh, specs, whole)(
        _sharding.placed(spread, rows, split),
        *(_sharding.placed(spread, other, whole) for other in others),
    )
