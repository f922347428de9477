"""The exponential mechanism: one draw from exp(-k·F) on a bounded set, under pure privacy where it is exact.

What it computes: a point of a box or ball, by one of three routes:
- "grid", d ≤ 2: a cell by the exponential mechanism on all of them, and a uniform point in it (``_cells``);
- "linear", a box of any dimension: the same for linear losses, a truncated exponential in each coordinate;
- "chain": the proximal sampler by ``rejection_oracle``, for exp(-k·(F + (μ/2)‖x - centre‖²)): a small public μ
  makes it mix. It reads a few records in each of many steps.

Source: T (3.2), Algorithms 13 and 14. With docs/corrections.md, B4: what replaces a user ranges over 2L·D/n.

Formal guarantee: for a user's whole data under REPLACE_ONE. "grid" and "linear" are pure ε-DP, of bounded range
even, for any losses, which are clipped; ε = 4L·k·r/n, r the radius of the centres of cells. No draw of a chain is:
it is (ε, δ)-DP with δ = (1 + e^ε)·τ, τ its distance from its target in total variation, on every data set. That
is cheap (T grows like log²(1/δ)) down to the rounding of float64, where the plan names a δ that would do. What it
needs of the loss is proven, not declared: losses of ``problems.losses`` for two classes, convex and Lipschitz. A
public regularizer changes no ε, as it cancels. Only the point is released; how long a chain runs, and how many
trials it makes, tell of the data, but for ``constant_time``.
Utility, convex F: d/k for the law itself, so 2L·D·d/(nε). That is not small: at n = 20,000, d = 58, ε = 1, a ball of
radius 4 and logistic loss on unit rows it is 0.0464, and output perturbation proves 0.123 at its best ridge.

Cost: n·p^d values, n gradients, or about 13·log(1/τ)·(kL)²/(kμ)·log(1/τ) steps of 7 values.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget, Problem, geometry
    >>> from dpsco_jax.problems import losses, synthetic
    >>> from dpsco_jax.solvers.sampling import exponential_mechanism
    >>> with jax.enable_x64(True):
    ...     made = synthetic.logistic_regression(jax.random.key(0), num_users=500, items_per_user=1, dim=2)
    ...     objective = losses.logistic(1.0, domain=geometry.ball(3.0))
    ...     problem = Problem(objective, num_users=500, dim=2)
    ...     plan = exponential_mechanism.plan(problem, Budget(1.0), cells=32)
    ...     start = jax.numpy.zeros(2)
    ...     run = jax.jit(lambda key: exponential_mechanism.solve(key, plan, objective, made.data, start))
    ...     solution = run(jax.random.key(1))
    >>> plan.route, solution.params.shape, plan.certificate().epsilon <= 1.0, plan.certificate().delta
    ('grid', (2,), True, 0.0)
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry.domains import Domain, ball, proven_diameter
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.labels import TWO_CLASSES
from dpsco_jax.problems.objective import Objective, OneHot
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _made_for
from dpsco_jax.solvers.sampling import (
    _cells,
    _rejection_certificate,
    _rows,
    alternating_sampler,
    rejection_oracle,
    restricted_gaussian,
)
from dpsco_jax.solvers.sampling import _exponential_plan as made_of
from dpsco_jax.solvers.sampling._exponential_plan import Chain, Plan
from dpsco_jax.solvers.sampling._precision import require_x64
from dpsco_jax.solvers.solution import Solution, Status

__all__ = ["Plan", "plan", "solve"]

ROUTES = ("grid", "linear", "chain")
_MOST_CELLS = {1: 2**14, 2: 2**8}
_LINEAR_CELLS = 2**10
_SHARE = 0.8  # of δ: what a chain takes of it, so that its loss at δ is not far from ε
_DOWN = 1.0 - 2.0**-30


@_made_for.remembers
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    route: str | None = None,
    cells: int | None = None,
    regularization: float | None = None,
    constant_time: bool = False,
) -> Plan:
    """Checks all arguments and finds the temperature. All of them are public.

    Args:
        problem: for an objective without a ridge whose domain is a box, or a ball around the origin. The
            routes "grid" and "linear" clip any loss; a chain needs one item a user and a loss of
            ``problems.losses`` that is convex and Lipschitz on the whole space, for two classes.
        budget: ε; δ = 0 for pure privacy, in which a chain has no part.
        route: "grid" where d ≤ 2 and otherwise "chain" if left out. "linear" has to be asked for: of losses
            that are not linear it takes the tangents at the centre, which is private, but of no use.
        cells: p ≥ 2, of each coordinate; so many that their size costs little, if they can be had.
        regularization: μ > 0 of a chain; the one that costs at most d/k if left out.
        constant_time: whether a chain makes all its trials.

    Raises:
        ValueError: an argument is out of range, or ``jax_enable_x64`` is off.
        Infeasible: no chain is private enough. δ may be what is missing; the refusal names one that would do.
    """
    problem, budget = _arguments.require_request(problem, budget, pure=True)
    require_x64("exponential_mechanism")
    objective, dim = problem.objective, problem.dim
    _checks.require(objective.ridge == 0.0, "problem.objective.ridge", objective.ridge, "0")
    slope = _checks.require_real("problem.objective.lipschitz", objective.lipschitz, 1e-100, 1e100)
    lower, upper, is_ball = _box_around(objective.domain, dim)
    if route is None:
        route = "grid" if dim <= 2 else "chain"
    route = _checks.require_choice("route", route, ROUTES)
    constant_time = _checks.require_flag("constant_time", constant_time)
    other = ("cells", cells) if route == "chain" else ("regularization", regularization)
    _checks.require(other[1] is None, *other, f"None on the route {route!r}")
    if regularization is not None:
        regularization = _checks.require_real("regularization", regularization, 0.0)
    if route == "chain":
        return _with_chain(
            problem, budget, slope, lower, upper, is_ball, regularization, constant_time
        )
    _checks.require(route == "linear" or dim <= 2, "problem.dim", dim, "at most 2 for a grid")
    _checks.require(route == "grid" or not is_ball, "problem.objective.domain", "a ball", "a box")
    diagonal = float(np.linalg.norm(upper - lower))
    wanted = 5.0 * problem.num_users * budget.epsilon / dim
    most = _LINEAR_CELLS if route == "linear" else _MOST_CELLS[dim]
    count = int(min(max(wanted, 16.0), most)) if cells is None else cells
    count = _checks.require_integer("cells", count, 2, 2**20)
    radius = 0.5 * (1.0 - 1.0 / count) * diagonal
    k = _DOWN * budget.epsilon * problem.num_users / (4.0 * slope * radius)
    k /= 1.0 + problem.num_users * 2.0**-47
    return Plan(
        num_users=problem.num_users,
        dim=dim,
        lipschitz=slope,
        route=route,
        ball=is_ball,
        cells=count,
        chain=None,
        constant_time=constant_time,
        inverse_temperature=k,
        regularization=0.0,
        lower=lower,
        upper=upper,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=_excess(k, dim, slope, diagonal, count, is_ball),
    )


def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: jax.Array
) -> Solution:
    """Makes the draw. Pure JAX: jit and map over key, the plan's numbers and data.

    Args:
        key: a typed key.
        plan: of ``plan``, for this very objective.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: ``[dim]``, for its shape and dtype. No route starts there.

    Raises:
        ValueError: the sizes are not the planned ones, ``jax_enable_x64`` is off, or a chain is to run on a
            loss that is not proven to be convex and Lipschitz.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    require_x64("exponential_mechanism")
    _checks.require_choice("plan.route", plan.route, ROUTES)
    plan = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), plan)
    lower, upper = plan.lower, plan.upper
    _checks.require(lower.shape == (plan.dim,), "plan.lower", lower.shape, "of shape (plan.dim,)")
    spent = {"gradients": jnp.asarray(plan.user_gradients, jnp.int64), "trace": None}
    if plan.route == "chain":
        point, trials = _last_point(key, plan, objective, data)
        spent["trials"] = trials
    else:
        _checks.require_integer("plan.cells", plan.cells, 2)
        cell_key, point_key = jax.random.split(key)
        given: dict[str, Any] = {
            "inverse_temperature": plan.inverse_temperature,
            "lipschitz": plan.lipschitz,
            "cells": plan.cells,
        }
        if plan.route == "grid":
            radius = 0.5 * (upper - lower)[0] if plan.ball else None
            places = _cells.draw_cell(
                cell_key, objective, data, lower, upper, radius=radius, **given
            )
        else:
            places = _cells.draw_linear(cell_key, objective, data, lower, upper, **given)
        point = _cells.point_in(point_key, places, lower, upper, plan.cells)
        if plan.ball:  # which cells stick out of
            point = _set_of(plan).project(point)
    point = point.reshape(params.shape).astype(params.dtype)
    good = jnp.all(jnp.isfinite(point))
    return Solution(
        params=point,
        privacy=plan.loss(),
        status=jnp.where(good, int(Status.OK), int(Status.DIVERGED)).astype(jnp.int32),
        gradients=jnp.asarray(plan.user_gradients, jnp.int64),
        unprivate=spent,
    )


