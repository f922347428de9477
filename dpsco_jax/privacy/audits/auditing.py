"""Empirical lower bounds on ε: what the outputs of a mechanism prove, with confidence.

Two ways to get one: from counts of an event under two neighbours; and from scores, where the event is
chosen on some of the runs and counted on the others. A third, from one single run, is in ``one_run.py``.

Source: Jagielski, Ullman and Oprea 2020; Clopper and Pearson 1934.

Formal guarantee: if the mechanism is (ε, δ)-DP for the pair, the bound exceeds ε with probability at most
1 - confidence over the runs. A bound of zero proves nothing.

Cost: ``audit`` runs the mechanism ``2 num_runs`` times, ``batch_size`` at once, in one compiled program.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key
from scipy import special

from dpsco_jax import _keys
from dpsco_jax._checks import (
    require,
    require_callable,
    require_integer,
    require_key,
    require_number,
    require_real,
    require_whole,
)

_MAX_THRESHOLDS = 2000
_CHOOSING = 4  # one run in so many chooses the threshold
_CAUTION = 50.0  # of the choice: by how much its error probability is smaller, against lucky tails


class Audit(NamedTuple):
    """A lower bound on ε and the event that proves it.

    Attributes:
        epsilon: the bound; 0 if nothing was proven.
        delta: the δ it speaks of.
        confidence: probability, over the runs, with which it holds.
        threshold: the event is a score above it.
        true_positives: runs on the neighbour in which the event happened, of ``num_runs``.
        false_positives: runs on the data in which it happened, of ``num_runs``.
        num_runs: runs on each side that were counted; the threshold was chosen on others.
    """

    epsilon: float
    delta: float
    confidence: float
    threshold: float
    true_positives: int
    false_positives: int
    num_runs: int


def epsilon_lower_bound(
    true_positives: Any, false_positives: Any, num_runs: int, delta: float, confidence: float = 0.95
) -> Any:
    """Lower bound on ε from how often one event, fixed beforehand, happened under two neighbours.

    Each rate gets a one-sided Clopper-Pearson bound at half the error probability. The event and its
    complement then both bound ε: P(S) ≤ e^ε P'(S) + δ and P'(not S) ≤ e^ε P(not S) + δ.

    Args:
        true_positives: runs on one neighbour in which the event happened; an array is taken entrywise,
            each entry then holds on its own.
        false_positives: runs on the other neighbour in which it happened.
        num_runs: number of runs on each.
        delta: in [0, 1).
        confidence: in (0, 1).

    Returns:
        The bound, at least 0, of the shape of the counts. Swap the counts for the event that is rarer
        in the first argument.
    """
    check_delta_and_confidence(delta, confidence)
    require_integer("num_runs", num_runs, 1)
    require_whole("true_positives", true_positives, 0)
    require_whole("false_positives", false_positives, 0)
    positives, negatives = np.asarray(true_positives), np.asarray(false_positives)
    require(positives <= num_runs, "true_positives", true_positives, f"in [0, {num_runs}]")
    require(negatives <= num_runs, "false_positives", false_positives, f"in [0, {num_runs}]")
    error = 0.5 * (1.0 - confidence)
    # The least rate under which so many, and the greatest under which so few, are not surprising.
    rate = special.betaincinv(np.maximum(positives, 1), num_runs - positives + 1, error)
    rate = np.where(positives > 0, rate, 0.0)
    other = special.betainccinv(negatives + 1, np.maximum(num_runs - negatives, 1), error)
    other = np.where(negatives < num_runs, other, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_event = np.log(np.maximum(rate - delta, 0.0) / other)
        by_complement = np.log(np.maximum(1.0 - other - delta, 0.0) / (1.0 - rate))
    return np.fmax(np.fmax(by_event, by_complement), 0.0)[()]


def audit_scores(
    scores: np.ndarray, neighbour_scores: np.ndarray, delta: float, confidence: float = 0.95
) -> Audit:
    """Lower bound on ε from scores of independent runs under two neighbours.

    The event is a score above a threshold or its complement, in either direction, whichever proves most
    on the first quarter of the runs; only the others are counted, so no correction is due.

    Args:
        scores: of the runs on the data, shape ``[num_runs]``; NaN counts as the greatest score.
        neighbour_scores: of the runs on the neighbour, same shape.
        delta: in [0, 1).
        confidence: in (0, 1).

    Raises:
        ValueError: if there are fewer than 2 runs or the shapes differ.
    """
    check_delta_and_confidence(delta, confidence)
    require_number("scores", scores, "an array of real numbers")
    require_number("neighbour_scores", neighbour_scores, "an array of real numbers")
    null, other = (np.asarray(s, np.float64).ravel() for s in (scores, neighbour_scores))
    if null.shape != other.shape or len(null) < 2:
        raise ValueError(f"At least 2 scores of each, equally many: got {len(null)}, {len(other)}.")
    null, other = (np.where(np.isnan(s), np.inf, s) for s in (null, other))
    first = max(len(null) // _CHOOSING, 1)
    chosen = np.sort(null[:first]), np.sort(other[:first])
    pool = np.unique(np.concatenate(chosen))
    thresholds = np.unique(_spread(pool, _MAX_THRESHOLDS))
    false, true = (first - np.searchsorted(s, thresholds, side="right") for s in chosen)
    cautious = 1.0 - (1.0 - confidence) / _CAUTION
    bounds = np.stack(
        [
            epsilon_lower_bound(true, false, first, delta, cautious),
            epsilon_lower_bound(false, true, first, delta, cautious),
        ]
    )
    swapped, index = np.unravel_index(int(np.argmax(bounds)), bounds.shape)
    threshold = float(thresholds[index])
    counted = len(null) - first
    false_positives = int(np.sum(null[first:] > threshold))
    true_positives = int(np.sum(other[first:] > threshold))
    counts = (false_positives, true_positives) if swapped else (true_positives, false_positives)
    bound = float(epsilon_lower_bound(*counts, counted, delta, confidence))
    return Audit(
        epsilon=bound,
        delta=delta,
        confidence=confidence,
        threshold=threshold,
        true_positives=true_positives,
        false_positives=false_positives,
        num_runs=counted,
    )


def audit(
    key: Key[Array, ""],
    mechanism: Callable[[jax.Array, Any], Any],
    data: Any,
    neighbour: Any,
    score: Callable[[Any], jax.Array],
    num_runs: int,
    delta: float,
    confidence: float = 0.95,
    batch_size: int = 4096,
) -> Audit:
    """Lower bound on ε of a mechanism from independent runs on a pair of neighbours.

    Args:
        key: typed key.
        mechanism: a function of a key and a data set, of which the output is released.
        data: a pytree of arrays.
        neighbour: the other data set.
        score: a function of the output alone, with a scalar value: large where the neighbour is likelier.
            The best is the likelihood ratio; any other is sound.
        num_runs: runs on each of the two; a quarter of them choose the threshold.
        delta: in [0, 1).
        confidence: in (0, 1).
        batch_size: runs at once, which bounds the memory.
    """
    check_delta_and_confidence(delta, confidence)
    require_key(key)
    require_callable("mechanism", mechanism)
    require_callable("score", score)
    require_integer("num_runs", num_runs, 2)
    require_integer("batch_size", batch_size, 1)
    run = jax.jit(functools.partial(_scores, mechanism, score, num_runs, batch_size))
    key_data, key_neighbour = jax.random.split(key)
    return audit_scores(
        np.asarray(run(key_data, data)),
        np.asarray(run(key_neighbour, neighbour)),
        delta,
        confidence,
    )


def _scores(
    mechanism: Callable[[jax.Array, Any], Any],
    score: Callable[[Any], jax.Array],
    num_runs: int,
    batch_size: int,
    key: jax.Array,
    data: Any,
) -> jax.Array:
    def one(run_key: jax.Array) -> jax.Array:
        return jnp.asarray(score(mechanism(run_key, data)), float).reshape(())

    together = min(batch_size, num_runs) if _keys.draw_apart(key.dtype) else None
    return jax.lax.map(one, jax.random.split(key, num_runs), batch_size=together)


def _spread(values: np.ndarray, count: int) -> np.ndarray:
    """At most ``count`` of the sorted values: dense at both ends, where the rare events are."""
    if len(values) <= count:
        return values
    ranks = np.geomspace(1.0, len(values) / 2.0, count // 2)
    below = np.rint(ranks).astype(int) - 1
    return values[np.concatenate([below, len(values) - 1 - below])]


def check_delta_and_confidence(delta: float, confidence: float) -> None:
    """Raises ValueError unless delta is in [0, 1) and confidence in (0, 1)."""
    delta = require_real("delta", delta, 0.0, 1.0, closed=True)
    confidence = require_real("confidence", confidence, 0.0, 1.0)
