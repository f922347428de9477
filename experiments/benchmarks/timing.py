"""How the benchmarks measure: interleaved runs, medians, and a row for each comparison."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax


class Row(NamedTuple):
    """One comparison: ``ratio`` is the peer's cost over ours (larger is better for us).

    Costs are seconds, or megabytes where ``unit`` says so. ``moved`` is the bytes that must pass between
    memory and processor at least, each input read once and each result written once; ``None`` if the work is
    bound by something else. ``points`` are the sizes and costs that a fit is of.
    """

    work: str
    ours: str
    our_cost: float
    peer: str
    peer_cost: float
    target: float | None
    note: str = ""
    unit: str = "s"
    moved: float | None = None
    points: tuple[tuple[float, float], ...] = ()

    @property
    def ratio(self) -> float:
        """How many times more the peer takes."""
        return self.peer_cost / self.our_cost

    @property
    def missed(self) -> bool:
        """Whether the ratio is below its target."""
        return self.target is not None and not self.ratio >= self.target


def interleaved_medians(
    calls: Mapping[str, Callable[[], Any]],
    repeats: int = 15,
    min_seconds: float = 0.0,
    burst: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    queued: bool = False,
) -> dict[str, float]:
    """Median seconds of each call, the calls taking turns so that a slow moment hits all of them.

    Every call is made once before the clock starts (compilation, caches), and its result is waited for.
    A turn is ``burst`` calls in a row, of which the mean counts: a training step finds its data where
    the step before has left them, not where another program has. If ``queued``, the calls of a turn are given
    to the device without waiting for each, so that the time between them does not count.
    With ``clock=time.process_time`` the seconds are those of all threads of this process, whatever else runs.
    """
    for call in calls.values():
        jax.block_until_ready(call())
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    done, result = 0, None
    while done < repeats or time.perf_counter() - start < min_seconds:
        for name, call in calls.items():
            before = clock()
            for _ in range(burst):
                result = call()
                if not queued:
                    jax.block_until_ready(result)
            jax.block_until_ready(result)
            seconds[name].append((clock() - before) / burst)
        done += 1
    return {name: statistics.median(values) for name, values in seconds.items()}


def once(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a single call, compilation included."""
    before = clock()
    jax.block_until_ready(call())
    return clock() - before
