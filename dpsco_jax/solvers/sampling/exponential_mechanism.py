"""The exponential mechanism: one draw from exp(-k·F) on a bounded set, under pure privacy where it is exact.

What it computes: a point of a box or ball, by one of three routes:
- "grid", d ≤ 2: a cell by the exponential mechanism on all of them, and a uniform point in it (``_cells``);
- "linear", a box of any dimension: the same for linear losses, a truncated exponential in each coordinate;
- "chain": the proximal sampler by ``rejection_oracle``, for exp(-k·(F + (μ/2)‖x - centre‖²)): a small public
  μ makes it mix. It reads a few records in each of many steps.

Source: T (3.2), Algorithms 13 and 14. With docs/corrections.md, B4: what replaces a user ranges over 2L·D/n.

Formal guarantee: for a user's whole data under REPLACE_ONE. "grid" and "linear" are pure ε-DP, of bounded
range even, for any losses, which are clipped; ε = 4L·k·r/n, r the radius of the centres of cells. A chain is
(ε, δ)-DP with δ = (1 + e^ε)·τ, τ its distance from its target in total variation, on every data set; T is
about log²(1/δ), down to the rounding of float64, where the plan names a δ that would do. It runs on proven
losses of ``problems.losses`` for two classes. A public regularizer changes no ε, as it cancels. Only the
point is released; how long a chain runs depends on the data, unless ``constant_time``.
Utility, convex F: d/k for the law itself, so 2L·D·d/(nε), D the diameter.

Cost: n·p^d values, n gradients, or about 13·log(T/τ)·log(1/τ)·(kL)²/(kμ) steps of 7 values.

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
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, _counts, _sharding, privacy
from dpsco_jax._argument_kinds import Flag, Positive, one_of
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry.domains import ball
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _costs, _plan_base, plans
from dpsco_jax.solvers.sampling import _cells, _draw, _exponential_chain
from dpsco_jax.solvers.sampling._precision import require_x64
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "plan", "solve"]

_ROUTES = ("grid", "linear", "chain")
_UP = 1.0 + 2.0**-30
_FURTHEST = 700.0
_MANY = 10**9  # cells, of which centres are as far out as the set
_LEAST_OFFSET = 1e-150  # whose square is a normal number
_MOST_CELLS = {1: 2**14, 2: 2**8}  # that are taken unasked
_CELLS = 2**20  # of an axis that are ever taken, and of a grid in all 2^24
_LINEAR_CELLS = 2**10


@pytree
class Plan(_draw.Draw):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        dim: d.
        lipschitz: L, to which the routes "grid" and "linear" clip.
        route: ``"grid"``, ``"linear"`` or ``"chain"``.
        ball: whether the set is a ball; else it is a box.
        cells: p, of each coordinate; 0 for a chain.
        chain: of the chain; ``None`` for the other routes.
        inverse_temperature: k.
        regularization: μ of the chain, centred at the centre of the set; 0 on the other routes.
        lower: corner of the box, or of the box around the ball, ``[dim]``.
        upper: the other one.
    """

    num_users: int = static()
    dim: int = static()
    lipschitz: float = static()
    route: str = static(choices=_ROUTES)
    ball: bool = static()
    cells: int = static(least=0)
    chain: _exponential_chain.Chain | None = static()
    inverse_temperature: Number
    regularization: Number
    lower: Number
    upper: Number

    @property
    def offset(self) -> Any:
        """r: how far from the centre what is drawn, or the centre of its cell, is at most."""
        lower, upper = _wide(self.lower), _wide(self.upper)
        if self.chain is None:
            # "linear" draws from all of the box, also where the box is around a ball.
            return _cells.farthest(lower, upper, self.cells, self.ball and self.route == "grid")
        # A little farther out, for what the draws round.
        return _cells.farthest(lower, upper, _MANY, self.ball) * (1.0 + 1e-8)

    @property
    def range(self) -> Any:
        """ε of an exact draw: over what log-weights of neighbours' laws range; infinite where unproven."""
        found = (_wide(self.inverse_temperature), self.offset, self._least_side > 0)
        xp, (k, r, ordered) = as_floats(*found)
        good = (k > 0) & (k < xp.inf) & (r > _LEAST_OFFSET) & (r < xp.inf) & (ordered > 0)
        good = good & (0.0 < self.lipschitz < math.inf)
        return xp.where(good, _cells.range_of(k, self.lipschitz, r, self.num_users), xp.inf)

    @property
    def _least_side(self) -> Any:
        return (_wide(self.upper) - _wide(self.lower)).min(axis=-1)

    @property
    def variation(self) -> float:
        """τ: how far the law of a chain's last point is from its target; 0 for the other routes."""
        if self.chain is None:
            return 0.0
        return _exponential_chain.variation_of(
            self.chain, self.num_users, self.dim, self.lipschitz, self.ball
        )

    @property
    def user_gradients(self) -> int:
        """As many as users, of the tangents of the route "linear"; the others evaluate losses."""
        return self.num_users if self.route == "linear" else 0

    @property
    def num_values(self) -> int:
        """Values of user losses: of all cells, or those that a chain reads on average, or fewer."""
        if self.chain is not None:
            return math.ceil(2.0 * (math.e - 1.0) * self.chain.num_trials)
        return 0 if self.route == "linear" else self.num_users * (self.cells**self.dim + 1)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the guarantee assumes."""
        return super().assumes if self.chain is not None else ("random numbers are ideal",)

    @property
    def accounted(self) -> Any:
        """Whether the proof covers a run with these numbers; a bool, may be traced."""
        given = (self.inverse_temperature, self.regularization, self.delta, self.range)
        xp, (k, mu, delta, spent) = as_floats(*map(_wide, given))
        if self.chain is None:
            return (self.route != "chain") & (spent < xp.inf) & (mu == 0.0)
        lower, upper = _wide(self.lower), _wide(self.upper)
        half, middle = 0.5 * (upper - lower), 0.5 * (upper + lower)
        found = half[..., 0] if self.ball else xp.sqrt(xp.sum(half * half, axis=-1))
        # A batch may hold numbers of its own; no other than those that were certified will do.
        slack = 0.25 * _exponential_chain.TOLERANCE
        good = (self.route == "chain") & (self.variation < 1.0)
        good = good & (spent < _FURTHEST) & (delta >= 0.0)
        for number, certified in (
            (k, self.chain.inverse_temperature),
            (mu, self.chain.regularization),
            (found, self.chain.radius),
        ):
            good = good & (abs(number - certified) <= slack * certified)
        norm = xp.sqrt(xp.sum(middle * middle, axis=-1))
        good = good & (norm <= self.chain.center_norm * (1.0 + slack))
        even = xp.all(half == half[..., :1], axis=-1) if self.ball else True
        return good & even

    @property
    def failure(self) -> Any:
        """δ of a chain: (1 + e^ε)·τ."""
        xp, (spent,) = as_floats(self.range)
        return xp.minimum(1.0, _UP * self.variation * (1.0 + xp.exp(xp.minimum(spent, _FURTHEST))))

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs: gradients and values of losses."""
        return _costs.gradients(self.user_gradients, item) + _costs.values(self.num_values, item)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where the proof does not cover them; may be traced."""
        xp, (spent, good) = as_floats(self.range, self.accounted)
        good = (good > 0) & (spent < xp.inf)
        spent = xp.where(good, spent, 1.0)
        if self.chain is None:
            return privacy.unbounded_unless(good, privacy.bounded_range(spent))
        return privacy.unbounded_unless(good, privacy.approximate_dp(spent, self.failure))

    def certificate(self) -> privacy.Certificate:
        """(ε, 0) of the exact routes; (ε, δ) of a chain whose failure is at most δ; infinite as ``loss`` is.

        Raises:
            ValueError: the plan is a batch of plans.
        """
        good = bool(np.asarray(self.accounted))
        delta, by = 0.0, "exponential mechanism"
        if self.chain is not None:
            delta, by = float(self.delta), f"{by} with total variation"
            good = good and float(self.failure) <= delta
        spent = float(self.range) if good else math.inf
        return privacy.Certificate(spent, delta, self.relation, by, self.assumes)

    def __str__(self) -> str:
        remarks = [("values of user losses", f"{self.num_values:.4g}")]
        if self.chain is not None:
            remarks += [
                ("total variation", f"{self.variation:.3g}"),
                ("which costs of δ", f"{float(self.failure):.3g}"),
            ]
        return plans.describe("exponential mechanism", self, remarks)


@_plan_base.remembers(least_users=2, pure=True)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    route: Annotated[str, one_of(*_ROUTES)] | None = None,
    cells: int | None = None,
    regularization: Positive | None = None,
    constant_time: Flag = False,
) -> Plan:
    """Checks all arguments and finds the temperature. All of them are public.

    Args:
        problem: for an objective without a ridge whose domain is a box, or a ball around the origin. The
            routes "grid" and "linear" clip any loss; a chain needs one item a user and a loss of
            ``problems.losses`` that is convex and Lipschitz on the whole space, for two classes.
        budget: ε; δ = 0 for pure privacy, in which a chain has no part.
        route: "grid" where d ≤ 2 and otherwise "chain" if left out. "linear" has to be asked for: of losses
            that are not linear it takes the tangents at the centre, which is private, but of no use.
        cells: p ≥ 2, of each coordinate, at most 2^20, or 2^12 on a grid in two dimensions; so many that
            their size costs little, if they can be had.
        regularization: μ > 0 of a chain; the one that costs at most d/k if left out.
        constant_time: whether a chain makes all its trials.

    Raises:
        ValueError: an argument is out of range, or ``jax_enable_x64`` is off.
        Infeasible: no chain is private enough. δ may be what is missing; the refusal names one that would do.
    """
    require_x64("exponential_mechanism")
    objective, dim = problem.objective, problem.dim
    _checks.require(objective.ridge == 0.0, "problem.objective.ridge", objective.ridge, "0")
    slope = _checks.require_real("problem.objective.lipschitz", objective.lipschitz, 1e-100, 1e100)
    lower, upper, is_ball = _cells.box_around(objective.domain, dim)
    if route is None:
        route = "grid" if dim <= 2 else "chain"
    name, value = ("cells", cells) if route == "chain" else ("regularization", regularization)
    _checks.require(value is None, name, value, f"None on the route {route!r}")
    users, epsilon = problem.num_users, budget.epsilon
    chain: _exponential_chain.Chain | None = None
    count, mu = 0, 0.0
    if route == "chain":
        chain = _exponential_chain.planned(
            problem, budget, slope, lower, upper, is_ball, regularization
        )
        k, mu, radius = chain.inverse_temperature, chain.regularization, chain.radius
        # Beside the law itself: what a set of probability τ may lose.
        lost = 2.0 * slope * radius * budget.delta
        bound = dim / k + 0.5 * mu * radius**2 + lost
    else:
        fits = route == "linear" or dim <= 2
        _checks.require(fits, "problem.dim", dim, "at most 2 for a grid")
        fits = route == "grid" or not is_ball
        _checks.require(fits, "problem.objective.domain", "a ball", "a box")
        most = _LINEAR_CELLS if route == "linear" else _MOST_CELLS[dim]
        wanted = int(min(max(5.0 * users * epsilon / dim, 16.0), most)) if cells is None else cells
        largest = 2**12 if route == "grid" and dim == 2 else _CELLS
        count = _checks.require_integer("cells", wanted, 2, largest)
        radius = float(_cells.farthest(lower, upper, count, is_ball))
        k = _cells.temperature(epsilon, slope, radius, users)
        bound = _excess(k, dim, slope, float(np.linalg.norm(upper - lower)), count, is_ball)
    return Plan(
        num_users=users,
        dim=dim,
        lipschitz=slope,
        route=route,
        ball=is_ball,
        cells=count,
        chain=chain,
        constant_time=constant_time,
        inverse_temperature=k,
        regularization=mu,
        lower=lower,
        upper=upper,
        epsilon=epsilon,
        delta=budget.delta,
        excess_bound=bound,
    )


@_sharding.solver
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
    plan = _draw.begun("exponential_mechanism", Plan, key, plan, objective, data, params)
    lower, upper = plan.lower, plan.upper
    _checks.require(lower.shape == (plan.dim,), "plan.lower", lower.shape, "of shape (plan.dim,)")
    _checks.require_real("plan.lipschitz", plan.lipschitz, 0.0)
    gradients = _counts.count(jnp.asarray(plan.user_gradients, jnp.int64))
    spent: dict[str, Any] = {"gradients": gradients}
    if plan.route == "chain":
        _checks.require(plan.chain is not None, "plan.chain", None, "a chain on this route")
        assert plan.chain is not None
        # Here nothing is clipped to it.
        slope, proven = plan.lipschitz, objective.lipschitz
        _checks.require(
            slope >= proven, "plan.lipschitz", slope, f"at least the objective's {proven}"
        )
        point, trials = _exponential_chain.last_point(
            *(key, plan.chain, objective, data, lower, upper, plan.ball),
            *(plan.inverse_temperature, plan.regularization, plan.constant_time),
        )
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
            point = ball(0.5 * (upper - lower)[0], 0.5 * (lower + upper)).project(point)
    point = point.reshape(params.shape).astype(params.dtype)
    return _draw.solution(point, plan.loss(), gradients, **spent)


def _wide(value: Any) -> Any:
    """In float64, in which ``solve`` runs: in fewer bits, or as integers, sides would be rounded or wrap."""
    traced = isinstance(value, jax.core.Tracer)
    wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    if traced or (wide and isinstance(value, jax.Array)):
        return jnp.asarray(value, jnp.result_type(float))
    return np.asarray(value, np.float64)


def _excess(k: float, dim: int, slope: float, diagonal: float, count: int, is_ball: bool) -> float:
    """docs/theory/exact_draws.md, section 3."""
    cell = slope * diagonal / count  # what F moves by along the diagonal of a cell, at most
    finite = dim * math.log(count) / k + (1.5 if is_ball else 1.0) * cell
    if is_ball:
        return finite
    steep = max(k * slope * diagonal / dim, 1.0)
    averaged = (dim / k) * (1.0 + math.log(steep)) + cell
    return min(finite, averaged, math.exp(min(k * cell, 700.0)) * dim / k)
