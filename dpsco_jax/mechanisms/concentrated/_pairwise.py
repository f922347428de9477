"""How many vectors lie near each vector: degrees at a radius and at twice the radius, in one sweep.

What it computes: for N vectors v_j (pytrees of leaves [N, ...]) and a radius ρ, the numbers
#{k : ‖v_j - v_k‖ <= ρ} and #{k : ‖v_j - v_k‖ <= 2ρ}, up to a relative margin h that is known in
advance. A vector that is not finite, is masked out or is farther than ``reach`` · ρ from the anchor
is near nobody, itself included, and its degrees are 0.

Source: the score and the removal rule of Algorithms 28, 31 and 32 of the thesis, which compare true
distances. The margin is ours.

Formal guarantee: each verdict is a function of its two vectors and of public values (anchor, radius,
shapes), symmetric, and true of a vector and itself. With r = ρ·(1 + h), h = ``headroom``, distances
being those of the floating-point vectors as real numbers, there is r' <= r such that
(a) near at ρ if the distance is at most ρ, and only if it is at most r';
(b) near at 2ρ if the distance is at most 2r', and only if it is at most 2r.
So two vectors that are near a third at ρ are always near each other at 2ρ, and what is proved of
exact comparisons holds with r in place of ρ. Derivation, in units of ρ, unit roundoff u, rows
y = (v - a) / ρ of norm at most B = ``reach``: y carries a relative error 3u in each entry, so a
distance D near 1 or 2 an error 6uB and D² one of 26uB. A dot product of t terms, summed in any
order, is off by γ_t‖y‖‖y'‖, γ_t = tu / (1 - tu): the Gram entry by γB² with t = columns of one slab
+ number of slabs, a squared norm by γB² with the smaller t of its two-level sum; the two additions
of ‖y‖² + ‖y'‖² - 2yy' cost 8uB², the thresholds' own rounding 8u. With η their sum,
|computed - D²| <= η, and the thresholds 1 + η and 4 + 9η on the computed squares give (a) with
r'² = 1 + 2η and (b) with r² = 1 + 5η/2. Assumed: products and sums are rounded to the dtype (on TPUs
HIGHEST emulates that in six passes).

Cost: N²·d multiplications (half of a Gram matrix, by symmetry) at the rate of a matrix product; memory of
a few blocks of ``block_size`` squared. Of users on several devices each keeps its own vectors, and those of
the others come by one after the other (``_ring``): the work is shared out, and a device holds the vectors of
two. There the degrees are those of one device, except that blocks of other shapes (where a device has
fewer than ``block_size`` users) may round another way, which is within what is promised of every verdict.
Under ``vmap`` one batch goes after the other: its matrix products are as large as those of one, and so
is its memory.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Int

from dpsco_jax import _spread
from dpsco_jax.mechanisms.concentrated import _ring

LARGEST_BLOCK = 2048
_COLUMNS = 256
_GROUP = 16
# Two counts of at most 2048 travel in one float32 integer below 2^24: near + 4096 * near at twice.
_PACK = 4096


class Degrees(NamedTuple):
    """How many vectors, itself included, are near each vector.

    Attributes:
        near: at the radius, ``[users]``.
        near_twice: at twice the radius, ``[users]``.
    """

    near: Int[Array, "users"]
    near_twice: Int[Array, "users"]


class _Leaf(NamedTuple):
    """One leaf of all vectors as a matrix, and the anchor's part as a vector."""

    rows: jax.Array
    centre: jax.Array


