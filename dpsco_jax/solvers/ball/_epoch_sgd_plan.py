"""Sizes of epoch SGD on balls: how many epochs for a range of regularizations.

What it computes: the fewest epochs for which the expected objective of ``epoch_sgd`` is proved to exceed the
minimum by at most accuracy·λr², for every λ from a smallest one on; or the numbers that are printed.

Source: thesis, Algorithm 6 and Proposition 2.3.4 ("paper"); derived here ("proved").

Formal guarantee: none of privacy. Derivation: the estimates have second moment at most G² = e^{(r/ρ)²}·L²
(``oracles.resque``). The proximal inequality, summed over an epoch that starts with a step of the
regularizer alone, gives for η_k·T_k = 4/λ and D_k the distance of the start from the minimizer

    E[excess_k + (λ/2)·D_{k+1}²] ≤ b_k = λD_k²/8 + η_k·G²/2,   hence E D_{k+1}² ≤ b_k/λ,   D_1 ≤ min(r, L/λ),

the second by strong convexity. "proved" takes the fewest epochs with b_k ≤ φ; "paper" those that fit into
48L²/(λφ) samples. No epoch is needed where L²/(2λ), a bound on the excess of the center, is below φ.
"practical" is not proved: it takes 4 for the 48.

Cost: none.
"""

import math
from collections.abc import Sequence

import numpy as np

from dpsco_jax import _checks
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.solvers import _planning, plans

SIZES = ("proved", "paper", "practical")
FIRST_EPOCH = 16
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
    return FIRST_EPOCH * (2**num_epochs - 1) - num_epochs


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
        min_regularization: the smallest λ > 0 that the oracles will see.
        accuracies: φ/(λr²) of each oracle wanted, positive.
        sizes: "proved", "paper" or "practical"; see the file's docstring.

    Raises:
        ValueError: if an argument is out of range, or more than 60 epochs are needed.
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
    second_moment = math.exp((ball_radius / smoothing_radius) ** 2)
    rows = []
    for accuracy in accuracies:
        accuracy = _checks.require_real("accuracies", accuracy, 0)
        slopes = [math.sqrt(2 * accuracy)]
        # In units of r and L: all depends on the slope L/(λr) alone.
        while slopes[-1] * least * ball_radius < lipschitz:
            if len(slopes) > _MOST_EPOCHS:
                raise ValueError(
                    f"min_regularization must be larger, or accuracies: more than {_MOST_EPOCHS} "
                    f"epochs would be needed, got {least!r}, {accuracy!r}"
                )
            slopes.append(
                max(slopes[-1], _largest_slope(len(slopes), accuracy, second_moment, sizes))
            )
        edges = [lipschitz / (slope * ball_radius) for slope in slopes[:-1]]
        rows.append([_planning.float32_above(edge) for edge in edges])
    max_epochs = max(map(len, rows))
    padded = [row + [0.0] * (max_epochs - len(row)) for row in rows]
    return Plan(
        ball_radius=ball_radius,
        smoothing_radius=smoothing_radius,
        thresholds=np.asarray(padded).reshape(len(rows), max_epochs),
        accuracies=tuple(float(a) for a in accuracies),
        epochs_by_accuracy=tuple(map(len, rows)),
    )


def _largest_slope(num_epochs: int, accuracy: float, second_moment: float, sizes: str) -> float:
    """The largest L/(λr) at which the epochs suffice."""
    if sizes in _SAMPLES:
        # The next epoch does not fit into T = ⌈c·L²/(λφ)⌉ = ⌈c·slope²/accuracy⌉ samples.
        samples = FIRST_EPOCH * (2 ** (num_epochs + 1) - 1) - 1
        return math.sqrt(samples * accuracy / _SAMPLES[sizes])
    # b_m/(λr²) = start·(D_1/r)² + noise·slope², from the recursion of the docstring.
    start, noise = 1.0, 0.0
    for epoch in range(num_epochs):
        start, noise = start / 8, noise / 8 + second_moment / (8 * 2**epoch)
    inside = math.sqrt(accuracy / (start + noise))
    if inside <= 1:  # D_1 ≤ L/λ ≤ r
        return inside
    return max(1.0, math.sqrt(max(0.0, accuracy - start) / noise))
