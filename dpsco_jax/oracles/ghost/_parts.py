"""The gradients of all examples in parts: one backward pass, then norms and weighted sums.

What it computes: for every leaf its factors or its gradients, by the way it goes (``_leaves``), from a
``Program``; bounds of the joint norms of groups of leaves; Σ over the examples of weight·gradient.

Source: Bu et al. 2023 ("book-keeping"): the pass that gives the norms gives the sum too.

Formal guarantee: bounds are at least the norms of what is summed up, by ``_terms`` and
``geometry.norms``.

Cost: one forward and one backward pass, and the factors or gradients of every leaf.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpsco_jax import _sums
from dpsco_jax.geometry import norms
from dpsco_jax.oracles import _convolutions
from dpsco_jax.oracles.ghost import _adding, _merged, _terms, _walk
from dpsco_jax.oracles.ghost._leaves import Ruled, Way, ways
from dpsco_jax.oracles.ghost._program import Program, Use
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

    def weighted_sum(self, leaf: int, weights: jax.Array, longest: jax.Array) -> _sums.Split:
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
                parts = [_as_leaf(self.program, ruled, part) for part in summed]
                totals.append(_sums.Split(*parts))
            return functools.reduce(_sums.add, totals)
        if rows is None:
            return _sums.zeros(shape)
        return _adding.over_examples(
            _weighted_rows, (rows.astype(shape.dtype), weights), plan.group
        )


def taken_apart(program: Program, leaves: Sequence[jax.Array], examples: Any) -> Parts:
    """One forward and one backward pass over all examples, and what they say of every leaf."""
    number = jax.tree.leaves(examples)[0].shape[0]

    over = _convolutions.in_turn if program.mixes else jax.vmap

    def total(taps: Any) -> Any:
        losses, records = over(lambda e, t: program.run(leaves, e, t), (0, 0))(examples, taps)
        return jnp.sum(losses), records

    taps = [use.taps() for use in program.uses]
    taps = jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *x.shape)), taps)
    value, pull, records = jax.vjp(total, taps, has_aux=True)
    (cotangents,) = pull(jnp.ones_like(value))
    chosen, held = ways(program), program.held(leaves)
    factors: list[list[Terms] | None] = [None] * len(chosen)
    rows = _built(program, leaves, chosen, held, records, cotangents)
    for leaf, way in enumerate(chosen):
        made = []
        for ruled in way.uses:
            at = ruled.use
            made.append(_factors(program.uses[at], ruled, held[at], records[at], cotangents[at]))
        if way.name == "factors":
            factors[leaf] = jax.lax.optimization_barrier(made)
        elif way.name == "products":
            rows[leaf] = sum(
                _as_leaves(program, ruled, _terms.products(terms, ruled.sizes[2]))
                for ruled, terms in zip(way.uses, made, strict=True)
            )
    # Without the barrier the compiler may compute them once for the norms and again for the sums, and round
    # half precision in one of the two alone.
    rows = jax.lax.optimization_barrier(rows)
    shapes = [
        jax.ShapeDtypeStruct(x.shape, jnp.promote_types(x.dtype, jnp.float32)) for x in leaves
    ]
    return Parts(program, chosen, _adding.plans(chosen), factors, rows, shapes, number)


def _by_example(
    use: Use,
    function: Callable[[Sequence[Any], Sequence[Any]], Any],
    fixed: Sequence[Any],
    records: Sequence[Any],
    cotangents: Sequence[Any],
) -> Any:
    """``function(operands, cotangents)`` for every example and trip: ``[examples, *trips, ...]``.

    Operands are those of the equation, in its order.
    """
    data = [i for i in range(len(use.eqn.invars)) if i not in use.fixed]

    def one(constants: Sequence[Any], given: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        operands: list[Any] = [None] * len(use.eqn.invars)
        for i, x in zip(use.fixed, constants, strict=True):
            operands[i] = x
        for i, x in zip(data, given, strict=True):
            operands[i] = x
        return function(operands, cotangents)

    mapped = one
    for loop in reversed(use.loops):
        stacked = [0 if loop in operand.loops else None for operand in fixed]
        mapped = jax.vmap(mapped, in_axes=(stacked, 0, 0))
    values = [operand.value for operand in fixed]
    over = _convolutions.in_turn if use.mixes else jax.vmap
    return over(mapped, (None, 0, 0))(values, list(records), list(cotangents))


def _factors(
    use: Use, ruled: Ruled, fixed: Sequence[Any], records: Sequence[Any], cotangents: Sequence[Any]
) -> Terms:
    """The factors of a use, loops without parameters of their own among the T products."""

    def one(operands: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        others = [x if i != ruled.position else None for i, x in enumerate(operands)]
        return _checked(ruled, use, *ruled.rule.factors(others, cotangents[0]))

    left, right = _by_example(use, one, fixed, records, cotangents)
    stack, products, rows, columns = ruled.sizes
    first = len(cotangents[0]), stack, products
    left = _stacks_first(left, ruled.stacked)
    left = left.reshape(first if ruled.rule.looked_up else (*first, rows))
    right = _stacks_first(right, ruled.stacked).reshape(*first, columns)
    return Terms(left, right)


def _checked(ruled: Ruled, use: Use, left: Any, right: Any) -> tuple[jax.Array, jax.Array]:
    """The factors of one example in float32 at least, if they are what the rule says that they are."""
    rule, shape = ruled.rule, use.eqn.invars[ruled.position].aval.shape
    stack, rows, columns = (math.prod(shape[i] for i in axes) for axes in rule.axes)
    products = stack, rule.num_products
    wanted = products if rule.looked_up else (*products, rows), (*products, columns)
    found = jnp.shape(left), jnp.shape(right)
    kinds = jnp.integer if rule.looked_up else jnp.floating, jnp.floating
    right_kinds = [jnp.issubdtype(x.dtype, k) for x, k in zip((left, right), kinds, strict=True)]
    if found != wanted or not all(right_kinds):
        name = use.eqn.primitive.name
        raise ValueError(
            f"rule of {name} must give factors of shapes {wanted}, numbers of rows as integers and others "
            f"real floating, got {found} of {left.dtype}, {right.dtype}"
        )
    right = right.astype(jnp.promote_types(right.dtype, jnp.float32))
    if not rule.looked_up:
        return left.astype(jnp.promote_types(left.dtype, jnp.float32)), right
    # Two numbers that stand for one row would be two rows in a norm.
    there = (left >= 0) & (left < rows)
    right = jnp.where(there[..., None], right, 0)
    return jnp.where(there, left, 0).astype(jnp.int32), right


def _stacks_first(array: jax.Array, stacked: tuple[bool, ...]) -> jax.Array:
    """``[examples, *trips, S, T, ...]`` with the trips that have parameters of their own before S."""
    own = [1 + i for i, s in enumerate(stacked) if s]
    shared = [1 + i for i, s in enumerate(stacked) if not s]
    first = 1 + len(stacked)
    return jnp.transpose(array, (0, *own, first, *shared, *range(first + 1, array.ndim)))


def _as_leaf(program: Program, ruled: Ruled, gradient: jax.Array) -> jax.Array:
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


def _as_leaves(program: Program, ruled: Ruled, gradients: jax.Array) -> jax.Array:
    return jax.vmap(lambda gradient: _as_leaf(program, ruled, gradient))(gradients)


def _built(
    program: Program,
    leaves: Sequence[jax.Array],
    chosen: Sequence[Way],
    held: Sequence[Sequence[Any]],
    records: Sequence[Any],
    cotangents: Sequence[Any],
) -> list[Any]:
    """The gradients of all examples in the leaves that go by rows."""
    found: list[Any] = [None] * program.num_leaves
    by_rows = {leaf for leaf, way in enumerate(chosen) if way.name == "rows"}
    if not by_rows:
        return found
    places, gradients = [], []
    for at, use in enumerate(program.uses):
        mine = [
            i
            for i, held_there in use.held.items()
            if held_there.leaves & by_rows and _walk.differentiable(held_there.value)
        ]
        if not mine:
            continue
        made = _by_example(use, _derivative(use, mine), held[at], records[at], cotangents[at])
        for i, gradient in zip(mine, made, strict=True):
            places.append((at, use.fixed.index(i)))
            gradients.append(_over_trips(use, i, gradient))
    wanted = sorted(by_rows)

    def at_places(moving: Sequence[Any]) -> list[Any]:
        whole = list(leaves)
        for leaf, value in zip(wanted, moving, strict=True):
            whole[leaf] = value
        operands = program.held(whole)
        return [operands[at][place].value for at, place in places]

    _, pull = jax.vjp(at_places, [leaves[leaf] for leaf in wanted])
    for leaf, made in zip(wanted, jax.vmap(pull)(gradients)[0], strict=True):
        found[leaf] = made
    return found


def _derivative(use: Use, positions: Sequence[int]) -> Callable[[Any, Any], Any]:
    def one(operands: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        def results(moving: Sequence[Any]) -> list[Any]:
            whole = list(operands)
            for i, value in zip(positions, moving, strict=True):
                whole[i] = value
            made = _walk.bind(use.eqn, whole)
            return [made[i] for i in use.tapped]

        _, pull = jax.vjp(results, [operands[i] for i in positions])
        return pull(list(cotangents))[0]

    return one


def _over_trips(use: Use, position: int, gradient: jax.Array) -> jax.Array:
    """``[examples, *trips, ...]``, added up over the trips that share parameters."""
    own = use.held[position].loops
    shared = tuple(1 + i for i, loop in enumerate(use.loops) if loop not in own)
    return jnp.sum(gradient, axis=shared) if shared else gradient


def _weighted_rows(rows: jax.Array, weights: jax.Array) -> jax.Array:
    there = (weights > 0).reshape(-1, *(1,) * (rows.ndim - 1))
    return jnp.tensordot(weights, jnp.where(there, rows, 0), 1, precision=_terms.FULL)


def _norm_of_rows(tree: Any) -> jax.Array:
    """An upper bound of the norm of a tree, by the proof of ``geometry.norms``; infinite for NaN."""
    limit = 2.0**-40
    factor = norms.clip_factor(tree, limit)
    return jnp.where(factor > 0, limit / factor, jnp.inf) * (1 + 2.0**-20)
