"""Tables of rows, grouped by user: what a data holder has, as ``UserData``.

What it computes: the rows of a table with a user column and declared columns, encoded and grouped by user,
with explicit and seeded contribution bounding.

Source: the user-level setting, in which a record is all items of a user.

Formal guarantee: none by itself. Replacing the rows of a user changes one index of ``items`` and ``mask`` and
nothing else. Where the user's identifier is replaced too, this holds in random order (``order="random"``)
under a secret key: order and subsets are uniform and independent whatever the identifiers are, so the two
laws can be coupled such that the new user stands in the old one's place. In sorted order all users between
the two identifiers would move by one. Taken as public are the number of users and the number of item slots
(unless it is left to the data, by ``max_items_per_user=None``), and in sorted order the list of identifiers.

Cost: memory for users × slots items.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key, PyTree

from dpsco_jax._checks import (
    require,
    require_choice,
    require_integer,
    require_key,
    require_mask,
    require_undisclosed,
)
from dpsco_jax._given import plain, require_one_order
from dpsco_jax.problems._columns import absent, require_columns
from dpsco_jax.problems._grouping import checked_rows, checked_users, places
from dpsco_jax.problems.encoding import Encoding
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData


class Table(NamedTuple):
    """A frame, encoded and grouped by user.

    Attributes:
        data: items are ``Example(features [users, items, dim], label [users, items])``.
        columns: the names of the features, ``dim`` of them.
        feature_bound: the ℓ2 norm that features can have, public: the ``feature_bound`` of the loss.
        encoding: the map from rows to features; ``encoding.apply(frame)`` encodes other rows.
    """

    data: UserData
    columns: tuple[str, ...]
    feature_bound: float
    encoding: Encoding


def from_frame(
    key: Key[Array, ""],
    frame: Any,
    user_column: Hashable,
    feature_columns: Sequence[Hashable],
    label_column: Hashable,
    max_items_per_user: int | None,
    *,
    bounds: Mapping[Hashable, tuple[float, float]] | None = None,
    categories: Mapping[Hashable, Collection[Hashable]] | None = None,
    labels: Collection[Hashable] | None = None,
    intercept: bool = True,
    missing: str = "indicator",
    unknown: str = "error",
    unlabelled: str = "error",
    keep: str = "random",
    order: str = "random",
) -> Table:
    """Dense examples from a pandas frame, one row an item, by what is declared of its columns.

    Everything that is declared is public and must not be read off the data. Numbers are mapped from their
    bounds to [-1, 1] (values outside are clipped), categories to one column for each level.

    Args:
        key: decides which items are kept of users with too many, and the order of users; used once.
        frame: a ``pandas.DataFrame``.
        user_column: who the row belongs to; not a feature.
        feature_columns: numeric columns, which need ``bounds``, and others, which need ``categories``.
        label_column: what is predicted: a class (``labels``) or a number (``bounds``).
        max_items_per_user: public bound on the items kept per user, and number of item slots. ``None``
            keeps all, and the number of slots is then a fact about the data.
        bounds: (low, high) of each numeric column, and of a numeric label, which is mapped to [-1, 1] too.
        categories: the levels of each categorical column.
        labels: (negative, positive), such as (-1, 1) or ("no", "yes"), which become 0 and 1; or three
            classes and more, which become their numbers, for ``softmax``.
        intercept: whether the first feature is the constant 1.
        missing: for features, ``"indicator"``, ``"zero"``, ``"drop_row"`` or ``"error"``; see ``Encoding``.
        unknown: for levels that were not declared, ``"error"`` or ``"other"``.
        unlabelled: for rows whose label is missing or not among ``labels``, ``"error"`` or ``"drop_row"``. A
            user whose rows are all dropped stays, without items.
        keep: ``"random"`` or ``"first"``; see ``from_rows``.
        order: of the users, ``"random"`` or ``"sorted"``; see ``from_rows``.

    Raises:
        ValueError: if declarations contradict each other or the columns and dtypes of the frame; if a user is
            missing; and, where ``"error"`` was chosen, if a value is missing or was not declared. What is
            said of values names the column and shows no value.
    """
    encoding = Encoding(
        feature_columns=feature_columns,
        label_column=label_column,
        bounds=bounds or {},
        categories=categories or {},
        labels=labels,
        intercept=intercept,
        missing=missing,
        unknown=unknown,
        unlabelled=unlabelled,
    )
    require_columns(frame, [user_column])
    among = user_column != label_column and user_column not in encoding.feature_columns
    require(among, "user_column", user_column, "neither the label nor a feature column")
    rows = encoding.apply(frame)
    require_undisclosed(
        ~absent(frame[user_column]), f"column {user_column!r}", "present in every row"
    )
    items = Example(rows.features, rows.label)
    data = from_rows(
        key,
        frame[user_column].to_numpy(),
        items,
        max_items_per_user,
        kept=rows.kept,
        keep=keep,
        order=order,
    )
    return Table(data, encoding.columns, encoding.feature_bound, encoding)


def from_rows(
    key: Key[Array, ""],
    users: Any,
    rows: PyTree,
    max_items_per_user: int | np.integer | None,
    *,
    kept: Bool[np.ndarray, "rows"] | None = None,
    keep: str = "random",
    order: str = "random",
) -> UserData:
    """Rows grouped by user, at most ``max_items_per_user`` of each, padded with zeros.

    The values of the rows are not looked at, but for integers of 64 bits: see ``labels.check_labels`` and the
    losses for what they make of numbers that are not finite.

    Args:
        key: decides which items are kept and the order of the users; used once.
        users: who each row belongs to, shape ``[rows]``; any sortable values without missing ones.
        rows: pytree of NumPy arrays ``[rows, ...]`` of real numbers or booleans. They go with users by
            position: what has an index of pandas must have the same one, in the same order.
        max_items_per_user: public bound on the items kept per user, and number of item slots. ``None``
            keeps all, and the number of slots is then a fact about the data.
        kept: which rows count; all if left out. A user without any stays, without items, so that the number
            of users does not depend on it.
        keep: what a user with too many items keeps: ``"random"``, a uniformly random subset, or ``"first"``,
            the first in the order of the rows; in that order either way.
        order: ``"random"``: users in a uniformly random order, so that nothing but the number of users need
            be public. ``"sorted"``: in the order of their identifiers, whose list is then taken as public.

    Raises:
        ValueError: if lengths or indexes of pandas differ, rows are not numbers, a user is missing, an array
            is masked, or another argument is out of range; and if an integer of 64 bits is beyond those of
            JAX, which has 32 without ``jax_enable_x64`` and would take 2^32 + 1 for 1. Clip to 32 bits where
            no such refusal may be seen.
    """
    require_key(key)
    if max_items_per_user is not None:
        max_items_per_user = require_integer("max_items_per_user", max_items_per_user, 1)
    require_choice("keep", keep, ("random", "first"))
    require_choice("order", order, ("random", "sorted"))
    require_one_order(users=users, rows=rows, kept=kept)
    users = checked_users(users)
    rows = checked_rows(rows, users)
    kept = np.ones(len(users), bool) if kept is None else plain("kept", kept)
    kept = require_mask("kept", kept, users.shape)
    seed = np.asarray(jax.random.key_data(key)).tolist()
    found = places(seed, users, kept, max_items_per_user, keep, order)

    def grid(leaf: np.ndarray) -> jax.Array:
        padded = np.zeros((*found.shape, *leaf.shape[1:]), leaf.dtype)
        padded[found.position, found.slot] = leaf[found.rows]
        return jnp.asarray(padded)

    mask = np.zeros(found.shape, bool)
    mask[found.position, found.slot] = True
    return UserData(jax.tree.map(grid, rows), jnp.asarray(mask))
