"""Noise of a binary tree: every sum of the first steps of a stream has that of a few dyadic blocks.

What it computes: to the sum of the first t of T steps, t = 1, ..., T,

    TREE(t) = Σ of the noise of the blocks of NODE(t),

where NODE(t) cuts 1, ..., t by the binary expansion of t, the most significant bit first: bit ℓ of t stands
for the 2^ℓ steps that end at (t >> ℓ)·2^ℓ. So a power of two is one block, the root of its steps. Each block
has one draw of σ·Δ·√H·N(0, I), H = ⌊log₂ T⌋ + 1. ``TreeCorrelation`` releases the steps themselves, with the
noise TREE(t) - TREE(t-1), for ``transforms.privatize``; ``tree_noise`` is TREE(t), of a key and t alone.

Source: Dwork, Naor, Pitassi and Rothblum 2010; Chan, Shi and Song 2011; thesis, Algorithm 20, Theorem 7.2.2
and Proposition 8.2.5, where NODE(2^k) lacks the root and t starts at 0, so that some sums get no noise at all
(docs/corrections/nonconvex.md).

Formal guarantee: if a user takes part in one step of the stream, which does not depend on the data, and moves
it by at most Δ whatever was released before, the whole stream is one Gaussian release of multiplier σ: step t
is in at most one block of each of the H lengths, the sums over blocks move by at most Δ·√H together, and
TREE(t) of all t is post-processing of the noised sums over blocks. E ‖TREE(t)‖² = H·σ²·Δ²·dim·popcount(t).
Streams are independent; where no user takes part in two of them they are ``disjoint``, and cost what one does
(see ``mechanisms.correlated_noise``). The nodes in a state are secret.
Buffers have less noise (``mechanisms.buffered_noise``): for T = 256 the root mean square of the noise of all
sums is 6.0 Δσ here, and 2.6 Δσ with two buffers.

Cost: one Gaussian draw a number and step, memory of H copies of the statistic, one of which a step writes;
``tree_noise`` makes H draws, and needs no memory.

Example:
    >>> import jax
    >>> from dpsco_jax import transforms
    >>> from dpsco_jax.mechanisms.tree import TreeCorrelation
    >>> mean, tree = transforms.clipped_mean(1.0, 10), TreeCorrelation(num_steps=4)
    >>> release = transforms.privatize(mean, jax.random.key(0), 5.0, noise_correlation=tree)
    >>> rows = jax.numpy.ones((10, 3))
    >>> noised, state = release.update(rows, release.init(rows[0]))
    >>> noised.shape, tree.levels, tree.prefix_stddev().round(2).tolist()
    ((3,), 3, [1.73, 1.73, 2.45, 1.73])
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax._checks import (
    require,
    require_flag,
    require_integer,
    require_key,
    require_nonnegative,
    require_tree,
)
from dpsco_jax.mechanisms import _noise_streams, additive
from dpsco_jax.mechanisms._noise_streams import NoiseStream

__all__ = ["TreeCorrelation", "tree_noise"]


class TreeCorrelation(NamedTuple):
    """The noise of a stream whose sums have that of a tree; a user takes part in one step of a stream.

    Attributes:
        num_steps: T, steps of a stream, at least 1.
        disjoint: whether no user takes part in two streams, so that all together cost what one does.
    """

    num_steps: int
    disjoint: bool = False

    @property
    def levels(self) -> int:
        """H: lengths of blocks, and in how many of them a step is at most."""
        return int(self.num_steps).bit_length()

    def stretch(self) -> float:
        """√H: how far the sums over all blocks move for a user who moves a step by one.

        Raises:
            ValueError: an attribute is out of its range.
        """
        require_integer("num_steps", self.num_steps, 1, 2**30)
        require_flag("disjoint", self.disjoint)
        return self.levels**0.5

    def prefix_stddev(self) -> np.ndarray:
        """Standard deviation of the noise in the sums of the first 1, 2, ... steps, in units of σΔ.

        Raises:
            ValueError: an attribute is out of its range.
        """
        stretch = self.stretch()
        return stretch * np.sqrt([float(t.bit_count()) for t in range(1, self.num_steps + 1)])

    def init(self, like: Any) -> NoiseStream:
        """The beginning of a stream of statistics with the shapes of ``like``."""
        return _noise_streams.empty_stream(like, self.levels)

    def add_noise(
        self,
        key: jax.Array,
        statistic: Any,
        stream: NoiseStream,
        noise_multiplier: jax.typing.ArrayLike,
        sensitivity: jax.typing.ArrayLike,
    ) -> tuple[Any, NoiseStream]:
        """One step of the stream, with the noise TREE(t) - TREE(t-1).

        Args:
            key: a typed key, used up.
            statistic: leaves of the shapes that ``init`` got, in at least float32, in one part or in two.
            stream: where the stream stands.
            noise_multiplier: σ of the stream; read at its first step.
            sensitivity: Δ of this step.

        Raises:
            ValueError: an attribute is out of its range, or the statistic has other shapes.
        """
        # The lowest bit of t is new: its block takes the place of all shorter ones. What is left of
        # them, or of a stream before, is overwritten before it is read.
        t = stream.step + 1
        levels = jnp.arange(self.levels)
        lowest = jax.lax.population_count((t & -t) - 1)
        weights = jnp.where(levels < lowest, -1.0, 0.0)

        def kept(past: jax.Array, new: jax.Array, back: jax.Array) -> jax.Array:
            return _noise_streams.written(past, new, back, lowest)

        scaled = noise_multiplier, sensitivity
        return _noise_streams.step_of_stream(key, statistic, stream, *scaled, self, weights, kept)


def tree_noise(
    key: jax.Array,
    index: jax.typing.ArrayLike,
    like: Any,
    stddev: jax.typing.ArrayLike,
    num_steps: int,
    segment: jax.typing.ArrayLike = 0,
) -> Any:
    """TREE(index) of a stream: a function of key, segment and index alone, so that nothing is carried.

    Args:
        key: a typed key, the same for all indices and segments.
        index: t in [1, num_steps]; an array, which may be traced, that is out of range gives NaN.
        like: a pytree for shapes; its leaves are of at least float32.
        stddev: of the noise of a block; s·√H over the multiplier of the stream, for steps of sensitivity s.
        num_steps: T.
        segment: number of the stream, in [0, 2^31); noise of two of them is independent. An array that is
            out of range gives NaN.

    Raises:
        ValueError: the index is out of range, or another argument.
    """
    require_key(key)
    require_tree("like", like)
    require_nonnegative("stddev", stddev)
    num_steps = require_integer("num_steps", num_steps, 1, 2**30)
    if not isinstance(index, jax.Array):
        index = require_integer("index", index, 1, num_steps)
    if not isinstance(segment, jax.Array):
        segment = require_integer("segment", segment, 0, 2**31 - 1)
    for name, number in (("index", index), ("segment", segment)):
        whole = jnp.issubdtype(jnp.result_type(number), jnp.integer)
        require(whole, name, number, "an integer, or an array of one")
    t, stream_number = (jnp.asarray(number, jnp.result_type(int)) for number in (index, segment))
    # Keys are folded with 32 bits: a number of more would have the noise of another one.
    valid = (t >= 1) & (t <= num_steps) & (stream_number >= 0) & (stream_number <= 2**31 - 1)
    stream = jax.random.fold_in(key, stream_number)
    zeros = jax.tree.map(jnp.zeros_like, like)

    def add(level: jax.Array, total: Any) -> Any:
        block = jax.random.fold_in(jax.random.fold_in(stream, level), t >> level)
        noise = additive.gaussian(block, zeros, stddev)
        there = ((t >> level) & 1) == 1
        return jax.tree.map(lambda a, b: a + jnp.where(there, b, 0), total, noise)

    total = jax.lax.fori_loop(0, num_steps.bit_length(), add, zeros)
    return jax.tree.map(lambda leaf: jnp.where(valid, leaf, jnp.nan), total)
