"""Schemes whose numbers are traced, and out of their range, have an infinite loss: nothing can be refused.

The bounds of the ranges themselves are finite, so that what is refused is what lies outside.
"""

import math

import jax
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy

ONE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
COME_OR_GO = NeighboringRelation.ADD_OR_REMOVE_ONE
RATE = ((0.1, 1.0), (-0.1, 1.1, math.nan, math.inf))
CAP = ((1.0, 1.5, math.inf), (0.99, 0.5, 0.0, -1.0, math.nan))
SIZE = ((10, 5), (0, -1, 9.5, math.nan, math.inf))

ROWS = [
    (privacy.Poisson, (0.1,), (ONE, SPECIAL, COME_OR_GO), {0: RATE}),
    (privacy.PoissonUsers, (0.1, 1.5), (ONE, SPECIAL), {0: RATE, 1: CAP}),
    (privacy.PoissonItems, (0.1, 3), (SPECIAL, COME_OR_GO), {0: RATE}),
    (
        privacy.WithoutReplacement,
        (10, 2),
        (ONE, COME_OR_GO),
        {0: SIZE, 1: ((2, 10), (-1, 11, 2.5))},
    ),
    (privacy.WithReplacement, (10, 2), (ONE, COME_OR_GO), {0: SIZE, 1: ((2, 1), (-1, 2.5))}),
]
# One curve of each kind at once: the others take seconds to compile.
_LATER = {privacy.WithReplacement, privacy.WithoutReplacement}
CASES = [
    pytest.param(
        *(made, given, relation, ranges),
        id=f"{made.__name__}-{relation.name}",
        marks=[pytest.mark.slow] * (made in _LATER or (made, relation) == (privacy.Poisson, ONE)),
    )
    for made, given, relations, ranges in ROWS
    for relation in relations
]


@pytest.mark.parametrize(("made", "given", "relation", "ranges"), CASES)
def test_a_traced_number_out_of_its_range_costs_infinity(made, given, relation, ranges):
    ranges = {**ranges, len(given): ((2.0, 1.0), (-1.0, math.nan))}
    rows, finite = [], []
    for place, values in ranges.items():
        for value in (*values[0], *values[1]):
            rows.append([value if i == place else x for i, x in enumerate((*given, 2.0))])
            finite.append(value in values[0])

    @jax.jit
    @jax.vmap
    def spent(row):
        # Only numbers that have a range here are traced: how many items a user has is static.
        numbers = [row[i] if i in ranges else x for i, x in enumerate(given)]
        return privacy.epsilon(made(*numbers).gaussian_loss(row[-1], relation), 1e-5)

    found = spent(np.asarray(rows, np.float32))
    wrong = [
        (row, e)
        for row, e, good in zip(rows, found, finite, strict=True)
        if math.isfinite(e) != good
    ]
    assert not wrong
