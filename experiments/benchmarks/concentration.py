"""Concentration of users: degrees and weights against the matrix product of the same shapes, and memory."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from dpsco_jax.mechanisms.concentrated import concentrated_mean
from experiments.benchmarks.timing import Row, interleaved_medians

USERS, DIM, RADIUS = 8192, 1024, 1.4


def _weights(vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
    found = concentrated_mean.concentration(vectors, RADIUS)
    return found.score, concentrated_mean.inlier_weights(found.degrees, len(vectors), 2 / 3)


def _gram(vectors: jax.Array) -> jax.Array:
    return lax.dot_general(vectors, vectors, (((1,), (1,)), ((), ())), precision="highest")


def _temporaries(function: Callable[[jax.Array], object], users: int, dim: int) -> float:
    """Megabytes of temporaries and results of the compiled function, as the compiler reports them."""
    rows = jax.ShapeDtypeStruct((users, dim), jnp.float32)
    analysis = jax.jit(function).lower(rows).compile().memory_analysis()
    if analysis is None:
        return float("nan")
    return (analysis.temp_size_in_bytes + analysis.output_size_in_bytes) / 1e6


def rows() -> list[Row]:
    """The product counts 2·N²·d operations; symmetry lets the degrees do with half of them."""
    vectors = jax.random.normal(jax.random.key(0), (USERS, DIM)) / DIM**0.5
    weights, gram = jax.jit(_weights), jax.jit(_gram)
    seconds = interleaved_medians(
        {"weights": lambda: weights(vectors), "gram": lambda: gram(vectors)}
    )
    work, ours, peer = (
        f"score and weights, {USERS} x {DIM}",
        "blocks, counts only",
        "matrix product",
    )
    rate = 2 * USERS**2 * DIM / seconds["gram"] / 1e9
    return [
        Row(
            work,
            ours,
            seconds["weights"],
            f"{peer} {USERS} x {DIM} x {USERS}",
            seconds["gram"],
            0.5,
            f"the product runs at {rate:.0f} Gflop/s here",
        ),
        Row(
            f"memory of it, {USERS} x {DIM}",
            ours,
            _temporaries(_weights, USERS, DIM),
            "1 GiB",
            2**30 / 1e6,
            1.0,
            f"the {peer} takes {_temporaries(_gram, USERS, DIM):.0f} MB",
            unit="MB",
        ),
        Row(
            "memory of it, 200,000 x 100",
            ours,
            _temporaries(_weights, 200_000, 100),
            "1 GiB",
            2**30 / 1e6,
            1.0,
            f"all pairs would take {200_000**2 * 4 / 1e6:,.0f} MB",
            unit="MB",
        ),
    ]
