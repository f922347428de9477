"""Rates and lower bounds of learning with winsorized means, with the constants that the proofs give.

What it computes: for n users with m items each, d dimensions, losses that are G-Lipschitz and H-smooth
on a set of diameter R and whose gradients are σ²-sub-Gaussian, Ḡ = σ√d, G̲ = min(G, Ḡ): the
error of the winsorized mean, the risks of empirical and population minimization, the risk of a finite
class, and the lower bounds. Names that end in ``_rate`` leave constants and logarithms out; the others
are bounds with all constants.

Source: L Theorems 2, 4 to 10, Corollary 3. Corrected where docs/corrections.md says so: Theorem 2 needs ε ≤
8·ln(1/δ); Theorem 7 spends ε/3 on each draw, so its error is 48τ/(nε)·ln(25K·ln(5/α)/α²) (printed: 16τ/(nε)).

Formal guarantee: lower bounds hold for user-level privacy under replacement of one user, (ε, δ) for
Theorems 6 and 9, pure ε for Theorem 8.

Cost: none; float64 on the host, elementwise on arrays.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax._argument_kinds import BelowOne, Inside, Nonnegative, Positive, checked
from dpsco_jax._checks import require_each, require_instance, require_positive


class Class(NamedTuple):
    """A problem class. Fields may be arrays, which broadcast.

    Attributes:
        num_users: n.
        items_per_user: m.
        dim: d.
        epsilon: ε.
        lipschitz: G, of the loss of one item.
        diameter: R, of the domain.
        sub_gaussian: σ, of an item's gradient in every direction.
        smoothness: H.
    """

    num_users: Any
    items_per_user: Any
    dim: Any
    epsilon: Any = 1.0
    lipschitz: Any = 1.0
    diameter: Any = 1.0
    sub_gaussian: Any = 1.0
    smoothness: Any = 1.0

    @property
    def gradient_spread(self) -> Any:
        """Ḡ = σ√d: the root of the mean square distance of a gradient from its mean, at most."""
        return self.sub_gaussian * np.sqrt(1.0 * np.asarray(self.dim))

    @property
    def privacy_error(self) -> Any:
        """√d/(n·√m·ε)."""
        n, m, d = (1.0 * np.asarray(x) for x in self[:3])
        return np.sqrt(d) / (n * np.sqrt(m) * self.epsilon)


@checked
def mean_variance(
    num_users: Positive,
    dim: Positive,
    epsilon: Positive,
    delta: Inside,
    radius: Positive,
    failure: Inside,
) -> float:
    """E‖error‖² of the winsorized mean with the paper's constants: c₀·dτ²·ln(dn/γ)·ln(1/δ)/(n²ε²).

    c₀ = 102400 = 2·8²·10²·8; valid under ``mean_is_private`` and with the probability of
    ``mean_failure`` of a different law (L Thm 2).

    Args:
        num_users: n.
        dim: d.
        epsilon: ε.
        delta: δ.
        radius: τ, within which all users' vectors lie, with probability 1 - γ.
        failure: γ.
    """
    logs = math.log(dim * num_users / failure) * math.log(1.0 / delta)
    return 102400.0 * dim * radius**2 * logs / (num_users * epsilon) ** 2


@checked
def mean_is_private(epsilon: Positive, delta: Inside) -> bool:
    """Whether the paper's composition gives ε: ε ≤ 8·ln(1/δ)."""
    return epsilon <= 8.0 * math.log(1.0 / delta)


@checked
def mean_failure(
    num_users: Positive,
    dim: Positive,
    epsilon: Positive,
    delta: Inside,
    radius: Positive,
    bound: Positive,
    failure: Inside,
) -> float:
    """min(1, 2γ + d²B·√ln(dn/γ)/τ·exp(-nε/(24·√(d·ln(1/δ))))): how far the law may be off (L Thm 2).

    Args:
        num_users: n.
        dim: d.
        epsilon: ε.
        delta: δ.
        radius: τ.
        bound: B, on the entries of the users' vectors.
        failure: γ.
    """
    exponent = num_users * epsilon / (24.0 * math.sqrt(dim * math.log(1.0 / delta)))
    miss = dim**2 * bound * math.sqrt(math.log(dim * num_users / failure)) / radius
    return min(1.0, 2.0 * failure + miss * math.exp(-exponent))


def convex_erm_rate(c: Class, num_steps: Any) -> Any:
    """R²H/T + R·Ḡ·√d/(n√m·ε): empirical risk after T steps (L Thm 4(i))."""
    require_instance("c", c, Class)
    require_positive("num_steps", num_steps)
    return c.diameter**2 * c.smoothness / num_steps + (
        c.diameter * c.gradient_spread * c.privacy_error
    )


def strongly_convex_erm_rate(c: Class, num_steps: Any, strong_convexity: Any) -> Any:
    """GR·exp(-μT/H) + Ḡ²·d/(μ·n²·m·ε²): empirical risk after T steps (L Thm 4(ii))."""
    require_instance("c", c, Class)
    require_positive("num_steps", num_steps)
    require_positive("strong_convexity", strong_convexity)
    noise = (c.gradient_spread * c.privacy_error) ** 2 / strong_convexity
    return c.lipschitz * c.diameter * np.exp(-strong_convexity * num_steps / c.smoothness) + noise


