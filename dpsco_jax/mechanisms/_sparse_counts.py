"""Triples (user, item, count) in order: what counts, duplicates added up, grouped by user and cluster.

Entries are sorted by user, cluster and item, so that each unit (user, cluster) is a block of consecutive
entries, without a dense vector of any user. The sum of all entries of one pair (user, item) stands at its
first entry. What a unit becomes is a function of its own entries: an entry counts as nothing, and moves no
other, if its user or its item is out of range or its count is not finite (or negative, where asked).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Integer, Num

from dpsco_jax._checks import require, require_integers, require_number
from dpsco_jax._given import as_wide, floats_of, inside
from dpsco_jax._parts import require_same_everywhere


class Entries(NamedTuple):
    """Sorted entries; those that do not count are at the end, with the user ``num_users`` and count zero.

    Attributes:
        users: of every entry.
        items: of every entry.
        counts: the sum of the pair (user, item) at its first entry, zero at all others.
        new_pair: whether an entry is the first of its pair.
        new_unit: whether it is the first of its user and cluster.
        counted: whether the entry counts.
    """

    users: Int[Array, "entries"]
    items: Int[Array, "entries"]
    counts: Float[Array, "entries"]
    new_pair: Bool[Array, "entries"]
    new_unit: Bool[Array, "entries"]
    counted: Bool[Array, "entries"]


def entries(
    users: Integer[Array | np.ndarray, "entries"],
    items: Integer[Array | np.ndarray, "entries"],
    counts: Num[Array | np.ndarray, "entries"],
    cluster_of_item: Int[Array | np.ndarray, "items"],
    num_users: int,
    signed: bool,
) -> Entries:
    """The entries in order. Unless ``signed``, negative counts are none."""
    require_number("counts", counts, "an array of real numbers")
    require_same_everywhere("counts", counts)
    require_pairs(users, items)
    same = jnp.shape(counts) == jnp.shape(users)
    require(same, "counts", jnp.shape(counts), f"of the shape {jnp.shape(users)} of users")
    num_items = len(cluster_of_item)
    user, item = inside(users, num_users), inside(items, num_items)
    count = floats_of(counts)
    count = count.astype(jnp.promote_types(count.dtype, jnp.float32))
    good = (user < num_users) & (item < num_items) & jnp.isfinite(count)
    good &= signed | (count >= 0)
    user, item = jnp.where(good, user, num_users), jnp.where(good, item, num_items)
    cluster = jnp.append(as_wide(cluster_of_item), 0)[item]
    count = jnp.where(good, count, 0)
    # A stable sort takes as much memory again as four copies of the entries. Without it what a pair adds up
    # to is a function of the pair alone if its counts are in order too.
    arrays = (user, cluster, item, count)
    user, cluster, item, count = jax.lax.sort(arrays, num_keys=4, is_stable=False)
    new_unit = changes(user) | changes(cluster)
    new_pair = new_unit | changes(item)
    pair = jnp.cumsum(new_pair) - 1
    total = jax.ops.segment_sum(count, pair, len(count), indices_are_sorted=True)[pair]
    return Entries(user, item, jnp.where(new_pair, total, 0), new_pair, new_unit, user < num_users)


def require_pairs(users: ArrayLike, items: ArrayLike) -> None:
    """Raise ``ValueError`` unless both are integers ``[entries]``, and no parts of them."""
    require_integers("users", users)
    require_integers("items", items)
    require_same_everywhere("users", users)
    require_same_everywhere("items", items)
    require(jnp.ndim(users) == 1, "users", users, "an array of one dimension")
    same = jnp.shape(items) == jnp.shape(users)
    require(same, "items", jnp.shape(items), f"of the shape {jnp.shape(users)} of users")


def changes(values: Array) -> Bool[Array, "entries"]:
    """Whether an entry differs from the one before it; true for the first."""
    return jnp.concatenate([jnp.ones_like(values[:1], bool), values[1:] != values[:-1]])
