"""Which row goes where when rows are grouped by user: positions of users, slots of items.

Formal guarantee: which rows of a user are kept, and in which slots, depends on the seed, on the user's place
among the identifiers in ascending order and on the number of the user's own rows; nothing else. Draws for
different users are independent.

Cost: a sort of the rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax._checks import require, require_undisclosed
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
        ValueError: if they are not in one dimension, cannot be sorted, or one is missing.
    """
    users = np.asarray(users)
    require(users.ndim == 1, "users", users.shape, "an array of one dimension, [rows]")
    if users.dtype.kind == "O":
        absent = np.fromiter(map(_is_absent, users), bool, len(users))
        sortable = len({_family(user) for user in users[~absent]}) <= 1
        require_undisclosed(
            sortable, "users", "all numbers, or all of one other type that can be sorted"
        )
    else:
        absent = users != users
    require_undisclosed(~absent, "users", "present in every row")
    return users


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
    identifiers, position = np.unique(users, return_inverse=True)
    num_users = len(identifiers)
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(position[rows], kind="stable")]
    counts = np.bincount(position[rows], minlength=num_users)
    slots = int(counts.max(initial=0)) if bound is None else bound
    starts = np.cumsum(counts) - counts
    slot = np.arange(len(rows)) - np.repeat(starts, counts)

    chosen = slot < slots
    if keep == "random":
        for user in np.flatnonzero(counts > slots):
            generator = np.random.default_rng([*seed, int(user)])
            subset = np.sort(generator.choice(counts[user], slots, replace=False))
            chosen[starts[user] : starts[user] + counts[user]] = False
            chosen[starts[user] + subset] = True
            slot[starts[user] + subset] = np.arange(slots)
    rows, slot = rows[chosen], slot[chosen]
    if order == "random":
        # A spawned sequence: a seed with a further number would be the seed of some user's subset.
        sequence = np.random.SeedSequence(list(seed), spawn_key=(0,))
        position = np.random.default_rng(sequence).permutation(num_users)[position]
    return Places(rows, position[rows], slot, (num_users, slots))


def _family(user: Any) -> Any:
    return "number" if isinstance(user, int | float | np.number) else type(user)
