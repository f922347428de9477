"""Epoch SGD on a ball: the ball oracle that makes all of its queries in one parallel round.

What it computes: an approximate minimizer of F(x) + (λ/2)·‖x - y‖² over ‖x - y‖ ≤ r, where F is the
convolution of a convex f with N(0, ρ²I): a pool of stochastic gradients of f around y, then epochs of
proximal steps over its rows, reweighted to where the iterate is. Epoch k = 1, 2, ... has 8·2^k points with
step size 2^(1-k)/(4λ); the next starts at their mean.

Source: thesis, Algorithm 6 (EpochSGD) and Proposition 2.3.4, after Hazan and Kale 2014. A pool of the T
samples that are used is drawn, where that draws 2T.

Formal guarantee: none of privacy. If gradients are unbiased with second moment at most L² everywhere and
r ≤ ρ, the expected objective exceeds the minimum by at most φ = accuracy·λr² with the number of epochs of
``plan``, sizes "paper" or "proved". Derivation: the estimates have second moment at most G² = e^{(r/ρ)²}·L²
(``oracles.resque``). The proximal inequality, summed over an epoch that starts with a step of the
regularizer alone, gives for η_k·T_k = 4/λ and D_k the distance of the start from the minimizer

    E[excess_k + (λ/2)·D_{k+1}²] ≤ b_k = λD_k²/8 + η_k·G²/2,   hence E D_{k+1}² ≤ b_k/λ,   D_1 ≤ min(r, L/λ),

the second by strong convexity. "proved" takes the fewest epochs with b_k ≤ φ; "paper" those that fit into
48L²/(λφ) samples. No epoch is needed where L²/(2λ), a bound on the excess of the center, is below φ.
"practical" is not proved: it takes 4 for the 48.

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

import math
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Positive, checked, one_of
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import resque
from dpsco_jax.solvers import _planning, plans
from dpsco_jax.solvers.ball import _one_round
from dpsco_jax.solvers.ball.ball_oracles import BallOracle
from dpsco_jax.transforms import steps

__all__ = ["SIZES", "Plan", "ball_oracles", "minimize", "num_queries", "plan"]

SIZES = ("proved", "paper", "practical")
_FIRST_EPOCH = 16
_SAMPLES = {"paper": 48, "practical": 4}
_MOST_EPOCHS = 60


@pytree
class Plan:
    """Ball problems at several accuracies, for a range of regularizations.

    The kinds of problems, for ``BallAnswer.calls``, are their numbers of epochs: 0, 1, ..., max_epochs.

    Attributes:
        ball_radius: r.
        smoothing_radius: ρ.
        thresholds: at accuracy i more than j epochs are made where λ < thresholds[i, j], shape
            ``[accuracies, max_epochs]``.
        accuracies: φ/(λr²), one for each oracle.
        epochs_by_accuracy: the most epochs that each oracle makes.
    """

    ball_radius: Number
    smoothing_radius: Number
    thresholds: Number
    accuracies: tuple[float, ...] = static()
    epochs_by_accuracy: tuple[int, ...] = static()

    @property
    def max_epochs(self) -> int:
        """The most epochs that any oracle makes."""
        return max(self.epochs_by_accuracy)

    @property
    def queries(self) -> tuple[int, ...]:
        """Stochastic gradients of a problem of each kind, all made in one round."""
        return tuple(num_queries(epochs) for epochs in range(self.max_epochs + 1))

    @property
    def depths(self) -> tuple[int, ...]:
        """Vector steps in a row of a problem of each kind."""
        return tuple(num_queries(epochs) + epochs for epochs in range(self.max_epochs + 1))

    def __str__(self) -> str:
        return plans.describe("epoch SGD on balls", self)


def num_queries(num_epochs: int) -> int:
    """Queries of a number of epochs: 16·2^k points in epoch k = 0, 1, ..., the first without a query."""
    return _FIRST_EPOCH * (2**num_epochs - 1) - num_epochs


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

    Args:
        lipschitz: L > 0, root of the bound on the second moment of the stochastic gradients.
        ball_radius: r > 0.
        smoothing_radius: ρ ≥ r.
        min_regularization: the smallest λ > 0 that the oracles will see.
        accuracies: φ/(λr²) of each oracle wanted, positive.
        sizes: "proved": the fewest epochs that are proved; "paper": as printed; "practical": a twelfth of the
            printed samples, for which nothing is proved.

    Raises:
        ValueError: if an argument is out of range, or more than 60 epochs are needed.
    """
    _checks.require_real("smoothing_radius", smoothing_radius, ball_radius, closed=True)
    second_moment = math.exp((ball_radius / smoothing_radius) ** 2)
    rows = []
    for accuracy in accuracies:
        slopes = [math.sqrt(2 * accuracy)]
        # In units of r and L: all depends on the slope L/(λr) alone.
        while slopes[-1] * min_regularization * ball_radius < lipschitz:
            if len(slopes) > _MOST_EPOCHS:
                raise ValueError(
                    f"min_regularization must be larger, or accuracies: more than {_MOST_EPOCHS} "
                    f"epochs would be needed, got {min_regularization!r}, {accuracy!r}"
                )
            largest = _largest_slope(len(slopes), accuracy, second_moment, sizes)
            slopes.append(max(slopes[-1], largest))
        edges = [lipschitz / (slope * ball_radius) for slope in slopes[:-1]]
        rows.append([_planning.float32_above(edge) for edge in edges])
    max_epochs = max(map(len, rows))
    padded = [row + [0.0] * (max_epochs - len(row)) for row in rows]
    return Plan(
        ball_radius=ball_radius,
        smoothing_radius=smoothing_radius,
        thresholds=np.asarray(padded).reshape(len(rows), max_epochs),
        accuracies=tuple(accuracies),
        epochs_by_accuracy=tuple(map(len, rows)),
    )


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
        def solved(key: Any, center: Any, regularization: Any) -> tuple[Any, Any]:
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
            return point, epochs

        return _one_round.oracle(solved, plan.max_epochs + 1)

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
    num_points = _FIRST_EPOCH * (2 ** jnp.asarray(num_epochs, jnp.int32) - 1)
    queries, capacity = num_points - num_epochs, num_queries(max_epochs)
    pool = _one_round.draw(key, gradient, center, smoothing_radius, queries, capacity)

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

    half = _FIRST_EPOCH // 2
    # As if an epoch of half the length had ended with its mean at the center.
    start = _Epoch(center, half * center, jnp.int32(_FIRST_EPOCH), jnp.int32(0), jnp.int32(0))
    end = jax.lax.fori_loop(0, num_points, step, start)
    return end.total / (end.length // 2)


class _Epoch(NamedTuple):
    """Iterate, sum and length of the current epoch, position in it, and the next row of the pool."""

    point: Any
    total: Any
    length: Any
    position: Any
    row: Any


def _largest_slope(num_epochs: int, accuracy: float, second_moment: float, sizes: str) -> float:
    """The largest L/(λr) at which the epochs suffice."""
    if sizes in _SAMPLES:
        # The next epoch does not fit into T = ⌈c·L²/(λφ)⌉ = ⌈c·slope²/accuracy⌉ samples.
        samples = _FIRST_EPOCH * (2 ** (num_epochs + 1) - 1) - 1
        return math.sqrt(samples * accuracy / _SAMPLES[sizes])
    # b_m/(λr²) = start·(D_1/r)² + noise·slope², from the recursion of the docstring.
    start, noise = 1.0, 0.0
    for epoch in range(num_epochs):
        start, noise = start / 8, noise / 8 + second_moment / (8 * 2**epoch)
    inside = math.sqrt(accuracy / (start + noise))
    if inside <= 1:  # D_1 ≤ L/λ ≤ r
        return inside
    return max(1.0, math.sqrt(max(0.0, accuracy - start) / noise))
