"""What is fixed of a draw by value queries: sizes, the set, the regularizer, proven constants of the loss.

What it computes: for the norm ℓ_p of the request, the exponent q of the regularizer r(x) = (w/2)·‖x - x₀‖_q²,
its modulus of strong convexity in ℓ_q, and how Lipschitz losses and their differences are in ℓ_q and in ℓ2.

Source: T, Propositions 4.4.7 to 4.4.9; Ball, Carlen and Lieb 1994.

Formal guarantee: r is σ-strongly convex in ℓ_q, σ = w·(q - 1), so in ℓ2 too, since ‖h‖_q ≥ ‖h‖₂. The gradient
of the loss of a row a is slope·a at most, and with q* and p* dual to q and p, ‖a‖_q* is at most both
row_bound·d^(1/q* - 1/p*) and feature_bound·d^(1/q* - 1/2), of exponents at least 0. Differences of two losses
have twice that constant, or what is proven of gradients at points of a bounded set. All of it is looked up of
the loss itself, never taken from the caller.

Cost: none.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from dpsco_jax import _checks
from dpsco_jax.geometry import domains
from dpsco_jax.problems import _proofs, losses
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.rates.norms import (
    best_exponent,
    dual_exponent,
    norm_ratio,
    regularizer_weight,
)

_SETS = ("whole_space", "ball", "box")
_UP = 1.0 + 2.0**-40


class Setting(NamedTuple):
    """What is fixed.

    Attributes:
        num_users: n.
        items_per_user: slots of a user.
        dim: d, the number of parameters.
        norm: p.
        row_bound: of the ℓ_p* norm of rows; ``None`` if it is not bounded by itself.
        exponent: q of the regularizer.
        weight: w of the regularizer.
        lipschitz: G of the loss of a user, in ℓ_q.
        change: G_Δ of the difference of two, in ℓ_q.
        euclidean: G in ℓ2.
        slope: of the link; of a loss that has none its Lipschitz constant.
        feature_bound: of rows; 1 where there are none.
        additions: sums of a value, beside products with rows.
        ridge: of the objective.
        set_name: ``"whole_space"``, ``"ball"`` or ``"box"``.
        radius: of a ball.
        diameter: of the set.
    """

    num_users: int
    items_per_user: int
    dim: int
    norm: float
    row_bound: float | None
    exponent: float
    weight: float
    lipschitz: float
    change: float
    euclidean: float
    slope: float
    feature_bound: float
    additions: int
    ridge: float
    set_name: str
    radius: float
    diameter: float

    @property
    def modulus(self) -> float:
        """σ: r is σ-strongly convex in ℓ_q."""
        return self.weight * (self.exponent - 1.0)

    @property
    def tangent(self) -> bool:
        """Whether the regularizer is no quadratic."""
        return self.exponent < 2.0

    def convexity(self, regularization: Any) -> Any:
        """Strong convexity of the regularizer and the ridge together, in ℓ_q and in ℓ2."""
        return self.modulus * regularization + self.ridge


def model_of(objective: Objective) -> LinearModel | None:
    """The linear model that is proven of an objective."""
    return _proofs.require_proven(objective).linear_model


def setting_of(
    objective: Objective,
    num_users: int,
    items_per_user: int,
    dim: int,
    norm: float,
    row_bound: float | None,
) -> Setting:
    """The setting of an objective and of sizes.

    Raises:
        ValueError: the objective has no loss of ``problems.losses`` that is convex and Lipschitz on its
            domain, the domain is none that can be drawn on, or norm, row bound and loss do not go together.
    """
    _checks.require_instance("objective", objective, Objective)
    proof = _proofs.require_proven(objective)
    model = proof.linear_model
    name, given = domains.proven_maker(objective.domain)
    _checks.require(name in _SETS, "objective.domain", name, f"one of {_SETS}")
    fixed = not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(given))
    _checks.require(fixed, "objective.domain", name, "made of concrete numbers")
    known = model is not None or objective.loss.__module__ == losses.__name__
    _checks.require(known, "objective.loss", objective.loss, "one of problems.losses")
    center, ends = center_of(objective, (dim,)), ends_of(objective)
    for found in (center, *ends):
        entries = f"of {dim} entries, as many as there are parameters"
        _checks.require(found.size in (dim, 0), "objective.domain", found.size, entries)
    if name == "ball" and objective.ridge > 0:
        # Means of proposals lie between y and the common centre, which has to be in the ball.
        away = float(np.linalg.norm(center))
        room = float(np.asarray(given["radius"]))
        _checks.require(away <= room, "objective.domain", away, f"a ball with the origin: {room}")
    if name == "box":
        for side in ends[1] - ends[0]:
            good = 0.0 < side < math.inf
            _checks.require(good, "objective.domain", side, "a box with sides above 0, and finite")
    radius = float(np.asarray(given["radius"])) if name == "ball" else math.inf
    diameter, farthest = _extent(name, center, ends, radius)
    lipschitz, ridge = float(objective.lipschitz), float(objective.ridge)
    bound = 1.0 if model is None else float(model.feature_bound)
    slope = lipschitz / bound
    exponent, weight = best_exponent(norm, dim), regularizer_weight(norm, dim)
    _require_norm(objective, model, norm, exponent, row_bound, name)

    dual, dual_of_rows = dual_exponent(exponent), dual_exponent(norm)
    steep = slope * bound * norm_ratio(dual, 2.0, dim)
    euclidean = lipschitz
    if row_bound is not None:
        steep = min(steep, slope * row_bound * norm_ratio(dual, dual_of_rows, dim))
        euclidean = min(lipschitz, slope * row_bound * norm_ratio(2.0, dual_of_rows, dim))
    change = 2.0 * steep
    if exponent == 2.0 and math.isfinite(farthest):
        # A user without items has the gradient zero, from which others are as far as they are long.
        change = min(change, max(proof.gradient_gap(farthest), lipschitz))
    outputs = 0 if model is None or model.outputs is None else model.outputs
    return Setting(
        num_users=num_users,
        items_per_user=items_per_user,
        dim=dim,
        norm=norm,
        row_bound=row_bound,
        exponent=exponent,
        weight=weight,
        lipschitz=steep,
        change=change,
        euclidean=euclidean,
        slope=slope,
        feature_bound=bound,
        additions=items_per_user + 4 + 4 * outputs + (dim if model is None else 0),
        ridge=ridge,
        set_name=name,
        radius=radius,
        diameter=diameter,
    )


def center_of(objective: Objective, shape: tuple[int, ...]) -> Any:
    """The centre of a ball, as a vector in float64."""
    center = domains.proven_maker(objective.domain)[1].get("center")
    return np.zeros(math.prod(shape)) if center is None else _vector(center)


def ends_of(objective: Objective) -> tuple[Any, Any]:
    """The lower and the upper ends of a box, as vectors in float64; without entries of other sets."""
    given = domains.proven_maker(objective.domain)[1]
    return _vector(given.get("lower")), _vector(given.get("upper"))


def _vector(tree: Any) -> Any:
    leaves = [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([np.zeros(0), *leaves])


def _extent(name: str, center: Any, ends: tuple[Any, Any], radius: float) -> tuple[float, float]:
    """The diameter and the largest norm of the set itself, rounded up; a ``Domain`` may have been narrow."""
    if name == "ball":
        return 2.0 * radius, (math.hypot(*center) + radius) * _UP
    if name == "box":
        lower, upper = ends
        outermost = np.maximum(np.abs(lower), np.abs(upper))
        return math.hypot(*(upper - lower)) * _UP, math.hypot(*outermost) * _UP
    return math.inf, math.inf


def _require_norm(
    objective: Objective,
    model: LinearModel | None,
    norm: float,
    exponent: float,
    row_bound: float | None,
    set_name: str,
) -> None:
    vectors = model is not None and model.outputs is None
    plain = norm == 2.0 and row_bound is None
    _checks.require(vectors or plain, "norm", norm, "2, without row_bound: a loss of vector rows")
    if exponent < 2.0:
        whole = set_name == "whole_space"
        _checks.require(whole, "objective.domain", set_name, f"the whole space for norm = {norm:g}")
        flat = objective.ridge == 0.0
        _checks.require(flat, "objective.ridge", objective.ridge, f"0 for norm = {norm:g}")
