"""Epoch SGD on a ball: the ball oracle that makes all of its queries in one parallel round.

What it computes: an approximate minimizer of F(x) + (λ/2)·‖x - y‖² over ‖x - y‖ ≤ r, where F is the
convolution of a convex f with N(0, ρ²I): a pool of stochastic gradients of f around y, then epochs of
proximal steps over its rows, reweighted to where the iterate is. Epoch k = 1, 2, ... has 8·2^k points with
step size 2^(1-k)/(4λ); the next starts at their mean.

Source: thesis, Algorithm 6 (EpochSGD) and Proposition 2.3.4, after Hazan and Kale 2014. A pool of the T
samples that are used is drawn, where that draws 2T.

Formal guarantee: none of privacy. If gradients are unbiased with second moment at most L² everywhere and
r ≤ ρ, the expected objective exceeds the minimum by at most φ = accuracy·λr² with the number of epochs of
``plan``, sizes "paper" or "proved"; the derivation is in ``_epoch_sgd_plan``.

Cost: 16·(2^m - 1) - m queries for m epochs, at query depth 1: none depends on an iterate, and all are made
before the first step. 16·(2^m - 1) steps in a row. Memory of the pool of the most epochs that can be asked
for. One compiled program for all numbers of epochs.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.solvers.convex import epoch_sgd
    >>> def gradient(keys, points):
    ...     return points - 0.3
    >>> sizes = dict(lipschitz=1.0, ball_radius=0.2, smoothing_radius=0.4, min_regularization=1.0)
    >>> plan = epoch_sgd.plan(**sizes, accuracies=[0.1])
    >>> (oracle,) = epoch_sgd.ball_oracles(plan, gradient)
    >>> answer = oracle(jax.random.key(0), jnp.zeros(2), 1.0)
    >>> bool(jnp.linalg.norm(answer.point - 0.15) < 0.1)
    True
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key

from dpsco_jax.oracles import resque
from dpsco_jax.solvers.ball import _pools
from dpsco_jax.solvers.ball._epoch_sgd_plan import FIRST_EPOCH, SIZES, Plan, num_queries, plan
from dpsco_jax.solvers.ball.ball_oracles import BallAnswer, BallOracle
from dpsco_jax.transforms import steps

__all__ = ["SIZES", "Plan", "ball_oracles", "minimize", "num_queries", "plan"]


def ball_oracles(
    plan: Plan, gradient: resque.BatchGradient, domain_radius: ArrayLike | None = None
) -> tuple[BallOracle, ...]:
    """The oracles of a plan, one for each accuracy; each reports λ as its multiplier.

    Args:
        plan: from ``plan``.
        gradient: unbiased stochastic gradients of f; see ``oracles.resque.BatchGradient``.
        domain_radius: of a ball around the origin to stay in; none if ``None``. Centers lie in it.
    """

    def oracle_at(thresholds: Any) -> BallOracle:
        def oracle(key: Any, center: Any, regularization: Any) -> BallAnswer:
            epochs = jnp.sum(regularization < jnp.asarray(thresholds, jnp.result_type(float)))
            point = minimize(
                key,
                gradient,
                center,
                regularization,
                ball_radius=plan.ball_radius,
                smoothing_radius=plan.smoothing_radius,
                num_epochs=epochs,
                max_epochs=thresholds.shape[0],
                domain_radius=domain_radius,
            )
            calls = jax.nn.one_hot(epochs, plan.max_epochs + 1, dtype=jnp.int32)
            return BallAnswer(point, jnp.asarray(regularization, point.dtype), calls)

        return oracle

    return tuple(
        oracle_at(plan.thresholds[i, :most]) for i, most in enumerate(plan.epochs_by_accuracy)
    )


def minimize(
    key: Key[Array, ""],
    gradient: resque.BatchGradient,
    center: Float[Array | np.ndarray, "dim"],
    regularization: ArrayLike,
    *,
    ball_radius: ArrayLike,
    smoothing_radius: ArrayLike,
    num_epochs: ArrayLike,
    max_epochs: int,
    domain_radius: ArrayLike | None = None,
) -> Float[Array, "dim"]:
    """A number of epochs on one ball.

    Args:
        key: used once.
        gradient: unbiased stochastic gradients of f; see ``oracles.resque.BatchGradient``.
        center: y, the start too, ``[dim]``.
        regularization: λ > 0; may be traced.
        ball_radius: r > 0; may be traced.
        smoothing_radius: ρ > 0; may be traced.
        num_epochs: m, at most ``max_epochs``; may be traced. At 0 the answer is the center.
        max_epochs: static; the pool has room for them.
        domain_radius: of a ball around the origin to stay in; none if ``None``. May be traced.

    Returns:
        The mean of the last epoch's points, ``[dim]``.
    """
    center = jnp.asarray(center)
    num_points = FIRST_EPOCH * (2 ** jnp.asarray(num_epochs, jnp.int32) - 1)
    queries, capacity = num_points - num_epochs, num_queries(max_epochs)
    pool = _pools.draw(key, gradient, center, smoothing_radius, queries, capacity)

    def step(_: Any, carry: _Epoch) -> _Epoch:
        first = carry.position == 0
        shift, queried = pool.shifts[carry.row], pool.gradients[carry.row]
        weight = jnp.exp(resque.log_weight(shift, carry.point - center, smoothing_radius))
        mean = carry.total / (carry.length // 2)
        point = steps.ball_step(
            jnp.where(first, mean, carry.point),
            jnp.where(first, 0.0, weight * queried),
            4 / (carry.length * regularization),
            regularization,
            center,
            center,
            ball_radius,
            domain_radius,
        )
        ends = carry.position + 1 == carry.length
        return _Epoch(
            point=point,
            total=jnp.where(first, point, carry.total + point),
            length=jnp.where(ends, 2 * carry.length, carry.length),
            position=jnp.where(ends, 0, carry.position + 1),
            row=carry.row + jnp.where(first, 0, 1),
        )

    half = FIRST_EPOCH // 2
    # As if an epoch of half the length had ended with its mean at the center.
    start = _Epoch(center, half * center, jnp.int32(FIRST_EPOCH), jnp.int32(0), jnp.int32(0))
    end = jax.lax.fori_loop(0, num_points, step, start)
    return end.total / (end.length // 2)


class _Epoch(NamedTuple):
    """Iterate, sum and length of the current epoch, position in it, and the next row of the pool."""

    point: Any
    total: Any
    length: Any
    position: Any
    row: Any
