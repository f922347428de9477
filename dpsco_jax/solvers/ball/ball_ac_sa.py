"""AC-SA on a ball: the ball oracle with few sequential steps, each on a fresh batch of one parallel round.

What it computes: an approximate minimizer of F(x) + (λ/2)·‖x - y‖² over ‖x - y‖ ≤ r, where F is the
convolution of a convex f with N(0, ρ²I): a pool of stochastic gradients of f around y, then stages
k = 1, ..., K of T steps of AC-SA on batches of N_k rows, reweighted to the query point. Each stage halves
the bound on the excess.

Source: thesis, Algorithm 7 (AC-SA) and Proposition 2.3.5, after Ghadimi and Lan 2012; with the weights of
``transforms.ac_sa``, the whole linear term in the prox step, and a batch of its own for every step of every
stage (docs/corrections.md, sections C and Q).

Formal guarantee: none of privacy. If gradients are unbiased with second moment at most L² everywhere and
r ≤ ρ, the expected objective exceeds the minimum by at most φ = accuracy·λr² with the sizes of ``plan``; the
derivation is in ``_ball_ac_sa_plan``.

Cost: T·ΣN_k queries, at query depth 1: none depends on an iterate, and all are made before the first step.
K·T steps in a row. Memory of the largest pool that can be asked for. One compiled program for all sizes.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.solvers.convex import ball_ac_sa
    >>> def gradient(keys, points):
    ...     return points - 0.3
    >>> sizes = dict(lipschitz=1.0, ball_radius=0.2, smoothing_radius=0.4, min_regularization=1.0)
    >>> plan = ball_ac_sa.plan(**sizes, accuracies=[0.1])
    >>> (oracle,) = ball_ac_sa.ball_oracles(plan, gradient)
    >>> answer = oracle(jax.random.key(0), jnp.zeros(2), 1.0)
    >>> bool(jnp.linalg.norm(answer.point - 0.15) < 0.1)
    True
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, Int, Key

from dpsco_jax.oracles import resque
from dpsco_jax.solvers.ball import _pools
from dpsco_jax.solvers.ball._ac_sa_plan import SIZES, Plan, Stages, plan
from dpsco_jax.solvers.ball.ball_oracles import BallAnswer, BallOracle
from dpsco_jax.transforms import ac_sa, ac_sa_eval_params, steps

__all__ = ["SIZES", "Plan", "Stages", "ball_oracles", "minimize", "plan"]


def ball_oracles(
    plan: Plan, gradient: resque.BatchGradient, domain_radius: ArrayLike | None = None
) -> tuple[BallOracle, ...]:
    """The oracles of a plan, one for each accuracy; each reports λ as its multiplier.

    Args:
        plan: from ``plan``.
        gradient: unbiased stochastic gradients of f; see ``oracles.resque.BatchGradient``.
        domain_radius: of a ball around the origin to stay in; none if ``None``. Centers lie in it.
    """
    buckets = len(plan.stages) // len(plan.accuracies)

    def oracle_at(first: int) -> BallOracle:
        sizes = plan.stages[first : first + buckets]
        most = max(len(stages.batch_sizes) for stages in sizes)
        lengths = [
            (*stages.batch_sizes, *(most - len(stages.batch_sizes)) * (0,)) for stages in sizes
        ]

        def oracle(key: Any, center: Any, regularization: Any) -> BallAnswer:
            bucket = jnp.sum(regularization >= jnp.asarray(plan.edges, jnp.result_type(float)))
            point = minimize(
                key,
                gradient,
                center,
                regularization,
                lipschitz=plan.lipschitz,
                ball_radius=plan.ball_radius,
                smoothing_radius=plan.smoothing_radius,
                num_steps=jnp.asarray([stages.num_steps for stages in sizes])[bucket],
                batch_sizes=jnp.asarray(lengths, jnp.int32).reshape(buckets, most)[bucket],
                max_queries=max(stages.queries for stages in sizes),
                domain_radius=domain_radius,
            )
            calls = jax.nn.one_hot(first + bucket, len(plan.stages), dtype=jnp.int32)
            return BallAnswer(point, jnp.asarray(regularization, point.dtype), calls)

        return oracle

    return tuple(oracle_at(buckets * i) for i in range(len(plan.accuracies)))


def minimize(
    key: Key[Array, ""],
    gradient: resque.BatchGradient,
    center: Float[Array | np.ndarray, "dim"],
    regularization: ArrayLike,
    *,
    lipschitz: ArrayLike,
    ball_radius: ArrayLike,
    smoothing_radius: ArrayLike,
    num_steps: ArrayLike,
    batch_sizes: Int[Array | np.ndarray, "stages"],
    max_queries: int,
    domain_radius: ArrayLike | None = None,
) -> Float[Array, "dim"]:
    """The stages on one ball.

    Args:
        key: used once.
        gradient: unbiased stochastic gradients of f; see ``oracles.resque.BatchGradient``.
        center: y, the start too, ``[dim]``.
        regularization: λ > 0; may be traced.
        lipschitz: L; may be traced.
        ball_radius: r > 0; may be traced.
        smoothing_radius: ρ > 0; may be traced.
        num_steps: T, of each stage; may be traced.
        batch_sizes: N_k of each stage, ``[stages]``; may be traced. A stage of size 0 is left out.
        max_queries: static bound on T·ΣN_k; the pool has room for them.
        domain_radius: of a ball around the origin to stay in; none if ``None``. May be traced.

    Returns:
        The last stage's aggregate, ``[dim]``; the center if there is no stage.
    """
    center = jnp.asarray(center)
    smoothness = math.sqrt(2 / math.pi) * lipschitz / smoothing_radius + regularization
    domain = steps.ball_domain(center, ball_radius, domain_radius)
    optimizer = ac_sa(smoothness, regularization, domain)
    queries = jnp.asarray(num_steps * jnp.sum(batch_sizes))
    pool = _pools.draw(key, gradient, center, smoothing_radius, queries, max_queries)
    block = _pools.BLOCK

    def batch_mean(params: Any, first: Any, size: Any) -> Any:
        def add(index: Any, total: Any) -> Any:
            done = index * block
            shifts, queried = (
                jax.lax.dynamic_slice_in_dim(rows, first + done, block)
                for rows in (pool.shifts, pool.gradients)
            )
            weights = jnp.exp(resque.log_weights(shifts, params - center, smoothing_radius))
            weights = jnp.where(jnp.arange(block) < size - done, weights, 0.0)
            return total + jnp.matmul(weights, queried, precision=jax.lax.Precision.HIGHEST)

        blocks = (size + block - 1) // block
        return jax.lax.fori_loop(0, blocks, add, jnp.zeros_like(params)) / size

    def stage(carry: Any, size: Any) -> tuple[Any, None]:
        point, first = carry

        def step(index: Any, state: Any) -> Any:
            params, inner = state
            estimate = batch_mean(params, first + index * size, size)
            pull = regularization * (params - center)
            updates, inner = optimizer.update(estimate + pull, inner, params)
            return optax.apply_updates(params, updates), inner

        count = jnp.where(size > 0, num_steps, 0)
        params, inner = jax.lax.fori_loop(0, count, step, (point, optimizer.init(point)))
        return (ac_sa_eval_params(inner, params), first + count * size), None

    (point, _), _ = jax.lax.scan(stage, (center, jnp.int32(0)), jnp.asarray(batch_sizes))
    return point
