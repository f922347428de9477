"""Learning a Lipschitz loss over a box under pure user-level differential privacy, by a grid.

What it computes: the box [lower, upper]^d is covered by a grid of p points an axis, projected onto the
domain; ``finite_class`` chooses among them. Points are computed from their index when needed.

Source: L Corollary 4 and Remark 1.

Formal guarantee: that of ``finite_class``: pure ε-DP under REPLACE_ONE for any losses, for the point and its
value, but not for the number of draws, which has to stay secret. Utility, for G-Lipschitz losses, convex or
not: the bound of ``finite_class`` for p^d candidates plus G·Δ, Δ = (upper -
lower)·√d/(2p) the distance from the nearest point at most (a projection brings points of the domain no
farther apart). p balances the two if left out.

Cost: exponential in d: p^d candidates, at most a million.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import metric_entropy
    >>> made = synthetic.mean_estimation(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> box = {"lower": -1.0, "upper": 1.0, "points_per_axis": 3}
    >>> plan = metric_entropy.plan(made.problem(), Budget(1.0), loss_range=(0.0, 2.0), **box)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: metric_entropy.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, plan.certificate().epsilon <= 1.0, plan.certificate().delta
    ((3,), True, 0.0)
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Count, Finite, Inside
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms import private_selection
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _costs, _plan_base, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.user_level import finite_class
from dpsco_jax.solvers.work import Work

_MOST_CANDIDATES = 10**6


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        dim: d.
        points_per_axis: p.
        lower: least value of each coordinate in the box.
        upper: largest value of each coordinate in the box.
        selection: the plan of the choice among p^d points: users, noise and privacy are its own.
        excess_bound: proven bound on the expected excess risk over the box.
    """

    dim: int = static()
    points_per_axis: int = static()
    lower: Number
    upper: Number
    selection: Any
    excess_bound: Number

    @property
    def num_users(self) -> int:
        """N."""
        return self.selection.num_users

    @property
    def mesh(self) -> Any:
        """Δ, how far a point of the box is from the nearest point of the grid at most."""
        return (self.upper - self.lower) * math.sqrt(self.dim) / (2 * self.points_per_axis)

    @property
    def user_gradients(self) -> int:
        """None: losses are evaluated, not gradients."""
        return 0

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bound assumes; privacy assumes none of it."""
        return (*self.selection.assumes, "a minimizer lies in the box")

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return self.selection.relation

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs."""
        return self.selection.work_for(item)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run costs: that of the selection; may be traced."""
        return self.selection.loss()

    def certificate(self) -> privacy.Certificate:
        """(ε, 0) of point and value, by the numbers of the selection."""
        return self.selection.certificate()

    def __str__(self) -> str:
        return plans.describe("private choice from a grid", self)


@_plan_base.remembers(least_users=1, pure=True, convex=False)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    loss_range: tuple[float, float],
    lower: Finite,
    upper: Finite,
    points_per_axis: Count | None = None,
    failure: Inside = 0.05,
) -> Plan:
    """Checks all arguments and sets grid and noise. All of them are public.

    Args:
        problem: for the Lipschitz constant of the objective, which must have no ridge, n, m and d. The
            distance of the problem is not used.
        budget: ε of the run; δ may be zero, and nothing is spent of it: the privacy is pure.
        loss_range: the least and the largest value that a loss may have on the domain.
        lower: least value of each coordinate in the box, which must hold the domain or a minimizer.
        upper: largest value of each coordinate in the box.
        points_per_axis: p; by the bound if left out.
        failure: α in (0, 1).

    Raises:
        ValueError: an argument is out of range, or the grid has more than a million points.
    """
    dim = problem.dim
    _checks.require_real("the difference of upper and lower", upper - lower, 0)
    # With more candidates the draws could not be counted.
    most = min(_MOST_CANDIDATES, int(failure / 5 / private_selection.LEAST_STOPPING_PROBABILITY))
    largest = math.floor(most ** (1 / dim) * (1 + 1e-12))

    def with_points(points: int) -> Plan:
        if points**dim > most:
            raise ValueError(
                f"points_per_axis must be at most {largest} for {most} candidates in dimension {dim},"
                f" got {points}"
            )
        selection = finite_class.plan(
            problem,
            budget,
            num_candidates=points**dim,
            loss_range=loss_range,
            failure=failure,
        )
        found = Plan(
            dim=dim,
            points_per_axis=points,
            lower=lower,
            upper=upper,
            selection=selection,
            excess_bound=0.0,
        )
        excess = selection.excess_bound + problem.lipschitz * found.mesh
        return dataclasses.replace(found, excess_bound=excess)

    if points_per_axis is not None:
        return with_points(points_per_axis)
    # The bound falls and then rises, slowly: a third more points a try.
    tried = {round((4 / 3) ** i) for i in range(60)}
    plans = [with_points(points) for points in sorted(tried) if points <= largest]
    return min(plans, key=lambda candidate: candidate.excess_bound)


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers and data.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: any point: its structure is that of the answer.

    Returns:
        As ``finite_class.solve``.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one, or the grid does not have
            the number of candidates that the selection was planned for.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    flat, unravel = ravel_pytree(params)
    planned, candidates = plan.selection.num_candidates, plan.points_per_axis**plan.dim
    if planned != candidates:
        raise ValueError(
            f"points_per_axis must make plan.selection.num_candidates = {planned} points, got"
            f" {plan.points_per_axis}^{plan.dim} = {candidates}"
        )

    def point(index: jax.Array) -> Any:
        return objective.domain.project(unravel(grid_point(plan, index).astype(flat.dtype)))

    return finite_class.select(key, plan.selection, objective, data, point)


def grid_point(plan: Plan, index: jax.Array) -> jax.Array:
    """The point of the grid with the given index, ``[dim]``: its digits to the base p are its coordinates."""
    digits = (index // plan.points_per_axis ** jnp.arange(plan.dim)) % plan.points_per_axis
    step = (plan.upper - plan.lower) / plan.points_per_axis
    return plan.lower + (digits + 0.5) * step
