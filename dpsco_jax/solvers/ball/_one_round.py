"""What the ball oracles of one parallel round share: their checked request, a pool of queries, their answers.

``ball_ac_sa`` and ``epoch_sgd`` make all queries around the centre before their first step, in rows of arrays
of a static size, so that one compiled program serves all sizes; a batch of problems takes as long as its
largest. Rows beyond those asked for are zeros or queries that nobody uses.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpsco_jax import _checks
from dpsco_jax.oracles import resque
from dpsco_jax.solvers.ball.ball_oracles import BallAnswer, BallOracle

BLOCK = 128


class Request(NamedTuple):
    """What a plan is asked for: L, r, ρ, the smallest λ, the accuracies φ/(λr²), and which sizes."""

    lipschitz: float
    radius: float
    smoothing: float
    least: float
    accuracies: tuple[float, ...]
    sizes: str


def requested(
    lipschitz: Any,
    ball_radius: Any,
    smoothing_radius: Any,
    min_regularization: Any,
    accuracies: Sequence[float],
    sizes: str,
    choices: tuple[str, ...],
) -> Request:
    """The arguments of ``plan`` as numbers; ``ValueError`` by name where one is out of range."""
    lipschitz = _checks.require_real("lipschitz", lipschitz, 0)
    radius = _checks.require_real("ball_radius", ball_radius, 0)
    smoothing = _checks.require_real("smoothing_radius", smoothing_radius, radius, closed=True)
    least = _checks.require_real("min_regularization", min_regularization, 0)
    sizes = _checks.require_choice("sizes", sizes, choices)
    _checks.require_instance("accuracies", accuracies, tuple | list)
    if not accuracies:
        raise ValueError(f"accuracies must not be empty, got {accuracies!r}")
    wanted = tuple(_checks.require_real("accuracies", a, 0) for a in accuracies)
    return Request(lipschitz, radius, smoothing, least, wanted, sizes)


def oracle(solved: Callable[[Any, Any, Any], tuple[Any, Any]], num_kinds: int) -> BallOracle:
    """An oracle that reports λ as its multiplier, of ``solved(key, center, λ) -> (point, kind)``."""

    def answer(key: Any, center: Any, regularization: Any) -> BallAnswer:
        point, kind = solved(key, center, regularization)
        calls = jax.nn.one_hot(kind, num_kinds, dtype=jnp.int32)
        return BallAnswer(point, jnp.asarray(regularization, point.dtype), calls)

    return answer


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
