"""How costs grow: plan, compilation, run and memory against users, parameters, steps and seeds.

What it computes: for a solver of every family, for sampling, for the mechanisms that look at all users at
once, and for the store of a sweep: the cost at three sizes, and the exponent of a power law through them, by
least squares of logarithms. A row of the table is one such fit: its two costs are the ends of the line, its
ratio is what the line falls by from the largest size to the smallest, and its target is what it would fall by
at the limit of the exponent. So a ratio below its target is an exponent above its limit, and
``python -m experiments.benchmarks growth --check`` ends with 1.

Seconds are processor time of all threads, the least of three runs (plans and compilations: of one), so that
other programs matter little. Memory is that of temporaries as the compiler reports them, data not counted.
Costs below ``FLOORS`` count as much as those: below them the clock, or a constant, is what is measured.

Limits are those of ``LIMITS``, unless a case says that theory has more. They leave room for caches, and for
sizes at which a smaller term still counts.

Source: none.

Formal guarantee: none.

Cost: five minutes of one core, 2 GB.

Example:
    python -m experiments.benchmarks growth --output growth.json --check
"""

import functools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from experiments.benchmarks import store
from experiments.benchmarks.growth_cases import CASES, SMALL, Case, Sizes
from experiments.benchmarks.timing import Row

COLUMNS = ("plan", "compile", "run", "memory")
UNITS = {"plan": "s", "compile": "s", "run": "s", "memory": "MB"}
FLOORS = {"plan": 0.05, "compile": 0.2, "run": 2e-4, "memory": 0.05}
AXES = {"n": "users", "d": "parameters", "steps": "steps", "seeds": "seeds"}
LIMITS: Mapping[str, Mapping[str, float]] = {
    "n": {"plan": 0.3, "compile": 0.3, "run": 1.3, "memory": 1.1},
    "d": {"plan": 0.3, "compile": 0.3, "run": 1.3, "memory": 1.1},
    "steps": {"plan": 0.3, "compile": 0.3, "run": 1.1, "memory": 0.1},
    "seeds": {"compile": 0.3, "run": 1.2, "memory": 1.1},
}
STORE_SIZES = (1_000, 8_000, 64_000)
STORE_LIMITS = {"seconds": 0.3, "instructions": 0.01, "opening": 1.2}
_REPEATS = 3


class Costs(NamedTuple):
    """What one size of one case costs; seconds of the processor, and megabytes."""

    plan: float
    compile: float
    run: float
    memory: float


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """The power law through some costs, by least squares of logarithms: exponent, and cost at size 1."""
    slope, constant = np.polyfit(np.log(sizes), np.log(costs), 1)
    return float(slope), math.exp(constant)


def fitted(
    work: str,
    axis: str,
    sizes: Sequence[float],
    costs: Sequence[float],
    limit: float,
    unit: str = "s",
    floor: float = 0.0,
) -> Row:
    """A row whose ratio is below its target if costs grow faster than size to the power of ``limit``.

    Args:
        work: what costs.
        axis: name of what grows.
        sizes: increasing.
        costs: at these sizes.
        limit: of the exponent.
        unit: of the costs.
        floor: less counts as much.
    """
    power, one = exponent(sizes, [max(cost, floor, 1e-12) for cost in costs])
    few, many = sizes[0], sizes[-1]
    shown = ", ".join(f"{cost:.3g}" for cost in costs)
    return Row(
        work,
        f"{many:,} {axis}",
        one * many**power,
        f"{few:,} {axis}",
        one * few**power,
        (few / many) ** limit,
        f"exponent {power:.2f}, at most {limit:g}; measured {shown}",
        unit,
        points=tuple(zip(map(float, sizes), map(float, costs), strict=True)),
    )


def measured(case: Case, sizes: Sizes) -> Costs:
    """Plans, compiles and runs a case once at one size."""
    before = time.process_time()
    plan = case.plan(sizes)
    planned = time.process_time() - before
    if case.program is None:
        return Costs(planned, math.nan, math.nan, math.nan)
    function, arguments = case.program(plan, sizes)
    before = time.process_time()
    compiled = jax.jit(function).lower(*arguments).compile()
    compiling = time.process_time() - before
    analysis = compiled.memory_analysis()
    memory = analysis.temp_size_in_bytes / 1e6 if analysis else math.nan
    jax.block_until_ready(compiled(*arguments))
    seconds = []
    for _ in range(_REPEATS):
        before = time.process_time()
        jax.block_until_ready(compiled(*arguments))
        seconds.append(time.process_time() - before)
    return Costs(planned, compiling, min(seconds), memory)


def case_rows(case: Case) -> Iterator[Row]:
    """A row for every axis of a case and every cost that it has."""
    # What is done once in a process is not a cost of a size; at another size, as plans are remembered.
    measured(case, case.base._replace(n=min(case.axes["n"]) - 1))
    cost = functools.cache(functools.partial(measured, case))
    for axis, values in case.axes.items():
        costs = [cost(case.base._replace(**{axis: value})) for value in values]
        for column in COLUMNS:
            found = [getattr(each, column) for each in costs]
            planned = case.plans and axis != "seeds"
            if any(math.isnan(value) for value in found) or (column == "plan" and not planned):
                continue
            limit = case.limits.get((axis, column), LIMITS[axis][column])
            yield fitted(
                f"{case.name}: {column}",
                AXES[axis],
                values,
                found,
                limit,
                UNITS[column],
                FLOORS[column],
            )


def store_rows(sizes: Sequence[int] = STORE_SIZES, chunks: int = 5) -> Iterator[Row]:
    """What a chunk costs the store of a sweep, against all cells; and what a run begins with."""
    costs = store.store_growth(sizes, chunks)
    for name, limit in STORE_LIMITS.items():
        found = [float(getattr(each, name)) for each in costs]
        unit = "instructions" if name == "instructions" else "s"
        work = "pending cells of a sweep" if name == "opening" else "store of a sweep, one chunk"
        yield fitted(f"{work}: {name}", "cells", sizes, found, limit, unit)


def rows(small: bool = False) -> Iterator[Row]:
    """All fits; tiny sizes of a few cases if ``small``, whose exponents mean nothing."""
    for case in SMALL if small else CASES:
        # Programs of one case are none of the next one's cost.
        jax.clear_caches()
        if case.float64:
            with jax.enable_x64(True):
                yield from list(case_rows(case))
        else:
            yield from case_rows(case)
    yield from store_rows((1_000, 2_000), 1) if small else store_rows()
