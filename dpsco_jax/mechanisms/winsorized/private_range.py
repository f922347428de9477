"""A private interval that holds most of a set of scalars: the exponential mechanism over bins.

What it computes: the range [-bound, bound] is cut into bins; bin t is drawn with probability proportional
to exp(-ε c(t)/2), where c(t) is the larger of the number of values below bin t and of those above it: low
cost means near the median. The interval around the midpoint of the bin drawn has the half-width

    h = 2·radius + bin_width/2,

so that it holds all values whenever they lie in some window of half-width ``radius`` and the bin drawn
holds a value or lies between two. If h >= bound, the interval is [-bound, bound] and nothing is revealed.

Source: L Algorithm 6. Corrected: the printed half-width 2·radius misses values, because the midpoint of a
bin of width 2·radius is up to 3·radius away from them. The sampler over gaps of sorted values is ours.

Formal guarantee: pure ε-DP, and a privacy loss of range ε (cost ``privacy.bounded_range(epsilon)``), under
REPLACE_ONE. Replacing one value changes each of the two counts by at most 1, hence every c(t) by at most 1;
see ``docs/theory/winsorized_mean.md``. Nothing is assumed of the values: what is not finite counts as
zero, what lies outside is clipped. Utility: for values in a window of half-width ``radius``, a bin that
does not serve has c = n while the best has c <= n/2, so P(some value is left out) <= bins·exp(-εn/4).

Cost: one sort of the values and 2n + 1 Gumbel draws, however many bins there are.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int

from dpsco_jax._checks import (
    require,
    require_each,
    require_first_rows,
    require_integer,
    require_key,
    require_number,
    require_positive,
    require_real,
)
from dpsco_jax._numerics import wide_number
from dpsco_jax._parts import require_same_everywhere
from dpsco_jax.mechanisms import _draws

_BINS_PER_RADIUS = 2  # bins of half a radius: h is 2.25 radii
_MOST_BINS = 2**30


class Interval(NamedTuple):
    """An interval, [center - half_width, center + half_width].

    Attributes:
        center: private.
        half_width: a function of the arguments alone.
    """

    center: Float[Array, ""]
    half_width: Float[Array, ""]


def default_bin_width(radius: Any) -> Any:
    """Half the radius: narrower bins gain little in width, wider ones lose."""
    require_positive("radius", radius)
    return radius / _BINS_PER_RADIUS


def half_width(radius: Any, bin_width: Any) -> Any:
    """h, before it is cut off at the bound."""
    require_positive("radius", radius)
    require_positive("bin_width", bin_width)
    return 2 * wide_number(radius) + wide_number(bin_width) / 2


def num_bins(bound: float, bin_width: float) -> int:
    """How many bins there are: an even number, as many to the left of zero as to the right."""
    bound = require_real("bound", bound, 0.0)
    bin_width = require_real("bin_width", bin_width, 0.0)
    return 2 * math.ceil(bound / bin_width)


def miss_probability(num_values: int, epsilon: float, bound: float, bin_width: float) -> float:
    """Bound on the probability that the interval leaves out a value of a concentrated set."""
    require_integer("num_values", num_values, 1)
    epsilon = require_real("epsilon", epsilon, 0.0)
    return min(1.0, num_bins(bound, bin_width) * math.exp(-epsilon * num_values / 4))


def private_range(
    key: jax.Array,
    values: Float[Array | np.ndarray, " users"],
    epsilon: ArrayLike,
    radius: ArrayLike,
    bound: ArrayLike,
    bin_width: ArrayLike | None = None,
    num_users: Int[Array, ""] | None = None,
) -> Interval:
    """Draws an interval that holds all values with high probability, if they are concentrated.

    Costs ``privacy.bounded_range(epsilon)``, which implies ε-DP; nothing if h >= ``bound``.

    Args:
        key: a typed key, used up.
        values: one per user; any numbers.
        epsilon: the parameter ε; may be traced, as may all that follows.
        radius: half-width of the window in which the values are believed to lie, wherever it is.
        bound: values are clipped to [-bound, bound].
        bin_width: half the radius if left out. ``bound / bin_width`` is cut off at 2^29.
        num_users: n where only the first n values are users, an array of one integer, which may be traced: of
            runs of several sizes in one program. Others are not looked at, and the draw is that of n values
            (with the keys that JAX makes by default; with others, of the same law).

    Raises:
        ValueError: there are no values, or too many bins.
    """
    require_key(key)
    bins, count, grid = _binned(values, epsilon, radius, bound, bin_width, num_users)
    size, cost, start = _segments(bins, count, num_users)
    bin_key, place_key = jax.random.split(key)
    weight = _log_weights(size, cost, epsilon)
    chosen = jnp.argmax(weight + _gumbel(bin_key, weight))
    place = jax.random.randint(place_key, (), 0, jnp.maximum(size[chosen], 1))
    return Interval(grid.center(start[chosen] + place), grid.half_width)


def law(
    values: Float[Array | np.ndarray, " users"],
    epsilon: float,
    radius: float,
    bound: float,
    bin_width: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The exact distribution of ``private_range``, from the weights it draws by: for audits.

    Args:
        values: one number of each user, ``[users]``.
        epsilon: η of the draw.
        radius: τ, within which most values are believed to lie of some number.
        bound: B, to which values are clipped.
        bin_width: of the bins that are drawn from.

    Returns:
        The centers, shape ``[bins]``, and their probabilities in float64. Both reveal the values.
    """
    bins, count, grid = _binned(values, epsilon, radius, bound, bin_width)
    size, cost, start = (np.asarray(x) for x in _segments(bins, count))
    log_probability = np.full(int(count), -np.inf)
    for length, price, first in zip(size, cost, start, strict=True):
        log_probability[first : first + length] = -0.5 * float(epsilon) * price
    probability = np.exp(log_probability - log_probability.max())
    centers = jax.vmap(grid.center)(jnp.arange(int(count)))
    return np.asarray(centers), probability / probability.sum()


