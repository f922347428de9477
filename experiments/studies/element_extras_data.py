"""The data sets of ``element-extras``: simulated logistic regression over elements, and its least values.

What it computes: a data set for each seed, isotropic, or with features of scales from 1 to 1/10, whose labels
are drawn again from the scaled features and a slope that weighs all directions alike.

Source: E section 4.2; the scales are ours.

Formal guarantee: none; the data are drawn from keys.

Cost: some seconds, once per process.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax.problems import elements, synthetic_elements
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.users import UserData

TASKS = ("isotropic", "skewed")
DIM, SMALLEST, BOUND = 10, 0.1, 2.0
_NEWTON = 12


class Drawn(NamedTuple):
    """Data sets of all seeds, ``[seeds, ...]``: units, and the least value of their objective."""

    units: UserData
    least: jax.Array


def scales_of(task: str) -> np.ndarray:
    """Public scales of the features, ``[dim]``."""
    return np.geomspace(1.0, SMALLEST, DIM) if task == "skewed" else np.ones(DIM)


def element_value(params: Any, units: UserData) -> jax.Array:
    """The sum over units of the mean loss of a unit's items."""
    features, labels = units.items
    mask = jnp.asarray(units.mask)
    margins = features @ params
    each = jax.nn.softplus(margins) - labels * margins
    count = jnp.maximum(jnp.sum(mask, axis=1), 1)
    return jnp.sum(jnp.sum(jnp.where(mask, each, 0.0), axis=1) / count)


@functools.cache
def data_sets(
    task: str, slots: int, first: int, seeds: int, num_users: int, items_per_user: int
) -> Drawn:
    """A data set for each seed, labels drawn again from the scaled features; and the least values."""
    made = [_draw(task, slots, first + s, num_users, items_per_user) for s in range(seeds)]
    units: UserData = jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)
    least = [element_value(_minimizer(one), one) / num_users for one in made]
    return Drawn(units, jnp.stack(least))


def _draw(task: str, slots: int, seed: int, num_users: int, items_per_user: int) -> UserData:
    mean = items_per_user / slots
    kept = min(items_per_user, math.ceil(mean + 5 * math.sqrt(mean)))
    key, label_key = jax.random.split(jax.random.key(9000 + 100 * slots + seed))
    sizes = (num_users, slots, items_per_user, 10, DIM)
    drawn = synthetic_elements.logistic(key, *sizes, items_per_element=kept, packed=True)
    data: ElementData = drawn.data
    features = data.items.features * scales_of(task).astype(np.float32)
    # Directions of small scale matter as much to the labels as others.
    slope = drawn.params / scales_of(task)
    slope /= max(1.0, float(np.linalg.norm(slope)))
    chances = jax.nn.sigmoid(features @ slope.astype(np.float32))
    labels = jax.random.bernoulli(label_key, chances).astype(jnp.float32)
    units: UserData = elements.as_units(
        data._replace(items=data.items._replace(features=features, label=labels))
    )
    return jax.tree.map(jnp.asarray, units)


def _minimizer(units: UserData) -> jax.Array:
    """By Newton's method, in float32."""

    def step(_: Any, point: jax.Array) -> jax.Array:
        value = functools.partial(element_value, units=units)
        move = jnp.linalg.solve(jax.hessian(value)(point), jax.grad(value)(point))
        return point - move

    found: jax.Array = jax.jit(lambda start: jax.lax.fori_loop(0, _NEWTON, step, start))(
        jnp.zeros(DIM)
    )
    return found
