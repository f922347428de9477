"""Clipping rows and adding them up: ours against jax_privacy's and optax's, and against one read of the rows.

What it computes: seconds of Σ clip(row) over the rows of a matrix that is there already, in float32 and in
bfloat16. On an accelerator the calls of a turn are queued.

Source: none.

Formal guarantee: none; the rows are drawn at random.

Cost: a few seconds, and the memory of the rows twice.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax_privacy import clipping as peer_clipping

from dpsco_jax import transforms
from dpsco_jax.geometry import clipping
from experiments.benchmarks.roofline import num_bytes
from experiments.benchmarks.timing import Row, interleaved_medians

SIZES = ((4096, 16_384), (65_536, 1024))
CLIP_NORM = 1.0


def _compiled(function: Callable[[Any], Any], rows: Any) -> Callable[[], Any]:
    """Calls of a compiled function of the rows."""
    compiled = jax.jit(function)
    return lambda: compiled(rows)


def _compared(num_rows: int, dim: int, dtype: Any) -> list[Row]:
    rows = (jax.random.normal(jax.random.key(0), (num_rows, dim)) * 0.05).astype(dtype)
    counted = jnp.ones(num_rows, bool)
    mean = transforms.clipped_mean(CLIP_NORM, num_rows)
    params = jnp.zeros(dim, dtype)
    peer = peer_clipping.clipped_fun(
        lambda row: row, l2_clip_norm=CLIP_NORM, keep_batch_dim=False, dtype=jnp.float32
    )
    seconds = interleaved_medians(
        {
            "sum_of_clipped": _compiled(
                lambda x: clipping.sum_of_clipped(x, CLIP_NORM, counted), rows
            ),
            "clipped_mean": _compiled(lambda x: mean.update(x, mean.init(params), params)[0], rows),
            "jax_privacy": _compiled(peer, rows),
            "optax": _compiled(
                lambda x: optax.per_example_global_norm_clip([x], CLIP_NORM)[0], rows
            ),
            "a sum of the rows": _compiled(lambda x: jnp.sum(x, axis=0, dtype=jnp.float32), rows),
        },
        repeats=9,
        burst=10 if jax.default_backend() != "cpu" else 1,
        queued=True,
    )
    work = f"{num_rows} x {dim}, {jnp.dtype(dtype).name}"
    moved = num_bytes(rows) + 4 * dim
    return [
        Row(work, ours, seconds[ours], peer, seconds[peer], None, moved=moved)
        for ours in ("sum_of_clipped", "clipped_mean")
        for peer in ("jax_privacy", "optax", "a sum of the rows")
    ]


def rows(small: bool = False) -> list[Row]:
    """The comparisons, for tall and for wide matrices."""
    sizes = ((64, 128),) if small else SIZES
    found = [row for size in sizes for row in _compared(*size, jnp.float32)]
    return found + _compared(*sizes[0], jnp.bfloat16)
