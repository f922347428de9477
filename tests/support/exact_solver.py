"""An inner solver that is exact: the loss ½‖w - z‖² plus a centred term, minimized in closed form.

For tests of combinators: nothing is random, so whole trajectories are known; what each run was given is
recorded; its release is one Gaussian that meets the budget, so that accounting is exact as well.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent

from dpsco_jax import Budget, Infeasible, Problem, _counts, privacy
from dpsco_jax._pytrees import pytree, static
from dpsco_jax.geometry import domains
from dpsco_jax.privacy import accountants
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers import Solution, Status


def quadratic(lipschitz: float = 4.0, **changes: Any) -> Objective:
    """½‖w - z‖², on all of space unless a domain is given; its curvature is not declared."""
    return Objective(
        loss=lambda w, z: 0.5 * jnp.sum(jnp.square(w - z)),
        lipschitz=lipschitz,
        smoothness=1.0,
        domain=changes.pop("domain", domains.whole_space()),
        **changes,
    )


@pytree
class Plan:
    """What an inner plan has to have; the bound is whatever the test says."""

    num_users: int = static()
    user_gradients: int = static()
    budget: tuple[float, float] = static()
    distance: Any
    regularization: Any
    excess_bound: Any

    assumes = ("exactness",)

    @property
    def multiplier(self) -> float:
        """Of the Gaussian that meets the budget."""
        return accountants.gaussian_noise_multiplier(*self.budget)

    @property
    def event(self) -> DpEvent:
        """One Gaussian."""
        return events.gaussian(self.multiplier)

    def loss(self) -> privacy.PrivacyLoss:
        """What it costs."""
        return privacy.gaussian(self.multiplier)


def planner(
    bound: Callable[..., float] = lambda **request: 0.0, fewest: int = 1
) -> Callable[..., Plan]:
    """``plan`` with the given bound on the excess risk, refusing fewer than so many users."""

    def plan(problem: Problem, budget: Budget, *, regularization: float = 0.0) -> Plan:
        if problem.num_users < fewest:
            raise Infeasible(f"num_users must be at least {fewest}, got {problem.num_users}")
        return Plan(
            num_users=problem.num_users,
            user_gradients=3 * problem.num_users + 1,
            budget=(budget.epsilon, budget.delta),
            distance=problem.distance,
            regularization=regularization,
            excess_bound=bound(
                num_users=problem.num_users,
                epsilon=budget.epsilon,
                distance=problem.distance,
                convexity=problem.objective.strong_convexity + regularization,
            ),
        )

    return plan


def solve(
    key: Any, plan: Plan, objective: Objective, data: Any, params: Any, center: Any
) -> Solution:
    """The minimizer, within the domain."""
    mean = jnp.mean(data.items[:, 0], axis=0)
    best = (mean + plan.regularization * center) / (1 + plan.regularization)
    return _solution(plan, objective.domain.project(best))


def recorder(seen: list[Any]) -> Callable[..., Solution]:
    """``solve`` that stays where it starts and appends what it was given to ``seen``."""

    def record(
        key: Any, plan: Plan, objective: Objective, data: Any, params: Any, center: Any
    ) -> Solution:
        seen.append((np.asarray(data.items), np.asarray(params), np.asarray(center)))
        return _solution(plan, params)

    return record


def _solution(plan: Plan, params: Any) -> Solution:
    counted = _counts.count(plan.user_gradients)
    return Solution(
        params=params,
        privacy=privacy.PrivacyLoss(*map(jnp.asarray, privacy.gaussian(plan.multiplier))),
        status=jnp.asarray(int(Status.OK), jnp.int32),
        gradients=counted,
        unprivate={"gradients": counted, "trace": None},
    )


def exact_bound(share: float) -> Callable[..., float]:
    """A bound of the form share·G²/convexity with G = 1, as private solvers have."""
    return lambda convexity, **request: share / convexity if convexity else math.inf
