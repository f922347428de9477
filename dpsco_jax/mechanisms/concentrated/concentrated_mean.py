"""The mean of vectors that are close to each other: score, weights that leave out outliers, mean.

What it computes: for one vector a user and a radius ρ, the concentration score
s = (1/N)·#{(j, k) : ‖v_j - v_k‖ <= ρ}, between 0 and N; the degrees f_j = #{k : ‖v_j - v_k‖ <= 2ρ};
weights w_j = clip((f_j - N/2) / ((θ - 1/2) N), 0, 1); and the weighted mean Σ w_j v_j / Σ w_j.

Source: Algorithm 1 of Asi and Liu (Algorithm 28 of the thesis) and Algorithms 31 and 32 of the
thesis. There w_j is the probability with which a user is kept; here it is a weight, which needs less
noise for the same proof, and ``select`` draws the subset.

Formal guarantee: none is released here. Under replacement of one user the score moves by less than 2:
the row and the column of that user, 2(N - 1) ordered pairs, and its pair with itself (a vector that
is not finite is near nobody, also not itself), divided by N. It is rounded to a grid of step 2^-k,
which keeps that bound: x - y < 2 implies that the grid points next to them differ by at most 2. How
far the mean moves once both scores are high is ``privacy.concentrated.threshold_phase.mean_sensitivity``, in
units of ρ·(1 + ``headroom``): comparisons in floating point have a margin, see ``_blocks``.
Scores, degrees and weights are functions of the data and secret.

Cost: N²·d multiplications for score and degrees together, in blocks; nothing of size N × N.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from dpsco_jax import _compensated, _counts, _keys, _sharding
from dpsco_jax._checks import (
    require,
    require_first_rows,
    require_integer,
    require_integers,
    require_key,
    require_mask,
    require_number,
    require_positive,
    require_real_leaves,
    require_same_rows,
    require_tree,
)
from dpsco_jax._parts import require_same_everywhere
from dpsco_jax.mechanisms.concentrated import _blocks, _pairwise
from dpsco_jax.privacy.concentrated.threshold_phase import MOST_USERS

REACH = 16.0


class Concentration(NamedTuple):
    """How close vectors are to each other. Secret: functions of the data without noise.

    Attributes:
        score: average over users of the number of vectors within the radius.
        degrees: number of vectors within twice the radius of each, ``[users]``; 0 for a vector that
            is not finite, masked out or out of reach.
    """

    score: Float[Array, ""]
    degrees: Int[Array, "users"]


def concentration(
    vectors: Any,
    radius: ArrayLike,
    *,
    anchor: Any = None,
    user_mask: Bool[ArrayLike, "users"] | None = None,
    reach: float = REACH,
    block_size: int = 512,
    num_users: Int[Array, ""] | None = None,
) -> Concentration:
    """Score at ``radius`` and degrees at twice the radius, in one sweep over pairs of users.

    Args:
        vectors: pytree of real floating leaves ``[users, ...]``, one vector a user; distances are
            l2 over all leaves together.
        radius: ρ, positive and finite, the distance between two users, not to a centre; may be traced.
            A traced radius out of that range makes no promise.
        anchor: a public vector near which the others are expected (an earlier release, a starting
            point; never a function of these vectors); the origin if None. Leaves ``[...]``.
        user_mask: False for users who count as absent. They still count in N.
        reach: a vector farther than ``reach * radius`` from the anchor counts as an outlier. The
            ``headroom`` that the noise has to pay grows with the square of it.
        block_size: users compared at a time; 2048 at most.
        num_users: N where only the first N rows are users, an array of one integer, which may be traced: of
            runs of several sizes in one program. From 1 to the number of rows; all rows if left out.

    Raises:
        ValueError: there is no leaf or are no users or more than 16,777,215 (beyond, a score in
            float32 would have a sensitivity above 2), or ``reach`` or ``block_size`` is not positive.
    """
    require_positive("reach", reach)
    require_positive("radius", radius)
    require_real_leaves("vectors", vectors)
    require_integer("block_size", block_size, 1, _blocks.LARGEST)
    rows = _num_users(vectors)
    if user_mask is not None:
        user_mask = require_mask("user_mask", user_mask, (rows,))
    require_first_rows("num_users", num_users, rows)
    vectors, anchor = _arrays(vectors, anchor)
    counted = jnp.ones(rows, bool) if user_mask is None else user_mask
    found = _pairwise.degrees(vectors, radius, anchor, counted, reach, block_size, num_users)
    return Concentration(_mean_on_grid(found.near, num_users), found.near_twice)


def headroom(vector: Any, reach: float = REACH) -> float:
    """The relative margin h of the comparisons: sensitivities are in units of radius · (1 + h).

    Args:
        vector: one user's vector: a pytree of arrays or ``jax.ShapeDtypeStruct``, without the axis
            of users.
        reach: how far from the anchor vectors are compared, in radii.
    """
    require_positive("reach", reach)
    require_real_leaves("vector", vector)
    return _pairwise.headroom(vector, float(reach))


def inlier_weights(
    degrees: Int[ArrayLike, "users"], num_users: int | Int[Array, ""], keep_level: ArrayLike
) -> Float[Array, "users"]:
    """Weights in [0, 1]: 0 up to degree N/2, 1 from degree θN on, linear between.

    Args:
        degrees: of ``concentration``.
        num_users: N, public; an array of one integer may be traced.
        keep_level: θ in (1/2, 1); may be traced.

    Raises:
        ValueError: ``num_users`` is not positive or ``keep_level`` is not in (1/2, 1).
    """
    if isinstance(num_users, jax.Array):
        require_first_rows("num_users", num_users, MOST_USERS)
        num_users = num_users.astype(jnp.float32)
    else:
        num_users = require_integer("num_users", num_users, 1)
    require_integers("degrees", degrees)
    require_number("keep_level", keep_level)
    if not isinstance(keep_level, jax.core.Tracer):
        level = np.asarray(keep_level)
        require((level > 0.5) & (level < 1), "keep_level", keep_level, "in (1/2, 1)")
    degrees = jnp.asarray(degrees, float)
    # Degree θN has weight 1 in the proof, also where θ has been rounded up.
    kept = jnp.asarray(keep_level, float) * (num_users * (1 - 2.0**-22))
    ramp = (degrees - 0.5 * num_users) / (kept - 0.5 * num_users)
    return jnp.clip(ramp, 0.0, 1.0)


def select(key: jax.Array, weights: Float[Array | np.ndarray, "users"]) -> Float[Array, "users"]:
    """The random subset: each weight replaced by 1 with that probability, by 0 otherwise."""
    require_key(key)
    require_number("weights", weights, "an array of real numbers")
    require_same_everywhere("weights", weights)
    return jax.random.bernoulli(_keys.alone(key), weights).astype(weights.dtype)


def weighted_mean(vectors: Any, weights: Float[ArrayLike, "users"], anchor: Any = None) -> Any:
    """Σ w_j v_j / Σ w_j, and the anchor if all weights are zero.

    Args:
        vectors: pytree of leaves ``[users, ...]``; rows of weight zero may hold anything.
        weights: nonnegative.
        anchor: a public vector, the origin if None. The sum is taken of differences to it.

    Returns:
        A pytree of leaves ``[...]`` in at least float32.
    """
    vectors, anchor = _arrays(vectors, anchor)
    return jax.tree.map(jnp.add, anchor, mean_deviation(vectors, weights, anchor))


def mean_deviation(
    vectors: Any,
    weights: Float[ArrayLike, "users"],
    anchor: Any = None,
    num_users: Int[Array, ""] | None = None,
) -> Any:
    """``weighted_mean`` minus the anchor: what noise is added to, as the anchor is public.

    Blocks of 256 users are summed plainly, the blocks with compensation, so that the rounding does
    not grow with the number of users: it is of the order of 2^-24 of the largest deviation with a
    positive weight. Sensitivities are those of real arithmetic. With ``num_users`` only so many rows, the
    first ones, count.
    """
    vectors, anchor = _arrays(vectors, anchor)
    require_number("weights", weights, "an array of real numbers")
    require_first_rows("num_users", num_users, _num_users(vectors))
    counted = jnp.asarray(weights)
    spread = _sharding.found(vectors)
    # The first rows of all are not the first of each device, which reads its own: others have no weight.
    live = num_users if spread is None else None

    def sums(rows: Any, counted: jax.Array, anchor: Any) -> Any:
        none = jnp.zeros([], counted.dtype)
        ones = _weighted_sum(jnp.ones_like(counted), counted, none, live)
        return ones, jax.tree.map(
            lambda leaf, at: _weighted_sum(leaf, counted, at, live), rows, anchor
        )

    if num_users is not None:
        counted = jnp.where(jnp.arange(len(counted)) < num_users, counted, 0)
    if spread is None:
        total, weighted = sums(vectors, counted, anchor)
    else:
        # What compensation holds back goes to the sum over devices.
        total, weighted = _sharding.summed(
            spread, lambda own, first, at: sums(own[0], own[1], at), (vectors, counted), anchor
        )
    total, weighted = jax.tree.map(
        lambda parts: parts.high, (total, weighted), is_leaf=_compensated.is_split
    )
    total = jnp.where(total > 0, total, 1)
    return jax.tree.map(lambda leaf: leaf / total.astype(leaf.dtype), weighted)


def _weighted_sum(
    leaf: jax.Array, weights: jax.Array, centre: jax.Array, live: Any
) -> _compensated.Split:
    """Σ of weight · (row - centre), over the rows of positive weight, and what it lacks.

    If ``live`` is given, rows from there on have no weight.
    """
    num_users, rows = leaf.shape[0], min(256, leaf.shape[0])
    flat = leaf.reshape(num_users, -1)
    centre = jnp.asarray(centre)
    dtype = jnp.result_type(centre.dtype, jnp.float32)

    def add_block(index: jax.Array, sums: tuple) -> tuple:
        total, lost = sums
        # The last block starts early enough to be whole; users already added have no weight.
        start = jnp.minimum(index * rows, num_users - rows)
        block = lax.dynamic_slice_in_dim(flat, start, rows).astype(dtype)
        weight = lax.dynamic_slice_in_dim(weights, start, rows).astype(dtype)
        weight = jnp.where(start + jnp.arange(rows) >= index * rows, weight, 0)
        centred = jnp.where(weight[:, None] > 0, block - centre.reshape(1, -1), 0)
        term = jnp.dot(weight, centred, precision=lax.Precision.HIGHEST) - lost
        new = total + term
        return new, (new - total) - term

    zero = jnp.zeros(flat.shape[1], dtype)
    blocks = -(-(num_users if live is None else live) // rows)
    sums = lax.fori_loop(0, blocks, add_block, (zero, zero))
    total, lost = (x.reshape(leaf.shape[1:]) for x in sums)
    return _compensated.Split(total, -lost)


def _mean_on_grid(
    counts: Int[Array, "users"], num_users: int | Array | None = None
) -> Float[Array, ""]:
    """The mean of counts, rounded down to a grid of float32 numbers, by exact integer arithmetic.

    The sum can reach N², below 2^48. The mean is at most N < 2^24: with its digits behind the point it has
    24 bits, and the rest of the division with as many digits more is below 2^24 too.
    """
    num_users = len(counts) if num_users is None else num_users
    whole, rest = _counts.divided(_counts.total(counts), num_users)
    bits: Any
    step: Any
    if isinstance(num_users, jax.Array):
        num_users = num_users.astype(jnp.uint32)
        bits = lax.clz(num_users) - 8
        # The float 2^-bits, by its exponent.
        step = lax.bitcast_convert_type((127 - bits) << 23, jnp.float32)
    else:
        bits = 24 - num_users.bit_length()
        step = 2.0**-bits
    fraction = (rest << bits) // num_users
    return whole.low.astype(jnp.float32) + fraction.astype(jnp.float32) * step


def _arrays(vectors: Any, anchor: Any) -> tuple[Any, Any]:
    """Vectors and anchor as arrays, the anchor in at least float32, the origin if it is None."""
    require_real_leaves("vectors", vectors)
    require_tree("anchor", anchor)
    vectors = jax.tree.map(jnp.asarray, vectors)
    if anchor is None:
        anchor = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), vectors)
    anchor = jax.tree.map(jnp.asarray, anchor)
    return vectors, jax.tree.map(
        lambda centre: centre.astype(jnp.promote_types(centre.dtype, jnp.float32)), anchor
    )


def _num_users(vectors: Any) -> int:
    num_users = require_same_rows("vectors", vectors)
    good = 0 < num_users <= MOST_USERS
    require(good, "users", num_users, f"between 1 and {MOST_USERS}")
    return num_users
