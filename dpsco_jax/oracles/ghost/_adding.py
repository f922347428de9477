"""How the examples of one leaf are added up: how many by one product, and what rounding may take.

For each leaf, from shapes alone, its ``Adding``; from those of all leaves the ``room`` that bounds are
multiplied by; and the sum over examples in two floats (``dpsco_jax._compensated``): of products of so many
examples each, or of integers for look-ups. Of examples whose weighted norms are at most C·``room``, one moves
the sum by at most C, or 2C if it is exchanged, whatever the others are (docs/theory/ghost.md, section 3;
Higham 2002, section 3.1). A sum in two floats takes 20 operations on each number of a leaf for every product.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpsco_jax import _compensated
from dpsco_jax.oracles.ghost._leaves import Way

LEAST_SHARE = 1 / 30
"""A norm counts as this share of the sum of its products' norms at least, where examples share a rounding."""

_UNIT = 2.0**-24
_MOST_AT_ONCE = 256
_MOST_LOST = 1.0625 * 2.0**-8  # what 256 of one product each lose
_MOST_SCATTERED = 2**18
_LEAST_BITS = 33
_MOST_NUMBERS = 2**22  # of products that an accelerator makes at once


class Adding(NamedTuple):
    """How one leaf is added up.

    Attributes:
        group: examples whose sum is rounded, of two products of half of them each; a power of two.
        share: what a norm counts as at least, relative to the sum of its products' norms; 0 if it need not.
        shared: what that rounding may be, relative to the longest contribution, for each of its
            examples; 0 if they share none.
        own: what rounding may add to the one example that is exchanged.
        apart: what is added up in two floats, relative to contributions: more where the uses of a leaf, which
            may cancel each other, are added up apart.
    """

    group: int
    share: float
    shared: float
    own: float
    apart: float


def plans(ways: Sequence[Way]) -> list[Adding]:
    """How all leaves are added up, so that products lose 0.42 % in each of two groups; of shapes alone."""
    budget = _MOST_LOST
    while True:
        found = [_adding(way, budget) for way in ways]
        if _lost_in_products(found, _MOST_AT_ONCE) <= _MOST_LOST:
            return found
        budget /= 2


def _adding(way: Way, budget: float) -> Adding:
    factors = way.name == "factors"
    dense = sum(use.sizes[1] for use in way.uses if not use.rule.looked_up) if factors else 1
    looked_up = [use for use in way.uses if use.rule.looked_up] if factors else []
    # Of one product the norm is that of the gradient: nothing cancels.
    alone = not factors or sum(use.sizes[1] for use in way.uses) == 1
    share = 1.0 if alone else LEAST_SHARE
    if way.name == "unused" or not dense:
        group, shared = 1, 0.0
    else:
        group = _MOST_AT_ONCE
        while 2 * group * _shared(group, dense, len(way.uses), share) > budget and group > 1:
            group //= 2
        # The rounding of an example alone is in the bound of its norm.
        shared = 0.0 if group == 1 else _shared(group, dense, len(way.uses), share)
    own = sum(_lost_in_integers(*use.sizes[1::2]) for use in looked_up) / share
    several = factors and len(way.uses) > 1
    needed = not alone and (shared > 0 or own > 0 or several)
    return Adding(
        group, share if needed else 0.0, shared, own, len(way.uses) / share if several else 1.0
    )


