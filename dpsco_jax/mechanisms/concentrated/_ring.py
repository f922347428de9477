"""Work on all pairs of users who are spread over devices: rows stay, those of others come by in a ring.

``met`` gives every user's tally of all pairs that the user is in. A copy of a device's rows travels from
device to device, half way round, with what was tallied of them on the way, and the tallies go home. Every
pair of devices meets once, on one of the two; where a meeting is half way round for both, each does a part of
it. So every pair of users is handed to ``pairs`` once, or is one device's own, and tallies, which are
integers, are the same whatever the number of devices, as far as verdicts on pairs are. A device holds its
rows and the rows of one visitor, twice while they are sent. Meshes are those that ``dpsco_jax._sharding``
finds.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from dpsco_jax import _parts, _sharding


def met(
    spread: _sharding.Spread,
    alone: Callable[..., tuple[Any, jax.Array]],
    pairs: Callable[..., tuple[jax.Array, jax.Array]],
    rows: Any,
    *others: Any,
) -> jax.Array:
    """Tallies ``[k, users]``, spread as the users are.

    Args:
        spread: of ``_sharding.found``.
        alone: ``alone(rows, *others)`` returns what travels, and the tally ``[k, own users]`` of the pairs
            of these rows with each other.
        pairs: ``pairs(tally, of_guest, own, guest, part, *others)`` returns both tallies with the pairs of
            one own user and one of the guest. ``part`` is 0 for all of them; where the guest does the same
            with roles exchanged, it is 1 on one of the two and 2 on the other.
        rows: a pytree of arrays with the leading axis of users.
        others: pytrees of arrays, whole on every device.
    """
    devices = spread.devices
    # Of several axes in another order than the mesh's, a device's number and what it is sent would disagree.
    given = spread.axis if isinstance(spread.axis, tuple) else (spread.axis,)
    axis = tuple(name for name in spread.mesh.axis_names if name in given)
    half = devices // 2

    def on_device(rows: Any, *others: Any) -> jax.Array:
        number = lax.axis_index(axis)
        own, tally = alone(rows, *others)
        if not half:
            return tally

        def turn(place: jax.Array, carry: Any) -> Any:
            guest, of_guest, tally = carry
            guest, of_guest = _sent((guest, of_guest), 1, devices, axis)
            part = jnp.where(2 * place == devices, jnp.where(number < half, 1, 2), 0)
            tally, of_guest = pairs(tally, of_guest, own, guest, part, *others)
            return guest, of_guest, tally

        carry = (own, jnp.zeros_like(tally), tally)
        _, of_guest, tally = lax.fori_loop(1, half + 1, turn, carry)
        return tally + _sent(of_guest, -half, devices, axis)

    split, whole = PartitionSpec(spread.axis), PartitionSpec()
    specs, out = (split, *(whole for _ in others)), PartitionSpec(None, spread.axis)
    return _parts.shard_map(on_device, spread.mesh, specs, out)(
        _sharding.placed(spread, rows, split),
        *(_sharding.placed(spread, other, whole) for other in others),
    )


def _sent(tree: Any, places: int, devices: int, axis: Any) -> Any:
    """What the device so many places further on holds."""
    route = [((device + places) % devices, device) for device in range(devices)]
    return lax.ppermute(tree, axis, route)
