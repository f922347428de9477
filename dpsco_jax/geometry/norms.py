"""The Euclidean norm that carries a privacy proof, and clipping to it.

What it computes: the joint ℓ2 norm over all leaves of a pytree, whether all entries are finite, and
the tree scaled down into a ball. The norm is computed in at least float32 after division by the
largest entry, so entries of 1e30 do not overflow, entries of 1e-30 do not vanish, and
half-precision leaves are measured as what they are. To clip, it is compared with a bound, so that the
bound is what entries are divided by, and one pass is enough: squares that vanish are too small to matter
beside it, and squares that overflow are added up once more, scaled down, in the same pass.

Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, sections 4.2 (error of a sum in
any order) and 27.8 (scaled norms).

Formal guarantee: for every input, finite or not, ``clip_to_norm(tree, c)`` has exact ℓ2 norm at
most ``c`` (as stored, rounding included). Any norm of a user's contribution that a sensitivity
rests on must come from here.

Derivation of the head-room: with unit roundoff u, a sum of n nonnegative terms in any order is off by a
relative factor of at most n·u (to first order). Leaves longer than ``_BLOCK`` are summed in blocks, level
by level, so a tree is summed with at most n additions in a row, which ``_additions`` counts. The root
halves the error; squares, scales, quotient and the final product add fewer than 16 roundings, also where a
GPU divides by an approximate reciprocal and takes an approximate root. Scaling to ``c · (1 - (n/2 + 16)·u)``
therefore never exceeds ``c``. The last rounding, of what is stored, is that of the narrowest leaf, in float32
at least, where another one is float64. The factor is a constant of the shapes: 1 - 4e-6 for 100 parameters,
1 - 4e-4 for 10^10.

Cost: a pass over the tree for the factor, two for the norm alone; no temporary larger than it. In the ball
the tree is returned bit for bit.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from dpsco_jax._argument_kinds import Flag, Positive, checked
from dpsco_jax._checks import require_positive, require_real, require_real_leaves
from dpsco_jax._numerics import at_least_float32

# Up to this length the compiler may sum in whatever order it likes: the worst order is paid for.
_BLOCK = 4096
_WIDE = 512  # terms in a sum of its own at least, so that what is written in between is little
_PIECES = 64
_OTHER_ROUNDINGS = 16.0


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every entry of every leaf is finite (true for a tree without entries)."""
    return jnp.all(
        jnp.asarray([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)], bool)
    )


def global_norm(tree: PyTree) -> Float[Array, ""]:
    """The ℓ2 norm over all entries of all leaves together.

    Args:
        tree: real floating leaves of any shapes and dtypes.

    Returns:
        The norm, in the widest dtype among the leaves and float32, with relative error below 4e-4
        for the worst input and a few units of the last place for ordinary ones. Overflows to
        ``inf`` only where the norm itself exceeds that dtype; ``inf`` or NaN if an entry is not
        finite (see ``all_finite``). Differentiable, with gradient zero at zero.
    """
    require_real_leaves("tree", tree)
    scale, scaled_norm = _scaled_norm(tree)
    return scale * scaled_norm


def clip_factor(tree: PyTree, clip_norm: ArrayLike) -> Float[Array, ""]:
    """The number in [0, 1] by which ``clip_to_norm`` multiplies the tree.

    For fused sums Σ_users factor·contribution that never form the clipped trees. It is zero if an entry is
    not finite, but zero times NaN is NaN: whoever multiplies must also replace such entries by zero.

    Args:
        tree: real floating leaves; one user's contribution. Batch with ``vmap``.
        clip_norm: the bound, positive and finite; may be traced.

    Returns:
        The factor, in the widest dtype among the leaves and float32; exactly 1 in the ball.
    """
    require_real_leaves("tree", tree)
    require_positive("clip_norm", clip_norm)
    leaves, dtype = _filled(tree)
    limit = jnp.asarray(clip_norm, dtype)
    # So that both scales of the pass are normal numbers: one that vanished would hide what is huge.
    half = jnp.finfo(dtype).maxexp // 2
    unit = jnp.clip(limit, 2.0 ** (30 - 2 * half), 2.0 ** (half - 4))
    norm = _norm_in_units(leaves, unit)
    bound = limit / unit * head_room(tree)
    outside = norm > bound
    shrink = bound / jnp.where(outside, norm, 1.0)
    # A subnormal factor has lost the digits that the head-room counts on.
    shrink = jnp.where(shrink >= jnp.finfo(dtype).tiny, shrink, 0.0)
    return jnp.where(jnp.isfinite(norm), jnp.where(outside, shrink, 1.0), 0.0)


