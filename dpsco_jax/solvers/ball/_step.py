"""One iteration of ball acceleration: coefficients, λ search, the two points, the dual step.

What it computes: see ``ball_acceleration``; this file holds its state and its step.

Source: as there.

Formal guarantee: as there.

Cost: a search and two oracle calls; one call where answers are reused and nothing is searched.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dpsco_jax import _keys
from dpsco_jax.solvers.ball import _search
from dpsco_jax.solvers.ball._plan import Plan
from dpsco_jax.solvers.ball.ball_oracles import BallAnswer, BallOracles, OracleCalls


class State(NamedTuple):
    """What an iteration carries on.

    Attributes:
        start: x_0, ``[dim]``.
        point: x, ``[dim]``.
        dual: v, ``[dim]``.
        weight: A.
        guess: λ of the last iteration, or λ' of the adaptive rule.
        iterations: t.
        oracle_calls: of each oracle.
        calls: ball problems solved, by the oracles' kinds, ``[kinds]``.
        unaccepted: searches that ended without an accepted answer.
        valid: whether the ball was inactive, as far as measured, in all iterations.
    """

    start: Float[Array, "dim"]
    point: Float[Array, "dim"]
    dual: Float[Array, "dim"]
    weight: Float[Array, ""]
    guess: Float[Array, ""]
    iterations: Int[Array, ""]
    oracle_calls: OracleCalls
    calls: Int[Array, "kinds"]
    unaccepted: Int[Array, ""]
    valid: Bool[Array, ""]


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
        start=start,
        point=start,
        dual=start,
        weight=jnp.asarray(plan.start_weight, start.dtype),
        guess=scalar,
        iterations=zero,
        oracle_calls=OracleCalls(zero, zero, zero),
        calls=jnp.zeros(kinds, jnp.int32),
        unaccepted=zero,
        valid=jnp.ones((), bool),
    )


def step(
    key: Any,
    plan: Plan,
    oracles: BallOracles,
    state: State,
    project: Callable[[Any], Any] | None = None,
    static: bool = False,
) -> State:
    """One iteration; see the file's docstring.

    Args:
        key: of the run; iteration t uses ``_keys.of_part(key, t)``.
        plan: of ``plan``.
        oracles: see ``ball_oracles``.
        state: of ``init`` or ``step``.
        project: projection of v onto a convex set that holds start and comparison point.
        static: searches of a static length (``scan``).
    """
    key = _keys.of_part(key, state.iterations)
    if plan.search == "adaptive":
        return _adaptive_step(key, plan, oracles, state, project)
    if plan.search == "none":
        lam = jnp.asarray(plan.regularization, state.point.dtype)
        answer = oracles.ball(key, state.point, lam)
        return _counted(state, answer.calls, ball=1)._replace(
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
        state = _counted(state, answer.calls, ball=1)
    else:
        found = _search.search(
            search_key,
            plan.search,
            oracles.line_search,
            center,
            state.guess,
            (plan.regularization, plan.largest),
            (plan.window_lower, plan.window_upper),
            plan.max_searches,
            plan.reuse,
            static,
        )
        lam, answer = found.regularization, found.answer
        y = center(lam)
        state = _counted(state, found.calls, line_search=found.turns)
        state = state._replace(
            unaccepted=state.unaccepted + ~found.accepted,
            valid=state.valid & found.inactive,
            guess=_next_guess(plan, state.guess, found),
        )
        if not plan.reuse:
            answer = oracles.ball(ball_key, y, lam)
            state = _counted(state, answer.calls, ball=1)
    if plan.reuse:
        prox = answer
    else:
        prox = oracles.prox(prox_key, y, lam)
        state = _counted(state, prox.calls, prox=1)
    a, _ = coefficients(lam, state.weight)
    dual = state.dual - plan.step * a * _gradient(prox, y, lam)
    return state._replace(
        point=answer.point,
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
    if oracles.line_search is oracles.ball:
        answer = oracles.ball(key, y, state.guess)
    else:
        # The first call may look harder for a good λ.
        first = state.iterations == 0
        answer = jax.lax.cond(first, oracles.line_search, oracles.ball, key, y, state.guess)
    multiplier = answer.multiplier
    # In the first iteration x = v, so y does not depend on λ'.
    guess = jnp.where(state.iterations == 0, multiplier, state.guess)
    a, _ = coefficients(guess, state.weight)
    gamma = jnp.minimum(1.0, guess / multiplier)
    weight = state.weight + gamma * a
    mixed = gamma * (state.weight + a) / weight
    dual = state.dual - plan.step * gamma * a * _gradient(answer, y, multiplier)
    return _counted(state, answer.calls, ball=1)._replace(
        point=state.point + mixed * (answer.point - state.point),
        dual=dual if project is None else project(dual),
        weight=weight,
        guess=jnp.where(multiplier <= guess, guess / 2, 2 * guess),
        iterations=state.iterations + 1,
    )


def _counted(state: State, calls: Any, line_search: Any = 0, ball: Any = 0, prox: Any = 0) -> State:
    made = state.oracle_calls
    made = OracleCalls(made.line_search + line_search, made.ball + ball, made.prox + prox)
    return state._replace(oracle_calls=made, calls=state.calls + calls)


def _next_guess(plan: Plan, guess: Any, found: _search.Search) -> Any:
    lam = found.regularization
    if plan.search == "multiplier":
        return jnp.where(lam > guess, 2 * guess, guess / 2)
    # A search that was cut off above the window goes on from there in the next iteration.
    return jnp.where(found.accepted, lam, 2 * lam)


def _gradient(answer: BallAnswer, center: Any, regularization: Any) -> Any:
    if answer.gradient is not None:
        return answer.gradient
    return regularization * (center - answer.point)