def _last_point(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData
) -> tuple[jax.Array, jax.Array]:
    """The end of a chain from the centre, and how many trials it made."""
    chain = plan.chain
    assert chain is not None
    model = _proven_model(objective)
    dense = not isinstance(data.items.features, OneHot)
    _checks.require(dense, "data.items.features", "one-hot", "dense rows for a chain")
    slots = jax.tree.leaves(data.items)[0].shape[1]
    _checks.require(slots == 1, "data", f"{slots} item slots", "of one item a user for a chain")
    rows = _rows.prepare(model, data, plan.dim)

    def loss(point: jax.Array, row: Any) -> jax.Array:
        features, label, weight = row
        return weight * model.link(jnp.dot(point, features), label)

    center = 0.5 * (plan.lower + plan.upper)
    bend = plan.inverse_temperature * plan.regularization
    if plan.ball:
        law = restricted_gaussian.convex_set(chain.step_size, bend, center, _set_of(plan))
    else:
        law = restricted_gaussian.box(chain.step_size, bend, center, plan.lower, plan.upper)
    oracle = rejection_oracle.oracle(
        loss,
        (rows.features, rows.labels, rows.weights),
        law,
        num_records=plan.num_users,
        scale=plan.inverse_temperature,
        num_terms=chain.num_terms,
        constant_time=plan.constant_time,
    )
    end = alternating_sampler.run(
        key,
        oracle,
        center,
        num_steps=chain.num_steps,
        num_trials=chain.num_trials,
        constant_time=plan.constant_time,
    )
    return end.params, end.num_trials


