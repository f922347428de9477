"""What plans for heavy tails share: ρ of a budget, what their bounds assume, how many steps are enough."""

import math

import numpy as np

from dpsco_jax import privacy
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _planning
from dpsco_jax.solvers.plans import Remarks

MOST_STEPS = 1000
"""Steps of ``"tight"`` plans at most: noise is worth the same at any number, and nothing is seen beyond."""

PREMISES = Remarks(["users are i.i.d.", "slopes of their losses have the moments given"])


def rho_of(num_users: int, budget: privacy.Budget, constants: str, accountant: str) -> float:
    """ρ of zCDP that all steps together spend: Gaussian releases of everybody compose to a single one.

    Args:
        num_users: n.
        budget: (ε, δ) of the run, δ > 0.
        constants: ``"tight"``, of the least noise that keeps the budget; ``"paper"``, of which ε = ρ +
            2√(ρ·log(1/δ)), more noise.
        accountant: ``"pld"`` or ``"rdp"``.
    """
    if constants == "paper":
        log = math.log(1 / budget.delta)
        # √(ε + log) - √log, without the difference of two near numbers.
        return (budget.epsilon / (math.sqrt(budget.epsilon + log) + math.sqrt(log))) ** 2
    one = _planning.fixed_size(num_users, num_users, 1)
    return one.noise_multiplier(budget.epsilon, budget.delta, accountant) ** -2 / 2


def known_slope(problem: Problem) -> float:
    """The largest slope of the ridge on the domain; 0 on one without end, where nothing is proven of it."""
    most = float(problem.objective.ridge) * float(np.asarray(problem.objective.domain.norm))
    return most if math.isfinite(most) else 0.0


def always_covered(problem: Problem) -> bool:
    """Whether the bounds are of this objective: of convex losses, and a ridge of which a slope is known."""
    ridge = problem.objective.ridge
    bounded = ridge == 0 or (ridge > 0 and math.isfinite(problem.slope))
    return bounded and problem.objective.loss_strong_convexity >= 0
