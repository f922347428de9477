"""The sparse vector technique: threshold tests on a stream of queries, paid for by the answer.

What it computes: for adaptively chosen scalar queries q_1, q_2, ... whether q_t + noise reaches a noisy
threshold. ``above_threshold`` goes on while queries are below and halts after ``max_answers`` queries found
above; ``below_threshold`` goes on while queries are above and halts at the first below. ``fixed_threshold``
is the first with one threshold for all answers, ``resetting`` with noise that is bounded.

Source: Dwork and Roth 2014, Algorithms 1 and 2; Lyu, Su and Li 2017 (which variants are private);
Algorithms 27, 28 (halt at the first below), 34 (halt at the first above) and 41 (``resetting``) of the
thesis. The Rényi curve of ``fixed_threshold`` is own: docs/theory/sparse_vector.md.

Formal guarantee: if neighbouring data sets move each query by at most ``sensitivity``, everything
returned until the halt costs ``loss`` under that relation, for any number of adaptive queries; other
releases on the same data may come in between (they compose). ``above_threshold`` and ``below_threshold`` are
pure ε-DP, ``resetting`` is (ε, δ)-DP, and ``fixed_threshold`` is proven in docs/theory/sparse_vector.md,
also where one query in the stream moves without bound and its answer is not released: a threshold that is
drawn anew after such an answer would give it away. Derivation for one answer, with
threshold noise ξ ~ Lap(2Δ/ε) and query noise ν_t ~ Lap(4Δ/ε): fix all ν but that of the halting
query k. The transcript is "the queries before k on their side of the threshold, query k on the
other". Moving the data moves queries by at most Δ; shift ξ by Δ so that those before k stay on
their side (cost e^(ε/2)), and ν_k by 2Δ so that query k stays on the other (cost e^(ε/2)). Several
answers are several such streams at ε / max_answers each, with the threshold noise drawn anew after
each answer. A non-finite query counts as below; the sensitivity must hold with that convention.

Cost: two Laplace draws per query, one for a fixed threshold; state of four scalars.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dpsco_jax import privacy
from dpsco_jax._checks import (
    require,
    require_finite,
    require_instance,
    require_integer,
    require_key,
    require_number,
    require_positive,
    require_real,
)
from dpsco_jax._numerics import as_floats, wide_number
from dpsco_jax._parts import require_same_everywhere
from dpsco_jax.mechanisms import _draws


class SparseVectorState(NamedTuple):
    """State of a stream of threshold tests.

    Attributes:
        noisy_threshold: secret: never to be released.
        answers: how many queries have ended a stream so far.
        halted: whether the budget is used up; all later tests are False.
        queries: how many were asked, those after the halt included.
    """

    noisy_threshold: Float[Array, ""]
    answers: Int[Array, ""]
    halted: Bool[Array, ""]
    queries: Int[Array, ""]


class SparseVector(NamedTuple):
    """A stream of threshold tests.

    Attributes:
        init: ``init(key) -> state``; draws the threshold's noise.
        step: ``step(key, state, query) -> (above, state)``; ``above`` is a scalar bool, False after
            the halt. A fresh key for every query.
        loss: what the whole stream costs, however long it is.
    """

    init: Callable[[jax.Array], SparseVectorState]
    step: Callable[
        [jax.Array, SparseVectorState, jax.typing.ArrayLike], tuple[jax.Array, SparseVectorState]
    ]
    loss: privacy.PrivacyLoss


def above_threshold(
    threshold: jax.typing.ArrayLike,
    epsilon: jax.typing.ArrayLike,
    sensitivity: jax.typing.ArrayLike,
    max_answers: int = 1,
) -> SparseVector:
    """Tests queries until ``max_answers`` of them were found above the threshold.

    Args:
        threshold: public; may be traced, as may ``epsilon`` and ``sensitivity``.
        epsilon: positive pure-DP budget of the whole stream.
        sensitivity: positive: how far one query can move between neighbours.
        max_answers: number of "above" answers after which the stream halts; ε is split evenly.
    """
    return _sparse_vector(threshold, epsilon, sensitivity, max_answers, answer_is_above=True)


def below_threshold(
    threshold: jax.typing.ArrayLike,
    epsilon: jax.typing.ArrayLike,
    sensitivity: jax.typing.ArrayLike,
) -> SparseVector:
    """Tests queries until the first is found below the threshold.

    Args:
        threshold: public; may be traced, as may ``epsilon`` and ``sensitivity``.
        epsilon: positive pure-DP budget of the whole stream.
        sensitivity: positive: how far one query can move between neighbours.
    """
    return _sparse_vector(threshold, epsilon, sensitivity, 1, answer_is_above=False)


def fixed_threshold(
    threshold: jax.typing.ArrayLike,
    threshold_epsilon: jax.typing.ArrayLike,
    answer_epsilon: jax.typing.ArrayLike,
    sensitivity: jax.typing.ArrayLike,
    max_answers: int = 1,
) -> SparseVector:
    """Tests queries against one noisy threshold until ``max_answers`` of them were found above it.

    Args:
        threshold: public; may be traced, as may the next three.
        threshold_epsilon: positive; the threshold has Laplace noise of scale sensitivity / threshold_epsilon,
            drawn once.
        answer_epsilon: positive; each query has fresh Laplace noise of scale 2·sensitivity / answer_epsilon.
        sensitivity: positive: how far one query can move between neighbours.
        max_answers: number of "above" answers after which the stream halts.

    Returns:
        The stream; what it costs is ``fixed_threshold_loss``.

    Example:
        >>> import jax
        >>> from dpsco_jax.mechanisms import sparse_vector
        >>> stream = sparse_vector.fixed_threshold(10.0, 0.5, 0.1, sensitivity=0.01, max_answers=2)
        >>> queries = jax.numpy.array([0.0, 20.0, 0.0, 30.0, 40.0])
        >>> sparse_vector.outcomes(jax.random.key(0), stream, queries).tolist()
        [0, 1, 0, 1, -1]
    """
    require_positive("sensitivity", sensitivity)
    loss = fixed_threshold_loss(threshold_epsilon, answer_epsilon, max_answers)
    change, first, each = map(wide_number, (sensitivity, threshold_epsilon, answer_epsilon))
    scales = change / first, 2 * change / each
    return _stream(threshold, scales, change, max_answers, loss, redraw=False)


def fixed_threshold_loss(
    threshold_epsilon: jax.typing.ArrayLike,
    answer_epsilon: jax.typing.ArrayLike,
    max_answers: int = 1,
) -> privacy.PrivacyLoss:
    """What ``fixed_threshold`` costs, however many queries there are.

    The divergence of the threshold's Laplace noise and, for each answer "above", that of
    ``privacy.threshold_answer``; no more than that of (threshold_epsilon + max_answers·answer_epsilon)-DP.

    Args:
        threshold_epsilon: positive: sensitivity over the scale of the threshold's noise; may be traced.
        answer_epsilon: positive: twice the sensitivity over the scale of a query's noise; may be traced.
        max_answers: number of "above" answers after which the stream halts.
    """
    require_positive("threshold_epsilon", threshold_epsilon)
    require_positive("answer_epsilon", answer_epsilon)
    max_answers = require_integer("max_answers", max_answers, 1)
    xp, (first, each) = as_floats(threshold_epsilon, answer_epsilon)
    valid = (first > 0) & (each > 0)
    first, each = xp.where(valid, first, 1.0), xp.where(valid, each, 1.0)
    answers = privacy.scale(privacy.threshold_answer(each), max_answers)
    composed = privacy.compose(privacy.laplace(1 / first), answers)
    pure = privacy.pure_dp(first + max_answers * each)
    least = composed._replace(rdp=xp.minimum(composed.rdp, pure.rdp))
    return privacy.unbounded_unless(valid, least)


def resetting(
    threshold: jax.typing.ArrayLike,
    epsilon: float,
    delta: float,
    sensitivity: jax.typing.ArrayLike,
    *,
    max_answers: int,
    num_queries: int,
    scale: float | None = None,
    bound: float | None = None,
) -> SparseVector:
    """Tests queries with bounded noise, against a threshold that is drawn anew after each "above".

    Thesis, Algorithm 41: the threshold has ``additive.bounded_laplace`` noise of scale R within τ, each query
    of scale 2R within 2τ, so that no query that is 3τ below the threshold is ever found above it. The printed
    condition, R at least (6Δ/ε)·√(c·log(5/δ)) and τ at least R·log(10T/δ) for c answers and T queries, makes
    the stream (ε, δ)-DP for ε ≤ 1: docs/theory/sparse_vector.md, section 4. It is private only where the
    sensitivity holds for every query.

    Args:
        threshold: public; may be traced.
        epsilon: of the whole stream, in (0, 1].
        delta: of the whole stream, in (0, 1).
        sensitivity: positive: how far one query can move between neighbours; may be traced.
        max_answers: c, number of "above" answers after which the stream halts.
        num_queries: T ≥ c; after so many queries the stream has halted too.
        scale: R over the sensitivity; the least that is proven if left out.
        bound: τ over the sensitivity; the least that is proven if left out.

    Raises:
        ValueError: an argument is out of range, or scale or bound is less than is proven.
    """
    epsilon = require_real("epsilon", epsilon, 0.0)
    require(epsilon <= 1.0, "epsilon", epsilon, "in (0, 1]")
    delta = require_real("delta", delta, 0.0, 1.0)
    require_positive("sensitivity", sensitivity)
    answers = require_integer("max_answers", max_answers, 1)
    queries = require_integer("num_queries", num_queries, answers)
    least = 6 / epsilon * math.sqrt(answers * math.log(5 / delta))
    scale = least if scale is None else require_real("scale", scale, 0.0)
    require(scale >= least, "scale", scale, f"at least {least}")
    far = scale * math.log(10 * queries / delta)
    bound = far if bound is None else require_real("bound", bound, 0.0)
    require(bound >= far, "bound", bound, f"at least {far}")
    change = wide_number(sensitivity)
    loss = privacy.approximate_dp(epsilon, delta)
    scales, most = (scale * change, 2 * scale * change), bound / scale
    return _stream(
        threshold, scales, change, answers, loss, redraw=True, most=most, num_queries=queries
    )


def outcomes(
    key: jax.Array, stream: SparseVector, queries: Float[Array, " queries"]
) -> Int[Array, " queries"]:
    """The answers of a stream to queries that are all known: 1 above, 0 below, -1 after the halt; int8.

    Args:
        key: a typed key, used up.
        stream: of a function of this file.
        queries: real numbers, ``[queries]``.
    """
    require_key(key)
    require_instance("stream", stream, SparseVector)
    require_number("queries", queries, "an array of real numbers")
    require(jnp.ndim(queries) == 1, "queries", queries, "of one axis")
    first, rest = jax.random.split(key)

    def test(
        state: SparseVectorState, asked: tuple[jax.Array, jax.Array]
    ) -> tuple[SparseVectorState, jax.Array]:
        t, query = asked
        above, after = stream.step(jax.random.fold_in(rest, t), state, query)
        return after, jnp.where(state.halted, -1, above).astype(jnp.int8)

    asked = jnp.arange(len(queries)), jnp.asarray(queries)
    return jax.lax.scan(test, stream.init(first), asked)[1]


def _sparse_vector(
    threshold: jax.typing.ArrayLike,
    epsilon: jax.typing.ArrayLike,
    sensitivity: jax.typing.ArrayLike,
    max_answers: int,
    answer_is_above: bool,
) -> SparseVector:
    require_positive("epsilon", epsilon)
    require_positive("sensitivity", sensitivity)
    max_answers = require_integer("max_answers", max_answers, 1)
    epsilon, sensitivity = wide_number(epsilon), wide_number(sensitivity)
    query_scale = 4 * sensitivity * max_answers / epsilon
    one_answer = privacy.pure_dp(epsilon / max_answers)
    loss = privacy.scale(one_answer, max_answers)
    scales = query_scale / 2, query_scale
    return _stream(
        threshold,
        scales,
        sensitivity,
        max_answers,
        loss,
        redraw=True,
        answer_is_above=answer_is_above,
    )


def _stream(
    threshold: jax.typing.ArrayLike,
    scales: tuple[Any, Any],
    sensitivity: Any,
    max_answers: int,
    loss: privacy.PrivacyLoss,
    *,
    redraw: bool,
    answer_is_above: bool = True,
    most: float | None = None,
    num_queries: int | None = None,
) -> SparseVector:
    """A stream, whose loss is proven by whoever makes it.

    Args:
        threshold: public.
        scales: of the Laplace noise on the threshold and on a query.
        sensitivity: of a query, for the record.
        max_answers: after which it halts.
        loss: of all of it.
        redraw: whether the threshold is drawn anew after each answer.
        answer_is_above: which side is an answer.
        most: bound on noise, in its scales; ``None`` for none.
        num_queries: after which it halts too; ``None`` for never.
    """
    require_finite("threshold", threshold)
    threshold_scale, query_scale = scales

    def draw(key: jax.Array, dtype: Any) -> jax.Array:
        if most is None:
            return _draws.laplace(key, (), dtype)
        return _draws.bounded_laplace(key, (), dtype, jnp.asarray(most, dtype))

    def draw_threshold(key: jax.Array) -> jax.Array:
        noise = draw(key, jnp.result_type(float))
        return jnp.asarray(threshold, noise.dtype) + threshold_scale * noise

    def init(key: jax.Array) -> SparseVectorState:
        require_key(key)
        # Buffers of their own: states may be donated.
        answers, queries = (jnp.zeros([], jnp.int32) for _ in range(2))
        return SparseVectorState(draw_threshold(key), answers, jnp.zeros([], bool), queries)

    def step(
        key: jax.Array, state: SparseVectorState, query: jax.typing.ArrayLike
    ) -> tuple[jax.Array, SparseVectorState]:
        require_key(key)
        require_same_everywhere("query", query)
        query_key, threshold_key = jax.random.split(key)
        noise = query_scale * draw(query_key, state.noisy_threshold.dtype)
        above = ~state.halted & jnp.isfinite(query) & (query + noise >= state.noisy_threshold)
        answered = ~state.halted & (above == answer_is_above)
        answers = state.answers + answered.astype(jnp.int32)
        kept = state.noisy_threshold
        if redraw:
            kept = jnp.where(answered, draw_threshold(threshold_key), kept).astype(kept.dtype)
        asked = state.queries + 1
        halted = answers >= max_answers
        if num_queries is not None:
            halted = halted | (asked >= num_queries)
        return above, SparseVectorState(kept, answers, halted, asked)

    return SparseVector(init, step, loss)
