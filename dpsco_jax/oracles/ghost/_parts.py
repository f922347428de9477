"""What is made of the gradients of all examples: bounds of norms, and weighted sums, by one pass.

Factors or gradients of every leaf come from ``_backward``. That the pass that gives the norms gives the sum
too is the "book-keeping" of Bu et al. 2023.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpsco_jax import _compensated
from dpsco_jax.geometry import norms
from dpsco_jax.oracles.ghost import _adding, _terms
from dpsco_jax.oracles.ghost._leaves import Ruled, Way
from dpsco_jax.oracles.ghost._program import Program
from dpsco_jax.oracles.ghost._terms import Terms


class Parts(NamedTuple):
    """What is known of the gradients of all examples.

    Attributes:
        program: the loss.
        ways: of every leaf.
        plans: how every leaf is added up.
        factors: of every leaf that goes by them, one for each of its uses; ``None`` for other leaves.
        rows: the gradients of every leaf that does not, ``[examples, ...]``; ``None`` for other leaves.
        shapes: of the leaves, with the kinds of number of their sums.
        number: of examples.
    """

    program: Program
    ways: list[Way]
    plans: list[_adding.Adding]
    factors: list[list[Terms] | None]
    rows: list[jax.Array | None]
    shapes: list[jax.ShapeDtypeStruct]
    number: int

    def norm_bounds(self, group: Sequence[int]) -> jax.Array:
        """Upper bounds of the joint norms over a group of leaves, ``[examples]``; infinite for NaN."""
        lengths = []
        for leaf in group:
            made = self.factors[leaf]
            if made is not None:
                share, way = self.plans[leaf].share, self.ways[leaf]
                if way.merged:
                    lengths.append(norm_bound(made[0], way.uses[0].sizes[2], share))
                else:
                    lengths.append(_terms.norm_bound(made, list(way.swapped), share))
        built = [self.rows[leaf] for leaf in group if self.rows[leaf] is not None]
        if built:
            lengths.append(jax.vmap(_norm_of_rows)(built))
        if not lengths:
            return jnp.zeros(self.number)
        if len(lengths) == 1:
            return lengths[0]
        # Of many leaves the squares may leave the range although the norm does not.
        stacked = jnp.stack(lengths)
        largest = jnp.max(stacked, axis=0)
        scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
        joint = scale * jnp.sqrt(jnp.sum(jnp.square(stacked / scale), axis=0))
        return joint * (1 + (len(lengths) + 8) * 2.0**-23)

    def weighted_sum(self, leaf: int, weights: jax.Array, longest: jax.Array) -> _compensated.Split:
        """Σ over the examples of weight·gradient in a leaf; whoever has weight zero may hold anything.

        Args:
            leaf: its number.
            weights: ``[examples]``, zero or at least ``_terms.LEAST_WEIGHT``.
            longest: what weight·bound is at most, of all of them.
        """
        made, rows, shape = self.factors[leaf], self.rows[leaf], self.shapes[leaf]
        way = self.ways[leaf]
        plan = self.plans[leaf]
        if made is not None:
            totals = []
            for ruled, terms in zip(way.uses, made, strict=True):
                if terms.looked_up:
                    scaled = _terms.weighted(terms.right, weights)
                    most = longest / (plan.share or 1.0)
                    summed = _adding.scattered(scaled, terms.left, ruled.sizes[2], most)
                else:
                    given = terms.left, terms.right, weights
                    summed = _adding.over_examples(_terms.weighted_product, given, plan.group)
                parts = [as_leaf(self.program, ruled, part) for part in summed]
                totals.append(_compensated.Split(*parts))
            return functools.reduce(_compensated.add, totals)
        if rows is None:
            return _compensated.zeros(shape)
        return _adding.over_examples(
            _weighted_rows, (rows.astype(shape.dtype), weights), plan.group
        )


def as_leaf(program: Program, ruled: Ruled, gradient: jax.Array) -> jax.Array:
    """A gradient ``[S, K, N]``, in the shape of the leaf."""
    use = program.uses[ruled.use]
    view = use.held[ruled.position].view
    assert view is not None  # else it has no rule
    shape = use.eqn.invars[ruled.position].aval.shape
    trips = [n for n, own in zip(use.lengths, ruled.stacked, strict=True) if own]
    order = [i for axes in ruled.rule.axes for i in axes]
    gradient = gradient.reshape(*trips, *(shape[i] for i in order))
    stack = len(trips)
    back = (*range(stack), *(stack + order.index(i) for i in range(len(order))))
    return view.undone(jnp.transpose(gradient, back))


def _weighted_rows(rows: jax.Array, weights: jax.Array) -> jax.Array:
    there = (weights > 0).reshape(-1, *(1,) * (rows.ndim - 1))
    return jnp.tensordot(weights, jnp.where(there, rows, 0), 1, precision=_terms.FULL)


def _norm_of_rows(tree: Any) -> jax.Array:
    """An upper bound of the norm of a tree, by the proof of ``geometry.norms``; infinite for NaN."""
    limit = 2.0**-40
    factor = norms.clip_factor(tree, limit)
    return jnp.where(factor > 0, limit / factor, jnp.inf) * (1 + 2.0**-20)


def norm_bound(use: Terms, rows: int, share: float = 0.0) -> jax.Array:
    """Upper bounds of the norms of the gradients of a table that is looked up many times, ``[examples]``.

    The gradient is G = Σ_t e_{i_t} ⊗ r_t, for ``left`` the numbers i_t and ``right`` the vectors r_t. The T
    numbers are sorted and equal ones added up by doubling (a segmented scan, Hillis and Steele 1986): after
    step j every place holds the sum of the last 2^j vectors of its number. The bound is at least the norm of
    G for the numbers as stored, with γ_{T+3}·L more, L = Σ_t ‖r_t‖ (docs/theory/ghost.md, section 1). The
    order of additions depends on the example's numbers alone, on every device: no scatter of floats, whose
    order an accelerator may change from run to run. An example whose squared norms leave the range of
    float32, or that has NaN, has an infinite bound. Cost: T·log₂T·N additions, whatever the size of the
    table.

    Args:
        use: the only use of the table, a look-up; numbers from 0 to ``rows`` - 1.
        rows: K.
        share: of the sum L of the norms of all vectors, which the bound is at least.
    """
    _, stack, products, columns = use.right.shape
    gamma = _terms.gamma_of(3 * products + columns + stack + _terms.OTHER_ROUNDINGS)
    lengths = jnp.sum(_terms.lengths_of(use.right), axis=2)  # [examples, S]
    whole = jnp.sqrt(jnp.sum(jnp.square(lengths), axis=1) + stack * _terms.FLUSHED)
    squares = jnp.sum(jnp.square(_sums_of_equal(use, rows)), axis=3)
    square = jnp.sum(jnp.sum(squares, axis=2) + products * columns * _terms.FLUSHED, axis=1)
    bound = jnp.sqrt(square) * (1 + 2 * gamma) + gamma * whole
    # NaN must not be lost in a maximum.
    bad = ~jnp.isfinite(square)
    return jnp.where(bad, jnp.inf, jnp.maximum(bound, share * (1 + 2 * gamma) * whole))


def _sums_of_equal(use: Terms, rows: int) -> jax.Array:
    """``[examples, S, T, N]``: the sum of the vectors of each number, at its last place; zero elsewhere."""
    number, vectors = _sorted(use, rows)
    products, step = use.num_products, 1
    while step < products:
        same = number[..., step:] == number[..., :-step]
        more = jnp.where(same[..., None], vectors[..., :-step, :], 0)
        vectors = vectors + jnp.pad(more, ((0, 0), (0, 0), (step, 0), (0, 0)))
        # Else a compiler may compute a step again for every place of the next one.
        vectors = lax.optimization_barrier(vectors)
        step *= 2
    last = jnp.pad(
        number[..., 1:] != number[..., :-1], ((0, 0), (0, 0), (0, 1)), constant_values=True
    )
    return jnp.where(last[..., None], vectors, 0)


def _sorted(use: Terms, rows: int) -> tuple[jax.Array, jax.Array]:
    """Numbers in order, and their vectors."""
    products = use.num_products
    if rows * products < 2**31:
        # One integer for both is sorted several times faster than a pair.
        both = use.left * products + jnp.arange(products, dtype=jnp.int32)
        both = lax.sort(both, dimension=2)
        number, place = both // products, both % products
    else:
        place = jnp.argsort(use.left, axis=2, stable=True)
        number = jnp.take_along_axis(use.left, place, axis=2)
    return number, jnp.take_along_axis(use.right, place[..., None], axis=2)
