"""Concentration radii: how near the statistics of different users lie, from public numbers alone.

What it computes: bounds that hold with a stated probability if users are independent and each user's items
are i.i.d.: on the distance of all users' means, gradients or losses from the population's, and on the
distance between runs of SGD on independent samples. All are free of unnamed constants.

Source: U, Lemmas 4.4-4.6, and F, Lemmas 2.3 and 3.5 (T, Lemmas 9.4.4-9.4.6, 10.2.3, 10.8.6): shapes; L,
Definitions 2-3, Proposition 1 and Lemma 1. Constants are derived here, with McDiarmid's inequality 1989;
Hsu, Kakade and Zhang 2012 (norm of a sub-Gaussian vector); Hoeffding's lemma and Doob's inequality. Radii
of L and U that are too small are corrected.

- Mean of m vectors within B of their mean's origin: off by more than B/√m + B√(2t/m) with probability e^-t.
- Two runs of projected SGD on independent samples: within B with B² = 4η²L²·S_1 + 4ηLB√S_2·ℓ, where S_1, S_2
  are the sums of (1 - 2ημ)^s and of its squares, but for a probability of T·e^{-ℓ²} (e^{-ℓ²} for μ = 0).
- Gradients along a trajectory that is computed from all users' data: what holds at a fresh point with
  probability 1 - γ' holds along it but for nT·Φ(Φ⁻¹(γ') + 2ρ√T/(nσ)), as the trajectory is private itself.

Proofs: docs/theory/concentration.md.

Formal guarantee: none of privacy, and none is needed: what is private with a radius is so for any radius
chosen without looking at data. The assumption about users serves utility alone.

Cost: none; float64 on the host.
"""

import math

import scipy.special

from dpsco_jax._argument_kinds import Count, Inside, Nonnegative, Positive, checked
from dpsco_jax._checks import require_positive


@checked
def user_mean_radius(
    bound: Positive, items_per_user: Count, num_users: Count, failure: Inside
) -> float:
    """B(1 + √(2 ln(n/γ)))/√m: all user means of items of norm ≤ B lie within it of the mean; any dimension.

    Args:
        bound: B, on the ℓ2 norm of an item; a bound on its distance from the mean will do.
        items_per_user: m.
        num_users: n; also the number of means, if users have several.
        failure: γ, the probability that some user is farther away.
    """
    deviation = 1.0 + math.sqrt(2.0 * math.log(num_users / failure))
    return bound * deviation / math.sqrt(items_per_user)


@checked
def user_mean_radius_subgaussian(
    stddev: Positive, dim: Count, items_per_user: Count, num_users: Count, failure: Inside
) -> float:
    """(σ/√m)(√d + √(2 ln(n/γ))): the same for items that are σ²-sub-Gaussian in every direction.

    Args:
        stddev: σ, with E exp⟨v, z - E z⟩ ≤ exp(σ²‖v‖²/2).
        dim: d.
        items_per_user: m.
        num_users: n.
        failure: γ.
    """
    deviation = math.sqrt(dim) + math.sqrt(2.0 * math.log(num_users / failure))
    return stddev * deviation / math.sqrt(items_per_user)


@checked
def user_gradient_radius(
    lipschitz: Positive,
    items_per_user: Count,
    num_users: Count,
    num_steps: Count,
    epsilon: Nonnegative,
    failure: Inside,
) -> float:
    """Radius around the population gradient that holds all user gradients along an (ε, δ)-DP trajectory.

    The pairwise distance, which tests of concentration take, is twice as large. At a point that knows
    nothing of the user, the gradient is off with probability γ' at most; at one computed from all users'
    data with (ε, δ)-DP, with probability e^ε·γ' + δ: compare with the run in which that user is exchanged
    for an independent copy. γ' = failure/(2·n·T·e^ε) leaves failure/2 + n·T·δ in all.

    Args:
        lipschitz: G, or any public bound on the distance of an item's gradient from its mean.
        items_per_user: m.
        num_users: n.
        num_steps: T, the number of points of the trajectory.
        epsilon: ε of the trajectory; 0 for points fixed beforehand.
        failure: probability that some user is farther away at some point, up to n·T·δ.
    """
    level = math.log(2.0 * num_users * num_steps / failure) + epsilon
    return lipschitz * (1.0 + math.sqrt(2.0 * level)) / math.sqrt(items_per_user)


@checked
def trajectory_gradient_radius(
    lipschitz: Positive,
    items_per_user: Count,
    num_users: Count,
    num_steps: Count,
    gdp: Nonnegative,
    failure: Inside,
) -> float:
    """``user_gradient_radius`` for means of all users with Gaussian noise: no e^ε, and no n·T·δ.

    Args:
        lipschitz: G, or any public bound on the distance of an item's gradient from its mean.
        items_per_user: m.
        num_users: n.
        num_steps: T.
        gdp: μ = 2ρ√T/(nσ) of the whole trajectory, with ρ this radius and σ the noise's standard deviation
            (which is a multiple of ρ, so that μ does not depend on it).
        failure: probability that some user is farther away at some step.
    """
    quantile = scipy.special.ndtri_exp(math.log(failure) - math.log(num_users * num_steps))
    level = -float(scipy.special.log_ndtr(quantile - gdp))
    return lipschitz * (1.0 + math.sqrt(2.0 * level)) / math.sqrt(items_per_user)


