"""What to expect of a plan: predictions of its excess risk under a nominal model, for ``auto``.

What it computes: the model says that items are independent, so that users' gradients lie L/√m around their
mean; that a minimizer is R away; and that smooth losses are what the analyses of (accelerated) gradient
descent with noise take them for. Noise, steps and batches are the plan's own, their constants included.
With V = d·σ² + L²/(mB)·(1 - B/n) for batches of B of n users:

- averaged SGD with step η on β-smooth, μ-strongly convex losses: R²/(2ηT)·min(1, 1/(ημT)) +
  V/2·min(η, 1/(μT)); if they are not smooth, or η > 1/β: R²/(2ηT) + η(V + C²)/2, C the clip norm. A clip
  norm below L changes no more: under the model it makes another loss with the same minimizer;
- AC-SA, and stages of it: their own bounds with this V and distance;
- output perturbation: uR²/2 + (β + ridge)·dσ²/2;
- preconditioned SGD: in its coordinates features have mean square 1 and the link bends by b = β/B², B the
  bound on features; users' gradients are (L/B)·√(k/m) long, k = d, or the columns of a one-hot row. With
  averaging, noise leaves dσ²/(2bT), and the start b·smoothness·margin_scale²/(2T).

Source: own; the formulas are those of the solvers' docstrings.

Formal guarantee: none: a prediction is no bound. It reads no data, so a choice made by it is private.

Cost: none.
"""

import math
from typing import Any, NamedTuple

from dpsco_jax.privacy import Budget
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem


class Setting(NamedTuple):
    """What a candidate may depend on; all of it is public.

    Attributes:
        problem: what is to be solved.
        budget: of the run.
        columns_per_row: entries of a one-hot row; ``None`` for dense features.
        passes: how often all items may be read.
        unit_noise: noise multiplier of one Gaussian release at this budget.
    """

    problem: Problem
    budget: Budget
    columns_per_row: int | None
    passes: int
    unit_noise: float

    @property
    def objective(self) -> Objective:
        """Constants, domain, ridge."""
        return self.problem.objective

    @property
    def num_users(self) -> int:
        """The number of users, n."""
        return self.problem.num_users

    @property
    def items_per_user(self) -> int:
        """Item slots of a user, m."""
        return self.problem.items_per_user

    @property
    def dim(self) -> int:
        """The number of parameters, d."""
        return self.problem.dim

    @property
    def distance(self) -> float:
        """R, from the start to a minimizer."""
        return self.problem.farthest

    @property
    def slope(self) -> float:
        """L."""
        return self.problem.lipschitz

    @property
    def statistical(self) -> float:
        """L·R/√(nm), the error that no algorithm avoids on the population."""
        return self.slope * self.distance / math.sqrt(self.num_users * self.items_per_user)

    def enough_steps(self, most: int) -> int:
        """T at which C²/T is a quarter of the noise of all T steps, d·(2Cs/n)²; at most ``most``."""
        noise = self.dim * (2 * self.unit_noise / self.num_users) ** 2
        return max(1, min(most, math.ceil(4 / noise)))


def sampling_variance(p: Setting, batch_size: int) -> float:
    """L²/(mB)·(1 - B/n): of the mean over a batch of B users drawn without replacement."""
    return p.slope**2 / (p.items_per_user * batch_size) * (1 - batch_size / p.num_users)


def averaged(
    p: Setting, num_steps: int, step_size: float, variance: float, slope: float, distance: float
) -> float:
    """Prediction for averaged SGD; ``slope`` bounds what is averaged, ``variance`` its noise."""
    smooth, total = p.objective.smoothness, step_size * num_steps
    if smooth is None or step_size * (smooth + p.objective.ridge) > 1 + 1e-6:
        return distance**2 / (2 * total) + step_size * (variance + slope**2) / 2
    bent = max(1.0, float(p.objective.strong_convexity) * total)
    return distance**2 / (2 * total * bent) + step_size * variance / (2 * bent)


def stages(
    distance: float, smoothness: float, convexity: float, variance: float, length: int, count: int
) -> float:
    """Prediction of the gap that AC-SA leaves after some restarts."""
    square, rest = length * (length + 1), 2 * variance / (convexity * (length + 1))
    value = 2 * smoothness * distance**2 / square + rest
    for _ in range(count - 1):
        value = 4 * smoothness * value / (convexity * square) + rest
    return value


def sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``sgd``, with batches of fixed size."""
    slope = float(plan.clip_norm)
    stddev = 2 * float(plan.noise_multiplier) * slope / plan.batch_size
    variance = p.dim * stddev**2 + sampling_variance(p, plan.batch_size)
    return averaged(p, plan.num_steps, float(plan.step_size), variance, slope, p.distance)


def item_sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``item_group_privacy``."""
    # Each draw is one item, whose gradient is anywhere within L.
    drawn = 0.0 if plan.batch_size is None else p.slope**2 / plan.batch_size
    variance = p.dim * plan.noise_stddev**2 + drawn
    return averaged(p, plan.num_steps, float(plan.step_size), variance, p.slope, p.distance)


def multipass_sgd(p: Setting, plan: Any, distance: float | None = None) -> float:
    """Prediction for ``multipass_sgd``, from this far if given."""
    variance = p.dim * float(plan.noise_stddev) ** 2
    far = p.distance if distance is None else distance
    return averaged(p, plan.num_steps, float(plan.step_size), variance, p.slope, far)


def ac_sa(p: Setting, plan: Any) -> float:
    """Prediction for ``private_ac_sa``."""
    t, batch, radius = plan.num_steps, plan.batch_size, float(plan.smoothing_radius)
    stddev = 2 * float(plan.noise_multiplier) * float(plan.clip_norm) / batch
    shifts = p.slope**2 / (p.items_per_user * batch) if radius > 0 else 0.0
    variance = p.dim * stddev**2 + sampling_variance(p, batch) + shifts
    gamma, added = float(plan.smoothness), float(plan.regularization)
    bias = p.slope * radius + added * p.distance**2 / 2
    if plan.policy == "direct":
        return (
            bias + 2 * gamma * p.distance**2 / (t * (t + 1)) + variance * (2 * t + 1) / (6 * gamma)
        )
    return bias + stages(p.distance, gamma, float(plan.strong_convexity), variance, t, 1)


def _phase(p: Setting, plan: Any, distance: float) -> tuple[float, float]:
    """What the regularizer costs, and the gap that is left, for a phase of accelerated SGD."""
    shifts = p.slope**2 / (p.items_per_user * plan.batch_size) if plan.smoothed else 0.0
    drawn = p.slope**2 / (p.items_per_user * plan.batch_size)
    drawn *= 1 - plan.batch_size / plan.num_users
    variance = p.dim * float(plan.noise_stddev) ** 2 + drawn + shifts
    convexity = float(plan.strong_convexity)
    gap = stages(
        distance, float(plan.smoothness), convexity, variance, plan.stage_length, plan.num_stages
    )
    return float(plan.regularization) * distance**2 / 2 + p.slope * float(
        plan.smoothing_radius
    ), gap


def accelerated(p: Setting, plan: Any, distance: float | None = None) -> float:
    """Prediction for ``accelerated_sgd`` and ``accelerated_phased_erm``, from this far if given."""
    far = p.distance if distance is None else distance
    distance, total, gap = far, 0.0, 0.0
    for phase in getattr(plan, "parts", (plan,)):
        bias, gap = _phase(p, phase, distance)
        total += bias
        distance = min(far, math.sqrt(2 * gap / float(phase.strong_convexity)))
    return total + gap


def output_perturbation(p: Setting, plan: Any) -> float:
    """Prediction for ``output_perturbation``."""
    assert p.objective.smoothness is not None
    curvature = p.objective.smoothness + p.objective.ridge
    bias = float(plan.regularization) * p.distance**2 / 2
    return bias + curvature * p.dim * plan.noise_stddev**2 / 2


def preconditioned_sgd(p: Setting, plan: Any) -> float:
    """Prediction for ``preconditioned_sgd``."""
    model = p.objective.linear_model
    assert model is not None
    assert p.objective.smoothness is not None
    bend = p.objective.smoothness / model.feature_bound**2
    width = p.columns_per_row or p.dim
    radius = p.slope / model.feature_bound * math.sqrt(width / p.items_per_user)
    stddev = float(plan.noise_multiplier) * 2 * radius / p.num_users
    start = bend * float(plan.smoothness) * float(plan.margin_scale) ** 2
    return (start + p.dim * stddev**2 / bend) / (2 * plan.num_steps)
