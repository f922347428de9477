"""Users whose data fall into elements, drawn from a key: logistic regression and words of a long-tailed law.

What it computes: ``logistic``, a hierarchical logistic regression in which the slope is the same whatever the
partition is; ``zipf_words``, words of users, all from one law or each with topics of their own.

Source: E sections 4.1 and 4.2; the offset of Zipf's law stands for stop words that were removed.

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
from jaxtyping import Array, Float, Int, Key

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


def zipf_law(
    num_words: int, exponent: float = 1.07, offset: float = 100.0
) -> Float[np.ndarray, "words"]:
    """Probabilities that fall as (j + offset)^(-exponent), j = 0, 1, ...; float64, with sum 1.

    Args:
        num_words: d, at least 1.
        exponent: nonnegative.
        offset: positive; how many more frequent words were removed.
    """
    num_words = _checks.require_count("num_words", num_words)
    _checks.require_nonnegative("exponent", exponent)
    _checks.require_positive("offset", offset)
    weights = (np.arange(num_words) + float(offset)) ** -float(exponent)
    return weights / weights.sum()


def zipf_words(
    key: Key[Array, ""],
    num_users: int,
    items_per_user: int,
    num_words: int,
    exponent: float = 1.07,
    offset: float = 100.0,
    topics: Int[np.ndarray, "words"] | None = None,
    concentration: float = 10.0,
) -> Int[np.ndarray, "users items"]:
    """The words of users, as many of each, of Zipf's law; in the form of ``histograms.frequencies``.

    Args:
        key: used once.
        num_users: n, at least 1.
        items_per_user: m, at least 1.
        num_words: d, at least 1.
        exponent: see ``zipf_law``.
        offset: see ``zipf_law``.
        topics: of each word, a number from 0 on. Each user then has a law of topics of their own, Dirichlet
            with a mean that is the topics' share of all words, so that the law of a word of a random user is
            Zipf's with and without topics. ``None`` for users who are all alike.
        concentration: positive; the sum of the Dirichlet parameters, the smaller the more users differ.

    Returns:
        int32 ``[users, items]``: the numbers of the words, sorted within a user.
    """
    _checks.require_key(key)
    num_users = _checks.require_count("num_users", num_users)
    items_per_user = _checks.require_count("items_per_user", items_per_user)
    _checks.require_positive("concentration", concentration)
    law = zipf_law(num_words, exponent, offset)
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    if topics is None:
        drawn = _draw(generator, law, (num_users, items_per_user))
        return np.sort(drawn, axis=1).astype(np.int32)
    topics = np.asarray(topics)
    whole = topics.shape == law.shape and topics.dtype.kind in "iu" and topics.min() >= 0
    _checks.require(whole, "topics", topics.shape, f"{num_words} integers, 0 or more")
    shares = np.bincount(topics, law)
    words = np.argsort(topics, kind="stable")
    upto = np.cumsum(law[words])
    ends = np.cumsum(shares)
    # A Dirichlet draw is one of gammas over their sum; a topic without words has no share.
    weights = generator.gamma(concentration * shares, size=(num_users, len(shares)))
    place = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
    out = np.empty((num_users, items_per_user), np.int32)
    for user in range(num_users):
        topic = np.searchsorted(place[user], generator.random(items_per_user), side="right")
        topic = np.minimum(topic, len(shares) - 1)
        level = ends[topic] - shares[topic] * (1 - generator.random(items_per_user))
        found = np.minimum(np.searchsorted(upto, level, side="right"), num_words - 1)
        out[user] = np.sort(words[found])
    return out


def _draw(generator: np.random.Generator, law: np.ndarray, shape: Any) -> np.ndarray:
    found = np.searchsorted(np.cumsum(law), generator.random(shape), side="right")
    return np.minimum(found, len(law) - 1)


def _sphere(key: Any, shape: tuple[int, ...]) -> Array:
    """Uniform on the unit sphere of the last axis."""
    normal = jax.random.normal(key, shape)
    return normal / jnp.linalg.norm(normal, axis=-1, keepdims=True)
