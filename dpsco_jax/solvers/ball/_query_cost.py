"""What a parallel method costs, counted rather than timed.

What it computes: rounds, queries, depth and work of a run, exactly, as Python integers, from the sizes of
its plan and from how many ball problems of each size it solved; and what the theorems say of them.

Source: thesis, chapter 2, section 2.3: query depth, computational depth, queries and work; Theorems 2.3.2
and 2.3.3, with log³(dκ) where the query depth of the second prints log κ.

Formal guarantee: none of privacy. The counts are exact under the rules of ``QueryCost``.

Cost: none; integers on the host.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax import _checks
from dpsco_jax.solvers.ball.ball_oracles import OracleCalls

ORACLES = ("epoch_sgd", "ac_sa")


class QueryCost(NamedTuple):
    """The cost of a run, in exact integers (of a theorem: floats without its constant).

    Attributes:
        rounds: query depth: batches of queries of which none waits for an answer within its batch. All
            runs of one line search are one round; so are ball and prox problem of one iteration, which
            have the same center and regularization, with all levels of the prox.
        queries: stochastic gradients evaluated.
        depth: vector steps in a row. The runs of one line search are side by side; all other problems
            count one after another, even where they could be side by side too.
        work: queries times dimension: numbers in the gradients.
    """

    rounds: Any
    queries: Any
    depth: Any
    work: Any


def of_calls(
    oracle_calls: OracleCalls,
    problems: Any,
    queries: Sequence[int],
    depths: Sequence[int],
    search_runs: int,
    dim: int,
) -> QueryCost:
    """The cost of a run of ball acceleration.

    Args:
        oracle_calls: of each oracle.
        problems: ball problems by oracle and size, ``[3, kinds]``.
        queries: of a problem of each size.
        depths: rounds of queries in a problem of each size.
        search_runs: problems in one call of the line search, all of one size.
        dim: d.
    """
    searches, balls, proxes = (int(count) for count in oracle_calls)
    table = [[int(count) for count in row] for row in np.asarray(problems)]
    total = [sum(column) for column in zip(*table, strict=True)]
    # All problems of a line search have the same accuracy and regularization, hence size.
    rows = [[count // search_runs for count in table[0]], *table[1:]]
    made = sum(count * size for count, size in zip(total, queries, strict=True))
    return QueryCost(
        rounds=searches + max(balls, proxes),
        queries=made,
        depth=sum(n * size for row in rows for n, size in zip(row, depths, strict=True)),
        work=made * dim,
    )


def theorem(oracle: str, dim: int, condition: float) -> QueryCost:
    """The orders of Theorems 2.3.2 and 2.3.3 with their logarithms and without their constants.

    Args:
        oracle: ``"epoch_sgd"`` or ``"ac_sa"``.
        dim: d.
        condition: κ = LR/ε, above 1.

    Raises:
        ValueError: an argument is out of range.
    """
    oracle = _checks.require_choice("oracle", oracle, ORACLES)
    dim = _checks.require_integer("dim", dim, 1)
    condition = _checks.require_real("condition", condition, 1)
    log = math.log(dim * condition)
    rounds = dim ** (1 / 3) * condition ** (2 / 3) * log**3
    samples = condition**2 * log**4
    smooth = dim ** (1 / 4) * condition * log**4 if oracle == "ac_sa" else 0.0
    queries = rounds + samples + smooth
    return QueryCost(rounds, queries, rounds + (smooth or samples), queries * dim)
