"""The law exp(k·⟨e, y⟩ - a‖y‖²) on the unit ball: draws of it, and its moment, for linear losses on a ball.

A draw is a length u along e and a length q across, in a uniform direction: d numbers become two. With q =
e^-z and c = √(1 - q²) the logarithm of the density of z,

    h(z) = -(d - 1)·z + log ∫ exp(k·u - a·u²) du over [-c, c] - a·q²,

is concave, and so is that of u given c. Both are drawn by ``_concave``: attempts at the law whose density is
flat around the mode and falls exponentially from where h has fallen by one, of which each counts with
probability 0.43 or more (docs/theory/online.md, section 5); if none of ``ATTEMPTS`` counts the mode is taken.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from dpsco_jax.geometry.norms import global_norm
from dpsco_jax.mechanisms import additive

ATTEMPTS = 96
VARIATION = 2.0 * 0.57**ATTEMPTS  # of a draw, at most
MOST = 1e8  # of k and a: what the search for the mode is proven for
MOST_DIM = 10_000  # of more coordinates a log-density in float32 is off by more than 0.004
_LEAST_DEPTH, _MOST_DEPTH = 1e-10, 100.0  # z of the mode and of a fall by one are between them
_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)
_SEARCHES, _HALVINGS = 36, 30
_LOST = 2.0**-20  # of the mode's logarithm: more than the search leaves open
_ROOTS, _SHARES = np.polynomial.legendre.leggauss(8)
_NODES, _WEIGHTS = 0.5 * (_ROOTS + 1.0), 0.5 * _SHARES
_HALF_LOG = 0.5 * math.log(2.0 * math.pi)
_FAR, _FRACTIONS = 4.0, 12  # within 2e-9


@jax.jit
def draw(key: jax.Array, towards: jax.Array, tilt: Any, concentration: Any) -> jax.Array:
    """A point of the unit ball.

    Args:
        key: a typed key, used up.
        towards: a vector in the direction of e, of any length.
        tilt: k, at least 0.
        concentration: a, above 0.
    """
    dim = towards.shape[0]
    length = global_norm(towards)
    first = jnp.zeros(dim, towards.dtype).at[0].set(1.0)
    e = jnp.where(length > 0, towards / jnp.where(length > 0, length, 1.0), first)
    across_key, along_key, direction_key = jax.random.split(key, 3)
    if dim == 1:
        return _along(along_key, tilt, concentration, jnp.ones((), towards.dtype)) * e
    z = _across(across_key, dim, tilt, concentration)
    u = _along(along_key, tilt, concentration, jnp.sqrt(-jnp.expm1(-2.0 * z)))
    side = additive.gaussian(direction_key, jnp.zeros_like(towards), 1.0)
    side = side - jnp.dot(side, e) * e
    return u * e + (jnp.exp(-z) / global_norm(side)) * side


def _along(key: jax.Array, k: Any, a: Any, c: Any) -> jax.Array:
    """A draw of u from exp(k·u - a·u²) on [-c, c]."""
    top = jnp.minimum(c, k / (2.0 * a))
    slope = k - 2.0 * a * top  # of the exponent at the top: 0 unless that is the end
    left = 2.0 / (slope + jnp.sqrt(slope * slope + 4.0 * a))
    left, right = jnp.minimum(left, top + c), jnp.minimum(1.0 / jnp.sqrt(a), c - top)

    def log_density(v: Any) -> Any:
        return jnp.where((v <= c - top) & (v >= -c - top), v * (slope - a * v), -jnp.inf)

    ended = left >= top + c, right >= c - top
    return jnp.clip(top + _concave(key, log_density, 0.0, left, right, ended), -c, c)


def _across(key: jax.Array, dim: int, k: Any, a: Any) -> jax.Array:
    """A draw of z = -log q."""
    h = functools.partial(log_across, dim, k, a)
    least, most = math.log(_LEAST_DEPTH), math.log(_MOST_DEPTH)
    dtype = jnp.result_type(k, float)

    def narrower(_: Any, at: Any) -> Any:
        (low, high), (one, two), (of_one, of_two) = at
        rises = of_one < of_two
        low, high = jnp.where(rises, one, low), jnp.where(rises, high, two)
        step = _GOLDEN * (high - low)
        new = jnp.where(rises, low + step, high - step)
        kept, of_kept = jnp.where(rises, two, one), jnp.where(rises, of_two, of_one)
        of_new = h(jnp.exp(new))
        points, heights = jnp.stack([kept, new]), jnp.stack([of_kept, of_new])
        return (low, high), _flipped(rises, points), _flipped(rises, heights)

    inner = _GOLDEN * (most - least)
    points = jnp.asarray([most - inner, least + inner], dtype)
    start = jnp.asarray(least, dtype), jnp.asarray(most, dtype)
    at = start, points, h(jnp.exp(points))
    (low, high), _, _ = jax.lax.fori_loop(0, _SEARCHES, narrower, at)
    mode = 0.5 * (low + high)
    highest = h(jnp.exp(mode))

    def halved(_: Any, ends: Any) -> Any:
        inside, outside = ends
        middle = 0.5 * (inside + outside)
        far = h(jnp.exp(middle)) < highest - 1.0
        return jnp.where(far, inside, middle), jnp.where(far, middle, outside)

    ends = jnp.stack([mode, mode]), jnp.stack(start)
    fallen = jnp.exp(jax.lax.fori_loop(0, _HALVINGS, halved, ends)[1])
    z = jnp.exp(mode)
    left, right = z - fallen[0], fallen[1] - z

    def log_density(v: Any) -> Any:
        there = z + v > 0
        return jnp.where(there, h(jnp.where(there, z + v, z)) - highest, -jnp.inf)

    # Chords from where the density has fallen say how much higher it can be than where the search ended.
    falls = -log_density(jnp.stack([-left, right]))
    excess = _LOST * z * jnp.maximum(falls[0] / left, falls[1] / right)
    return z + _concave(key, log_density, excess, left, right, (False, False))


def _flipped(straight: Any, two: Any) -> Any:
    return jnp.where(straight, two, two[::-1])


def _concave(
    key: jax.Array,
    log_density: Callable[[Any], Any],
    excess: Any,
    left: Any,
    right: Any,
    ended: tuple[Any, Any],
) -> Any:
    """A draw from a log-concave density on the line, by ``ATTEMPTS`` attempts; 0 if none counts.

    Args:
        key: a typed key, used up.
        log_density: 0 at 0, and at most ``excess`` anywhere.
        excess: at least 0.
        left: how far to the left it is flat before the tail.
        right: and to the right.
        ended: whether nothing is beyond, on the left and on the right.
    """
    flat = left + right

    def tail(fallen: Any, width: Any, over: Any) -> Any:
        whole = width * jnp.exp(-fallen) / jnp.where(over, 1.0, fallen)
        return jnp.where(over, 1e-25 * flat, whole)  # of points that never count

    falls = -log_density(jnp.stack([-left, right]))
    tails = tail(falls[0], left, ended[0]), tail(falls[1], right, ended[1])
    masses = jnp.stack([jnp.exp(excess) * flat, *tails])[:, None]
    # Three clocks: which rings first, when, and how long the others go on are independent.
    clocks = jnp.abs(additive.laplace(key, jnp.zeros((3, ATTEMPTS), masses.dtype), 1.0)) / masses
    which, rings = jnp.argmin(clocks, axis=0), jnp.min(clocks, axis=0)
    left_over = (clocks - rings) * masses
    one = jnp.where(which == 0, left_over[1], left_over[0])
    two = jnp.where(which == 2, left_over[1], left_over[2])
    inside = flat * (one / (one + two)) - left
    below = -left * (1.0 + one / jnp.where(ended[0], 1.0, falls[0]))
    above = right * (1.0 + one / jnp.where(ended[1], 1.0, falls[1]))
    v = jnp.where(which == 0, inside, jnp.where(which == 1, below, above))
    tails_at = jnp.where(which == 1, v / left * falls[0], -v / right * falls[1])
    height = jnp.where(which == 0, excess, tails_at)
    counts = rings * jnp.sum(masses) >= height - log_density(v)
    return jnp.where(jnp.any(counts), v[jnp.argmax(counts)], 0.0)


def log_across(dim: int, k: Any, a: Any, z: Any) -> Any:
    """h(z), up to a constant, in numbers of which no two large ones cancel."""
    squared = jnp.exp(-2.0 * z)
    c = jnp.sqrt(-jnp.expm1(-2.0 * z))
    root = jnp.sqrt(2.0 * a)
    near, far = (k - 2.0 * a * c) / root, (k + 2.0 * a * c) / root
    width = 2.0 * root * c  # far - near, which would cancel where k is much above a
    # With u = c - v/root: e^(k·c - a·c²) times the integral of e^(-near·v - v²/2) over [0, width].
    end = jnp.where(k >= 2.0 * a, -k * squared / (1.0 + c), -a * squared - 0.5 * jnp.square(near))
    of_near, of_far = log_mills(jnp.stack([near, far]))
    mills = of_near + _log_less(of_far - of_near - 0.5 * width * (near + far))
    middle = -a * squared + _HALF_LOG  # the mean is inside: k < 2·a
    below = jnp.log(0.5 * jax.lax.erfc(jnp.minimum(near, 0.0) / math.sqrt(2.0)))
    both = below + _log_less(of_far - 0.5 * far * far - _HALF_LOG - below)
    inner = width[..., None] * jnp.asarray(_NODES, width.dtype)
    heights = jnp.exp(-jnp.minimum(inner * (near[..., None] + 0.5 * inner), 50.0))
    flat = jnp.log(width * jnp.sum(jnp.asarray(_WEIGHTS, width.dtype) * heights, axis=-1))
    short = width * (jnp.abs(near) + width) < 1.0
    inside = jnp.where(near > 0, end + mills, middle + both)
    return jnp.where(short, end + flat, inside) - (dim - 1) * z


def _log_less(exponent: Any) -> Any:
    """The logarithm of 1 - e^x, x < 0."""
    return jnp.log(-jnp.expm1(jnp.minimum(exponent, -1e-30)))


def log_mills(at: Any) -> Any:
    """The logarithm of the upper tail of a standard normal number over its density, at s ≥ 0."""
    near = jnp.clip(at, 0.0, _FAR)
    by_erfc = 0.5 * near * near + jnp.log(jax.lax.erfc(near / math.sqrt(2.0)))
    far = jnp.maximum(at, _FAR)
    fraction = far
    for n in range(_FRACTIONS, 0, -1):
        fraction = far + n / fraction
    return jnp.where(at < _FAR, by_erfc + 0.5 * math.log(math.pi / 2.0), -jnp.log(fraction))


def moment(dim: int, tilt: Any, concentration: Any) -> Any:
    """The cost k - log E e^(k·u), u the first coordinate under exp(-a‖y‖²), rounded up; on the host.

    The integral over u is of a log-concave function: linear interpolation of its logarithm is below it.
    """
    k, a = (np.asarray(x, np.float64)[..., None] for x in (tilt, concentration))
    t = np.geomspace(1e-10, 2.0, 257)[:-1]  # 1 - u
    h = -k * t - a * np.square(1.0 - t)
    if dim > 1:
        h = h + _log_share(dim - 1, a * t * (2.0 - t)) - 0.5 * (dim - 1) * np.log(a / np.pi)
    low, high = np.minimum(h[..., :-1], h[..., 1:]), np.maximum(h[..., :-1], h[..., 1:])
    fall = np.maximum(high - low, 1e-12)
    pieces = high + np.log(-np.expm1(-fall) / fall) + np.log(np.diff(t))
    whole = 0.5 * dim * np.log(np.pi / a[..., 0]) + _log_share(dim, a[..., 0], above=True)
    found = whole - special.logsumexp(pieces, axis=-1)
    return found + 1e-9 * (1.0 + np.abs(found) + np.abs(whole))


def _log_share(dim: int, x: Any, above: bool = False) -> Any:
    """The logarithm of P(χ² ≤ 2x), d degrees of freedom; where it underflows a bound from below, or above."""
    half = 0.5 * dim
    share = special.gammainc(half, x)
    first = half * np.log(x) - x - special.gammaln(half + 1.0)
    if above:
        first = first - np.log1p(-np.minimum(x / (half + 1.0), 0.5))
    good = share > 1e-280
    return np.where(good, np.log(np.where(good, share, 1.0)), first)
