"""What the ball oracles of one parallel round share: their accuracies, a pool of queries, their answers.

``ball_ac_sa`` and ``epoch_sgd`` make all queries around the centre before their first step, in rows of arrays
of a static size, so that one compiled program serves all sizes; a batch of problems takes as long as its
largest. Rows beyond those asked for are zeros or queries that nobody uses.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Kind
from dpsco_jax.oracles import resque
from dpsco_jax.solvers.ball.ball_oracles import BallAnswer, BallOracle

BLOCK = 128


def _positive(name: str, values: Any) -> tuple[float, ...]:
    _checks.require_instance(name, values, tuple | list)
    _checks.require(len(values) > 0, name, values, "at least one number")
    return tuple(_checks.require_real(name, value, 0) for value in values)


Accuracies = Annotated[Sequence[float], Kind(_positive)]


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
    """A pool of which the first ``num_queries`` rows, at most ``capacity``, are queries; these may be traced.

    ``gradient`` is called on ``BLOCK`` points at a time. There are rows for ``capacity`` queries, static, and
    at least one block more, so that a block may start at any of them.
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
