"""What the parts of a run cost: every formula once, for the plans that are made of these parts.

``Work`` of gradients, clipped sums, rows, pairwise scores, winsorized means, noise and decompositions, from
public sizes alone. Leading terms are exact, such as 2n²d of pairwise distances; the smaller ones are small
whole numbers read from the programs, which ``tests/solvers/test_work.py`` holds against what they do.
"""

import math
from typing import Any, NamedTuple

from dpsco_jax.mechanisms import denoising
from dpsco_jax.solvers.work import Work

_FLOAT = 4
_CLIP = 8  # a number: its size, the largest, scaled, squared, added, multiplied, added
_NOISE = 110  # a normal number: two random words of some 45 operations, and what makes them normal
_WORD = 45
_LEDGER = 2500  # a release: its curve at all orders, and the keys
_ENFORCED = 14  # an entry of the features that is projected onto their bound, with its norm, once
_PROJECTED = 9  # the same within a loss
_METHOD = 12  # a parameter in a step: regularizer, step, projection, average
_BLOCK = 2048  # users compared at once


class Item(NamedTuple):
    """What a run is over, as far as work depends on it.

    Attributes:
        slots: m, items of a user.
        dim: d, parameters.
        operations: of the gradient of one item.
    """

    slots: int
    dim: int
    operations: float


def gradients(users: Any, item: Item) -> Work:
    """Gradients of all items of some users, each read twice: for the margin and for the sum."""
    items = users * item.slots
    read = min(item.dim, item.operations / 4)
    return Work(items * item.operations, 12.0 * items, 2.0 * _FLOAT * items * read)


def losses_differentiated(users: Any, item: Item) -> Work:
    """Gradients by differentiation, where each evaluation of a loss projects its row onto the bound."""
    entries = users * item.slots * item.dim
    return gradients(users, item) + Work(0.0, _PROJECTED * entries, 2.0 * _FLOAT * entries)


def clipped_losses(units: Any, item: Item, passes: int = 1) -> Work:
    """Σ clip(update) over units whose updates take so many gradients, each projected onto the domain."""
    numbers = units * item.dim
    update = losses_differentiated(units, item) + Work(0.0, _CLIP * numbers, 2.0 * _FLOAT * numbers)
    return update * passes + Work(0.0, (_CLIP + 2) * numbers + 2 * _WORD * units)


def clipped_sum(users: Any, item: Item) -> Work:
    """Σ clip(g_u): gradients, each user's norm, and the sum. Of one item the norm is known beforehand."""
    each = 2 if item.slots == 1 else _CLIP + 2
    rows = users * item.dim
    moved = 0.0 if item.slots == 1 else 2.0 * _FLOAT * rows
    return gradients(users, item) + Work(0.0, each * rows, moved)


def rows(users: Any, item: Item) -> Work:
    """The clipped gradients of users, kept: written, and read by whoever looks at them."""
    numbers = users * item.dim
    return gradients(users, item) + Work(0.0, _CLIP * numbers, 3.0 * _FLOAT * numbers)


def prepared(users: Any, item: Item) -> Work:
    """The features of all users, projected onto their bound once."""
    numbers = users * item.slots * item.dim
    return Work(0.0, _ENFORCED * numbers, 3.0 * _FLOAT * numbers)


def release(dim: Any) -> Work:
    """Noise on some numbers, and its charge to the ledger."""
    return Work(0.0, _NOISE * dim + _LEDGER)


def method(dim: Any) -> Work:
    """A step of a first-order method on its parameters."""
    return Work(0.0, _METHOD * dim, 6.0 * _FLOAT * dim, 1.0)


def fixed_sample(drawn: Any, population: Any) -> Work:
    """A sample without replacement: a permutation is computed at the places that are drawn."""
    if drawn >= population:
        return Work()
    return Work(0.0, 4.0 * _WORD * drawn)


def poisson_sample(population: Any, drawn: Any) -> Work:
    """A stream of users that is sorted; or a coin for every user, and the places of those who are drawn."""
    most = drawn + 14.0 * math.sqrt(drawn) + 60.0
    if 8.0 * most <= population:
        return Work(0.0, (_WORD + 2.0 * math.log2(most) + 20.0) * most, 14.0 * _FLOAT * most)
    return Work(0.0, (_WORD + 8.0) * population + 2.0 * _WORD * drawn, 6.0 * _FLOAT * population)


