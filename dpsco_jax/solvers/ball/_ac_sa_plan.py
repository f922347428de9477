"""Sizes of AC-SA on balls: stages, steps and batches for a range of regularizations.

What it computes: T and N_1, ..., N_K for which the expected objective of ``ball_ac_sa`` exceeds the minimum
by at most accuracy·λr², for every λ from a smallest one on.

Source: thesis, Algorithm 7 and Proposition 2.3.5 ("paper"); derived here ("proved").

Formal guarantee: none of privacy. Derivation: F + (λ/2)‖· - y‖² is S-smooth, S = √(2/π)·L/ρ + λ, and
λ-strongly convex, and the mean of N estimates has variance at most V = e^{(r/ρ)²}·L²/N. The start of stage k
is within √(2e_{k-1}/λ) of the minimizer in mean square, for e_k the bound on its excess; then AC-SA gives

    4S·e_{k-1}/(λT(T+1)) + 2V/(λ(T+1)) ≤ e_{k-1}/4 + e_{k-1}/4 = e_k

where T(T+1) ≥ 16·S/λ and N_k ≥ 4e^{(r/ρ)²}L²/(λ(T+1)·e_k). "proved" are the smallest such sizes, with
e_0 = λ·min(r, L/λ)²/2 and K = ⌈log2(e_0/φ)⌉, and no stage where L²/(2λ) ≤ φ. "paper": T = ⌈4√(1 + L/(ρλ))⌉,
N_k = ⌈48·2^k·L²/(λ²r²T)⌉, K = max(1, ⌈log2(λr²/φ)⌉).

Cost: none.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpsco_jax import _checks
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry.smoothing import gaussian_smoothness
from dpsco_jax.solvers import _planning, plans

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


def plan(
    *,
    lipschitz: float,
    ball_radius: float,
    smoothing_radius: float,
    min_regularization: float,
    accuracies: Sequence[float],
    sizes: str = "proved",
) -> Plan:
    """Sizes for which ``E objective ≤ minimum + accuracy·λr²`` at any λ ≥ ``min_regularization``.

    Args:
        lipschitz: L > 0, root of the bound on the second moment of the stochastic gradients.
        ball_radius: r > 0.
        smoothing_radius: ρ ≥ r.
        min_regularization: the smallest λ > 0 that the oracles will see. Buckets go on from here until
            4L/r is covered, beyond which nothing changes.
        accuracies: φ/(λr²) of each oracle wanted, positive.
        sizes: "proved" or "paper"; see the file's docstring.

    Raises:
        ValueError: if an argument is out of range.
    """
    lipschitz = _checks.require_real("lipschitz", lipschitz, 0)
    ball_radius = _checks.require_real("ball_radius", ball_radius, 0)
    smoothing_radius = _checks.require_real(
        "smoothing_radius", smoothing_radius, ball_radius, closed=True
    )
    least = _checks.require_real("min_regularization", min_regularization, 0)
    sizes = _checks.require_choice("sizes", sizes, SIZES)
    _checks.require_instance("accuracies", accuracies, tuple | list)
    if not accuracies:
        raise ValueError(f"accuracies must not be empty, got {accuracies!r}")
    wanted = tuple(_checks.require_real("accuracies", a, 0) for a in accuracies)
    ends = [least]
    while 2 * ends[-1] < 4 * lipschitz / ball_radius:
        ends.append(2 * ends[-1])
    size = _paper_stages if sizes == "paper" else _proved_stages
    return Plan(
        lipschitz=lipschitz,
        ball_radius=ball_radius,
        smoothing_radius=smoothing_radius,
        edges=np.asarray([_planning.float32_above(end) for end in ends[1:]]),
        accuracies=wanted,
        stages=tuple(
            size(lipschitz, ball_radius, smoothing_radius, regularization, accuracy)
            for accuracy in wanted
            for regularization in ends
        ),
    )


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
