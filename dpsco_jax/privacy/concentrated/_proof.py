"""What the proof says of a phase of tested means: every number that follows from those that run.

From threshold, kept level, test and noise of ``ConcentratedReleases``: how far the mean moves (κ), how likely
a batch passes that is not concentrated, how likely coins differ more than allowed
(docs/theory/concentrated_mean.md, sections 1 to 8). They are not stored: ledger and certificate call
``as_run``, on the host or inside of ``jit``.

The phase's numbers are bounds where ``holds`` is true; nothing is proven elsewhere. The core c and
``coin_failure`` are choices of the proof and run nowhere: for whatever values they have, the rest is computed
so that the bound is true. What float32 rounds is rounded upwards.
"""

import math
from typing import Any, NamedTuple

from dpsco_jax._numerics import as_floats, special_namespace
from dpsco_jax.privacy.concentrated import _tests as tests
from dpsco_jax.privacy.concentrated._coins import Coins
from dpsco_jax.privacy.concentrated._mean_sensitivity import (
    REPLACE_ONE,
    coupled_shift,
    differing_coins,
    steepness,
    vectors_of_one_user,
    weighted_shift,
)

SCORE_SENSITIVITY = 2.0
"""The score moves by less than this when a vector is replaced: (2K - 1)/K, a constant of the proof."""

TEST_ROUNDING = 1.0 + 1e-6
"""Of a test, whose scale is computed from ε in float32: what it costs is taken of an ε that much larger, and
how often it errs of one that much smaller."""

_KEPT_ROUNDING = 1.0 - 2.0**-22
"""The mechanism gives weight 1 from this share of the kept level on, also where that has been rounded up."""

_STEEPEST = 1.0 + 2.0**-5
"""Kept levels so near to one half that the ramp is steeper than this, or turned round, are not covered."""


class Phase(NamedTuple):
    """All that the accounting needs; numbers may be traced.

    Attributes:
        test: "stream" or "fresh".
        rate: q = K/N, 1 where everybody takes part.
        num_steps: T.
        test_epsilon: of the whole stream, or of one fresh test.
        wrong_pass: bound on the probability that one test passes a batch that is not concentrated.
        coin_failure: in one step, that the coins of the selection differ more than the sensitivity says.
        mu: sensitivity over noise of one step; with coins, for the most that may differ.
        coins: of a random selection; None for weights.
    """

    test: str
    rate: float
    num_steps: int
    test_epsilon: Any
    wrong_pass: Any
    coin_failure: Any
    mu: Any
    coins: Coins | None = None

    @property
    def effective_rate(self) -> Any:
        """The rate at which a step is amplified: the stream's tests prefer some batches to others."""
        if self.rate == 1.0 or self.test == "fresh":
            return self.rate
        return effective_rate(self.rate, self.test_epsilon)

    @property
    def factor(self) -> Any:
        """By what the curve of the releases is multiplied: the shift of a noisy threshold."""
        if self.test == "fresh" or self.rate == 1.0:
            return 1.0
        xp, (eps,) = as_floats(self.test_epsilon)
        return xp.exp(eps)

    @property
    def failure(self) -> Any:
        """The part of δ that no Gaussian curve covers."""
        xp, (failed,) = as_floats(test_failure(self) + self.factor * coin_failure(self))
        return xp.minimum(failed, 1.0)


class Run(NamedTuple):
    """What the proof says of releases.

    Attributes:
        phase: for the accounting.
        sensitivity: κ, ℓ2 shift of the mean in units of the score radius; ``inf`` where nothing is proven.
        failure: what of δ no Gaussian curve covers; ``inf`` where nothing is proven.
        holds: whether the proof covers the numbers, bool.
    """

    phase: Phase
    sensitivity: Any
    failure: Any
    holds: Any


def effective_rate(rate: float, test_epsilon: Any) -> Any:
    """Q e^(ε₁/4) / (1 - q + q e^(ε₁/4))."""
    xp, (eps,) = as_floats(test_epsilon)
    odds = rate * xp.exp(0.25 * eps)
    return odds / (1.0 - rate + odds)


def test_failure(phase: Phase) -> Any:
    """Probability that a batch with the differing user passes without being concentrated.

    The run stops at the first failed test, so it is the first such batch that has to pass, and there is
    one only if the user is ever drawn.
    """
    ever = 1.0
    if phase.rate < 1.0:
        ever = -math.expm1(phase.num_steps * math.log1p(-phase.rate))
    return ever * phase.wrong_pass