def head_room(tree: PyTree) -> float:
    """One minus what a clipped tree's length is off by at most, relatively, from shapes and dtypes alone.

    Args:
        tree: real floating leaves.
    """
    require_real_leaves("tree", tree)
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    within = max((_additions(leaf.shape) for leaf in leaves), default=0)
    additions = float(within + _additions((len(leaves),)))
    # The last rounding is that of a leaf, which may be narrower than the norm.
    stored = max((_roundoff(at_least_float32(leaf.dtype)) for leaf in leaves), default=0.0)
    computed = (additions / 2 + _OTHER_ROUNDINGS - 1) * _roundoff(_dtype(leaves))
    return 1.0 - (computed + stored)


def clip_to_norm(tree: PyTree, clip_norm: ArrayLike) -> PyTree:
    """The tree, scaled down if needed so that its joint ℓ2 norm is at most ``clip_norm``.

    A tree with a NaN or an infinity in any place becomes zero in all places, so that one bad entry
    neither spreads nor signals. Otherwise a tree within the ball (up to the head-room of the file's
    docstring) is returned unchanged, and any other is scaled to the sphere; one whose norm is
    beyond 1e37 times ``clip_norm`` may be scaled to zero.

    Half-precision leaves come back in float32: rounding a clipped value to float16 can move it out
    of the ball, and a sum of contributions must not be accumulated in float16 either. Cast what is
    released, after the noise. Leaves of float32 and float64 keep their dtype.

    Args:
        tree: real floating leaves; one user's contribution. Batch with ``vmap``.
        clip_norm: the bound, positive and finite; may be traced.

    Returns:
        A tree of the same structure and shapes. Differentiable, also at zero.
    """
    require_real_leaves("tree", tree)
    factor = clip_factor(tree, clip_norm)

    def clip(leaf):
        # The product is formed in the dtype of the norm, whose rounding the head-room pays for.
        wide = at_least_float32(leaf.dtype)
        clipped = (leaf.astype(factor.dtype) * factor).astype(wide)
        return jnp.where(factor > 0, clipped, jnp.zeros_like(clipped))

    return jax.tree.map(lambda leaf: clip(jnp.asarray(leaf)), tree)


@checked
def clip_bias(moment: Positive, order: float, clip_norm: Positive, sharp: Flag = False) -> float:
    """How far clipping moves the mean of a random vector of which one moment is bounded.

    E‖X - clip(X, C)‖ = E(‖X‖ - C)₊ for E‖X‖^k ≤ G^k. At most G^k/((k - 1)·C^{k-1}) (Barber and Duchi 2014,
    Lemma 3; T, Fact 12.2.8), and at most (k - 1)^{k-1}/k^k·G^k/C^{k-1}, the least constant there is: (t - C)₊
    is at most (k - 1)^{k-1}/(k^k·C^{k-1})·t^k, with equality at t = kC/(k - 1). The mass that is dropped if
    vectors longer than C are left out, E‖X‖·1{‖X‖ > C}, can be as large as G^k/C^{k-1}.

    Args:
        moment: G.
        order: k > 1, any real number; ``math.inf`` for ‖X‖ ≤ G always.
        clip_norm: C.
        sharp: the least constant, in place of the published one.

    Returns:
        The bound, a float computed on the host.
    """
    if order == math.inf:
        return max(0.0, moment - clip_norm)
    k = require_real("order", order, 1.0)
    # In logarithms: high orders have powers beyond the range of a float.
    log = (k - 1) * math.log((k - 1) / k) - math.log(k) if sharp else -math.log(k - 1)
    return moment * math.exp(log + (k - 1) * math.log(moment / clip_norm))


def _scaled_norm(tree: PyTree) -> tuple[Array, Array]:
    """A normal number s near the largest entry, and the norm of the tree divided by s.

    Their product is the norm of the tree. The scaled norm is not finite exactly if an entry is not,
    whatever the maximum makes of NaN: finite entries divided by s are at most 4.
    """
    filled, dtype = _filled(tree)
    if not filled:
        return jnp.ones((), dtype), jnp.zeros((), dtype)
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)).astype(dtype) for leaf in filled]))
    # Kept where its reciprocal is a normal number too: the compiler may multiply by the reciprocal,
    # and a CPU flushes subnormal numbers to zero. Constant under differentiation, as the norm is in s.
    tiny = float(jnp.finfo(dtype).tiny)
    scale = jax.lax.stop_gradient(jnp.clip(largest, tiny, 1.0 / tiny))
    return scale, _root(_sum_of_squares(filled, lambda leaf: leaf.astype(dtype) * (1 / scale)))


