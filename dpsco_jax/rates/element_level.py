"""What element-level theory promises: noise, the gap that an ordering resolves, radii, errors, covariances.

What it computes: the closed forms of the element-level paper on plain numbers, corrected, and beside each one
that is false or loose the printed form, by ``constants="printed"``.

Source: E (1), Appendix A, Propositions 1 to 3. Corrected where docs/corrections.md says so (N6, N9, N10).

Formal guarantee: ``ordering_gap`` with ``"theorem"`` or ``"tight"`` bounds the expected number of wrong
orders by t². Proof: in a pair the difference of counts has mean n·Δq with Δq >= mγ/2, as p_i + p_j <= 1/m,
and its variance is n·v + 2σ² with v <= q_i + q_j <= 3mp₁. The Chernoff bound of the paper (Lemma B.2) is
exp(-min{5(nΔq)²/(12nv + 20σ²), nΔq/8}), and d²/2 pairs of probability (t/d)² each make t²/2. With Λ = ln(d/t)
the exponent must be 2Λ: nmγ/16 >= 2Λ, and 5(nmγ/2)² >= 2Λ(36nmp₁ + 20σ²). ``"tight"`` solves this;
``"theorem"`` splits the sum into twice its larger term, as the paper does. The printed third term divides by
m√n where this divides by √(nm). Nothing here is a privacy guarantee.

Cost: none; float64 on the host.

Example:
    >>> round(gaussian_sigma_paper(1.0, 1e-5), 6), round(gaussian_sigma_paper(1.0, 1e-5, always=True), 6)
    (4.798526, 4.901617)
"""

import math
from typing import Annotated, Any

import numpy as np
import scipy.special

from dpsco_jax._argument_kinds import (
    Count,
    Flag,
    Inside,
    Kind,
    Nonnegative,
    Positive,
    checked,
    integer,
    one_of,
)
from dpsco_jax._checks import require, require_finite, require_real, require_share

_Share = Annotated[float, Kind(require_share)]


@checked
def gaussian_sigma_paper(
    epsilon: Positive,
    delta: Inside,
    sensitivity: Positive = 1.0,
    *,
    always: Flag = False,
) -> float:
    """The standard deviation of E (1), √(1{ε > 1}/ε + 2 ln(1/δ)/ε²) times the sensitivity, for comparison.

    The exact one, by ``privacy.certified_noise_multiplier``, is about a quarter smaller. Appendix A proves
    the form with 1/ε for every ε; the printed one drops it for ε <= 1, which holds for δ <= 0.95 by the exact
    curve.

    Args:
        epsilon: positive.
        delta: in (0, 1).
        sensitivity: in ℓ2, positive.
        always: whether 1/ε stands there for every ε, as it is proven, or for ε > 1 only, as printed.
    """
    extra = 1.0 / epsilon if always or epsilon > 1 else 0.0
    return sensitivity * math.sqrt(extra + 2 * math.log(1 / delta) / epsilon**2)


@checked
def ordering_gap(
    num_users: Count,
    items_per_user: Count,
    num_items: Count,
    largest_probability: Positive,
    stddev: Nonnegative,
    mistakes: float,
    constants: Annotated[str, one_of("tight", "theorem", "printed")] = "tight",
) -> float:
    """The γ above which a noisy count of users gets pairs in order, but for t² of them: Proposition 1.

    Args:
        num_users: n.
        items_per_user: m, draws of each user.
        num_items: d.
        largest_probability: p₁ in (0, 1/(2m)].
        stddev: σ of the noise on a count, at least 0.
        mistakes: t in (0, d): the expected number of pairs in the wrong order is at most t².
        constants: ``"tight"``, ``"theorem"`` or ``"printed"``, which is no bound.
    """
    n, m, d, p, sigma = num_users, items_per_user, num_items, largest_probability, stddev
    require(p <= 0.5 / m, "largest_probability", p, f"at most 1/(2m) = {0.5 / m:g}")
    log = math.log(d / require_real("mistakes", mistakes, 0.0, float(d)))
    heavy = 32 * log / (n * m)
    if constants == "tight":
        spread = math.sqrt(2 * log * (36 * n * m * p + 20 * sigma**2) / 5)
        return max(heavy, 2 * spread / (n * m))
    noise, sampling = sigma * math.sqrt(log) / (n * m), math.sqrt(p * log)
    if constants == "theorem":
        return max(heavy, 8 * noise, 24 / math.sqrt(5) * sampling / math.sqrt(n * m))
    root = math.sqrt(2)
    return max(heavy, 4 * root * noise, 12 * root / math.sqrt(5) * sampling / (m * math.sqrt(n)))


