"""Vectors in blocks, and which pairs of two blocks lie near each other: verdicts, packed, and their counts.

Of a block of vectors and another one, of the same vectors or of those of a visitor, for
each pair v, w whether ‖v - w‖ <= ρ and whether ‖v - w‖ <= 2ρ, up to a relative margin h that is known in
advance; counts of these for the vectors of either block; an order in which every pair of blocks is met once.
A vector that is not finite, is masked out or is farther than B · ρ from the anchor is near nobody.

Each verdict is a function of its two vectors and of public values (anchor, radius, shapes), symmetric, and
true of a vector and itself. With r = ρ·(1 + h), h = √(1 + 5η/2) - 1 for the η of ``square_error``, distances
being those of the floating-point vectors as real numbers, there is r' <= r such that
(a) near at ρ if the distance is at most ρ, and only if it is at most r';
(b) near at 2ρ if the distance is at most 2r', and only if it is at most 2r.
Derivation, in units of ρ, unit roundoff u, rows y = (v - a) / ρ of norm at most B: y carries a relative
error 3u in each entry, so a distance D near 1 or 2 an error 6uB and D² one of 26uB. A dot product of t
terms, summed in any order, is off by γ_t‖y‖‖y'‖, γ_t = tu / (1 - tu): the Gram entry by γB² with
t = columns of one slab + number of slabs, a squared norm by γB² with the smaller t of its two-level sum;
the two additions of ‖y‖² + ‖y'‖² - 2yy' cost 8uB², the thresholds' own rounding 8u. With η their sum,
|computed - D²| <= η, and the thresholds 1 + η and 4 + 9η on the computed squares give (a) with
r'² = 1 + 2η and (b) with r² = 1 + 5η/2. Assumed: products and sums are rounded to the dtype (on TPUs
HIGHEST emulates that in six passes).

Cost: for two blocks of b vectors b²·d multiplications at the rate of a matrix product; memory of a few
arrays of b² numbers.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

LARGEST = 2048
_COLUMNS = 256
_GROUP = 16
# Two counts of at most 2048 travel in one float32 integer below 2^24: near + 4096 * near at twice.
_PACK = 4096


class Leaf(NamedTuple):
    """One leaf of all vectors as a matrix, and the anchor's part as a vector."""

    rows: jax.Array
    centre: jax.Array


class Blocks(NamedTuple):
    """All vectors, in units of the radius, in blocks of ``rows`` users each.

    Attributes:
        leaves: of all vectors, with the anchor's.
        inverse: one over the radius.
        num_users: how many vectors.
        rows: how many of them in a block; the last block starts early enough to be whole.
        live: how many of them, the first ones, are in blocks at all; may be traced.
    """

    leaves: list[Leaf]
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

    def slab(self, leaf: Leaf, row: jax.Array, column: jax.Array, width: int) -> jax.Array:
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

    def gram(self, first: jax.Array, others: "Blocks", second: jax.Array) -> jax.Array:
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


def present_norms(blocks: Blocks, counted: jax.Array, reach: float) -> jax.Array:
    """Squared norms ``[users]``, infinite for a vector that is near nobody."""
    norms = blocks.squared_norms()
    present = counted & (norms <= reach**2)
    # An infinite norm makes every comparison false, whatever the Gram entry is.
    return jnp.where(present, norms, jnp.inf)


def near(
    both: tuple[Blocks, Blocks], norms: tuple[Any, Any], error: float, pair: tuple[Any, Any]
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


def sums_of(packed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Counts ``[2, rows]`` of the rows, and of the columns, of packed verdicts."""
    ones = jnp.ones(len(packed), jnp.float32)

    def counts(total: jax.Array) -> jax.Array:
        return jnp.stack(jnp.divmod(total.astype(jnp.int32), _PACK)[::-1])

    of_rows = jnp.dot(packed, ones, precision=lax.Precision.HIGHEST)
    of_columns = jnp.dot(ones, packed, precision=lax.Precision.HIGHEST)
    return counts(of_rows), counts(of_columns)


def added(tally: jax.Array, start: jax.Array, counts: jax.Array) -> jax.Array:
    counts += lax.dynamic_slice_in_dim(tally, start, counts.shape[1], 1)
    return lax.dynamic_update_slice_in_dim(tally, counts, start, 1)


def square_error(vector: Any, reach: float) -> float:
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
