"""What accelerated SGD on regularized empirical risks is proved to reach, with all constants.

What it computes: bounds on the expected gap of one phase, and on the expected excess risk of a sequence of
phases on disjoint users, from public numbers.

Source: Ghadimi and Lan 2012 and 2013 (AC-SA and its stages, as in ``transforms.ac_sa`` and ``restart``); T,
Theorem 10.8.3 and Lemma 10.8.4, made explicit. One phase minimizes F̂(w) + (λ/2)‖w - w₀‖², F̂ the mean
over n users with m items each, of strong convexity μ and smoothness Λ, regularizers included:

- Gap. The start is where λ's term has its minimum, so its distance to the minimizer ŵ is r ≤ G/μ, G the slope
  of the objective; N steps with gradients of variance V leave 2Λr²/(N(N+1)) + 2V/(μ(N+1)), each further
  stage 4Λ·gap/(μN(N+1)) + 2V/(μ(N+1)).
- Variance. d·σ² of the noise. For a batch of K of n users, (n-K)/((n-1)K) times the mean squared distance of
  user gradients from their mean: at most L², at most τ² where all lie within τ of the population gradient.
- Population. One item moves ŵ by 2L/(μnm) at most, so E F(ŵ) - E F̂(ŵ) ≤ 2L²/(μnm), and for y chosen before
  the users were seen E F(ŵ) - F(y) ≤ (λ/2)E‖y - w₀‖² + 2L²/(μnm).
- Phases. Chained with y = ŵ of the phase before, for which E‖y - w₀‖² ≤ 2gap/μ of that phase; and
  F(w) - F(ŵ) ≤ G·√(2gap/μ) at the end.

Formal guarantee: theorems for users drawn independently, whose items are i.i.d., m each, and for losses that
are convex, L-Lipschitz and smooth as stated, by every item. Privacy rests on none of it.

Cost: none; float64 on the host.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax.geometry import smoothing
from dpsco_jax.privacy import Budget
from dpsco_jax.problems.problem import Problem


class Setting(NamedTuple):
    """The public numbers that schedules and bounds depend on.

    Attributes:
        items_per_user: m.
        dim: d.
        epsilon: ε of the budget, of every phase.
        delta: δ of the budget, of every phase.
        lipschitz: L, of the loss of an item.
        smoothness: of the loss of an item, smoothed if it is.
        ridge: of the objective.
        strong_convexity: of the objective, ridge included.
        slope: G, Lipschitz constant of loss and ridge together on the domain.
        diameter: of the domain.
        distance: R, from the start to a minimizer.
        smoothing_radius: r, zero without smoothing.
    """

    items_per_user: int
    dim: int
    epsilon: float
    delta: float
    lipschitz: float
    smoothness: float
    ridge: float
    strong_convexity: float
    slope: float
    diameter: float
    distance: float
    smoothing_radius: float

    @property
    def bias(self) -> float:
        """What smoothing adds to the risk."""
        return smoothing.ball_bias(self.lipschitz, self.smoothing_radius, self.dim)

    def curvature(self, regularization: Any) -> tuple[Any, Any]:
        """Smoothness and strong convexity of what a phase minimizes, for each regularizer."""
        convexity = self.strong_convexity + regularization
        return np.maximum(self.smoothness + self.ridge + regularization, convexity), convexity


class Phase(NamedTuple):
    """What the bound of a run of phases needs to know of one.

    Attributes:
        num_users: n.
        regularization: λ; an array for several phases to choose from.
        gap: bound on the expected gap, of each.
    """

    num_users: int
    regularization: Any
    gap: Any


def of_problem(problem: Problem, budget: Budget, smoothing_radius: float) -> Setting:
    """The numbers of a problem whose loss is smoothed if the radius is positive.

    Raises:
        ValueError: if the loss is not smooth and the radius is zero, or R is not finite.
    """
    objective = problem.objective
    smooth = objective.smoothness
    if smoothing_radius > 0:
        ball = smoothing.ball_smoothness(objective.lipschitz, smoothing_radius, problem.dim)
        smooth = ball if smooth is None else min(smooth, ball)
    if smooth is None:
        raise ValueError(
            "smoothing_radius must be in (0, inf) for a loss without a smoothness constant, got 0.0"
        )
    return Setting(
        items_per_user=problem.items_per_user,
        dim=problem.dim,
        epsilon=budget.epsilon,
        delta=budget.delta,
        lipschitz=problem.lipschitz,
        smoothness=float(smooth),
        ridge=float(objective.ridge),
        strong_convexity=float(objective.strong_convexity),
        slope=problem.slope,
        diameter=problem.diameter,
        distance=problem.require_distance(),
        smoothing_radius=smoothing_radius,
    )


def gradient_variance(
    setting: Setting,
    num_users: int,
    batch_size: int,
    noise_stddev: float,
    spread: float,
    failure: float = 0.0,
) -> float:
    """V: noise, choice of the batch, and smoothing shifts.

    Args:
        setting: the public numbers.
        num_users: n.
        batch_size: K.
        noise_stddev: σ of one coordinate of the released mean.
        spread: τ, of user gradients around the population gradient, except with
        failure: this probability.
    """
    lipschitz = setting.lipschitz
    between = min(lipschitz**2, spread**2 + failure * lipschitz**2)
    chosen = between * (num_users - batch_size) / max(num_users - 1, 1) / batch_size
    shifts = lipschitz**2 / (batch_size * setting.items_per_user)
    return setting.dim * noise_stddev**2 + chosen + (shifts if setting.smoothing_radius else 0.0)


def gap(
    setting: Setting, regularization: Any, variance: Any, stage_length: Any, num_stages: int
) -> Any:
    """Bound on the expected gap of one phase after its last stage; all but ``num_stages`` may be arrays."""
    smoothness, convexity = setting.curvature(regularization)
    reach = np.minimum(setting.slope / convexity, setting.diameter)
    square = stage_length * (stage_length + 1)
    rest = 2.0 * variance / (convexity * (stage_length + 1))
    value = 2.0 * smoothness * reach**2 / square + rest
    for _ in range(num_stages - 1):
        value = 4.0 * smoothness * value / (convexity * square) + rest
    return value


def excess_risk(setting: Setting, phases: Sequence[Phase]) -> Any:
    """Bound on the expected excess risk after all phases, if nothing fails; an array if phases hold some."""
    items, slope = setting.items_per_user, setting.slope
    nearness: Any = setting.distance**2
    total: Any = setting.bias
    for phase in phases:
        convexity = setting.strong_convexity + phase.regularization
        total += 0.5 * phase.regularization * nearness
        total += 2.0 * setting.lipschitz**2 / (convexity * phase.num_users * items)
        nearness = 2.0 * phase.gap / convexity
    return total + slope * np.sqrt(nearness)


def with_failure(setting: Setting, risk: float, failure: float) -> float:
    """The bound for all runs: those that fail have at most the excess of the worst point of the domain."""
    return risk + failure * setting.slope * setting.diameter if failure > 0 else risk
