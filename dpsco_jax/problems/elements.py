"""Whose data, cluster by cluster: one element of one user is the record.

What it computes: ``ElementData``, a user's items in public clusters, from rows; its units as ``UserData``, so
that every oracle, sampler and clip for users works on units; the loss of a user, the sum over elements of the
mean over an element's items.

Source: E section 2.2, Definition 2.3 and equations (10), (11).

Formal guarantee: none by itself. A unit is a (user, element) pair; neighbours differ in the content of one
unit, arbitrarily, also from nothing to something (REPLACE_ONE) or to nothing (REPLACE_SPECIAL). Which items
of a unit are kept depends on the key, the user, the element and the number of the unit's own items.

*Dense layout* (slot k is element k): replacing a unit changes one index (user, slot) and nothing else.

*Packed layout* (``elements_per_user``): a user's non-empty elements stand in ascending order of the element,
so one that appears or vanishes moves those behind it by a slot. The user's other units are the same as a
multiset, no other user changes, and the number of slots is the public bound. Hence: let M(x) be the law of
what is released from the units x = (x_1, ..., x_K) of this user, all else fixed, with M(x_π) = M(x) for every
permutation π of the slots. If x' is x after a change of one unit, some π makes x'_π differ from x in one
slot, so (M(x), M(x')) = (M(x), M(x'_π)) is a pair that differs in one unit. The hypothesis holds where slots
are drawn independently with one probability or uniformly without replacement, each drawn unit goes through
the same function, and only sums leave: all of that is symmetric in the slots. It fails where a slot's number
matters: parameters of an element's own, or blocks of slots within a user. Those need the dense layout.

More elements than the bound are refused, and never dropped: if a rule kept as many as the bound, a new
element would push another one out, neighbours would differ in two units, and sensitivities would double.

Taken as public: the number of users, of slots and of items in a slot, and under the packed layout that no
user has more elements than the bound.

Cost: memory for users × slots × items.

Example:
    >>> import jax, numpy as np
    >>> from dpsco_jax.problems import elements, users
    >>> who, element, x = np.array([7, 7, 7, 9]), np.array([0, 2, 2, 2]), np.arange(4.0)
    >>> data = elements.from_rows(jax.random.key(0), who, element, x, 3, 2, order="sorted")
    >>> data.items[0].tolist(), elements.elements_of_users(data).tolist()
    ([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]], [2, 1])
    >>> users.num_users(elements.as_units(data))
    6
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from dpsco_jax._checks import (
    of_true_and_false,
    require,
    require_choice,
    require_instance,
    require_integer,
    require_key,
    require_mask,
    require_undisclosed,
)
from dpsco_jax._given import plain, require_held, require_one_order
from dpsco_jax._redact import described
from dpsco_jax.problems import users as _users
from dpsco_jax.problems._grouping import (
    checked_rows,
    checked_users,
    group_starts,
    identified,
    shuffled,
    slots_within,
)
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData


class ElementData(NamedTuple):
    """Items of all users, by elements.

    Attributes:
        items: pytree of arrays ``[users, slots, items, ...]``; zeros where masked out. A slot is an element.
        mask: which items are there, ``[users, slots, items]``; ``None`` if all are.
    """

    items: PyTree
    mask: Bool[Array | np.ndarray, "users slots items"] | None = None


def num_users(data: ElementData) -> int:
    """Number of users n: what the objective is a mean over; static and public."""
    return _shape(data)[0]


def num_slots(data: ElementData) -> int:
    """Units of a user, empty ones included: K, or the bound where they are packed; static and public."""
    return _shape(data)[1]


def elements_of_users(data: ElementData) -> Int[Array, "users"]:
    """Number of non-empty elements of each user (private: it is a fact about that user)."""
    users, slots, items = _shape(data)
    if data.mask is None:
        return jnp.full(users, slots if items else 0, jnp.int32)
    return jnp.sum(jnp.any(of_true_and_false(data.mask), axis=2), axis=1, dtype=jnp.int32)


def as_units(data: ElementData) -> UserData:
    """The units as if they were users, n·K of them: unit u·K + k is slot k of user u.

    A unit that is empty is a row whose mask is False throughout: its loss and gradient are zero, so that
    neither shapes nor the law of a sample show which elements a user has. Divide by users, not by units.
    """
    users, slots, _ = _shape(data)

    def flat(leaf: Any) -> Any:
        return leaf.reshape(users * slots, *leaf.shape[2:])

    mask = None if data.mask is None else flat(of_true_and_false(data.mask))
    return UserData(jax.tree.map(flat, data.items), mask)


def element_loss(objective: Objective) -> Callable[[PyTree, PyTree, Any], Any]:
    """The loss of one user, E (10): the sum over elements of the mean over the element's items.

    ``(params, items, mask) -> scalar`` with leaves ``[slots, items, ...]`` and a mask ``[slots, items]`` or
    ``None``. Empty elements count as zero. With losses that are L-Lipschitz it is k·L-Lipschitz, k the number
    of the user's elements.
    """
    one_unit = _users.user_loss(objective)

    def loss(params: PyTree, items: PyTree, mask: Any) -> Float[Array, ""]:
        axes = (None, 0, None if mask is None else 0)
        return jnp.sum(jax.vmap(one_unit, in_axes=axes)(params, items, mask))

    return loss


def mean_element_loss(objective: Objective) -> Callable[[PyTree, ElementData], Any]:
    """The objective itself, E (11): ``(params, data) -> scalar``, the mean over users plus the regularizer.

    A fact about the private data: for reports and for reference optima, not for release.
    """
    one_user = element_loss(objective)

    def loss(params: PyTree, data: ElementData) -> Float[Array, ""]:
        _shape(data)
        mask = None if data.mask is None else of_true_and_false(data.mask)
        axes = (None, 0, None if mask is None else 0)
        losses = jax.vmap(one_user, in_axes=axes)(params, data.items, mask)
        return jnp.mean(losses) + objective.regularizer(params)

    return loss


def from_rows(
    key: Key[Array, ""],
    users: Any,
    elements: Any,
    rows: PyTree,
    num_elements: int | np.integer,
    items_per_element: int | np.integer | None,
    *,
    elements_per_user: int | np.integer | None = None,
    members: Any = None,
    kept: Bool[np.ndarray, "rows"] | None = None,
    keep: str = "random",
    order: str = "random",
) -> ElementData:
    """Rows grouped by user and element, at most ``items_per_element`` of each, padded with zeros.

    Args:
        key: decides which items are kept and the order of the users; used once.
        users: who each row belongs to, ``[rows]``; any sortable values without missing ones.
        elements: of each row, an integer in [0, num_elements), by a public rule that looks at that row alone
            (``partition.Partition``).
        rows: pytree of NumPy arrays ``[rows, ...]`` of real numbers or booleans, whose values are not looked
            at.
        num_elements: K, public.
        items_per_element: public bound on the items kept of a unit, and number of item slots. ``None`` keeps
            all, and the number of slots is then a fact about the data.
        elements_per_user: public bound on the non-empty elements of a user, at most K, and number of slots,
            in which they are packed; ``None`` for a slot for each of the K elements.
        members: all users, each named once; those without rows have empty units. If left out, the users are
            those of the rows, and it is taken as public that each of them has a row: a user whose only
            element was emptied would be missing.
        kept: which rows count; all if left out. A user without any stays.
        keep: what a unit with too many items keeps: ``"random"``, a uniformly random subset, or ``"first"``,
            the first in the order of the rows; in that order either way.
        order: of users, ``"random"`` or ``"sorted"``; see ``tables.from_rows``.

    Raises:
        ValueError: if lengths or indexes of pandas differ, rows are not numbers or not such as JAX holds (see
            ``tables.from_rows``), an array is masked, a user is missing or no member, an element is out of
            range, a user has more elements than the bound (the message does not say who), or another argument
            is out of range.
    """
    require_key(key)
    num_elements = require_integer("num_elements", num_elements, 1, 2**31 - 1)
    if items_per_element is not None:
        items_per_element = require_integer("items_per_element", items_per_element, 1)
    if elements_per_user is not None:
        elements_per_user = require_integer("elements_per_user", elements_per_user, 1, num_elements)
    require_choice("keep", keep, ("random", "first"))
    require_choice("order", order, ("random", "sorted"))
    require_one_order(users=users, elements=elements, rows=rows, kept=kept)
    users = checked_users(users)
    rows = checked_rows(rows, users)
    element = _checked_elements(elements, users.shape, num_elements)
    everyone, position = _members(users, members)
    kept = np.ones(len(users), bool) if kept is None else plain("kept", kept)
    kept = require_mask("kept", kept, users.shape)

    seed = np.asarray(jax.random.key_data(key)).tolist()
    chosen = np.flatnonzero(kept)
    chosen = chosen[np.lexsort((element[chosen], position[chosen]))]
    units = np.stack([position[chosen], element[chosen]], axis=1)
    starts = group_starts(units)
    owner, sizes = units[starts, 0], np.diff(starts, append=len(units))
    held = np.bincount(owner, minlength=everyone)
    fits = elements_per_user is None or held.max(initial=0) <= elements_per_user
    require_undisclosed(
        fits, "elements_per_user", "at least the number of elements of every user (none is dropped)"
    )
    items = int(sizes.max(initial=0)) if items_per_element is None else items_per_element
    inside, item = slots_within(seed, units, items, keep)
    slot = units[:, 1]
    if elements_per_user is not None:
        first = np.cumsum(held) - held
        slot = (np.arange(len(starts)) - first[owner]).repeat(sizes)
    place = shuffled(seed, everyone) if order == "random" else np.arange(everyone)
    at = place[units[inside, 0]], slot[inside], item[inside]
    shape = everyone, num_elements if elements_per_user is None else elements_per_user, items

    def grid(leaf: np.ndarray) -> jax.Array:
        padded = np.zeros((*shape, *leaf.shape[1:]), leaf.dtype)
        padded[at] = leaf[chosen[inside]]
        return jnp.asarray(padded)

    mask = np.zeros(shape, bool)
    mask[at] = True
    return ElementData(jax.tree.map(grid, rows), jnp.asarray(mask))


def _shape(data: ElementData) -> tuple[int, int, int]:
    require_instance("data", data, ElementData)
    require_held("data", data)
    leaves = jax.tree.leaves(data.items)
    shapes = {jnp.shape(leaf)[:3] for leaf in leaves}
    good = len(shapes) == 1 and all(len(shape) == 3 for shape in shapes)
    require(good, "data.items", described(data.items), "arrays [users, slots, items, ...]")
    users, slots, items = next(iter(shapes))
    if data.mask is not None:
        require_mask("data.mask", data.mask, (users, slots, items))
    return users, slots, items


def _checked_elements(elements: Any, shape: tuple[int, ...], num_elements: int) -> np.ndarray:
    elements = plain("elements", elements)
    whole = elements.dtype.kind in "iu" and elements.shape == shape
    require(whole, "elements", described(elements), f"integers, one for each row: {shape}")
    inside = (elements >= 0) & (elements < num_elements)
    require_undisclosed(inside, "elements", f"in [0, {num_elements})")
    return elements.astype(np.int64)


def _members(users: np.ndarray, members: Any) -> tuple[int, np.ndarray]:
    """Number of users, and the place of each row's user among them in ascending order."""
    identifiers, position = identified(users)
    if members is None:
        return len(identifiers), position
    listed = checked_users(members)
    everyone = identified(listed)[0]
    require(len(everyone) == len(listed), "members", described(listed), "different users")
    # By Python's numbers: NumPy's of two integer types may meet in float64, where several are one.
    places = {member: place for place, member in enumerate(everyone.tolist())}
    among = np.array([places.get(user, -1) for user in identifiers.tolist()], np.int64)
    require_undisclosed(among >= 0, "users", "among members")
    return len(everyone), among[position]
