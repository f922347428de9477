"""Sums over users, exact but for a bounded rest, so that one user moves them by what that user adds.

A sum is two floats, ``high`` and ``low``. A few rows are added as they are, groups of them by additions
without error (Knuth 1998, section 4.2.2; Dekker 1971; Joldes, Muller and Popescu 2017), at 20 operations a
number of a group's sum; or rows are scattered as integers. docs/theory/sums.md has the proofs.

Of n rows of norm at most C·``room(n, k)``, of which one is replaced or taken away while all others but one
stay in their places, the sum moves by at most 2C or C, whatever the others are: k rows or more are added up
to one term at a time. (One other moves where a random sample gets one more user, whose place in random order
another had.) Floats that are added one after the other have no such bound: with 2^20 users chosen for it, one
moved a sum by 97 times as much. Assumed: additions round to nearest and are not rearranged
(``--xla_cpu_enable_fast_math`` rearranges them), C is at least 2^-80, and a term is the same whatever is in
the other groups.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Integer

from dpsco_jax._checks import (
    require,
    require_count,
    require_given,
    require_integer,
    require_nonnegative,
)

GROUP = 8
"""Rows that a product adds up in whatever order."""

MOST_SCATTERED = 4096
"""Rows that are scattered at once."""

_UNIT = 2.0**-24
_OTHER_ROUNDINGS = 16


class Split(NamedTuple):
    """A number, or an array of them, as a sum of two.

    Attributes:
        high: the float next to it.
        low: the rest.
    """

    high: Float[Array, "*shape"]
    low: Float[Array, "*shape"]


def is_split(node: Any) -> bool:
    """Whether this node of a tree is a number in two parts, and no tree of two."""
    return isinstance(node, Split)


def room(
    num_rows: int,
    at_once: int = GROUP,
    terms: int = 1,
    roundings: int = 0,
    group: int = GROUP,
    group_rounding: float | None = None,
) -> float:
    """What a bound on rows is multiplied by, so that sums of them move by no more than the bound.

    Args:
        num_rows: n, of which there are at most so many, whoever is drawn; draws, if with replacement.
        at_once: rows in each term that is added up but for the last, or more; ``group`` are counted at most.
        terms: what a row is the sum of, where it is one of these that are protected, each of the bound.
        roundings: how often the whole sum is rounded to one float before the noise is on it.
        group: rows that are added up in whatever order, 8 or more; in pairs twice as many are no worse.
        group_rounding: what a group's sum is off by at most, over 2^-24 times the bound; ``group``² if None,
            which is that of rows that are rounded once in every addition.

    Raises:
        ValueError: n is so large that nothing is left.
    """
    rows, terms = require_count("num_rows", max(num_rows, 1)), require_count("terms", terms)
    group = require_integer("group", group, GROUP)
    together = min(require_count("at_once", at_once), group)
    require_given(require_nonnegative, group_rounding=group_rounding)
    many = rows * _UNIT
    # Of two groups in both data sets, and of what is rounded besides.
    own_group = group**2 if group_rounding is None else group_rounding
    own = (4 * own_group + _OTHER_ROUNDINGS) * _UNIT
    # What additions lose grows with the groups, and those that are not whole count as 16 more.
    added_up = 4.0 * many * (many / together + 16 * _UNIT)
    lost = own + rows * 2.0**-32 + added_up + 2.0 * roundings * many
    left = 1.0 - terms * (lost + terms * _UNIT)
    require(
        left > 0.5, "num_rows", num_rows, "so few that rounding takes less than half of the bound"
    )
    return left


def added(a: Array, b: Array) -> Split:
    """The sum of two floats, without error."""
    return Split(*_two_sum(a, b))


def zeros(like: Any) -> Any:
    """The empty sum of what has these shapes: floats in two parts, if they are of float32 or wider."""

    def zero(leaf: Any) -> Any:
        if is_split(leaf):
            return Split(*(jnp.zeros(part.shape, part.dtype) for part in leaf))
        empty = jnp.zeros(leaf.shape, leaf.dtype)
        return Split(empty, empty) if _is_wide(leaf) else empty

    return jax.tree.map(zero, like, is_leaf=is_split)


def add(total: Any, terms: Any) -> Any:
    """The sum of two trees, the first as ``zeros`` makes it; the terms in two parts or in one."""

    def plus(whole: Any, term: Any) -> Any:
        if not is_split(whole):
            return whole + term
        # By shape: inside of a mesh an array of whoever is outside has no array like it.
        return _plus(
            whole, term if is_split(term) else Split(term, jnp.zeros(term.shape, term.dtype))
        )

    return jax.tree.map(plus, total, terms, is_leaf=is_split)


def over_rows(terms: Any) -> Any:
    """Sums along the first axis of every leaf, which are arrays of float32 or wider, in two parts."""

    def one_by_one(leaf: Array) -> Split:
        nothing = zeros(jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype))
        return lax.fori_loop(
            0, len(leaf), lambda i, total: add(total, leaf[i]), nothing, unroll=min(len(leaf), 8)
        )

    def at_once(leaf: Array) -> Split:
        none: Any = np.zeros((), leaf.dtype)
        # Zeros of which JAX does not know that they have no derivative, which its rule for sums asks for.
        rest = jnp.where(False, leaf, none)
        summed = lax.reduce(Split(leaf, rest), Split(none, none), lambda a, b: _plus(a, b), (0,))
        return Split(*summed)

    def of_leaf(leaf: Array) -> Split:
        if not len(leaf):
            return zeros(jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype))
        # What a CPU does in its cache is one program after the other elsewhere.
        return lax.platform_dependent(leaf, cpu=one_by_one, default=at_once)

    return jax.tree.map(of_leaf, terms)


def over_halves(terms: Array) -> Split:
    """``over_rows`` of one array, for a CPU whose cache does not hold the rows of many runs at once.

    The second half is added to the first until one row is left: a few passes, and no loop.
    """
    total = Split(terms, jnp.zeros_like(terms))
    while (count := len(total.high)) > 1:
        half = count // 2
        first, second, last = (
            Split(*(part[at] for part in total))
            for at in (slice(half), slice(half, 2 * half), slice(2 * half, None))
        )
        both = _plus(first, second)
        total = Split(*(jnp.concatenate(x) for x in zip(both, last, strict=True)))
    return Split(*(part[0] for part in total))


def weighted(weights: Float[Array, "rows *outputs"], rows: Float[Array, "rows *dim"]) -> Split:
    """Σ_i of the products of weights[i] and rows[i], all numbers with all: ``[*dim, *outputs]``.

    Args:
        weights: of the rows.
        rows: finite; ``GROUP`` of them are added up by one product, in full float32.
    """

    def product(some: Array, of_rows: Array) -> Array:
        return jnp.tensordot(of_rows, some, ((0,), (0,)), precision=lax.Precision.HIGHEST)

    return over_groups(product, weights, rows)


def over_groups(
    product: Callable[..., Array],
    *arrays: Array,
    group: int = GROUP,
    adding: Callable[[Array], Split] = over_rows,
) -> Split:
    """The sum of ``product`` of every ``group`` rows of the arrays, and of those that are left."""
    count = len(arrays[0])
    whole = count // group * group
    if count <= group:
        total = product(*arrays)
        return Split(total, jnp.zeros_like(total))
    grouped = [x[:whole].reshape(-1, group, *x.shape[1:]) for x in arrays]
    summed = adding(jax.vmap(product)(*grouped))
    return add(summed, product(*(x[whole:] for x in arrays))) if whole < count else summed


def scattered(
    values: Float[Array, "rows places *outputs"],
    places: Integer[Array, "rows places"],
    size: int,
    bound: ArrayLike,
) -> Split:
    """Σ over rows of the vector that has a row's values at its places: ``[size, *outputs]``.

    A value becomes two integers, rounded towards zero to a multiple of 2^-34 of the bound or finer: a row
    gets no longer, and sums of integers have no rounding, in whatever order.

    Args:
        values: of magnitude at most ``bound``.
        places: from 0 to ``size``, each at most once in a row but for ``size``, which is dropped.
        size: how many places there are.
        bound: positive; may be traced.

    Raises:
        ValueError: there are more than 4,096 rows.
    """
    count = len(values)
    require(count <= MOST_SCATTERED, "values", f"{count} rows", "of at most 4096 rows")
    bits = min(24, 30 - count.bit_length())
    scaled = jnp.clip(values / bound, -1.0, 1.0) * 2.0**bits
    first = jnp.trunc(scaled)
    second = jnp.trunc((scaled - first) * 2.0**bits)
    both = jnp.stack([first, second], axis=2).astype(jnp.int32)
    empty = jnp.zeros((size + 1, *both.shape[2:]), jnp.int32)
    sums = empty.at[places].add(both, mode="promise_in_bounds")[:size]
    lows = sums[:, 1] & (2**bits - 1)
    highs = sums[:, 0] + (sums[:, 1] >> bits)
    high = highs.astype(values.dtype)
    rest = (highs - high.astype(jnp.int32)).astype(values.dtype)
    low = rest + lows.astype(values.dtype) * 2.0**-bits
    unit = jnp.asarray(bound, values.dtype) * 2.0**-bits
    return times(Split(*_two_sum(high, low)), unit)


def of_words(
    high: Integer[Array, "*shape"],
    low: Integer[Array, "*shape"],
    bits: int,
    step: Float[Array, ""],
) -> Split:
    """The number step·(2^bits·high + low) of two integers, without error.

    Args:
        high: of 32 bits, of magnitude at most 2^30; of 64, at most 2^46.
        low: of the same kind, from 0 to that.
        bits: static, at most 12, or 24.
        step: a power of two, float32, or float64 for integers of 64 bits.
    """
    carried = high + (low >> bits)
    upper = carried.astype(step.dtype)
    # What the conversion has rounded away fits beside the lower word.
    rest = (carried - upper.astype(carried.dtype)).astype(step.dtype)
    lower = rest * 2.0**bits + (low & (2**bits - 1)).astype(step.dtype)
    return Split(*(part * step for part in _two_sum(upper * 2.0**bits, lower)))


def times(total: Split, factor: ArrayLike) -> Split:
    """The product of a number in two parts and one float."""
    factor = jnp.asarray(factor, total.high.dtype)
    # One bit less: a compiler that fuses multiplications would take the product itself for its float.
    kind = jnp.finfo(factor.dtype)
    high = lax.reduce_precision(total.high * factor, kind.nexp, kind.nmant - 1)
    lost = _less_product(-high, total.high, -factor)
    return Split(*_two_sum(high, lost + total.low * factor))


def over(total: Split, divisor: ArrayLike) -> Split:
    """The quotient of a number in two parts and one float."""
    divisor = jnp.asarray(divisor, total.high.dtype)
    high = total.high / divisor
    rest = _less_product(total.high, high, divisor)
    return Split(*_two_sum(high, (rest + total.low) / divisor))


def divided(total: Any, num_users: ArrayLike, in_parts: bool) -> Any:
    """A tree of ``Split`` over a number: in two parts, as ``privatize`` takes it, or in one."""

    def quotient(leaf: Split) -> Any:
        return over(leaf, num_users) if in_parts else leaf.high / divisor(leaf)

    def divisor(leaf: Split) -> jax.Array:
        return jnp.asarray(num_users, leaf.high.dtype)

    return jax.tree.map(quotient, total, is_leaf=is_split)


def rounded(tree: Any) -> Any:
    """The tree with every number in two parts as one float, the nearest."""
    return jax.tree.map(lambda x: x.high + x.low if is_split(x) else x, tree, is_leaf=is_split)


def remainder(tree: Any) -> Any:
    """What ``rounded`` takes from the tree, of the same structure; zeros where it takes nothing."""

    def rest(leaf: Any) -> Array:
        return leaf.low if is_split(leaf) else jnp.zeros_like(leaf)

    return jax.tree.map(rest, jax.tree.map(_normal, tree, is_leaf=is_split), is_leaf=is_split)


def checksum(tree: Any) -> Any:
    """For each array of floats the sum, modulo 2^32, of a scrambled word of every entry.

    Whoever changes an array by more than the places of its entries changes it, but for one time in about
    2^32. It is the same in whatever order entries are added. An entry of 64 bits counts as two.
    """

    def of_leaf(leaf: Any) -> Array:
        words = lax.bitcast_convert_type(jnp.asarray(leaf), jnp.uint32)
        # Bits alone would not do: twice as large, of 512 entries each exponent is one more, 0 modulo 2^32.
        words = (words ^ (words >> 16)) * np.uint32(0x7FEB352D)
        words = (words ^ (words >> 15)) * np.uint32(0x846CA68B)
        return jnp.sum(words ^ (words >> 16), dtype=jnp.uint32)

    return jax.tree.map(of_leaf, tree)


def _normal(leaf: Any) -> Any:
    return Split(*_two_sum(*leaf)) if is_split(leaf) else leaf


def _is_wide(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize >= 4


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The float next to a + b, and what is missing in it (Knuth)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _plus(a: Split, b: Split) -> Split:
    high, low = _two_sum(a.high, b.high)
    return Split(*_two_sum(high, low + (a.low + b.low)))


def _less_product(c: Array, a: Array, b: Array) -> Array:
    """The number c - a·b for c next to a·b, by halves of factors: the same with fused multiplication."""
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return (((c - a1 * b1) - a1 * b2) - a2 * b1) - a2 * b2


def _halves(x: Array) -> tuple[Array, Array]:
    kind = jnp.finfo(x.dtype)
    first = lax.reduce_precision(x, kind.nexp, (kind.nmant - 1) // 2)
    return first, x - first