@checked
def presence(probability: _Share, items_per_user: Count) -> float:
    """Q = 1 - (1 - p)^m: the probability that a user has an item (Lemma B.1).

    Args:
        probability: p in [0, 1].
        items_per_user: m.
    """
    p = probability
    return 1.0 if p == 1.0 else -math.expm1(items_per_user * math.log1p(-p))


@checked
def joint_presence(first: _Share, second: _Share, items_per_user: Count) -> float:
    """E[Y_j Y_l] = q_j + q_l - q_jl: the probability that a user has both items (Lemma B.1).

    Args:
        first: p_j in [0, 1].
        second: p_l in [0, 1 - p_j].
        items_per_user: m.
    """
    p, other = first, second
    require(p + other <= 1 + 1e-12, "second", other, f"at most 1 - first = {1 - p:g}")
    either = presence(min(p + other, 1.0), items_per_user)
    return presence(p, items_per_user) + presence(other, items_per_user) - either


@checked
def misorder_probability(
    larger: _Share,
    smaller: _Share,
    num_users: Count,
    items_per_user: Count,
    stddev: Nonnegative,
) -> float:
    """Φ(-nΔq/√(n·Var(Y_j - Y_l) + 2σ²)): how likely two noisy counts are in the wrong order, for large n.

    Args:
        larger: p_j.
        smaller: p_l, at most p_j.
        num_users: n.
        items_per_user: m.
        stddev: σ of the noise on a count, at least 0.
    """
    n, sigma, p, other = num_users, stddev, larger, smaller
    require(other <= p, "smaller", other, f"at most larger = {p:g}")
    high, low = presence(p, items_per_user), presence(other, items_per_user)
    apart = high - low
    variance = high + low - 2 * joint_presence(p, other, items_per_user) - apart**2
    spread = math.sqrt(n * max(variance, 0.0) + 2 * sigma**2)
    if spread == 0.0:
        return 0.0 if apart > 0 else 0.5
    return float(scipy.special.ndtr(-n * apart / spread))


@checked
def projection_radius(
    items_per_user: Annotated[int, integer(3)],
    cluster_probability: _Share,
    bits: Nonnegative,
    constants: Annotated[str, one_of("theorem", "printed")] = "theorem",
) -> float:
    """ρ = min{3mP + 4 log₂ m + t, m}, for which the bias of a cluster is at most 2^(2-t)·P: Proposition 2.

    Args:
        items_per_user: m of at least 3.
        cluster_probability: P, the largest of a cluster, in [0, 1].
        bits: t of at least 0.
        constants: ``"theorem"``, or ``"printed"`` for 3 log m, with which the proof does not go through.
    """
    m = items_per_user
    tail = 3 * math.log(m) if constants == "printed" else 4 * math.log2(m)
    return min(3 * m * cluster_probability + tail + bits, float(m))


@checked
def averaged_sgd_covariance(
    hessian: Any,
    gradient_covariance: Any,
    steps_per_user: Positive,
    batch_size: Positive,
    noise_stddev: Nonnegative,
    *,
    step_second_moment: Any = None,
) -> np.ndarray:
    """Q⁻¹(Σ + (1/γ)(S/b + τ²I/b²))Q⁻¹, the limit of the covariance of √n(θ̄ - θ*): Proposition 3.

    The printed brackets are misplaced: averaging over k = γn steps divides what the steps add, sampling and
    noise, and not what the n users themselves vary by.

    Args:
        hessian: Q, of the element-level loss at θ*, positive definite ``[dim, dim]``.
        gradient_covariance: Σ, of a user's summed element gradients at θ*.
        steps_per_user: γ > 0, steps over users.
        batch_size: b = qn, users of a step as expected.
        noise_stddev: τ = ρσ, of the noise on the sum of a step, at least 0.
        step_second_moment: S, if it is not Σ: with elements sampled alone, E Σ_k g_k g_kᵀ of their gradients.
    """
    q, sigma = _square("hessian", hessian), _square("gradient_covariance", gradient_covariance)
    dim = len(q)
    step = (
        sigma if step_second_moment is None else _square("step_second_moment", step_second_moment)
    )
    require(len(sigma) == dim, "gradient_covariance", sigma.shape, f"of the shape {q.shape}")
    require(len(step) == dim, "step_second_moment", step.shape, f"of the shape {q.shape}")
    noise = noise_stddev**2 / batch_size**2 * np.eye(dim)
    middle = sigma + (step / batch_size + noise) / steps_per_user
    half = np.linalg.solve(q, middle)
    return np.asarray(np.linalg.solve(q, half.T).T)


def _square(name: str, value: Any) -> np.ndarray:
    require_finite(name, value)
    found = np.asarray(value, np.float64)
    shaped = found.ndim == 2 and found.shape[0] == found.shape[1] > 0
    require(shaped, name, found.shape, "a square matrix")
    return found
