"""A lower bound on ε from one single run: many canaries, a coin for each, guesses, a test.

Source: Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run", Theorem 5.2.

Formal guarantee: if the mechanism is (ε, δ)-DP for each canary (included or left out: ADD_OR_REMOVE_ONE;
one record or another in its place: REPLACE_ONE), the bound exceeds ε with probability at most
1 - confidence over the coins and the run. A bound of zero proves nothing.

Cost: one run of the mechanism; milliseconds for the bound.
"""

import math

import numpy as np
from jaxtyping import Bool, Num
from scipy import optimize, special

from dpsco_jax._checks import require, require_integer, require_mask, require_number
from dpsco_jax.privacy.audits.auditing import check_delta_and_confidence


def one_run_epsilon_lower_bound(
    num_canaries: int, num_guesses: int, num_correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Lower bound on ε from guesses about many canaries in one run.

    Each of the canaries was included by a fair coin of its own. If the mechanism is (ε, δ)-DP for each,
    the number of right guesses among r is at least v with probability at most

        P(W ≥ v) + 2 m δ max over i ≥ 1 of P(v > W ≥ v - i) / i,   W ~ Binomial(r, e^ε / (1 + e^ε)),

    and the bound is the least ε that this does not reject.

    Args:
        num_canaries: m, all canaries for which a coin was thrown.
        num_guesses: r, those for which a guess was made; fixed without looking at the coins.
        num_correct: v, the right guesses.
        delta: in [0, 1).
        confidence: in (0, 1).
    """
    check_delta_and_confidence(delta, confidence)
    num_canaries = require_integer("num_canaries", num_canaries, 1)
    num_guesses = require_integer("num_guesses", num_guesses, 0, num_canaries)
    num_correct = require_integer("num_correct", num_correct, 0, num_guesses)
    correct = np.arange(num_correct)
    log_ways = (
        special.gammaln(num_guesses + 1)
        - special.gammaln(correct + 1)
        - special.gammaln(num_guesses - correct + 1)
    )

    def p_value(epsilon: float) -> float:
        right, wrong = special.log_expit(epsilon), special.log_expit(-epsilon)
        surprise = (
            special.bdtrc(num_correct - 1, num_guesses, math.exp(right)) if num_correct else 1.0
        )
        if delta == 0.0 or num_correct == 0:
            return float(surprise)
        masses = np.exp(log_ways + correct * right + (num_guesses - correct) * wrong)
        window = np.cumsum(masses[::-1]) / np.arange(1, num_correct + 1)
        return float(surprise + 2.0 * num_canaries * delta * np.max(window))

    error = 1.0 - confidence
    if p_value(0.0) >= error:
        return 0.0
    high = 1.0
    while p_value(high) < error:
        high *= 2.0
    root = optimize.brentq(lambda e: p_value(e) - error, 0.0, high, xtol=1e-12, rtol=1e-12)
    return max(float(root) * (1.0 - 1e-10), 0.0)


def one_run_audit(
    scores: Num[np.ndarray, " canaries"],
    included: Bool[np.ndarray, " canaries"],
    num_guesses: int,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Lower bound on ε from the scores of canaries in one run.

    The ``num_guesses // 2`` highest scores are guessed to be included, as many lowest to be left out; about
    the others nothing is guessed.

    Args:
        scores: one per canary, from the released output; large where it seems included.
        included: the coins.
        num_guesses: even, at most the number of canaries, fixed before looking at the coins.
        delta: in [0, 1).
        confidence: in (0, 1).

    Raises:
        ValueError: if ``num_guesses`` is odd or out of range.
    """
    check_delta_and_confidence(delta, confidence)
    require_number("scores", scores, "an array of real numbers")
    included = require_mask("included", included, np.shape(scores))
    require_integer("num_guesses", num_guesses, 2, len(scores))
    require(num_guesses % 2 == 0, "num_guesses", num_guesses, "even")
    order = np.argsort(np.asarray(scores), kind="stable")
    half = num_guesses // 2
    correct = int(np.sum(~included[order[:half]]) + np.sum(included[order[-half:]]))
    return one_run_epsilon_lower_bound(len(scores), num_guesses, correct, delta, confidence)
