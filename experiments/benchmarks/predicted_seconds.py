"""The seconds that plans predict, beside those that runs take.

What it computes: the speed of this machine (``work.measured_speed``), and for solvers of every family the
seconds that ``plan.work()`` makes of it, beside those of a compiled run, the least of three. All are
processor time of all threads, so that other programs matter little.

Source: none.

Formal guarantee: none; a ratio of 1 is a prediction that is true.

Cost: a minute of one core.

Example:
    python -m experiments.benchmarks predicted_seconds
"""

import time
from collections.abc import Iterator
from typing import Any

import jax

from dpsco_jax.solvers.work import measured_speed
from experiments.benchmarks.growth_cases import CASES, Sizes
from experiments.benchmarks.timing import Row

SIZES = {
    "sgd, all users": Sizes(16_384, 4, 64, 50),
    "sgd, Poisson": Sizes(262_144, 1, 64, 50),
    "private_ac_sa": Sizes(16_384, 4, 64, 50),
    "multipass_sgd, outliers removed": Sizes(4_096, 4, 64, 10),
    "winsorized_erm": Sizes(8_192, 4, 16, 10),
    "phased_sgd, outliers removed": Sizes(8_192, 4, 64),
    "phased_erm": Sizes(8_192, 4, 8),
    "accelerated_phased_erm, clipped": Sizes(16_384, 4, 32),
    "whitened_sgd": Sizes(4_096, 4, 64, 50),
    "element-level sgd": Sizes(8_192, 4, 64, 10),
    "finite_class": Sizes(16_384, 4, 32),
    "resque_erm": Sizes(16_384, 1, 64, 4_096),
}
SMALL = {"sgd, all users": Sizes(64, 1, 4, 4)}
_REPEATS = 3


def rows(small: bool = False) -> Iterator[Row]:
    """Predicted and measured seconds of each solver; their ratio is the measured over the predicted."""
    speed = measured_speed(time.process_time)
    cases = {case.name: case for case in CASES}
    for name, sizes in (SMALL if small else SIZES).items():
        case = cases[name]
        plan: Any = case.plan(sizes)
        assert case.program is not None
        function, arguments = case.program(plan, sizes)
        compiled = jax.jit(function).lower(*arguments).compile()
        jax.block_until_ready(compiled(*arguments))
        taken = []
        for _ in range(_REPEATS):
            before = time.process_time()
            jax.block_until_ready(compiled(*arguments))
            taken.append(time.process_time() - before)
        work = plan.work()
        note = f"{work.floating_point_operations:.2g} operations, {work.bytes_moved / 1e6:.3g} MB moved"
        shape = f"n = {sizes.n:,}, m = {sizes.m}, d = {sizes.d}"
        predicted = float(work.seconds(speed))
        yield Row(f"{name}, {shape}", "predicted", predicted, "measured", min(taken), None, note)
