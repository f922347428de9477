"""Dominating pairs: for each release, two distributions that are at least as easy to tell apart.

A pair (P, Q) dominates a release when its hockey-stick divergence is, at every ε, at least that of the
release on any two neighbours. Dominating pairs compose by taking products, so the privacy loss
distribution (the law of log dP/dQ under P) of a product gives a tight ε. A pair is held here as what a
discretization needs: the masses that P and Q give to cells of loss values.

Source: Zhu, Dong and Wang 2022 (domination and composition); Balle, Barthe and Gaboardi 2018 (advanced
joint convexity). The pair of fixed-size sampling is derived in ``docs/theory/certificates.md``.

Formal guarantee: each pair names the neighbouring relations under which it dominates. A noise multiplier
is σ over the ℓ2 sensitivity under the relation at hand.

Cost: a few vectorized special functions per cell.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from dpsco_jax._checks import (
    require,
    require_instance,
    require_positive,
    require_real,
    require_within,
)


class Pair(NamedTuple):
    """A dominating pair (P, Q), described through its loss L = log dP/dQ.

    Attributes:
        cells: maps increasing edges ``[n]`` to the masses ``[n + 1]`` that P and that Q put on the cells
            (-inf, e₁], (e₁, e₂], …, (eₙ, inf). Where the pair has an atom at zero, zero must be an edge.
        support: maps a probability τ to (low, high) with P(L < low) and P(L > high) of order τ at most.
    """

    cells: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    support: Callable[[float], tuple[float, float]]


def reverse(pair: Pair) -> Pair:
    """The pair (Q, P), whose loss is the negative of the loss under the other distribution."""
    require_instance("pair", pair, Pair)

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        upper, lower = pair.cells(-edges[::-1])
        return lower[::-1], upper[::-1]

    def support(tail: float) -> tuple[float, float]:
        low, high = pair.support(tail)
        return -high, -low

    return Pair(cells, support)


def _normal_cells(thresholds: np.ndarray) -> np.ndarray:
    """Standard normal masses of cells between thresholds, rising along the last axis; exact in both tails."""
    beyond = np.full((*thresholds.shape[:-1], 1), np.inf)
    ends = np.concatenate([-beyond, thresholds, beyond], axis=-1)
    below, above = special.ndtr(ends), special.ndtr(-ends)
    rises, falls = below[..., 1:] - below[..., :-1], above[..., :-1] - above[..., 1:]
    return np.where(ends[..., :-1] > 0, falls, rises)


def _unsampled_loss(losses: np.ndarray, rate: float) -> np.ndarray:
    """The loss u of a pair without sampling where the sampled one is x: e^x = 1 - q + q e^u."""
    x, q = losses, rate
    with np.errstate(divide="ignore"):
        positive = x - math.log(q) + np.log1p((q - 1.0) * np.exp(-np.maximum(x, 0.0)))
        negative = np.log1p(np.maximum(np.expm1(np.minimum(x, 0.0)) / q, -1.0))
    return np.where(x > 0, positive, negative)


def _sampled_cells(
    unsampled: np.ndarray, multiplier: float | np.ndarray, rate: float
) -> tuple[np.ndarray, np.ndarray]:
    """Masses of (1-q) N(0, s²) + q N(1, s²) and of N(0, s²) on cells between such losses without sampling."""
    thresholds = multiplier * unsampled + 0.5 / multiplier
    lower = _normal_cells(thresholds)
    return rate * _normal_cells(thresholds - 1.0 / multiplier) + (1.0 - rate) * lower, lower


def poisson_gaussian(noise_multiplier: float, sampling_probability: float) -> Pair:
    """P = (1-q) N(0, s²) + q N(1, s²) against Q = N(0, s²).

    With its reverse it dominates the Poisson-subsampled Gaussian under ADD_OR_REMOVE_ONE and under
    REPLACE_SPECIAL: this pair when the record is present in the first data set, the reverse when it is
    absent. A composition must keep to one direction throughout, and ε is the larger of the two.
    """
    require_positive("noise_multiplier", noise_multiplier)
    require_within("sampling_probability", sampling_probability, 0.0, 1.0, open_low=True)
    s, q = noise_multiplier, sampling_probability

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _sampled_cells(_unsampled_loss(edges, q), s, q)

    def support(tail: float) -> tuple[float, float]:
        reach = (0.5 / s - special.ndtri(tail)) / s
        log_rest = math.log1p(-q) if q < 1.0 else -math.inf
        low, high = (float(np.logaddexp(log_rest, math.log(q) + u)) for u in (-reach, reach))
        return low, high

    return Pair(cells, support)


def gaussian(noise_multiplier: float) -> Pair:
    """N(1, s²) against N(0, s²): dominates the Gaussian mechanism under every relation."""
    return poisson_gaussian(noise_multiplier, 1.0)


def gaussian_without_replacement(noise_multiplier: float, sampling_fraction: float) -> Pair:
    """Dominates the Gaussian on a uniform subset of fixed size B of N = B/q records, REPLACE_ONE.

    On losses above zero it agrees with ``poisson_gaussian``, below zero with the reverse of that, and the
    rest of the mass, (1-q)(1 - 2Φ(-1/2s)), lies at zero. It is its own reverse.
    """
    require_within("sampling_fraction", sampling_fraction, 0.0, 1.0, open_low=True)
    s, q = noise_multiplier, sampling_fraction
    return self_mirrored(poisson_gaussian(s, q), _undecided(s, q))


def _undecided(multiplier: float | np.ndarray, rate: float) -> Any:
    """The mass at loss zero of ``gaussian_without_replacement``."""
    half = 0.5 / multiplier
    return (1.0 - rate) * (special.ndtr(half) - special.ndtr(-half))


def without_replacement_cells(
    shifts: np.ndarray, sampling_fraction: float, positive: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The ``cells`` of ``gaussian_without_replacement`` for many noise multipliers, on a symmetric grid.

    Args:
        shifts: one over each noise multiplier, ``[pairs]``, above 0.
        sampling_fraction: q in (0, 1].
        positive: the edges from 0 on, increasing, ``[edges]``; their opposites are edges as well.

    Returns:
        Masses that P and that Q put on the cells, ``[pairs, 2 edges]``.
    """
    require_within("sampling_fraction", sampling_fraction, 0.0, 1.0, open_low=True)
    require_within("shifts", shifts, 0.0, math.inf, open_low=True, open_high=True)
    require(positive[0] == 0.0, "positive", positive[0], "0 at first")
    s = (1.0 / shifts)[:, None]
    halves = _sampled_cells(_unsampled_loss(positive, sampling_fraction), s, sampling_fraction)
    upper, lower = (half[:, 1:] for half in halves)
    # Below zero the loss is the opposite one under the other distribution.
    p = np.concatenate([lower[:, ::-1], upper], axis=1)
    q = np.concatenate([upper[:, ::-1], lower], axis=1)
    for masses in (p, q):
        masses[:, len(positive) - 1] += _undecided(s, sampling_fraction)[:, 0]
    return p, q


