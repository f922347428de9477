"""Pools whose size is decided while the program runs, for ball oracles.

What it computes: queries around a centre, as many as asked for, in rows of arrays of a static size. All of
them are made before any is used.

Source: ``oracles.resque``.

Formal guarantee: as for ``oracles.resque.draw_pool``; rows beyond those asked for are zeros or queries that
nobody uses.

Cost: the queries asked for, rounded up to whole blocks; one compiled program for all sizes, so that a batch
of problems takes as long as its largest. Memory of the static size.
"""

from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax.oracles import resque

BLOCK = 128


def draw(
    key: Any,
    gradient: resque.BatchGradient,
    center: Any,
    smoothing_radius: Any,
    num_queries: Any,
    capacity: int,
) -> resque.Pool:
    """A pool of which the first ``num_queries`` rows are queries.

    Args:
        key: used once.
        gradient: see ``resque.BatchGradient``; called on ``BLOCK`` points at a time.
        center: ``[dim]``.
        smoothing_radius: ρ > 0; may be traced.
        num_queries: at most ``capacity``; may be traced.
        capacity: static.

    Returns:
        Rows for ``capacity`` queries and at least one block more, so that a block may start at any of them.
    """
    rows = (-(-capacity // BLOCK) + 1) * BLOCK
    zeros = jnp.zeros((rows, center.shape[0]), center.dtype)

    def fill(block: Any, buffers: Any) -> Any:
        made = resque.draw_pool(
            jax.random.fold_in(key, block), gradient, center, smoothing_radius, BLOCK
        )
        values = made.shifts, made.gradients.astype(center.dtype)
        start = (block * BLOCK, 0)
        return tuple(
            jax.lax.dynamic_update_slice(buffer, value, start)
            for buffer, value in zip(buffers, values, strict=True)
        )

    blocks = (num_queries + BLOCK - 1) // BLOCK
    shifts, gradients = jax.lax.fori_loop(0, blocks, fill, (zeros, zeros))
    return resque.Pool(center, shifts, gradients)
