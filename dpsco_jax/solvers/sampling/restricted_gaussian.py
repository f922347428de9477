"""Exact draws from exp(-ψ(x) - ‖x - y‖²/(2η)) on a convex set K, for public ψ.

What it computes: attempts, each of which gives a point and whether it counts; given that it does, the point
has exactly that law. For ψ(x) = κ‖x - x₀‖²/2 the law is N(m, v·I) on K, v = 1/(1/η + κ), m = y - vκ(y - x₀):
- ``whole_space`` draws it, ``box`` draws each coordinate by an inversion that holds in far tails too: every
  attempt counts;
- ``convex_set`` knows K by its projection and its membership test. If m lies in K, or hardly outside,
  it proposes N(m, v·I). Otherwise K lies in the half-space {x : ⟨x - x̂, w⟩ ≤ 0}, x̂ the projection of m and
  w the direction of m - x̂: it proposes N(m, v·I) on this half-space, in one dimension a tail and a free
  normal across. What lies in K counts.
``tangent`` takes any convex ψ with its gradient g at y: it proposes N(y - ηg, η·I) and counts the point with
probability exp(-(ψ(x) - ψ(y) - ⟨g, x - y⟩)), times e^{-2^-20}, if it is in K.

Source: T section 3.5 and Proposition 4.4.8, which leave these draws to general samplers.

Formal guarantee: exact, in real arithmetic and for exact normal numbers. An attempt always counts for the
first two; for balls ``attempt_bounds`` and for tangents at powers of norms the certificate of
``value_queries`` bound how likely one does; for other sets no bound is known that holds for every y.

Cost: O(dim) an attempt, and a projection.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.solvers.sampling import restricted_gaussian
    >>> with jax.enable_x64(True):
    ...     inside = restricted_gaussian.box(0.1, 1.0, jnp.zeros(2), -jnp.ones(2), jnp.ones(2))
    ...     drawn = restricted_gaussian.draw(jax.random.key(0), inside, jnp.array([9.0, 0.0]), num_attempts=1)
    >>> bool(drawn.accepted), 0.5 < float(drawn.params[0]) <= 1.0
    (True, True)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from dpsco_jax import _checks, _keys, _released
from dpsco_jax.geometry.domains import Domain
from dpsco_jax.solvers.sampling._precision import float64_vector, require_x64
from dpsco_jax.solvers.sampling.attempt_bounds import OUTSIDE

__all__ = [
    "TANGENT_SLACK",
    "Drawn",
    "Restricted",
    "box",
    "convex_set",
    "draw",
    "tangent",
    "whole_space",
]


TANGENT_SLACK = 2.0**-20
"""Added to the exponent of every test of ``tangent``, so that roundings make no chance exceed 1."""

_NEWTON_STEPS = 5
_NEAR = 6.5  # from which on the continued fraction is used
_FRACTIONS = 16
_SHORT = 0.05  # change of the log density
_SHORT_STEPS = 4
_NODES, _WEIGHTS = (
    0.5 * (part + shift)
    for part, shift in zip(np.polynomial.legendre.leggauss(6), (1, 0), strict=True)
)
_FARTHEST = 1e3  # beyond it a tail that starts at zero has no mass in float64


class Restricted(NamedTuple):
    """The law exp(-ψ(x) - ‖x - y‖²/(2η)) on K for every y.

    Attributes:
        step_size: η.
        prepare: ``prepare(y) -> prepared``, what all attempts for one y share.
        attempt: ``attempt(key, prepared) -> (x, counts)``.
    """

    step_size: ArrayLike
    prepare: Callable[[Any], Any]
    attempt: Callable[[Array, Any], tuple[Any, Array]]


class Drawn(NamedTuple):
    """The end of some attempts.

    Attributes:
        params: the point that counts, or the last one that was tried if none does.
        accepted: whether there is one.
        num_attempts: how many were made. Depends on y.
    """

    params: Float[Array, " dim"]
    accepted: Bool[Array, ""]
    num_attempts: Int[Array, ""]


def whole_space(
    step_size: ArrayLike, convexity: ArrayLike, center: Float[Array, " dim"]
) -> Restricted:
    """The normal law, of which every attempt counts.

    Args:
        step_size: η, above 0; may be traced.
        convexity: κ, at least 0; may be traced.
        center: x₀, float64.

    Raises:
        ValueError: an argument is out of range, or jax_enable_x64 is off.
    """
    center, prepare, variance = _quadratic(step_size, convexity, center)

    def attempt(key: Array, mean: Array) -> tuple[Array, Array]:
        return mean + jnp.sqrt(variance) * _normal(key, center.shape), jnp.array(True)

    return Restricted(step_size, prepare, attempt)


def box(
    step_size: ArrayLike,
    convexity: ArrayLike,
    center: Float[Array, " dim"],
    lower: Float[Array, " dim"],
    upper: Float[Array, " dim"],
) -> Restricted:
    """The normal law on a box, coordinate by coordinate; every attempt counts.

    Args:
        step_size: η, as the next ones those of ``whole_space``.
        convexity: κ.
        center: x₀.
        lower: float64, below ``upper`` everywhere; infinite where the box has no end.
        upper: float64.

    Raises:
        ValueError: an argument is out of range or of another shape, or jax_enable_x64 is off.
    """
    center, prepare, variance = _quadratic(step_size, convexity, center)
    lower, upper = float64_vector("lower", lower), float64_vector("upper", upper)
    for name, end in (("lower", lower), ("upper", upper)):
        _checks.require(end.shape == center.shape, name, end.shape, f"of shape {center.shape}")
    if not isinstance(lower, jax.core.Tracer) and not isinstance(upper, jax.core.Tracer):
        sides = np.asarray(upper) - np.asarray(lower)
        _checks.require(sides > 0, "upper - lower", sides, "positive in every coordinate")

    def attempt(key: Array, mean: Array) -> tuple[Array, Array]:
        free_key, inside_key = jax.random.split(key)
        free = mean + jnp.sqrt(variance) * _normal(free_key, center.shape)
        fits = (lower <= free) & (free <= upper)
        again = _within_branches(inside_key)
        # What fits has the law already; what does not is drawn anew, from the law.
        x = jax.lax.cond(
            jnp.all(fits),
            lambda: free,
            lambda: jnp.where(
                fits, free, truncated_normal(again(), lower, upper, mean, jnp.sqrt(variance))
            ),
        )
        return x, jnp.array(True)

    return Restricted(step_size, prepare, attempt)


def convex_set(
    step_size: ArrayLike, convexity: ArrayLike, center: Float[Array, " dim"], domain: Domain
) -> Restricted:
    """The normal law on a convex set that has a projection.

    Args:
        step_size: η, as the next ones those of ``whole_space``.
        convexity: κ.
        center: x₀.
        domain: K. Exactness rests on its ``contains`` being the set, and on the convexity of that.

    Raises:
        ValueError: an argument is out of range, or jax_enable_x64 is off.
    """
    center, prepare_mean, variance = _quadratic(step_size, convexity, center)
    _checks.require_instance("domain", domain, Domain)
    stddev = jnp.sqrt(variance)

    def prepare(y: Array) -> tuple[Array, Array, Array, Array]:
        mean = prepare_mean(y)
        nearest = domain.project(mean)
        gap = mean - nearest
        # The length in units of the largest entry, so that nothing under- or overflows.
        largest = jnp.max(jnp.abs(gap))
        scaled = gap / jnp.where(largest > 0, largest, 1.0)
        length = largest * jnp.sqrt(jnp.sum(scaled * scaled))
        outside = length > OUTSIDE * stddev
        normal = gap / jnp.where(outside, length, 1.0)
        return mean, nearest, jnp.where(outside, normal, 0.0), jnp.where(outside, length, 0.0)

    def attempt(key: Array, prepared: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        mean, nearest, normal, length = prepared
        across_key, depth_key = jax.random.split(key)
        free = _normal(across_key, center.shape)

        depth = _within_branches(depth_key)

        def on_half_space() -> Array:
            uniform = jax.random.uniform(depth(), (), jnp.float64)
            below = tail_depth(uniform, length / stddev, jnp.array(jnp.inf))
            across = free - jnp.dot(free, normal) * normal - below * normal
            return nearest + stddev * across

        x = jax.lax.cond(length > 0, on_half_space, lambda: mean + stddev * free)
        return x, domain.contains(x, 0.0)

    return Restricted(step_size, prepare, attempt)


def tangent(
    step_size: ArrayLike,
    potential: Callable[[Any], Any],
    gradient: Callable[[Any], Any],
    domain: Domain | None = None,
) -> Restricted:
    """The law of any convex ψ, by rejection from the tangent at y.

    Args:
        step_size: η, above 0; may be traced.
        potential: ``potential(x) -> ψ(x)``, a float64 scalar, convex, public. Exactness rests on convexity.
        gradient: ``gradient(x) -> [dim]``, a subgradient of it. Any other vector makes the law wrong.
        domain: K; the whole space if left out.

    Raises:
        ValueError: an argument is out of range, or jax_enable_x64 is off.
    """
    require_x64("restricted_gaussian")
    _checks.require_positive("step_size", step_size)
    _checks.require_callable("potential", potential)
    _checks.require_callable("gradient", gradient)
    if domain is not None:
        _checks.require_instance("domain", domain, Domain)

    def prepare(y: Array) -> tuple[Array, Array, Array]:
        return y, potential(y), gradient(y)

    def attempt(key: Array, prepared: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        y, height, slope = prepared
        free_key, coin_key = jax.random.split(key)
        move = jnp.sqrt(step_size) * _normal(free_key, y.shape) - step_size * slope
        x = y + move
        # Of the point that was rounded, so that only roundings in proportion to the step are left.
        above = potential(x) - height - jnp.dot(slope, x - y) + TANGENT_SLACK
        counts = jax.random.uniform(coin_key, (), jnp.float64) < jnp.exp(-above)
        return x, counts if domain is None else counts & domain.contains(x, 0.0)

    return Restricted(step_size, prepare, attempt)


def draw(
    key: jax.Array, restricted: Restricted, y: Float[Array, " dim"], num_attempts: int
) -> Drawn:
    """Attempts until one counts, at most so many. Pure JAX.

    Args:
        key: a typed key. Attempt i uses ``fold_in(key, i)``.
        restricted: the law.
        y: float64.
        num_attempts: static, at least 1. ``attempt_bounds`` says how likely all of them fail.

    Raises:
        ValueError: an argument is of another kind or out of its range.
    """
    _checks.require_key(key)
    key = _keys.alone(key)
    _checks.require_instance("restricted", restricted, Restricted)
    num_attempts = _checks.require_integer("num_attempts", num_attempts, 1, 2**31 - 1)
    y = float64_vector("y", y)
    prepared = restricted.prepare(y)

    def attempt(index: Array) -> tuple[Array, Array]:
        return restricted.attempt(jax.random.fold_in(key, index), prepared)

    return _released.without_derivatives(Drawn(*until_one_counts(attempt, y, num_attempts)))


def until_one_counts(
    attempt: Callable[[Array], tuple[Any, Array]],
    start: Any,
    most: Any,
    constant_time: bool = False,
    first: ArrayLike = 0,
) -> tuple[Any, Array, Array]:
    """The first attempt that counts, or the last of all; whether it counts; and how many were made.

    Args:
        attempt: ``attempt(index) -> (point, counts)``.
        start: of the structure of points.
        most: attempts, at most.
        constant_time: whether all of them are made.
        first: index of the first; as many as ``most`` if there is to be none.
    """

    def once(carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        held, counted, index = carry
        point, counts = attempt(index)
        if constant_time:
            point, counts = jnp.where(counted, held, point), counted | counts
        return point, counts, index + 1

    none = (start, jnp.array(False), jnp.asarray(first, jnp.int32))
    if constant_time:
        return jax.lax.fori_loop(0, most, lambda _, carry: once(carry), none)
    return jax.lax.while_loop(lambda carry: ~carry[1] & (carry[2] < most), once, none)


def _quadratic(step_size: ArrayLike, convexity: ArrayLike, center: Any) -> tuple[Any, Any, Any]:
    """The centre, the function from y to m, and v."""
    require_x64("restricted_gaussian")
    _checks.require_positive("step_size", step_size)
    _checks.require_nonnegative("convexity", convexity)
    origin = float64_vector("center", center)
    pull = step_size * convexity / (1.0 + step_size * convexity)
    variance = step_size / (1.0 + step_size * convexity)
    return origin, lambda y: y - pull * (y - origin), variance


def _normal(key: Array, shape: tuple[int, ...]) -> Array:
    return jax.random.normal(key, shape, jnp.float64)


def _within_branches(key: Array) -> Callable[[], Array]:
    """The key, for one branch: under vmap branches select between operands, which no key may be."""
    bits, kind = jax.random.key_data(key), jax.random.key_impl(key)
    return lambda: jax.random.wrap_key_data(bits, impl=kind)


def truncated_normal(
    key: jax.Array,
    lower: Float[Array, "*shape"],
    upper: Float[Array, "*shape"],
    mean: Float[Array, "*shape"],
    stddev: ArrayLike,
) -> Float[Array, "*shape"]:
    """Independent normal numbers, each conditioned on its interval; ends may be infinite."""
    side_key, depth_key = jax.random.split(key)
    low, high = (lower - mean) / stddev, (upper - mean) / stddev
    mass_above = jax.lax.erf(jnp.maximum(high, 0.0) / math.sqrt(2.0))
    mass_below = jax.lax.erf(jnp.maximum(-low, 0.0) / math.sqrt(2.0))
    side = jax.random.uniform(side_key, low.shape, jnp.float64) * (mass_above + mass_below)
    inside = (low < 0.0) & (high > 0.0)
    above = jnp.where(inside, side < mass_above, low >= 0.0)
    # The interval as it is seen from the mean, in the direction of the side that was drawn.
    near = jnp.where(inside, 0.0, jnp.where(above, low, -high))
    far = jnp.where(above, high, -low)
    depth = stddev * tail_depth(jax.random.uniform(depth_key, low.shape), near, far)
    base = jnp.where(inside, mean, jnp.where(above, lower, upper))
    return jnp.clip(jnp.where(above, base + depth, base - depth), lower, upper)


def tail_depth(
    uniform: Float[Array, "*shape"], low: Float[Array, "*shape"], high: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """How far above ``low`` ≥ 0 a standard normal number in [low, high] lies, from a uniform number.

    With Q the upper tail, φ the density and R = Q/φ it is t above ``low`` with probability exp(-H(t)),

        H(t) = low·t + t²/2 + log R(low) - log R(low + t),

    in which nothing cancels. So H(t) = E, E exponential with mean one, cut at H(high - low). H is convex and
    rises, and H(t) ≥ low·t + t²/2: Newton's method from the root of that never passes the solution. t is the
    inverse of a uniform number within 1e-14 of the one that was drawn.
    """
    width = jnp.minimum(high - low, _FARTHEST)
    first = _log_mills(low)

    def lost(depth: Array) -> Array:
        return depth * (low + 0.5 * depth) + first - _log_mills(low + depth)

    aim = -jnp.log1p(uniform * jnp.expm1(-lost(width)))
    depth = 2.0 * aim / (low + jnp.sqrt(low * low + 2.0 * aim) + 1e-300)
    for _ in range(_NEWTON_STEPS):
        depth = depth - (lost(depth) - aim) * jnp.exp(_log_mills(low + depth))
    short = width * (low + 0.5 * width) < _SHORT
    depth = jax.lax.cond(
        jnp.any(short),
        lambda: jnp.where(short, _short_depth(uniform, low, jnp.where(short, width, 0.0)), depth),
        lambda: depth,
    )
    return jnp.clip(depth, 0.0, width)


def _short_depth(uniform: Array, low: Array, width: Array) -> Array:
    """``tail_depth`` where the density hardly changes: F(t) = uniform·F(width), F its integral."""

    def mass(depth: Array) -> Array:
        inner = depth[..., None] * _NODES
        return depth * jnp.sum(_WEIGHTS * jnp.exp(-inner * (low[..., None] + 0.5 * inner)), axis=-1)

    aim = uniform * mass(width)
    depth = uniform * width
    for _ in range(_SHORT_STEPS):
        depth = depth - (mass(depth) - aim) * jnp.exp(depth * (low + 0.5 * depth))
    return depth


def _log_mills(at: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The logarithm of R(s), s ≥ 0: by erfc near zero, by Laplace's continued fraction beyond."""
    near = jnp.minimum(at, _NEAR)
    by_erfc = 0.5 * near * near + jnp.log(jax.lax.erfc(near / math.sqrt(2.0)))
    far = jnp.maximum(at, _NEAR)
    fraction = far
    for k in range(_FRACTIONS, 0, -1):
        fraction = far + k / fraction
    return jnp.where(at < _NEAR, by_erfc + 0.5 * math.log(math.pi / 2.0), -jnp.log(fraction))
