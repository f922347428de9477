"""One iteration of ball acceleration: coefficients, the λ search, the two points, the dual step.

The search looks for a λ such that the minimizer x̂ of F + (λ/2)·‖x - y_λ‖² is at a distance h(λ) = ‖x̂ - y_λ‖
of the order of the ball's radius r, but inside of the ball; y_λ moves with λ. h ≤ L/λ, and |dh/d ln λ| ≤ r +
1.5R, but h is not monotone. The rules, as state machines that ask the line-search oracle one question a turn:

- ``bisection``: first λ_min, accepted unless h is above the window; then halving of [λ_min, λ_max] on the
  logarithmic scale until h is in the window. At its end λ_max' (the upper end, at which the ball is
  inactive). With answers within r/16 of x̂ and the window [r/2, 3r/4] an accepted λ has 7r/16 ≤ h ≤ 13r/16,
  or is λ_min with h ≤ 13r/16; ``num_bisections`` questions find one. (Carmon, Jambulapati, Jin and Sidford
  2021, Proposition 2, and Asi et al. 2021, Appendix D.2.3, re-derived.)
- ``doubling``: a little below the last λ, then doubling until h is not above the window. A practical rule
  without a bound on the iterations.
- ``multiplier``: for oracles without a ball that find their own λ_o: doubling or halving from the last λ
  until λ_o ≤ λ ≤ 4λ_o is bracketed, then halving of the bracket. (Monteiro and Svaiter 2013, with the window
  of Carmon, Hausler, Jambulapati, Jin and Sidford 2022.)
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dpsco_jax import _keys
from dpsco_jax.solvers.ball.ball_oracles import BallAnswer, BallOracles, OracleCalls

_LARGEST_RATIO = 4.001  # of λ to the oracle's own; a factor of two is found for certain


class State(NamedTuple):
    """What an iteration carries on."""

    point: Float[Array, "dim"]  # x
    dual: Float[Array, "dim"]  # v
    weight: Float[Array, ""]  # A
    guess: Float[Array, ""]  # λ of the last iteration, or λ' of the adaptive rule
    iterations: Int[Array, ""]
    oracle_calls: OracleCalls
    calls: Int[Array, "kinds"]  # ball problems solved, by the oracles' kinds
    unaccepted: Int[Array, ""]  # searches that ended without an accepted answer
    valid: Bool[Array, ""]  # whether the ball was inactive, as far as measured, in all iterations


class Search(NamedTuple):
    """State of a search."""

    regularization: Float[Array, ""]  # the λ to ask at next, or that was settled on
    lower: Float[Array, ""]  # bisection: h is above the window here
    upper: Float[Array, ""]  # bisection: the ball is inactive here
    turns: Int[Array, ""]  # questions asked
    done: Bool[Array, ""]
    accepted: Bool[Array, ""]  # the last answer was in the window (or below it at λ_min)
    inactive: Bool[Array, ""]  # the ball is inactive at the settled λ, so the step is valid
    answer: BallAnswer  # the last one
    calls: Int[Array, "kinds"]  # ball problems solved, by kind


def coefficients(regularization: Any, weight: Any) -> tuple[Any, Any]:
    """The step a with λa² = A + a, and a/(A + a): the share of v in y."""
    a = (1 + jnp.sqrt(1 + 4 * regularization * weight)) / (2 * regularization)
    return a, a / (weight + a)


def init(key: Any, plan: Any, oracles: BallOracles, start: Float[Array, "dim"]) -> State:
    """The state before the first iteration."""
    start = jnp.asarray(start, jnp.result_type(float, start))
    scalar = jnp.asarray(plan.regularization, start.dtype)
    kinds = jax.eval_shape(oracles.ball, key, start, scalar).calls.shape
    zero = jnp.zeros((), jnp.int32)
    return State(
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
    plan: Any,
    oracles: BallOracles,
    state: State,
    project: Callable[[Any], Any] | None = None,
) -> State:
    """One iteration; the key is that of the run, ``project`` as for ``ball_acceleration.run``."""
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
        found = search(search_key, plan, oracles.line_search, center, state.guess)
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
    key: Any, plan: Any, oracles: BallOracles, state: State, project: Callable[[Any], Any] | None
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


def _next_guess(plan: Any, guess: Any, found: Search) -> Any:
    lam = found.regularization
    if plan.search == "multiplier":
        return jnp.where(lam > guess, 2 * guess, guess / 2)
    # A search that was cut off above the window goes on from there in the next iteration.
    return jnp.where(found.accepted, lam, 2 * lam)


def _gradient(answer: BallAnswer, center: Any, regularization: Any) -> Any:
    if answer.gradient is not None:
        return answer.gradient
    return regularization * (center - answer.point)


def search(
    key: jax.Array,
    plan: Any,
    line_search: Callable[[Any, Any, Any], BallAnswer],
    center: Callable[[Any], Any],
    first: Any,
) -> Search:
    """Runs the search of a plan that has one; ``center`` is λ to y_λ, and ``bisection`` ignores ``first``."""
    rule, most, reuse = plan.search, plan.max_searches, plan.reuse
    dtype = center(plan.regularization).dtype
    lower, upper = (jnp.asarray(limit, dtype) for limit in (plan.regularization, plan.largest))
    first = jnp.asarray(first, dtype)
    start = {
        "bisection": lower,
        "doubling": jnp.clip(first / 1.5, lower, upper),
        "multiplier": first,
    }[rule]
    shapes = jax.eval_shape(line_search, key, center(start), start)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    no = jnp.zeros((), bool)
    if rule == "multiplier":
        lower, upper = jnp.zeros_like(lower), jnp.full_like(upper, jnp.inf)
    state = Search(
        regularization=start,
        lower=lower,
        upper=upper,
        turns=jnp.zeros((), jnp.int32),
        done=no,
        accepted=no,
        inactive=no,
        answer=nothing,
        calls=nothing.calls,
    )

    def turn(state: Search) -> Search:
        lam = state.regularization
        y = center(lam)
        answer = line_search(jax.random.fold_in(key, state.turns), y, lam)
        distance = jnp.linalg.norm(answer.point - y)
        turns = state.turns + 1
        last = turns >= most
        not_far = distance <= plan.window_upper  # false for NaN
        if rule == "bisection":
            near = (distance < plan.window_lower) & (state.turns > 0)
            accepted = not_far & ~near
            low = jnp.where(not_far, state.lower, lam)
            high = jnp.where(near, lam, state.upper)
            middle = jnp.sqrt(low) * jnp.sqrt(high)  # the product may leave the range of float32
            proposal = jnp.where(turns >= most - 1, high, middle) if reuse else middle
            # Settling on the upper end without an answer there: the ball is inactive at it.
            settled = jnp.where(accepted, lam, high) if not reuse else lam
            inactive = not_far | (not reuse)
        elif rule == "doubling":
            accepted, inactive = not_far, not_far
            low, high = state.lower, state.upper
            proposal = jnp.minimum(2 * lam, high)
            settled = lam
        else:
            small, large = lam < answer.multiplier, lam > _LARGEST_RATIO * answer.multiplier
            accepted = inactive = ~(small | large)
            low = jnp.where(small, lam, state.lower)
            high = jnp.where(large, lam, state.upper)
            open_ended = jnp.where(low > 0, 2 * lam, lam / 2)
            bracketed = (low > 0) & (high < jnp.inf)
            proposal = jnp.where(bracketed, jnp.sqrt(low) * jnp.sqrt(high), open_ended)
            settled = lam
        done = accepted | last
        return Search(
            regularization=jnp.where(done, settled, proposal),
            lower=low,
            upper=high,
            turns=turns,
            done=done,
            accepted=accepted,
            inactive=inactive,
            answer=answer,
            calls=state.calls + answer.calls,
        )

    return jax.lax.while_loop(lambda state: ~state.done, turn, state)


def num_bisections(ratio: float, spread: float, width: float = 0.125) -> int:
    """Questions that always suffice, the one at λ_min included.

    h changes by at most r + 1.5R per unit of ln λ, so an interval of ln λ is accepted throughout whose length
    is ``width``·r over that: the width of the set of true distances that are accepted for certain, a window
    of 1/4 less 2/16 for the errors of the answers. ``ratio`` is R/r, ``spread`` λ_max/λ_min.
    """
    halvings = math.log2(max(math.log(spread), 1e-9) * (1 + 1.5 * ratio) / width)
    return 1 + max(1, math.ceil(halvings))
