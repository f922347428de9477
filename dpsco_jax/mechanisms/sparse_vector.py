"""The sparse vector technique: threshold tests on a stream of queries, paid for by the answer.

What it computes: for adaptively chosen scalar queries q_1, q_2, ... whether q_t + noise reaches a noisy
threshold. ``above_threshold`` goes on while queries are below and halts after ``max_answers`` queries found
above; ``below_threshold`` goes on while queries are above and halts at the first below.

Source: Dwork and Roth 2014, Algorithms 1 and 2; Lyu, Su and Li 2017 (which variants are private);
Algorithms 27, 28 (halt at the first below) and 34 (halt at the first above) of the thesis.

Formal guarantee: if neighbouring data sets move each query by at most ``sensitivity``, everything
returned until the halt is pure ε-DP under that relation, for any number of adaptive queries; other
releases on the same data may come in between (they compose). Derivation for one answer, with
threshold noise ξ ~ Lap(2Δ/ε) and query noise ν_t ~ Lap(4Δ/ε): fix all ν but that of the halting
query k. The transcript is "the queries before k on their side of the threshold, query k on the
other". Moving the data moves queries by at most Δ; shift ξ by Δ so that those before k stay on
their side (cost e^(ε/2)), and ν_k by 2Δ so that query k stays on the other (cost e^(ε/2)). Several
answers are several such streams at ε / max_answers each, with the threshold noise drawn anew after
each answer. A non-finite query counts as below; the sensitivity must hold with that convention.

Cost: two Laplace draws per query; state of four scalars.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dpsco_jax import privacy
from dpsco_jax._checks import require_finite, require_integer, require_key, require_positive
from dpsco_jax._numerics import wide_number
from dpsco_jax._parts import require_same_everywhere
from dpsco_jax.mechanisms import _draws


class SparseVectorState(NamedTuple):
    """State of a stream of threshold tests.

    Attributes:
        noisy_threshold: secret: never to be released.
        answers: how many queries have ended a stream so far.
        halted: whether the budget is used up; all later tests are False.
    """

    noisy_threshold: Float[Array, ""]
    answers: Int[Array, ""]
    halted: Bool[Array, ""]


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
    require_finite("threshold", threshold)
    epsilon, sensitivity = wide_number(epsilon), wide_number(sensitivity)
    query_scale = 4 * sensitivity * max_answers / epsilon
    threshold_scale = query_scale / 2

    def draw_threshold(key: jax.Array) -> jax.Array:
        noise = _draws.laplace(key, (), jnp.result_type(float))
        return jnp.asarray(threshold, noise.dtype) + threshold_scale * noise

    def init(key: jax.Array) -> SparseVectorState:
        require_key(key)
        return SparseVectorState(draw_threshold(key), jnp.zeros([], jnp.int32), jnp.zeros([], bool))

    def step(
        key: jax.Array, state: SparseVectorState, query: jax.typing.ArrayLike
    ) -> tuple[jax.Array, SparseVectorState]:
        require_key(key)
        require_same_everywhere("query", query)
        query_key, threshold_key = jax.random.split(key)
        noise = query_scale * _draws.laplace(query_key, (), state.noisy_threshold.dtype)
        above = ~state.halted & jnp.isfinite(query) & (query + noise >= state.noisy_threshold)
        answered = ~state.halted & (above == answer_is_above)
        answers = state.answers + answered.astype(jnp.int32)
        return above, SparseVectorState(
            noisy_threshold=jnp.where(
                answered, draw_threshold(threshold_key), state.noisy_threshold
            ).astype(state.noisy_threshold.dtype),
            answers=answers,
            halted=answers >= max_answers,
        )

    one_answer = privacy.pure_dp(epsilon / max_answers)
    return SparseVector(init, step, privacy.scale(one_answer, max_answers))
