"""Which row goes where when rows are grouped by user: positions of users, slots of items.

Which rows of a user are kept, and in which slots, depends on the seed, on the user's place among the
identifiers in ascending order and on the number of the user's own rows; nothing else. Draws for different
users are independent.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from dpsco_jax._checks import require, require_undisclosed, require_unmasked
from dpsco_jax._given import listed, require_held
from dpsco_jax._redact import described
from dpsco_jax.problems._columns import is_missing


class Places(NamedTuple):
    """Where the rows go.

    Attributes:
        rows: the rows that are kept.
        position: of each, the index of its user.
        slot: of each, the index among the user's items.
        shape: number of users and of slots.
    """

    rows: np.ndarray
    position: np.ndarray
    slot: np.ndarray
    shape: tuple[int, int]


def checked_users(users: Any) -> np.ndarray:
    """The identifiers as an array ``[rows]``.

    Raises:
        ValueError: if they are not in one dimension, cannot be sorted, are masked, or one is missing.
    """
    users = listed("users", users)
    if users.dtype.kind == "T":  # of NumPy's texts of any length not even NaN differs from itself
        users = users.astype(object)
    require(users.ndim == 1, "users", users.shape, "an array of one dimension, [rows]")
    if users.dtype.kind == "O":
        absent = np.fromiter(map(_is_absent, users), bool, len(users))
        sortable = len({_family(user) for user in users[~absent]}) <= 1
        # Numbers of NumPy are rounded to a common type before they are compared.
        users = np.array([*map(_plain, users), None], object)[:-1]
        require_undisclosed(
            sortable, "users", "all numbers, or all of one other type that can be sorted"
        )
    else:
        absent = users != users
    require_undisclosed(~absent, "users", "present in every row")
    return users


def identified(users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different identifiers in ascending order, and the place of each row's among them.

    Args:
        users: of ``checked_users``.

    Raises:
        ValueError: if two of them are not told apart by their order, as sets, of which neither is less, or
            objects that equal nothing but themselves: the rows of a user would be those of several.
    """
    try:
        found, position = np.unique(users, return_inverse=True)
        listed = found.tolist() if users.dtype.kind == "O" else []
        ascending = all(one < other for one, other in itertools.pairwise(listed))
    except TypeError:
        ascending = False
    require_undisclosed(ascending, "users", "values that can be sorted, each equal to itself alone")
    return found, position


def checked_rows(rows: PyTree, users: np.ndarray) -> PyTree:
    """The rows as NumPy arrays ``[rows, ...]``.

    Raises:
        ValueError: if there are none, they are not as many as users, no real numbers or booleans, or not such
            as JAX holds; or if they are in columns that can have nulls, which make floats of all integers.
    """
    rows = jax.tree.map(_array, rows)
    require_held("rows", rows)
    leaves = jax.tree.leaves(rows)
    require(bool(leaves), "rows", described(rows), "a tree of arrays [rows, ...]")
    for leaf in leaves:
        same = leaf.shape[:1] == users.shape
        require(same, "rows", leaf.shape, f"as many as users: arrays [{len(users)}, ...]")
        # bfloat16 and the like have the kind of bytes.
        real = leaf.dtype.kind in "biuf" or jnp.issubdtype(leaf.dtype, jnp.floating)
        require(real, "rows", leaf.dtype, "arrays of real numbers or booleans")
    return rows


def _array(leaf: Any) -> np.ndarray:
    require_unmasked("rows", leaf)
    if hasattr(leaf, "to_numpy"):
        dtypes = np.atleast_1d(
            np.array(getattr(leaf, "dtypes", getattr(leaf, "dtype", None)), object)
        ).flat
        known = all(isinstance(dtype, np.dtype) for dtype in dtypes)
        wanted = "of NumPy's dtypes, without a null, as by to_numpy()"
        require(known, "rows", described(leaf), wanted)
    return np.asarray(leaf)


def _is_absent(user: Any) -> bool:
    """Whether it is missing, or a tuple with a missing part: NaN is no user's twice."""
    return is_missing(user) or (isinstance(user, tuple) and any(map(_is_absent, user)))


def places(
    seed: Sequence[int],
    users: np.ndarray,
    kept: np.ndarray,
    bound: int | None,
    keep: str,
    order: str,
) -> Places:
    """Groups rows.

    Args:
        seed: decides the subsets that are kept and the order of the users.
        users: of ``checked_users``.
        kept: ``[rows]``, which rows count. A user without any still has a position.
        bound: most items of a user, and number of slots; ``None``: as many as any user has.
        keep: ``"random"`` or ``"first"``: which rows of a user with more.
        order: of users, ``"random"`` or ``"sorted"``.
    """
    identifiers, position = identified(users)
    num_users = len(identifiers)
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(position[rows], kind="stable")]
    counts = np.bincount(position[rows], minlength=num_users)
    slots = int(counts.max(initial=0)) if bound is None else bound
    chosen, slot = slots_within(seed, position[rows][:, None], slots, keep)
    rows, slot = rows[chosen], slot[chosen]
    if order == "random":
        position = shuffled(seed, num_users)[position]
    return Places(rows, position[rows], slot, (num_users, slots))


def slots_within(
    seed: Sequence[int], groups: np.ndarray, bound: int, keep: str
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows of a group are kept, and in which slot of it; a group's draw looks at that group alone.

    Args:
        seed: with the numbers of a group it is the seed of that group's draw.
        groups: ``[rows, numbers]``, the numbers of the group of each row; rows of a group stand together.
        bound: number of slots.
        keep: ``"random"`` or ``"first"``: which rows of a group with more.

    Returns:
        Of each row whether it is kept, and its slot, which means nothing where it is not.
    """
    starts = group_starts(groups)
    counts = np.diff(starts, append=len(groups))
    slot = np.arange(len(groups)) - np.repeat(starts, counts)
    chosen = slot < bound
    if keep == "random":
        for group in np.flatnonzero(counts > bound):
            start, count = starts[group], counts[group]
            generator = np.random.default_rng([*seed, *groups[start].tolist()])
            subset = np.sort(generator.choice(count, bound, replace=False))
            chosen[start : start + count] = False
            chosen[start + subset] = True
            slot[start + subset] = np.arange(bound)
    return chosen, slot


def group_starts(groups: np.ndarray) -> np.ndarray:
    """The first row of each group, where rows ``[rows, numbers]`` of a group stand together."""
    first = np.ones(len(groups), bool)
    first[1:] = (groups[1:] != groups[:-1]).any(axis=1)
    return np.flatnonzero(first)


def shuffled(seed: Sequence[int], num_users: int) -> np.ndarray:
    """The place of each user in a uniformly random order."""
    # A spawned sequence: a seed with further numbers would be the seed of some group's subset.
    sequence = np.random.SeedSequence(list(seed), spawn_key=(0,))
    return np.random.default_rng(sequence).permutation(num_users)


def _family(user: Any) -> Any:
    """What identifiers have to have in common: nothing tells 1 from True, or spans of two units apart."""
    if isinstance(user, np.datetime64 | np.timedelta64):
        return user.dtype
    if isinstance(user, bool | np.bool_):
        return bool
    kinds = (int | float | np.number, str, bytes)
    return next((kind for kind in kinds if isinstance(user, kind)), type(user))


def _plain(user: Any) -> Any:
    return user.item() if isinstance(user, np.generic) else user
