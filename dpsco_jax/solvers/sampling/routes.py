"""Which private solver to take for a problem where one record is one loss: draws beside noisy gradients.

What it computes: the plans of ``regularized``, ``langevin``, ``private_ac_sa`` and ``value_queries`` for one
problem and budget, what each is expected to reach on the same nominal problem, what is proven, and what it
costs. Plans that only prove a bound come after those that expect something.

Source: own. For a quadratic of curvatures h, a draw has the noise ½·(G_Δ/(sn))²·Σ h/(μ·(h + μ)), the average
of noisy gradients ½·(G_Δ/(sn))²·Σ h/(h + μ)²: averaging wins by about curvature over μ where losses are
smooth.

Formal guarantee: that of each plan. No data are read, so choosing by the result costs nothing.

Cost: that of the plans, about a second.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget, Problem
    >>> from dpsco_jax.problems import losses
    >>> from dpsco_jax.solvers.sampling import routes
    >>> with jax.enable_x64(True):
    ...     found = routes.compare(
    ...         Problem(losses.logistic(1.0), num_users=5000, dim=10, distance=4.0), Budget(1.0, 1e-6)
    ...     )
    >>> [route.name for route in found.routes]
    ['langevin', 'regularized', 'private_ac_sa', 'value_queries']
    >>> found.best.plan.certificate().epsilon <= 1.0
    True
"""

import math
from typing import Any, NamedTuple

from dpsco_jax import privacy
from dpsco_jax._argument_kinds import Count, checked
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _planning
from dpsco_jax.solvers.item_level import langevin, private_ac_sa
from dpsco_jax.solvers.sampling import regularized, value_queries

__all__ = ["Route", "Routes", "compare"]


class Route(NamedTuple):
    """One way to a private point.

    Attributes:
        name: of the solver's module.
        plan: for its ``solve``; ``None`` if there is none.
        predicted_excess: the excess risk that is expected on the nominal problem; NaN if the plan expects
            nothing.
        excess_bound: what is proven of it; ``inf`` where nothing is.
        user_gradients: passes over the users, times the users, at most; of ``value_queries`` values.
        refusal: why there is no plan; empty if there is one.
    """

    name: str
    plan: Any
    predicted_excess: float
    excess_bound: float
    user_gradients: float
    refusal: str


class Routes(NamedTuple):
    """All routes, the most promising first.

    Attributes:
        routes: those with a plan by their expectation, then by their bound; then the others.
    """

    routes: tuple[Route, ...]

    @property
    def best(self) -> Route:
        """The first.

        Raises:
            ValueError: there is no plan at all.
        """
        first = self.routes[0]
        if first.plan is None:
            said = "; ".join(f"{route.name}: {route.refusal}" for route in self.routes)
            raise ValueError(f"problem and budget must suit one of the solvers, got {said}")
        return first

    def __str__(self) -> str:
        lines = [f"{'solver':<16}{'expected':>12}{'proven':>12}{'gradients':>12}"]
        for route in self.routes:
            if route.plan is None:
                lines.append(f"{route.name:<16}{route.refusal}")
                continue
            expected = "" if math.isnan(route.predicted_excess) else f"{route.predicted_excess:.3g}"
            lines.append(
                f"{route.name:<16}{expected:>12}{route.excess_bound:>12.3g}{route.user_gradients:>12.3g}"
            )
        return "\n".join(lines)


@checked
def compare(
    problem: Problem, budget: privacy.Budget, *, columns_per_row: Count | None = None
) -> Routes:
    """The routes for a problem, each planned with its own choices.

    Args:
        problem: as for the four solvers; one that refuses it is listed with its reason.
        budget: (ε, δ) of one run, δ > 0.
        columns_per_row: entries of a one-hot row, which predictions count with; ``None`` for dense rows.

    Raises:
        ValueError: an argument is of another kind.
    """
    problem, budget = _planning.require_request(problem, budget)
    counted = {"columns_per_row": columns_per_row}
    made = [
        _route("regularized", regularized, problem, budget, counted),
        _route("langevin", langevin, problem, budget, counted),
        _route("private_ac_sa", private_ac_sa, problem, budget, {}),
        _route("value_queries", value_queries, problem, budget, counted),
    ]
    return Routes(tuple(sorted(made, key=_promise)))


def _route(name: str, solver: Any, problem: Any, budget: Any, settings: dict[str, Any]) -> Route:
    try:
        plan = solver.plan(problem, budget, **settings)
    except ValueError as refusal:
        return Route(name, None, math.nan, math.inf, math.nan, str(refusal))
    expected = float(getattr(plan, "predicted_excess", math.nan))
    return Route(name, plan, expected, float(plan.excess_bound), float(plan.user_gradients), "")


def _promise(route: Route) -> tuple[bool, bool, float]:
    unknown = math.isnan(route.predicted_excess)
    return route.plan is None, unknown, route.excess_bound if unknown else route.predicted_excess
