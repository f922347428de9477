"""The λ search of ball acceleration: which prox point does the step use?

What it computes: λ such that the minimizer x̂ of F + (λ/2)·‖x - y_λ‖² is at a distance h(λ) = ‖x̂ - y_λ‖ of
the order of the ball's radius r, but inside of the ball; y_λ moves with λ. h ≤ L/λ, and |dh/d ln λ| ≤ r +
1.5R, but h is not monotone. The rules, as state machines that ask one question a turn:

- ``bisection``: first λ_min, accepted unless h is above the window; then halving of [λ_min, λ_max] on the
  logarithmic scale until h is in the window. At its end λ_max' (the upper end, at which the ball is
  inactive).
- ``doubling``: a little below the last λ, then doubling until h is not above the window.
- ``multiplier``: for oracles without a ball that find their own λ_o: doubling or halving from the last λ
  until λ_o ≤ λ ≤ 4λ_o is bracketed, then halving of the bracket.

Source: Carmon, Jambulapati, Jin and Sidford 2021, Proposition 2, and Asi, Carmon, Jambulapati, Jin and
Sidford 2021, Appendix D.2.3, on which the thesis's Proposition 2.2.8 rests, re-derived;
``multiplier``: Monteiro and Svaiter 2013, with the window of Carmon, Hausler, Jambulapati, Jin and Sidford
2022; ``doubling`` is a practical rule without a bound on the iterations.

Formal guarantee: with answers within r/16 of x̂ and the window [r/2, 3r/4] an accepted λ has 7r/16 ≤ h ≤
13r/16, or is λ_min with h ≤ 13r/16; ``num_bisections`` questions find one.

Cost: one call of the line-search oracle a turn, at most ``max_searches`` turns.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dpsco_jax.solvers.ball.ball_oracles import BallAnswer

_LARGEST_RATIO = 4.001  # of λ to the oracle's own; a factor of two is found for certain


class Search(NamedTuple):
    """State of a search.

    Attributes:
        regularization: the λ to ask at next, or that was settled on.
        lower: bisection: h is above the window here.
        upper: bisection: the ball is inactive here.
        turns: questions asked.
        done: no more questions.
        accepted: the last answer was in the window (or below it at λ_min).
        inactive: the ball is inactive at the settled λ, so the step is valid.
        answer: the last answer.
        calls: ball problems solved, by kind.
    """

    regularization: Float[Array, ""]
    lower: Float[Array, ""]
    upper: Float[Array, ""]
    turns: Int[Array, ""]
    done: Bool[Array, ""]
    accepted: Bool[Array, ""]
    inactive: Bool[Array, ""]
    answer: BallAnswer
    calls: Int[Array, "kinds"]


def num_bisections(ratio: float, spread: float, width: float = 0.125) -> int:
    """Questions that always suffice, the one at λ_min included.

    h changes by at most r + 1.5R per unit of ln λ, so an interval of ln λ is accepted throughout whose length
    is the width of the window, less the errors of the answers, over that.

    Args:
        ratio: R/r.
        spread: λ_max/λ_min.
        width: of the set of true distances that are accepted for certain, relative to r: 1/4 less 2/16.
    """
    halvings = math.log2(max(math.log(spread), 1e-9) * (1 + 1.5 * ratio) / width)
    return 1 + max(1, math.ceil(halvings))


def loop(
    step: Callable[[Any], Any],
    active: Callable[[Any], Any],
    state: Any,
    most: int,
    static: bool,
) -> Any:
    """Repeats the step while active, at most ``most`` times: ``while_loop``, or a ``scan`` of static length.

    The step itself must become inactive after ``most`` repetitions for the two to agree.
    """
    if static:
        return traced(step, active, state, most, lambda state: None)[0]
    return jax.lax.while_loop(active, step, state)


def traced(
    step: Callable[[Any], Any],
    active: Callable[[Any], Any],
    state: Any,
    most: int,
    trace: Callable[[Any], Any],
) -> tuple[Any, Any]:
    """The loop of static length: the last state, and ``trace(state)`` after each repetition, stacked."""

    def turn(state: Any, _: None) -> tuple[Any, Any]:
        state = jax.lax.cond(active(state), step, lambda same: same, state)
        return state, trace(state)

    return jax.lax.scan(turn, state, None, length=most)


def search(
    key: jax.Array,
    rule: str,
    line_search: Callable[[Any, Any, Any], BallAnswer],
    center: Callable[[Any], Any],
    first: Any,
    limits: tuple[Any, Any],
    window: tuple[Any, Any],
    max_searches: int,
    reuse: bool,
    static: bool,
) -> Search:
    """Runs a search.

    Args:
        key: question t uses ``fold_in(key, t)``.
        rule: ``"bisection"``, ``"doubling"`` or ``"multiplier"``.
        line_search: the oracle.
        center: λ to y_λ.
        first: the λ that the other two rules start at.
        limits: λ_min and λ_max.
        window: distances between which an answer is accepted.
        max_searches: questions at most; static.
        reuse: whether the answer at the settled λ is wanted: bisection then spends its last question on it.
        static: ``scan`` in place of ``while_loop``.
    """
    dtype = center(limits[0]).dtype
    lower, upper = (jnp.asarray(limit, dtype) for limit in limits)
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
        last = turns >= max_searches
        not_far = distance <= window[1]  # false for NaN
        if rule == "bisection":
            near = (distance < window[0]) & (state.turns > 0)
            accepted = not_far & ~near
            low = jnp.where(not_far, state.lower, lam)
            high = jnp.where(near, lam, state.upper)
            middle = jnp.sqrt(low) * jnp.sqrt(high)  # the product may leave the range of float32
            proposal = jnp.where(turns >= max_searches - 1, high, middle) if reuse else middle
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

    return loop(turn, lambda state: ~state.done, state, max_searches, static)
