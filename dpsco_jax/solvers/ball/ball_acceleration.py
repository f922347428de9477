"""Ball acceleration: a convex function minimized through few subproblems on small balls.

What it computes: the accelerated proximal-point method of Monteiro and Svaiter over ball oracles. With weight
A and points x, v, an iteration chooses λ (see ``_search``), sets

    a = (1 + √(1 + 4λA))/(2λ)  (so that λa² = A + a),   y = (Ax + av)/(A + a),

asks the oracles for the minimizer x̂ of F(x) + (λ/2)‖x - y‖² over the ball of radius r around y, twice and
independently: x' = ball(y, λ), x̃ = prox(y, λ), and steps v' = Π(v - s·aλ(y - x̃)), A' = A + a.

Source: thesis, Proposition 2.2.8 and Appendix 2.6, which states the framework without pseudo-code (after
Carmon, Jambulapati, Jiang, Jin, Lee, Sidford and Tian 2020; Asi, Carmon, Jambulapati, Jin and Sidford 2021);
constants derived here. ``search="adaptive"``: Carmon, Hausler, Jambulapati, Jin and Sidford 2022, Algorithm
1.

Formal guarantee: with s = 1/2, where the ball is inactive at x̂ and E objective(x') ≤ minimum + φ,

    E[A'(F(x')-F*) + ‖v'-x*‖²] ≤ A(F(x)-F*) + ‖v-x*‖² - ¼λA'‖x̂-y‖² + A'φ + ¼λA'·Var(x̃) + 2R·aλ·‖E x̃ - x̂‖,

where Π is the projection onto the ball of radius R around the start (whatever else holds x*, if E x̃ = x̂).
With the accuracies of ``Plan.accuracies`` it stays below 3R², so A ≥ 3R²/ε certifies E F(x) - F(x*) ≤ ε, and
that is reached within 14·K·log(3κ) + 3.5·K·log(κ)^(p/2) iterations. Exact oracles (s = 1): A(F(x)-F*) +
½‖v-x*‖² falls, by ½λA'‖x̂-y‖² at least, and A ≥ R²/(2ε) certifies; so too for the adaptive rule. Nothing is
private by itself.

Cost: with bisection at most ``max_searches`` + 2 oracle calls an iteration, with the adaptive rule one.

Example:
    >>> import jax
    >>> from dpsco_jax.problems import gaussian_smoothing, synthetic
    >>> from dpsco_jax.solvers.convex import ball_acceleration
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = ball_acceleration.plan(lipschitz=1.0, distance=5.0, ball_radius=1.0, excess=1e-3, exact=True)
    >>> solution = ball_acceleration.solve(plan, made.objective, made.data, jax.numpy.zeros(3))
    >>> int(solution.status), bool(abs(solution.params - made.minimizer).max() < 0.1)
    (0, True)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from dpsco_jax import _checks, _counts, _sharding, privacy
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, mean_loss
from dpsco_jax.solvers import _arguments
from dpsco_jax.solvers.ball import _search, exact_ball_oracles, newton_ball_oracles
from dpsco_jax.solvers.ball._plan import SEARCHES, Plan, plan
from dpsco_jax.solvers.ball._step import State, init, step
from dpsco_jax.solvers.ball.ball_oracles import BallOracles, OracleCalls
from dpsco_jax.solvers.solution import Solution, Status

__all__ = ["SEARCHES", "Plan", "Trajectory", "plan", "run", "solve"]


class Trajectory(NamedTuple):
    """The end of a run.

    Attributes:
        params: x, ``[dim]``.
        weight: A.
        iterations: outer iterations made.
        oracle_calls: of each oracle, int32.
        calls: ball problems solved, by the oracles' kinds, ``[kinds]`` int32.
        unaccepted: searches that ended without an accepted answer.
        certified: whether A reached the plan's target with every step valid; then the accuracy is the plan's,
            if the oracles keep theirs. Always false for ``search="none"``, which has no weight.
    """

    params: Float[Array, "dim"]
    weight: Float[Array, ""]
    iterations: Int[Array, ""]
    oracle_calls: OracleCalls
    calls: Int[Array, "kinds"]
    unaccepted: Int[Array, ""]
    certified: Bool[Array, ""]
    trace: Any = None


def run(
    key: Any,
    plan: Plan,
    oracles: BallOracles,
    start: Float[Array, "dim"],
    project: Callable[[Any], Any] | None = None,
    *,
    static: bool = False,
    stop: Callable[[Any], Any] | None = None,
    trace: Callable[[State], Any] | None = None,
) -> Trajectory:
    """Runs the plan. Pure JAX: jit, and map over key, the plan's numbers and start.

    Args:
        key: a typed key; deterministic oracles take it and leave it.
        plan: of ``plan``.
        oracles: see ``ball_oracles``; all three count the same kinds.
        start: x_0, flat.
        project: projection of v onto a convex set that holds start and comparison point, such as the ball of
            radius R around the start; the oracles must keep to the same set.
        static: loops of static length (``scan`` with a done flag) over ``num_iterations`` and
            ``max_searches``, for private use: the oracle calls that could be made are all budgeted.
        stop: ``stop(x)`` ends the run early, for study; not certified then.
        trace: ``trace(state)`` after each iteration, for study; after the end its last value is repeated.
    """
    state = init(key, plan, oracles, start)

    def active(state: State) -> Any:
        on = state.iterations < plan.num_iterations
        if plan.search != "none":
            on &= state.weight < plan.target_weight
        return on if stop is None else on & ~stop(state.point)

    def advance(state: State) -> State:
        return step(key, plan, oracles, state, project, static)

    seen = None
    if trace is None:
        state = _search.loop(advance, active, state, plan.num_iterations, static)
    else:
        state, seen = _search.traced(advance, active, state, plan.num_iterations, trace)
    reached = state.weight >= plan.target_weight
    return Trajectory(
        params=state.point,
        weight=state.weight,
        iterations=state.iterations,
        oracle_calls=state.oracle_calls,
        calls=state.calls,
        unaccepted=state.unaccepted,
        certified=reached & state.valid & (plan.search != "none"),
        trace=seen,
    )


@_sharding.solver
def solve(
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: Any,
    inner: str = "gradient",
) -> Solution:
    """Runs the plan with exact oracles on the mean loss of all users. Pure JAX, deterministic, not private.

    Args:
        plan: of ``plan``, with ``exact=True``.
        objective: smooth, on the whole space, such as a loss of ``gaussian_smoothing.smoothed``; static:
            close over it when compiling.
        data: of all users.
        params: the starting point, a pytree.
        inner: ``"gradient"`` (any dimension) or ``"newton"`` (dim² memory) for the subproblems.

    Returns:
        A solution whose ``privacy`` is unbounded and whose ``status`` is ``HALTED`` where the run ended
        without a certificate; ``unprivate["trajectory"]`` holds the ``Trajectory``, ``gradients`` the item
        gradients (a Hessian counts as dim of them).

    Raises:
        ValueError: if the objective is not smooth or has a domain, or ``inner`` is unknown.
    """
    _arguments.require_problem(Plan, plan, objective, data, params)
    _checks.require_choice("inner", inner, ("gradient", "newton"))
    if objective.smoothness is None:
        raise ValueError(f"objective must be smooth, got smoothness {objective.smoothness!r}")
    if math.isfinite(float(np.asarray(objective.domain.diameter))):
        diameter = objective.domain.diameter
        raise ValueError(f"objective.domain must be the whole space, got diameter {diameter!r}")
    start, unravel = ravel_pytree(params)
    loss = mean_loss(objective)

    def value(point: Any) -> Any:
        return loss(unravel(point), data)

    gradient = jax.grad(value)
    if inner == "newton":
        oracles = newton_ball_oracles.newton(gradient, jax.hessian(value), plan.ball_radius)
    else:
        smoothness = objective.smoothness + objective.ridge
        oracles = exact_ball_oracles.accelerated_gradient(gradient, smoothness, plan.ball_radius)
    end = run(jax.random.key(0), plan, oracles, start)
    passes = _counts.times(end.calls[1], start.size + 1 if inner == "newton" else 1)
    items = math.prod(jax.tree.leaves(data.items)[0].shape[:2])
    finite = jnp.all(jnp.isfinite(end.params))
    status = jnp.where(end.certified, int(Status.OK), int(Status.HALTED))
    return Solution(
        params=unravel(end.params),
        privacy=privacy.unbounded(),
        status=jnp.where(finite, status, int(Status.DIVERGED)).astype(jnp.int32),
        gradients=_counts.times(passes, items),
        unprivate={"trajectory": end},
    )
