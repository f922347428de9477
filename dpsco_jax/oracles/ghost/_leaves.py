"""Which way every leaf of the parameters goes: by factors of its gradients, or by the gradients.

For each use of parameters there is the rule of its equation, and each leaf goes exactly one way:

- ``"factors"``: all its uses have rules and are the leaf rearranged, so that norm and weighted sum come from
  factors (``_terms``), and this takes fewer products than building the gradient of every example.
  Where a table is looked up many times, equal rows are added up first (``_parts``), if that is cheaper
  than all pairs of look-ups;
- ``"products"``: as before, but the gradients are built, from the factors;
- ``"rows"``: gradients are built by differentiating its uses, whatever they are.

The choice between the first two, by shapes, is that of Bu et al. 2022 ("mixed ghost clipping"). A use of
several leaves goes by rows for all of them.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp

from dpsco_jax.oracles.ghost._program import Program, Use
from dpsco_jax.oracles.ghost.rules import RULES, Rule

MOST_TERMS = 2**20  # then the bound of a norm is within 7 % where nothing cancels


class Ruled(NamedTuple):
    """A use that has a rule.

    Attributes:
        use: its number.
        position: of the operand of parameters.
        rule: of the equation.
        stacked: whether each loop around it has parameters of its own, from the outside.
        sizes: S, T, K, N, loops included.
        leaf_axes: the axes of the leaf that S, K and N are, where that is known.
    """

    use: int
    position: int
    rule: Rule
    stacked: tuple[bool, ...]
    sizes: tuple[int, int, int, int]
    leaf_axes: tuple[tuple[int, ...], ...] | None


class Way(NamedTuple):
    """How a leaf goes.

    Attributes:
        name: ``"factors"``, ``"products"``, ``"rows"`` or ``"unused"``.
        uses: by rule; empty for rows.
        swapped: of which of them K and N are those of the others, exchanged.
        why: in words.
        merged: whether the norm is that of sums of equal rows (``_parts``), not of pairs of products.
    """

    name: str
    uses: tuple[Ruled, ...]
    swapped: tuple[bool, ...]
    why: str
    merged: bool = False


def ways(program: Program) -> list[Way]:
    """The way of every leaf."""
    ruled = [_ruled(number, use) for number, use in enumerate(program.uses)]
    found = []
    for leaf in range(program.num_leaves):
        mine = [
            i
            for i, use in enumerate(program.uses)
            if any(leaf in held.leaves for held in use.held.values())
        ]
        found.append(_way(program, ruled, mine))
    return found


def _way(program: Program, ruled: list[Ruled | str], mine: list[int]) -> Way:
    if not mine:
        return Way("unused", (), (), "the loss does not depend on it")
    refused = [r for r in (ruled[i] for i in mine) if isinstance(r, str)]
    if refused:
        return Way("rows", (), (), "; ".join(sorted(set(refused))))
    uses = tuple(r for r in (ruled[i] for i in mine) if not isinstance(r, str))
    swapped = _exchanged(uses)
    if swapped is None:
        return Way("rows", (), (), "its uses read it in different shapes")
    factors, whole = cost_of_factors(uses), cost_of_products(uses)
    patches = 4 * sum(
        math.prod(use.sizes[:3])
        for use in uses
        if program.uses[use.use].eqn.primitive.name == "conv_general_dilated"
    )
    of_patches = f", of {patches:,} bytes of patches" if patches else ""
    if longest_sum(uses) > MOST_TERMS:
        why = f"sums of {longest_sum(uses):,} terms round too much{of_patches}"
        return Way("products", uses, swapped, why)
    if factors <= whole:
        merged = pays_to_merge(uses)
        how = "equal rows added up, " if merged else ""
        why = f"{how}{factors:,} against {whole:,} products an example{of_patches}"
        return Way("factors", uses, swapped, why, merged)
    why = f"{whole:,} against {factors:,} products an example{of_patches}"
    return Way("products", uses, swapped, why)


def longest_sum(uses: tuple[Ruled, ...]) -> int:
    """Terms that a norm by factors adds up in a row."""
    total = uses[0].sizes[0]
    for use in uses:
        _, products, rows, columns = use.sizes
        # Unit vectors that are known by their numbers are compared, not multiplied out.
        total += (products if use.rule.looked_up else rows) + columns + 2 * products
    return total


def pays_to_merge(uses: tuple[Ruled, ...]) -> bool:
    """Whether equal rows are added up: of a table with one use, a look-up, of many rows."""
    if len(uses) > 1 or not uses[0].rule.looked_up or uses[0].sizes[1] == 1:
        return False
    return _cost_of_merging(uses[0]) <= _cost_of_pairs(uses[0])


def _cost_of_merging(use: Ruled) -> int:
    """Of one norm; with ``_cost_of_pairs`` in about nanoseconds of a CPU."""
    _, products, _, columns = use.sizes
    return products * (products - 1).bit_length() * (columns + 8) * 5 // 8


def _cost_of_pairs(use: Ruled) -> int:
    _, products, _, columns = use.sizes
    return products**2 * (columns + 48) // 32


def cost_of_factors(uses: tuple[Ruled, ...]) -> int:
    """Products for the norm and the weighted sum of one example."""
    number = sum(use.sizes[1] for use in uses)
    stack, _, rows, columns = uses[0].sizes
    if number == 1:
        norm = rows + columns
    elif len(uses) == 1 and uses[0].rule.looked_up:
        norm = min(_cost_of_merging(uses[0]), _cost_of_pairs(uses[0]))
    else:
        norm = number**2 * (rows + columns)
    sums = sum(math.prod(u.sizes) if not u.rule.looked_up else u.sizes[1] * columns for u in uses)
    return stack * norm + sums


def cost_of_products(uses: tuple[Ruled, ...]) -> int:
    """The same where the gradient of an example is built, and read twice more."""
    stack, products, rows, columns = uses[0].sizes
    added = sum(math.prod(use.sizes) for use in uses)
    if len(uses) == 1 and uses[0].rule.looked_up:
        added = stack * products * columns
    return added + 2 * stack * rows * columns


def _exchanged(uses: tuple[Ruled, ...]) -> tuple[bool, ...] | None:
    """Which uses have the axes of the first, exchanged; ``None`` if one has others."""
    if len(uses) == 1:
        return (False,)
    first = uses[0].leaf_axes
    if first is None:
        return None
    found = []
    for use in uses:
        if use.leaf_axes == first:
            found.append(False)
        elif use.leaf_axes == (first[0], first[2], first[1]):
            found.append(True)
        else:
            return None
    return tuple(found)


def _ruled(number: int, use: Use) -> Ruled | str:
    """The rule of a use, or why there is none."""
    name = use.eqn.primitive.name
    if len(use.held) != 1:
        return f"{name} of several functions of parameters"
    ((position, held),) = use.held.items()
    if held.view is None:
        return f"{name} of a function of parameters that is no rearrangement"
    kinds = [v.aval.dtype for v in (*use.eqn.invars, *use.eqn.outvars)]
    if any(jnp.issubdtype(kind, jnp.complexfloating) for kind in kinds):
        return f"{name} of complex numbers"
    make = RULES.get(name)
    rule = None if make is None else make(use.eqn, position)
    if rule is None:
        return f"no rule for this {name}" if make else f"no rule for {name}"
    stacked = tuple(loop in held.loops for loop in use.loops)
    shape = use.eqn.invars[position].aval.shape
    stack, rows, columns = (math.prod(shape[i] for i in axes) for axes in rule.axes)
    trips = rule.num_products
    for own, length in zip(stacked, use.lengths, strict=True):
        stack, trips = (stack * length, trips) if own else (stack, trips * length)
    if rule.looked_up and stack * trips == 0:
        return f"{name} of nothing"
    return Ruled(number, position, rule, stacked, (stack, trips, rows, columns), _axes(rule, held))


def _axes(rule: Rule, held: object) -> tuple[tuple[int, ...], ...] | None:
    view, loops = held.view, held.loops  # type: ignore[attr-defined]
    if view.axes is None:
        return None
    stack = len(loops)
    of_loops = tuple(view.axes[:stack])
    groups = [tuple(view.axes[stack + i] for i in axes) for axes in rule.axes]
    # Axes of length one are of no leaf, or of any.
    kept = [tuple(a for a in group if a is not None) for group in groups]
    return (tuple(a for a in of_loops if a is not None) + kept[0], kept[1], kept[2])
