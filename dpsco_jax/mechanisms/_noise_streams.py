"""Where a stream of correlated noise stands, and one step of it: shared by all correlations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _compensated
from dpsco_jax._checks import require, require_integer
from dpsco_jax.mechanisms import additive


class NoiseStream(NamedTuple):
    """Where a stream of correlated noise stands.

    Attributes:
        step: number of the next step in its stream, int32.
        multiplier: σ of the stream, read at its first step; of disjoint streams at that of the first of all.
        past: unit noise that later steps take back, secret: ``[bands - 1, ...]`` of bands, that of
            step t at place t mod (bands - 1); ``[levels, ...]`` of a tree; ``[buffers, ...]`` of buffers.
        begun: how many streams have begun, int32.
    """

    step: jax.Array
    multiplier: jax.Array
    past: Any
    begun: jax.Array

    def is_paid(self, disjoint: bool) -> jax.Array:
        """Whether the next step is paid for: by the first of its stream, or of all disjoint streams."""
        inside = self.step != 0
        return inside | (self.begun > 0) if disjoint else inside


def empty_stream(like: Any, memory: int) -> NoiseStream:
    """The beginning of streams of statistics with the shapes of ``like``, with room for past noise."""

    def none_yet(leaf: Any) -> jax.Array:
        dtype = jnp.promote_types(jnp.result_type(leaf), jnp.float32)
        return jnp.zeros((memory, *jnp.shape(leaf)), dtype)

    step, begun = (
        jnp.zeros([], jnp.int32),
        jnp.zeros([], jnp.int32),
    )  # two buffers: states are donated
    past = jax.tree.map(none_yet, like)
    return NoiseStream(step, jnp.ones([], jnp.result_type(float)), past, begun)


def written(past: jax.Array, new: jax.Array, back: jax.Array, place: jax.Array) -> jax.Array:
    """The past with the new noise at one place, without a copy of the rest where its buffer is given up.

    Args:
        past: ``[memory, ...]``, read to make ``back``.
        new: fresh unit noise.
        back: the weighted past of the step, which is finite.
        place: in [0, memory).
    """
    # A sum with nothing that was read: the compiler then writes after it reads, or else it copies all.
    after = (new + 0 * back).astype(past.dtype)
    if jax.typeof(new).sharding.mesh.axis_types:  # on a mesh, where slices must be laid out alike
        here = (jnp.arange(past.shape[0]) == place).reshape(-1, *[1] * new.ndim)
        return jnp.where(here, after[None], past)
    return jax.lax.dynamic_update_index_in_dim(past, after, place, 0)


def require_participations(num_steps: Any, max_participations: Any, min_separation: Any) -> None:
    """``ValueError`` unless all are integers in [1, T]."""
    steps = require_integer("num_steps", num_steps, 1)
    require_integer("max_participations", max_participations, 1, steps)
    require_integer("min_separation", min_separation, 1, steps)


def pattern_of(num_steps: int, max_participations: Any, min_separation: Any) -> tuple[int, int]:
    """Both numbers, of which the separation may be None for users who take part once."""
    require_integer("num_steps", num_steps, 1)
    most = require_integer("max_participations", max_participations, 1, num_steps)
    if min_separation is None:
        require(most == 1, "min_separation", min_separation, "given if users return")
        min_separation = num_steps
    require_participations(num_steps, max_participations, min_separation)
    return most, int(min_separation)


def stretch_of(response: np.ndarray, max_participations: int, min_separation: int) -> float:
    """How far C moves a stream, at most, for a user who moves each own step by one.

    Args:
        response: the first column of C, ``[num_steps]``: not negative, and it never rises.
        max_participations: in how many steps a user takes part, at most.
        min_separation: how many steps two of them are apart, at least.
    """
    steps = len(response)
    columns = np.zeros(steps)
    last = min(max_participations * min_separation, steps)
    for first in range(0, last, min_separation):
        columns[first:] += response[: steps - first]
    return float(np.linalg.norm(columns) * (1 + 1e-15 * steps))


def step_of_stream(
    key: jax.Array,
    statistic: Any,
    stream: NoiseStream,
    noise_multiplier: jax.typing.ArrayLike,
    sensitivity: jax.typing.ArrayLike,
    correlation: Any,
    weights: jax.Array,
    kept: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
) -> tuple[Any, NoiseStream]:
    """One step of any correlation: fresh noise, and past noise by its weights.

    Args:
        key: a typed key, used up.
        statistic: leaves of the shapes of the stream, in at least float32, in one part or in two.
        stream: where the stream stands.
        noise_multiplier: σ; not read where the step is paid for.
        sensitivity: Δ of this step.
        correlation: for ``stretch``, the number of steps, and whether streams are disjoint.
        weights: of each entry of the past, in this step.
        kept: of the past, the fresh unit noise and the weighted past: the past of the next step.
    """
    paid = stream.is_paid(correlation.disjoint)
    multiplier = jnp.where(paid, stream.multiplier, jnp.asarray(noise_multiplier, float))
    # Rounded up: float32 must not fall below what is charged.
    scale = multiplier * jnp.asarray(sensitivity, float) * (correlation.stretch() * (1 + 1e-6))

    def with_past(leaf: Any, back: jax.Array) -> Any:
        if _compensated.is_split(leaf):
            return leaf._replace(low=with_past(leaf.low, back))
        return leaf + scale.astype(leaf.dtype) * back.astype(leaf.dtype)

    expected = jax.tree.map(lambda leaf: leaf.shape[1:], stream.past)
    whole = _compensated.rounded(statistic)
    shapes = jax.tree.map(jnp.shape, whole)
    require(shapes == expected, "statistic", shapes, f"of the shapes of the params, {expected}")
    back = jax.tree.map(
        lambda past: jnp.tensordot(weights.astype(past.dtype), past, 1, precision="highest"),
        stream.past,
    )
    covered = jax.tree.map(with_past, statistic, back, is_leaf=_compensated.is_split)
    released = additive.gaussian(key, covered, scale)
    # The same draw once more, in units of one: the compiler makes it only once.
    fresh = additive.gaussian(jax.random.clone(key), jax.tree.map(jnp.zeros_like, whole), 1.0)
    past = jax.tree.map(kept, stream.past, fresh, back)
    begun = stream.begun + (stream.step == 0)
    step = (stream.step + 1) % correlation.num_steps
    return released, NoiseStream(step, multiplier.astype(stream.multiplier.dtype), past, begun)
