"""What solvers on winsorized means share: a run of T steps, the radius and noise of its gradients.

What it computes: the releases of T steps of gradient descent for users with i.i.d. items, with a radius in
which their gradients stay along a trajectory that is computed from them, and the chance that they do not; the
run.

Source: ``problems.concentration``; ``mechanisms.winsorized.winsorized_calibration``.

Formal guarantee: that of the releases; the radius bears on utility only. The radius needs to know how private
the trajectory would be with gradients within it of the population's (``trajectory_gradient_radius``): the
noise is at least ``noise_multiplier``·2·radius/n, and the multiplier at least that of T plain Gaussian
releases with the whole budget, which bounds μ = 2·radius·√T/(n·noise) whatever the radius is.

Cost: some ten milliseconds for each number of steps.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import calibrate_winsorized
from dpsco_jax.mechanisms.winsorized.winsorized_releases import WinsorizedReleases
from dpsco_jax.privacy import accountants
from dpsco_jax.problems import concentration
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _costs, first_order, means
from dpsco_jax.solvers._schedules import gradient_descent
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.work import Work

_Found = TypeVar("_Found")


@pytree
class Phase:
    """Gradient descent on winsorized means of some users. Sizes are static, numbers are leaves.

    Attributes:
        method: one of ``gradient_descent.METHODS``.
        chunk_size: users whose items are read at once.
        releases: the winsorized means; they hold the number of steps and of users, and the dimension.
        step_sizes: γ of each step.
        shares: the share of each step's point in the average of the points so far.
        regularization: λ of the term (λ/2)·‖θ - start‖².
    """

    method: str = static(choices=gradient_descent.METHODS)
    chunk_size: int = static()
    releases: WinsorizedReleases
    step_sizes: Number
    shares: Number
    regularization: Number

    @property
    def num_users(self) -> int:
        """N."""
        return self.releases.num_users

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return self.releases.dim

    @property
    def num_steps(self) -> int:
        """T."""
        return self.releases.num_queries

    @property
    def user_gradients(self) -> int:
        """User gradients of the run."""
        return self.num_steps * self.num_users

    @property
    def mean(self) -> means.Winsorized:
        """Of the users' gradients of a step."""
        return means.Winsorized(self.chunk_size, self.releases)

    def work_for(self, item: _costs.Item) -> Work:
        """What the run of the phase costs."""
        step = self.mean.work_for(item) + _costs.method(item.dim)
        return step * self.num_steps + _costs.prepared(self.num_users, item)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs; may be traced."""
        return self.releases.loss()

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of a run of these numbers, by the tightest accountant."""
        return self.releases.certificate()


def solve_phase(
    key: jax.Array,
    phase: Phase,
    objective: Objective,
    data: UserData,
    params: Any,
    trace: Callable[[Any, Any, Any], Any] | None = None,
) -> Solution:
    """Runs a phase; the data have ``phase.num_users`` users.

    Raises:
        ValueError: if there is not one step size for each of the steps that are paid for.
    """
    require_steps(phase)
    steps, planned = jnp.asarray(phase.step_sizes), phase.num_steps
    shares = jnp.asarray(phase.shares)
    if phase.method == "nonconvex":
        # The point before step s: the start itself for s = 0.
        key, index_key = jax.random.split(key)
        chosen = jax.random.randint(index_key, (), 0, planned)
        shares = (jnp.arange(planned) + 1 == chosen).astype(steps.dtype)
    method = first_order.scheduled_sgd(steps, shares, objective.domain)
    gradients = phase.user_gradients * jax.tree.leaves(data.items)[0].shape[1]
    pull = first_order.Pull(phase.regularization)
    return first_order.run(
        key, phase.mean, method, objective, data, params, planned, gradients, pull, trace
    )


def require_steps(phase: Phase) -> None:
    """``ValueError`` unless there is one step size, and one share, for each step that is paid for."""
    planned = phase.num_steps
    for name in ("step_sizes", "shares"):
        found = jnp.shape(getattr(phase, name))
        _checks.require(found == (planned,), name, found, f"of {planned} steps")


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
