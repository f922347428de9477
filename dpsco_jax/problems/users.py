"""Whose data: items grouped by user, padded to a common number of items per user.

What it computes: ``UserData`` and the facts about it that are asked of everywhere; disjoint splits and
samples of users; the mean loss of one user. ``tables`` makes it from rows.

Source: the user-level setting, in which a record is all items of a user.

Formal guarantee: none by itself. A user here is one index of the leading axis; replacing the rows of a user
changes that index of ``items`` and ``mask`` and nothing else. The number of users and the number of item
slots are taken as public.

Cost: memory for users × slots items; see ``padding_waste``.
"""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from dpsco_jax import _effects
from dpsco_jax._checks import (
    of_true_and_false,
    require,
    require_instance,
    require_integers,
    require_key,
    require_mask,
    require_probability,
    require_same_rows,
    require_undisclosed,
)
from dpsco_jax._given import require_held
from dpsco_jax.problems.objective import Objective


class UserData(NamedTuple):
    """Items of all users.

    Attributes:
        items: pytree of arrays ``[users, items, ...]``; zeros where masked out.
        mask: which items are there, ``[users, items]``; ``None`` if all are.
    """

    items: PyTree
    mask: Bool[Array | np.ndarray, "users items"] | None = None

    @classmethod
    def from_process_local(
        cls, mesh: jax.sharding.Mesh, items: PyTree, mask: Any = None, axis: str = "users"
    ) -> "UserData":
        """The users of all processes, of which each has loaded its own: nothing is sent.

        Users are numbered in the order of the mesh. All processes must load the same number of users, a
        multiple of the number of their devices; a process with fewer adds users whose mask is false
        throughout, who count as zero.

        Args:
            mesh: over the devices of all processes; of a single process too.
            items: pytree of arrays ``[own users, items, ...]``.
            mask: bool ``[own users, items]``; ``None``, in every process, if all items are there.
            axis: of the mesh, over which users are spread.

        Raises:
            ValueError: ``axis`` is none of the mesh, arrays have different numbers of users, these are no
                multiple of this process's devices, JAX does not hold the numbers (see ``num_users``), or
                processes have different numbers of users, item slots or dtypes, or masks in some only.
                Where the data of one process are refused, all processes raise.
        """
        require_instance("mesh", mesh, jax.sharding.Mesh)
        require(axis in mesh.axis_names, "axis", axis, f"one of {mesh.axis_names}")
        refusal = None
        try:
            require_held("items", cls(items, mask))
        except ValueError as error:
            refusal = error
        local = jax.tree.map(np.asarray, cls(items, mask))
        found = sorted({leaf.shape[:1] for leaf in jax.tree.leaves(local)})
        good = refusal is None and len(found) == 1 and len(found[0]) == 1
        own = found[0][0] if good else 0
        # Before anything is refused: whoever is left alone in an exchange waits until it is given up.
        everywhere = _told_to_all(own, local) if jax.process_count() > 1 else None
        if refusal is not None:
            raise refusal
        require(good, "items", found, "of one number of users")
        if everywhere is not None:
            counts = everywhere[:, 0].tolist()
            require(len(set(counts)) == 1, "items", counts, "as many users in every process")
            alike = bool(np.all(everywhere == everywhere[:1]))
            here = [(leaf.shape[1:], leaf.dtype.name) for leaf in jax.tree.leaves(local)]
            wanted = "of one structure, the same shapes of a user, and dtypes, in every process"
            require(alike, "items", here, wanted)
        parts = mesh.shape[axis]
        total = own * jax.process_count()
        even = own > 0 and total % parts == 0
        require(even, "items", own, f"{jax.process_count()} times which is a multiple of {parts}")
        where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(axis))

        def whole(leaf: np.ndarray) -> jax.Array:
            return jax.make_array_from_process_local_data(where, leaf, (total, *leaf.shape[1:]))

        return jax.tree.map(whole, local)


def _told_to_all(own: int, local: UserData) -> np.ndarray:
    """Of every process its number of users, and words that depend on structure, shapes and dtypes."""
    shown = [(leaf.shape[1:], leaf.dtype.str) for leaf in jax.tree.leaves(local)]
    digest = hashlib.sha256(repr((jax.tree.structure(local), shown)).encode()).digest()
    words = np.frombuffer(digest[:16], np.uint32)
    told = np.concatenate([np.asarray([own], np.uint32), words])
    return np.asarray(multihost_utils.process_allgather(told))


def _require_users(data: Any) -> int:
    """The number of users; ``ValueError`` unless it is that of all arrays, which JAX holds as they are."""
    require_instance("data", data, UserData)
    require_held("data", data)
    return require_same_rows("data", data)


def num_users(data: UserData) -> int:
    """Number of users: the length of the leading axis, a static and public number.

    Raises:
        ValueError: ``data`` is no ``UserData``, its arrays have different numbers of users, or JAX does not
            hold them as they are: a masked array of NumPy, or integers of 64 bits beyond 32 without
            ``jax_enable_x64``.
    """
    return _require_users(data)


def items_per_user(data: UserData) -> Int[Array, "users"]:
    """Number of items of each user (private: it is a fact about that user).

    Raises:
        ValueError: if ``data`` is no ``UserData``, or its mask no array of booleans of shape ``[users,
            items]``. With other numbers a user could change the count, and with it the mean, to anything.
    """
    _require_users(data)
    slots = jax.tree.leaves(data.items)[0].shape[:2]
    if data.mask is None:
        return jnp.full(*slots)
    return jnp.sum(require_mask("data.mask", data.mask, slots), axis=1, dtype=jnp.int32)


def padding_waste(data: UserData) -> float:
    """The fraction of item slots that hold no item."""
    _require_users(data)
    if data.mask is None:
        return 0.0
    return 1.0 - float(np.mean(np.asarray(of_true_and_false(data.mask))))


def subset(data: UserData, indices: Int[Array | np.ndarray, "chosen"]) -> UserData:
    """The users at the given positions (which may repeat), in that order.

    Raises:
        ValueError: ``data`` is no ``UserData``, or ``indices`` no array of integers, or JAX does not hold
            them (see ``num_users``), or one is not in [0, users); a traced index out of range is clamped.
    """
    users = _require_users(data)
    require_integers("indices", indices)
    require_held("indices", indices)
    if not isinstance(indices, jax.core.Tracer):
        found = np.asarray(indices)
        require_undisclosed((found >= 0) & (found < users), "indices", f"in [0, {users})")
    return jax.tree.map(lambda leaf: leaf[indices], data)


def split_users(key: Key[Array, ""], data: UserData, fraction: float) -> tuple[UserData, UserData]:
    """Two disjoint sets of users: a random ``fraction`` of them (rounded), and the others.

    Args:
        key: used once.
        data: users × items.
        fraction: share of users in the first part, in [0, 1].
    """
    require_key(key)
    require_probability("fraction", fraction)
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

    Raises:
        ValueError: the loss has side effects, when it is traced.
    """
    require_instance("objective", objective, Objective)

    def of_item(params: PyTree, item: PyTree) -> Any:
        return objective.loss(params, item)

    def loss(params: PyTree, items: PyTree, mask: Any) -> Float[Array, ""]:
        # Before the batch, of which JAX would refuse some effects without their name.
        item = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), items)
        _effects.require_none_of("loss", of_item, params, item)
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
        _require_users(data)
        mask = None if data.mask is None else of_true_and_false(data.mask)
        axes = (None, 0, None if mask is None else 0)
        losses = jax.vmap(one_user, in_axes=axes)(params, data.items, mask)
        return jnp.mean(losses) + objective.regularizer(params)

    return loss
