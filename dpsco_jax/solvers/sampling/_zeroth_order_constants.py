"""What a draw by values takes of an objective and a norm: the exponent that is worked in, and slopes.

What it computes: p, or 1 + 1/log d where p is smaller and there are three parameters or more, or 2 where p is
above 1.95; the Lipschitz constant of losses in the norm that is worked in; the linear model.

Source: T, Theorem 5.5.8; corrected: another norm has another Lipschitz constant (docs/corrections.md).

Formal guarantee: the constants hold for every item. The gradient of the loss of a row a is a times at most
the slope of the link. With p* dual to the p that is asked for and p'* to the one that is worked in, 2 <= p'*
<= p*, ‖a‖_p'* is at most ‖a‖_2 <= ``feature_bound``, and at most ‖a‖_p*·d^(1/p - 1/p'), whose first factor
is at most ``row_bound`` where that is given: rows are scaled onto it (``_user_losses``).

Cost: none.
"""

import math
from typing import Any

import numpy as np

from dpsco_jax import _checks
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.rates import norms

_LEAST_NORM = 1.1
_TABULATED = 1.95  # above it ψ is known for 2 alone


def exponent(norm: Any) -> float:
    """The p that is asked for; ``NotImplementedError`` for Schatten norms."""
    if isinstance(norm, tuple) and norm[:1] == ("schatten",):
        raise NotImplementedError(
            "norm must be that of vectors: for Schatten norms other than the Frobenius norm no efficient"
            " way is known to compute the log-Laplace transform ∫ exp(<X, Y> - a‖Y‖²) dY, nor to draw from"
            " it, which T (5.30) poses as an open question. Losses of rows gain nothing by them: their"
            " gradients have rank one, whose Schatten norms are all the same. Take value_queries with the"
            " norm 2 of all entries"
        )
    working_range = f"one number in [{_LEAST_NORM:g}, 2]"
    _checks.require_number("norm", norm, working_range)
    good = np.ndim(norm) == 0 and _LEAST_NORM <= norm <= 2.0
    _checks.require(good, "norm", norm, working_range)
    return float(norm)


def working_exponent(p: float, dim: int) -> float:
    """p, or 1 + 1/log d where p is smaller, or 2 near it; one entry has the same norm for every p."""
    if dim == 1 or p > _TABULATED:
        return 2.0
    return p if dim < 3 else max(p, 1.0 + 1.0 / math.log(dim))


def working_lipschitz(
    objective: Objective, p: float, inner: float, dim: int, row_bound: float | None
) -> float:
    """G of every user's loss in the norm that is worked in."""
    known = float(
        objective.lipschitz
    )  # slope·feature_bound, and ‖a‖ falls as the exponent grows from 2
    if row_bound is None:
        return known
    slope = known / float(model(objective).feature_bound)
    return min(known, slope * row_bound * norms.norm_ratio(p, inner, dim))


def model(objective: Objective) -> LinearModel:
    """The linear model; ``ValueError`` unless it is of a proven loss on vectors, on the whole space."""
    _proofs.require_proven(objective)
    everywhere = objective.globally_convex_lipschitz
    what = "True: convex and Lipschitz on the whole space, which no clipping can make it"
    _checks.require(everywhere, "objective.globally_convex_lipschitz", everywhere, what)
    diameter = float(np.asarray(objective.domain.diameter))
    _checks.require(math.isinf(diameter), "objective.domain", diameter, "the whole space")
    _checks.require(objective.ridge == 0.0, "objective.ridge", objective.ridge, "0")
    model = objective.vector_model
    if model is None:
        raise ValueError(f"objective must be a linear model on vectors, got {objective.loss!r}")
    return model
