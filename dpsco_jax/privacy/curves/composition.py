"""Composition in closed form: advanced, optimal, of one pure test with Gaussians, and of a group.

What it computes: the (ε, δ) of T releases of the same (ε, δ), by the advanced theorem and by the optimal
one; the privacy curve of an ε₁-DP release followed by Gaussians, and how far apart the Gaussians may be for
a given (ε, δ); what a guarantee for one record says about k of them. All of it holds at δ of 1e-300 too:
curves are differences of logarithms.

Source: Dwork, Rothblum and Vadhan 2010 (advanced; T Lemma 10.6.7); Kairouz, Oh and Viswanath 2015 (optimal);
Balle and Wang 2018 (Gaussian curve); Dwork and Roth 2014, Theorem 2.2 (groups; E Corollary 2.2).

Formal guarantee: each δ and ε is an upper bound under the relation of the guarantees that are composed, for
adaptively chosen releases; rounding errors are added. Proofs: docs/theory/concentrated_mean.md.

Cost: microseconds; the optimal composition is linear in the number of releases.
"""

import math
import sys
from collections.abc import Sequence
from typing import SupportsFloat

import numpy as np
from scipy import optimize, special

from dpsco_jax._checks import (
    require,
    require_instance,
    require_integer,
    require_positive,
    require_real,
    require_within,
)

_MACHINE = float(np.finfo(np.float64).eps)
_ROUNDING = 1.0 + 64.0 * _MACHINE


def advanced_composition(
    epsilon: SupportsFloat, delta: SupportsFloat, num_steps: int, slack: SupportsFloat
) -> tuple[float, float]:
    """(ε, δ) of ``num_steps`` releases that are each (ε, δ)-DP, by the advanced composition theorem.

    Args:
        epsilon: of one release, at least 0.
        delta: of one release, in [0, 1).
        num_steps: T, at least 1.
        slack: δ′ in (0, 1), added to δ.

    Returns:
        √(2T log(1/δ′)) ε + T ε (e^ε - 1), and T δ + δ′. ``optimal_composition`` is never worse.
    """
    one, failure = _check(epsilon, delta)
    num_steps = require_integer("num_steps", num_steps, 1)
    extra = require_real("slack", slack, 0.0, 1.0)
    spread = math.sqrt(2.0 * num_steps * math.log(1.0 / extra)) * one
    return (
        _ROUNDING * (spread + num_steps * one * math.expm1(one)),
        min(_ROUNDING * (num_steps * failure + extra), 1.0),
    )


def heterogeneous_composition(
    epsilons: Sequence[float], deltas: Sequence[float], slack: SupportsFloat
) -> tuple[float, float]:
    """(ε, δ) of releases of different guarantees together, the sharper form of E Corollary 2.3.

    Args:
        epsilons: ε_i of each release, at least 0.
        deltas: δ_i of each release, in [0, 1), as many.
        slack: δ₀ in (0, 1).

    Returns:
        Σ ε_i tanh(ε_i/2) + √(2 Σ ε_i² log(1/δ₀)), and δ₀ + Σ δ_i. It is not divided by 1 + e^ε_i.

    Raises:
        ValueError: there are not as many of the one as of the other.
    """
    require_instance("epsilons", epsilons, Sequence)
    require_instance("deltas", deltas, Sequence)
    require_within("epsilons", epsilons, 0.0, math.inf, open_high=True)
    require_within("deltas", deltas, 0.0, 1.0, open_high=True)
    require(len(epsilons) == len(deltas), "deltas", deltas, "as many as epsilons")
    pairs = [(float(one), float(failure)) for one, failure in zip(epsilons, deltas, strict=True)]
    extra = require_real("slack", slack, 0.0, 1.0)
    mean = math.fsum(one * math.tanh(0.5 * one) for one, _ in pairs)
    spread = math.sqrt(2.0 * math.fsum(one**2 for one, _ in pairs) * math.log(1.0 / extra))
    failures = math.fsum(failure for _, failure in pairs)
    return _ROUNDING * (mean + spread), min(_ROUNDING * (failures + extra), 1.0)


def optimal_composition(
    epsilon: SupportsFloat, delta: SupportsFloat, num_steps: int, total_epsilon: SupportsFloat
) -> float:
    """The least δ at which ``num_steps`` releases, each (ε, δ)-DP, are (total_epsilon, δ)-DP together.

    The releases post-process T randomized responses of ε, of which l ~ Bin(T, e^ε/(1 + e^ε)) agree with the
    data and which fail with probability δ each; the hockey-stick divergence is a sum over l, all of its
    terms being positive.

    Args:
        epsilon: of one release, at least 0.
        delta: of one release, in [0, 1).
        num_steps: T, at least 1.
        total_epsilon: at least 0.
    """
    one, failure = _check(epsilon, delta)
    num_steps = require_integer("num_steps", num_steps, 1)
    total = require_real("total_epsilon", total_epsilon, 0.0, closed=True)
    agreeing = np.arange(num_steps + 1.0)
    losses = (2.0 * agreeing - num_steps) * one
    agreeing, losses = agreeing[losses > total], losses[losses > total]
    log_masses = (
        special.gammaln(num_steps + 1.0)
        - special.gammaln(agreeing + 1.0)
        - special.gammaln(num_steps - agreeing + 1.0)
        + agreeing * one
        - num_steps * np.logaddexp(0.0, one)
    )
    size = special.gammaln(num_steps + 1.0) + num_steps * (1.0 + one)
    divergence = float(np.sum(np.exp(log_masses) * -np.expm1(total - losses)))
    divergence = min(divergence * (1.0 + 8.0 * _MACHINE * size), 1.0)
    kept = num_steps * math.log1p(-failure)
    return min(_ROUNDING * (-math.expm1(kept) + math.exp(kept) * divergence), 1.0)


