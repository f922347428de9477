"""Centres of public data: k-means with the seeding that spreads them.

What it computes: D² seeding (a next centre is a row, drawn with probability proportional to its squared
distance from those drawn so far), then Lloyd's iterations until no row moves. A cluster without rows starts
again at the row that is farthest from its centre.

Source: Arthur and Vassilvitskii 2007 (k-means++); Lloyd 1982; E sections 4.1 to 4.4.

Formal guarantee: none: the centres are a function of the rows without noise. They make a ``Partition`` only
if the caller says that the rows are public.

Cost: rows × clusters × dim for the seeding and for each iteration; memory for the rows, which are padded, and
for a chunk of distances. What it finds depends on the rows and the key; sums are made in float32.

Example:
    >>> import jax, numpy as np
    >>> from dpsco_jax.problems import kmeans
    >>> rows = np.concatenate([np.zeros((5, 2)), np.ones((5, 2))]) + 0.01 * np.arange(10)[:, None]
    >>> found = kmeans.kmeans_pp(jax.random.key(0), rows, 2, public=True)
    >>> found.partition.num_elements, sorted(np.round(found.centres[:, 0], 2).tolist())
    (2, [0.02, 1.07])
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from dpsco_jax._checks import (
    require,
    require_count,
    require_flag,
    require_integer,
    require_key,
    require_number,
)
from dpsco_jax._given import plain
from dpsco_jax._redact import described
from dpsco_jax.problems.partition import Partition

__all__ = ["Clusters", "kmeans_pp", "lloyd"]


class Clusters(NamedTuple):
    """What k-means has found.

    Attributes:
        centres: float32 ``[clusters, dim]``.
        inertias: the sum of squared distances to the nearest centre, before each iteration and at the end.
        public: what the caller said of the rows.
    """

    centres: Float[np.ndarray, "clusters dim"]
    inertias: Float[np.ndarray, "steps"]
    public: bool

    @property
    def partition(self) -> Partition:
        """The partition by these centres; ``ValueError`` unless the rows were said to be public."""
        return Partition(self.centres, public=self.public)


def kmeans_pp(
    key: Key[Array, ""],
    rows: Any,
    num_clusters: int,
    *,
    public: bool,
    max_steps: int = 100,
    memory: int = 2**28,
) -> Clusters:
    """Seeds by squared distances, then Lloyd's iterations.

    Args:
        key: draws the seeds; used once.
        rows: ``[rows, dim]``, finite; public data, or rows of users who take no part in what follows.
        num_clusters: K in [1, rows].
        public: whether the rows are public. The result remembers it, and makes no partition otherwise.
        max_steps: most iterations.
        memory: bytes for the distances that are held at once.

    Raises:
        ValueError: rows are not finite.
    """
    require_key(key)
    require_flag("public", public)
    max_steps, memory = require_count("max_steps", max_steps), require_count("memory", memory)
    rows = _checked("rows", rows)
    num_clusters = require_integer("num_clusters", num_clusters, 1, len(rows))
    seeds = _seeds(key, rows, num_clusters)
    return lloyd(rows, seeds, public=public, max_steps=max_steps, memory=memory)


def lloyd(
    rows: Any, centres: Any, *, public: bool, max_steps: int = 100, memory: int = 2**28
) -> Clusters:
    """Lloyd's iterations from given centres: each moves to the mean of the rows that it is nearest to.

    Args:
        rows: ``[rows, dim]``, finite.
        centres: ``[clusters, dim]``, finite, no more than rows.
        public: whether both are public.
        max_steps: most iterations; they end once no row changes its cluster.
        memory: bytes for the distances that are held at once; one row takes 4·clusters bytes.
    """
    require_flag("public", public)
    max_steps, memory = require_count("max_steps", max_steps), require_count("memory", memory)
    rows, centres = _checked("rows", rows), _checked("centres", centres)
    fits = centres.shape[1] == rows.shape[1] and len(centres) <= len(rows)
    require(fits, "centres", centres.shape, f"of rows' dim {rows.shape[1]} and at most {len(rows)}")
    chunk = min(len(rows), max(1, memory // (4 * len(centres))))
    found, inertias, steps = _lloyd(rows, centres, max_steps, chunk)
    return Clusters(np.asarray(found), np.asarray(inertias)[: int(steps) + 1], bool(public))


def _checked(name: str, rows: Any) -> Array:
    require_number(name, rows, "an array [rows, dim]")
    with np.errstate(over="ignore"):
        rows = plain(name, rows).astype(np.float32)
    good = rows.ndim == 2 and min(rows.shape) >= 1 and bool(np.isfinite(rows).all())
    require(good, name, described(rows), "a finite array [rows, dim] with at least one row")
    return jnp.asarray(rows)


@functools.partial(jax.jit, static_argnums=2)
def _seeds(key: Array, rows: Array, num_clusters: int) -> Array:
    first_key, key = jax.random.split(key)
    first = jax.random.randint(first_key, (), 0, len(rows))

    def pick(nearest: Array, key: Array) -> tuple[Array, Array]:
        # A row that is a centre has weight zero and log weight -inf: it is drawn only if all are.
        place = jax.random.categorical(key, jnp.log(nearest))
        return jnp.minimum(nearest, _squares(rows, rows[place])), rows[place]

    keys = jax.random.split(key, num_clusters - 1)
    _, others = jax.lax.scan(pick, _squares(rows, rows[first]), keys)
    return jnp.concatenate([rows[first][None], others])


def _squares(rows: Array, centres: Array) -> Array:
    return jnp.sum(jnp.square(rows - centres), axis=-1)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _lloyd(rows: Array, centres: Array, max_steps: int, chunk: int) -> tuple[Array, Array, Array]:
    """Centres, inertias ``[max_steps + 1]``, and how many iterations were made."""
    num_rows, clusters = len(rows), len(centres)
    spare = -num_rows % chunk
    padded = jnp.pad(rows, ((0, spare), (0, 0))).reshape(-1, chunk, rows.shape[1])
    counted = jnp.pad(jnp.ones(num_rows, bool), (0, spare)).reshape(-1, chunk)

    def look(centres: Array) -> tuple[Array, Array, Array, Array]:
        """Sums of rows and numbers of rows of each cluster; of each row its cluster and squared distance."""
        halves = 0.5 * jnp.sum(jnp.square(centres), axis=1)

        def one(totals: tuple[Array, Array], part: tuple[Array, Array]) -> Any:
            points, there = part
            label = jnp.argmin(halves - points @ centres.T, axis=1)
            square = jnp.where(there, _squares(points, centres[label]), 0.0)
            label = jnp.where(there, label, clusters)  # padding is in no segment
            sums = jax.ops.segment_sum(points, label, clusters)
            counts = jax.ops.segment_sum(there.astype(jnp.int32), label, clusters)
            return (totals[0] + sums, totals[1] + counts), (label, square)

        nothing = jnp.zeros_like(centres), jnp.zeros(clusters, jnp.int32)
        (sums, counts), (labels, squares) = jax.lax.scan(one, nothing, (padded, counted))
        return sums, counts, labels.ravel()[:num_rows], squares.ravel()[:num_rows]

    def moved(centres: Array, sums: Array, counts: Array, squares: Array) -> Array:
        empty = counts == 0
        _, farthest = jax.lax.top_k(squares, clusters)
        instead = rows[farthest[jnp.cumsum(empty) - 1]]
        means = sums / jnp.maximum(counts, 1)[:, None]
        return jnp.where(empty[:, None], instead, means)

    def go_on(state: tuple[Any, ...]) -> Array:
        return state[-1] & (state[4] < max_steps)

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        centres, (sums, counts, labels, squares), inertias, _, steps, _ = state
        centres = moved(centres, sums, counts, squares)
        seen = look(centres)
        inertias = inertias.at[steps + 1].set(jnp.sum(seen[3]))
        return centres, seen, inertias, labels, steps + 1, jnp.any(seen[2] != labels)

    seen = look(centres)
    inertias = jnp.full(max_steps + 1, jnp.nan).at[0].set(jnp.sum(seen[3]))
    start = centres, seen, inertias, seen[2], jnp.zeros((), jnp.int32), jnp.asarray(True)
    centres, _, inertias, _, steps, _ = jax.lax.while_loop(go_on, step, start)
    return centres, inertias, steps
