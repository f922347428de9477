"""Users whose data fall into elements, drawn from a key: logistic regression.

What it computes: ``logistic``, a hierarchical logistic regression in which the slope is the same whatever the
partition is.

Source: E section 4.1.

Formal guarantee: none; elements are those that points were drawn from and do not depend on other points.

Cost: users × items × dim random numbers, and memory of the layout of ``elements.from_rows``.

Example:
    >>> import jax
    >>> from dpsco_jax.problems import elements, synthetic_elements
    >>> made = synthetic_elements.logistic(jax.random.key(0), num_users=20, elements_per_user=2)
    >>> elements.num_users(made.data), elements.num_slots(made.data), made.params.shape
    (20, 10, (10,))
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from dpsco_jax import _checks
from dpsco_jax.geometry.domains import Domain
from dpsco_jax.problems import elements, losses
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example, Objective


class ElementInstance(NamedTuple):
    """A problem over elements whose population minimizer is known.

    Attributes:
        objective: the loss of an item; that of a user is ``elements.element_loss``.
        data: users × slots × items.
        params: the slope that labels were drawn from, which minimizes the population's loss of every
            partition; float64 ``[dim]``.
        centres: ``[elements, dim]``.
    """

    objective: Objective
    data: ElementData
    params: Float[np.ndarray, "dim"]
    centres: Float[np.ndarray, "elements dim"]


def logistic(
    key: Key[Array, ""],
    num_users: int,
    elements_per_user: int,
    items_per_user: int = 50,
    num_elements: int = 10,
    dim: int = 10,
    items_per_element: int | None = None,
    packed: bool = False,
    domain: Domain | None = None,
    ridge: float = 0.0,
) -> ElementInstance:
    """Logistic regression on points around the centres of a user's elements.

    Centres and slope are uniform on the unit sphere. A user has a uniformly random set of k elements; each
    point is the centre of one of them, drawn uniformly, plus a point uniform on the unit sphere, so features
    have norm at most 2, which is the feature bound. The label is 1 with probability sigmoid(<slope, x>).

    Args:
        key: used once.
        num_users: n, at least 1.
        elements_per_user: k in [1, num_elements]; a user may have no point in some of them.
        items_per_user: m, at least 1.
        num_elements: K, at least 1.
        dim: at least 1.
        items_per_element: slots of an element, of which as many points are kept; ``None`` for as many as any
            unit has, and then a shape depends on the key.
        packed: whether there is a slot for each of the user's k elements, or one for each of all K.
        domain: of the parameters; ``None`` is the whole space.
        ridge: λ of the regularizer (λ/2)·‖params‖².
    """
    _checks.require_key(key)
    _checks.require_each(
        _checks.require_count,
        num_users=num_users,
        items_per_user=items_per_user,
        num_elements=num_elements,
        dim=dim,
    )
    _checks.require_integer("elements_per_user", elements_per_user, 1, num_elements)
    _checks.require_flag("packed", packed)
    objective = losses.logistic(feature_bound=2.0, domain=domain, ridge=ridge)
    data_key, key = jax.random.split(key)
    sizes = num_users, elements_per_user, items_per_user, num_elements, dim
    centres, slope, element, features, labels = _logistic(data_key, *sizes)
    rows = Example(
        np.asarray(features).reshape(-1, dim), np.asarray(labels, np.float32).reshape(-1)
    )
    data = elements.from_rows(
        key,
        np.arange(num_users).repeat(items_per_user),
        np.asarray(element).reshape(-1),
        rows,
        num_elements,
        items_per_element,
        elements_per_user=elements_per_user if packed else None,
        order="sorted",
    )
    return ElementInstance(objective, data, np.asarray(slope, np.float64), np.asarray(centres))


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4, 5))
def _logistic(
    key: Any, num_users: int, held: int, items_per_user: int, num_elements: int, dim: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Centres, slope, and of every item of every user the element, the features and the label."""
    keys = jax.random.split(key, 6)
    centres = _sphere(keys[0], (num_elements, dim))
    slope = _sphere(keys[1], (dim,))
    every = jnp.broadcast_to(jnp.arange(num_elements), (num_users, num_elements))
    sets = jax.random.permutation(keys[2], every, axis=1, independent=True)[:, :held]
    which = jax.random.randint(keys[3], (num_users, items_per_user), 0, held)
    element = jnp.take_along_axis(sets, which, axis=1)
    features = centres[element] + _sphere(keys[4], (*element.shape, dim))
    labels = jax.random.bernoulli(keys[5], jax.nn.sigmoid(features @ slope))
    return centres, slope, element, features, labels


def _sphere(key: Any, shape: tuple[int, ...]) -> Array:
    """Uniform on the unit sphere of the last axis."""
    normal = jax.random.normal(key, shape)
    return normal / jnp.linalg.norm(normal, axis=-1, keepdims=True)
