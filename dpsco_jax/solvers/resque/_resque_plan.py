"""What private ReSQue solvers on a ball share: the plan of a call, its calibration, what a run starts from.

What it computes: see ``resque_erm``, whose plan this is; ``resque_prox`` and
``resque_erm_high_probability`` repeat the same call, with other noise.

Source: thesis, Algorithms 8 to 12.

Formal guarantee: the plan's β meets (ε, δ) for the calls named, by ``privacy.resque``.

Cost: a calibration takes a few seconds.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _counts, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.oracles import linear
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque import _calls as subsolvers
from dpsco_jax.solvers.resque._budget import METHODS, SAMPLINGS, Plan, strongly_convex_gradients
from dpsco_jax.solvers.solution import Solution, finished

__all__ = ["Plan", "calibrated", "combined_quadratics", "draft", "make_setting", "power_of_two"]
__all__ += ["spent_on", "strongly_convex_gradients"]

_SHARE = {"without_replacement": 0.2, "with_replacement": 0.05}  # of the users, in one call


def draft(
    problem: Problem,
    budget: privacy.Budget,
    *,
    ball_radius: float,
    radius_ratio: float = 12.0,
    regularization: float = 0.0,
    method: str | None = None,
    num_queries: int | None = None,
    sampling: str | None = None,
    constants: str = "tight",
) -> Plan:
    """The plan of a call before its noise is calibrated: checks all arguments, those of ``resque_erm.plan``.

    Raises:
        ValueError: an argument is out of range, or the loss is one for which privacy has no proof here.
    """
    problem, budget = _arguments.require_request(problem, budget)
    objective, num_users = problem.objective, problem.num_users
    accounting.require_linear(objective)
    radius = _checks.require_real("ball_radius", ball_radius, 0)
    ratio = _checks.require_real("radius_ratio", radius_ratio, 2.001, closed=True)
    convexity = _checks.require_real("regularization", regularization, 0, closed=True)
    paper = _checks.require_choice("constants", constants, ("tight", "paper")) == "paper"
    sampling = sampling or ("with_replacement" if paper else "without_replacement")
    _checks.require_choice("sampling", sampling, SAMPLINGS)
    method = method or ("strongly_convex" if convexity > 0 else "localized")
    _checks.require_choice("method", method, METHODS)
    strong = method == "strongly_convex"
    if strong:
        _checks.require_real("regularization", convexity + objective.ridge, 0)
    queries = power_of_two(num_users, num_queries, sampling, least=4 if strong else 2)
    return Plan(
        num_users=num_users,
        dim=problem.dim,
        num_queries=queries,
        method=method,
        sampling=sampling,
        constant=subsolvers.PROVED_CONSTANT if paper else subsolvers.BEST_CONSTANT,
        proven=None,
        ball_radius=radius,
        smoothing_radius=ratio * radius,
        lipschitz=problem.lipschitz,
        regularization=convexity,
        beta=1.0,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=math.inf,
    )


def calibrated(drafted: Plan, calls_at: Callable[[float, float], accounting.Calls]) -> Plan:
    """The plan with the largest β at which calls stay within its budget.

    Args:
        drafted: of ``draft``.
        calls_at: the calls as a function of β and ρ/r.
    """
    accounting.require_numbers(drafted.numbers)
    ratio = drafted.radius_ratio
    beta = accounting.calibrated_beta(
        lambda beta: calls_at(beta, ratio), drafted.epsilon, drafted.delta
    )
    proven = accounting.Proven(beta, ratio, drafted.delta)
    accounting.proven_loss(calls_at, proven)  # now, not when a program is traced
    return dataclasses.replace(drafted, beta=beta, proven=proven)


def combined_quadratics(
    plan: Any, objective: Objective, params: Any
) -> tuple[jax.Array, Any, jax.Array | None]:
    """The center x_0, in the domain; (λ/2)·‖x - x_0‖² and the ridge as one quadratic: weight and anchor.

    Raises:
        ValueError: if the number of parameters is not the planned one.
    """
    # Steps are small next to the ball: half precision would round neighbours apart.
    center = jnp.asarray(params, jnp.promote_types(jnp.result_type(params), jnp.float32))
    if center.shape != (plan.dim,):
        raise ValueError(f"params must have shape ({plan.dim},), got {center.shape}")
    center = objective.domain.project(center)
    weight = plan.regularization + objective.ridge
    return center, weight, (plan.regularization / weight) * center if objective.ridge > 0 else None


def make_setting(objective: Objective, data: UserData, plan: Any) -> subsolvers.Setting:
    """What the calls of a run share, from a plan with the fields that are named as in ``Plan``.

    Raises:
        ValueError: if the objective is one for which privacy has no proof, whatever the plan was made for,
            or its domain cannot project the small moves of late phases.
    """
    accounting.require_linear(objective)
    _checks.require_nonnegative("objective.ridge", objective.ridge)
    unbounded = math.isinf(float(np.asarray(objective.domain.diameter)))
    if not unbounded:
        domains.require_proven_moves("objective.domain", objective.domain)
    assert objective.linear_model is not None
    return subsolvers.Setting(
        model=objective.linear_model,
        data=jax.tree.map(jnp.asarray, linear.prepare(objective.linear_model, data, plan.dim)),
        radius=plan.ball_radius,
        smoothing_radius=plan.smoothing_radius,
        # Nothing is clipped: the noise must fit the loss that is run, should the plan be of another.
        lipschitz=jnp.maximum(plan.lipschitz, objective.lipschitz),
        replacement=plan.sampling == "with_replacement",
        domain=None if unbounded else objective.domain,
    )


def spent_on(
    point: jax.Array, loss: privacy.PrivacyLoss, user_gradients: int, data: UserData
) -> Solution:
    """The solution of a run that made all of its calls, charged their loss."""
    drawn = user_gradients * jax.tree.leaves(data.items)[0].shape[1]
    ledger = privacy.open_ledger(NeighboringRelation.REPLACE_ONE, sampled=True)
    ledger = privacy.charge(ledger, loss)
    return finished(point, ledger, drawn, _counts.count(drawn), None)


def power_of_two(num_users: int, num_queries: int | None, sampling: str, least: int) -> int:
    """T as given, or by the default share of the users, rounded down to a power of two.

    Raises:
        ValueError: if it is below ``least``, or needs more users than there are without replacement.
    """
    if num_queries is None:
        num_queries = max(least, int(_SHARE[sampling] * num_users))
    most = num_users + 1 if sampling == "without_replacement" else None
    given = _checks.require_integer("num_queries", num_queries, least, most)
    return 1 << (given.bit_length() - 1)
