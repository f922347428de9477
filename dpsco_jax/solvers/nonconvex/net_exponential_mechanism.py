"""The exponential mechanism on a net: the best excess risk of losses that are not convex, for few parameters.

What it computes: a cell of a grid with probability in proportion to exp(-k·F), F the mean of users' losses at
its centre, and a uniform point of that cell, in the set. The grid is the net of the theorem, in any dimension
that memory allows; in one and two it is the draw of ``exponential_mechanism``, whose ``solve`` runs it.

Source: T, Theorem 6.4.8, with Theorem 6.4.11 for what no private algorithm can beat. With
docs/corrections.md: k = εn/(2GD) (B4), and the place of √n in the rate (C6-13).

Formal guarantee: pure ε-DP, of bounded range even, for a user's whole data under REPLACE_ONE, for any losses:
what a user adds to the score of a point at distance r from the centre of the set is clipped to L·r, so that
log-weights of neighbours differ by a function whose range is at most 4L·k·R/n = ε, R the largest such r. How
far apart cells are costs no privacy. Only the point is released.

Utility, L-Lipschitz losses, D the diameter, p cells an axis, h half of a cell's diagonal, P ≤ p^d cells:
E F - min F ≤ log(P)/k + 2Lh (3Lh on a ball), and for n independent users the same of the population's risk
with the least of L·D·√(log(P)/(2n)) and L·D·tanh(ε/4) added. The plan takes the p for which this is least:
near D·√d/(2h) with h = D·d/(εn), at which it is Õ(L·D·(d/(εn) + √(d/n))). No smaller rate is possible.

Cost: n·p^d values of users' losses, in blocks of points and users; memory of P numbers.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget, Problem, geometry
    >>> from dpsco_jax.problems import losses, synthetic
    >>> from dpsco_jax.solvers.nonconvex import net_exponential_mechanism
    >>> with jax.enable_x64(True):
    ...     made = synthetic.logistic_regression(jax.random.key(0), num_users=500, items_per_user=1, dim=3)
    ...     objective = losses.logistic(1.0, domain=geometry.ball(2.0))
    ...     problem = Problem(objective, num_users=500, dim=3)
    ...     plan = net_exponential_mechanism.plan(problem, Budget(2.0), most_points=1000)
    ...     start = jax.numpy.zeros(3)
    ...     run = jax.jit(
    ...         lambda key: net_exponential_mechanism.solve(key, plan, objective, made.data, start)
    ...     )
    ...     solution = run(jax.random.key(1))
    >>> plan.cells, solution.params.shape, plan.certificate().epsilon <= 2.0, plan.certificate().delta
    (10, (3,), True, 0.0)
"""

import math
from typing import Annotated, Any

import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import integer, one_of
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base
from dpsco_jax.solvers.sampling import _cells
from dpsco_jax.solvers.sampling._precision import require_x64
from dpsco_jax.solvers.sampling.exponential_mechanism import Plan, solve

__all__ = ["Plan", "plan", "solve"]

_MOST_POINTS = 2**24
_BYTES = 40  # of a point: where it is, its score, and the noise on it


@_plan_base.remembers(least_users=2, pure=True, convex=False)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    cells: int | None = None,
    risk: Annotated[str, one_of("empirical", "population")] = "empirical",
    most_points: Annotated[int, integer(2, _MOST_POINTS)] = 2**20,
) -> Plan:
    """Checks all arguments and finds the grid and the temperature. All of them are public.

    Args:
        problem: for an objective without a ridge whose domain is a box, or a ball around the origin. Losses
            are clipped, and need not be convex; the bounds on the risk hold for L-Lipschitz ones.
        budget: ε; δ is not spent, and may be 0.
        cells: p ≥ 2, of each coordinate; on a ball in two dimensions or more at least 2√d. The number for
            which the bound is least, among those that fit, if left out.
        risk: whose excess is bounded: that of the users who are there, or of the law that they were drawn
            from, independently.
        most_points: P, the most cells of the box that there may be; each takes n values and 40 bytes.

    Raises:
        ValueError: an argument is out of range, or ``jax_enable_x64`` is off.
        Infeasible: the grid has more points than that; ``needed`` has their number as ``most_points``.
    """
    require_x64("net_exponential_mechanism")
    objective, dim, users = problem.objective, problem.dim, problem.num_users
    _checks.require(objective.ridge == 0.0, "problem.objective.ridge", objective.ridge, "0")
    slope = _checks.require_real("problem.objective.lipschitz", objective.lipschitz, 1e-100, 1e100)
    lower, upper, is_ball = _cells.box_around(objective.domain, dim)
    # A ball has the cells whose centres lie in it: of fewer it might have none near some point.
    least = max(2, math.ceil(2.0 * math.sqrt(dim))) if is_ball else 2

    def made(count: int) -> dict[str, Any]:
        radius = float(_cells.farthest(lower, upper, count, is_ball))
        k = _cells.temperature(budget.epsilon, slope, radius, users)
        half = slope * float(np.linalg.norm(upper - lower)) / (2.0 * count)
        bound = dim * math.log(count) / k + (3.0 if is_ball else 2.0) * half
        if risk == "population":
            diameter = float(np.asarray(objective.domain.diameter))
            chance = math.sqrt(dim * math.log(count) / (2.0 * users))
            bound += slope * diameter * min(chance, math.tanh(budget.epsilon / 4.0))
        return {"cells": count, "inverse_temperature": k, "excess_bound": bound}

    most = max(2, math.floor(most_points ** (1.0 / dim) * (1.0 + 1e-12)))
    if cells is None:
        _require_room(least, dim, most_points)
        # The bound falls and then rises in p, with steps too small to matter beyond the first hundred.
        tried = sorted({*range(least, min(most, 100) + 1), *_spread(least, most)})
        found = min(map(made, tried), key=lambda one: one["excess_bound"])
    else:
        count = _checks.require_integer("cells", cells, least, 2**20)
        _require_room(count, dim, most_points)
        found = made(count)
    return Plan(
        num_users=users,
        dim=dim,
        lipschitz=slope,
        route="grid",
        ball=is_ball,
        chain=None,
        constant_time=False,
        regularization=0.0,
        lower=lower,
        upper=upper,
        epsilon=budget.epsilon,
        delta=budget.delta,
        **found,
    )


def _spread(least: int, most: int) -> list[int]:
    """Numbers from one to the other, each some hundredths above the one before."""
    count = 2 + int(50.0 * math.log(most / least)) if most > least else 1
    return [int(x) for x in np.geomspace(least, max(most, least), count)]


def _require_room(cells: int, dim: int, most_points: int) -> None:
    points = cells**dim
    if points > most_points:
        raise Infeasible(
            f"most_points must be at least {points} for {cells} cells an axis in {dim} dimensions, which "
            f"take {_BYTES * points / 2**20:.4g} MiB, got {most_points}",
            {"most_points": points},
        )
