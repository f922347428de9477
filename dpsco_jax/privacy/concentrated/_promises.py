"""What all splits of a phase's budget promise, at once: arrays over shares of ε and shares of δ.

For weighted selections it is what ``_search.split`` finds for one share of ε for the tests and one share of δ
for failures, by the same formulas, which tests compare entry by entry: 160 splits take a millisecond. What is
chosen is certified afterwards, from the numbers alone, so nothing here has to be a bound.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from dpsco_jax.privacy.concentrated import _accounting as accounting
from dpsco_jax.privacy.concentrated import _proof as proof
from dpsco_jax.privacy.concentrated import _tests as tests
from dpsco_jax.privacy.concentrated._mean_sensitivity import (
    REPLACE_ONE,
    vectors_of_one_user,
    weighted_shift,
)
from dpsco_jax.privacy.concentrated._proof import SCORE_SENSITIVITY, TEST_ROUNDING
from dpsco_jax.privacy.concentrated._request import Request

LEAST_KEEP_LEVEL = 0.505
LEAST_MU = 1e-6


class Promises(NamedTuple):
    """Splits of the budget: one for each share of ε, with the best of the shares of δ.

    Attributes:
        test_epsilon: of the tests, ``[splits]`` as all that follows.
        threshold: of the score.
        core: c.
        keep_level: θ.
        sensitivity: κ.
        wrong_pass: of one test.
        mu: sensitivity over noise of one step, by the rule of thumb.
    """

    test_epsilon: np.ndarray
    threshold: np.ndarray
    core: np.ndarray
    keep_level: np.ndarray
    sensitivity: np.ndarray
    wrong_pass: np.ndarray
    mu: np.ndarray


def promises(
    request: Request, test: str, shares: Sequence[float], failure_shares: Sequence[float]
) -> Promises:
    """The splits of a weighted selection that are possible.

    Args:
        request: with ``selection="weighted"``.
        test: "stream" or "fresh".
        shares: of ε, for the tests.
        failure_shares: of δ, for batches that pass and are not concentrated.
    """
    batch, steps, delta, q = request.batch, request.num_steps, request.delta, request.rate
    asked = np.asarray(shares) * request.epsilon
    phase = proof.Phase(test, q, steps, asked[:, None], 1.0, 0.0, 1.0)
    ever = proof.test_failure(phase)
    alone = test == "fresh" and q == 1.0 and steps == 1
    budgets = [delta if alone else part * delta for part in failure_shares]
    # Gaps are inverse to ε of the test.
    unit_gaps = np.array(
        [tests.gap_for(test, min(b / ever, 0.4), 1.0, SCORE_SENSITIVITY) for b in budgets]
    )
    if request.threshold_fraction is None:
        halts = request.false_halt_probability, steps, 1.0, SCORE_SENSITIVITY
        threshold = batch - tests.false_halt_gap(test, *halts) / phase.test_epsilon
    else:
        threshold = np.full_like(phase.test_epsilon, request.threshold_fraction * batch)
    core = np.minimum(np.floor(threshold - unit_gaps / phase.test_epsilon), batch - 1.0)
    if request.keep_level is None:
        keep = (core - 0.25) / batch
        possible = keep >= LEAST_KEEP_LEVEL
    else:
        keep = np.full_like(core, request.keep_level)
        possible = core >= keep * batch
    e1, threshold, factor, effective_rate = (
        np.broadcast_to(each, core.shape)[possible]
        for each in (phase.test_epsilon, threshold, phase.factor, phase.effective_rate)
    )
    core, keep = core[possible], keep[possible]
    sides = vectors_of_one_user(request.relation if q == 1.0 else REPLACE_ONE)
    kappa = weighted_shift(batch, core, keep, sides)
    wrong = tests.wrong_pass(test, threshold - core, e1 / TEST_ROUNDING**2, SCORE_SENSITIVITY)
    rest = (delta if alone else delta - ever * wrong) / factor * np.ones_like(wrong)
    if accounting.is_closed_form(phase):
        mu = response_mus(e1, request.epsilon, rest) / math.sqrt(steps)
    else:
        left = request.epsilon - np.log(factor)
        total = response_mus(np.zeros_like(rest), left, rest)
        response = np.expm1(e1) ** 2 * np.exp(-e1) if test == "fresh" else 0.0
        exponent = np.log1p(total**2 / (steps * effective_rate**2)) - np.log1p(response)
        mu = np.sqrt(np.maximum(exponent, LEAST_MU**2))
    noise = np.full(possible.shape, np.inf)
    noise[possible] = kappa / mu
    order = np.cumsum(possible).reshape(possible.shape) - 1
    some = np.any(possible, axis=1)
    best = order[some, np.argmin(noise[some], axis=1)]
    found = Promises(e1, threshold, core, keep, kappa, wrong, mu)
    return Promises(*(each[best] for each in found))


_MACHINE = float(np.finfo(np.float64).eps)
_MOST_NEWTON = 80
_NEAR_ROOT = 1e-12


def response_mus(
    response_epsilons: np.ndarray, epsilons: np.ndarray | float, deltas: np.ndarray
) -> np.ndarray:
    """``composition.response_gaussian_mu`` of many, without checks and exact to some 1e-9, relative.

    Args:
        response_epsilons: ε₁, ``[requests]``, in [0, ε).
        epsilons: positive, one or ``[requests]``.
        deltas: ``[requests]``, in (0, 1).

    Returns:
        μ, on either side of the exact one, ``[requests]``.
    """
    test, eps, target = np.broadcast_arrays(response_epsilons, epsilons, np.log(deltas))
    weights = -np.logaddexp(0.0, -test), -np.logaddexp(0.0, test)

    def curve(log_mu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The logarithm of δ over what is allowed, and its slope in log μ."""
        mu = np.exp(log_mu)
        parts, slopes = [], []
        for at, weight in zip((eps - test, eps + test), weights, strict=True):
            first, second = 0.5 * mu - at / mu, -0.5 * mu - at / mu
            one, other = special.log_ndtr(first), at + special.log_ndtr(second)
            rounding = 8.0 * _MACHINE * (np.abs(one) + np.abs(other) + np.abs(at) + 1.0)
            gap = one - other + rounding
            parts.append(weight + one + rounding + np.log(-np.expm1(-gap)))
            slopes.append(weight + log_mu - 0.5 * first**2 - 0.5 * math.log(2.0 * math.pi))
        both = np.logaddexp(*parts)
        return both + 4.0 * _MACHINE - target, np.exp(np.logaddexp(*slopes) - both)

    point = np.log(0.5 * (eps - test) / np.sqrt(2.0 * np.maximum(-target, 1.0)))
    low, high = np.full_like(point, -40.0), np.full_like(point, 20.0)
    # Newton's steps where they stay in the bracket, bisections elsewhere.
    for _ in range(_MOST_NEWTON):
        with np.errstate(all="ignore"):
            value, slope = curve(point)
            ahead = point - value / slope
        if np.all(np.abs(ahead - point) <= _NEAR_ROOT):
            break
        low, high = np.where(value <= 0.0, point, low), np.where(value <= 0.0, high, point)
        point = np.where((ahead > low) & (ahead < high), ahead, 0.5 * (low + high))
    return np.exp(point)
