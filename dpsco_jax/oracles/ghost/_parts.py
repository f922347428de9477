"""What is known of the gradients of all examples, and what is made of it: bounds of norms, weighted sums.

What it computes: of the factors or the gradients of every leaf, as ``_backward`` finds them: bounds of the
joint norms of groups of leaves; Σ over the examples of weight·gradient.

Source: Bu et al. 2023 ("book-keeping"): the pass that gives the norms gives the sum too.

Formal guarantee: bounds are at least the norms of what is summed up, by ``_terms`` and
``geometry.norms``.

Cost: one pass over the factors or gradients for the norms, and one for the sum.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpsco_jax import _compensated
from dpsco_jax.geometry import norms
from dpsco_jax.oracles.ghost import _adding, _merged, _terms
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
                    lengths.append(_merged.norm_bound(made[0], way.uses[0].sizes[2], share))
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
