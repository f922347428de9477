"""What calls of private ReSQue solvers cost: localized SGD on reweighted, subsampled gradients.

One call draws T̂ - 1 records and perturbations ξ ~ N(0, ρ² I), asks once for all gradients at center + ξ,
and runs phases i = 1, 2, ... of T̂/2^i projected steps in a ball of radius r; the average of each phase is
released with Gaussian noise of standard deviation L η_i / β. Step sizes obey η_i L <= 2r / (4^i √T̂).

Source: thesis, Algorithms 8 and 9, Lemmas 2.4.7 to 2.4.10. The printed constants ask for ρ/r >= 10^5 and
β <= 5e-4; here the drift is bounded by its exact moments, and amplification by its exact profile.

Formal guarantee: δ-approximate Rényi DP of everything that a call returns, under REPLACE_ONE user, if each
user's loss is convex and L-Lipschitz on the WHOLE space (queries are unbounded; clipping breaks
convexity), iterates and the start of every phase are projected onto the ball, averages are over the points
where gradients were used, perturbations, records, their order and noise are fresh in every call and stay
secret, and center, start, λ, and step sizes depend on the data only through what was released before.
Proofs: docs/theory/resque.md.

Cost: on the host, about 20 ms for each kind of call; a calibration takes one to three seconds.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy import stats

from dpsco_jax import _checks
from dpsco_jax.privacy import accountants, pld
from dpsco_jax.privacy.calibration import calibrate
from dpsco_jax.privacy.certified_noise import root_above
from dpsco_jax.privacy.loss import PrivacyLoss, compose, scale
from dpsco_jax.privacy.orders import ORDERS
from dpsco_jax.privacy.pld.pld_window import Law
from dpsco_jax.privacy.resque import _profile
from dpsco_jax.privacy.resque._amplification import subsampled_rdp
from dpsco_jax.privacy.resque._drift import drift_factor, shift_law

Constants = Literal["tight", "triple", "paper"]

LEAST_RADIUS_RATIO = 2.0

_FAILURE_SHARE = 0.25  # of δ, for what Rényi divergences do not cover
_DRIFT_SHARE = 0.4  # of that, for drifts; the rest for rare losses that make moments large
_SLOPE = -1.5  # about, of log ε against -log β
_UNDER_BUDGET = 1e-4  # calibration stops when ε is below its target by at most this, relative
_ROUNDING = 1e-11
_MOST_SHIFTS = 160  # more are rounded up to a grid of so many
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
        queries = _checks.require_integer("num_queries", self.num_queries, 2)
        _checks.require(queries & (queries - 1) == 0, "num_queries", queries, "a power of two")
        _checks.require_integer("population", self.population, 2)
        _checks.require_flag("replacement", self.replacement)
        if not self.replacement and queries - 1 > self.population:
            raise ValueError(
                f"num_queries must be at most population + 1 = {self.population + 1} without"
                f" replacement, got {queries}"
            )
        _checks.require_positive("beta", self.beta)
        _checks.require_within(
            "radius_ratio", self.radius_ratio, LEAST_RADIUS_RATIO, np.inf, open_high=True
        )


def conditional_cost(call: ResqueCall, failure: float) -> float:
    """The c such that a call which uses the record b times has D_α <= α c b²: 2 β² F².

    Args:
        call: the call.
        failure: probability, in each phase, that two coupled runs drift apart by more than F allows.
    """
    _checks.require_instance("call", call, ResqueCall)
    _checks.require_within("failure", failure, 0.0, 1.0, open_low=True)
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
        ValueError: a printed precondition of ``"paper"`` is violated.
    """
    _checks.require_instance("call", call, ResqueCall)
    _checks.require_within("failure", failure, 0.0, 0.5, open_low=True)
    _checks.require_choice("constants", constants, ("tight", "triple", "paper"))
    form = {"tight": _tight_loss, "triple": _triple_loss, "paper": _paper_loss}
    return form[constants](call, failure)


def calls_loss(
    calls: Sequence[tuple[ResqueCall, int]], failure: float, constants: Constants = "tight"
) -> PrivacyLoss:
    """The loss of adaptively chosen calls: every call that COULD be made must be in the list.

    Args:
        calls: each kind of call with the largest number of times that it may run. All searches, repeated
            runs and levels count, also those that a run happens not to need.
        failure: failure probability of all together, in (0, 1/2], divided equally among the calls.
        constants: ``"tight"``, ``"triple"`` (the repaired proof of the thesis) or ``"paper"`` (as printed).
    """
    counts = _merged(calls)
    _checks.require_within("failure", failure, 0.0, 0.5, open_low=True)
    _checks.require_choice("constants", constants, ("tight", "triple", "paper"))
    total = sum(counts.values())
    return compose(
        *(
            scale(call_loss(call, failure / total, constants), count)
            for call, count in counts.items()
        )
    )


def calls_epsilon(
    calls: Sequence[tuple[ResqueCall, int]], delta: float, max_points: int = pld.MAX_POINTS
) -> float:
    """The ε of adaptively chosen calls at ``delta``, from privacy loss distributions.

    With constants ``"tight"``; 5 to 15 % below what the Rényi divergences of ``calls_loss`` prove, a third
    where few records are drawn for little noise. A quarter of ``delta`` is for failures.

    Args:
        calls: pairs of a call and a number of times: every call that could be made.
        delta: in (0, 1).
        max_points: limit on the size of the grid of losses.
    """
    counts = _merged(calls)
    delta = _checks.require_real("delta", delta, 0.0, 1.0)
    _checks.require_integer("max_points", max_points, 1)
    failure = _FAILURE_SHARE * delta / max(sum(counts.values()), 1)
    laws = [(_law(call, failure), count) for call, count in counts.items()]
    return pld.epsilon([(_profile.pair_of(law), count) for law, count in laws], delta, max_points)