def log_gaussian_delta(mu: SupportsFloat, epsilon: SupportsFloat) -> float:
    """The logarithm of δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ), for any real ε, rounded up; it is finite.

    Args:
        mu: distance of the two Gaussians in standard deviations, above 0.
        epsilon: may be negative.
    """
    return _log_gaussian_delta(require_real("mu", mu, 0.0), _real("epsilon", epsilon))


def _log_gaussian_delta(shift: float, eps: float) -> float:
    """``log_gaussian_delta`` of numbers that were checked: searches ask for it thousands of times."""
    first = float(special.log_ndtr(0.5 * shift - eps / shift))
    if first == -math.inf:
        # Beyond the floats, and δ is below it.
        return -sys.float_info.max
    second = eps + float(special.log_ndtr(-0.5 * shift - eps / shift))
    rounding = 8.0 * _MACHINE * (abs(first) + abs(second) + abs(eps) + 1.0)
    gap = first - second + rounding
    return min(first + rounding + (math.log(-math.expm1(-gap)) if gap < 700.0 else 0.0), 0.0)


def log_response_gaussian_delta(
    response_epsilon: SupportsFloat, mu: SupportsFloat, epsilon: SupportsFloat
) -> float:
    """The logarithm of the privacy curve of an ε₁-DP release together with Gaussians at distance μ.

    δ(ε) = p δ_μ(ε - ε₁) + (1 - p) δ_μ(ε + ε₁), p = e^ε₁/(1 + e^ε₁): the curve of randomized response times
    a Gaussian pair, which dominates the two releases made one after the other, in either order.

    Args:
        response_epsilon: ε₁, at least 0.
        mu: of all the Gaussians together (√T times that of one), above 0.
        epsilon: where the curve is evaluated, any real number.
    """
    test = require_real("response_epsilon", response_epsilon, 0.0, closed=True)
    eps = _real("epsilon", epsilon)
    require_positive("mu", mu)
    return _log_response_gaussian_delta(test, require_real("mu", mu, 0.0), eps)


def _log_response_gaussian_delta(test: float, shift: float, eps: float) -> float:
    """``log_response_gaussian_delta`` of numbers that were checked."""
    likely = _log_gaussian_delta(shift, eps - test) - np.logaddexp(0.0, -test)
    unlikely = _log_gaussian_delta(shift, eps + test) - np.logaddexp(0.0, test)
    return min(float(np.logaddexp(likely, unlikely)) + 4.0 * _MACHINE, 0.0)


def response_gaussian_mu(
    response_epsilon: SupportsFloat, epsilon: SupportsFloat, delta: SupportsFloat
) -> float:
    """The largest μ for which an ε₁-DP release together with Gaussians at distance μ is (ε, δ)-DP.

    Args:
        response_epsilon: ε₁, in [0, ε). With 0 it is the inverse of the Gaussian curve.
        epsilon: positive.
        delta: in (0, 1), may be as small as 1e-300.

    Returns:
        μ, rounded down: ``log_response_gaussian_delta`` of it is at most log δ.
    """
    eps = require_real("epsilon", epsilon, 0.0)
    test = require_real("response_epsilon", response_epsilon, 0.0, eps, closed=True)
    allowed = require_real("delta", delta, 0.0, 1.0)
    target = math.log(allowed)

    def excess(log_mu: float) -> float:
        return _log_response_gaussian_delta(test, math.exp(log_mu), eps) - target

    low = high = math.log(0.5 * (eps - test) / math.sqrt(2.0 * max(-target, 1.0)))
    while excess(low) > 0.0:
        low -= 1.0
    while excess(high) <= 0.0 and high < 20.0:
        high += 1.0
    if high >= 20.0:
        return math.exp(20.0)
    root = optimize.brentq(excess, low, high, xtol=1e-14)
    step = 1e-15
    while excess(root) > 0.0:
        root -= step
        step *= 2.0
    return math.exp(root)


def group_privacy(
    epsilon: SupportsFloat, delta: SupportsFloat, group_size: int
) -> tuple[float, float]:
    """What (ε, δ)-DP for one record guarantees for k records: (kε, δ (e^{kε} - 1)/(e^ε - 1)).

    The general statement. Where a Gaussian release is known, do better: k records move it k times as far, so
    its cost is that of the noise multiplier divided by k.

    Args:
        epsilon: at least 0.
        delta: in [0, 1).
        group_size: k, at least 1.

    Returns:
        (ε, δ) of the group; δ is at most 1.
    """
    one, failure = _check(epsilon, delta)
    group_size = require_integer("group_size", group_size, 1)
    group = group_size * one
    if failure == 0.0:
        return _ROUNDING * group, 0.0
    log_factor = math.log(group_size)
    if one > 0.0:
        log_factor = (group - one) + math.log(math.expm1(-group) / math.expm1(-one))
    return _ROUNDING * group, math.exp(min(math.log(_ROUNDING * failure) + log_factor, 0.0))


def _check(epsilon: SupportsFloat, delta: SupportsFloat) -> tuple[float, float]:
    return (
        require_real("epsilon", epsilon, 0.0, closed=True),
        require_real("delta", delta, 0.0, 1.0, closed=True),
    )


def _real(name: str, value: SupportsFloat) -> float:
    """The value as a ``float`` of either sign."""
    return require_real(name, value, -math.inf)