def near_most(users: Any, dim: int) -> Work:
    """The mean of users who are near most others: scores of all pairs, weights, the weighted mean.

    All pairs of one block of 2048 users are compared, and half of those of more blocks: n²·d products and
    additions each.
    """
    block = min(users, _BLOCK)
    blocks = math.ceil(users / block)
    pairs = 0.5 * blocks * (blocks + 1) * block**2
    # Entries of both blocks are centred before every product.
    centred = 0.5 * blocks * (blocks + 1) * 2 * block * dim
    compared = Work(
        2.0 * pairs * dim, 17.0 * pairs + 7.0 * centred, _FLOAT * (2.0 * centred + pairs)
    )
    averaged = Work(0.0, 12.0 * users * dim, 2.0 * _FLOAT * users * dim)
    return compared + averaged + release(dim)


def winsorized(users: Any, dim: int, padded: int, boxed: bool) -> Work:
    """The mean of rows, clipped again and, where there is a box, rotated and sorted by coordinate."""
    numbers = users * dim
    found = Work(0.0, (_CLIP + 6) * numbers, 3.0 * _FLOAT * numbers) + release(dim)
    if not boxed:
        return found
    entries = users * padded
    rotation = Work(0.0, entries * (3.0 + math.log2(max(padded, 2))), 4.0 * _FLOAT * entries)
    intervals = Work(0.0, entries * (280.0 + math.log2(max(users, 2))), 12.0 * _FLOAT * entries)
    return found + rotation + intervals


def values(count: Any, item: Item) -> Work:
    """Losses of so many users, with all their items: half of a gradient each, of rows that are projected."""
    items = count * item.slots
    entries = items * item.dim
    return Work(
        0.5 * items * item.operations, 20.0 * items + _PROJECTED * entries, 2.0 * _FLOAT * entries
    )


def moments(users: Any, slots: int, columns: int) -> Work:
    """Σ over users of their matrices of second moments, each clipped."""
    squares = users * columns**2
    return Work(2.0 * squares * slots, (_CLIP + 2) * squares, 2.0 * _FLOAT * squares)


def hessians(users: Any, item: Item) -> Work:
    """Σ over users of their clipped Hessians: of linear models products of rows, else each decomposed."""
    squares = users * item.dim**2
    if item.operations <= 4 * item.dim:
        return Work(2.0 * squares * item.slots, 2.0 * users * item.slots * item.dim)
    # A derivative of the gradient along every coordinate.
    derived = 2.0 * users * item.slots * item.dim * item.operations
    return Work(derived, 10.0 * squares, 2.0 * _FLOAT * squares) + decomposition(item.dim) * users


def decomposition(columns: int) -> Work:
    """A symmetric matrix in its eigenvectors, and the products that use them."""
    return Work(13.0 * columns**3, 20.0 * columns**2, 8.0 * _FLOAT * columns**2)


def coordinates(items: Any, columns: int) -> Work:
    """Rows written in other coordinates, which an eigendecomposition finds."""
    products = Work(2.0 * items * columns**2, 0.0, 2.0 * _FLOAT * items * columns)
    return products + decomposition(columns)


def walks(groups: Any, items: Any, item: Item) -> Work:
    """A pass of projected SGD over all items, groups side by side; the average of the points is kept."""
    single = item._replace(slots=1)
    moved = Work(0.0, 12.0 * items * item.dim, 8.0 * _FLOAT * items * item.dim, items / groups)
    return losses_differentiated(items, single) + moved


def released_value(users: Any, winsorized_mean: bool) -> Work:
    """One private mean of a number for each user, winsorized or plain."""
    each = 280.0 + math.log2(max(users, 2)) if winsorized_mean else 10.0
    return Work(0.0, each * users + 10.0 * _NOISE, 12.0 * _FLOAT * users, 1.0)


def reweighted(queries: Any, item: Item) -> Work:
    """Queries of a ball oracle, made in one batch and reweighted at the steps that follow one another."""
    steps = Work(0.0, (_METHOD + 20.0) * queries * item.dim + 20.0 * _WORD * queries)
    return (
        gradients(queries, item)
        + steps
        + Work(0.0, 0.0, 8.0 * _FLOAT * queries * item.dim, queries)
    )


def denoised(columns: int) -> Work:
    """Noisy mean squares of columns, each moved by a prior that is fitted to all of them, step by step."""
    steps, atoms = denoising.NUM_ITERATIONS, denoising.NUM_ATOMS
    return Work(0.0, 7.0 * steps * atoms * columns, 0.0, steps)
