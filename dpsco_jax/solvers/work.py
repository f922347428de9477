"""What a run costs beside its gradients: arithmetic, memory traffic, and the seconds that both predict.

What it computes: a plan states its ``Work``: operations of matrix products, all other operations, bytes that
pass between memory and processor at least, and steps that wait for each other. A ``Speed`` says how long a
machine takes for one of each, and ``seconds`` adds them up. ``measured_speed`` times four small programs.

One gradient of an item is taken to cost four operations for each parameter where the objective is a linear
model (a product with the row for the margin, one for the sum), and six elsewhere: a network forward and,
twice as much, backward, that uses each parameter once. Rows that are one-hot cost less, convolutions more:
``plan.work(item_operations=...)`` takes another number. Operations on integers count, as those of random
numbers do; square roots and logarithms count once.

Seconds are good to a factor of about three (docs/benchmarks.md), enough to tell n² from n.

Source: none; the sum of the parts is the roofline model (Williams, Waterman and Patterson 2009) where nothing
overlaps, so at most twice its time.

Formal guarantee: none; nothing here touches privacy. Counts are functions of public sizes.

Cost: ``measured_speed``: under a second of a processor, compilation included.

Example:
    >>> from dpsco_jax.solvers.work import Speed, Work
    >>> work = Work(products=2e9, others=1e8, bytes_moved=4e8, steps=100)
    >>> work.seconds(Speed(1e11, 1e9, 1e10, 1e-5))
    0.161
"""

import dataclasses
import operator
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax import _checks
from dpsco_jax._pytrees import Number, pytree

__all__ = ["Speed", "Work", "measured_speed"]

_RUNS = 3
_DRAWN, _DRAW = 2**18, 90


@dataclasses.dataclass(frozen=True)
class Speed:
    """How fast a machine is; positive and finite numbers.

    Attributes:
        products_per_second: operations of matrix products in a second, two for each multiplication.
        others_per_second: other operations, such as those of random numbers.
        bytes_per_second: between memory and processor.
        seconds_per_step: what a step of a compiled loop takes that does next to nothing: a release of a few
            numbers, with its ledger.

    Raises:
        ValueError: a number is not positive and finite.
    """

    products_per_second: float
    others_per_second: float
    bytes_per_second: float
    seconds_per_step: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _checks.require_real(field.name, getattr(self, field.name), 0)
            object.__setattr__(self, field.name, value)


@pytree
class Work:
    """What a run does: numbers, or arrays for a batch of plans; expected where users are drawn at random.

    Attributes:
        products: floating-point operations of matrix products, two for each multiplication.
        others: all other operations.
        bytes_moved: bytes that pass between memory and processor at least.
        steps: of loops, which wait for each other.
    """

    products: Number = 0.0
    others: Number = 0.0
    bytes_moved: Number = 0.0
    steps: Number = 0.0

    @property
    def floating_point_operations(self) -> Any:
        """All operations, those on the integers of random numbers included."""
        return self.products + self.others

    def seconds(self, speed: Speed) -> Any:
        """How long a machine of this speed takes, if it does one thing after another."""
        _checks.require_instance("speed", speed, Speed)
        return (
            self.products / speed.products_per_second
            + self.others / speed.others_per_second
            + self.bytes_moved / speed.bytes_per_second
            + self.steps * speed.seconds_per_step
        )

    def __add__(self, other: "Work") -> "Work":
        total: Work = jax.tree.map(operator.add, self, other)
        return total

    def __mul__(self, times: Any) -> "Work":
        """The work of so many runs in a row."""
        repeated: Work = jax.tree.map(lambda amount: times * amount, self)
        return repeated


def measured_speed(clock: Callable[[], float] = time.perf_counter) -> Speed:
    """The speed of the first device, by four small programs; the fastest of three runs counts.

    A product of two square matrices, a draw of 2^18 normal numbers, a sum of 32 MB, and a loop whose steps
    draw and add a few numbers. Normal numbers, of 90 operations each by the compiler's count, stand for all
    that is no product. What else runs on the machine meanwhile makes it slower.

    Args:
        clock: in seconds; with ``time.process_time`` the speed is that of a second of all threads together,
            whatever else runs.
    """
    _checks.require_callable("clock", clock)
    side, long = 512, 2**23
    square = jnp.ones((side, side))
    large = jnp.ones(long)

    def draws(key: jax.Array) -> jax.Array:
        return jax.random.normal(jax.random.fold_in(key, 0), (_DRAWN,))

    def loop(key: jax.Array) -> jax.Array:
        def step(total: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
            drawn = jax.random.normal(jax.random.fold_in(key, t), (8,))
            return jnp.maximum(total, 0.5 * total + drawn), None

        return jax.lax.scan(step, jnp.zeros(8), jnp.arange(1000))[0]

    return Speed(
        products_per_second=2 * side**3 / _seconds(clock, jnp.matmul, square, square),
        others_per_second=_DRAW * _DRAWN / _seconds(clock, draws, jax.random.key(0)),
        bytes_per_second=4 * long / _seconds(clock, jnp.sum, large),
        seconds_per_step=_seconds(clock, loop, jax.random.key(0)) / 1000,
    )


def _seconds(
    clock: Callable[[], float], function: Callable[..., jax.Array], *arguments: jax.Array
) -> float:
    run = jax.jit(function)
    jax.block_until_ready(run(*arguments))
    taken = []
    for _ in range(_RUNS):
        before = clock()
        jax.block_until_ready(run(*arguments))
        taken.append(clock() - before)
    return max(min(taken), 1e-9)
