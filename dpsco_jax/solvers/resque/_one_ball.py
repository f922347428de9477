"""Private calls around one centre: the plan of a call, its draft, and the run of one or several calls."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Key

from dpsco_jax import _checks, _counts, _sharding, privacy
from dpsco_jax._argument_kinds import one_of, real
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, plans
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque import _calls
from dpsco_jax.solvers.resque._accounting import OfCalls
from dpsco_jax.solvers.resque._calls import SAMPLINGS, levels
from dpsco_jax.solvers.solution import Solution

METHODS = ("localized", "strongly_convex")

Ratio = Annotated[float, real(2.001, closed=True)]
Sampling = Annotated[str, one_of(*SAMPLINGS)]
Method = Annotated[str, one_of(*METHODS)]

Call: TypeAlias = Callable[[jax.Array, "Plan"], jax.Array]
"""``call(key, plan)``: the private point of one call of that plan."""


@pytree
class Plan(OfCalls):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        dim: number of parameters.
        num_queries: T, a power of two; fewer users are drawn.
        method: ``"localized"`` or ``"strongly_convex"``.
        sampling: ``"without_replacement"`` or ``"with_replacement"``, of the users of a call.
        constant: C of the reach of the levels; utility only.
        proven: the β, ρ/r and δ that the loss is for, static; ``None`` before calibration. A plan whose
            numbers are changed beyond them is charged an unbounded loss.
        ball_radius: r.
        smoothing_radius: ρ.
        lipschitz: L.
        regularization: λ.
        beta: the noise of a phase with steps η_i has standard deviation L·η_i/β.
        epsilon: ε of the budget.
        delta: δ of the budget.
        excess_bound: proven bound on the expected excess of the smoothed, regularized risk; ``inf`` where
            none applies. Beside what privacy assumes it assumes a minimizer in the ball.
    """

    num_users: int = static()
    dim: int = static()
    num_queries: int = static()
    method: str = static(choices=METHODS)
    sampling: str = static(choices=SAMPLINGS)
    constant: float = static()
    proven: accounting.Proven | None = static()
    ball_radius: Number
    smoothing_radius: Number
    lipschitz: Number
    regularization: Number
    beta: Number
    epsilon: Number
    delta: Number
    excess_bound: Number

    @property
    def quadratics(self) -> Mapping[str, Any]:
        """By name the weights of all quadratic terms."""
        return {"regularization": self.regularization}

    def calls_at(self, beta: float, radius_ratio: float) -> accounting.Calls:
        """The localized calls of the run with another β and ρ/r."""
        replacement = self.sampling == "with_replacement"
        call = self.call_of(self.num_queries, beta, radius_ratio, replacement)
        return [(call, 1)] if self.method == "localized" else accounting.strongly_convex_calls(call)

    @property
    def user_gradients(self) -> int:
        """Users drawn in the whole run."""
        return _calls.num_drawn(self.num_queries, self.method == "strongly_convex")

    def point(self, key: jax.Array, call: Call) -> jax.Array:
        """The point that a run reports."""
        return call(key, self)

    def __str__(self) -> str:
        remarks = [("smoothing_adds_at_most", f"{self.smoothing_bias:.5g}")]
        return plans.describe("private ERM over a ball", self, remarks)


class OfBase(OfCalls):
    """A plan that repeats the call of another one, its ``base``, which holds all numbers.

    A class that inherits says in ``point(key, call)`` how the point to report is made of calls.
    """

    base: Any

    @property
    def single(self) -> Any:
        """The plan of one call, whose ``proven`` is for all of them."""
        return self.base

    @property
    def num_users(self) -> Any:
        """The number of users n."""
        return self.base.num_users

    @property
    def dim(self) -> Any:
        """Number of parameters."""
        return self.base.dim


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
    """The plan of a call before its noise is calibrated, from the arguments of ``resque_erm.plan``."""
    objective, num_users = problem.objective, problem.num_users
    _calls.require_linear(objective)
    paper = constants == "paper"
    sampling = sampling or ("with_replacement" if paper else "without_replacement")
    method = method or ("strongly_convex" if regularization > 0 else "localized")
    strong = method == "strongly_convex"
    if strong:
        _checks.require_real("regularization", regularization + objective.ridge, 0)
    # Without replacement a call of T queries needs T - 1 different users.
    queries = _calls.power_of_two(
        num_users, num_queries, sampling, least=4 if strong else 2, most=num_users + 1
    )
    return Plan(
        num_users=num_users,
        dim=problem.dim,
        num_queries=queries,
        method=method,
        sampling=sampling,
        constant=_calls.PROVED_CONSTANT if paper else _calls.BEST_CONSTANT,
        proven=None,
        ball_radius=ball_radius,
        smoothing_radius=radius_ratio * ball_radius,
        lipschitz=problem.lipschitz,
        regularization=regularization,
        beta=1.0,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=math.inf,
    )


@_sharding.solver
def solve(
    key: Key[jax.Array, ""],
    plan: Any,
    objective: Objective,
    data: UserData,
    params: Float[jax.Array | np.ndarray, "dim"],
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan`` of ``resque_erm``, ``resque_erm_high_probability`` or ``resque_prox``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users, one or several items each.
        params: x_0, ``[dim]``: the start, the center of the ball and of the regularization; projected onto
            the domain.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one, or a size of the plan was
            changed to one for which there is no proof.
    """
    made = type(plan) if isinstance(plan, Plan | OfBase) else Plan
    _arguments.require_run(made, key, plan, objective, data, params)
    loss, base = plan.loss(), plan.single
    # Steps are small next to the ball: half precision would round neighbours apart.
    center = jnp.asarray(params, jnp.promote_types(jnp.result_type(params), jnp.float32))
    if center.shape != (base.dim,):
        raise ValueError(f"params must have shape ({base.dim},), got {center.shape}")
    center = objective.domain.project(center)
    # (λ/2)·‖x - x_0‖² and the ridge are one quadratic.
    weight = base.regularization + objective.ridge
    anchor = (base.regularization / weight) * center if objective.ridge > 0 else None
    setting = _calls.make_setting(objective, data, base)

    def call(key: jax.Array, one: Plan) -> jax.Array:
        """A call of the size, the noise and the sampling of that plan."""
        own = setting._replace(replacement=one.sampling == "with_replacement")
        if one.method == "strongly_convex":
            sizes = levels(one.num_queries)
            return _calls.strongly_convex(
                key, own, sizes, center, one.beta, weight, one.constant, anchor
            )
        reach = jnp.where(
            weight > 0,
            jnp.minimum(2 * one.ball_radius, one.lipschitz / jnp.where(weight > 0, weight, 1.0)),
            one.ball_radius,
        )
        start = center if anchor is None else anchor
        return _calls.localized(
            key, own, one.num_queries, center, start, one.beta, reach, weight, anchor
        )

    drawn = plan.user_gradients * jax.tree.leaves(data.items)[0].shape[1]
    return accounting.spent(plan.point(key, call), loss, drawn, _counts.count(drawn))
