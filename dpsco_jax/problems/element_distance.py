"""How far two data sets are apart, in elements of users: the distance that neighbours are defined by.

What it computes: the least number of units by which two data sets of as many users differ, over all ways to
match their users.

Source: E (2), (3), Definition 2.3.

Formal guarantee: none: a fact about both data sets, for tests and for the data holder. With one element it is
the number of users who differ, and neighbours are those of REPLACE_ONE over users.

Cost: users² × slots comparisons and an assignment problem, on the host.

Example:
    >>> import numpy as np
    >>> from dpsco_jax.problems import element_distance
    >>> from dpsco_jax.problems.elements import ElementData
    >>> one = ElementData(np.array([[[1.0], [2.0]], [[3.0], [4.0]]]))
    >>> two = ElementData(np.array([[[3.0], [4.0]], [[1.0], [5.0]]]))
    >>> element_distance.element_distance(one, two)
    1
"""

from typing import Any

import jax
import numpy as np
import scipy.optimize

from dpsco_jax._checks import require, require_instance
from dpsco_jax._redact import described
from dpsco_jax.problems.elements import ElementData, num_slots, num_users

__all__ = ["are_element_neighbours", "element_distance"]


def element_distance(data: ElementData, other: ElementData) -> int:
    """d_element: over all matchings of the users, the least number of elements with different items in all.

    Items of an element are compared as a multiset, bit by bit (0.0 and -0.0 are the same, as are all NaNs).

    Args:
        data: in the dense layout, in which a slot is an element.
        other: of as many users and elements, with items of the same form.

    Raises:
        ValueError: the two are not of the same form.
    """
    require_instance("other", other, ElementData)
    same = num_users(data) == num_users(other) and num_slots(data) == num_slots(other)
    forms = [
        (jax.tree.structure(d.items), [np.shape(leaf)[3:] for leaf in jax.tree.leaves(d.items)])
        for d in (data, other)
    ]
    require(
        same and forms[0] == forms[1],
        "other",
        described(other.items),
        "of as many users and elements as data, with items of the same form",
    )
    known: dict[Any, int] = {}
    contents, others = (_numbered(d, known) for d in (data, other))
    cost = np.stack([(row != others).sum(axis=1) for row in contents])
    rows, columns = scipy.optimize.linear_sum_assignment(cost)
    return int(cost[rows, columns].sum())


def are_element_neighbours(data: ElementData, other: ElementData) -> bool:
    """Whether one user's items in one element are all that differs, or nothing; see ``element_distance``."""
    return element_distance(data, other) <= 1


def _numbered(data: ElementData, known: dict[Any, int]) -> np.ndarray:
    """A number for the content of each unit, ``[users, slots]``: equal if and only if the multisets are."""
    users, slots = num_users(data), num_slots(data)
    leaves = [_canonical(leaf) for leaf in jax.tree.leaves(data.items)]
    items = leaves[0].shape[2]
    mask = np.ones((users, slots, items), bool) if data.mask is None else np.asarray(data.mask)
    numbers = np.empty((users, slots), np.int64)
    for user in range(users):
        for slot in range(slots):
            there = np.flatnonzero(mask[user, slot])
            content = sorted(tuple(leaf[user, slot, i].tobytes() for leaf in leaves) for i in there)
            numbers[user, slot] = known.setdefault(tuple(content), len(known))
    return numbers


def _canonical(leaf: Any) -> np.ndarray:
    """Numbers that compare by their bits: float64 holds every float32, and int64 every shorter integer."""
    leaf = np.asarray(leaf)
    if leaf.dtype.kind in "biu":
        return leaf.astype(np.int64)
    wide = leaf.astype(np.float64) + 0.0
    return np.where(np.isnan(wide), np.nan, wide)