def _shared(group: int, products: int, uses: int, share: float) -> float:
    number = max(group // 2, 1) * products + uses + 3
    return number * _UNIT / (1 - number * _UNIT) / share


def _lost_in_products(found: Sequence[Adding], most: int) -> float:
    # Products of different leaves hold each other's examples, as their sizes are powers of two: example by
    # example, the worst of the leaves in whose product it is.
    places = range(min(most, max((a.group for a in found), default=0)))
    return 2 * sum(max(a.shared for a in found if a.group > place) for place in places)


def room(found: Sequence[Adding], num_rows: int, chunk_size: int, roundings: int) -> float:
    """What bounds are multiplied by, so that the sum of ``num_rows`` examples moves by no more than they.

    Args:
        found: the plans of all leaves.
        num_rows: examples or users, at most.
        chunk_size: of them that are taken apart at once.
        roundings: how often the sum is rounded to one float before the noise is on it.

    Raises:
        ValueError: nothing is left: there are too many examples.
    """
    lost = _lost_in_products(found, min(chunk_size, num_rows)) + max(
        (a.own for a in found), default=0.0
    )
    # The last product of a chunk has fewer examples.
    smallest = min((a.group for a in found), default=1)
    at_once = max(1, min(smallest, chunk_size) // 2)
    apart = max((a.apart for a in found), default=1.0)
    lost += (apart - 1.0) * 4.0 * (num_rows * _UNIT) ** 2 / at_once
    # Of one group in both data sets; of a random sample two groups are others, which ``_compensated`` counts.
    return _compensated.room(
        num_rows,
        at_once,
        roundings=roundings,
        group=_MOST_AT_ONCE,
        group_rounding=max(lost / (2 * _UNIT), _compensated.GROUP**2),
    )


def over_examples(
    product: Callable[..., jax.Array], arrays: Sequence[jax.Array], group: int
) -> _compensated.Split:
    """The sum of ``product`` over the rows of the arrays, of which ``group`` are added up as one float."""
    count = len(arrays[0])

    def in_halves(*arrays: jax.Array) -> jax.Array:
        half = (len(arrays[0]) + 1) // 2
        if len(arrays[0]) < 2:
            return product(*arrays)
        return product(*(x[:half] for x in arrays)) + product(*(x[half:] for x in arrays))

    if count <= group:
        total = in_halves(*arrays)
        return _compensated.Split(total, jnp.zeros_like(total))
    shape = jax.eval_shape(product, *(x[:group] for x in arrays))
    number = count // group
    strip = min(number, max(1, _MOST_NUMBERS // max(1, math.prod(shape.shape))))

    def one(first: Any) -> _compensated.Split:
        total = in_halves(*(lax.dynamic_slice_in_dim(x, first, group) for x in arrays))
        return _compensated.Split(total, jnp.zeros_like(total))

    def several(first: Any, strip: int) -> _compensated.Split:
        # All halves by one product: to cut them out of the groups would be a copy of everything.
        halves = min(group, 2)
        rows = [lax.dynamic_slice_in_dim(x, first, strip * group) for x in arrays]
        rows = [x.reshape(strip * halves, group // halves, *x.shape[1:]) for x in rows]
        made = jax.vmap(product)(*rows).reshape(strip, halves, *shape.shape)
        return _compensated.over_rows(made[:, 0] + made[:, 1] if halves == 2 else made[:, 0])

    def in_strips(strip: int, several: Callable[..., _compensated.Split]) -> Callable[..., Any]:
        def trip(index: jax.Array, total: Any) -> Any:
            return _compensated.add(total, several(index * (strip * group), strip))

        def whole(*_: Any) -> Any:
            total = lax.fori_loop(0, number // strip, trip, _compensated.zeros(shape))
            left = number % strip
            return (
                _compensated.add(total, several((number - left) * group, left)) if left else total
            )

        return whole

    # A CPU keeps the sum of one product after the other in its cache.
    total = lax.platform_dependent(
        cpu=in_strips(1, lambda first, _: one(first)), default=in_strips(strip, several)
    )
    if count % group:
        total = _compensated.add(total, in_halves(*(x[number * group :] for x in arrays)))
    return total


def scattered(
    values: jax.Array, places: jax.Array, rows: int, bound: jax.Array
) -> _compensated.Split:
    """Σ over examples and t of the matrix whose row ``places[., s, t]`` is ``values[., s, t]``, for all s.

    A value becomes two or three integers, rounded towards zero; sums of integers have no rounding.

    Args:
        values: ``[examples, S, T, N]``, of magnitude at most ``bound``.
        places: ``[examples, S, T]``, from 0 to rows - 1.
        rows: K.
        bound: positive.

    Returns:
        ``[S, K, N]``.
    """
    count, stack, products, columns = values.shape
    at = (places + rows * jnp.arange(stack)[:, None]).reshape(count, -1)
    values = values.reshape(count, -1, columns)
    at_once = max(1, _MOST_SCATTERED // max(products, 1))
    parts = [
        _in_integers(values[i : i + at_once], at[i : i + at_once], rows * stack, products, bound)
        for i in range(0, count, at_once)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = _compensated.add(total, part)
    return _compensated.Split(*(part.reshape(stack, rows, columns) for part in total))


def _in_integers(
    values: jax.Array, at: jax.Array, size: int, products: int, bound: jax.Array
) -> _compensated.Split:
    bits, levels = _bits(len(values) * products)
    columns, at, values = values.shape[-1], at.ravel(), values.reshape(-1, values.shape[-1])
    few = 2 * len(at) < size
    if few:
        # Of each place that is met the last of its numbers stands for it in a smaller table.
        last = jnp.zeros(size, jnp.int32).at[at].max(jnp.arange(len(at), dtype=jnp.int32))
        place, table = last[at], len(at)
    else:
        place, table = at, size
    rest, parts = jnp.clip(values / bound, -1.0, 1.0), []
    for _ in range(levels):
        rest = rest * 2.0**bits
        whole = jnp.trunc(rest)
        rest = rest - whole
        parts.append(whole.astype(jnp.int32))
    empty = jnp.zeros((table, levels, columns), jnp.int32)
    sums = empty.at[place].add(jnp.stack(parts, axis=1), mode="promise_in_bounds")
    found = _as_floats([sums[:, i] for i in range(levels)], bits, bound, values.dtype)
    if not few:
        return found
    nothing = jnp.zeros((size, columns), values.dtype)
    return _compensated.Split(*(nothing.at[at].set(part[place]) for part in found))


def _as_floats(
    sums: list[jax.Array], bits: int, bound: jax.Array, kind: jnp.dtype
) -> _compensated.Split:
    """Σ_i sums[i]·bound·2^(-bits·(i + 1))."""
    low = jnp.zeros(sums[0].shape, kind)
    for i in range(len(sums) - 1, 0, -1):
        left = sums[i] & (2**bits - 1)
        sums[i - 1] = sums[i - 1] + (sums[i] >> bits)
        low = (low + left.astype(kind)) * 2.0**-bits
    high = sums[0].astype(kind)
    missing = (sums[0] - high.astype(jnp.int32)).astype(kind)
    return _compensated.times(_compensated.added(high, missing + low), bound * 2.0**-bits)


def _bits(terms: int) -> tuple[int, int]:
    """Of one integer, of which so many are added up, and how many integers a value becomes."""
    bits = 30 - max(terms, 2**6).bit_length()
    return bits, math.ceil(_LEAST_BITS / bits)


def _lost_in_integers(products: int, columns: int) -> float:
    bits, _ = _bits(max(_MOST_SCATTERED, products))
    cut = products * math.sqrt(columns) * 2.0**-_LEAST_BITS
    # A whole number of 30 bits is a float but for 6 of them; the rest, of which these are a part, has 24. The
    # product with the unit is off by 2^-46 of itself.
    rounded = 2 * math.sqrt(products * columns) * (2.0 ** (6 - 24 - bits) + 2.0**-28)
    return cut + rounded + 4 * _UNIT
