"""Adversarial neighbours: a search for the pair of data sets that moves a statistic most.

A declared sensitivity is an upper bound over all pairs of neighbours. ``worst_pair`` tries to break it:
special records (zero, opposite, huge, tiny, NaN, infinite, one-hot) in every combination, then hill
climbing from the worst pair found. The distance is computed in float64, whatever the dtype of the data.
A statistic that is right stays below its bound; one that is tight comes near it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

Statistic = Callable[[Any, Any], Any]


class Pair(NamedTuple):
    """Two neighbouring data sets and how far apart the statistic puts them."""

    distance: float
    data: np.ndarray
    mask: np.ndarray
    neighbour: np.ndarray
    neighbour_mask: np.ndarray


def special_records(shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> np.ndarray:
    """Records that break careless code, stacked on the leading axis, in the given dtype."""
    direction = rng.standard_normal(shape)
    direction /= np.linalg.norm(direction)
    one_hot = np.zeros(shape)
    one_hot.flat[rng.integers(one_hot.size)] = 1.0
    largest = float(jnp.finfo(dtype).max)
    sizes = [1e-30, 1e-8, 0.5, 1.0, 1.0 + 1e-3, 3.0, 300.0, 0.9 * largest, min(1e30, 0.9 * largest)]
    records = [sign * size * direction for size in sizes for sign in (1.0, -1.0)]
    records += [one_hot, -one_hot, 1e4 * one_hot, np.full(shape, 0.9 * largest), np.zeros(shape)]
    for bad in (np.nan, np.inf, -np.inf):
        spoiled = direction.copy()
        spoiled.flat[rng.integers(spoiled.size)] = bad
        records += [spoiled, np.full(shape, bad)]
    with np.errstate(over="ignore"):
        return np.stack(records).astype(jnp.dtype(dtype))


def worst_pair(
    statistic: Statistic,
    num_users: int,
    record_shape: tuple[int, ...],
    relation: NeighboringRelation,
    *,
    dtype: Any = jnp.float32,
    rounds: int = 12,
    population: int = 128,
    seed: int = 0,
) -> Pair:
    """The worst pair found for a statistic of user records.

    Args:
        statistic: ``statistic(data, mask)``, data ``[num_users, *record_shape]``, mask bool
            ``[num_users]``; returns any pytree of arrays. Must work under jit and vmap.
        num_users: users in the data set, masked ones included.
        record_shape: shape of one user's record.
        relation: ``REPLACE_ONE`` changes the record of one user; otherwise one user is masked out.
        dtype: floating dtype of the records.
        rounds: rounds of hill climbing after the first, random one.
        population: pairs tried in each round.
        seed: of the search.
    """
    rng = np.random.default_rng(seed)
    replace = relation is NeighboringRelation.REPLACE_ONE
    batched = jax.jit(jax.vmap(statistic))

    def distances(pairs: tuple[np.ndarray, ...]) -> np.ndarray:
        data, mask, neighbour, neighbour_mask = pairs
        first = jax.tree.leaves(batched(jnp.asarray(data), mask))
        second = jax.tree.leaves(batched(jnp.asarray(neighbour), neighbour_mask))
        total = np.zeros(len(mask))
        for a, b in zip(first, second, strict=True):
            with np.errstate(all="ignore"):
                gap = np.asarray(a, np.float64) - np.asarray(b, np.float64)
                total += np.sum(gap.reshape(len(mask), -1) ** 2, axis=1)
        # A NaN in the statistic is as far as anything can be: it tells the data sets apart.
        return np.where(np.isnan(total), np.inf, np.sqrt(total))

    def random_records(count: int) -> np.ndarray:
        pool = special_records(record_shape, dtype, rng)
        return pool[rng.integers(len(pool), size=count)]

    def random_pairs() -> tuple[np.ndarray, ...]:
        data = random_records(population * num_users).reshape(population, num_users, *record_shape)
        mask = rng.random((population, num_users)) < rng.choice([0.5, 1.0], size=(population, 1))
        mask[:, 0] = True
        return finish(data, mask, random_records(population))

    def finish(data, mask, changed) -> tuple[np.ndarray, ...]:
        neighbour, neighbour_mask = data.copy(), mask.copy()
        if replace:
            neighbour[:, 0] = changed
        else:
            neighbour_mask[:, 0] = False
        return data, mask, neighbour, neighbour_mask

    def climb(best: Pair) -> tuple[np.ndarray, ...]:
        data = np.repeat(best.data[None], population, axis=0)
        mask = np.repeat(best.mask[None], population, axis=0)
        changed = np.repeat(best.neighbour[None, 0], population, axis=0)
        with np.errstate(all="ignore"):
            for records in (data[:, 0], changed):
                scale = np.exp(rng.normal(0.0, 1.0, (population, *[1] * len(record_shape))))
                noise = (
                    rng.standard_normal(records.shape)
                    * rng.choice([0.0, 0.1, 1.0], population)[
                        (slice(None), *[None] * len(record_shape))
                    ]
                )
                records[...] = (records.astype(np.float64) * scale + noise).astype(records.dtype)
            opposite = rng.random(population) < 0.3
            changed[opposite] = -data[opposite, 0]
        others = rng.random((population, num_users)) < 0.2
        others[:, 0] = False
        data[others] = random_records(int(others.sum()))
        return finish(data, mask, changed)

    best = Pair(-1.0, *(np.zeros(0),) * 4)
    for _ in range(rounds + 1):
        pairs = random_pairs() if best.distance < 0 else climb(best)
        found = distances(pairs)
        index = int(np.argmax(found))
        if found[index] > best.distance:
            best = Pair(float(found[index]), *(part[index] for part in pairs))
    return best
