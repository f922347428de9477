"""The gradients of all examples in parts: one forward and one backward pass over all of them.

A gradient is a product of what entered an operation and the cotangent of what left (Goodfellow 2015): from a
``Program``, every leaf gets its factors or its gradients, by the way it goes (``_leaves``). A rule's factors
have the shapes and kinds that it states; a number of a row that is not there has a factor of zero, so that no
two numbers stand for one row in a norm.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax._numerics import at_least_float32
from dpsco_jax.oracles import _convolutions
from dpsco_jax.oracles.ghost import _adding, _terms, _walk
from dpsco_jax.oracles.ghost._leaves import Ruled, Way, ways
from dpsco_jax.oracles.ghost._parts import Parts, as_leaf
from dpsco_jax.oracles.ghost._program import Program, Use, not_understood
from dpsco_jax.oracles.ghost._terms import Terms
from dpsco_jax.oracles.ghost.rules import RuleError

_MOST_IN_TRIPS = 2**15  # numbers of an example that are held for all trips of a loop to be added up


def taken_apart(program: Program, leaves: Sequence[jax.Array], examples: Any) -> Parts:
    """One forward and one backward pass over all examples, and what they say of every leaf.

    Where this fails, or the program is not understood, the gradient of every example by JAX.

    Raises:
        RuleError: of ``RULES`` one breaks its word.
    """
    # Shapes here are no mistakes of the user's, who may have JAX refuse sums of arrays of different ranks.
    with jax.numpy_rank_promotion("allow"):
        if program.whole is not None:
            return _whole(program, leaves, examples, program.whole)
        try:
            return _by_uses(program, leaves, examples)
        except RuleError:
            raise
        except Exception as error:
            program.whole = not_understood(error)
            return _whole(program, leaves, examples, program.whole)


def _whole(program: Program, leaves: Sequence[jax.Array], examples: Any, why: str) -> Parts:
    """The gradients of all examples, as they are."""
    over = _convolutions.in_turn if program.slope_mixes else jax.vmap
    rows = over(lambda example: program.gradient(leaves, example), (0,))(examples)
    chosen = [Way("rows", (), (), f"a gradient of each example: {why}")] * program.num_leaves
    return _parts(program, leaves, examples, chosen, [None] * program.num_leaves, rows)


def _by_uses(program: Program, leaves: Sequence[jax.Array], examples: Any) -> Parts:
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
                _as_leaves(program, ruled, _products(program.uses[ruled.use].eqn, ruled, terms))
                for ruled, terms in zip(way.uses, made, strict=True)
            )
    return _parts(program, leaves, examples, chosen, factors, rows)


def _parts(
    program: Program,
    leaves: Sequence[jax.Array],
    examples: Any,
    chosen: list[Way],
    factors: list[list[Terms] | None],
    rows: list[Any],
) -> Parts:
    # Without the barrier the compiler may compute them once for the norms and again for the sums, and round
    # half precision in one of the two alone.
    rows = jax.lax.optimization_barrier(rows)
    shapes = [jax.ShapeDtypeStruct(x.shape, at_least_float32(x.dtype)) for x in leaves]
    number = jax.tree.leaves(examples)[0].shape[0]
    return Parts(program, chosen, _adding.plans(chosen), factors, rows, shapes, number)


def _by_example(
    use: Use,
    function: Callable[[Sequence[Any], Sequence[Any]], Any],
    fixed: Sequence[Any],
    records: Sequence[Any],
    cotangents: Sequence[Any],
    added: Sequence[int] = (),
) -> Any:
    """``function(operands, cotangents)`` for every example and trip: ``[examples, *trips, ...]``.

    Operands are those of the equation, in its order. Where the function gives the gradients in the operands
    at the positions ``added``, they are added up over the trips that share the operand.
    """
    one = _of_operands(use, function)
    mapped = one
    for loop, length in reversed(list(zip(use.loops, use.lengths, strict=True))):
        stacked = [0 if loop in operand.loops else None for operand in fixed]
        shared = [loop not in use.held[i].loops for i in added]
        numbers = sum(
            math.prod(use.held[i].value.shape) for i, s in zip(added, shared, strict=True) if s
        )
        trips = _in_turn if length * numbers > _MOST_IN_TRIPS else _at_once
        mapped = trips(mapped, stacked, shared)
    values = [operand.value for operand in fixed]
    over = _convolutions.in_turn if use.mixes(one) else jax.vmap
    return over(mapped, (None, 0, 0))(values, list(records), list(cotangents))


def _at_once(function: Callable[..., Any], stacked: list[int | None], shared: list[bool]) -> Any:
    """All trips of a loop; shared results are added up."""
    mapped = jax.vmap(function, in_axes=(stacked, 0, 0))
    if not any(shared):
        return mapped

    def all_trips(*arguments: Any) -> Any:
        made = mapped(*arguments)
        return [jnp.sum(x, axis=0) if s else x for x, s in zip(made, shared, strict=True)]

    return all_trips


def _in_turn(function: Callable[..., Any], stacked: list[int | None], shared: list[bool]) -> Any:
    """The same with one trip after the other, so that no result is held for all of them."""

    def all_trips(constants: Sequence[Any], given: Any, cotangents: Any) -> Any:
        def gradients(slices: Any) -> list[list[Any]]:
            own, *others = slices
            here = iter(own)
            pairs = zip(constants, stacked, strict=True)
            made = function([c if axis is None else next(here) for c, axis in pairs], *others)
            return [
                [x for x, s in zip(made, shared, strict=True) if s == kind]
                for kind in (True, False)
            ]

        def trip(totals: list[Any], slices: Any) -> tuple[list[Any], list[Any]]:
            added, rest = gradients(slices)
            return [t + x for t, x in zip(totals, added, strict=True)], rest

        own = [c for c, axis in zip(constants, stacked, strict=True) if axis == 0]
        slices = own, given, cotangents
        shapes, _ = jax.eval_shape(gradients, jax.tree.map(lambda x: x[0], slices))
        totals = [jnp.zeros(x.shape, x.dtype) for x in shapes]
        totals, rest = jax.lax.scan(trip, totals, slices)
        sums, stacks = iter(totals), iter(rest)
        return [next(sums if s else stacks) for s in shared]

    return all_trips


def _of_operands(
    use: Use, function: Callable[[Sequence[Any], Sequence[Any]], Any]
) -> Callable[..., Any]:
    """``function`` of the operands that depend on no data, of those that do, and of cotangents."""
    data = [i for i in range(len(use.eqn.invars)) if i not in use.fixed]

    def one(constants: Sequence[Any], given: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        operands: list[Any] = [None] * len(use.eqn.invars)
        for i, x in zip(use.fixed, constants, strict=True):
            operands[i] = x
        for i, x in zip(data, given, strict=True):
            operands[i] = x
        return function(operands, cotangents)

    return one


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
        raise RuleError(
            f"rule of {name} must give factors of shapes {wanted}, numbers of rows as integers and others "
            f"real floating, got {found} of {left.dtype}, {right.dtype}"
        )
    right = right.astype(at_least_float32(right.dtype))
    if not rule.looked_up:
        return left.astype(at_least_float32(left.dtype)), right
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


def _products(eqn: Any, ruled: Ruled, terms: Terms) -> jax.Array:
    """The gradients of a use, by products as precise as those of the equation: so JAX would make them."""
    asked = eqn.params.get("precision", _terms.FULL)
    levels = asked if isinstance(asked, tuple) else (asked,)
    named = all(x is None or isinstance(x, jax.lax.Precision) for x in levels)
    return _terms.products(terms, ruled.sizes[2], asked if named else _terms.FULL)


def _as_leaves(program: Program, ruled: Ruled, gradients: jax.Array) -> jax.Array:
    return jax.vmap(lambda gradient: as_leaf(program, ruled, gradient))(gradients)


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
        slope = _derivative(use, mine)
        made = _by_example(use, slope, held[at], records[at], cotangents[at], mine)
        for i, gradient in zip(mine, made, strict=True):
            places.append((at, use.fixed.index(i)))
            gradients.append(gradient)
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
