"""Whose data: items grouped by user, padded to a common number of items per user.

What it computes: ``UserData`` from rows with a user column, with explicit and seeded contribution
bounding; disjoint splits and samples of users; the mean loss of one user.

Source: the user-level setting, in which a record is all items of a user.

Formal guarantee: none by itself. A user here is one index of the leading axis; replacing a user
changes that index of ``items`` and ``mask`` and nothing else. Two facts are taken as public: the
number of users, and the common number of item slots. The latter is public only if
``max_items_per_user`` is given: left out, it is the largest number of items that any user has,
which is a fact about the data. Which items of a user are kept depends on the key, the user's
position and the user's own number of items only.

Cost: memory for users × slots items; see ``padding_waste``.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from dpsco_jax.problems.objective import Example, Objective


class UserData(NamedTuple):
    """Items of all users.

    Attributes:
        items: pytree of arrays ``[users, items, ...]``; zeros where masked out.
        mask: which items are there, ``[users, items]``; ``None`` if all are.
    """

    items: PyTree
    mask: Bool[Array | np.ndarray, "users items"] | None = None


def num_users(data: UserData) -> int:
    """Number of users: the length of the leading axis, a static and public number."""
    return jax.tree.leaves(data.items)[0].shape[0]


def items_per_user(data: UserData) -> Int[Array, "users"]:
    """Number of items of each user (private: it is a fact about that user)."""
    if data.mask is None:
        return jnp.full(num_users(data), jax.tree.leaves(data.items)[0].shape[1])
    return jnp.sum(data.mask, axis=1, dtype=jnp.int32)


def padding_waste(data: UserData) -> float:
    """The fraction of item slots that hold no item."""
    return 0.0 if data.mask is None else 1.0 - float(np.mean(np.asarray(data.mask)))


def subset(data: UserData, indices: Int[Array | np.ndarray, "chosen"]) -> UserData:
    """The users at the given positions (which may repeat), in that order."""
    return jax.tree.map(lambda leaf: leaf[indices], data)


def split_users(key: Key[Array, ""], data: UserData, fraction: float) -> tuple[UserData, UserData]:
    """Two disjoint sets of users: a random ``fraction`` of them (rounded), and the others.

    Args:
        key: used once.
        data: users × items.
        fraction: share of users in the first part, in [0, 1].

    Raises:
        ValueError: if ``fraction`` is out of range.
    """
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction must be in [0, 1], got {fraction!r}")
    users = num_users(data)
    order = np.asarray(jax.random.permutation(key, users))
    first = round(fraction * users)
    return subset(data, order[:first]), subset(data, order[first:])


def user_loss(objective: Objective) -> Callable[[PyTree, PyTree, Any], Any]:
    """The loss of one user: ``(params, items, mask) -> scalar``, the mean over the user's items.

    A user without items has loss 0. ``items`` has leaves ``[items, ...]`` and ``mask`` is
    ``[items]`` or ``None``. The mean of losses that are L-Lipschitz (smooth, convex) is so too, so
    the constants of the objective hold for it. Padding must hold finite numbers (``from_rows``
    fills zeros): non-finite padding makes the gradient non-finite, and a clip then drops that user.
    """

    def loss(params: PyTree, items: PyTree, mask: Any) -> Float[Array, ""]:
        losses = jax.vmap(objective.loss, in_axes=(None, 0))(params, items)
        if mask is None:
            return jnp.mean(losses) if losses.size else jnp.zeros((), losses.dtype)
        return jnp.sum(jnp.where(mask, losses, 0.0)) / jnp.maximum(jnp.sum(mask), 1)

    return loss


def mean_loss(objective: Objective) -> Callable[[PyTree, UserData], Any]:
    """The objective itself: ``(params, data) -> scalar``, the mean user loss plus the regularizer.

    A fact about the private data: for reports and for reference optima, not for release.
    """
    one_user = user_loss(objective)

    def loss(params: PyTree, data: UserData) -> Float[Array, ""]:
        axes = (None, 0, None if data.mask is None else 0)
        losses = jax.vmap(one_user, in_axes=axes)(params, data.items, data.mask)
        return jnp.mean(losses) + objective.regularizer(params)

    return loss


def from_frame(
    key: Key[Array, ""],
    frame: Any,
    user_column: str,
    feature_columns: Sequence[str],
    label_column: str,
    max_items_per_user: int | None = None,
) -> UserData:
    """Dense examples from a pandas frame, one row an item.

    Args:
        key: decides which items are kept of users with too many; used once.
        frame: a ``pandas.DataFrame``.
        user_column: who the row belongs to; users are ordered by this value.
        feature_columns: numeric columns, in the order of the features.
        label_column: numeric column.
        max_items_per_user: public bound on the items kept per user, and number of item slots;
            ``None`` keeps all (see the file's docstring).

    Returns:
        ``UserData`` whose items are ``Example(features [users, items, dim], label [users, items])``
        in float32.

    Raises:
        ValueError: if a column is missing, a user is missing, or ``max_items_per_user < 1``.
    """
    missing = {user_column, label_column, *feature_columns} - set(frame.columns)
    if missing:
        raise ValueError(f"columns must be among {list(frame.columns)}, got {sorted(missing)}")
    features = frame[list(feature_columns)].to_numpy(np.float32)
    label = frame[label_column].to_numpy(np.float32)
    return from_rows(
        key, frame[user_column].to_numpy(), Example(features, label), max_items_per_user
    )


def from_rows(
    key: Key[Array, ""],
    users: Any,
    rows: PyTree,
    max_items_per_user: int | None = None,
) -> UserData:
    """Rows grouped by user, at most ``max_items_per_user`` of each, padded with zeros.

    A user with more items than that keeps a uniformly random subset of them, in their order.

    Args:
        key: decides which items are kept; used once.
        users: who each row belongs to, shape ``[rows]``; any sortable values without missing ones.
        rows: pytree of NumPy arrays ``[rows, ...]``.
        max_items_per_user: as in ``from_frame``.

    Raises:
        ValueError: if lengths differ, a user is missing, or ``max_items_per_user < 1``.
    """
    if max_items_per_user is not None and max_items_per_user < 1:
        raise ValueError(f"max_items_per_user must be at least 1, got {max_items_per_user!r}")
    users = np.asarray(users)
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(rows)}
    if lengths != {users.shape[0]}:
        raise ValueError(f"rows must be as many as users ({users.shape[0]}), got {sorted(lengths)}")
    if users.dtype.kind == "f" and np.isnan(users).any():
        raise ValueError("users must not be missing, got NaN")
    _, position, counts = np.unique(users, return_inverse=True, return_counts=True)
    order = np.argsort(position, kind="stable")
    slots = max_items_per_user or int(counts.max(initial=0))
    starts = np.cumsum(counts) - counts
    slot = np.arange(len(order)) - np.repeat(starts, counts)

    keep = np.ones(len(order), bool)
    seed = np.asarray(jax.random.key_data(key)).tolist()
    for user in np.flatnonzero(counts > slots):
        generator = np.random.default_rng([*seed, int(user)])
        chosen = np.sort(generator.choice(counts[user], slots, replace=False))
        block = slice(starts[user], starts[user] + counts[user])
        keep[block] = False
        keep[starts[user] + chosen] = True
        slot[starts[user] + chosen] = np.arange(slots)

    place = (position[order][keep], slot[keep])

    def grid(leaf):
        padded = np.zeros((len(counts), slots, *leaf.shape[1:]), leaf.dtype)
        padded[place] = leaf[order][keep]
        return jnp.asarray(padded)

    mask = np.zeros((len(counts), slots), bool)
    mask[place] = True
    return UserData(jax.tree.map(grid, rows), jnp.asarray(mask))
