"""What two studies of element-level privacy expect of their results, and where it fails.

What it computes: the best of a grid of steps by accuracy, and for each claim "everywhere" or its exceptions.
A claim that one mean is above another is said to fail where it is not, however small the difference is; ties
within the 95 % intervals are named as such.

Source: E sections 4.3 and 4.4.

Formal guarantee: none; all of it looks at the test. Tuned non-privately.

Cost: none.
"""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pandas as pd


def best_of(summary: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """For each group the row with the greatest mean accuracy."""
    groups = summary.groupby(by, sort=False)
    return summary.loc[groups["accuracy"].idxmax()].reset_index(drop=True)


def said(pairs: Iterable[tuple[str, Any, Any]]) -> str:
    """Where the second of two rows is not above the first; "everywhere" if there is no such place."""
    failures = []
    for place, low, high in pairs:
        gap = float(high["accuracy"]) - float(low["accuracy"])
        if not gap > 0:
            either = float(high["accuracy_ci"]) + float(low["accuracy_ci"])
            tie = ", within the intervals" if abs(gap) <= either else ""
            failures.append(f"not at {place} ({gap:+.3f}{tie})")
    return "; ".join(failures) or "everywhere"


def claims_of_last_layer(rows: pd.DataFrame) -> dict[str, str]:
    """The claims about the last layer, for one set of images."""
    table = _by(rows, ["method", "partition", "elements", "epsilon"])
    partitions, held = sorted(set(rows["partition"])), sorted(set(rows["elements"]))
    finite = sorted(e for e in set(rows["epsilon"]) if e < math.inf)
    cells = [(K, k, e) for K in partitions for k in held for e in finite]
    claims = {}
    for other in ("user", "user, printed"):
        pairs = [
            (f"K = {K}, k = {k}, ε = {e:g}", table[other, K, k, e], table["element", K, k, e])
            for K, k, e in cells
            if {(other, K, k, e), ("element", K, k, e)} <= table.keys()
        ]
        if pairs:
            claims[f"element above {other}"] = said(pairs)
    rising = [
        (
            f"K = {K}, k = {a} to {b}, ε = {e:g}",
            table["element", K, a, e],
            table["element", K, b, e],
        )
        for K in partitions
        for e in finite
        for a, b in pairwise(held)
        if {("element", K, a, e), ("element", K, b, e)} <= table.keys()
    ]
    if rising:
        claims["element: rises with k"] = said(rising)
    finer = [
        (
            f"K = {a} to {b}, k = {k}, ε = {e:g}",
            table["element", a, k, e],
            table["element", b, k, e],
        )
        for k in held
        for e in finite
        for a, b in pairwise(partitions)
        if {("element", a, k, e), ("element", b, k, e)} <= table.keys()
    ]
    if finer:
        claims["element: rises with K"] = said(finer)
    return claims


def claims_of_network(rows: pd.DataFrame) -> dict[str, str]:
    """The claims about the network, for one set of images."""
    table = _by(rows, ["method", "users", "elements", "epsilon"])
    users, held = sorted(set(rows["users"])), sorted(set(rows["elements"]))
    finite = sorted(e for e in set(rows["epsilon"]) if e < math.inf)
    places = [(n, k, e) for n in users for k in held for e in finite]
    pairs = {
        "element above user": [
            (f"n = {n}, k = {k}, ε = {e:g}", ("user", n, k, e), ("element", n, k, e))
            for n, k, e in places
        ],
        "element: more users, more accuracy": [
            (f"n = {a} to {b}, k = {k}, ε = {e:g}", ("element", a, k, e), ("element", b, k, e))
            for k in held
            for e in finite
            for a, b in pairwise(users)
        ],
        "element: more elements, more accuracy": [
            (f"n = {n}, k = {a} to {b}, ε = {e:g}", ("element", n, a, e), ("element", n, b, e))
            for n in users
            for e in finite
            for a, b in pairwise(held)
        ],
    }
    found = {
        claim: [(place, table[a], table[b]) for place, a, b in rows if {a, b} <= table.keys()]
        for claim, rows in pairs.items()
    }
    return {claim: said(rows) for claim, rows in found.items() if rows}


def _by(rows: pd.DataFrame, names: list[str]) -> dict[Any, Any]:
    keys = zip(*(rows[name] for name in names), strict=True)
    return dict(zip(keys, rows.to_dict("records"), strict=True))
