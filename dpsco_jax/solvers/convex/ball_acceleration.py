"""Ball acceleration: a convex function minimized through few subproblems on small balls.

What it computes: the accelerated proximal-point method of Monteiro and Svaiter over ball oracles. With weight
A and points x, v, an iteration chooses λ (see ``_ball_search``), sets

    a = (1 + √(1 + 4λA))/(2λ)  (so that λa² = A + a),   y = (Ax + av)/(A + a),

asks the oracles for the minimizer x̂ of F(x) + (λ/2)‖x - y‖² over the ball of radius r around y, twice and
independently: x' = ball(y, λ), x̃ = prox(y, λ), and steps v' = Π(v - s·aλ(y - x̃)), A' = A + a.

Source: thesis, Proposition 2.2.8 and Appendix 2.6, which states the framework without pseudo-code (after
Carmon, Jambulapati, Jiang, Jin, Lee, Sidford and Tian 2020; Asi, Carmon, Jambulapati, Jin and Sidford 2021);
constants derived here. ``search="adaptive"``: Carmon, Hausler, Jambulapati, Jin and Sidford 2022, Algorithm
1.

Formal guarantee: with s = 1/2, where the ball is inactive at x̂ and E objective(x') ≤ minimum + φ,

    E[A'(F(x')-F*) + ‖v'-x*‖²] ≤ A(F(x)-F*) + ‖v-x*‖² - ¼λA'‖x̂-y‖² + A'φ + ¼λA'·Var(x̃) + 2R·aλ·‖E x̃ - x̂‖.

With the accuracies of ``Plan.accuracies`` it stays below 3R², so A ≥ 3R²/ε certifies E F(x) - F(x*) ≤ ε, and
that is reached within 14·K·log(3κ) + 3.5·K·log(κ)^(p/2) iterations. Exact oracles (s = 1): A(F(x)-F*) +
½‖v-x*‖² falls, by ½λA'‖x̂-y‖² at least, and A ≥ R²/(2ε) certifies; so too for the adaptive rule. Nothing is
private by itself.

Cost: with bisection at most ``max_searches`` + 2 oracle calls an iteration, with the adaptive rule one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dpsco_jax.solvers.convex import _ball_search
from dpsco_jax.solvers.convex._ball_plan import SEARCHES, Plan, plan
from dpsco_jax.solvers.convex.ball_oracles import BallOracles

__all__ = ["SEARCHES", "Plan", "State", "Trajectory", "coefficients", "init", "plan", "run", "step"]

_LINE_SEARCH, _BALL, _PROX = range(3)


class State(NamedTuple):
    """What an iteration carries on.

    Attributes:
        key: of the run; iteration t uses ``fold_in(key, t)``.
        start: x_0, ``[dim]``.
        point: x, ``[dim]``.
        dual: v, ``[dim]``.
        weight: A.
        guess: λ of the last iteration, or λ' of the adaptive rule.
        iterations: t.
        oracle_calls: of line search, ball and prox oracle, ``[3]``.
        calls: ball problems solved, by the oracles' kinds, ``[kinds]``.
        unaccepted: searches that ended without an accepted answer.
        valid: whether the ball was inactive, as far as measured, in all iterations.
    """

    key: Any
    start: Float[Array, "dim"]
    point: Float[Array, "dim"]
    dual: Float[Array, "dim"]
    weight: Float[Array, ""]
    guess: Float[Array, ""]
    iterations: Int[Array, ""]
    oracle_calls: Int[Array, "3"]
    calls: Int[Array, "kinds"]
    unaccepted: Int[Array, ""]
    valid: Bool[Array, ""]


class Trajectory(NamedTuple):
    """The end of a run.

    Attributes:
        params: x, ``[dim]``.
        weight: A.
        iterations: outer iterations made.
        oracle_calls: of line search, ball and prox oracle, ``[3]`` int32.
        calls: ball problems solved, by the oracles' kinds, ``[kinds]`` int32.
        unaccepted: searches that ended without an accepted answer.
        certified: whether A reached the plan's target with every step valid; then the accuracy is the plan's,
            if the oracles keep theirs. Always false for ``search="none"``, which has no weight.
    """

    params: Float[Array, "dim"]
    weight: Float[Array, ""]
    iterations: Int[Array, ""]
    oracle_calls: Int[Array, "3"]
    calls: Int[Array, "kinds"]
    unaccepted: Int[Array, ""]
    certified: Bool[Array, ""]


def coefficients(regularization: Any, weight: Any) -> tuple[Any, Any]:
    """The step a with λa² = A + a, and a/(A + a): the share of v in y."""
    a = (1 + jnp.sqrt(1 + 4 * regularization * weight)) / (2 * regularization)
    return a, a / (weight + a)


def init(key: Any, plan: Plan, oracles: BallOracles, start: Float[Array, "dim"]) -> State:
    """The state before the first iteration."""
    start = jnp.asarray(start, jnp.result_type(float, start))
    scalar = jnp.asarray(plan.regularization, start.dtype)
    kinds = jax.eval_shape(oracles.ball, key, start, scalar).calls.shape
    zero = jnp.zeros((), jnp.int32)
    return State(
        key=key,
        start=start,
        point=start,
        dual=start,
        weight=jnp.asarray(plan.start_weight, start.dtype),
        guess=scalar,
        iterations=zero,
        oracle_calls=jnp.zeros(3, jnp.int32),
        calls=jnp.zeros(kinds, jnp.int32),
        unaccepted=zero,
        valid=jnp.ones((), bool),
    )


def step(
    plan: Plan,
    oracles: BallOracles,
    state: State,
    project: Callable[[Any], Any] | None = None,
    static: bool = False,
) -> State:
    """One iteration; see the file's docstring.

    Args:
        plan: of ``plan``.
        oracles: see ``ball_oracles``.
        state: of ``init`` or ``step``.
        project: projection of v onto a convex set that holds start and comparison point.
        static: searches of a static length (``scan``).
    """
    key = jax.random.fold_in(state.key, state.iterations)
    if plan.search == "adaptive":
        return _adaptive_step(key, plan, oracles, state, project)
    if plan.search == "none":
        lam = jnp.asarray(plan.regularization, state.point.dtype)
        answer = oracles.ball(key, state.point, lam)
        return _counted(state, _BALL, answer.calls)._replace(
            point=answer.point, iterations=state.iterations + 1
        )

    def center(lam: Any) -> Any:
        share = coefficients(lam, state.weight)[1]
        return state.point + share * (state.dual - state.point)

    search_key, ball_key, prox_key = jax.random.split(key, 3)
    if plan.search == "fixed":
        lam = jnp.asarray(plan.regularization, state.point.dtype)
        y = center(lam)
        answer = oracles.ball(ball_key, y, lam)
        state = _counted(state, _BALL, answer.calls)
        reused = answer
    else:
        found = _ball_search.search(
            search_key,
            plan.search,
            oracles.line_search,
            center,
            state.guess / 1.5,
            (plan.regularization, plan.largest),
            (plan.window_lower, plan.window_upper),
            plan.max_searches,
            plan.reuse,
            static,
        )
        lam, reused = found.regularization, found.answer
        y = center(lam)
        state = _counted(state, _LINE_SEARCH, found.calls, found.turns)
        state = state._replace(
            unaccepted=state.unaccepted + ~found.accepted,
            valid=state.valid & found.inactive,
            # A search that was cut off above the window goes on from there in the next iteration.
            guess=jnp.where(found.accepted, lam, 2 * lam),
        )
        if not plan.reuse:
            answer = oracles.ball(ball_key, y, lam)
            state = _counted(state, _BALL, answer.calls)
    if plan.reuse:
        point = tilde = reused.point
    else:
        prox = oracles.prox(prox_key, y, lam)
        state = _counted(state, _PROX, prox.calls)
        point, tilde = answer.point, prox.point
    a, _ = coefficients(lam, state.weight)
    dual = state.dual - plan.step * a * lam * (y - tilde)
    return state._replace(
        point=point,
        dual=dual if project is None else project(dual),
        weight=state.weight + a,
        iterations=state.iterations + 1,
    )


def _adaptive_step(
    key: Any, plan: Plan, oracles: BallOracles, state: State, project: Callable[[Any], Any] | None
) -> State:
    """One call: the step is shortened after the fact if λ' was below the oracle's λ_o."""
    share = coefficients(state.guess, state.weight)[1]
    y = state.point + share * (state.dual - state.point)
    answer = oracles.ball(key, y, state.guess)
    multiplier = answer.multiplier
    # In the first iteration x = v, so y does not depend on λ'.
    guess = jnp.where(state.iterations == 0, multiplier, state.guess)
    a, _ = coefficients(guess, state.weight)
    gamma = jnp.minimum(1.0, guess / multiplier)
    weight = state.weight + gamma * a
    mixed = gamma * (state.weight + a) / weight
    dual = state.dual - plan.step * gamma * a * multiplier * (y - answer.point)
    return _counted(state, _BALL, answer.calls)._replace(
        point=state.point + mixed * (answer.point - state.point),
        dual=dual if project is None else project(dual),
        weight=weight,
        guess=jnp.where(multiplier <= guess, guess / 2, 2 * guess),
        iterations=state.iterations + 1,
    )


def _counted(state: State, oracle: int, calls: Any, times: Any = 1) -> State:
    return state._replace(
        oracle_calls=state.oracle_calls.at[oracle].add(times), calls=state.calls + calls
    )


def run(
    key: Any,
    plan: Plan,
    oracles: BallOracles,
    start: Float[Array, "dim"],
    project: Callable[[Any], Any] | None = None,
    *,
    static: bool = False,
    stop: Callable[[Any], Any] | None = None,
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
    """
    state = init(key, plan, oracles, start)

    def active(state: State) -> Any:
        on = state.iterations < plan.num_iterations
        if plan.search != "none":
            on &= state.weight < plan.target_weight
        return on if stop is None else on & ~stop(state.point)

    def advance(state: State) -> State:
        return step(plan, oracles, state, project, static)

    state = _ball_search.loop(advance, active, state, plan.num_iterations, static)
    reached = state.weight >= plan.target_weight
    return Trajectory(
        params=state.point,
        weight=state.weight,
        iterations=state.iterations,
        oracle_calls=state.oracle_calls,
        calls=state.calls,
        unaccepted=state.unaccepted,
        certified=reached & state.valid & (plan.search != "none"),
    )
