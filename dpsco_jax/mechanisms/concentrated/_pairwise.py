"""How many vectors lie near each vector: degrees at a radius and at twice the radius, in one sweep.

What it computes: for N vectors v_j (pytrees of leaves [N, ...]) and a radius ρ, the numbers
#{k : ‖v_j - v_k‖ <= ρ} and #{k : ‖v_j - v_k‖ <= 2ρ}, up to a relative margin h that is known in
advance. A vector that is not finite, is masked out or is farther than ``reach`` · ρ from the anchor
is near nobody, itself included, and its degrees are 0.

Source: the score and the removal rule of Algorithms 28, 31 and 32 of the thesis, which compare true
distances.

Formal guarantee: each pair is compared once, by ``_blocks``, whose verdicts are near at ρ for distances of
at most ρ and none above some r' <= r = ρ·(1 + h), h = ``headroom``, and near at 2ρ for distances of at most
2r' and none above 2r. So two vectors that are near a third at ρ are always near each other at 2ρ, and what
is proved of exact comparisons holds with r in place of ρ.

Cost: N²·d multiplications (half of a Gram matrix, by symmetry) at the rate of a matrix product; memory of
a few blocks of ``block_size`` squared. Of users on several devices each keeps its own vectors, and those of
the others come by one after the other (``_ring``): the work is shared out, and a device holds the vectors of
two. There the degrees are those of one device, except that blocks of other shapes (where a device has
fewer than ``block_size`` users) may round another way, which is within what is promised of every verdict.
Under ``vmap`` one batch goes after the other: its matrix products are as large as those of one, and so
is its memory.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Int

from dpsco_jax import _sharding
from dpsco_jax.mechanisms.concentrated import _blocks, _ring
from dpsco_jax.mechanisms.concentrated._blocks import Blocks, Leaf


class Degrees(NamedTuple):
    """How many vectors, itself included, are near each vector.

    Attributes:
        near: at the radius, ``[users]``.
        near_twice: at twice the radius, ``[users]``.
    """

    near: Int[Array, "users"]
    near_twice: Int[Array, "users"]


def headroom(vector: Any, reach: float) -> float:
    """The margin h: vectors called near at ρ are within ρ·(1 + h), at 2ρ within 2ρ·(1 + h).

    Args:
        vector: one vector, without the axis of users: a pytree of arrays or of
            ``jax.ShapeDtypeStruct``; only sizes and dtypes are used.
        reach: largest distance from the anchor, in radii.
    """
    return math.sqrt(1 + 2.5 * _blocks.square_error(vector, reach)) - 1


def degrees(
    vectors: Any,
    radius: ArrayLike,
    anchor: Any,
    counted: Bool[ArrayLike, "users"],
    reach: float,
    block_size: int,
    num_users: Int[Array, ""] | None = None,
) -> Degrees:
    """Degrees of all vectors at ``radius`` and at twice the radius.

    Args:
        vectors: pytree of real floating leaves ``[users, ...]``; distances are over all leaves.
        radius: ρ; may be traced. If it is not positive and finite nothing is promised.
        anchor: one vector that is public; may be traced.
        counted: which vectors take part.
        reach: the largest distance from the anchor at which vectors are near others, in radii.
        block_size: vectors compared at a time, at most ``_blocks.LARGEST``.
        num_users: only so many vectors, the first ones, are compared; all if ``None``.
    """
    dtype = jnp.result_type(
        jnp.float32, *(leaf.dtype for leaf in jax.tree.leaves((anchor, vectors)))
    )
    matrices = [
        Leaf(leaf.reshape(leaf.shape[0], -1), jnp.asarray(centre, dtype).reshape(-1))
        for leaf, centre in zip(jax.tree.leaves(vectors), jax.tree.leaves(anchor), strict=True)
    ]
    error = _blocks.square_error([leaf.centre for leaf in matrices], reach)

    def blocks(rows: Any, centres: Any, radius: Any, live: Any = None) -> Blocks:
        leaves = [Leaf(*pair) for pair in zip(rows, centres, strict=True)]
        users = len(rows[0])
        live = users if live is None else live
        return Blocks(leaves, 1 / radius, users, min(block_size, users), live)

    def alone(rows: Any, centres: Any, radius: Any, *live: Any) -> tuple[Any, jax.Array]:
        own = blocks(rows[0], centres, radius, *live)
        norms = _blocks.present_norms(own, rows[1], reach)
        return (rows[0], norms), _count(own, norms, error)

    def pairs(
        tally: Any, of_guest: Any, own: Any, guest: Any, part: Any, centres: Any, radius: Any
    ) -> tuple[jax.Array, jax.Array]:
        both = blocks(own[0], centres, radius), blocks(guest[0], centres, radius)
        return _count_between(tally, of_guest, both, (own[1], guest[1]), error, part)

    @jax.custom_batching.sequential_vmap
    def found(rows: Any, centres: Any, radius: Any, *live: Any) -> jax.Array:
        spread = _sharding.found(rows)
        if spread is None:
            return alone(rows, centres, radius, *live)[1]
        # Rows that are no users are not counted; how many there are is not known of one device.
        return _ring.met(spread, alone, pairs, rows, centres, radius)

    counted = jnp.asarray(counted)
    live: tuple[Any, ...] = () if num_users is None else (num_users,)
    if num_users is not None:
        counted &= jnp.arange(len(counted)) < num_users
    rows = ([leaf.rows for leaf in matrices], counted)
    centres = [leaf.centre for leaf in matrices]
    return Degrees(*found(rows, centres, jnp.asarray(radius, dtype), *live))


def _count(blocks: Blocks, norms: jax.Array, error: float) -> jax.Array:
    """Degrees ``[2, users]`` over all pairs of blocks."""

    def compare(carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        at, tally = carry
        pair = blocks.pair(at)
        first, second = blocks.start(pair[0]), blocks.start(pair[1])
        user, other = first + jnp.arange(blocks.rows), second + jnp.arange(blocks.rows)
        near = _blocks.near((blocks, blocks), (norms, norms), error, pair)
        # Each pair is compared once, so that both its members see the same verdict.
        of_first, of_second = _blocks.sums_of(jnp.where(user[:, None] < other[None], near, 0))
        tally = _blocks.added(tally, first, of_first)
        return blocks.later(at), _blocks.added(tally, second, of_second)

    present = jnp.isfinite(norms)
    themselves = jnp.broadcast_to(present, (2, blocks.num_users)).astype(jnp.int32)
    start = (jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
    return lax.while_loop(lambda carry: blocks.has(carry[0]), compare, (start, themselves))[1]


def _count_between(
    tally: jax.Array,
    of_guest: jax.Array,
    both: tuple[Blocks, Blocks],
    norms: tuple[jax.Array, jax.Array],
    error: float,
    part: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Two degrees ``[2, users]`` with the verdicts on pairs of one own vector and one of the guest's added.

    Part 1 is that of the first half of the own blocks; part 2, where the guest is at part 1, that of the
    guest's second half.
    """
    own, guest = both
    blocks = own.blocks
    middle = (blocks + 1) // 2
    own_end = jnp.where(part == 1, middle, blocks)
    guest_start = jnp.where(part == 2, middle, 0)
    width = blocks - guest_start

    def compare(place: jax.Array, tallies: Any) -> Any:
        pair = place // width, guest_start + place % width
        of_own, of_other = _blocks.sums_of(_blocks.near(both, norms, error, pair))
        first, second = own.start(pair[0]), guest.start(pair[1])
        return _blocks.added(tallies[0], first, of_own), _blocks.added(tallies[1], second, of_other)

    found: tuple[jax.Array, jax.Array] = lax.fori_loop(
        0, own_end * width, compare, (tally, of_guest)
    )
    return found