def _norm_in_units(leaves: Sequence[Array], unit: Array) -> Array:
    """The norm over ``unit`` of leaves, in the dtype of the unit, from a single pass over them.

    In float32, squares of entries below 2^-63 units vanish, which a comparison with the unit does not see,
    and those of entries from 2^64 units on leave the range: the same pass adds them up scaled down, where
    it is small squares that vanish. Not finite if an entry is not, or is beyond the range over the unit.
    """
    if not leaves:
        return jnp.zeros_like(unit)
    # Behind a barrier: a compiler that knows these numbers squares them and the entries apart.
    far = 2.0 ** (jnp.finfo(unit.dtype).maxexp // 2)
    inverse, small = jax.lax.optimization_barrier((1 / unit, 1 / far / unit))
    ordinary = _sum_of_squares(leaves, lambda leaf: leaf.astype(unit.dtype) * inverse)
    huge = _sum_of_squares(leaves, lambda leaf: leaf.astype(unit.dtype) * small)
    fits = jnp.isfinite(ordinary)
    return _root(jnp.where(fits, ordinary, huge)) * jnp.where(fits, 1.0, far)


def _filled(tree: PyTree) -> tuple[list[Array], Any]:
    """The leaves that have entries, and the widest dtype among all and float32, in which to compute."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"every leaf must be real floating, got a leaf of dtype {leaf.dtype}")
    stored = [leaf for leaf in leaves if leaf.size]
    # Without the barrier the compiler, seeing that all entries of a leaf are one number, squares that
    # number and the reciprocal of the scale apart from each other, and both leave the range. Before
    # the conversion: behind it, half precision has to be written out in full.
    return list(jax.lax.optimization_barrier(stored)), _dtype(leaves)


def _dtype(leaves: Sequence[Array]) -> Any:
    return jnp.result_type(jnp.float32, *(at_least_float32(leaf.dtype) for leaf in leaves))


def _sum_of_squares(leaves: Sequence[Array], scaled: Callable[[Array], Array]) -> Array:
    sums = [_ordered_sum(leaf, lambda x: jnp.square(scaled(x))) for leaf in leaves]
    return _ordered_sum(jnp.stack(sums))


def _root(total: Array) -> Array:
    """The square root, with gradient zero at zero."""
    positive = total != 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, total, 1.0)), 0.0)


def _ordered_sum(terms: Array, of: Callable[[Array], Array] | None = None) -> Array:
    """The sum of the terms that ``of`` makes of numbers, zero of zero.

    With at most as many additions in a row as ``_additions`` says, however compiled.
    """
    of = of or _itself
    while terms.size > _BLOCK:
        axis, pieces, width = _next_level(terms.shape)
        if axis is None:
            terms = jnp.pad(jnp.ravel(terms), (0, -terms.size % _BLOCK)).reshape(-1, _BLOCK)
            axis, pieces, width = 1, 1, _BLOCK
        # By slices, not by a reshape, and of what is there already: a TPU would write all terms out anew.
        folded = of(_piece(terms, axis, 0, width))
        for piece in range(1, pieces):
            folded = folded + of(_piece(terms, axis, piece, width))
        # Without the barrier the compiler may merge the levels into one long sum.
        sums = jnp.sum(folded, axis=tuple(range(axis, folded.ndim)))
        terms = jax.lax.optimization_barrier(sums) if axis else sums
        of = _itself
    return jnp.sum(of(terms))


def _itself(terms: Array) -> Array:
    return terms


def _next_level(shape: tuple[int, ...]) -> tuple[int | None, int, int]:
    """What is added up next of more than ``_BLOCK`` terms: the axes from which on.

    After the first of them is cut into how many pieces of what width; no axis where there were too many.
    """
    inner = 1
    for axis in range(len(shape) - 1, -1, -1):
        if inner * shape[axis] > _BLOCK:
            break
        inner *= shape[axis]
    if inner >= _WIDE:
        return axis + 1, 1, shape[axis + 1]
    width = _BLOCK // inner
    pieces = math.ceil(shape[axis] / width)
    return (axis, pieces, width) if pieces <= _PIECES else (None, 1, 0)


def _piece(terms: Array, axis: int, number: int, width: int) -> Array:
    piece = jax.lax.slice_in_dim(
        terms, number * width, min((number + 1) * width, terms.shape[axis]), axis=axis
    )
    missing = width - piece.shape[axis]
    return jnp.pad(piece, [(0, missing * (i == axis)) for i in range(terms.ndim)])


def _roundoff(dtype: Any) -> float:
    return float(jnp.finfo(dtype).eps) / 2


def _additions(shape: tuple[int, ...]) -> int:
    made = 0
    while math.prod(shape) > _BLOCK:
        axis, pieces, _ = _next_level(shape)
        made += pieces + _BLOCK
        shape = (math.ceil(math.prod(shape) / _BLOCK),) if axis is None else shape[:axis]
    return made + math.prod(shape)