@checked
def trajectory_gradient_failure(
    radius: Positive,
    lipschitz: Positive,
    items_per_user: Count,
    num_users: Count,
    num_steps: Count,
    gdp: Nonnegative,
) -> float:
    """The inverse: the probability, at most 1, that some user is farther away than ``radius``."""
    deviation = radius * math.sqrt(items_per_user) / lipschitz - 1.0
    if deviation <= 0.0:
        return 1.0
    quantile = float(scipy.special.ndtri_exp(-0.5 * deviation**2)) + gdp
    log_failure = math.log(num_users * num_steps) + float(scipy.special.log_ndtr(quantile))
    return math.exp(min(log_failure, 0.0))


@checked
def uniform_gradient_radius(
    stddev: Positive,
    smoothness: Nonnegative,
    diameter: float,
    dim: Count,
    items_per_user: Count,
    num_users: Count,
    failure: Inside,
) -> float:
    """Radius around the population gradient for all users and all points of the domain at once.

    (σ/√m)[2√d + √(2d ln(1 + 4RH√m/(σ√d)) + 2 ln(n/γ))]: a cover of mesh (σ/(2H))√(d/m), the bound of
    ``user_mean_radius_subgaussian`` on it, and 2H·mesh between its points.

    Args:
        stddev: σ; gradients of items are σ²-sub-Gaussian at every point.
        smoothness: H; 0 for linear losses, whose gradients are the same everywhere.
        diameter: R, of the domain.
        dim: d.
        items_per_user: m.
        num_users: n.
        failure: γ.
    """
    if smoothness == 0.0:
        return user_mean_radius_subgaussian(stddev, dim, items_per_user, num_users, failure)
    require_positive("diameter", diameter)
    mesh = 4.0 * diameter * smoothness * math.sqrt(items_per_user) / (stddev * math.sqrt(dim))
    level = dim * math.log1p(mesh) + math.log(num_users / failure)
    deviation = 2.0 * math.sqrt(dim) + math.sqrt(2.0 * level)
    return stddev * deviation / math.sqrt(items_per_user)


@checked
def sgd_iterate_radius(
    step_size: Positive,
    lipschitz: Positive,
    num_steps: Count,
    failure: Inside,
    strong_convexity: Nonnegative = 0.0,
) -> float:
    """Distance between two one-pass SGD runs from one start on independent samples, at any step.

    2ηL√T(ℓ + √(ℓ² + 1)) with ℓ = √ln(1/ζ) for convex losses, smooth or not; with strong convexity the
    smaller of that and 2ηL(ℓ'√S_2 + √(ℓ'²S_2 + S_1)), ℓ' = √ln(T/ζ), which stays bounded as T grows. It
    holds for averages over the iterates too. For N runs, ζ is the failure allowed over N(N-1)/2 pairs.

    Args:
        step_size: η.
        lipschitz: L, bound on the gradient of an item.
        num_steps: T.
        failure: ζ, the probability that one pair of runs is farther apart.
        strong_convexity: μ of the expected loss; made use of while 2ημ ≤ 1.
    """

    def radius(first: float, second: float, level: float) -> float:
        return math.sqrt(level * second) + math.sqrt(level * second + first)

    factor = radius(num_steps, num_steps, math.log(1.0 / failure))
    contraction = 2.0 * step_size * strong_convexity
    if 0.0 < contraction <= 1.0:
        first = _geometric_sum(1.0 - contraction, num_steps)
        second = _geometric_sum((1.0 - contraction) ** 2, num_steps)
        factor = min(factor, radius(first, second, math.log(num_steps / failure)))
    return 2.0 * step_size * lipschitz * factor


@checked
def loss_radius(
    loss_range: Positive,
    num_candidates: Count,
    items_per_user: Count,
    num_users: Count,
    failure: Inside,
) -> float:
    """range·√(ln(2Kn/γ)/(2m)): how far any user's mean loss is from its expectation, at K fixed points.

    Args:
        loss_range: largest minus smallest value of a loss (2B for losses in [-B, B]).
        num_candidates: K.
        items_per_user: m.
        num_users: n.
        failure: γ, over all users and candidates.
    """
    level = math.log(2.0 * num_candidates * num_users / failure)
    return loss_range * math.sqrt(level / (2.0 * items_per_user))


def _geometric_sum(ratio: float, count: int) -> float:
    return (1.0 - ratio**count) / (1.0 - ratio)
