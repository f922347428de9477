"""Sums over devices that lose no more than those over users, the same to the last bit on every device.

Of a tree of numbers in two parts (``dpsco_jax._compensated``), one on each device of a mesh axis, the sum is
taken in the order of the devices, by additions without error; other leaves, such as counts, are added up as
they are. A large tree is cut, exchanged and joined as an all-reduce is (Thakur, Rabenseifner and Gropp 2005),
and sent as often as by two; a small one goes whole to every device.

What ``lax.psum`` would round, in an order of its own, is kept; docs/theory/sums.md, section 6, has the bound,
which ``_compensated.room`` pays for. Assumed there: at most 256 devices, or at least 64 users on each, which
``require_devices`` asks for.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from dpsco_jax import _compensated
from dpsco_jax._checks import require

MOST_DEVICES = 256
LEAST_USERS = 64
_LARGEST_GATHERED = 2**18  # numbers; of more, every device adds up a part


def require_devices(num_devices: int, users_each: int) -> None:
    """``ValueError`` where users are spread so thin that rounding over devices is not paid for."""
    require(
        num_devices <= MOST_DEVICES or users_each >= LEAST_USERS,
        "devices",
        num_devices,
        f"at most {MOST_DEVICES}, or each with at least {LEAST_USERS} users, not {users_each}",
    )


def total(terms: Any, axis: Any) -> Any:
    """The sum over a mesh axis, inside ``shard_map``, of trees of arrays and of numbers in two parts.

    Args:
        terms: this device's.
        axis: name of the mesh axis, or several names.
    """
    if lax.axis_size(axis) == 1:
        return terms
    leaves, structure = jax.tree.flatten(terms, is_leaf=_compensated.is_split)
    whole = [None if _compensated.is_split(leaf) else lax.psum(leaf, axis) for leaf in leaves]
    kinds = sorted({leaf.high.dtype.name for leaf in leaves if _compensated.is_split(leaf)})
    for kind in kinds:
        chosen = [
            i
            for i, x in enumerate(leaves)
            if _compensated.is_split(x) and x.high.dtype.name == kind
        ]
        flat = [jnp.concatenate([jnp.ravel(leaves[i][part]) for i in chosen]) for part in (0, 1)]
        summed = _of_vectors(jnp.stack(flat), axis)
        first = 0
        for i in chosen:
            shape, size = leaves[i].high.shape, leaves[i].high.size
            parts = summed[:, first : first + size]
            whole[i] = _compensated.Split(*(part.reshape(shape) for part in parts))
            first += size
    return jax.tree.unflatten(structure, whole)


def _of_vectors(parts: Float[Array, "2 size"], axis: Any) -> Float[Array, "2 size"]:
    devices, size = lax.axis_size(axis), parts.shape[1]
    if devices * parts.size <= _LARGEST_GATHERED:
        return _in_order(lax.all_gather(parts, axis))
    padded = jnp.pad(parts, ((0, 0), (0, -size % devices)))
    cut = padded.reshape(2, devices, -1).swapaxes(0, 1)
    own = _in_order(lax.all_to_all(cut, axis, split_axis=0, concat_axis=0))
    return lax.all_gather(own, axis, axis=1, tiled=True)[:, :size]


def _in_order(parts: Float[Array, "devices 2 size"]) -> Float[Array, "2 size"]:
    def with_next(device: jax.Array, sum_so_far: _compensated.Split) -> _compensated.Split:
        return _compensated.add(sum_so_far, _compensated.Split(*parts[device]))

    return jnp.stack(lax.fori_loop(1, len(parts), with_next, _compensated.Split(*parts[0])))
