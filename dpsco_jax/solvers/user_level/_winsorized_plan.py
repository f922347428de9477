"""What solvers on winsorized means share: the radius and the noise of the gradients of T steps.

The radius is one in which the gradients of users with i.i.d. items stay along a trajectory that is computed
from them; it bears on utility only. It needs to know how private the trajectory would be with gradients
within it of the population's (``concentration.trajectory_gradient_radius``): the noise is at least
``noise_multiplier``·2·radius/n, and the multiplier at least that of T plain Gaussian releases with the whole
budget, which bounds μ = 2·radius·√T/(n·noise) whatever the radius is.
"""

import math
from collections.abc import Callable
from typing import Annotated, TypeVar

import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import one_of
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import FORMS, calibrate_winsorized
from dpsco_jax.mechanisms.winsorized.winsorized_releases import WinsorizedReleases
from dpsco_jax.privacy import accountants
from dpsco_jax.problems import concentration
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem

_Found = TypeVar("_Found")
Form = Annotated[str, one_of("auto", *FORMS)]


def gradient_releases(
    problem: Problem,
    budget: privacy.Budget,
    num_steps: int,
    *,
    radius: float | None,
    failure: float,
    form: str,
    constants: str,
) -> tuple[WinsorizedReleases, float]:
    """The releases of T gradient steps, and bound on the probability that a gradient is clipped in them.

    With a radius of the caller's, of which nothing is known, that bound is 1, unless the form needs none.
    """
    given = radius is not None
    if radius is None:
        # Of T means with all of the budget: what the point tells of one user, however small the radius.
        gdp = 1 / accountants.gaussian_noise_multiplier(budget.epsilon, budget.delta)
        radius = concentration.trajectory_gradient_radius(
            problem.lipschitz, problem.items_per_user, problem.num_users, num_steps, gdp, failure
        )
    releases = calibrate_winsorized(
        problem.num_users,
        problem.dim,
        num_steps,
        budget.epsilon,
        budget.delta,
        radius=radius,
        bound=problem.lipschitz,
        failure=failure,
        form=form,
        constants=constants,
    )
    if releases.form == "clipped":
        return releases, 0.0
    return releases, 1.0 if given else min(1.0, failure + releases.failure_probability())


def require_smooth(objective: Objective) -> float:
    """The smoothness of the loss; ``ValueError`` if it has none."""
    if objective.smoothness is None:
        raise ValueError("smoothness must be a number, got None: smooth the objective first")
    return _checks.require_real("smoothness", objective.smoothness, 0, closed=True)


def feasible(with_steps: Callable[[int], _Found], most: int) -> list[_Found]:
    """Plans for 1 to ``most`` steps, each number about a third larger, up to the first without a plan."""
    count = math.ceil(math.log(most) / math.log(4 / 3)) + 1
    found = [with_steps(1)]
    for steps in sorted({round(s) for s in np.geomspace(1, most, count)} - {1}):
        try:
            found.append(with_steps(steps))
        except Infeasible:  # too few users for so many steps
            break
    return found
