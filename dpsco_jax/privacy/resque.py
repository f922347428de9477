"""What calls of private ReSQue solvers cost: localized SGD on reweighted, subsampled gradients.

One call draws T̂ - 1 records and perturbations ξ ~ N(0, ρ² I), asks once for all gradients at center + ξ,
and runs phases i = 1, 2, ... of T̂/2^i projected steps in a ball of radius r; the average of each phase is
released with Gaussian noise of standard deviation L η_i / β. Step sizes obey η_i L <= 2r / (4^i √T̂).

Source: thesis, Algorithms 8 and 9, Lemmas 2.4.7 to 2.4.10. The printed constants ask for ρ/r >= 10^5 and
β <= 5e-4; here the drift is bounded by its exact moments, and amplification by its exact profile.

Formal guarantee: δ-approximate Rényi DP of everything that a call returns, under REPLACE_ONE user, if each
user's loss is convex and L-Lipschitz on the WHOLE space (queries are unbounded; clipping breaks
convexity), iterates and the start of every phase are projected onto the ball, averages have equal weights,
perturbations, records, their order and noise are fresh in every call and stay secret, and center, start,
λ, and step sizes depend on the data only through what was released before. Proofs: docs/privacy/resque.md.

Cost: on the host, 0.1 to 1 s for each new size or radius, then about 20 ms a call.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy import special, stats

from dpsco_jax.privacy._numerics import require
from dpsco_jax.privacy._resque_amplification import subsampled_rdp
from dpsco_jax.privacy._resque_drift import drift_factor, shift_law
from dpsco_jax.privacy.calibration import calibrate
from dpsco_jax.privacy.loss import PrivacyLoss, compose, scale
from dpsco_jax.privacy.orders import ORDERS
from dpsco_jax.privacy.subsampling import subsampled_gaussian_without_replacement

Constants = Literal["tight", "triple", "paper"]

LEAST_RADIUS_RATIO = 2.0

_FAILURE_SHARE = 0.25  # of δ, for what Rényi divergences do not cover
_ROUNDING = 1e-11
_BETA_RANGE = (1e-7, 4.0)


@dataclasses.dataclass(frozen=True)
class ResqueCall:
    """One call of the localized subsolver.

    Attributes:
        num_queries: T̂, a power of two, at least 2; T̂ - 1 records are drawn.
        beta: β; the noise on the average of phase i has standard deviation L η_i / β per coordinate.
        radius_ratio: ρ/r, perturbation over radius of the ball, at least 2.
        population: n, number of users.
        replacement: whether records are drawn independently (the thesis), or are distinct, in random order.
    """

    num_queries: int
    beta: float
    radius_ratio: float
    population: int
    replacement: bool = False

    def __post_init__(self) -> None:
        queries = self.num_queries
        if queries < 2 or queries & (queries - 1):
            raise ValueError(f"num_queries must be a power of two, at least 2, got {queries}")
        if self.population < 2:
            raise ValueError(f"population must be at least 2, got {self.population}")
        if not self.replacement and queries - 1 > self.population:
            raise ValueError(
                f"num_queries must be at most population + 1 = {self.population + 1} without"
                f" replacement, got {queries}"
            )
        require("beta", self.beta, 0.0, np.inf, open_low=True, open_high=True)
        require("radius_ratio", self.radius_ratio, LEAST_RADIUS_RATIO, np.inf, open_high=True)


def conditional_cost(call: ResqueCall, failure: float) -> float:
    """The c such that a call which uses the record b times has D_α <= α c b²: 2 β² F².

    Args:
        call: the call.
        failure: probability, in each phase, that two coupled runs drift apart by more than F allows.
    """
    require("failure", failure, 0.0, 1.0, open_low=True)
    return 2.0 * (call.beta * drift_factor(call.num_queries, call.radius_ratio, failure)) ** 2


def call_loss(call: ResqueCall, failure: float, constants: Constants = "tight") -> PrivacyLoss:
    """The loss of one call, with failure probability at most ``failure``.

    Args:
        call: the call.
        failure: in (0, 1/2].
        constants: ``"tight"``: the position of the record is random, its drift a random number, and
            amplification is by the profile. ``"triple"``: the proof of the thesis, repaired: the largest
            drift throughout, and the ternary moments of Lemma 5. ``"paper"``: the printed statement.

    Raises:
        ValueError: if an argument is out of range, or a printed precondition of ``"paper"`` is violated.
    """
    require("failure", failure, 0.0, 0.5, open_low=True)
    match constants:
        case "tight":
            return _tight_loss(call, failure)
        case "triple":
            return _triple_loss(call, failure)
        case "paper":
            return _paper_loss(call, failure)
    raise ValueError(f"constants must be 'tight', 'triple' or 'paper', got {constants!r}")


def calls_loss(
    calls: Sequence[tuple[ResqueCall, int]], failure: float, constants: Constants = "tight"
) -> PrivacyLoss:
    """The loss of adaptively chosen calls: every call that COULD be made must be in the list.

    Args:
        calls: each kind of call with the largest number of times that it may run. All searches, repeated
            runs and levels count, also those that a run happens not to need.
        failure: failure probability of all together, in (0, 1/2], divided equally among the calls.
        constants: as in ``call_loss``.
    """
    total = sum(count for _, count in calls)
    if total == 0:
        return compose()
    return compose(
        *(scale(call_loss(call, failure / total, constants), count) for call, count in calls)
    )


def calibrate_beta(
    calls_at: Callable[[float], Sequence[tuple[ResqueCall, int]]],
    epsilon: float,
    delta: float,
    constants: Constants = "tight",
) -> float:
    """The largest β for which the calls stay within (ε, δ); a quarter of δ is for failures.

    Args:
        calls_at: the calls of the whole run as a function of β, each with its own multiple of it.
        epsilon: budget, above 0.
        delta: budget, in (0, 1).
        constants: ``"tight"`` or ``"triple"``.

    Returns:
        β in [1e-7, 4], within 1e-6 relative of the largest.

    Raises:
        ValueError: if an argument is out of range, or not even 1e-7 meets the budget.
    """
    failure = _FAILURE_SHARE * delta
    return float(
        calibrate(
            lambda beta: calls_loss(calls_at(float(beta)), failure, constants),
            epsilon,
            delta,
            *_BETA_RANGE,
        )
    )


def violated_preconditions(call: ResqueCall, failure: float) -> list[str]:
    """Which preconditions of the printed Lemma 2.4.10, with its proof's constants, a call violates."""
    queries, users = call.num_queries, call.population
    log_term = math.log(max(math.log(queries), 1.0) / failure)
    tau = _paper_tau(call, failure)
    found = {
        f"radius_ratio must be at least 1728 log²(log T/δ) = {1728 * log_term**2:.4g}, got"
        f" {call.radius_ratio:g}": call.radius_ratio >= 1728 * log_term**2,
        f"6000 β² log²(2/δ) must be at most 1/3, got {tau:.4g}": tau <= 1 / 3,
        f"T/n must be at most 1/60, got {queries / users:.4g}": 60 * queries <= users,
        f"failure must be below 1/6, got {failure:g}": failure < 1 / 6,
        "sampling must be with replacement": call.replacement,
    }
    return [message for message, holds in found.items() if not holds]


