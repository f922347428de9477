"""The data sets of ``element-logistic``, and the names of its methods.

What it computes: a data set for each seed, with a slot for each of a user's elements, and in the forms that
methods read: a single element a user, or a slot for each of all 10 elements.

Source: E section 4.2.

Formal guarantee: none; the data are drawn from keys.

Cost: memory for all seeds, 10⁷ numbers for 20 of them.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.problems import losses, synthetic_elements
from dpsco_jax.problems.elements import ElementData

ELEMENT, USER, PRINTED = "element", "user", "user, printed"
SAMPLED, CAPPED = "users sampled", "users sampled, cap 2"
ELEMENT_PLAN, USER_PLAN = "element, plan", "user, plan"
METHODS = (ELEMENT, USER, PRINTED, SAMPLED, CAPPED, ELEMENT_PLAN, USER_PLAN)
ELEMENT_LEVEL = (ELEMENT, SAMPLED, CAPPED, ELEMENT_PLAN)
UNTUNED = (ELEMENT_PLAN, USER_PLAN)
NUM_ELEMENTS, DIM, CAP = 10, 10, 2.0
INFINITE = "inf"
OBJECTIVE = losses.logistic(feature_bound=2.0)


class Data(NamedTuple):
    """Data sets of all seeds: ``[seeds, users, k, points, ...]``, and their slopes."""

    units: ElementData
    slopes: jax.Array


@functools.cache
def data_sets(slots: int, seeds: int, num_users: int, items_per_user: int) -> Data:
    """A data set for each seed. An element keeps as many points as all but about one in 10⁴ have."""
    mean, share = items_per_user / slots, 1 - 1 / slots
    kept = min(items_per_user, math.ceil(mean + 5 * math.sqrt(mean * share)))
    made = [
        synthetic_elements.logistic(
            jax.random.key(1000 * slots + seed),
            num_users,
            slots,
            items_per_user,
            NUM_ELEMENTS,
            DIM,
            items_per_element=kept,
            packed=True,
        )
        for seed in range(seeds)
    ]
    units = jax.tree.map(lambda *leaves: np.stack(leaves), *(one.data for one in made))
    return Data(units, jnp.stack([jnp.asarray(one.params, jnp.float32) for one in made]))


def rearranged(data: ElementData, method: str) -> ElementData:
    """A single element for users as records, a slot for each of the 10 elements for the printed baseline."""
    if method in (USER, USER_PLAN):
        return jax.tree.map(lambda leaf: leaf.reshape(len(leaf), 1, -1, *leaf.shape[3:]), data)
    if method == PRINTED:

        def padded(leaf: jax.Array) -> jax.Array:
            more = NUM_ELEMENTS - leaf.shape[1]
            return jnp.pad(leaf, [(0, 0), (0, more)] + [(0, 0)] * (leaf.ndim - 2))

        return jax.tree.map(padded, data)
    return data
