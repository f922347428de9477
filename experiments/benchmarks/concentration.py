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


def rows(small: bool = False) -> list[Row]:
    """The product counts 2·N²·d operations; symmetry lets the degrees do with half of them."""
    users, dim = (64, 16) if small else (USERS, DIM)
    many, few = (640, 8) if small else (200_000, 100)
    vectors = jax.random.normal(jax.random.key(0), (users, dim)) / dim**0.5
    weights, gram = jax.jit(_weights), jax.jit(_gram)
    seconds = interleaved_medians(
        {"weights": lambda: weights(vectors), "gram": lambda: gram(vectors)}
    )
    work, ours, peer = (
        f"score and weights, {users} x {dim}",
        "blocks, counts only",
        "matrix product",
    )
    rate = 2 * users**2 * dim / seconds["gram"] / 1e9
    return [
        Row(
            work,
            ours,
            seconds["weights"],
            f"{peer} {users} x {dim} x {users}",
            seconds["gram"],
            0.5,
            f"the product runs at {rate:.0f} Gflop/s here",
        ),
        Row(
            f"memory of it, {users} x {dim}",
            ours,
            _temporaries(_weights, users, dim),
            "1 GiB",
            2**30 / 1e6,
            1.0,
            f"the {peer} takes {_temporaries(_gram, users, dim):.0f} MB",
            unit="MB",
        ),
        Row(
            f"memory of it, {many:,} x {few}",
            ours,
            _temporaries(_weights, many, few),
            "1 GiB",
            2**30 / 1e6,
            1.0,
            f"all pairs would take {many**2 * 4 / 1e6:,.0f} MB",
            unit="MB",
        ),
    ]