def self_mirrored(half: Pair, at_zero: float) -> Pair:
    """The pair that agrees with ``half`` on losses above zero and is its own reverse.

    Below zero it is the reverse of ``half``; what is left of the mass, ``at_zero``, lies at loss zero. With P
    and Q of ``half`` that is 1 - P(L > 0) - Q(L > 0), which must not be negative. It dominates whatever has
    at every ε ≥ 0, in both directions, at most the hockey-stick divergence of ``half``.
    """
    require_instance("half", half, Pair)
    require_within("at_zero", at_zero, 0.0, 1.0, open_high=True)

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        zero = int(np.searchsorted(edges, 0.0))
        upper, lower = (m[1:] for m in half.cells(edges[zero:]))
        mirrored_upper, mirrored_lower = (m[1:] for m in half.cells(-edges[zero::-1]))
        p = np.concatenate([mirrored_lower[::-1], upper])
        q_masses = np.concatenate([mirrored_upper[::-1], lower])
        p[zero] += at_zero
        q_masses[zero] += at_zero
        return p, q_masses

    def support(tail: float) -> tuple[float, float]:
        _, high = half.support(tail)
        return -high, high

    return Pair(cells, support)


def laplace(scale: float) -> Pair:
    """Laplace noise of the given scale at centres 0 and 1: the Laplace mechanism, every relation."""
    require_positive("scale", scale)
    bound = 1.0 / scale

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Between the centres the loss is (1 - 2z)/scale; outside them it is an atom at ±1/scale.
        z = np.clip(0.5 * (1.0 - np.concatenate([[-bound], edges, [bound]]) / bound), 0.0, 1.0)
        width = -np.expm1(-bound * (z[:-1] - z[1:]))
        p = 0.5 * np.exp(-bound * z[1:]) * width
        q = 0.5 * np.exp(-bound * (1.0 - z[:-1])) * width
        for loss, p_atom, q_atom in (
            (bound, 0.5, 0.5 * math.exp(-bound)),
            (-bound, 0.5 * math.exp(-bound), 0.5),
        ):
            cell = np.searchsorted(edges, loss)
            p[cell] += p_atom
            q[cell] += q_atom
        return p, q

    return Pair(cells, lambda _: (-bound, bound))


def approximate_dp(epsilon: float, delta: float) -> Pair:
    """Randomized response that fails with probability δ: dominates every (ε, δ)-DP release."""
    epsilon = require_real("epsilon", epsilon, 0.0, closed=True)
    delta = require_real("delta", delta, 0.0, 1.0, closed=True)
    likely = (1.0 - delta) / (1.0 + math.exp(-epsilon))
    unlikely = likely * math.exp(-epsilon)

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p, q = np.zeros(len(edges) + 1), np.zeros(len(edges) + 1)
        for loss, p_atom, q_atom in ((epsilon, likely, unlikely), (-epsilon, unlikely, likely)):
            cell = np.searchsorted(edges, loss)
            p[cell] += p_atom
            q[cell] += q_atom
        p[-1] += delta
        q[0] += delta
        return p, q

    return Pair(cells, lambda _: (-epsilon, epsilon))