def coin_failure(phase: Phase) -> Any:
    """What the coupling of random selections adds to δ, in all steps."""
    xp, (failed, mu, e1, wrong, q) = as_floats(
        phase.coin_failure, phase.mu, phase.test_epsilon, phase.wrong_pass, phase.effective_rate
    )
    # ζ′ on top of a curve is a failure of ζ′/(1 - δ(0)), δ(0) being where the curve is largest: the total
    # variation of the Gaussians, and with a response (e^ε₁ - 1 + 2 δ_μ(ε₁))/(1 + e^ε₁).
    at_zero = _gaussian_delta(mu, 0.0 * e1)
    if phase.test == "fresh":
        # Divided by e^ε₁, which overflows for tests that cost as good as everything.
        less = xp.exp(-e1)
        at_zero = (-xp.expm1(-e1) + 2.0 * less * _gaussian_delta(mu, e1)) / (1.0 + less)
    rounding = 32.0 * xp.finfo(mu.dtype).eps
    room = 1.0 - q * xp.minimum(at_zero + wrong + rounding, 1.0)
    added = phase.num_steps * q * failed / xp.where(room > 0, room, 1.0)
    return xp.where(failed == 0, 0.0, xp.where(room > 0, xp.minimum(added, 1.0), 1.0))


def _gaussian_delta(mu: Any, epsilon: Any) -> Any:
    """Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ); what cancels is small beside 1."""
    xp, (mu, epsilon) = as_floats(mu, epsilon)
    ndtr, log_ndtr = special_namespace(xp).ndtr, special_namespace(xp).log_ndtr
    ratio = epsilon / mu
    return ndtr(0.5 * mu - ratio) - xp.exp(epsilon + log_ndtr(-0.5 * mu - ratio))


def as_run(releases: Any) -> Run:
    """What the proof says of ``ConcentratedReleases``, from the numbers that the mechanism uses."""
    size, rate = releases.batch_size, releases.sampling_rate
    # Other batches have other users in the place of the special one: a replacement.
    sides = vectors_of_one_user(releases.relation if rate == 1.0 else REPLACE_ONE)
    xp, (keep, threshold, core, eps, noise, chance) = as_floats(
        releases.keep_level,
        releases.threshold,
        releases.core,
        releases.test_epsilon,
        releases.noise_stddev,
        releases.coin_failure,
    )
    core = xp.floor(core)  # vectors are counted
    random = releases.selection == "bernoulli"
    holds = (keep > 0.5) & (keep < 1.0) & (core >= _KEPT_ROUNDING * keep * size)
    holds &= (core <= size - 1) & xp.isfinite(threshold)
    holds &= (eps > 0) & xp.isfinite(eps) & (noise > 0) & xp.isfinite(noise)
    if random:
        holds &= (chance > 0) & (chance < 1)
    # Where nothing is proven the formulas get numbers that they can be evaluated at.
    keep, core = xp.where(holds, keep, 0.75), xp.where(holds, core, size - 1.0)
    eps, noise = xp.where(holds, eps, 1.0), xp.where(holds, noise, 1.0)
    chance = xp.where(holds & random, chance, 0.5 if random else 0.0)
    steeper = steepness(keep)
    holds &= steeper <= _STEEPEST
    gap = xp.where(holds, threshold - core, 0.0)
    coins = None
    if random:
        mean = steeper * (size - 1 - core) / ((keep - 0.5) * size)
        most = differing_coins(mean, chance)
        holds &= xp.isfinite(most)
        most = xp.where(xp.isfinite(most), most, 0.0)
        kappa = coupled_shift(size, core, keep, most, sides)
        share = xp.minimum(steeper / ((keep - 0.5) * size), 1.0)
        coins = Coins(size - 1 - core, share, sides, most)
    else:
        kappa = weighted_shift(size, core, keep, sides)
    phase = Phase(
        test=releases.test,
        rate=rate,
        num_steps=releases.num_steps,
        test_epsilon=eps * TEST_ROUNDING,
        wrong_pass=tests.wrong_pass(releases.test, gap, eps / TEST_ROUNDING, SCORE_SENSITIVITY),
        coin_failure=chance,
        mu=kappa / noise,
        coins=coins,
    )
    kappa, failure = (xp.where(holds, value, math.inf)[()] for value in (kappa, phase.failure))
    return Run(phase, kappa, failure, holds)