def headroom(vector: Any, reach: float) -> float:
    """The margin h: vectors called near at ρ are within ρ·(1 + h), at 2ρ within 2ρ·(1 + h).

    Args:
        vector: one vector, without the axis of users: a pytree of arrays or of
            ``jax.ShapeDtypeStruct``; only sizes and dtypes are used.
        reach: largest distance from the anchor, in radii.
    """
    return math.sqrt(1 + 2.5 * _square_error(vector, reach)) - 1


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
        reach: B of the file's docstring.
        block_size: vectors compared at a time, at most ``LARGEST_BLOCK``.
        num_users: only so many vectors, the first ones, are compared; all if ``None``.
    """
    dtype = jnp.result_type(
        jnp.float32, *(leaf.dtype for leaf in jax.tree.leaves((anchor, vectors)))
    )
    matrices = [
        _Leaf(leaf.reshape(leaf.shape[0], -1), jnp.asarray(centre, dtype).reshape(-1))
        for leaf, centre in zip(jax.tree.leaves(vectors), jax.tree.leaves(anchor), strict=True)
    ]
    error = _square_error([leaf.centre for leaf in matrices], reach)

    def blocks(rows: Any, centres: Any, radius: Any, live: Any = None) -> _Blocks:
        leaves = [_Leaf(*pair) for pair in zip(rows, centres, strict=True)]
        users = len(rows[0])
        live = users if live is None else live
        return _Blocks(leaves, 1 / radius, users, min(block_size, users), live)

    def alone(rows: Any, centres: Any, radius: Any, *live: Any) -> tuple[Any, jax.Array]:
        own = blocks(rows[0], centres, radius, *live)
        norms = _present_norms(own, rows[1], reach)
        return (rows[0], norms), _count(own, norms, error)

    def pairs(
        tally: Any, of_guest: Any, own: Any, guest: Any, part: Any, centres: Any, radius: Any
    ) -> tuple[jax.Array, jax.Array]:
        both = blocks(own[0], centres, radius), blocks(guest[0], centres, radius)
        return _count_between(tally, of_guest, both, (own[1], guest[1]), error, part)

    @jax.custom_batching.sequential_vmap
    def found(rows: Any, centres: Any, radius: Any, *live: Any) -> jax.Array:
        spread = _spread.found(rows)
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


class _Blocks(NamedTuple):
    """All vectors, in units of the radius, in blocks of ``rows`` users each.

    Attributes:
        leaves: of all vectors, with the anchor's.
        inverse: one over the radius.
        num_users: how many vectors.
        rows: how many of them in a block; the last block starts early enough to be whole.
        live: how many of them, the first ones, are in blocks at all; may be traced.
    """

    leaves: list[_Leaf]
    inverse: jax.Array
    num_users: int
    rows: int
    live: Any

    @property
    def blocks(self) -> Any:
        """How many blocks hold the vectors that are compared."""
        return -(-self.live // self.rows)

    def start(self, block: jax.Array) -> jax.Array:
        """The first user of a block."""
        return jnp.minimum(block * self.rows, self.num_users - self.rows)

    def slab(self, leaf: _Leaf, row: jax.Array, column: jax.Array, width: int) -> jax.Array:
        """Some columns of the block that starts at ``row``, centred; zero where an earlier slab has them."""
        first = jnp.minimum(column, leaf.rows.shape[1] - width)
        corner = (row.astype(jnp.int32), first.astype(jnp.int32))
        entries = lax.dynamic_slice(leaf.rows, corner, (self.rows, width)).astype(
            self.inverse.dtype
        )
        centre = lax.dynamic_slice_in_dim(leaf.centre, first, width)
        centred = (entries - centre[None]) * self.inverse
        return jnp.where((first + jnp.arange(width) >= column)[None], centred, 0)

    def over_slabs(
        self, total: jax.Array, term: Callable[[int, jax.Array, int], jax.Array]
    ) -> jax.Array:
        """``total`` plus the sum of ``term(number of leaf, column, width)`` over all slabs of columns."""
        for number, leaf in enumerate(self.leaves):
            columns = leaf.rows.shape[1]
            width = min(columns, _COLUMNS)
            if width:

                def add(
                    i: jax.Array, total: jax.Array, number: int = number, width: int = width
                ) -> Any:
                    return total + term(number, i * width, width)

                total = lax.fori_loop(0, -(-columns // width), add, total)
        return total

    def block_norms(self, block: jax.Array) -> jax.Array:
        """Squared norms ``[rows]`` of a block, summed in two levels."""

        def term(number: int, column: jax.Array, width: int) -> jax.Array:
            leaf = self.leaves[number]
            squares = jnp.square(self.slab(leaf, self.start(block), column, width))
            padded = jnp.pad(squares, ((0, 0), (0, -width % _GROUP)))
            return jnp.sum(jnp.sum(padded.reshape(self.rows, -1, _GROUP), axis=2), axis=1)

        return self.over_slabs(jnp.zeros(self.rows, self.inverse.dtype), term)

    def squared_norms(self) -> jax.Array:
        """Squared norms ``[users]``."""

        def add(block: jax.Array, norms: jax.Array) -> jax.Array:
            found = self.block_norms(block)
            return lax.dynamic_update_slice_in_dim(norms, found, self.start(block), 0)

        return lax.fori_loop(0, self.blocks, add, jnp.zeros(self.num_users, self.inverse.dtype))

    def gram(self, first: jax.Array, others: "_Blocks", second: jax.Array) -> jax.Array:
        """Dot products ``[rows, rows]`` of the block that starts at a user with one of ``others``."""

        def term(number: int, column: jax.Array, width: int) -> jax.Array:
            return lax.dot_general(
                self.slab(self.leaves[number], first, column, width),
                others.slab(others.leaves[number], second, column, width),
                (((1,), (1,)), ((), ())),
                precision=lax.Precision.HIGHEST,
            )

        return self.over_slabs(jnp.zeros((self.rows, self.rows), self.inverse.dtype), term)

    def own(self, norms: jax.Array, start: jax.Array, users: jax.Array, block: jax.Array) -> Any:
        """Squared norms of a block's users from ``start``; infinite where an earlier block has them too."""
        here = lax.dynamic_slice_in_dim(norms, start, self.rows)
        return jnp.where(users >= block * self.rows, here, jnp.inf)

    def has(self, at: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Whether this is a place of a pair: a block, and how many places round it is to the other."""
        block, turn = at
        # Half a round and more is the way back from the other block.
        half = (2 * turn == self.blocks) & (2 * block < self.blocks)
        return (2 * turn < self.blocks) | half

    def pair(self, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """The two blocks at a place, in their order."""
        block, turn = at
        other = (block + turn) % self.blocks
        return jnp.minimum(block, other), jnp.maximum(block, other)

    def later(self, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """The next place; every pair of blocks has one."""
        block, turn = at
        return (block + 1) % self.blocks, turn + (block + 1) // self.blocks


def _present_norms(blocks: _Blocks, counted: jax.Array, reach: float) -> jax.Array:
    """Squared norms ``[users]``, infinite for a vector that is near nobody."""
    norms = blocks.squared_norms()
    present = counted & (norms <= reach**2)
    # An infinite norm makes every comparison false, whatever the Gram entry is.
    return jnp.where(present, norms, jnp.inf)


def _count(blocks: _Blocks, norms: jax.Array, error: float) -> jax.Array:
    """Degrees ``[2, users]`` over all pairs of blocks."""

    def compare(carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        at, tally = carry
        pair = blocks.pair(at)
        first, second = blocks.start(pair[0]), blocks.start(pair[1])
        user, other = first + jnp.arange(blocks.rows), second + jnp.arange(blocks.rows)
        near = _near((blocks, blocks), (norms, norms), error, pair)
        # Each pair is compared once, so that both its members see the same verdict.
        of_first, of_second = _sums_of(jnp.where(user[:, None] < other[None], near, 0))
        tally = _added(tally, first, of_first)
        return blocks.later(at), _added(tally, second, of_second)

    present = jnp.isfinite(norms)
    themselves = jnp.broadcast_to(present, (2, blocks.num_users)).astype(jnp.int32)
    start = (jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
    return lax.while_loop(lambda carry: blocks.has(carry[0]), compare, (start, themselves))[1]


def _count_between(
    tally: jax.Array,
    of_guest: jax.Array,
    both: tuple[_Blocks, _Blocks],
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
        of_own, of_other = _sums_of(_near(both, norms, error, pair))
        first, second = own.start(pair[0]), guest.start(pair[1])
        return _added(tallies[0], first, of_own), _added(tallies[1], second, of_other)

    found: tuple[jax.Array, jax.Array] = lax.fori_loop(
        0, own_end * width, compare, (tally, of_guest)
    )
    return found


def _near(
    both: tuple[_Blocks, _Blocks], norms: tuple[Any, Any], error: float, pair: tuple[Any, Any]
) -> jax.Array:
    """Verdicts ``[rows, rows]`` on the vectors of one block and of another, packed."""
    ours, theirs = both
    first, second = ours.start(pair[0]), theirs.start(pair[1])
    gram = ours.gram(first, theirs, second)
    user, other = first + jnp.arange(ours.rows), second + jnp.arange(theirs.rows)
    squares = ours.own(norms[0], first, user, pair[0])[:, None]
    squares = squares + theirs.own(norms[1], second, other, pair[1])[None]
    squares -= 2 * gram
    near = (squares <= 1 + error).astype(jnp.float32)
    near_twice = (squares <= 4 + 9 * error).astype(jnp.float32)
    return near + _PACK * near_twice


def _sums_of(packed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Counts ``[2, rows]`` of the rows, and of the columns, of packed verdicts."""
    ones = jnp.ones(len(packed), jnp.float32)

    def counts(total: jax.Array) -> jax.Array:
        return jnp.stack(jnp.divmod(total.astype(jnp.int32), _PACK)[::-1])

    of_rows = jnp.dot(packed, ones, precision=lax.Precision.HIGHEST)
    of_columns = jnp.dot(ones, packed, precision=lax.Precision.HIGHEST)
    return counts(of_rows), counts(of_columns)


def _added(tally: jax.Array, start: jax.Array, counts: jax.Array) -> jax.Array:
    counts += lax.dynamic_slice_in_dim(tally, start, counts.shape[1], 1)
    return lax.dynamic_update_slice_in_dim(tally, counts, start, 1)


def _square_error(vector: Any, reach: float) -> float:
    """Bound η on the error of a computed squared distance, in units of the squared radius."""
    leaves = jax.tree.leaves(vector)
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    slabs = sum(-(-size // _COLUMNS) for size in sizes)
    columns = min(max(sizes, default=1), _COLUMNS)
    dtype = jnp.result_type(jnp.float32, *(leaf.dtype for leaf in leaves))
    unit = float(jnp.finfo(dtype).eps) / 2

    def gamma(terms: int) -> float:
        return terms * unit / (1 - terms * unit)

    gram = gamma(columns + slabs)
    norm = gamma(_GROUP + -(-columns // _GROUP) + slabs)
    # One percent for the products of errors, and for a row at the very edge of the reach.
    return 1.01 * unit * (2 * reach**2 * ((gram + norm) / unit + 4) + 26 * reach + 8)