def stationarity_rate(c: Class, num_steps: Any) -> Any:
    """H²R²/T + HR·Ḡ·√d/(n√m·ε): squared norm of the gradient mapping (L Thm 4(iii))."""
    require_instance("c", c, Class)
    return c.smoothness * convex_erm_rate(c, num_steps)


def erm_has_enough_users(c: Class, num_steps: Any) -> Any:
    """N ≥ √(dT)/ε, the condition of L Thm 4 up to logarithms."""
    require_instance("c", c, Class)
    require_positive("num_steps", num_steps)
    return c.num_users >= np.sqrt(1.0 * np.asarray(c.dim) * num_steps) / c.epsilon


def phased_erm_rate(c: Class) -> Any:
    """R·√(G·G̲)/√(nm) + R·Ḡ·√d/(n√m·ε): population risk (L Thm 5)."""
    require_instance("c", c, Class)
    n, m = 1.0 * np.asarray(c.num_users), 1.0 * np.asarray(c.items_per_user)
    least = np.minimum(c.lipschitz, c.gradient_spread)
    return c.diameter * (
        np.sqrt(c.lipschitz * least / (n * m)) + c.gradient_spread * c.privacy_error
    )


def phased_erm_most_smoothness(c: Class) -> Any:
    """The largest H for which L Thm 5 holds: nσε/(R√m) + √(n³·G·G̲·ε⁴/(d²·m·R²)), up to logarithms."""
    require_instance("c", c, Class)
    n, m, d = (1.0 * np.asarray(x) for x in c[:3])
    least = np.minimum(c.lipschitz, c.gradient_spread)
    first = n * c.sub_gaussian * c.epsilon / (c.diameter * np.sqrt(m))
    return first + np.sqrt(n**3 * c.lipschitz * least * c.epsilon**4 / m) / (d * c.diameter)


def sco_lower_bound_rate(c: Class) -> Any:
    """R·G̲/√(nm) + R·G̲·√d/(n√m·ε): no (ε, δ)-private algorithm does better (L Thm 6)."""
    require_instance("c", c, Class)
    n, m = 1.0 * np.asarray(c.num_users), 1.0 * np.asarray(c.items_per_user)
    least = np.minimum(c.lipschitz, c.gradient_spread)
    return c.diameter * least * (1.0 / np.sqrt(n * m) + c.privacy_error)


@checked
def finite_class_error(
    num_users: Positive,
    epsilon: Positive,
    radius: Positive,
    num_choices: Positive,
    failure: Inside,
) -> float:
    """48τ/(nε)·ln(25K·ln(5/α)/α²): excess empirical risk of the choice, but for probability α (L Thm 7).

    Args:
        num_users: n.
        epsilon: ε, pure.
        radius: τ, of the users' losses around their mean.
        num_choices: K.
        failure: α.
    """
    draws = math.log(25.0 * num_choices * math.log(5.0 / failure) / failure**2)
    return 48.0 * radius / (num_users * epsilon) * draws


def finite_class_rate(c: Class, num_choices: Any, loss_bound: Any = 1.0) -> Any:
    """B·√(log K/(nm)) + B·log^(3/2)(K·nmε)/(n√m·ε): population risk (L Cor 3)."""
    require_instance("c", c, Class)
    require_each(require_positive, num_choices=num_choices, loss_bound=loss_bound)
    n, m = 1.0 * np.asarray(c.num_users), 1.0 * np.asarray(c.items_per_user)
    private = np.log(num_choices * n * m * c.epsilon) ** 1.5 / (n * np.sqrt(m) * c.epsilon)
    return loss_bound * (np.sqrt(np.log(num_choices) / (n * m)) + private)


def finite_class_lower_bound_rate(c: Class, num_choices: Any, loss_bound: Any = 1.0) -> Any:
    """B·√(log K/(nm)) + B·log K/(n√m·ε), for log₂ K ≥ 32·log 2: pure ε (L Thm 8)."""
    require_instance("c", c, Class)
    require_each(require_positive, num_choices=num_choices, loss_bound=loss_bound)
    n, m = 1.0 * np.asarray(c.num_users), 1.0 * np.asarray(c.items_per_user)
    log = np.log(num_choices)
    return loss_bound * (np.sqrt(log / (n * m)) + log / (n * np.sqrt(m) * c.epsilon))


@checked
def fixed_users_lower_bound(num_users: Positive, epsilon: Nonnegative, delta: BelowOne) -> float:
    """(1 - nδe^(nε))/(4·(1 + e^(nε))), at least 0: risk of telling all items +1 from all items -1 (L Thm 9).

    Whatever the number of items per user. For mean estimation in [-B, B] times 4B². At the δ of the
    theorem, at most e^(-nε)/(2n), it is at least 1/(8·(1 + e^(nε))).
    """
    # In terms of e^(-nε), which cannot overflow.
    shrunk = math.exp(-num_users * epsilon)
    return max(0.0, (shrunk - num_users * delta) / (4.0 * (1.0 + shrunk)))


@checked
def heterogeneous_risk(
    risk: Nonnegative,
    num_users: Positive,
    items_per_user: Positive,
    distance: Nonnegative,
    loss_bound: Positive = 1.0,
) -> float:
    """Risk + B·(nm + 2)·Δ: for users whose laws are Δ from a common one in total variation (L Thm 10)."""
    return risk + loss_bound * (num_users * items_per_user + 2.0) * distance
