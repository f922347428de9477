"""Strongly convex calls whose sizes are numbers of a turn: one program for blocks of several sizes.

What it computes: what ``_calls.strongly_convex`` computes for the users of a turn, those at ``num_users``
positions from ``first`` on, with the same keys: the same users, shifts and noise (with the keys that JAX
makes by default; with others, of the same law). The numbers of users, queries, levels and phases are numbers
of the turn. Arrays have the sizes of the largest call of all turns; what lies beyond those of this turn is
not looked at.

Source: as ``_calls``.

Formal guarantee: as ``_calls``: a phase of a turn has the queries, the step size and the noise that it has
in a program of its own, and there are no phases beyond those of the turn. Users are drawn from its own.

Cost: steps as ``_calls``; a round of queries takes as long, and as much memory, as that of the largest call.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike

from dpsco_jax import _keys, _stacking
from dpsco_jax._checks import require
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms import _draws
from dpsco_jax.oracles import sampling
from dpsco_jax.solvers.resque import _calls
from dpsco_jax.solvers.resque._calls import Level, levels, reaches


@pytree
class Sizes:
    """The calls of a kind of one turn, or the stack of those of all turns.

    Attributes:
        most_queries: users of the largest call.
        draws: of a level; ``None`` where users may be drawn several times.
        num_users: n.
        num_drawn: users of a call.
        num_phases: of all levels together.
        num_queries: T of each level, ``[levels]``; beyond those of the turn, 1.
        beta_factor: of each level, ``[levels]``.
        starts: how many users are drawn for the levels before, ``[levels]``.
        phase_level: of each phase, ``[phases]``.
        phase_first: its first query.
        phase_count: how many queries it has.
        phase_scale: its step size over that of its level.
    """

    most_queries: int = static()
    draws: Any
    num_users: Number
    num_drawn: Number
    num_phases: Number
    num_queries: Number
    beta_factor: Number
    starts: Number
    phase_level: Number
    phase_first: Number
    phase_count: Number
    phase_scale: Number


class Users(NamedTuple):
    """What the calls of a turn have in common.

    Attributes:
        setting: with the prepared data of all users, and the numbers of the turn.
        first: position of the first user of the turn.
    """

    setting: _calls.Setting
    first: Any


def has_turns(num_users: int, num_queries: int, replacement: bool) -> bool:
    """Whether such calls can be turns: if users are different, a level needs at most half of them."""
    return replacement or 2 * _most_drawn(num_queries) <= num_users


def stacked(calls: Sequence[tuple[int, int]], replacement: bool) -> Sizes:
    """The calls of all turns, each number with an axis of turns in front.

    Args:
        calls: users and queries of each.
        replacement: whether a user may be drawn several times in a call.

    Raises:
        ValueError: a size is out of range, or there is no call.
    """
    require(len(calls) >= 1, "calls", calls, "at least one")
    for users, queries in calls:
        good = has_turns(users, queries, replacement)
        require(good, "num_queries", queries, f"so few that half of {users} users are enough")
    each = [levels(queries) for _, queries in calls]
    most_levels = max(map(len, each))
    phases = [[_phases(i, level) for i, level in enumerate(made)] for made in each]
    tables = [[row for one in made for row in one] for made in phases]
    most_phases = max(map(len, tables))
    needed = [[level.num_queries - 1 for level in made] for made in each]

    def padded(rows: Sequence[Sequence[float]], length: int, fill: float, dtype: Any) -> np.ndarray:
        full = [[*row, *[fill] * (length - len(row))] for row in rows]
        return np.asarray(full, dtype)

    def of_levels(rows: Sequence[Sequence[float]], fill: float, dtype: Any) -> np.ndarray:
        return padded(rows, most_levels, fill, dtype)

    def of_phases(which: int, dtype: Any) -> np.ndarray:
        return padded([[row[which] for row in table] for table in tables], most_phases, 0, dtype)

    counts = of_phases(1, np.int32)
    sizes = [(users, _most_drawn(queries)) for users, queries in calls]
    return Sizes(
        most_queries=max(map(sum, needed)),
        draws=None
        if replacement
        else _stacking.stacked([sampling.batch_of(*size) for size in sizes]),
        num_users=np.asarray([users for users, _ in calls], np.int32),
        num_drawn=np.asarray([sum(row) for row in needed], np.int32),
        num_phases=np.asarray([len(table) for table in tables], np.int32),
        num_queries=of_levels([[one.num_queries for one in made] for made in each], 1, np.float32),
        beta_factor=of_levels([[one.beta_factor for one in made] for made in each], 1, np.float32),
        starts=np.cumsum(of_levels(needed, 0, np.int32), axis=1, dtype=np.int32)
        - of_levels(needed, 0, np.int32),
        phase_level=of_phases(0, np.int32),
        phase_first=np.cumsum(counts, axis=1, dtype=np.int32) - counts,
        phase_count=counts,
        phase_scale=of_phases(2, np.float32),
    )


def _most_drawn(num_queries: int) -> int:
    """Users of the largest level of a call."""
    return max(level.num_queries for level in levels(num_queries)) - 1


def _phases(i: int, level: Level) -> list[tuple[int, int, float]]:
    """Of the phases of a level: the level, how many queries, the step size over that of the level."""
    return [(i, level.num_queries >> j, 0.25**j) for j in range(1, level.num_queries.bit_length())]


def strongly_convex(
    key: Array,
    users: Users,
    sizes: Sizes,
    center: Array,
    beta: ArrayLike,
    regularization: ArrayLike,
    anchor: Array,
) -> Array:
    """A point of the ball, as of ``_calls.strongly_convex``.

    Args:
        key: used once.
        users: of the turn.
        sizes: of one turn.
        center: of the ball, ``[dim]``.
        beta: of the call.
        regularization: λ > 0.
        anchor: of the quadratic term, and the start of the first level.
    """
    setting, dim = users.setting, center.shape[0]
    users_key, shifts_key, noise_key = jax.random.split(key, 3)
    drawn = users.first + _draw_users(users_key, sizes, setting.replacement)
    normal = functools.partial(_normal, sizes.num_drawn)
    queries = _calls.query(shifts_key, setting, drawn, center, normal)
    table = tuple(map(Level, jnp.asarray(sizes.num_queries), jnp.asarray(sizes.beta_factor)))
    constant = _calls.BEST_CONSTANT
    far = reaches(table, dim, beta, setting.lipschitz, regularization, setting.radius, constant)
    betas = beta * jnp.asarray(sizes.beta_factor)
    longest = jnp.minimum(1.0 / jnp.sqrt(sizes.num_queries), betas / math.sqrt(dim))
    steps = (jnp.stack(far) / setting.lipschitz) * longest
    lengths = steps[sizes.phase_level] * sizes.phase_scale
    noises = _calls.HEAD_ROOM * setting.lipschitz * lengths / betas[sizes.phase_level]
    noises = jnp.maximum(noises, _calls.LEAST_DEVIATION)
    pull = regularization * (anchor - center)

    def phase(i: Array, offset: Array) -> Array:
        which = i, sizes.phase_first[i], sizes.phase_count[i], lengths[i], noises[i]
        return _calls.released(
            noise_key, setting, queries, center, offset, which, regularization, pull
        )

    end = lax.fori_loop(0, sizes.num_phases, phase, anchor - center)
    return center + _calls.inside(setting, center, end)


def _draw_users(key: Array, sizes: Sizes, replacement: bool) -> Array:
    """The users of all levels, a fresh sample for each, by position in the turn."""
    most = sizes.most_queries
    if replacement:
        return jax.random.randint(_keys.alone(key), (most,), 0, sizes.num_users, jnp.int32)
    count, width = sizes.starts.shape[0], sizes.draws.most_drawn
    # The other half of a level's key is for an order that more than half of the users would need.
    keys = jax.vmap(jax.random.split)(jax.random.split(key, count))[:, 0]
    draw = _keys.over(lambda key: sampling.draw_batch(key, sizes.draws))
    samples = draw(keys).indices
    places = jnp.arange(most, dtype=jnp.int32)
    # Levels beyond those of the turn start where there is no place that is looked at.
    level = jnp.sum(places[:, None] >= sizes.starts[None, :], axis=1) - 1
    return samples[level, jnp.minimum(places - sizes.starts[level], width - 1)]


def _normal(rows: Any, key: Array, shape: tuple[int, int], dtype: Any) -> Array:
    """The variables of ``_draws.normal`` for so many rows of this shape; further rows are not looked at."""
    most = math.prod(shape)
    room = (most + 1) // 2
    half = (rows * shape[1] + 1) // 2
    flat = jax.random.bits(_keys.alone(key), (3 * room,), jnp.uint32)
    high, low, turn = (lax.dynamic_slice_in_dim(flat, i * half, room) for i in range(3))
    radius, angle = _draws.polar_of_words(high, low, turn, dtype)
    place = jnp.arange(most, dtype=jnp.int32)
    second = place >= half
    pair = jnp.minimum(jnp.where(second, place - half, place), room - 1)
    turned = jnp.where(second, jnp.sin(angle)[pair], jnp.cos(angle)[pair])
    return (radius[pair] * turned).reshape(shape)
