"""The nodes at which the privacy profile of a sampled Gaussian is summed: numbers that are fixed in advance.

The half line s > 0 is mapped by s = log(1 + exp(x)) and cut in equal steps of x. The integrand is analytic
for |Im s| < πσ, so that the step may grow with σ up to a limit: a few grids, one for each range of σ. Orders
are taken in groups, each with as many nodes as its highest order may need.

Source: Trefethen and Weideman 2014 (exponential convergence of equal steps).

The error is derived in docs/theory/subsampling.md.

Cost: computed once for each dtype, in less than a second.
"""

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax._numerics import Array
from dpsco_jax.privacy.orders import ORDERS

# Grid i serves σ from its floor to the floor before it.
_FLOORS = (0.945, 0.62, 0.45, 0.32, 0.25)
CHUNK = 8
"""Nodes are counted in multiples of this."""


class Precision(NamedTuple):
    """How far a dtype needs the sum to go.

    Attributes:
        decay: the sum is within 256 exp(-decay) of the integral.
        left: nodes below x = -left are merged into one, which costs exp(-3 left).
        reach: length of the Gaussian tail kept beyond the last bump of the integrand.
        coverage: an order α has all its nodes where α <= coverage · σ² (and σ is not below every grid).
        terms: odd derivatives of Mills' ratio.
        cap: largest exponent that is exponentiated.
    """

    decay: float
    left: float
    reach: float
    coverage: float
    terms: int
    cap: float


def precision(dtype: Any) -> Precision:
    """The settings for float64, or for everything narrower."""
    if np.dtype(dtype) == np.float64:
        return Precision(decay=38.0, left=12.5, reach=9.0, coverage=70.0, terms=24, cap=600.0)
    return Precision(decay=17.0, left=5.0, reach=5.2, coverage=26.0, terms=16, cap=80.0)


class Group(NamedTuple):
    """``ORDERS[start:stop]``, and the nodes they need where the privacy loss is positive and negative."""

    start: int
    stop: int
    above: int
    below: int


class Nodes(NamedTuple):
    """Nodes of all grids of a bank.

    Attributes:
        s: where they are, ``[grids, nodes]``.
        log_weight: log of step times normal density, ``[grids, nodes]``.
        mills: -R^(k)(s)/k! of Mills' ratio R for k = 1, 3, ..., shape ``[grids * terms, nodes]``.
    """

    s: Array
    log_weight: Array
    mills: Array

    def part(self, which: slice) -> "Nodes":
        """Some of the nodes."""
        return Nodes(self.s[:, which], self.log_weight[:, which], self.mills[:, which])


class Bank(NamedTuple):
    """Groups of orders that share grids.

    Attributes:
        groups: the orders and their numbers of nodes.
        floors: the least σ of each grid, falling.
        nodes: all of them; a slice of their last axis is a part of the sum.
    """

    groups: tuple[Group, ...]
    floors: tuple[float, ...]
    nodes: Nodes


@functools.cache
def banks(dtype: np.dtype) -> tuple[Bank, Bank]:
    """The low orders, which small σ use too, on all grids; and the high orders on the first."""
    settings = precision(dtype)
    # Groups of two octaves: fewer programs to compile than with one, few more nodes.
    last_low = math.ceil(math.log2(settings.coverage * _FLOORS[0] ** 2))
    level = np.ceil((np.ceil(np.log2(ORDERS - 1.0)) - last_low) / 2.0)
    edges = np.flatnonzero(np.diff(np.maximum(level, 0.0))) + 1
    high = itertools.pairwise([*edges.tolist(), len(ORDERS)])
    return (
        _bank([(0, int(edges[0]))], _FLOORS, settings, dtype),
        _bank(list(high), _FLOORS[:1], settings, dtype),
    )


def _bank(
    ranges: list[tuple[int, int]], floors: tuple[float, ...], settings: Precision, dtype: np.dtype
) -> Bank:
    strip = math.pi * np.asarray(floors)
    steps = 2.0 * math.pi * strip / (0.5 * strip**2 + settings.decay)
    tails = settings.reach + settings.left
    groups = []
    for start, stop in ranges:
        top = ORDERS[stop - 1]
        # Covered orders reach furthest, α/σ, at the upper end of a grid; σ² = α/coverage on the first.
        worst = np.asarray((max(floors[0], math.sqrt(top / settings.coverage)), *floors[:-1]))
        above = np.minimum(top / worst, settings.coverage * worst)
        counts = [math.ceil(np.max(length / steps)) + 2 for length in (above + tails, tails)]
        groups.append(Group(start, stop, *(-(-count // CHUNK) * CHUNK for count in counts)))
    count = max(group.above for group in groups)
    s, weight = np.stack([_half_line(step, settings.left, count) for step in steps], axis=1)
    log_weight = np.log(weight) - 0.5 * s * s - 0.5 * math.log(2.0 * math.pi)
    mills = _mills_derivatives(s, settings.terms).transpose(1, 0, 2).reshape(-1, count)
    tables = (table.astype(dtype) for table in (s, log_weight, mills))
    return Bank(tuple(groups), floors, Nodes(*tables))


def _half_line(step: float, left: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes s and weights of ∫ f(s) ds over s > 0; those with x below -left are merged at their mean."""
    x = step * np.arange(-math.ceil(40.0 / step), count)
    s = np.logaddexp(0.0, x)
    weight = step * np.exp(x - s)
    low = x < -left
    merged = weight[low].sum()
    s = np.concatenate([[weight[low] @ s[low] / merged], s[~low]])
    return s[:count], np.concatenate([[merged], weight[~low]])[:count]


def _mills_derivatives(s: np.ndarray, terms: int) -> np.ndarray:
    """-R^(k)(s)/k! = ∫ y^k/k! exp(-sy - y²/2) dy over y > 0 for k = 1, 3, ...: shape [terms, ...].

    By equal steps in log y.
    """
    step = 3.0 / 32.0  # exact, as equal steps must be
    y = np.exp(step * np.arange(-213, 59)) / (1.0 + s[..., None])
    power = step * y * np.exp(-(s[..., None] + 0.5 * y) * y) * y
    result = []
    for k in range(1, 2 * terms, 2):
        result.append(power.sum(-1))
        power = power * (y * y / ((k + 1) * (k + 2)))
    return np.stack(result)