def calibrate_beta(
    calls_at: Callable[[float], Sequence[tuple[ResqueCall, int]]],
    epsilon: float,
    delta: float,
    constants: Constants = "tight",
    near: float | None = None,
) -> float:
    """The largest β for which the calls stay within (ε, δ).

    Args:
        calls_at: the calls of the whole run as a function of β, each with its own multiple of it.
        epsilon: budget, above 0.
        delta: budget, in (0, 1).
        constants: ``"tight"``, by ``calls_epsilon``; or ``"triple"``, by ``calls_loss``.
        near: about what β will be, if something is known, such as that of similar calls: it saves the search
            on small grids, and decides nothing but the time.

    Returns:
        β, at least 1e-7, at which the budget holds, within 1e-4 relative of the largest.

    Raises:
        ValueError: not even 1e-7 meets the budget.
    """
    _checks.require_callable("calls_at", calls_at)
    epsilon = _checks.require_real("epsilon", epsilon, 0.0)
    delta = _checks.require_real("delta", delta, 0.0, 1.0)
    _checks.require_choice("constants", constants, ("tight", "triple"))
    if near is not None:
        near = _checks.require_real("near", near, *_BETA_RANGE)
    if constants == "triple":
        failure = _FAILURE_SHARE * delta
        return float(
            calibrate(
                lambda beta: calls_loss(calls_at(float(beta)), failure, constants),
                epsilon,
                delta,
                *_BETA_RANGE,
            )
        )

    @functools.cache
    def excess(log_noise: float, max_points: int = pld.MAX_POINTS) -> float:
        spent = calls_epsilon(calls_at(math.exp(-log_noise)), delta, max_points)
        return math.log(min(max(spent / epsilon, 1e-2), 1e2))

    low, high = (-math.log(beta) for beta in reversed(_BETA_RANGE))
    if near is None:
        few = accountants.FEW_POINTS
        start = root_above(lambda x: excess(x, few), math.log(20.0), 1e-2, low, high, _SLOPE)
    else:
        # Not the end itself, which stands for one that was looked at.
        start = max(-math.log(near), math.nextafter(low, high))
    if low < start < math.inf:
        start = root_above(excess, start, _UNDER_BUDGET, low, high, _SLOPE)
    if start == math.inf:
        raise ValueError(f"epsilon must be what β = {_BETA_RANGE[0]:g} meets, got {epsilon}")
    return _BETA_RANGE[1] if start == low else math.exp(-start)


def violated_preconditions(call: ResqueCall, failure: float) -> list[str]:
    """Which preconditions of the printed Lemma 2.4.10, with its proof's constants, a call violates."""
    _checks.require_instance("call", call, ResqueCall)
    failure = _checks.require_real("failure", failure, 0.0, 1.0)
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


def _merged(calls: Sequence[tuple[ResqueCall, int]]) -> Counter[ResqueCall]:
    """How often each call could be made, for those that could."""
    counts: Counter[ResqueCall] = Counter()
    _checks.require_counted("calls", calls, ResqueCall)
    for call, count in calls:
        counts[call] += count
    return +counts


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


def _law(call: ResqueCall, failure: float) -> Law:
    """The loss of one call, rounded, with at most ``failure`` of infinite loss."""
    rate, uses, more = _uses(call, 0.5 * failure)
    mean_uses = (call.num_queries - 1) / call.population
    in_phase = min((0.99 * failure - more) / mean_uses, 0.5)
    laws = [
        shift_law(call.num_queries, call.radius_ratio, b, in_phase) for b in range(1, len(uses) + 1)
    ]
    shifts = 2.0 * call.beta * np.concatenate([values for values, _ in laws])
    weights = np.concatenate([q * given for q, (_, given) in zip(uses, laws, strict=True)])
    if len(shifts) > _MOST_SHIFTS:
        grid = shifts.max() * np.geomspace(0.01, 1.0, _MOST_SHIFTS)
        weights = np.bincount(np.searchsorted(grid, shifts * (1 - 1e-12)), weights, len(grid))
        shifts, weights = grid[weights > 0], weights[weights > 0]
    law = _profile.sampled_shift(shifts, weights / weights.sum(), rate, 1e-3 * failure)
    return _profile.with_failure(law, more + mean_uses * in_phase)


def _tight_loss(call: ResqueCall, failure: float) -> PrivacyLoss:
    law = _law(call, _DRIFT_SHARE * failure)
    law = _profile.without_tails(law, 0.99 * (1.0 - _DRIFT_SHARE) * failure)
    return PrivacyLoss(_profile.rdp(law), np.asarray(law.infinite))


def _triple_loss(call: ResqueCall, failure: float) -> PrivacyLoss:
    rate, uses, tail = _uses(call, 0.5 * failure)
    mean_uses = (call.num_queries - 1) / call.population
    # All three pairs of a coupled triple must be close at once.
    in_phase = min((failure - tail) / (3.0 * mean_uses), 0.25)
    failed = tail + 3.0 * mean_uses * in_phase
    rdp = subsampled_rdp(conditional_cost(call, in_phase), rate, uses)
    return PrivacyLoss(rdp / (1.0 - failed), np.asarray(failed))


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
