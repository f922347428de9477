"""What a draw by values takes of an objective and a norm: the exponent that is worked in, and slopes.

What it computes: p, or 1 + 1/log d where p is smaller and there are three parameters or more; the Lipschitz
constant of losses in ℓp; the linear model.

Source: T, Theorem 5.5.8; corrected: another norm has another Lipschitz constant (docs/corrections.md).

Formal guarantee: the constants hold for every item; they are those of ``problems.losses``.

Cost: none.
"""

import math
from typing import Any

import numpy as np

from dpsco_jax import _checks
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.rates import norms

_LEAST_NORM, _LARGEST_NORM = 1.1, math.nextafter(2.0, 3.0)


def exponent(norm: Any) -> float:
    """The p that is asked for; ``NotImplementedError`` for Schatten norms."""
    if isinstance(norm, tuple) and norm[:1] == ("schatten",):
        raise NotImplementedError(
            "norm must be that of vectors: for Schatten norms other than the Frobenius norm no efficient"
            " way is known to compute the log-Laplace transform ∫ exp(<X, Y> - a‖Y‖²) dY, nor to draw from"
            " it, which T (5.30) poses as an open question. Take the route of value_queries, which works in"
            " ℓ2; geometry.lp has the Schatten norms, and their regularizers"
        )
    return _checks.require_real("norm", norm, _LEAST_NORM, _LARGEST_NORM, closed=True)


def working_exponent(p: float, dim: int) -> float:
    """p, or 1 + 1/log d where p is smaller; one entry has the same norm for every p."""
    if dim == 1:
        return 2.0
    return p if dim < 3 else max(p, 1.0 + 1.0 / math.log(dim))


def lipschitz(objective: Objective, p: float) -> float:
    """G in ℓp, p ≤ 2, of every item's loss: the dual norm of a row is at most its ℓ2 norm."""
    del p
    return float(objective.lipschitz)


def working_lipschitz(objective: Objective, p: float, inner: float, dim: int) -> float:
    """G in the norm that is worked in: its own, or that of ℓp times d^(1/p - 1/p')."""
    moved = lipschitz(objective, p) * norms.norm_ratio(p, inner, dim)
    return min(moved, lipschitz(objective, inner))


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