def _uses(call: ResqueCall, failure: float) -> tuple[float, Float[np.ndarray, "counts"], float]:
    """Rate at which the record is used, law of the number of uses given one, probability of more."""
    draws = call.num_queries - 1
    if not call.replacement:
        return draws / call.population, np.ones(1), 0.0
    most = 1
    while (tail := float(stats.binom.sf(most, draws, 1.0 / call.population))) > failure:
        most += 1
    chances = stats.binom.pmf(np.arange(most + 1), draws, 1.0 / call.population)
    used = float(chances[1:].sum())
    return used / (used + float(chances[0])), chances[1:] / used, tail * (1.0 + _ROUNDING)


@functools.lru_cache(maxsize=1024)
def _law(
    call: ResqueCall, failure: float
) -> tuple[float, Float[np.ndarray, "atoms"], Float[np.ndarray, "atoms"], float]:
    """Rate, shifts in units of twice the noise's β, their probabilities, failure (for β = 1)."""
    rate, uses, tail = _uses(call, 0.5 * failure)
    mean_uses = (call.num_queries - 1) / call.population
    in_phase = min((failure - tail) / mean_uses, 0.5)
    shifts, probabilities = shift_law(call.num_queries, call.radius_ratio, in_phase)
    largest = drift_factor(call.num_queries, call.radius_ratio, in_phase)
    # Twice or more: at most that often the largest drift.
    many = largest * np.arange(2, len(uses) + 1)
    weights = np.concatenate([uses[0] * probabilities / probabilities.sum(), uses[1:]])
    return rate, np.concatenate([shifts, many]), weights, tail + mean_uses * in_phase


def _tight_loss(call: ResqueCall, failure: float) -> PrivacyLoss:
    rate, shifts, weights, failed = _law(dataclasses.replace(call, beta=1.0), failure)
    curves = subsampled_gaussian_without_replacement(0.5 / (call.beta * shifts), 1.0, rate)
    log_moments = np.asarray(curves.rdp) * (ORDERS - 1.0)
    small = np.minimum(log_moments, 1.0)
    mixed = np.where(
        log_moments.max(axis=0) < 1.0,
        np.log1p(weights @ np.expm1(small)),
        special.logsumexp(log_moments + np.log(weights)[:, None], axis=0),
    )
    rdp = (mixed * (1.0 + _ROUNDING) + 1e-300) / (ORDERS - 1.0)
    return PrivacyLoss(rdp, np.asarray(min(failed, failure)))


def _triple_loss(call: ResqueCall, failure: float) -> PrivacyLoss:
    rate, uses, tail = _uses(call, 0.5 * failure)
    mean_uses = (call.num_queries - 1) / call.population
    # All three pairs of a coupled triple must be close at once.
    in_phase = min((failure - tail) / (3.0 * mean_uses), 0.25)
    failed = tail + 3.0 * mean_uses * in_phase
    rdp = subsampled_rdp(conditional_cost(call, in_phase), rate, uses)
    return PrivacyLoss(rdp / (1.0 - failed), np.asarray(min(failed, failure)))


def _paper_tau(call: ResqueCall, failure: float) -> float:
    return 6000.0 * (call.beta * math.log(2.0 / failure)) ** 2


def _paper_loss(call: ResqueCall, failure: float) -> PrivacyLoss:
    violated = violated_preconditions(call, failure)
    if violated:
        raise ValueError("constants='paper' cannot be used: " + "; ".join(violated))
    tau = _paper_tau(call, failure)
    rate = 1.2 * call.num_queries / call.population
    rdp = np.where(tau * ORDERS < 3.0, 13.0 * rate**2 * ORDERS * tau, np.inf)
    return PrivacyLoss(rdp, np.asarray(failure))
