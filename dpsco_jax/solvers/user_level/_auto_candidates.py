"""The candidates of ``auto``: how each is planned from public numbers, and what to expect of it.

What it computes: the arguments of each solver's ``plan``, and a prediction of the excess risk of that plan
under a nominal model. The model: items are independent, so users' gradients lie L/√m around their mean; the
minimizer is R away; smooth losses are quadratic enough for the classical analyses of (accelerated)
gradient descent with noise. Noise, steps and batches are the plan's own, their constants included. With
V = d·σ² + L²/(mB)·(1 - B/n) for batches of B users:

- averaged SGD with step η: R²/(2ηT) + ηV/2, with V + L² for V where the loss is not smooth or η > 1/β;
- SGD with the clip norm C < L: the same with C² for L²: near the minimizer it is SGD on a C-Lipschitz loss;
- AC-SA, and stages of it: its own bounds with this V and distance;
- output perturbation: uR²/2 + (β + ridge)·dσ²/2;
- anything else: its bound.

Source: own; the formulas are those of the solvers' docstrings.

Formal guarantee: none: a prediction is no bound. It reads no data, so any choice made by it is private.

Cost: that of the solvers' plans.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.user_level import (
    accelerated_phased_erm,
    accelerated_sgd,
    item_group_privacy,
    localized_sgd,
    multipass_sgd,
    output_perturbation,
    phased_sgd,
    sgd,
)


class Problem(NamedTuple):
    """What a candidate may depend on; all of it is public.

    Attributes:
        objective: constants, domain, ridge.
        num_users: n.
        items_per_user: m.
        dim: d.
        epsilon: budget.
        delta: budget.
        distance: R, from the start to a minimizer.
        passes: how often all items may be read.
        unit_noise: noise multiplier of one Gaussian release at this budget.
    """

    objective: Objective
    num_users: int
    items_per_user: int
    dim: int
    epsilon: float
    delta: float
    distance: float
    passes: int
    unit_noise: float

    @property
    def slope(self) -> float:
        """L."""
        return float(self.objective.lipschitz)

    @property
    def statistical(self) -> float:
        """L·R/√(nm), the error that no algorithm avoids on the population."""
        return self.slope * self.distance / math.sqrt(self.num_users * self.items_per_user)

    def enough_steps(self, most: int) -> int:
        """T at which C²/T is a quarter of the noise of all T steps, d·(2Cs/n)²; at most ``most``."""
        noise = self.dim * (2 * self.unit_noise / self.num_users) ** 2
        return max(1, min(most, math.ceil(4 / noise)))


class Candidate(NamedTuple):
    """A way to solve the problem.

    Attributes:
        name: shown, and how a plan finds its solver again.
        solver: a module with ``plan`` and ``solve``.
        settings: from the problem to arguments of ``plan``, beyond those that all plans take. May raise
            ``ValueError``: the candidate does not apply.
        predict: from the problem and the plan to an excess risk; ``None`` for the plan's bound.
        population: whether ``excess_bound`` is about the population, not about the data at hand.
        items: whether ``plan`` takes ``items_per_user``.
        shorten: whether ``plan`` takes ``num_steps``, full batches, to fit a budget of gradients.
    """

    name: str
    solver: Any
    settings: Callable[[Problem], dict[str, Any]] = lambda p: {}
    predict: Callable[[Problem, Any], float] | None = None
    population: bool = True
    items: bool = True
    shorten: bool = False


def sampling_variance(p: Problem, batch_size: int) -> float:
    """L²/(mB)·(1 - B/n): of the mean over a batch of B users drawn without replacement."""
    return p.slope**2 / (p.items_per_user * batch_size) * (1 - batch_size / p.num_users)


def averaged(
    p: Problem, num_steps: int, step_size: float, variance: float, slope: float, distance: float
) -> float:
    """Prediction for averaged SGD; ``slope`` bounds what is averaged, ``variance`` its noise."""
    smooth = p.objective.smoothness
    if smooth is None or step_size * (smooth + p.objective.ridge) > 1 or slope < p.slope:
        variance += slope**2
    return distance**2 / (2 * step_size * num_steps) + step_size * variance / 2


def stages(
    distance: float, smoothness: float, convexity: float, variance: float, length: int, count: int
) -> float:
    """Prediction of the gap that AC-SA leaves after some restarts."""
    square, rest = length * (length + 1), 2 * variance / (convexity * (length + 1))
    value = 2 * smoothness * distance**2 / square + rest
    for _ in range(count - 1):
        value = 4 * smoothness * value / (convexity * square) + rest
    return value


def _sgd(p: Problem, plan: Any) -> float:
    slope = float(plan.clip_norm)
    stddev = 2 * float(plan.noise_multiplier) * slope / plan.batch_size
    variance = p.dim * stddev**2 + sampling_variance(p, plan.batch_size)
    return averaged(p, plan.num_steps, float(plan.step_size), variance, slope, p.distance)


def _item_sgd(p: Problem, plan: Any) -> float:
    # Each draw is one item, whose gradient is anywhere within L.
    drawn = 0.0 if plan.batch_size is None else p.slope**2 / plan.batch_size
    variance = p.dim * plan.noise_stddev**2 + drawn
    return averaged(p, plan.num_steps, float(plan.step_size), variance, p.slope, p.distance)


def _multipass(p: Problem, plan: Any, distance: float | None = None) -> float:
    variance = p.dim * float(plan.noise_stddev) ** 2
    far = p.distance if distance is None else distance
    return averaged(p, plan.num_steps, float(plan.step_size), variance, p.slope, far)


def _ac_sa(p: Problem, plan: Any) -> float:
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


def _phase(p: Problem, plan: Any, distance: float) -> tuple[float, float]:
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


def _phases(p: Problem, plan: Any) -> float:
    distance, total, gap = p.distance, 0.0, 0.0
    for phase in getattr(plan, "phases", (plan,)):
        bias, gap = _phase(p, phase, distance)
        total += bias
        distance = min(p.distance, math.sqrt(2 * gap / float(phase.strong_convexity)))
    return total + gap


def _output_perturbation(p: Problem, plan: Any) -> float:
    assert p.objective.smoothness is not None
    curvature = p.objective.smoothness + p.objective.ridge
    bias = float(plan.regularization) * p.distance**2 / 2
    return bias + curvature * p.dim * plan.noise_stddev**2 / 2


def _small_clip(p: Problem) -> dict[str, Any]:
    clip = 2 * p.slope / math.sqrt(p.items_per_user)
    if clip >= p.slope:
        raise ValueError(f"items_per_user must be at least 5, got {p.items_per_user}")
    return {"sampling": "full", "clip_norm": clip, "num_steps": _full_steps(p)}


def _full_steps(p: Problem) -> int:
    return p.enough_steps(p.passes)


def _tenth(p: Problem) -> int:
    return max(1, p.num_users // 10)


CANDIDATES: tuple[Candidate, ...] = (
    Candidate(
        "sgd", sgd, lambda p: {"sampling": "full", "num_steps": _full_steps(p)}, _sgd, False, False
    ),
    Candidate(
        "sgd, a tenth of the users",
        sgd,
        lambda p: {
            "sampling": "fixed",
            "batch_size": _tenth(p),
            "num_steps": p.enough_steps(10 * p.passes),
        },
        _sgd,
        False,
        False,
    ),
    Candidate("sgd, clipped at 2L/sqrt(m)", sgd, _small_clip, _sgd, False, False),
    Candidate("private_ac_sa", private_ac_sa, lambda p: {}, _ac_sa, False, False),
    Candidate("multipass_sgd", multipass_sgd, lambda p: {}, _multipass, shorten=True),
    Candidate(
        "multipass_sgd, clipped",
        multipass_sgd,
        lambda p: {"radius": 2 * p.slope},
        _multipass,
        shorten=True,
    ),
    Candidate(
        "localized_sgd",
        localized_sgd,
        lambda p: {},
        lambda p, plan: _multipass(p, plan.blocks[-1], float(plan.distances[-1])),
        shorten=True,
    ),
    Candidate("phased_sgd", phased_sgd),
    Candidate("accelerated_sgd", accelerated_sgd, lambda p: {"aggregation": "auto"}, _phases),
    Candidate(
        "accelerated_phased_erm",
        accelerated_phased_erm,
        lambda p: {"aggregation": "auto"},
        _phases,
    ),
    Candidate(
        "output_perturbation",
        output_perturbation,
        lambda p: {},
        _output_perturbation,
        population=False,
    ),
    Candidate(
        "item_group_privacy",
        item_group_privacy,
        lambda p: {"num_steps": _full_steps(p)},
        _item_sgd,
        population=False,
    ),
    Candidate(
        "item_group_privacy, drawn",
        item_group_privacy,
        lambda p: {
            "batch_size": _tenth(p),
            "num_steps": p.enough_steps(min(20_000, 10 * p.passes * p.items_per_user)),
        },
        _item_sgd,
        population=False,
    ),
)
"""A plain tuple: a further candidate is one more record."""
