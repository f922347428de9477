"""AC-SA on a ball: the ball oracle with few sequential steps, each on a fresh batch of one parallel round.

What it computes: an approximate minimizer of F(x) + (λ/2)·‖x - y‖² over ‖x - y‖ ≤ r, where F is the
convolution of a convex f with N(0, ρ²I): a pool of stochastic gradients of f around y, then stages
k = 1, ..., K of T steps of AC-SA on batches of N_k rows, reweighted to the query point. Each stage halves
the bound on the excess.

Source: thesis, Algorithm 7 (AC-SA) and Proposition 2.3.5 ("paper"), after Ghadimi and Lan 2012; with the
weights of ``transforms.ac_sa``, the whole linear term in the prox step, and a batch of its own for every step
of every stage (docs/corrections.md, sections C and Q). The sizes "proved" are derived here.

Formal guarantee: none of privacy. If gradients are unbiased with second moment at most L² everywhere and
r ≤ ρ, the expected objective exceeds the minimum by at most φ = accuracy·λr² with the sizes of ``plan``.
Derivation: F + (λ/2)‖· - y‖² is S-smooth, S = √(2/π)·L/ρ + λ, and λ-strongly convex, and the mean of N
estimates has variance at most V = e^{(r/ρ)²}·L²/N. The start of stage k is within √(2e_{k-1}/λ) of the
minimizer in mean square, for e_k the bound on its excess; then AC-SA gives

    4S·e_{k-1}/(λT(T+1)) + 2V/(λ(T+1)) ≤ e_{k-1}/4 + e_{k-1}/4 = e_k

where T(T+1) ≥ 16·S/λ and N_k ≥ 4e^{(r/ρ)²}L²/(λ(T+1)·e_k). "proved" are the smallest such sizes, with
e_0 = λ·min(r, L/λ)²/2 and K = ⌈log2(e_0/φ)⌉, and no stage where L²/(2λ) ≤ φ. "paper": T = ⌈4√(1 + L/(ρλ))⌉,
N_k = ⌈48·2^k·L²/(λ²r²T)⌉, K = max(1, ⌈log2(λr²/φ)⌉).

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
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, Int, Key

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Positive, checked, one_of
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry.smoothing import gaussian_smoothness
from dpsco_jax.oracles import resque
from dpsco_jax.solvers import _planning, plans
from dpsco_jax.solvers.ball import _one_round
from dpsco_jax.solvers.ball.ball_oracles import BallOracle
from dpsco_jax.transforms import ac_sa, ac_sa_eval_params, steps

__all__ = ["SIZES", "Plan", "Stages", "ball_oracles", "minimize", "plan"]

SIZES = ("proved", "paper")


class Stages(NamedTuple):
    """Static sizes of one ball problem.

    Attributes:
        num_steps: T, of each stage.
        batch_sizes: N_k of each stage.
    """

    num_steps: int
    batch_sizes: tuple[int, ...]

    @property
    def queries(self) -> int:
        """Stochastic gradients, all made in one round."""
        return self.num_steps * sum(self.batch_sizes)

    @property
    def depth(self) -> int:
        """Vector steps in a row."""
        return self.num_steps * len(self.batch_sizes)


@pytree
class Plan:
    """Ball problems at several accuracies, for a range of regularizations.

    The regularization is bucketed by factors of 2, and sizes are those of the lower end of a bucket. A kind
    of problem, for ``BallAnswer.calls``, is a pair of accuracy and bucket, the bucket running faster.

    Attributes:
        lipschitz: L.
        ball_radius: r.
        smoothing_radius: ρ.
        edges: upper ends of all buckets but the last, increasing, ``[buckets - 1]``.
        accuracies: φ/(λr²), one for each oracle.
        stages: the sizes of all kinds.
    """

    lipschitz: Number
    ball_radius: Number
    smoothing_radius: Number
    edges: Number
    accuracies: tuple[float, ...] = static()
    stages: tuple[Stages, ...] = static()

    @property
    def queries(self) -> tuple[int, ...]:
        """Stochastic gradients of a problem of each kind, all made in one round."""
        return tuple(stages.queries for stages in self.stages)

    @property
    def depths(self) -> tuple[int, ...]:
        """Vector steps in a row of a problem of each kind."""
        return tuple(stages.depth for stages in self.stages)

    def __str__(self) -> str:
        return plans.describe("AC-SA on balls", self)


@checked
def plan(
    *,
    lipschitz: Positive,
    ball_radius: Positive,
    smoothing_radius: Positive,
    min_regularization: Positive,
    accuracies: _one_round.Accuracies,
    sizes: Annotated[str, one_of(*SIZES)] = "proved",
) -> Plan:
    """Sizes for which ``E objective ≤ minimum + accuracy·λr²`` at any λ ≥ ``min_regularization``.

    Arguments are those of ``epoch_sgd.plan``, but ``sizes``: "proved", the least that are proved, or "paper",
    as printed. Buckets go on from ``min_regularization`` until 4L/r is covered, beyond which nothing changes.

    Raises:
        ValueError: if an argument is out of range.
    """
    _checks.require_real("smoothing_radius", smoothing_radius, ball_radius, closed=True)
    ends = [min_regularization]
    while 2 * ends[-1] < 4 * lipschitz / ball_radius:
        ends.append(2 * ends[-1])
    stages = _paper_stages if sizes == "paper" else _proved_stages
    asked = lipschitz, ball_radius, smoothing_radius
    return Plan(
        *asked,
        edges=np.asarray([_planning.float32_above(end) for end in ends[1:]]),
        accuracies=tuple(accuracies),
        stages=tuple(stages(*asked, end, accuracy) for accuracy in accuracies for end in ends),
    )


def ball_oracles(
    plan: Plan, gradient: resque.BatchGradient, domain_radius: ArrayLike | None = None
) -> tuple[BallOracle, ...]:
    """The oracles of a plan, one for each accuracy, from the arguments of ``epoch_sgd.ball_oracles``."""
    buckets = len(plan.stages) // len(plan.accuracies)

    def oracle_at(first: int) -> BallOracle:
        sizes = plan.stages[first : first + buckets]
        most = max(len(stages.batch_sizes) for stages in sizes)
        lengths = [
            (*stages.batch_sizes, *(most - len(stages.batch_sizes)) * (0,)) for stages in sizes
        ]

        def solved(key: Any, center: Any, regularization: Any) -> tuple[Any, Any]:
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
            return point, first + bucket

        return _one_round.oracle(solved, len(plan.stages))

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
    """The stages on one ball; arguments that are no sizes are those of ``epoch_sgd.minimize``.

    Numbers may be traced. T = ``num_steps`` is that of each stage, N_k in ``batch_sizes`` that of stage k; a
    stage of size 0 is left out. ``max_queries``, static, is a bound on T·ΣN_k: the pool has room for them.

    Returns:
        The last stage's aggregate, ``[dim]``; the center if there is no stage.
    """
    center = jnp.asarray(center)
    smoothness = math.sqrt(2 / math.pi) * lipschitz / smoothing_radius + regularization
    domain = steps.ball_domain(center, ball_radius, domain_radius)
    optimizer = ac_sa(smoothness, regularization, domain)
    queries = jnp.asarray(num_steps * jnp.sum(batch_sizes))
    pool = _one_round.draw(key, gradient, center, smoothing_radius, queries, max_queries)
    block = _one_round.BLOCK

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


def _paper_stages(
    lipschitz: float, radius: float, smoothing: float, regularization: float, accuracy: float
) -> Stages:
    num_stages = max(1, math.ceil(-math.log2(accuracy)))
    num_steps = math.ceil(4 * math.sqrt(lipschitz / (smoothing * regularization) + 1))
    slope = lipschitz / (regularization * radius)
    sizes = (48 * 2**k * slope**2 / num_steps for k in range(1, num_stages + 1))
    return Stages(num_steps, tuple(math.ceil(size) for size in sizes))


def _proved_stages(
    lipschitz: float, radius: float, smoothing: float, regularization: float, accuracy: float
) -> Stages:
    slope = lipschitz / (regularization * radius)
    if slope**2 / 2 <= accuracy:
        return Stages(0, ())
    start = min(1.0, slope) ** 2 / 2
    num_stages = max(1, math.ceil(math.log2(start / accuracy)))
    least = 16 * (1 + gaussian_smoothness(lipschitz, smoothing) / regularization)
    num_steps = math.ceil(math.sqrt(least + 0.25) - 0.5)
    variance = math.exp((radius / smoothing) ** 2) * slope**2
    sizes = (4 * variance * 2**k / ((num_steps + 1) * start) for k in range(1, num_stages + 1))
    return Stages(num_steps, tuple(math.ceil(size) for size in sizes))
