"""Approximate minima perturbation: the minimum of a randomly tilted objective, for one row a user.

What it computes: with n rows, J(w) = Σ loss(w) + (Λ/2)·‖w‖² + ⟨b, w⟩ for a Gaussian b is minimised until
‖∇J‖ ≤ γ·n, and the result gets Gaussian noise that covers what was left. With γ = 0 this is objective
perturbation. The task's ridge n·ridge counts towards Λ.

Source: Iyengar, Near, Song, Thakkar, Thakurta and Wang 2019, "Towards practical differentially private
convex optimization", Algorithm 1; Kifer, Smith and Thakurta 2012 for γ = 0.

Formal guarantee: (ε, δ)-DP under REPLACE_ONE of a row, for a loss of a linear model with Lipschitz constant
L and smoothness β. The exact minimizer w says what b was: b = -∇(Σ loss) - Λ·w, a bijection, so that its
density is that of b times |det ∇²J|. Replacing a row moves b at every w by some v in the plane of the two
rows, ‖v‖ ≤ 2·L. The part of b in that plane is longer than σ·t, t = √(2·log(1/δ₁)), with probability δ₁
only, and else the log of the ratio of densities, ⟨b, v⟩/σ² + ‖v‖²/(2·σ²), is at most ε₃ for σ = 2·L·(1 +
t)/ε₃, if ε₃ ≤ 2·(1 + t). Before and after, ∇²J = M + a·x·xᵀ and M + a'·x'·x'ᵀ with M ⪰ Λ and a·‖x‖² ≤ β, so
the ratio of determinants is at most det(M + a·x·xᵀ)/det(M) ≤ 1 + β/Λ ≤ e^(β/Λ), and Λ ≥ β/(ε₁ - ε₃) makes
both together e^ε₁. The approximate minimizer is within n·γ/Λ of the exact one, so that noise of standard
deviation (2·n·γ/Λ)·(1 + √(2·log(1/δ₂)))/ε₂ hides which it was: (ε₂, δ₂). Together ε = ε₁ + ε₂ and δ = δ₁ +
δ₂. Here ε₂ and δ₂ are a hundredth of the budget, γ is 1/n².

This file minimises in float32, which does not reach γ: the noise is that of the plan, and a release would
need float64. What is measured of the result does not tell the two apart.

Cost: thirty Newton steps.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax._checks import require
from experiments.studies.table_dp_sgd import Flat

_LAST = 0.01
_NEWTON = 30


class Plan(NamedTuple):
    """Numbers of a run.

    Attributes:
        tilt: standard deviation of b.
        convexity: Λ, the ridge of the task included.
        last: standard deviation of the noise on the result.
    """

    tilt: Any
    convexity: Any
    last: Any


def plan(
    epsilon: float,
    delta: float,
    num_rows: int,
    lipschitz: float,
    smoothness: float,
    ridge: float,
    share: float = 0.9,
) -> Plan:
    """The plan for which the formal guarantee is (ε, δ).

    Args:
        epsilon: of the budget.
        delta: of the budget.
        num_rows: n.
        lipschitz: L.
        smoothness: β.
        ridge: of the task, for the mean over rows.
        share: ε₃ over ε₁, in (0, 1); the rest is spent on Λ.

    Raises:
        ValueError: if ε₃ is too large for the proof.
    """
    first, first_delta = (1.0 - _LAST) * epsilon, (1.0 - _LAST) * delta
    reached = 1.0 + math.sqrt(2.0 * math.log(1.0 / first_delta))
    require(share * first <= 2.0 * reached, "epsilon", epsilon, f"at most {2 * reached:.3g}")
    tilt = 2.0 * lipschitz * reached / (share * first)
    convexity = max(smoothness / ((1.0 - share) * first), num_rows * ridge)
    reach = 1.0 / (num_rows * convexity)
    last = (
        2.0 * reach * (1.0 + math.sqrt(2.0 * math.log(1.0 / (_LAST * delta)))) / (_LAST * epsilon)
    )
    return Plan(tilt, convexity, last)


def solve(key: jax.Array, plan: Plan, flat: Flat, objective: Any) -> Float[Array, "dim"]:
    """One run, for a logistic loss and users of one row."""
    tilt_key, last_key = jax.random.split(key)
    rows, labels = flat.rows[:, 0], flat.labels[:, 0]
    dim = rows.shape[1]
    tilt = plan.tilt * jax.random.normal(tilt_key, (dim,))
    slope = objective.linear_model.derivative

    def step(params: Array, _: None) -> tuple[Array, None]:
        margins = rows @ params
        gradient = rows.T @ slope(margins, labels) + plan.convexity * params + tilt
        # The quadratic that touches the loss from above: its steps never overshoot.
        half = jnp.where(jnp.abs(margins) < 1e-3, 1e-3, margins) / 2.0
        bent = jnp.tanh(half) / (4.0 * half)
        hessian = (rows * bent[:, None]).T @ rows + plan.convexity * jnp.eye(dim)
        return params - jax.scipy.linalg.solve(hessian, gradient, assume_a="pos"), None

    params, _ = jax.lax.scan(step, jnp.zeros(dim), None, length=_NEWTON)
    return params + plan.last * jax.random.normal(last_key, (dim,))