class _Grid(NamedTuple):
    """Where the bins are: bin t is [(t - half_count)·width, (t + 1 - half_count)·width)."""

    width: Array
    half_count: Array
    half_width: Array
    single: Array

    def center(self, index: Array) -> Array:
        middle = (jnp.asarray(index - self.half_count, self.width.dtype) + 0.5) * self.width
        return jnp.where(self.single, 0.0, middle)


def _binned(
    values: Any,
    epsilon: ArrayLike,
    radius: ArrayLike,
    bound: ArrayLike,
    width: ArrayLike | None,
    num_users: Array | None = None,
) -> tuple[Array, Array, _Grid]:
    """The sorted bin of each value, the number of bins, and where they are; nobody is in a bin behind all."""
    width = require_numbers(epsilon, radius, bound, width)
    require_number("values", values, "an array of real numbers")
    require_same_everywhere("values", values)
    require_positive("number of values", values.shape[0])
    require_first_rows("num_users", num_users, values.shape[0])
    values = jnp.asarray(values, jnp.promote_types(jnp.result_type(values), jnp.float32))
    bound, width = jnp.asarray(bound, values.dtype), jnp.asarray(width, values.dtype)
    half = jnp.asarray(half_width(radius, width), values.dtype)
    single = half >= bound
    half_count = jnp.minimum(jnp.ceil(bound / width), _MOST_BINS // 2).astype(jnp.int32)
    values = jnp.clip(jnp.where(jnp.isfinite(values), values, 0), -bound, bound)
    # From zero, not from an end: near zero no digit is lost, however many bins there are.
    signed = jnp.clip(jnp.floor(values / width), -_MOST_BINS // 2, _MOST_BINS // 2)
    signed = jnp.clip(signed.astype(jnp.int32), -half_count, half_count - 1)
    count = jnp.where(single, 1, 2 * half_count)
    places = jnp.where(single, 0, signed + half_count)
    if num_users is not None:
        places = jnp.where(jnp.arange(len(places)) < num_users, places, count)
    grid = _Grid(width, half_count, jnp.minimum(half, bound), single)
    return jnp.sort(places), count, grid


def require_numbers(
    epsilon: ArrayLike, radius: ArrayLike, bound: ArrayLike, bin_width: ArrayLike | None
) -> Any:
    """The width of the bins, after a check of the numbers of ``private_range`` that are not traced."""
    require_each(require_positive, epsilon=epsilon, radius=radius, bound=bound)
    width = default_bin_width(radius) if bin_width is None else bin_width
    require_positive("bin_width", width)
    if not any(isinstance(x, jax.core.Tracer) for x in (bound, width)):
        bins = 2 * np.asarray(bound) / np.asarray(width)
        require(np.all(bins < _MOST_BINS), "number of bins", bins, "below 2^30")
    return width


def _segments(
    bins: Int[Array, " users"], count: Int[Array, ""], num_users: Array | None = None
) -> tuple[Int[Array, " segments"], Int[Array, " segments"], Int[Array, " segments"]]:
    """Runs of bins of equal cost, as (number of bins, cost, first bin); 2n + 1 of them, some empty.

    First the n + 1 gaps between neighbours, then the occupied bins, each at the first of its values. Where
    only some bins are of users, all segments behind theirs are empty.
    """
    rows = bins.shape[0]
    users = rows if num_users is None else num_users
    before = jnp.concatenate([jnp.full(1, -1, bins.dtype), bins])
    after = jnp.concatenate([bins, jnp.full(1, count, bins.dtype)])
    gap_size = jnp.maximum(after - before - 1, 0)
    below = jnp.arange(rows + 1, dtype=jnp.int32)
    gap_cost = jnp.maximum(below, users - below)
    first = bins != before[:-1]
    if num_users is not None:
        first = first & (below[:-1] < users)
    # One past the last value in the same bin.
    last = jnp.where(bins != after[1:], below[1:], users)
    run_end = lax.cummin(last, reverse=True)
    run_cost = jnp.maximum(below[:-1], users - run_end)
    return (
        jnp.concatenate([gap_size, first.astype(jnp.int32)]),
        jnp.concatenate([gap_cost, run_cost]),
        jnp.concatenate([before + 1, bins]),
    )


def _gumbel(key: jax.Array, weights: Array) -> Array:
    """A variable for each segment, of the gaps and of the bins: the first ones are those of fewer values."""
    rows = len(weights) // 2
    both = _draws.gumbel(key, (rows + 1, 2), weights.dtype)
    return jnp.concatenate([both[:, 0], both[:rows, 1]])


def _log_weights(
    size: Int[Array, " segments"], cost: Int[Array, " segments"], epsilon: ArrayLike
) -> Float[Array, " segments"]:
    """log(size·exp(-ε cost/2)) up to a constant; costs count from the least, so none is rounded."""
    there = size > 0
    least = jnp.min(jnp.where(there, cost, jnp.iinfo(cost.dtype).max))
    dtype = jnp.result_type(float)
    price = 0.5 * jnp.asarray(epsilon, dtype) * jnp.asarray(cost - least, dtype)
    return jnp.where(there, jnp.log(jnp.asarray(jnp.maximum(size, 1), dtype)) - price, -jnp.inf)