def _set_of(plan: Plan) -> Domain:
    return ball(0.5 * (plan.upper - plan.lower)[0], 0.5 * (plan.lower + plan.upper))


def _box_around(domain: Domain, dim: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """The box, or the one around a ball; and whether it is a ball."""
    proven_diameter(domain)
    if domain.radius is not None:
        radius = _checks.require_real("problem.objective.domain.radius", float(domain.radius), 0.0)
        return np.full(dim, -radius), np.full(dim, radius), dim > 1
    _checks.require(
        domain.ends is not None, "problem.objective.domain", domain, "a box, or a ball at the origin"
    )
    lower, upper = (np.atleast_1d(np.asarray(end, np.float64)) for end in domain.ends or ())
    _checks.require(
        lower.shape == (dim,) == upper.shape,
        "problem.objective.domain",
        lower.shape,
        f"of shape ({dim},) of problem.dim",
    )
    sides = upper - lower
    _checks.require(np.all(sides > 0), "problem.objective.domain", sides, "a box with an inside")
    return lower, upper, False


def _proven_model(objective: Objective) -> Any:
    """The linear model of a loss that a chain may run on."""
    _proofs.require_proven(objective)
    everywhere = objective.globally_convex_lipschitz
    what = "True: convex and Lipschitz on the whole space, which no clipping can make it"
    _checks.require(everywhere, "objective.globally_convex_lipschitz", everywhere, what)
    model = objective.vector_model
    bounded = model is not None and objective.label_range == TWO_CLASSES
    _checks.require(
        bounded, "objective", objective.loss, "logistic or hinge, whose labels are bounded, for a chain"
    )
    return model


def _with_chain(
    problem: Problem,
    budget: privacy.Budget,
    slope: float,
    lower: np.ndarray,
    upper: np.ndarray,
    is_ball: bool,
    regularization: float | None,
    constant_time: bool,
) -> Plan:
    _proven_model(problem.objective)
    users, dim = problem.num_users, problem.dim
    items = problem.items_per_user
    _checks.require(items == 1, "problem.items_per_user", items, "1 for a chain")
    half, middle = 0.5 * (upper - lower), 0.5 * (upper + lower)
    radius = float(half[0] if is_ball else np.linalg.norm(half)) * (1.0 + 2.0**-40)
    norm = float(np.linalg.norm(middle)) * (1.0 + 2.0**-40)
    k = _DOWN * budget.epsilon * users / (4.0 * slope * radius * (1.0 + 1e-7))
    k /= 1.0 + users * 2.0**-47
    mu = 2.0 * dim / (k * radius**2) if regularization is None else regularization
    sizes = made_of.sizes_of(k, mu, radius, norm, users, dim, slope, is_ball)
    shrink = math.exp(-budget.epsilon) / (1.0 + math.exp(-budget.epsilon))

    def found(delta: float) -> _rejection_certificate.Chain:
        if delta <= 0.0:
            raise Infeasible(
                "budget.delta must be positive for a chain, which is not exact; pure privacy is had on a grid "
                "for d <= 2, and for linear losses on a box, got 0.0",
                {"delta": delta},
            )
        return _rejection_certificate.planned(_SHARE * delta * shrink, sizes)

    tau, planned = _SHARE * budget.delta * shrink, _naming_delta(found, budget)
    chain = Chain(
        step_size=planned.step_size,
        num_terms=planned.num_terms,
        num_steps=planned.num_steps,
        num_trials=planned.num_trials,
        escape=made_of.escape_of(tau),
        inverse_temperature=k,
        regularization=mu,
        radius=radius,
        center_norm=norm,
    )
    lost = float(planned.variation) * 2.0 * slope * radius
    return Plan(
        num_users=users,
        dim=dim,
        lipschitz=slope,
        route="chain",
        ball=is_ball,
        cells=0,
        chain=chain,
        constant_time=constant_time,
        inverse_temperature=k,
        regularization=mu,
        lower=lower,
        upper=upper,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=dim / k + 0.5 * mu * radius**2 + lost,
    )


def _naming_delta(found: Any, budget: privacy.Budget) -> Any:
    """The chain; where δ is too small, the refusal names one that would do, if there is any."""
    try:
        return found(budget.delta)
    except Infeasible as refusal:
        said = str(refusal)
    delta = max(4.0 * budget.delta, 1e-16)
    while delta < 1.0:
        try:
            found(delta)
        except Infeasible:
            delta *= 4.0
        else:
            raise Infeasible(f"{said}; delta = {delta!r} would do", {"delta": delta})
    raise Infeasible(said)


def _excess(k: float, dim: int, slope: float, diagonal: float, count: int, is_ball: bool) -> float:
    """docs/privacy/exact_draws.md, section 3."""
    cell = slope * diagonal / count  # what F moves by along the diagonal of a cell, at most
    finite = dim * math.log(count) / k + (1.5 if is_ball else 1.0) * cell
    if is_ball:
        return finite
    steep = max(k * slope * diagonal / dim, 1.0)
    averaged = (dim / k) * (1.0 + math.log(steep)) + cell
    return min(finite, averaged, math.exp(min(k * cell, 700.0)) * dim / k)
